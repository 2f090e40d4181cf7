"""The HTTP/1.1 client for upstreams: sends every request of this gateway to a provider's server.

It connects to allowed addresses only, holds the connection while the caller claims, sends once, and reads under limits. It never follows a
redirect, and never reports why a connection failed. It sends a request a second time in one case: a kept connection ended before the first byte
of the response, and the method is idempotent (RFC 9110 §9.2.2). A body that was cut never counts as a whole one, in either
direction. `Host` and the framing are written here; all other fields are sent unchanged.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic
from types import TracebackType
from typing import Self

from tollway.errors import (
    Code,
    EndpointNotAllowed,
    Problem,
    Refusal,
    UpstreamBadResponse,
    UpstreamTimeout,
    UpstreamUnreachable,
    refuse,
)
from tollway.limits import Limits
from tollway.outbound.connection import Connection
from tollway.outbound.http1 import FIELD_NAME, UNWRITABLE, HeadTooLarge, ResponseHead, ResponseMalformed
from tollway.outbound.policy import Endpoint, EndpointRefused, parse_endpoint
from tollway.outbound.pool import POOLED_IDLE_S_MAX, AddressGuard, ConnectionPool, lookup_host
from tollway.per_call_record import per_call_record

_TARGET = re.compile(r"/[^\x00-\x20\x7f#?\ud800-\udfff]*(?:\?[^\x00-\x20\x7f#\ud800-\udfff]*)?")


@per_call_record
class UpstreamRequest:
    """One request to an upstream. `target`: the path and query from the root, sent byte for byte; nothing of the endpoint is added.

    `fields`: as `format_fields` writes them, without `Host` and the framing. A streamed `body` without
    `content_length` is sent chunked; with it, exactly that many bytes are sent or the connection is cut.
    """

    method: str
    endpoint: Endpoint
    target: str
    fields: bytes = b""
    body: bytes | AsyncIterator[bytes] | None = None
    content_length: int | None = None

    def check_writable(self) -> None:
        """Raises Refusal where method or target cannot be written as HTTP: after the claim it would be too late."""
        is_writable = (
            FIELD_NAME.fullmatch(self.method)
            and self.method.upper() != "CONNECT"
            and _TARGET.fullmatch(self.target)
        )
        if not is_writable:
            raise Refusal(UNWRITABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedDocument:
    """A whole response with a small body. `location`: the target of a redirect as its server wrote it; empty without one."""

    status: int
    content_type: str
    body: bytes
    location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostedResponse:
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


SLICE_BYTES = 64 * 1024
HOSTS_KEPT = 4_096
LAST_CHUNK = b"0\r\n\r\n"

# Without a body these send no Content-Length: 0, because a body has no meaning there (RFC 9110 §8.6).
_BODILESS_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


class BodyLengthMismatch(Exception):
    """The streamed request body is shorter or longer than its `content_length`."""


class UploadFailed(Exception):
    """The request body failed. `reason`: the exception of its iterator, or BodyLengthMismatch."""

    def __init__(self, reason: Exception) -> None:
        self.reason = reason
        super().__init__(reason)


def is_streamed(request: UpstreamRequest) -> bool:
    """Whether a request with a body is sent in pieces. A large body in memory is: in one piece its copy would stay in memory while the
    upstream does not read."""
    return not isinstance(request.body, bytes) or len(request.body) > SLICE_BYTES


def format_first_bytes(request: UpstreamRequest, added: bytes = b"") -> bytes:
    """The head with `added`, and after it the body unless that is streamed."""
    body = request.body
    line = f"{request.method} {request.target} HTTP/1.1\r\nHost: {format_host(request.endpoint)}\r\n".encode()
    if not body:
        end = b"\r\n" if request.method in _BODILESS_METHODS else b"Content-Length: 0\r\n\r\n"
    elif isinstance(body, bytes):
        end = b"Content-Length: %d\r\n\r\n" % len(body)
        if len(body) <= SLICE_BYTES:
            end += body
    elif request.content_length is None:
        end = b"Transfer-Encoding: chunked\r\n\r\n"
    else:
        end = b"Content-Length: %d\r\n\r\n" % request.content_length
    return b"".join((line, request.fields, added, end))


@lru_cache(maxsize=HOSTS_KEPT)
def format_host(endpoint: Endpoint) -> str:
    """The value of `Host`: without the default port of the scheme and without a final dot of the name."""
    return endpoint.origin.partition("://")[2].replace(".:", ":").removesuffix(".")


async def write_body(
    request: UpstreamRequest, connection: Connection, *, exchange: "UpstreamExchange", head_deadline_s: float
) -> None:
    """Writes a streamed body as fast as the upstream reads it; each piece restarts the deadline of the head.

    Runs beside the reader of the response. Raises nothing: a failure fails the connection.
    """
    try:
        is_written = await _write_pieces(request, connection, exchange, head_deadline_s)
    except Exception as exc:  # noqa: BLE001 - the caller's iterator may raise anything; the reader gets it unchanged
        connection.fail(UploadFailed(exc))
        return
    if is_written:
        exchange.is_body_sent = True


async def _write_pieces(
    request: UpstreamRequest, connection: Connection, exchange: "UpstreamExchange", head_deadline_s: float
) -> bool:
    """False where the connection was lost meanwhile."""
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
            exchange.is_body_handed_over = True
        connection.restart_deadline(head_deadline_s)
        if not await connection.write(piece if length is not None else b"%x\r\n%b\r\n" % (len(piece), piece)):
            return False
    if length is not None and count < length:
        raise BodyLengthMismatch
    exchange.is_body_handed_over = True
    connection.restart_deadline(head_deadline_s)
    return length is not None or await connection.write(LAST_CHUNK)


async def _slice(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), SLICE_BYTES):
        yield body[start : start + SLICE_BYTES]


# Only these methods may use a connection that was idle for longer than `unsafe_reuse_idle_s` (RFC 9110 §9.2.2).
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})


def _may_repeat(request: UpstreamRequest) -> bool:
    """Whether a second attempt has the effect of one, and the whole body is in memory."""
    return request.method.upper() in _IDEMPOTENT and (request.body is None or isinstance(request.body, bytes))


class UpstreamExchange:
    """One request to an upstream and its response, over a connection that is held from before the claim to the end of the body.

    A context manager for one task. Its exit returns or cuts the connection, with one exception: the head of the response has arrived and
    the block ends without an error. Then the reader of the body must call `close`, in every case.

    The progress flags may be read at any time, also after a failure. While `is_sent` is false, no byte has
    left. While `is_body_handed_over` is false, the last byte of the body has not left:
    the flag is set before that byte goes to the connection, and `is_body_sent` after the connection has accepted it.
    """

    __slots__ = (
        "_client",
        "_connected_ms",
        "_connection",
        "_idle_s_max",
        "_is_head_read",
        "_origin",
        "_request",
        "headers",
        "is_body_handed_over",
        "is_body_sent",
        "is_read",
        "is_sent",
        "lasts_until_close",
        "length",
        "status",
    )

    def __init__(self, client: "HttpClient", request: UpstreamRequest) -> None:
        self.status = 0
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self.length: int | None = None  # of the body, where the head states it; 0 where there is none
        self.lasts_until_close = False  # a body without a length and without chunks
        self.is_sent = self.is_body_sent = self.is_body_handed_over = False
        self.is_read = False
        self._is_head_read = False
        self._client = client
        self._origin = request.endpoint.origin
        # Dropped once it is sent: its body may be large, and its response may take long.
        self._request: UpstreamRequest | None = request
        # How long a kept connection may have been idle: the upstream may close it while a request is on its way.
        is_idempotent = request.method.upper() in _IDEMPOTENT
        self._idle_s_max = POOLED_IDLE_S_MAX if is_idempotent else client.unsafe_reuse_idle_s
        self._connection: Connection | None = None
        self._connected_ms = 0

    async def __aenter__(self) -> Self:
        """Connects. Raises Refusal (`overloaded`, or a request that cannot be written as HTTP) and UpstreamUnreachable."""
        client, request = self._client, self._request
        assert request is not None, "it is entered before it is sent"
        assert self._connection is None, "it is entered once"
        request.check_writable()
        self._connection = await client.acquire(request.endpoint, idle_s_max=self._idle_s_max)
        self._connected_ms = client.ticks_ms()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is not None or not self._is_head_read:
            self.close(is_untouched=not self.is_sent and (exc is None or isinstance(exc, Exception)))

    @property
    def is_reused(self) -> bool:
        """Whether the connection has carried an exchange before. False where none is held."""
        return self._connection is not None and self._connection.exchanges > 0

    async def send(self, *, head_deadline_s: float, fields: bytes = b"") -> None:
        """Sends the request, and returns when the head of the response has arrived. `fields`: sent after the request's own;
        they are known only after the claim. An idempotent request whose kept connection ended without one byte of a response is sent once
        more, on a new connection.

        The head deadline starts with the first byte, and again with each piece of a streamed body. An exception of the body's
        iterator is raised unchanged; the upstream then gets a cut request. Raises Refusal (the connection was
        held for longer than half a lease), UpstreamUnreachable (no byte left), UpstreamTimeout and UpstreamBadResponse (bytes
        may have left). A cancelled call cuts its connection.
        """
        request, self._request = self._request, None
        assert request is not None, "one request is sent once"
        assert self._connection is not None, "it is entered first"
        try:
            connection = self._connection = await self._client.renew(
                self._connection, request.endpoint, idle_s_max=self._idle_s_max
            )
            is_reused = connection.exchanges > 0
            try:
                head = await self._deliver(request, connection, fields, head_deadline_s)
            except UpstreamBadResponse:
                if not (is_reused and _may_repeat(request) and connection.has_ended_unanswered):
                    raise
                head = await self._deliver_again(request, fields, head_deadline_s)
        except BaseException as exc:
            # Now, and not at the exit: the caller's handling of the failure may take long.
            self.close(is_untouched=not self.is_sent and isinstance(exc, Exception))
            raise
        self._is_head_read = True
        self.status, self.headers, self.length = head.status, head.headers, head.length
        self.lasts_until_close = head.length is None and not head.is_chunked

    async def _deliver(
        self, request: UpstreamRequest, connection: Connection, fields: bytes, head_deadline_s: float
    ) -> ResponseHead:
        """Raises Refusal for a call that was claimed too long ago. Bytes may have left when it raises anything else; `is_sent` is set before
        the first one."""
        if self._client.ticks_ms() - self._connected_ms > self._client.claim_ms_max:
            raise Refusal(CLAIM_TOO_OLD)
        first_bytes = format_first_bytes(request, fields)
        has_rest = bool(request.body) and is_streamed(request)
        self.is_sent = True
        self.is_body_handed_over = not has_rest
        is_taken = connection.begin(request.method, first_bytes)
        if has_rest:
            body = write_body(request, connection, exchange=self, head_deadline_s=head_deadline_s)
            # Not in a task group: the exchange owns this task, outlives this function and cancels the task.
            connection.upload(asyncio.get_running_loop().create_task(body))
        else:
            self.is_body_sent = is_taken
        try:
            return await connection.read_head(head_deadline_s)
        except UploadFailed as exc:
            raise _translate_upload_failure(exc.reason)  # noqa: B904 - the caller's own exception, unchanged
        except TimeoutError as exc:
            raise UpstreamTimeout from exc
        except HeadTooLarge as exc:
            raise UpstreamBadResponse(problem=self._client.head_too_large) from exc
        except (ResponseMalformed, OSError) as exc:
            raise UpstreamBadResponse from exc

    async def _deliver_again(
        self, request: UpstreamRequest, fields: bytes, head_deadline_s: float
    ) -> ResponseHead:
        """Delivers the request on a new connection. The upstream closed the kept one while the request was on its way, as servers do with idle
        connections. Bytes of the first attempt have left, so every failure is a bad response: the outcome of the call is unknown."""
        assert self._connection is not None, "the first attempt had one"
        self._connection.cut()
        try:
            self._connection = await self._client.dial(request.endpoint)
            return await self._deliver(request, self._connection, fields, head_deadline_s)
        except (UpstreamUnreachable, Refusal) as exc:
            raise UpstreamBadResponse from exc

    async def read_chunk(self) -> bytes:
        """The next bytes of the body; b"" at its end. Once the last byte is returned, `is_read` is true and the connection is
        free.

        Raises UpstreamBadResponse where the body is cut, UpstreamTimeout where no byte arrives in time.
        """
        connection = self._connection
        if connection is None:
            if self.is_read:
                return b""
            raise UpstreamBadResponse("The response was closed before its end.")
        try:
            chunk = await connection.read_chunk(self._client.chunk_idle_s)
        except TimeoutError as exc:
            self.close()
            raise UpstreamTimeout("The provider's API stopped in the middle of its response.") from exc
        except Exception as exc:
            self.close()
            raise UpstreamBadResponse(
                "The provider's API cut the connection in the middle of its response."
            ) from exc
        except asyncio.CancelledError:
            self.close()
            raise
        if connection.is_read:
            self.is_read = True
            self.close()
        return chunk

    def take_whole(self, bytes_max: int) -> bytes | None:
        """The whole body, where it has arrived with its length in the head and has at most `bytes_max`; the connection is free then. Else None,
        and nothing of it is read."""
        connection = self._connection
        if connection is None or self.length is None or self.length > bytes_max:
            return None
        body = connection.take_whole()
        if body is not None:
            self.is_read = True
            self.close()
        return body

    def close(self, *, is_untouched: bool = False) -> None:
        """Gives the connection up: it is cut at once unless the whole body has arrived. Idempotent. `is_untouched`: nothing was written to it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._client.release(self._origin, connection, is_untouched=is_untouched)


