"""Refunds in SQL: `RefundStore` implements `RefundLedger`; `take_back_refunds` and `return_refunds` are parts of the moves of a payment (`gone_payments`, `payments`).

The row of the transfer in `payment` has the key of every payment (transaction, chain, asset, payer, payee), so a transfer is either a payment or a refund,
whichever is recorded first, and it refunds once. The index of refunds in force lets a call be refunded once. Locks are taken as everywhere: payments, then calls.
"""

from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection, Row, Select, insert, select, text

from tollway.errors import StorageUnavailable
from tollway.ids import Address, CallId
from tollway.ledger.records import NO_BLOCK, CallRecord, NewPayment, PaymentState, RecordedTransaction
from tollway.ledger.refunds import (
    CallsRefunded,
    NotRefundable,
    RefundFault,
    RefundOutcome,
    TransferUsed,
    credit_hash,
    divide_transfer,
    find_credit_fault,
    find_refund_fault,
)
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.storage.engine.database import Database, write_retried
from tollway.storage.engine.outage import RowsChanged
from tollway.storage.ledger.call_records import parse_call, select_records
from tollway.storage.ledger.ledger_tables import (
    PAYMENT_COLUMNS,
    call_refund_table,
    call_table,
    parse_payment,
    payment_table,
)
from tollway.storage.ledger.payments import find_payment_id, insert_payment, reinstate_payment
from tollway.storage.ledger.refund_rows import (
    EVENT_COLUMNS,
    has_listing_for_credit,
    may_be_of_another,
    return_refunds,
    write_refund_events,
)
from tollway.storage.operator.operator_writes import held_before_ms
from tollway.storage.webhooks.webhook_events import NO_EVENTS, EventLog
from tollway.webhooks.events import EventType


