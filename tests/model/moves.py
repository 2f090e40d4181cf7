"""The moves of rows in the ledger model, with the balances that depend on them. Claims are decided elsewhere."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from tests.model.history import MemoryStatement
from tests.model.rows import MemoryCall, charged_holders, find_credits, has_refund, owed_units, shown_payment
from tollway.ids import CallId
from tollway.ledger.claims import CreditAccount, find_account
from tollway.ledger.records import (
    CallState,
    Interruption,
    NewPayment,
    Parts,
    Payment,
    PaymentState,
    Usage,
    debits_after,
    is_move_allowed,
    is_worth_more,
    trim_parts,
)


class MemoryMoves(MemoryStatement):
    """The moves that the parts of `MemoryLedger` share."""

    def _commit(self) -> AbstractContextManager[None]:
        """A further transaction of one method: a machine may fail before it or after it."""
        return nullcontext()

    def _keeps_charge(self, call_id: CallId) -> bool:
        """The call was refunded: it never runs again."""
        return has_refund(self._rows, call_id)

    def _pay_debts(self, account: CreditAccount) -> int:
        """Pays the debt of the account until it has no debt or no unspent credit. Returns the debt that is left."""
        while self._rows.debts.get(account, 0) > 0 and find_credits(self._rows, account):
            with self._commit():
                self._pay_chunk(account)
        return self._rows.debts.get(account, 0)

    def _pay_chunk(self, account: CreditAccount) -> None:
        debtors = [
            call
            for call in reversed(self._newest_first())
            if call.state is CallState.REORGED
            and call.claim.channel is None
            and find_account(call.claim) == account
        ]
        for call in debtors[: self._limits.moved_calls_max]:
            for payment in find_credits(self._rows, account):
                missing_units = owed_units(call)
                units = min(missing_units, payment.remaining_units)
                if units > 0:
                    self._hold(call, {**call.parts, payment.id: call.parts.get(payment.id, 0) + units})
                    self._rows.debts[account] -= units
            if owed_units(call) == 0:
                call.state, call.moved_ms = CallState.CONSUMED, self._now_ms()

    def _move_gone_calls(self, payment_id: int, *, now_ms: int) -> int:
        """Moves the charged calls of a gone payment, in chunks. Returns the new debt."""
        debt_units, is_full = 0, True
        while is_full:
            with self._commit():
                chunk = charged_holders(self._rows, payment_id)[: self._limits.moved_calls_max]
                for call in chunk:
                    debt_units += call.parts[payment_id]
                    self._take_part(call, payment_id, now_ms=now_ms)
            is_full = len(chunk) == self._limits.moved_calls_max
        return debt_units

    def _take_part(self, call: MemoryCall, payment_id: int, *, now_ms: int) -> None:
        units = call.parts[payment_id]
        holding = debits_after(
            CallState.CONSUMED, parts=call.parts, price_units=call.price_units, gone={payment_id}
        )
        self._hold(call, holding.parts)
        self._add_debt(call, units)
        if call.state is not holding.state:
            call.state, call.moved_ms = holding.state, now_ms

    def _measure(self, call: MemoryCall, usage: Usage) -> None:
        """Writes the price, and gives the rest back: the newest payment that helped gets its units first."""
        call.actual_units, call.quantities = usage.actual_units, usage.quantities
        own = call.claim.payment_id
        by_age = sorted(
            call.parts, key=lambda key: (self._rows.payments[key].block_number, key), reverse=True
        )
        parts = trim_parts(
            call.parts, usage.actual_units, newest_first=sorted(by_age, key=lambda key: key == own)
        )
        returned_units = sum(call.parts.values()) - sum(parts.values())
        self._hold(call, parts)
        if call.state is CallState.REORGED:
            lowered_units = call.claim.price_units - usage.actual_units
            self._add_debt(call, returned_units - lowered_units)
            if owed_units(call) == 0:
                call.state, call.moved_ms = CallState.CONSUMED, self._now_ms()

    def _add_debt(self, call: MemoryCall, units: int) -> None:
        if call.claim.channel is not None:
            return
        account = find_account(call.claim)
        self._rows.debts[account] = self._rows.debts.get(account, 0) + units

    def _raise_to(self, told: NewPayment, payment: Payment) -> bool:
        if not is_worth_more(payment, told):
            return False
        self._rows.payments[payment.id] = replace(payment, value_units=told.value_units)
        self._rows.checked_ms[payment.id] = 0
        return True

    def _move(self, call: MemoryCall, after: CallState) -> None:
        assert is_move_allowed(call.state, after), f"{call.state} -> {after}"
        gone = {key for key in call.parts if self._rows.payments[key].state is PaymentState.GONE}
        holding = debits_after(after, parts=call.parts, price_units=call.price_units, gone=gone)
        self._hold(call, holding.parts)
        if holding.state is CallState.REORGED:
            self._add_debt(call, owed_units(call))
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
