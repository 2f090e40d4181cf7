"""Sealing anew: everything comes to stand under the key in use, nothing is lost, nobody waits; on both databases."""

import asyncio
import os
from dataclasses import replace

from sqlalchemy import select, update

from tests.kit.ledger_records import NOW_MS, PAYER
from tests.kit.listings import sample_listing
from tollway.ids import Address, CallId, ListingId
from tollway.ledger.ledger import StoredResponse
from tollway.registry.catalog import Revised
from tollway.registry.listing import Listing, UpstreamAuth
from tollway.storage.catalog_store import CatalogStore
from tollway.storage.catalog_tables import listing_table
from tollway.storage.database import Database
from tollway.storage.encryption import Sealer
from tollway.storage.idempotency import ResponseStore, answer_table
from tollway.storage.key_rotation import LOST_NAMED_MAX, KeyRotation, SealCount, SealSurvey

DAY_MS = 86_400_000
OLD, NEW = b"k" * 32, b"n" * 32
PROVIDER = Address(b"\x02" * 20)
ANSWER = StoredResponse(status=200, headers=(), body=b"x" * 1000)


def sealer(key: bytes, *others: bytes) -> Sealer:
    return Sealer(key, entropy=os.urandom, others=others)


class Gateway:
    """The rooms that seal, with these keys."""

    def __init__(self, database: Database, *keys: bytes) -> None:
        self.sealer = sealer(*keys)
        self.catalog = CatalogStore(database, sealer=self.sealer, now_ms=lambda: NOW_MS)
        self.answers = ResponseStore(database, sealer=self.sealer)
        self.rotation = KeyRotation(database, sealer=self.sealer)

    async def publish(self, *numbers: int) -> None:
        async with asyncio.TaskGroup() as group:
            for number in numbers:
                group.create_task(self.catalog.publish(listing(number)))

    async def keep(self, *numbers: int) -> None:
        for number in numbers:
            assert await self.answers.keep(call(number), PAYER, ANSWER, now_ms=NOW_MS)

    async def check(self, listings: range, calls: range) -> None:
        """Everything is there and opens."""
        for number in listings:
            entry = await self.catalog.find(listing(number).id)
            assert entry is not None
            assert entry.listing.upstream_auth == listing(number).upstream_auth
        for number in calls:
            assert await self.answers.find(call(number), now_ms=NOW_MS) == ANSWER


def listing(number: int) -> Listing:
    auth = UpstreamAuth(location="header", name="X-Key", value=f"secret {number}")
    return sample_listing(provider=PROVIDER, id=ListingId(f"api_{number}"), upstream_auth=auth)


def call(number: int) -> CallId:
    return CallId(f"call_{number}")


def survey(*, secrets: SealCount | None = None, answers: SealCount | None = None) -> SealSurvey:
    return SealSurvey(secrets=secrets or SealCount(), answers=answers or SealCount())


async def test_nothing_sealed_is_nothing_to_do(database: Database) -> None:
    gateway = Gateway(database, NEW, OLD)
    await gateway.catalog.publish(sample_listing(provider=PROVIDER))
    assert await gateway.rotation.reseal() == 0
    assert await gateway.rotation.survey() == survey()


async def test_a_change_of_the_key_from_its_beginning_to_its_end(database: Database) -> None:
    before, during, after = (Gateway(database, *keys) for keys in ((OLD,), (NEW, OLD), (NEW,)))
    await before.publish(*range(110))
    await before.keep(*range(20))
    await during.publish(110)
    assert await during.rotation.survey() == survey(
        secrets=SealCount(current=1, older=110), answers=SealCount(older=20)
    )
    await during.check(range(111), range(20))
    assert await during.rotation.reseal() == 130
    assert await during.rotation.survey() == survey(
        secrets=SealCount(current=111), answers=SealCount(current=20)
    )
    assert await during.rotation.reseal() == 0
    await after.check(range(111), range(20))
    await Gateway(database, NEW, OLD).check(range(111), range(20))


