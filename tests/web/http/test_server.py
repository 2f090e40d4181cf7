"""The gateway behind the real server: raw bytes in, raw bytes out, and a raw upstream behind it."""

import asyncio
import contextlib
import fcntl
import os
import re
import resource
import socket
import stat
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from tests.kit.gateway import (
    CALLS,
    PUBLIC_URL,
    HeaderPairs,
    InProcessGateway,
    open_gateway,
    serve,
    serve_app,
)
from tests.kit.ports import find_free_port
from tests.kit.upstream import Arrived, held, plain, pour, raw, say_nothing, stalled
from tests.kit.waits import run_program, until
from tollway.ledger.records import CallState, Delivery
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Price
from tollway.web.http.admission import LoadShedder
from tollway.web.http.app import build_app
from tollway.web.http.server import HttpServer, PortTaken

MIB = 1024 * 1024
FREE = Price.parse("0")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawResponse:
    status: int
    headers: dict[str, str]
    body: bytes


class RawConnection:
    """One connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, *parts: bytes) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
        headers = dict(line.split(": ", 1) if ": " in line else (line.rstrip(":"), "") for line in lines)
        return int(first.split(" ")[1]), headers

    async def read_response(self, *, is_head: bool = False) -> RawResponse:
        """Reads a whole response. Raises IncompleteReadError if it is incomplete."""
        status, headers = await self.head()
        body = b""
        if is_head or status in (204, 304):
            pass
        elif "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            while chunk := await self.chunk():
                body += chunk
        return RawResponse(status=status, headers=headers, body=body)

    async def chunk(self) -> bytes:
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        chunk = await self.reader.readexactly(size)
        assert await self.reader.readexactly(2) == b"\r\n"
        return chunk

    async def is_closed(self) -> bool:
        with contextlib.suppress(ConnectionError):
            return await self.reader.read(1) == b""
        return True


@dataclass(slots=True, kw_only=True)
class ServedGateway:
    gateway: InProcessGateway
    port: int

    @contextlib.asynccontextmanager
    async def line(self, *, receive_buffer: int = 0) -> AsyncIterator[RawConnection]:
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=MIB)
        try:
            yield RawConnection(reader, writer)
        finally:
            writer.transport.abort()


@contextlib.asynccontextmanager
async def open_served_gateway(**limits: float) -> AsyncIterator[ServedGateway]:
    async with open_gateway(**limits) as gateway, serve(gateway) as port:
        yield ServedGateway(gateway=gateway, port=port)


@pytest.fixture
async def free() -> AsyncIterator[ServedGateway]:
    """A free listing behind the server."""
    async with open_served_gateway(upload_bytes_max=100 * MIB, free_calls_per_minute=1_000) as served:
        await served.gateway.publish(price=FREE, timeout_s=20)
        yield served


def ask(
    method: str = "GET", target: str = "", *headers: str, body: bytes = b"", version: str = "1.1"
) -> bytes:
    lines = [f"{method} {CALLS}api_quotes{target} HTTP/{version}", "Host: gw.example.com", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def header_lines(proof: HeaderPairs) -> list[str]:
    return [f"{name}: {value}" for name, value in proof]


# ---------------------------------------------------------------------- one call, paid


async def test_a_paid_call_through_the_server() -> None:
    async with open_served_gateway() as served:
        gateway = served.gateway
        await gateway.publish()
        payment = await gateway.pay()
        async with served.line() as line:
            await line.send(ask("POST", "/a%2Fb?x=%zz", body=b"{}"))
            assert (await line.read_response()).status == 402
            proof = gateway.bound_proof(payment.tx_hash, method="POST", target="/a%2Fb?x=%zz", body=b"{}")
            await line.send(ask("POST", "/a%2Fb?x=%zz", *header_lines(proof), body=b"{}"))
            response = await line.read_response()
        assert (response.status, response.body) == (200, b"ok")
        assert response.headers["tollway-payment-state"] == "charged"
        (arrived,) = gateway.upstream.arrived
        assert (arrived.target, bytes(arrived.body)) == ("/base/a%2Fb?x=%zz", b"{}")


# ---------------------------------------------------------------------- streams


async def test_events_arrive_as_they_are_sent(free: ServedGateway) -> None:
    """The upstream sends each event only after the client received the one before."""
    go = asyncio.Semaphore(0)

    async def tell(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for number in range(5):
            await go.acquire()
            event = f"data: {number}\n\n".encode()
            writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        writer.write(b"0\r\n\r\n")

    free.gateway.upstream.answer = tell
    async with free.line() as line:
        await line.send(ask())
        status, headers = await line.head()  # before any event
        assert (status, headers["content-type"]) == (200, "text/event-stream")
        for number in range(5):
            go.release()
            assert await line.chunk() == f"data: {number}\n\n".encode()
        assert await line.chunk() == b""


async def test_the_head_of_a_stream_arrives_before_its_body(free: ServedGateway) -> None:
    free.gateway.upstream.answer = stalled(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    async with free.line() as line:
        await line.send(ask())
        assert (await line.head())[0] == 200


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_large_response_needs_constant_memory(free: ServedGateway, framing: str) -> None:
    size = 64 * MIB
    block = bytes(range(256)) * 256

    async def pour(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        if framing == "length":
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(size // len(block)):
            writer.write(block if framing == "length" else b"10000\r\n" + block + b"\r\n")
            await writer.drain()
        if framing == "chunked":
            writer.write(b"0\r\n\r\n")

    free.gateway.upstream.answer = pour
    async with free.line() as line:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await line.send(ask())
        _, headers = await line.head()
        assert headers.get("content-length") == (str(size) if framing == "length" else None)
        count, is_right = 0, True
        if framing == "length":
            while count < size:
                chunk = await line.reader.read(MIB)
                assert chunk
                is_right = is_right and chunk[0] == count % 256
                count += len(chunk)
        else:
            while chunk := await line.chunk():
                is_right = is_right and chunk[0] == count % 256
                count += len(chunk)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (count, is_right) == (size, True)
    assert grown < 32 * 1024  # KiB


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_a_large_request_needs_constant_memory(free: ServedGateway, framing: str) -> None:
    size = 64 * MIB
    block = b"x" * 65_536
    received = bytearray(0)

    class Count(bytearray):
        """Counts the received bytes and keeps none."""

        total = 0

        def __iadd__(self, more: object) -> "Count":  # type: ignore[override]
            self.total += len(more)  # type: ignore[arg-type]
            return self

        def __len__(self) -> int:
            return self.total

    counts: list[Count] = []
    upstream = free.gateway.upstream
    append = upstream.arrived.append

    class Log(list[Arrived]):
        def append(self, arrived: Arrived) -> None:
            arrived.body = Count()
            counts.append(arrived.body)
            append(arrived)

    upstream.arrived = Log()
    async with free.line() as line:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        framed = f"Content-Length: {size}" if framing == "length" else "Transfer-Encoding: chunked"
        await line.send(ask("PUT", "", framed))
        for _ in range(size // len(block)):
            await line.send(block if framing == "length" else b"10000\r\n" + block + b"\r\n")
        if framing == "chunked":
            await line.send(b"0\r\n\r\n")
        assert (await line.read_response()).status == 200
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert counts[0].total == size
    assert not received
    assert grown < 32 * 1024  # KiB


async def test_a_slow_client_slows_the_upstream_down(free: ServedGateway) -> None:
    sent = 0

    async def pour(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent += 65_536

    free.gateway.upstream.answer = pour
    async with free.line(receive_buffer=8_192) as line:
        await line.send(ask())
        await line.head()
        line.reader._transport.pause_reading()  # type: ignore[attr-defined]
        level = -1
        while sent != level:  # until it is constant
            level = sent
            await asyncio.sleep(0.2)
        assert sent < 64 * MIB
    await until(lambda: free.gateway.upstream.ended == 1)


async def test_a_client_that_reads_nothing_is_disconnected() -> None:
    async with open_served_gateway(write_stall_s=0.3) as served:
        gateway = served.gateway
        await gateway.publish()
        payment = await gateway.pay()

        gateway.upstream.answer = pour
        async with served.line(receive_buffer=8_192) as line:
            await line.send(ask("GET", "", *header_lines(gateway.plain_proof(payment.tx_hash))))
            await line.head()
            line.reader._transport.pause_reading()  # type: ignore[attr-defined]
            await until(lambda: gateway.upstream.ended == 1)
            (call,) = await gateway.history()
            assert (call.state, call.delivery) == (CallState.CONSUMED, Delivery.PARTIAL)
            # The kernel's timer closes the socket too; otherwise nothing could, and the server would never stop.
            caller = line.writer.get_extra_info("sockname")
            await until(lambda: not is_held(caller))


def is_held(peer: tuple[str, int]) -> bool:
    """True while this process has a socket to that peer."""
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(entry)).st_mode):
                with socket.socket(fileno=os.dup(int(entry))) as sock:
                    if sock.getpeername() == peer:
                        return True
    return False


async def test_a_disconnect_closes_the_upstream_connection(free: ServedGateway) -> None:
    free.gateway.upstream.answer = stalled(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    )
    async with free.line() as line:
        await line.send(ask())
        await line.head()
        assert await line.chunk() == b"hello"
        assert free.gateway.upstream.ended == 0
    await until(lambda: free.gateway.upstream.ended == 1)


async def test_a_disconnect_in_the_middle_of_the_body_releases_the_call() -> None:
    async with open_served_gateway() as served:
        gateway = served.gateway
        await gateway.publish()
        gateway.upstream.is_body_read_first = False
        gateway.upstream.answer = say_nothing
        payment = await gateway.pay()
        async with served.line() as line:
            proof = header_lines(gateway.plain_proof(payment.tx_hash))
            await line.send(ask("POST", "", *proof, "Content-Length: 1000000"), b"x" * 100_000)
            await until(lambda: len(gateway.upstream.arrived) == 1)
        await until(lambda: gateway.outcomes == ["abandoned"])
        (call,) = await gateway.history()
        assert call.state is CallState.RELEASED
        assert not gateway.upstream.arrived[0].is_whole
        await gateway.check_balanced()


async def test_broken_chunking_is_an_incomplete_request() -> None:
    async with open_served_gateway() as served:
        gateway = served.gateway
        await gateway.publish()
        gateway.upstream.is_body_read_first = False
        gateway.upstream.answer = say_nothing
        payment = await gateway.pay()
        async with served.line() as line:
            proof = header_lines(gateway.plain_proof(payment.tx_hash))
            await line.send(ask("POST", "", *proof, "Transfer-Encoding: chunked"), b"3\r\nabc\r\nZZ\r\n")
            response = await line.read_response()
            assert (response.status, response.headers["connection"]) == (400, "close")
            assert b"body_broken_off" in response.body
            assert await line.is_closed()
        assert [call.state for call in await gateway.history()] in ([], [CallState.RELEASED])
        assert not any(arrived.is_whole for arrived in gateway.upstream.arrived)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\nhello",
    ],
    ids=["chunked", "short", "long"],
)
async def test_an_incomplete_response_ends_without_its_end(free: ServedGateway, answer: bytes) -> None:
    free.gateway.upstream.answer = raw(answer, close=True)
    async with free.line() as line:
        await line.send(ask())
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await line.read_response()


# ---------------------------------------------------------------------- keep-alive and framing


@pytest.mark.parametrize(
    ("method", "answer", "status", "body"),
    [
        ("GET", raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"), 200, b"hello"),
        ("GET", raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), 200, b""),
        ("GET", raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 200, b""),
        ("GET", raw(b"HTTP/1.1 200 OK\r\n\r\nuntil the end", close=True), 200, b"until the end"),
        ("HEAD", raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"), 200, b""),
        ("HEAD", raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), 200, b""),
        ("GET", raw(b"HTTP/1.1 204 No Content\r\n\r\n"), 204, b""),
        ("GET", raw(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"), 204, b""),
        ("GET", raw(b"HTTP/1.1 205 Reset\r\nContent-Length: 0\r\n\r\n"), 205, b""),
        ("GET", raw(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1234\r\nETag: a\r\n\r\n"), 304, b""),
        ("GET", raw(b"HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n"), 502, None),
        ("GET", raw(b"HTTP/1.1 000 Odd\r\nContent-Length: 0\r\n\r\n"), 502, None),
        ("GET", raw(b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n"), 502, None),
        ("GET", raw(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhello"), 502, None),
        ("GET", raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello"), 502, None),
        ("GET", raw(b"HTTP/1.1 200 OK\r\nX-A: \x01b\r\nX-B: \xff\r\nContent-Length: 2\r\n\r\nok"), 200, b"ok"),
        ("GET", raw(b"HTTP/1.1 200 OK\r\nX A: b\r\nContent-Length: 2\r\n\r\nok"), 502, None),
        ("GET", raw(b"HTTP/1.1 402 Pay\r\nContent-Length: 2\r\n\r\nok"), 502, None),
        ("GET", raw(b"HTTP/1.1 599 Odd\r\nContent-Length: 2\r\n\r\nok"), 599, b"ok"),
        ("GET", raw(b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), 200, b"ok"),
    ],
)  # fmt: skip
async def test_the_next_request_on_the_connection_gets_its_response(
    free: ServedGateway, method: str, answer: object, status: int, body: bytes | None
) -> None:
    free.gateway.upstream.answer = answer  # type: ignore[assignment]
    async with free.line() as line:
        await line.send(ask(method))
        response = await line.read_response(is_head=method == "HEAD")
        assert response.status == status
        if body is not None:
            assert response.body == body
        free.gateway.upstream.answer = plain(b"the next one")
        await line.send(ask("GET", "/next"))
        response = await line.read_response()
        assert (response.status, response.body) == (200, b"the next one")


async def test_head_keeps_the_length_of_get(free: ServedGateway) -> None:
    free.gateway.upstream.answer = plain(b"x" * 777)
    async with free.line() as line:
        await line.send(ask("HEAD"))
        assert (await line.read_response(is_head=True)).headers["content-length"] == "777"


async def test_pipelined_requests_are_answered_in_order(free: ServedGateway) -> None:
    async def tell(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        await plain(arrived.target.encode())(arrived, writer)

    free.gateway.upstream.answer = tell
    async with free.line() as line:
        await line.send(ask("GET", "/1") + ask("GET", "/2") + ask("GET", "/3"))
        assert [(await line.read_response()).body for _ in range(3)] == [b"/base/1", b"/base/2", b"/base/3"]


async def test_http_1_0_is_answered_and_closed(free: ServedGateway) -> None:
    async with free.line() as line:
        await line.send(ask(version="1.0"))
        response = await line.read_response()
        assert (response.status, response.body) == (200, b"ok")
        assert await line.is_closed()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.0\r\nHost:\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.0\r\nHost: a/b\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET " + CALLS.encode() + b"api_quotes HTTP/1.0\r\n\r\n", 200),
    ],
    ids=("a probe", "an empty host", "a bad host", "HTTP/1.1", "a call"),
)
async def test_only_http_1_0_may_have_no_host(request_bytes: bytes, status: int) -> None:
    """As the probes of some load balancers."""
    async with open_gateway(free_calls_per_minute=10) as gateway:
        await gateway.publish(price=FREE)
        app = build_app(
            call_app=gateway.app,
            routers=[Router([Route("/healthz", say_ok)])],
            public_url=PUBLIC_URL,
            limits=gateway.limits,
            clock=lambda: 0.0,
            entropy=bytes,
            shedder=LoadShedder(limits=gateway.limits, clock=time.monotonic, read_memory_bytes=lambda: 0),
        )
        async with serve_app(app, limits=gateway.limits) as port:
            served = ServedGateway(gateway=gateway, port=port)
            async with served.line() as line:
                await line.send(request_bytes)
                assert (await line.read_response()).status == status


async def test_two_hosts_are_refused(free: ServedGateway) -> None:
    async with free.line() as line:
        await line.send(ask("GET", "", "Host: other.example"))
        response = await line.read_response()
    assert response.status == 400
    assert b"invalid_request" in response.body
    assert not free.gateway.upstream.arrived


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET " + CALLS.encode() + b"api_quotes HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n",
        b"GET " + CALLS.encode() + b"api_quotes HTTP/1.1\r\nHost: a\r\nBad Name: 1\r\n\r\n",
        b"GET " + CALLS.encode() + b"api_quotes HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
        b"GET " + CALLS.encode() + b"api quotes HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET " + CALLS.encode() + b"api_quotes HTTP/1.1\r\n" + b"X: y\r\n" * 101 + b"\r\n",
        b"GET " + CALLS.encode() + b"api_quotes HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["length", "name", "nul", "space", "many", "huge", "http2"],
)
async def test_a_request_that_the_parser_refuses_is_not_forwarded(
    free: ServedGateway, request_bytes: bytes
) -> None:
    async with free.line() as line:
        with contextlib.suppress(ConnectionError):
            await line.send(request_bytes)
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = await line.reader.read()
        assert answer == b"" or re.match(rb"HTTP/1.1 (400|431|414) ", answer)
    assert not free.gateway.upstream.arrived
    async with free.line() as line:
        await line.send(ask())
        assert (await line.read_response()).status == 200


async def test_length_and_chunking_together_are_read_as_chunks_and_end_the_connection(
    free: ServedGateway,
) -> None:
    smuggled = b"0\r\n\r\n" + ask("GET", "/smuggled")
    async with free.line() as line:
        framing = ("Transfer-Encoding: chunked", f"Content-Length: {len(smuggled)}")
        await line.send(ask("POST", "", *framing) + smuggled)
        assert (await line.read_response()).status == 200
        assert await line.is_closed()
    assert [arrived.target for arrived in free.gateway.upstream.arrived] == ["/base"]
    assert free.gateway.upstream.arrived[0].find("content-length") is None


async def test_an_upgrade_is_an_ordinary_call(free: ServedGateway) -> None:
    async with free.line() as line:
        upgrade = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==")
        await line.send(ask("GET", "", *upgrade, "Sec-WebSocket-Version: 13"))
        assert (await line.read_response()).status == 200
    assert "upgrade" not in free.gateway.upstream.arrived[0].names


async def test_a_preflight_is_answered_free_and_any_other_options_is_a_call() -> None:
    async with open_served_gateway() as served:
        await served.gateway.publish()
        async with served.line() as line:
            await line.send(
                ask("OPTIONS", "", "Origin: https://a.example", "Access-Control-Request-Method: GET")
            )
            response = await line.read_response()
            assert (response.status, response.headers["access-control-allow-origin"]) == (204, "*")
            await line.send(ask("OPTIONS"))
            assert (await line.read_response()).status == 402


# ---------------------------------------------------------------------- request bodies


async def test_an_early_response_reaches_a_client_that_still_uploads(free: ServedGateway) -> None:
    free.gateway.upstream.is_body_read_first = False
    free.gateway.upstream.answer = plain(b"enough", status=413)
    async with free.line() as line:
        await line.send(ask("PUT", "", "Content-Length: 1000000"), b"x" * 100_000)
        response = await line.read_response()
        assert (response.status, response.body) == (413, b"enough")
        assert await line.is_closed()


async def test_a_slow_body_is_refused_and_the_connection_ends() -> None:
    async with open_served_gateway(body_rate_grace_s=0.2) as served:
        await served.gateway.publish(price=FREE)
        async with served.line() as line:
            await line.send(ask("PUT", "", "Content-Length: 10"), b"abc")
            response = await line.read_response()
            assert response.status == 400
            assert b"body_too_slow" in response.body
            assert await line.is_closed()
        assert not served.gateway.upstream.arrived


async def test_a_refused_body_is_discarded_and_the_connection_stays() -> None:
    async with open_served_gateway() as served:
        await served.gateway.publish()
        async with served.line() as line:
            await line.send(ask("PUT", "", "Content-Length: 200000"))
            await line.send(b"x" * 100_000, b"y" * 100_000)
            response = await line.read_response()
            assert (response.status, response.headers.get("connection")) == (402, None)
            await line.send(ask())
            assert (await line.read_response()).status == 402


async def test_a_refused_body_that_is_too_long_ends_the_connection() -> None:
    async with open_served_gateway() as served:
        await served.gateway.publish()
        async with served.line() as line:
            await line.send(ask("PUT", "", "Content-Length: 300000"), b"x")
            response = await line.read_response()
            assert (response.status, response.headers["connection"]) == (402, "close")
            assert await line.is_closed()


async def test_a_client_that_waits_for_continue_sends_no_refused_body() -> None:
    async with open_served_gateway() as served:
        await served.gateway.publish()
        async with served.line() as line:
            await line.send(ask("PUT", "", "Content-Length: 10", "Expect: 100-continue"))
            response = await line.read_response()
            assert (response.status, response.headers["connection"]) == (402, "close")


async def test_a_client_that_waits_for_continue_gets_it(free: ServedGateway) -> None:
    async with free.line() as line:
        await line.send(ask("PUT", "", "Content-Length: 2", "Expect: 100-continue"))
        assert await line.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await line.send(b"ok")
        assert (await line.read_response()).status == 200
    (arrived,) = free.gateway.upstream.arrived
    assert bytes(arrived.body) == b"ok"
    assert "expect" not in arrived.names


# ---------------------------------------------------------------------- start and stop


async def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        server = HttpServer(nothing, host="127.0.0.1", port=holder.getsockname()[1], limits=DEFAULT_LIMITS)
        with pytest.raises(PortTaken):
            await server.serve()


async def test_two_gateways_do_not_share_a_port() -> None:
    async with open_served_gateway() as served:
        server = HttpServer(nothing, host="127.0.0.1", port=served.port, limits=DEFAULT_LIMITS)
        with pytest.raises(PortTaken):
            await server.serve()


async def test_a_stop_waits_for_calls_in_flight() -> None:
    release = asyncio.Event()

    async with open_gateway() as gateway:
        await gateway.publish(price=FREE)
        gateway.upstream.answer = held(release, body=b"late")
        port = find_free_port()
        server = HttpServer(gateway.app, host="127.0.0.1", port=port, limits=gateway.limits)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(server.serve())
            await server.wait_up()
            async with ServedGateway(gateway=gateway, port=port).line() as line:
                await line.send(ask())
                await until(lambda: len(gateway.upstream.arrived) == 1)
                server.stop()
                server.stop()
                assert not task.done()
                release.set()
                assert (await line.read_response()).body == b"late"


async def test_a_stop_waits_no_longer_than_its_deadline() -> None:
    """The call waits for a head that never arrives: the server stops after its deadline."""
    kept = contextlib.AsyncExitStack()
    async with kept, open_served_gateway(drain_deadline_s=1.0) as served:
        await served.gateway.publish(price=FREE, timeout_s=300)
        served.gateway.upstream.answer = say_nothing
        line = await kept.enter_async_context(served.line())
        await line.send(ask())
        await until(lambda: len(served.gateway.upstream.arrived) == 1)


TRIES_THE_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        print("held")
"""


