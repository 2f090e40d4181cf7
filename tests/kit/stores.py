"""The real stores over SQLite in memory, for tests that need a store and not its database: migrated, empty, and open in well
under a millisecond.

`InlineDatabase` stands in for `storage.engine.database.SqliteDatabase`: the same module, dialect and pragmas, one connection, no
thread, no file. It runs each function before it returns, so a test sees no task switch inside a store. What depends on
files, threads or several processes is tested on the real databases by `tests/contracts` and `tests/storage`.
"""

import asyncio
import os
import tempfile
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from sqlalchemy import Connection, Engine, Table, create_engine, delete, event, insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from tollway.errors import StorageUnavailable
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.registry.quality import Reputation
from tollway.storage.accounts.identity_store import ModerationStore, SqlSessions
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.catalog.catalog_tables import (
    listing_table,
    ownership_table,
    quality_table,
    write_costs,
)
from tollway.storage.catalog.creation_store import CreationStore
from tollway.storage.catalog.reputation_store import OwnershipStore, update_score
from tollway.storage.catalog.search_blocks import change_features, rate_feature
from tollway.storage.engine.database import SqliteDatabase
from tollway.storage.engine.database import sqlite_module as sqlite  # type: ignore[attr-defined]  # the one in use
from tollway.storage.engine.encryption import Sealer
from tollway.storage.engine.migrate import upgrade
from tollway.storage.engine.outage import OutageLog, ValueRefused, is_value_refused
from tollway.storage.operator.operator_writes import AuditLogStore

T = TypeVar("T")
Work = Callable[[Connection], T]

KEY = b"\x07" * 32

_FREE: list[Engine] = []
"""Engines that no database holds. Each keeps the statements that it has compiled."""


class InlineDatabase:
    """A `Database`; one `beside` another has the same rows. `is_away`: it does not answer. `reads` and `writes` count
    transactions. `before_write`: awaited once, before the next write begins."""

    dialect: Literal["sqlite", "postgresql"] = "sqlite"
    outages = OutageLog("memory")

    def __init__(self, *, beside: "InlineDatabase | None" = None) -> None:
        self._beside = beside
        self._release: weakref.finalize[..., InlineDatabase] | None
        if beside is None:
            self._engine = _FREE.pop() if _FREE else _create_engine()
            connection = self._engine.raw_connection()
            _migrated().backup(connection.driver_connection)
            connection.close()
            self._release = weakref.finalize(self, _FREE.append, self._engine)
        else:
            self._engine, self._release = beside._engine, None
        self.is_away = False
        self.before_write: Callable[[], Awaitable[object]] | None = None
        self.reads = self.writes = 0

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Lets the next database have the engine. One that is never closed gives it back when it is collected."""
        if self._release is not None:
            self._release()

    async def read(self, work: Work[T], *, is_long: bool = False) -> T:
        self.reads += 1
        return self._run(work)

    async def write(self, work: Work[T], *, flush: bool = True, is_long: bool = False) -> T:
        hook, self.before_write = self.before_write, None
        if hook is not None:
            await hook()
        self.writes += 1
        return self._run(work)

    async def write_statement(self, work: Work[T], *, flush: bool = True) -> T:
        return await self.write(work, flush=flush)

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


class ControlStores:
    """The stores of the control plane over one database. `creation_database`: the same one, as its keys' store sees it."""

    def __init__(self, *, now_ms: Callable[[], int] = lambda: 0, limits: Limits = DEFAULT_LIMITS) -> None:
        self.database = InlineDatabase()
        self.creation_database = InlineDatabase(beside=self.database)
        self.catalog = open_catalog(self.database, now_ms=now_ms)
        self.sessions = SqlSessions(self.database)
        self.moderation = ModerationStore(self.database)
        self.audit_log = AuditLogStore(self.database)
        self.ownerships = OwnershipStore(self.database, now_ms=now_ms)
        self.creations = CreationStore(
            self.creation_database,
            now_ms=now_ms,
            limits=limits,
            shared_clock=lambda connection, now_ms: now_ms,
        )

    async def set_reputation(self, listing_id: str, reputation: Reputation) -> None:
        await self.database.write(lambda connection: write_reputation(connection, listing_id, reputation))

    async def read_rows(self, table: Table) -> list[Any]:
        return await self.database.read(lambda connection: list(connection.execute(select(table))))

    async def clear(self, table: Table) -> None:
        await self.database.write(lambda connection: connection.execute(delete(table)))


def write_reputation(connection: Connection, listing_id: str, reputation: Reputation) -> None:
    """What is known of a listing, as its checks and its quality write it."""
    seq = connection.scalar(select(listing_table.c.seq).where(listing_table.c.id == listing_id))
    if reputation.quality is not None:
        connection.execute(
            insert(quality_table).values(
                listing_seq=seq,
                day=1,
                score=0,
                **{**asdict(reputation.quality), "costs": write_costs(reputation.quality.costs)},
            )
        )
    connection.execute(
        update(ownership_table)
        .where(ownership_table.c.listing_seq == seq)
        .values(
            method="file",
            checked_ms=1,
            verified_ms=reputation.verified_ms,
            owned_by_another=reputation.is_owned_by_another,
        )
    )
    assert seq is not None
    update_score(connection, seq)
    if reputation.quality is not None:
        change_features(connection, seq, before=(), after=[rate_feature(reputation.quality.success_ppm)])


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
