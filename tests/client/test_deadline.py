"""An exchange ends however slowly a gateway or a node sends. The servers here send one small piece after another for as long
as the connection is open; a test that waits for their end fails by its timeout."""

import asyncio
import contextlib
import json
import re
import socket
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tollway.cli.inputs import read_nodes
from tollway.client import AsyncTollwayClient, GatewayUnreachable, TollwayClient
from tollway.client.call_io import NodeOutcome, NodeUnavailable
from tollway.client.client import PayingClient
from tollway.client.deadline import fetch_bounded, open_transport, remaining_s, within
from tollway.client.errors import NodeUnreachable
from tollway.client.exchange import Exchange, run_blocking
from tollway.ids import ChainId

SHORT_S = 0.3
BETWEEN_S = 0.01
CHAIN = 84532
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n"
PROBLEM = b"HTTP/1.1 402 Payment Required\r\nContent-Type: application/problem+json\r\nContent-Length: 100000000\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Drip:
    """What a server sends at once, and what it then sends again and again."""

    first: bytes
    again: bytes


DRIPS = {
    "a head that never ends": Drip(b"HTTP/1.1 200 OK\r\nX-A: ", b"a"),
    "interim answers without end": Drip(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "a body that never ends": Drip(OK, b"b"),
    "a chunked body that never ends": Drip(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nc\r\n"
    ),
    "a problem that never ends": Drip(PROBLEM, b" "),
}
each_drip = pytest.mark.parametrize("drip", DRIPS.values(), ids=DRIPS.keys())


@contextlib.contextmanager
def dripping(drip: Drip) -> Iterator[str]:
    """The URL of a server that answers each connection so, until its client leaves."""
    is_over = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(65_536)
            connection.sendall(drip.first)
            while not is_over.wait(BETWEEN_S):
                connection.sendall(drip.again)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        is_over.set()
        listener.close()


@each_drip
def test_a_call_ends_at_its_deadline(drip: Drip, tmp_path) -> None:
    with (
        dripping(drip) as url,
        TollwayClient(url, store_path=tmp_path / "p", deadline_s=SHORT_S) as client,
        pytest.raises(GatewayUnreachable),
    ):
        client.call("api_1", "/x")


@each_drip
async def test_an_asynchronous_call_ends_at_its_deadline(drip: Drip, tmp_path) -> None:
    with dripping(drip) as url:
        async with AsyncTollwayClient(url, store_path=tmp_path / "p", deadline_s=SHORT_S) as client:
            with pytest.raises(GatewayUnreachable):
                await client.call("api_1", "/x")


async def test_eight_hanging_calls_of_an_agent_end(tmp_path) -> None:
    with dripping(DRIPS["a body that never ends"]) as url:
        async with AsyncTollwayClient(url, store_path=tmp_path / "p", deadline_s=SHORT_S) as client:
            ended = await asyncio.gather(*(client.call("api_1") for _ in range(8)), return_exceptions=True)
    assert [type(one) for one in ended] == [GatewayUnreachable] * 8


def test_a_stream_has_its_head_by_the_deadline_and_its_body_at_the_readers_pace(tmp_path) -> None:
    with (
        dripping(DRIPS["a body that never ends"]) as url,
        TollwayClient(url, store_path=tmp_path / "p", deadline_s=20) as client,
        client.stream("api_1") as response,
    ):
        pieces = response.iter_raw()
        assert [next(pieces)[:1] for _ in range(50)] == [b"b"] * 50
    with (
        dripping(DRIPS["a head that never ends"]) as url,
        TollwayClient(url, store_path=tmp_path / "q", deadline_s=SHORT_S) as client,
        pytest.raises(GatewayUnreachable),
        client.stream("api_1"),
    ):
        pass


class SlowResume(TollwayClient):
    """Notes the deadline that holds while the payments of an earlier process are sent."""

    rest_s: float | None = None

    async def _resume(self) -> None:
        self.rest_s = remaining_s()


def test_the_payments_of_an_earlier_process_are_sent_within_the_deadline(tmp_path) -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200))
    with SlowResume("http://127.0.0.1", store_path=tmp_path / "p", transport=transport) as client:
        client.call("api_1")
        assert client.rest_s is not None
    with (
        SlowResume("http://127.0.0.1", store_path=tmp_path / "q", transport=transport) as client,
        client.stream("api_1"),
    ):
        assert client.rest_s is not None


@each_drip
def test_a_question_to_the_control_plane_ends(drip: Drip, tmp_path) -> None:
    with (
        dripping(drip) as url,
        TollwayClient(url, store_path=tmp_path / "p") as client,
        within(SHORT_S),
        pytest.raises(GatewayUnreachable),
    ):
        client.search()


