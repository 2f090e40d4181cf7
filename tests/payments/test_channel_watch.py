"""The watch of channels: which channels a round reads, and when a network counts as looked at."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.kit.chain import MemoryChain
from tests.kit.channel_payer import ChannelPayer
from tests.kit.ledger_channels import facts_of, sample_channel
from tests.kit.payer import USDC
from tollway.chain import channel_contract as contract
from tollway.chain.networks import PRESETS
from tollway.errors import ChainUnavailable
from tollway.ids import ChainId, ChannelId
from tollway.ledger.channels import Channel, ChannelFacts, ChannelState, Receiver
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.channel_networks import ChannelNetworks
from tollway.payments.channel_terms import ChannelRules
from tollway.payments.channel_watch import PAGE, ChannelWatch
from tollway.payments.reorg_watcher import REORG_BLOCKS_MAX

CHAIN = USDC.chain_id
assert USDC.token is not None
TOKEN = USDC.token
RULES = {CHAIN: PRESETS["sandbox"].rules()}
DELAY_S = 900
PAYERS = [ChannelPayer(salt=bytes([n]) * 32, valid_before=2**40) for n in range(3)]
NO_FACTS = facts_of(block_number=0)


class SilentChain(MemoryChain):
    """Its nodes return no events while `is_silent`."""

    is_silent = False

    async def fetch_changed_channels(
        self, chain_id: ChainId, *, from_block: int, to_block: int
    ) -> frozenset[ChannelId]:
        if self.is_silent:
            raise ChainUnavailable("no logs")
        return await super().fetch_changed_channels(chain_id, from_block=from_block, to_block=to_block)


@dataclass
class ChannelRows:
    """The channels of a ledger, all with money. `looks`: the times of the rounds; `lists`: how often all channels were listed; `sought`: how many were
    looked up at once."""

    channels: dict[int, Channel] = field(default_factory=dict)
    looks: list[int] = field(default_factory=list)
    lists: int = 0
    sought: list[int] = field(default_factory=list)

    def add(self, payer: ChannelPayer) -> None:
        key = len(self.channels) + 1
        self.channels[key] = sample_channel(payer, key, NO_FACTS)

    async def list_watched(self, chain_id: ChainId, *, after_key: int, limit: int) -> tuple[Channel, ...]:
        self.lists += not after_key
        found = [one for key, one in sorted(self.channels.items()) if key > after_key]
        return tuple(found[:limit])

    async def find_watched(
        self, chain_id: ChainId, channel_ids: Collection[ChannelId]
    ) -> tuple[Channel, ...]:
        self.sought.append(len(channel_ids))
        return tuple(one for _, one in sorted(self.channels.items()) if one.id in channel_ids)

    async def renew_channel(self, key: int, facts: ChannelFacts, *, now_ms: int) -> Channel:
        state = ChannelState.WITHDRAWING if facts.withdrawal_since_s else ChannelState.OPEN
        self.channels[key] = replace(self.channels[key], facts=facts, state=state)
        return self.channels[key]

    async def note_look(self, chain_id: ChainId, *, now_ms: int) -> None:
        self.looks.append(now_ms)


class Harness:
    """Three channels with a deposit each, and a watch of them."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.chain = SilentChain(CHAIN)
        self.rows = ChannelRows()
        for payer in PAYERS:
            self.chain.fund(CHAIN, TOKEN, payer.address, 10_000)
            self.deposit(payer, 1_000)
            self.rows.add(payer)
        self.bury()
        chains: Any = self.chain
        ledger: Any = self.rows
        nothing: Any = None
        rules = ChannelRules(chain_id=CHAIN, withdraw_delay=DELAY_S, native_price_nano=10**9)
        self.networks = ChannelNetworks(
            chains,
            {CHAIN: rules},
            chain_rules=RULES,
            gas_budget=nothing,
            limits=DEFAULT_LIMITS,
            read_look_ms=self._read_look_ms,
            list_refused=self._list_refused,
            now_ms=lambda: self.now_ms,
        )
        self.watch = ChannelWatch(
            ledger=ledger, chains=chains, networks=self.networks, rules=RULES, now_ms=lambda: self.now_ms
        )

    async def _list_refused(self) -> frozenset[Receiver]:
        return frozenset()

    async def _read_look_ms(self, chain_id: ChainId) -> int | None:
        return self.rows.looks[-1] if self.rows.looks else None

    def deposit(self, payer: ChannelPayer, base_units: int, *, n: int = 1) -> None:
        signed = replace(payer, deposit_salt=n.to_bytes(32, "big"))
        self.chain.call_channels(CHAIN, signed.encode_deposit(base_units))

    def withdraw(self, payer: ChannelPayer, base_units: int) -> None:
        calldata = contract.encode_initiate_withdraw(payer.config, base_units=base_units)
        self.chain.call_channels(CHAIN, calldata, sender=payer.address)

    def bury(self) -> None:
        """No event is young any more."""
        self.chain.bury(CHAIN, REORG_BLOCKS_MAX + 10)

    async def look(self, *, after_s: int = 10) -> int:
        """One round. Returns how many channels it read."""
        self.now_ms += after_s * 1_000
        before = self.chain.requests["fetch_channel", CHAIN]
        await self.watch.run_once()
        return self.chain.requests["fetch_channel", CHAIN] - before

    def facts(self, payer: ChannelPayer) -> ChannelFacts:
        return next(one.facts for one in self.rows.channels.values() if one.id == payer.channel_id)