async def test_what_opens_with_no_key_is_told_and_left_as_it_is(database: Database) -> None:
    foreign, gateway = Gateway(database, b"f" * 32), Gateway(database, NEW, OLD)
    await foreign.publish(*range(30))
    await foreign.keep(1)
    await Gateway(database, OLD).publish(30)
    assert await gateway.rotation.reseal() == 1
    found = await gateway.rotation.survey()
    assert (found.secrets.current, found.secrets.older, found.secrets.lost) == (1, 0, 30)
    assert found.answers == SealCount(lost=1, lost_ids=("call_1",))
    assert len(found.secrets.lost_ids) == LOST_NAMED_MAX
    assert set(found.secrets.lost_ids) <= {f"api_{number}" for number in range(30)}
    await foreign.check(range(30), range(1, 2))


async def test_a_seal_put_into_another_row_is_lost_not_sealed_anew(database: Database) -> None:
    await Gateway(database, OLD).publish(1, 2)
    columns = listing_table.c
    first = select(columns.auth_sealed).where(columns.id == "api_1").scalar_subquery()
    moved = update(listing_table).where(columns.id == "api_2").values(auth_sealed=first)
    await database.write(lambda connection: connection.execute(moved))
    gateway = Gateway(database, NEW, OLD)
    assert await gateway.rotation.reseal() == 1
    assert (await gateway.rotation.survey()).secrets == SealCount(current=1, lost=1, lost_ids=("api_2",))
    entry = await gateway.catalog.find(ListingId("api_2"))
    assert entry is not None
    assert entry.listing.upstream_auth is not None
    assert entry.listing.upstream_auth.value is None


async def test_a_doctor_looks_at_some_answers_only(database: Database) -> None:
    gateway = Gateway(database, OLD)
    await gateway.keep(*range(20))
    found = await gateway.rotation.survey(answers_max=10)
    assert 10 <= found.answers.current < 20


async def test_a_reseal_changes_neither_revision_nor_anything_else(database: Database) -> None:
    await Gateway(database, OLD).publish(1)
    await Gateway(database, OLD).keep(1)

    async def read() -> list[object]:
        listings = [column for column in listing_table.c if column.name != "auth_sealed"]
        answers = [column for column in answer_table.c if column.name != "sealed"]
        return [
            await database.read(lambda connection, query=query: connection.execute(query).all())  # type: ignore[misc]
            for query in (select(*listings), select(*answers))
        ]

    before = await read()
    assert await Gateway(database, NEW, OLD).rotation.reseal() == 2
    assert await read() == before


async def test_providers_who_change_their_secret_meanwhile_have_the_last_word(database: Database) -> None:
    """Revisions and reseals of the same rows at once: no deadlock, nothing undone."""
    count = 60
    await Gateway(database, OLD).publish(*range(count))
    writer, resealer = Gateway(database, OLD, NEW), Gateway(database, NEW, OLD)

    async def revise(number: int) -> None:
        fresh = UpstreamAuth(location="header", name="X-Key", value=f"other {number}")
        changed = replace(listing(number), upstream_auth=fresh)
        assert isinstance(await writer.catalog.revise(changed, expected_revision=1), Revised)

    async with asyncio.TaskGroup() as group:
        for number in range(0, count, 2):
            group.create_task(revise(number))
        for _ in range(3):
            group.create_task(resealer.rotation.reseal())
    while (await resealer.rotation.survey()).older:
        await resealer.rotation.reseal()
    last = Gateway(database, NEW)
    for number in range(count):
        entry = await last.catalog.find(listing(number).id)
        assert entry is not None
        auth = entry.listing.upstream_auth
        assert auth is not None
        assert auth.value == f"{'secret' if number % 2 else 'other'} {number}"


async def test_answers_come_and_go_while_they_are_sealed_anew(database: Database) -> None:
    """Kept again, dropped and resealed at once: nobody waits for long, what is there opens."""
    old, changing = Gateway(database, OLD, NEW), Gateway(database, NEW, OLD)
    await old.keep(*range(40))
    another = StoredResponse(status=201, headers=(), body=b"another")
    async with asyncio.TaskGroup() as group:
        for number in range(0, 40, 2):
            group.create_task(old.answers.keep(call(number), PAYER, another, now_ms=NOW_MS + 1))
        for _ in range(3):
            group.create_task(changing.rotation.reseal())
        group.create_task(old.answers.prune(now_ms=NOW_MS + DAY_MS))
    while (await changing.rotation.survey()).older:
        await changing.rotation.reseal()
    last = Gateway(database, NEW)
    assert (await last.rotation.survey()).answers.lost == 0
    for number in range(0, 40, 2):
        found = await last.answers.find(call(number), now_ms=NOW_MS + 1)
        assert found == another
