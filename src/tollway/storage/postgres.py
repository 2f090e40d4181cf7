"""Connections to PostgreSQL: the parsed address, the connector, the rules by which the pool keeps a connection, advisory locks.

An address names one server, or several of which one accepts writes; its text form never contains the password. The connector
connects to the first server that accepts writes, within a deadline. During an outage one task tries to connect and the others
fail at once, so that the first success ends the outage for all of them. A connection that was open during an outage is not
used again.

An advisory lock makes gateways that decide on the same subject wait until the other transaction has ended. Subjects share 256
stripes, taken in ascending order, because a whole batch must fit into PostgreSQL's lock table. On SQLite there is one writer,
and no lock is taken.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit
from weakref import WeakSet

import asyncpg
from sqlalchemy import Connection, Engine, ExceptionContext, event, text
from sqlalchemy.exc import DBAPIError, DisconnectionError, InternalError, NotSupportedError, SQLAlchemyError

from tollway.storage.outage import READ_ONLY, SESSION_ENDED, Use, name_state

PORT = 5432
HOSTS_MAX = 8

_SCHEMES = ("postgresql", "postgresql+asyncpg")
_WRITABLE, _ANY = "read-write", "any"
_SESSIONS = (_ANY, "primary", _WRITABLE)
"""A gateway writes: nothing that asks for a standby."""
_OPTIONS = (
    "application_name",
    "gsslib",
    "krbsrvname",
    "options",
    "passfile",
    "ssl",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
    "sslcert",
    "sslcrl",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslpassword",
    "sslrootcert",
)
_HOST = re.compile(r"\[[0-9A-Fa-f:.]+\]|[^\[\]:,@/\s]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresHost:
    """A name, an address, or the folder of a socket (`/run/postgresql`)."""

    name: str
    port: int = PORT

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresAddress:
    """`hosts` in the order in which they are tried. `session`: what the server must be like
    (libpq's target_session_attrs). `options`: the other parameters of the URL, about TLS most of them."""

    hosts: tuple[PostgresHost, ...]
    user: str | None
    password: str | None = field(repr=False)
    database: str | None
    session: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, url: str) -> "PostgresAddress":
        """`postgresql://user:password@h1:p1,h2:p2/name?sslmode=…`, or the hosts as `?host=h1:p1&host=h2:p2`. Raises
        ValueError, and never repeats the URL in it: that may hold a password."""
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in _SCHEMES:
            raise ValueError("must begin with postgresql://")
        netloc, path, query = _split(rest)
        identity, _, hosts_text = netloc.rpartition("@")
        user, _, password = identity.partition(":")
        named: dict[str, list[str]] = {}
        for key, value in parse_qsl(query, keep_blank_values=True):
            named.setdefault(key, []).append(value)
        texts = [one for one in hosts_text.split(",") if one]
        if "host" in named:
            if texts:
                raise ValueError("name the hosts before the path, or as host=…, not both")
            texts = [one for part in named.pop("host") for one in part.split(",")]
        ports = [one for part in named.pop("port", []) for one in part.split(",")]
        hosts = _parse_hosts(texts, ports)
        session = named.pop("target_session_attrs", [_WRITABLE if len(hosts) > 1 else _ANY])[-1]
        if session not in _SESSIONS:
            raise ValueError("target_session_attrs: a gateway writes; one of: " + ", ".join(_SESSIONS))
        for key in named:
            if key not in _OPTIONS:
                raise ValueError(f"there is no such parameter of a PostgreSQL URL: {key}")
        options = {("sslmode" if key == "ssl" else key): values[-1] for key, values in named.items()}
        return cls(
            hosts=hosts,
            user=unquote(user) or None,
            password=unquote(password) or None,
            database=unquote(path) or None,
            session=session,
            options=tuple(options.items()),
        )

    @property
    def dsn(self) -> str:
        """The options alone, in the form that the driver reads; no secret."""
        return "postgresql:///?" + urlencode(self.options)

    def __str__(self) -> str:
        """Without any secret: for logs and `doctor`."""
        return f"{','.join(map(str, self.hosts))}/{self.database or ''}"


