"""Calls without an outcome in SQL, by the request that may run them again. Plain functions over a connection; never writes.

A claim looks while it holds the lock of the payment: whoever opens, ends or reopens such a call holds it too. Who is told
of it is decided in `ledger/claims`.
"""

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    LargeBinary,
    Select,
    and_,
    bindparam,
    func,
    select,
    text,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY

from tollway.identifiers import CallId
from tollway.ledger.book import Claim
from tollway.ledger.call import CallState
from tollway.ledger.claims import request_name
from tollway.ledger.open_calls import OpenCall, RequestName
from tollway.storage.book_tables import REPEATABLE, call_table
from tollway.storage.statements import Prepared, Rows

_REPEATABLE_STATES = (CallState.FORWARDING.value, CallState.UNKNOWN.value, CallState.CONSUMED.value)

_COLUMNS = (
    "id",
    "payment_id",
    "digest",
    "state",
    "epoch",
    "attempts",
    "cut",
    "created_ms",
    "price",
    "price_units",
)
_ID, _CREATED = map(_COLUMNS.index, ("id", "created_ms"))


def find_open_calls(connection: Connection, claims: Iterable[Claim]) -> dict[RequestName, OpenCall]:
    """The newest open call of each request that these claims name, with one look-up for all. Their payments are locked."""
    names = sorted({name for name in map(request_name, claims) if name is not None})
    if not names:
        return {}
    if connection.dialect.name == "sqlite":
        return _newest_of(_OPEN_SQLITE.fetch(connection, names=names))
    payment_ids, digests = map(list, zip(*names, strict=True))
    return _newest_of(_OPEN_POSTGRES.fetch(connection, payment_ids=payment_ids, digests=digests))


def find_open_call(connection: Connection, payment_id: int, digest: bytes) -> OpenCall | None:
    found = _newest_of(_OPEN_ONE.fetch(connection, payment_id=payment_id, digest=digest))
    return found.get(RequestName(payment_id, digest))


def _open_query() -> Select[Any]:
    return select(*(call_table.c[name] for name in _COLUMNS)).where(
        text(f"({REPEATABLE})")
    )  # literal, for the index


def _open_join_query() -> Select[Any]:
    """PostgreSQL would plan a search for each member of a list; a join it plans once."""
    payment_ids = bindparam("payment_ids", type_=ARRAY(BigInteger))
    digests = bindparam("digests", type_=ARRAY(LargeBinary))
    named = (
        func.unnest(payment_ids, digests).table_valued("payment_id", "digest", name="named").render_derived()
    )
    columns = call_table.c
    return _open_query().join(
        named, and_(named.c.payment_id == columns.payment_id, named.c.digest == columns.digest)
    )


_OPEN_SQLITE = Prepared(
    _open_query().where(
        tuple_(call_table.c.payment_id, call_table.c.digest).in_(bindparam("names", expanding=True))
    )
)
_OPEN_POSTGRES = Prepared(_open_join_query())
_OPEN_ONE = Prepared(
    _open_query().where(
        call_table.c.payment_id == bindparam("payment_id"), call_table.c.digest == bindparam("digest")
    )
)


def _newest_of(rows: Rows) -> dict[RequestName, OpenCall]:
    """Sorted here, not there: an ORDER BY would make SQLite walk every call of the payment instead."""
    found: dict[RequestName, OpenCall] = {}
    for row in sorted(rows, key=itemgetter(_CREATED, _ID)):
        call_id, payment_id, digest, state, epoch, attempts, cut, _, price, price_units = row
        if cut != "cut" or state in _REPEATABLE_STATES:
            found[RequestName(payment_id, bytes(digest))] = OpenCall(
                call_id=CallId(call_id),
                state=CallState(state),
                epoch=epoch,
                attempts=attempts,
                price=price,
                price_units=price_units,
            )
    return found
