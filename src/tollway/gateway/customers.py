"""Who may buy now, whatever they pay with: blocked wallets, the caller's own maximum, failures lately, a listing's rate.

It protects the gateway and its providers; it takes no money and knows nothing of proofs.
"""

from collections.abc import Callable

from tollway.errors import Code, Problem, describe_rate
from tollway.gateway.exchange import Abandoned, Headers, IncomingCall, Outcome
from tollway.gateway.meters import Meters
from tollway.gateway.refusals import BLOCKED, check_price_max
from tollway.identifiers import Address
from tollway.limits import Limits
from tollway.money import Asset, Price
from tollway.registry.listing import Listing


class Customers:
    """One per process."""

    def __init__(self, meters: Meters, *, limits: Limits, is_blocked: Callable[[Address], bool]) -> None:
        self._meters = meters
        self._limits = limits
        self._is_blocked = is_blocked

    def check(
        self, call: IncomingCall, listing: Listing, payer: Address, price: Price, asset: Asset
    ) -> Problem | None:
        """Why this wallet may not make this call now at that price. A pass is counted against the listing's rate."""
        if self._is_blocked(payer):
            return BLOCKED
        problem = check_price_max(call, price, asset)
        if problem is not None:
            return problem
        wait_s = self._meters.failed_budget_wait_s(
            payer=payer, client_address=call.client_address, listing_id=listing.id
        )
        if wait_s is not None:
            return Problem(
                code=Code.FAILED_CALL_BUDGET_EXHAUSTED,
                detail="Too many calls of this wallet or address to this listing failed lately. The payment is untouched.",
                retry_after_s=wait_s,
                payment_state="released",
                members=describe_rate(
                    "failed-calls",
                    limit=self._limits.failed_calls_per_window,
                    window_s=self._limits.failed_calls_window_s,
                ),
            )
        return self._charge_rate(listing, payer)

    def check_free(self, call: IncomingCall, listing: Listing) -> Problem | None:
        wait_s = self._meters.charge_free_call(call.client_address, listing.id)
        if wait_s is None:
            return None
        most = self._limits.free_calls_per_minute
        return Problem(
            code=Code.RATE_LIMITED,
            detail=f"Free calls are limited to {most} a minute.",
            retry_after_s=wait_s,
            payment_state="none",
            members=describe_rate("free-calls", limit=most, window_s=60),
        )

    def note_outcome(self, call: IncomingCall, listing: Listing, payer: Address, outcome: Outcome) -> None:
        """Runs that ended unbilled or unknown count against a budget: they cost the provider and pay nobody."""
        headers: Headers = [] if isinstance(outcome, Abandoned) else outcome.headers
        state = next((value for name, value in headers if name == b"tollway-payment-state"), None)
        if isinstance(outcome, Abandoned) or state in (b"released", b"held"):
            self._meters.note_failed(payer=payer, client_address=call.client_address, listing_id=listing.id)

    def _charge_rate(self, listing: Listing, payer: Address) -> Problem | None:
        rate = listing.rate_limit
        wait_s = None if rate is None else self._meters.charge_listing(rate, listing.id, payer)
        if rate is None or wait_s is None:
            return None
        return Problem(
            code=Code.RATE_LIMITED,
            detail=f"The provider allows {rate.calls} calls in {rate.per_s} seconds.",
            retry_after_s=wait_s,
            payment_state="released",
            members=describe_rate("listing", limit=rate.calls, window_s=rate.per_s),
        )
