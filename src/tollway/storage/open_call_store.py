"""Calls without an outcome in SQL, by the request that may run them again. Plain functions over a connection; never writes.

A claim looks while it holds the lock of the payment: whoever opens, ends or reopens such a call holds it too. Who is told
of it is decided in `ledger/claims`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    LargeBinary,
    Row,
    Select,
    and_,
    func,
    literal,
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

_REPEATABLE_STATES = (CallState.FORWARDING.value, CallState.UNKNOWN.value, CallState.CONSUMED.value)


def find_repeats(connection: Connection, claims: Iterable[Claim]) -> dict[RequestName, OpenCall]:
    """The newest open call of each request that these claims name, with one look-up for all. Their payments are locked."""
    names = sorted({name for name in map(request_name, claims) if name is not None})
    if not names:
        return {}
    if connection.dialect.name == "sqlite":
        columns = call_table.c
        query = _open_query().where(tuple_(columns.payment_id, columns.digest).in_(list(map(tuple, names))))
    else:
        query = _joined_query(names)
    return _newest_of(connection.execute(query))


def _joined_query(names: Sequence[RequestName]) -> Select[Any]:
    """PostgreSQL would plan a search for each member of a list, and anew for each length; a join it plans once."""
    payment_ids = literal([name.payment_id for name in names], ARRAY(BigInteger))
    digests = literal([name.digest for name in names], ARRAY(LargeBinary))
    named = (
        func.unnest(payment_ids, digests).table_valued("payment_id", "digest", name="named").render_derived()
    )
    columns = call_table.c
    return _open_query().join(
        named, and_(named.c.payment_id == columns.payment_id, named.c.digest == columns.digest)
    )


def find_repeat(connection: Connection, payment_id: int, digest: bytes) -> OpenCall | None:
    columns = call_table.c
    query = _open_query().where(columns.payment_id == payment_id, columns.digest == digest)
    return _newest_of(connection.execute(query)).get(RequestName(payment_id, digest))


def _open_query() -> Select[Any]:
    columns = call_table.c
    return select(
        columns.id,
        columns.payment_id,
        columns.digest,
        columns.state,
        columns.epoch,
        columns.attempts,
        columns.cut,
        columns.created_ms,
        columns.price,
        columns.price_units,
    ).where(text(f"({REPEATABLE})"))  # literal, for the index


def _newest_of(rows: Iterable[Row[Any]]) -> dict[RequestName, OpenCall]:
    """Sorted here, not there: an ORDER BY would make SQLite walk every call of the payment instead."""
    is_repeatable = (row for row in rows if row.cut != "cut" or row.state in _REPEATABLE_STATES)
    return {
        RequestName(row.payment_id, bytes(row.digest)): OpenCall(
            call_id=CallId(row.id),
            state=CallState(row.state),
            epoch=row.epoch,
            attempts=row.attempts,
            price=row.price,
            price_units=row.price_units,
        )
        for row in sorted(is_repeatable, key=lambda one: (one.created_ms, one.id))
    }
