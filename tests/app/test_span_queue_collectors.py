"""A whole gateway that traces every call, and a collector that hangs, lies or is away: paid calls are served, lost spans are counted, and the gateway stops.

Asserted by counts and by order, never by time: the gateway serves and stops while the collector still holds its request.
"""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from structlog.testing import capture_logs

from tests.kit.gateway import CHAIN, PAY_TO, USDC
from tests.kit.listings import sample_listing
from tests.kit.payer import KeyWallet
from tests.kit.upstream import LoopbackUpstream, plain, run_upstream
from tests.kit.waits import DEADLINE_S, until
from tollway.app import span_queue
from tollway.app.lifecycle import App
from tollway.config.settings import load_settings
from tollway.identity.signatures import transaction_digests
from tollway.ids import Address, ListingId, TxHash, keccak256
from tollway.ledger.records import NewPayment
from tollway.money import Price

CALLS = 12
SPANS_OF_A_CALL = 7  # the root, proof, price, dial, claim, upstream, close
PRICE_UNITS = 10_000
LISTING = ListingId("api_0123456789abcdef01234567")
PIECE = b"x" * 65_536
READ_BYTES_MAX = 16 * 1024 * 1024
"""What the sockets of both sides may hold of a response that is not read."""

Respond = Callable[["Collector", asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class Collector:
    """A server for spans. `paths`: of each request, in order. `held`: requests that it has and does not end."""

    respond: Respond
    paths: list[str] = field(default_factory=list)
    spans: list[str] = field(default_factory=list)
    held: int = 0
    written_bytes: int = 0
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                self.paths.append(head.split(" ", 2)[1])
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
                self._read(await reader.readexactly(length), is_zipped="content-encoding: gzip" in head)
                self.held += 1
                await self.respond(self, writer)
                self.held -= 1
        except (ConnectionError, asyncio.IncompleteReadError):
            self.held = 0
        finally:
            writer.close()

    def _read(self, body: bytes, *, is_zipped: bool) -> None:
        request = ExportTraceServiceRequest.FromString(gzip.decompress(body) if is_zipped else body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans += [span.name for span in scope.spans]


def answer(head: str, body: bytes = b"") -> Respond:
    async def respond(collector: Collector, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {head}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()

    return respond


async def hang(collector: Collector, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def hang_in_the_head(collector: Collector, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nx-")
    await writer.drain()
    await asyncio.Event().wait()


async def never_end_the_head(collector: Collector, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-more: and more\r\n" * 1_000)
        await writer.drain()


async def never_end_the_body(collector: Collector, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"%x\r\n%b\r\n" % (len(PIECE), PIECE))
        await writer.drain()
        collector.written_bytes += len(PIECE)


async def drip_the_body(collector: Collector, writer: asyncio.StreamWriter) -> None:
    """Each byte comes within the time limit of one read; all of them take minutes."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.1)


async def speak_another_protocol(collector: Collector, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\xff\x15\x03\r\n\r\n")
    await writer.drain()
    raise ConnectionError


async def reset(collector: Collector, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    raise ConnectionError


TAKEN: dict[str, Respond] = {
    "takes them": answer("200 OK", b""),
    "has a garbage body": answer("200 OK", b"\xff\x00 no message of a protocol \x80"),
    "never ends its body": never_end_the_body,
    "drips its body": drip_the_body,
}
LOST: dict[str, Respond] = {
    "refuses": answer("400 Bad Request", b"no"),
    "is not found": answer("404 Not Found"),
    "is overloaded for long": answer("503 Service Unavailable\r\nretry-after: 999999"),
    "redirects": answer("307 Temporary Redirect\r\nlocation: /elsewhere"),
    "moves": answer("301 Moved Permanently\r\nlocation: /elsewhere"),
    "has a status of its own": answer("299999 Fine"),
    "never ends its head": never_end_the_head,
    "speaks another protocol": speak_another_protocol,
    "resets": reset,
}
HANGING: dict[str, Respond] = {
    "hangs": hang,
    "hangs in its head": hang_in_the_head,
    "is overloaded": answer("503 Service Unavailable"),  # its next try comes after the stop
}


@asynccontextmanager
async def run_collector(respond: Respond) -> AsyncIterator[Collector]:
    collector = Collector(respond=respond)
    serving: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.get_running_loop().create_task(collector.serve(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    collector.port = server.sockets[0].getsockname()[1]
    try:
        yield collector
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


class PaidCalls:
    """A gateway over SQLite, and a caller with credit at it."""

    def __init__(self, app: App, upstream: LoopbackUpstream, client: httpx.AsyncClient) -> None:
        self.app = app
        self.upstream = upstream
        self._client = client
        self._wallet = KeyWallet.named("buyer")
        self._headers: dict[str, str] = {}

    async def prepare(self) -> None:
        self.upstream.answer = plain()
        listing = sample_listing(
            provider=Address(b"a" * 20),
            id=LISTING,
            endpoint=self.upstream.url,
            price=Price.parse("0.01"),
            pay_to=PAY_TO,
            networks=(CHAIN,),
        )
        await self.app.catalog.publish(listing)
        tx_hash = TxHash(keccak256(b"paid"))
        now_ms = self.app.ledger.shared_ms()
        payment = NewPayment(
            chain_id=CHAIN,
            tx_hash=tx_hash,
            asset=USDC.key,
            payer=self._wallet.address,
            payee=PAY_TO,
            value_units=100 * CALLS * PRICE_UNITS,
            block_number=1,
            block_hash=b"\x01" * 32,
            block_time=now_ms // 1000,
            is_final=True,
        )
        await self.app.payments.record_payments([payment], now_ms=now_ms)
        signature = self._wallet.sign_hex(transaction_digests(tx_hash)[0])
        self._headers = {"X-Payment-Tx": str(tx_hash), "X-Signature": signature}

    async def make(self, count: int) -> None:
        """Every call is served and charged, and has reached the upstream with a context of its own."""
        before = len(self.upstream.arrived)
        for _ in range(count):
            response = await self._client.get(f"/api/v2/gateway/{LISTING}", headers=self._headers)
            assert response.status_code == 200, response.text
            assert response.headers["tollway-payment-state"] == "charged"
        arrived = self.upstream.arrived[before:]
        assert len(arrived) == count
        assert len({one.find("traceparent") for one in arrived}) == count

    @property
    def dropped_spans(self) -> int:
        return int(self.app.metrics.spans_dropped._value.get())


@asynccontextmanager
async def open_gateway(folder: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PaidCalls]:
    monkeypatch.setattr(span_queue, "FLUSH_S", 0.05)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    settings = load_settings(
        {
            "TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:1",
            "TOLLWAY_DATABASE_URL": f"sqlite:///{folder}/a.sqlite3",
            "TOLLWAY_ALLOW_PRIVATE_ENDPOINTS": "yes",
            "TOLLWAY_TRACING": "otlp",
            "TOLLWAY_TRACE_RATIO": "1",
        }
    )
    async with run_upstream() as upstream, App(settings) as app:
        transport = httpx.ASGITransport(app.asgi_app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8402") as client:
            calls = PaidCalls(app, upstream, client)
            await calls.prepare()
            yield calls


@pytest.mark.parametrize("name", TAKEN)
async def test_a_collector_that_accepts_has_every_span(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The status decides. No body of a response is read."""
    monkeypatch.setattr(span_queue, "CLOSE_WAIT_S", DEADLINE_S)
    async with run_collector(TAKEN[name]) as collector:
        async with open_gateway(tmp_path, collector.port, monkeypatch) as calls:
            await calls.make(1)
            await until(lambda: bool(collector.spans))
            await calls.make(CALLS)
        assert len(collector.spans) == (1 + CALLS) * SPANS_OF_A_CALL
        assert calls.dropped_spans == 0
        assert collector.written_bytes < READ_BYTES_MAX


@pytest.mark.parametrize("name", LOST)
async def test_spans_that_a_collector_does_not_take_are_counted_and_no_call_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    async with run_collector(LOST[name]) as collector:
        with capture_logs() as logs:
            async with open_gateway(tmp_path, collector.port, monkeypatch) as calls:
                await calls.make(1)
                await until(lambda: bool(collector.spans))
                await calls.make(CALLS)
        assert calls.dropped_spans == (1 + CALLS) * SPANS_OF_A_CALL
        assert set(collector.paths) == {"/v1/traces"}  # a redirect is not followed
        failures = [line for line in logs if line["event"].startswith("span_export")]
        assert [line["event"] for line in failures] == ["span_export_failed"]
        assert failures[0]["error"]
        assert caplog.records == []  # of the libraries


@pytest.mark.parametrize("name", HANGING)
async def test_calls_go_on_and_the_gateway_stops_while_a_collector_holds_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async with run_collector(HANGING[name]) as collector:
        async with open_gateway(tmp_path, collector.port, monkeypatch) as calls:
            await calls.make(1)
            await until(lambda: bool(collector.paths))
            await calls.make(CALLS)
            assert calls.dropped_spans == 0  # they wait
        assert calls.dropped_spans == (1 + CALLS) * SPANS_OF_A_CALL
        assert len(collector.spans) == SPANS_OF_A_CALL * len(
            collector.paths
        )  # the first call, and its repeats
        assert calls.app.span_queue is not None
        assert calls.app.span_queue._thread.is_alive()  # the stop did not wait for it


async def test_a_collector_that_is_away_costs_its_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    async with open_gateway(tmp_path, unused_tcp_port, monkeypatch) as calls:
        await calls.make(CALLS)
    assert calls.dropped_spans == CALLS * SPANS_OF_A_CALL
