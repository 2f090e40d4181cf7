"""Re-encryption on both databases: after it the first key opens every value; an interruption loses nothing; gateways do not wait."""

import asyncio
import os
from dataclasses import replace
from typing import Any, cast

import pytest
from sqlalchemy import Connection, select, update

from tests.kit.ledger_records import NOW_MS, PAYER, PROVIDER, operator_origin
from tests.kit.listings import sample_listing
from tests.kit.narrowing import existing
from tollway.ids import CallId, ListingId
from tollway.ledger.ledger import StoredResponse
from tollway.registry.catalog import Revised
from tollway.registry.listing import Listing, UpstreamAuth
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.catalog.catalog_tables import listing_table
from tollway.storage.engine.database import Database
from tollway.storage.engine.encryption import Sealer
from tollway.storage.ledger.idempotency import ResponseStore
from tollway.storage.ledger.response_pool import stored_response_table
from tollway.storage.operator.key_rotation import LOST_IDS_MAX, KeyCounts, KeyRotation, SealCount
from tollway.storage.operator.operator_writes import AuditLogStore

DAY_MS = 86_400_000
OLD, NEW = b"k" * 32, b"n" * 32
ANSWER = StoredResponse(status=200, headers=(), body=b"x" * 1000)


def sealer(key: bytes, *others: bytes) -> Sealer:
    return Sealer(key, entropy=os.urandom, others=others)


class Gateway:
    """The stores of encrypted values, with these keys."""

    def __init__(self, database: Database, *keys: bytes) -> None:
        self.sealer = sealer(*keys)
        self.catalog = CatalogStore(database, sealer=self.sealer, now_ms=lambda: NOW_MS)
        self.answers = ResponseStore(database, sealer=self.sealer)
        self.rotation = KeyRotation(database, sealer=self.sealer)

    async def reencrypt(self) -> KeyCounts:
        return await self.rotation.reencrypt(origin=operator_origin())

    async def publish(self, *numbers: int) -> None:
        async with asyncio.TaskGroup() as group:
            for number in numbers:
                group.create_task(self.catalog.publish(listing(number)))

    async def keep(self, *numbers: int) -> None:
        for number in numbers:
            assert await self.answers.keep(
                call(number), ANSWER, payer=PAYER, provider=PROVIDER, now_ms=NOW_MS
            )

    async def check(self, listings: range, calls: range) -> None:
        """Every value is there and opens."""
        for number in listings:
            entry = existing(await self.catalog.find(listing(number).id))
            assert entry.listing.upstream_auth == listing(number).upstream_auth
            assert entry.listing.forward_secret == listing(number).forward_secret
        for number in calls:
            assert await self.answers.find(call(number), now_ms=NOW_MS) == ANSWER


def listing(number: int) -> Listing:
    auth = UpstreamAuth(location="header", name="X-Key", value=f"secret {number}")
    return sample_listing(provider=PROVIDER, id=ListingId(f"api_{number}"), upstream_auth=auth)


def call(number: int) -> CallId:
    return CallId(f"call_{number}")


def counts(**given: Any) -> KeyCounts:
    return KeyCounts(**{"secrets": SealCount(), "responses": SealCount(), "reencrypted": 0, **given})


def open_phases(database: Database) -> tuple[Gateway, Gateway, Gateway]:
    """The gateways before, during and after a change of the key."""
    return Gateway(database, OLD), Gateway(database, NEW, OLD), Gateway(database, NEW)


async def test_a_database_without_secrets_needs_nothing(database: Database) -> None:
    gateway = Gateway(database, NEW, OLD)
    await gateway.catalog.publish(sample_listing(provider=PROVIDER))
    assert await gateway.reencrypt() == await gateway.rotation.count() == counts()


