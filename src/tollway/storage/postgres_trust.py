"""Which connections to PostgreSQL may still be used, after what an outage, a standby or somebody's DDL has done to them.

It dials nothing and asks nothing; `database` tells it what happened, and the pool asks it before it gives one out.
"""

from typing import Any
from weakref import WeakSet

import asyncpg
from sqlalchemy import Connection, Engine, ExceptionContext, event
from sqlalchemy.exc import (
    DBAPIError,
    DisconnectionError,
    InternalError,
    NotSupportedError,
    SQLAlchemyError,
)

from tollway.storage.outage import READ_ONLY, SESSION_ENDED, Use, name_state

DRIVER_ERRORS = (SQLAlchemyError, OSError, TimeoutError, asyncpg.InternalClientError)
"""What a driver raises when a database cannot be used."""


class ConnectionValidity:
    """Of one database. `commits_in_doubt`: how many writes may have been committed on a primary alone."""

    def __init__(self) -> None:
        self._outage_count = 0
        self.commits_in_doubt = 0
        self._in_doubt: WeakSet[Any] = WeakSet()

    def watch_pool(self, engine: Engine) -> None:
        """From now on none is given out that was made before the last outage."""
        event.listen(engine, "connect", self._record_outage_count)
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

    def _record_outage_count(self, _connection: Any, record: Any) -> None:
        record.info["outage_count"] = self._outage_count

    def _check_fresh(self, connection: Any, record: Any, _fairy: Any) -> None:
        if record.info.get("outage_count") != self._outage_count or connection.driver_connection.is_closed():
            connection.driver_connection.terminate()
            raise DisconnectionError("made before the last outage")


def terminate_timed_out(context: ExceptionContext) -> None:
    """Before SQLAlchemy lets go of the connection: it would take its leave of a server that says nothing, and wait."""
    connection = context.connection
    if isinstance(context.original_exception, TimeoutError) and connection is not None:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.terminate()
