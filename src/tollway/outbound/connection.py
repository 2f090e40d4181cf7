"""A connection to an upstream: one exchange at a time, and how the last one ended.

It detects at once that it is not usable any more: it was lost, or it received bytes outside an exchange. It never begins an exchange by
itself, never carries an exchange after one that was not complete, and never holds more of a response than its limit. What is not read stays
in the kernel and, by flow control, at the upstream. `ReadBuffer` is the read memory of all connections of an event loop: it holds no data
between two reads, and only a few fast readers get more than one buffer.
"""

import asyncio
import errno
import select
import socket
from collections.abc import Callable
from copy import copy
from math import inf
from time import monotonic
from typing import cast

from tollway.outbound.http1 import HeadLimits, ResponseHead, ResponseMalformed, ResponseParser

HEAD_READ_BYTES = 16 * 1024
"""The bytes of a read that brings a head, besides the first read size of a body."""
FIRST_READ_BYTES = 16 * 1024
LARGE_BUFFERS = 4
"""The size of a large read, in buffers."""
LARGE_READERS_MAX = 16


class ReadBuffer:
    """The read memory of all connections, and the read size of each. A size (`first_size`, the result of `grow`) is the number of bytes
    that the next read of one connection may bring. Each connection must return its size (`release_size`).

    `head`: the memory for a head and the part of the body that arrives with it: most responses are complete in one read. The body part is small,
    because the speed of the reader is not known yet."""

    __slots__ = ("_buffer_bytes", "_large", "_large_max", "first_size", "head", "view")

    def __init__(self, buffer_bytes: int, *, large_max: int = LARGE_READERS_MAX) -> None:
        self.view = memoryview(
            bytearray(max(HEAD_READ_BYTES + FIRST_READ_BYTES, LARGE_BUFFERS * buffer_bytes))
        )
        self._buffer_bytes = buffer_bytes
        self._large_max = large_max
        self._large = 0
        self.first_size = min(FIRST_READ_BYTES, buffer_bytes)
        self.head = self.view[: HEAD_READ_BYTES + self.first_size]

    def grow(self, size: int) -> int:
        """Twice the size, within the limits."""
        buffer_bytes, twice = self._buffer_bytes, 2 * size
        if size > buffer_bytes:
            return min(twice, LARGE_BUFFERS * buffer_bytes)
        if twice <= buffer_bytes:
            return twice
        if self._large >= self._large_max:
            return buffer_bytes
        self._large += 1
        return min(twice, LARGE_BUFFERS * buffer_bytes)

    def release_size(self, size: int) -> int:
        """Returns a size, and gets the first size for it."""
        if size > self._buffer_bytes:
            self._large -= 1
        return self.first_size