async def test_a_change_of_the_key_from_its_beginning_to_its_end(database: Database) -> None:
    before, during, after = open_phases(database)
    await before.publish(*range(110))
    await before.keep(*range(20))
    await during.publish(110)
    assert await during.rotation.count() == counts(
        secrets=SealCount(current=1, older=110), responses=SealCount(older=20)
    )
    await during.check(range(111), range(20))
    new = counts(secrets=SealCount(current=111), responses=SealCount(current=20))
    assert await during.reencrypt() == replace(new, reencrypted=130)
    assert await during.rotation.count() == new
    (entry,) = await AuditLogStore(database).list_audit_entries(limit=5)
    assert (entry.kind, entry.target, entry.origin) == ("reencrypt_secrets", "secrets", operator_origin())
    assert await during.reencrypt() == new
    await after.check(range(111), range(20))
    await Gateway(database, NEW, OLD).check(range(111), range(20))


class InterruptedDatabase:
    """A database whose process is killed in its second write: before the commit, or after it."""

    def __init__(self, database: Database, *, after_commit: bool) -> None:
        self._database = database
        self._after_commit = after_commit
        self._writes = 0

    async def read(self, work: Any) -> Any:
        return await self._database.read(work)

    async def write(self, work: Any, **options: Any) -> Any:
        self._writes += 1
        if self._writes < 2:
            return await self._database.write(work, **options)
        if self._after_commit:
            await self._database.write(work, **options)
            raise Interrupted

        def stop(connection: Connection) -> None:
            work(connection)
            raise Interrupted

        return await self._database.write(stop, **options)


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("after_commit", [False, True])
async def test_an_interrupted_run_loses_nothing_and_the_next_one_takes_the_rest(
    database: Database, after_commit: bool
) -> None:
    before, during, after = open_phases(database)
    await before.publish(*range(110))
    await before.keep(*range(20))
    interrupted = InterruptedDatabase(database, after_commit=after_commit)
    rotation = KeyRotation(cast("Database", interrupted), sealer=during.sealer)
    with pytest.raises(Interrupted):
        await rotation.reencrypt(origin=operator_origin())
    await during.check(range(110), range(20))
    left = (await during.rotation.count()).older
    assert left == (20 if after_commit else 30)
    assert (await during.reencrypt()).reencrypted == left
    await after.check(range(110), range(20))


async def test_values_that_no_key_opens_are_counted_and_left_unchanged(database: Database) -> None:
    foreign, gateway = Gateway(database, b"f" * 32), Gateway(database, NEW, OLD)
    await foreign.publish(*range(30))
    await foreign.keep(1)
    await Gateway(database, OLD).publish(30)
    found = await gateway.reencrypt()
    assert found.reencrypted == 1
    assert (found.secrets.current, found.secrets.older, found.secrets.lost) == (1, 0, 30)
    assert found.responses == SealCount(lost=1, lost_ids=["call_1"])
    assert len(found.secrets.lost_ids) == LOST_IDS_MAX
    assert set(found.secrets.lost_ids) <= {f"api_{number}" for number in range(30)}
    await foreign.check(range(30), range(1, 2))


async def test_a_value_moved_to_another_row_is_lost_and_not_encrypted_again(database: Database) -> None:
    await Gateway(database, OLD).publish(1, 2)
    columns = listing_table.c
    first = select(columns.auth_sealed).where(columns.id == "api_1").scalar_subquery()
    moved = update(listing_table).where(columns.id == "api_2").values(auth_sealed=first)
    await database.write(lambda connection: connection.execute(moved))
    gateway = Gateway(database, NEW, OLD)
    found = await gateway.reencrypt()
    assert found == counts(secrets=SealCount(current=1, lost=1, lost_ids=["api_2"]), reencrypted=1)
    entry = existing(await gateway.catalog.find(ListingId("api_2")))
    assert entry.listing.upstream_auth is not None
    assert entry.listing.upstream_auth.value is None


