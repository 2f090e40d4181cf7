"""The release of each gateway, on both dialects: its own row, unknown without one, gone with the lease."""

from sqlalchemy import delete, insert, select

from tests.kit.ledger_records import NOW_MS
from tollway.fleet import GatewayBuild
from tollway.storage.database import Database
from tollway.storage.gateway_builds import GATEWAYS_MAX, GatewayBuildStore, gateway_build_table
from tollway.storage.ledger_tables import owner_table

LEASE_MS = 30_000
OLD = GatewayBuild(name="gw-1:8402", version="1.0", schema="0031_baseline")
NEW = GatewayBuild(name="gw-1:8402", version="1.1", schema="0032_more")


def store_of(database: Database, owner_id: str) -> GatewayBuildStore:
    return GatewayBuildStore(database, owner_id=owner_id, lease_ms=LEASE_MS, now_ms=lambda: NOW_MS)


async def add_owner(database: Database, owner_id: str, *, seen_ms: int = NOW_MS) -> None:
    row = {"id": owner_id, "started_ms": NOW_MS - 1, "seen_ms": seen_ms, "boot_mark": ""}
    await database.write(lambda connection: connection.execute(insert(owner_table), row))


async def test_each_gateway_has_the_release_that_it_wrote_last(database: Database) -> None:
    for owner_id, seen_ms in (("a", NOW_MS), ("b", NOW_MS - 1), ("c", NOW_MS - LEASE_MS)):
        await add_owner(database, owner_id, seen_ms=seen_ms)
    for build in (OLD, NEW):
        await store_of(database, "a").record(build)
    await store_of(database, "c").record(OLD)
    found = await store_of(database, "b").list_gateways()
    assert [(one.owner_id, one.build, one.is_alive) for one in found] == [
        ("a", NEW, True),
        ("b", None, True),  # its row is not written yet
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
