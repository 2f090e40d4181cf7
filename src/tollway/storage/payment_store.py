"""The payments in the ledger: recorded, re-read on the chain, gone from it, come back; and the debts that leaves.

Plain functions over a connection; `book_store` runs them. A debt is what a `reorged` call lacks of its price; the
next transfer into the same credit account pays it, oldest call first, before anything else can be bought with it.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    func,
    literal_column,
    select,
    union,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from tollway.identifiers import Address, CallId, ChainId, TxHash
from tollway.ledger.book import Debt
from tollway.ledger.call import CallState, NewPayment, Payment, PaymentState, is_worth_more
from tollway.ledger.claims import CreditAccount, check_units, credit_account_of
from tollway.ledger.covers import PayerAccount
from tollway.ledger.parts import allocate_to_debts, debits_after
from tollway.money import UNITS_MAX
from tollway.storage.book_page import LockedCall, LockedRows
from tollway.storage.book_rows import parse_payment
from tollway.storage.book_tables import call_table, payment_table, topup_table
from tollway.storage.finality_store import NEVER_MS
from tollway.storage.operator_notes import IS_RESTORED
from tollway.storage.outage import ValueRefused
from tollway.storage.statements import Prepared, Within

CHUNK = 1_000
"""Rows named in one statement; both drivers have a maximum of parameters."""


def find_payments(connection: Connection, tx_hash: TxHash) -> tuple[Payment, ...]:
    query = select(payment_table).where(payment_table.c.tx_hash == tx_hash).order_by(payment_table.c.id)
    return tuple(map(parse_payment, connection.execute(query)))


def record_payments(
    connection: Connection, payments: Sequence[NewPayment], *, now_ms: int
) -> tuple[Payment, ...]:
    """Adds what is not there yet, lets gone ones come back, raises what is worth more, and pays debts from all of it."""
    fresh = {_key(new) for new in sorted(payments, key=_key) if insert_payment(connection, new, now_ms)}
    ids = {_key(new): find_payment_id(connection, new) for new in payments}
    locked_rows = LockedRows(connection)
    locked_rows.lock_payments(ids.values())
    arrived: list[int] = []
    for new in payments:
        payment_id = ids[_key(new)]
        payment = locked_rows.payments[payment_id]
        if payment.state is PaymentState.GONE:
            locked_rows.payments[payment_id] = reinstate_payment(connection, payment, new, now_ms)
            arrived.append(payment_id)
        elif is_worth_more(payment, new):
            more = new.value_units - payment.value_units
            raise_payment(connection, locked_rows, payment_id, more, calls=0, is_by_authorization=False)
            arrived.append(payment_id)
        elif _key(new) in fresh:
            arrived.append(payment_id)
    pay_debts(connection, locked_rows, arrived, now_ms=now_ms)
    locked_rows.write()
    return tuple(locked_rows.payments[payment_id] for payment_id in dict.fromkeys(ids.values()))


def debts(connection: Connection, payer: Address) -> tuple[Debt, ...]:
    return tuple(
        Debt(chain_id=account.chain_id, asset=account.asset, payee=account.payee, units=units)
        for account, units in sorted(find_debts(connection, [payer]).items())
    )


def find_debts(connection: Connection, payers: Collection[Address]) -> dict[CreditAccount, int]:
    """What these payers owe, by credit account."""
    if not payers:
        return {}
    owed: dict[CreditAccount, int] = {}
    for payer, chain_id, asset, payee, price_units, taken_units, helped in _DEBTS.fetch(
        connection, payers=list(payers)
    ):
        account = CreditAccount(ChainId(chain_id), asset, Address(payer), Address(payee))
        owed[account] = owed.get(account, 0) + price_units - taken_units - int(helped)
    return owed


def sum_unfinal_of(connection: Connection, payers: Collection[Address]) -> dict[PayerAccount, int]:
    """What is taken from all unfinal payments of these payers, by wallet, in ledger units. Locks none of them."""
    if not payers:
        return {}
    rows = _UNFINAL.fetch(connection, payers=list(payers))
    return {
        PayerAccount(ChainId(chain_id), asset, Address(payer)): (int(high) << 32) + int(low)
        for payer, chain_id, asset, high, low in rows
    }


def unfinal_query() -> Select[Any]:
    """In two halves of 32 bits: a sum of amounts may be more than SQLite's sum() can hold."""
    columns = payment_table.c
    wallet = (columns.payer, columns.chain_id, columns.asset)
    halves = (
        func.sum(columns.taken_units.bitwise_rshift(literal_column("32"))),
        func.sum(columns.taken_units.bitwise_and(literal_column("4294967295"))),
    )
    is_unfinal = columns.state == literal_column("'unfinal'")  # literal, for the index
    return select(*wallet, *halves).where(Within(columns.payer, "payers"), is_unfinal).group_by(*wallet)


