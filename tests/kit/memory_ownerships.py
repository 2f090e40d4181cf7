"""Proved ownership in memory, over a catalog: the twin of `storage/reputation_store.py`."""

from collections.abc import Iterable

from tollway.ids import Address, ListingId
from tollway.outbound.policy import Endpoint, parse_endpoint
from tollway.registry.catalog import Catalog
from tollway.registry.listing import Listing
from tollway.registry.ownership import Challenge, Method, Ownership, OwnershipClaim, apply_check, is_still_of


class MemoryOwnerships:
    """An `Ownerships`. What an edit has ended is found out when it is asked for."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._rows: dict[ListingId, Ownership] = {}

    async def find(self, listing_id: ListingId) -> Ownership | None:
        known, listing = self._rows.get(listing_id), await self._find_listing(listing_id)
        if known is None or listing is None:
            return None
        if is_still_of(known, origin=_find_origin(listing), pay_to=listing.pay_to):
            return known
        del self._rows[listing_id]
        return None

    async def record_check(
        self, challenge: Challenge, proved: Iterable[Method], *, now_ms: int, failures_max: int
    ) -> Ownership | None:
        listing = await self._find_listing(challenge.listing_id)
        if listing is None:
            return None
        now = (listing.provider, listing.pay_to, _find_origin(listing))
        if now != (challenge.provider, challenge.pay_to, challenge.origin):
            return None
        before = await self.find(challenge.listing_id)
        after = apply_check(before, challenge, proved, now_ms=now_ms, failures_max=failures_max)
        self._rows[challenge.listing_id] = after
        return after

    async def find_due(self, *, before_ms: int, limit: int) -> tuple[OwnershipClaim, ...]:
        due = [
            (known, listing) for known, listing in await self._list_verified() if known.checked_ms < before_ms
        ]
        due.sort(key=lambda pair: pair[0].checked_ms)
        return tuple(OwnershipClaim.of(listing) for _, listing in due[:limit])

    async def find_owner(self, origin: str) -> Address | None:
        holders = [listing for known, listing in await self._list_verified() if known.origin == origin]
        return min(holders, key=lambda listing: listing.created_ms).provider if holders else None

    async def is_verified(self, listing_id: ListingId) -> bool:
        known = await self.find(listing_id)
        return known is not None and known.is_verified

    async def _list_verified(self) -> list[tuple[Ownership, Listing]]:
        found = []
        for listing_id in list(self._rows):
            known, listing = await self.find(listing_id), await self._find_listing(listing_id)
            if known is not None and known.is_verified and listing is not None:
                found.append((known, listing))
        return found

    async def _find_listing(self, listing_id: ListingId) -> Listing | None:
        entry = await self._catalog.find(listing_id)
        return None if entry is None or entry.listing.retired_ms is not None else entry.listing


def _find_origin(listing: Listing) -> str:
    parsed = parse_endpoint(listing.endpoint, allow_private=True)
    return parsed.origin if isinstance(parsed, Endpoint) else ""
