"""The small gateway behind the real server, for tests of what only a socket shows."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.kit.gateway import SmallGateway
from tollway.web.server import HttpServer


@asynccontextmanager
async def serving(gate: SmallGateway) -> AsyncIterator[int]:
    """The same gateway behind the real server, on a free port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    server = HttpServer(gate.app, host="127.0.0.1", port=port, limits=gate.limits)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve())
        try:
            async with asyncio.timeout(10):
                await server.wait_up()
            yield port
        finally:
            server.stop()
