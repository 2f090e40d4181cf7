"""A call that runs again costs the price of its claim: `Tollway-Max-Price` is compared with that price, on every rail."""

from dataclasses import replace

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import PAY_TO, HeaderPairs, InProcessGateway
from tests.kit.payer import Payer
from tests.kit.upstream import hang_up, plain
from tollway.ids import Address
from tollway.ledger.records import CallState, Dialect
from tollway.money import Price

HOUR_MS = 3_600_000
ELSEWHERE = Address(b"\x9e" * 20)
TARGET = "/quote?x=1"


def most(price: str) -> tuple[str, str]:
    return "Tollway-Max-Price", price


async def lose(gateway: InProcessGateway, proof: HeaderPairs, *, price: str, later: str) -> Exchange:
    """A GET at `price` whose response is lost; an hour later the price of its listing is `later`."""
    listing = await gateway.publish(price=Price.parse(price))
    gateway.upstream.answer = hang_up
    lost = await gateway.ask("GET", TARGET, proof)
    assert (lost.status, lost.headers["tollway-payment-state"]) == (504, "held")
    gateway.upstream.answer = plain()
    await gateway.revise(listing, price=Price.parse(later))
    gateway.now_ms += HOUR_MS
    return lost


@pytest.mark.parametrize("rest", [0, 100_000])
@pytest.mark.parametrize("maximum", ["0.01", "0.02"])
async def test_a_held_call_runs_again_although_the_current_price_is_above_the_maximum(
    gateway: InProcessGateway, rest: int, maximum: str
) -> None:
    payment = await gateway.pay(10_000 + rest)
    proof = gateway.plain_proof(payment.tx_hash)
    lost = await lose(gateway, proof, price="0.01", later="0.05")
    again = await gateway.ask("GET", TARGET, [*proof, most(maximum)])
    assert (again.status, again.headers["tollway-price"]) == (200, "0.01 USDC")
    assert again.headers["tollway-call-id"] == lost.headers["tollway-call-id"]
    assert await gateway.remaining_units(payment) == rest
    assert (await gateway.ask("GET", TARGET, [*proof, most(maximum)])).status in (409, 412)
    assert gateway.served == 2


@pytest.mark.parametrize("rest", [0, 100_000])
@pytest.mark.parametrize("later", ["0.01", "0.05", "0.07"])
async def test_a_held_call_above_the_maximum_stays_held(
    gateway: InProcessGateway, rest: int, later: str
) -> None:
    proof = await gateway.plain_payment(50_000 + rest)
    lost = await lose(gateway, proof, price="0.05", later=later)
    answer = await gateway.ask("GET", TARGET, [*proof, most("0.02")])
    assert (answer.status, answer.problem["code"]) == (412, "price_above_max")
    assert "0.05 USDC" in answer.problem["detail"]
    assert answer.problem["callId"] == lost.headers["tollway-call-id"]
    assert answer.problem["paymentState"] == "held"
    assert gateway.served == 1
    (call,) = await gateway.history()
    assert (call.state, call.price_units) == (CallState.UNKNOWN, 50_000)


async def test_the_held_call_of_a_second_payment_is_found(gateway: InProcessGateway) -> None:
    """One transaction pays two wallets, both of which the listing has named as `payTo`."""
    held = gateway.sample_payment(value_units=10_000, payee=ELSEWHERE)
    await gateway.ledger.record_payments([held], now_ms=gateway.now_ms)
    listing = await gateway.publish(pay_to=ELSEWHERE)
    proof = gateway.plain_proof(held.tx_hash)
    gateway.upstream.answer = hang_up
    lost = await gateway.ask("GET", TARGET, proof)
    gateway.upstream.answer = plain()
    await gateway.revise(listing, price=Price.parse("0.05"), pay_to=PAY_TO)
    gateway.now_ms += HOUR_MS
    other = replace(held, payee=PAY_TO, value_units=70_000, block_time=gateway.now_ms // 1000)
    (payment,) = await gateway.ledger.record_payments([other], now_ms=gateway.now_ms)
    gateway.transaction_verifier.forget(held.tx_hash)
    again = await gateway.ask("GET", TARGET, [*proof, most("0.01")])
    assert (again.status, again.headers["tollway-call-id"]) == (200, lost.headers["tollway-call-id"])
    assert payment.remaining_units == 70_000
    assert (await gateway.ask("GET", "/other", [*proof, most("0.01")])).status == 412


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_request_without_a_held_call_is_compared_with_the_current_price(
    gateway: InProcessGateway, method: str
) -> None:
    proof = gateway.plain_proof((await gateway.pay(100_000)).tx_hash)
    await lose(gateway, proof, price="0.01", later="0.05")
    other = await gateway.ask(method, "/other", [*proof, most("0.02")])
    assert (other.status, other.problem["code"]) == (412, "price_above_max")
    assert "callId" not in other.problem
    assert gateway.served == 1


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_an_authorisation_is_compared_with_the_price_that_it_pays(
    gateway: InProcessGateway, dialect: Dialect
) -> None:
    payer = Payer.funded(gateway, 100_000)
    await gateway.publish()
    shown = payer.show(await payer.quote(), dialect)
    gateway.upstream.answer = hang_up
    lost = await gateway.ask("GET", TARGET, shown)
    assert lost.headers["tollway-payment-state"] == "held"
    gateway.upstream.answer = plain()
    refused = await gateway.ask("GET", TARGET, [*shown, most("0.009")])
    assert (refused.status, refused.problem["code"]) == (412, "price_above_max")
    assert refused.problem["paymentState"] == "held"
    assert (gateway.served, gateway.earned) == (1, 0)
    again = await gateway.ask("GET", TARGET, [*shown, most("0.01")])
    assert again.status == 200
