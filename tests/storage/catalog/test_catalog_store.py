"""The catalog in SQL beyond its contract: encrypted secrets, few reads for paid calls, totals without counts, query plans."""

import gc
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from sqlalchemy import Connection, delete, insert, text
from structlog.testing import capture_logs

from tests.kit.listings import sample_listing
from tests.kit.narrowing import existing, of_type
from tests.kit.query_plans import read_plans
from tollway.errors import StorageUnavailable
from tollway.ids import Address, ChainId
from tollway.money import Price
from tollway.registry.catalog import ListingQuery, NetworkCurrency, Revised
from tollway.registry.listing import UpstreamAuth
from tollway.storage.catalog.catalog_search import find_page
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.catalog.catalog_tables import block_table
from tollway.storage.catalog.search_blocks import collect_blocks, currency_feature, format_bits
from tollway.storage.engine.database import SqliteDatabase
from tollway.storage.engine.encryption import Sealer
from tollway.storage.engine.migrate import upgrade
from tollway.storage.engine.statements import Work

AUTH = UpstreamAuth(location="header", name="X-Key", value="hush-hush-hush")
LISTING = sample_listing(
    provider=Address(b"\xaa" * 20),
    name="weather",
    endpoint="https://x.example.com",
    price=Price.parse("1"),
    networks=(ChainId(1),),
    tags=("t",),
    upstream_auth=AUTH,
    created_ms=0,
)


class CountingDatabase:
    """A database that counts its reads."""

    dialect: Literal["sqlite", "postgresql"] = "sqlite"

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self.reads = 0

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def read(self, work: Work[Any]) -> Any:
        self.reads += 1
        return await self._database.read(work)

    async def write(self, work: Work[Any], **options: Any) -> Any:
        return await self._database.write(work, **options)

    def describe_location(self) -> str:
        return ""


@dataclass
class Harness:
    database: SqliteDatabase
    counting: CountingDatabase
    store: CatalogStore
    now_ms: int = 1_000_000

    def open_store(self, key: bytes) -> CatalogStore:
        sealer = Sealer(key, entropy=lambda size: bytes(size))
        return CatalogStore(self.counting, sealer=sealer, now_ms=lambda: self.now_ms)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    database = SqliteDatabase(tmp_path / "tollway.sqlite3")
    await database.open()
    await upgrade(database)
    harness = Harness(database=database, counting=CountingDatabase(database), store=None)  # type: ignore[arg-type]  # set below
    harness.store = harness.open_store(b"k" * 32)
    yield harness
    await database.close()


async def test_a_secret_is_sealed_on_disk(harness: Harness, tmp_path: Path) -> None:
    await harness.store.publish(LISTING)
    for file in tmp_path.iterdir():
        assert b"hush-hush" not in file.read_bytes()


async def test_another_key_does_not_open_a_secret(harness: Harness) -> None:
    await harness.store.publish(LISTING)
    other = harness.open_store(b"o" * 32)
    with capture_logs() as logs:
        entry = await other.find(LISTING.id)
    assert entry is not None
    assert entry.listing.upstream_auth == replace(AUTH, value=None)
    assert entry.listing == replace(LISTING, upstream_auth=replace(AUTH, value=None))
    assert [(entry["event"], entry["listing"]) for entry in logs] == [("listing_secret_lost", LISTING.id)]
    assert (await other.search(ListingQuery())).total == 1  # lists need no secret


async def test_a_secret_that_does_not_open_stays_until_an_edit_sets_another(
    harness: Harness,
) -> None:
    await harness.store.publish(LISTING)
    other = harness.open_store(b"o" * 32)
    lost = replace(LISTING, upstream_auth=replace(AUTH, value=None))
    renamed = of_type(Revised, await other.revise(replace(lost, name="Renamed"), expected_revision=1))
    assert renamed.listing.upstream_auth == lost.upstream_auth
    harness.now_ms += 10_000
    kept = existing(await harness.store.find(LISTING.id))
    assert (kept.listing.name, kept.listing.upstream_auth) == ("Renamed", AUTH)

    fresh = replace(AUTH, value="another")
    await other.revise(replace(lost, upstream_auth=fresh), expected_revision=2)
    assert existing(await other.find(LISTING.id)).listing.upstream_auth == fresh


async def test_a_busy_listing_costs_one_read_in_half_a_second(harness: Harness) -> None:
    await harness.store.publish(LISTING)
    for _ in range(100):
        await harness.store.find(LISTING.id)
    assert harness.counting.reads == 1
    harness.now_ms += 500
    for _ in range(100):
        await harness.store.find(LISTING.id)
    assert harness.counting.reads == 2


async def test_an_unknown_id_is_not_cached(harness: Harness) -> None:
    assert await harness.store.find(LISTING.id) is None
    await harness.open_store(b"k" * 32).publish(LISTING)  # by another process
    assert await harness.store.find(LISTING.id) is not None


