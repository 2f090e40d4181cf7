"""The contract of `QualityRecords`, on SQLite and on PostgreSQL."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import Connection, func, select

from tests.kit.catalogs import open_catalog
from tests.kit.listings import sample_listing
from tests.kit.narrowing import existing
from tests.kit.waits import DEADLINE_S, until
from tollway.ids import Address, ListingId
from tollway.registry.catalog import Catalog, ListingQuery
from tollway.registry.quality import (
    FAILED,
    UNKNOWN_REPUTATION,
    Bucket,
    CostShare,
    Quality,
    QualityRecords,
    bucket_of,
    cost_bucket,
    latency_of,
)
from tollway.storage.catalog.catalog_tables import quality_day_table
from tollway.storage.catalog.reputation_store import QualityStore
from tollway.storage.engine.database import Database

TODAY = 20_000
FAST, SLOW = bucket_of(10), bucket_of(300)
ONE, TWO, NOBODY = ListingId("api_1"), ListingId("api_2"), ListingId("api_nobody")


@dataclass
class Setup:
    catalog: Catalog
    book: QualityRecords
    neighbour: QualityRecords
    """The same, as another gateway opens it."""
    database: Database

    async def quality(self, listing_id: ListingId = ONE) -> Quality | None:
        return (await self.catalog.reputation(listing_id)).quality

    async def count(self, listing_id: ListingId, *counts: tuple[Bucket, int], day: int = TODAY) -> None:
        await self.book.add({(listing_id, bucket): calls for bucket, calls in counts}, day=day)


@pytest.fixture
async def setup(database: Database) -> Setup:
    catalog = open_catalog(database)
    await publish(catalog)
    return Setup(
        catalog=catalog, book=QualityStore(database), neighbour=QualityStore(database), database=database
    )


async def publish(catalog: Catalog) -> None:
    for listing_id in (ONE, TWO):
        await catalog.publish(sample_listing(id=listing_id, provider=Address(b"\xaa" * 20)))


async def test_calls_add_up_over_days_and_quality_appears_at_the_minimum(setup: Setup) -> None:
    await setup.count(ONE, (FAST, 10), (FAILED, 4), day=TODAY - 29)
    await setup.count(ONE, (FAST, 3))
    assert await setup.book.update_sums([ONE], today=TODAY) == {ONE: 17}
    assert await setup.catalog.reputation(ONE) == UNKNOWN_REPUTATION
    await setup.count(ONE, (FAST, 1), (SLOW, 2))
    assert await setup.quality() is None  # not summed up yet
    assert await setup.neighbour.update_sums([ONE, TWO], today=TODAY) == {ONE: 20, TWO: 0}
    quality = Quality(calls=20, success_ppm=800_000, p50_ms=10, p95_ms=latency_of(SLOW))
    assert await setup.quality() == quality
    assert await setup.quality(TWO) is None
    page = await setup.catalog.search(ListingQuery())
    assert [found.reputation.quality for found in page.found] == [quality, None]  # a score comes first


async def test_what_metered_calls_cost_is_summed_apart(setup: Setup) -> None:
    share = CostShare(operation=7, calls=20, mean_percent=40, p95_percent=40)
    cost = cost_bucket(7, units=2, max_units=5)
    await setup.count(ONE, (FAST, 20), (cost, 15), day=TODAY - 1)
    await setup.count(ONE, (FAILED, 1), (cost, 5))
    assert await setup.book.update_sums([ONE], today=TODAY) == {ONE: 21}
    quality = existing(await setup.quality())
    assert (quality.calls, quality.costs) == (21, (share,))
    days = await setup.book.read_days(ONE, today=TODAY)
    assert days == {TODAY - 1: {FAST: 20}, TODAY: {FAILED: 1}}
    by_day = await setup.book.count_by_day([ONE], today=TODAY)
    assert list(by_day[ONE][-2:]) == [20, 1]
    assert await setup.book.forget(today=TODAY + 40, rows_max=10) == 4


async def test_a_day_that_is_over_thirty_days_ago_counts_no_more(setup: Setup) -> None:
    await setup.count(ONE, (FAST, 20), day=TODAY - 30)
    await setup.count(ONE, (FAILED, 20), day=TODAY - 29)
    await setup.book.update_sums([ONE], today=TODAY)
    assert await setup.quality() == Quality(calls=20, success_ppm=0, p50_ms=None, p95_ms=None)


async def test_sums_without_new_calls_expire(setup: Setup) -> None:
    await setup.count(ONE, (FAST, 20))
    await setup.count(TWO, (FAST, 30))
    await setup.count(ONE, (FAILED, 20), day=TODAY - 10)
    await setup.book.update_sums([ONE, TWO], today=TODAY)
    assert await setup.book.find_outdated(today=TODAY, count_max=10) == ()
    later = TODAY + 20
    assert await setup.book.find_outdated(today=later, count_max=1) == (ONE,)
    assert await setup.book.find_outdated(today=later, count_max=10) == (ONE, TWO)
    await setup.book.update_sums([ONE], today=later)
    quality = existing(await setup.quality())
    assert (quality.calls, quality.success_ppm) == (20, 1_000_000)
    assert await setup.book.find_outdated(today=later, count_max=10) == (TWO,)
    await setup.book.update_sums([ONE, TWO], today=TODAY + 30)
    assert (await setup.quality(ONE), await setup.quality(TWO)) == (None, None)
    assert await setup.book.find_outdated(today=TODAY + 99, count_max=10) == ()


async def test_expired_counts_are_deleted_in_batches(setup: Setup) -> None:
    for day in (TODAY - 32, TODAY - 31, TODAY - 30, TODAY - 29):
        await setup.count(ONE, (FAST, 30), (FAILED, 30), day=day)
    assert await setup.book.forget(today=TODAY, rows_max=4) == 4
    assert await setup.book.forget(today=TODAY, rows_max=4) == 2
    assert await setup.book.forget(today=TODAY, rows_max=4) == 0
    assert await setup.database.read(count_days) == 2
    assert await setup.book.update_sums([ONE], today=TODAY - 3) == {ONE: 60}


def count_days(connection: Connection) -> int | None:
    return connection.scalar(select(func.count()).select_from(quality_day_table))


async def test_calls_of_an_unknown_listing_are_written_and_never_summed(setup: Setup) -> None:
    await setup.count(NOBODY, (FAST, 30))
    assert await setup.book.update_sums([NOBODY], today=TODAY) == {}
    assert await setup.book.update_sums([], today=TODAY) == {}
    await setup.book.add({}, day=TODAY)
    assert await setup.catalog.reputation(NOBODY) == UNKNOWN_REPUTATION
    assert await setup.catalog.reputation(ListingId("\x00" * 80)) == UNKNOWN_REPUTATION


async def test_quality_survives_an_edit(setup: Setup) -> None:
    await setup.count(ONE, (FAST, 20))
    await setup.book.update_sums([ONE], today=TODAY)
    entry = existing(await setup.catalog.find(ONE))
    await setup.catalog.revise(replace(entry.listing, name="Another name"), expected_revision=1)
    assert existing(await setup.quality()).calls == 20


async def test_gateways_that_write_and_sum_up_at_once_lose_nothing(setup: Setup) -> None:
    async def work(book: QualityRecords) -> None:
        for _ in range(10):
            await book.add({(TWO, FAST): 1, (ONE, FAILED): 1, (ONE, FAST): 1}, day=TODAY)
            await book.update_sums([TWO, ONE], today=TODAY)

    async with asyncio.TaskGroup() as group:
        for book in (setup.book, setup.neighbour) * 3:
            group.create_task(work(book))
    quality, other = existing(await setup.quality()), existing(await setup.quality(TWO))
    assert (quality.calls, quality.success_ppm, other.calls) == (120, 500_000, 60)


@pytest.mark.postgres
async def test_a_sum_waits_for_another_one_and_contains_later_additions(
    operator: Any, postgres_database: Database
) -> None:
    catalog = open_catalog(postgres_database)
    await publish(catalog)
    book = QualityStore(postgres_database)
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    async with asyncio.TaskGroup() as group, asyncio.timeout(DEADLINE_S), operator.transaction():
        await operator.execute("SELECT id FROM listing WHERE id = $1 FOR NO KEY UPDATE", ONE)
        summing = group.create_task(book.update_sums([ONE], today=TODAY))
        await until(lambda: summing.done() or operator.fetchval(waiting))
        await book.add({(ONE, FAST): 20}, day=TODAY)  # without a wait
        assert not summing.done()
    assert summing.result() == {ONE: 20}


async def test_the_calls_of_each_day_are_read_with_their_buckets(setup: Setup) -> None:
    await setup.count(ONE, (FAST, 3), (FAILED, 1), day=TODAY)
    await setup.count(ONE, (SLOW, 2), day=TODAY - 29)
    await setup.count(ONE, (FAST, 9), day=TODAY - 30)
    await setup.count(ONE, (FAST, 9), day=TODAY + 1)
    await setup.count(TWO, (FAST, 9), day=TODAY)
    days = await setup.neighbour.read_days(ONE, today=TODAY)
    assert days == {TODAY: {FAST: 3, FAILED: 1}, TODAY - 29: {SLOW: 2}}
    assert await setup.book.read_days(NOBODY, today=TODAY) == {}


async def test_calls_by_day_are_of_the_days_that_count_and_of_listings_with_calls(setup: Setup) -> None:
    await setup.count(ONE, (FAILED, 2), (FAST, 5))
    await setup.count(TWO, (FAST, 1))
    await setup.count(ONE, (SLOW, 3), day=TODAY - 29)
    await setup.count(ONE, (FAST, 9), day=TODAY - 30)
    assert await setup.neighbour.count_by_day([ONE, TWO, NOBODY], today=TODAY) == {
        ONE: [3, *[0] * 28, 7],
        TWO: [*[0] * 29, 1],
    }
    assert await setup.book.count_by_day([], today=TODAY) == {}
