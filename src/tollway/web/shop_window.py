"""Which paid operations stand in the site's own OpenAPI document: some of each of the newest listings, in turn, as far as a
crawler of paid APIs could pay for them now. It reads, and decides nothing else.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from tollway.discovery.featured import FeaturedOperation
from tollway.discovery.payment_info import payment_info
from tollway.discovery.plain_words import clean_line
from tollway.discovery.site_openapi import FEATURED_MAX
from tollway.discovery.sold_operations import SoldOperation, list_sold_operations
from tollway.identifiers import ListingId
from tollway.registry.catalog import Catalog, ListingQuery
from tollway.registry.listing import Listing
from tollway.registry.pricing import payable_assets
from tollway.web.bazaar_routes import IsOffered
from tollway.web.listing_wire import ListingShape

PER_LISTING_MAX = 5
KEPT_MAX = 200
TITLE_LENGTH_MAX = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """The first operations of a listing at one of its revisions."""

    revision: int
    operations: tuple[SoldOperation, ...]


class ShopWindow:
    """One per process. A document is read once for each revision of its listing, beside the event loop."""

    def __init__(self, catalog: Catalog, shape: ListingShape, *, is_mpp_offered: IsOffered) -> None:
        self._catalog = catalog
        self._shape = shape
        self._is_mpp_offered = is_mpp_offered
        self._kept: OrderedDict[ListingId, _Shown] = OrderedDict()

    async def choose(self) -> tuple[FeaturedOperation, ...]:
        """At most `FEATURED_MAX`: the first of every listing, then the second of every listing, and so on."""
        page = await self._catalog.search(ListingQuery(limit=FEATURED_MAX))
        rows = [await self._describe(found.listing.id) for found in page.found]
        turns = range(max((len(row) for row in rows), default=0))
        return tuple(row[turn] for turn in turns for row in rows if turn < len(row))[:FEATURED_MAX]

    async def _describe(self, listing_id: ListingId) -> Sequence[FeaturedOperation]:
        shelf = await self._catalog.find(listing_id)
        if shelf is None or shelf.listing.status != "active" or shelf.listing.retired_ms is not None:
            return ()
        listing = shelf.listing
        title = clean_line(listing.name, TITLE_LENGTH_MAX)
        found = []
        for operation in await self._read(listing):
            info = payment_info(
                operation.price,
                listing.currency,
                self._shape.options(listing, operation.price),
                has_mpp=self._has_mpp(listing, operation),
            )
            if info is not None and info["protocols"] and "price" in info:
                found.append(
                    FeaturedOperation(listing_id=listing.id, title=title, operation=operation, payment=info)
                )
        return found

    async def _read(self, listing: Listing) -> tuple[SoldOperation, ...]:
        known = self._kept.get(listing.id)
        if known is None or known.revision != listing.revision:
            operations = await asyncio.to_thread(list_sold_operations, listing)
            known = _Shown(revision=listing.revision, operations=operations[:PER_LISTING_MAX])
            self._kept[listing.id] = known
        self._kept.move_to_end(listing.id)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return known.operations

    def _has_mpp(self, listing: Listing, operation: SoldOperation) -> bool:
        assets = payable_assets(self._shape.assets, currency=listing.currency, networks=listing.networks)
        return not operation.price.is_free and any(
            self._is_mpp_offered(asset, operation.price.units_in(asset), listing.id) for asset in assets
        )
