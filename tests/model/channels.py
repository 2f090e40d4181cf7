"""The channels in the ledger model: the counterpart of `storage.ledger.channel_store` and `channel_balance`."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tests.model.moves import MemoryMoves
from tests.model.rows import MemoryAuthorization, MemoryCall, owed_units
from tollway.chain.channel_contract import SETTLEMENT_CONTRACT, ChannelConfig
from tollway.ids import Address, ChainId, ChannelId, TxHash
from tollway.ledger.channels import (
    Channel,
    ChannelFacts,
    ChannelName,
    ChannelState,
    reserve_channel,
)
from tollway.ledger.claims import check_units
from tollway.ledger.ledger import Claim
from tollway.ledger.records import CallRecord, CallState, ClaimState, Payment, PaymentState, Usage
from tollway.money import LEDGER_DECIMALS_MAX


@dataclass(frozen=True, slots=True)
class MemoryDeposit:
    """A settled deposit."""

    held: MemoryAuthorization
    name: ChannelName

    @property
    def units(self) -> int:
        return self.held.authorization.base_units


class MemoryChannels(MemoryMoves):
    """Keeps the promises of `ChannelLedger`."""

    async def find_channel(self, chain_id: ChainId, channel_id: ChannelId) -> Channel | None:
        self._answer()
        name = ChannelName(chain_id, channel_id)
        return self._channel(name) if name in self._rows.channels else None

    async def open_channel(
        self,
        chain_id: ChainId,
        channel_id: ChannelId,
        config: ChannelConfig,
        facts: ChannelFacts,
        *,
        decimals: int,
        now_ms: int,
    ) -> Channel:
        check_facts(facts)
        self._answer()
        name = ChannelName(chain_id, channel_id)
        if name not in self._rows.channels:
            self._add_channel(name, config, facts, decimals, now_ms)
        return self._channel(name)

    async def renew_channel(self, key: int, facts: ChannelFacts, *, now_ms: int) -> Channel:
        check_facts(facts)
        self._answer()
        (name,) = [name for name, one in self._rows.channels.items() if one.key == key]
        channel = self._rows.channels[name]
        if facts.block_number >= channel.facts.block_number:
            is_going = facts.withdrawal_since_s != 0
            state = ChannelState.WITHDRAWING if is_going else ChannelState.OPEN
            kept = channel.state is ChannelState.DRAINING
            self._rows.channels[name] = replace(
                channel, facts=facts, state=ChannelState.DRAINING if kept else state
            )
            self._fit(name, now_ms)
            self._count_lost(name)
        return self._channel(name)

    def _record(self, call: MemoryCall) -> CallRecord:
        record, name = super()._record(call), channel_of(call.claim)
        if name is None or record.channel_id is None or record.is_unmeasured:
            return record
        return replace(record, claim_state=self._claim_state(name, call))

    def _claim_state(self, name: ChannelName, call: MemoryCall) -> ClaimState | None:
        """By what the calls up to this one hold. What the contract has paid out is not in the model."""
        if call.state is CallState.REORGED:
            return ClaimState.LOST
        if call.state is not CallState.CONSUMED or not call.parts:
            return None
        channel = self._rows.channels[name]
        held_units = sum(
            one.parts.get(channel.payment_id, 0)
            for one in self._rows.calls.values()
            if one.order <= call.order
        )
        is_claimed = channel.start_units + held_units <= channel.facts.total_claimed
        return ClaimState.CLAIMED if is_claimed else ClaimState.UNCLAIMED

    def channels(self) -> dict[ChannelName, Channel]:
        """Every channel as it is now."""
        return {name: self._channel(name) for name in self._rows.channels}

    def _channel(self, name: ChannelName) -> Channel:
        channel = self._rows.channels[name]
        reserved = None if channel.reserved_call is None else self._rows.calls[channel.reserved_call].state
        return replace(
            channel,
            balance_units=channel.facts.balance,
            taken_units=self._taken(channel),
            lacking_units=self._lacking(channel),
            reserved_state=reserved,
        )

    def _unclaimed_nano(self) -> dict[Address, int]:
        """What each payer owes beyond what is claimed, with the calls whose deposits are not concluded."""
        found: dict[Address, int] = {}
        for channel in self.channels().values():
            units = max(0, channel.taken_units - channel.facts.total_claimed)
            if channel.reserved_call is not None:
                reserved = self._rows.calls[channel.reserved_call].claim
                units += reserved.price_units if reserved.payment_id is None else 0
            payer = channel.config.payer
            found[payer] = found.get(payer, 0) + units * 10 ** (LEDGER_DECIMALS_MAX - channel.decimals)
        return found

    def _taken(self, channel: Channel) -> int:
        return channel.start_units + self._rows.payments[channel.payment_id].taken_units

    def _lacking(self, channel: Channel) -> int:
        charged = self._charged(channel.payment_id)
        return sum(owed_units(call) for call in charged if call.state is CallState.REORGED)

    def _add_channel(
        self, name: ChannelName, config: ChannelConfig, facts: ChannelFacts, decimals: int, now_ms: int
    ) -> None:
        payment_id = len(self._rows.payments) + 1
        self._rows.payments[payment_id] = Payment(
            id=payment_id,
            chain_id=name.chain_id,
            tx_hash=TxHash(name.channel_id),
            asset="0x" + config.token.hex(),
            payer=config.payer,
            payee=SETTLEMENT_CONTRACT,
            value_units=facts.balance - facts.total_claimed,
            taken_units=0,
            state=PaymentState.FINAL,
            block_number=facts.block_number,
            block_hash=bytes(32),
            block_time=now_ms // 1000,
            is_authorized=True,
            is_escrow=True,
        )
        self._rows.recorded_ms[payment_id], self._rows.checked_ms[payment_id] = now_ms, 0
        self._rows.channels[name] = Channel(
            key=len(self._rows.channels) + 1,
            id=name.channel_id,
            chain_id=name.chain_id,
            config=config,
            payment_id=payment_id,
            decimals=decimals,
            start_units=facts.total_claimed,
            balance_units=facts.balance,
            taken_units=facts.total_claimed,
            announced=facts.total_claimed,
            published=0,
            spent=None,
            waiting=None,
            candidate=None,
            facts=facts,
            state=ChannelState.WITHDRAWING if facts.withdrawal_since_s else ChannelState.OPEN,
            reserved_call=None,
            reserved_state=None,
        )

    def _note_voucher(self, claim: Claim) -> None:
        if claim.channel is not None:
            name = channel_of(claim)
            assert name is not None
            self._rows.channels[name] = reserve_channel(
                self._rows.channels[name], claim.channel, claim.call_id, price_units=claim.price_units
            )

    def _rest_of(self, call: MemoryCall) -> int | None:
        """What a channel has left beyond what is announced."""
        name = channel_of(call.claim)
        if name is None:
            return super()._rest_of(call)
        channel = self._rows.channels[name]
        return max(0, channel.facts.balance - channel.announced)

    def _move(self, call: MemoryCall, after: CallState) -> None:
        super()._move(call, after)
        name = channel_of(call.claim)
        if name is None:
            return
        channel = self._rows.channels[name]
        excess_units = self._taken(channel) - channel.facts.balance
        held_units = call.parts.get(channel.payment_id, 0)
        if call.state is CallState.CONSUMED and excess_units > 0 and held_units > 0:
            self._set_units(call, channel.payment_id, max(0, held_units - excess_units), self._now_ms())
        if channel.reserved_call == call.claim.call_id:
            if call.state in (CallState.CONSUMED, CallState.REORGED):
                told_units = self._taken(channel) + self._lacking(channel)
                channel = replace(channel, announced=max(channel.announced, told_units))
            if call.state in (CallState.CONSUMED, CallState.REORGED, CallState.RELEASED):
                channel = replace(channel, reserved_call=None)
            self._rows.channels[name] = channel
        self._set_value(name)

    def _measure(self, call: MemoryCall, usage: Usage) -> None:
        super()._measure(call, usage)
        name = channel_of(call.claim)
        if name is not None:
            self._set_value(name)

    def _announce_measured(self, before: Channel, call: MemoryCall) -> None:
        """A price that is known at the head is announced, not its maximum. `before`: the channel before that end."""
        channel = self._rows.channels[before.name]
        was_reserved = before.reserved_call == call.claim.call_id
        if was_reserved and call.state is CallState.CONSUMED and call.actual_units is not None:
            told_units = max(before.announced, self._taken(channel) + self._lacking(channel))
            self._rows.channels[before.name] = replace(channel, announced=told_units)

    def _announce_stored(self, name: ChannelName, call: MemoryCall) -> None:
        """The stored response of a call whose deposit was undecided charges all that the call owes."""
        channel = self._rows.channels[name]
        if channel.reserved_call == call.claim.call_id:
            due_units = call.claim.price_units if call.actual_units is None else call.actual_units
            self._rows.channels[name] = replace(channel, announced=channel.announced + due_units)

    def _set_value(self, name: ChannelName) -> None:
        """The payment is worth the balance, and at least what the calls hold."""
        channel = self._rows.channels[name]
        payment = self._rows.payments[channel.payment_id]
        worth_units = channel.facts.balance - channel.start_units
        self._rows.payments[payment.id] = replace(payment, value_units=max(worth_units, payment.taken_units))

    def _fit(self, name: ChannelName, now_ms: int) -> None:
        """Whole calls lose or get their units one by one; the last one a part."""
        payment_id = self._rows.channels[name].payment_id
        charged = sorted(self._charged(payment_id), key=lambda call: call.order)
        for call in reversed(charged):
            excess_units = self._taken(self._rows.channels[name]) - self._rows.channels[name].facts.balance
            held_units = call.parts.get(payment_id, 0)
            if excess_units > 0 and held_units > 0:
                self._set_units(call, payment_id, held_units - min(excess_units, held_units), now_ms)
        for call in charged:
            channel = self._rows.channels[name]
            room_units = max(0, channel.facts.balance - self._taken(channel))
            paid_units = min(room_units, owed_units(call))
            if paid_units > 0:
                self._set_units(call, payment_id, call.parts.get(payment_id, 0) + paid_units, now_ms)
        self._set_value(name)

    def _charged(self, payment_id: int) -> list[MemoryCall]:
        return [
            call
            for call in self._rows.calls.values()
            if call.claim.payment_id == payment_id and call.state in (CallState.CONSUMED, CallState.REORGED)
        ]

    def _set_units(self, call: MemoryCall, payment_id: int, units: int, now_ms: int) -> None:
        self._hold(call, {payment_id: units} if units else {})
        after = CallState.REORGED if owed_units(call) else CallState.CONSUMED
        if call.state is not after:
            call.state, call.moved_ms = after, now_ms

    def _count_lost(self, name: ChannelName) -> None:
        channel = self._rows.channels[name]
        lost_units = channel.facts.total_claimed - self._taken(channel)
        is_draining = channel.state is ChannelState.DRAINING
        if lost_units > 0 and (is_draining or channel.facts.total_claimed > channel.announced):
            self._rows.channels[name] = replace(
                channel,
                start_units=channel.start_units + lost_units,
                announced=max(channel.announced, channel.facts.total_claimed),
                state=ChannelState.DRAINING,
            )
            self._set_value(name)

    # ---- Deposits.

    def _deposits_in(self, payment: Payment) -> list[MemoryDeposit]:
        if not payment.is_escrow:
            return []
        found = []
        for held in self._rows.authorizations.values():
            name = channel_of(self._rows.calls[held.call_id].claim)
            if name is not None and held.transfer == payment.tx_hash:
                found.append(MemoryDeposit(held, name))
        return found

    def _count_deposit(self, name: ChannelName, units: int, *, block_number: int, now_ms: int) -> None:
        channel = self._rows.channels[name]
        if block_number > channel.facts.block_number:
            balance = channel.facts.balance + units
            facts = replace(channel.facts, balance=balance, block_number=block_number)
            self._rows.channels[name] = replace(channel, facts=facts)
        self._fit(name, now_ms)

    def _uncount_deposit(self, deposit: MemoryDeposit, *, now_ms: int) -> None:
        channel, block_number = self._rows.channels[deposit.name], deposit.held.settled_block
        assert block_number is not None
        if block_number <= channel.facts.block_number:
            others = self._blocks_of(deposit)
            balance = max(0, channel.facts.balance - deposit.units)
            facts = replace(
                channel.facts,
                balance=balance,
                total_claimed=min(balance, channel.facts.total_claimed),
                block_number=min(channel.facts.block_number, max(block_number - 1, *others)),
            )
            self._rows.channels[deposit.name] = replace(channel, facts=facts)
        self._fit(deposit.name, now_ms)

    def _blocks_of(self, deposit: MemoryDeposit) -> Iterable[int]:
        """The blocks of the other deposits of the channel; -1 to have one."""
        yield -1
        for held in self._rows.authorizations.values():
            is_other = held.settled_block is not None and held.transfer != deposit.held.transfer
            if is_other and channel_of(self._rows.calls[held.call_id].claim) == deposit.name:
                yield held.settled_block or -1

    def _shift_deposit(self, name: ChannelName, block_number: int) -> None:
        """A deposit that counts is in another block."""
        channel = self._rows.channels[name]
        block_number = max(block_number, channel.facts.block_number)
        self._rows.channels[name] = replace(channel, facts=replace(channel.facts, block_number=block_number))

    def _recount_deposits(self, payment: Payment, *, block_number: int, now_ms: int) -> None:
        """The transaction of these deposits is in a block again."""
        for deposit in self._deposits_in(payment):
            deposit.held.settled_block = block_number
            self._count_deposit(deposit.name, deposit.units, block_number=block_number, now_ms=now_ms)

    def _wrong_channels(self) -> Iterable[str]:
        for name, channel in self.channels().items():
            reserved = None if channel.reserved_call is None else self._rows.calls[channel.reserved_call]
            open_units = 0 if reserved is None else sum(reserved.parts.values())
            ceiling = channel.start_units if channel.candidate is None else channel.candidate.ceiling
            is_draining = channel.state is ChannelState.DRAINING
            laws = (
                channel.facts.total_claimed <= channel.announced,
                channel.taken_units - open_units + channel.lacking_units <= channel.announced,
                channel.announced <= ceiling or is_draining,
                reserved is None or reserved.state in _OPEN,
            )
            if not all(laws):
                yield f"channel {name}: {laws}"


_OPEN = (CallState.FORWARDING, CallState.SETTLING, CallState.UNKNOWN)


def channel_of(claim: Claim) -> ChannelName | None:
    if claim.channel is None or claim.chain_id is None:
        return None
    return ChannelName(claim.chain_id, claim.channel.channel_id)


def check_facts(facts: ChannelFacts) -> None:
    for units in (facts.balance, facts.total_claimed, facts.withdrawal_amount):
        check_units(units)
    if facts.total_claimed > facts.balance:
        raise ValueError
