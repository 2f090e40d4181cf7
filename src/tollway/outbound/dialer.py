"""The way out, the one place that dials. Every request that this gateway sends to a foreign server leaves here.

It connects to judged addresses only, lets the caller claim, sends once, and reads under limits. It never follows a
redirect, never sends a request twice, and never tells the asker why a dial failed.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic

import aiohttp
from aiohttp.client_reqrep import ClientResponse
from yarl import URL

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
from tollway.outbound.claim_hook import SENDING, ClaimingRequest, ConnectionUnusable, Sending
from tollway.outbound.judge import Judge, lookup_host
from tollway.outbound.policy import Endpoint, EndpointRefused, parse_endpoint
from tollway.outbound.upstream import (
    BodyOffLength,
    Fetched,
    Progress,
    UpstreamRequest,
    UpstreamResponse,
    cut,
)

POOLED_IDLE_S_MAX = 4.0  # common servers close an idle connection after 5 s; be gone before they are
UPSTREAM_HEADERS_MAX = 100
UPSTREAM_HEADER_BYTES_MAX = 16 * 1024
SLICE_BYTES = 64 * 1024

# Only these may take a connection that has been idle for longer than `unsafe_reuse_idle_s` (RFC 9110 §9.2.2).
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
_AUTO_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


@dataclass(slots=True)
class _Pool:
    """One generation of connections. `fresh` never reuses: it is asked when a pooled one was not good enough."""

    reusing: aiohttp.ClientSession
    fresh: aiohttp.ClientSession
    born_at: float
    in_flight: int = 0

    async def close(self) -> None:
        await self.reusing.close()
        await self.fresh.close()


class Dialer:
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
        self._ssl_context = ssl_context
        self._judge = Judge(
            allow_private=allow_private,
            own_origins=own_origins,
            own_addresses=own_addresses,
            own_listeners=own_listeners,
            dns_deadline_s=limits.dns_deadline_s,
            lookup=lookup,
        )
        self._pool: _Pool | None = None
        self._retired: list[_Pool] = []
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
        body = request.body
        is_idempotent = request.method.upper() in _IDEMPOTENT
        sending = Sending(
            before_send=before_send,
            progress=progress or Progress(),
            ticks_ms=self._ticks_ms,
            claim_ms_max=int(self._limits.owner_lease_s * 500),
            head_deadline_s=head_deadline_s,
            idle_s_max=POOLED_IDLE_S_MAX if is_idempotent else self._limits.unsafe_reuse_idle_s,
            is_streamed=bool(body) and (not isinstance(body, bytes) or len(body) > SLICE_BYTES),
        )
        pool, leave = self._enter(request.endpoint.origin)
        try:
            self._judge_origin(request.endpoint)
            await self._close_drained()
            raw = await self._send_once(request, pool, sending)
        except BaseException:
            leave()
            raise
        response = UpstreamResponse(
            raw,
            protocol=sending.protocol,
            transport=sending.transport,
            progress=sending.progress,
            idle_s=self._limits.chunk_idle_s,
            leave=leave,
        )
        head_bytes = sum(len(name) + len(value) + 4 for name, value in response.headers)
        if not 200 <= raw.status <= 599 or head_bytes > self._limits.upstream_head_bytes_max:
            response.close()
            raise UpstreamBadResponse
        return response

    async def fetch(self, url: str, *, bytes_max: int, deadline_s: float) -> Fetched:
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

    async def probe(self, endpoint: Endpoint) -> None:
        """Resolves and judges every record without connecting.

        Raises EndpointNotAllowed, in the same words for a name that leads inside and one that leads nowhere.
        """
        try:
            await self._judge.judge_endpoint(endpoint)
        except OSError as exc:
            raise EndpointNotAllowed(
                "The endpoint's host does not lead to addresses that this gateway calls."
            ) from exc

    async def close(self) -> None:
        """Closes every connection, those of calls in flight too. Later sends fail as unreachable."""
        self._is_closed = True
        pools = [*self._retired, *([self._pool] if self._pool is not None else [])]
        self._pool, self._retired = None, []
        for pool in pools:
            await pool.close()
        self._judge.stop()

    def _judge_origin(self, endpoint: Endpoint) -> None:
        try:
            self._judge.judge_origin(endpoint)
        except OSError as exc:
            raise UpstreamUnreachable from exc

    async def _send_once(self, request: UpstreamRequest, pool: _Pool, sending: Sending) -> ClientResponse:
        for session in (pool.reusing, pool.fresh):
            try:
                return await self._attempt(request, session, sending)
            except ConnectionUnusable:
                continue  # nothing was written to it: a fresh connection is as good as the first
        raise UpstreamUnreachable

    async def _attempt(
        self, request: UpstreamRequest, session: aiohttp.ClientSession, sending: Sending
    ) -> ClientResponse:
        token = SENDING.set(sending)
        try:
            async with asyncio.timeout(None) as sending.scope:
                return await session.request(
                    request.method,
                    # Encoded: the bytes go out as they are. Never joined, never normalised.
                    URL(request.endpoint.origin + request.target, encoded=True),
                    headers=_frame(request),
                    data=_body(request, sending),
                    allow_redirects=False,
                )
        except ConnectionUnusable:
            raise
        except (aiohttp.ClientError, OSError, ValueError, RuntimeError) as exc:
            cut(sending.transport)
            if sending.refusal is not None:
                raise sending.refusal  # noqa: B904 - the caller's own exception, unchanged
            raise _name_failure(sending, exc) from exc
        except asyncio.CancelledError:
            cut(sending.transport)
            raise
        finally:
            sending.scope = None
            SENDING.reset(token)

    async def _read_whole(self, request: UpstreamRequest, *, bytes_max: int, deadline_s: float) -> Fetched:
        response = await self.send(request, before_send=_no_claim, head_deadline_s=deadline_s)
        try:
            body = bytearray()
            while chunk := await response.read_chunk():
                body += chunk
                if len(body) > bytes_max:
                    raise UpstreamBadResponse(f"The document is larger than {bytes_max} bytes.")
        finally:
            response.close()
        kinds = [value for name, value in response.headers if name.lower() == b"content-type"]
        content_type = kinds[0].decode("latin-1") if kinds else ""
        return Fetched(status=response.status, content_type=content_type, body=bytes(body))

    def _enter(self, origin: str) -> tuple[_Pool, Callable[[], None]]:
        """One more call to this origin; whoever enters calls the second value once."""
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
        pool = self._current_pool()
        self._in_flight[origin] = count + 1
        pool.in_flight += 1
        return pool, partial(self._leave, origin, pool)

    def _leave(self, origin: str, pool: _Pool) -> None:
        pool.in_flight -= 1
        self._in_flight[origin] -= 1
        if not self._in_flight[origin]:
            del self._in_flight[origin]

    def _current_pool(self) -> _Pool:
        """The pool of this generation. aiohttp knows no greatest age of a connection, so the pool has one."""
        now = monotonic()
        if self._pool is not None and now - self._pool.born_at >= self._limits.connection_age_s:
            self._retired.append(self._pool)
            self._pool = None
        if self._pool is None:
            self._pool = _Pool(self._open_session(reuse=True), self._open_session(reuse=False), now)
        return self._pool

    async def _close_drained(self) -> None:
        """Closes retired pools whose last call is over; the next call does it, so no task has to live for it."""
        while drained := next((pool for pool in self._retired if pool.in_flight == 0), None):
            self._retired.remove(drained)
            await drained.close()

    def _open_session(self, *, reuse: bool) -> aiohttp.ClientSession:
        limits = self._limits
        connector = aiohttp.TCPConnector(
            resolver=self._judge,
            use_dns_cache=False,
            socket_factory=self._judge.open_socket,
            ssl=self._ssl_context or True,
            limit=0,  # counted per origin in _enter, where a full house is refused and not queued
            force_close=not reuse,
            keepalive_timeout=POOLED_IDLE_S_MAX if reuse else None,
        )
        session = aiohttp.ClientSession(
            connector=connector,
            request_class=ClaimingRequest,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            skip_auto_headers=_AUTO_HEADERS,
            read_bufsize=limits.buffer_bytes,
            max_line_size=limits.request_line_bytes_max,
            max_field_size=UPSTREAM_HEADER_BYTES_MAX,
            max_headers=UPSTREAM_HEADERS_MAX,
            timeout=aiohttp.ClientTimeout(
                total=None,
                connect=limits.dns_deadline_s + limits.connect_deadline_s,
                sock_connect=limits.connect_deadline_s,
            ),
        )
        # aiohttp repeats idempotent methods by itself after a dropped connection: paid twice. Its own test client
        # switches that off by this name; `ClaimingRequest` refuses a second send even if the name goes away.
        session._retry_connection = False
        return session


def _name_failure(sending: Sending, exc: Exception) -> Exception:
    """aiohttp's failure in our words. A dial that failed never says why."""
    if isinstance(sending.body_failure, BodyOffLength):
        return Refusal(
            Problem(
                code=Code.INVALID_REQUEST, detail="The request body is not as long as its Content-Length."
            )
        )
    if sending.body_failure is not None:
        return sending.body_failure
    if not sending.progress.sent:
        return UpstreamUnreachable()
    if isinstance(exc, TimeoutError):
        return UpstreamTimeout()
    return UpstreamBadResponse()


def _frame(request: UpstreamRequest) -> list[tuple[str, str]]:
    length = len(request.body) if isinstance(request.body, bytes) else request.content_length
    if not request.body or length is None:
        return request.headers
    return [*request.headers, ("Content-Length", str(length))]


def _body(request: UpstreamRequest, sending: Sending) -> bytes | AsyncIterator[bytes] | None:
    if not request.body:
        return None
    if isinstance(request.body, bytes):
        if not sending.is_streamed:
            return request.body
        return sending.watch_body(_slice(request.body), content_length=len(request.body))
    return sending.watch_body(request.body, content_length=request.content_length)


async def _slice(body: bytes) -> AsyncIterator[bytes]:
    """A large body in pieces: in one, it would wait in our memory for an upstream that does not read."""
    for start in range(0, len(body), SLICE_BYTES):
        yield body[start : start + SLICE_BYTES]


async def _no_claim() -> None:
    """A fetch of our own costs nobody anything."""
