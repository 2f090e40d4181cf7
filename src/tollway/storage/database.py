"""The connection to the database: SQLite in a file, or PostgreSQL by URL.

Stores pass plain functions `(Connection) -> T` written once in SQLAlchemy Core; `read` and `write` run them, on SQLite in
threads of this module, on PostgreSQL inside an asyncpg connection. Driver errors stop here. A caller gets
`StorageUnavailable` (the transaction did nothing or everything: try again; `ValueRefused`: it did nothing, and a value is at
fault) or SQLAlchemy's `IntegrityError`, which a store turns into an outcome of its own.

On SQLite there is one writer thread with one connection, and only that connection checkpoints: SQLite before 3.51.3 can lose
committed pages when two connections write or checkpoint at once (sqlite.org/wal.html#walresetbug).

For PostgreSQL, `find_risks` names the server settings that can lose committed data.
"""

import asyncio
import contextlib
import fcntl
import os
import sqlite3 as stdlib_sqlite3
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import asyncpg
from sqlalchemy import Connection, Engine, Executable, MetaData, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool, QueuePool, StaticPool
from sqlalchemy.util import greenlet_spawn

from tollway.errors import StorageUnavailable
from tollway.ids import Address, TxHash
from tollway.storage.outage import CommitInDoubt, OutageLog, Use, ValueRefused, is_value_refused
from tollway.storage.postgres import (
    DRIVER_ERRORS,
    STATEMENT_SESSION,
    UNFLUSHED_SESSION,
    ConnectionValidity,
    PostgresAddress,
    PostgresConnector,
    terminate_timed_out,
)
from tollway.storage.statements import execute_text
from tollway.storage.writer_thread import WriterThread

try:  # a newer SQLite than most systems have, where its wheel exists
    import pysqlite3.dbapi2 as sqlite_module
except ImportError:
    sqlite_module = stdlib_sqlite3

T = TypeVar("T")
Work = Callable[[Connection], T]
FetchScalar = Callable[[Executable], Awaitable[Any]]
"""Runs one statement; the first value that it answers."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
"""Every table. Each store module adds its own."""

WAL_RESET_FIXED = (3, 51, 3)
READERS = 4
PRIVATE_MODE, OWNER_BITS = 0o600, 0o700
CACHE_KIB = 8 * 1024
"""Of each SQLite connection, which keeps it for good once it is full. The system caches the rest of the file."""
BUSY_TIMEOUT_MS = 5_000
COMMAND_TIMEOUT_S = 5.0
"""For each statement, and for its commit. A server that is gone says nothing: this is how long it is believed."""
POOL_TIMEOUT_S = 15.0
"""Longer than a statement: under load it is a queue, and in an outage the task that holds a connection finds out first."""
CONNECTIONS, CONNECTIONS_MORE = 10, 10


class Database(Protocol):
    """Runs the stores' functions. Safe to call from many tasks at once."""

    dialect: Literal["sqlite", "postgresql"]

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def read(self, work: Work[T], *, is_long: bool = False) -> T:
        """Runs `work` in one read-only snapshot. `is_long`: without the deadlines of a served request (an audit)."""
        ...

    async def write(self, work: Work[T], *, flush: bool = True, is_long: bool = False) -> T:
        """Runs `work` in one transaction, committed when this returns, rolled back when `work` raises.

        `flush` False: the commit survives a crash of the process, not yet of the machine (the next flushed commit
        makes it durable too). With it, what `work` has seen is as durable as what it wrote. `is_long`: without the
        deadlines of a served request (a migration). Raises `StorageUnavailable` when the outcome is unknown.
        """
        ...

    async def write_statement(self, work: Work[T], *, flush: bool = True) -> T:
        """As `write`, for work that writes with one statement alone. On PostgreSQL that statement is a transaction of its own, on a
        session for such statements: without a BEGIN and a COMMIT, one round trip. What `work` only reads before it is not
        in that transaction. One at a time for each `flush`; others wait."""
        ...

    def describe_location(self) -> str:
        """Where the data live, without any secret: for logs and `doctor`."""
        ...


def connect_database(url: str) -> Database:
    """`sqlite:///path` or `postgresql://…` -> a database, not yet open. Raises ValueError on another scheme."""
    if url.startswith(("postgresql://", "postgresql+asyncpg://")):
        return PostgresDatabase(url)  # several hosts are more than `make_url` can read
    backend = make_url(url).get_backend_name()
    if backend == "sqlite":
        path = make_url(url).database
        if not path or path == ":memory:":
            raise ValueError("SQLite needs a file: sqlite:///tollway.sqlite3")
        return SqliteDatabase(Path(path))
    raise ValueError(f"{backend} is not supported; use sqlite:///file or postgresql://host/name")


