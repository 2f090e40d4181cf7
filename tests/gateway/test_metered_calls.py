"""Metered calls through a whole gateway: the maximum is claimed, and the response decides what is taken."""

import asyncio
import json
import threading
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from starlette.types import Message
from structlog.testing import capture_logs

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import InProcessGateway, open_gateway
from tests.kit.metered_gateway import (
    BODY_BYTES,
    TOTAL_TOKENS,
    USAGE_HEADER,
    MeteredGateway,
    make_metering,
)
from tests.kit.narrowing import existing
from tests.kit.upstream import Answerer, Arrived, hang_up, held, plain, raw
from tests.kit.waits import until
from tollway.errors import Refusal
from tollway.gateway.metered_response import Meter, MeteredBodies
from tollway.gateway.usage import UsageReader
from tollway.ids import ListingId
from tollway.ledger.ledger import Finish
from tollway.ledger.records import CallState, Delivery, Payment
from tollway.limits import DEFAULT_LIMITS, KIB, MIB
from tollway.money import Price
from tollway.registry.quality import COSTS_FROM, cost_bucket, number_operation

MAXIMUM = 10_000
BASE = 1_000
UNIT = 100
CREDIT = 5 * MAXIMUM
JSON = "Content-Type: application/json"
SSE = b"Content-Type: text/event-stream\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
KEY = ("Idempotency-Key", "one")


@pytest.fixture
async def gateway() -> AsyncIterator[MeteredGateway]:
    async with open_metered() as small:
        yield small


@asynccontextmanager
async def open_metered(**limits: Any) -> AsyncIterator[MeteredGateway]:
    async with open_gateway(kind=MeteredGateway, **limits) as small:
        assert isinstance(small, MeteredGateway)
        await small.publish(metering=make_metering(TOTAL_TOKENS))
        yield small


def used(tokens: object, *, padding: int = 0) -> bytes:
    return json.dumps({"text": "x" * padding, "usage": {"total_tokens": tokens}}).encode()


def event(tokens: object) -> bytes:
    return b"data: " + used(tokens) + b"\n\n"


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


def stream(*contents: bytes, head: bytes = SSE) -> Answerer:
    """A chunked answer that ends."""
    return raw(CHUNKED + head + b"\r\n", *(chunk(one) for one in contents), b"0\r\n\r\n")


async def call(
    gateway: InProcessGateway, payment: Payment, *headers: tuple[str, str], **more: Any
) -> Exchange:
    return await gateway.ask(headers=[*gateway.plain_proof(payment.tx_hash), *headers], **more)


async def taken_units(gateway: InProcessGateway, payment: Payment) -> int:
    await gateway.check_balanced()
    return CREDIT - await gateway.remaining_units(payment)


async def finish_of(gateway: InProcessGateway) -> Finish:
    (record, *_) = await gateway.history()
    return existing(gateway.ledger.rows.calls[record.id].finish)


# ---------------------------------------------------------------------- the price at the head


@pytest.mark.parametrize(
    ("answer", "units", "kind"),
    [
        (plain(used(7), headers=(JSON,)), BASE + 7 * UNIT, "measured"),
        (plain(used(0), headers=(JSON,)), BASE, "measured"),
        (plain(used(90), headers=(JSON,)), MAXIMUM, "measured"),
        (plain(used(91), headers=(JSON,)), MAXIMUM, "clamped"),
        (plain(used(10**17), headers=(JSON,)), MAXIMUM, "clamped"),
        (plain(used(None), headers=(JSON,)), MAXIMUM, "absent"),
        (plain(used(1.5), headers=(JSON,)), MAXIMUM, "absent"),
        (plain(used(-1), headers=(JSON,)), MAXIMUM, "absent"),
        (plain(b"{}", headers=(JSON,)), MAXIMUM, "absent"),
        (plain(used(7), headers=(JSON, "Content-Encoding: gzip")), MAXIMUM, "absent"),
        (plain(used(7)), MAXIMUM, "absent"),
        (plain(event(7), headers=("Content-Type: text/event-stream",)), BASE + 7 * UNIT, "measured"),
        (plain(b"", status=204), BASE, "measured"),
    ],
)
async def test_a_short_answer_is_priced_before_its_head(
    gateway: MeteredGateway, answer: Answerer, units: int, kind: str
) -> None:
    payment = await gateway.pay(CREDIT)
    gateway.upstream.answer = answer
    exchange = await call(gateway, payment)
    assert exchange.headers["tollway-payment-state"] == "charged"
    assert exchange.headers["tollway-price"] == f"{units / 10**6:.6f}".rstrip("0") + " USDC"
    assert "tollway-price-max" not in exchange.headers
    assert (
        exchange.headers["tollway-credit-remaining"]
        == f"{(CREDIT - units) / 10**6:.6f}".rstrip("0") + " USDC"
    )
    assert (await taken_units(gateway, payment), gateway.usage_kinds) == (units, [kind])
    usage = existing((await finish_of(gateway)).usage)
    assert usage.actual_units == units


