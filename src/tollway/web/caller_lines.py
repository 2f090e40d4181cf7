"""The callers' sockets, seen from behind the server: whether the kernel would take more for one of them.

The server keeps its sockets to itself, and queues some messages for a caller who is slow, whatever their size: a thousand
of them held a gibibyte. So whoever streams asks here first. Sockets are found by their far end, and only asked; nothing
here reads, writes or closes one. Where they cannot be found (no Linux, no socket at all) the answer is always yes.
"""

import asyncio
import contextlib
import fcntl
import os
import select
import socket
import struct
import termios
from collections.abc import MutableMapping
from typing import Any

_FD_FOLDER = "/proc/self/fd"
_SocketEnds = tuple[str, int, int]
_ACKED = struct.Struct("=120xQ")
"""tcpi_bytes_acked in Linux's tcp_info."""
_POLL_PAUSES_S = (0, 0, 0, 0, 0.001, 0.002, 0.004, *[0.01] * 50)
"""Between looks whether the server has written what it was given last. Its thread may be late where many begin at once."""
AHEAD_BYTES_MAX = 1024 * 1024
"""So much may wait in the server for one caller: what a fast one takes while we fetch more."""
ALL_AHEAD_BYTES_MAX = 8 * 1024 * 1024
"""For all callers together. Each may have an eighth of what is left, so that those who stand still never have all of it."""


