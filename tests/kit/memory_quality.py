"""Quality of listings in memory: the twin of `storage/reputation_store.py`, held to the same contract suite. What it sums up
shows in its catalog. Nothing survives it.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from tests.kit.memory_catalog import MemoryCatalog
from tollway.ids import ListingId
from tollway.registry.quality import UNKNOWN_REPUTATION, Bucket, QualityCounts, first_day, summarise


class MemoryQuality:
    """A `QualityRecords` beside a `MemoryCatalog`."""

    def __init__(self, catalog: MemoryCatalog) -> None:
        self._catalog = catalog
        self._days: dict[tuple[ListingId, int, Bucket], int] = {}
        self._summed: dict[ListingId, int] = {}

    async def add(self, counts: QualityCounts, *, day: int) -> None:
        for (listing_id, bucket), calls in counts.items():
            key = (listing_id, day, bucket)
            self._days[key] = self._days.get(key, 0) + calls

    async def update_sums(self, listing_ids: Collection[ListingId], *, today: int) -> Mapping[ListingId, int]:
        return {
            listing_id: self._sum_up(listing_id, today=today)
            for listing_id in listing_ids
            if await self._catalog.find(listing_id) is not None
        }

    def _sum_up(self, listing_id: ListingId, *, today: int) -> int:
        counts: dict[Bucket, int] = {}
        for (counted, day, bucket), calls in self._days.items():
            if counted == listing_id and day >= first_day(today):
                counts[bucket] = counts.get(bucket, 0) + calls
        quality = summarise(counts)
        standings = self._catalog.standings
        standings[listing_id] = replace(standings.get(listing_id, UNKNOWN_REPUTATION), quality=quality)
        if quality is None:
            self._summed.pop(listing_id, None)
        else:
            self._summed[listing_id] = today
        return sum(counts.values())

    async def find_outdated(self, *, today: int, count_max: int) -> tuple[ListingId, ...]:
        outdated = (day for day in sorted((day, one) for one, day in self._summed.items()) if day[0] < today)
        return tuple(listing_id for _, listing_id in outdated)[:count_max]

    async def forget(self, *, today: int, rows_max: int) -> int:
        old = sorted((key for key in self._days if key[1] < first_day(today)), key=lambda key: key[1])
        for key in old[:rows_max]:
            del self._days[key]
        return len(old[:rows_max])
