"""The database of a gateway: SQLite in a file, or PostgreSQL by URL (module `postgres`).

A store passes plain functions `(Connection) -> T`, written once in SQLAlchemy Core, to `read` and `write`. SQLite runs them in threads of
this module, PostgreSQL in a greenlet on an asyncpg connection. Errors of the driver end here. A store gets:

- `StorageUnavailable`: the transaction did everything or nothing; it may be tried again.
- `ValueRefused`: the transaction did nothing, because a column cannot hold a value.
- SQLAlchemy's `IntegrityError`, which the store turns into an outcome.

SQLite has one writer thread with one connection, and only that connection checkpoints: SQLite before 3.51.3 can lose
committed pages when two connections write or checkpoint at once (sqlite.org/wal.html#walresetbug).
"""

import asyncio
import contextlib
import fcntl
import os
import sqlite3 as stdlib_sqlite3
import stat
import sys
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard

from sqlalchemy import (
    DDL,
    ColumnElement,
    Connection,
    Engine,
    Index,
    MetaData,
    Table,
    create_engine,
    event,
    make_url,
    text,
)
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import QueuePool, StaticPool

from tollway.errors import StorageUnavailable
from tollway.ids import Address, TxHash
from tollway.storage.engine.outage import OutageLog, RowsChanged, Use, ValueRefused, is_value_refused
from tollway.storage.engine.statements import T, Work, execute_text
from tollway.storage.engine.writer_thread import WriterThread

if TYPE_CHECKING:
    from tollway.storage.engine.postgres import PostgresDatabase

# pysqlite3 contains a newer SQLite than most systems have. Not every platform has a wheel of it.
try:
    import pysqlite3.dbapi2 as sqlite_module
except ImportError:
    sqlite_module = stdlib_sqlite3

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def partial_index(
    name: str, predicate: str, *columns: str | ColumnElement[Any], unique: bool = False
) -> Index:
    """An index of the rows that meet the predicate, in both dialects."""
    where = text(predicate)
    return Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


@event.listens_for(Index, "after_parent_attach")
def _number_index(index: Index, table: Table) -> None:
    """Keeps the order in which a table names its indexes, which SQLAlchemy keeps in a set: SQLite has no statistics, so of two indexes that begin with the
    same columns it uses the newer one."""
    index.info["number"] = len(table.indexes)


def add_statement(table: Table, statement: str, *, dialect: str | None = None) -> None:
    """Adds a statement to the DDL of a table: what SQLAlchemy does not model, or a first row. `dialect`: of that one only."""
    ddl = DDL(statement.replace("%", "%%"))  # type: ignore[no-untyped-call]  # SQLAlchemy has no types for it
    event.listen(table, "after_create", ddl.execute_if(dialect=dialect))


WAL_RESET_FIXED = (3, 51, 3)
READERS = 4
READER_NICENESS = 10
"""Of the threads that read. The event loop and the writer take the processor first: each call needs both, and few need a read."""
PRIVATE_MODE, OWNER_BITS = 0o600, 0o700
CACHE_KIB = 8 * 1024
"""The page cache of one SQLite connection. SQLite never shrinks it; the operating system caches the rest of the file."""
BUSY_TIMEOUT_MS = 5_000


