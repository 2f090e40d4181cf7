"""The baseline and the migrations make the tables that the stores define, on both dialects."""

import asyncio
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import IntegrityError

from tests.kit.schema_writer import DRIVERS, list_statements, write_baseline
from tollway.errors import StorageUnavailable
from tollway.storage.engine.database import Database
from tollway.storage.engine.migrate import (
    BASELINE,
    MIGRATIONS,
    OLDEST_SERVICEABLE,
    baseline_path,
    list_revisions,
    schema_state,
    upgrade,
)

pytestmark = pytest.mark.dialects

BEFORE_THE_BASELINE = ("0001_books", "0016_call_terms", "0030_response_providers")
PARTIAL = {
    "sqlite": "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE type <> 'table' AND sql IS NOT NULL ORDER BY name",
    "postgresql": """SELECT 'index', indexname, tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'
    UNION ALL SELECT 'trigger', tgname, tgrelid::regclass::text, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT 'function', proname, '', pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    ORDER BY 1, 2""",
}
"""The objects of a schema whose whole statement the dialect keeps."""


def describe(connection: Connection) -> dict[str, Any]:
    """The schema without the order of columns, which a migration cannot choose, and without the order of objects."""
    tables, found = inspect(connection), dict[str, Any]()
    for table in tables.get_table_names():
        found[table] = [
            {
                str(one["name"]): repr((one["type"], one["nullable"], one["default"]))
                for one in tables.get_columns(table)
            },
            tables.get_pk_constraint(table),
            *(
                sorted(map(repr, read(table)))
                for read in (
                    tables.get_foreign_keys,
                    tables.get_unique_constraints,
                    tables.get_check_constraints,
                )
            ),
        ]
    found["objects"] = [tuple(row) for row in connection.exec_driver_sql(PARTIAL[connection.dialect.name])]
    return found


def read_rows(connection: Connection) -> dict[str, list[Any]]:
    """The rows of every table that has some."""
    tables = inspect(connection).get_table_names()
    rows = {table: connection.exec_driver_sql(f'SELECT * FROM "{table}"').all() for table in tables}
    return {table: sorted(map(repr, found)) for table, found in rows.items() if found}


@pytest.mark.parametrize("dialect", DRIVERS)
def test_the_files_of_the_baseline_are_what_the_tables_of_the_stores_yield(dialect: str) -> None:
    assert list_revisions() == [BASELINE], (
        "a migration follows the baseline, which is frozen now: remove this test and `make schema`"
    )
    written = write_baseline(dialect)
    assert baseline_path(MIGRATIONS, dialect).read_text() == written, (
        "the tables have changed: run `make schema`"
    )


class Undo(Exception):
    """Rolls a transaction back."""


async def test_migrations_and_metadata_agree(empty_database: Database) -> None:
    made: list[dict[str, Any]] = []

    def make(connection: Connection) -> None:
        for statement in list_statements(connection.dialect.name):
            connection.exec_driver_sql(statement)
        made.append(describe(connection))
        raise Undo

    with pytest.raises(Undo):
        await empty_database.write(make)
    assert await schema_state(empty_database) == "empty"
    assert await upgrade(empty_database) == "current"
    assert [await empty_database.read(describe)] == made
    assert len(made[0]) > 40


async def test_a_failed_statement_of_the_baseline_leaves_the_database_empty(
    empty_database: Database, newer: Callable[[str], Path]
) -> None:
    folder = newer("")
    path = baseline_path(folder, empty_database.dialect)
    path.write_text(path.read_text() + "\nCREATE TABLE payment (id INTEGER);\n")
    with pytest.raises(StorageUnavailable):
        await upgrade(empty_database, migrations=folder)
    assert await schema_state(empty_database) == "empty"
    assert await empty_database.read(read_rows) == {}


async def test_upgrade_twice_changes_nothing(database: Database) -> None:
    await upgrade(database)
    assert await schema_state(database) == "current"


Columns = dict[tuple[str, str], str]


def columns_of(connection: Connection) -> Columns:
    tables = inspect(connection)
    return {
        (table, str(column["name"])): repr((column["type"], column["nullable"], column["default"]))
        for table in tables.get_table_names()
        for column in tables.get_columns(table)
    }


