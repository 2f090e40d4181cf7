"""Makes connections to PostgreSQL: to whichever of its servers takes writes, within a deadline, and not again and again
while none answers.

It holds no connection and knows nothing of what is asked. While an outage lasts, one dials and the others are told at
once; so the first that succeeds ends the outage for all.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from tollway.storage.postgres_address import PostgresAddress, PostgresHost

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

    async def connect_writable(self, *, statement_deadline_s: float | None) -> asyncpg.Connection:
        """A connection to a server that may be written to. Raises NoServerAvailable, at once while an outage lasts. Without a
        deadline, nothing on the server has one either."""
        is_probe = self._failure is not None
        if self._failure is not None and (self._is_probing or self._clock() < self._retry_at):
            raise NoServerAvailable(str(self._failure))
        self._is_probing = is_probe
        try:
            connection = await self._connect_first(statement_deadline_s)
        except NoServerAvailable as exc:
            self._failure, self._retry_at = exc, self._clock() + RECONNECT_PAUSE_S
            raise
        finally:
            if is_probe:
                self._is_probing = False
        self._failure = None
        return connection

    async def _connect_first(self, statement_deadline_s: float | None) -> asyncpg.Connection:
        """The one that took us last comes first."""
        hosts, first = self.address.hosts, self._first
        reasons: list[str] = []
        cause: Exception | None = None
        for step in range(len(hosts)):
            number = (first + step) % len(hosts)
            try:
                connection = await self._connect_host(hosts[number], statement_deadline_s)
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
        self, host: PostgresHost, statement_deadline_s: float | None
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
                server_settings=_make_session(statement_deadline_s),
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
