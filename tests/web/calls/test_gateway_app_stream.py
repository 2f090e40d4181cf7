"""A response to a client that reads nothing: how much of it the gateway fetches from the upstream."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from tests.kit.gateway import CALLS, InProcessGateway, open_gateway, serve
from tests.kit.upstream import Arrived
from tests.kit.waits import until
from tollway.money import Price
from tollway.outbound.connection import Connection
from tollway.web.calls.gateway_app import AHEAD_BYTES_MAX, ALL_AHEAD_BYTES_MAX

KIB = 1024
WHOLE = 32 * KIB * KIB
FOR_EACH = 256 * KIB
"""In the kernel, in the queue of the server, and one chunk in the gateway."""
CALLERS = 60


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway(free_calls_per_minute=1_000) as small:
        await small.publish(price=Price.parse("0"))
        yield small


async def pour(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % WHOLE)
    for _ in range(WHOLE // (16 * KIB)):
        writer.write(b"x" * 16 * KIB)
        await writer.drain()


def open_caller(port: int) -> socket.socket:
    caller = socket.socket()
    caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * KIB)
    caller.connect(("127.0.0.1", port))
    caller.sendall(b"GET " + CALLS.encode() + b"api_quotes/x HTTP/1.1\r\nHost: gateway.example\r\n\r\n")
    caller.setblocking(False)
    return caller


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the bytes that the gateway has read from its upstreams."""
    pieces: list[int] = []
    update = Connection.buffer_updated

    def count(connection: Connection, nbytes: int) -> None:
        pieces.append(nbytes)
        update(connection, nbytes)

    monkeypatch.setattr(Connection, "buffer_updated", count)
    return pieces


async def wait_quiet(taken: list[int]) -> int:
    """Waits until every queue is full and the gateway reads no more."""
    before = -1
    while not taken or before != len(taken):
        before = len(taken)
        await asyncio.sleep(0.25)
    return sum(taken)


async def test_a_stalled_client_buffers_little_and_continues_when_it_reads(
    gateway: InProcessGateway, taken: list[int]
) -> None:
    gateway.upstream.answer = pour
    async with serve(gateway) as port:
        with open_caller(port) as caller:
            held = await wait_quiet(taken)
            assert held <= AHEAD_BYTES_MAX + FOR_EACH
            while sum(taken) < held + AHEAD_BYTES_MAX:
                await asyncio.get_running_loop().sock_recv(caller, 256 * KIB)


async def test_stalled_clients_share_the_queue_of_the_server(
    gateway: InProcessGateway, taken: list[int]
) -> None:
    gateway.upstream.answer = pour
    async with serve(gateway) as port:
        callers = [open_caller(port) for _ in range(CALLERS)]
        try:
            assert await wait_quiet(taken) <= ALL_AHEAD_BYTES_MAX + CALLERS * FOR_EACH
            assert 0 < gateway.calls.client_sockets.ahead <= ALL_AHEAD_BYTES_MAX + CALLERS * 64 * KIB
        finally:
            for caller in callers:
                caller.close()
        await until(lambda: gateway.calls.client_sockets.ahead == 0)
