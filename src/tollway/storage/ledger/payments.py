"""Payments in SQL: record, raise, reinstate, find exhausted ones.

`PaymentLedgerStore` is the port; the functions over a connection are synchronous parts of larger transactions. A transfer into an account
with a debt pays it before any claim (`storage.ledger.debts`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sqlalchemy import (
    Connection,
    Select,
    bindparam,
    func,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError

from tollway.errors import StorageUnavailable
from tollway.ids import Address, CallId, ChainId, TxHash
from tollway.ledger.claims import (
    CreditAccount,
    PayerAccount,
    check_units,
    credit_account_of,
    decide_claims,
)
from tollway.ledger.ledger import Claim, Exhausted, NonceUsed
from tollway.ledger.records import (
    NewPayment,
    Payment,
    PaymentState,
    RecordedTransaction,
    SettledTransfer,
    is_worth_more,
)
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.money import UNITS_MAX
from tollway.storage.engine.batch_loader import BatchLoader
from tollway.storage.engine.database import Database, write_retried
from tollway.storage.engine.outage import ValueRefused
from tollway.storage.engine.statements import Prepared, Within
from tollway.storage.ledger.channel_balance import lock_with_channels, return_deposit
from tollway.storage.ledger.debts import find_debts, pay_debts
from tollway.storage.ledger.gone_payments import has_unmoved, move_calls
from tollway.storage.ledger.history import find_returnable_units
from tollway.storage.ledger.idempotency import find_open_calls
from tollway.storage.ledger.ledger_tables import (
    PAYMENT_COLUMNS,
    parse_payment,
    parse_payment_row,
    payment_table,
)
from tollway.storage.ledger.locked_rows import LockedRows
from tollway.storage.ledger.nonces import find_nonces
from tollway.storage.ledger.refund_rows import return_refunds
from tollway.storage.operator.operator_writes import IS_RESTORED, find_operator_records, held_before_ms
from tollway.storage.webhooks.webhook_events import NO_EVENTS, EventLog
from tollway.webhooks.events import EventType

NEVER_MS = 0
"""`checked_ms` of a payment whose receipt was not read again since it was recorded, raised or reinstated."""


@dataclass(frozen=True, slots=True)
class Recording:
    """The payments of one transaction, with the records that they were verified against. Equal for equal payments at any time."""

    payments: tuple[NewPayment, ...]
    based_on: RecordedTransaction | None
    now_ms: int = field(compare=False)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The payments of a recording. `in_debt`: the accounts into which value has arrived and which have a debt."""

    payments: tuple[Payment, ...]
    in_debt: tuple[CreditAccount, ...]


class PaymentLedgerStore:
    """Implements `PaymentLedger`. Requests that arrive at the same time, such as those with the proof of one payment, share a transaction."""

    def __init__(
        self, database: Database, *, limits: Limits = DEFAULT_LIMITS, events: EventLog = NO_EVENTS
    ) -> None:
        self._database = database
        self._calls_max = limits.moved_calls_max
        self._events = events
        self._payments: BatchLoader[TxHash, tuple[Payment, ...]] = BatchLoader(self._find_payments)
        self._transactions: BatchLoader[TxHash, RecordedTransaction] = BatchLoader(self._find_transactions)
        self._recordings: BatchLoader[Recording, Recorded] = BatchLoader(self._record_each)

    async def find_payments(self, tx_hash: TxHash) -> tuple[Payment, ...]:
        return await self._payments.load(tx_hash)

    async def find_transaction(self, tx_hash: TxHash) -> RecordedTransaction:
        return await self._transactions.load(tx_hash)

    async def record_payments(
        self, payments: Sequence[NewPayment], *, now_ms: int, based_on: RecordedTransaction | None = None
    ) -> tuple[Payment, ...]:
        for payment in payments:
            check_units(payment.value_units)
        if not payments:
            return ()
        recording = Recording(tuple(payments), based_on, now_ms)
        recorded = await self._recordings.load(recording)
        unmoved = [one.id for one in recorded.payments if one.state is PaymentState.GONE]
        for payment_id in unmoved:
            await move_calls(self._database, payment_id, calls_max=self._calls_max, now_ms=now_ms)
        if unmoved:
            recorded = await self._recordings.load(recording)
        for account in recorded.in_debt:
            await pay_debts(self._database, account, calls_max=self._calls_max, now_ms=now_ms)
        if not recorded.in_debt:
            return recorded.payments
        ids = [one.id for one in recorded.payments]
        return await self._database.read(partial(_read_by_id, payment_ids=ids))

    async def _find_payments(self, tx_hashes: Sequence[TxHash]) -> list[tuple[Payment, ...]]:
        return await self._database.read(
            lambda connection: [read_payments(connection, one) for one in tx_hashes]
        )

    async def _find_transactions(self, tx_hashes: Sequence[TxHash]) -> list[RecordedTransaction]:
        return await self._database.read(
            lambda connection: [read_transaction(connection, one) for one in tx_hashes]
        )

    async def _record_each(self, recordings: Sequence[Recording]) -> list[Recorded | Exception]:
        """Writes the recordings in one transaction; after a bad value in halves, so that only the bad recording fails."""
        try:
            work = partial(record_each, recordings=recordings, events=self._events)
            return [*await write_retried(self._database, work)]
        except (IntegrityError, ValueRefused) as exc:
            if len(recordings) == 1:
                return [exc]
        middle = len(recordings) // 2
        return [*await self._record_each(recordings[:middle]), *await self._record_each(recordings[middle:])]


