"""A listing changes its payTo under a channel, and clients write addresses in either case: the channel stays the one of its config."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.channel_payer import Json
from tests.kit.channel_sales import ChannelCaller, ChannelSales
from tests.kit.gateway import open_gateway
from tollway.ids import Address
from tollway.payments.channel_wire import ChannelReason

PRICE = 10_000
DEPOSIT = 1_000_000
OTHER = Address(b"\xee" * 20)


@pytest.fixture
async def gateway() -> AsyncIterator[ChannelSales]:
    async with open_gateway(kind=ChannelSales, lookups_per_minute=1_000) as small:
        assert isinstance(small, ChannelSales)
        await small.channel_networks.refresh()
        await small.publish()
        yield small


@pytest.fixture
async def opened(gateway: ChannelSales) -> ChannelCaller:
    caller = ChannelCaller.funded(gateway, 10**8)
    assert (await caller.open(DEPOSIT, ceiling=PRICE)).status == 200
    return caller


def in_lower_case(content: Json) -> None:
    config: dict[str, Any] = content["payload"]["channelConfig"]
    config.update({name: value.lower() for name, value in config.items() if isinstance(value, str)})


def in_upper_case(content: Json) -> None:
    config: dict[str, Any] = content["payload"]["channelConfig"]
    config.update(
        {name: f"0x{value[2:].upper()}" for name, value in config.items() if isinstance(value, str)}
    )
    voucher = content["payload"]["voucher"]
    voucher["channelId"] = "0x" + voucher["channelId"][2:].upper()


@pytest.mark.parametrize("write", [in_lower_case, in_upper_case])
async def test_the_case_of_an_address_makes_no_other_channel(
    gateway: ChannelSales, opened: ChannelCaller, write: Any
) -> None:
    answer = await opened.spend(2 * PRICE, edit=write)
    assert answer.status == 200, answer.body
    assert len(gateway.ledger.rows.channels) == 1
    assert (await opened.channel()).announced == 2 * PRICE


async def test_a_channel_pays_its_receiver_until_another_pay_to_alone_counts(
    gateway: ChannelSales, opened: ChannelCaller
) -> None:
    listing = (await gateway.catalog.find(gateway.sample("api_quotes").id)).listing  # type: ignore[union-attr]  # published
    await gateway.revise(listing, pay_to=OTHER)
    assert (await opened.spend(2 * PRICE)).status == 200
    await gateway.pass_time(gateway.limits.payee_memory_s * 1000 + 1_000)
    refused = await opened.spend(3 * PRICE)
    assert (refused.status, refused.problem["reason"]) == (402, ChannelReason.RECEIVER.value)
    assert gateway.served == 2
    channel = await opened.channel()
    assert (channel.config.receiver, channel.taken_units) == (opened.signer.receiver, 2 * PRICE)
