"""Access checks of a call, independent of its rail: blocked wallets, the caller's maximum price, recent failures, rate limits.

`ActiveCall` also counts the outcome of the call, ends its chain look-up, and times its phases.
"""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from tollway.errors import Code, Problem, TollwayError, describe_rate
from tollway.gateway.call_rates import CallRateLimits
from tollway.gateway.failure_budget import FailureBudget, build_failure_keys
from tollway.gateway.messages import CallRefused, ClientGone, Headers, ProxyRequest
from tollway.gateway.phase_timer import PhaseTimer
from tollway.gateway.problems import PRICE_MAX_HEADER, check_price_max, exceed_budget, explain_block
from tollway.ids import Address
from tollway.ledger.budgets import Budget, refuse_spending
from tollway.ledger.ledger import BudgetExceeded
from tollway.limits import Limits
from tollway.money import Asset, Price
from tollway.payments.lookup_quota import AuthorizationLookup
from tollway.registry.listing import Listing, RateLimit
from tollway.registry.moderation import BlockedWallet
from tollway.spending_policy import name_targets

_UNSETTLED = frozenset({Code.PAYMENT_OUTCOME_UNKNOWN, Code.PAYMENT_SETTLEMENT_FAILED})
"""The settlement cost gas, or may have cost it, and no payment is known."""
_UNRESOLVED = frozenset({Code.CHAIN_UNAVAILABLE, Code.STORAGE_UNAVAILABLE})
"""Not the fault of the caller: its look-up counts for a shorter time."""


class Bindings(Protocol):
    """The budgets of the wallets that have an owner."""

    async def find_known_binding(self, agent: Address) -> Budget | None: ...

    async def announce_refusal(self, budget: Budget, refused: BudgetExceeded, *, now_ms: int) -> None: ...


