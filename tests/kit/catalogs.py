"""Catalogs over the database of a test, and listings with ids of their own."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from tests.kit.clocks import Clock
from tests.kit.listings import PROVIDER, sample_listing
from tests.kit.stores import make_sealer, write_reputation
from tollway.ids import ListingId
from tollway.registry.listing import Listing
from tollway.registry.quality import Reputation
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.catalog.meaning_search import MeaningSearch
from tollway.storage.engine.database import Database

NOW_MS = 1_700_000_000_000
_NUMBERS = count(1)


def numbered_listing(*, name: str = "", created_ms: int = 1, **changes: Any) -> Listing:
    """A listing whose id and, where none is given, whose name no other one has."""
    number = next(_NUMBERS)
    plain = sample_listing(
        id=ListingId(f"api_{number:026d}"),
        provider=PROVIDER,
        name=name or f"API {number}",
        created_ms=created_ms,
    )
    return replace(plain, **changes)


def open_catalog(
    database: Database, clock: Clock | None = None, *, meaning: MeaningSearch | None = None
) -> CatalogStore:
    """The catalog of one gateway. The time of the database is its own."""
    return CatalogStore(
        database,
        sealer=make_sealer(),
        now_ms=clock or Clock(NOW_MS),
        shared_clock=lambda connection, now_ms: now_ms,
        meaning=meaning,
    )


async def publish_all(catalog: CatalogStore, listings: Sequence[Listing]) -> None:
    for listing in listings:
        await catalog.publish(listing)


class CatalogHarness:
    """A catalog and its `neighbour`: that of another gateway over the same database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.clock = Clock(NOW_MS)
        self.catalog = open_catalog(database, self.clock)
        self.neighbour = open_catalog(database, self.clock)

    async def know(self, listing: Listing, reputation: Reputation) -> None:
        """Writes the quality and the ownership of a listing."""
        await self.database.write(lambda connection: write_reputation(connection, listing.id, reputation))
