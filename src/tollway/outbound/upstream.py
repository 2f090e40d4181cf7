"""The way out, one request and its answer: what is handed to the dialer, how far it came, what is handed back.

The records are plain. Reading and writing run under limits; a cut body is never mistaken for a whole one, in
either direction.
"""

import asyncio
import errno
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientResponse

from tollway.errors import Code, Problem, Refusal, UpstreamBadResponse, UpstreamTimeout
from tollway.outbound.policy import Endpoint

_BODILESS = (204, 304)
_LOST = (errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
"""Not a TLS connection that ends without a word of farewell: many servers end theirs so."""
_BAD_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(r"/[^\x00-\x20\x7f#?\ud800-\udfff]*(?:\?[^\x00-\x20\x7f#\ud800-\udfff]*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamRequest:
    """What is to be sent. `target` is path and query from the root, byte for byte; the endpoint adds nothing to it.

    `headers` are final; `Host` and the framing are made here. A streamed `body` without `content_length` is sent
    chunked; with it, exactly so many bytes go out or the connection is cut.
    """

    method: str
    endpoint: Endpoint
    target: str
    headers: list[tuple[str, str]]
    body: bytes | AsyncIterator[bytes] | None = None
    content_length: int | None = None

    def check_writable(self) -> None:
        """Refuses what would fail, or go out as it stands, only after the claim. Raises Refusal."""
        is_writable = (
            _NAME.fullmatch(self.method)
            and self.method.upper() != "CONNECT"
            and _TARGET.fullmatch(self.target)
            and all(_NAME.fullmatch(name) and not _BAD_VALUE.search(value) for name, value in self.headers)
        )
        if not is_writable:
            raise Refusal(Problem(code=Code.INVALID_REQUEST, detail="The request cannot be written as HTTP."))


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far one request came. Written by the dialer only; readable at any moment, also after a failure.

    While `sent` is false, provably no byte left. While `body_handed_over` is false, the last byte provably has not
    left; it is set before that byte goes to the connection, `body_wholly_sent` after the connection has taken it.
    """

    claimed: bool = False
    sent: bool = False
    body_wholly_sent: bool = False
    body_handed_over: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A whole small document."""

    status: int
    content_type: str
    body: bytes


class UpstreamResponse:
    """An answer whose head is here and whose body is still on its way. One reader; `close` it in every case."""

    __slots__ = ("_idle_s", "_leave", "_protocol", "_raw", "_transport", "headers", "progress", "status")

    def __init__(
        self,
        raw: ClientResponse,
        *,
        protocol: ResponseHandler | None,
        transport: asyncio.WriteTransport | None,
        progress: Progress,
        idle_s: float,
        leave: Callable[[], None],
    ) -> None:
        self.status = raw.status
        self.headers: tuple[tuple[bytes, bytes], ...] = raw.raw_headers
        self.progress = progress
        self._raw = raw
        self._protocol = protocol
        self._transport = transport
        self._idle_s = idle_s
        self._leave: Callable[[], None] | None = leave

    @property
    def body_wholly_sent(self) -> bool:
        """True once the request's last byte was handed to the connection."""
        return self.progress.body_wholly_sent

    async def read_chunk(self) -> bytes:
        """The next bytes of the body; b"" at its true end.

        Raises UpstreamBadResponse when the upstream breaks off, UpstreamTimeout when it falls silent.
        """
        content = self._raw.content
        try:
            chunk = content.read_nowait()
            if not chunk and not content.at_eof():
                async with asyncio.timeout(self._idle_s):
                    chunk = await content.readany()
        except TimeoutError as exc:
            self.close()
            raise UpstreamTimeout("The provider's API stopped in the middle of its answer.") from exc
        except (aiohttp.ClientError, OSError, RuntimeError) as exc:
            self.close()
            raise UpstreamBadResponse("The provider's API broke off in the middle of its answer.") from exc
        except asyncio.CancelledError:
            self.close()
            raise
        if not chunk:
            self.close()
            if self._was_reset():
                raise UpstreamBadResponse("The provider's API broke off in the middle of its answer.")
        return chunk

    def _was_reset(self) -> bool:
        """Whether a body that goes on until its connection is closed was ended by something else. aiohttp takes every
        loss for its end. All others tell their end themselves, and their connection may be lost afterwards."""
        headers = self._raw.headers
        is_told = "Content-Length" in headers or "chunked" in headers.get("Transfer-Encoding", "").lower()
        if is_told or self._raw.method == "HEAD" or self.status in _BODILESS or self._protocol is None:
            return False
        loss = self._protocol.exception()
        return isinstance(loss, OSError) and loss.errno in _LOST

    def close(self) -> None:
        """Ends this call's use of its connection: cut at once unless the whole body has arrived. Idempotent."""
        leave, self._leave = self._leave, None
        if leave is None:
            return
        self._raw.close()
        cut(self._transport)
        leave()


def cut(transport: asyncio.WriteTransport | None) -> None:
    """Aborts a transport that is closing: a mere close first waits for an upstream that takes no bytes.

    A transport that went back to the pool is not closing and stays untouched.
    """
    if transport is not None and transport.is_closing():
        transport.abort()


class BodyOffLength(Exception):
    """The streamed request body ended before, or went beyond, the length that was promised."""


async def stream_body(body: AsyncIterator[bytes], *, content_length: int | None) -> AsyncIterator[bytes]:
    """The body as promised, or BodyOffLength: aiohttp cuts a long one silently and waits for ever on a short one."""
    count = 0
    async for chunk in body:
        count += len(chunk)
        if content_length is not None and count > content_length:
            raise BodyOffLength
        if chunk:
            yield chunk
    if content_length is not None and count < content_length:
        raise BodyOffLength
