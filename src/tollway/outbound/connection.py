"""One connection to an upstream: one exchange at a time, and the outcome of the last one.

It knows at once when it is not usable any more: lost, or given bytes that no request asked for. It never begins an exchange by
itself, never carries one after another that was not complete, and never holds more of a response than its limit: what
is not read stays in the kernel, and so with the upstream. `ReadBuffer` is the memory of all connections of an event loop: nothing
stays in it between two calls, and only a few fast readers get more than one connection's buffer.
"""

import asyncio
import errno
import select
import socket
from collections.abc import Callable
from time import monotonic
from typing import cast

from tollway.outbound.http1 import HeadLimits, ResponseHead, ResponseMalformed, ResponseParser

HEAD_READ_BYTES = 16 * 1024
"""What a read may bring beside the first measure of body, where the head comes with it."""
FIRST_READ_BYTES = 16 * 1024
LARGE_BUFFERS = 4
"""A large read brings so many buffers at once."""
LARGE_READERS_MAX = 16


class ReadBuffer:
    """`first_size`, and what `grow` gives, are measures: bytes that the next read of one connection may bring. Whoever has one
    gives it back."""

    __slots__ = ("_buffer_bytes", "_large", "_large_max", "view")

    def __init__(self, buffer_bytes: int, *, large_max: int = LARGE_READERS_MAX) -> None:
        self.view = memoryview(
            bytearray(max(HEAD_READ_BYTES + FIRST_READ_BYTES, LARGE_BUFFERS * buffer_bytes))
        )
        self._buffer_bytes = buffer_bytes
        self._large_max = large_max
        self._large = 0

    @property
    def first_size(self) -> int:
        return min(FIRST_READ_BYTES, self._buffer_bytes)

    @property
    def head(self) -> memoryview:
        """For a head, with as much of the body as comes with it: most answers are whole with their first bytes. It is not
        known yet how quick the reader is."""
        return self.view[: HEAD_READ_BYTES + self.first_size]

    def grow(self, size: int) -> int:
        """Twice as much, as far as there is room."""
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
        """The first measure, for this one."""
        if size > self._buffer_bytes:
            self._large -= 1
        return self.first_size