async def test_a_head_request_has_used_nothing(gateway: MeteredGateway) -> None:
    payment = await gateway.pay(CREDIT)
    gateway.upstream.answer = plain(used(7), headers=(JSON,))
    exchange = await call(gateway, payment, method="HEAD")
    assert exchange.headers["tollway-price"] == "0.001 USDC"
    assert await taken_units(gateway, payment) == BASE


@pytest.mark.parametrize("status", [400, 402, 429, 500])
async def test_an_answer_without_a_price_costs_nothing_also_where_it_reports_a_use(
    gateway: MeteredGateway, status: int
) -> None:
    payment = await gateway.pay(CREDIT)
    gateway.upstream.answer = plain(used(7), status=status, headers=(JSON,))
    exchange = await call(gateway, payment)
    assert (exchange.headers["tollway-payment-state"], "tollway-price" in exchange.headers) == (
        "released",
        False,
    )
    assert exchange.headers["tollway-price-max"] == "0.01 USDC"
    assert (await taken_units(gateway, payment), gateway.usage_kinds) == (0, [])


@pytest.mark.parametrize(("limit", "status"), [("0.01", 200), ("0.009999", 412)])
async def test_the_maximum_of_a_caller_holds_against_the_maximum_of_the_call(
    gateway: MeteredGateway, limit: str, status: int
) -> None:
    payment = await gateway.pay(CREDIT)
    gateway.upstream.answer = plain(used(0), headers=(JSON,))
    exchange = await call(gateway, payment, ("Tollway-Max-Price", limit))
    assert (exchange.status, gateway.served) == (status, int(status == 200))
    assert await taken_units(gateway, payment) == (BASE if status == 200 else 0)


async def test_the_receipt_of_a_short_answer_names_what_was_taken(gateway: MeteredGateway) -> None:
    payment = await gateway.pay(CREDIT)
    gateway.upstream.answer = plain(used(7), headers=(JSON,))
    exchange = await call(gateway, payment)
    receipt = json.loads(b64decode(exchange.headers["payment-response"]))
    assert receipt["amount"] == str(BASE + 7 * UNIT)


async def test_the_terms_decide_what_an_absent_usage_costs(gateway: MeteredGateway) -> None:
    payment = await gateway.pay(CREDIT)
    await gateway.publish("api_base", metering=make_metering(TOTAL_TOKENS, absent="base"))
    gateway.upstream.answer = plain(b"{}", headers=(JSON,))
    exchange = await call(gateway, payment, listing="api_base")
    assert exchange.headers["tollway-price"] == "0.001 USDC"
    assert await taken_units(gateway, payment) == BASE


@pytest.mark.parametrize("is_held", [False, True])
async def test_a_maximum_above_that_of_the_caller_is_named_as_one(
    gateway: MeteredGateway, is_held: bool
) -> None:
    payment = await gateway.pay(CREDIT)
    if is_held:
        gateway.upstream.answer = hang_up
        await call(gateway, payment, KEY)
    refused = await call(gateway, payment, KEY, ("Tollway-Max-Price", "0.005"))
    assert (refused.status, refused.problem["code"]) == (412, "price_above_max")
    assert refused.problem["detail"].startswith("The call costs up to 0.01 USDC, more than the 0.005 of")


async def test_of_several_formulas_the_least_price_is_taken(gateway: MeteredGateway) -> None:
    payment = await gateway.pay(CREDIT)
    listing = await gateway.publish("api_bytes", metering=make_metering(TOTAL_TOKENS))
    gateway.now_ms += 1_000
    bytes_priced = make_metering(BODY_BYTES, base="0.002", unit_price="0.000001")
    await gateway.revise(listing, metering=bytes_priced)
    gateway.upstream.answer = plain(body := used(50), headers=(JSON,))
    exchange = await call(gateway, payment, listing="api_bytes")
    assert await taken_units(gateway, payment) == 2_000 + len(body)
    assert exchange.status == 200


async def test_edits_in_a_row_raise_no_call_above_the_least_maximum(gateway: MeteredGateway) -> None:
    """The oldest of five formulas, which gives 90 units, is out. Its maximum still counts, and so does that of a fixed price."""
    payment = await gateway.pay(CREDIT)
    cheapest = make_metering(TOTAL_TOKENS, base="0", unit_price="0.000001")
    listing = await gateway.publish("api_edited", price=Price.parse("0.005"), metering=cheapest)
    for base in ("0.001", "0.002", "0.003", "0.004"):
        gateway.now_ms += 1_000
        listing = await gateway.revise(
            listing, price=Price.parse("0.01"), metering=make_metering(TOTAL_TOKENS, base=base)
        )
    gateway.upstream.answer = plain(used(90), headers=(JSON,))
    exchange = await call(gateway, payment, listing="api_edited")
    assert (exchange.status, exchange.headers["tollway-price"]) == (200, "0.005 USDC")
    assert (await taken_units(gateway, payment), gateway.usage_kinds) == (5_000, ["clamped"])


