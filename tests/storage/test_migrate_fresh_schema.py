"""A new SQLite file gets exactly the tables of the migrations from `sqlite.json`; the migrations run when that file does not match them."""

import json
import shutil
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from tests.kit.schema_writer import describe
from tollway.errors import StorageUnavailable
from tollway.storage.database import SqliteDatabase
from tollway.storage.migrate import FILE_NAME, MIGRATIONS, read_statements, schema_state, upgrade


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    folder = tmp_path / "migrations"
    shutil.copytree(MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def read_all(connection: Connection) -> list[tuple[object, ...]]:
    objects = connection.execute(text("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"))
    found = [tuple(row) for row in objects]
    for table in ("alembic_version", "listing_total", "schema_floor"):
        found += [(table, *row) for row in connection.exec_driver_sql(f"SELECT * FROM {table}")]
    return found


async def make(path: Path, migrations: Path = MIGRATIONS, *, is_step_by_step: bool = False) -> object:
    database = SqliteDatabase(path)
    await database.open()
    try:
        assert await upgrade(database, migrations=migrations, is_step_by_step=is_step_by_step) == "current"
        assert await schema_state(database, migrations=migrations) == "current"
        return await database.read(read_all)
    finally:
        await database.close()


async def test_the_schema_file_has_the_statements_of_the_migrations(tmp_path: Path) -> None:
    hint = "a migration has changed: run `make schema`"
    assert (MIGRATIONS / FILE_NAME).read_text() == await describe(tmp_path), hint


async def test_a_new_database_is_equal_from_the_schema_file_and_from_the_migrations(tmp_path: Path) -> None:
    long_way = await make(tmp_path / "long.sqlite3", is_step_by_step=True)
    assert await make(tmp_path / "short.sqlite3") == long_way


async def test_changed_migrations_run_instead_of_the_schema_file(tmp_path: Path, migrations: Path) -> None:
    newest = max((migrations / "versions").glob("[0-9]*.py"))
    newest.write_text(newest.read_text() + "\n# changed\n")
    assert read_statements(migrations) == ()
    assert await make(tmp_path / "a.sqlite3", migrations) == await make(tmp_path / "b.sqlite3")


async def test_migrations_run_without_a_schema_file(tmp_path: Path, migrations: Path) -> None:
    (migrations / FILE_NAME).unlink()
    assert await make(tmp_path / "a.sqlite3", migrations) == await make(tmp_path / "b.sqlite3")


async def test_a_failed_statement_of_the_schema_file_leaves_the_database_empty(
    tmp_path: Path, migrations: Path
) -> None:
    """The tables are made in one transaction."""
    contents = json.loads((migrations / FILE_NAME).read_text())
    contents["statements"].append("CREATE TABLE payment (id INTEGER)")
    (migrations / FILE_NAME).write_text(json.dumps(contents))
    database = SqliteDatabase(tmp_path / "a.sqlite3")
    await database.open()
    with pytest.raises(StorageUnavailable):
        await upgrade(database, migrations=migrations)
    assert await schema_state(database, migrations=migrations) == "empty"
    await database.close()
