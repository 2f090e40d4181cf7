"""Meters at the passage: look-ups on chains, free calls, a listing's own rate, and the budget of failed calls.

Rates protect the gateway and providers; nothing about money depends on them.
"""

from collections import OrderedDict

from limits import RateLimitItemPerMinute, RateLimitItemPerSecond

from tollway.identifiers import Address, ListingId
from tollway.limits import Limits
from tollway.rates import Rates, name_crowd
from tollway.registry.listing import RateLimit

FAILING_KEYS_MAX = 100_000


class Meters:
    """Counts per process. Not for money."""

    def __init__(self, *, limits: Limits) -> None:
        self.lookups_per_minute = limits.lookups_per_minute
        self._rates = Rates()
        self._lookups = RateLimitItemPerMinute(limits.lookups_per_minute, namespace="lookup")
        self._free = RateLimitItemPerMinute(limits.free_calls_per_minute, namespace="free")
        self._failed = RateLimitItemPerSecond(
            limits.failed_calls_per_window, limits.failed_calls_window_s, namespace="failed"
        )
        # Only a key that failed lately is worth asking the limiter about: most never have.
        self._failing: OrderedDict[str, None] = OrderedDict()

    def charge(self, *, client_address: str, signer: str) -> int | None:
        """One look-up on a chain, per client address and per signer. Seconds to wait, or None when it is allowed."""
        return self._rates.hit(self._lookups, f"address:{name_crowd(client_address)}") or self._rates.hit(
            self._lookups, f"signer:{signer}"
        )

    def charge_free_call(self, client_address: str, listing_id: ListingId) -> int | None:
        return self._rates.hit(self._free, name_crowd(client_address), listing_id)

    def charge_listing(self, rate: RateLimit, listing_id: ListingId, payer: Address) -> int | None:
        item = RateLimitItemPerSecond(rate.calls, rate.per_s, namespace="listing")
        return self._rates.hit(item, listing_id, str(payer))

    def failed_budget_wait_s(
        self, *, payer: Address, client_address: str, listing_id: ListingId
    ) -> int | None:
        """Seconds until calls are accepted again, when the wallet or the address failed too often on the listing."""
        waits = [
            self._rates.wait_s(self._failed, key)
            for key in _failure_keys(payer, client_address, listing_id)
            if key in self._failing
        ]
        return max((wait_s for wait_s in waits if wait_s is not None), default=None)

    def note_failed(self, *, payer: Address, client_address: str, listing_id: ListingId) -> None:
        """A run that ended unbilled or unknown."""
        for key in _failure_keys(payer, client_address, listing_id):
            self._failing[key] = None
            self._failing.move_to_end(key)
            self._rates.hit(self._failed, key)
        while len(self._failing) > FAILING_KEYS_MAX:
            self._failing.popitem(last=False)


def _failure_keys(payer: Address, client_address: str, listing_id: ListingId) -> tuple[str, str]:
    """Never the listing alone: one caller's failures would close it for all the others."""
    return f"wallet:{payer.hex()}:{listing_id}", f"address:{name_crowd(client_address)}:{listing_id}"
