"""Where the quality of listings is written down. A port; `storage/quality_store.py` keeps it in SQL,
`tests/kit/memory_quality.py` in memory. Both pass one contract suite.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from tollway.identifiers import ListingId
from tollway.registry.quality_tally import QualityCounts


class QualityRecords(Protocol):
    """Safe to call from many gateways at once. Every method is atomic and raises `StorageUnavailable` when the store is
    away. What a crash of the machine takes of it is lost: nothing here is worth a flush."""

    async def add(self, counts: QualityCounts, *, day: int) -> None:
        """More calls, of that day. `Catalog.standing` and lists show them after `update_sums`."""
        ...

    async def update_sums(self, listing_ids: Collection[ListingId], *, today: int) -> Mapping[ListingId, int]:
        """Makes what is shown of these listings what the days up to today say. Gives how many calls that were; those that
        are no listings are left out. Of several at once, the last knows what all had added before."""
        ...

    async def find_outdated(self, *, today: int, count_max: int) -> tuple[ListingId, ...]:
        """Listings whose sums are of an earlier day."""
        ...

    async def forget(self, *, today: int, rows_max: int) -> int:
        """Drops what is older than counts any more; how much was dropped."""
        ...