def _record(
    connection: Connection, payments: Sequence[NewPayment], *, now_ms: int, events: EventLog
) -> Recorded:
    """Inserts new payments, reinstates gone ones, and raises the value of others. A payment that returns with less value than its calls hold stays gone
    while some of them are charged (`storage.ledger.gone_payments`)."""
    fresh = {_key(new) for new in sorted(payments, key=_key) if insert_payment(connection, new, now_ms)}
    ids = {_key(new): find_payment_id(connection, new) for new in payments}
    locked_rows = LockedRows(connection, events=events)
    known = [payment_id for key, payment_id in ids.items() if key not in fresh]
    deposits = lock_with_channels(connection, locked_rows, list(ids.values()), known_ids=known)
    arrived: list[int] = []
    for new in payments:
        payment_id = ids[_key(new)]
        payment = locked_rows.payments[payment_id]
        if payment.state is PaymentState.GONE:
            is_lower = not payment.is_authorized and new.value_units < payment.taken_units
            if is_lower and has_unmoved(connection, payment_id, taken_units=payment.taken_units):
                continue
            locked_rows.payments[payment_id] = reinstate_payment(connection, payment, new, now_ms)
            for deposit in deposits.get(payment_id, ()):
                return_deposit(connection, locked_rows, deposit, block_number=new.block_number, now_ms=now_ms)
            if payment.is_refund:
                return_refunds(connection, payment_id, now_ms=now_ms, events=events)
            elif not payment.is_escrow:
                arrived.append(payment_id)
        elif is_worth_more(payment, new):
            more = new.value_units - payment.value_units
            raise_payment(connection, locked_rows, payment_id, more, calls=0, is_by_authorization=False)
            arrived.append(payment_id)
        elif _key(new) in fresh:
            arrived.append(payment_id)
    for payment_id in dict.fromkeys(arrived):
        payment = locked_rows.payments[payment_id]
        locked_rows.note_payment(EventType.PAYMENT_CREDITED, payment, units=payment.value_units, at_ms=now_ms)
    locked_rows.write()
    accounts = {credit_account_of(locked_rows.payments[payment_id]) for payment_id in arrived}
    debts = find_debts(connection, {account.payer for account in accounts})
    return Recorded(
        payments=tuple(locked_rows.payments[payment_id] for payment_id in dict.fromkeys(ids.values())),
        in_debt=tuple(sorted(accounts & debts.keys())),
    )


def sum_unfinal_of(connection: Connection, payers: Collection[Address]) -> dict[PayerAccount, int]:
    """The units taken from all unfinal payments of these payers, by wallet. Takes no locks."""
    if not payers:
        return {}
    rows = _UNFINAL.fetch(connection, payers=list(payers))
    return {
        PayerAccount(ChainId(chain_id), asset, Address(payer)): (int(high) << 32) + int(low)
        for payer, chain_id, asset, high, low in rows
    }


def unfinal_query() -> Select[Any]:
    """The sums in two halves of 32 bits: a sum of amounts may exceed the range of SQLite's sum(). The transfer of a refund buys nothing."""
    columns = payment_table.c
    wallet = (columns.payer, columns.chain_id, columns.asset)
    halves = (
        func.sum(columns.taken_units.bitwise_rshift(literal_column("32"))),
        func.sum(columns.taken_units.bitwise_and(literal_column("4294967295"))),
    )
    # Literal, for the index.
    is_unfinal = columns.state == literal_column("'unfinal'")
    is_spending = (is_unfinal, ~columns.is_refund)
    return select(*wallet, *halves).where(Within(columns.payer, "payers"), *is_spending).group_by(*wallet)


_UNFINAL = Prepared(unfinal_query())


