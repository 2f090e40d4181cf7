"""A new file gets what the migrations would give it, to the letter; and the migrations are run where that is not sure."""

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


def tell_all(connection: Connection) -> list[tuple[object, ...]]:
    objects = connection.execute(text("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"))
    told = [tuple(row) for row in objects]
    for table in ("alembic_version", "listing_total", "schema_floor"):
        told += [(table, *row) for row in connection.exec_driver_sql(f"SELECT * FROM {table}")]
    return told


async def make(path: Path, migrations: Path = MIGRATIONS, *, is_step_by_step: bool = False) -> object:
    database = SqliteDatabase(path)
    await database.open()
    try:
        assert await upgrade(database, migrations=migrations, is_step_by_step=is_step_by_step) == "current"
        assert await schema_state(database, migrations=migrations) == "current"
        return await database.read(tell_all)
    finally:
        await database.close()


async def test_what_is_written_down_is_what_the_migrations_give(tmp_path: Path) -> None:
    hint = "a migration has changed: run `make schema`"
    assert (MIGRATIONS / FILE_NAME).read_text() == await describe(tmp_path), hint


async def test_a_new_file_is_the_same_both_ways(tmp_path: Path) -> None:
    long_way = await make(tmp_path / "long.sqlite3", is_step_by_step=True)
    assert await make(tmp_path / "short.sqlite3") == long_way


async def test_other_migrations_than_it_was_written_from_are_run(tmp_path: Path, migrations: Path) -> None:
    newest = max((migrations / "versions").glob("[0-9]*.py"))
    newest.write_text(newest.read_text() + "\n# changed\n")
    assert read_statements(migrations) == ()
    assert await make(tmp_path / "a.sqlite3", migrations) == await make(tmp_path / "b.sqlite3")


async def test_where_nothing_is_written_down_migrations_are_run(tmp_path: Path, migrations: Path) -> None:
    (migrations / FILE_NAME).unlink()
    assert await make(tmp_path / "a.sqlite3", migrations) == await make(tmp_path / "b.sqlite3")


async def test_a_file_that_holds_a_part_of_it_is_left_as_it_was(tmp_path: Path, migrations: Path) -> None:
    """All of it or nothing: it is one transaction."""
    told = json.loads((migrations / FILE_NAME).read_text())
    told["statements"].append("CREATE TABLE payment (id INTEGER)")
    (migrations / FILE_NAME).write_text(json.dumps(told))
    database = SqliteDatabase(tmp_path / "a.sqlite3")
    await database.open()
    with pytest.raises(StorageUnavailable):
        await upgrade(database, migrations=migrations)
    assert await schema_state(database, migrations=migrations) == "empty"
    await database.close()
