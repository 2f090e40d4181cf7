"""The release of each gateway, on both dialects: its own row, unknown without one, gone with the lease."""

from sqlalchemy import delete, insert, select, text

from tests.kit.ledger_records import NOW_MS
from tollway.fleet import GatewayBuild
from tollway.storage.database import Database
from tollway.storage.gateway_builds import GATEWAYS_MAX, GatewayBuildStore, gateway_build_table
from tollway.storage.ledger_tables import owner_table
from tollway.storage.migrate import upgrade

LEASE_MS = 30_000
OLD = GatewayBuild(name="gw-1:8402", version="1.0", schema="0023_webhooks")
NEW = GatewayBuild(name="gw-1:8402", version="1.1", schema="0024_gateway_build")


def store_of(database: Database, owner_id: str) -> GatewayBuildStore:
    return GatewayBuildStore(database, owner_id=owner_id, lease_ms=LEASE_MS, now_ms=lambda: NOW_MS)


async def add_owner(database: Database, owner_id: str, *, seen_ms: int = NOW_MS) -> None:
    row = {"id": owner_id, "started_ms": NOW_MS - 1, "seen_ms": seen_ms, "boot_mark": ""}
    await database.write(lambda connection: connection.execute(insert(owner_table), row))


async def test_each_gateway_has_the_release_that_it_wrote_last(database: Database) -> None:
    for owner_id, seen_ms in (("a", NOW_MS), ("b", NOW_MS - 1), ("c", NOW_MS - LEASE_MS)):
        await add_owner(database, owner_id, seen_ms=seen_ms)
    for build in (OLD, NEW):
        assert await store_of(database, "a").record(build)
    assert await store_of(database, "c").record(OLD)
    found = await store_of(database, "b").list_gateways()
    assert [(one.owner_id, one.build, one.is_alive) for one in found] == [
        ("a", NEW, True),
        ("b", None, True),  # a gateway of the release before
        ("c", OLD, False),
    ]
    assert found[0].started_ms == NOW_MS - 1


async def test_the_row_of_a_gateway_without_a_lease_is_deleted(database: Database) -> None:
    await add_owner(database, "gone")
    await store_of(database, "gone").record(OLD)
    await database.write(lambda connection: connection.execute(delete(owner_table)))
    await store_of(database, "a").record(NEW)  # its own lease is not written yet
    rows = await database.read(
        lambda connection: connection.execute(select(gateway_build_table.c.owner_id)).all()
    )
    assert [row.owner_id for row in rows] == ["a"]


async def test_a_bounded_number_of_gateways_is_read(database: Database) -> None:
    for number in range(GATEWAYS_MAX + 2):
        await add_owner(database, f"o{number}", seen_ms=NOW_MS - number)
    found = await store_of(database, "a").list_gateways()
    assert [one.owner_id for one in found] == [f"o{number}" for number in range(GATEWAYS_MAX)]


async def test_on_older_tables_every_release_is_unknown_until_the_migration(empty_database: Database) -> None:
    await upgrade(empty_database, revision="0023_webhooks", is_step_by_step=True)
    await add_owner(empty_database, "a")
    store = store_of(empty_database, "a")
    assert not await store.record(NEW)
    assert [one.build for one in await store.list_gateways()] == [None]
    assert not empty_database.outages.is_away
    await upgrade(empty_database)
    assert await store.record(NEW)
    assert [one.build for one in await store.list_gateways()] == [NEW]


async def test_the_release_before_writes_its_lease_without_the_table(database: Database) -> None:
    """Its statements name the columns that they write."""
    await database.write(
        lambda connection: connection.execute(
            text("INSERT INTO gateway_owner (id, started_ms, seen_ms, boot_mark) VALUES ('old', 1, 1, '')")
        )
    )
    assert [one.build for one in await store_of(database, "a").list_gateways()] == [None]
