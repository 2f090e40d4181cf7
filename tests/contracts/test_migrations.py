"""The tables as the migrations make them are the tables as the stores know them, on both dialects."""

import importlib
import pkgutil

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

import tollway.storage
from tollway.storage.database import Database, metadata
from tollway.storage.migrate import schema_state, upgrade

for module in pkgutil.iter_modules(tollway.storage.__path__, "tollway.storage."):
    importlib.import_module(module.name)  # every room's tables


def is_ours(_subject: object, name: str | None, kind: str, is_reflected: bool, _other: object) -> bool:
    """Leaves out what only one dialect has: the tables of SQLite's full-text search."""
    return not (kind == "table" and is_reflected and "search" in (name or ""))


async def test_migrations_and_metadata_agree(database: Database) -> None:
    def differences(connection: Connection) -> object:
        options = {"include_object": is_ours, "compare_type": True}
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)

    assert await database.read(differences) == []


async def test_upgrade_twice_changes_nothing(database: Database) -> None:
    await upgrade(database)
    assert await schema_state(database) == "current"


async def test_a_newer_database_is_foreign(database: Database) -> None:
    await database.write(lambda c: c.execute(text("UPDATE alembic_version SET version_num = '9999_later'")))
    assert await schema_state(database) == "foreign"


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
