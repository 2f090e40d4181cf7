"""The failure budget: limits the unpaid outcomes of one caller.

Recent failures count, plus calls in flight in proportion to them. With a budget of
20, each call in flight counts as 1/20 of a failure after one failure, and as 1/2 after ten. A caller without failures is limited
only by the limits per address and per origin, so a slow API does not count against it. Each recently paid call removes one call in
flight from the count. A call over the budget waits a moment for another to end, and is then refused. Gateways that share their rate
limits count failures together; each gateway counts calls in flight alone. A key of `over_all_listings` has five times the budget.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from limits import RateLimitItem, RateLimitItemPerSecond

from tollway.ids import Address, ListingId
from tollway.limits import Limits
from tollway.rate_limits.limiter import RateAllowance, RateLimiter, client_bucket

KEYS_MAX = 100_000
RETRY_S = 1  # Retry-After where no call ended during the wait
LISTINGS_PER_CALLER = 5
"""The budget of a caller over all listings, as a multiple of the budget at one listing."""
_OVER_ALL = "all:"


def over_all_listings(caller: str) -> str:
    """The key that counts the failures of a caller at all listings together."""
    return _OVER_ALL + caller


CALLERS_KEPT = 8_192


@lru_cache(maxsize=CALLERS_KEPT)
def build_failure_keys(payer: Address, client_address: str, listing_id: ListingId) -> tuple[str, ...]:
    """The keys that count the failures of a caller, at this listing and over all listings: each failure writes a row, and creating
    listings is free. No key is of a listing alone: the failures of one caller would block the listing for all callers."""
    wallet, address = f"wallet:{payer.hex()}", f"address:{client_bucket(client_address)}"
    here = f"{wallet}:{listing_id}", f"{address}:{listing_id}"
    return (*here, over_all_listings(wallet), over_all_listings(address))


@dataclass(slots=True)
class _CallerState:
    """The counters of one caller. `paid` counts in fixed windows, so a payment counts for one to two windows."""

    running: int = 0
    window: int = 0
    paid: int = 0
    paid_before: int = 0
    ended: asyncio.Event | None = None

    def move_to_window(self, window: int) -> None:
        self.paid_before = self.paid if window == self.window + 1 else 0
        self.window, self.paid = window, 0


class FailureBudget:
    """The failure counts of callers, by key. Safe to use from many tasks at once."""

    def __init__(self, *, limits: Limits, rate_limiter: RateLimiter, now_ms: Callable[[], int]) -> None:
        self._limits = limits
        self._now_ms = now_ms
        self._window_ms = limits.failed_calls_window_s * 1000
        self._rate_limiter = rate_limiter
        self._failed = RateLimitItemPerSecond(
            limits.failed_calls_per_window, limits.failed_calls_window_s, namespace="failed"
        )
        self._failed_over_all = RateLimitItemPerSecond(
            limits.failed_calls_per_window * LISTINGS_PER_CALLER,
            limits.failed_calls_window_s,
            namespace="failed",
        )
        # The limiter is read only for keys that failed here recently, so most paid calls need no request to a shared limiter.
        # Failures at other gateways count from the first failure here on.
        self._failing: OrderedDict[str, int] = OrderedDict()  # key -> last failure, in ms
        self._states: OrderedDict[str, _CallerState] = OrderedDict()

    async def enter(self, keys: Sequence[str]) -> int | None:
        """Admits one more call of the caller with these keys. None: the call is in flight until `leave`. Else the seconds to wait, and
        the call does not count. Waits at most `failed_calls_wait_s` for other calls to end."""
        wait_s = await self._wait_budget(keys) if self._failing else None
        if wait_s is None:
            for state in self._find_states(keys):
                state.running += 1
        return wait_s

    async def _wait_budget(self, keys: Sequence[str]) -> int | None:
        until = asyncio.get_running_loop().time() + self._limits.failed_calls_wait_s
        while True:
            failing = [key for key in keys if self._is_failing(key)]
            allowances = {key: await self._rate_limiter.peek(self._item_of(key), key) for key in failing}
            waits = [allowance.wait_s for allowance in allowances.values() if allowance.wait_s is not None]
            if waits:
                return max(waits)  # until calls are accepted again
            full = next((key for key, allowance in allowances.items() if self._is_full(key, allowance)), None)
            if full is None:
                return None
            if not await self._wait_ended(full, until):
                return RETRY_S

    def leave(self, keys: Sequence[str]) -> None:
        """Ends a call in flight. Its outcome is recorded before."""
        for key in keys:
            state = self._states[key]  # `_forget_idle` keeps keys with running calls
            state.running -= 1
            if state.ended is not None:
                state.ended.set()
                state.ended = None

    def record_paid(self, keys: Sequence[str]) -> None:
        for state in self._find_states(keys):
            state.paid += 1

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
        if self._now_ms() - failed_ms > self._window_ms:
            del self._failing[key]
            return False
        return True

    def _is_full(self, key: str, allowance: RateAllowance) -> bool:
        """Whether failed + counted x failed / budget has reached the budget, in integers. `counted`: the calls in flight, minus the
        recently paid calls."""
        (state,) = self._find_states((key,))
        budget = self._item_of(key).amount
        failed = budget - allowance.left
        counted = max(state.running - state.paid - state.paid_before, 0)
        return failed * (budget + counted) >= budget * budget

    async def _wait_ended(self, key: str, until: float) -> bool:
        (state,) = self._find_states((key,))
        if state.ended is None:
            state.ended = asyncio.Event()
        try:
            async with asyncio.timeout_at(until):
                await state.ended.wait()
        except TimeoutError:
            return False
        return True

    def _find_states(self, keys: Sequence[str]) -> list[_CallerState]:
        """The counters of these keys, in the current window."""
        states, found = self._states, []
        window = self._now_ms() // self._window_ms
        for key in keys:
            state = states.get(key)
            if state is None:
                state = states[key] = _CallerState(window=window)
                self._forget_idle()
            elif state.window != window:
                state.move_to_window(window)
            found.append(state)
        return found

    def _forget_idle(self) -> None:
        """Drops the oldest key. A key with running or waiting calls moves to the end instead."""
        while len(self._states) > KEYS_MAX:
            key, state = self._states.popitem(last=False)
            if state.running:
                self._states[key] = state
                return
