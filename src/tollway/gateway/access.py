"""Access checks of a call, independent of its rail: blocked wallets, the caller's maximum price, recent failures, rate limits.

`FailureBudget` limits the unpaid outcomes of one caller: recent failures, plus calls in flight in proportion to them. With a budget of
20, each call in flight counts as 1/20 of a failure after one failure, and as 1/2 after ten. A caller without failures is limited
only by the limits per address and per origin, so a slow API does not count against it. Each recently paid call removes one call in
flight from the count. A call over the budget waits a moment for another to end, and is then refused. Gateways that share their rate
limits count failures together; each gateway counts calls in flight alone. A key of `over_all_listings` has five times the budget.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Self

from limits import RateLimitItem, RateLimitItemPerMinute, RateLimitItemPerSecond

from tollway.errors import Code, Problem, TollwayError, describe_rate
from tollway.gateway.call_observer import PhaseTimer
from tollway.gateway.messages import CallRefused, ClientGone, Headers, ProxyRequest, ProxyResponse
from tollway.gateway.problems import check_price_max, explain_block
from tollway.ids import Address, ListingId
from tollway.limits import Limits
from tollway.money import Asset, Price
from tollway.payments.authorization_onchain import AuthorizationLookup, UnresolvedQuota, quota_keys
from tollway.rate_limits.limiter import RateAllowance, RateLimiter, client_bucket
from tollway.registry.listing import Listing, RateLimit
from tollway.registry.moderation import BlockedWallet

LISTINGS_PER_ADDRESS = 5
"""The free calls of a client address over all listings, as a multiple of its free calls at one listing."""


class CallRateLimits:
    """The rate limits of chain look-ups, free calls and listings. Not used for money. One per process."""

    def __init__(self, *, limits: Limits, rate_limiter: RateLimiter) -> None:
        self.lookups_per_minute = limits.lookups_per_minute
        self.rate_limiter = rate_limiter
        self._lookups = RateLimitItemPerMinute(limits.lookups_per_minute, namespace="lookup")
        self._unresolved = UnresolvedQuota(limits)
        self._free = RateLimitItemPerMinute(limits.free_calls_per_minute, namespace="free")
        self.free_calls_of_address_max = limits.free_calls_per_minute * LISTINGS_PER_ADDRESS
        self._free_of_address = RateLimitItemPerMinute(
            self.free_calls_of_address_max, namespace="free-address"
        )

    async def charge(self, *, client_address: str, signer: str) -> int | None:
        """Counts one chain look-up for the client address and the signer. None where it is allowed, else the seconds to wait; a
        refused look-up does not count."""
        address_key, signer_key = keys = quota_keys(client_address, signer)
        wait_s = self._unresolved.find_wait(keys)
        if wait_s is not None:
            return wait_s
        wait_s = await self.rate_limiter.hit(self._lookups, address_key)
        if wait_s is not None:
            return wait_s
        wait_s = await self.rate_limiter.hit(self._lookups, signer_key)
        if wait_s is not None:
            self.rate_limiter.undo_hit(self._lookups, address_key)
        return wait_s

    def give_back(self, *, client_address: str, signer: str) -> None:
        for key in quota_keys(client_address, signer):
            self.rate_limiter.undo_hit(self._lookups, key)

    def count_unresolved(self, *, client_address: str, signer: str) -> None:
        self.give_back(client_address=client_address, signer=signer)
        self._unresolved.note(quota_keys(client_address, signer))

    async def charge_free_call(self, client_address: str, listing_id: ListingId) -> int | None:
        return await self.rate_limiter.hit(self._free, client_bucket(client_address), listing_id)

    async def charge_free_address(self, client_address: str) -> int | None:
        """Counts a free call over all listings: each writes a row, and creating listings is free."""
        return await self.rate_limiter.hit(self._free_of_address, client_bucket(client_address))

    def give_back_free_call(self, client_address: str, listing_id: ListingId) -> None:
        self.rate_limiter.undo_hit(self._free, client_bucket(client_address), listing_id)

    def give_back_free_listing(
        self, rate: RateLimit | None, listing_id: ListingId, client_address: str
    ) -> None:
        """`rate` None: the listing has none."""
        if rate is not None:
            self.rate_limiter.undo_hit(_item_of(rate), listing_id, f"address:{client_bucket(client_address)}")

    async def charge_listing(self, rate: RateLimit, listing_id: ListingId, payer: Address) -> int | None:
        return await self.rate_limiter.hit(_item_of(rate), listing_id, str(payer))

    async def charge_free_listing(
        self, rate: RateLimit, listing_id: ListingId, client_address: str
    ) -> int | None:
        """A free call has no payer, so it counts for the client address."""
        return await self.rate_limiter.hit(
            _item_of(rate), listing_id, f"address:{client_bucket(client_address)}"
        )


def _item_of(rate: RateLimit) -> RateLimitItem:
    return RateLimitItemPerSecond(rate.calls, rate.per_s, namespace="listing")


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


_UNSETTLED = frozenset({Code.PAYMENT_OUTCOME_UNKNOWN, Code.PAYMENT_SETTLEMENT_FAILED})
_UNRESOLVED = frozenset({Code.CHAIN_UNAVAILABLE, Code.STORAGE_UNAVAILABLE})


@dataclass(frozen=True, slots=True, kw_only=True)
class _AccessChecks:
    call_limits: CallRateLimits
    failures: FailureBudget
    limits: Limits
    find_block: Callable[[Address], BlockedWallet | None]
    clock: Callable[[], float]


class AccessControl:
    """The access checks of all calls. One per process."""

    def __init__(
        self,
        call_limits: CallRateLimits,
        *,
        limits: Limits,
        find_block: Callable[[Address], BlockedWallet | None],
        now_ms: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock`: monotonic seconds, for the phases of a call."""
        failures = FailureBudget(limits=limits, rate_limiter=call_limits.rate_limiter, now_ms=now_ms)
        self._checks = _AccessChecks(
            call_limits=call_limits, failures=failures, limits=limits, find_block=find_block, clock=clock
        )

    def start_clock(self) -> float:
        """The moment at which a call begins, for `enter`."""
        return self._checks.clock()

    def enter(
        self,
        request: ProxyRequest,
        listing: Listing,
        *,
        is_settled_here: bool = False,
        started_s: float | None = None,
    ) -> "ActiveCall":
        """Opens a call; the returned context ends it. `is_settled_here`: this gateway pays for the settlement. `started_s`: by
        `start_clock`; without it the call begins now."""
        started_s = self._checks.clock() if started_s is None else started_s
        return ActiveCall(
            self._checks, request, listing, is_settled_here=is_settled_here, started_s=started_s
        )

    async def check_free(self, request: ProxyRequest, listing: Listing) -> Problem | None:
        """Checks the rate limits of a free call: of the listing, of the address at this listing, and of the address over all listings.
        None where the call is allowed. A refused call counts against none of them."""
        call_limits, rate = self._checks.call_limits, listing.rate_limit
        if rate is not None:
            wait_s = await call_limits.charge_free_listing(rate, listing.id, request.client_address)
            if wait_s is not None:
                return _explain_too_often(rate, wait_s, payment_state="none")
        wait_s = await call_limits.charge_free_call(request.client_address, listing.id)
        if wait_s is not None:
            call_limits.give_back_free_listing(rate, listing.id, request.client_address)
            most = self._checks.limits.free_calls_per_minute
            return _explain_too_many_free("free-calls", most, wait_s, where="of one API")
        wait_s = await call_limits.charge_free_address(request.client_address)
        if wait_s is not None:
            call_limits.give_back_free_listing(rate, listing.id, request.client_address)
            call_limits.give_back_free_call(request.client_address, listing.id)
            most = call_limits.free_calls_of_address_max
            return _explain_too_many_free("free-calls-address", most, wait_s, where="of all APIs together")
        return None