async def test_what_a_short_answer_used_is_written_with_its_close(gateway: MeteredGateway) -> None:
    """One write has both. A stream has its close at the head, and is marked as metered."""
    payment = await gateway.pay(CREDIT)
    for answer, is_written in [(plain(used(7), headers=(JSON,)), True), (stream(event(7)), False)]:
        gateway.upstream.answer = answer
        await call(gateway, payment, target=f"/{is_written}")
        (record, *_) = await gateway.history()
        close = existing(gateway.ledger.rows.calls[record.id].close)
        assert (close.is_metered, close.finish is not None) == (True, is_written)


async def test_calls_that_cost_nothing_count_as_free_calls() -> None:
    """Of that client address and that listing."""
    async with open_metered(free_calls_per_minute=2) as gateway:
        free_base = make_metering(TOTAL_TOKENS, base="0")
        await gateway.publish("api_base", metering=free_base)
        await gateway.publish("api_other", metering=free_base)
        payment = await gateway.pay(CREDIT)
        for tokens, target in [(0, "/1"), (5, "/2"), (0, "/3")]:
            gateway.upstream.answer = plain(used(tokens), headers=(JSON,))
            exchange = await call(gateway, payment, target=target, listing="api_base")
            assert exchange.headers["tollway-payment-state"] == "charged"
        refused = await call(gateway, payment, target="/4", listing="api_base")
        assert (refused.status, refused.problem["code"]) == (429, "rate_limited")
        assert refused.problem["rateLimit"]["policy"] == "free-calls"
        assert refused.problem["paymentState"] == "released"
        for elsewhere in ({"listing": "api_other"}, {"listing": "api_base", "client": "203.0.113.6"}):
            assert (await call(gateway, payment, target="/5", **elsewhere)).status == 200
        assert await taken_units(gateway, payment) == 5 * UNIT


async def test_the_log_names_the_price_that_was_taken() -> None:
    class LoggingGateway(MeteredGateway):
        call_log = "all"

    async with open_gateway(kind=LoggingGateway) as gateway:
        await gateway.publish(metering=make_metering(TOTAL_TOKENS))
        payment = await gateway.pay(CREDIT)
        prices: list[str] = []
        for answer in (plain(used(7), headers=(JSON,)), stream(event(7))):
            gateway.upstream.answer = answer
            with capture_logs() as lines:
                await call(gateway, payment, target=f"/{len(prices)}")
            prices += [line["price"] for line in lines if line["event"] == "call_ended"]
        assert prices == ["0.0017", "0.01"]  # at the head; the stream has its maximum


# ---------------------------------------------------------------------- the request


async def test_the_request_asks_for_a_whole_answer_without_a_coding(gateway: MeteredGateway) -> None:
    payment = await gateway.pay(CREDIT)
    forwarded = ("Accept-Encoding", "X-Usage-Units", "X-Mine")
    await gateway.publish("api_forwards", forward_headers=forwarded, metering=make_metering(USAGE_HEADER))
    asked = [
        ("Accept-Encoding", "gzip, br"),
        ("Range", "bytes=0-1"),
        ("If-Range", '"tag"'),
        ("X-Usage-Units", "0"),
        ("X-Mine", "kept"),
        ("Settlement-Overrides", '{"amount": "0"}'),
    ]
    await call(gateway, payment, *asked, listing="api_forwards")
    (arrived,) = gateway.upstream.arrived
    assert [value for name, value in arrived.headers if name.lower() == "accept-encoding"] == ["identity"]
    assert arrived.find("x-mine") == "kept"
    assert not arrived.names & {"range", "if-range", "x-usage-units", "settlement-overrides"}


async def test_a_fixed_price_forwards_a_range_as_before(gateway: MeteredGateway) -> None:
    payment = await gateway.pay(CREDIT)
    await gateway.publish("api_fixed")
    await call(gateway, payment, ("Range", "bytes=0-1"), listing="api_fixed")
    assert gateway.upstream.arrived[0].find("range") == "bytes=0-1"


@pytest.mark.parametrize("shows_header", [True, False])
@pytest.mark.parametrize("status", [200, 500])
async def test_the_usage_header_reaches_the_caller_only_where_the_terms_say_so(
    gateway: MeteredGateway, shows_header: bool, status: int
) -> None:
    payment = await gateway.pay(CREDIT)
    await gateway.publish("api_header", metering=make_metering(USAGE_HEADER, shows_header=shows_header))
    forged = ("Settlement-Overrides: {}", "Tollway-Price: 0 USDC", "PAYMENT-RESPONSE: x")
    gateway.upstream.answer = plain(status=status, headers=("X-Usage-Units: 3", *forged))
    exchange = await call(gateway, payment, listing="api_header")
    assert exchange.headers.get("x-usage-units") == ("3" if shows_header else None)
    assert "settlement-overrides" not in exchange.headers
    assert exchange.headers.get("payment-response") != "x"
    assert exchange.headers.get("tollway-price") == ("0.0013 USDC" if status == 200 else None)


