"""The one door to the database: SQLite in a file, or PostgreSQL by URL.

Stores hand in plain functions `(Connection) -> T` written once in SQLAlchemy Core; `read` and `write` run them, on
SQLite in threads of this module, on PostgreSQL inside an asyncpg connection. Foreign errors stop here: callers see
`StorageUnavailable` (nothing or everything happened, ask again) or SQLAlchemy's `IntegrityError`, which a store
turns into an outcome of its own.

On SQLite there is one writer thread with one connection, and it alone checkpoints: SQLite before 3.51.3 can lose
committed pages when two connections write or checkpoint at once (sqlite.org/wal.html#walresetbug).
"""

import asyncio
import contextlib
import fcntl
import sqlite3 as stdlib_sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from sqlalchemy import Connection, Engine, Executable, MetaData, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import QueuePool, StaticPool

from tollway.errors import StorageUnavailable

try:  # a newer SQLite than most systems have, where its wheel exists
    import pysqlite3.dbapi2 as sqlite_module
except ImportError:
    sqlite_module = stdlib_sqlite3

T = TypeVar("T")
Work = Callable[[Connection], T]
Ask = Callable[[Executable], Awaitable[Any]]
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
"""Every table of the cellar. Each store module adds its own."""

WAL_RESET_FIXED = (3, 51, 3)
READERS = 4
BUSY_TIMEOUT_MS = 5_000
COMMAND_TIMEOUT_S = 15.0


class Database(Protocol):
    """Runs the stores' functions. Safe to call from many tasks at once."""

    dialect: Literal["sqlite", "postgresql"]

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def read(self, work: Work[T]) -> T:
        """Runs `work` in one read-only snapshot."""
        ...

    async def write(self, work: Work[T], *, flush: bool = True) -> T:
        """Runs `work` in one transaction, committed when this returns, rolled back when `work` raises.

        `flush` False: the commit survives a crash of the process, not yet of the machine (the next flushed commit
        makes it durable too). Raises `StorageUnavailable` when the outcome is unknown.
        """
        ...

    def listen_address(self) -> str:
        """Where the data live, without any secret: for logs and `doctor`."""
        ...


def connect_database(url: str) -> Database:
    """`sqlite:///path` or `postgresql://…` -> a database, not yet open. Raises ValueError on another scheme."""
    backend = make_url(url).get_backend_name()
    if backend == "sqlite":
        path = make_url(url).database
        if not path or path == ":memory:":
            raise ValueError("SQLite needs a file: sqlite:///tollway.sqlite3")
        return SqliteDatabase(Path(path))
    if backend == "postgresql":
        return PostgresDatabase(url)
    raise ValueError(f"{backend} is not supported; use sqlite:///file or postgresql://host/name")


def is_shared_write_safe() -> bool:
    """True when the SQLite library has the WAL-reset fix, so that a second process may write to the file."""
    version: tuple[int, ...] = sqlite_module.sqlite_version_info
    return version >= WAL_RESET_FIXED