class ClientSocket:
    """One caller's socket, for as long as its call runs."""

    __slots__ = ("_ahead", "_base", "_ends", "_fd", "_sent", "_sockets", "_waiting")

    def __init__(self, sockets: "ClientSockets", ends: _SocketEnds, fd: int) -> None:
        self._sockets = sockets
        self._ends = ends
        self._fd = fd
        self._base = _count_accepted(fd)
        self._sent = self._ahead = 0
        self._waiting: asyncio.Future[bool] | None = None

    def add_sent(self, count: int) -> None:
        """The server was given so much more."""
        self._sent += count
        self._ahead += count
        self._sockets.ahead += count

    def close(self) -> None:
        self._sockets.ahead -= self._ahead
        self._ahead = 0

    async def wait_writable(self, count: int) -> None:
        """Returns once the server may be given so much more: it has some to spare for this caller, or has written all, and
        the kernel takes more. Returns too when the line is gone."""
        if self._ahead + count <= self._sockets.limit_ahead(self._ahead):
            return  # even if nothing was written since the last count
        pauses_s = iter(_POLL_PAUSES_S)
        while True:
            ahead = self._count_ahead()
            if ahead + count <= self._sockets.limit_ahead(ahead):
                return
            if not _is_writable(self._fd):
                if _read_ends(self._fd) != self._ends or not await self._wait_event():
                    return
            elif not ahead or (pause_s := next(pauses_s, None)) is None:
                return
            else:
                await asyncio.sleep(pause_s)

    async def _wait_event(self) -> bool:
        """False when it was released."""
        waiting = self._waiting = self._sockets.watch(self._fd)
        try:
            return await waiting
        finally:
            self._sockets.unwatch(self._fd, waiting)
            self._waiting = None

    def _count_ahead(self) -> int:
        """What was sent and the kernel has not taken. It also takes heads and the frames of chunks: once it has everything,
        they are left out of the count."""
        taken = _count_accepted(self._fd)
        ahead = -1 if taken < 0 else self._sent - (taken - self._base)
        if ahead < 0:
            self._base = taken - self._sent
            ahead = 0
        self._sockets.ahead += ahead - self._ahead
        self._ahead = ahead
        return ahead

    def release(self) -> None:
        """The caller has left: nobody waits for room any more."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(False)


class ClientSockets:
    """All of them. One per event loop. `ahead`: bytes that the server has and the kernel has not."""

    def __init__(self) -> None:
        self.ahead = 0
        self._fds: dict[_SocketEnds, int] = {}
        self._waiting: dict[int, asyncio.Future[bool]] = {}
        self._poll: select.epoll | None = None

    def find_socket(self, scope: MutableMapping[str, Any]) -> ClientSocket | None:
        """The line of this request; None where it cannot be told."""
        ends = _read_scope(scope)
        if ends is None:
            return None
        fd = self._fds.get(ends)
        if fd is None or _read_ends(fd) != ends:
            self._scan_sockets()
            fd = self._fds.get(ends)
        return None if fd is None else ClientSocket(self, ends, fd)

    def limit_ahead(self, ahead: int) -> int:
        """How much may wait in the server for a caller for whom so much waits already."""
        return min(AHEAD_BYTES_MAX, (ALL_AHEAD_BYTES_MAX - self.ahead + ahead) // 8)

    def watch(self, fd: int) -> asyncio.Future[bool]:
        """Done when that descriptor takes more. The server may close it meanwhile: then it is never done."""
        loop = asyncio.get_running_loop()
        if self._poll is None:
            self._poll = select.epoll()
        if not self._waiting:
            loop.add_reader(self._poll.fileno(), self._wake)
        events = select.EPOLLOUT | select.EPOLLONESHOT
        try:
            self._poll.register(fd, events)
        except FileExistsError:
            self._poll.modify(fd, events)
        waiting = self._waiting[fd] = loop.create_future()
        return waiting

    def unwatch(self, fd: int, waiting: asyncio.Future[bool]) -> None:
        if self._waiting.get(fd) is waiting:
            del self._waiting[fd]
            if not self._waiting and self._poll is not None:
                asyncio.get_running_loop().remove_reader(self._poll.fileno())

    def _wake(self) -> None:
        if self._poll is not None:
            for fd, _ in self._poll.poll(0):
                waiting = self._waiting.get(fd)
                if waiting is not None and not waiting.done():
                    waiting.set_result(True)

    def _scan_sockets(self) -> None:
        """Every socket of this process by its ends. New ones are seldom looked for: a line lasts for many calls."""
        self._fds.clear()
        with contextlib.suppress(OSError):
            for entry in os.listdir(_FD_FOLDER):
                fd = int(entry)
                ends = _read_ends(fd)
                if ends is not None:
                    self._fds[ends] = fd


def _is_writable(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLOUT)
    return bool(poller.poll(0))


def _count_accepted(fd: int) -> int:
    """How many bytes the kernel was given for that socket in all: those that have arrived, and those on their way."""
    try:
        waiting = fcntl.ioctl(fd, termios.TIOCOUTQ, b"\0\0\0\0")
        borrowed = socket.socket(fileno=fd)
    except OSError:
        return -1
    try:
        (acked,) = _ACKED.unpack(borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.size))
    except (OSError, struct.error):
        return -1
    finally:
        borrowed.detach()
    return int(acked) + int.from_bytes(waiting, "little")


def _read_ends(fd: int) -> _SocketEnds | None:
    """The far end of a socket and our port; None for anything else. The descriptor is borrowed, and given back."""
    try:
        if not os.readlink(f"{_FD_FOLDER}/{fd}").startswith("socket:"):
            return None
        borrowed = socket.socket(fileno=fd)
    except OSError:
        return None
    try:
        if borrowed.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        host, port = borrowed.getpeername()[:2]
        return _plain_host(host), port, borrowed.getsockname()[1]
    except OSError:
        return None
    finally:
        borrowed.detach()


def _read_scope(scope: MutableMapping[str, Any]) -> _SocketEnds | None:
    client, server = scope.get("client"), scope.get("server")
    try:
        return _plain_host(client[0]), int(client[1]), int(server[1])  # type: ignore[index]  # a TypeError is an answer too
    except (TypeError, ValueError, IndexError):
        return None


def _plain_host(host: str) -> str:
    return host.removeprefix("::ffff:").partition("%")[0]