class ActiveCall(PhaseTimer):
    """One call, from the check of its payer to its outcome. A context; its exit counts the outcome. It times the phases of the call.

    `payer`: the wallet for which the outcome counts; None until the payer is verified.
    """

    __slots__ = (
        "_checks",
        "_is_settled_here",
        "_listing",
        "_lookup",
        "_request",
        "_running",
        "payer",
    )

    def __init__(
        self,
        checks: _AccessChecks,
        request: ProxyRequest,
        listing: Listing,
        *,
        is_settled_here: bool,
        started_s: float,
    ) -> None:
        super().__init__(checks.clock, started_s, request.trace)
        self.payer: Address | None = None
        self._checks = checks
        self._request = request
        self._listing = listing
        self._is_settled_here = is_settled_here
        self._running: tuple[str, ...] = ()
        self._lookup: AuthorizationLookup | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(exc, CallRefused):
                self._count(_find_state(exc.headers), exc.problem.code)
            elif isinstance(exc, ClientGone):
                self._count_gone(exc.payment_state)
        finally:
            running, self._running = self._running, ()
            self._checks.failures.leave(running)
            self._end_lookup(kind, exc, trace)

    def _count_gone(self, payment_state: str) -> None:
        if payment_state == "charged" and self._lookup is not None:
            self._lookup.give_back()
        if payment_state != "none" and self.payer is not None:  # without a claim there is no outcome to count
            self._checks.failures.record_failed(self._build_failure_keys(self.payer))

    def _end_lookup(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lookup is None:
            return
        if isinstance(exc, TollwayError) and exc.problem.code in _UNRESOLVED:
            self._lookup.leave_unresolved()
        self._lookup.__exit__(kind, exc, trace)

    def hold_lookup(self, lookup: AuthorizationLookup) -> AuthorizationLookup:
        """Ends the look-up with the call. The look-up counts, unless this call is charged; a stored response was charged earlier."""
        self._lookup = lookup.__enter__()
        return lookup

    def count_response(self, response: ProxyResponse) -> ProxyResponse:
        """Counts the outcome of a call with a response of the upstream."""
        self._count(response.payment_state, None)
        return response

    async def check(self, payer: Address, price: Price, asset: Asset) -> Problem | None:
        """Checks whether this wallet may make this call now at that price: None, or the problem. An allowed call is in flight until the
        context exits, and counts against the rate of the listing."""
        self.payer = payer
        block = self._checks.find_block(payer)
        if block is not None:
            return explain_block(block)
        problem = check_price_max(self._request, price, asset)
        if problem is not None:
            return problem
        keys = (*self._build_failure_keys(payer), *self._build_settlement_keys(payer))
        wait_s = await self._checks.failures.enter(keys)
        if wait_s is not None:
            return self._explain_exhausted(wait_s)
        self._running = keys
        return await self._charge_rate(payer)

    def _count(self, state: str | None, code: Code | None) -> None:
        """Counts the outcome of a call. Calls that ended released or unknown count against the failure budget: the provider worked
        without pay. A failed settlement also costs this gateway, so it counts for the wallet over all listings."""
        if state == "charged" and self._lookup is not None:
            self._lookup.give_back()
        if self.payer is None:
            return
        failures = self._checks.failures
        counted, anywhere = self._build_failure_keys(self.payer), self._build_settlement_keys(self.payer)
        if state == "charged":
            failures.record_paid((*counted, *anywhere))
        elif state in ("released", "held"):
            failures.record_failed(counted)
            if code in _UNSETTLED:
                failures.record_failed(anywhere)

    def _build_failure_keys(self, payer: Address) -> tuple[str, ...]:
        return build_failure_keys(payer, self._request.client_address, self._listing.id)

    def _build_settlement_keys(self, payer: Address) -> tuple[str, ...]:
        return (f"settled:{payer.hex()}",) if self._is_settled_here else ()

    def _explain_exhausted(self, wait_s: int) -> Problem:
        limits = self._checks.limits
        return Problem(
            code=Code.FAILED_CALL_BUDGET_EXHAUSTED,
            detail="Too many calls of this wallet or client address failed recently, or are in flight after failed ones. The payment "
            "is unspent; send the request again after Retry-After.",
            retry_after_s=wait_s,
            payment_state="released",
            members=describe_rate(
                "failed-calls", limit=limits.failed_calls_per_window, window_s=limits.failed_calls_window_s
            ),
        )

    async def _charge_rate(self, payer: Address) -> Problem | None:
        rate = self._listing.rate_limit
        wait_s = (
            None
            if rate is None
            else await self._checks.call_limits.charge_listing(rate, self._listing.id, payer)
        )
        if rate is None or wait_s is None:
            return None
        return _explain_too_often(rate, wait_s, payment_state="released")


def _find_state(headers: Headers) -> str | None:
    """The payment state in the headers of a response. None for a stored response: another run was counted for it."""
    state = None
    for name, value in headers:
        if name == b"idempotency-replayed":
            return None
        if name == b"tollway-payment-state":
            state = value.decode("ascii")
    return state


def _explain_too_many_free(policy: str, most: int, wait_s: int, *, where: str) -> Problem:
    return Problem(
        code=Code.RATE_LIMITED,
        detail=f"A client address makes at most {most} free calls {where} per minute. Send the request again after Retry-After.",
        retry_after_s=wait_s,
        payment_state="none",
        members=describe_rate(policy, limit=most, window_s=60),
    )


def _explain_too_often(rate: RateLimit, wait_s: int, *, payment_state: str) -> Problem:
    return Problem(
        code=Code.RATE_LIMITED,
        detail=f"The provider allows {rate.calls} calls in {rate.per_s} seconds. Send the request again after Retry-After.",
        retry_after_s=wait_s,
        payment_state=payment_state,
        members=describe_rate("listing", limit=rate.calls, window_s=rate.per_s),
    )
