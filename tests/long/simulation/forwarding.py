"""The steps of a granted call: sent, with or without response, closed, settled, streamed; in the order of `gateway.proxy`."""

from typing import Any

from tests.kit.ledger_records import CHAIN, GAS_KEY
from tests.long.simulation.callers import Callers
from tests.long.simulation.history_run import (
    ANSWER,
    BLOCK,
    EXPIRY_SLACK_S,
    LIMITS,
    LISTING,
    TX,
    WORDS,
    GrantedCall,
)
from tollway.errors import StorageUnavailable
from tollway.ids import CallId, TxHash
from tollway.ledger.ledger import Close, Closed, Finish, NonceUnavailable
from tollway.ledger.records import CallState, Delivery, SettledTransfer, SettlementAttempt


class Forwarding(Callers):
    """A gateway forwards calls; an upstream returns any response or none; authorisations make their transfers or do not."""

    # ---- And carries it.

    async def _go_on(self) -> None:
        going = [granted for granted in self._trips if granted.gateway not in self._stalled]
        if not going:
            await self._show_new()
            return
        granted = self._pick(going)
        match granted.stage:
            case "held":
                await self._send(granted)
            case "sent":
                await self._hear(granted)
            case "settling":
                await self._settle_on(granted)
            case _:
                await self._stream(granted)

    async def _send(self, granted: GrantedCall) -> None:
        if self._flip(0.12):  # the connection died, or the caller left before all was sent
            await self._close(granted, granted.claimed.before or CallState.RELEASED, None)
            self._trips.remove(granted)
            return
        self._tell("send", call=granted.call_id, epoch=granted.claimed.epoch)
        self.truth.note_sent(granted.call_id, granted.claimed.epoch, attempts_max=LIMITS.attempts_max)
        granted.stage = "sent"

    async def _hear(self, granted: GrantedCall) -> None:
        """The upstream: a charged response, a free one, no response, or none yet."""
        luck, fact = self.random.random(), self.truth.facts[granted.call_id]
        if luck < 0.12:
            return
        before = granted.claimed.before
        if luck < 0.62:
            fact.has_cost = True
            if granted.request.authorization is not None and before is not CallState.CONSUMED:
                await self._settle(granted)
                return
            if await self._close(granted, CallState.CONSUMED, 200):
                fact.is_shown, fact.is_cut, fact.is_lost_close = True, False, False
                granted.stage = "body"
                return
            self._silent.append(granted.call_id)
        elif luck < 0.77:
            fact.free_epoch = granted.claimed.epoch
            await self._close(granted, CallState.RELEASED, 500)
        else:
            after = CallState.CONSUMED if before is CallState.CONSUMED else CallState.UNKNOWN
            await self._close(granted, after, None)
            self._silent.append(granted.call_id)
        self._trips.remove(granted)

    async def _close(self, granted: GrantedCall, after: CallState, status: int | None) -> bool:
        self.machine.fate = self._fate()
        try:
            outcome = await granted.gateway.close(self._describe(granted, after, status))
        except StorageUnavailable:
            outcome = None
            fact = self.truth.facts[granted.call_id]
            fact.late_epoch = granted.claimed.epoch
            if after is CallState.CONSUMED and status is not None:
                fact.dropped_epoch = granted.claimed.epoch
        finally:
            self.machine.fate = None
        self._tell(
            "close", call=granted.call_id, after=after.value, outcome=outcome, at=granted.gateway.owner_id
        )
        self._check("close")
        return isinstance(outcome, Closed)

    def _describe(self, granted: GrantedCall, after: CallState, status: int | None) -> Close:
        return Close(
            call_id=granted.call_id,
            epoch=granted.claimed.epoch,
            after=after,
            http_status=status,
            upstream_status=status,
            latency_ms=1,
            upstream_latency_ms=1,
            error=None,
        )

    async def _stream(self, granted: GrantedCall) -> None:
        is_cut = self._flip(0.3)
        self.truth.facts[granted.call_id].is_cut = is_cut
        finish = Finish(
            call_id=granted.call_id,
            epoch=granted.claimed.epoch,
            delivery=Delivery.PARTIAL if is_cut else Delivery.COMPLETE,
            request_bytes=0,
            response_bytes=2,
            completed_ms=self.machine.now_ms,
            is_cut=is_cut,
        )
        if is_cut:
            await granted.gateway.finish_cut(finish)
        else:
            granted.gateway.finish(finish)
        await self._drain()
        self._tell("finish", call=granted.call_id, is_cut=is_cut)
        self._check("finish")
        self._trips.remove(granted)

    async def _drain(self) -> None:
        drain = getattr(self.machine, "drain", None)
        if drain is not None:
            await drain()

    # ---- Authorisations: the money moves when the answer is there.

    async def _settle(self, granted: GrantedCall) -> None:
        close = self._describe(granted, CallState.SETTLING, 200)
        is_signed = self._flip(0.7)
        try:
            for _ in range(3):
                attempt = await self._sign(granted) if is_signed else None
                outcome = await granted.gateway.settle(close, attempt=attempt, digest=None)
                self._tell("settle", call=granted.call_id, outcome=outcome)
                self._check("settle")
                if not isinstance(outcome, NonceUnavailable):
                    break
            if isinstance(outcome, Closed):
                granted.stage, granted.attempt = "settling", attempt
                return
        except StorageUnavailable:
            self._tell("settle", call=granted.call_id, outcome="away")
            self.truth.facts[granted.call_id].dropped_epoch = granted.claimed.epoch
        await self._mark_orphaned(granted)
        self._trips.remove(granted)

    async def _sign(self, granted: GrantedCall) -> SettlementAttempt:
        nonce = await granted.gateway.gas.next_nonce(CHAIN, GAS_KEY)
        return SettlementAttempt(
            chain_id=CHAIN,
            tx_hash=TxHash(WORDS[nonce % 256]),
            call_id=granted.call_id,
            listing_id=LISTING,
            sender=GAS_KEY,
            nonce=nonce,
            raw=b"\x02",
            fee_max_wei=1,
            created_ms=self.machine.now_ms,
        )

    async def _settle_on(self, granted: GrantedCall) -> None:
        authorization = granted.request.authorization
        assert authorization is not None
        fact, luck = self.truth.facts[granted.call_id], self.random.random()
        transfer = self.truth.moved.get(authorization.key)
        try:
            if transfer is not None:
                if await self._conclude(
                    granted.gateway, granted.call_id, granted.claimed.epoch, transfer
                ) is (CallState.CONSUMED):
                    fact.is_shown, granted.stage = True, "body"
                    return
            elif granted.attempt is not None and luck < 0.7:
                self.truth.public.add(authorization.key)
                self._tell("broadcast", call=granted.call_id)
                return
            elif granted.attempt is None and luck < 0.3:  # refused in simulation, and nothing was signed
                await self._conclude(granted.gateway, granted.call_id, granted.claimed.epoch, None)
            else:
                if self._flip(0.5):
                    await granted.gateway.keep_answer(granted.call_id, granted.request.payer, ANSWER)
                await self._mark_orphaned(granted)
        except StorageUnavailable:
            fact.dropped_epoch = granted.claimed.epoch
            await self._mark_orphaned(granted)
        self._trips.remove(granted)

    async def _conclude(
        self,
        gateway: Any,
        call_id: CallId,
        epoch: int,
        transfer: SettledTransfer | None,
        is_orphaned: bool = False,
    ) -> CallState | None:
        self.machine.fate = self._fate()
        try:
            state: CallState | None = await gateway.conclude(
                call_id, epoch=epoch, transfer=transfer, is_orphaned=is_orphaned, now_ms=self.machine.now_ms
            )
        finally:
            self.machine.fate = None
            self._check("conclude")
        self._tell("conclude", call=call_id, state=state, is_moved=transfer is not None, adrift=is_orphaned)
        if state is CallState.RELEASED and self._laws is not None:
            self._check_debts_paid_first(self.machine.rows.calls[call_id].claim.payment_id)
        return state

    async def _mark_orphaned(self, granted: GrantedCall) -> None:
        try:
            is_orphaned = await granted.gateway.mark_orphaned(granted.call_id, epoch=granted.claimed.epoch)
        except StorageUnavailable:
            is_orphaned = "away"
        self._tell("adrift", call=granted.call_id, outcome=is_orphaned)
        self._check("adrift")

    async def _mine(self) -> None:
        """Any account may use a public authorisation while it is valid and covered."""
        now_s = self.machine.now_ms // 1000
        open_ones = [
            request.authorization
            for request in self._requests
            if request.authorization is not None
            and request.authorization.key in self.truth.public
            and request.authorization.key not in self.truth.moved
            and now_s < request.authorization.valid_before
            and self.truth.balances[request.payer] >= request.price_units
        ]
        if not open_ones:
            return
        chosen = self._pick(open_ones)
        self._block += 1
        self.truth.balances[chosen.payer] -= chosen.base_units
        self.truth.moved[chosen.key] = self._transfer(f"tx{40 + int(self.random.random() * 20)}")
        self._tell("mined", nonce=chosen.nonce.hex()[:8])

    def _transfer(self, name: str) -> SettledTransfer:
        return SettledTransfer(
            tx_hash=TX[name],
            block_number=self._block,
            block_hash=BLOCK,
            block_time=self.machine.now_ms // 1000,
        )

    async def _sweep(self) -> None:
        if not self._gateways:
            return
        gateway = self._pick(self._gateways)
        now_s = self.machine.now_ms // 1000
        try:
            for call in await gateway.unsettled(limit=100):
                key = call.authorization.key
                transfer = self.truth.moved.get(key)
                is_over = now_s >= call.authorization.valid_before + EXPIRY_SLACK_S
                if transfer is not None or is_over:
                    await self._conclude(gateway, call.call_id, call.epoch, transfer, is_orphaned=True)
                elif call.state is CallState.SETTLING and self._flip(0.5):
                    self.truth.public.add(key)
                else:
                    await gateway.postpone(call.call_id, until_ms=self.machine.now_ms + 5_000)
        except StorageUnavailable:
            pass
        self._check("sweep")
