"""The read side of the ledger in SQL: a wallet's payments, and the calls of a payment. Never writes.

Always ordered by (created_ms, id): by id alone PostgreSQL would walk the primary key and filter. A wallet's history is
in `history_page.py`.
"""

from collections.abc import Collection

from sqlalchemy import ColumnElement, Connection, and_, select, text, union, union_all

from tollway.identifiers import Address, CallId, TxHash
from tollway.ledger.call import CallRecord, CallState, Payment
from tollway.storage.book_rows import parse_call, parse_payment
from tollway.storage.book_tables import REPEATABLE, call_table, payment_table, topup_table


def find_call(connection: Connection, call_id: CallId) -> CallRecord | None:
    row = connection.execute(select(call_table).where(call_table.c.id == call_id)).first()
    return None if row is None else parse_call(row)


def payments_of(connection: Connection, payer: Address, *, limit: int, offset: int) -> tuple[Payment, ...]:
    columns = payment_table.c
    query = (
        select(payment_table)
        .where(columns.payer == payer)
        .order_by(columns.block_time.desc(), columns.id.desc())
        .limit(limit)
        .offset(offset)
    )
    return tuple(map(parse_payment, connection.execute(query)))


def payments_in(connection: Connection, payer: Address, tx_hash: TxHash) -> tuple[Payment, ...]:
    columns = payment_table.c
    query = select(payment_table).where(columns.tx_hash == tx_hash, columns.payer == payer)
    return tuple(map(parse_payment, connection.execute(query.order_by(columns.id))))


def calls_of(connection: Connection, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
    """Every call that was claimed on a payment or helped by it, newest first, whatever became of it."""
    columns = call_table.c
    return _newest(connection, columns.payment_id == payment_id, payment_id, limit=limit)


def spending_calls(connection: Connection, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
    """Those that hold something of it now."""
    is_spending = and_(call_table.c.payment_id == payment_id, call_table.c.taken_units > 0)
    return _newest(connection, is_spending, payment_id, limit=limit)


def find_held_units(connection: Connection, payment_ids: Collection[int]) -> dict[int, int]:
    """What calls that run, or whose outcome is unknown, hold of each of these payments."""
    if not payment_ids:
        return {}
    calls, topups = call_table.c, topup_table.c
    is_open = calls.state.in_([CallState.FORWARDING.value, CallState.UNKNOWN.value])
    shown = select(calls.payment_id, calls.taken_units.label("units")).where(
        calls.payment_id.in_(payment_ids),
        is_open,
        text(f"({REPEATABLE})"),  # which is the index
    )
    helped = (
        select(topups.payment_id, topups.units)
        .join(call_table, calls.id == topups.call_id)
        .where(topups.payment_id.in_(payment_ids), is_open)
    )
    held: dict[int, int] = {}
    for payment_id, units in connection.execute(union_all(shown, helped)):
        held[payment_id] = held.get(payment_id, 0) + units
    return {payment_id: units for payment_id, units in held.items() if units > 0}


def unknown_calls(connection: Connection, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
    """Sorted here: asked for in order, all calls of the payment would be walked through for the few that hold it."""
    calls, topups = call_table.c, topup_table.c
    is_unknown = calls.state == CallState.UNKNOWN.value
    shown = select(calls.created_ms, calls.id).where(
        calls.payment_id == payment_id,
        calls.taken_units > 0,
        is_unknown,
        text(f"({REPEATABLE})"),  # which is the index
    )
    helped = (
        select(calls.created_ms, calls.id)
        .join(topup_table, calls.id == topups.call_id)
        .where(topups.payment_id == payment_id, is_unknown)
    )
    found = {tuple(row) for query in (shown, helped) for row in connection.execute(query.limit(limit))}
    return tuple(CallId(call_id) for _, call_id in sorted(found, reverse=True)[:limit])


def _newest(
    connection: Connection, is_shown: ColumnElement[bool], payment_id: int, *, limit: int
) -> tuple[CallId, ...]:
    columns = call_table.c
    newest = (columns.created_ms.desc(), columns.id.desc())
    shown = select(columns.created_ms, columns.id).where(is_shown).order_by(*newest).limit(limit).subquery()
    helped = select(columns.created_ms, columns.id).join(
        topup_table, and_(topup_table.c.call_id == columns.id, topup_table.c.payment_id == payment_id)
    )
    both = union(select(shown), helped).subquery()
    query = select(both.c.id).order_by(both.c.created_ms.desc(), both.c.id.desc()).limit(limit)
    return tuple(CallId(call_id) for call_id in connection.execute(query).scalars())
