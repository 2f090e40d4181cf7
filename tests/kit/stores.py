"""The real stores over SQLite in memory, for tests that need a store and not its database: migrated, empty, and open in well
under a millisecond.

`InlineDatabase` stands in for `storage.database.SqliteDatabase`: the same module, dialect and pragmas, one connection, no
thread, no file. It runs each function before it returns, so a test sees no task switch inside a store. What depends on
files, threads or several processes is tested on the real databases by `tests/contracts` and `tests/storage`.
"""

import asyncio
import os
import tempfile
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from tollway.errors import StorageUnavailable
from tollway.storage.catalog_store import CatalogStore
from tollway.storage.database import SqliteDatabase
from tollway.storage.database import sqlite_module as sqlite  # type: ignore[attr-defined]  # the one in use
from tollway.storage.encryption import Sealer
from tollway.storage.migrate import upgrade
from tollway.storage.outage import ValueRefused, is_value_refused

T = TypeVar("T")
Work = Callable[[Connection], T]

KEY = b"\x07" * 32

_FREE: list[Engine] = []
"""Engines that no database holds. Each keeps the statements that it has compiled."""


class InlineDatabase:
    """A `Database`. `is_away`: it does not answer. `reads` and `writes` count transactions."""

    dialect: Literal["sqlite", "postgresql"] = "sqlite"

    def __init__(self) -> None:
        self._engine = _FREE.pop() if _FREE else _create_engine()
        connection = self._engine.raw_connection()
        _migrated().backup(connection.driver_connection)
        connection.close()
        weakref.finalize(self, _FREE.append, self._engine)
        self.is_away = False
        self.reads = self.writes = 0

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def read(self, work: Work[T], *, is_long: bool = False) -> T:
        self.reads += 1
        return self._run(work)

    async def write(self, work: Work[T], *, flush: bool = True, is_long: bool = False) -> T:
        self.writes += 1
        return self._run(work)

    def _run(self, work: Work[T]) -> T:
        if self.is_away:
            raise StorageUnavailable
        try:
            with self._engine.connect() as connection, connection.begin():
                return work(connection)
        except IntegrityError:
            raise
        except (SQLAlchemyError, OverflowError, UnicodeEncodeError) as exc:
            raise (ValueRefused if is_value_refused(exc) else StorageUnavailable) from exc

    def describe_location(self) -> str:
        return "sqlite:memory"


def open_catalog(
    database: InlineDatabase | None = None, *, now_ms: Callable[[], int], key: bytes = KEY
) -> CatalogStore:
    """A catalog; in a database of its own unless one is given. `key`: of the upstreams' secrets."""
    return CatalogStore(database or InlineDatabase(), sealer=make_sealer(key), now_ms=now_ms)


def make_sealer(key: bytes = KEY) -> Sealer:
    return Sealer(key, entropy=os.urandom)


def _create_engine() -> Engine:
    engine = create_engine(
        "sqlite+pysqlite://",
        module=sqlite,
        connect_args={"check_same_thread": False},
        poolclass=StaticPool,
        pool_reset_on_return=None,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys=ON").close()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


@cache
def _migrated() -> Any:
    """A connection to an empty database in memory, as the migrations leave it."""
    image = sqlite.connect(":memory:", check_same_thread=False)

    async def migrate(path: Path) -> None:
        database = SqliteDatabase(path)
        await database.open()
        try:
            await upgrade(database)
        finally:
            await database.close()
        file = sqlite.connect(path)
        file.backup(image)
        file.close()

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(max_workers=1) as threads:
        threads.submit(asyncio.run, migrate(Path(folder) / "migrated.sqlite3")).result()
    return image