class RefundStore:
    """Implements `RefundLedger`."""

    def __init__(
        self, database: Database, *, limits: Limits = DEFAULT_LIMITS, events: EventLog = NO_EVENTS
    ) -> None:
        self._database = database
        self._unknown_hold_ms = limits.unknown_hold_s * 1000
        self._events = events

    async def read_refundable(self, call_ids: Sequence[CallId]) -> tuple[CallRecord, ...]:
        return await self._database.read(partial(self._read, call_ids=call_ids))

    async def find_senders(self, call: CallRecord) -> tuple[Address, ...]:
        def work(connection: Connection) -> tuple[Address, ...]:
            senders = dict.fromkeys([call.provider, *([] if call.pay_to is None else [call.pay_to])])
            return tuple(one for one in senders if not may_be_of_another(connection, call, one))

        return await self._database.read(work)

    async def is_spendable(self, call: CallRecord) -> bool:
        return await self._database.read(partial(has_listing_for_credit, call=call))

    async def find_refunded(self, payment_id: int) -> tuple[CallId, ...]:
        return await self._database.read(partial(_find_refunded, payment_id=payment_id))

    async def record_refund(
        self,
        transfer: NewPayment,
        call_ids: Sequence[CallId],
        *,
        based_on: RecordedTransaction,
        now_ms: int,
    ) -> RefundOutcome:
        def work(connection: Connection) -> RefundOutcome:
            outcome = self._record(connection, transfer, call_ids, now_ms=now_ms)
            # Read last, as in `payments.record_each`.
            if held_before_ms(connection) not in (None, based_on.held_before_ms):
                raise StorageUnavailable(
                    "The database was restored while the refund was verified; try again."
                )
            return outcome

        return await write_retried(self._database, work)

    async def record_credit(self, call_id: CallId, *, now_ms: int) -> RefundOutcome:
        def work(connection: Connection) -> RefundOutcome:
            held_before = held_before_ms(connection)
            outcome = self._credit(connection, call_id, held_before_ms=held_before, now_ms=now_ms)
            # Read again last, as in `record_refund`.
            if held_before_ms(connection) != held_before:
                raise StorageUnavailable("The database was restored while the credit was given; try again.")
            return outcome

        return await write_retried(self._database, work)

    def _record(
        self, connection: Connection, transfer: NewPayment, call_ids: Sequence[CallId], *, now_ms: int
    ) -> RefundOutcome:
        known = connection.execute(_of_transfer(transfer).with_for_update(key_share=True)).first()
        if known is not None:
            return self._repeat(connection, known, transfer, call_ids, now_ms=now_ms)
        _lock_calls(connection, call_ids)
        calls = self._read(connection, call_ids)
        outcome = find_refund_fault(calls) or divide_transfer(calls, transfer.value_units)
        if isinstance(outcome, NotRefundable):
            return outcome
        if may_be_of_another(connection, calls[0], transfer.payer):
            return NotRefundable(fault=RefundFault.ANOTHER_PROVIDER, call_id=calls[0].id)
        if not insert_payment(connection, transfer, now_ms, is_refund=True):
            # Another transaction has recorded the transfer meanwhile: this one has no lock of its row yet.
            raise RowsChanged("the transfer of a refund was recorded meanwhile")
        payment_id = find_payment_id(connection, transfer)
        self._add(connection, calls, outcome.units, payment_id, is_credit=False, now_ms=now_ms)
        return outcome

    def _repeat(
        self,
        connection: Connection,
        known: Row[tuple[object, ...]],
        transfer: NewPayment,
        call_ids: Sequence[CallId],
        *,
        now_ms: int,
    ) -> RefundOutcome:
        """The outcome for a transfer that is recorded. One that had left its chain is on it again."""
        payment = parse_payment(known)
        columns = call_refund_table.c
        query = select(columns.call_id, columns.units).where(columns.payment_id == payment.id)
        units = {row.call_id: row.units for row in connection.execute(query)}
        if not payment.is_refund or set(units) != set(call_ids):
            return TransferUsed()
        if payment.state is PaymentState.GONE and transfer.value_units >= payment.taken_units:
            reinstate_payment(connection, payment, transfer, now_ms)
            return_refunds(connection, payment.id, now_ms=now_ms, events=self._events)
        if set(_find_refunded(connection, payment_id=payment.id)) != set(call_ids):
            return TransferUsed()
        return CallsRefunded(units=tuple(units[call_id] for call_id in call_ids))

    def _credit(
        self, connection: Connection, call_id: CallId, *, held_before_ms: int | None, now_ms: int
    ) -> RefundOutcome:
        _lock_calls(connection, [call_id])
        (call,) = self._read(connection, [call_id])
        if call.refund is not None and call.refund.is_credit:
            return CallsRefunded(units=(call.refund.units,))
        fault = find_refund_fault([call]) or find_credit_fault(call, held_before_ms=held_before_ms)
        if fault is not None:
            return fault
        credit = _credit_of(call)
        assert insert_payment(connection, credit, now_ms), "a call has one refund in force"
        payment_id = find_payment_id(connection, credit)
        self._add(connection, [call], [call.due_units], payment_id, is_credit=True, now_ms=now_ms)
        return CallsRefunded(units=(call.due_units,))

    def _add(
        self,
        connection: Connection,
        calls: Sequence[CallRecord],
        units: Sequence[int],
        payment_id: int,
        *,
        is_credit: bool,
        now_ms: int,
    ) -> None:
        rows = [
            {
                "call_id": call.id,
                "payment_id": payment_id,
                "payer": call.payer,
                "provider": call.provider,
                "called_ms": call.created_ms,
                "units": part,
                "is_credit": is_credit,
                "is_reversed": False,
                "created_ms": now_ms,
            }
            for call, part in zip(calls, units, strict=True)
        ]
        added = insert(call_refund_table).returning(*EVENT_COLUMNS)
        write_refund_events(
            connection,
            EventType.CALL_REFUNDED,
            connection.execute(added, rows).all(),
            now_ms=now_ms,
            events=self._events,
        )

    def _read(self, connection: Connection, call_ids: Sequence[CallId]) -> tuple[CallRecord, ...]:
        rows = connection.execute(select_records().where(call_table.c.id.in_(call_ids)))
        found = {row.id: parse_call(row, unknown_hold_ms=self._unknown_hold_ms) for row in rows}
        return tuple(found[call_id] for call_id in call_ids if call_id in found)


def _lock_calls(connection: Connection, call_ids: Sequence[CallId]) -> None:
    columns = call_table.c
    query = select(columns.id).where(columns.id.in_(call_ids)).order_by(columns.id).with_for_update()
    connection.execute(query).all()


def _of_transfer(transfer: NewPayment) -> Select[tuple[object, ...]]:
    columns = payment_table.c
    return select(*(columns[name] for name in PAYMENT_COLUMNS)).where(
        columns.tx_hash == transfer.tx_hash,
        columns.chain_id == transfer.chain_id,
        columns.asset == transfer.asset,
        columns.payer == transfer.payer,
        columns.payee == transfer.payee,
    )


def _find_refunded(connection: Connection, payment_id: int) -> tuple[CallId, ...]:
    columns = call_refund_table.c
    query = select(columns.call_id).where(columns.payment_id == payment_id, text("NOT is_reversed"))
    return tuple(CallId(one) for one in connection.execute(query.order_by(columns.call_id)).scalars())


def _credit_of(call: CallRecord) -> NewPayment:
    """A payment of the time of the call, when its payee counted. It is on no chain and final, so no watcher reads it."""
    assert call.chain_id is not None
    assert call.asset is not None
    assert call.payer is not None
    assert call.pay_to is not None
    return NewPayment(
        chain_id=call.chain_id,
        tx_hash=credit_hash(call.id),
        asset=call.asset,
        payer=call.payer,
        payee=call.pay_to,
        value_units=call.due_units,
        block_number=0,
        block_hash=NO_BLOCK,
        block_time=call.created_ms // 1000,
        is_final=True,
    )