@pytest.mark.process
async def test_a_start_releases_no_file_lock_of_this_process(tmp_path: Path) -> None:
    """Closing any copy of a file's descriptor releases all locks of the process on the file, and a database needs its locks."""
    path = tmp_path / "ledger.sqlite"
    path.touch()
    with path.open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        async with open_served_gateway():
            other = await run_program(sys.executable, "-c", TRIES_THE_LOCK, str(path))
    assert other.output == "held\n"


async def test_the_kernel_timers_apply_to_connections_accepted_before_them() -> None:
    """The timers are set on every socket of the port, not only on those that inherit them from the listening socket."""
    async with (
        open_gateway() as gateway,
        serve(gateway) as port,
        ServedGateway(gateway=gateway, port=port).line() as line,
    ):
        await line.send(ask())
        await line.read_response()
        response = []
        for entry in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(os.fstat(int(entry)).st_mode):
                    with socket.socket(fileno=os.dup(int(entry))) as sock:
                        if sock.family == socket.AF_INET and sock.getsockname()[1] == port:
                            options = (socket.TCP_USER_TIMEOUT, socket.TCP_NOTSENT_LOWAT)
                            response.append(
                                tuple(sock.getsockopt(socket.IPPROTO_TCP, one) for one in options)
                            )
    assert len(response) >= 2
    assert set(response) == {(31_000, gateway.limits.buffer_bytes)}


async def test_a_client_that_reads_slowly_is_not_disconnected() -> None:
    """The client reads more slowly than the kernel frees space by itself: the kernel buffers 4 MiB."""
    body = bytes(8 * 1024 * 1024)
    async with open_gateway(write_stall_s=2.0) as gateway, serve(gateway) as port:
        gateway.upstream.answer = plain(body)
        await gateway.publish(price=FREE)
        handle = socket.socket()
        handle.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024
        )  # so that the window opens in small steps
        handle.connect(("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=handle, limit=16 * 1024)
        writer.write(b"GET /api/v2/gateway/api_quotes HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        got = 0
        for _ in range(45):
            got += len(await reader.readexactly(32 * 1024))
            await asyncio.sleep(0.1)  # 320 KiB a second
        got += len(await reader.readexactly(len(body) - got))
        writer.close()
    assert got == len(body)


async def say_ok(request: Request) -> Response:
    return Response("ok")


async def nothing(scope: object, receive: object, send: object) -> None:
    pass
