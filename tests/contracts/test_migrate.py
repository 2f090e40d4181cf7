"""The migrations make the tables that the stores define, on both dialects."""

import asyncio
import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import IntegrityError

import tollway.storage
from tollway.errors import StorageUnavailable
from tollway.storage.database import Database, connect_database, metadata
from tollway.storage.migrate import (
    MIGRATIONS,
    OLDEST_SERVICEABLE,
    list_revisions,
    schema_state,
    upgrade,
)

for module in pkgutil.iter_modules(tollway.storage.__path__, "tollway.storage."):
    importlib.import_module(module.name)  # the tables of every module

BEFORE_THE_BASELINE = (
    *("0001_books", "0002_catalog", "0003_identity", "0004_moderation", "0005_authorizations"),
    *("0006_settled_by_chain", "0007_gas_by_network", "0008_rolling", "0009_scale", "0010_standing"),
    *("0011_client_networks", "0012_terms_sold", "0013_wallet_gas", "0014_finality"),
    "0015_unfinal_payer",
)


def is_ours(_subject: object, name: str | None, kind: str, is_reflected: bool, _other: object) -> bool:
    """False for the parts of one dialect: the tables of the full-text search of SQLite."""
    return not (kind == "table" and is_reflected and "search" in (name or ""))


async def test_migrations_and_metadata_agree(database: Database) -> None:
    def differences(connection: Connection) -> object:
        options = {"include_object": is_ours, "compare_type": True}
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)

    assert await database.read(differences) == []


async def test_upgrade_twice_changes_nothing(database: Database) -> None:
    await upgrade(database)
    assert await schema_state(database) == "current"


def columns_of(connection: Connection) -> dict[tuple[str, str], str]:
    tables = inspect(connection)
    return {
        (table, str(column["name"])): repr((column["type"], column["nullable"], column["default"]))
        for table in tables.get_table_names()
        for column in tables.get_columns(table)
    }


async def call_it(database: Database, revision: str) -> None:
    rename = text("UPDATE alembic_version SET version_num = :revision")
    await database.write(lambda connection: connection.execute(rename, {"revision": revision}))


@pytest.mark.parametrize("floor", ["", "0007_gas_by_network", "0008_rolling", OLDEST_SERVICEABLE])
async def test_newer_tables_whose_floor_this_version_reaches_are_ahead_and_stay_as_they_are(
    database: Database, newer: Callable[[str], Path], floor: str
) -> None:
    await upgrade(database, migrations=newer(floor))
    assert await schema_state(database) == "ahead"
    await upgrade(database)
    assert await schema_state(database) == "ahead"
    assert await schema_state(database, migrations=newer(floor)) == "current"


async def test_newer_tables_whose_floor_is_above_this_version_are_foreign(
    database: Database, newer: Callable[[str], Path]
) -> None:
    await upgrade(database, migrations=newer("9001_newer"))
    assert await schema_state(database) == "foreign"
    assert await upgrade(database) == "foreign"
    assert await schema_state(database, migrations=newer("9001_newer")) == "current"


async def test_newer_tables_without_a_floor_are_foreign(database: Database) -> None:
    await call_it(database, "9999_later")
    await database.write(lambda connection: connection.execute(text("DELETE FROM schema_floor")))
    assert await schema_state(database) == "foreign"
    await database.write(lambda connection: connection.execute(text("DROP TABLE schema_floor")))
    assert await schema_state(database) == "foreign"


async def test_the_tables_of_the_release_before_are_serviceable_and_older_ones_are_not(
    database: Database, newer: Callable[[str], Path]
) -> None:
    assert await schema_state(database, migrations=newer("")) == "serviceable"
    older = await schema_state(database, migrations=newer(""), oldest_serviceable="9001_newer")
    assert older == "behind"
    assert await upgrade(database, migrations=newer("")) == "current"
    assert await schema_state(database, migrations=newer("")) == "current"


