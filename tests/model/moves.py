"""The moves of rows in the ledger model, with the balances that depend on them. Claims are decided elsewhere."""

from dataclasses import replace

from tests.model.history import MemoryStatement
from tests.model.rows import MemoryCall, account_of_claim, owed_units, shown_payment
from tollway.ledger.claims import credit_account_of
from tollway.ledger.records import (
    CallState,
    Interruption,
    NewPayment,
    Parts,
    Payment,
    PaymentState,
    allocate_to_debts,
    debits_after,
    is_move_allowed,
    is_worth_more,
)


class MemoryMoves(MemoryStatement):
    """The moves that the parts of `MemoryLedger` share."""

    def _pay_debts(self, payment: Payment) -> None:
        debtors = [
            call
            for call in reversed(self._newest_first())
            if call.state is CallState.REORGED and account_of_claim(call.claim) == credit_account_of(payment)
        ]
        owed = [(call.claim.call_id, owed_units(call)) for call in debtors]
        for call_id, units in allocate_to_debts(payment.remaining_units, debts=owed).items():
            call = self._rows.calls[call_id]
            self._hold(call, {**call.parts, payment.id: call.parts.get(payment.id, 0) + units})
            if owed_units(call) == 0:
                call.state, call.moved_ms = CallState.CONSUMED, self._now_ms()

    def _raise_to(self, told: NewPayment, payment: Payment) -> None:
        if is_worth_more(payment, told):
            raised = self._rows.payments[payment.id] = replace(payment, value_units=told.value_units)
            self._rows.checked_ms[payment.id] = 0
            self._pay_debts(raised)

    def _move(self, call: MemoryCall, after: CallState) -> None:
        assert is_move_allowed(call.state, after), f"{call.state} -> {after}"
        gone = {key for key in call.parts if self._rows.payments[key].state is PaymentState.GONE}
        holding = debits_after(after, parts=call.parts, price_units=call.claim.price_units, gone=gone)
        self._hold(call, holding.parts)
        call.state, call.moved_ms = holding.state, self._now_ms()

    def _interrupt(self, call: MemoryCall, now_ms: int) -> None:
        """Its gateway died over it."""
        self._move(call, CallState.UNKNOWN)
        if self._rows.lives.get(call.owner_id, 0) != self._rows.life:
            call.clock_releases = False  # the machine died since: the call may have ended without a trace
        call.completed_ms, call.error = now_ms, Interruption.GATEWAY_DIED.value

    def _hold(self, call: MemoryCall, parts: Parts) -> None:
        for key in {*call.parts, *parts}:
            payment = self._rows.payments[key]
            taken_units = payment.taken_units + parts.get(key, 0) - call.parts.get(key, 0)
            self._rows.payments[key] = replace(payment, taken_units=taken_units)
        call.parts = parts

    def _rest_of(self, call: MemoryCall) -> int | None:
        if call.claim.payment_id is None:
            return None
        return shown_payment(self._rows.payments[call.claim.payment_id]).remaining_units
