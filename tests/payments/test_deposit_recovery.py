"""The deposit of a channel that settlement recovery finishes: it pays the calls that follow too, so its own value decides how deep it must be and how many nodes must agree."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.channel_sales import ChannelCaller, ChannelSales
from tests.kit.gateway import CHAIN, open_gateway

PRICE = 10_000
DEPOSIT = 1_000_000
BETWEEN_NANO = 10**8
"""0.1 USDC: more than the price of the call, less than its deposit."""


@pytest.fixture
async def caller() -> AsyncIterator[ChannelCaller]:
    """Its deposit is in the pool, and no call waits for it."""
    limits: dict[str, Any] = {"settle_wait_s": 0.2, "lookups_per_minute": 1_000}
    async with open_gateway(kind=ChannelSales, **limits) as gateway:
        assert isinstance(gateway, ChannelSales)
        await gateway.channel_networks.refresh()
        await gateway.publish()
        gateway.stop_mining()
        caller = ChannelCaller.funded(gateway, 10**8)
        answer = await caller.open(DEPOSIT, ceiling=PRICE)
        assert (answer.status, answer.problem["code"]) == (503, "payment_outcome_unknown")
        yield caller


async def read_balance(caller: ChannelCaller) -> int:
    """After a round of recovery."""
    await caller.gateway.settlement.sweep()
    return (await caller.channel()).balance_units


async def test_a_deposit_counts_at_the_depth_of_its_own_value(caller: ChannelCaller) -> None:
    chain, rules = caller.gateway.chain, caller.gateway.rules
    rules[CHAIN] = replace(rules[CHAIN], confirmations=((0, 1), (BETWEEN_NANO, 3)), finality_depth=3)
    chain.mine_sent(CHAIN)
    assert await read_balance(caller) == 0
    chain.bury(CHAIN, 2)
    assert await read_balance(caller) == DEPOSIT


async def test_a_deposit_counts_once_as_many_nodes_agree_as_its_own_value_asks(caller: ChannelCaller) -> None:
    chain, rules = caller.gateway.chain, caller.gateway.rules
    rules[CHAIN] = replace(rules[CHAIN], agreement_above=(("USDC", BETWEEN_NANO),))
    chain.mine_sent(CHAIN)
    chain.leave_one_node(CHAIN)
    assert await read_balance(caller) == 0
    chain.reconnect(CHAIN)
    assert await read_balance(caller) == DEPOSIT