_UNFINAL = Prepared(unfinal_query())


def mark_gone(connection: Connection, payment_id: int, *, now_ms: int) -> int:
    """Only `unfinal` payments can leave the chain; returns the new debt."""
    locked_rows = LockedRows(connection)
    locked_rows.lock_payments([payment_id])
    payment = locked_rows.payments.get(payment_id)
    if payment is None or payment.state is not PaymentState.UNFINAL:
        return 0
    locked_rows.payments[payment_id] = replace(
        payment, state=PaymentState.GONE, value_units=payment.taken_units
    )
    connection.execute(
        update(payment_table)
        .where(payment_table.c.id == payment_id)
        .values(state=PaymentState.GONE.value, gone_ms=now_ms, checked_ms=now_ms)
    )
    debt_units = 0
    for chunk in _chunks(find_debited_calls(connection, payment_id)):
        for call in locked_rows.lock_calls(chunk).values():
            if call.state in (CallState.CONSUMED, CallState.REORGED):
                debt_units += call.parts.get(payment_id, 0)
                _remove_part(locked_rows, call, payment_id, now_ms=now_ms)
    locked_rows.write()
    return debt_units


def _remove_part(locked_rows: LockedRows, call: LockedCall, payment_id: int, *, now_ms: int) -> None:
    if payment_id not in call.parts:
        return
    holding = debits_after(
        CallState.CONSUMED, parts=call.parts, price_units=call.price_units, gone={payment_id}
    )
    locked_rows.set_parts(call, holding.parts)
    if holding.state is not call.state:
        locked_rows.change(call, state=holding.state.value, moved_ms=now_ms)


def find_debited_calls(connection: Connection, payment_id: int) -> list[CallId]:
    shown = select(call_table.c.id).where(call_table.c.payment_id == payment_id, call_table.c.taken_units > 0)
    helped = select(topup_table.c.call_id).where(topup_table.c.payment_id == payment_id)
    return sorted(map(CallId, connection.execute(union(shown, helped)).scalars()))


def pay_debts(
    connection: Connection, locked_rows: LockedRows, payment_ids: Iterable[int], *, now_ms: int
) -> None:
    """From what has just arrived, in these payments, whose rows are locked."""
    paid: dict[CallId, LockedCall] = {}
    for payment_id in payment_ids:
        payment = locked_rows.payments[payment_id]
        order = _debtors(connection, payment)
        locked = locked_rows.lock_calls(order)
        debtors = [paid.get(key, locked[key]) for key in order if key in locked]
        owed = [
            (call.id, call.price_units - sum(call.parts.values()))
            for call in debtors
            if call.state is CallState.REORGED
        ]
        shares = allocate_to_debts(locked_rows.payments[payment_id].remaining_units, debts=owed)
        for call in debtors:
            share = shares.get(call.id, 0)
            if share:
                paid[call.id] = _pay_debt(locked_rows, call, payment_id, share, now_ms=now_ms)


def _pay_debt(
    locked_rows: LockedRows, call: LockedCall, payment_id: int, units: int, *, now_ms: int
) -> LockedCall:
    parts = {**call.parts, payment_id: call.parts.get(payment_id, 0) + units}
    locked_rows.set_parts(call, parts)
    if sum(parts.values()) >= call.price_units:
        locked_rows.change(call, state=CallState.CONSUMED.value, moved_ms=now_ms)
    return replace(call, parts=parts)


def _debtors(connection: Connection, payment: Payment) -> list[CallId]:
    columns = call_table.c
    account = credit_account_of(payment)
    query = select(columns.created_ms, columns.id).where(
        columns.payer == account.payer,
        columns.pay_to == account.payee,
        columns.asset == account.asset,
        columns.chain_id == account.chain_id,
        _is_reorged(),
    )
    rows = sorted((row.created_ms, row.id) for row in connection.execute(query))
    return [CallId(call_id) for _, call_id in rows[:CHUNK]]


def _is_reorged() -> ColumnElement[bool]:
    return call_table.c.state == literal_column("'reorged'")