_LOSS_ERRNOS = (errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""The errors of a broken connection. A TLS connection that ends without close_notify is not among them: many servers do that."""
_ANY_EVENT = select.POLLIN | select.POLLERR | select.POLLHUP
FAST_READER_S = 0.05
"""A reader that reads again within this time gets twice the read size; a slower one gets the first size again."""
TLS_READ_BYTES = 16 * 1024
"""The bytes of a TLS connection that may wait for decryption: one record."""


class Connection(asyncio.BufferedProtocol):
    """One socket to an upstream. One task sends and reads; another one may write a streamed body at the same time."""

    __slots__ = (
        "_failure",
        "_head_limits",
        "_is_reading_paused",
        "_is_writing_paused",
        "_loop",
        "_on_lost",
        "_parser",
        "_poll",
        "_read_at",
        "_read_buffer",
        "_read_bytes",
        "_socket",
        "_timer",
        "_transport",
        "_uploading",
        "_wait_read",
        "_wait_write",
        "exchanges",
        "idle_s_max",
        "idle_since",
        "is_tls",
        "opened_at",
        "origin",
    )

    def __init__(
        self,
        *,
        origin: str,
        is_tls: bool,
        handle: socket.socket,
        head_limits: HeadLimits,
        read_buffer: ReadBuffer,
        on_lost: Callable[["Connection"], None],
    ) -> None:
        """`on_lost` is called once, when the connection is lost."""
        self.origin = origin
        self.is_tls = is_tls
        self.exchanges = 0
        self.opened_at = self.idle_since = monotonic()
        self.idle_s_max = inf  # what the upstream's last `Keep-Alive` field permits
        self._loop = asyncio.get_running_loop()
        self._socket = handle
        self._poll: select.poll | None = None  # made with the first check
        self._transport: asyncio.Transport | None = None
        self._on_lost = on_lost
        self._head_limits = head_limits
        self._read_buffer = read_buffer
        self._read_bytes = read_buffer.first_size
        self._read_at = 0.0
        self._parser: ResponseParser | None = None  # None: outside an exchange, where any byte is stray
        self._failure: Exception | None = None
        self._wait_read: asyncio.Future[None] | None = None
        self._wait_write: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._uploading: asyncio.Task[None] | None = None
        self._is_reading_paused = self._is_writing_paused = False

    # ---- Between two exchanges.

    @property
    def is_open(self) -> bool:
        transport = self._transport
        return self._failure is None and transport is not None and not transport.is_closing()

    @property
    def has_ended_unanswered(self) -> bool:
        """The connection was lost in an exchange before one byte of the response arrived."""
        parser = self._parser
        is_lost = isinstance(self._failure, OSError) and not isinstance(self._failure, TimeoutError)
        return is_lost and parser is not None and not parser.has_begun

    def has_no_unread_bytes(self) -> bool:
        """The last check before the first byte. False where the kernel's buffer holds a FIN, a reset or stray bytes that the event loop
        has not read yet: they would become the response to the next request.

        A new TLS connection is not checked: it may hold the session tickets of its handshake.
        """
        if self.is_tls and not self.exchanges:
            return True
        if self._socket.fileno() < 0:
            return False
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._socket, _ANY_EVENT)
        return not self._poll.poll(0)

    def begin(self, method: str, first_bytes: bytes) -> bool:
        """Writes the head, and the body where it is in memory. True where the connection has accepted the bytes."""
        transport = self._transport
        assert self._parser is None, "one exchange at a time"
        assert transport is not None, "begun once it is open"
        self._parser = ResponseParser(method, self._head_limits)
        self.exchanges += 1
        transport.write(first_bytes)
        return not transport.is_closing()

    def finish(self) -> bool:
        """Ends the exchange. True where the connection can carry another one; else it is cut."""
        parser = self._parser
        is_uploaded = self._uploading is None or self._is_written(self._uploading)
        if parser is None or not parser.is_reusable or not self.is_open or not is_uploaded:
            self.cut()
            return False
        if parser.head is not None:
            self.idle_s_max = parser.head.idle_s_max
        self._parser = self._uploading = None
        if self._read_bytes != self._read_buffer.first_size:
            self._read_bytes = self._read_buffer.release_size(self._read_bytes)
        if self._is_reading_paused:
            self._resume_reading()
        self.idle_since = monotonic()
        return True

    def _is_written(self, uploading: asyncio.Task[None]) -> bool:
        """Whether the whole body was written. An upstream that responded before that may read the rest as another request."""
        transport = self._transport
        return uploading.done() and transport is not None and not transport.get_write_buffer_size()

    def cut(self) -> None:
        """Aborts the connection. A plain close would first wait for an upstream that reads no bytes."""
        self.fail(ConnectionAbortedError("the connection was cut"))
        if self._uploading is not None:
            self._uploading.cancel()

    def fail(self, exc: Exception) -> None:
        """Fails the exchange: its reader gets `exc` after the bytes that have arrived. Aborts the connection."""
        if self._failure is None:
            self._failure = exc.with_traceback(None)
        if self._transport is not None:
            self._transport.abort()
        self.resume_writing()
        self._wake()

    # ---- Writing a streamed body.

    def upload(self, uploading: asyncio.Task[None]) -> None:
        """Sets the task that writes the body; it is cancelled with the exchange."""
        self._uploading = uploading

    async def write(self, data: bytes) -> bool:
        """Writes, and returns once the write buffer has room. False where the connection is lost."""
        if not self.is_open or self._transport is None:
            return False
        self._transport.write(data)
        if self._is_writing_paused:
            self._wait_write = self._loop.create_future()
            try:
                await self._wait_write
            finally:
                self._wait_write = None
        return self.is_open

    def restart_deadline(self, deadline_s: float) -> None:
        """Restarts the deadline of the head. Does nothing once the head has arrived or the deadline has passed."""
        if self._timer is not None and self._parser is not None and self._parser.head is None:
            self._cancel_timer()
            self._timer = self._loop.call_later(deadline_s, self._expire)

    # ---- Reading.

    async def read_head(self, deadline_s: float) -> ResponseHead:
        """The head of the response. Raises ResponseMalformed, TimeoutError, OSError for a lost connection, and the exception of `fail`."""
        parser = self._parser
        assert parser is not None, "an exchange has begun"
        if parser.head is None and self._failure is None:
            await self._wait(deadline_s)
        if parser.head is not None:
            return parser.head
        raise self._explain()

    async def read_chunk(self, idle_s: float) -> bytes:
        """The part of the body that has arrived; waits where there is none. b"" at its end. Raises as `read_head`."""
        parser = self._parser
        assert parser is not None, "an exchange has begun"
        if not parser.buffered and not parser.is_whole and self._failure is None:
            is_soon = self._loop.time() - self._read_at < FAST_READER_S
            size = self._read_buffer.grow if is_soon else self._read_buffer.release_size
            self._read_bytes = size(self._read_bytes)
            if self._is_reading_paused:
                self._resume_reading()
            await self._wait(idle_s)
        if parser.buffered:
            self._read_at = self._loop.time()
            return parser.take_body()
        if parser.is_whole:
            return b""
        raise self._explain()

    def take_whole(self) -> bytes | None:
        """The body, where its last byte has arrived; None, and nothing of it is read, where it has not."""
        parser = self._parser
        return parser.take_body() if parser is not None and parser.is_whole else None

    @property
    def is_read(self) -> bool:
        """The last byte of the response has arrived and was read."""
        return self._parser is not None and self._parser.is_whole and not self._parser.buffered

    def _explain(self) -> Exception:
        """A copy of the failure. The traceback of what is raised refers to this connection, which must not refer to it: such a cycle stays until the collector finds it."""
        return copy(self._failure or ConnectionAbortedError("the connection was lost"))

    async def _wait(self, deadline_s: float) -> None:
        self._timer = self._loop.call_later(deadline_s, self._expire)
        self._wait_read = self._loop.create_future()
        try:
            await self._wait_read
        finally:
            self._wait_read = None
            self._cancel_timer()

    def _wake(self) -> None:
        self._cancel_timer()  # a slow reader must not make bytes late that arrived in time
        if self._wait_read is not None and not self._wait_read.done():
            self._wait_read.set_result(None)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self.fail(TimeoutError("no byte arrived in time"))

    def _resume_reading(self) -> None:
        self._is_reading_paused = False
        if self.is_open and self._transport is not None:
            self._transport.resume_reading()

    # ---- What arrives (asyncio.Protocol).

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from it
        if transport.get_extra_info("ssl_object") is not None:
            # The default keeps up to 256 KiB of encrypted bytes while reading is paused. Only TLS transports have this method.
            transport.set_read_buffer_limits(high=TLS_READ_BYTES)  # type: ignore[attr-defined]

    def get_buffer(self, sizehint: int) -> memoryview:
        is_begun = self._parser is not None and self._parser.head is not None
        return self._read_buffer.view[: self._read_bytes] if is_begun else self._read_buffer.head

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._read_buffer.view[:nbytes])
        parser = self._parser
        if parser is None:
            self.cut()
            return
        if self._failure is not None:
            return
        is_headless = parser.head is None
        try:
            parser.feed(data)
        except ResponseMalformed as exc:
            self.fail(exc)
            return
        # Nothing is read ahead: reading resumes with the next `read_chunk`, once the caller has room.
        if parser.buffered and not parser.is_whole and not self._is_reading_paused:
            self._is_reading_paused = True
            if self._transport is not None:
                self._transport.pause_reading()
        if parser.buffered or parser.is_whole or (is_headless and parser.head is not None):
            self._wake()

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)
        self._read_bytes = self._read_buffer.release_size(self._read_bytes)
        self._transport = None
        self._on_lost(self)

    def _end(self, exc: Exception | None) -> None:
        if self._parser is not None and self._failure is None:
            self._parser.end(is_broken=isinstance(exc, OSError) and exc.errno in _LOSS_ERRNOS)
        self.fail(
            exc if isinstance(exc, OSError) else ConnectionAbortedError("the upstream closed the connection")
        )

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        if self._wait_write is not None and not self._wait_write.done():
            self._wait_write.set_result(None)