def _split(rest: str) -> tuple[str, str, str]:
    """Several hosts with ports are no authority that a URL parser takes apart, so only path and query are."""
    netloc, slash, tail = rest.partition("/")
    if not slash:
        netloc, mark, tail = rest.partition("?")
        return netloc, "", tail if mark else ""
    parts = urlsplit("/" + tail)
    return netloc, parts.path.removeprefix("/"), parts.query


def _parse_hosts(texts: list[str], ports: list[str]) -> tuple[PostgresHost, ...]:
    texts = texts or ["localhost"]
    if len(texts) > HOSTS_MAX:
        raise ValueError(f"at most {HOSTS_MAX} hosts")
    if len(ports) not in (0, 1, len(texts)):
        raise ValueError("as many ports as hosts, or one for all")
    shared = ports * len(texts) if len(ports) == 1 else ports
    hosts = []
    for position, part in enumerate(texts):
        part = unquote(part)
        if part.startswith("/"):
            name, port = part, ""
        else:
            name, separator, port = part.rpartition(":") if not part.endswith("]") else (part, "", "")
            name, port = (name, port) if separator else (part, "")
            if not _HOST.fullmatch(name) or not name:
                raise ValueError("a host is a name, an IPv4 address or an IPv6 address in brackets")
        port = port or (shared[position] if shared else "")
        if port and (not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65_536):
            raise ValueError("a port is a number from 1 to 65535")
        hosts.append(
            PostgresHost(name=name.removeprefix("[").removesuffix("]"), port=int(port) if port else PORT)
        )
    return tuple(hosts)


Connect = Callable[..., Awaitable[Any]]

CONNECT_DEADLINE_S = 2.0
"""For each server. One that is gone says nothing; waiting longer would be waiting for it."""
RECONNECT_PAUSE_S = 0.25
"""After a failure of all servers, before the next dial."""

LOCK_SHARE = 0.8
"""Of a statement's deadline: the server tells of a lock before the deadline cuts the connection."""

IDLE_S = 2
"""A gateway that stands still within a transaction keeps its locks for so long. Less than others wait for a lock: what
waits behind it goes on, and does not fail."""

_SESSION = {
    "synchronous_commit": "on",
    # Of what waits for a lock, each statement must see what the holder has committed: the ledger reads after it locks.
    "default_transaction_isolation": "read committed",
    "application_name": "tollway",
    "jit": "off",
    # Never a deadline of the server's own: it would also cut short the wait of a commit for its standby, and the server
    # then says "committed" of what only the primary has.
    "statement_timeout": "0",
    # A session whose process stands still or is gone, with its machine or alone, gives its locks back.
    "idle_in_transaction_session_timeout": f"{IDLE_S}s",
    "tcp_keepalives_idle": "15",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}


STATEMENT_SESSION = {
    # The statements of such a session name each row that they read by a key, so a plan that walks a table is never right,
    # neither while the table is small nor after it has grown. One plan, made once.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
}
"""Of a session on which each statement is a transaction of its own."""
UNFLUSHED_SESSION = {**STATEMENT_SESSION, "synchronous_commit": "off"}
"""The same; what it commits is flushed by the next durable commit of any session, or within a second."""


class NoServerAvailable(ConnectionError):
    """No server of the address can be used. The message names each of them with the reason, and no secret."""


class PostgresConnector:
    """Safe to use from many tasks at once."""

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
        """A connection to a server that may be written to. Raises NoServerAvailable, at once while an outage lasts. Without a
        deadline, nothing on the server has one either. `session`: settings that differ from those of other sessions."""
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
        """The one that took us last comes first."""
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
    """In words. What the server itself says may be in any language and name anything: only its code is shown."""
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
"""What a driver raises when a database cannot be used."""


