"""The debts of credit accounts in SQL, and their payment from unspent credit.

A debt is the missing part of the price of a `reorged` call, except of a call of a channel. The debt of a credit account (payer, payee, asset, chain) is a kept sum,
`account_debt`; `LockedRows` changes it in the transaction that moves the calls, and the audit compares it with them. A claim reads this
one row, however many calls its payer owes.

Credit and debt of one account pay each other, the oldest call first, from the oldest payment that can be spent. They do so after a transfer
has arrived, before a claim is refused for a debt, and in each check of the reorganisation watcher. The payment is a loop of transactions of
at most `moved_calls_max` calls. Nothing depends on its end: each transaction finds its calls and payments in the rows, under their locks,
so another gateway or a later loop continues where one has ended. A claim meets the rest of the debt before it can take the credit.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, and_, bindparam, exists, literal_column, select, text, tuple_

from tollway.ids import Address, CallId, ChainId
from tollway.ledger.claims import CreditAccount
from tollway.ledger.records import CallState, Payment, PaymentState
from tollway.storage.engine.database import Database, write_retried
from tollway.storage.engine.statements import Prepared, Within
from tollway.storage.ledger.ledger_tables import (
    account_debt_table,
    call_table,
    call_terms_table,
    payment_table,
)
from tollway.storage.ledger.locked_rows import LockedCall, LockedRows

PAYMENTS_MAX = 256
ACCOUNTS_MAX = 1_000


class CallPlace(NamedTuple):
    created_ms: int
    call_id: str


BEFORE_ALL_CALLS = CallPlace(-1, "")


@dataclass(frozen=True, slots=True)
class PaidDebts:
    """`last`: the place of the last call that is paid whole."""

    units: int
    last: CallPlace


@dataclass(frozen=True, slots=True)
class OwedUnits:
    """The debt of an account. `is_payable`: it has a debt, and a payment with unspent credit."""

    units: int
    is_payable: bool


def find_debts(connection: Connection, payers: Collection[Address]) -> dict[CreditAccount, int]:
    """The debts of these payers in units, by credit account. Takes no locks."""
    if not payers:
        return {}
    return {
        CreditAccount(ChainId(chain_id), asset, Address(payer), Address(payee)): units
        for payer, payee, asset, chain_id, units in _DEBTS.fetch(connection, payers=list(payers))
    }


def find_payable_accounts(connection: Connection, chain_id: ChainId) -> list[CreditAccount]:
    """Accounts of a chain that have a debt and a payment to pay it from."""
    columns = account_debt_table.c
    query = (
        select(columns.payer, columns.payee, columns.asset)
        .where(columns.chain_id == chain_id, text("account_debt.units > 0"), _credit_of_account().exists())
        .limit(ACCOUNTS_MAX)
    )
    return sorted(
        CreditAccount(chain_id, row.asset, Address(row.payer), Address(row.payee))
        for row in connection.execute(query)
    )


async def pay_debts(database: Database, account: CreditAccount, *, calls_max: int, now_ms: int) -> int:
    """Pays the debt of an account until it has no debt or no unspent credit. Returns the debt that is left. `calls_max`: for one transaction. After
    `StorageUnavailable`, what the transactions before have paid stays paid."""
    after = BEFORE_ALL_CALLS
    while True:
        owed = await database.read(partial(_read_owed, account=account))
        if not owed.is_payable:
            return owed.units
        work = partial(_pay_chunk, account=account, after=after, calls_max=calls_max, now_ms=now_ms)
        paid = await write_retried(database, work)
        if paid.units == 0 and after == BEFORE_ALL_CALLS:
            # Another transaction has taken or held the credit since.
            return owed.units
        after = paid.last if paid.units else BEFORE_ALL_CALLS


def _read_owed(connection: Connection, account: CreditAccount) -> OwedUnits:
    for units, has_credit in _OWED.fetch(connection, **account._asdict()):
        return OwedUnits(units, is_payable=units > 0 and bool(has_credit))
    return OwedUnits(0, is_payable=False)


def _pay_chunk(
    connection: Connection, account: CreditAccount, *, after: CallPlace, calls_max: int, now_ms: int
) -> PaidDebts:
    """The oldest debt is paid first, from the oldest payment."""
    in_order = [payment_id for (payment_id,) in _CREDITS.fetch(connection, **account._asdict())]
    locked_rows = LockedRows(connection)
    locked_rows.lock_payments(in_order)
    from_ids = [key for key in in_order if _is_credit(locked_rows.payments[key])]
    order = _find_debtors(connection, account, after=after, limit=calls_max) if from_ids else []
    calls = locked_rows.lock_calls([CallId(place.call_id) for place in order])
    paid_units, last = 0, after
    for place in order:
        call = calls.get(CallId(place.call_id))
        if call is None or call.state is not CallState.REORGED:
            continue
        missing_units = _missing_units(call)
        units = _pay_call(locked_rows, call, from_ids, now_ms=now_ms)
        paid_units += units
        if units < missing_units:
            break
        last = place
    locked_rows.write()
    return PaidDebts(paid_units, last)


def _pay_call(locked_rows: LockedRows, call: LockedCall, from_ids: list[int], *, now_ms: int) -> int:
    """Pays what a call lacks, and returns the paid units. Removes payments that are used up from `from_ids`."""
    parts, missing_units = dict(call.parts), _missing_units(call)
    owed_units = missing_units
    while from_ids and missing_units > 0:
        payment_id = from_ids[0]
        units = min(missing_units, locked_rows.payments[payment_id].remaining_units)
        if units > 0:
            parts[payment_id] = parts.get(payment_id, 0) + units
            missing_units -= units
        if missing_units > 0:
            from_ids.pop(0)
    locked_rows.set_parts(call, parts)
    if missing_units == 0:
        locked_rows.change(call, state=CallState.CONSUMED.value, moved_ms=now_ms)
    return owed_units - missing_units


def _missing_units(call: LockedCall) -> int:
    return call.due_units - sum(call.parts.values())


def _is_credit(payment: Payment) -> bool:
    is_spendable = payment.state is not PaymentState.GONE and not payment.is_held
    return is_spendable and payment.remaining_units > 0


def _find_debtors(
    connection: Connection, account: CreditAccount, *, after: CallPlace, limit: int
) -> list[CallPlace]:
    return [
        CallPlace(created_ms, call_id)
        for created_ms, call_id in _DEBTORS.fetch(
            connection, **account._asdict(), after_ms=after.created_ms, after_id=after.call_id, at_most=limit
        )
    ]


def _credit_of_account() -> Select[Any]:
    own, owed = payment_table.c, account_debt_table.c
    return (
        select(own.id)
        .where(*(own[name] == owed[name] for name in CreditAccount._fields), *_HAS_CREDIT)
        .correlate(account_debt_table)
    )


def _named(table: Any) -> tuple[Any, ...]:
    return tuple(table.c[name] == bindparam(name) for name in CreditAccount._fields)


_HAS_CREDIT = (
    payment_table.c.state != literal_column(f"'{PaymentState.GONE.value}'"),
    ~payment_table.c.is_held,
    payment_table.c.value_units > payment_table.c.taken_units,
)
_DEBTS = Prepared(
    select(*(account_debt_table.c[name] for name in ("payer", "payee", "asset", "chain_id", "units"))).where(
        Within(account_debt_table.c.payer, "payers"), account_debt_table.c.units > literal_column("0")
    )
)
_OWED = Prepared(
    select(
        account_debt_table.c.units,
        exists(select(payment_table.c.id).where(*_named(payment_table), *_HAS_CREDIT)).label("has_credit"),
    ).where(*_named(account_debt_table))
)
_CREDITS = Prepared(
    select(payment_table.c.id)
    .where(*_named(payment_table), *_HAS_CREDIT)
    .order_by(payment_table.c.block_number, payment_table.c.id)
    .limit(literal_column(str(PAYMENTS_MAX)))
)


def _debtors_query() -> Select[Any]:
    columns, terms = call_table.c, call_terms_table.c
    after = tuple_(
        bindparam("after_ms", type_=columns.created_ms.type), bindparam("after_id", type_=columns.id.type)
    )
    return (
        select(columns.created_ms, columns.id)
        .join(call_terms_table, terms.id == columns.terms_id)
        .where(
            and_(
                columns.payer == bindparam("payer"),
                # The literal predicate of the index.
                columns.state == literal_column("'reorged'"),
                tuple_(columns.created_ms, columns.id) > after,
                # The next balance of its channel pays the call of a voucher.
                columns.channel_id.is_(None),
            ),
            terms.pay_to == bindparam("payee"),
            terms.asset == bindparam("asset"),
            terms.chain_id == bindparam("chain_id"),
        )
        .order_by(columns.created_ms, columns.id)
        .limit(bindparam("at_most"))
    )


_DEBTORS = Prepared(_debtors_query())
