"""The middleware of the control plane, as plain ASGI: request id, access log, checks of the head, limits on the body, response headers. `web/http/app.py` has the order.

It does not interpret bodies and never logs a query, a header value or a body. Gateway calls do not pass it; they use `read_request_id`, `read_client_address` and
`is_preflight`.
"""

import asyncio
import re
from collections.abc import Callable, Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tollway.errors import Code, FieldError, Problem, Refusal, refuse
from tollway.gateway.headers import EXPOSED_HEADERS, check_control_headers, is_chunked_alone
from tollway.ids import METHOD_LENGTH_MAX
from tollway.limits import Limits
from tollway.observability.telemetry import Metrics, bind_request, unbind_request
from tollway.web.http.admission import BODY_RESERVATION, BodyBudget, BodyPace, BodyReservation, LoadShedder
from tollway.web.http.page_response import IS_PAGE, is_for_this_origin, is_private_path
from tollway.web.http.problems import NO_CONTENT, instance_of, render_problem, request_id_of

RawHeaders = list[tuple[bytes, bytes]]
ProxyNetworks = tuple[IPv4Network | IPv6Network, ...]

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{8,64}")
_HOST = re.compile(
    rb"(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+(?::[0-9]*)?|\[[0-9A-Fa-fvV:.]+\](?::[0-9]*)?"
)
"""`uri-host [ ":" port ]` (RFC 3986 §3.2.2), not empty, because every target here has an authority."""
_VERSIONS_WITHOUT_HOST = frozenset({"1", "1.0"})
_FORWARDED_MAX = 20
_MAPPED = "::ffff:"
UNLIMITED_PATHS = ("/healthz", "/readyz")
_METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
_RESPONSE_HEADERS = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", EXPOSED_HEADERS.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
_CORS_PREFIX = b"access-control-"
_PRIVATE_HEADERS = (
    *(header for header in _RESPONSE_HEADERS if not header[0].startswith(_CORS_PREFIX)),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_log = structlog.get_logger(__name__)


def read_request_id(scope: Scope, *, entropy: Callable[[int], bytes]) -> str:
    """The client's `X-Request-Id` if it has 8 to 64 letters, digits, `.`, `_` or `-`; otherwise a new id."""
    value: bytes
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value.decode("ascii")
    return "req_" + entropy(12).hex()


def read_client_address(scope: Scope, trusted_proxies: ProxyNetworks) -> str:
    """The address of the client: the peer, or for a trusted proxy the last address in `X-Forwarded-For` that is no trusted proxy.

    The earlier addresses in that header are not reliable: the client itself may have sent them.
    """
    peer = scope.get("client")
    address = str(peer[0]) if peer else "unknown"
    if address.startswith(_MAPPED):
        address = _unmap(address)
    if not trusted_proxies or not _is_trusted(address, trusted_proxies):
        return address
    forwarded = b",".join(value for name, value in scope["headers"] if name == b"x-forwarded-for")
    for hop in reversed(forwarded.decode("latin-1").split(",")[-_FORWARDED_MAX:]):
        try:
            address = _unmap(str(ip_address(hop.strip())))
        except ValueError:
            return address
        if not _is_trusted(address, trusted_proxies):
            return address
    return address


def is_trusted_peer(scope: Scope, trusted_proxies: ProxyNetworks) -> bool:
    """Whether the connection comes from a trusted proxy."""
    peer = scope.get("client")
    return peer is not None and bool(trusted_proxies) and _is_trusted(_unmap(str(peer[0])), trusted_proxies)


def _unmap(address: str) -> str:
    """The IPv4 address of an IPv4-mapped one (RFC 4291 §2.5.5.2), so that a dual-stack socket does not make two clients of one."""
    if not address.startswith(_MAPPED):
        return address
    mapped = IPv6Address(address).ipv4_mapped
    return address if mapped is None else str(mapped)


def parse_proxies(networks: Iterable[str]) -> ProxyNetworks:
    """Parses CIDR texts for `read_client_address`."""
    return tuple(ip_network(network) for network in networks)


def _is_trusted(address: str, networks: ProxyNetworks) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks if network.version == parsed.version)


