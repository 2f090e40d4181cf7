"""Turns on PostgreSQL: gateways that are about to decide on the same thing wait for each other, until their transaction
has ended. On SQLite the writer is alone.

Things share stripes, and take them in ascending order: a whole batch must fit into PostgreSQL's table of locks. Two
kinds of things have a space each, and whoever takes both takes them in one order.
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