def insert_payment(
    connection: Connection,
    new: NewPayment,
    now_ms: int,
    *,
    is_authorized: bool = False,
    is_escrow: bool = False,
    is_refund: bool = False,
) -> bool:
    """False for a transfer that is recorded. The value of a refund's transfer is taken by its refunds."""
    check_units(new.value_units)
    row = {
        "chain_id": new.chain_id,
        "tx_hash": new.tx_hash,
        "asset": new.asset,
        "payer": new.payer,
        "payee": new.payee,
        "value_units": new.value_units,
        "taken_units": new.value_units if is_refund else 0,
        "calls": 0,
        "state": (PaymentState.FINAL if new.is_final else PaymentState.UNFINAL).value,
        "block_number": new.block_number,
        "block_hash": new.block_hash,
        "block_time": new.block_time,
        "is_plain_ended": False,
        "is_held": False,
        "is_authorized": is_authorized,
        "is_escrow": is_escrow,
        "is_refund": is_refund,
        "recorded_ms": now_ms,
        "checked_ms": NEVER_MS,
    }
    return _INSERT.run(connection, [row]) == 1


_NOT_INSERTED = {"id", "gone_ms"}
# Both dialects have the same `ON CONFLICT DO NOTHING`.
_INSERT = Prepared(
    postgresql.insert(payment_table)
    .values(
        {
            column.name: bindparam(column.name)
            for column in payment_table.c
            if column.name not in _NOT_INSERTED
        }
    )
    .on_conflict_do_nothing()
)


def reinstate_payment(connection: Connection, payment: Payment, new: NewPayment, now_ms: int) -> Payment:
    """Makes a gone payment spendable again. Its row is locked. Its value is never below the units that running calls hold of it. The value of a
    payment by authorisations comes from their calls, not from the logs."""
    check_units(new.value_units)
    value_units = new.value_units
    if payment.is_authorized:
        value_units = read_value_units(connection, payment.id)
    value_units = payment.taken_units if payment.is_refund else max(value_units, payment.taken_units)
    state = PaymentState.FINAL if new.is_final else PaymentState.UNFINAL
    # A dispute about its former block holds it no longer. A restore holds it, and `mark_restored` waits for the lock of its row.
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


def read_value_units(connection: Connection, payment_id: int) -> int:
    """The value in the row. A `Payment` that is gone has only the units that its calls hold."""
    query = select(payment_table.c.value_units).where(payment_table.c.id == payment_id)
    return int(connection.execute(query).scalar_one())


def raise_payment(
    connection: Connection,
    locked_rows: LockedRows,
    payment_id: int,
    units: int,
    *,
    calls: int,
    is_by_authorization: bool = True,
) -> None:
    """Raises the value of a payment by the transfer of a further authorisation, or by logs that nodes had not reported before. Its row is locked. A
    gone payment keeps its value in its row only. Raises `ValueRefused`, and nothing is written, when the value would exceed a
    signed 64-bit column: SQLite would write a float."""
    payment = locked_rows.payments[payment_id]
    is_authorized = payment.is_authorized or is_by_authorization
    row = {
        "at_id": payment_id,
        "at_most": UNITS_MAX - units,
        "more_units": units,
        "more_calls": calls,
        "to_authorized": is_authorized,
    }
    if _RAISE.run(connection, [row]) != 1:
        raise ValueRefused("the balance of a payment is at most 2^63 - 1")
    if payment.state is not PaymentState.GONE:
        payment = replace(payment, value_units=payment.value_units + units)
    locked_rows.payments[payment_id] = replace(
        payment, calls=payment.calls + calls, is_authorized=is_authorized
    )


_RAISE = Prepared(
    update(payment_table)
    .where(payment_table.c.id == bindparam("at_id"), payment_table.c.value_units <= bindparam("at_most"))
    .values(
        value_units=payment_table.c.value_units + bindparam("more_units"),
        calls=payment_table.c.calls + bindparam("more_calls"),
        is_authorized=bindparam("to_authorized"),
        checked_ms=NEVER_MS,
    )
)


def _key(new: NewPayment) -> tuple[bytes, int, str, bytes, bytes]:
    return (new.tx_hash, new.chain_id, new.asset, new.payer, new.payee)


def payment_of_transfer(
    transfer: SettledTransfer, *, chain_id: ChainId, asset: str, payer: Address, payee: Address
) -> NewPayment:
    """The payment of an authorisation's transfer, with a value of 0: `raise_payment` adds the units of its call."""
    return NewPayment(
        chain_id=chain_id,
        tx_hash=transfer.tx_hash,
        asset=asset,
        payer=payer,
        payee=payee,
        value_units=0,
        block_number=transfer.block_number,
        block_hash=transfer.block_hash,
        block_time=transfer.block_time,
        is_final=transfer.is_final,
    )


