"""The times at which counts are written and summed."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pytest

from tollway.errors import StorageUnavailable
from tollway.ids import ListingId
from tollway.registry.quality import FAILED, QualityCounts, QualityTally, bucket_of, day_of
from tollway.registry.quality_recorder import (
    ADDED_MAX,
    BATCH,
    BATCHES_MAX,
    BUSY_CALLS,
    BUSY_WAIT_MS,
    QualityRecorder,
)

ONE = ListingId("api_1")
FAST = bucket_of(10)
NOW_MS = 1_800_000_000_000


@dataclass
class Notebook:
    """A `QualityRecords` that records its calls."""

    calls: dict[ListingId, int] = field(default_factory=dict)
    added: list[tuple[dict[tuple[ListingId, int], int], int]] = field(default_factory=list)
    summed: list[ListingId] = field(default_factory=list)
    outdated: list[ListingId] = field(default_factory=list)
    old_rows: int = 0
    is_away: bool = False
    is_adding: bool = True
    lots_left: int | None = None

    async def add(self, counts: QualityCounts, *, day: int) -> None:
        if self.is_away or not self.is_adding or self.lots_left == 0:
            raise StorageUnavailable
        if self.lots_left is not None:
            self.lots_left -= 1
        if counts:
            self.added.append((dict(counts), day))
        for (listing_id, _), count in counts.items():
            self.calls[listing_id] = self.calls.get(listing_id, 0) + count

    async def update_sums(self, listing_ids: Collection[ListingId], *, today: int) -> Mapping[ListingId, int]:
        if self.is_away:
            raise StorageUnavailable
        assert len(listing_ids) <= BATCH
        self.summed += listing_ids
        self.outdated = [one for one in self.outdated if one not in listing_ids]
        return {one: self.calls.get(one, 0) for one in listing_ids}

    async def find_outdated(self, *, today: int, count_max: int) -> tuple[ListingId, ...]:
        if self.is_away:
            raise StorageUnavailable
        return tuple(self.outdated[:count_max])

    async def forget(self, *, today: int, rows_max: int) -> int:
        dropped = min(self.old_rows, rows_max)
        self.old_rows -= dropped
        return dropped


@dataclass
class Harness:
    records: Notebook = field(default_factory=Notebook)
    tally: QualityTally = field(default_factory=QualityTally)
    now_ms: int = NOW_MS

    def __post_init__(self) -> None:
        self.recorder = QualityRecorder(self.records, tally=self.tally, now_ms=lambda: self.now_ms)


@pytest.fixture
def harness() -> Harness:
    return Harness()


async def test_counts_are_written_once_and_summed(harness: Harness) -> None:
    await harness.recorder.write_counts()
    assert harness.records.summed == []
    harness.tally.count_call(ONE, FAST)
    harness.tally.count_call(ONE, FAILED)
    await harness.recorder.write_counts()
    await harness.recorder.write_counts()
    assert harness.records.added == [({(ONE, FAST): 1, (ONE, FAILED): 1}, day_of(NOW_MS))]
    assert harness.records.summed == [ONE]


async def test_an_outage_loses_nothing() -> None:
    harness = Harness(records=Notebook(is_away=True))
    harness.tally.count_call(ONE, FAST)
    with pytest.raises(StorageUnavailable):
        await harness.recorder.write_counts()
    harness.tally.count_call(ONE, FAST)
    await harness.recorder.finish()
    harness.records.is_away = False
    await harness.recorder.write_counts()
    assert harness.records.calls == {ONE: 2}
    assert harness.records.summed == [ONE]


async def test_counts_are_written_in_batches_and_the_rest_is_kept(harness: Harness) -> None:
    for number in range(2 * ADDED_MAX + 1):
        harness.tally.count_call(ListingId(f"api_{number:04}"), FAST)
    harness.records.lots_left = 1
    with pytest.raises(StorageUnavailable):
        await harness.recorder.write_counts()
    assert [len(batch) for batch, _ in harness.records.added] == [ADDED_MAX]
    harness.records.lots_left = None
    await harness.recorder.write_counts()
    assert [len(batch) for batch, _ in harness.records.added] == [ADDED_MAX, ADDED_MAX, 1]
    assert set(harness.records.calls.values()) == {1}


async def test_a_failed_sum_stays_due(harness: Harness) -> None:
    harness.tally.count_call(ONE, FAST)
    harness.records.is_adding = False
    with pytest.raises(StorageUnavailable):
        await harness.recorder.write_counts()
    assert harness.records.summed == []
    harness.records.is_adding = True
    await harness.recorder.write_counts()
    assert harness.records.summed == [ONE]


async def test_a_busy_listing_is_summed_up_once_a_minute_and_at_the_stop(harness: Harness) -> None:

    async def call(count: int = 1) -> int:
        for _ in range(count):
            harness.tally.count_call(ONE, FAST)
        await harness.recorder.write_counts()
        return len(harness.records.summed)

    assert await call(BUSY_CALLS - 1) == 1
    assert await call() == 2
    assert await call() == 2
    harness.now_ms += BUSY_WAIT_MS - 1
    assert await call() == 2
    harness.now_ms += 1
    assert await call(0) == 3  # it was due, without a new call
    assert await call() == 3
    await harness.recorder.finish()
    assert len(harness.records.summed) == 4


async def test_many_listings_are_summed_in_batches(harness: Harness) -> None:
    listings = [ListingId(f"api_{number}") for number in range(BATCH * BATCHES_MAX + 5)]
    for listing_id in listings:
        harness.tally.count_call(listing_id, FAST)
    await harness.recorder.write_counts()
    assert harness.records.summed == listings[:-5]
    await harness.recorder.write_counts()
    assert harness.records.summed == listings


async def test_outdated_sums_are_updated_and_old_days_deleted(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("tollway.registry.quality_recorder.REFRESH_PAUSE_S", 0)
    outdated = [ListingId(f"api_{number}") for number in range(25)]
    harness = Harness(records=Notebook(outdated=list(outdated), old_rows=2_500))
    await harness.recorder.refresh_sums()
    assert harness.records.summed == outdated
    assert (harness.records.outdated, harness.records.old_rows) == ([], 0)
    harness.records.is_away = True
    with pytest.raises(StorageUnavailable):
        await harness.recorder.refresh_sums()  # tried again at the next turn
