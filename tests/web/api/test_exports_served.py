"""Exports behind the real server: what a client sees of a broken file, and how far the gateway reads ahead of a client."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.kit.csv_exports import WALLET_HEADER
from tests.kit.ports import find_low_port
from tests.web.api.test_exports import ROWS, FakeHistory, make_app
from tests.web.api.test_history_routes import PAYER
from tollway.limits import DEFAULT_LIMITS
from tollway.web.http.server import HttpServer

MANY_ROWS = 20_000
"""About eight megabytes: more than the server and the kernel keep for one client."""
CHUNKS_AHEAD_MAX = 45
"""The chunks that fit into the queue of the server and the buffers of the kernel on both ends."""

CHUNKS_AFTER_LEAVING_MAX = 2


@contextlib.asynccontextmanager
async def serve(app: Any) -> AsyncIterator[int]:
    port = find_low_port()
    server = HttpServer(app, host="127.0.0.1", port=port, limits=DEFAULT_LIMITS)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve())
        await server.wait_up()
        try:
            yield port
        finally:
            server.stop()


async def fetch(port: int, path: str = "/api/v2/history.csv") -> bytes:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        return (await client.get(path, headers={WALLET_HEADER: PAYER.hex()})).content


async def test_a_client_sees_that_a_file_is_broken() -> None:
    async with serve(make_app(FakeHistory(ROWS, fails_at=2))) as port:
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            await fetch(port)
    async with serve(make_app(FakeHistory(ROWS))) as port:
        assert (await fetch(port)).count(b"\r\n") == ROWS + 1


def open_reader(port: int) -> socket.socket:
    """A client with a small receive buffer that has sent its request and reads nothing."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(("127.0.0.1", port))
    head = f"GET /api/v2/history.csv HTTP/1.1\r\nhost: gw\r\n{WALLET_HEADER}: {PAYER.hex()}\r\n\r\n"
    reader.sendall(head.encode())
    return reader


async def wait_quiet(history: FakeHistory) -> int:
    """Waits until no further chunk is read. Gives the number of chunks."""
    before = -1
    while not history.chunks or before != len(history.chunks):
        before = len(history.chunks)
        await asyncio.sleep(0.25)
    return before


async def test_a_client_that_reads_nothing_holds_few_rows_and_one_that_leaves_ends_the_reading() -> None:
    history = FakeHistory(MANY_ROWS)
    async with serve(make_app(history)) as port:
        reader = open_reader(port)
        held = await wait_quiet(history)
        assert held <= CHUNKS_AHEAD_MAX
        reader.close()
        assert await wait_quiet(history) <= CHUNKS_AHEAD_MAX + CHUNKS_AFTER_LEAVING_MAX
        assert (await fetch(port)).count(b"\r\n") == MANY_ROWS + 1