def find_payment_id(connection: Connection, new: NewPayment) -> int:
    ((payment_id,),) = _FIND_ID.fetch(
        connection,
        tx_hash=new.tx_hash,
        chain_id=new.chain_id,
        asset=new.asset,
        payer=new.payer,
        payee=new.payee,
    )
    return int(payment_id)


_FIND_ID = Prepared(
    select(payment_table.c.id).where(
        *(
            payment_table.c[name] == bindparam(name)
            for name in ("tx_hash", "chain_id", "asset", "payer", "payee")
        )
    )
)


def _read_by_id(connection: Connection, payment_ids: Sequence[int]) -> tuple[Payment, ...]:
    query = select(payment_table).where(payment_table.c.id.in_(payment_ids))
    found = {row.id: parse_payment(row) for row in connection.execute(query)}
    return tuple(found[key] for key in payment_ids)


def read_payments(connection: Connection, tx_hash: TxHash) -> tuple[Payment, ...]:
    query = select(payment_table).where(payment_table.c.tx_hash == tx_hash).order_by(payment_table.c.id)
    return tuple(map(parse_payment, connection.execute(query)))


def read_transaction(connection: Connection, tx_hash: TxHash) -> RecordedTransaction:
    is_admitted, held_before = find_operator_records(connection, tx_hash)
    payments = read_payments(connection, tx_hash)
    return RecordedTransaction(payments=payments, is_admitted=is_admitted, held_before_ms=held_before)


def record_each(
    connection: Connection, recordings: Sequence[Recording], *, events: EventLog = NO_EVENTS
) -> list[Recorded]:
    """Records the payments of several chain transactions in one transaction of the database. Raises `StorageUnavailable`, and writes nothing,
    when a restore was recorded after one of them was verified."""
    recorded = [_record(connection, one.payments, now_ms=one.now_ms, events=events) for one in recordings]
    judged = [one.based_on for one in recordings if one.based_on is not None]
    if judged:
        # Read last: since the first written row `mark_restored` waits for this transaction, and then holds its payments.
        held_before = held_before_ms(connection)
        if any(held_before not in (None, one.held_before_ms) for one in judged):
            raise StorageUnavailable("The database was restored while the payment was verified; try again.")
    return recorded


_PAYMENT = Prepared(
    select(*(payment_table.c[name] for name in PAYMENT_COLUMNS)).where(
        payment_table.c.id == bindparam("payment_id")
    )
)


def find_exhausted(connection: Connection, claims: Sequence[Claim]) -> list[Exhausted | NonceUsed | None]:
    """Finds claims that the ledger surely refuses, because their payment has no units left. Returns an outcome for each, in order; None when the
    ledger may grant the claim."""
    by_payment: dict[int | None, list[Claim]] = {}
    for claim in claims:
        if claim.price_units > 0:
            by_payment.setdefault(claim.payment_id, []).append(claim)
    outcomes: dict[CallId, Exhausted | NonceUsed] = {}
    for payment_id, claims_of_payment in by_payment.items():
        outcomes |= _find_exhausted_on(connection, payment_id, claims_of_payment)
    return [outcomes.get(claim.call_id) for claim in claims]


def _find_exhausted_on(
    connection: Connection, payment_id: int | None, claims: Sequence[Claim]
) -> dict[CallId, Exhausted | NonceUsed]:
    """Decides by the rules of a claim for a payment without units: no other payment can add to it."""
    payments = list(map(parse_payment_row, _PAYMENT.fetch(connection, payment_id=payment_id)))
    payers = {claim.payer for claim in claims if claim.payer is not None}
    if not payers or any(payment.remaining_units > 0 for payment in payments):
        return {}
    decisions, _ = decide_claims(
        claims,
        payments=payments,
        nonces=find_nonces(connection, claims),
        keys={},
        repeats=find_open_calls(connection, claims),
        debts=find_debts(connection, payers),
        unfinal_max_nano={},
        unfinal_units={},
        # Only authorisations are compared with the time, and there are none here.
        now_ms=0,
    )
    held_units = sum(find_returnable_units(connection, {payment.id for payment in payments}).values())
    outcomes: dict[CallId, Exhausted | NonceUsed] = {}
    for claim, decision in zip(claims, decisions, strict=True):
        if isinstance(decision.outcome, Exhausted):
            outcomes[claim.call_id] = replace(decision.outcome, held_units=held_units)
        elif isinstance(decision.outcome, NonceUsed):
            outcomes[claim.call_id] = decision.outcome
    return outcomes