@each_drip
async def test_an_asynchronous_question_to_the_control_plane_ends(drip: Drip, tmp_path) -> None:
    with dripping(drip) as url:
        async with AsyncTollwayClient(url, store_path=tmp_path / "p") as client:
            with within(SHORT_S), pytest.raises(GatewayUnreachable):
                await client.search()


def query_block(client: PayingClient[Any, Any, Any]) -> Coroutine[Any, Any, NodeOutcome]:
    return Exchange(client._driver, client._http).query_node(ChainId(CHAIN), "eth_blockNumber")


@each_drip
async def test_a_question_to_a_node_ends(drip: Drip, tmp_path) -> None:
    with dripping(drip) as url:
        nodes = {CHAIN: url}
        with TollwayClient(url, store_path=tmp_path / "p", rpc_urls=nodes) as client, within(SHORT_S):
            assert isinstance(run_blocking(query_block(client)), NodeUnavailable)
        async with AsyncTollwayClient(url, store_path=tmp_path / "q", rpc_urls=nodes) as client:
            with within(SHORT_S):
                assert isinstance(await query_block(client), NodeUnavailable)
        with within(SHORT_S), pytest.raises(NodeUnreachable):
            read_nodes((url,))


def test_a_fetch_has_a_deadline_and_a_maximum() -> None:
    for drip in DRIPS.values():
        with dripping(drip) as url, pytest.raises(httpx.TransportError):
            fetch_bounded("GET", url, deadline_s=SHORT_S, bytes_max=1_000_000)
    with dripping(Drip(OK, b"x" * 10_000)) as url, pytest.raises(OSError, match="larger than 50000 bytes"):
        fetch_bounded("GET", url, deadline_s=60, bytes_max=50_000)


def test_deadlines_nest_and_the_earliest_counts() -> None:
    with dripping(DRIPS["a body that never ends"]) as url:
        for outer, inner in ((SHORT_S, 60.0), (60.0, SHORT_S)):
            with (
                within(outer),
                within(inner),
                httpx.Client(transport=open_transport()) as http,
                pytest.raises(httpx.TimeoutException),
            ):
                http.get(url)


# ---- The transport does what httpx's own does.


def read_request(connection: socket.socket) -> bytes:
    """One request with its body, which may come in a piece of its own."""
    request = b""
    while b"\r\n\r\n" not in request:
        request += connection.recv(65_536)
    length = re.search(rb"content-length: (\d+)", request, re.IGNORECASE)
    while length is not None and len(request.partition(b"\r\n\r\n")[2]) < int(length[1]):
        request += connection.recv(65_536)
    return request


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives one answer to each request of one connection, and what it was sent."""
    listener, heard = socket.create_server(("127.0.0.1", 0)), []

    def serve() -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            for answer in answers:
                heard.append(read_request(connection))
                connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", heard
    finally:
        listener.close()
        thread.join(timeout=10)


def test_the_transport_keeps_a_connection_and_passes_everything_on() -> None:
    head = b"HTTP/1.1 201 Made\r\nX-A: 1\r\nX-A: 2\r\nContent-Length: 2\r\n\r\n"
    with (
        answering(head + b"ok", head + b"ko") as (url, heard),
        httpx.Client(transport=open_transport()) as http,
    ):
        first = http.post(url + "/a%2Fb?q=1", json={"a": 1})
        second = http.get(url)
    assert (first.status_code, first.content, first.headers.get_list("x-a")) == (201, b"ok", ["1", "2"])
    assert second.content == b"ko"
    assert heard[0].startswith(b"POST /a%2Fb?q=1 HTTP/1.1\r\n")
    assert json.loads(heard[0].partition(b"\r\n\r\n")[2]) == {"a": 1}


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (b"no HTTP at all\r\n\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", httpx.RemoteProtocolError),
        (b"", httpx.RemoteProtocolError),
    ],
)
def test_the_transport_fails_with_the_failures_of_httpx(
    answer: bytes, failure: type[httpx.TransportError]
) -> None:
    with (
        answering(answer) as (url, _),
        httpx.Client(transport=open_transport()) as http,
        pytest.raises(failure),
    ):
        http.get(url)


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with httpx.Client(transport=open_transport()) as http:
        with pytest.raises(httpx.ConnectError):
            http.get(f"http://127.0.0.1:{port}")
        with pytest.raises(httpx.UnsupportedProtocol):
            http.get("ftp://127.0.0.1/")