class AccessControl:
    """The access checks of all calls. One per process."""

    def __init__(
        self,
        call_limits: CallRateLimits,
        *,
        limits: Limits,
        find_block: Callable[[Address], BlockedWallet | None],
        now_ms: Callable[[], int],
        bindings: Bindings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`bindings`: None where no wallet has an owner. `clock`: monotonic seconds, for the phases of a call."""
        self.bindings = bindings
        self.now_ms = now_ms
        self.call_limits = call_limits
        self.failures = FailureBudget(limits=limits, rate_limiter=call_limits.rate_limiter, now_ms=now_ms)
        self.limits = limits
        self.find_block = find_block
        self.clock = clock

    async def check_free(self, request: ProxyRequest, listing: Listing) -> Problem | None:
        """Checks the rate limits of a free call, all by client address: the one that the provider sets for its listing, that of the gateway for calls to
        one listing, and that for calls to all listings. None where the call is allowed. A refused call counts against none of them; a call that is
        cancelled during the check counts against those it has passed, until it leaves their windows."""
        call_limits, rate = self.call_limits, listing.rate_limit
        if rate is not None:
            wait_s = await call_limits.charge_free_listing(rate, listing.id, request.client_address)
            if wait_s is not None:
                return _explain_too_often(rate, wait_s, payment_state="none")
        wait_s = await call_limits.charge_free_call(request.client_address, listing.id)
        if wait_s is not None:
            call_limits.give_back_free_listing(rate, listing.id, request.client_address)
            calls_max = self.limits.free_calls_per_minute
            return _explain_too_many_free("free-calls", calls_max, wait_s, where="of one API")
        wait_s = await call_limits.charge_free_address(request.client_address)
        if wait_s is not None:
            call_limits.give_back_free_listing(rate, listing.id, request.client_address)
            call_limits.give_back_free_call(request.client_address, listing.id)
            calls_max = call_limits.free_calls_of_address_max
            return _explain_too_many_free(
                "free-calls-address", calls_max, wait_s, where="of all APIs together"
            )
        return None


class ActiveCall(PhaseTimer):
    """One call, from the check of its payer to its outcome. A context: its exit ends the call, and counts the outcome of a call that was refused or whose
    client has left. `count` counts that of a call with a response of the upstream.

    `payer`: the wallet for which the outcome counts; None until the payer is verified.
    """

    __slots__ = (
        "_access",
        "_budget_keys",
        "_failure_keys",
        "_is_settled_here",
        "_listing",
        "_lookup",
        "_request",
        "_settlement_keys",
        "payer",
    )

    def __init__(
        self,
        access: AccessControl,
        request: ProxyRequest,
        listing: Listing,
        *,
        is_settled_here: bool = False,
        started_s: float | None = None,
    ) -> None:
        """Checks and counts nothing yet. `is_settled_here`: this gateway pays for the settlement. `started_s`: by the clock of `access`; without it
        the call begins now."""
        super().__init__(access.clock, access.clock() if started_s is None else started_s, request.trace)
        self.payer: Address | None = None
        self._access = access
        self._request = request
        self._listing = listing
        self._is_settled_here = is_settled_here
        self._budget_keys: tuple[str, ...] = ()
        self._failure_keys: tuple[str, ...] = ()
        self._settlement_keys: tuple[str, ...] = ()
        self._lookup: AuthorizationLookup | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            # A refusal before the claim is no `CallRefused`, or has no payment state in its headers: it counts nothing.
            if isinstance(exc, CallRefused):
                self.count(_find_state(exc.headers), exc.problem.code)
            elif isinstance(exc, ClientGone):
                self._count_gone(exc.payment_state)
        finally:
            keys, self._budget_keys = self._budget_keys, ()
            self._access.failures.leave(keys)
            if self._lookup is not None:
                if isinstance(exc, TollwayError) and exc.problem.code in _UNRESOLVED:
                    self._lookup.leave_unresolved()
                self._lookup.__exit__(kind, exc, traceback)

    def _count_gone(self, payment_state: str) -> None:
        if payment_state == "charged" and self._lookup is not None:
            self._lookup.give_back()
        # In the state "none" no price was taken. In "charged" a charged call ran again without a response: the provider worked twice for one price.
        if payment_state != "none" and self.payer is not None:
            self._access.failures.record_failed(self._failure_keys)

    def hold_lookup(self, lookup: AuthorizationLookup) -> AuthorizationLookup:
        """Ends the look-up with the call. The look-up counts unless this call is charged. That of a stored response counts: the charge was another call's."""
        self._lookup = lookup
        return lookup

    async def check(
        self, payer: Address, price: Price, asset: Asset, *, is_metered: bool = False
    ) -> Problem | None:
        """Checks whether this wallet may make this call now at that price: None, or the problem. An allowed call counts against the rate of the listing.
        A call within the failure budget is in flight until the context exits, also when that rate refuses it."""
        self.name_payer(payer)
        block = self._access.find_block(payer)
        if block is not None:
            return explain_block(block)
        if PRICE_MAX_HEADER in self._request.header_names:
            problem = check_price_max(self._request, price, asset, is_metered=is_metered)
            if problem is not None:
                return problem
        keys = (*self._failure_keys, *self._settlement_keys)
        wait_s = await self._access.failures.enter(keys)
        if wait_s is not None:
            return self._explain_exhausted(wait_s)
        # `enter` does not suspend after it has counted the call, so a cancellation cannot come between the two.
        self._budget_keys = keys
        rate = self._listing.rate_limit
        return None if rate is None else await self._charge_rate(rate, payer)

    async def check_budget(self, payer: Address, *, currency: str, cost_nano: int) -> Problem | None:
        """Checks whether the policy of the wallet's owner covers this cost now, before the chain is read for the payment. Counts nothing: the claim decides."""
        bindings = self._access.bindings
        budget = None if bindings is None else await bindings.find_known_binding(payer)
        if bindings is None or budget is None:
            return None
        listing, now_ms = self._listing, self._access.now_ms()
        refused = refuse_spending(
            budget.at(now_ms),
            cost_nano=cost_nano,
            currency=currency,
            targets=name_targets(listing.id, listing.provider, listing.tags),
            now_ms=now_ms,
        )
        if refused is None:
            return None
        await bindings.announce_refusal(budget, refused, now_ms=now_ms)
        return exceed_budget(refused, payment_state="none")

    async def check_free_rate(self) -> Problem | None:
        """Checks whether this client address may make one more free call to the listing: a metered call can cost nothing. Counts nothing."""
        address, call_limits = self._request.client_address, self._access.call_limits
        wait_s = await call_limits.find_free_wait(address, self._listing.id)
        if wait_s is None:
            return None
        calls_max = self._access.limits.free_calls_per_minute
        return _explain_too_many_free(
            "free-calls", calls_max, wait_s, where="of one API", payment_state="released"
        )

    def count_free(self) -> None:
        """Counts a metered call that costs nothing against the rate of free calls."""
        self._access.call_limits.count_free_call(self._request.client_address, self._listing.id)

    def name_payer(self, payer: Address) -> None:
        """Sets the wallet for which the outcome counts."""
        self.payer = payer
        self._failure_keys = build_failure_keys(payer, self._request.client_address, self._listing.id)
        self._settlement_keys = (f"settled:{payer.hex()}",) if self._is_settled_here else ()

    def count(self, state: str | None, code: Code | None = None) -> None:
        """Counts the outcome of a claimed call. `state`: None without a claim. A call that ended released or held counts against the failure budget: the
        provider worked without pay. A settlement of this gateway that failed or is undecided can have cost gas, so it also counts for the wallet over all listings."""
        if state == "charged" and self._lookup is not None:
            self._lookup.give_back()
        if self.payer is None:
            return
        failures = self._access.failures
        if state == "charged":
            failures.record_paid((*self._failure_keys, *self._settlement_keys))
        elif state in ("released", "held"):
            failures.record_failed(self._failure_keys)
            if code in _UNSETTLED:
                failures.record_failed(self._settlement_keys)

    def _explain_exhausted(self, wait_s: int) -> Problem:
        limits = self._access.limits
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

    async def _charge_rate(self, rate: RateLimit, payer: Address) -> Problem | None:
        wait_s = await self._access.call_limits.charge_listing(rate, self._listing.id, payer)
        if wait_s is None:
            return None
        return _explain_too_often(rate, wait_s, payment_state="released")


def _find_state(headers: Headers) -> str | None:
    """The payment state in the headers of a refusal. None without a claim, and for a stored response: its call was counted when it ended."""
    state = None
    for name, value in headers:
        if name == b"idempotency-replayed":
            return None
        if name == b"tollway-payment-state":
            state = value.decode("ascii")
    return state


def _explain_too_many_free(
    policy: str, calls_max: int, wait_s: int, *, where: str, payment_state: str = "none"
) -> Problem:
    return Problem(
        code=Code.RATE_LIMITED,
        detail=f"A client address makes at most {calls_max} free calls {where} per minute. Send the request again after Retry-After.",
        retry_after_s=wait_s,
        payment_state=payment_state,
        members=describe_rate(policy, limit=calls_max, window_s=60),
    )


def _explain_too_often(rate: RateLimit, wait_s: int, *, payment_state: str) -> Problem:
    return Problem(
        code=Code.RATE_LIMITED,
        detail=f"The provider allows {rate.calls} calls in {rate.per_s} seconds. Send the request again after Retry-After.",
        retry_after_s=wait_s,
        payment_state=payment_state,
        members=describe_rate("listing", limit=rate.calls, window_s=rate.per_s),
    )