def is_shared_write_safe() -> bool:
    """True when the SQLite library has the WAL-reset fix, so that a second process may write to the file."""
    version: tuple[int, ...] = sqlite_module.sqlite_version_info
    return version >= WAL_RESET_FIXED


class SqliteDatabase:
    """SQLite in WAL mode: one writer thread, a few read-only readers."""

    dialect: Literal["sqlite", "postgresql"] = "sqlite"

    def __init__(self, path: Path) -> None:
        register_adapters(sqlite_module)
        self.path = path
        self._writer = WriterThread("sqlite-writer")
        self._readers = ThreadPoolExecutor(max_workers=READERS, thread_name_prefix="sqlite-reader")
        self._write_engine = self._create_engine(is_writer=True)
        self._read_engine = self._create_engine(is_writer=False)
        self._write_connection: Connection | None = None
        self._is_flushing = True
        self._outages = OutageLog(self.describe_location())

    def _create_engine(self, *, is_writer: bool) -> Engine:
        # The pool classes differ: the writer keeps its one connection for life.
        # Whatever is begun is ended below: nothing is left to be taken back when a connection is given back.
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
            connection.isolation_level = None  # BEGIN is ours, below
            pragmas = ["foreign_keys=ON", f"cache_size=-{CACHE_KIB}", "temp_store=MEMORY"]
            if is_writer:
                pragmas += ["journal_mode=WAL", "synchronous=FULL"]
            else:
                pragmas += ["query_only=1", "wal_autocheckpoint=0"]
            for pragma in pragmas:
                connection.execute(f"PRAGMA {pragma}").close()

        if not is_writer:
            event.listen(engine, "begin", lambda connection: execute_text(connection, "BEGIN"))
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
            self._outages.record_failure(use, exc)
            raise StorageUnavailable from exc
        self._outages.record_success(use)
        return result

    def _read(self, work: Work[T]) -> T:
        with self._read_engine.connect() as connection, connection.begin():
            return work(connection)

    def _write(self, work: Work[T], *, flush: bool) -> T:
        connection = self.connect_writer()
        try:
            if flush is not self._is_flushing:  # a pragma counts only outside a transaction
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
        """The writer's connection, in its thread. To take one from the pool for each transaction costs 20 µs, so it is kept
        until a transaction fails.

        SQLAlchemy's own transaction begins here and ends with the connection, and it begins nothing in SQLite: each transaction of
        SQLite is a BEGIN and a COMMIT inside it. One for each costs 35 µs more. An error of a
        statement rolls nothing back before `_write` does."""
        if self._write_connection is None:
            self._write_connection = self._write_engine.connect()
            self._write_connection.begin()
        return self._write_connection

    def disconnect_writer(self) -> None:
        """Closes the writer's connection, in its thread. The next transaction opens another."""
        self._return_connection()
        self._write_engine.dispose()

    def _return_connection(self) -> None:
        """Rolls back what was begun and not committed."""
        connection, self._write_connection = self._write_connection, None
        if connection is not None:
            connection.close()

    def describe_location(self) -> str:
        return f"sqlite:{self.path} (SQLite {sqlite_module.sqlite_version})"


def register_adapters(module: Any) -> None:
    """Bind None, booleans and bytes through adapters. Without one the driver looks for two attributes that are not there, at
    1.2 to 1.6 µs a value; a claim with its close and its finish has ten such values. The database gets the same values of the
    same types as before, a BLOB for bytes, for every connection of this process. An adapter counts for one type alone, so that
    subclasses have their own."""
    for kind in (bytes, Address, TxHash):
        module.register_adapter(kind, bytearray)
    module.register_adapter(bool, int)
    module.register_adapter(type(None), {}.get)  # None for None, without a frame of Python


def restrict_to_owner(path: Path) -> None:
    """Only the owner of a SQLite database can read it, and what SQLite puts beside it. Makes the file where there is none:
    SQLite gives its log the rights of the database. Raises OSError when the file cannot be made."""
    if not path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE))
    for file in (path, *list_auxiliary_files(path)):
        with contextlib.suppress(
            FileNotFoundError, PermissionError
        ):  # of another owner: it stays as that one wants it
            mode = stat.S_IMODE(file.stat().st_mode)
            if mode & ~OWNER_BITS:
                file.chmod(mode & OWNER_BITS)


def list_auxiliary_files(path: Path) -> list[Path]:
    """What SQLite puts beside a database, whether it is there or not."""
    return [path.with_name(path.name + ending) for ending in ("-wal", "-shm", "-journal")]


