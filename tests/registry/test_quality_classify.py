"""The class of an ended call in the quality of its listing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.gateway import InProcessGateway, open_gateway
from tests.kit.payer import Payer
from tests.kit.upstream import Answerer, Arrived, hang_up, plain, raw, say_nothing
from tests.kit.waits import until
from tollway.money import Price
from tollway.registry.listing import ChargeOn
from tollway.registry.quality import FAILED, Bucket, classify

GOOD, BAD, NOTHING = "good", "bad", "nothing"


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway(body_rate_grace_s=0.2, chunk_idle_s=0.3) as small:
        yield small


def told(gateway: InProcessGateway) -> list[str]:
    """How the calls since the last look were counted."""
    return [
        BAD if bucket == FAILED else GOOD
        for (listing_id, bucket), count in gateway.tally.take_counts().items()
        for _ in range(count)
        if listing_id == "api_quotes"
    ]


async def ask_paid(gateway: InProcessGateway, answer: Answerer) -> list[str]:
    gateway.upstream.answer = answer
    await gateway.ask(headers=await gateway.plain_payment())
    return told(gateway)


# upstream's status -> with chargeOn success, with chargeOn answered
STATUSES = {
    200: (GOOD, GOOD),
    204: (GOOD, GOOD),
    304: (GOOD, GOOD),
    302: (NOTHING, GOOD),  # one that costs nothing is no service, and no failure
    400: (NOTHING, BAD),
    404: (NOTHING, BAD),
    422: (NOTHING, BAD),
    401: (BAD, BAD),
    402: (BAD, BAD),
    403: (BAD, BAD),
    408: (BAD, BAD),
    429: (BAD, BAD),
    500: (BAD, BAD),
    503: (BAD, BAD),
}


@pytest.mark.parametrize("charge_on", list(ChargeOn))
async def test_a_response_counts_by_its_status_and_its_charge(
    gateway: InProcessGateway, charge_on: ChargeOn
) -> None:
    await gateway.publish(charge_on=charge_on)
    for status, wanted in STATUSES.items():
        found = await ask_paid(gateway, plain(b"", status=status))
        expected = wanted[charge_on is ChargeOn.ANSWERED]
        assert found == ([] if expected == NOTHING else [expected]), status


async def test_the_latency_is_the_upstreams(gateway: InProcessGateway) -> None:
    await gateway.publish()

    async def slow(arrived: object, writer: Any) -> None:
        gateway.now_ms += 7
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    gateway.upstream.answer = slow
    await gateway.ask(headers=await gateway.plain_payment())
    assert gateway.tally.take_counts() == {("api_quotes", 8): 1}


@pytest.mark.parametrize(
    "answer", [hang_up, say_nothing, raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")], ids=["reset", "silence", "no HTTP"]
)
async def test_a_call_without_a_response_is_a_failure(gateway: InProcessGateway, answer: Answerer) -> None:
    await gateway.publish(timeout_s=0.05)
    assert await ask_paid(gateway, answer) == [BAD]


async def test_a_repeat_is_not_counted(gateway: InProcessGateway) -> None:
    await gateway.publish()
    proof = await gateway.plain_payment()
    gateway.upstream.answer = hang_up
    assert (await gateway.ask(headers=proof)).status == 504
    gateway.upstream.answer = plain()
    assert (await gateway.ask(headers=proof)).status == 200
    assert told(gateway) == [BAD]


async def test_a_stored_response_is_not_counted(gateway: InProcessGateway) -> None:
    await gateway.publish()
    proof = [*await gateway.plain_payment(50_000), ("Idempotency-Key", "one")]
    answers = [await gateway.ask(headers=proof) for _ in range(2)]
    assert answers[1].headers["idempotency-replayed"] == "true"
    assert told(gateway) == [GOOD]


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("own", ["provider", "pay_to"])
async def test_calls_that_the_provider_pays_for_are_not_counted(
    gateway: InProcessGateway, own: str, status: int
) -> None:
    await gateway.publish(**{own: gateway.wallet.address})
    payment = await gateway.pay()
    if own == "pay_to":
        new = gateway.sample_payment(payee=gateway.wallet.address)
        (payment,) = await gateway.ledger.record_payments([new], now_ms=gateway.now_ms)
    gateway.upstream.answer = plain(status=status)
    answer = await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
    assert answer.status == status
    assert told(gateway) == []


async def test_free_unpaid_and_refused_calls_are_not_counted(gateway: InProcessGateway) -> None:
    await gateway.publish()
    assert (await gateway.ask()).status == 402
    await gateway.publish("api_free", price=Price.parse("0"))
    assert (await gateway.ask(listing="api_free")).status == 200
    assert gateway.tally.take_counts() == {}


async def test_a_disconnected_caller_is_not_counted(gateway: InProcessGateway) -> None:
    await gateway.publish()
    gateway.upstream.is_body_read_first = False
    gateway.upstream.answer = say_nothing
    proof = await gateway.plain_payment()
    exchange = gateway.open("POST", "", proof, [b"x" * 70_000], is_chunked=True, is_open=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(gateway.run(exchange))
        await until(lambda: len(gateway.upstream.arrived) == 1)
        exchange.leave()
    assert gateway.outcomes == ["abandoned"]
    assert told(gateway) == []


async def test_a_failure_of_the_ledger_is_not_counted(gateway: InProcessGateway) -> None:
    await gateway.publish()
    payment = await gateway.pay()

    async def lose_ledger(arrived: object, writer: Any) -> None:
        gateway.ledger.away = True
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    gateway.upstream.answer = lose_ledger
    answer = await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
    assert answer.problem["code"] == "payment_outcome_unknown"
    assert told(gateway) == []


async def test_an_authorisation_counts_like_a_transaction_once_it_is_settled(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish()
    payer = Payer.funded(gateway, 1_000_000)
    assert (await payer.buy()).status == 200
    assert told(gateway) == [GOOD]
    gateway.upstream.answer = plain(status=500)
    assert (await payer.buy()).status == 500
    assert told(gateway) == [BAD]

    async def empty_wallet(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        payer.fund(0)
        await plain()(arrived, writer)

    gateway.upstream.answer = empty_wallet
    assert (await payer.buy()).status == 402
    assert told(gateway) == []


@pytest.mark.parametrize("error", ["upstream_timeout", "upstream_bad_response", "upstream_unreachable"])
async def test_an_incomplete_request_is_not_counted(gateway: InProcessGateway, error: str) -> None:
    """Its price is given back, and that it was not may have been its caller's doing."""
    listing = await gateway.publish()

    def count(payment_state: str) -> Bucket | None:
        return classify(
            listing,
            gateway.wallet.address,
            payment_state=payment_state,
            upstream_status=None,
            upstream_latency_ms=None,
            error=error,
        )

    assert count("released") is None
    assert count("held") == FAILED
