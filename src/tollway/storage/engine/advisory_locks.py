"""Advisory locks of PostgreSQL: transactions of several gateways that decide on the same name wait for each other.

Names share 256 stripes, because a whole batch must fit into PostgreSQL's lock table. Stripes are locked in ascending order. A lock ends
with its transaction. SQLite has one writer and takes no lock.
"""

from collections.abc import Iterable
from hashlib import sha256

from sqlalchemy import Connection, text

from tollway.storage.engine.statements import Prepared

STRIPES = 256

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
