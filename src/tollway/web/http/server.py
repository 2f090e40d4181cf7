"""The HTTP server: granian, embedded in the gateway's event loop.

HTTP/1.1 only, no WebSocket, no access log. This module adds a reservation of the port against other processes, kernel timers that close connections whose
client acknowledges no bytes, a higher limit of open files and sockets (many systems allow 1,024 by default), and on Python 3.12 and newer requests that
start in the callback of the server.
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
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context
from functools import partial
from types import SimpleNamespace
from typing import Any

from granian import _futures as granian_scheduler
from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server as GranianServer
from starlette.types import ASGIApp

from tollway.errors import SettingsInvalid
from tollway.limits import Limits

OPEN_FILES_WANTED = 65_536
"""Two for each of 32,768 connections."""


def raise_open_file_limit() -> int:
    """Raises the limit of open files to `OPEN_FILES_WANTED`, or as far as the system allows. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        with contextlib.suppress(
            ValueError, OSError
        ):  # some systems report a hard limit that they do not grant
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


_schedule_requests: Callable[..., Callable[[Any], None]] = granian_scheduler._cbsched_aioschedule


def start_requests_eagerly() -> None:
    """Makes granian run the first step of a request in the callback that creates its task. No effect on Python 3.11; a second call has none.

    granian hands a request over to the event loop with a callback, and the callback creates a task: a second callback, which runs in the next iteration of
    the loop. With `eager_start` (Python 3.12) the task starts in the first one. Nothing else changes: the task has its own copy of the context, is known to
    the loop while it is suspended, and reports an exception of its first step like any other. An eager task factory of the loop would start every task
    of the gateway in this way, not only requests. `tests/web/http/test_eager_requests.py` fails when granian changes its own function: remove this one when
    granian's own starts tasks eagerly.
    """
    if sys.version_info >= (3, 12):
        granian_scheduler._cbsched_aioschedule = _schedule_eagerly


def _schedule_eagerly(
    loop: asyncio.AbstractEventLoop, context: Context, start: Callable[[Any], Any]
) -> Callable[[Any], None]:
    """The function of granian, over a loop whose tasks start eagerly."""
    create_task = partial(asyncio.Task, loop=loop, eager_start=True)  # type: ignore[call-arg]  # Python 3.12
    over = SimpleNamespace(call_soon_threadsafe=loop.call_soon_threadsafe, create_task=create_task)
    return _schedule_requests(over, context, start)


BACKLOG = 1024
HEAD_BUFFER_BYTES = 64 * 1024
"""Parser buffer: holds a whole request head, whose own limit (32 KiB) the application enforces."""

_PORT_POLL_S = 0.01


class PortTaken(SettingsInvalid):
    """Another process listens on the port. The server itself does not detect it: it shares ports (SO_REUSEPORT)."""


class _SharedListenerServer(GranianServer):
    """A server on a listening socket that its parent process made."""

    listener: int

    def _init_shared_socket(self) -> None:
        # Its stub has no parameters.
        self._ssp, self._shd = None, SocketHolder(self.listener, False, BACKLOG)  # type: ignore[call-arg, assignment]