async def test_the_secrets_of_forwarded_calls_follow_the_key(database: Database) -> None:
    before, during, after = open_phases(database)
    shared = sample_listing(
        provider=PROVIDER, id=ListingId("api_1"), forward_signature="hmac-sha256", forward_secret=b"s" * 32
    )
    await before.catalog.publish(shared)
    lost = existing(await after.catalog.find(shared.id))
    assert (lost.listing.forward_secret, lost.listing.is_secret_lost) == (None, True)
    assert await during.rotation.count() == counts(secrets=SealCount(older=1))
    # Another change of the listing, by a gateway without the key, leaves the secret as it is.
    await after.catalog.revise(replace(lost.listing, name="Other"), expected_revision=1)
    assert (await during.reencrypt()).reencrypted == 1
    again = Gateway(database, NEW)
    entry = existing(await again.catalog.find(shared.id))
    assert (entry.listing.name, entry.listing.forward_secret) == ("Other", b"s" * 32)
    await again.catalog.revise(
        replace(entry.listing, forward_signature="ed25519", forward_secret=None), expected_revision=2
    )
    assert await again.rotation.count() == counts()


async def test_a_count_of_responses_can_be_bounded(database: Database) -> None:
    gateway = Gateway(database, OLD)
    await gateway.keep(*range(20))
    found = await gateway.rotation.count(responses_max=10)
    assert 10 <= found.responses.current < 20


async def test_reencryption_changes_the_encrypted_columns_alone(database: Database) -> None:
    await Gateway(database, OLD).publish(1)
    await Gateway(database, OLD).keep(1)

    async def read() -> list[object]:
        listings = [column for column in listing_table.c if column.name != "auth_sealed"]
        answers = [column for column in stored_response_table.c if column.name != "sealed"]
        return [
            await database.read(lambda connection, query=query: connection.execute(query).all())  # type: ignore[misc]
            for query in (select(*listings), select(*answers))
        ]

    before = await read()
    assert (await Gateway(database, NEW, OLD).reencrypt()).reencrypted == 2
    assert await read() == before


async def test_a_secret_that_its_provider_changes_during_reencryption_is_kept(database: Database) -> None:
    """Revisions and re-encryptions of the same rows at once: no deadlock, and no revision is undone."""
    count = 60
    await Gateway(database, OLD).publish(*range(count))
    writer, rotating = Gateway(database, OLD, NEW), Gateway(database, NEW, OLD)

    async def revise(number: int) -> None:
        fresh = UpstreamAuth(location="header", name="X-Key", value=f"other {number}")
        changed = replace(listing(number), upstream_auth=fresh)
        assert isinstance(await writer.catalog.revise(changed, expected_revision=1), Revised)

    async with asyncio.TaskGroup() as group:
        for number in range(0, count, 2):
            group.create_task(revise(number))
        for _ in range(3):
            group.create_task(rotating.reencrypt())
    while (await rotating.rotation.count()).older:
        await rotating.reencrypt()
    last = Gateway(database, NEW)
    for number in range(count):
        entry = existing(await last.catalog.find(listing(number).id))
        auth = existing(entry.listing.upstream_auth)
        assert auth.value == f"{'secret' if number % 2 else 'other'} {number}"


async def test_responses_are_replaced_and_pruned_during_a_reencryption(database: Database) -> None:
    """Every response that is left opens with the new key."""
    old, changing = Gateway(database, OLD, NEW), Gateway(database, NEW, OLD)
    await old.keep(*range(40))
    another = StoredResponse(status=201, headers=(), body=b"another")
    async with asyncio.TaskGroup() as group:
        for number in range(0, 40, 2):
            group.create_task(
                old.answers.keep(call(number), another, payer=PAYER, provider=PROVIDER, now_ms=NOW_MS + 1)
            )
        for _ in range(3):
            group.create_task(changing.reencrypt())
        group.create_task(old.answers.prune(now_ms=NOW_MS + DAY_MS))
    while (await changing.rotation.count()).older:
        await changing.reencrypt()
    last = Gateway(database, NEW)
    assert (await last.rotation.count()).responses.lost == 0
    for number in range(0, 40, 2):
        found = await last.answers.find(call(number), now_ms=NOW_MS + 1)
        assert found == another
