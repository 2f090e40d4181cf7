"""The way out, the one place that dials. Every request that this gateway sends to a foreign server leaves here.

It connects to judged addresses only, lets the caller claim, sends once, and reads under limits. It never follows a
redirect, never sends a request twice, and never tells the asker why a dial failed.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from time import monotonic

from tollway.errors import (
    Code,
    EndpointNotAllowed,
    Problem,
    Refusal,
    UpstreamBadResponse,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from tollway.limits import Limits
from tollway.outbound.answer_head import ResponseHead, ResponseMalformed
from tollway.outbound.connection import Connection
from tollway.outbound.connections import POOLED_IDLE_S_MAX, ConnectionPool
from tollway.outbound.judge import AddressGuard, lookup_host
from tollway.outbound.policy import Endpoint, EndpointRefused, parse_endpoint
from tollway.outbound.request_writer import (
    BodyLengthMismatch,
    UploadFailed,
    format_first_bytes,
    is_streamed,
    write_body,
)
from tollway.outbound.upstream import FetchedDocument, Progress, UpstreamRequest, UpstreamResponse

# Only these may take a connection that has been idle for longer than `unsafe_reuse_idle_s` (RFC 9110 §9.2.2).
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})

CLAIM_TOO_OLD = Problem(
    code=Code.OVERLOADED,
    detail="The gateway stood still for too long to send this call. Nothing was sent.",
    retry_after_s=1,
)


class HttpClient:
    """Sends requests to providers. One per process; any number of tasks may use it at once.

    `own_origins` (`scheme://host[:port]`), `own_addresses` (on any port) and `own_listeners` ((ip, port); an
    unspecified ip stands for every local one) are the gateway itself and are refused.
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
        """`ticks_ms`: a clock that nobody sets. By it, what was claimed too long ago is not sent any more."""
        self._limits = limits
        self._ticks_ms = ticks_ms
        self._allow_private = allow_private
        # The others may take a gateway for dead whose claim is older, and run its call themselves.
        self._claim_ms_max = int(limits.owner_lease_s * 500)
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

    async def send(
        self,
        request: UpstreamRequest,
        *,
        before_send: Callable[[], Awaitable[None]],
        head_deadline_s: float,
        progress: Progress | None = None,
    ) -> UpstreamResponse:
        """Dials, awaits `before_send` once, sends once, and returns when the response head is here.

        `before_send` runs after a connection is held and before the first byte leaves; what it raises reaches the
        caller unchanged and nothing is sent. The head deadline counts from the moment of sending, and anew from
        each piece of a streamed body. What the body's iterator raises reaches the caller unchanged too; the upstream then sees a cut request.

        Raises Refusal (`overloaded`, a claim that has grown old, or a request that cannot be written), UpstreamUnreachable (nothing left,
        though `before_send` may have run: see `progress.claimed`), UpstreamTimeout and UpstreamBadResponse (bytes
        may have left). A cancelled call cuts its connection.
        """
        request.check_writable()
        progress = progress or Progress()
        origin = request.endpoint.origin
        self._begin_call(origin)
        connection: Connection | None = None
        try:
            self._check_origin(request.endpoint)
            connection = await self._acquire(request)
            claim_started_ms = self._ticks_ms()
            await before_send()
            progress.claimed = True
            if not (self._is_usable(connection, request) and connection.has_no_unread_bytes()):
                connection.cut()  # nothing was written to it: a new connection is as good as the first
                connection = await self._dial(request.endpoint)
            if (
                self._ticks_ms() - claim_started_ms > self._claim_ms_max
            ):  # the last look before the first byte
                raise Refusal(CLAIM_TOO_OLD)
            head = await self._deliver(request, connection, progress, head_deadline_s)
        except BaseException as exc:
            self._end_call(origin, connection, is_untouched=isinstance(exc, Exception) and not progress.sent)
            raise
        return UpstreamResponse(
            head,
            connection=connection,
            progress=progress,
            idle_s=self._limits.chunk_idle_s,
            end_call=partial(self._end_call, origin),
        )

    async def fetch(self, url: str, *, bytes_max: int, deadline_s: float) -> FetchedDocument:
        """GETs one small document under the same policy; no redirects.

        Raises EndpointNotAllowed for a URL that may not be dialled, UpstreamBadResponse beyond `bytes_max`, and
        what `send` raises.
        """
        base, mark, query = url.partition("?")
        endpoint = parse_endpoint(base, allow_private=self._allow_private)
        if isinstance(endpoint, EndpointRefused):
            raise EndpointNotAllowed(endpoint.detail)
        request = UpstreamRequest(
            method="GET",
            endpoint=endpoint,
            target=(endpoint.path or "/") + mark + query,
            headers=[("Accept", "*/*")],
        )
        try:
            async with asyncio.timeout(deadline_s):
                return await self._read_whole(request, bytes_max=bytes_max, deadline_s=deadline_s)
        except TimeoutError as exc:
            raise UpstreamTimeout("The document did not arrive in time.") from exc

    async def check_endpoint(self, endpoint: Endpoint) -> None:
        """Resolves and judges every record without connecting.

        Raises EndpointNotAllowed, in the same words for a name that leads inside and one that leads nowhere.
        """
        try:
            await self._guard.check_endpoint(endpoint)
        except OSError as exc:
            raise EndpointNotAllowed(
                "The endpoint's host does not lead to addresses that this gateway calls."
            ) from exc

    async def check_connection(self, endpoint: Endpoint) -> None:
        """Connects as a call would, sends nothing, and lets go. Raises UpstreamUnreachable."""
        if self._is_closed:
            raise UpstreamUnreachable
        self._check_origin(endpoint)
        (await self._dial(endpoint)).cut()

    async def close(self) -> None:
        """Closes every connection, those of calls in flight too. Later sends fail as unreachable."""
        self._is_closed = True
        await self._pool.close()
        self._guard.stop()

    def _check_origin(self, endpoint: Endpoint) -> None:
        try:
            self._guard.check_origin(endpoint)
        except OSError as exc:
            raise UpstreamUnreachable from exc

    # ---- A connection to send on.

    async def _acquire(self, request: UpstreamRequest) -> Connection:
        connection = self._pool.acquire(request.endpoint.origin, idle_s_max=self._idle_s_max(request))
        return connection or await self._dial(request.endpoint)

    async def _dial(self, endpoint: Endpoint) -> Connection:
        """Raises UpstreamUnreachable, which never says why."""
        try:
            connection = await self._pool.open(endpoint)
        except (OSError, ValueError, RuntimeError) as exc:
            raise UpstreamUnreachable from exc
        if not (connection.is_open and connection.has_no_unread_bytes()):
            connection.cut()
            raise UpstreamUnreachable
        return connection

    def _is_usable(self, connection: Connection, request: UpstreamRequest) -> bool:
        """Still, after the claim, which may have taken long."""
        idle_s_max = self._idle_s_max(request) if connection.exchanges else inf
        return connection.is_open and monotonic() - connection.idle_since < idle_s_max

    def _idle_s_max(self, request: UpstreamRequest) -> float:
        is_idempotent = request.method.upper() in _IDEMPOTENT
        return POOLED_IDLE_S_MAX if is_idempotent else self._limits.unsafe_reuse_idle_s

    # ---- Sending, once.

    async def _deliver(
        self, request: UpstreamRequest, connection: Connection, progress: Progress, head_deadline_s: float
    ) -> ResponseHead:
        """Whatever is raised here, bytes may have left; `progress` says so before the first one does."""
        first_bytes, has_rest = format_first_bytes(request), is_streamed(request)
        assert not progress.sent, "one request is sent once"
        progress.sent = True
        progress.body_handed_over = not has_rest
        is_taken = connection.begin(request.method, first_bytes)
        if has_rest:
            body = write_body(request, connection, progress=progress, head_deadline_s=head_deadline_s)
            # Not in a task group: it belongs to the exchange, which outlives this function and ends it.
            connection.upload(asyncio.get_running_loop().create_task(body))
        else:
            progress.body_wholly_sent = is_taken
        try:
            return await connection.read_head(head_deadline_s)
        except UploadFailed as exc:
            raise _translate_upload_failure(exc.reason)  # noqa: B904 - the caller's own exception, unchanged
        except TimeoutError as exc:
            raise UpstreamTimeout from exc
        except (ResponseMalformed, OSError) as exc:
            raise UpstreamBadResponse from exc

    async def _read_whole(
        self, request: UpstreamRequest, *, bytes_max: int, deadline_s: float
    ) -> FetchedDocument:
        response = await self.send(request, before_send=_no_claim, head_deadline_s=deadline_s)
        try:
            body = bytearray()
            while chunk := await response.read_chunk():
                body += chunk
                if len(body) > bytes_max:
                    raise UpstreamBadResponse(f"The document is larger than {bytes_max} bytes.")
        finally:
            response.close()
        content_types = [value for name, value in response.headers if name.lower() == b"content-type"]
        content_type = content_types[0].decode("latin-1") if content_types else ""
        return FetchedDocument(status=response.status, content_type=content_type, body=bytes(body))

    def _begin_call(self, origin: str) -> None:
        """One more call to this origin; whoever enters leaves once."""
        if self._is_closed:
            raise UpstreamUnreachable
        count = self._in_flight.get(origin, 0)
        if count >= self._limits.in_flight_per_origin_max:
            raise Refusal(
                Problem(
                    code=Code.OVERLOADED,
                    detail="Too many calls to this provider's API are in flight.",
                    retry_after_s=1,
                )
            )
        self._in_flight[origin] = count + 1

    def _end_call(self, origin: str, connection: Connection | None, *, is_untouched: bool = False) -> None:
        count = self._in_flight[origin] - 1
        if count:
            self._in_flight[origin] = count
        else:
            del self._in_flight[origin]
        if connection is not None and (is_untouched or connection.finish()):
            self._pool.release(connection)


def _translate_upload_failure(reason: Exception) -> Exception:
    if isinstance(reason, BodyLengthMismatch):
        return Refusal(
            Problem(
                code=Code.INVALID_REQUEST, detail="The request body is not as long as its Content-Length."
            )
        )
    return reason


async def _no_claim() -> None:
    """A fetch of our own costs nobody anything."""