async def test_a_failed_check_is_not_cached(harness: Harness) -> None:
    await harness.store.publish(LISTING)
    await harness.store.find(LISTING.id)
    harness.now_ms += 1_000
    genuine = harness.counting.read

    async def fail(work: Work[Any]) -> Any:
        raise StorageUnavailable

    harness.counting.read = fail  # type: ignore[method-assign]  # the fake's own seam
    with pytest.raises(StorageUnavailable):
        await harness.store.find(LISTING.id)
    harness.counting.read = genuine  # type: ignore[method-assign]
    assert await harness.store.find(LISTING.id) is not None


async def test_a_filtered_total_stops_at_ten_thousand(harness: Harness) -> None:
    await harness.store.publish(LISTING)
    await harness.database.write(lambda connection: multiply(connection, 10_004))
    page = await harness.store.search(ListingQuery(currency="USDC"))
    assert (page.total, page.is_lower_bound, len(page.found)) == (10_000, True, 20)
    page = await harness.store.search(ListingQuery(words="weather", page=101, limit=100))
    assert (page.total, page.is_lower_bound, len(page.found)) == (10_000, True, 5)
    page = await harness.store.search(ListingQuery())
    assert (page.total, page.is_lower_bound) == (10_005, False)
    ranked = []
    for number in range(1, 12):
        query = ListingQuery(words="weather", sort="relevance", limit=99, page=number)
        ranked += [found.listing.id for found in (await harness.store.search(query)).found]
    assert len(ranked) == len(set(ranked)) == 11 * 99  # across the edge of what is ranked, no gap, no repeat


def multiply(connection: Connection, count: int) -> None:
    """Copies the listing in every table that searches read."""
    columns = connection.scalars(text("SELECT name FROM pragma_table_info('listing')"))
    names = ", ".join(name for name in columns if name not in ("seq", "id"))
    numbers = f"WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i <= {count})"
    connection.execute(
        text(
            f"INSERT INTO listing (seq, id, {names}) {numbers} SELECT i, 'api_' || i, {names}"
            " FROM n, listing WHERE listing.seq = 1"
        )
    )
    connection.execute(
        text(f"INSERT INTO listing_search (listing_seq, weights) {numbers} SELECT i, ' weather=01100' FROM n")
    )
    rows = [
        {"feature": feature, "block": block, "listings": format_bits(bits)}
        for block, bits in collect_blocks(range(1, count + 2)).items()
        for feature in ("weather", currency_feature("USDC"))
    ]
    connection.execute(delete(block_table))
    connection.execute(insert(block_table), rows)
    connection.execute(text(f"UPDATE listing_total SET shown = shown + {count}"))


# One row; the bounded subquery of a total; listings with a score in its order; the last row number.
HARMLESS = (
    "SCAN listing_total",
    "SCAN anon_",
    "SCAN by_ix_listing_quality_score USING COVERING INDEX",
)

PLANS = [
    ListingQuery(),
    ListingQuery(sort="name"),
    ListingQuery(provider=LISTING.provider, sort="newest"),
    ListingQuery(currency="USDC", sort="newest"),
    ListingQuery(currency="USDC", sort="price"),
    ListingQuery(currency="USDC", sort="-price", price_nano_max=5),
    ListingQuery(tag="t", sort="newest"),
    ListingQuery(network=ChainId(1), sort="newest"),
    ListingQuery(words="weather"),
]


@pytest.mark.parametrize("query", PLANS, ids=str)
async def test_no_search_scans_or_sorts_the_catalog(harness: Harness, query: ListingQuery) -> None:
    await harness.store.publish(LISTING)

    plans = await read_plans(harness.database, partial(find_page, query=query))
    plan = [step for one in plans for step in one.split("; ")]
    scans = [step for step in plan if step.startswith("SCAN") and not step.startswith(HARMLESS)]
    assert not scans, plan
    assert not [step for step in plan if "TEMP B-TREE" in step], plan


ON_SALE = (NetworkCurrency(chain_id=ChainId(1), currency="USDC"),)


@pytest.mark.parametrize(
    ("query", "cycles_max"),
    [
        (ListingQuery(), 120),
        (ListingQuery(network_currencies=ON_SALE), 350),
        (ListingQuery(words="weather", network_currencies=ON_SALE), 350),
    ],
    ids=str,
)
async def test_a_search_leaves_few_objects_that_only_the_collector_frees(
    harness: Harness, query: ListingQuery, cycles_max: int
) -> None:
    """While it frees them, nothing else runs. One alias of the table of listings more is 400 of them."""
    await harness.store.publish(LISTING)
    find = partial(find_page, query=query)
    await harness.database.read(find)  # its statements are compiled
    gc.collect()
    gc.disable()
    try:
        await harness.database.read(find)
        assert gc.collect() <= cycles_max
    finally:
        gc.enable()


async def test_a_retired_secret_can_be_removed(harness: Harness) -> None:
    await harness.store.publish(LISTING)
    await harness.store.revise(replace(LISTING, upstream_auth=None, retired_ms=1), expected_revision=1)
    sealed = await harness.database.read(
        lambda connection: connection.scalar(text("SELECT auth_sealed FROM listing"))
    )
    assert sealed is None