class HttpServer:
    """Serves one ASGI application on one address until it is stopped."""

    def __init__(
        self, app: ASGIApp, *, host: str, port: int, limits: Limits, listener: int | None = None
    ) -> None:
        """`listener`: the descriptor of a socket that listens on the address already (`bind_shared`); None: this server makes its own."""
        self._host = host
        self._port = port
        self._limits = limits
        self._reservation: socket.socket | None = None
        self._listener = listener
        raise_open_file_limit()
        start_requests_eagerly()
        make = GranianServer if listener is None else _SharedListenerServer
        self._server = make(
            app,
            address=host,
            port=port,
            interface=Interfaces.ASGI,
            http=HTTPModes.http1,
            websockets=False,
            backlog=BACKLOG,
            backpressure=limits.connections_max,
            log_enabled=False,
            http1_settings=HTTP1Settings(
                header_read_timeout=int(limits.header_deadline_s * 1000),
                keep_alive=True,
                max_buffer_size=HEAD_BUFFER_BYTES,
            ),
        )
        if isinstance(self._server, _SharedListenerServer) and listener is not None:
            self._server.listener = listener
        self._is_up = asyncio.Event()
        # Limits the drain: without it one stalled client would keep the process alive for ever.
        self._server.workers_kill_timeout = math.ceil(limits.drain_deadline_s)

    def reserve_port(self) -> None:
        """Keeps the port for this server until it listens, so that a second process refuses at its start and not after its work has begun. A second
        call has no effect. Raises PortTaken."""
        if self._reservation is None and self._listener is None:
            self._reservation = reserve_port(self._host, self._port)

    def release_port(self) -> None:
        """Ends the reservation. A second call has no effect."""
        if self._reservation is not None:
            self._reservation.close()

    async def serve(self) -> None:
        """Serves until `stop`, then until the calls in flight end, at most `drain_deadline_s`. Raises PortTaken."""
        self.reserve_port()
        try:
            await self._serve()
        finally:
            self.release_port()

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as group:
            setting = group.create_task(self._set_socket_timeouts())
            try:
                # The drain deadline: calls in flight end with the loop, and recovery finds them.
                with contextlib.suppress(TimeoutError):
                    await self._server.serve()
            finally:
                setting.cancel()

    async def wait_up(self) -> None:
        """Returns when the port accepts connections and the kernel timers apply to them."""
        await self._is_up.wait()

    def stop(self) -> None:
        """Stops accepting connections; `serve` returns when the calls in flight end. A second call has no effect."""
        self._server.stop()  # type: ignore[no-untyped-call]  # granian's own method has no annotations

    async def _set_socket_timeouts(self) -> None:
        """Sets two options on the listening socket; accepted sockets inherit them.

        TCP_USER_TIMEOUT closes the connection of a peer that acknowledges nothing for that time. Without TCP_NOTSENT_LOWAT the kernel buffers 4 MiB, then
        accepts nothing until a third of them has left: a client that reads 40 KiB a second would look stalled.
        """
        await self._await_port()
        self.release_port()
        if sys.platform == "linux":
            timeout_ms, unsent = int(self._limits.write_stall_s * 1000) + 1000, self._limits.buffer_bytes
            for entry in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError), _borrow_socket(int(entry)) as candidate:
                    # The listening socket, and connections that were accepted before this.
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


async def serve_all(servers: Sequence[HttpServer]) -> None:
    """Serves until the first one is stopped; the others end with it."""
    first, *others = servers
    async with asyncio.TaskGroup() as group:
        for other in others:
            group.create_task(other.serve())
        try:
            await first.serve()
        finally:
            for other in others:
                other.stop()


@contextlib.contextmanager
def reserved_ports(servers: Sequence[HttpServer]) -> Iterator[None]:
    """Keeps the ports of all servers, or of none. Raises PortTaken."""
    with contextlib.ExitStack() as stack:
        for server in servers:
            server.reserve_port()
            stack.callback(server.release_port)
        yield


@contextlib.contextmanager
def _borrow_socket(number: int) -> Iterator[socket.socket]:
    """A file descriptor of this process as a socket; it stays open. Raises OSError if it is no socket.

    Only sockets are duplicated: closing a copy of a file's descriptor releases every lock (fcntl) of this process on the file. Without the locks of SQLite
    the next process that opens the database may delete its log.
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


SharedListener = socket.socket


def bind_shared(host: str, port: int) -> SharedListener:
    """A socket for several processes that serve one address: each accepts from its one queue, so that no connection is lost with a process. Connections wait until one
    accepts. Raises PortTaken as `reserve_port` does."""
    shared = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        shared.bind((host, port))
        shared.listen(BACKLOG)
    except OSError as exc:
        shared.close()
        raise PortTaken([_describe_taken(host, port, exc)]) from exc
    shared.setblocking(False)
    return shared


def reserve_port(host: str, port: int) -> socket.socket:
    """Binds the address without listening on it: a connection is refused, a second reservation fails, and the server of this user can listen beside it
    (SO_REUSEPORT). Raises PortTaken if the address is in use, not allowed, or not an address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # Without SO_REUSEPORT: it finds another server, which shares its port, and another reservation.
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
        reservation = socket.socket(family, socket.SOCK_STREAM)
        with contextlib.suppress(OSError):  # an ended server of another kind keeps the port for a minute
            reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            reservation.bind((host, port))
    except OSError as exc:
        raise PortTaken([_describe_taken(host, port, exc)]) from exc
    return reservation


def _describe_taken(host: str, port: int, exc: OSError) -> str:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if exc.errno != errno.EADDRINUSE:
        return f"listen: cannot listen on {address}: {exc.strerror}"
    return (
        f"listen: another process uses {address}, perhaps this gateway, which runs already. Stop that process, or set another port "
        "(listen, TOLLWAY_LISTEN; of the operator's address admin_listen, TOLLWAY_ADMIN_LISTEN; of control workers control_listen)"
    )
