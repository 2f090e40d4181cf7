"""What a call says of its listing once it has ended."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.gateway import USDC, SmallGateway, open_gateway
from tests.kit.payer import SmallPayer
from tests.kit.upstream import Answerer, Arrived, hang_up, plain, raw, say_nothing, until
from tollway.gateway.appraisal import appraise
from tollway.gateway.trip import Ticket
from tollway.identifiers import CallId
from tollway.ledger.book import Claimed, Close
from tollway.ledger.call import CallState, Rail
from tollway.money import Price
from tollway.registry.listing import ChargeOn
from tollway.registry.quality_tally import FAILED

GOOD, BAD, NOTHING = "good", "bad", "nothing"


@pytest.fixture
async def gate() -> AsyncIterator[SmallGateway]:
    async with open_gateway(body_rate_grace_s=0.2, chunk_idle_s=0.3) as small:
        yield small


def told(gate: SmallGateway) -> list[str]:
    """How the calls since the last look were counted."""
    return [
        BAD if bucket == FAILED else GOOD
        for (listing_id, bucket), count in gate.tally.take().items()
        for _ in range(count)
        if listing_id == "api_quotes"
    ]


async def ask_paid(gate: SmallGateway, answer: Answerer) -> list[str]:
    gate.upstream.answer = answer
    payment = await gate.pay()
    await gate.ask(headers=gate.plain_proof(payment.tx_hash))
    return told(gate)


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
async def test_an_answer_counts_by_its_status_and_by_whether_it_cost(
    gate: SmallGateway, charge_on: ChargeOn
) -> None:
    await gate.publish(charge_on=charge_on)
    for status, wanted in STATUSES.items():
        found = await ask_paid(gate, plain(b"", status=status))
        expected = wanted[charge_on is ChargeOn.ANSWERED]
        assert found == ([] if expected == NOTHING else [expected]), status


async def test_the_latency_is_the_upstreams(gate: SmallGateway) -> None:
    await gate.publish()

    async def slow(arrived: object, writer: Any) -> None:
        gate.now_ms += 7
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    gate.upstream.answer = slow
    payment = await gate.pay()
    await gate.ask(headers=gate.plain_proof(payment.tx_hash))
    assert gate.tally.take() == {("api_quotes", 8): 1}


@pytest.mark.parametrize(
    "answer", [hang_up, say_nothing, raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")], ids=["reset", "silence", "no HTTP"]
)
async def test_a_call_without_an_answer_failed(gate: SmallGateway, answer: Answerer) -> None:
    await gate.publish(timeout_s=0.05)
    assert await ask_paid(gate, answer) == [BAD]


async def test_a_repeat_counts_no_second_time(gate: SmallGateway) -> None:
    await gate.publish()
    payment = await gate.pay()
    proof = gate.plain_proof(payment.tx_hash)
    gate.upstream.answer = hang_up
    assert (await gate.ask(headers=proof)).status == 504
    gate.upstream.answer = plain()
    assert (await gate.ask(headers=proof)).status == 200
    assert told(gate) == [BAD]


async def test_a_stored_answer_counts_no_second_time(gate: SmallGateway) -> None:
    await gate.publish()
    payment = await gate.pay(50_000)
    proof = [*gate.plain_proof(payment.tx_hash), ("Idempotency-Key", "one")]
    answers = [await gate.ask(headers=proof) for _ in range(2)]
    assert answers[1].headers["idempotency-replayed"] == "true"
    assert told(gate) == [GOOD]


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("own", ["provider", "pay_to"])
async def test_calls_that_the_provider_pays_for_count_nothing(
    gate: SmallGateway, own: str, status: int
) -> None:
    await gate.publish(**{own: gate.buyer.address})
    payment = await gate.pay()
    if own == "pay_to":
        new = gate.sample_payment(payee=gate.buyer.address)
        (payment,) = await gate.book.record_payments([new], now_ms=gate.now_ms)
    gate.upstream.answer = plain(status=status)
    answer = await gate.ask(headers=gate.plain_proof(payment.tx_hash))
    assert answer.status == status
    assert told(gate) == []


async def test_free_unpaid_and_refused_calls_count_nothing(gate: SmallGateway) -> None:
    await gate.publish()
    assert (await gate.ask()).status == 402
    await gate.publish("api_free", price=Price.parse("0"))
    assert (await gate.ask(listing="api_free")).status == 200
    assert gate.tally.take() == {}


async def test_a_caller_that_left_says_nothing(gate: SmallGateway) -> None:
    await gate.publish()
    gate.upstream.is_body_read_first = False
    gate.upstream.answer = say_nothing
    payment = await gate.pay()
    proof = gate.plain_proof(payment.tx_hash)
    exchange = gate.open("POST", "", proof, [b"x" * 70_000], is_chunked=True, is_open=True)
    async with asyncio.TaskGroup() as group:
        group.create_task(gate.run(exchange))
        await until(lambda: len(gate.upstream.arrived) == 1)
        exchange.leave()
    assert gate.outcomes == ["abandoned"]
    assert told(gate) == []


async def test_books_that_break_off_say_nothing(gate: SmallGateway) -> None:
    await gate.publish()
    payment = await gate.pay()

    async def lose_books(arrived: object, writer: Any) -> None:
        gate.book.away = True
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    gate.upstream.answer = lose_books
    answer = await gate.ask(headers=gate.plain_proof(payment.tx_hash))
    assert answer.problem["code"] == "payment_outcome_unknown"
    assert told(gate) == []


async def test_an_authorisation_counts_like_a_transaction_once_it_is_settled(gate: SmallGateway) -> None:
    await gate.publish()
    payer = SmallPayer(buyer=gate.buyer, gate=gate)
    payer.fund(1_000_000)
    assert (await payer.buy()).status == 200
    assert told(gate) == [GOOD]
    gate.upstream.answer = plain(status=500)
    assert (await payer.buy()).status == 500
    assert told(gate) == [BAD]

    async def empty_wallet(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        payer.fund(0)
        await plain()(arrived, writer)

    gate.upstream.answer = empty_wallet
    assert (await payer.buy()).status == 402
    assert told(gate) == []


@pytest.mark.parametrize("error", ["upstream_timeout", "upstream_bad_response", "upstream_unreachable"])
async def test_a_request_that_was_not_wholly_sent_says_nothing(gate: SmallGateway, error: str) -> None:
    """Its price is given back, and that it was not may have been its caller's doing."""
    listing = await gate.publish()
    payment = await gate.pay()
    ticket = Ticket(
        call_id=CallId("call_1"),
        claimed=Claimed(epoch=1, rest_units=0, rail=Rail.TX),
        price=listing.price,
        currency=listing.currency,
        charge_on=listing.charge_on,
        asset=USDC,
        units=10_000,
        payer=payment.payer,
        transaction=payment.tx_hash,
    )
    close = Close(
        call_id=ticket.call_id,
        epoch=1,
        after=CallState.RELEASED,
        http_status=None,
        upstream_status=None,
        latency_ms=5,
        upstream_latency_ms=None,
        error=error,
    )
    assert appraise(listing, ticket, close, after=CallState.RELEASED) is None
    assert appraise(listing, ticket, close, after=CallState.UNKNOWN) == FAILED
