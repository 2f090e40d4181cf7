"""The balance equation, checked over every row: what a payment says is taken is what its calls hold of it."""

from collections.abc import Iterator
from typing import Any

from sqlalchemy import BigInteger, Connection, and_, case, cast, func, literal, or_, select

from tollway.identifiers import CallId, TxHash
from tollway.ledger.book import AuditReport
from tollway.ledger.call import AUTHORIZED_RAILS, TAKING, UNDECIDED, CallState
from tollway.storage.book_tables import call_table, payment_table, topup_table

LINES_MAX = 1_000
"""How many of each kind a report lists."""


def audit(connection: Connection) -> AuditReport:
    """One snapshot; reads every row, so it takes seconds on millions of calls."""
    return AuditReport(
        payments=_count_rows(connection, payment_table.c.id),
        calls=_count_rows(connection, call_table.c.id),
        wrong=(*_wrong_payments(connection), *_wrong_calls(connection)),
        held_calls=tuple(_held_calls(connection)),
        held_payments=tuple(_held_payments(connection)),
    )


def _wrong_payments(connection: Connection) -> Iterator[str]:
    shown = _sums(call_table.c.payment_id, call_table.c.taken_units).subquery("shown")
    helped = _sums(topup_table.c.payment_id, topup_table.c.units).subquery("helped")
    columns = payment_table.c
    held = func.coalesce(shown.c.units, 0) + func.coalesce(helped.c.units, 0)
    query = (
        select(columns.id, columns.tx_hash, columns.taken_units, columns.value_units, held.label("held"))
        .select_from(
            payment_table.outerjoin(shown, shown.c.key == columns.id).outerjoin(
                helped, helped.c.key == columns.id
            )
        )
        .where(
            or_(
                columns.taken_units != held,
                columns.taken_units < 0,
                columns.taken_units > columns.value_units,
            )
        )
        .order_by(columns.id)
        .limit(LINES_MAX)
    )
    for row in connection.execute(query):
        yield (
            f"payment {row.id} in {TxHash(row.tx_hash)}: {row.taken_units} taken of {row.value_units},"
            f" its calls hold {row.held}"
        )


def _wrong_calls(connection: Connection) -> Iterator[str]:
    """Calls that hold more or less than their state says."""
    helped = _sums(topup_table.c.call_id, topup_table.c.units).subquery("helped")
    columns = call_table.c
    held = columns.taken_units + func.coalesce(helped.c.units, 0)
    is_taking = columns.state.in_([state.value for state in TAKING])
    is_authorized = columns.rail.in_([rail.value for rail in AUTHORIZED_RAILS])
    is_ended = columns.state.in_([CallState.CONSUMED.value, CallState.REORGED.value])
    is_right = case(
        (columns.payment_id.is_(None), and_(held == 0, ~is_ended)),  # nothing moved for it yet
        (is_taking, held == columns.price_units),
        (columns.state == CallState.RELEASED.value, held == 0),
        else_=and_(held >= 0, held < columns.price_units),
    )
    query = (
        select(columns.id, columns.state, columns.price_units, held.label("held"))
        .select_from(call_table.outerjoin(helped, helped.c.key == columns.id))
        .where(or_(columns.payment_id.is_not(None), is_authorized), is_right == literal(False))
        .order_by(columns.id)
        .limit(LINES_MAX)
    )
    for row in connection.execute(query):
        yield f"call {row.id} is {row.state} at {row.price_units} and holds {row.held}"


def _held_calls(connection: Connection) -> Iterator[CallId]:
    columns = call_table.c
    query = select(columns.id).where(columns.state.in_([state.value for state in UNDECIDED]))
    for call_id in connection.execute(
        query.order_by(columns.created_ms, columns.id).limit(LINES_MAX)
    ).scalars():
        yield CallId(call_id)


def _held_payments(connection: Connection) -> Iterator[str]:
    columns = payment_table.c
    query = select(columns.tx_hash).where(columns.is_held).order_by(columns.id).limit(LINES_MAX)
    for tx_hash in connection.execute(query).scalars():
        yield str(TxHash(tx_hash))


def _sums(key: Any, units: Any) -> Any:
    """Sums by key, as integers: PostgreSQL adds integers up to a numeric."""
    return select(key.label("key"), cast(func.sum(units), BigInteger).label("units")).group_by(key)


def _count_rows(connection: Connection, key: Any) -> int:
    return int(connection.execute(select(func.count(key))).scalar_one())
