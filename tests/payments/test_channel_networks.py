"""The networks that have channels: which have a rule, when one is available, and what the chain says of a channel."""

from dataclasses import replace
from typing import Any

import pytest

from tests.kit.chain import MemoryChain
from tests.kit.channel_payer import ChannelPayer
from tests.kit.payer import CHAIN, USDC, KeyWallet
from tests.kit.settlement import TOKEN, facilitator_at, settlement_rules
from tollway.chain import channel_contract as contract
from tollway.chain.networks import ChainRules
from tollway.errors import StorageUnavailable
from tollway.ids import Address, ChainId
from tollway.ledger.channels import ChannelFacts, Receiver
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.channel_networks import LOOK_DIVISOR, ChannelNetworks, make_channel_rules
from tollway.payments.channel_terms import ChannelRules
from tollway.payments.channels import claim_batch_digest

DELAY_S = 900
FRESH_MS = DELAY_S * 1000 // LOOK_DIVISOR
DEPTH = 3
RULES = {
    CHAIN: ChainRules(chain_id=CHAIN, kind="test", confirmations=((0, 1), (4 * 10**9, DEPTH)), assets=(USDC,))
}
PAYER = ChannelPayer(valid_before=2**40)


class Harness:
    """`looked_ms`: the last look at the channels; an error is raised."""

    def __init__(self) -> None:
        self.now_ms = 10**12
        self.looked_ms: int | Exception | None = self.now_ms
        self.chain = MemoryChain(CHAIN)
        self.chain.fund(CHAIN, TOKEN, PAYER.address, 10**9)
        nothing: Any = None
        self.networks = ChannelNetworks(
            self.chain,
            {CHAIN: ChannelRules(chain_id=CHAIN, withdraw_delay=DELAY_S, native_price_nano=10**9)},
            chain_rules=RULES,
            gas_budget=nothing,
            limits=DEFAULT_LIMITS,
            read_look_ms=self._read_look_ms,
            list_refused=self._list_refused,
            now_ms=lambda: self.now_ms,
        )

    async def _list_refused(self) -> frozenset[Receiver]:
        return frozenset()

    async def _read_look_ms(self, chain_id: ChainId) -> int | None:
        if isinstance(self.looked_ms, Exception):
            raise self.looked_ms
        return self.looked_ms

    def deposit(self, base_units: int, salt: bytes = b"\x1d" * 32) -> None:
        payer = replace(PAYER, deposit_salt=salt)
        self.chain.call_channels(CHAIN, payer.encode_deposit(base_units))

    async def fetch(self) -> ChannelFacts:
        return await self.networks.fetch_channel(CHAIN, PAYER.channel_id, USDC)


# ---- Which networks.


@pytest.mark.parametrize(
    ("given", "has_rule"),
    [
        ({"native_price_nano": 10**9}, True),
        ({"native_price_nano": None}, False),
        ({"native_price_nano": 10**9, "gas_keys": ()}, False),
        ({"native_price_nano": 10**9, "facilitator": facilitator_at()}, False),
    ],
)
def test_channels_need_a_gas_key_of_this_gateway_and_a_price_of_the_coin(
    given: dict[str, Any], has_rule: bool
) -> None:
    rules = make_channel_rules(RULES, {CHAIN: settlement_rules(**given)})
    assert (list(rules) == [CHAIN]) is has_rule


@pytest.mark.parametrize(("kind", "delay_s"), [("test", 900), ("main", 86_400)])
def test_the_delay_of_a_withdrawal_is_one_for_each_kind_of_chain(kind: Any, delay_s: int) -> None:
    rules = make_channel_rules(
        {CHAIN: replace(RULES[CHAIN], kind=kind)}, {CHAIN: settlement_rules(native_price_nano=5)}
    )
    assert (rules[CHAIN].withdraw_delay, rules[CHAIN].native_price_nano) == (delay_s, 5)


