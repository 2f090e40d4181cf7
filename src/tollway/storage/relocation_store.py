"""Moves what an authorisation paid from one transaction to another, when a reorganisation did. Synchronous.

Locks as everybody does: authorisations, payments, calls. The units of the authorisation leave one payment and arrive
in the other; whatever calls hold of them goes along, its own call first, so that both balances stay right.
"""

from collections.abc import Iterator
from dataclasses import replace

from sqlalchemy import Connection, select, update

from tollway.identifiers import Address, CallId, ChainId, TxHash
from tollway.ledger.authorization import AuthorizedCall, SettledTransfer
from tollway.ledger.call import AUTHORIZED_RAILS, CallState, NewPayment, PaymentState
from tollway.storage.authorization_store import read_authorized
from tollway.storage.authorization_tables import authorization_table
from tollway.storage.book_page import LockedCall, LockedRows
from tollway.storage.book_tables import call_table, payment_table
from tollway.storage.payment_store import (
    CHUNK,
    find_debited_calls,
    find_payment_id,
    insert_payment,
    pay_debts,
    raise_payment,
    reinstate_payment,
)


def authorizations_in(
    connection: Connection, *, payment_id: int, limit: int, answered_since_ms: int
) -> tuple[AuthorizedCall, ...]:
    is_shown = call_table.c.payment_id == payment_id
    return read_authorized(connection, is_shown, limit=limit, answered_since_ms=answered_since_ms)


def move_transfer(
    connection: Connection, *, call_id: CallId, before: TxHash, transfer: SettledTransfer, now_ms: int
) -> bool:
    found = _lock_authorization(connection, call_id, before, transfer)
    if found is None or transfer.tx_hash == before:
        return False
    insert_payment(connection, found, now_ms, is_authorized=True)
    from_id = find_payment_id(connection, replace(found, tx_hash=before))
    to_id = find_payment_id(connection, found)
    locked_rows = LockedRows(connection)
    locked_rows.lock_payments([from_id, to_id])
    if locked_rows.payments[to_id].state is PaymentState.GONE:
        locked_rows.payments[to_id] = reinstate_payment(
            connection, locked_rows.payments[to_id], found, now_ms
        )
    calls = _lock_calls(connection, locked_rows, call_id, from_id)
    own = calls.pop(call_id)
    is_bought = own.state is not CallState.RELEASED
    raise_payment(connection, locked_rows, to_id, own.price_units, calls=int(is_bought))
    left_units = _value_of(connection, from_id) - own.price_units
    own = locked_rows.set_payment(own, to_id, tx_hash=transfer.tx_hash)
    _move_units(locked_rows, own, own.price_units, from_id=from_id, to_id=to_id)
    for call in sorted(
        calls.values(), key=_is_paid_by_its_own
    ):  # what was bought for credit goes along first
        _move_units(
            locked_rows,
            call,
            locked_rows.payments[from_id].taken_units - left_units,
            from_id=from_id,
            to_id=to_id,
        )
    locked_rows.write()
    _write_transfer(connection, call_id, transfer, from_id=from_id, to_id=to_id, left_units=left_units)
    _pay_debts_from(connection, to_id, now_ms=now_ms)
    return True


def _lock_authorization(
    connection: Connection, call_id: CallId, before: TxHash, transfer: SettledTransfer
) -> NewPayment | None:
    """The payment that is made there, worth nothing so far; None when that call's money is not known in `before`."""
    columns = authorization_table.c
    query = select(columns.chain_id, columns.asset, columns.payer, columns.payee).where(
        columns.call_id == call_id, columns.tx_hash == before
    )
    row = connection.execute(query.with_for_update()).first()
    if row is None:
        return None
    return NewPayment(
        chain_id=ChainId(row.chain_id),
        tx_hash=transfer.tx_hash,
        asset=row.asset,
        payer=Address(row.payer),
        payee=Address(row.payee),
        value_units=0,
        block_number=transfer.block_number,
        block_hash=transfer.block_hash,
        block_time=transfer.block_time,
        is_final=transfer.is_final,
    )


def _lock_calls(
    connection: Connection, locked_rows: LockedRows, call_id: CallId, from_id: int
) -> dict[CallId, LockedCall]:
    """That call, and all that hold something of the payment."""
    ids = sorted({call_id, *find_debited_calls(connection, from_id)})
    locked: dict[CallId, LockedCall] = {}
    for chunk in _chunks(ids):
        locked.update(locked_rows.lock_calls(chunk))
    return locked


def _is_paid_by_its_own(call: LockedCall) -> bool:
    return call.rail in AUTHORIZED_RAILS


def _move_units(locked_rows: LockedRows, call: LockedCall, units: int, *, from_id: int, to_id: int) -> None:
    """Lets a call hold up to so many units of the one payment that it held of the other."""
    moved_units = min(units, call.parts.get(from_id, 0))
    if moved_units <= 0:
        return
    parts = {
        **call.parts,
        from_id: call.parts[from_id] - moved_units,
        to_id: call.parts.get(to_id, 0) + moved_units,
    }
    locked_rows.set_parts(call, {key: held for key, held in parts.items() if held})


def _write_transfer(
    connection: Connection,
    call_id: CallId,
    transfer: SettledTransfer,
    *,
    from_id: int,
    to_id: int,
    left_units: int,
) -> None:
    """After the balances: neither payment may ever be taken beyond its value. What is held after a restore stays so."""
    payments, columns = payment_table.c, authorization_table.c
    connection.execute(update(payment_table).where(payments.id == from_id).values(value_units=left_units))
    was_held = select(payments.id).where(payments.id == from_id, payments.is_held).exists()
    connection.execute(update(payment_table).where(payments.id == to_id, was_held).values(is_held=True))
    connection.execute(
        update(authorization_table)
        .where(columns.call_id == call_id)
        .values(tx_hash=transfer.tx_hash, settled_block=transfer.block_number)
    )


def _pay_debts_from(connection: Connection, payment_id: int, *, now_ms: int) -> None:
    locked_rows = LockedRows(connection)
    locked_rows.lock_payments([payment_id])
    pay_debts(connection, locked_rows, [payment_id], now_ms=now_ms)
    locked_rows.write()


def _value_of(connection: Connection, payment_id: int) -> int:
    """As it is written: a payment that is gone is shown without its value."""
    query = select(payment_table.c.value_units).where(payment_table.c.id == payment_id)
    return int(connection.execute(query).scalar_one())


def _chunks(ids: list[CallId]) -> Iterator[list[CallId]]:
    return (ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK))