def _debts_query() -> Select[Any]:
    columns = call_table.c
    helped = (
        select(func.coalesce(func.sum(topup_table.c.units), 0))
        .where(topup_table.c.call_id == columns.id)
        .correlate(call_table)
        .scalar_subquery()
    )
    return select(
        columns.payer,
        columns.chain_id,
        columns.asset,
        columns.pay_to,
        columns.price_units,
        columns.taken_units,
        helped.label("helped"),
    ).where(Within(columns.payer, "payers"), _is_reorged())


_DEBTS = Prepared(_debts_query())


def insert_payment(
    connection: Connection, new: NewPayment, now_ms: int, *, is_authorized: bool = False
) -> bool:
    """False when it is there already."""
    check_units(new.value_units)
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(payment_table).values(
        chain_id=new.chain_id,
        tx_hash=new.tx_hash,
        asset=new.asset,
        payer=new.payer,
        payee=new.payee,
        value_units=new.value_units,
        taken_units=0,
        calls=0,
        state=(PaymentState.FINAL if new.is_final else PaymentState.UNFINAL).value,
        block_number=new.block_number,
        block_hash=new.block_hash,
        block_time=new.block_time,
        is_plain_ended=False,
        is_held=False,
        is_authorized=is_authorized,
        recorded_ms=now_ms,
        checked_ms=NEVER_MS,
    )
    return connection.execute(statement.on_conflict_do_nothing()).rowcount == 1


def reinstate_payment(connection: Connection, payment: Payment, new: NewPayment, now_ms: int) -> Payment:
    """Running calls may still hold something of it, so its value is never set below that. What authorisations were
    for is known from their calls, not from the logs. Its row is locked."""
    check_units(new.value_units)
    value_units = new.value_units
    if payment.is_authorized:
        query = select(payment_table.c.value_units).where(payment_table.c.id == payment.id)
        value_units = int(connection.execute(query).scalar_one())
    value_units = max(value_units, payment.taken_units)
    state = PaymentState.FINAL if new.is_final else PaymentState.UNFINAL
    # A dispute about where it was holds it no longer; a restore waits for the lock of its row.
    is_held = payment.is_held and bool(connection.execute(select(IS_RESTORED)).scalar_one())
    connection.execute(
        update(payment_table)
        .where(payment_table.c.id == payment.id)
        .values(
            state=state.value,
            value_units=value_units,
            block_number=new.block_number,
            block_hash=new.block_hash,
            block_time=new.block_time,
            gone_ms=None,
            checked_ms=NEVER_MS,
            is_held=is_held,
        )
    )
    return replace(
        payment,
        state=state,
        value_units=value_units,
        is_held=is_held,
        block_number=new.block_number,
        block_hash=new.block_hash,
        block_time=new.block_time,
    )


def raise_payment(
    connection: Connection,
    locked_rows: LockedRows,
    payment_id: int,
    units: int,
    *,
    calls: int,
    is_by_authorization: bool = True,
) -> None:
    """By what another authorisation moved in it, or by what nodes had kept back of it. Its row is locked. A payment that
    is gone is shown without its value, and keeps it in its row. Raises `ValueRefused`, and nothing is written, where the
    balance would be more than a signed 64-bit column holds: SQLite would write a float."""
    columns, payment = payment_table.c, locked_rows.payments[payment_id]
    is_authorized = payment.is_authorized or is_by_authorization
    raised = connection.execute(
        update(payment_table)
        .where(columns.id == payment_id, columns.value_units <= UNITS_MAX - units)
        .values(
            value_units=columns.value_units + units,
            calls=columns.calls + calls,
            is_authorized=is_authorized,
            checked_ms=NEVER_MS,
        )
    )
    if raised.rowcount != 1:
        raise ValueRefused("the balance of a payment is at most 2^63 - 1")
    if payment.state is not PaymentState.GONE:
        payment = replace(payment, value_units=payment.value_units + units)
    locked_rows.payments[payment_id] = replace(
        payment, calls=payment.calls + calls, is_authorized=is_authorized
    )


def _key(new: NewPayment) -> tuple[bytes, int, str, bytes, bytes]:
    return (new.tx_hash, new.chain_id, new.asset, new.payer, new.payee)


def find_payment_id(connection: Connection, new: NewPayment) -> int:
    columns = payment_table.c
    query = select(columns.id).where(
        columns.tx_hash == new.tx_hash,
        columns.chain_id == new.chain_id,
        columns.asset == new.asset,
        columns.payer == new.payer,
        columns.payee == new.payee,
    )
    return int(connection.execute(query).scalar_one())


def _chunks(ids: Sequence[CallId]) -> Iterable[list[CallId]]:
    return (list(ids[start : start + CHUNK]) for start in range(0, len(ids), CHUNK))
