"""A history of one channel: calls at two gateways, and a chain with deposits, claims, withdrawals and reorganisations. Each step is applied to every given ledger, and all of
them must give the same outcome; the laws of `ledger.channels` hold after each."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.kit.ledger_channels import (
    COLLECTOR,
    OPENED_BLOCK,
    config_of,
    deposit_claim,
    facts_of,
    voucher_claim,
)
from tests.kit.ledger_history import Gateways, LedgerHistory, Run, Step
from tests.kit.ledger_records import CHAIN, NOW_MS, close_of, finish_of, new_payment, transfer_in, tx_hash
from tollway.ids import keccak256
from tollway.ledger.channels import Channel, ChannelFacts, ChannelState, claimable_units
from tollway.ledger.ledger import Claim, Claimed
from tollway.ledger.records import CallRecord, CallState

OPEN = (CallState.FORWARDING, CallState.SETTLING, CallState.UNKNOWN)

KINDS = (
    *("claim", "end") * 6,
    *("deposit", "settle", "conclude") * 2,
    *("stream", "measure") * 2,
    *("renew", "resolve", "reopen", "cut"),
    *("stale", "withdraw", "claim_on_chain", "leave", "come_back", "move"),
)


@dataclass(slots=True, kw_only=True)
class ChainDeposit:
    """`block` None: it has left the chain, or is not mined yet."""

    claim: Claim
    name: str
    units: int
    block: int | None = None
    is_concluded: bool = False


@dataclass(slots=True, kw_only=True)
class ChannelHistory(LedgerHistory):
    channels: list[Channel] = field(default_factory=list)
    head: int = OPENED_BLOCK
    first_balance: int = 200
    withdrawn: int = 0
    total_claimed: int = 0
    is_withdrawing: bool = False
    deposits: list[ChainDeposit] = field(default_factory=list)
    announced: int = 0

    async def run(self, steps: Sequence[Step]) -> None:
        config = config_of(self.name)
        for gateways in self.ledgers:
            self.channels.append(
                await gateways[0].open_channel(
                    CHAIN,
                    keccak256(b"id" + config.salt),
                    config,
                    self.facts(),
                    decimals=6,
                    now_ms=NOW_MS,
                )
            )
        await self.walk(steps)
        await self._settle_all()
        await self.audit()

    # ---- The chain.

    @property
    def balance(self) -> int:
        mined = sum(one.units for one in self.deposits if one.block is not None)
        return self.first_balance + mined - self.withdrawn

    def facts(self) -> ChannelFacts:
        return facts_of(
            self.balance,
            total_claimed=self.total_claimed,
            block_number=self.head,
            withdrawal_since_s=1 if self.is_withdrawing else 0,
        )

    async def _renew(self, number: int) -> None:
        self.head += 1
        await self._write_facts(self.facts())
        for channel in await self._read():
            assert channel.balance_units == self.balance
            if channel.reserved_call is None:
                assert channel.taken_units <= self.balance

    async def _write_facts(self, facts: ChannelFacts) -> None:
        for gateways, channel in zip(self.ledgers, self.channels, strict=True):
            await gateways[0].renew_channel(channel.key, facts, now_ms=NOW_MS)

    async def _stale(self, number: int) -> None:
        """A node that lags behind."""
        before = await self._read()
        await self._write_facts(facts_of(number, block_number=before[0].facts.block_number - 1))
        assert await self._read() == before

    async def _withdraw(self, number: int) -> None:
        self.is_withdrawing = not self.is_withdrawing
        if not self.is_withdrawing:
            self.withdrawn += (self.balance - self.total_claimed) * (number % 3) // 2
        await self._renew(number)

    async def _claim_on_chain(self, number: int) -> None:
        channel = (await self._read())[0]
        shown = claimable_units(channel, open_units=await self._open_units(channel))
        if shown is not None and shown[0] <= self.balance:
            assert shown[1].ceiling <= channel.announced
            self.total_claimed = shown[0]
            await self._renew(number)

    async def _open_units(self, channel: Channel) -> int:
        """The maxima of calls whose end is not known."""
        records = [await self.ledgers[0][0].find_call(call_id) for call_id in self.runs]
        held = [one for one in records if one.state in OPEN or one.is_unmeasured]
        return sum(one.price_units for one in held if one.channel_id is not None)

    # ---- Calls.

    async def _claim(self, number: int, **fields: Any) -> None:
        channel = (await self._read())[0]
        price = fields.pop("price_units", 1 + number % 50)
        ceiling = channel.announced + price + (1 if number % 10 == 0 else 0)
        claim = voucher_claim(channel, price, ceiling=ceiling, **fields)
        await self._open(claim, number % 2)

    async def _deposit(self, number: int) -> None:
        channel = (await self._read())[0]
        claim = deposit_claim(channel, 60 + number, 1 + number % 50, method="GET" if number % 2 else "POST")
        if await self._open(claim, number % 2):
            self.deposits.append(ChainDeposit(claim=claim, name=f"{claim.call_id}", units=60 + number))

    async def _open(self, claim: Claim, owner: int) -> bool:
        claims = [
            claim if claim.payment_id is None else replace(claim, payment_id=channel.payment_id)
            for channel in self.channels
        ]
        outcomes = await self._claim_each(claims, owner)
        assert len({type(one) for one in outcomes}) == 1, outcomes
        is_granted = isinstance(outcomes[0], Claimed)
        if is_granted:
            assert outcomes == [outcomes[0]] * len(outcomes)
            self.runs[claim.call_id] = Run(claim=claim, owner=owner)
        return is_granted

    async def _end(self, number: int) -> None:
        run = await self._find(CallState.FORWARDING)
        if run is not None:
            await self._close(run, number, paid_by_chain=CallState.UNKNOWN)

    async def _cut(self, number: int) -> None:
        run = await self._find(CallState.CONSUMED)
        if run is not None and run.claim.metering is None and run.claim.authorization is None:
            finish = finish_of(run.claim, epoch=run.epoch, is_cut=True)
            await self._each(run.owner, "finish_cut", finish)

    async def _reopen(self, number: int) -> None:
        run = await self._find(CallState.UNKNOWN if number % 2 else CallState.CONSUMED)
        await self._open_again(run, number % 2, now_ms=NOW_MS)

    async def _resolve(self, number: int) -> None:
        run = await self._find(CallState.UNKNOWN)
        if run is not None:
            outcome = CallState.RELEASED if number % 4 else CallState.CONSUMED
            await self._each(number % 2, "resolve", run.claim.call_id, outcome, now_ms=NOW_MS)

    # ---- Deposits.

    async def _settle(self, number: int) -> None:
        run = await self._find(CallState.FORWARDING)
        if run is None or run.claim.authorization is None:
            return
        close = close_of(run.claim, CallState.SETTLING, epoch=run.epoch)
        await self._each(run.owner, "settle", close, attempt=None, digest=None)

    async def _conclude(self, number: int) -> None:
        for deposit in self.deposits:
            run = self.runs[deposit.claim.call_id]
            state = (await self.ledgers[0][0].find_call(deposit.claim.call_id)).state
            if deposit.is_concluded or state not in (CallState.SETTLING, CallState.UNKNOWN):
                continue
            is_orphaned = state is CallState.UNKNOWN or number % 3 == 0
            if state is CallState.SETTLING and is_orphaned:
                await self._each(run.owner, "mark_orphaned", run.claim.call_id, epoch=run.epoch)
            if number % 5:
                self.head += 1
                deposit.block = self.head
                if number % 2:
                    await self._renew(number)
            transfer = (
                None if deposit.block is None else transfer_in(deposit.name, block_number=deposit.block)
            )
            ends = await self._each(
                run.owner,
                "conclude",
                run.claim.call_id,
                epoch=run.epoch,
                transfer=transfer,
                is_orphaned=is_orphaned,
                now_ms=NOW_MS,
            )
            assert ends[0] is not None, (state, is_orphaned)
            deposit.is_concluded = transfer is not None
            return

    async def _leave(self, number: int) -> None:
        """A reorganisation takes a deposit that nothing of the chain needs."""
        for deposit in self.deposits:
            is_free = self.balance - deposit.units >= self.total_claimed
            if deposit.is_concluded and deposit.block is not None and is_free:
                deposit.block = None
                if number % 2:
                    await self._renew(number)
                for gateways in self.ledgers:
                    assert await self._mark_gone(gateways, deposit) == 0
                return

    async def _mark_gone(self, gateways: Gateways, deposit: ChainDeposit) -> int:
        (payment,) = await gateways[0].find_payments(tx_hash(deposit.name))
        debt: int = await gateways[0].mark_gone(payment.id, now_ms=NOW_MS)
        return debt

    async def _come_back(self, number: int) -> None:
        for deposit in self.deposits:
            if deposit.is_concluded and deposit.block is None:
                self.head += 1
                deposit.block = self.head
                if number % 2:
                    await self._renew(number)
                back = new_payment(
                    deposit.units,
                    deposit.name,
                    payee=COLLECTOR,
                    block_number=deposit.block,
                    is_final=False,
                )
                for gateways in self.ledgers:
                    await gateways[0].record_payments([back], now_ms=NOW_MS)
                return

    async def _move(self, number: int) -> None:
        """A reorganisation puts a deposit into another transaction, seen before or after it has left."""
        for deposit in self.deposits:
            if deposit.is_concluded and (deposit.block is None or number % 2):
                self.head += 1
                before, deposit.name = deposit.name, f"{deposit.name} again"
                deposit.block = self.head
                transfer = transfer_in(deposit.name, block_number=self.head)
                outcomes = await self._each(
                    0,
                    "move_transfer",
                    deposit.claim.call_id,
                    before=tx_hash(before),
                    transfer=transfer,
                    now_ms=NOW_MS,
                )
                assert outcomes[0] is True
                return

    # ---- What holds after each step.

    async def _find(self, state: CallState) -> Run | None:
        for run in reversed(self.runs.values()):
            if (await self.ledgers[0][0].find_call(run.claim.call_id)).state is state:
                return run
        return None

    async def _read(self) -> list[Channel]:
        found = []
        for gateways, channel in zip(self.ledgers, self.channels, strict=True):
            found.append(await gateways[1].find_channel(channel.chain_id, channel.id))
        return found

    async def check(self, where: str) -> None:
        channels = await self._read()
        for channel in channels:
            assert replace(channel, key=0, payment_id=0) == replace(channels[0], key=0, payment_id=0), where
        channel = channels[0]
        assert channel.announced >= self.announced, where
        self.announced = channel.announced
        records = [
            [await gateways[0].find_call(call_id) for call_id in self.runs] for gateways in self.ledgers
        ]
        shown = [[_facts_of_call(one) for one in of_ledger] for of_ledger in records]
        assert all(one == shown[0] for one in shown), where
        charged = [one for one in records[0] if one.state in (CallState.CONSUMED, CallState.REORGED)]
        held = [one for one in records[0] if one.state in OPEN and one.channel_id is not None]
        owed_units = sum(one.due_units for one in charged)
        assert channel.taken_units + channel.lacking_units == owed_units + sum(
            one.due_units for one in held
        ), where
        reserved = [one for one in records[0] if one.id == channel.reserved_call]
        assert all(one.state in OPEN for one in reserved), where
        assert owed_units <= channel.announced, where
        assert channel.facts.total_claimed <= channel.announced, where
        if all(run.epoch == 1 for run in self.runs.values()):
            assert channel.facts.total_claimed <= channel.taken_units + channel.lacking_units, where
        assert channel.candidate is None or channel.announced <= channel.candidate.ceiling, where
        if not held:
            assert channel.taken_units <= channel.balance_units, where

    async def _settle_all(self) -> None:
        """At the end each call that the chain pays is paid: nothing lacks that the balance covers."""
        await self._renew(0)
        for channel in await self._read():
            room_units = channel.balance_units - channel.taken_units
            assert channel.lacking_units == 0 or room_units <= 0
            assert channel.state is not ChannelState.DRAINING


def _facts_of_call(one: CallRecord) -> tuple[Any, ...]:
    return (one.id, one.state, one.rail, one.channel_id, one.price_units, one.actual_units, one.quantities)