# ---------------------------------------------------------------------- streams


@pytest.mark.parametrize(
    ("answer", "units"),
    [
        (stream(event(3), event(7), b"data: [DONE]\n\n"), BASE + 7 * UNIT),
        (stream(event(3), event(None)), BASE + 3 * UNIT),
        (stream(event(3)[:-1]), MAXIMUM),
        (stream(b"data: {}\n\n"), MAXIMUM),
        (stream(used(7), head=JSON.encode() + b"\r\n"), BASE + 7 * UNIT),
        (plain(used(7, padding=200_000), headers=(JSON,)), BASE + 7 * UNIT),
        (plain(used(7, padding=MIB), headers=(JSON,)), MAXIMUM),
        (
            plain(b"data: {}\n\n" * 9_000 + event(9), headers=("Content-Type: text/event-stream",)),
            BASE + 9 * UNIT,
        ),
    ],
    ids=[
        "events",
        "null at the end",
        "an event cut at the end",
        "no usage",
        "JSON without a length",
        "long JSON",
        "JSON too large to copy",
        "long events",
    ],
)
async def test_a_stream_holds_the_maximum_until_its_end_decides(
    gateway: MeteredGateway, answer: Answerer, units: int
) -> None:
    payment = await gateway.pay(CREDIT)
    gateway.upstream.answer = answer
    exchange = await call(gateway, payment)
    assert (exchange.headers["tollway-payment-state"], exchange.headers["tollway-price-max"]) == (
        "held",
        "0.01 USDC",
    )
    assert "tollway-price" not in exchange.headers
    assert exchange.is_ended
    assert await taken_units(gateway, payment) == units
    assert gateway.outcomes == ["charged"]


async def test_between_head_and_end_the_maximum_is_taken(gateway: MeteredGateway) -> None:
    payment = await gateway.pay(CREDIT)
    may_end = asyncio.Event()
    gateway.upstream.answer = held(may_end, CHUNKED + SSE + b"\r\n" + chunk(event(3)), b"0\r\n\r\n")
    exchange = gateway.open(headers=gateway.plain_proof(payment.tx_hash))
    async with asyncio.TaskGroup() as group:
        group.create_task(gateway.run(exchange))
        await until(lambda: event(3) in exchange.body)
        assert await taken_units(gateway, payment) == MAXIMUM
        may_end.set()
    assert await taken_units(gateway, payment) == BASE + 3 * UNIT


@pytest.mark.parametrize(
    "answer",
    [
        raw(
            b"HTTP/1.1 200 OK\r\n" + JSON.encode() + b"\r\nContent-Length: 900\r\n\r\n" + used(7), close=True
        ),
        raw(CHUNKED + SSE + b"\r\n" + chunk(event(7)), close=True),
        raw(b"HTTP/1.1 200 OK\r\n" + SSE + b"Content-Length: 100000\r\n\r\n" + event(7), close=True),
    ],
    ids=["short JSON", "chunked events", "long events"],
)
async def test_a_body_that_its_upstream_cuts_takes_the_base(
    gateway: MeteredGateway, answer: Answerer
) -> None:
    payment = await gateway.pay(CREDIT)
    gateway.upstream.answer = answer
    exchange = await call(gateway, payment)
    assert (exchange.headers["tollway-payment-state"], exchange.is_ended) == ("held", False)
    assert (await taken_units(gateway, payment), gateway.usage_kinds) == (BASE, ["base"])
    assert (await finish_of(gateway)).is_cut


OLD = b"HTTP/1.0 200 OK\r\n"


@pytest.mark.parametrize(
    ("answer", "units", "kind"),
    [
        (raw(OLD + JSON.encode() + b"\r\n\r\n" + used(7), close=True), BASE + 7 * UNIT, "measured"),
        (raw(OLD + JSON.encode() + b"\r\n\r\n{}", close=True), MAXIMUM, "absent"),
        (raw(OLD + JSON.encode() + b"\r\n\r\n" + used(7)[:-1], close=True), BASE, "base"),
        (raw(OLD + SSE + b"\r\n" + event(7), close=True), BASE + 7 * UNIT, "measured"),
        (raw(OLD + SSE + b"\r\n" + event(7) + event(8)[:-1], close=True), BASE, "base"),
        (stream(used(7)[:-1], head=JSON.encode() + b"\r\n"), MAXIMUM, "absent"),
    ],
)
async def test_a_body_that_ends_with_its_connection_takes_the_base_where_it_is_not_whole(
    gateway: MeteredGateway, answer: Answerer, units: int, kind: str
) -> None:
    """Its end cannot be told from a cut, so the body itself says whether it is whole. The last row has chunks: it is whole, and no JSON."""
    payment = await gateway.pay(CREDIT)
    gateway.upstream.answer = answer
    exchange = await call(gateway, payment)
    assert (exchange.headers["tollway-payment-state"], exchange.is_ended) == ("held", True)
    assert (await taken_units(gateway, payment), gateway.usage_kinds) == (units, [kind])