async def call_it(database: Database, revision: str) -> None:
    rename = text("UPDATE alembic_version SET version_num = :revision")
    await database.write(lambda connection: connection.execute(rename, {"revision": revision}))


@pytest.mark.parametrize(
    ("floor", "state"),
    [("", "ahead"), ("0030_older", "ahead"), (OLDEST_SERVICEABLE, "ahead"), ("9001_newer", "foreign")],
)
async def test_newer_tables_are_foreign_where_their_floor_is_above_this_version_and_stay_as_they_are(
    database: Database, newer: Callable[[str], Path], floor: str, state: str
) -> None:
    await upgrade(database, migrations=newer(floor))
    assert await schema_state(database) == state
    assert await upgrade(database) == state
    assert await schema_state(database) == state
    assert await schema_state(database, migrations=newer(floor)) == "current"


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


def find_changes(before: Columns, after: Columns) -> set[tuple[str, str]]:
    """The columns that older code could not use as before: changed, gone, or new in a known table without null and without a default."""
    known = {table for table, _ in before}
    added = {name for name in after if name not in before and name[0] in known}
    return {name for name in before if after.get(name) != before[name]} | {
        name for name in added if "False, None" in after[name]
    }


@pytest.mark.parametrize("is_newer", [False, True], ids=["this release", "the next one"])
async def test_each_migration_of_a_release_only_adds(
    empty_database: Database, newer: Callable[[str], Path], is_newer: bool
) -> None:
    """Everything that older code writes and reads stays unchanged, and it needs nothing new."""
    options: dict[str, Any] = {"migrations": newer("")} if is_newer else {}
    await upgrade(empty_database, revision=OLDEST_SERVICEABLE)
    before = await empty_database.read(columns_of)
    await upgrade(empty_database, **options)
    after = await empty_database.read(columns_of)
    assert find_changes(before, after) == set()
    assert (after != before) is is_newer


def test_a_changed_a_lost_and_a_needed_column_are_found() -> None:
    before = {("call", "id"): "text, False, None", ("call", "path"): "text, False, None"}
    after = {
        ("call", "id"): "integer, False, None",
        ("call", "tip"): "integer, False, None",
        ("tip", "id"): "integer, False, None",
    }
    assert find_changes(before, after) == {("call", "id"), ("call", "path"), ("call", "tip")}


@pytest.mark.postgres
async def test_a_migration_does_not_make_a_busy_gateway_wait_for_long(
    newer: Callable[[str], Path], postgres_database: Database, operator: asyncpg.Connection
) -> None:
    """Later users of a table wait behind a waiting migration, so the migration gives up first."""
    async with operator.transaction():
        await operator.execute('LOCK TABLE "call" IN ROW EXCLUSIVE MODE')
        with pytest.raises(StorageUnavailable):
            await upgrade(postgres_database, migrations=newer(""))
        assert await schema_state(postgres_database) == "current"


async def test_a_database_without_tables_is_empty(database: Database) -> None:
    await database.write(lambda c: c.execute(text("DELETE FROM alembic_version")))
    assert await schema_state(database) == "empty"


async def test_a_balance_outside_its_value_cannot_be_written(database: Database) -> None:
    row = text(
        "INSERT INTO payment (chain_id, tx_hash, asset, payer, payee, value_units, taken_units, calls, state,"
        " block_number, block_hash, block_time, is_plain_ended, is_held, recorded_ms, checked_ms)"
        " VALUES (1, :blob, 'native', :blob, :blob, 10, :taken, 0, 'final', 1, :blob, 1, false, false, 1, 1)"
    )
    for taken in (-1, 11):
        with pytest.raises(IntegrityError, match="taken_within_value"):
            await database.write(methodcaller("execute", row, {"blob": b"x", "taken": taken}))


def test_each_migration_is_named_as_its_file_and_follows_the_one_before() -> None:
    """What `list_revisions` reads from file names is what alembic reads from the files."""
    scripts = ScriptDirectory(str(MIGRATIONS))
    assert list_revisions() == [script.revision for script in scripts.walk_revisions()]
