"""Stored vectors of listings, on SQLite and on PostgreSQL: what is due, what is stored, and that a reader of changes misses none."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.kit.catalogs import open_catalog
from tests.kit.listings import PROVIDER, sample_listing
from tests.kit.narrowing import existing
from tollway.ids import ListingId
from tollway.registry.catalog import Revised
from tollway.registry.listing import Listing
from tollway.storage.catalog.listing_vectors import (
    EMBEDDED_AT_ONCE,
    ChangedVectors,
    DueListing,
    read_changes,
    read_due,
    write_vectors,
)
from tollway.storage.engine.database import Database

FIRST, SECOND = b"\x01" * 32, b"\x02" * 32
DOCUMENT = {"openapi": "3.1.0", "paths": {"/rain": {"get": {"summary": "Rain by hour"}}}}


def make_listing(number: int = 1, **changes: Any) -> Listing:
    return sample_listing(provider=PROVIDER, id=ListingId(f"api_{number}"), **changes)


class Vectors:
    """The catalog of a gateway, and the steps of what embeds its listings."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.catalog = open_catalog(database)

    async def read_due(self) -> list[DueListing]:
        return await self._database.read(read_due)

    async def write(self, due: Sequence[DueListing], bits: bytes = FIRST) -> None:
        await self._database.write(lambda connection: write_vectors(connection, [(one, bits) for one in due]))

    async def embed(self, bits: bytes = FIRST) -> None:
        await self.write(await self.read_due(), bits)

    async def read_changes(self, since: int = 0) -> ChangedVectors | None:
        return await self._database.read(lambda connection: read_changes(connection, since=since))

    async def revise(self, listing: Listing, revision: int) -> None:
        assert isinstance(await self.catalog.revise(listing, expected_revision=revision), Revised)


@pytest.fixture
def vectors(database: Database) -> Vectors:
    return Vectors(database)


async def test_a_published_listing_is_due_with_its_document(vectors: Vectors) -> None:
    await vectors.catalog.publish(make_listing(openapi=DOCUMENT))
    (due,) = await vectors.read_due()
    assert (due.revision, due.listing.name) == (1, "Weather")
    assert due.parse_document().openapi == DOCUMENT
    assert await vectors.read_changes() is None


async def test_an_embedded_listing_is_no_longer_due_and_its_vectors_are_a_change(vectors: Vectors) -> None:
    await vectors.catalog.publish(make_listing())
    await vectors.embed()
    assert await vectors.read_due() == []
    found = existing(await vectors.read_changes())
    assert list(found.bits.values()) == [FIRST]
    assert await vectors.read_changes(found.change) is None


async def test_so_many_listings_are_due_at_once(vectors: Vectors) -> None:
    for number in range(EMBEDDED_AT_ONCE + 5):
        await vectors.catalog.publish(make_listing(number))
    assert len(await vectors.read_due()) == EMBEDDED_AT_ONCE
    await vectors.embed()
    assert len(await vectors.read_due()) == 5


async def test_a_reader_misses_no_change(vectors: Vectors) -> None:
    seen = 0
    bits: list[bytes] = []
    for number in range(4):
        await vectors.catalog.publish(make_listing(number))
        await vectors.embed(bytes([number]) * 32)
        found = existing(await vectors.read_changes(seen))
        assert found.change > seen
        seen, bits = found.change, [*bits, *found.bits.values()]
    assert bits == [bytes([number]) * 32 for number in range(4)]


async def test_the_vectors_of_an_edited_listing_stay_until_it_is_embedded_again(vectors: Vectors) -> None:
    await vectors.catalog.publish(make_listing())
    await vectors.embed()
    before = await vectors.read_changes()
    await vectors.revise(make_listing(name="Rain"), 1)
    assert await vectors.read_changes() == before
    assert [one.revision for one in await vectors.read_due()] == [2]
    await vectors.embed(SECOND)
    found = existing(await vectors.read_changes())
    assert list(found.bits.values()) == [SECOND]


@pytest.mark.parametrize("hidden", [{"retired_ms": 1}, {"suspended_ms": 1}], ids=["retired", "suspended"])
async def test_a_hidden_listing_loses_its_vectors_and_is_not_due(
    vectors: Vectors, hidden: dict[str, Any]
) -> None:
    await vectors.catalog.publish(make_listing())
    await vectors.embed()
    before = existing(await vectors.read_changes())
    await vectors.revise(make_listing(**hidden), 1)
    found = existing(await vectors.read_changes(before.change))
    assert list(found.bits.values()) == [b""]
    assert await vectors.read_due() == []


async def test_a_listing_that_is_shown_again_is_due(vectors: Vectors) -> None:
    await vectors.catalog.publish(make_listing())
    await vectors.revise(make_listing(suspended_ms=1), 1)
    assert await vectors.read_due() == []
    await vectors.revise(make_listing(), 2)
    assert [one.revision for one in await vectors.read_due()] == [3]


@pytest.mark.parametrize("edit", [{"name": "Rain"}, {"suspended_ms": 1}], ids=["edited", "hidden"])
async def test_vectors_of_a_state_that_has_ended_meanwhile_are_not_stored(
    vectors: Vectors, edit: dict[str, Any]
) -> None:
    await vectors.catalog.publish(make_listing())
    due = await vectors.read_due()
    await vectors.revise(make_listing(**edit), 1)
    still_due = [one.revision for one in await vectors.read_due()]
    await vectors.write(due)
    assert [one.revision for one in await vectors.read_due()] == still_due
    found = await vectors.read_changes()
    assert found is None or set(found.bits.values()) == {b""}


async def test_two_gateways_that_embed_one_listing_store_it_once(vectors: Vectors) -> None:
    await vectors.catalog.publish(make_listing())
    due = await vectors.read_due()
    await vectors.write(due)
    first = await vectors.read_changes()
    await vectors.write(due, SECOND)
    assert await vectors.read_changes() == first