# ---- When one is available.


async def test_a_network_is_available_with_its_contracts_and_a_fresh_look() -> None:
    harness = Harness()
    assert not harness.networks.is_available(CHAIN)  # nothing was read yet
    await harness.networks.refresh()
    assert harness.networks.is_available(CHAIN)
    assert not harness.networks.is_available(ChainId(1))


async def test_a_network_without_the_contracts_is_not_available_until_they_are_seen() -> None:
    harness = Harness()
    harness.chain.disconnect(CHAIN)
    await harness.networks.refresh()
    assert (harness.networks.is_deployed(CHAIN), harness.networks.is_available(CHAIN)) == (False, False)
    harness.chain.reconnect(CHAIN)
    await harness.networks.refresh()
    assert harness.networks.is_available(CHAIN)
    bare = Harness()
    bare.chain.remove_channel_contracts(CHAIN)
    await bare.networks.refresh()
    assert not bare.networks.is_available(CHAIN)


async def test_contracts_that_were_seen_stay() -> None:
    harness = Harness()
    await harness.networks.refresh()
    harness.chain.disconnect(CHAIN)
    await harness.networks.refresh()
    assert harness.networks.is_available(CHAIN)


@pytest.mark.parametrize(
    ("looked_ms", "is_available"), [(None, False), (-FRESH_MS, True), (-FRESH_MS - 1, False)]
)
async def test_a_look_is_fresh_for_a_quarter_of_the_delay(looked_ms: int | None, is_available: bool) -> None:
    harness = Harness()
    harness.looked_ms = None if looked_ms is None else harness.now_ms + looked_ms
    await harness.networks.refresh()
    assert harness.networks.is_available(CHAIN) is is_available
    assert harness.networks.is_deployed(CHAIN)


async def test_a_look_that_cannot_be_read_again_grows_old() -> None:
    harness = Harness()
    await harness.networks.refresh()
    harness.looked_ms = StorageUnavailable()
    harness.now_ms += FRESH_MS + 1
    with pytest.raises(StorageUnavailable):
        await harness.networks.refresh()
    assert not harness.networks.is_available(CHAIN)


# ---- What the chain says.


async def test_the_balance_is_the_confirmed_one_at_the_depth_of_a_large_deposit() -> None:
    harness = Harness()
    harness.deposit(1_000)
    harness.chain.bury(CHAIN, DEPTH - 1)
    head = harness.chain.head(CHAIN).number
    harness.deposit(500, b"\x02" * 32)  # not deep enough
    found = await harness.fetch()
    assert (found.balance, found.block_number) == (1_000, head + 1 - DEPTH + 1)
    harness.chain.bury(CHAIN, DEPTH - 1)
    assert (await harness.fetch()).balance == 1_500


async def test_money_that_leaves_is_missing_at_once() -> None:
    harness = Harness()
    harness.deposit(1_000)
    harness.chain.bury(CHAIN, DEPTH)
    authorizer = Address.parse(PAYER.authorizer.address)
    signature = PAYER.sign_refund(400, nonce=0)
    calldata = contract.encode_refund(PAYER.config, base_units=400, nonce=0, signature=signature)
    harness.chain.call_channels(CHAIN, calldata, sender=authorizer)
    found = await harness.fetch()
    assert (found.balance, found.refund_nonce) == (600, 1)


async def test_what_is_claimed_counts_as_balance_however_young_its_deposit_is() -> None:
    harness = Harness()
    harness.deposit(1_000)
    row = contract.ClaimRow(
        config=PAYER.config, ceiling=300, signature=PAYER.sign_voucher(300), total_claimed=300
    )
    signature = KeyWallet.named("an authorizer").sign(claim_batch_digest(CHAIN, [row]))
    harness.chain.call_channels(CHAIN, contract.encode_claim([row], signature=signature))
    found = await harness.fetch()
    assert (found.balance, found.total_claimed) == (300, 300)