@pytest.fixture
async def harness() -> Harness:
    harness = Harness()
    await harness.networks.refresh()
    return harness


async def test_the_first_round_reads_every_channel_and_the_next_ones_read_what_changed(
    harness: Harness,
) -> None:
    assert await harness.look() == 3
    assert [harness.facts(payer).balance for payer in PAYERS] == [1_000] * 3
    assert await harness.look() == 0
    harness.withdraw(PAYERS[1], 400)
    assert await harness.look() == 1
    facts = harness.facts(PAYERS[1])
    assert (facts.withdrawal_amount, facts.withdrawal_since_s > 0) == (400, True)
    assert harness.rows.channels[2].state is ChannelState.WITHDRAWING


async def test_a_round_between_two_whole_looks_reads_the_named_channels_alone(harness: Harness) -> None:
    await harness.look()
    harness.withdraw(PAYERS[1], 400)
    for n in range(PAGE):
        harness.deposit(ChannelPayer(salt=(1_000 + n).to_bytes(32, "big"), valid_before=2**40), 1)
    assert await harness.look() == 1
    assert harness.rows.lists == 1
    assert harness.rows.sought == [PAGE, 1]


async def test_a_young_event_is_read_until_it_cannot_be_replaced(harness: Harness) -> None:
    await harness.look()
    harness.deposit(PAYERS[0], 500, n=2)
    assert [await harness.look() for _ in range(3)] == [1, 1, 1]
    harness.bury()
    assert await harness.look() == 1
    harness.bury()
    assert [await harness.look() for _ in range(3)] == [1, 0, 0]
    assert harness.facts(PAYERS[0]).balance == 1_500


async def test_an_event_that_a_reorganisation_takes_back_is_seen(harness: Harness) -> None:
    await harness.look()
    harness.withdraw(PAYERS[1], 400)
    await harness.look()
    harness.chain.reorg(CHAIN, 1)
    assert await harness.look() == 1
    assert harness.facts(PAYERS[1]).withdrawal_since_s == 0
    assert harness.rows.channels[2].state is ChannelState.OPEN
    assert await harness.look() == 0


async def test_the_channels_of_others_are_not_read(harness: Harness) -> None:
    await harness.look()
    stranger = ChannelPayer(salt=b"\x77" * 32, valid_before=2**40)
    harness.deposit(stranger, 1_000)
    assert await harness.look() == 0


async def test_every_channel_is_read_in_each_quarter_of_the_delay(harness: Harness) -> None:
    quarter_s = DELAY_S // 4
    rounds = [await harness.look(after_s=quarter_s // 3) for _ in range(7)]
    assert rounds == [3, 0, 0, 3, 0, 0, 3]


async def test_without_events_every_round_reads_every_channel(harness: Harness) -> None:
    await harness.look()
    harness.chain.is_silent = True
    assert [await harness.look() for _ in range(2)] == [3, 3]
    assert len(harness.rows.looks) == 3
    harness.chain.is_silent = False
    assert await harness.look() == 0


async def test_a_chain_that_was_away_is_read_since_the_last_round(harness: Harness) -> None:
    await harness.look()
    harness.chain.disconnect(CHAIN)
    assert await harness.look() == 0
    harness.withdraw(PAYERS[2], 400)
    harness.bury()
    harness.chain.reconnect(CHAIN)
    assert await harness.look() == 1
    assert harness.facts(PAYERS[2]).withdrawal_amount == 400


async def test_a_network_that_was_not_looked_at_for_a_quarter_of_the_delay_is_unavailable(
    harness: Harness,
) -> None:
    async def is_available() -> bool:
        await harness.networks.refresh()
        return harness.networks.is_available(CHAIN)

    assert not await is_available()
    await harness.look()
    assert await is_available()
    harness.chain.disconnect(CHAIN)
    await harness.look(after_s=DELAY_S // 4)
    assert await is_available()
    await harness.look(after_s=1)
    assert not await is_available()
    harness.chain.reconnect(CHAIN)
    await harness.look()
    assert await is_available()


async def test_a_network_without_the_contracts_is_not_looked_at() -> None:
    bare = Harness()
    bare.chain.remove_channel_contracts(CHAIN)
    await bare.networks.refresh()
    assert await bare.look() == 0
    assert bare.rows.looks == []
