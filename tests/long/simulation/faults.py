"""Events of the world: payments arrive, leave their chain and come back; time passes; processes and machines fail."""

import contextlib
from typing import Any

from tests.kit.ledger_records import CHAIN, PAYEE, USDC, operator_origin
from tests.long.simulation.fake_ledger import Fate
from tests.long.simulation.forwarding import Forwarding
from tests.long.simulation.history_run import BLOCK, HOLD_MS, LEASE_MS, LIMITS, TX, WORDS
from tests.long.simulation.oracle import Request, need
from tollway.errors import StorageUnavailable
from tollway.ledger.claims import credit_account_of
from tollway.ledger.records import CallState, NewPayment, PaymentState


class Faults(Forwarding):
    """The chain, the clock, the operator, and what breaks."""

    # ---- The chain: payments come, leave, come back, become final.

    async def _pay(self) -> None:
        if not self._gateways or len(self._payments) > 8 or self._named == 48:
            return
        self._block += 1
        name = f"tx{self._named}"  # one that was not heard of may be recorded
        self._named += 1
        draw = self.random.random
        new = NewPayment(
            chain_id=CHAIN,
            tx_hash=TX[name],
            asset=USDC,
            payer=self._pick(list(self._payers)),
            payee=PAYEE,
            value_units=1 + int(draw() * 12),
            block_number=self._block,
            block_hash=BLOCK,
            block_time=self.machine.now_ms // 1000,
            is_final=draw() < 0.5,
        )
        if await self._record(new):
            self._payments[name] = new

    async def _record(self, new: NewPayment) -> bool:
        self._threaten()
        try:
            (payment,) = await self._pick(self._gateways).record_payments([new], now_ms=self.machine.now_ms)
        except StorageUnavailable:
            self._tell("record", outcome="away")
            self._check("record")
            return False
        finally:
            self._calm()
        self._tell("record", id=payment.id, value=payment.value_units, taken=payment.taken_units)
        self._check("record")
        self._check_debts_paid_first(payment.id)
        return True

    def _threaten(self) -> None:
        """One of the next commits may fail: an operation of several commits ends between them."""
        chunks = self.chunks
        is_ended = chunks.random() < 0.2 * self._wildness
        self.machine.fate = chunks.choice((Fate.LOST, Fate.UNHEARD)) if is_ended else None
        self.machine.spared = chunks.randrange(5)

    def _calm(self) -> None:
        self.machine.fate, self.machine.spared = None, 0

    def _check_debts_paid_first(self, payment_id: int | None) -> None:
        """Value that arrives in this payment first pays its payer's debts. Held value does so once it is released."""
        if self._laws is None or payment_id is None:
            return
        payment = self.machine.rows.payments[payment_id]
        is_credit = payment.state is not PaymentState.GONE and not payment.is_held
        if is_credit and payment.remaining_units > 0:
            need(
                self._laws.debt_of(credit_account_of(payment)) == 0,
                "a debt outlived the money for it",
                payment.id,
            )

    async def _leave_chain(self) -> None:
        """A reorganisation, or two false reports in a row: the watcher marks a payment gone."""
        try:
            payments = await self._watched()
            chosen = [one for one in payments if one.state is PaymentState.UNFINAL]
            if not chosen:
                return
            payment, gateway = self._pick(chosen), self._pick(self._gateways)
            if payment.is_authorized:
                await self._relocate(gateway, payment)
                return
            before = self._laws.debt_units if self._laws is not None else 0
            self._threaten()
            debt_units = await gateway.mark_gone(payment.id, now_ms=self.machine.now_ms)
        except StorageUnavailable:
            self._tell("gone", outcome="away")
            self._check("gone")
            return
        finally:
            self._calm()
        self._tell("gone", id=payment.id, debt=debt_units)
        self._check("gone")
        if self._laws is not None:
            need(self._laws.debt_units - before == debt_units, "a debt is not what left", payment.id)

    async def _continue(self) -> None:
        """A check of the watcher continues what earlier ones have left."""
        if not self._gateways:
            return
        self._threaten()
        try:
            debt_units = await self._pick(self._gateways).continue_moves(CHAIN, now_ms=self.machine.now_ms)
        except StorageUnavailable:
            debt_units = "away"
        finally:
            self._calm()
        self._tell("continue", debt=debt_units)
        self._check("continue")

    async def _spend(self, calls: int) -> None:
        """One payment pays for many calls, and its block is replaced."""
        wildness, self._wildness = self._wildness, 0.0
        self._block += 1
        new = NewPayment(
            chain_id=CHAIN,
            tx_hash=TX["tx50"],
            asset=USDC,
            payer=next(iter(self._payers)),
            payee=PAYEE,
            value_units=calls + 3,
            block_number=self._block,
            block_hash=BLOCK,
            block_time=self.machine.now_ms // 1000,
            is_final=False,
        )
        await self._record(new)
        self._payments["tx50"] = new
        for _ in range(calls):
            await self._buy("tx50", new.payer)
        self._wildness = wildness
        (payment,) = await self._pick(self._gateways).find_payments(new.tx_hash)
        self.machine.fate, self.machine.spared = Fate.LOST, 2
        try:
            await self._pick(self._gateways).mark_gone(payment.id, now_ms=self.machine.now_ms)
        except StorageUnavailable:
            self._tell("gone", outcome="away")
        self._calm()
        self._check("gone")
        await self._come_back()

    async def _buy(self, tx_name: str, payer: Any) -> None:
        """A call with a whole answer."""
        request = Request(
            number=len(self._requests),
            payer=payer,
            method="POST",
            digest=WORDS[63],
            price_units=1,
            tx_name=tx_name,
            nonce=None,
            key=None,
            is_first_price=False,
            authorization=None,
        )
        self._requests.append(request)
        before = len(self._trips)
        await self._show([request], None)
        if len(self._trips) == before:
            return
        granted = self._trips.pop()
        self.truth.note_sent(granted.call_id, 1, attempts_max=LIMITS.attempts_max)
        fact = self.truth.facts[granted.call_id]
        fact.has_cost = True
        fact.is_shown = await self._close(granted, CallState.CONSUMED, 200)

    async def _watched(self) -> list[Any]:
        """The payments that the watcher checks: those that are not final, and those that left their chain."""
        if not self._gateways:
            return []
        gateway = self._pick(self._gateways)
        watched = list(await gateway.gone_payments(CHAIN, after_id=0, limit=20, now_ms=self.machine.now_ms))
        for block in await gateway.unfinal_blocks(CHAIN, after=None, limit=20):
            watched += await gateway.unfinal_in(block, after_id=0, limit=20)
        return watched

    async def _relocate(self, gateway: Any, payment: Any) -> None:
        """An authorisation made its transfer in another transaction, or in none."""
        self.truth.has_moved_transfer = True
        if self._flip(0.4):
            debt_units = await gateway.mark_gone(payment.id, now_ms=self.machine.now_ms)
            self._tell("gone", id=payment.id, debt=debt_units)
            self._check("gone")
            return
        for call in await gateway.authorizations_in(payment.id, limit=10):
            self._block += 1
            transfer = self._transfer(f"tx{60 + int(self.random.random() * 4)}")
            is_moved = await gateway.move_transfer(
                call.call_id, before=payment.tx_hash, transfer=transfer, now_ms=self.machine.now_ms
            )
            if is_moved:
                self.truth.moved[call.authorization.key] = transfer
            self._tell("relocate", call=call.call_id, outcome=is_moved)
            self._check("relocate")

    async def _watch(self) -> None:
        """Gone payments come back, worth the same or another sum; others become final."""
        if self.chunks.random() < 0.5:
            await self._continue()
        try:
            payments = await self._watched()
            if not payments:
                return
            payment = self._pick(list(payments))
            if payment.state is PaymentState.GONE:
                mined = (*self._payments.values(), *(one for one, _ in self._transfers.values()))
                old = next((one for one in mined if one.tx_hash == payment.tx_hash), None)
                if old is not None:
                    value = old.value_units if self._flip(0.7) else 1 + int(self.random.random() * 12)
                    await self._record(_worth(old, value))
                return
            gateway = self._pick(self._gateways)
            if self._flip(0.5):
                (block, *_) = await gateway.unfinal_blocks(CHAIN, after=None, limit=1)
                await gateway.finish_block(block, is_checked_only=False, now_ms=self.machine.now_ms)
            elif self._flip(0.3):
                await (gateway.free_disputed if payment.is_held else gateway.hold_disputed)([payment.id])
            else:
                await gateway.mark_checked(
                    [payment.id],
                    block_number=self._block,
                    block_hash=BLOCK,
                    now_ms=self.machine.now_ms,
                )
        except StorageUnavailable:
            return
        self._check("watch")

    # ---- Time, people, and what breaks.

    async def _wait(self) -> None:
        luck = self.random.random()
        self.machine.now_ms += 1_000 if luck < 0.4 else LEASE_MS + 1_000 if luck < 0.8 else HOLD_MS + 1_000
        for gateway in self._gateways:
            if gateway not in self._stalled:
                await self._renew(gateway)
        self._tell("wait")

    async def _renew(self, gateway: Any) -> None:
        with contextlib.suppress(StorageUnavailable):
            await gateway.renew_ownership(now_ms=self.machine.now_ms)

    async def _recover(self) -> None:
        if self.chunks.random() < 0.2:
            await self._continue()
        if not self._gateways:
            return
        gateway = self._pick(self._gateways)
        try:
            moved = await gateway.recover(now_ms=self.machine.now_ms)
        except StorageUnavailable:
            moved = "away"
        self._tell("recover", moved=moved, at=gateway.owner_id)
        self._check("recover")

    async def _resolve(self) -> None:
        unknown = self._silent if self._silent and self._flip(0.7) else list(self.truth.facts)
        if not unknown or not self._gateways:
            return
        call_id = self._pick(unknown)
        after = CallState.CONSUMED if self._flip(0.5) else CallState.RELEASED
        fact = self.truth.facts[call_id]
        was_decided, fact.is_decided = fact.is_decided, True
        try:
            moved = await self._pick(self._gateways).resolve(call_id, after, now_ms=self.machine.now_ms)
        except StorageUnavailable:
            moved = None
        self._tell("resolve", call=call_id, after=after.value, outcome=moved)
        self._check("resolve")
        fact.is_decided = was_decided or moved is not None

    async def _start(self) -> None:
        self._born += 1
        gateway = await self.machine.start(f"gateway-{self._born}")
        self._gateways.append(gateway)
        self._tell("start", gateway=gateway.owner_id)

    async def _bury(self, gateway: Any) -> None:
        self._gateways.remove(gateway)
        self._trips = [granted for granted in self._trips if granted.gateway is not gateway]
        await self.machine.kill(gateway)
        # What was late died with it: whether a close was committed whose acknowledgement was lost, is not known any more.
        for call_id, call in self.machine.rows.calls.items() if self.machine.rows is not None else ():
            if call.owner_id == gateway.owner_id:
                self.truth.facts[call_id].dropped_epoch = 0
        self._tell("kill", gateway=gateway.owner_id)

    async def _kill(self) -> None:
        """kill -9, and a new process in its place; where there is but one, it takes the lease to be sure."""
        await self._come_back()
        if not self._gateways:
            return
        gateway = self._pick(self._gateways)
        await self._bury(gateway)
        if self.gateways_wanted == 1:
            self.machine.now_ms += LEASE_MS + 1_000
        await self._start()
        self._check("recover")

    async def _stall(self) -> None:
        """A gateway hangs for longer than its lease, and the others recover its calls. Then it continues."""
        if self._stalled:
            self._gateways += self._stalled
            self._stalled.clear()
            return
        if len(self._gateways) < 2:
            return
        gateway = self._pick(self._gateways)
        self._gateways.remove(gateway)
        self._stalled.append(gateway)
        self._tell("stall", gateway=gateway.owner_id)
        self.machine.now_ms += LEASE_MS + 1_000
        for other in self._gateways:
            await self._renew(other)
        await self._recover()

    async def _come_back(self) -> None:
        self.machine.is_away = False

    async def _restore(self) -> None:
        """The operator notes a restore, or releases what it holds."""
        if not self._gateways:
            return
        gateway = self._pick(self._gateways)
        try:
            if self._flip(0.5):
                await gateway.mark_restored(origin=operator_origin(self.machine.now_ms))
            else:
                await gateway.release_held(origin=operator_origin())
        except StorageUnavailable:
            return
        self._check("restore")

    async def _cut_power(self) -> None:
        """The machine of the ledger dies. Where it is the gateways' own, they die with it."""
        for gateway in [*self._gateways, *self._stalled] if self.gateways_wanted == 1 else ():
            await self._bury(gateway)
        await self.machine.cut_power(loses_all=self._flip(0.7))
        self._tell("power cut")
        if self._laws is not None:
            self._laws.forget()
        if self.gateways_wanted == 1:
            self.machine.now_ms += LEASE_MS + 1_000
            await self._start()
        self._check("recover")


def _worth(payment: NewPayment, value_units: int) -> NewPayment:
    return NewPayment(
        chain_id=payment.chain_id,
        tx_hash=payment.tx_hash,
        asset=payment.asset,
        payer=payment.payer,
        payee=payment.payee,
        value_units=value_units,
        block_number=payment.block_number,
        block_hash=payment.block_hash,
        block_time=payment.block_time,
        is_final=payment.is_final,
    )