def lower_priority() -> None:
    """Gives the thread that runs this less of a processor that others want too. Only on Linux a thread has a priority of its own; a filter of system calls may forbid it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.nice(READER_NICENESS)


class Database(Protocol):
    """Runs the functions of the stores in transactions."""

    dialect: Literal["sqlite", "postgresql"]
    outages: OutageLog

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def read(self, work: Work[T], *, is_long: bool = False) -> T:
        """Runs `work` in one read-only snapshot. `is_long`: without the deadlines of a request (an audit)."""
        ...

    async def write(self, work: Work[T], *, flush: bool = True, is_long: bool = False) -> T:
        """Runs `work` in one transaction: committed when this returns, rolled back when `work` raises.

        `flush` True: the commit is durable, and so is every commit that `work` has read. `flush` False: the commit survives a crash of the process,
        but a crash of the machine only after the next flushed commit. `is_long`: without the deadlines of a request (a migration).
        """
        ...

    async def write_statement(self, work: Work[T], *, flush: bool = True) -> T:
        """Runs `work` that writes with exactly one statement. Promises and errors are those of `write`.

        On PostgreSQL the statement is a transaction without BEGIN and COMMIT (one round trip), on a session for such
        statements; what `work` reads before it is outside that transaction. One call at a time for each value of `flush`."""
        ...

    def describe_location(self) -> str:
        """The text contains no secret."""
        ...


def connect_database(url: str) -> Database:
    """Makes a database, not yet open, from `sqlite:///path` or `postgresql://…`. Raises ValueError on another scheme."""
    # `make_url` cannot read several hosts.
    if url.startswith(("postgresql://", "postgresql+asyncpg://")):
        from tollway.storage.engine.postgres import PostgresDatabase  # noqa: PLC0415 - 11 MiB that a gateway on SQLite does not need

        return PostgresDatabase(url)
    backend = make_url(url).get_backend_name()
    if backend == "sqlite":
        path = make_url(url).database
        if not path or path == ":memory:":
            raise ValueError("SQLite needs a file: sqlite:///tollway.sqlite3")
        return SqliteDatabase(Path(path))
    raise ValueError(f"{backend} is not supported; use sqlite:///file or postgresql://host/name")


def is_postgres(database: Database) -> "TypeGuard[PostgresDatabase]":
    return database.dialect == "postgresql"


def is_shared_write_safe() -> bool:
    """True when the SQLite library has the WAL-reset fix, so that a second process may write to the file."""
    version: tuple[int, ...] = sqlite_module.sqlite_version_info
    return version >= WAL_RESET_FIXED


class SqliteDatabase:
    """A SQLite file in WAL mode: one writer thread, `READERS` threads with read-only connections."""

    dialect: Literal["sqlite", "postgresql"] = "sqlite"

    def __init__(self, path: Path) -> None:
        register_adapters(sqlite_module)
        self.path = path
        self._writer = WriterThread("sqlite-writer")
        self._readers = ThreadPoolExecutor(
            max_workers=READERS, thread_name_prefix="sqlite-reader", initializer=lower_priority
        )
        self._write_engine = self._create_engine(is_writer=True)
        self._read_engine = self._create_engine(is_writer=False)
        self._write_connection: Connection | None = None
        self._is_flushing = True
        self.outages = OutageLog(self.describe_location())

    def _create_engine(self, *, is_writer: bool) -> Engine:
        # Each transaction is ended below, so the pool has nothing to roll back when a connection returns to it.
        pool: dict[str, Any] = (
            {"poolclass": StaticPool} if is_writer else {"poolclass": QueuePool, "pool_size": READERS}
        )
        engine = create_engine(
            f"sqlite+pysqlite:///{self.path}",
            module=sqlite_module,
            connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_MS / 1000},
            pool_reset_on_return=None,
            **pool,
        )

        @event.listens_for(engine, "connect")
        def prepare(connection: Any, _record: object) -> None:
            # The driver begins no transaction: this class sends BEGIN.
            connection.isolation_level = None
            pragmas = ["foreign_keys=ON", f"cache_size=-{CACHE_KIB}", "temp_store=MEMORY"]
            if is_writer:
                pragmas += ["journal_mode=WAL", "synchronous=FULL"]
            else:
                pragmas += ["query_only=1", "wal_autocheckpoint=0"]
            for pragma in pragmas:
                connection.execute(f"PRAGMA {pragma}").close()

        return engine

    async def open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        await self._run(self._writer.run(partial(restrict_to_owner, self.path)), use="write")
        await self.write(lambda connection: connection.execute(text("SELECT 1")).scalar())

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._readers, self._read_engine.dispose)
        await self._writer.run(self.disconnect_writer)
        self._readers.shutdown()
        self._writer.stop()

    async def read(self, work: Work[T], *, is_long: bool = False) -> T:
        loop = asyncio.get_running_loop()
        return await self._run(loop.run_in_executor(self._readers, self._read, work), use="read")

    async def write(self, work: Work[T], *, flush: bool = True, is_long: bool = False) -> T:
        return await self._run(self._writer.run(partial(self._write, work, flush=flush)), use="write")

    async def write_statement(self, work: Work[T], *, flush: bool = True) -> T:
        return await self.write(work, flush=flush)

    async def _run(self, job: Awaitable[T], *, use: Use) -> T:
        try:
            result = await job
        except IntegrityError:
            raise
        except (SQLAlchemyError, OSError, OverflowError, UnicodeEncodeError) as exc:
            if is_value_refused(exc):
                raise ValueRefused from exc
            self.outages.record_failure(use, exc)
            raise StorageUnavailable from exc
        if self.outages.ongoing:
            self.outages.record_success(use)
        return result

    def _read(self, work: Work[T]) -> T:
        with self._read_engine.connect() as connection, connection.begin():
            execute_text(connection, "BEGIN")
            return work(connection)

    def _write(self, work: Work[T], *, flush: bool) -> T:
        connection = self._write_connection or self.connect_writer()
        try:
            # The pragma has no effect inside a transaction.
            if flush is not self._is_flushing:
                execute_text(connection, f"PRAGMA synchronous={'FULL' if flush else 'NORMAL'}")
                self._is_flushing = flush
            execute_text(connection, "BEGIN IMMEDIATE")
            result = work(connection)
            execute_text(connection, "COMMIT")
        except BaseException:
            self._return_connection()
            raise
        return result

    def connect_writer(self) -> Connection:
        """Returns the writer's connection. Call it in the writer's thread. The connection is kept until a transaction fails, because
        taking one from the pool for each transaction costs 20 µs.

        SQLAlchemy's transaction begins here and lasts as long as the connection (one for each transaction costs 35 µs more). It
        begins nothing in SQLite: `_write` sends BEGIN and COMMIT, and rolls back after an error."""
        if self._write_connection is None:
            self._write_connection = self._write_engine.connect()
            self._write_connection.begin()
        return self._write_connection

    def disconnect_writer(self) -> None:
        """Call it in the writer's thread. The next transaction opens another connection."""
        self._return_connection()
        self._write_engine.dispose()

    def _return_connection(self) -> None:
        """Rolls back an open transaction."""
        connection, self._write_connection = self._write_connection, None
        if connection is not None:
            connection.close()

    def describe_location(self) -> str:
        return f"sqlite:{self.path} (SQLite {sqlite_module.sqlite_version})"


