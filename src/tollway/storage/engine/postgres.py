"""The database PostgreSQL through asyncpg: its connector, its pool, and the rules by which the pool keeps a connection.

The connector connects to the first server of an address that accepts writes, within a deadline. During an outage one task
tries to connect and the others fail at once, so the first success ends the outage for all tasks. A connection that was open during an
outage is not used again. `operator_reads.find_risks` lists server settings that can lose committed data.

`connect_database` imports this module only for a PostgreSQL URL: the driver and its part of SQLAlchemy take 11 MiB.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Literal
from weakref import WeakSet

import asyncpg
from sqlalchemy import Connection, Engine, ExceptionContext, Executable, event, text
from sqlalchemy.exc import (
    DBAPIError,
    DisconnectionError,
    IntegrityError,
    InternalError,
    NotSupportedError,
    SQLAlchemyError,
)
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.util import greenlet_spawn

from tollway.errors import StorageUnavailable
from tollway.storage.engine.outage import (
    READ_ONLY,
    SESSION_ENDED,
    CommitInDoubt,
    OutageLog,
    Use,
    ValueRefused,
    is_value_refused,
    name_state,
)
from tollway.storage.engine.postgres_address import PostgresAddress, PostgresHost
from tollway.storage.engine.statements import FetchScalar, T, Work, execute_text

COMMAND_TIMEOUT_S = 5.0
"""The deadline of each statement and of each commit. A lost server sends nothing, so only a deadline detects it."""
POOL_TIMEOUT_S = 15.0
"""Longer than the deadline of a statement: under load the pool is a queue, and in an outage the task with a connection fails first."""
CONNECTIONS, CONNECTIONS_MORE = 10, 10


class PostgresDatabase:
    """A PostgreSQL database, which many gateways may share. Implements `Database`. Other modules may use `connector` for their own
    connections.

    A connection is not used after an outage: after a deadline, a read-only error or a lost connection, connections that were made
    before are closed when they are taken from the pool.
    """

    dialect: Literal["sqlite", "postgresql"] = "postgresql"

    def __init__(self, url: str) -> None:
        address = PostgresAddress.parse(url)
        self.connector = PostgresConnector(address)
        self.outages = OutageLog(self.describe_location())
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
            # With few calls the same connection is used again; it has prepared their statements.
            pool_use_lifo=True,
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
        """An engine of one connection in autocommit: each statement is a transaction."""

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
        return await self._run(engine, partial(_read, work=work), use="read")

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
            # Unlike `_write`, no message is needed after a commit in doubt: everything this statement granted is a write, so its own
            # commit has waited for the standby.
            if self._validity.is_commit_in_doubt(connection.connection.driver_connection):
                raise CommitInDoubt("the server committed without its standby")
            return result

        return await self._run(self._statement_engines[flush], run_statement, use="write")

    def _write(self, connection: Connection, *, work: Work[T], flush: bool, is_in_doubt: bool) -> T:
        connection.begin()
        if not flush:
            execute_text(connection, "SET LOCAL synchronous_commit = off")
        elif is_in_doubt:
            # This transaction may read rows that only the primary has. So its commit must wait for the standby, which it does only
            # after a write.
            connection.exec_driver_sql("SELECT pg_logical_emit_message(true, 'tollway', '')")
        result = work(connection)
        driver = connection.connection.driver_connection
        connection.commit()
        if self._validity.is_commit_in_doubt(driver):
            raise CommitInDoubt("the server committed without its standby")
        return result

    @contextlib.asynccontextmanager
    async def open_session(self) -> AsyncIterator[FetchScalar]:
        """Opens a session outside the pool for locks that live as long as a session, and closes it at the end. Each statement is a transaction."""
        async with contextlib.AsyncExitStack() as stack:
            with self._translated("read"):
                connection = await stack.enter_async_context(self._lone_engine.connect())
                alone = await connection.execution_options(isolation_level="AUTOCOMMIT")

            async def fetch_scalar(statement: Executable) -> Any:
                with self._translated("read"):
                    try:
                        return await alone.scalar(statement)
                    except DRIVER_ERRORS as exc:
                        await alone.run_sync(self._validity.discard_unusable, "read", exc)
                        raise

            yield fetch_scalar

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[asyncpg.Connection]:
        """Connects outside the pool with the settings of the usual sessions, and disconnects at the end. Errors of the driver and of the server in the body become `StorageUnavailable`."""
        with self._translated("read"):
            connection = await self.connector.connect_writable(statement_deadline_s=COMMAND_TIMEOUT_S)
            try:
                yield connection
            except asyncpg.PostgresError as exc:  # the pools get these inside SQLAlchemy's
                raise self._translate(exc, "read") from exc
            finally:
                connection.terminate()

    async def _run(self, engine: AsyncEngine, job: Callable[[Connection], T], *, use: Use) -> T:
        """Runs a transaction in one greenlet, with taking and returning its connection, because each greenlet costs time."""
        try:
            result: T = await greenlet_spawn(self._run_in_greenlet, engine.sync_engine, job, use)
        except IntegrityError:
            raise
        except DRIVER_ERRORS as exc:
            raise self._translate(exc, use) from exc
        if self.outages.ongoing:
            self.outages.record_success(use)
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
            raise self._translate(exc, use) from exc

    def _translate(self, exc: Exception, use: Use) -> StorageUnavailable:
        if is_value_refused(exc):
            return ValueRefused()
        self.outages.record_failure(use, exc)
        return StorageUnavailable()

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


Connect = Callable[..., Awaitable[Any]]

CONNECT_DEADLINE_S = 2.0
RECONNECT_PAUSE_S = 0.25

LOCK_SHARE = 0.8
"""The share of a statement's deadline for a lock: the server reports the lock before the deadline closes the connection."""

