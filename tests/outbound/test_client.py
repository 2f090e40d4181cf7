"""The HTTP client against servers that lie, stall, reset and poison: sent at most once, claimed before the first byte."""

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import pytest

from tests.kit.narrowing import of_type
from tests.kit.upstream import RawServer, reset_connection
from tests.kit.waits import DEADLINE_S, bounded, until
from tollway.errors import (
    Code,
    EndpointNotAllowed,
    Refusal,
    UpstreamBadResponse,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.outbound.client import HttpClient, UpstreamExchange, UpstreamRequest
from tollway.outbound.policy import Endpoint, parse_endpoint

LIMITS = replace(
    DEFAULT_LIMITS, dns_deadline_s=60.0, connect_deadline_s=60.0, chunk_idle_s=60.0, unsafe_reuse_idle_s=60.0
)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Handler = Callable[["Upstream", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Upstream(RawServer):
    """`requests`: every head that arrived."""

    def __init__(self, handler: Handler) -> None:
        super().__init__()
        self.handler = handler
        self.requests: list[bytes] = []
        self.stop_listening: Callable[[], None] = lambda: None

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.handler(self, reader, writer)

    async def read_head(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head)
        return head

    def endpoint(self, host: str = "127.0.0.1") -> Endpoint:
        return of_type(Endpoint, parse_endpoint(f"http://{host}:{self.port}", allow_private=True))


@contextlib.asynccontextmanager
async def running(handler: Handler) -> AsyncIterator[Upstream]:
    upstream = Upstream(handler)
    async with upstream.listen() as server:
        upstream.stop_listening = server.close
        yield upstream


@contextlib.asynccontextmanager
async def dialing(
    limits: Limits = LIMITS,
    *,
    allow_private: bool = True,
    lookup: Callable[[str, int], list[str]] = lambda host, port: ["127.0.0.1"],
    own_origins: frozenset[str] = frozenset(),
    own_listeners: frozenset[tuple[str, int]] = frozenset(),
    ticks_ms: Callable[[], int] = lambda: 0,
) -> AsyncIterator[HttpClient]:
    http_client = HttpClient(
        ticks_ms=ticks_ms,
        limits=limits,
        allow_private=allow_private,
        lookup=lookup,
        own_origins=own_origins,
        own_listeners=own_listeners,
    )
    try:
        yield http_client
    finally:
        await http_client.close()


async def no_claim() -> None:
    pass


def get(upstream: Upstream, method: str = "GET", **changes: object) -> UpstreamRequest:
    request = UpstreamRequest(method=method, endpoint=upstream.endpoint(), target="/x")
    return replace(request, **changes)  # type: ignore[arg-type]


async def read_all(response: UpstreamExchange) -> bytes:
    body = b""
    while chunk := await response.read_chunk():
        body += chunk
    return body


class Attempt:
    """One call as a gateway makes it: connect, claim, send, read. `steps`: how far it came, also after a failure."""

    def __init__(self, http_client: HttpClient, request: UpstreamRequest) -> None:
        self.exchange = http_client.connect(request)
        self.has_claimed = False

    @property
    def steps(self) -> set[str]:
        steps = {
            "claimed": self.has_claimed,
            "sent": self.exchange.is_sent,
            "body sent": self.exchange.is_body_sent,
        }
        return {step for step, is_reached in steps.items() if is_reached}

    async def send(
        self, *, before_send: Callable[[], Awaitable[None]] = no_claim, deadline_s: float = 2.0
    ) -> UpstreamExchange:
        """Returns with the head of the response."""
        async with self.exchange as exchange:
            await before_send()
            self.has_claimed = True
            await exchange.send(head_deadline_s=deadline_s)
        return exchange

    async def call(
        self, *, before_send: Callable[[], Awaitable[None]] = no_claim, deadline_s: float = 2.0
    ) -> tuple[int, bytes]:
        """Status and body."""
        response = await self.send(before_send=before_send, deadline_s=deadline_s)
        try:
            return response.status, await read_all(response)
        finally:
            response.close()


async def send(http_client: HttpClient, request: UpstreamRequest) -> UpstreamExchange:
    return await Attempt(http_client, request).send()


async def call(
    http_client: HttpClient,
    request: UpstreamRequest,
    *,
    before_send: Callable[[], Awaitable[None]] = no_claim,
    deadline_s: float = 2.0,
) -> tuple[int, bytes]:
    return await Attempt(http_client, request).call(before_send=before_send, deadline_s=deadline_s)


def answer(*parts: bytes) -> Handler:
    """One answer per request on the same connection."""

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await upstream.read_head(reader)
            for part in parts:
                writer.write(part)
            await writer.drain()

    return handler


def script(*steps: bytes | asyncio.Event | Handler) -> Handler:
    """Reads one head, sends the bytes, waits for the events and calls the others, in their order. The connection ends then."""

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        for step in steps:
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif isinstance(step, asyncio.Event):
                await step.wait()
            else:
                await step(upstream, reader, writer)

    return handler


async def hold(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def cut(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    reset_connection(writer.transport)


# ---------------------------------------------------------------------- what is sent


async def test_sends_the_bytes_as_they_are_and_adds_host_only() -> None:
    target = "/a%2Fb//c;d/%2e%2e/../%zz/é?q=%20&&x[]={}|"
    async with running(answer(OK)) as upstream, dialing() as http_client:
        fields = "X-B: 1\r\nx-a: ü\r\nX-B: 2\r\n".encode()
        assert await call(http_client, get(upstream, target=target, fields=fields)) == (200, b"ok")
        host = f"127.0.0.1:{upstream.port}"
        assert upstream.requests == [
            f"GET {target} HTTP/1.1\r\nHost: {host}\r\nX-B: 1\r\nx-a: ü\r\nX-B: 2\r\n\r\n".encode()
        ]


async def test_fields_of_the_claim_are_sent_after_the_other_headers() -> None:
    async with running(answer(OK)) as upstream, dialing() as http_client:
        async with http_client.connect(get(upstream, fields=b"a: 1\r\n")) as exchange:
            await exchange.send(head_deadline_s=2, fields=b"b: 2\r\nc: 3\r\n")
        assert await read_all(exchange) == b"ok"
        assert upstream.requests[0].endswith(b"\r\na: 1\r\nb: 2\r\nc: 3\r\n\r\n")


async def test_returns_raw_headers_and_undecoded_bodies() -> None:
    head = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: \xff\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"
    async with running(answer(head)) as upstream, dialing() as http_client:
        response = await send(http_client, get(upstream))
        assert list(response.headers) == [
            (b"X-A", b"1"),
            (b"x-a", b"\xff"),
            (b"Content-Encoding", b"gzip"),
            (b"Content-Length", b"3"),
        ]
        assert await read_all(response) == b"abc"


async def test_keeps_no_cookies_and_follows_no_redirect() -> None:
    moved = b"HTTP/1.1 302 Found\r\nLocation: /y\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
    async with running(answer(moved)) as upstream, dialing() as http_client:
        assert await call(http_client, get(upstream)) == (302, b"")
        assert await call(http_client, get(upstream)) == (302, b"")
        assert len(upstream.requests) == 2
        assert b"cookie" not in upstream.requests[1].lower()
        assert upstream.accepted == 1


async def test_ignores_the_proxies_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with running(answer(OK)) as upstream, dialing() as http_client:
        assert await call(http_client, get(upstream)) == (200, b"ok")


@pytest.mark.parametrize(
    "changes",
    [
        {"target": "x"},
        {"target": ""},
        {"target": "/a b"},
        {"target": "/a\r\nb"},
        {"target": "/a#b"},
        {"target": "//\udcff"},
        {"method": "GE T"},
        {"method": ""},
        {"method": "CONNECT"},
    ],
)
async def test_refuses_to_claim_for_what_cannot_be_written(changes: dict[str, object]) -> None:
    claims: list[int] = []

    async def claim() -> None:
        claims.append(1)

    async with running(answer(OK)) as upstream, dialing() as http_client:
        with pytest.raises(Refusal):
            await call(http_client, get(upstream, **changes), before_send=claim)
        assert (claims, upstream.accepted) == ([], 0)


# ---------------------------------------------------------------------- bodies


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def echo(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        head = (await upstream.read_head(reader)).lower()
        if b"transfer-encoding: chunked" in head:
            body = b""
            while size := int((await reader.readline()).strip() or b"0", 16):
                body += await reader.readexactly(size)
                await reader.readline()
            await reader.readline()
        else:
            length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
            body = await reader.readexactly(length)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


@pytest.mark.parametrize(
    ("body", "length", "framing"),
    [
        (b"abc", None, b"content-length: 3"),
        (b"", None, b"content-length: 0"),
        (None, None, b"content-length: 0"),
        (b"abc" * 100_000, None, b"content-length: 300000"),
        ((b"ab", b"", b"c"), 3, b"content-length: 3"),
        ((b"ab", b"", b"c"), None, b"transfer-encoding: chunked"),
        ((), None, b"transfer-encoding: chunked"),
        ((), 0, b"content-length: 0"),
    ],
)
async def test_frames_the_body_itself(
    body: bytes | tuple[bytes, ...] | None, length: int | None, framing: bytes
) -> None:
    streamed = chunks(*body) if isinstance(body, tuple) else body
    async with running(echo) as upstream, dialing() as http_client:
        request = get(upstream, "POST", body=streamed, content_length=length)
        expected = b"".join(body) if isinstance(body, tuple) else body or b""
        attempt = Attempt(http_client, request)
        assert await attempt.call() == (200, expected)
        assert framing in upstream.requests[0].lower()
        assert attempt.steps == {"claimed", "sent", "body sent"}


@pytest.mark.parametrize("parts", [(b"ab",), (b"ab", b"cd"), ()])
async def test_a_body_of_another_length_is_cut_and_refused(parts: tuple[bytes, ...]) -> None:
    async with running(echo) as upstream, dialing() as http_client:
        attempt = Attempt(http_client, get(upstream, "POST", body=chunks(*parts), content_length=3))
        with pytest.raises(Refusal) as caught:
            await attempt.call()
        assert caught.value.problem.code is Code.INVALID_REQUEST
        assert not attempt.exchange.is_body_sent
        await until(lambda: upstream.ended == upstream.accepted)


async def test_an_exception_of_the_body_reaches_the_caller_and_cuts_the_request() -> None:
    class CallerGone(Exception):
        pass

    async def body() -> AsyncIterator[bytes]:
        yield b"ab"
        raise CallerGone

    async with running(echo) as upstream, dialing() as http_client:
        attempt = Attempt(http_client, get(upstream, "POST", body=body()))
        with pytest.raises(CallerGone):
            await attempt.call()
        assert attempt.steps == {"claimed", "sent"}
        await until(lambda: upstream.ended == upstream.accepted)


async def test_an_early_answer_comes_through_while_the_body_is_on_its_way() -> None:
    stopped = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        try:
            yield b"ab"
            await asyncio.Event().wait()
        finally:
            stopped.set()

    too_large = b"HTTP/1.1 413 X\r\nContent-Length: 0\r\n\r\n"
    async with running(answer(too_large)) as upstream, dialing() as http_client:
        response = await send(http_client, get(upstream, "POST", body=body()))
        assert (response.status, response.is_body_sent) == (413, False)
        assert await read_all(response) == b""
        response.close()
        await bounded(stopped.wait())
        await until(lambda: upstream.ended == 1)


# ---------------------------------------------------------------------- the claim


async def test_claims_after_connecting_and_before_the_first_byte() -> None:
    async with running(answer(OK)) as upstream, dialing() as http_client:
        seen: list[tuple[int, int]] = []

        async def claim() -> None:
            await until(lambda: upstream.accepted == 1)
            seen.append((upstream.accepted, len(upstream.requests)))

        await call(http_client, get(upstream), before_send=claim)
        assert seen == [(1, 0)]
        assert len(upstream.requests) == 1


@pytest.mark.parametrize(
    "error", [ValueError, OSError, TimeoutError, ConnectionResetError, Refusal, KeyError]
)
async def test_a_claim_that_fails_sends_nothing_and_reaches_the_caller_unchanged(
    error: type[Exception],
) -> None:
    raised = UpstreamTimeoutProblem if error is Refusal else error("no")

    async def claim() -> None:
        raise raised

    async with running(answer(OK)) as upstream, dialing() as http_client:
        attempt = Attempt(http_client, get(upstream))
        with pytest.raises(type(raised)) as caught:
            await attempt.call(before_send=claim)
        assert caught.value is raised
        assert attempt.steps == set()
        assert await call(http_client, get(upstream)) == (200, b"ok")
        assert upstream.accepted == 1, "the untouched connection went back to the pool"
        assert len(upstream.requests) == 1


UpstreamTimeoutProblem = Refusal(UpstreamTimeout().problem)


async def test_a_cancelled_claim_sends_nothing() -> None:
    started = asyncio.Event()

    async def claim() -> None:
        started.set()
        await asyncio.Event().wait()

    async with running(answer(OK)) as upstream, dialing() as http_client:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(call(http_client, get(upstream), before_send=claim))
            await bounded(started.wait())
            task.cancel()
        assert task.cancelled()
        await until(lambda: upstream.ended == 1)
        assert upstream.requests == []
        assert http_client._in_flight == {}


async def test_an_unsent_exchange_returns_its_connection() -> None:
    async with running(answer(OK)) as upstream, dialing() as http_client:
        async with http_client.connect(get(upstream)) as exchange:
            assert http_client._in_flight == {upstream.endpoint().origin: 1}
        assert (exchange.is_sent, http_client._in_flight) == (False, {})
        assert await call(http_client, get(upstream)) == (200, b"ok")
        assert (upstream.accepted, len(upstream.requests)) == (1, 1)


Ending = Callable[[asyncio.WriteTransport], None]


def close_connection(transport: asyncio.WriteTransport) -> None:
    transport.close()


ENDINGS: list[Ending] = [close_connection, reset_connection]


@pytest.mark.parametrize("end", ENDINGS)
async def test_a_connection_that_dies_during_the_claim_costs_no_second_claim(end: Ending) -> None:
    claims: list[int] = []

    async with running(answer(OK)) as upstream, dialing() as http_client:
        await call(http_client, get(upstream))

        async def claim() -> None:
            claims.append(1)
            end(upstream.writers[0].transport)
            await until(lambda: upstream.ended == 1)

        assert await call(http_client, get(upstream, "POST"), before_send=claim) == (200, b"ok")
        assert (len(claims), len(upstream.requests), upstream.accepted) == (1, 2, 2)


HALF_LEASE_MS = int(LIMITS.owner_lease_s * 500)


@pytest.mark.parametrize(("passed_ms", "is_sent"), [(HALF_LEASE_MS, True), (HALF_LEASE_MS + 1, False)])
async def test_a_claim_that_has_grown_old_is_not_sent(passed_ms: int, is_sent: bool) -> None:
    """The process stood still: the others may take it for dead, and its call may run elsewhere by now."""
    ticks = [1_000_000]

    async def claim_and_stall() -> None:
        ticks[0] += passed_ms

    async with running(answer(OK)) as upstream, dialing(ticks_ms=lambda: ticks[0]) as http_client:
        if is_sent:
            assert await call(http_client, get(upstream), before_send=claim_and_stall) == (200, b"ok")
            return
        attempt = Attempt(http_client, get(upstream))
        with pytest.raises(Refusal) as caught:
            await attempt.call(before_send=claim_and_stall)
        assert caught.value.problem.code is Code.OVERLOADED
        assert attempt.steps == {"claimed"}
        assert await call(http_client, get(upstream)) == (200, b"ok")
        assert upstream.accepted == 1, "the untouched connection went back to the pool"
        assert len(upstream.requests) == 1


async def test_a_claim_grows_old_while_it_is_dialled_again() -> None:
    ticks = [0]

    async def claim_and_lose() -> None:
        upstream.writers[0].transport.abort()
        await until(lambda: upstream.ended == 1)

    def resolve(host: str, port: int) -> list[str]:
        ticks[0] += HALF_LEASE_MS + 1
        return ["127.0.0.1"]

    async with (
        running(answer(OK)) as upstream,
        dialing(ticks_ms=lambda: ticks[0], lookup=resolve) as http_client,
    ):
        named = upstream.endpoint("api.example.com")
        await call(http_client, get(upstream, endpoint=named))
        with pytest.raises(Refusal):
            await call(http_client, get(upstream, "POST", endpoint=named), before_send=claim_and_lose)
        assert len(upstream.requests) == 1


async def test_a_dial_that_fails_after_the_claim_is_known_as_unsent() -> None:

    async def close_all() -> None:
        upstream.writers[0].transport.abort()
        server.close()
        await server.wait_closed()
        await until(lambda: upstream.ended == 1)

    upstream = Upstream(answer(OK))
    async with upstream.listen() as server, dialing() as http_client:
        await call(http_client, get(upstream))
        attempt = Attempt(http_client, get(upstream))
        with pytest.raises(UpstreamUnreachable):
            await attempt.call(before_send=close_all)
        assert attempt.steps == {"claimed"}
        assert http_client._in_flight == {}


# ---------------------------------------------------------------------- sent at most once


hang_up, reset = script(), script(cut)


@pytest.mark.parametrize(
    "handler", [hang_up, reset, script(OK[:10], cut)], ids=["hang_up", "reset", "reset_in_head"]
)
async def test_a_request_is_never_sent_twice(handler: Handler) -> None:
    methods = ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "POST", "PATCH"]
    async with running(handler) as upstream, dialing() as http_client:
        for sent, method in enumerate(methods, 1):
            attempt = Attempt(http_client, get(upstream, method))
            with pytest.raises(UpstreamBadResponse) as caught:
                await attempt.call()
            assert caught.value.sent, method
            assert attempt.exchange.is_sent, method
            assert len(upstream.requests) == sent, method


def closing_when_kept(
    end: Callable[[asyncio.WriteTransport], None], *, first_bytes: bytes = b"", kept: int = 1
) -> Handler:
    """Answers the first request of a connection; the first `kept` connections end with the second request, after `first_bytes`."""

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_ended = upstream.accepted <= kept
        await upstream.read_head(reader)
        writer.write(OK)
        await upstream.read_head(reader)
        if not is_ended:
            writer.write(OK)
            await reader.read()
            return
        writer.write(first_bytes)
        await writer.drain()
        end(writer.transport)

    return handler


REUSED_ENDS = [
    *((method, None, 2) for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE")),
    ("PUT", b"{}", 2),
    ("PUT", bytes(200_000), 2),
    *((method, None, 1) for method in ("POST", "PATCH")),
    ("POST", b"{}", 1),
]


@pytest.mark.parametrize(
    "end", [lambda transport: transport.close(), reset_connection], ids=["close", "reset"]
)
@pytest.mark.parametrize(("method", "body", "attempts"), REUSED_ENDS)
async def test_only_an_idempotent_request_goes_out_once_more_when_a_kept_connection_ends(
    method: str, body: bytes | None, attempts: int, end: Callable[[asyncio.WriteTransport], None]
) -> None:
    async with running(closing_when_kept(end)) as upstream, dialing() as http_client:
        await call(http_client, get(upstream))
        attempt = Attempt(http_client, get(upstream, method, body=body))
        if attempts == 1:
            with pytest.raises(UpstreamBadResponse):
                await attempt.call()
        else:
            assert (await attempt.call())[0] == 200
        assert (len(upstream.requests), upstream.accepted) == (1 + attempts, attempts)


@pytest.mark.parametrize("first_bytes", [b"H", OK[:20], b"HTTP/1.1 102 Processing\r\n\r\n"])
async def test_a_response_that_has_begun_is_not_asked_for_again(first_bytes: bytes) -> None:
    handler = closing_when_kept(lambda transport: transport.close(), first_bytes=first_bytes)
    async with running(handler) as upstream, dialing() as http_client:
        await call(http_client, get(upstream))
        with pytest.raises(UpstreamBadResponse):
            await call(http_client, get(upstream))
        assert upstream.accepted == 1


async def test_a_streamed_body_is_not_sent_again() -> None:
    handler = closing_when_kept(lambda transport: transport.close())
    async with running(handler) as upstream, dialing() as http_client:
        await call(http_client, get(upstream))
        with pytest.raises(UpstreamBadResponse):
            await call(http_client, get(upstream, "PUT", body=chunks(b"a", b"b")))
        assert upstream.accepted == 1


@pytest.mark.parametrize(
    ("is_gone", "counts"), [(False, (3, 2)), (True, (2, 1))], ids=["no response", "no connection"]
)
async def test_a_failure_of_the_second_attempt_leaves_the_outcome_unknown(
    is_gone: bool, counts: tuple[int, int]
) -> None:
    """The second attempt is the last one. `counts`: requests and connections."""

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        if upstream.accepted == 1:
            writer.write(OK)
            await upstream.read_head(reader)
            if is_gone:
                upstream.stop_listening()

    async with running(handler) as upstream, dialing() as http_client:
        await call(http_client, get(upstream))
        attempt = Attempt(http_client, get(upstream))
        with pytest.raises(UpstreamBadResponse) as caught:
            await attempt.call()
        assert caught.value.sent
        assert attempt.exchange.is_sent
        assert (len(upstream.requests), upstream.accepted) == counts


async def test_an_exchange_is_sent_once() -> None:
    async with running(answer(OK)) as upstream, dialing() as http_client:
        async with http_client.connect(get(upstream)) as exchange:
            await exchange.send(head_deadline_s=2)
            with pytest.raises(AssertionError):
                await exchange.send(head_deadline_s=2)
        assert await read_all(exchange) == b"ok"
        assert (upstream.accepted, len(upstream.requests)) == (1, 1)


async def test_a_reset_is_one_for_the_gateway_s_side_too() -> None:
    """Or else the tests of a reset are tests of a close."""
    seen: list[type[BaseException] | bytes] = []
    async with running(reset) as upstream:
        reader, writer = await asyncio.open_connection("127.0.0.1", upstream.port)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        try:
            seen.append(await reader.read())
        except OSError as exc:
            seen.append(type(exc))
        writer.close()
    assert seen == [ConnectionResetError]


@pytest.mark.parametrize("method", ["PUT", "POST"])
async def test_a_reset_while_the_body_is_on_its_way_was_sent_and_is_not_sent_again(method: str) -> None:
    endless = asyncio.Event()

    async def content() -> AsyncIterator[bytes]:
        while not endless.is_set():
            yield bytes(65_536)

    async with running(reset) as upstream, dialing() as http_client:
        attempt = Attempt(http_client, get(upstream, method, body=content()))
        with pytest.raises(UpstreamBadResponse) as caught:
            await attempt.call()
        endless.set()
        assert caught.value.sent
        assert attempt.steps == {"claimed", "sent"}
        assert len(upstream.requests) == 1


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_stale_pooled_connection_is_replaced_before_anything_is_sent(method: str) -> None:
    async with running(script(OK)) as upstream, dialing() as http_client:
        for _ in range(5):
            assert await call(http_client, get(upstream, method)) == (200, b"ok")
            await until(lambda: upstream.ended == upstream.accepted)
        assert (len(upstream.requests), upstream.accepted) == (5, 5)


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("is_seen_by_the_loop", [True, False])
async def test_unexpected_bytes_on_an_idle_connection_are_not_a_response(
    method: str, is_seen_by_the_loop: bool
) -> None:
    evil = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nEVIL"
    async with running(answer(OK)) as upstream, dialing() as http_client:
        assert await call(http_client, get(upstream, method)) == (200, b"ok")
        if is_seen_by_the_loop:
            upstream.writers[0].write(evil)
            await upstream.writers[0].drain()
            for _ in range(20):
                await asyncio.sleep(0)
        else:
            os.write(upstream.writers[0].get_extra_info("socket").fileno(), evil)
        assert await call(http_client, get(upstream, method)) == (200, b"ok")
        assert upstream.accepted == 2


async def test_an_unsafe_method_takes_no_connection_that_idled() -> None:
    limits = replace(LIMITS, unsafe_reuse_idle_s=0.0)
    async with running(answer(OK)) as upstream, dialing(limits) as http_client:
        for method in ("GET", "PUT", "DELETE", "OPTIONS"):
            await call(http_client, get(upstream, method))
        assert upstream.accepted == 1
        for expected, method in enumerate(("POST", "PATCH", "PURGE"), start=2):
            await call(http_client, get(upstream, "GET"))
            before = upstream.accepted
            await call(http_client, get(upstream, method))
            assert upstream.accepted == before + 1, expected


async def test_connections_are_reused_within_one_generation_only() -> None:
    async with running(answer(OK)) as upstream, dialing() as http_client:
        await call(http_client, get(upstream))
        await call(http_client, get(upstream))
        assert upstream.accepted == 1
    async with running(answer(OK)) as upstream, dialing(replace(LIMITS, connection_age_s=0.0)) as http_client:
        await call(http_client, get(upstream))
        await call(http_client, get(upstream))
        assert upstream.accepted == 2
        await until(lambda: upstream.ended == 1)


async def test_a_retired_generation_finishes_its_calls() -> None:
    go_on = asyncio.Event()

    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        writer.write(OK[:-2])
        if upstream.accepted == 1:
            await go_on.wait()
        writer.write(b"ok")
        await writer.drain()

    async with running(handler) as upstream, dialing(replace(LIMITS, connection_age_s=0.0)) as http_client:
        first = await send(http_client, get(upstream))
        assert await call(http_client, get(upstream)) == (200, b"ok")
        go_on.set()
        assert await read_all(first) == b"ok"
        assert await call(http_client, get(upstream)) == (200, b"ok")
        assert upstream.accepted == 3, "one generation does not take the connections of another"


# ---------------------------------------------------------------------- answers that are none


def head(status: str, *more: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\n".encode() + b"".join(more) + b"\r\n"


@pytest.mark.parametrize(
    "raw",
    [
        head("099 X", b"Content-Length: 0\r\n"),
        head("000 X", b"Content-Length: 0\r\n"),
        head("101 Switching", b"Upgrade: x\r\nConnection: upgrade\r\n"),
        head("600 X", b"Content-Length: 0\r\n"),
        head("999 X", b"Content-Length: 0\r\n"),
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"",
        head("200 OK", b"Content-Length: 2\r\nContent-Length: 3\r\n") + b"abc",
        head("200 OK", b"Content-Length: +2\r\n") + b"ab",
        head("200 OK", b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n") + b"0\r\n\r\n",
        head("200 OK", b"bad name: 1\r\n"),
    ],
)
async def test_a_head_that_is_none_is_a_bad_response_after_sending(raw: bytes) -> None:
    async with running(script(raw)) as upstream, dialing() as http_client:
        attempt = Attempt(http_client, get(upstream))
        with pytest.raises(UpstreamBadResponse) as caught:
            await attempt.call()
        assert caught.value.sent
        assert attempt.exchange.is_sent
        assert len(upstream.requests) == 1
        assert http_client._in_flight == {}


TOO_LARGE = [
    head("200 OK", b"X: " + b"x" * 65_536 + b"\r\n"),
    head("200 OK", *[b"X-%d: 1\r\n" % n for n in range(501)]),
    head("200 OK", *[b"X-%d: %s\r\n" % (n, b"x" * 8000) for n in range(10)]),
    head("200 " + "x" * 10_000),
]


@pytest.mark.parametrize("raw", TOO_LARGE)
async def test_a_head_that_is_too_large_is_refused_by_that_name(raw: bytes) -> None:
    async with running(script(raw)) as upstream, dialing() as http_client:
        with pytest.raises(UpstreamBadResponse) as caught:
            await call(http_client, get(upstream))
        problem = caught.value.problem
        assert problem.reason == "response_head_too_large"
        assert "too large: the gateway accepts at most 65536 bytes and 500 fields" in problem.detail
        assert "not HTTP" not in problem.detail


@pytest.mark.parametrize(
    "more", [[b"X: " + b"x" * 60_000 + b"\r\n"], [b"X-%d: 1\r\n" % n for n in range(499)]]
)
async def test_a_head_within_its_limits_is_returned(more: list[bytes]) -> None:
    raw = head("200 OK", b"Content-Length: 2\r\n", *more) + b"ok"
    async with running(answer(raw)) as upstream, dialing() as http_client:
        response = await send(http_client, get(upstream))
        assert len(response.headers) == 1 + len(more)
        assert await read_all(response) == b"ok"


silent = script(hold)


async def dribble(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await upstream.read_head(reader)
    for byte in b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 100_000:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.002)


async def informational(
    upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await upstream.read_head(reader)
    while True:
        writer.write(b"HTTP/1.1 103 Early\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.002)


@pytest.mark.parametrize(
    "handler", [silent, dribble, informational], ids=["silent", "dribble", "informational"]
)
async def test_the_head_has_a_deadline_even_when_bytes_trickle_in(handler: Handler) -> None:
    async with running(handler) as upstream, dialing() as http_client:
        attempt = Attempt(http_client, get(upstream))
        with pytest.raises(UpstreamTimeout) as caught:
            await attempt.call(deadline_s=0.05)
        assert caught.value.sent
        assert attempt.exchange.is_body_sent
        await until(lambda: upstream.ended == 1)


@pytest.fixture
async def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the clock of the event loop: what is due by then is over."""
    loop, skew_s = asyncio.get_running_loop(), 0.0
    read_clock = loop.time

    def pass_time(seconds: float) -> None:
        nonlocal skew_s
        skew_s += seconds

    monkeypatch.setattr(loop, "time", lambda: read_clock() + skew_s)
    return pass_time


async def test_the_head_deadline_does_not_count_the_claim(pass_time: Callable[[float], None]) -> None:
    async with running(answer(OK)) as upstream, dialing() as http_client:

        async def claim() -> None:
            pass_time(DEADLINE_S + 1)
            await asyncio.sleep(0.001)

        assert await call(http_client, get(upstream), before_send=claim, deadline_s=DEADLINE_S) == (
            200,
            b"ok",
        )


async def test_the_head_deadline_counts_from_the_last_piece_of_the_body(
    pass_time: Callable[[float], None],
) -> None:
    async def slow() -> AsyncIterator[bytes]:
        for _ in range(3):
            pass_time(DEADLINE_S / 2)
            await asyncio.sleep(0.001)
            yield b"x"

    async with running(echo) as upstream, dialing() as http_client:
        request = get(upstream, "POST", body=slow(), content_length=3)
        assert await call(http_client, request, deadline_s=DEADLINE_S) == (200, b"xxx")


@pytest.mark.parametrize(
    ("pieces", "length", "is_handed_over"),
    [([b"x"], 2, False), ([], 2, False), ([b"x"], None, False), ([b"x", b"y"], 2, True)],
)
async def test_a_body_that_stalls_is_handed_over_only_with_its_last_byte(
    pieces: list[bytes], length: int | None, is_handed_over: bool
) -> None:
    async def stalling() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
        await asyncio.Event().wait()

    async with running(silent) as upstream, dialing() as http_client:
        attempt = Attempt(http_client, get(upstream, "POST", body=stalling(), content_length=length))
        with pytest.raises(UpstreamTimeout):
            await attempt.call(deadline_s=0.05)
        assert attempt.exchange.is_body_handed_over is is_handed_over


@pytest.mark.parametrize("body", [None, b"", b"x", b"x" * 100_000])
async def test_a_body_that_is_here_is_handed_over(body: bytes | None) -> None:
    async with running(silent) as upstream, dialing() as http_client:
        attempt = Attempt(http_client, get(upstream, "POST", body=body))
        with pytest.raises(UpstreamTimeout):
            await attempt.call(deadline_s=0.1)
        assert attempt.exchange.is_body_handed_over


@pytest.mark.parametrize(
    "raw",
    [
        head("200 OK", b"Content-Length: 10\r\n") + b"short",
        head("200 OK", b"Transfer-Encoding: chunked\r\n") + b"5\r\nshort\r\n",
        head("200 OK", b"Transfer-Encoding: chunked\r\n") + b"5\r\nshort\r\nZZ\r\n",
    ],
)
async def test_a_cut_body_never_ends_cleanly(raw: bytes) -> None:
    async with running(script(raw)) as upstream, dialing() as http_client:
        with pytest.raises(UpstreamBadResponse):
            await call(http_client, get(upstream))
        assert http_client._in_flight == {}


@pytest.mark.parametrize(
    "raw",
    [
        head("200 OK", b"Content-Length: 10\r\n") + b"short",
        head("200 OK", b"Transfer-Encoding: chunked\r\n") + b"5\r\nshort\r\n",
        head("200 OK", b"Connection: close\r\n") + b"short",
        b"HTTP/1.0 200 OK\r\n\r\nshort",
    ],
)
async def test_a_body_that_a_reset_ends_never_ends_cleanly(raw: bytes) -> None:
    """A body that ends with its connection is not whole while the connection is open."""
    is_read = asyncio.Event()

    async with running(script(raw, is_read, cut)) as upstream, dialing() as http_client:
        response = await send(http_client, get(upstream))
        assert await response.read_chunk() == b"short"
        is_read.set()
        with pytest.raises(UpstreamBadResponse):
            await response.read_chunk()
        assert http_client._in_flight == {}


@pytest.mark.parametrize(("method", "status"), [("HEAD", "200 OK"), ("GET", "204 No"), ("GET", "304 No")])
async def test_a_response_without_a_body_is_whole_for_all_following_bytes(method: str, status: str) -> None:
    is_here = asyncio.Event()
    async with running(script(head(status), is_here, cut)) as upstream, dialing() as http_client:
        response = await send(http_client, get(upstream, method))
        is_here.set()
        await until(lambda: upstream.ended == 1)
        assert await read_all(response) == b""


@pytest.mark.parametrize(("method", "status"), [("HEAD", "200 OK"), ("GET", "204 No"), ("GET", "304 No")])
async def test_a_body_where_none_may_be_ends_the_connection_and_not_the_answer(
    method: str, status: str
) -> None:
    handler = answer(head(status, b"Content-Length: 9\r\n"), b"a body at all")
    async with running(handler) as upstream, dialing() as http_client:
        for number in (1, 2):
            assert await call(http_client, get(upstream, method)) == (int(status[:3]), b"")
            assert upstream.accepted == number


async def test_a_body_that_stops_is_a_timeout() -> None:
    short = script(head("200 OK", b"Content-Length: 10\r\n") + b"short", hold)
    async with running(short) as upstream, dialing(replace(LIMITS, chunk_idle_s=0.05)) as http_client:
        with pytest.raises(UpstreamTimeout):
            await call(http_client, get(upstream))
        await until(lambda: upstream.ended == 1)


async def test_a_body_until_the_close_is_read_to_its_end() -> None:
    async with running(script(head("200 OK"), b"abc")) as upstream, dialing() as http_client:
        assert await call(http_client, get(upstream)) == (200, b"abc")


async def test_chunks_arrive_as_they_are_sent() -> None:
    go_on = asyncio.Event()

    first = head("200 OK", b"Transfer-Encoding: chunked\r\n") + b"3\r\none\r\n"
    async with running(script(first, go_on, b"3\r\ntwo\r\n0\r\n\r\n")) as upstream, dialing() as http_client:
        response = await send(http_client, get(upstream))
        assert await response.read_chunk() == b"one"
        go_on.set()
        assert [await response.read_chunk(), await response.read_chunk()] == [b"two", b""]


async def test_head_and_empty_answers_keep_the_connection() -> None:
    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await upstream.read_head(reader)
            is_head = request.startswith(b"HEAD")
            writer.write(head("200 OK", b"Content-Length: 9\r\n") if is_head else head("204 No Content"))

    async with running(handler) as upstream, dialing() as http_client:
        assert await call(http_client, get(upstream, "HEAD")) == (200, b"")
        assert await call(http_client, get(upstream)) == (204, b"")
        assert await call(http_client, get(upstream)) == (204, b"")
        assert upstream.accepted == 1


# ---------------------------------------------------------------------- leaving early


async def test_a_response_closed_early_cuts_the_upstream() -> None:
    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        writer.write(head("200 OK"))
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    async with running(handler) as upstream, dialing() as http_client:
        response = await send(http_client, get(upstream))
        assert await response.read_chunk()
        response.close()
        response.close()
        await until(lambda: upstream.ended == 1)
        assert http_client._in_flight == {}


class HandlingFailed(Exception):
    pass


@pytest.mark.parametrize("error", [HandlingFailed, asyncio.CancelledError])
async def test_an_error_between_the_head_and_the_body_cuts_the_upstream(error: type[BaseException]) -> None:
    async with (
        running(script(head("200 OK", b"Content-Length: 9\r\n"), hold)) as upstream,
        dialing() as http_client,
    ):
        exchange = http_client.connect(get(upstream))

        async def send_and_fail() -> None:
            async with exchange:
                await exchange.send(head_deadline_s=2)
                raise error

        with pytest.raises(error):
            await send_and_fail()
        assert (exchange.status, http_client._in_flight) == (200, {})
        await until(lambda: upstream.ended == 1)


async def test_a_request_that_fails_frees_its_connection_before_the_caller_handles_the_failure() -> None:
    """The caller then writes the outcome of the call, which may take long."""
    ticks = [0]
    limits = replace(LIMITS, in_flight_per_origin_max=1)
    async with (
        running(hang_up) as upstream,
        running(answer(OK)) as other,
        dialing(limits, ticks_ms=lambda: ticks[0]) as http_client,
    ):
        async with http_client.connect(get(upstream)) as exchange:
            with pytest.raises(UpstreamBadResponse):
                await exchange.send(head_deadline_s=2)
            assert http_client._in_flight == {}
        async with http_client.connect(get(other)) as exchange:
            ticks[0] += HALF_LEASE_MS + 1
            with pytest.raises(Refusal):
                await exchange.send(head_deadline_s=2)
            assert await call(http_client, get(other)) == (200, b"ok")
        assert (other.accepted, len(other.requests)) == (1, 1)


async def test_a_request_body_is_not_kept_while_the_response_is_read() -> None:
    async with running(echo) as upstream, dialing() as http_client:
        body = chunks(b"abc")
        kept = weakref.ref(body)
        response = await send(http_client, get(upstream, "POST", body=body, content_length=3))
        del body
        assert kept() is None
        assert await read_all(response) == b"abc"


@pytest.mark.parametrize(
    "raw",
    [
        head("200 OK", b"Content-Length: 2\r\n") + b"ok",
        head("200 OK", b"Transfer-Encoding: chunked\r\n") + b"2\r\nok\r\n0\r\n\r\n",
    ],
)
async def test_the_last_byte_frees_the_connection(raw: bytes) -> None:
    async with running(answer(raw)) as upstream, dialing() as http_client:
        first = await send(http_client, get(upstream))
        assert (first.is_read, http_client._in_flight) == (False, {upstream.endpoint().origin: 1})
        assert (await first.read_chunk(), first.is_read, http_client._in_flight) == (b"ok", True, {})
        second = await send(http_client, get(upstream))
        first.close()  # has nothing to do with the connection any more
        assert await first.read_chunk() == b""
        assert await read_all(second) == b"ok"
        assert upstream.accepted == 1


async def test_an_answer_that_was_given_up_has_no_end() -> None:
    async with running(answer(OK)) as upstream, dialing() as http_client:
        response = await send(http_client, get(upstream))
        response.close()
        with pytest.raises(UpstreamBadResponse):
            await response.read_chunk()
        assert not response.is_read


async def test_closing_an_unread_answer_leaves_its_pooled_connection_alone() -> None:
    async with running(answer(OK)) as upstream, dialing() as http_client:
        response = await send(http_client, get(upstream))
        response.close()
        assert await call(http_client, get(upstream)) == (200, b"ok")
        assert upstream.accepted <= 2


async def test_cancelling_the_wait_for_the_head_cuts_the_upstream() -> None:
    async with running(silent) as upstream, dialing() as http_client:
        attempt = Attempt(http_client, get(upstream))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(attempt.call())
            await until(lambda: len(upstream.requests) == 1)
            task.cancel()
        assert task.cancelled()
        assert attempt.steps == {"claimed", "sent", "body sent"}
        await until(lambda: upstream.ended == 1)
        assert http_client._in_flight == {}


async def unread(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes the head, answers one of its own, and reads no body; notices only a cut connection."""
    await upstream.read_head(reader)
    writer.write(head("200 OK", b"Content-Length: 5\r\n") if b"/answer" in upstream.requests[0] else b"")
    while not writer.transport.is_closing():
        await asyncio.sleep(0.005)
        writer.write(b"." if b"/answer" in upstream.requests[0] else b"HTTP/1.1 100 Continue\r\n\r\n")


HUGE = 32 * 1024 * 1024  # more than two kernel buffers take


async def huge() -> AsyncIterator[bytes]:
    yield b"x" * HUGE


async def test_cancelling_an_upload_that_the_upstream_does_not_read_cuts_it() -> None:
    async with running(unread) as upstream, dialing() as http_client:
        attempt = Attempt(http_client, get(upstream, "POST", body=huge()))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(attempt.call())
            await until(lambda: len(upstream.requests) == 1)
            task.cancel()
        assert attempt.steps == {"claimed", "sent"}
        await until(lambda: upstream.ended == 1)


async def test_closing_a_response_cuts_an_unread_upload() -> None:
    async with running(unread) as upstream, dialing() as http_client:
        response = await send(http_client, get(upstream, "POST", target="/answer", body=huge()))
        assert not response.is_body_sent
        response.close()
        await until(lambda: upstream.ended == 1)


# ---------------------------------------------------------------------- dials that fail look alike


def public_endpoint(host: str, port: int) -> Endpoint:
    return of_type(Endpoint, parse_endpoint(f"http://{host}:{port}", allow_private=True))


def failing_lookup(host: str, port: int) -> list[str]:
    raise OSError("no such name")


@pytest.mark.parametrize(
    "lookup",
    [
        failing_lookup,
        lambda host, port: [],
        lambda host, port: ["8.8.8.8"] * 17,
        lambda host, port: ["127.0.0.1"],
        lambda host, port: ["8.8.8.8", "10.0.0.1"],
        lambda host, port: ["2606:4700::1", "::ffff:127.0.0.1"],
        lambda host, port: ["169.254.169.254"],
        lambda host, port: ["fe80::1%1"],
        lambda host, port: ["another.name"],
    ],
    ids=["no_name", "empty", "many", "loopback", "mixed", "mixed6", "metadata", "scope", "name"],
)
async def test_a_name_that_must_not_be_dialled_is_unreachable(
    lookup: Callable[[str, int], list[str]],
) -> None:
    claims: list[int] = []

    async def claim() -> None:
        claims.append(1)

    async with dialing(allow_private=False, lookup=lookup) as http_client:
        endpoint = public_endpoint("api.example.com", 8080)
        request = UpstreamRequest(method="GET", endpoint=endpoint, target="/")
        attempt = Attempt(http_client, request)
        with pytest.raises(UpstreamUnreachable) as caught:
            await attempt.call(before_send=claim)
        assert caught.value.problem == UpstreamUnreachable().problem
        assert not caught.value.sent
        assert (claims, attempt.steps) == ([], set())
        with pytest.raises(EndpointNotAllowed) as denied:
            await http_client.check_endpoint(endpoint)
        assert denied.value.problem.detail.startswith("The endpoint's host does not resolve to")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "10.0.0.1", "169.254.169.254", "[::ffff:127.0.0.1]"])
async def test_literal_addresses_are_checked_at_the_socket(host: str) -> None:
    # A record made by hand, as if the parser at the door had let it through.
    async with running(answer(OK)) as upstream, dialing(allow_private=False) as http_client:
        origin = f"http://{host}:{upstream.port}"
        endpoint = Endpoint(
            scheme="http", host=host, port=upstream.port, path="", base_path="", origin=origin
        )
        with pytest.raises(UpstreamUnreachable):
            await call(http_client, get(upstream, endpoint=endpoint))
        with pytest.raises(EndpointNotAllowed):
            await http_client.check_endpoint(endpoint)
        assert upstream.accepted == 0


async def test_a_refused_connect_is_unreachable() -> None:
    async with running(answer(OK)) as upstream:
        request = get(upstream)
    async with dialing() as http_client:
        with pytest.raises(UpstreamUnreachable) as caught:
            await call(http_client, request)
        assert caught.value.problem == UpstreamUnreachable().problem
        assert http_client._in_flight == {}


async def test_a_connect_that_hangs_is_unreachable() -> None:
    # TLS against a server that never speaks: connected, and then nothing.
    async with running(silent) as upstream, dialing(replace(LIMITS, connect_deadline_s=0.05)) as http_client:
        endpoint = of_type(Endpoint, parse_endpoint(f"https://127.0.0.1:{upstream.port}", allow_private=True))
        with pytest.raises(UpstreamUnreachable) as caught:
            await call(http_client, get(upstream, endpoint=endpoint))
        assert caught.value.problem == UpstreamUnreachable().problem


async def test_broken_tls_is_unreachable() -> None:
    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    async with running(handler) as upstream, dialing() as http_client:
        endpoint = of_type(Endpoint, parse_endpoint(f"https://127.0.0.1:{upstream.port}", allow_private=True))
        with pytest.raises(UpstreamUnreachable):
            await call(http_client, get(upstream, endpoint=endpoint))


async def test_name_resolution_has_a_deadline_and_is_shared() -> None:
    release, asked = threading.Event(), []

    def lookup(host: str, port: int) -> list[str]:
        asked.append(host)
        release.wait(5)
        return ["127.0.0.1"]

    try:
        async with (
            running(answer(OK)) as upstream,
            dialing(replace(LIMITS, dns_deadline_s=0.05), lookup=lookup) as http_client,
        ):
            request = get(upstream, endpoint=upstream.endpoint("slow.example"))
            results = await asyncio.gather(
                *(call(http_client, request) for _ in range(5)), return_exceptions=True
            )
            assert [type(result) for result in results] == [UpstreamUnreachable] * 5
            assert asked == ["slow.example"]
    finally:
        release.set()


async def test_a_name_is_checked_again_on_every_new_connection() -> None:
    answers = [["127.0.0.1"], ["169.254.169.254"]]
    last = head("200 OK", b"Connection: close\r\nContent-Length: 2\r\n") + b"ok"
    async with (
        running(script(last)) as upstream,
        dialing(lookup=lambda host, port: answers.pop(0)) as http_client,
    ):
        request = get(upstream, endpoint=upstream.endpoint("rebind.example"))
        assert await call(http_client, request) == (200, b"ok")
        with pytest.raises(UpstreamUnreachable):
            await call(http_client, request)
        assert answers == []
        assert upstream.accepted == 1


async def test_the_checked_address_is_the_dialled_one() -> None:
    asked: list[str] = []

    def lookup(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    async with running(answer(OK)) as upstream, dialing(lookup=lookup) as http_client:
        request = get(upstream, endpoint=upstream.endpoint("name.example"))
        await call(http_client, request)
        await call(http_client, request)
        assert asked == ["name.example"], "once for a connection, and not again on reuse"
        assert f"Host: name.example:{upstream.port}".encode() in upstream.requests[0]


async def test_the_gateway_does_not_call_itself() -> None:
    async with running(answer(OK)) as upstream:
        for own in (
            {"own_origins": frozenset({f"http://self.example:{upstream.port}"})},
            {"own_listeners": frozenset({("127.0.0.1", upstream.port)})},
            {"own_listeners": frozenset({("0.0.0.0", upstream.port)})},
        ):
            async with dialing(**own) as http_client:  # type: ignore[arg-type]
                for host in ("self.example", "self.example."):
                    endpoint = upstream.endpoint(host)
                    with pytest.raises(UpstreamUnreachable):
                        await call(http_client, get(upstream, endpoint=endpoint))
                    with pytest.raises(EndpointNotAllowed):
                        await http_client.check_endpoint(endpoint)
                assert http_client._in_flight == {}
        assert upstream.accepted == 0


async def test_an_endpoint_check_resolves_and_opens_no_connection() -> None:
    async with running(answer(OK)) as upstream, dialing() as http_client:
        await http_client.check_endpoint(upstream.endpoint("name.example"))
        await http_client.check_endpoint(upstream.endpoint())
        assert upstream.accepted == 0


# ---------------------------------------------------------------------- crowds


async def test_calls_in_flight_per_origin_are_limited() -> None:
    limits = replace(LIMITS, in_flight_per_origin_max=2)
    async with running(silent) as upstream, running(answer(OK)) as other, dialing(limits) as http_client:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call(http_client, get(upstream))) for _ in range(2)]
            await until(lambda: len(upstream.requests) == 2)
            with pytest.raises(Refusal) as caught:
                await call(http_client, get(upstream))
            assert caught.value.problem.code is Code.OVERLOADED
            assert caught.value.problem.retry_after_s
            assert await call(http_client, get(other)) == (200, b"ok")
            for task in tasks:
                task.cancel()
        assert http_client._in_flight == {}
        assert len(upstream.requests) == 2


async def test_a_closed_client_opens_no_connection() -> None:
    async with running(answer(OK)) as upstream, dialing() as http_client:
        await call(http_client, get(upstream))
        await http_client.close()
        with pytest.raises(UpstreamUnreachable):
            await call(http_client, get(upstream))
        assert len(upstream.requests) == 1


# ---------------------------------------------------------------------- fetch


async def test_fetches_a_small_document_with_its_query() -> None:
    document = head("200 OK", b"Content-Type: application/json\r\nContent-Length: 2\r\n") + b"{}"
    async with running(answer(document)) as upstream, dialing() as http_client:
        url = f"http://127.0.0.1:{upstream.port}/openapi.json?v=1"
        fetched = await http_client.fetch(url, bytes_max=2, deadline_s=60.0)
        assert (fetched.status, fetched.content_type, fetched.body) == (200, "application/json", b"{}")
        assert upstream.requests[0].startswith(b"GET /openapi.json?v=1 HTTP/1.1\r\n")
        with pytest.raises(UpstreamBadResponse):
            await http_client.fetch(url, bytes_max=1, deadline_s=60.0)
        assert http_client._in_flight == {}


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "http://169.254.169.254/", "http://u@127.0.0.1:8080/", "http://a.example/#x"],
)
async def test_fetches_only_what_an_endpoint_may_be(url: str) -> None:
    async with dialing() as http_client:
        with pytest.raises(EndpointNotAllowed):
            await http_client.fetch(url, bytes_max=10, deadline_s=60.0)


async def test_a_fetch_in_production_is_refused_before_anything_is_dialled() -> None:
    async with running(answer(OK)) as upstream, dialing(allow_private=False) as http_client:
        with pytest.raises(EndpointNotAllowed):
            await http_client.fetch(f"http://127.0.0.1:{upstream.port}/", bytes_max=10, deadline_s=60.0)
        assert upstream.accepted == 0


async def test_a_fetch_has_one_deadline_for_everything() -> None:
    async def handler(upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await upstream.read_head(reader)
        writer.write(head("200 OK"))
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.005)

    async with running(handler) as upstream, dialing() as http_client:
        with pytest.raises(UpstreamTimeout):
            await http_client.fetch(f"http://127.0.0.1:{upstream.port}/", bytes_max=10**9, deadline_s=0.05)
        await until(lambda: upstream.ended == 1)


# ---- Knocking.


async def test_a_connection_check_connects_and_sends_nothing() -> None:
    left = asyncio.Event()

    async def wait_for_the_end(
        upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        assert await reader.read() == b""
        left.set()

    async with running(wait_for_the_end) as upstream, dialing() as http_client:
        await http_client.check_connection(upstream.endpoint())
        await bounded(left.wait())
        assert upstream.accepted == 1


async def test_a_connection_check_has_the_policy_of_a_call() -> None:
    async def answer(
        upstream: Upstream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None: ...

    async with running(answer) as upstream:
        own = frozenset({("127.0.0.1", upstream.port)})
        for shut in (
            dialing(allow_private=False),
            dialing(own_listeners=own),
            dialing(own_origins=frozenset({upstream.endpoint("gw.example.com").origin})),
            dialing(lookup=lambda host, port: ["127.0.0.1", "192.168.0.1"], allow_private=False),
        ):
            async with shut as http_client:
                with pytest.raises(UpstreamUnreachable):
                    await http_client.check_connection(upstream.endpoint("gw.example.com"))
        async with dialing() as http_client:
            await http_client.close()
            with pytest.raises(UpstreamUnreachable):
                await http_client.check_connection(upstream.endpoint())
        assert upstream.accepted == 0
