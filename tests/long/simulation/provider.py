"""The provider gives prices back, by transfers and as credit, drawn from a random generator of its own, so that a history without a refund stays as it is."""

from typing import Any

from tests.kit.ledger_records import CHAIN, PAYEE, USDC
from tests.long.simulation.history_run import BLOCK, TX
from tests.long.simulation.owners import Owners
from tollway.errors import StorageUnavailable
from tollway.ids import CallId
from tollway.ledger.records import NewPayment
from tollway.ledger.refunds import CallsRefunded, credit_hash

REFUNDS_MAX = 24


class Provider(Owners):
    """Mostly the provider refunds what it should; it also names other calls, sums and transfers."""

    async def _give_back(self) -> None:
        if not self._gateways or not self.truth.facts:
            return
        gateway = self.refunder.choice(self._gateways)
        try:
            if self.refunder.random() < 0.3:
                await self._credit(gateway)
            else:
                await self._transfer_back(gateway)
        except StorageUnavailable:
            self._tell("refund", outcome="away")
        self._check("refund")

    async def _credit(self, gateway: Any) -> None:
        (call_id,) = self._choose_calls(1)
        if not await gateway.read_refundable([call_id]):
            return
        outcome = await gateway.record_credit(call_id, now_ms=self.machine.now_ms)
        self._tell("credit", call=call_id, outcome=outcome)
        if isinstance(outcome, CallsRefunded):
            (credit,) = await gateway.find_payments(credit_hash(call_id))
            self._payments[f"credit {call_id}"] = NewPayment(
                **{
                    name: getattr(credit, name) for name in ("chain_id", "tx_hash", "asset", "payer", "payee")
                },
                **{name: getattr(credit, name) for name in ("value_units", "block_number", "block_hash")},
                block_time=credit.block_time,
                is_final=True,
            )

    async def _transfer_back(self, gateway: Any) -> None:
        draw = self.refunder
        if self._transfers and draw.random() < 0.3:
            name = draw.choice(sorted(self._transfers))
            transfer, call_ids = self._transfers[name]
            if draw.random() < 0.4:
                call_ids = self._choose_calls(2)
        elif len(self._transfers) < REFUNDS_MAX:
            name, call_ids = f"refund {len(self._transfers)}", self._choose_calls(draw.randint(1, 2))
            owed = [self.truth.facts[call_id].request for call_id in call_ids]
            whole = sum(one.price_units for one in owed)
            self._block += 1
            transfer = NewPayment(
                chain_id=CHAIN,
                tx_hash=TX[name],
                asset=USDC,
                payer=PAYEE,
                payee=owed[0].payer,
                value_units=whole if draw.random() < 0.7 else draw.randint(1, whole + 1),
                block_number=self._block,
                block_hash=BLOCK,
                block_time=self.machine.now_ms // 1000,
                is_final=draw.random() < 0.3,
            )
            self._transfers[name] = transfer, call_ids
        else:
            return
        if self.truth.facts[call_ids[0]].request.payer != transfer.payee:
            return  # the gateway reads whom the transfer paid, and asks no ledger
        if len(await gateway.read_refundable(call_ids)) < len(call_ids):
            return
        based_on = await gateway.find_transaction(transfer.tx_hash)
        outcome = await gateway.record_refund(
            transfer, call_ids, based_on=based_on, now_ms=self.machine.now_ms
        )
        self._tell("refund", calls=",".join(call_ids), value=transfer.value_units, outcome=outcome)

    def _choose_calls(self, most: int) -> tuple[CallId, ...]:
        """Mostly calls whose response was shown. Some of the others were never granted, and are in no ledger."""
        facts = self.truth.facts
        costly = sorted(call_id for call_id, fact in facts.items() if fact.is_shown)
        chosen = costly if costly and self.refunder.random() < 0.9 else sorted(facts)
        return tuple(self.refunder.sample(chosen, min(most, len(chosen))))
