"""Metered calls through two gateways of one database: each takes what its response reported, and the audit computes every price again."""

import asyncio
import json
import random

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.metered_gateway import TOTAL_TOKENS, make_metering
from tests.kit.storage_faults import Fault, FaultyGateway, open_faulty_gateways
from tests.kit.upstream import Answerer, Arrived, plain, raw
from tests.kit.waits import DEADLINE_S, until
from tollway.gateway import proxy
from tollway.ledger.records import CallState, Payment
from tollway.storage.engine.database import Database

MAXIMUM = 10_000
BASE = 1_000
UNIT = 100
CREDIT = 10_000_000
JSON = "Content-Type: application/json"
EVENTS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"
END = b"0\r\n\r\n"
CALLS = 96
AT_ONCE = 32
SEED = 20


def used(tokens: int, *, padding: int = 0) -> bytes:
    return json.dumps({"text": "x" * padding, "usage": {"total_tokens": tokens}}).encode()


def chunk(tokens: int) -> bytes:
    content = b"data: " + used(tokens) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(content), content)


async def sell(gateways: list[FaultyGateway]) -> Payment:
    await gateways[0].gateway.publish("api_metered", metering=make_metering(TOTAL_TOKENS))
    return await gateways[0].gateway.pay(CREDIT)


async def ask(at: FaultyGateway, payment: Payment, target: str, *headers: tuple[str, str]) -> Exchange:
    proof = at.gateway.plain_proof(payment.tx_hash)
    return await at.gateway.ask("GET", target, [*proof, *headers], listing="api_metered")


async def taken_units(at: FaultyGateway, payment: Payment) -> int:
    """Once the price of every call is written."""

    async def is_measured() -> bool:
        return not any(call.is_unmeasured for call in await at.gateway.history())

    await until(is_measured)
    await at.gateway.check_balanced()
    return CREDIT - await at.gateway.remaining_units(payment)


@pytest.mark.parametrize(
    ("answer", "units"),
    [
        (plain(used(7), headers=(JSON,)), BASE + 7 * UNIT),
        (plain(used(0), headers=(JSON,)), BASE),
        (plain(used(10**17), headers=(JSON,)), MAXIMUM),
        (plain(b"{}", headers=(JSON,)), MAXIMUM),
        (plain(used(7, padding=100_000), headers=(JSON,)), BASE + 7 * UNIT),
        (raw(EVENTS, chunk(3), chunk(7), END), BASE + 7 * UNIT),
        (raw(EVENTS, chunk(3), close=True), BASE),
        (plain(used(7), status=500, headers=(JSON,)), 0),
    ],
    ids=["short", "zero", "clamped", "absent", "long", "events", "cut", "not charged"],
)
@pytest.mark.parametrize("key", [(), (("Idempotency-Key", "one"),)], ids=["plain", "keyed"])
async def test_a_call_takes_what_its_response_reported(
    database: Database, answer: Answerer, units: int, key: tuple[tuple[str, str], ...]
) -> None:
    async with open_faulty_gateways(database, ["one", "two"]) as gateways:
        payment = await sell(gateways)
        gateways[0].gateway.upstream.answer = answer
        await ask(gateways[0], payment, "/first", *key)
        assert await taken_units(gateways[0], payment) == units


async def test_a_repeat_at_another_gateway_keeps_the_price_of_the_first_run(database: Database) -> None:
    async with open_faulty_gateways(database, ["one", "two"]) as gateways:
        payment = await sell(gateways)
        gateways[0].gateway.upstream.answer = raw(EVENTS, chunk(3), close=True)
        await ask(gateways[0], payment, "/cut")
        gateways[0].gateway.upstream.answer = plain(used(9), headers=(JSON,))
        again = await ask(gateways[1], payment, "/cut")
        assert (again.body, again.headers["tollway-price"]) == (used(9), "0.001 USDC")
        assert await taken_units(gateways[1], payment) == BASE


