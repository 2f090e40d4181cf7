"""The HTTP server: granian, embedded in the gateway's event loop.

HTTP/1.1 only, no WebSocket, no access log. This module adds what granian lacks: a check that no other process listens on the port, kernel timers that
close connections whose client takes no bytes, and a higher limit of open files and sockets (many systems allow 1,024 by default).
"""

import asyncio
import contextlib
import errno
import math
import os
import resource
import socket
import stat
import sys
from collections.abc import Iterator

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server as GranianServer
from starlette.types import ASGIApp

from tollway.errors import SettingsInvalid
from tollway.limits import Limits

OPEN_FILES_WANTED = 65_536
"""Two for each of a great many connections."""


def raise_open_file_limit() -> int:
    """Asks for what is wanted, or for all that is allowed. How many there may be now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        with contextlib.suppress(ValueError, OSError):  # some systems name a limit that they do not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


HEAD_BUFFER_BYTES = 64 * 1024
"""Parser buffer: holds a whole request head, whose own limit (32 KiB) the application enforces."""

_PORT_POLL_S = 0.01


class PortTaken(SettingsInvalid):
    """Another process listens on the port. The server itself would not notice: it shares ports (SO_REUSEPORT)."""


class HttpServer:
    """Serves one ASGI application on one address until it is stopped."""

    def __init__(self, app: ASGIApp, *, host: str, port: int, limits: Limits) -> None:
        self._host = host
        self._port = port
        self._limits = limits
        raise_open_file_limit()
        self._server = GranianServer(
            app,
            address=host,
            port=port,
            interface=Interfaces.ASGI,
            http=HTTPModes.http1,
            websockets=False,
            backlog=1024,
            backpressure=limits.connections_max,
            log_enabled=False,
            http1_settings=HTTP1Settings(
                header_read_timeout=int(limits.header_deadline_s * 1000),
                keep_alive=True,
                max_buffer_size=HEAD_BUFFER_BYTES,
            ),
        )
        self._is_up = asyncio.Event()
        # Bounds the drain: without it, one stalled reader would keep the process for ever.
        self._server.workers_kill_timeout = math.ceil(limits.drain_deadline_s)

    async def serve(self) -> None:
        """Runs until `stop`, then until the calls in flight are done, at most `drain_deadline_s`. Raises PortTaken."""
        check_port_free(self._host, self._port)
        async with asyncio.TaskGroup() as group:
            setting = group.create_task(self._set_socket_timeouts())
            try:
                # The drain deadline: what is left then ends with the loop, and recovery finds it.
                with contextlib.suppress(TimeoutError):
                    await self._server.serve()
            finally:
                setting.cancel()

    async def wait_up(self) -> None:
        """Returns once the port accepts connections and none of them can be held for ever."""
        await self._is_up.wait()

    def stop(self) -> None:
        """Stops accepting; `serve` returns when the calls in flight are done. Safe to call twice."""
        self._server.stop()  # type: ignore[no-untyped-call]  # granian's own method has no annotations

    async def _set_socket_timeouts(self) -> None:
        """Accepted sockets inherit TCP_USER_TIMEOUT: a peer that acknowledges nothing for so long is dropped. And
        TCP_NOTSENT_LOWAT: else the kernel takes 4 MiB ahead, then nothing until a third of that has left, and a caller
        who takes 40 KiB a second looks as if he took none."""
        await self._await_port()
        if sys.platform == "linux":
            timeout_ms, unsent = int(self._limits.write_stall_s * 1000) + 1000, self._limits.buffer_bytes
            for entry in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError), _borrow_socket(int(entry)) as candidate:
                    # The listening one, and whoever came in before this.
                    if candidate.family != socket.AF_UNIX and candidate.getsockname()[1] == self._port:
                        candidate.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
                        candidate.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent)
        self._is_up.set()

    async def _await_port(self) -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection(self._host, self._port)
            except OSError:
                await asyncio.sleep(_PORT_POLL_S)
                continue
            writer.close()
            return


@contextlib.contextmanager
def _borrow_socket(number: int) -> Iterator[socket.socket]:
    """A file descriptor of ours as a socket, without closing it. Raises OSError when it is none.

    Anything else is left alone: to close even a copy of a file's descriptor frees every lock (fcntl) that this process
    has on the file, and SQLite without its locks lets the next process that looks into the database delete its log.
    """
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        raise OSError(errno.ENOTSOCK, "not a socket")
    own = os.dup(number)
    try:
        borrowed = socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise
    with borrowed:
        yield borrowed


def check_port_free(host: str, port: int) -> None:
    """Raises PortTaken where nobody can listen there: taken, not allowed, or no address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as exc:
            raise PortTaken([f"listen: cannot listen on {host}:{port}: {exc.strerror}"]) from exc
