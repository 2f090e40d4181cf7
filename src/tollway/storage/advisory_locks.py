"""Advisory locks of PostgreSQL: transactions of several gateways that decide on the same subject wait for each other.

Subjects share 256 stripes, taken in ascending order, because a whole batch must fit into PostgreSQL's lock table. A lock ends
with its transaction. On SQLite there is one writer, and no lock is taken.
"""

from collections.abc import Iterable
from hashlib import sha256

from sqlalchemy import Connection, text

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
