"""What a version of the terms records beside its price: its times by the clock of the database, the heads of networks as its payee began,
and each operation of a very large document. On SQLite and PostgreSQL.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from tests.kit.listings import sample_listing
from tests.kit.narrowing import existing
from tests.kit.stores import make_sealer
from tollway.ids import Address, ChainId
from tollway.money import Price
from tollway.registry.listing import DESCRIBED_CHARACTERS_MAX, Listing
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.engine.database import Database
from tollway.storage.ledger.recovery import read_shared_clock

ALICE, BOB = Address(b"\xaa" * 20), Address(b"\xbb" * 20)
BASE, OPTIMISM = ChainId(8453), ChainId(10)
NOW_MS, HOUR_MS = 1_900_000_000_000, 3_600_000


def open_store(database: Database, **given: Any) -> CatalogStore:
    return CatalogStore(database, sealer=make_sealer(), now_ms=lambda: NOW_MS, **given)


def at(shared_ms: int) -> Callable[[Connection, int], int]:
    """A clock of the database that shows this time."""
    return lambda connection, now_ms: shared_ms


def listing_at(now_ms: int = NOW_MS, **changes: Any) -> Listing:
    return sample_listing(provider=ALICE, created_ms=now_ms, networks=(BASE, OPTIMISM), **changes)


async def read_clock(database: Database, own_ms: int) -> int:
    return await database.read(lambda connection: read_shared_clock(connection, own_ms))


async def test_an_edit_ends_a_price_by_the_clock_of_the_database(database: Database) -> None:
    """Whatever the clock of the gateway that edits shows."""
    for off_ms in (-2 * HOUR_MS, -900_000, 0, 2 * HOUR_MS):
        listing = listing_at(NOW_MS + off_ms, id=f"api_{off_ms}")
        await open_store(database, shared_clock=at(NOW_MS)).publish(listing)
        dearer = replace(listing, price=Price.parse("10"), updated_ms=NOW_MS + off_ms)
        store = open_store(database, shared_clock=at(NOW_MS + 5_000))
        await store.revise(dearer, expected_revision=1)
        newest, older = await store.terms_since(listing.id, 0)
        assert (older.since_ms, older.until_ms) == (NOW_MS, NOW_MS + 5_000), off_ms
        assert (newest.since_ms, newest.until_ms) == (NOW_MS + 5_000, None), off_ms


async def test_the_clock_of_the_database_is_the_servers_or_that_of_the_edit(database: Database) -> None:
    own_ms = 1_700_000_000_000
    store = open_store(database)
    before_ms = await read_clock(database, own_ms)
    await store.publish(listing_at(own_ms))
    dearer = replace(listing_at(own_ms), price=Price.parse("10"), updated_ms=own_ms)
    await store.revise(dearer, expected_revision=1)
    newest, older = await store.terms_since(dearer.id, 0)
    assert before_ms <= older.since_ms <= newest.since_ms <= await read_clock(database, own_ms)
    assert older.until_ms == newest.since_ms


async def test_the_heads_of_a_payee_are_those_of_its_versions_that_count(database: Database) -> None:
    store = open_store(database, shared_clock=at(NOW_MS))
    listing = listing_at()
    await store.publish(listing, heads={BASE: 100, OPTIMISM: 200})

    async def heads(chain_id: ChainId, *, versions: int) -> dict[Address, int]:
        entry = existing(await store.find(listing.id))
        newest = replace(entry, versions=entry.versions[:versions])
        return dict(await store.list_payee_heads(newest, chain_id))

    assert (await heads(BASE, versions=1), await heads(OPTIMISM, versions=1)) == ({ALICE: 100}, {ALICE: 200})
    store = open_store(database, shared_clock=at(NOW_MS + 1_000))
    await store.revise(replace(listing, pay_to=BOB), expected_revision=1, heads={BASE: 300})
    assert await heads(BASE, versions=2) == {ALICE: 100, BOB: 300}
    assert await heads(OPTIMISM, versions=2) == {ALICE: 200}
    store = open_store(database, shared_clock=at(NOW_MS + 2_000))
    await store.revise(replace(listing, pay_to=ALICE), expected_revision=2, heads={BASE: 500})
    assert await heads(BASE, versions=3) == {ALICE: 100, BOB: 300}
    assert await heads(BASE, versions=2) == {ALICE: 500, BOB: 300}  # the first version counts no more
    other = sample_listing(provider=ALICE, id="api_2")
    await store.publish(other)
    entry = existing(await store.find(other.id))
    assert await store.list_payee_heads(entry, BASE) == {}


async def test_an_edit_that_keeps_the_terms_records_no_head(database: Database) -> None:
    store = open_store(database)
    listing = listing_at()
    await store.publish(listing)
    await store.revise(replace(listing, description="other"), expected_revision=1, heads={BASE: 100})
    entry = existing(await store.find(listing.id))
    assert await store.list_payee_heads(entry, BASE) == {}


async def test_a_version_records_every_operation_of_a_very_large_document(database: Database) -> None:
    paths = [f"/{'long' * 14}/{number}" for number in range(1_990)]
    content = {"paths": {path: {"get": {}} for path in paths}}
    listing = listing_at(other_paths="refuse", openapi=content)
    store = open_store(database)
    await store.publish(listing)
    (only,) = await store.terms_since(listing.id, 0)
    written = listing.current_terms(since_ms=only.since_ms)
    assert only == written
    assert len(only.described) + len(only.described_digests) == len(paths)
    assert sum(len(method) + len(path) for method, path in only.described) <= DESCRIBED_CHARACTERS_MAX
    await store.revise(replace(listing, description="other"), expected_revision=1)
    assert len(await store.terms_since(listing.id, 0)) == 1
    del content["paths"][paths[-1]]
    await store.revise(replace(listing, openapi=content), expected_revision=2)
    newest, older = await store.terms_since(listing.id, 0)
    assert newest.described_digests == older.described_digests[:-1]