def register_adapters(module: Any) -> None:
    """Binds None, booleans and bytes through adapters, for every connection of this process.

    Without an adapter the driver looks for two missing attributes, which costs 1.2 to 1.6 µs for each value; a claim with its close
    and its finish has ten such values. The database gets the same values of the same types, a BLOB for bytes. An adapter counts for
    exactly one type, so each subclass needs its own."""
    for kind in (bytes, Address, TxHash):
        module.register_adapter(kind, bytearray)
    module.register_adapter(bool, int)
    # `{}.get(None)` is None, without a Python frame.
    module.register_adapter(type(None), {}.get)


def restrict_to_owner(path: Path) -> None:
    """Takes the rights of group and others from a SQLite database and from its auxiliary files. Creates a missing file first, because SQLite
    gives its log the rights of the database. Raises OSError when the file cannot be created."""
    if not path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE))
    for file in (path, *list_auxiliary_files(path)):
        # PermissionError: the file belongs to another user and keeps its rights.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            mode = stat.S_IMODE(file.stat().st_mode)
            if mode & ~OWNER_BITS:
                file.chmod(mode & OWNER_BITS)


def open_private(path: str, flags: int) -> int:
    """An opener of `open` that creates a file readable by its owner alone, under any umask."""
    return os.open(path, flags | os.O_CLOEXEC, PRIVATE_MODE)


def list_auxiliary_files(path: Path) -> list[Path]:
    return [path.with_name(path.name + ending) for ending in ("-wal", "-shm", "-journal")]


def is_retryable(exc: StorageUnavailable) -> bool:
    """True for a transaction that was rolled back and may run again: by the database (deadlock, serialisation failure), or by `RowsChanged`."""
    if isinstance(exc, RowsChanged):
        return True
    cause = exc.__cause__
    state = getattr(getattr(cause, "orig", None), "sqlstate", None) if isinstance(cause, DBAPIError) else None
    return state in ("40001", "40P01")


ROLLBACKS_MAX = 8
"""How often a transaction runs that is rolled back each time (deadlock)."""


async def write_retried(database: Database, work: Work[T], *, flush: bool = True, is_long: bool = False) -> T:
    """Runs `database.write`, and again after each rollback that `is_retryable` names, `ROLLBACKS_MAX` times at most."""
    for _ in range(ROLLBACKS_MAX - 1):
        try:
            return await database.write(work, flush=flush, is_long=is_long)
        except StorageUnavailable as exc:
            if not is_retryable(exc):
                raise
    return await database.write(work, flush=flush, is_long=is_long)


class ProcessLock:
    """A lock of the one gateway process that may serve from a SQLite file. The kernel frees it when the process ends."""

    def __init__(self, path: Path) -> None:
        """Creates the file and its folder. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.fdopen(open_private(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a")

    def acquire(self) -> bool:
        """False when another process holds it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        self._file.close()
