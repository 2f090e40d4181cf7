"""The contract of `Database`, for SQLite in a file and for the kit's SQLite in memory."""

from collections.abc import AsyncIterator
from operator import methodcaller
from typing import Any

import pytest
from sqlalchemy import Connection, insert, select, text
from sqlalchemy.exc import IntegrityError

from tests.kit.stores import InlineDatabase
from tollway.errors import StorageUnavailable
from tollway.storage.accounts.identity_store import signin_nonce_table
from tollway.storage.catalog.catalog_tables import quality_table
from tollway.storage.engine.database import Database, SqliteDatabase
from tollway.storage.engine.outage import ValueRefused

NO_LISTING = {"listing_seq": 9, "day": 1, "calls": 1, "success_ppm": 1, "p50_ms": None, "p95_ms": None}
ROW = {"nonce": "n", "uri": None, "expires_ms": 1}


@pytest.fixture(params=["inline", "sqlite"])
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    if request.param == "inline":
        yield InlineDatabase()
        return
    async with request.getfixturevalue("open_database")(request.getfixturevalue("sqlite_url")) as opened:
        assert isinstance(opened, SqliteDatabase)
        yield opened


def add(connection: Connection) -> None:
    connection.execute(insert(signin_nonce_table), ROW)


async def count(database: Database) -> int:
    return len(await database.read(lambda connection: list(connection.execute(select(signin_nonce_table)))))


async def test_it_is_migrated_and_empty_and_keeps_what_is_written(database: Database) -> None:
    assert await count(database) == 0
    await database.write(add)
    await database.write(lambda connection: None, flush=False)
    assert await count(database) == 1


async def test_work_that_raises_leaves_nothing(database: Database) -> None:
    def fail(connection: Connection) -> None:
        add(connection)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await database.write(fail)
    assert await count(database) == 0


FAULTS: dict[str, tuple[Any, Any, type[Exception]]] = {
    "twice": (insert(signin_nonce_table), [ROW, ROW], IntegrityError),
    "too large": (insert(signin_nonce_table), [{**ROW, "expires_ms": 2**70}], ValueRefused),
    "no text": (insert(signin_nonce_table), [{**ROW, "nonce": "\ud800"}], ValueRefused),
    "no table": (text("SELECT * FROM no_such_table"), None, StorageUnavailable),
    "no listing": (insert(quality_table), [NO_LISTING], IntegrityError),
}


async def test_distinguishes_each_fault(database: Database) -> None:
    for name, (statement, values, error) in FAULTS.items():
        with pytest.raises(error):
            await database.write(methodcaller("execute", statement, values))
        assert await count(database) == 0, name


async def test_two_databases_share_nothing_and_two_beside_each_other_all() -> None:
    one, other = InlineDatabase(), InlineDatabase()
    beside = InlineDatabase(beside=one)
    await one.write(add)
    assert [await count(each) for each in (one, other, beside)] == [1, 0, 1]