async def test_the_repeat_of_a_cut_answer_keeps_the_price_of_the_first(gateway: MeteredGateway) -> None:
    payment = await gateway.pay(CREDIT)
    gateway.upstream.answer = raw(CHUNKED + SSE + b"\r\n" + chunk(event(7)), close=True)
    await call(gateway, payment)
    gateway.upstream.answer = plain(used(9), headers=(JSON,))
    again = await call(gateway, payment)
    assert (again.status, again.body, gateway.served) == (200, used(9), 2)
    assert again.headers["tollway-price"] == "0.001 USDC"
    assert await taken_units(gateway, payment) == BASE
    assert gateway.usage_kinds == ["base"]


# ---------------------------------------------------------------------- callers that leave


async def leave_after(
    gateway: InProcessGateway, payment: Payment, seen: bytes, then: asyncio.Event | None, **more: Any
) -> Exchange:
    """The caller leaves once it has seen these bytes; then the upstream goes on."""
    exchange = gateway.open(headers=gateway.plain_proof(payment.tx_hash), **more)
    async with asyncio.TaskGroup() as group:
        group.create_task(gateway.run(exchange))
        await until(lambda: seen in exchange.body)
        exchange.leave()
        if then is not None:
            then.set()
    assert not exchange.is_ended
    return exchange


async def test_the_gateway_reads_on_for_a_caller_that_has_left(gateway: MeteredGateway) -> None:
    payment = await gateway.pay(CREDIT)
    may_end = asyncio.Event()
    gateway.upstream.answer = held(
        may_end, CHUNKED + SSE + b"\r\n" + chunk(event(3)), chunk(event(7)) + b"0\r\n\r\n"
    )
    await leave_after(gateway, payment, event(3), may_end)
    assert await taken_units(gateway, payment) == BASE + 7 * UNIT
    assert (await finish_of(gateway)).delivery is Delivery.PARTIAL


async def test_the_gateway_reads_on_for_a_caller_that_takes_no_byte() -> None:
    async with open_metered(write_stall_s=0.01) as gateway:
        payment, may_end = await gateway.pay(CREDIT), asyncio.Event()
        first, rest = CHUNKED + SSE + b"\r\n" + chunk(event(3)), chunk(event(7)) + b"0\r\n\r\n"
        gateway.upstream.answer = held(may_end, first, rest)
        exchange = gateway.open(headers=gateway.plain_proof(payment.tx_hash))

        async def send(message: Message) -> None:
            await exchange.send(message)
            if message.get("body"):
                may_end.set()
                await asyncio.Event().wait()

        await gateway.calls(exchange.scope, exchange.receive, send)
        assert not exchange.is_ended
        assert await taken_units(gateway, payment) == BASE + 7 * UNIT


async def test_a_caller_that_has_left_is_in_flight_until_the_end_of_its_answer() -> None:
    async with open_metered(in_flight_per_address_max=1) as gateway:
        payment, mine = await gateway.pay(CREDIT), "203.0.113.5"
        may_end = asyncio.Event()
        gateway.upstream.answer = held(may_end, CHUNKED + SSE + b"\r\n" + chunk(event(3)), b"0\r\n\r\n")
        exchange = gateway.open(headers=gateway.plain_proof(payment.tx_hash), client=mine)
        async with asyncio.TaskGroup() as group:
            group.create_task(gateway.run(exchange))
            await until(lambda: event(3) in exchange.body)
            exchange.leave()
            gateway.upstream.answer = plain(used(1), headers=(JSON,))
            assert (await call(gateway, payment, target="/other", client="203.0.113.6")).status == 200
            assert (await call(gateway, payment, target="/mine", client=mine)).status == 503
            may_end.set()
        assert (await call(gateway, payment, target="/mine", client=mine)).status == 200


