"""Transfers that a reorganisation has moved, in the ledger model: the counterpart of `storage.ledger.settlement`."""

from dataclasses import replace

from tests.model.channels import channel_of
from tests.model.rows import MemoryAuthorization, MemoryCall
from tests.model.settling import MemorySettling, settled_account
from tollway.ids import CallId, TxHash
from tollway.ledger.claims import find_account
from tollway.ledger.records import (
    AUTHORIZED_RAILS,
    AuthorizedCall,
    CallState,
    Payment,
    PaymentState,
    SettledTransfer,
)


class MemoryRelocation(MemorySettling):
    """Keeps what `Reorgs` promises."""

    async def authorizations_in(self, payment_id: int, *, limit: int) -> tuple[AuthorizedCall, ...]:
        self._answer()
        found = [
            held
            for held in self._rows.authorizations.values()
            if self._rows.calls[held.call_id].claim.payment_id == payment_id
        ]
        payment = self._rows.payments.get(payment_id)
        if payment is not None and not found:
            found = [deposit.held for deposit in self._deposits_in(payment)]
        found.sort(key=lambda held: held.call_id)
        return tuple(map(self._authorized, found[:limit]))

    async def move_transfer(
        self, call_id: CallId, *, before: TxHash, transfer: SettledTransfer, now_ms: int
    ) -> bool:
        self._answer()
        with self._commit():
            from_id = self._find_moving(call_id, before, transfer)
            is_small = from_id is not None and self._count_holders(from_id) <= self._limits.moved_calls_max
            if from_id is not None and is_small:
                self._move_authorized(call_id, from_id, transfer, now_ms=now_ms)
        if from_id is None:
            return False
        if not is_small:
            await self.mark_gone(from_id, now_ms=now_ms)
            self._move_gone_calls(from_id, now_ms=now_ms)
            with self._commit():
                self._move_authorized(call_id, from_id, transfer, now_ms=now_ms)
        self._pay_debts(find_account(self._rows.calls[call_id].claim))
        return True

    async def mark_gone(self, payment_id: int, *, now_ms: int) -> int:
        raise NotImplementedError

    def _find_moving(self, call_id: CallId, before: TxHash, transfer: SettledTransfer) -> int | None:
        own = self._rows.calls.get(call_id)
        held = None if own is None else self._held_by(own)
        if own is None or held is None or held.transfer != before or transfer.tx_hash == before:
            return None
        return self._payment_of(own, before).id

    def _count_holders(self, payment_id: int) -> int:
        return sum(payment_id in call.parts for call in self._rows.calls.values())

    def _move_authorized(
        self, call_id: CallId, from_id: int, transfer: SettledTransfer, *, now_ms: int
    ) -> None:
        own = self._rows.calls[call_id]
        held = self._held_by(own)
        assert held is not None
        if own.claim.channel is not None:
            self._move_deposit(own, held, from_id, transfer, now_ms=now_ms)
            return
        units, is_bought = own.claim.price_units, own.state is not CallState.RELEASED
        to_id = self._add_settled(own, transfer, is_bought=is_bought, now_ms=now_ms)
        self._bring_back(to_id, transfer, now_ms=now_ms)
        left_units = self._rows.payments[from_id].value_units - units
        own.claim = replace(own.claim, payment_id=to_id, tx_hash=transfer.tx_hash)
        own.moved_ms = now_ms
        self._carry(own, units, from_id=from_id, to_id=to_id)
        for call in sorted(self._rows.calls.values(), key=_turn):
            taken_units = self._rows.payments[from_id].taken_units
            self._carry(call, taken_units - left_units, from_id=from_id, to_id=to_id)
        left = replace(self._rows.payments[from_id], value_units=left_units)
        there = self._rows.payments[to_id]
        self._rows.payments[from_id] = left
        self._rows.payments[to_id] = replace(there, is_held=there.is_held or left.is_held)
        held.transfer, held.settled_block = transfer.tx_hash, transfer.block_number

    def _move_deposit(
        self,
        own: MemoryCall,
        held: MemoryAuthorization,
        from_id: int,
        transfer: SettledTransfer,
        *,
        now_ms: int,
    ) -> None:
        units, left = held.authorization.base_units, self._rows.payments[from_id]
        to_id = self._add_settled(own, transfer, is_bought=False, now_ms=now_ms)
        there = self._rows.payments[to_id]
        if there.state is PaymentState.GONE:
            self._bring_back(to_id, transfer, now_ms=now_ms)
            self._recount_deposits(there, block_number=transfer.block_number, now_ms=now_ms)
        self._rows.payments[from_id] = replace(left, value_units=left.value_units - units)
        name = channel_of(own.claim)
        assert name is not None
        if left.state is not PaymentState.GONE:
            self._shift_deposit(name, transfer.block_number)
        else:
            self._count_deposit(name, units, block_number=transfer.block_number, now_ms=now_ms)
        there = self._rows.payments[to_id]
        self._rows.payments[to_id] = replace(there, is_held=there.is_held or left.is_held)
        held.transfer, held.settled_block = transfer.tx_hash, transfer.block_number
        own.moved_ms = now_ms

    def _payment_of(self, call: MemoryCall, tx_hash: TxHash) -> Payment:
        place = (*settled_account(call.claim), tx_hash)
        (found,) = [
            one
            for one in self._rows.payments.values()
            if (one.chain_id, one.asset, one.payer, one.payee, one.tx_hash) == place
        ]
        return found

    def _bring_back(self, payment_id: int, transfer: SettledTransfer, *, now_ms: int) -> None:
        payment = self._rows.payments[payment_id]
        if payment.state is not PaymentState.GONE:
            return
        self._rows.payments[payment_id] = replace(
            payment,
            state=PaymentState.FINAL if transfer.is_final else PaymentState.UNFINAL,
            block_number=transfer.block_number,
            block_hash=transfer.block_hash,
            block_time=transfer.block_time,
            is_held=payment.is_held and self._rows.restored_ms is not None,
        )
        self._rows.checked_ms[payment_id] = 0

    def _carry(self, call: MemoryCall, units: int, *, from_id: int, to_id: int) -> None:
        carried = min(units, call.parts.get(from_id, 0))
        if carried <= 0:
            return
        parts = {
            **call.parts,
            from_id: call.parts[from_id] - carried,
            to_id: call.parts.get(to_id, 0) + carried,
        }
        self._hold(call, {key: units for key, units in parts.items() if units})


def _turn(call: MemoryCall) -> tuple[bool, CallId]:
    """What was bought for credit goes along before what has its own authorisation there."""
    return (call.rail in AUTHORIZED_RAILS, call.claim.call_id)
