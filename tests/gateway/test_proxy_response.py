"""Responses on their way to the caller: which are stored for a repeat, and which are too large or too slow for that."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.kit.gateway import InProcessGateway, open_gateway
from tests.kit.payer import Payer
from tests.kit.upstream import Answerer, Arrived, plain, raw
from tests.kit.waits import until
from tollway.gateway.response_body import ResponseRecorder
from tollway.ledger.ledger import StoredResponse
from tollway.ledger.records import CallState, Dialect
from tollway.money import Price

KEY = [("Idempotency-Key", "one")]
TARGET = "/quote?x=1"


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway(settle_wait_s=0.05, response_bytes_max=2_000, buffer_bytes=100) as small:
        await small.publish()
        yield small


class ResponseSink:
    """The store of a recorder."""

    def __init__(self) -> None:
        self.kept: list[StoredResponse] = []

    async def keep(self, answer: StoredResponse) -> None:
        self.kept.append(answer)

    def recorder(self) -> ResponseRecorder:
        return ResponseRecorder(self.keep, status=200, headers=[(b"x-kind", b"rare")], bytes_max=10)


async def test_is_open_until_the_answer_is_kept() -> None:
    """A caller that leaves at that moment must not prevent the storing: an open recorder is read to its end."""
    were_open: list[bool] = []

    async def keep(answer: StoredResponse) -> None:
        were_open.append(recorder.is_open)

    recorder = ResponseRecorder(keep, status=200, headers=[], bytes_max=10)
    await recorder.add_chunk(b"one")
    await recorder.add_chunk(b"")
    assert (were_open, recorder.is_open) == ([True], False)


@pytest.mark.parametrize(
    ("chunks", "kept"),
    [
        ([b""], [b""]),
        ([b"one", b"two", b""], [b"onetwo"]),
        ([b"0123456789", b""], [b"0123456789"]),
        ([b"0123456789", b"x", b""], []),
        ([b"0123456789x", b""], []),
        ([b"0123456789x", b"ab", b""], []),
        ([b"not whole"], []),
        ([b"one", b"", b""], [b"one"]),
    ],
)
async def test_keeps_a_whole_answer_that_is_not_too_large_once(
    chunks: list[bytes], kept: list[bytes]
) -> None:
    sink = ResponseSink()
    recorder = sink.recorder()
    for chunk in chunks:
        await recorder.add_chunk(chunk)
    assert [answer.body for answer in sink.kept] == kept
    assert all((one.status, one.headers) == (200, ((b"x-kind", b"rare"),)) for one in sink.kept)


@pytest.mark.parametrize(
    ("method", "body", "is_recorded"),
    [
        ("GET", b"", True),
        ("GET", b"short", True),
        ("GET", b"x" * 500, True),  # longer than one message
        ("GET", b"x" * 3_000, False),
        ("HEAD", b"short", True),
    ],
)
async def test_an_answer_under_a_key_is_kept_while_it_streams(
    gateway: InProcessGateway, payer: Payer, method: str, body: bytes, is_recorded: bool
) -> None:
    gateway.upstream.answer = plain(body, headers=("X-Kind: rare",))
    shown = payer.show(await payer.quote("GET"))
    first = await gateway.ask(method, TARGET, [*shown, *KEY])
    assert first.status == 200
    again = await gateway.ask(method, TARGET, [*shown, *KEY])
    assert again.status == (200 if is_recorded else 409)
    if is_recorded:
        assert (again.body, again.headers["x-kind"]) == (first.body, "rare")
    assert gateway.served == 1


async def test_an_answer_without_a_key_is_not_kept(gateway: InProcessGateway, payer: Payer) -> None:
    shown = payer.show(await payer.quote())
    assert (await gateway.ask("GET", TARGET, shown)).status == 200
    again = await gateway.ask("GET", TARGET, shown)
    assert (again.status, again.problem["code"]) == (409, "payment_already_used")
    assert "payment" not in again.problem


async def test_what_does_not_cost_is_not_kept(gateway: InProcessGateway, payer: Payer) -> None:
    gateway.upstream.answer = plain(status=404)
    shown = payer.show(await payer.quote())
    assert (await gateway.ask("GET", TARGET, [*shown, *KEY])).status == 404
    assert not gateway.ledger.rows.answers
    gateway.upstream.answer = plain()
    assert (await gateway.ask("GET", TARGET, [*shown, *KEY])).status == 200


async def test_a_store_that_is_away_does_not_break_the_answer(
    gateway: InProcessGateway, payer: Payer
) -> None:
    gateway.stored_responses.away = True
    answer = await payer.buy(headers=KEY)
    assert (answer.status, answer.body) == (200, b"ok")
    assert answer.is_ended


async def test_an_answer_that_trickles_is_not_waited_for() -> None:
    """Its call is decided as if none could be stored."""

    async def trickle(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n")
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with open_gateway(settle_wait_s=0.05, response_collect_s=0.05) as gateway:
        await gateway.publish()
        payer = Payer.funded(gateway, 100_000)
        gateway.upstream.answer = trickle
        gateway.stop_mining()
        shown = payer.show(await payer.quote("POST"))
        assert (await gateway.ask("POST", TARGET, shown)).status == 503
        await gateway.recover_chain()
        (call,) = await payer.history()
        assert call.state is CallState.RELEASED


async def test_an_answer_that_breaks_off_is_not_stored(gateway: InProcessGateway, payer: Payer) -> None:
    gateway.upstream.answer = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\nhalf", close=True)
    gateway.stop_mining()
    shown = payer.show(await payer.quote("POST"), Dialect.X402_V1)
    assert (await gateway.ask("POST", TARGET, shown)).status == 503
    await gateway.recover_chain()
    (call,) = await payer.history()
    assert call.state is CallState.RELEASED


async def test_what_is_too_large_is_not_collected_to_its_end() -> None:
    async with open_gateway(settle_wait_s=0.05, response_bytes_max=2_000, response_collect_s=600) as patient:
        await patient.publish()
        patient.upstream.answer = endless(b"x" * 2_001, asyncio.Event())
        patient.stop_mining()
        payer = Payer.funded(patient, 100_000)
        assert (await payer.buy()).status == 503
        await until(lambda: patient.upstream.ended == patient.upstream.accepted)


def endless(first: bytes, may_go_on: asyncio.Event, rest: bytes = b"") -> Answerer:
    """An answer of which something comes, then something more, and then nothing."""

    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + first)
        await writer.drain()
        await may_go_on.wait()
        writer.write(rest)
        await asyncio.Event().wait()

    return answer


@pytest.mark.parametrize(
    ("rest", "collect_s"), [(b"y" * 5_000, 600), (b"y", 0.05)], ids=["too large", "too slow"]
)
async def test_a_response_without_its_caller_is_read_within_limits(rest: bytes, collect_s: float) -> None:
    """What cannot be kept any more ends at the upstream, too."""
    async with (
        open_gateway(response_bytes_max=2_000, response_collect_s=collect_s, buffer_bytes=100) as gateway,
    ):
        await leave_early(gateway, rest)


async def leave_early(gateway: InProcessGateway, rest: bytes) -> None:
    await gateway.publish()
    payer = Payer.funded(gateway, 100_000)
    may_go_on = asyncio.Event()
    gateway.upstream.answer = endless(b"x" * 500, may_go_on, rest)
    exchange = gateway.open("GET", TARGET, [*payer.show(await payer.quote()), *KEY])
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(gateway.run(exchange))
        await until(lambda: len(exchange.body) >= 500)
        exchange.leave()
        may_go_on.set()
        await asking
    await until(lambda: gateway.upstream.ended == gateway.upstream.accepted)
    (call,) = await payer.history()
    assert (call.state, str(call.delivery)) == (CallState.CONSUMED, "partial")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (None, "private, no-store"),
        ("public, max-age=60", "private, max-age=60"),
        ("s-maxage=600, max-age=60", "private, max-age=60"),
        ("max-age=60", "private, max-age=60"),
        ("private, max-age=60", "private, max-age=60"),
        ("no-store", "no-store"),
        ('public, s-maxage=600, private="x"', "private"),
        ("no-store, must-understand", "no-store"),
        ('max-age=60, ext="', "private, no-store"),
    ],
)
async def test_what_one_caller_paid_for_is_not_for_a_shared_cache(
    gateway: InProcessGateway, payer: Payer, said: str | None, told: str
) -> None:
    gateway.upstream.answer = plain(b"dear", headers=() if said is None else (f"Cache-Control: {said}",))
    assert (await payer.buy()).headers["cache-control"] == told


async def test_interim_heads_and_trailers_of_an_upstream_reach_no_caller(
    gateway: InProcessGateway, payer: Payer
) -> None:
    obeyed = b"X-Accel-Redirect: /my/wallets\r\nLink: </my>; rel=preload\r\n"
    gateway.upstream.answer = raw(
        b"HTTP/1.1 103 Early Hints\r\n"
        + obeyed
        + b"\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Accel-Redirect\r\n\r\n4\r\ndear\r\n0\r\n"
        + obeyed
        + b"\r\n"
    )
    answer = await payer.buy()
    assert (answer.status, answer.body) == (200, b"dear")
    assert not {"x-accel-redirect", "link", "trailer"} & set(answer.headers)


async def test_a_free_response_keeps_the_cache_rule_of_its_provider(gateway: InProcessGateway) -> None:
    await gateway.publish("api_free", price=Price.parse("0"))
    gateway.upstream.answer = plain(b"free", headers=("Cache-Control: public, max-age=60",))
    answer = await gateway.ask(listing="api_free")
    assert answer.headers["cache-control"] == "public, max-age=60"