async def pour_events(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
    """Each event says 3, and after two MiB 9, without an end."""
    writer.write(CHUNKED + SSE + b"\r\n")
    sent_bytes = 0
    while True:
        content = event(3 if sent_bytes <= 2 * MIB else 9) + b": " + b"x" * 1_000 + b"\n"
        writer.write(chunk(content))
        await writer.drain()
        sent_bytes += len(content)


async def test_it_reads_on_up_to_a_number_of_bytes_and_then_the_last_usage_counts() -> None:
    async with open_metered(metered_rest_bytes_max=100_000) as gateway:
        payment = await gateway.pay(CREDIT)
        gateway.upstream.answer = pour_events
        await leave_after(gateway, payment, event(3), None)
        assert await taken_units(gateway, payment) == BASE + 3 * UNIT


@pytest.mark.parametrize(
    ("content", "head", "units"),
    [
        (event(3), SSE, BASE + 3 * UNIT),
        (b"data: {}\n\n", SSE, MAXIMUM),
        (used(7), JSON.encode() + b"\r\n", MAXIMUM),
    ],
    ids=["a usage so far", "none so far", "JSON without its end"],
)
async def test_where_reading_on_ends_the_last_usage_counts(content: bytes, head: bytes, units: int) -> None:
    async with open_metered(metered_rest_bytes_max=0) as gateway:
        payment = await gateway.pay(CREDIT)
        may_go_on = asyncio.Event()
        gateway.upstream.answer = held(may_go_on, CHUNKED + head + b"\r\n" + chunk(content), chunk(b" "))
        await leave_after(gateway, payment, content, may_go_on)
        assert await taken_units(gateway, payment) == units


async def test_it_reads_on_for_the_timeout_of_the_listing(gateway: MeteredGateway) -> None:
    await gateway.publish("api_short", timeout_s=1, metering=make_metering(TOTAL_TOKENS))
    payment = await gateway.pay(CREDIT)
    gateway.upstream.answer = held(asyncio.Event(), CHUNKED + SSE + b"\r\n" + chunk(event(3)), b"")
    await leave_after(gateway, payment, event(3), None, listing="api_short")
    assert await taken_units(gateway, payment) == BASE + 3 * UNIT


async def test_a_response_that_a_shutdown_ends_takes_the_base(gateway: MeteredGateway) -> None:
    payment = await gateway.pay(CREDIT)
    gateway.upstream.answer = held(asyncio.Event(), CHUNKED + SSE + b"\r\n" + chunk(event(3)), b"")
    exchange = gateway.open(headers=gateway.plain_proof(payment.tx_hash))
    running = asyncio.create_task(gateway.run(exchange))  # noqa: TID251 - it is cancelled as a server does
    await until(lambda: event(3) in exchange.body)
    running.cancel()
    await asyncio.wait((running,))
    finish = await finish_of(gateway)
    assert (finish.delivery, gateway.usage_kinds) == (Delivery.PARTIAL, ["base"])
    assert await taken_units(gateway, payment) == BASE


async def test_a_shutdown_before_the_head_of_a_short_answer_charges_the_call(gateway: MeteredGateway) -> None:
    payment = await gateway.pay(CREDIT)
    head = b"HTTP/1.1 200 OK\r\n" + JSON.encode() + b"\r\nContent-Length: 900\r\n\r\n"
    gateway.upstream.answer = held(asyncio.Event(), head + used(7), b"")
    exchange = gateway.open(headers=gateway.plain_proof(payment.tx_hash))
    running = asyncio.create_task(gateway.run(exchange))  # noqa: TID251 - it is cancelled as a server does
    await until(lambda: gateway.served and gateway.transaction_rail.last.upstream_status == 200)
    running.cancel()
    await asyncio.wait((running,))
    (record,) = await gateway.history()
    row = gateway.ledger.rows.calls[record.id]
    assert (record.state, record.actual_units) == (CallState.CONSUMED, BASE)
    assert row.close is not None
    assert row.close.is_metered


# ---------------------------------------------------------------------- repeats under a key


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (plain(used(7), headers=(JSON,)), "tollway-price"),
        (stream(event(3), event(7)), "tollway-price-max"),
        (plain(used(7, padding=100_000), headers=(JSON,)), "tollway-price-max"),
    ],
    ids=["short", "events", "long"],
)
async def test_a_stored_answer_has_the_price_that_was_taken(
    gateway: MeteredGateway, answer: Answerer, name: str
) -> None:
    payment = await gateway.pay(CREDIT)
    gateway.upstream.answer = answer
    first = await call(gateway, payment, KEY)
    assert {"tollway-price", "tollway-price-max"} & first.headers.keys() == {name}
    gateway.upstream.answer = plain(used(80), headers=(JSON,))
    again = await call(gateway, payment, KEY)
    assert (again.headers["idempotency-replayed"], again.body) == ("true", first.body)
    assert (again.headers["tollway-price"], "tollway-price-max" in again.headers) == ("0.0017 USDC", False)
    assert (await taken_units(gateway, payment), gateway.served) == (BASE + 7 * UNIT, 1)