CLAIM_TOO_OLD = Problem(
    code=Code.OVERLOADED,
    detail="The gateway was stalled for too long to send this call. Nothing was sent, so repeat the request.",
    retry_after_s=1,
)


class HttpClient:
    """Sends requests to providers.

    `own_origins` (`scheme://host[:port]`), `own_addresses` (on any port) and `own_listeners` ((ip, port); an unspecified ip means every local
    address) are the gateway itself and are refused.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        allow_private: bool,
        own_origins: frozenset[str] = frozenset(),
        own_addresses: frozenset[str] = frozenset(),
        own_listeners: frozenset[tuple[str, int]] = frozenset(),
        lookup: Callable[[str, int], list[str]] = lookup_host,
        ssl_context: ssl.SSLContext | None = None,
        ticks_ms: Callable[[], int] = lambda: int(monotonic() * 1000),
    ) -> None:
        """`ticks_ms`: a monotonic clock. A call that was claimed too long ago by this clock is not sent."""
        self._limits = limits
        self.ticks_ms = ticks_ms
        self.chunk_idle_s = limits.chunk_idle_s
        self.unsafe_reuse_idle_s = limits.unsafe_reuse_idle_s
        self.head_too_large = Problem(
            code=Code.UPSTREAM_BAD_RESPONSE,
            detail="The head of the response of the provider's API is too large: the gateway accepts at most "
            f"{limits.upstream_head_bytes_max} bytes and {limits.upstream_headers_max} fields.",
            reason="response_head_too_large",
        )
        self._allow_private = allow_private
        # Half a lease. With an older claim, other gateways may count this one as dead and run the call themselves.
        self.claim_ms_max = int(limits.owner_lease_s * 500)
        self._guard = AddressGuard(
            allow_private=allow_private,
            own_origins=own_origins,
            own_addresses=own_addresses,
            own_listeners=own_listeners,
            dns_deadline_s=limits.dns_deadline_s,
            lookup=lookup,
        )
        self._pool = ConnectionPool(guard=self._guard, limits=limits, ssl_context=ssl_context)
        self._in_flight: dict[str, int] = {}
        self._is_closed = False

    def connect(self, request: UpstreamRequest) -> UpstreamExchange:
        """The exchange of one request. Entering its context connects; `send` sends."""
        return UpstreamExchange(self, request)

    async def fetch(self, url: str, *, bytes_max: int, deadline_s: float) -> FetchedDocument:
        """GETs one small document under the same policy, without redirects.

        Raises EndpointNotAllowed for a URL that may not be dialled, UpstreamBadResponse beyond `bytes_max`, and
        the exceptions of an exchange.
        """
        request = self._build_request("GET", url, fields=b"Accept: */*\r\n")
        try:
            async with asyncio.timeout(deadline_s):
                return await self._read_whole(request, bytes_max=bytes_max, deadline_s=deadline_s)
        except TimeoutError as exc:
            raise UpstreamTimeout("The document did not arrive in time.") from exc

    async def post(
        self, url: str, *, fields: bytes, body: bytes, bytes_max: int, deadline_s: float
    ) -> PostedResponse:
        """POSTs under the same policy, without redirects. Reads at most `bytes_max` of the response's body, and cuts the connection where there is
        more: a long body is no failure. Raises EndpointNotAllowed and the exceptions of an exchange."""
        request = self._build_request("POST", url, fields=fields, body=body)
        try:
            async with asyncio.timeout(deadline_s), self.connect(request) as exchange:
                try:
                    await exchange.send(head_deadline_s=deadline_s)
                    read = await _read_first_bytes(exchange, bytes_max)
                finally:
                    exchange.close()
                return PostedResponse(status=exchange.status, headers=exchange.headers, body=read)
        except TimeoutError as exc:
            raise UpstreamTimeout("The response did not arrive in time.") from exc

    def _build_request(
        self, method: str, url: str, *, fields: bytes, body: bytes | None = None
    ) -> UpstreamRequest:
        """A request to a URL that may have a query. Raises EndpointNotAllowed."""
        base, mark, query = url.partition("?")
        endpoint = parse_endpoint(base, allow_private=self._allow_private)
        if isinstance(endpoint, EndpointRefused):
            raise EndpointNotAllowed(endpoint.detail)
        target = (endpoint.path or "/") + mark + query
        return UpstreamRequest(method=method, endpoint=endpoint, target=target, fields=fields, body=body)

    async def check_endpoint(self, endpoint: Endpoint) -> None:
        """Resolves the host and checks every record, without connecting.

        Raises EndpointNotAllowed, with the same text for a name of a private address and for a name without an address.
        """
        await self.find_addresses(endpoint)

    async def find_addresses(self, endpoint: Endpoint) -> list[str]:
        """Each address is checked. Raises as `check_endpoint` does."""
        try:
            return await self._guard.check_endpoint(endpoint)
        except OSError as exc:
            raise EndpointNotAllowed(
                "The endpoint's host does not resolve to addresses that this gateway may call."
            ) from exc

    async def check_connection(self, endpoint: Endpoint) -> None:
        """Connects as a call does, sends nothing, and cuts the connection. Raises UpstreamUnreachable."""
        if self._is_closed:
            raise UpstreamUnreachable
        (await self.dial(endpoint)).cut()

    async def close(self) -> None:
        """Closes every connection, also those of calls in flight. Later sends raise UpstreamUnreachable."""
        self._is_closed = True
        await self._pool.close()
        self._guard.stop()

    # ---- A connection to send on.

    async def acquire(self, endpoint: Endpoint, *, idle_s_max: float) -> Connection:
        """A connection for one call, which is in flight from now on; `release` must follow once. Raises Refusal at the maximum of calls to this
        origin, and UpstreamUnreachable; the call is not in flight then."""
        if self._is_closed:
            raise UpstreamUnreachable
        origin = endpoint.origin
        count = self._in_flight.get(origin, 0)
        if count >= self._limits.in_flight_per_origin_max:
            raise refuse(
                code=Code.OVERLOADED,
                detail="Too many calls to this provider's API are in flight. Repeat the request later.",
                retry_after_s=1,
            )
        self._in_flight[origin] = count + 1
        try:
            return self._pool.acquire(origin, idle_s_max=idle_s_max) or await self.dial(endpoint)
        except BaseException:
            self.release(origin, None)
            raise

    def release(self, origin: str, connection: Connection | None, *, is_untouched: bool = False) -> None:
        """Ends a call in flight. Returns the connection to the pool, or cuts it. `is_untouched`: nothing was written to it."""
        count = self._in_flight[origin] - 1
        if count:
            self._in_flight[origin] = count
        else:
            del self._in_flight[origin]
        if connection is not None and (is_untouched or connection.finish()):
            self._pool.release(connection)

    async def dial(self, endpoint: Endpoint) -> Connection:
        """Raises UpstreamUnreachable, which never carries the cause."""
        try:
            self._guard.check_origin(endpoint)
            connection = await self._pool.open(endpoint)
        except (OSError, ValueError, RuntimeError) as exc:
            raise UpstreamUnreachable from exc
        if not (connection.is_open and connection.has_no_unread_bytes()):
            connection.cut()
            raise UpstreamUnreachable
        return connection

    async def renew(self, connection: Connection, endpoint: Endpoint, *, idle_s_max: float) -> Connection:
        """The same connection; a new one where the upstream has closed it, or has sent bytes, since it was acquired."""
        # The claim may have taken long.
        is_fresh = not connection.exchanges or monotonic() - connection.idle_since < idle_s_max
        if is_fresh and connection.is_open and connection.has_no_unread_bytes():
            return connection
        connection.cut()  # nothing was written to it: a new connection is as good as the first
        return await self.dial(endpoint)

    async def _read_whole(
        self, request: UpstreamRequest, *, bytes_max: int, deadline_s: float
    ) -> FetchedDocument:
        body = bytearray()
        async with self.connect(request) as exchange:
            await exchange.send(head_deadline_s=deadline_s)
            while chunk := await exchange.read_chunk():
                body += chunk
                if len(body) > bytes_max:
                    raise UpstreamBadResponse(f"The document is larger than {bytes_max} bytes.")
        fields = {name.lower(): value.decode("latin-1") for name, value in reversed(exchange.headers)}
        return FetchedDocument(
            status=exchange.status,
            content_type=fields.get(b"content-type", ""),
            body=bytes(body),
            location=fields.get(b"location", ""),
        )


async def _read_first_bytes(exchange: UpstreamExchange, bytes_max: int) -> bytes:
    read = bytearray()
    while len(read) < bytes_max and (chunk := await exchange.read_chunk()):
        read += chunk
    return bytes(read[:bytes_max])


def _translate_upload_failure(reason: Exception) -> Exception:
    if isinstance(reason, BodyLengthMismatch):
        return refuse(
            code=Code.INVALID_REQUEST,
            detail="The length of the request body differs from its Content-Length.",
        )
    return reason
