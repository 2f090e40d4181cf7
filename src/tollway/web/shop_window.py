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
from tollway.discovery.sold_operations import ApiOperation, list_operations
from tollway.identifiers import ListingId
from tollway.registry.catalog import Catalog, ListingQuery
from tollway.registry.listing import Listing
from tollway.registry.pricing import payable_assets
from tollway.web.bazaar_routes import IsOffered
from tollway.web.listing_wire import ListingEncoder

PER_LISTING_MAX = 5
LISTINGS_CACHED_MAX = 200
TITLE_LENGTH_MAX = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListingOperations:
    """The first operations of a listing at one of its revisions."""

    revision: int
    operations: tuple[ApiOperation, ...]


class FeaturedOperations:
    """One per process. A document is read once for each revision of its listing, beside the event loop."""

    def __init__(self, catalog: Catalog, encoder: ListingEncoder, *, is_mpp_offered: IsOffered) -> None:
        self._catalog = catalog
        self._encoder = encoder
        self._is_mpp_offered = is_mpp_offered
        self._cached: OrderedDict[ListingId, _ListingOperations] = OrderedDict()

    async def choose(self) -> tuple[FeaturedOperation, ...]:
        """At most `FEATURED_MAX`: the first of every listing, then the second of every listing, and so on."""
        page = await self._catalog.search(ListingQuery(limit=FEATURED_MAX))
        rows = [await self._describe(found.listing.id) for found in page.found]
        positions = range(max((len(row) for row in rows), default=0))
        return tuple(row[position] for position in positions for row in rows if position < len(row))[
            :FEATURED_MAX
        ]

    async def _describe(self, listing_id: ListingId) -> Sequence[FeaturedOperation]:
        entry = await self._catalog.find(listing_id)
        if entry is None or entry.listing.status != "active" or entry.listing.retired_ms is not None:
            return ()
        listing = entry.listing
        title = clean_line(listing.name, TITLE_LENGTH_MAX)
        found = []
        for operation in await self._read(listing):
            info = payment_info(
                operation.price,
                listing.currency,
                self._encoder.options(listing, operation.price),
                has_mpp=self._has_mpp(listing, operation),
            )
            if info is not None and info["protocols"] and "price" in info:
                found.append(
                    FeaturedOperation(listing_id=listing.id, title=title, operation=operation, payment=info)
                )
        return found

    async def _read(self, listing: Listing) -> tuple[ApiOperation, ...]:
        known = self._cached.get(listing.id)
        if known is None or known.revision != listing.revision:
            operations = await asyncio.to_thread(list_operations, listing)
            known = _ListingOperations(revision=listing.revision, operations=operations[:PER_LISTING_MAX])
            self._cached[listing.id] = known
        self._cached.move_to_end(listing.id)
        while len(self._cached) > LISTINGS_CACHED_MAX:
            self._cached.popitem(last=False)
        return known.operations

    def _has_mpp(self, listing: Listing, operation: ApiOperation) -> bool:
        assets = payable_assets(self._encoder.assets, currency=listing.currency, networks=listing.networks)
        return not operation.price.is_free and any(
            self._is_mpp_offered(asset, operation.price.units_in(asset), listing.id) for asset in assets
        )
