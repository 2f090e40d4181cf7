"""The finality of payments in the ledger model: the counterpart of `storage.ledger.payments`."""

from collections.abc import Sequence
from dataclasses import replace

from tests.model.refunds import take_refunds_back
from tests.model.reorg import MemoryRelocation
from tests.model.rows import charged_holders, shown_payment
from tollway.ids import ChainId
from tollway.ledger.ledger import UnfinalBlock
from tollway.ledger.records import Payment, PaymentState

GONE_RECHECK_MS = 86_400_000


class MemoryFinality(MemoryRelocation):
    """Keeps what `Finality` promises."""

    async def unfinal_blocks(
        self, chain_id: ChainId, *, after: UnfinalBlock | None, limit: int
    ) -> tuple[UnfinalBlock, ...]:
        self._answer()
        is_agreed: dict[tuple[int, bytes], bool] = {}
        for payment in self._unfinal():
            if payment.chain_id == chain_id:
                place = (payment.block_number, payment.block_hash)
                is_agreed[place] = is_agreed.get(place, True) and self._rows.checked_ms[payment.id] > 0
        first = (-1, b"") if after is None else (after.number, after.block_hash)
        behind = sorted(place for place in is_agreed if place > first)
        return tuple(
            UnfinalBlock(chain_id=chain_id, number=place[0], block_hash=place[1], is_agreed=is_agreed[place])
            for place in behind[:limit]
        )

    async def unfinal_in(
        self, block: UnfinalBlock, *, after_id: int, limit: int, is_unchecked_only: bool = False
    ) -> tuple[Payment, ...]:
        self._answer()
        found = [
            payment
            for payment in self._in_block(block)
            if payment.id > after_id and not (is_unchecked_only and self._rows.checked_ms[payment.id] > 0)
        ]
        return tuple(found[:limit])

    async def gone_payments(
        self, chain_id: ChainId, *, after_id: int, limit: int, now_ms: int
    ) -> tuple[Payment, ...]:
        self._answer()
        gone = [
            shown_payment(payment)
            for _, payment in sorted(self._rows.payments.items())
            if (payment.chain_id, payment.state) == (chain_id, PaymentState.GONE)
            and payment.id > after_id
            and self._rows.gone_ms[payment.id] > now_ms - GONE_RECHECK_MS
        ]
        return tuple(gone[:limit])

    async def finish_block(self, block: UnfinalBlock, *, is_checked_only: bool, now_ms: int) -> int:
        self._answer()
        finished = [
            payment
            for payment in self._in_block(block)
            if not is_checked_only or self._rows.checked_ms[payment.id] > 0
            if not payment.is_held or self._rows.restored_ms is not None
        ]
        for payment in finished:
            self._rows.payments[payment.id] = replace(payment, state=PaymentState.FINAL)
            self._rows.checked_ms[payment.id] = now_ms
        return len(finished)

    async def mark_checked(
        self, payment_ids: Sequence[int], *, block_number: int, block_hash: bytes, now_ms: int
    ) -> None:
        self._answer()
        for payment in self._unfinal():
            if payment.id in payment_ids:
                self._rows.payments[payment.id] = replace(
                    payment, block_number=block_number, block_hash=block_hash
                )
                self._rows.checked_ms[payment.id] = now_ms

    async def mark_gone(self, payment_id: int, *, now_ms: int) -> int:
        self._answer()
        with self._commit():
            payment = self._rows.payments.get(payment_id)
            is_gone = payment is not None and payment.state is PaymentState.UNFINAL
            if payment is not None and is_gone:
                for deposit in self._deposits_in(payment):
                    self._uncount_deposit(deposit, now_ms=now_ms)
                self._rows.payments[payment_id] = replace(payment, state=PaymentState.GONE)
                self._rows.gone_ms[payment_id] = self._rows.checked_ms[payment_id] = now_ms
                take_refunds_back(self._rows, payment_id)
        return self._move_gone_calls(payment_id, now_ms=now_ms) if is_gone else 0

    async def continue_moves(self, chain_id: ChainId, *, now_ms: int) -> int:
        self._answer()
        unmoved = [
            key
            for key, payment in sorted(self._rows.payments.items())
            if (payment.chain_id, payment.state) == (chain_id, PaymentState.GONE)
            and charged_holders(self._rows, key)
        ]
        debt_units = sum(self._move_gone_calls(key, now_ms=now_ms) for key in unmoved)
        for account, units in sorted(self._rows.debts.items()):
            if account.chain_id == chain_id and units > 0:
                self._pay_debts(account)
        return debt_units

    async def hold_disputed(self, payment_ids: Sequence[int]) -> int:
        self._answer()
        held = [one for one in self._unfinal() if one.id in payment_ids and not one.is_held]
        for payment in held:
            self._rows.payments[payment.id] = replace(payment, is_held=True)
        return len(held)

    async def held_unfinal(self, chain_id: ChainId, *, limit: int) -> tuple[Payment, ...]:
        self._answer()
        if self._rows.restored_ms is not None:
            return ()
        return tuple(one for one in self._unfinal() if one.chain_id == chain_id and one.is_held)[:limit]

    async def free_disputed(self, payment_ids: Sequence[int]) -> int:
        self._answer()
        if self._rows.restored_ms is not None:
            return 0
        held = [one for one in self._rows.payments.values() if one.id in set(payment_ids) and one.is_held]
        for payment in held:
            self._rows.payments[payment.id] = replace(payment, is_held=False)
        return len(held)

    def _unfinal(self) -> list[Payment]:
        payments = self._rows.payments
        return [payments[key] for key in sorted(payments) if payments[key].state is PaymentState.UNFINAL]

    def _in_block(self, block: UnfinalBlock) -> list[Payment]:
        place = (block.chain_id, block.number, block.block_hash)
        return [one for one in self._unfinal() if (one.chain_id, one.block_number, one.block_hash) == place]
