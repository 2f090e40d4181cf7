"""The payments of a wallet in SQL, as payer or as payee, newest block first. Read only. What is in channels is no payment (`is_escrow`), and no refund is.

Pages are ordered by (block_time, id), and each role has an index in that order. A filter by the moment of recording is checked on the rows of the wallet.
"""

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, exists, select, text, tuple_

from tollway.ids import TxHash
from tollway.ledger.history import LastPayment, ListedPayment, PaymentPlace, PaymentQuery
from tollway.ledger.records import CallState
from tollway.storage.engine.statements import hint_index
from tollway.storage.ledger.ledger_tables import (
    REPEATABLE,
    call_table,
    parse_payment,
    payment_table,
    restore_table,
    topup_table,
)

_HAS_OPEN_RESTORE = select(exists().where(restore_table.c.released_ms.is_(None)))


def read_payments(connection: Connection, query: PaymentQuery) -> tuple[ListedPayment, ...]:
    """One page, with what each payment's `reason` needs: three statements for any number of rows."""
    rows = connection.execute(_page(connection, query).limit(query.limit).offset(query.offset)).all()
    is_restored = any(row.is_held for row in rows) and bool(connection.scalar(_HAS_OPEN_RESTORE))
    holding = find_held_by_calls(connection, [row.id for row in rows if row.taken_units > 0])
    return tuple(
        ListedPayment(
            payment=parse_payment(row),
            recorded_ms=row.recorded_ms,
            is_restored=bool(row.is_held) and is_restored,
            has_unknown_call=row.id in holding,
        )
        for row in rows
    )


def find_last_payment(connection: Connection, query: PaymentQuery) -> LastPayment | None:
    """The last payment of the page is the first of the two rows at its end; the second one begins the next page."""
    end = query.offset + query.limit - 1
    rows = connection.execute(_page(connection, query).limit(2).offset(end)).all()
    if len(rows) < 2:
        return None
    return LastPayment(payment=parse_payment(rows[0]), place=_name_place(connection, query, rows[0]))


def find_newer_place(connection: Connection, query: PaymentQuery) -> PaymentPlace | None:
    """Reads upward from `before`, the last payment of the newer page: that page has `limit` payments, and the next payment is its place."""
    place = _find_place(connection, query)
    if place is None:
        return None
    columns = payment_table.c
    newer = select(payment_table).where(
        *_set_filters(query), tuple_(columns.block_time, columns.id) >= tuple_(*place)
    )
    upward = newer.order_by(columns.block_time, columns.id).limit(1).offset(query.limit)
    row = connection.execute(upward).first()
    return None if row is None else _name_place(connection, query, row)


def _name_place(connection: Connection, query: PaymentQuery, row: Row[Any]) -> PaymentPlace:
    columns = payment_table.c
    own = select(columns.id).where(columns.tx_hash == row.tx_hash, _is_of_wallet(query))
    ids = [payment_id for (payment_id,) in connection.execute(own.order_by(columns.id))]
    number = ids.index(row.id) if len(ids) > 1 else None
    return PaymentPlace(tx_hash=TxHash(row.tx_hash), number=number)


def _page(connection: Connection, query: PaymentQuery) -> Select[Any]:
    columns = payment_table.c
    wanted = [*_set_filters(query), *_place_filters(connection, query)]
    return select(payment_table).where(*wanted).order_by(columns.block_time.desc(), columns.id.desc())


def _set_filters(query: PaymentQuery) -> list[ColumnElement[bool]]:
    columns = payment_table.c
    wanted = [_is_of_wallet(query)]
    if query.from_ms is not None:
        wanted.append(columns.recorded_ms >= query.from_ms)
    if query.to_ms is not None:
        wanted.append(columns.recorded_ms <= query.to_ms)
    return wanted


def _is_of_wallet(query: PaymentQuery) -> ColumnElement[bool]:
    columns = payment_table.c
    wallet = columns.payer if query.role == "payer" else columns.payee
    return and_(wallet == bytes(query.wallet), ~columns.is_escrow, ~columns.is_refund)


def _place_filters(connection: Connection, query: PaymentQuery) -> list[ColumnElement[bool]]:
    """A filter for the payments after `after`, or after the place `before`. An unknown place matches nothing."""
    columns = payment_table.c
    if query.after is not None:
        return [tuple_(columns.block_time, columns.id) < tuple_(query.after.block_time, query.after.id)]
    if query.before is None:
        return []
    place = _find_place(connection, query)
    if place is None:
        return [columns.id.is_(None)]
    return [tuple_(columns.block_time, columns.id) < tuple_(*place)]


def _find_place(connection: Connection, query: PaymentQuery) -> tuple[int, int] | None:
    """Returns None for an unknown payment."""
    if query.before is None:
        return None
    columns = payment_table.c
    own = select(columns.block_time, columns.id).where(
        columns.tx_hash == bytes(query.before.tx_hash), _is_of_wallet(query)
    )
    rows = connection.execute(own.order_by(columns.id)).all()
    if query.before.number is not None:
        rows = rows[query.before.number : query.before.number + 1]
    return min(((row.block_time, row.id) for row in rows), default=None)


def find_held_by_calls(connection: Connection, payment_ids: Collection[int]) -> set[int]:
    if not payment_ids:
        return set()
    own, calls, topups = hint_index(call_table, "ix_call_repeatable").c, call_table.c, topup_table.c
    of_proof = select(own.payment_id).where(
        own.payment_id.in_(payment_ids),
        own.taken_units > 0,
        own.state == CallState.UNKNOWN.value,
        # The literal predicate of the index.
        text(f"({REPEATABLE})"),
    )
    of_topups = (
        select(topups.payment_id)
        .join(call_table, calls.id == topups.call_id)
        .where(topups.payment_id.in_(payment_ids), calls.state == CallState.UNKNOWN.value)
    )
    return {
        payment_id
        for query in (of_proof, of_topups)
        for payment_id in connection.execute(query.distinct()).scalars()
    }