_LOSS_ERRNOS = (errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""Not a TLS connection that ends without a word of farewell: many servers end theirs so."""
_ANY_EVENT = select.POLLIN | select.POLLERR | select.POLLHUP
FAST_READER_S = 0.05
"""A reader who comes back in less gets twice as much at once as before; one who is slower, the first measure again."""
TLS_READ_BYTES = 16 * 1024
"""What of a TLS connection may wait to be opened: a record."""


class Connection(asyncio.BufferedProtocol):
    """One socket. One task asks and reads; one more may write a streamed body at the same time."""

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
        """`on_lost` hears once that the connection is gone."""
        self.origin = origin
        self.is_tls = is_tls
        self.exchanges = 0
        self.opened_at = self.idle_since = monotonic()
        self._loop = asyncio.get_running_loop()
        self._socket = handle
        self._poll: select.poll | None = None  # once it is asked: it belongs to the socket
        self._transport: asyncio.Transport | None = None
        self._on_lost = on_lost
        self._head_limits = head_limits
        self._read_buffer = read_buffer
        self._read_bytes = read_buffer.first_size
        self._read_at = 0.0
        self._parser: ResponseParser | None = None  # None: nothing was asked, and whatever comes is stray
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

    def has_no_unread_bytes(self) -> bool:
        """The last look before the first byte: False for what the event loop has not seen yet, a FIN, a reset or stray
        bytes in the kernel's buffer. They would become the answer to the next request.

        A new TLS connection may hold the session tickets of its handshake.
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
        """Writes the head, with the body where it is here already; from now on an answer may come. True when the
        connection has taken the bytes."""
        transport = self._transport
        assert self._parser is None, "one exchange at a time"
        assert transport is not None, "begun once it is open"
        self._parser = ResponseParser(method, self._head_limits)
        self.exchanges += 1
        transport.write(first_bytes)
        return not transport.is_closing()

    def finish(self) -> bool:
        """Ends the exchange. True when the connection may carry another one; else it is cut."""
        parser = self._parser
        if parser is None or not parser.is_reusable or not self.is_open or not self._is_uploaded():
            self.cut()
            return False
        self._parser = self._uploading = None
        self._read_bytes = self._read_buffer.release_size(self._read_bytes)
        self._resume_reading()
        self.idle_since = monotonic()
        return True

    def _is_uploaded(self) -> bool:
        """An upstream that has answered before it took all of the request may read the rest as another one."""
        if self._uploading is None:
            return True
        transport = self._transport
        return self._uploading.done() and transport is not None and not transport.get_write_buffer_size()

    def cut(self) -> None:
        """Ends everything at once: a mere close would first wait for an upstream that takes no bytes."""
        self.fail(ConnectionAbortedError("the connection was cut"))
        if self._uploading is not None:
            self._uploading.cancel()

    def fail(self, exc: Exception) -> None:
        """The exchange cannot go on, and `exc` is what its reader hears once it has read what is here. It then cuts."""
        if self._failure is None:
            self._failure = exc
        if self._transport is not None:
            self._transport.abort()
        self.resume_writing()
        self._wake()

    # ---- Writing a streamed body.

    def upload(self, uploading: asyncio.Task[None]) -> None:
        """This task writes the body; it ends with the exchange."""
        self._uploading = uploading

    async def write(self, data: bytes) -> bool:
        """Returns once there is room for more. False when the connection is lost."""
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
        """Nothing to restart once the head is here, or the deadline has passed."""
        if self._timer is not None and self._parser is not None and self._parser.head is None:
            self._set_timer(deadline_s)

    # ---- Reading.

    async def read_head(self, deadline_s: float) -> ResponseHead:
        """Raises ResponseMalformed, TimeoutError, OSError for a loss, and what `fail` was given."""
        parser = self._parser
        assert parser is not None, "nothing was asked"
        if parser.head is None and self._failure is None:
            await self._wait(deadline_s)
        if parser.head is not None:
            return parser.head
        raise self._explain()

    async def read_chunk(self, idle_s: float) -> bytes:
        """All of the body that is here; waits when there is nothing. b"" at its true end. Raises as `read_head`."""
        parser = self._parser
        assert parser is not None, "nothing was asked"
        if not parser.buffered and not parser.is_whole and self._failure is None:
            is_soon = self._loop.time() - self._read_at < FAST_READER_S
            size = self._read_buffer.grow if is_soon else self._read_buffer.release_size
            self._read_bytes = size(self._read_bytes)
            self._resume_reading()
            await self._wait(idle_s)
        if parser.buffered:
            self._read_at = self._loop.time()
            return parser.take_body()
        if parser.is_whole:
            return b""
        raise self._explain()

    @property
    def is_whole(self) -> bool:
        """The last byte of the answer has arrived."""
        return self._parser is not None and self._parser.is_whole

    def take_body(self) -> bytes:
        """What of the body is here and not read yet."""
        assert self._parser is not None, "nothing was asked"
        return self._parser.take_body()

    @property
    def is_read(self) -> bool:
        """The last byte of the answer has arrived, and was read."""
        return self._parser is not None and self._parser.is_whole and not self._parser.buffered

    def _explain(self) -> Exception:
        return self._failure or ConnectionAbortedError("the connection was lost")

    async def _wait(self, deadline_s: float) -> None:
        self._set_timer(deadline_s)
        self._wait_read = self._loop.create_future()
        try:
            await self._wait_read
        finally:
            self._wait_read = None
            self._cancel_timer()

    def _wake(self) -> None:
        self._cancel_timer()  # what has come in time is not late because its reader is
        if self._wait_read is not None and not self._wait_read.done():
            self._wait_read.set_result(None)

    def _set_timer(self, delay_s: float) -> None:
        self._cancel_timer()
        self._timer = self._loop.call_later(delay_s, self._expire)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self.fail(TimeoutError("nothing came in time"))

    def _resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            if self.is_open and self._transport is not None:
                self._transport.resume_reading()

    # ---- What arrives (asyncio.Protocol).

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        if transport.get_extra_info("ssl_object") is not None:
            # Else as much as a quarter of a MiB waits unopened while reading is paused. Only TLS transports have this.
            transport.set_read_buffer_limits(high=TLS_READ_BYTES)  # type: ignore[attr-defined]

    def get_buffer(self, sizehint: int) -> memoryview:
        is_begun = self._parser is not None and self._parser.head is not None
        return self._read_buffer.view[: self._read_bytes] if is_begun else self._read_buffer.head

    def buffer_updated(self, nbytes: int) -> None:
        self._feed(bytes(self._read_buffer.view[:nbytes]))

    def _feed(self, data: bytes) -> None:
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
        # Nothing is read ahead: whoever wants more asks for it, once the caller has room.
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
        self.fail(exc if isinstance(exc, OSError) else ConnectionAbortedError("the upstream hung up"))

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        if self._wait_write is not None and not self._wait_write.done():
            self._wait_write.set_result(None)
