"""Who may buy now, whatever they pay with: blocked wallets, the caller's own maximum, failures lately, a listing's rate.

It protects the gateway and its providers; it takes no money and knows nothing of proofs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tollway.errors import Code, Problem, describe_rate
from tollway.gateway.exchange import Disconnected, IncomingCall, Outcome, ProblemResponse
from tollway.gateway.meters import CallRateLimits
from tollway.gateway.patience import FailureBudget, over_all_listings
from tollway.gateway.refusals import BLOCKED, check_price_max
from tollway.identifiers import Address
from tollway.limits import Limits
from tollway.money import Asset, Price
from tollway.rates import client_bucket
from tollway.registry.listing import Listing, RateLimit

_UNSETTLED = frozenset({Code.PAYMENT_OUTCOME_UNKNOWN, Code.PAYMENT_SETTLEMENT_FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class _AccessChecks:
    call_limits: CallRateLimits
    failures: FailureBudget
    limits: Limits
    is_blocked: Callable[[Address], bool]


class AccessControl:
    """One per process."""

    def __init__(
        self,
        call_limits: CallRateLimits,
        *,
        limits: Limits,
        is_blocked: Callable[[Address], bool],
        now_ms: Callable[[], int],
    ) -> None:
        failures = FailureBudget(limits=limits, rate_limiter=call_limits.rate_limiter, now_ms=now_ms)
        self._checks = _AccessChecks(
            call_limits=call_limits, failures=failures, limits=limits, is_blocked=is_blocked
        )

    def enter(self, call: IncomingCall, listing: Listing, *, is_settled_here: bool = False) -> "ActiveCall":
        """A paid call, for as long as it runs. `is_settled_here`: its money moves at this gateway's expense."""
        return ActiveCall(self._checks, call, listing, is_settled_here=is_settled_here)

    async def check_free(self, call: IncomingCall, listing: Listing) -> Problem | None:
        """Why this address may not make this free call now. Only a pass counts: against the listing's own rate, against the
        address's rate at this listing, and against its rate over all listings."""
        call_limits, rate = self._checks.call_limits, listing.rate_limit
        if rate is not None:
            wait_s = await call_limits.charge_free_listing(rate, listing.id, call.client_address)
            if wait_s is not None:
                return _explain_too_often(rate, wait_s, payment_state="none")
        wait_s = await call_limits.charge_free_call(call.client_address, listing.id)
        if wait_s is not None:
            call_limits.give_back_free_listing(rate, listing.id, call.client_address)
            most = self._checks.limits.free_calls_per_minute
            return _explain_too_many_free("free-calls", most, wait_s, where="of one API")
        wait_s = await call_limits.charge_free_address(call.client_address)
        if wait_s is not None:
            call_limits.give_back_free_listing(rate, listing.id, call.client_address)
            call_limits.give_back_free_call(call.client_address, listing.id)
            most = call_limits.free_calls_of_address_max
            return _explain_too_many_free("free-calls-address", most, wait_s, where="of all APIs together")
        return None


class ActiveCall:
    """One paid call, from the check of its payer to its outcome; a context, which ends it."""

    def __init__(
        self, checks: _AccessChecks, call: IncomingCall, listing: Listing, *, is_settled_here: bool
    ) -> None:
        self._checks = checks
        self._call = call
        self._listing = listing
        self._is_settled_here = is_settled_here
        self._running: tuple[str, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        running, self._running = self._running, ()
        self._checks.failures.leave(running)

    async def check(self, payer: Address, price: Price, asset: Asset) -> Problem | None:
        """Why this wallet may not make this call now at that price. A pass counts as a call that runs, until the visit
        ends, and against the listing's rate."""
        if self._checks.is_blocked(payer):
            return BLOCKED
        problem = check_price_max(self._call, price, asset)
        if problem is not None:
            return problem
        keys = (*self._build_failure_keys(payer), *self._build_settlement_keys(payer))
        wait_s = await self._checks.failures.enter(keys)
        if wait_s is not None:
            return self._explain_exhausted(wait_s)
        self._running = keys
        return await self._charge_rate(payer)

    def record_outcome(self, payer: Address, outcome: Outcome) -> None:
        """Runs that ended unbilled or unknown count against a budget: they cost the provider and pay nobody. Those that
        were to be settled, and were not, cost this gateway too, and count for the wallet wherever it calls."""
        headers = {} if isinstance(outcome, Disconnected) else dict(outcome.headers)
        if b"idempotency-replayed" in headers:
            return  # another call's answer
        state = headers.get(b"tollway-payment-state")
        counted, anywhere, failures = (
            self._build_failure_keys(payer),
            self._build_settlement_keys(payer),
            self._checks.failures,
        )
        if state == b"charged":
            failures.record_paid((*counted, *anywhere))
        elif isinstance(outcome, Disconnected) or state in (b"released", b"held"):
            failures.record_failed(counted)
            if isinstance(outcome, ProblemResponse) and outcome.problem.code in _UNSETTLED:
                failures.record_failed(anywhere)

    def _build_failure_keys(self, payer: Address) -> tuple[str, ...]:
        """Whose failures count together, at this listing and over all of them: each leaves a row, and listings cost nothing
        to make. Never those of a listing alone: one caller's failures would close it for all the others."""
        wallet, address = f"wallet:{payer.hex()}", f"address:{client_bucket(self._call.client_address)}"
        listing_id = self._listing.id
        here = f"{wallet}:{listing_id}", f"{address}:{listing_id}"
        return *here, over_all_listings(wallet), over_all_listings(address)

    def _build_settlement_keys(self, payer: Address) -> tuple[str, ...]:
        return (f"settled:{payer.hex()}",) if self._is_settled_here else ()

    def _explain_exhausted(self, wait_s: int) -> Problem:
        limits = self._checks.limits
        return Problem(
            code=Code.FAILED_CALL_BUDGET_EXHAUSTED,
            detail="Too many calls of this wallet or address failed lately, or are in flight beside failed ones. The payment "
            "is untouched.",
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


def _explain_too_many_free(policy: str, most: int, wait_s: int, *, where: str) -> Problem:
    return Problem(
        code=Code.RATE_LIMITED,
        detail=f"A client address makes at most {most} free calls {where} a minute.",
        retry_after_s=wait_s,
        payment_state="none",
        members=describe_rate(policy, limit=most, window_s=60),
    )


def _explain_too_often(rate: RateLimit, wait_s: int, *, payment_state: str) -> Problem:
    return Problem(
        code=Code.RATE_LIMITED,
        detail=f"The provider allows {rate.calls} calls in {rate.per_s} seconds.",
        retry_after_s=wait_s,
        payment_state=payment_state,
        members=describe_rate("listing", limit=rate.calls, window_s=rate.per_s),
    )
