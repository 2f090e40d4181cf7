"""How many calls that pay nobody are borne of one caller: those that failed lately, and those that run and may fail yet.

A call counts as failed from its start until its end says otherwise; else a hundred that start at once would all pass
before the first of them is known to have failed. Whoever comes while too many run waits a moment for one to end, and
each call that was paid lately lets one more run: an honest caller has soon as many at once as he likes, and is refused
none. Per process, and never about money.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from limits import RateLimitItemPerSecond

from tollway.limits import Limits
from tollway.rates import Rates

KEYS_MAX = 100_000
RETRY_S = 1  # after waiting in vain for a call to end


@dataclass(slots=True)
class _Standing:
    """What is known of one caller. `paid` counts in windows of fixed beginning, so it is remembered for one to two."""

    running: int = 0
    window: int = 0
    paid: int = 0
    paid_before: int = 0
    ended: asyncio.Event | None = None

    def turn_to(self, window: int) -> None:
        if window != self.window:
            self.paid_before = self.paid if window == self.window + 1 else 0
            self.window, self.paid = window, 0


class Patience:
    """Counts callers by whatever keys they are known by. Safe to use from many tasks at once."""

    def __init__(self, *, limits: Limits, now_ms: Callable[[], int]) -> None:
        self._limits = limits
        self._now_ms = now_ms
        self._rates = Rates()
        self._failed = RateLimitItemPerSecond(
            limits.failed_calls_per_window, limits.failed_calls_window_s, namespace="failed"
        )
        # Only a key that failed lately is worth asking the limiter about: most never have.
        self._failing: OrderedDict[str, None] = OrderedDict()
        self._standings: OrderedDict[str, _Standing] = OrderedDict()

    async def enter(self, keys: Sequence[str]) -> int | None:
        """One more call of whoever has all these keys. None: it runs until `leave`; else the seconds to wait, and it
        counts for nothing. Waits at most `failed_calls_wait_s` for others to end."""
        until = asyncio.get_running_loop().time() + self._limits.failed_calls_wait_s
        while True:
            wait_s = self._find_wait_s(keys)
            if wait_s is not None:
                return wait_s
            full = next((key for key in keys if self._is_full(key)), None)
            if full is None:
                break
            if not await self._wait_ended(full, until):
                return RETRY_S
        for key in keys:
            self._stand(key).running += 1
        return None

    def leave(self, keys: Sequence[str]) -> None:
        """It has ended, and how has been noted."""
        for key in keys:
            standing = self._standings[key]  # one that runs is never forgotten
            standing.running -= 1
            if standing.ended is not None:
                standing.ended.set()
                standing.ended = None

    def note_paid(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._stand(key).paid += 1

    def note_failed(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._failing[key] = None
            self._failing.move_to_end(key)
            self._rates.hit(self._failed, key)
        while len(self._failing) > KEYS_MAX:
            self._failing.popitem(last=False)

    def _find_wait_s(self, keys: Sequence[str]) -> int | None:
        """Until calls are accepted again, where too many have failed."""
        waits = [self._rates.wait_s(self._failed, key) for key in keys if key in self._failing]
        return max((wait_s for wait_s in waits if wait_s is not None), default=None)

    def _is_full(self, key: str) -> bool:
        standing = self._stand(key)
        failures_left = self._limits.failed_calls_per_window
        if key in self._failing:
            failures_left = self._rates.left(self._failed, key)
        return standing.running >= failures_left + standing.paid + standing.paid_before

    async def _wait_ended(self, key: str, until: float) -> bool:
        standing = self._stand(key)
        if standing.ended is None:
            standing.ended = asyncio.Event()
        try:
            async with asyncio.timeout_at(until):
                await standing.ended.wait()
        except TimeoutError:
            return False
        return True

    def _stand(self, key: str) -> _Standing:
        window = self._now_ms() // (self._limits.failed_calls_window_s * 1000)
        standing = self._standings.get(key)
        if standing is None:
            standing = self._standings[key] = _Standing(window=window)
            self._forget_idle()
        standing.turn_to(window)
        return standing

    def _forget_idle(self) -> None:
        """The oldest key goes; one that has calls running, or waiting, moves to the end instead."""
        while len(self._standings) > KEYS_MAX:
            key, standing = self._standings.popitem(last=False)
            if standing.running:
                self._standings[key] = standing
                return
