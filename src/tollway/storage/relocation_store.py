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
from tollway.storage.book_page import BookPage, LockedCall
from tollway.storage.book_tables import call_table, payment_table
from tollway.storage.payment_store import (
    CHUNK,
    come_back,
    drawing_calls,
    find_payment_id,
    insert_payment,
    pay_debts,
    raise_payment,
)


def authorizations_in(
    connection: Connection, *, payment_id: int, limit: int, answered_since_ms: int
) -> tuple[AuthorizedCall, ...]:
    is_shown = call_table.c.payment_id == payment_id
    return read_authorized(connection, is_shown, limit=limit, answered_since_ms=answered_since_ms)


def relocate(
    connection: Connection, *, call_id: CallId, before: TxHash, transfer: SettledTransfer, now_ms: int
) -> bool:
    found = _lock_authorization(connection, call_id, before, transfer)
    if found is None or transfer.tx_hash == before:
        return False
    insert_payment(connection, found, now_ms, is_authorized=True)
    from_id = find_payment_id(connection, replace(found, tx_hash=before))
    to_id = find_payment_id(connection, found)
    page = BookPage(connection)
    page.lock_payments([from_id, to_id])
    if page.payments[to_id].state is PaymentState.GONE:
        page.payments[to_id] = come_back(connection, page.payments[to_id], found, now_ms)
    calls = _lock_calls(connection, page, call_id, from_id)
    own = calls.pop(call_id)
    is_bought = own.state is not CallState.RELEASED
    raise_payment(connection, page, to_id, own.price_units, calls=int(is_bought))
    left_units = _value_of(connection, from_id) - own.price_units
    own = page.show(own, to_id, tx_hash=transfer.tx_hash)
    _carry(page, own, own.price_units, from_id=from_id, to_id=to_id)
    for call in sorted(
        calls.values(), key=_is_paid_by_its_own
    ):  # what was bought for credit goes along first
        _carry(page, call, page.payments[from_id].taken_units - left_units, from_id=from_id, to_id=to_id)
    page.write()
    _write_place(connection, call_id, transfer, from_id=from_id, to_id=to_id, left_units=left_units)
    _pay_debts(connection, to_id, now_ms=now_ms)
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
    connection: Connection, page: BookPage, call_id: CallId, from_id: int
) -> dict[CallId, LockedCall]:
    """That call, and all that hold something of the payment."""
    ids = sorted({call_id, *drawing_calls(connection, from_id)})
    locked: dict[CallId, LockedCall] = {}
    for chunk in _chunks(ids):
        locked.update(page.lock_calls(chunk))
    return locked


def _is_paid_by_its_own(call: LockedCall) -> bool:
    return call.rail in AUTHORIZED_RAILS


def _carry(page: BookPage, call: LockedCall, units: int, *, from_id: int, to_id: int) -> None:
    """Lets a call hold up to so many units of the one payment that it held of the other."""
    carried = min(units, call.parts.get(from_id, 0))
    if carried <= 0:
        return
    parts = {
        **call.parts,
        from_id: call.parts[from_id] - carried,
        to_id: call.parts.get(to_id, 0) + carried,
    }
    page.hold(call, {key: held for key, held in parts.items() if held})


def _write_place(
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


def _pay_debts(connection: Connection, payment_id: int, *, now_ms: int) -> None:
    page = BookPage(connection)
    page.lock_payments([payment_id])
    pay_debts(connection, page, [payment_id], now_ms=now_ms)
    page.write()


def _value_of(connection: Connection, payment_id: int) -> int:
    """As it is written: a payment that is gone is shown without its value."""
    query = select(payment_table.c.value_units).where(payment_table.c.id == payment_id)
    return int(connection.execute(query).scalar_one())


def _chunks(ids: list[CallId]) -> Iterator[list[CallId]]:
    return (ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK))
