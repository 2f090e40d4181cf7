"""Refunds in the ledger model: the counterpart of `storage.ledger.refunds`. All calls are of one provider, so no transfer can be another one's."""

from collections.abc import Sequence
from dataclasses import replace

from tests.model.moves import MemoryMoves
from tests.model.rows import MemoryRefund, MemoryRows, has_refund, payment_key
from tollway.errors import StorageUnavailable
from tollway.ids import CallId
from tollway.ledger.records import (
    NO_BLOCK,
    CallRecord,
    NewPayment,
    Payment,
    PaymentState,
    RecordedTransaction,
)
from tollway.ledger.refunds import (
    CallsRefunded,
    NotRefundable,
    RefundOutcome,
    TransferUsed,
    credit_hash,
    divide_transfer,
    find_credit_fault,
    find_refund_fault,
)


class MemoryRefunds(MemoryMoves):
    """Keeps what `RefundLedger` promises."""

    async def read_refundable(self, call_ids: Sequence[CallId]) -> tuple[CallRecord, ...]:
        self._answer()
        calls = self._rows.calls
        return tuple(self._record(calls[call_id]) for call_id in call_ids if call_id in calls)

    async def record_refund(
        self,
        transfer: NewPayment,
        call_ids: Sequence[CallId],
        *,
        based_on: RecordedTransaction,
        now_ms: int,
    ) -> RefundOutcome:
        self._answer()
        with self._commit():
            outcome = await self._refund(transfer, call_ids, now_ms=now_ms)
            if self._rows.restored_ms not in (None, based_on.held_before_ms):
                raise StorageUnavailable
        return outcome

    async def record_credit(self, call_id: CallId, *, now_ms: int) -> RefundOutcome:
        self._answer()
        with self._commit():
            (call,) = await self.read_refundable([call_id])
            if call.refund is not None and call.refund.is_credit:
                return CallsRefunded(units=(call.refund.units,))
            fault = self._find_fault([call])
            fault = fault or find_credit_fault(call, held_before_ms=self._rows.restored_ms)
            if fault is not None:
                return fault
            self._add_refunds(_credit_of(call), [call], (call.due_units,), is_credit=True, now_ms=now_ms)
            return CallsRefunded(units=(call.due_units,))

    async def _refund(
        self, transfer: NewPayment, call_ids: Sequence[CallId], *, now_ms: int
    ) -> RefundOutcome:
        rows = self._rows
        known = next(
            (one for one in rows.payments.values() if payment_key(one) == payment_key(transfer)), None
        )
        if known is None:
            calls = await self.read_refundable(call_ids)
            outcome = self._find_fault(calls) or divide_transfer(calls, transfer.value_units)
            if isinstance(outcome, CallsRefunded):
                self._add_refunds(transfer, calls, outcome.units, is_credit=False, now_ms=now_ms)
            return outcome
        own = {one.call_id: one for one in rows.refunds.values() if one.payment_id == known.id}
        if not known.is_refund or set(own) != set(call_ids):
            return TransferUsed()
        if known.state is PaymentState.GONE and transfer.value_units >= known.taken_units:
            bring_refund_back(rows, known, transfer)
        if any(rows.refunds[call_id, known.id].is_reversed for call_id in own):
            return TransferUsed()
        return CallsRefunded(units=tuple(own[call_id].units for call_id in call_ids))

    def _find_fault(self, calls: Sequence[CallRecord]) -> NotRefundable | None:
        return find_refund_fault(calls)

    def _add_refunds(
        self,
        new: NewPayment,
        calls: Sequence[CallRecord],
        units: Sequence[int],
        *,
        is_credit: bool,
        now_ms: int,
    ) -> None:
        rows = self._rows
        payment_id = len(rows.payments) + 1
        rows.payments[payment_id] = Payment(
            id=payment_id,
            chain_id=new.chain_id,
            tx_hash=new.tx_hash,
            asset=new.asset,
            payer=new.payer,
            payee=new.payee,
            value_units=new.value_units,
            taken_units=0 if is_credit else new.value_units,
            state=PaymentState.FINAL if new.is_final else PaymentState.UNFINAL,
            block_number=new.block_number,
            block_hash=new.block_hash,
            block_time=new.block_time,
            is_plain_ended=False,
            is_held=False,
            is_refund=not is_credit,
        )
        rows.recorded_ms[payment_id], rows.checked_ms[payment_id] = now_ms, 0
        for call, part in zip(calls, units, strict=True):
            rows.refunds[call.id, payment_id] = MemoryRefund(
                call_id=call.id, payment_id=payment_id, units=part, is_credit=is_credit, created_ms=now_ms
            )


def take_refunds_back(rows: MemoryRows, payment_id: int) -> None:
    """The transfer left its chain; it is marked as gone. A call gets back another refund whose transfer is on its chain, the oldest."""
    for one in [one for one in rows.refunds.values() if one.payment_id == payment_id and not one.is_reversed]:
        rows.refunds[one.call_id, payment_id] = replace(one, is_reversed=True)
        others = [
            other
            for other in rows.refunds.values()
            if other.call_id == one.call_id and rows.payments[other.payment_id].state is not PaymentState.GONE
        ]
        if others:
            first = min(others, key=lambda other: other.payment_id)
            rows.refunds[first.call_id, first.payment_id] = replace(first, is_reversed=False)


def bring_refund_back(rows: MemoryRows, payment: Payment, new: NewPayment) -> None:
    """The transfer is mined again. A call that has another refund by now keeps that one."""
    rows.payments[payment.id] = replace(
        payment,
        state=PaymentState.FINAL if new.is_final else PaymentState.UNFINAL,
        value_units=payment.taken_units,
        block_number=new.block_number,
        block_hash=new.block_hash,
        block_time=new.block_time,
        is_held=payment.is_held and rows.restored_ms is not None,
    )
    rows.checked_ms[payment.id] = 0
    for one in [one for one in rows.refunds.values() if one.payment_id == payment.id]:
        if not has_refund(rows, one.call_id, is_in_force=True):
            rows.refunds[one.call_id, payment.id] = replace(one, is_reversed=False)


def _credit_of(call: CallRecord) -> NewPayment:
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
