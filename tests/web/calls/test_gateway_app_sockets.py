"""The sockets of clients: found by their peer, read for their free space, and never changed."""

import asyncio
import contextlib
import fcntl
import socket
import sys
import termios
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.waits import DEADLINE_S, until
from tollway.web.calls.gateway_app import AHEAD_BYTES_MAX, ALL_AHEAD_BYTES_MAX, ClientSocket, ClientSockets

LITTLE = 64 * 1024
pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="the kernel tells nothing here")


class Pair:
    """A client socket and the server's socket of the same connection."""

    def __init__(self, listener: socket.socket) -> None:
        self.caller = socket.create_connection(listener.getsockname(), timeout=DEADLINE_S)
        self.server, _ = listener.accept()
        self.server.setblocking(False)

    @property
    def scope(self) -> dict[str, Any]:
        """The scope of the server, with ports as text."""
        host, port = self.caller.getsockname()
        return {"client": (host, str(port)), "server": (host, str(self.caller.getpeername()[1]))}

    def fill(self) -> int:
        """Writes until the kernel accepts no more. Returns the bytes."""
        count = 0
        try:
            while True:
                count += self.server.send(b"x" * LITTLE)
        except BlockingIOError:
            return count

    def drain(self, count: int) -> None:
        """The client reads `count` bytes; returns after the kernel received the acknowledgement."""
        while count:
            count -= len(self.caller.recv(min(count, LITTLE)))
        while fcntl.ioctl(self.server.fileno(), termios.TIOCOUTQ, b"\0\0\0\0") != b"\0\0\0\0":
            pass

    def close(self) -> None:
        self.caller.close()
        self.server.close()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pair = Pair(listener)
        yield pair
        pair.close()


@pytest.fixture
def client_sockets() -> ClientSockets:
    return ClientSockets()


def find_socket(client_sockets: ClientSockets, pair: Pair) -> ClientSocket:
    client_socket = client_sockets.find_socket(pair.scope)
    assert client_socket is not None
    return client_socket


async def test_finds_a_socket_by_its_peer_and_leaves_it_open(
    client_sockets: ClientSockets, pair: Pair
) -> None:
    find_socket(client_sockets, pair)
    find_socket(client_sockets, pair)
    pair.server.send(b"still here")
    assert pair.caller.recv(100) == b"still here"


@pytest.mark.parametrize(
    "scope",
    [
        {},
        {"client": None, "server": ("127.0.0.1", 80)},
        {"client": ("testclient", 50_000), "server": ("127.0.0.1", 80)},
        {"client": ("127.0.0.1", "x"), "server": ("127.0.0.1", 80)},
        {"client": ("127.0.0.1",), "server": ("127.0.0.1", 80)},
    ],
)
async def test_a_client_without_a_socket_in_this_process_is_not_found(
    client_sockets: ClientSockets, scope: dict[str, Any]
) -> None:
    assert client_sockets.find_socket(scope) is None


async def test_a_reused_descriptor_is_not_taken_for_the_earlier_client(
    client_sockets: ClientSockets,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        first = Pair(listener)
        scope, number = first.scope, first.server.fileno()
        find_socket(client_sockets, first)
        first.close()
        second = Pair(listener)
        assert number in (second.caller.fileno(), second.server.fileno())
        assert client_sockets.find_socket(scope) is None
        find_socket(client_sockets, second)
        second.close()


async def test_the_server_may_queue_a_few_bytes(client_sockets: ClientSockets, pair: Pair) -> None:
    client_socket = find_socket(client_sockets, pair)
    pair.fill()
    await client_socket.wait_writable(LITTLE)


async def test_bytes_that_the_kernel_accepted_are_no_longer_counted(
    client_sockets: ClientSockets, pair: Pair
) -> None:
    client_socket = find_socket(client_sockets, pair)
    client_socket.add_sent(AHEAD_BYTES_MAX)
    assert client_sockets.ahead == AHEAD_BYTES_MAX
    count = 0
    while count < AHEAD_BYTES_MAX:
        count += pair.server.send(b"x" * LITTLE)
        pair.caller.recv(LITTLE)
    await client_socket.wait_writable(LITTLE)
    assert client_sockets.ahead == 0


async def test_bytes_acknowledged_between_the_two_reads_are_not_counted_twice(
    client_sockets: ClientSockets, pair: Pair
) -> None:
    client_socket = find_socket(client_sockets, pair)
    count, looks = pair.fill(), 0
    client_socket.add_sent(count)

    def arrive(event: str, _: object) -> None:
        nonlocal looks
        if looks < 2 and event in ("fcntl.ioctl", "socket.__new__"):
            looks += 1
            if looks == 2:
                pair.drain(count)

    sys.addaudithook(arrive)  # it runs before each read of the count
    await client_socket.wait_writable(LITTLE)
    assert looks == 2
    client_socket.add_sent(AHEAD_BYTES_MAX)
    for _ in range(AHEAD_BYTES_MAX // LITTLE):
        pair.server.sendall(b"x" * LITTLE)
        pair.drain(LITTLE)
    await client_socket.wait_writable(LITTLE)
    assert client_sockets.ahead == 0


async def test_a_stalled_client_gets_no_more_bytes_until_it_reads(
    client_sockets: ClientSockets, pair: Pair
) -> None:
    client_socket = find_socket(client_sockets, pair)
    client_socket.add_sent(pair.fill() + AHEAD_BYTES_MAX)  # the kernel is full, and the server has more
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(client_socket.wait_writable(LITTLE))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        pair.caller.setblocking(False)
        while not waiting.done():
            with contextlib.suppress(BlockingIOError):
                pair.caller.recv(LITTLE)
            await asyncio.sleep(0.001)
    client_socket.close()
    assert client_sockets.ahead == 0


async def test_a_disconnect_ends_the_wait(client_sockets: ClientSockets, pair: Pair) -> None:
    client_socket = find_socket(client_sockets, pair)
    client_socket.add_sent(pair.fill() + AHEAD_BYTES_MAX)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(client_socket.wait_writable(LITTLE))
        await asyncio.sleep(0)
        assert not waiting.done()
        client_socket.release()


async def test_a_closed_connection_ends_the_wait(client_sockets: ClientSockets, pair: Pair) -> None:
    client_socket = find_socket(client_sockets, pair)
    client_socket.add_sent(pair.fill() + AHEAD_BYTES_MAX)
    pair.close()
    await client_socket.wait_writable(LITTLE)


async def test_stalled_clients_never_use_all_of_the_queue(client_sockets: ClientSockets) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pairs = [Pair(listener) for _ in range(60)]
        for pair in pairs:
            client_socket = find_socket(client_sockets, pair)
            client_socket.add_sent(max(0, client_sockets.limit_ahead(0)))
            assert client_sockets.ahead <= ALL_AHEAD_BYTES_MAX
            pair.close()
    assert (
        0 < client_sockets.limit_ahead(0) < LITTLE
    )  # a further client gets what the kernel accepts, and no more
    await until(lambda: client_sockets.ahead > ALL_AHEAD_BYTES_MAX * 3 // 4)
