"""A call that runs again under its claim costs what it did: `Tollway-Max-Price` is compared with that, on every rail."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import PAY_TO, HeaderPairs, SmallGateway, open_gateway
from tests.kit.payer import SmallPayer, earned, served
from tests.kit.upstream import hang_up, plain
from tollway.identifiers import Address
from tollway.ledger.authorization import Dialect
from tollway.ledger.call import CallState
from tollway.money import Price

HOUR_MS = 3_600_000
ELSEWHERE = Address(b"\x9e" * 20)
TARGET = "/quote?x=1"


def most(price: str) -> tuple[str, str]:
    return "Tollway-Max-Price", price


@pytest.fixture
async def gate() -> AsyncIterator[SmallGateway]:
    async with open_gateway() as small:
        yield small


async def lose(gate: SmallGateway, proof: HeaderPairs, *, price: str, later: str) -> Exchange:
    """A GET at `price` whose answer is lost; an hour later its listing asks `later`."""
    listing = await gate.publish(price=Price.parse(price))
    gate.upstream.answer = hang_up
    lost = await gate.ask("GET", TARGET, proof)
    assert (lost.status, lost.headers["tollway-payment-state"]) == (504, "held")
    gate.upstream.answer = plain()
    await gate.revise(listing, price=Price.parse(later))
    gate.now_ms += HOUR_MS
    return lost


@pytest.mark.parametrize("rest", [0, 100_000])
@pytest.mark.parametrize("maximum", ["0.01", "0.02"])
async def test_a_held_call_runs_again_although_the_current_price_is_above_the_maximum(
    gate: SmallGateway, rest: int, maximum: str
) -> None:
    payment = await gate.pay(10_000 + rest)
    proof = gate.plain_proof(payment.tx_hash)
    lost = await lose(gate, proof, price="0.01", later="0.05")
    again = await gate.ask("GET", TARGET, [*proof, most(maximum)])
    assert (again.status, again.headers["tollway-price"]) == (200, "0.01 USDC")
    assert again.headers["tollway-call-id"] == lost.headers["tollway-call-id"]
    assert await gate.rest_units(payment) == rest
    assert (await gate.ask("GET", TARGET, [*proof, most(maximum)])).status in (409, 412)
    assert served(gate) == 2


@pytest.mark.parametrize("rest", [0, 100_000])
@pytest.mark.parametrize("later", ["0.01", "0.05", "0.07"])
async def test_a_held_call_above_the_maximum_stays_held(gate: SmallGateway, rest: int, later: str) -> None:
    payment = await gate.pay(50_000 + rest)
    proof = gate.plain_proof(payment.tx_hash)
    lost = await lose(gate, proof, price="0.05", later=later)
    answer = await gate.ask("GET", TARGET, [*proof, most("0.02")])
    assert (answer.status, answer.problem["code"]) == (412, "price_above_max")
    assert "0.05 USDC" in answer.problem["detail"]
    assert answer.problem["callId"] == lost.headers["tollway-call-id"]
    assert answer.problem["paymentState"] == "held"
    assert served(gate) == 1
    (call,) = await gate.history()
    assert (call.state, call.price_units) == (CallState.UNKNOWN, 50_000)


async def test_the_held_call_of_a_second_payment_is_found(gate: SmallGateway) -> None:
    """One transaction pays two wallets, both of which the listing has named as `payTo`."""
    held = gate.sample_payment(value_units=10_000, payee=ELSEWHERE)
    await gate.book.record_payments([held], now_ms=gate.now_ms)
    listing = await gate.publish(pay_to=ELSEWHERE)
    proof = gate.plain_proof(held.tx_hash)
    gate.upstream.answer = hang_up
    lost = await gate.ask("GET", TARGET, proof)
    gate.upstream.answer = plain()
    await gate.revise(listing, price=Price.parse("0.05"), pay_to=PAY_TO)
    gate.now_ms += HOUR_MS
    other = replace(held, payee=PAY_TO, value_units=70_000, block_time=gate.now_ms // 1000)
    (payment,) = await gate.book.record_payments([other], now_ms=gate.now_ms)
    gate.till.forget(held.tx_hash)
    again = await gate.ask("GET", TARGET, [*proof, most("0.01")])
    assert (again.status, again.headers["tollway-call-id"]) == (200, lost.headers["tollway-call-id"])
    assert payment.rest_units == 70_000
    assert (await gate.ask("GET", "/other", [*proof, most("0.01")])).status == 412


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_request_without_a_held_call_is_compared_with_the_current_price(
    gate: SmallGateway, method: str
) -> None:
    proof = gate.plain_proof((await gate.pay(100_000)).tx_hash)
    await lose(gate, proof, price="0.01", later="0.05")
    other = await gate.ask(method, "/other", [*proof, most("0.02")])
    assert (other.status, other.problem["code"]) == (412, "price_above_max")
    assert "callId" not in other.problem
    assert served(gate) == 1


@pytest.mark.parametrize("dialect", list(Dialect))
async def test_an_authorisation_is_compared_with_the_price_that_it_pays(
    gate: SmallGateway, dialect: Dialect
) -> None:
    payer = SmallPayer(buyer=gate.buyer, gate=gate)
    payer.fund(100_000)
    await gate.publish()
    shown = payer.show(await payer.quote(), dialect)
    gate.upstream.answer = hang_up
    lost = await gate.ask("GET", TARGET, shown)
    assert lost.headers["tollway-payment-state"] == "held"
    gate.upstream.answer = plain()
    refused = await gate.ask("GET", TARGET, [*shown, most("0.009")])
    assert (refused.status, refused.problem["code"]) == (412, "price_above_max")
    assert refused.problem["paymentState"] == "held"
    assert (served(gate), earned(gate)) == (1, 0)
    again = await gate.ask("GET", TARGET, [*shown, most("0.01")])
    assert again.status == 200
