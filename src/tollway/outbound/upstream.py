"""The way out, one request and its answer: what is handed to the dialer, how far it came, what is handed back.

The records are plain. Reading and writing run under limits; a cut body is never mistaken for a whole one, in
either direction.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from tollway.errors import Code, Problem, Refusal, UpstreamBadResponse, UpstreamTimeout
from tollway.outbound.answer_head import ResponseHead
from tollway.outbound.connection import Connection
from tollway.outbound.policy import Endpoint

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
    """How far one request came. Written by the client only; readable at any moment, also after a failure.

    While `sent` is false, provably no byte left. While `body_handed_over` is false, the last byte provably has not
    left; it is set before that byte goes to the connection, `body_wholly_sent` after the connection has taken it.
    """

    claimed: bool = False
    sent: bool = False
    body_wholly_sent: bool = False
    body_handed_over: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedDocument:
    """A whole small document."""

    status: int
    content_type: str
    body: bytes


class UpstreamResponse:
    """An answer whose head is here and whose body is still on its way. One reader; `close` it in every case."""

    __slots__ = ("_connection", "_end_call", "_idle_s", "_is_ended", "headers", "progress", "status")

    def __init__(
        self,
        head: ResponseHead,
        *,
        connection: Connection,
        progress: Progress,
        idle_s: float,
        end_call: Callable[[Connection], None],
    ) -> None:
        self.status = head.status
        self.headers: tuple[tuple[bytes, bytes], ...] = head.headers
        self.progress = progress
        self._connection: Connection | None = connection
        self._idle_s = idle_s
        self._is_ended = False
        self._end_call = end_call

    @property
    def body_wholly_sent(self) -> bool:
        """True once the request's last byte was handed to the connection."""
        return self.progress.body_wholly_sent

    @property
    def is_read(self) -> bool:
        """True once `read_chunk` has given out the last byte: the next one is b"", and the connection is free already."""
        return self._is_ended

    async def read_chunk(self) -> bytes:
        """The next bytes of the body; b"" at its true end.

        Raises UpstreamBadResponse when the upstream breaks off, UpstreamTimeout when it falls silent.
        """
        connection = self._connection
        if connection is None:
            if self._is_ended:
                return b""
            raise UpstreamBadResponse("The answer was given up before its end.")
        try:
            chunk = await connection.read_chunk(self._idle_s)
        except TimeoutError as exc:
            self.close()
            raise UpstreamTimeout("The provider's API stopped in the middle of its answer.") from exc
        except Exception as exc:
            self.close()
            raise UpstreamBadResponse("The provider's API broke off in the middle of its answer.") from exc
        except asyncio.CancelledError:
            self.close()
            raise
        if connection.is_read:
            self._is_ended = True
            self.close()
        return chunk

    def close(self) -> None:
        """Ends this call's use of its connection: cut at once unless the whole body has arrived. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._end_call(connection)
