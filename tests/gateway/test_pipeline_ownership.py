"""The setting that requires ownership: before the origin is proved, a listing serves no call and sends no 402."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.gateway import NOW_MS, InProcessGateway, open_gateway
from tollway.ids import ListingId
from tollway.money import Price


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway(only_verified=True) as small:
        yield small


async def test_a_call_without_payment_is_refused_before_any_terms(gateway: InProcessGateway) -> None:
    await gateway.publish()
    answer = await gateway.ask()
    assert (answer.status, answer.problem["code"]) == (403, "ownership_unverified")
    assert "payment-required" not in answer.headers
    assert answer.problem["paymentState"] == "none"
    gateway.verified.add(ListingId("api_quotes"))
    assert (await gateway.ask()).status == 402


async def test_a_presented_payment_is_not_touched(gateway: InProcessGateway) -> None:
    await gateway.publish()
    payment = await gateway.pay()
    answer = await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
    assert (answer.status, answer.problem["code"]) == (403, "ownership_unverified")
    assert await gateway.remaining_units(payment) == payment.value_units
    assert gateway.upstream.arrived == []
    gateway.verified.add(ListingId("api_quotes"))
    assert (await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))).status == 200


async def test_free_listings_are_not_served_either(gateway: InProcessGateway) -> None:
    await gateway.publish(price=Price.parse("0"))
    assert (await gateway.ask()).problem["code"] == "ownership_unverified"
    assert gateway.upstream.arrived == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"retired_ms": NOW_MS}, "api_retired"),
        ({"suspended_ms": NOW_MS}, "api_paused"),
        ({"status": "paused"}, "api_paused"),
        ({"methods": ("POST",)}, "method_not_allowed"),
    ],
)
async def test_a_closed_listing_is_reported_first(
    gateway: InProcessGateway, changes: dict[str, Any], code: str
) -> None:
    await gateway.publish(**changes)
    assert (await gateway.ask()).problem["code"] == code


async def test_without_the_setting_ownership_is_not_checked() -> None:
    async with open_gateway() as gateway:
        await gateway.publish()
        assert (await gateway.ask()).status == 402
