"""What a 402 offers of channels: at which price, with which deposit, and on which networks."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.channel_payer import Json
from tests.kit.channel_sales import AUTHORIZER, TARGET, WITHDRAW_DELAY_S, ChannelSales
from tests.kit.gateway import CHAIN, USDC, open_gateway
from tests.kit.metered_gateway import TOTAL_TOKENS, make_metering
from tests.kit.payer import decode_header
from tollway.ids import Address, ChainId, ChannelId
from tollway.ledger.channels import ChannelFacts
from tollway.money import Asset, Price


@pytest.fixture
async def gateway() -> AsyncIterator[ChannelSales]:
    async with open_gateway(kind=ChannelSales) as small:
        assert isinstance(small, ChannelSales)
        await small.channel_networks.refresh()
        yield small


async def test_a_fixed_price_offers_a_channel_after_the_single_authorisation(
    gateway: ChannelSales,
) -> None:
    await gateway.publish()
    exact, channel = await gateway.offers()
    assert (exact["scheme"], channel["scheme"]) == ("exact", "batch-settlement")
    assert channel == exact | {
        "scheme": "batch-settlement",
        "extra": exact["extra"]
        | {
            "minDeposit": "1000000",
            "receiverAuthorizer": AUTHORIZER.address,
            "withdrawDelay": WITHDRAW_DELAY_S,
        },
    }


async def test_a_metered_price_offers_a_channel_alone(gateway: ChannelSales) -> None:
    await gateway.publish(metering=make_metering(TOTAL_TOKENS))
    (channel,) = await gateway.offers()
    assert (channel["scheme"], channel["amount"]) == ("batch-settlement", "10000")


@pytest.mark.parametrize(
    ("price", "native_price_nano", "deposit_min"),
    [
        ("0.0001", 10**13, 286_000),  # ten times the gas of a channel
        ("0.0005", 10**13, 500_000),  # a thousand calls
        ("0.01", 10**13, 1_000_000),  # at most one unit of the currency
        ("0.01", 10**15, 5_000_000),  # no more than five units of it for gas
        ("5", 10**13, 5_000_000),  # the call itself
        ("5.000001", 10**13, None),  # above the unclaimed maximum
        ("0", 10**13, None),
    ],
)
async def test_the_offered_deposit_follows_the_price_and_the_gas(
    gateway: ChannelSales, price: str, native_price_nano: int, deposit_min: int | None
) -> None:
    rules = replace(gateway.channel_rules, native_price_nano=native_price_nano)
    gateway.channel_rail.offers.channel_rules = {CHAIN: rules}
    await gateway.publish(price=Price.parse(price))
    answer = await gateway.ask("GET", TARGET)
    if deposit_min is None:
        assert "batch-settlement" not in answer.headers.get("payment-required", "")
        assert all(one["scheme"] == "exact" for one in _accepts(answer))
        assert '"channel"' not in answer.body.decode()
        return
    channel = _accepts(answer)[-1]
    assert channel["amount"] == str(USDC.floor_to_ledger(round(float(price) * 10**6)))
    assert channel["extra"]["minDeposit"] == str(deposit_min)
    (option,) = (one for one in answer.problem["payment"]["options"] if one["rail"] == "channel")
    assert [option[name] for name in ("amount", "payTo", "maxTimeoutSeconds", "extra")] == [
        channel[name] for name in ("amount", "payTo", "maxTimeoutSeconds", "extra")
    ]


def _accepts(answer: Exchange) -> list[Json]:
    value = answer.headers.get("payment-required")
    accepts: list[Json] = [] if value is None else decode_header(value.encode())["accepts"]
    return accepts


@dataclass(frozen=True)
class FixedNetworks:
    """The one network of channels, as the test says."""

    wei: int | None = 11 * 10**6
    is_open: bool = True
    authorizers: tuple[Address, ...] = (Address.parse(AUTHORIZER.address),)

    async def fetch_channel(self, chain_id: ChainId, channel_id: ChannelId, asset: Asset) -> ChannelFacts:
        raise AssertionError("a 402 reads no channel")

    def gas_price_wei(self, chain_id: ChainId) -> int | None:
        return self.wei

    def is_available(self, chain_id: ChainId) -> bool:
        return self.is_open

    def is_paid_out(self, chain_id: ChainId, receiver: Address, token: Address) -> bool:
        return True


@pytest.mark.parametrize(
    ("networks", "is_offered"),
    [(FixedNetworks(), True), (FixedNetworks(wei=None), True), (FixedNetworks(is_open=False), False)],
)
async def test_no_channel_is_offered_while_the_network_is_not_available(
    gateway: ChannelSales, networks: FixedNetworks, is_offered: bool
) -> None:
    """The gas price decides deposits alone."""
    await gateway.publish()
    gateway.channel_rail.offers.chains = networks
    assert [one["scheme"] for one in await gateway.offers()][1:] == ["batch-settlement"] * is_offered


async def test_no_channel_is_offered_on_a_network_without_rules(
    gateway: ChannelSales,
) -> None:
    await gateway.publish()
    gateway.channel_rail.offers.channel_rules = {}
    assert [one["scheme"] for one in await gateway.offers()] == ["exact"]