IDLE_S = 2
"""How long a paused gateway keeps the locks of its transaction: shorter than others wait for a lock."""

_SESSION = {
    "synchronous_commit": "on",
    # A statement that waited for a lock must see the commit of its holder: the ledger reads after it locks.
    "default_transaction_isolation": "read committed",
    "application_name": "tollway",
    "jit": "off",
    # The server must have no deadline: it would also end the wait of a commit for its standby, and the server would then
    # report "committed" for a commit that only the primary has.
    "statement_timeout": "0",
    # A session of a paused or lost process releases its locks.
    "idle_in_transaction_session_timeout": f"{IDLE_S}s",
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}


STATEMENT_SESSION = {
    # The statements of such a session read each row by a key, so a plan that walks a table is wrong for a small table and for a large
    # one. A generic plan is made once.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
}
UNFLUSHED_SESSION = {**STATEMENT_SESSION, "synchronous_commit": "off"}
"""Without a flush of the commit: the next durable commit of any session flushes it, or the server within a second."""


class NoServerAvailable(ConnectionError):
    """No server of the address can be used. The message has each server with its reason, and no secret."""


class PostgresConnector:
    """A connector to the first writable server of an address."""

    def __init__(
        self,
        address: PostgresAddress,
        *,
        connect: Connect = asyncpg.connect,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self._connect = connect
        self._clock = clock
        self._first = 0
        self._failure: NoServerAvailable | None = None
        self._retry_at = 0.0
        self._is_probing = False

    async def connect_writable(
        self, *, statement_deadline_s: float | None, session: Mapping[str, str] = MappingProxyType({})
    ) -> asyncpg.Connection:
        """Connects to a server that accepts writes. Raises NoServerAvailable, at once during an outage. `statement_deadline_s` None: the
        session has no deadline on the server either. `session`: settings that differ from the usual ones."""
        is_probe = self._failure is not None
        if self._failure is not None and (self._is_probing or self._clock() < self._retry_at):
            raise NoServerAvailable(str(self._failure))
        self._is_probing = is_probe
        try:
            connection = await self._connect_first(
                statement_deadline_s, {**_make_session(statement_deadline_s), **session}
            )
        except NoServerAvailable as exc:
            self._failure, self._retry_at = exc, self._clock() + RECONNECT_PAUSE_S
            raise
        finally:
            if is_probe:
                self._is_probing = False
        self._failure = None
        return connection

    async def _connect_first(
        self, statement_deadline_s: float | None, session: dict[str, str]
    ) -> asyncpg.Connection:
        """Tries the servers in order, the last successful one first."""
        hosts, first = self.address.hosts, self._first
        reasons: list[str] = []
        cause: Exception | None = None
        for step in range(len(hosts)):
            number = (first + step) % len(hosts)
            try:
                connection = await self._connect_host(hosts[number], statement_deadline_s, session)
            except (
                OSError,
                TimeoutError,
                asyncpg.PostgresError,
                asyncpg.InterfaceError,
                asyncpg.InternalClientError,
            ) as exc:
                reasons.append(f"{hosts[number]} {_name_reason(exc)}")
                cause = exc
            else:
                self._first = number
                return connection
        raise NoServerAvailable("; ".join(reasons)) from cause

    async def _connect_host(
        self, host: PostgresHost, statement_deadline_s: float | None, session: dict[str, str]
    ) -> asyncpg.Connection:
        address = self.address
        async with asyncio.timeout(CONNECT_DEADLINE_S):
            connection: asyncpg.Connection = await self._connect(
                dsn=address.dsn,
                host=host.name,
                port=host.port,
                user=address.user,
                password=address.password,
                database=address.database,
                target_session_attrs=address.session,
                timeout=CONNECT_DEADLINE_S,
                command_timeout=statement_deadline_s,
                server_settings=session,
            )
            return connection


def _make_session(statement_deadline_s: float | None) -> dict[str, str]:
    if statement_deadline_s is None:
        return {**_SESSION, "idle_in_transaction_session_timeout": "0"}
    return {**_SESSION, "lock_timeout": f"{int(statement_deadline_s * 1000 * LOCK_SHARE)}ms"}


def _name_reason(exc: Exception) -> str:
    """The reason of a failed connection in words. The server's message is left out, because it may be in any language and contain any value."""
    match exc:
        case TimeoutError():
            return "does not answer"
        case ConnectionRefusedError():
            return "refuses connections"
        case asyncpg.TargetServerAttributeNotMatched():
            return "is read-only"
        case asyncpg.CannotConnectNowError():
            return "is starting up or shutting down"
        case asyncpg.TooManyConnectionsError():
            return "has too many connections"
        case asyncpg.InvalidAuthorizationSpecificationError():
            return "does not take this user or password"
        case asyncpg.PostgresError(sqlstate=state):
            return f"fails with {type(exc).__name__} ({state})"
        case OSError(errno=number):
            return f"cannot be reached ({type(exc).__name__}, {number})"
        case _:
            return f"fails with {type(exc).__name__}"


DRIVER_ERRORS = (SQLAlchemyError, OSError, TimeoutError, asyncpg.InternalClientError)


class ConnectionValidity:
    """Which connections are used again. `commits_in_doubt`: how many writes may be committed on the primary only."""

    def __init__(self) -> None:
        self._outage_count = 0
        self.commits_in_doubt = 0
        self._in_doubt: WeakSet[Any] = WeakSet()

    def watch_pool(self, engine: Engine) -> None:
        event.listen(engine, "connect", self._record_outage_count)
        event.listen(engine, "checkin", _terminate_unless_idle)
        event.listen(engine, "checkout", self._check_fresh)

    def is_commit_in_doubt(self, driver: object) -> bool:
        """True when the last commit of the connection did not wait for the standby."""
        return driver in self._in_doubt

    def discard_unusable(self, connection: Connection, use: Use, exc: Exception) -> None:
        """Closes a connection that must not be used after the error. Terminates it, because a regular close waits for the server."""
        is_lost = isinstance(exc, DBAPIError) and exc.connection_invalidated
        is_cut = not isinstance(exc, SQLAlchemyError) or (name_state(exc) or "").startswith(SESSION_ENDED)
        is_read_only = use == "write" and name_state(exc) == READ_ONLY
        # A table has changed, so the prepared statements of every connection are invalid.
        is_stale = isinstance(exc, NotSupportedError | InternalError)
        if not (is_lost or is_cut or is_read_only or is_stale):
            return
        self._outage_count += 1
        if use == "write":
            self.commits_in_doubt += 1
        if not connection.invalidated:
            driver = connection.connection.driver_connection
            assert driver is not None
            driver.terminate()
            connection.invalidate()

    def record_warning(self, connection: Any, message: Any) -> None:
        """Records the warning of a commit whose wait for the standby was cancelled; there is no other sign of it. asyncpg calls it before it
        delivers the result of the statement: both are queued in the order of their arrival."""
        if message.severity_en == "WARNING" and message.query in ("COMMIT", "COMMIT;"):
            self._in_doubt.add(connection)

    def record_any_warning(self, connection: Any, message: Any) -> None:
        """Does the same in autocommit, where the warning comes with the statement."""
        if message.severity_en == "WARNING":
            self._in_doubt.add(connection)

    def _record_outage_count(self, _connection: Any, record: Any) -> None:
        record.info["outage_count"] = self._outage_count

    def _check_fresh(self, connection: Any, record: Any, _fairy: Any) -> None:
        if record.info.get("outage_count") != self._outage_count or connection.driver_connection.is_closed():
            connection.driver_connection.terminate()
            raise DisconnectionError("made before the last outage")


def _terminate_unless_idle(connection: Any, _record: Any) -> None:
    """Closes a connection that returns to the pool with a transaction, because no later transaction could begin on it. After a failed BEGIN
    asyncpg 0.32 keeps that transaction and makes a SAVEPOINT of each later BEGIN (`Transaction.start`). After a failed COMMIT or
    ROLLBACK the server's transaction is still open. Sends nothing to the server."""
    # None: invalidated before.
    if connection is None:
        return
    driver = connection.driver_connection
    if driver._top_xact is not None or driver.is_in_transaction():
        driver.terminate()


def terminate_timed_out(context: ExceptionContext) -> None:
    """Terminates a connection after a deadline, because SQLAlchemy would close it with a message to a silent server and wait."""
    connection = context.connection
    if isinstance(context.original_exception, TimeoutError) and connection is not None:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.terminate()