async def test_the_answer_of_a_caller_that_has_left_is_stored_with_its_price(gateway: MeteredGateway) -> None:
    payment, may_end = await gateway.pay(CREDIT), asyncio.Event()
    first, rest = CHUNKED + SSE + b"\r\n" + chunk(event(3)), chunk(event(7)) + b"0\r\n\r\n"
    gateway.upstream.answer = held(may_end, first, rest)
    exchange = gateway.open(headers=[*gateway.plain_proof(payment.tx_hash), KEY])
    async with asyncio.TaskGroup() as group:
        group.create_task(gateway.run(exchange))
        await until(lambda: event(3) in exchange.body)
        exchange.leave()
        may_end.set()
    again = await call(gateway, payment, KEY)
    assert (again.headers["idempotency-replayed"], again.body) == ("true", event(3) + event(7))
    assert again.headers["tollway-price"] == "0.0017 USDC"
    assert (await taken_units(gateway, payment), gateway.served) == (BASE + 7 * UNIT, 1)


async def test_a_shutdown_while_a_short_answer_is_stored_loses_no_price(
    gateway: MeteredGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    payment, is_storing = await gateway.pay(CREDIT), asyncio.Event()

    async def keep(*given: object, **more: object) -> None:
        is_storing.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(gateway.stored_responses, "keep", keep)
    gateway.upstream.answer = plain(used(7), headers=(JSON,))
    exchange = gateway.open(headers=[*gateway.plain_proof(payment.tx_hash), KEY])
    running = asyncio.create_task(gateway.run(exchange))  # noqa: TID251 - it is cancelled as a server does
    await until(is_storing.is_set)
    running.cancel()
    await asyncio.wait((running,))
    assert await taken_units(gateway, payment) == BASE + 7 * UNIT
    assert (await finish_of(gateway)).delivery is Delivery.PARTIAL


@pytest.mark.parametrize("base", ["0", "0.001"])
async def test_an_open_call_runs_again_by_the_formula_of_its_claim(
    gateway: MeteredGateway, base: str
) -> None:
    """Its listing has a fixed price by then."""
    listing = await gateway.publish("api_changed", metering=make_metering(TOTAL_TOKENS, base=base))
    payment = await gateway.pay(CREDIT)
    gateway.upstream.answer = hang_up
    lost = await call(gateway, payment, KEY, listing="api_changed")
    assert lost.problem["paymentState"] == "held"
    gateway.now_ms += 3_600_000
    await gateway.revise(listing, metering=None)
    gateway.now_ms += 3_600_000
    gateway.upstream.answer = plain(used(7), headers=(JSON,))
    again = await call(gateway, payment, KEY, listing="api_changed")
    assert again.headers["tollway-call-id"] == lost.problem["callId"]
    assert again.headers["tollway-price"] == ("0.0007 USDC" if base == "0" else "0.0017 USDC")


@pytest.mark.parametrize("key", [(), (KEY,)], ids=["plain", "keyed"])
async def test_an_open_call_hides_no_use_when_it_runs_again(
    gateway: MeteredGateway, key: tuple[tuple[str, str], ...]
) -> None:
    """Its listing has a fixed price by then, which would forward the range."""
    listing = await gateway.publish("api_changed", metering=make_metering(USAGE_HEADER))
    payment = await gateway.pay(MAXIMUM)
    gateway.upstream.answer = hang_up
    await call(gateway, payment, *key, listing="api_changed")
    gateway.now_ms += 3_600_000
    await gateway.revise(listing, metering=None, forward_headers=("X-Usage-Units",))
    gateway.now_ms += 3_600_000
    gateway.upstream.answer = plain(b"text", headers=("X-Usage-Units: 7",))
    hiding = (("Range", "bytes=0-"), ("Accept-Encoding", "gzip"), ("X-Usage-Units", "0"))
    again = await call(gateway, payment, *key, *hiding, listing="api_changed")
    assert (again.status, again.headers["tollway-price"]) == (200, "0.0017 USDC")
    arrived = gateway.upstream.arrived[-1]
    assert arrived.find("accept-encoding") == "identity"
    assert not arrived.names & {"range", "x-usage-units"}


# ---------------------------------------------------------------------- memory


async def test_a_call_without_room_for_its_copy_is_refused_before_its_claim() -> None:
    async with open_metered(metered_bodies_bytes_max=2 * DEFAULT_LIMITS.metered_body_bytes_max) as gateway:
        payment = await gateway.pay(CREDIT)
        may_answer = asyncio.Event()
        gateway.upstream.answer = held(may_answer, body=b"{}")
        running = [
            gateway.open(target=f"/{n}", headers=gateway.plain_proof(payment.tx_hash)) for n in range(2)
        ]
        async with asyncio.TaskGroup() as group:
            for exchange in running:
                group.create_task(gateway.run(exchange))
            await until(lambda: gateway.served == 2)
            refused = await call(gateway, payment, target="/third")
            assert (refused.status, refused.problem["code"]) == (503, "overloaded")
            assert refused.problem["paymentState"] == "none"
            assert refused.headers["retry-after"] == "1"
            assert len(await gateway.history()) == 2
            may_answer.set()


def test_an_address_takes_no_more_than_its_share_while_copies_are_scarce() -> None:
    limits = replace(DEFAULT_LIMITS, metered_bodies_bytes_max=8 * DEFAULT_LIMITS.metered_body_bytes_max)
    bodies = MeteredBodies(limits=limits)
    held_copies = [bodies.take_copy("192.0.2.1") for _ in range(5)]
    with pytest.raises(Refusal):
        bodies.take_copy("192.0.2.1")
    others = [bodies.take_copy(f"198.51.100.{number}") for number in range(3)]
    with pytest.raises(Refusal):
        bodies.take_copy("203.0.113.1")
    for copy in [*held_copies, *held_copies, *others]:  # twice gives back once
        copy.give_back()
    assert [bodies.take_copy(f"192.0.2.{number}") for number in range(8)]
    with pytest.raises(Refusal):
        bodies.take_copy("203.0.113.1")


@pytest.mark.parametrize(
    "answer",
    [
        plain(used(7), headers=(JSON,)),
        plain(used(7, padding=100_000), headers=(JSON,)),
        stream(event(7)),
        plain(status=500),
        plain(status=402),
        raw(b"not HTTP", close=True),
        raw(CHUNKED + SSE + b"\r\n" + chunk(event(7)), close=True),
    ],
)
async def test_every_end_of_a_call_gives_its_room_back(answer: Answerer) -> None:
    async with open_metered(metered_bodies_bytes_max=DEFAULT_LIMITS.metered_body_bytes_max) as gateway:
        for number in range(3):
            payment = await gateway.pay(CREDIT)
            gateway.upstream.answer = answer
            exchange = await call(gateway, payment, target=f"/{number}")
            assert exchange.status != 503


class ThreadedReader(UsageReader):
    """`threads`: that parsed."""

    threads: set[int]

    def end(self) -> None:
        self.threads = {threading.get_ident()}
        super().end()


@pytest.mark.parametrize(("size", "is_in_thread"), [(64 * KIB, False), (64 * KIB + 1, True)])
async def test_what_is_long_is_parsed_in_a_thread(
    gateway: MeteredGateway, size: int, is_in_thread: bool
) -> None:
    payment = await gateway.pay(CREDIT)
    gateway.upstream.answer = plain(used(7), headers=(JSON,))
    await call(gateway, payment)
    priced = gateway.transaction_rail.last
    headers = [(b"content-type", b"application/json")]
    reader = ThreadedReader(priced.formulas, method="GET", status=200, headers=headers, limits=DEFAULT_LIMITS)
    meter = Meter(
        priced, reader, reservation=None, limits=DEFAULT_LIMITS, count_usage=gateway.usage_kinds.append
    )
    await meter.add(used(8).ljust(size), is_last=True)
    assert (reader.threads != {threading.get_ident()}) is is_in_thread
    usage = existing(await meter.end(is_cut=False, is_interrupted=False))
    assert usage.actual_units == BASE + 8 * UNIT


async def test_a_thread_gives_the_same_price() -> None:
    async with open_metered(metered_parse_bytes_max=0) as gateway:
        payment = await gateway.pay(CREDIT)
        gateway.upstream.answer = plain(used(7, padding=200_000), headers=(JSON,))
        await call(gateway, payment)
        gateway.upstream.answer = stream(event(3), event(5))
        await call(gateway, payment, target="/events")
        assert await taken_units(gateway, payment) == 2 * BASE + 12 * UNIT


# ---------------------------------------------------------------------- quality


@pytest.mark.parametrize(
    ("answer", "percent"),
    [
        (plain(used(9), headers=(JSON,)), 19),
        (stream(event(9)), 19),
        (plain(b"{}", headers=(JSON,)), 100),
        (raw(CHUNKED + SSE + b"\r\n" + chunk(event(7)), close=True), None),
        (plain(used(9), status=500, headers=(JSON,)), None),
    ],
    ids=["whole", "stream", "absent", "cut", "without a price"],
)
async def test_what_a_call_cost_counts_in_the_quality_of_its_operation(
    gateway: InProcessGateway, answer: Answerer, percent: int | None
) -> None:
    payment = await gateway.pay(CREDIT)
    gateway.upstream.answer = answer
    await call(gateway, payment)
    costs = [bucket for _, bucket in gateway.tally.take_counts() if bucket >= COSTS_FROM]
    own = number_operation("", "")
    assert costs == ([] if percent is None else [cost_bucket(own, units=percent, max_units=100)])


async def test_the_provider_s_own_calls_say_nothing_of_what_calls_cost(gateway: InProcessGateway) -> None:
    listing = existing(await gateway.catalog.find(ListingId("api_quotes")))
    await gateway.revise(listing.listing, provider=gateway.wallet.address)
    payment = await gateway.pay(CREDIT)
    gateway.upstream.answer = plain(used(9), headers=(JSON,))
    assert (await call(gateway, payment)).status == 200
    assert gateway.tally.take_counts() == {}