class PostgresDatabase:
    """PostgreSQL through asyncpg. Many gateways may share it. `connector` makes its connections; other modules may connect there
    for one of their own.

    A connection that an outage has touched is never used again: after a deadline, a read-only answer or a lost
    connection, those that were made before it are thrown away as they are taken from the pool.
    """

    dialect: Literal["sqlite", "postgresql"] = "postgresql"

    def __init__(self, url: str) -> None:
        address = PostgresAddress.parse(url)
        self.connector = PostgresConnector(address)
        self._outages = OutageLog(self.describe_location())
        self._validity = ConnectionValidity()
        self._resolved_in_doubt = 0
        connect_writable = partial(self._connect, statement_deadline_s=COMMAND_TIMEOUT_S)
        connect_long = partial(self._connect, statement_deadline_s=None)
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=connect_writable,
            pool_size=CONNECTIONS,
            max_overflow=CONNECTIONS_MORE,
            pool_timeout=POOL_TIMEOUT_S,
            pool_use_lifo=True,  # a quiet gateway stays on a connection that knows its statements
        )
        self._long_engine = create_async_engine(
            "postgresql+asyncpg://", async_creator=connect_long, poolclass=NullPool
        )
        self._lone_engine = create_async_engine(
            "postgresql+asyncpg://", async_creator=connect_writable, poolclass=NullPool
        )
        self._statement_engines = {
            True: self._create_statement_engine(STATEMENT_SESSION),
            False: self._create_statement_engine(UNFLUSHED_SESSION),
        }
        self._validity.watch_pool(self._engine.sync_engine)
        for engine in (self._engine, self._long_engine, self._lone_engine):
            event.listen(engine.sync_engine, "handle_error", terminate_timed_out)

    def _create_statement_engine(self, session: Mapping[str, str]) -> AsyncEngine:
        """One connection, on which each statement is a transaction of its own."""

        async def connect() -> asyncpg.Connection:
            connection = await self.connector.connect_writable(
                statement_deadline_s=COMMAND_TIMEOUT_S, session=session
            )
            connection.add_log_listener(self._validity.record_any_warning)
            return connection

        engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=connect,
            isolation_level="AUTOCOMMIT",
            pool_size=1,
            max_overflow=0,
            pool_timeout=POOL_TIMEOUT_S,
        )
        self._validity.watch_pool(engine.sync_engine)
        event.listen(engine.sync_engine, "handle_error", terminate_timed_out)
        return engine

    async def open(self) -> None:
        await self.read(lambda connection: connection.execute(text("SELECT 1")).scalar())

    async def close(self) -> None:
        for engine in (self._engine, *self._statement_engines.values()):
            await engine.dispose()

    async def read(self, work: Work[T], *, is_long: bool = False) -> T:
        engine = self._long_engine if is_long else self._engine
        return await self._run(engine, lambda connection: _read(connection, work), use="read")

    async def write(self, work: Work[T], *, flush: bool = True, is_long: bool = False) -> T:
        commits_in_doubt = self._validity.commits_in_doubt
        is_in_doubt = flush and commits_in_doubt != self._resolved_in_doubt
        write = partial(self._write, work=work, flush=flush, is_in_doubt=is_in_doubt)
        engine = self._long_engine if is_long else self._engine
        result = await self._run(engine, write, use="write")
        if flush and self._validity.commits_in_doubt == commits_in_doubt:
            self._resolved_in_doubt = commits_in_doubt
        return result

    async def write_statement(self, work: Work[T], *, flush: bool = True) -> T:
        def run_statement(connection: Connection) -> T:
            result = work(connection)
            # After doubt no message has to be written first, as `_write` does it: all that it has granted is written, so
            # its own commit has waited for the standby.
            if self._validity.is_commit_in_doubt(connection.connection.driver_connection):
                raise CommitInDoubt("the server committed without its standby")
            return result

        return await self._run(self._statement_engines[flush], run_statement, use="write")

    def _write(self, connection: Connection, *, work: Work[T], flush: bool, is_in_doubt: bool) -> T:
        connection.begin()
        if not flush:
            execute_text(connection, "SET LOCAL synchronous_commit = off")
        elif is_in_doubt:
            # What this transaction finds there may be on the primary alone. Its own commit then has to wait for the
            # standby, and it does so only when it has written something.
            connection.exec_driver_sql("SELECT pg_logical_emit_message(true, 'tollway', '')")
        result = work(connection)
        driver = connection.connection.driver_connection
        connection.commit()
        if self._validity.is_commit_in_doubt(driver):
            raise CommitInDoubt("the server committed without its standby")
        return result

    @contextlib.asynccontextmanager
    async def open_session(self) -> AsyncIterator[FetchScalar]:
        """A session outside the pool, for what lives as long as it does; closed for good at the end. Each question is a
        transaction of its own. Opening and asking raise `StorageUnavailable`."""
        async with contextlib.AsyncExitStack() as stack:
            with self._translated("read"):
                connection = await stack.enter_async_context(self._lone_engine.connect())
                alone = await connection.execution_options(isolation_level="AUTOCOMMIT")

            async def fetch_scalar(question: Executable) -> Any:
                with self._translated("read"):
                    try:
                        return await alone.scalar(question)
                    except DRIVER_ERRORS as exc:
                        await alone.run_sync(self._validity.discard_unusable, "read", exc)
                        raise

            yield fetch_scalar

    async def _run(self, engine: AsyncEngine, job: Callable[[Connection], T], *, use: Use) -> T:
        """The whole of a transaction, from a connection to letting go of it, in one greenlet: each costs."""
        with self._translated(use):
            result: T = await greenlet_spawn(self._run_in_greenlet, engine.sync_engine, job, use)
        self._outages.record_success(use)
        return result

    def _run_in_greenlet(self, engine: Engine, job: Callable[[Connection], T], use: Use) -> T:
        with engine.connect() as connection:
            try:
                return job(connection)
            except DRIVER_ERRORS as exc:
                self._validity.discard_unusable(connection, use, exc)
                raise

    @contextlib.contextmanager
    def _translated(self, use: Use) -> Iterator[None]:
        try:
            yield
        except IntegrityError:
            raise
        except DRIVER_ERRORS as exc:
            if is_value_refused(exc):
                raise ValueRefused from exc
            self._outages.record_failure(use, exc)
            raise StorageUnavailable from exc

    async def _connect(self, *, statement_deadline_s: float | None) -> asyncpg.Connection:
        connection = await self.connector.connect_writable(statement_deadline_s=statement_deadline_s)
        connection.add_log_listener(self._validity.record_warning)
        return connection

    def describe_location(self) -> str:
        return f"postgresql:{self.connector.address}"