class SqliteDatabase:
    """SQLite in WAL mode: one writer thread, a few read-only readers."""

    dialect: Literal["sqlite", "postgresql"] = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sqlite-writer")
        self._readers = ThreadPoolExecutor(max_workers=READERS, thread_name_prefix="sqlite-reader")
        self._write_engine = self._create_engine(is_writer=True)
        self._read_engine = self._create_engine(is_writer=False)
        self._is_flushing = True

    def _create_engine(self, *, is_writer: bool) -> Engine:
        # The pool classes differ: the writer keeps its one connection for life.
        pool: dict[str, Any] = (
            {"poolclass": StaticPool} if is_writer else {"poolclass": QueuePool, "pool_size": READERS}
        )
        engine = create_engine(
            f"sqlite+pysqlite:///{self.path}",
            module=sqlite_module,
            connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_MS / 1000},
            **pool,
        )

        @event.listens_for(engine, "connect")
        def prepare(connection: Any, _record: object) -> None:
            connection.isolation_level = None  # BEGIN is ours, below
            pragmas = ["foreign_keys=ON", "cache_size=-65536", "temp_store=MEMORY"]
            if is_writer:
                pragmas += ["journal_mode=WAL", "synchronous=FULL"]
            else:
                pragmas += ["query_only=1", "wal_autocheckpoint=0"]
            for pragma in pragmas:
                connection.execute(f"PRAGMA {pragma}").close()

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")

        return engine

    async def open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        await self.write(lambda connection: connection.execute(text("SELECT 1")).scalar())

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._readers, self._read_engine.dispose)
        await loop.run_in_executor(self._writer, self._write_engine.dispose)
        self._readers.shutdown()
        self._writer.shutdown()

    async def read(self, work: Work[T]) -> T:
        return await self._run(self._readers, lambda: self._read(work))

    async def write(self, work: Work[T], *, flush: bool = True) -> T:
        return await self._run(self._writer, lambda: self._write(work, flush=flush))

    async def _run(self, threads: ThreadPoolExecutor, job: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(threads, job)
        except IntegrityError:
            raise
        except SQLAlchemyError as exc:
            raise StorageUnavailable from exc

    def _read(self, work: Work[T]) -> T:
        with self._read_engine.connect() as connection, connection.begin():
            return work(connection)

    def _write(self, work: Work[T], *, flush: bool) -> T:
        with self._write_engine.connect() as connection:
            if flush is not self._is_flushing:  # a pragma counts only outside a transaction
                driver = connection.connection.driver_connection
                assert driver is not None
                driver.execute(f"PRAGMA synchronous={'FULL' if flush else 'NORMAL'}").close()
                self._is_flushing = flush
            with connection.begin():
                return work(connection)

    def listen_address(self) -> str:
        return f"sqlite:{self.path} (SQLite {sqlite_module.sqlite_version})"


class PostgresDatabase:
    """PostgreSQL through asyncpg. Many gateways may share it."""

    dialect: Literal["sqlite", "postgresql"] = "postgresql"

    def __init__(self, url: str) -> None:
        self._url = make_url(url).set(drivername="postgresql+asyncpg")
        self._engine: AsyncEngine = create_async_engine(
            self._url,
            pool_size=10,
            max_overflow=10,
            pool_timeout=COMMAND_TIMEOUT_S,
            connect_args={
                "timeout": COMMAND_TIMEOUT_S,
                "command_timeout": COMMAND_TIMEOUT_S,
                "server_settings": {"synchronous_commit": "on", "application_name": "tollway", "jit": "off"},
            },
        )

    async def open(self) -> None:
        await self.read(lambda connection: connection.execute(text("SELECT 1")).scalar())

    async def close(self) -> None:
        await self._engine.dispose()

    async def read(self, work: Work[T]) -> T:
        async with self._translated(), self._engine.connect() as connection, connection.begin():
            await connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return await connection.run_sync(work)

    async def write(self, work: Work[T], *, flush: bool = True) -> T:
        async with self._translated(), self._engine.begin() as connection:
            if not flush:
                await connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
            return await connection.run_sync(work)

    @contextlib.asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        try:
            yield
        except IntegrityError:
            raise
        except (SQLAlchemyError, OSError, TimeoutError) as exc:
            raise StorageUnavailable from exc

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[Ask]:
        """A session outside the pool, for what lives as long as it does; closed for good at the end. Each question is a
        transaction of its own. Opening and asking raise `StorageUnavailable`."""
        async with contextlib.AsyncExitStack() as stack:
            async with self._translated():
                connection = await stack.enter_async_context(self._engine.connect())
                alone = await connection.execution_options(isolation_level="AUTOCOMMIT")
                await alone.run_sync(lambda inner: inner.detach())

            async def ask(question: Executable) -> Any:
                async with self._translated():
                    return await alone.scalar(question)

            yield ask

    def listen_address(self) -> str:
        return f"postgresql:{self._url.host or 'local'}:{self._url.port or 5432}/{self._url.database}"


def is_retryable(exc: StorageUnavailable) -> bool:
    """True when the database itself rolled back (deadlock, serialisation): nothing happened, do it again."""
    cause = exc.__cause__
    state = getattr(getattr(cause, "orig", None), "sqlstate", None) if isinstance(cause, DBAPIError) else None
    return state in ("40001", "40P01")


class ProcessLock:
    """Held by the one gateway process that may serve from a SQLite file. Freed by the kernel when it dies."""

    def __init__(self, path: Path) -> None:
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
