"""A payer who deposits and refunds in a loop spends the gas of the listing: once its budget is spent no deposit is sent, and channels with money go on."""

from collections.abc import AsyncIterator

import pytest

from tests.kit.channel_sales import ChannelCaller, ChannelSales
from tests.kit.gateway import CHAIN, open_gateway

PRICE = 10_000
DEPOSIT = 1_000_000
BUDGET_WEI = 10**18


@pytest.fixture
async def gateway() -> AsyncIterator[ChannelSales]:
    async with open_gateway(kind=ChannelSales, lookups_per_minute=1_000) as small:
        assert isinstance(small, ChannelSales)
        await small.channel_networks.refresh()
        await small.publish()
        yield small


async def test_no_deposit_is_sent_once_the_gas_of_its_listing_is_spent(gateway: ChannelSales) -> None:
    caller = ChannelCaller.funded(gateway, 10**8)
    assert (await caller.open(DEPOSIT, ceiling=PRICE)).status == 200
    listing = (await gateway.catalog.find(gateway.sample("api_quotes").id)).listing  # type: ignore[union-attr]  # published
    gateway.settlement.gas_budget.add_spent(CHAIN, listing.id, BUDGET_WEI)
    another = caller.signs(salt=b"\x01" * 32, deposit_salt=b"\x2d" * 32)
    refused = await another.open(DEPOSIT, ceiling=PRICE)
    assert (refused.status, refused.problem["reason"]) == (402, "rail_withdrawn")
    more = caller.signs(deposit_salt=b"\x3d" * 32)
    assert (await more.open(DEPOSIT, ceiling=2 * PRICE)).problem["reason"] == "rail_withdrawn"
    assert (gateway.transfers, gateway.served, await another.find_channel()) == (1, 1, None)
    assert (await caller.spend(2 * PRICE)).status == 200
