"""The signature with which a call runs again: it counts for that call, and its request answers no other caller."""

from collections.abc import AsyncIterator

import pytest

from tests.kit.asgi_exchange import Exchange, HeaderPairs
from tests.kit.gateway import InProcessGateway, open_gateway
from tests.kit.payer import has_terms
from tests.kit.upstream import hang_up, plain
from tollway.ledger.records import CallState

PRICE = 10_000
CREDIT = 5 * PRICE
TARGET = "/q"
STRANGER = ("203.0.113.99", 4444)
KEY = [("Idempotency-Key", "one")]


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway() as small:
        await small.publish()
        yield small
        await small.check_balanced()


async def ask(gateway: InProcessGateway, proof: HeaderPairs, *, is_stranger: bool = False) -> Exchange:
    exchange = gateway.open("GET", TARGET, proof)
    if is_stranger:
        exchange.scope["client"] = STRANGER
    return await gateway.run(exchange)


async def fail(gateway: InProcessGateway, proof: HeaderPairs) -> None:
    """The call has no outcome."""
    gateway.upstream.answer = hang_up
    assert (await ask(gateway, proof)).status == 504
    gateway.upstream.answer = plain(b"rare")


def assert_used(answer: Exchange, call: Exchange) -> None:
    assert (answer.status, answer.problem["code"]) == (401, "nonce_reused")
    assert answer.problem["callId"] == call.headers["tollway-call-id"]
    assert not has_terms(answer)


@pytest.mark.parametrize("key", [[], KEY], ids=["without a key", "under a key"])
@pytest.mark.parametrize("first", ["plain", "bound"])
async def test_the_signed_request_of_a_repeat_counts_once(
    gateway: InProcessGateway, first: str, key: HeaderPairs
) -> None:
    payment = await gateway.pay(CREDIT)
    if first == "plain":
        await fail(gateway, [*gateway.plain_proof(payment.tx_hash), *key])
    else:
        await fail(gateway, [*gateway.bound_proof(payment.tx_hash, target=TARGET), *key])
    proof = gateway.bound_proof(payment.tx_hash, target=TARGET)
    repeated = await ask(gateway, [*proof, *key])
    assert (repeated.status, repeated.body) == (200, b"rare")
    for _ in range(2):
        assert_used(await ask(gateway, proof, is_stranger=True), repeated)
    assert await gateway.remaining_units(payment) == CREDIT - PRICE
    assert gateway.served == 2


async def test_the_signed_request_of_a_served_call_takes_no_repeat_of_the_next_one(
    gateway: InProcessGateway,
) -> None:
    payment = await gateway.pay(CREDIT)
    served_proof = gateway.bound_proof(payment.tx_hash, target=TARGET)
    served = await ask(gateway, served_proof)
    await fail(gateway, gateway.bound_proof(payment.tx_hash, target=TARGET))
    assert_used(await ask(gateway, served_proof, is_stranger=True), served)
    states = sorted(call.state for call in await gateway.history())
    assert states == [CallState.CONSUMED, CallState.UNKNOWN]
    again = await ask(gateway, gateway.bound_proof(payment.tx_hash, target=TARGET))
    assert (again.status, again.body) == (200, b"rare")
    assert await gateway.remaining_units(payment) == CREDIT - 2 * PRICE


async def test_a_bound_repeat_of_a_plain_call_ends_the_plain_form(gateway: InProcessGateway) -> None:
    payment = await gateway.pay(CREDIT)
    await fail(gateway, gateway.plain_proof(payment.tx_hash))
    assert (await ask(gateway, gateway.bound_proof(payment.tx_hash, target=TARGET))).status == 200
    answer = await ask(gateway, gateway.plain_proof(payment.tx_hash), is_stranger=True)
    assert (answer.status, answer.problem["reason"]) == (400, "bound_signature_required")
    assert await gateway.remaining_units(payment) == CREDIT - PRICE
