"""Limits unpaid outcomes of one caller: calls that failed lately, and calls in flight in the measure of those.

Calls in flight count in the measure in which the budget of failures is used up: with a budget of 20, each counts as a
twentieth of a failure once one call has failed, and as half of one once ten have. A caller without failures has as many
in flight as the limits per address and per origin allow, however slow the API is. Each call that was paid lately takes
one in flight out of the count. A call that comes while too much counts waits for another to end, for a moment, before it
is refused. Failures are counted with those at other gateways, where these share their rates; calls in flight are counted
here alone. A key made by `over_all_listings` has five times the budget. Never about money.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from limits import RateLimitItem, RateLimitItemPerSecond

from tollway.limits import Limits
from tollway.rates import RateAllowance, RateLimiter

KEYS_MAX = 100_000
RETRY_S = 1  # after waiting in vain for a call to end
LISTINGS_PER_CALLER = 5
"""The budget of a caller over all listings is that of so many listings."""
_OVER_ALL = "all:"


def over_all_listings(caller: str) -> str:
    """The key of a caller whose failures at every listing count together."""
    return _OVER_ALL + caller


@dataclass(slots=True)
class _CallerState:
    """What is known of one caller. `paid` counts in windows of fixed beginning, so it is remembered for one to two."""

    running: int = 0
    window: int = 0
    paid: int = 0
    paid_before: int = 0
    ended: asyncio.Event | None = None

    def move_to_window(self, window: int) -> None:
        if window != self.window:
            self.paid_before = self.paid if window == self.window + 1 else 0
            self.window, self.paid = window, 0


class FailureBudget:
    """Counts callers by whatever keys they are known by. Safe to use from many tasks at once."""

    def __init__(self, *, limits: Limits, rate_limiter: RateLimiter, now_ms: Callable[[], int]) -> None:
        self._limits = limits
        self._now_ms = now_ms
        self._rate_limiter = rate_limiter
        self._failed = RateLimitItemPerSecond(
            limits.failed_calls_per_window, limits.failed_calls_window_s, namespace="failed"
        )
        self._failed_over_all = RateLimitItemPerSecond(
            limits.failed_calls_per_window * LISTINGS_PER_CALLER,
            limits.failed_calls_window_s,
            namespace="failed",
        )
        # Only a key that failed here lately is worth asking the limiter about: most never have, and a call that is
        # paid asks no server. Whoever failed elsewhere is known for it after the first failure here.
        self._failing: OrderedDict[str, int] = OrderedDict()  # its last failure, in ms
        self._states: OrderedDict[str, _CallerState] = OrderedDict()

    async def enter(self, keys: Sequence[str]) -> int | None:
        """One more call of the caller with all these keys. None: it is in flight until `leave`; else the seconds to wait,
        and it counts for nothing. Waits at most `failed_calls_wait_s` for others to end."""
        until = asyncio.get_running_loop().time() + self._limits.failed_calls_wait_s
        while True:
            failing = [key for key in keys if self._is_failing(key)]
            rooms = {key: await self._rate_limiter.peek(self._item_of(key), key) for key in failing}
            waits = [allowance.wait_s for allowance in rooms.values() if allowance.wait_s is not None]
            if waits:
                return max(waits)  # until calls are accepted again
            full = next((key for key, allowance in rooms.items() if self._is_full(key, allowance)), None)
            if full is None:
                break
            if not await self._wait_ended(full, until):
                return RETRY_S
        for key in keys:
            self._find_state(key).running += 1
        return None

    def leave(self, keys: Sequence[str]) -> None:
        """It has ended, and how has been noted."""
        for key in keys:
            state = self._states[key]  # one that runs is never forgotten
            state.running -= 1
            if state.ended is not None:
                state.ended.set()
                state.ended = None

    def record_paid(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._find_state(key).paid += 1

    def record_failed(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._failing[key] = self._now_ms()
            self._failing.move_to_end(key)
            self._rate_limiter.count_hit(self._item_of(key), key)
        while len(self._failing) > KEYS_MAX:
            self._failing.popitem(last=False)

    def _item_of(self, key: str) -> RateLimitItem:
        return self._failed_over_all if key.startswith(_OVER_ALL) else self._failed

    def _is_failing(self, key: str) -> bool:
        failed_ms = self._failing.get(key)
        if failed_ms is None:
            return False
        if self._now_ms() - failed_ms > self._limits.failed_calls_window_s * 1000:
            del self._failing[key]
            return False
        return True

    def _is_full(self, key: str, allowance: RateAllowance) -> bool:
        """Whether failed + counted x failed / budget has reached the budget, in integers. `counted`: the calls in flight,
        less one for each that was paid lately."""
        state = self._find_state(key)
        budget = self._item_of(key).amount
        failed = budget - allowance.left
        counted = max(state.running - state.paid - state.paid_before, 0)
        return failed * (budget + counted) >= budget * budget

    async def _wait_ended(self, key: str, until: float) -> bool:
        state = self._find_state(key)
        if state.ended is None:
            state.ended = asyncio.Event()
        try:
            async with asyncio.timeout_at(until):
                await state.ended.wait()
        except TimeoutError:
            return False
        return True

    def _find_state(self, key: str) -> _CallerState:
        window = self._now_ms() // (self._limits.failed_calls_window_s * 1000)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = _CallerState(window=window)
            self._forget_idle()
        state.move_to_window(window)
        return state

    def _forget_idle(self) -> None:
        """The oldest key goes; one that has calls running, or waiting, moves to the end instead."""
        while len(self._states) > KEYS_MAX:
            key, state = self._states.popitem(last=False)
            if state.running:
                self._states[key] = state
                return
