"""Meters at the passage: look-ups on chains, free calls, and a listing's own rate.

Rates protect the gateway and providers; nothing about money depends on them.
"""

from limits import RateLimitItem, RateLimitItemPerMinute, RateLimitItemPerSecond

from tollway.identifiers import Address, ListingId
from tollway.limits import Limits
from tollway.payments.junk_meter import UnresolvedLookups, name_asker
from tollway.rates import Rates, name_crowd
from tollway.registry.listing import RateLimit

LISTINGS_PER_ADDRESS = 5
"""A client address makes as many free calls over all listings as so many listings allow it."""


class Meters:
    """Not for money."""

    def __init__(self, *, limits: Limits, rates: Rates) -> None:
        self.lookups_per_minute = limits.lookups_per_minute
        self.rates = rates
        self._lookups = RateLimitItemPerMinute(limits.lookups_per_minute, namespace="lookup")
        self._unresolved = UnresolvedLookups(limits)
        self._free = RateLimitItemPerMinute(limits.free_calls_per_minute, namespace="free")
        self.free_calls_of_address_max = limits.free_calls_per_minute * LISTINGS_PER_ADDRESS
        self._free_of_address = RateLimitItemPerMinute(
            self.free_calls_of_address_max, namespace="free-address"
        )

    async def charge(self, *, client_address: str, signer: str) -> int | None:
        """One look-up on a chain, per client address and per signer. None when it is allowed, else the seconds to wait; a
        refused one does not count."""
        address_key, signer_key = keys = name_asker(client_address, signer)
        wait_s = self._unresolved.find_wait(keys)
        if wait_s is not None:
            return wait_s
        wait_s = await self.rates.hit(self._lookups, address_key)
        if wait_s is not None:
            return wait_s
        wait_s = await self.rates.hit(self._lookups, signer_key)
        if wait_s is not None:
            self.rates.give_back(self._lookups, address_key)
        return wait_s

    def give_back(self, *, client_address: str, signer: str) -> None:
        for key in name_asker(client_address, signer):
            self.rates.give_back(self._lookups, key)

    def note_unresolved(self, *, client_address: str, signer: str) -> None:
        self.give_back(client_address=client_address, signer=signer)
        self._unresolved.note(name_asker(client_address, signer))

    async def charge_free_call(self, client_address: str, listing_id: ListingId) -> int | None:
        return await self.rates.hit(self._free, name_crowd(client_address), listing_id)

    async def charge_free_address(self, client_address: str) -> int | None:
        """Over all listings: each free call writes a row, and listings cost nothing to make."""
        return await self.rates.hit(self._free_of_address, name_crowd(client_address))

    def give_back_free_call(self, client_address: str, listing_id: ListingId) -> None:
        self.rates.give_back(self._free, name_crowd(client_address), listing_id)

    def give_back_free_listing(
        self, rate: RateLimit | None, listing_id: ListingId, client_address: str
    ) -> None:
        """`rate` None: the listing has none."""
        if rate is not None:
            self.rates.give_back(_item_of(rate), listing_id, f"address:{name_crowd(client_address)}")

    async def charge_listing(self, rate: RateLimit, listing_id: ListingId, payer: Address) -> int | None:
        return await self.rates.hit(_item_of(rate), listing_id, str(payer))

    async def charge_free_listing(
        self, rate: RateLimit, listing_id: ListingId, client_address: str
    ) -> int | None:
        """Nobody pays for a free call, so whoever makes it is known by his address."""
        return await self.rates.hit(_item_of(rate), listing_id, f"address:{name_crowd(client_address)}")


def _item_of(rate: RateLimit) -> RateLimitItem:
    return RateLimitItemPerSecond(rate.calls, rate.per_s, namespace="listing")