@pytest.mark.parametrize("landed", [False, True], ids=["lost", "landed"])
@pytest.mark.parametrize(
    "again_with",
    [plain(used(7), headers=(JSON,)), raw(EVENTS, chunk(3), chunk(7), END)],
    ids=["short", "events"],
)
async def test_the_repeat_of_a_stream_that_was_dropped_before_its_price_is_measured(
    database: Database, again_with: Answerer, landed: bool
) -> None:
    """The end of the first run, `landed` or lost, had no price yet."""
    async with open_faulty_gateways(database, ["one"]) as gateways:
        payment = await sell(gateways)
        one = gateways[0]
        stream = raw(EVENTS, chunk(9), END)

        async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
            at_head, one.at_head = one.at_head, lambda: None
            at_head()
            await stream(arrived, writer)

        one.gateway.upstream.answer = answer
        one.fail_at(Fault(number=1, landed=landed))
        lost = await ask(one, payment, "/dropped")
        assert (lost.status, lost.headers["tollway-payment-state"]) == (503, "held")
        one.reconnect()
        one.gateway.upstream.answer = again_with
        again = await ask(one, payment, "/dropped")
        assert (again.status, again.headers["tollway-call-id"]) == (200, lost.headers["tollway-call-id"])
        await one.ledger.wait_closed(timeout_s=DEADLINE_S)
        (record,) = await one.gateway.history()
        assert record.actual_units == BASE + 7 * UNIT
        assert await taken_units(one, payment) == BASE + 7 * UNIT


async def test_a_stored_answer_of_another_gateway_has_the_price_that_was_taken(database: Database) -> None:
    async with open_faulty_gateways(database, ["one", "two"]) as gateways:
        payment, key = await sell(gateways), ("Idempotency-Key", "one")
        gateways[0].gateway.upstream.answer = raw(EVENTS, chunk(3), chunk(7), END)
        first = await ask(gateways[0], payment, "/stored", key)
        again = await ask(gateways[1], payment, "/stored", key)
        assert (again.headers["idempotency-replayed"], again.body) == ("true", first.body)
        assert again.headers["tollway-price"] == "0.0017 USDC"
        assert await taken_units(gateways[1], payment) == BASE + 7 * UNIT


async def test_many_calls_at_once_take_the_sum_of_their_prices(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every kind of response, at two gateways, and some callers leave."""
    # Also a slow dial is followed by the claim.
    monkeypatch.setattr(proxy, "DISCONNECT_CHECK_AFTER_S", DEADLINE_S)
    dice = random.Random(SEED)
    kinds = {f"/{number}": dice.randrange(6) for number in range(CALLS)}

    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        target = arrived.target.removeprefix("/base")
        tokens = int(target[1:]) % 90
        await {
            0: plain(used(tokens), headers=(JSON,)),
            1: plain(used(tokens, padding=70_000), headers=(JSON,)),
            2: raw(EVENTS, chunk(1), chunk(tokens), END),
            3: raw(EVENTS, chunk(tokens), close=True),
            4: plain(used(tokens), status=503, headers=(JSON,)),
            5: raw(EVENTS, chunk(1), chunk(tokens), END),
        }[kinds[target]](arrived, writer)

    def price_of(target: str) -> int:
        by_tokens = BASE + int(target[1:]) % 90 * UNIT
        return {3: BASE, 4: 0}.get(kinds[target], by_tokens)

    async with open_faulty_gateways(database, ["one", "two"], failed_calls_per_window=CALLS) as gateways:
        payment = await sell(gateways)
        gateways[0].gateway.upstream.answer = answer
        may_run = asyncio.Semaphore(AT_ONCE)

        async def run(number: int) -> None:
            at, target = gateways[number % 2].gateway, f"/{number}"
            proof = at.plain_proof(payment.tx_hash)
            exchange = at.open("GET", target, proof, listing="api_metered")
            if kinds[target] == 5:
                exchange.leave()
            async with may_run:
                await at.run(exchange)

        async with asyncio.TaskGroup() as group:
            for number in range(CALLS):
                group.create_task(run(number))
        assert await taken_units(gateways[0], payment) == sum(map(price_of, kinds))
        assert {call.state for call in await gateways[0].gateway.history()} == {
            CallState.CONSUMED,
            CallState.RELEASED,
        }
