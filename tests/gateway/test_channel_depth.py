"""A deposit counts at the depth and by the nodes that its own value asks for, also where its caller has left: it pays the calls that follow."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.kit.channel_sales import ChannelCaller, ChannelSales
from tests.kit.gateway import CHAIN, open_gateway
from tollway.ledger.records import CallState

PRICE = 10_000
SMALL, LARGE = 500_000, 2_000_000
BLOCKS = 3
"""Of a payment of one dollar or more; one block of a smaller one."""


@pytest.fixture
async def gateway() -> AsyncIterator[ChannelSales]:
    async with open_gateway(kind=ChannelSales, settle_wait_s=0.2) as small:
        assert isinstance(small, ChannelSales)
        rules = replace(small.rules[CHAIN], confirmations=((0, 1), (10**9, BLOCKS)))
        small.rules[CHAIN] = rules
        await small.channel_networks.refresh()
        await small.publish()
        yield small


@pytest.mark.parametrize(("deposit", "blocks"), [(SMALL, 1), (LARGE, BLOCKS)])
async def test_recovery_counts_a_deposit_at_the_depth_of_its_value(
    gateway: ChannelSales, deposit: int, blocks: int
) -> None:
    caller = ChannelCaller.funded(gateway, 10**8)
    gateway.stop_mining()
    answer = await caller.open(deposit, ceiling=PRICE)
    assert (answer.status, answer.problem["code"]) == (503, "payment_outcome_unknown")
    gateway.chain.mine_sent(CHAIN)
    states = []
    for _ in range(BLOCKS):
        await gateway.settlement.sweep()
        (call,) = await gateway.history()
        states.append(call.state)
        gateway.chain.bury(CHAIN, 1)
    assert states == [CallState.SETTLING] * (blocks - 1) + [CallState.CONSUMED] * (BLOCKS - blocks + 1)