def _read(connection: Connection, work: Work[T]) -> T:
    still = connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    still.begin()
    result = work(still)
    still.rollback()
    return result


def is_retryable(exc: StorageUnavailable) -> bool:
    """True when the database itself rolled back (deadlock, serialisation): nothing happened, do it again."""
    cause = exc.__cause__
    state = getattr(getattr(cause, "orig", None), "sqlstate", None) if isinstance(cause, DBAPIError) else None
    return state in ("40001", "40P01")


ROLLBACKS_MAX = 8
"""How often a transaction runs again that the database rolled back (deadlock)."""


async def write_retried(database: Database, work: Work[T], *, flush: bool = True, is_long: bool = False) -> T:
    """`database.write`, again where the database itself rolled the transaction back. Raises `StorageUnavailable`."""
    for _ in range(ROLLBACKS_MAX - 1):
        try:
            return await database.write(work, flush=flush, is_long=is_long)
        except StorageUnavailable as exc:
            if not is_retryable(exc):
                raise
    return await database.write(work, flush=flush, is_long=is_long)


class ProcessLock:
    """Held by the one gateway process that may serve from a SQLite file. Freed by the kernel when it dies."""

    def __init__(self, path: Path) -> None:
        """Makes the file, and its folder where there is none. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a")

    def acquire(self) -> bool:
        """False when another process holds it."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Of the server that takes our writes. `hosts`: how many servers the URL names."""

    fsync: bool
    full_page_writes: bool
    standbys: str
    is_read_only: bool
    hosts: int


async def read_server_settings(database: PostgresDatabase) -> ServerSettings:
    """Raises `StorageUnavailable`."""
    hosts = len(database.connector.address.hosts)

    def look(connection: Connection) -> ServerSettings:
        row = connection.execute(_SETTINGS_QUERY).one()
        return ServerSettings(
            fsync=row.fsync == "on",
            full_page_writes=row.full_page_writes == "on",
            standbys=row.standbys,
            is_read_only=row.is_standby or row.read_only == "on",
            hosts=hosts,
        )

    return await database.read(look)


def find_risks(settings: ServerSettings) -> Iterator[str]:
    """A sentence for each. `synchronous_commit` is not among them: every session of a gateway switches it on."""
    if settings.is_read_only:
        yield "the server is read-only: nothing can be sold"
    if not settings.fsync:
        yield "fsync is off: a power cut can lose claims, and break the database"
    if not settings.full_page_writes:
        yield "full_page_writes is off: a power cut can break the database"
    if settings.hosts > 1 and not settings.standbys.strip():
        yield (
            "there are several servers, and synchronous_standby_names is empty: a failover can lose claims that were "
            "already served, and what paid for them could be spent again"
        )


_SETTINGS_QUERY = text(
    "SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes, "
    "current_setting('synchronous_standby_names') AS standbys, pg_is_in_recovery() AS is_standby, "
    "current_setting('default_transaction_read_only') AS read_only"
)
