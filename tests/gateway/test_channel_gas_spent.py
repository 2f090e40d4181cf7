"""Where the gas for deposits is missing no deposit is sent, and channels with money go on: their clients pay what a 402 offers."""

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
    assert (refused.status, refused.problem["code"], refused.problem["reason"]) == (
        503,
        "channel_busy",
        "gas",
    )
    assert (refused.problem["paymentState"], refused.headers["retry-after"]) == ("none", "60")
    more = caller.signs(deposit_salt=b"\x3d" * 32)
    assert (await more.open(DEPOSIT, ceiling=2 * PRICE)).problem["reason"] == "gas"
    assert (gateway.transfers, gateway.served, await another.find_channel()) == (1, 1, None)
    assert (await caller.spend(2 * PRICE)).status == 200


async def test_below_the_reserve_of_claims_a_402_still_offers_the_channels_that_are_open(
    gateway: ChannelSales,
) -> None:
    caller = ChannelCaller.funded(gateway, 10**8)
    assert (await caller.open(DEPOSIT, ceiling=PRICE)).status == 200
    (_, before) = await gateway.offers()
    gateway.settlement.gas_budget.reserve_claims(CHAIN, gas=10**15)
    (offered,) = await gateway.offers()
    assert offered == before
    assert (await caller.spend(2 * PRICE)).status == 200
    refused = await caller.signs(deposit_salt=b"\x2d" * 32).open(DEPOSIT, ceiling=3 * PRICE)
    assert (refused.status, refused.problem["reason"]) == (503, "gas")
    assert (gateway.transfers, gateway.served) == (1, 2)
    gateway.settlement.gas_budget.reserve_claims(CHAIN, gas=0)
    again = await caller.signs(deposit_salt=b"\x2d" * 32).open(DEPOSIT, ceiling=3 * PRICE)
    assert (again.status, gateway.transfers) == (200, 2)


async def test_an_outage_of_the_nodes_refuses_a_deposit_and_no_voucher(gateway: ChannelSales) -> None:
    caller = ChannelCaller.funded(gateway, 10**8)
    assert (await caller.open(DEPOSIT, ceiling=PRICE)).status == 200
    gateway.chain.disconnect(CHAIN)
    gateway.now_ms += 61_000
    refused = await caller.signs(deposit_salt=b"\x2d" * 32).open(DEPOSIT, ceiling=2 * PRICE)
    assert (refused.status, refused.problem["code"]) == (503, "chain_unavailable")
    assert [one["scheme"] for one in await gateway.offers()] == ["batch-settlement"]
    assert (await caller.spend(2 * PRICE)).status == 200