@pytest.mark.parametrize("revision", BEFORE_THE_BASELINE)
async def test_tables_from_before_the_baseline_are_too_old_and_stay_as_they_are(
    database: Database, newer: Callable[[str], Path], revision: str
) -> None:
    await call_it(database, revision)
    for options in ({}, {"migrations": newer("")}):
        assert await upgrade(database, **options) == "too_old"
        assert await schema_state(database, **options) == "too_old"


async def test_two_that_migrate_at_once_make_the_tables_once(
    empty_database: Database, newer: Callable[[str], Path]
) -> None:
    assert await asyncio.gather(*(upgrade(empty_database) for _ in range(4))) == ["current"] * 4
    options = {"migrations": newer("")}
    assert await asyncio.gather(*(upgrade(empty_database, **options) for _ in range(4))) == ["current"] * 4


async def test_a_migration_that_fails_leaves_the_tables_as_they_were(
    database: Database, newer: Callable[[str], Path]
) -> None:
    """All or nothing, earlier migrations of the same run included."""
    folder = newer("")
    first = (folder / "versions" / "9001_newer.py").read_text()
    again = first.replace("9001_newer", "9002_later").replace(list_revisions()[0], "9001_newer")
    (folder / "versions" / "9002_later.py").write_text(again)  # adds the same column twice
    before = await database.read(columns_of)
    with pytest.raises(StorageUnavailable):
        await upgrade(database, migrations=folder)
    assert await schema_state(database) == "current"
    assert await database.read(columns_of) == before


async def test_each_migration_of_this_release_only_adds(empty_database: Database) -> None:
    """Everything that older code writes and reads stays unchanged, and it needs nothing new."""
    await upgrade(empty_database, revision=OLDEST_SERVICEABLE)
    before = await empty_database.read(columns_of)
    await upgrade(empty_database)
    after = await empty_database.read(columns_of)
    assert {name: after.get(name) for name in before} == before
    known = {table for table, _ in before}
    added = {name: after[name] for name in after if name not in before and name[0] in known}
    assert {name: told for name, told in added.items() if "False, None" in told} == {}


@pytest.mark.postgres
async def test_a_migration_does_not_make_a_busy_gateway_wait_for_long(
    newer: Callable[[str], Path], postgres_url: str
) -> None:
    """Later users of a table wait behind a waiting migration, so the migration gives up first."""
    connection = await asyncpg.connect(postgres_url)
    database = connect_database(postgres_url)
    try:
        async with connection.transaction():
            await connection.execute('LOCK TABLE "call" IN ROW EXCLUSIVE MODE')
            with pytest.raises(StorageUnavailable):
                await upgrade(database, migrations=newer(""))
            assert await schema_state(database) == "current"
    finally:
        await database.close()
        await connection.close()


async def test_a_database_without_tables_is_empty(database: Database) -> None:
    await database.write(lambda c: c.execute(text("DELETE FROM alembic_version")))
    assert await schema_state(database) == "empty"


@pytest.mark.parametrize("taken", [-1, 11])
async def test_a_balance_outside_its_value_cannot_be_written(database: Database, taken: int) -> None:
    row = text(
        "INSERT INTO payment (chain_id, tx_hash, asset, payer, payee, value_units, taken_units, calls, state,"
        " block_number, block_hash, block_time, is_plain_ended, is_held, recorded_ms, checked_ms)"
        " VALUES (1, :blob, 'native', :blob, :blob, 10, :taken, 0, 'final', 1, :blob, 1, false, false, 1, 1)"
    )
    with pytest.raises(IntegrityError, match="taken_within_value"):
        await database.write(lambda c: c.execute(row, {"blob": b"x", "taken": taken}))


def test_each_migration_is_named_as_its_file_and_follows_the_one_before() -> None:
    """What `list_revisions` reads from file names is what alembic reads from the files."""
    scripts = ScriptDirectory(str(MIGRATIONS))
    assert list_revisions() == [script.revision for script in scripts.walk_revisions()]