class ConnectionValidity:
    """Of one database. `commits_in_doubt`: how many writes may have been committed on a primary alone."""

    def __init__(self) -> None:
        self._outage_count = 0
        self.commits_in_doubt = 0
        self._in_doubt: WeakSet[Any] = WeakSet()

    def watch_pool(self, engine: Engine) -> None:
        """From now on none is given out that was made before the last outage, or that cannot begin a transaction."""
        event.listen(engine, "connect", self._record_outage_count)
        event.listen(engine, "checkin", _terminate_unless_idle)
        event.listen(engine, "checkout", self._check_fresh)

    def is_commit_in_doubt(self, driver: object) -> bool:
        """Its last commit did not wait for the standby."""
        return driver in self._in_doubt

    def discard_unusable(self, connection: Connection, use: Use, exc: Exception) -> None:
        """Throws the connection away where it cannot be trusted any more, at once: a polite end would be waited for."""
        is_lost = isinstance(exc, DBAPIError) and exc.connection_invalidated
        is_cut = not isinstance(exc, SQLAlchemyError) or (name_state(exc) or "").startswith(SESSION_ENDED)
        is_read_only = use == "write" and name_state(exc) == READ_ONLY
        # Its prepared statements, and those of every other connection, are of a table that has changed since.
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
        """A commit whose wait for the standby was cancelled says so in a warning, and nowhere else. Called before the
        answer to the statement is given out: both are queued, in the order in which they came."""
        if message.severity_en == "WARNING" and message.query in ("COMMIT", "COMMIT;"):
            self._in_doubt.add(connection)

    def record_any_warning(self, connection: Any, message: Any) -> None:
        """As `record_warning`, where each statement is a transaction of its own: the warning comes with the statement."""
        if message.severity_en == "WARNING":
            self._in_doubt.add(connection)

    def _record_outage_count(self, _connection: Any, record: Any) -> None:
        record.info["outage_count"] = self._outage_count

    def _check_fresh(self, connection: Any, record: Any, _fairy: Any) -> None:
        if record.info.get("outage_count") != self._outage_count or connection.driver_connection.is_closed():
            connection.driver_connection.terminate()
            raise DisconnectionError("made before the last outage")


def _terminate_unless_idle(connection: Any, _record: Any) -> None:
    """Ends a connection that comes back to the pool with a transaction. After a BEGIN that failed, asyncpg 0.32 keeps that transaction,
    and makes a SAVEPOINT of each later BEGIN (`Transaction.start`). After a COMMIT or ROLLBACK that failed, the server's
    transaction is still open. No later transaction could begin. Asks nothing of the server."""
    if connection is None:  # invalidated before
        return
    driver = connection.driver_connection
    if driver._top_xact is not None or driver.is_in_transaction():
        driver.terminate()


def terminate_timed_out(context: ExceptionContext) -> None:
    """Before SQLAlchemy lets go of the connection: it would take its leave of a server that says nothing, and wait."""
    connection = context.connection
    if isinstance(context.original_exception, TimeoutError) and connection is not None:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.terminate()


STRIPES = 256

# Sorted inside, because a function in the select list may run before an ORDER BY beside it.
_TAKE_LOCKS = text(
    "SELECT pg_advisory_xact_lock(:space, stripe) FROM"
    " (SELECT stripe FROM unnest(CAST(:stripes AS integer[])) AS stripe ORDER BY stripe OFFSET 0) AS turn"
)


def take_advisory_locks(connection: Connection, names: Iterable[bytes], *, space: int) -> None:
    """`space`: any constant of ours, one for each kind of things."""
    if connection.dialect.name != "postgresql":
        return
    stripes = sorted({stripe_of(name) for name in names})
    if stripes:
        connection.execute(_TAKE_LOCKS, {"space": space, "stripes": stripes})


def stripe_of(name: bytes) -> int:
    return sha256(name).digest()[0] % STRIPES