def is_preflight(scope: Scope) -> bool:
    """Whether an OPTIONS request is a CORS preflight (Fetch §4.8), which the gateway answers itself. Any other is an ordinary request."""
    names = {name for name, _ in scope["headers"]}
    return b"origin" in names and b"access-control-request-method" in names


async def answer_preflight(scope: Scope, send: Send) -> None:
    """Allows every method and header from every origin, without credentials: no path but the private ones reads a cookie. Those allow no other origin."""
    if is_private_path(scope["path"]):
        await send({"type": "http.response.start", "status": NO_CONTENT, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        return
    requested = b", ".join(
        value for name, value in scope["headers"] if name == b"access-control-request-headers"
    )
    is_harmless = re.fullmatch(rb"[A-Za-z0-9_, *.-]{0,2048}", requested) is not None
    headers: RawHeaders = [
        (b"access-control-allow-origin", b"*"),
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-allow-headers", requested if requested and is_harmless else b"*"),
        (b"access-control-max-age", b"7200"),
        (b"vary", b"Access-Control-Request-Method, Access-Control-Request-Headers"),
    ]
    await send({"type": "http.response.start", "status": NO_CONTENT, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


class RequestId:
    """Sets the request id and the client address in `scope["state"]`, for logs, responses and limits."""

    def __init__(
        self, app: ASGIApp, *, entropy: Callable[[int], bytes], trusted_proxies: ProxyNetworks
    ) -> None:
        self._app = app
        self._entropy = entropy
        self._trusted_proxies = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = read_request_id(scope, entropy=self._entropy)
        state["client_address"] = read_client_address(scope, self._trusted_proxies)
        before = bind_request(request_id)
        try:
            await self._app(scope, receive, send)
        finally:
            unbind_request(before)


class AccessLog:
    """Writes one log line and one metric observation per request. `clock`: monotonic, in seconds."""

    def __init__(self, app: ASGIApp, *, clock: Callable[[], float], metrics: Metrics | None) -> None:
        self._app = app
        self._clock = clock
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = self._clock()
        status = 0

        async def watching_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watching_send)
        finally:
            seconds = self._clock() - start
            _log.info(
                "request",
                method=scope["method"],
                path=instance_of(scope),
                status=status or None,
                duration_ms=round(seconds * 1000, 2),
                client=scope["state"]["client_address"],
            )
            if self._metrics is not None:
                method = scope["method"] if scope["method"].encode() in _METHODS.split(b", ") else "_OTHER"
                route = getattr(scope.get("route"), "path", "unmatched")
                self._metrics.request_seconds.labels(method, route, str(status)).observe(seconds)


class ResponseHeaders:
    """Adds the request id, the CORS headers and the security headers to each response that lacks them. A page has its own security headers, and no CORS."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def adding_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers: RawHeaders = list(message.get("headers", ()))
                is_closed = is_for_this_origin(scope["path"], message["status"])
                if is_closed:  # a problem has CORS headers of its own
                    headers = [header for header in headers if not header[0].startswith(_CORS_PREFIX)]
                present = {name for name, _ in headers}
                own = (
                    *_headers_of(scope, is_closed=is_closed),
                    (b"x-request-id", request_id_of(scope).encode("ascii")),
                )
                headers += [header for header in own if header[0] not in present]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, adding_send)


def _headers_of(scope: Scope, *, is_closed: bool) -> RawHeaders:
    """The headers that a response of this request gets where it lacks them. A page has its own. `is_closed`: other origins may not read it."""
    if scope["state"].get(IS_PAGE):
        return []
    return list(_PRIVATE_HEADERS if is_closed else _RESPONSE_HEADERS)


class HeadWithoutBody:
    """Removes the body of a response to HEAD; the headers are those of GET (RFC 9110 §9.3.2)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def cutting_send(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app(scope, receive, cutting_send if scope["method"] == "HEAD" else send)


class OverloadLimit:
    """Refuses requests beyond the capacity of the gateway, except health checks."""

    def __init__(
        self, app: ASGIApp, *, shedder: LoadShedder, public_url: str, metrics: Metrics | None = None
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._shedder = shedder
        self._public_url = public_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in UNLIMITED_PATHS:
            await self._app(scope, receive, send)
            return
        client_address = scope["state"]["client_address"]
        problem = self._shedder.enter(client_address)
        if problem is not None and self._metrics is not None:
            self._metrics.refusals.add(problem.code.value)
        if problem is not None:
            await send_problem(problem, scope, send, public_url=self._public_url)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._shedder.leave(client_address)


class RequestHeadCheck:
    """Refuses a request with an ambiguous or too large head before a route sees it."""

    def __init__(self, app: ASGIApp, *, limits: Limits, public_url: str) -> None:
        self._app = app
        self._limits = limits
        self._public_url = public_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = check_request_line(scope, limits=self._limits) or check_control_headers(
            scope["headers"], limits=self._limits
        )
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await send_problem(problem, scope, send, public_url=self._public_url)


def check_request_line(scope: Scope, *, limits: Limits) -> Problem | None:
    """Refuses a target that is not a path (`*`, the authority of CONNECT), a method that is too long for the ledger, a request line over the
    limit, and an HTTP/1.1 request without a valid `Host` (RFC 9112 §3.2)."""
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    if len(scope["method"]) > METHOD_LENGTH_MAX:
        detail = f"The method has more than {METHOD_LENGTH_MAX} characters. Send a shorter one."
        return Problem(code=Code.INVALID_REQUEST, detail=detail)
    if scope["method"] == "CONNECT" or not raw_path.startswith(b"/"):
        return Problem(
            code=Code.INVALID_REQUEST,
            detail="The request target is not a path. Send one that begins with a slash.",
        )
    line_bytes = (
        len(scope["method"]) + len(raw_path) + len(scope.get("query_string", b"")) + len("  HTTP/1.1?")
    )
    if line_bytes > limits.request_line_bytes_max:
        detail = f"The request line is longer than {limits.request_line_bytes_max} bytes. Send a shorter path or query."
        return Problem(code=Code.INVALID_REQUEST, detail=detail)
    # A second `Host` fails the check of control headers. The host selects nothing; `public_url` does.
    for name, value in scope["headers"]:
        if name == b"host":
            return None if _HOST.fullmatch(value) is not None else _refuse_host(scope, value)
    return _refuse_host(scope, b"")


def _refuse_host(scope: Scope, host: bytes) -> Problem | None:
    """The problem of a `Host` that is not valid. None for HTTP/1.0 without one.

    The server adds an empty `Host` to a request without one, and calls HTTP/1.0 `1`: the probes of some load balancers are such requests.
    """
    if host:
        return _bad_host("Host is not a host name or an address with an optional port. Correct the header.")
    if scope["http_version"] in _VERSIONS_WITHOUT_HOST:
        return None
    return _bad_host("The request has no Host. HTTP/1.1 requires the header.")


def _bad_host(detail: str) -> Problem:
    return Problem(
        code=Code.INVALID_REQUEST,
        detail=detail,
        errors=(FieldError(code="invalid", detail=detail, parameter="Host"),),
    )


async def send_problem(problem: Problem, scope: Scope, send: Send, *, public_url: str) -> None:
    """Sends a problem as a complete response, outside of any framework."""
    status, headers, body = render_problem(
        problem, public_url=public_url, request_id=request_id_of(scope), instance=instance_of(scope)
    )
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class BodyLimits:
    """Limits a request body in size, rate and duration, and all buffered bodies together in bytes. Discards the rest of a body after an early response.

    Raises `Refusal` where the route reads the body. Discards unread bytes up to `refused_body_bytes_max`, because a reset of the connection would lose the
    response; closes the connection beyond that.
    """

    def __init__(
        self, app: ASGIApp, *, limits: Limits, clock: Callable[[], float], budget: BodyBudget
    ) -> None:
        self._app = app
        self._limits = limits
        self._clock = clock
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reservation = self._budget.open(scope["state"]["client_address"])
        scope["state"][BODY_RESERVATION] = reservation
        body = _BoundedBody(scope, receive, limits=self._limits, clock=self._clock, reservation=reservation)

        async def discarding_send(message: Message) -> None:
            if message["type"] == "http.response.start" and not await body.discard_rest():
                headers = [*message.get("headers", ()), (b"connection", b"close")]
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, body.receive, discarding_send)
        finally:
            reservation.close()


class _BoundedBody:
    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        *,
        limits: Limits,
        clock: Callable[[], float],
        reservation: BodyReservation,
    ) -> None:
        headers = dict(scope["headers"])
        codings = [value for name, value in scope["headers"] if name == b"transfer-encoding"]
        self._declared = _parse_length(headers.get(b"content-length", b"0"))
        self._is_ended = self._declared == 0 and not codings
        # The end of a body with a refused coding is the server's guess: no further request may be read from the connection.
        self._is_framing_ambiguous = len(codings) > 1 or not all(map(is_chunked_alone, codings))
        self._awaits_continue = b"expect" in headers
        self._receive = receive
        self._limits = limits
        self._clock = clock
        self._reservation = reservation
        self._pace = BodyPace(limits)
        self._deadline: float | None = None
        self._bytes = 0

    async def receive(self) -> Message:
        if self._is_ended:
            return await self._receive()
        most = self._limits.control_body_bytes_max
        if self._declared > most:
            raise _too_large(most)
        message = await self._receive_in_time()
        if self._bytes > most:
            raise _too_large(most)
        if problem := self._reservation.reserve(len(message.get("body", b""))):
            raise Refusal(problem)
        if not message.get("more_body", False):
            await self._reservation.wait_interval(self._clock())
        return message

    async def discard_rest(self) -> bool:
        """Reads and discards the rest. False if the connection cannot be used again."""
        if self._is_framing_ambiguous:
            return False
        if not self._is_ended and self._awaits_continue and self._deadline is None:
            return False  # the client waits for `100 Continue` and sends no body
        rest_max = self._limits.refused_body_bytes_max
        if max(self._declared - self._bytes, 0) > rest_max:
            return self._is_ended
        until = self._bytes + rest_max
        while not self._is_ended:
            try:
                message = await self._receive_in_time()
            except Refusal:
                return False
            if message["type"] != "http.request" or self._bytes > until:
                return False
        return True

    async def _receive_in_time(self) -> Message:
        """Receives one message. The body has a least rate, and a deadline for the whole of it."""
        now = self._clock()
        if self._deadline is None:
            self._deadline = now + self._limits.control_body_deadline_s
        left_s = min(self._pace.left_s, self._deadline - now)
        try:
            if left_s <= 0:
                raise TimeoutError
            async with asyncio.timeout(left_s):
                message = await self._receive()
        except TimeoutError:
            self._is_framing_ambiguous = True  # no further byte is waited for
            raise Refusal(BODY_TOO_SLOW) from None
        self._pace.record(len(message.get("body", b"")), waited_s=self._clock() - now)
        if message["type"] == "http.disconnect":
            self._is_ended = self._is_framing_ambiguous = True
            raise Refusal(BODY_INCOMPLETE)
        self._bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            self._is_ended = True
        return message


BODY_TOO_SLOW = Problem(
    code=Code.INVALID_REQUEST,
    detail="The request body arrived too slowly. Send it again over a faster connection.",
    reason="too_slow",
)
BODY_INCOMPLETE = Problem(
    code=Code.INVALID_REQUEST,
    detail="The request body ended before its declared length. Send the whole body.",
    reason="body_broken_off",
)


def _parse_length(raw: bytes) -> int:
    return int(raw) if re.fullmatch(rb"[0-9]{1,18}", raw) else 0


def _too_large(most: int) -> Refusal:
    detail = f"The body is longer than {most} bytes. Send a shorter one."
    return refuse(
        code=Code.PAYLOAD_TOO_LARGE,
        detail=detail,
        errors=(FieldError(code="too_large", detail=detail, pointer=""),),
    )
