"""The recorder of quality: writes the counts of calls to the store every few seconds, and once a day updates the sums of listings without new calls. No call
waits for it."""

import asyncio
from collections.abc import Callable

from tollway.errors import StorageUnavailable
from tollway.ids import ListingId
from tollway.registry.quality import QualityRecords, QualityTally, day_of

BATCH = 10
"""Listings whose sums one transaction updates. It is small, because on SQLite the claims of calls wait while this transaction writes."""
ADDED_MAX = 200
BATCHES_MAX = 20
"""Batches of sums in one run; the remaining listings are due at the next run."""
BUSY_CALLS = 500
BUSY_WAIT_MS = 60_000
"""The shortest time between two updates of the sums of a listing with at least `BUSY_CALLS` calls: a few more calls hardly change them."""
WAITING_MAX = 10_000
STOP_DEADLINE_S = 2.0
REFRESH_INTERVAL_S = 600.0
REFRESH_PAUSE_S = 0.2
DELETED_MAX = 1_000


class QualityRecorder:
    """Every gateway runs `write_counts` periodically; only the leader runs `refresh_sums`."""

    def __init__(self, records: QualityRecords, *, tally: QualityTally, now_ms: Callable[[], int]) -> None:
        self._records = records
        self._tally = tally
        self._now_ms = now_ms
        self._due: dict[ListingId, None] = {}
        self._not_before_ms: dict[ListingId, int] = {}

    async def finish(self) -> None:
        """Call it before the process stops."""
        try:
            async with asyncio.timeout(STOP_DEADLINE_S):
                await self.write_counts(is_last=True)
        except (TimeoutError, StorageUnavailable):
            pass  # the database is unavailable: the counts that it does not have are lost

    async def write_counts(self, *, is_last: bool = False) -> None:
        """Writes the new counts and updates the sums that are due. `is_last`: also those of busy listings. After `StorageUnavailable`, the rest is
        due at the next run."""
        now_ms = self._now_ms()
        counts = list(self._tally.take_counts().items())
        for start in range(0, len(counts), ADDED_MAX):
            batch = dict(counts[start : start + ADDED_MAX])
            try:
                await self._records.add(batch, day=day_of(now_ms))
            except StorageUnavailable:
                # The batch may have been written all the same: counts written twice are better than the loss of a day.
                self._tally.restore_counts(dict(counts[start:]))
                raise
            for listing_id, _ in batch:
                if len(self._due) < WAITING_MAX:
                    self._due[listing_id] = None
        ready = [one for one in self._due if is_last or self._not_before_ms.get(one, 0) <= now_ms]
        for start in range(0, min(len(ready), BATCH * BATCHES_MAX), BATCH):
            await self._update_sums(ready[start : start + BATCH], now_ms)

    async def _update_sums(self, listing_ids: list[ListingId], now_ms: int) -> None:
        sums = await self._records.update_sums(listing_ids, today=day_of(now_ms))
        for listing_id in listing_ids:
            self._due.pop(listing_id, None)
            if sums.get(listing_id, 0) >= BUSY_CALLS:
                if len(self._not_before_ms) >= WAITING_MAX:
                    self._not_before_ms.clear()
                self._not_before_ms[listing_id] = now_ms + BUSY_WAIT_MS

    async def refresh_sums(self) -> None:
        """Updates the sums of an earlier day, and deletes counts that are too old, in small transactions. After `StorageUnavailable`, the next run
        continues."""
        today = day_of(self._now_ms())
        while outdated := await self._records.find_outdated(today=today, count_max=BATCH):
            await self._records.update_sums(outdated, today=today)
            await asyncio.sleep(REFRESH_PAUSE_S)
        deleted = DELETED_MAX
        while deleted == DELETED_MAX:
            deleted = await self._records.forget(today=today, rows_max=DELETED_MAX)
            await asyncio.sleep(REFRESH_PAUSE_S)
