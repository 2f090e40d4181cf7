"""A call is decided at its head. What has changed when its body has arrived counts after a second: the call is then decided again, with the
body in hand.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from starlette.types import Message

from tests.kit.asgi_exchange import Exchange, HeaderPairs
from tests.kit.gateway import NOW_MS, InProcessGateway, open_gateway
from tests.kit.payer import Payer
from tollway.gateway.pipeline import SLOW_BODY_S
from tollway.ids import Address
from tollway.ledger.records import Dialect
from tollway.money import Price

BODY = b"a body that arrives in two parts"
OLD, NEW = Price.parse("0.01"), Price.parse("10")
KEY = ("Idempotency-Key", "a key of this request")
TX, X402 = "tx", "x402"


class ClockedGateway(InProcessGateway):
    """Its monotonic clock is the one that a test sets forward."""

    def monotonic(self) -> float:  # type: ignore[override]  # a bound method in place of a function
        return self.now_ms / 1000


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway(kind=ClockedGateway) as small:
        yield small


class Upload:
    """Slow calls of one caller."""

    def __init__(self, gateway: InProcessGateway) -> None:
        self.gateway = gateway
        self.payer = Payer(wallet=gateway.wallet, gateway=gateway)
        self.payer.fund(20_000_000)

    async def prove(self, rail: str, *, units: int = 1_000_000, is_keyed: bool = False) -> HeaderPairs:
        key = [KEY] if is_keyed else []
        if rail == X402:
            asked = await self.payer.quote("POST", "/q")
            return [*self.payer.show(asked, Dialect.X402_V2), *key]
        payment = await self.gateway.pay(units)
        return [*self.gateway.bound_proof(payment.tx_hash, method="POST", target="/q", body=BODY), *key]

    async def send(self, proof: HeaderPairs, meanwhile: Callable[[], Awaitable[object]]) -> Exchange:
        """A call whose body stops in its middle while `meanwhile` happens."""
        exchange = self.gateway.open("POST", "/q", proof, [BODY[:10]], length=len(BODY), is_open=True)
        received = 0

        async def receive() -> Message:
            nonlocal received
            received += 1
            if received == 2:
                await meanwhile()
                exchange.give(BODY[10:])
                exchange.finish()
            return await exchange.receive()

        await self.gateway.calls(exchange.scope, receive, exchange.send)
        assert received >= 2
        return exchange


async def pass_time(gateway: InProcessGateway, seconds: float) -> None:
    gateway.now_ms += round(seconds * 1000)
    gateway.chain.mine(gateway.rules[next(iter(gateway.rules))].chain_id, time=gateway.now_ms // 1000)
    await gateway.settlement.gas_budget.refresh()


def suspend(gateway: InProcessGateway) -> dict[str, Any]:
    return {"suspended_ms": gateway.now_ms}


CHANGES: dict[str, tuple[Any, int, str]] = {
    "suspended": (suspend, 503, "api_paused"),
    "retired": (lambda gateway: {"retired_ms": gateway.now_ms}, 410, "api_retired"),
    "paused": (lambda gateway: {"status": "paused"}, 503, "api_paused"),
    "another method": (lambda gateway: {"methods": ("GET",)}, 405, "method_not_allowed"),
    "nothing that decides": (lambda gateway: {"description": "as before"}, 200, ""),
}
forms = pytest.mark.parametrize("is_keyed", [False, True], ids=["no key", "key"])
rails = pytest.mark.parametrize("rail", [TX, X402])


@rails
@forms
@pytest.mark.parametrize("change", CHANGES)
async def test_a_listing_that_changed_during_a_slow_body_decides_the_call_again(
    gateway: InProcessGateway, rail: str, is_keyed: bool, change: str
) -> None:
    make_change, status, code = CHANGES[change]
    upload = Upload(gateway)
    listing = await gateway.publish(price=OLD)

    async def change_listing() -> None:
        await pass_time(gateway, SLOW_BODY_S + 0.001)
        await gateway.revise(listing, **make_change(gateway))

    answer = await upload.send(await upload.prove(rail, is_keyed=is_keyed), change_listing)
    assert answer.status == status
    if status == 200:
        assert (answer.headers["tollway-payment-state"], gateway.upstream.arrived[-1].body) == (
            "charged",
            BODY,
        )
        return
    assert (answer.problem["code"], answer.problem["paymentState"]) == (code, "none")
    assert (gateway.served, await gateway.history()) == (0, ())
    await gateway.check_balanced()


@rails
@forms
@pytest.mark.parametrize(("slow_s", "is_old_price"), [(2, True), (590, True), (620, False)])
async def test_a_price_that_rose_during_a_slow_body_counts_after_ten_minutes(
    rail: str, is_keyed: bool, slow_s: int, is_old_price: bool
) -> None:
    async with open_gateway(kind=ClockedGateway) as gateway:
        upload = Upload(gateway)
        listing = await gateway.publish(price=OLD, timeout_s=10)
        proof = await prove_for_long(upload, rail, is_keyed=is_keyed)
        before = gateway.served

        async def raise_price() -> None:
            await gateway.revise(listing, price=NEW)
            await pass_time(gateway, slow_s)

        answer = await upload.send(proof, raise_price)
        if is_old_price:
            assert (answer.status, answer.headers["tollway-price"]) == (200, "0.01 USDC")
            return
        assert (answer.status, answer.problem["payment"]["amount"]) == (402, "10")
        assert len(await gateway.history()) == gateway.served == before
        await gateway.check_balanced()


async def prove_for_long(upload: Upload, rail: str, *, is_keyed: bool) -> HeaderPairs:
    """A proof that outlives the upload: an authorisation of 20 minutes, or a plain signature of a payment that has paid its first call."""
    key = [KEY] if is_keyed else []
    if rail == X402:
        asked = await upload.payer.quote("POST", "/q")
        return [*upload.payer.show(asked, Dialect.X402_V2, valid_before=NOW_MS // 1000 + 1_200), *key]
    payment = await upload.gateway.pay(1_000_000)
    proof = upload.gateway.plain_proof(payment.tx_hash)
    assert (await upload.gateway.ask(headers=proof)).status == 200
    return [*proof, *key]


@rails
async def test_a_body_within_a_second_is_decided_once(gateway: InProcessGateway, rail: str) -> None:
    upload = Upload(gateway)
    listing = await gateway.publish(price=OLD)

    async def change_listing() -> None:
        await pass_time(gateway, SLOW_BODY_S)
        await gateway.revise(listing, **suspend(gateway))

    assert (await upload.send(await upload.prove(rail), change_listing)).status == 200


@rails
@forms
async def test_a_wallet_that_is_blocked_during_a_slow_body_is_refused(
    gateway: InProcessGateway, rail: str, is_keyed: bool
) -> None:
    upload = Upload(gateway)
    listing = await gateway.publish(price=OLD)

    async def block() -> None:
        await pass_time(gateway, 2)
        gateway.blocked.add(gateway.wallet.address)
        await gateway.revise(listing, description="as before")

    answer = await upload.send(await upload.prove(rail, is_keyed=is_keyed), block)
    assert answer.problem["code"] == "wallet_blocked"


async def test_another_payee_of_a_slow_call_gets_the_money_that_was_sent_to_the_old_one(
    gateway: InProcessGateway,
) -> None:
    """An old payee counts for a day; the call that was decided again spends the payment that it showed."""
    upload = Upload(gateway)
    listing = await gateway.publish(price=OLD)

    async def change_payee() -> None:
        await pass_time(gateway, 2)
        await gateway.revise(listing, pay_to=Address(b"\xdd" * 20))

    assert (await upload.send(await upload.prove(TX), change_payee)).status == 200
    (call,) = await gateway.history()
    assert call.price == "0.01"


async def test_a_remembered_decision_does_not_outlive_a_slow_body() -> None:
    """Its prices end at a moment, which a slow body can pass."""
    async with open_gateway(kind=ClockedGateway) as gateway:
        upload = Upload(gateway)
        listing = await gateway.publish(price=OLD)
        proof = await gateway.plain_payment(1_000_000)
        await pass_time(gateway, 60)
        await gateway.revise(listing, price=NEW)
        await pass_time(gateway, 540)
        for _ in range(4):
            answer = await gateway.ask("POST", "/q", proof, [BODY])
            assert answer.headers["tollway-price"] == "0.01 USDC"
        decided = gateway.decisions.decided
        answer = await upload.send(proof, partial(pass_time, gateway, 120))
        assert (answer.status, answer.problem["code"]) == (402, "payment_insufficient")
        assert gateway.decisions.decided == decided


@pytest.mark.parametrize("is_suspended", [False, True])
async def test_a_stored_response_is_delivered_by_the_listing_as_it_is_after_a_slow_body(
    gateway: InProcessGateway, is_suspended: bool
) -> None:
    upload = Upload(gateway)
    listing = await gateway.publish(price=OLD)
    proof = await upload.prove(TX, is_keyed=True)
    first = await gateway.ask("POST", "/q", proof, [BODY])
    assert first.status == 200

    async def change_listing() -> None:
        await pass_time(gateway, 2)
        change = suspend(gateway) if is_suspended else {"retired_ms": gateway.now_ms}
        await gateway.revise(listing, **change)

    answer = await upload.send(proof, change_listing)
    if is_suspended:
        assert answer.problem["code"] == "api_paused"
    else:
        assert (answer.status, answer.headers["idempotency-replayed"], answer.body) == (
            200,
            "true",
            first.body,
        )
