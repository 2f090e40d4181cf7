"""Advisory locks of PostgreSQL: transactions of several gateways that decide on the same name wait for each other.

Names share 256 stripes, because a whole batch must fit into PostgreSQL's lock table. Stripes are locked in ascending order. A lock ends
with its transaction. SQLite has one writer and takes no lock.

Databases that speak PostgreSQL's protocol may accept a lock that excludes nothing, or read a whole transaction from one snapshot. One balance or one
idempotency key would then pay for two calls, without an error (decision 62), so a gateway asks its server before it serves.
"""

import secrets
from collections.abc import Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, text

from tollway.errors import SettingsInvalid, StorageUnavailable
from tollway.storage.engine.database import Database
from tollway.storage.engine.outage import name_state
from tollway.storage.engine.statements import Prepared

if TYPE_CHECKING:
    from tollway.storage.engine.postgres import PostgresDatabase

STRIPES = 256

LOCKS_EXCLUDE_NOTHING = "its advisory locks exclude nothing"
FUNCTION_MISSING = "it lacks a function that the check of its locks needs"
SNAPSHOT_IS_OLD = "a transaction at READ COMMITTED does not see what others have committed"
NOT_POSTGRESQL = "this server is not PostgreSQL as the ledger needs it: {}, so one balance could pay for two calls; use PostgreSQL"

_CHECK_SPACE = 0x746F6C6D
_NOT_THERE = ("42883", "0A000")
"""The states of a server that does not know a function, or has not implemented it."""

# Sorted in a subquery, because a function in the select list may run before an ORDER BY of the same query.
_TAKE_LOCKS = Prepared(
    text(
        "SELECT pg_advisory_xact_lock(:space, stripe) FROM"
        " (SELECT stripe FROM unnest(CAST(:stripes AS integer[])) AS stripe ORDER BY stripe OFFSET 0) AS turn"
    )
)


def take_advisory_locks(connection: Connection, names: Iterable[bytes], *, space: int) -> None:
    """Locks the stripes of the names until the end of the transaction. `space`: a constant for each kind of name."""
    if connection.dialect.name != "postgresql":
        return
    stripes = sorted({stripe_of(name) for name in names})
    if stripes:
        _TAKE_LOCKS.fetch(connection, space=space, stripes=stripes)


def stripe_of(name: bytes) -> int:
    return sha256(name).digest()[0] % STRIPES


# ---- The check of the server.


async def require_exclusion(database: Database) -> None:
    """Raises `SettingsInvalid` where the server does not keep transactions apart, and `StorageUnavailable` where that is not known."""
    if (fault := await find_exclusion_fault(database)) is not None:
        raise SettingsInvalid([f"database_url: {fault}"])


async def find_exclusion_fault(database: Database) -> str | None:
    """What is wrong with the server, and what to do; None where nothing is. Writes no row."""
    if database.dialect != "postgresql":
        return None
    server = cast(
        "PostgresDatabase", database
    )  # its module loads the driver, which a gateway on SQLite does without
    try:
        async with server.connect() as holder, server.connect() as other:
            found = await _find_fault(holder, other)
    except StorageUnavailable as exc:
        if exc.__cause__ is None or name_state(exc.__cause__) not in _NOT_THERE:
            raise
        found = FUNCTION_MISSING
    return None if found is None else NOT_POSTGRESQL.format(found)


async def _find_fault(holder: Any, other: Any) -> str | None:
    key = secrets.randbelow(2**31)  # so that gateways that start at once do not meet
    async with holder.transaction():
        await holder.execute("SELECT pg_advisory_xact_lock($1::int, $2::int)", _CHECK_SPACE, key)
        if await other.fetchval("SELECT pg_try_advisory_xact_lock($1::int, $2::int)", _CHECK_SPACE, key):
            return LOCKS_EXCLUDE_NOTHING
        before = await holder.fetchval("SELECT pg_current_snapshot()::text")
        await other.fetchval("SELECT pg_current_xact_id()::text")  # a transaction of its own, committed
        if before == await holder.fetchval("SELECT pg_current_snapshot()::text"):
            return SNAPSHOT_IS_OLD
    return None
