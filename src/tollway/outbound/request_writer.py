"""The way out, a request as bytes: its head, and the body that is written piece by piece while the answer is awaited.

Everything goes out as it was given; only `Host` and the framing are made here. A body is never sent longer or shorter
than was promised without a cut that the upstream can see.
"""

from collections.abc import AsyncIterator

from tollway.outbound.connection import Connection
from tollway.outbound.policy import Endpoint
from tollway.outbound.upstream import Progress, UpstreamRequest

SLICE_BYTES = 64 * 1024
LAST_CHUNK = b"0\r\n\r\n"

# These mean nothing by having no body, so they do not say that they have none (RFC 9110 §8.6).
_BODILESS_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


class BodyLengthMismatch(Exception):
    """The streamed request body ended before, or went beyond, the length that was promised."""


class UploadFailed(Exception):
    """The request's body broke. `reason`: what its iterator raised, or BodyLengthMismatch."""

    def __init__(self, reason: Exception) -> None:
        self.reason = reason
        super().__init__(repr(reason))


def is_streamed(request: UpstreamRequest) -> bool:
    """A large body that is here goes out in pieces too: in one, it would wait in our memory for an upstream that does
    not read."""
    body = request.body
    return bool(body) and (not isinstance(body, bytes) or len(body) > SLICE_BYTES)


def format_first_bytes(request: UpstreamRequest) -> bytes:
    """The head, and the body behind it unless it is streamed."""
    body = request.body
    lines = [f"{request.method} {request.target} HTTP/1.1\r\nHost: {format_host(request.endpoint)}\r\n"]
    lines += [f"{name}: {value}\r\n" for name, value in request.headers]
    if isinstance(body, bytes) and body:
        lines.append(f"Content-Length: {len(body)}\r\n\r\n")
        head = "".join(lines).encode()
        return head if len(body) > SLICE_BYTES else head + body
    if not body:
        lines.append("\r\n" if request.method in _BODILESS_METHODS else "Content-Length: 0\r\n\r\n")
    elif request.content_length is None:
        lines.append("Transfer-Encoding: chunked\r\n\r\n")
    else:
        lines.append(f"Content-Length: {request.content_length}\r\n\r\n")
    return "".join(lines).encode()


def format_host(endpoint: Endpoint) -> str:
    """`Host` as it is sent: no port that the scheme has by itself, and no dot at the end of a name."""
    return endpoint.origin.partition("://")[2].replace(".:", ":").removesuffix(".")


async def write_body(
    request: UpstreamRequest, connection: Connection, *, progress: Progress, head_deadline_s: float
) -> None:
    """Writes a streamed body as fast as the upstream takes it; each piece starts the wait for the head anew.

    Runs beside the reader of the answer and raises nothing: what goes wrong fails the connection.
    """
    try:
        is_written = await _write_pieces(request, connection, progress, head_deadline_s)
    except Exception as exc:  # noqa: BLE001 - the caller's own iterator may raise anything; its reader hears it unchanged
        connection.fail(UploadFailed(exc))
        return
    if is_written:
        progress.body_wholly_sent = True


async def _write_pieces(
    request: UpstreamRequest, connection: Connection, progress: Progress, head_deadline_s: float
) -> bool:
    """False when the connection was lost on the way."""
    if isinstance(request.body, bytes):
        length: int | None = len(request.body)
        body = _slice(request.body)
    else:
        assert request.body is not None, "only what has a body is streamed"
        body, length = request.body, request.content_length
    count = 0
    async for piece in body:
        count += len(piece)
        if length is not None and count > length:
            raise BodyLengthMismatch
        if not piece:
            continue
        if count == length:
            progress.body_handed_over = True
        connection.restart_deadline(head_deadline_s)
        if not await connection.write(piece if length is not None else b"%x\r\n%b\r\n" % (len(piece), piece)):
            return False
    if length is not None and count < length:
        raise BodyLengthMismatch
    progress.body_handed_over = True
    connection.restart_deadline(head_deadline_s)
    return length is not None or await connection.write(LAST_CHUNK)


async def _slice(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), SLICE_BYTES):
        yield body[start : start + SLICE_BYTES]
