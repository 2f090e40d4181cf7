"""What every request of the control plane passes on its way in and out: an id, a log line, the checks of its head,
limits on its body, and the headers of its answer. Plain ASGI; `web/app.py` shows the order.

It never reads what a body means, and it never logs a query, a header value or a body. The raw gateway call does not
pass here; it uses `read_request_id`, `read_client_address` and `is_preflight` by itself.
"""

import asyncio
import re
from collections.abc import Callable, Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tollway.errors import Code, FieldError, Problem, Refusal
from tollway.gateway.headers import EXPOSED_HEADERS, check_control_headers, is_chunked_alone
from tollway.ids import METHOD_LENGTH_MAX
from tollway.limits import Limits
from tollway.telemetry import Metrics, bind_request, unbind_request
from tollway.web.admission import BodyBudget, BodyReservation, LoadShedder
from tollway.web.problems import NO_CONTENT, instance_of, render_problem, request_id_of

RawHeaders = list[tuple[bytes, bytes]]
ProxyNetworks = tuple[IPv4Network | IPv6Network, ...]

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{8,64}")
_HOST = re.compile(
    rb"(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+(?::[0-9]*)?|\[[0-9A-Fa-fvV:.]+\](?::[0-9]*)?"
)
"""`uri-host [ ":" port ]` (RFC 3986 §3.2.2), and not empty: no target of ours is without an authority."""
_FORWARDED_MAX = 20
_UNLIMITED_PATHS = frozenset({"/healthz", "/readyz"})
_METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
_RESPONSE_HEADERS = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", EXPOSED_HEADERS.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
_log = structlog.get_logger(__name__)


def read_request_id(headers: Iterable[tuple[bytes, bytes]], *, entropy: Callable[[int], bytes]) -> str:
    """The caller's own `X-Request-Id` where it is harmless (8 to 64 letters, digits, `.`, `_`, `-`), else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value.decode("ascii")
    return "req_" + entropy(12).hex()


def read_client_address(scope: Scope, trusted_proxies: ProxyNetworks) -> str:
    """Who is asking: the peer, or, when the peer is a trusted proxy, the last address in `X-Forwarded-For` that is
    not one. Anything else in that header is the caller's own invention."""
    peer = scope.get("client")
    address = _unmap(str(peer[0])) if peer else "unknown"
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


def _unmap(address: str) -> str:
    """A socket that takes both families writes an IPv4 peer as IPv6 (RFC 4291 §2.5.5.2); it is the same client."""
    if not address.startswith("::ffff:"):
        return address
    mapped = IPv6Address(address).ipv4_mapped
    return address if mapped is None else str(mapped)


def parse_proxies(networks: Iterable[str]) -> ProxyNetworks:
    """CIDR texts as `read_client_address` wants them."""
    return tuple(ip_network(network) for network in networks)


def _is_trusted(address: str, networks: ProxyNetworks) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks if network.version == parsed.version)


def is_preflight(scope: Scope) -> bool:
    """A CORS preflight (Fetch §4.8): the gateway answers it itself, free. Any other OPTIONS is a request like any."""
    if scope["method"] != "OPTIONS":
        return False
    names = {name for name, _ in scope["headers"]}
    return b"origin" in names and b"access-control-request-method" in names


async def answer_preflight(scope: Scope, send: Send) -> None:
    """Everything may be asked from anywhere, without credentials: no cookie of ours counts here."""
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
    """Gives each request its id and the address of its client (`scope["state"]`), for logs, answers and limits."""

    def __init__(
        self, app: ASGIApp, *, entropy: Callable[[int], bytes], trusted_proxies: ProxyNetworks
    ) -> None:
        self._app = app
        self._entropy = entropy
        self._trusted_proxies = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        state["request_id"] = request_id = read_request_id(scope["headers"], entropy=self._entropy)
        state["client_address"] = read_client_address(scope, self._trusted_proxies)
        before = bind_request(request_id)
        try:
            await self._app(scope, receive, send)
        finally:
            unbind_request(before)


class AccessLog:
    """One line and one observation per request. `clock`: a monotonic one, in seconds."""

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
    """Adds the request's id, CORS and the guards of a browser to every answer that has none of its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def adding_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers: RawHeaders = list(message.get("headers", ()))
                present = {name for name, _ in headers}
                own = (*_RESPONSE_HEADERS, (b"x-request-id", request_id_of(scope).encode("ascii")))
                headers += [header for header in own if header[0] not in present]
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, adding_send)


class HeadWithoutBody:
    """An answer to HEAD has the headers of GET and no body (RFC 9110 §9.3.2)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def cutting_send(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app(scope, receive, cutting_send if scope["method"] == "HEAD" else send)


class OverloadLimit:
    """Refuses more requests than the gateway can bear. Whether it is well is told all the same."""

    def __init__(self, app: ASGIApp, *, shedder: LoadShedder, public_url: str) -> None:
        self._app = app
        self._shedder = shedder
        self._public_url = public_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in _UNLIMITED_PATHS:
            await self._app(scope, receive, send)
            return
        client_address = scope["state"]["client_address"]
        problem = self._shedder.enter(client_address)
        if problem is not None:
            await send_problem(problem, scope, send, public_url=self._public_url)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._shedder.leave(client_address)


class RequestHeadCheck:
    """Refuses a request whose head is ambiguous or too large, before anything else looks at it."""

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
    """Refuses a target that is not a path (`*`, CONNECT's authority), a method that is too long to be recorded, a line
    over the limit, and a request of HTTP/1.1 without a valid `Host` (RFC 9112 §3.2)."""
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    if len(scope["method"]) > METHOD_LENGTH_MAX:
        detail = f"The method has more than {METHOD_LENGTH_MAX} characters."
        return Problem(code=Code.INVALID_REQUEST, detail=detail)
    if scope["method"] == "CONNECT" or not raw_path.startswith(b"/"):
        return Problem(code=Code.INVALID_REQUEST, detail="The target of a request must be a path.")
    line_bytes = (
        len(scope["method"]) + len(raw_path) + len(scope.get("query_string", b"")) + len("  HTTP/1.1?")
    )
    if line_bytes > limits.request_line_bytes_max:
        detail = f"The request line is larger than {limits.request_line_bytes_max} bytes."
        return Problem(code=Code.INVALID_REQUEST, detail=detail)
    return _check_host(scope)


def _check_host(scope: Scope) -> Problem | None:
    """Two of them are found with the other control headers. Which host it is decides nothing (`public_url` does)."""
    for name, value in scope["headers"]:
        if name == b"host":
            if _HOST.fullmatch(value) is not None:
                return None
            return _bad_host("Host is no host name or address with an optional port.")
    return None if scope["http_version"] == "1.0" else _bad_host("A request of HTTP/1.1 has a Host.")


def _bad_host(detail: str) -> Problem:
    return Problem(
        code=Code.INVALID_REQUEST,
        detail=detail,
        errors=(FieldError(code="invalid", detail=detail, parameter="Host"),),
    )


async def send_problem(problem: Problem, scope: Scope, send: Send, *, public_url: str) -> None:
    """A whole answer outside of any framework."""
    status, headers, body = render_problem(
        problem, public_url=public_url, request_id=request_id_of(scope), instance=instance_of(scope)
    )
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class BodyLimits:
    """Bounds a request body in size and in slowness, all of them together in what they hold, and clears up after an
    answer that came before its end.

    The refusals surface where the body is read, as `Refusal`. What nobody read is read and dropped up to
    `refused_body_bytes_max`, so that the answer is not lost to a reset; beyond that the connection closes.
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
        # Where it ends is the server's reading of a coding that is refused: nothing may be read behind it.
        self._is_framing_ambiguous = len(codings) > 1 or not all(map(is_chunked_alone, codings))
        self._awaits_continue = b"expect" in headers
        self._receive = receive
        self._limits = limits
        self._clock = clock
        self._reservation = reservation
        self._started: float | None = None
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
        """Reads what is left and drops it. False when the connection cannot be used again."""
        if self._is_framing_ambiguous:
            return False
        if not self._is_ended and self._awaits_continue and self._started is None:
            return False  # the client still waits for our word; it sends no body now
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
        """The slower the body, the sooner its deadline: it must keep a minimum rate once the grace is over."""
        now = self._clock()
        if self._started is None:
            self._started = now
        earned_s = self._bytes / self._limits.body_rate_bytes_min
        try:
            async with asyncio.timeout(self._started + self._limits.body_rate_grace_s + earned_s - now):
                message = await self._receive()
        except TimeoutError:
            raise Refusal(
                Problem(code=Code.INVALID_REQUEST, detail="The body arrived too slowly.", reason="too_slow")
            ) from None
        if message["type"] == "http.disconnect":
            self._is_ended = self._is_framing_ambiguous = True
            raise Refusal(BODY_INCOMPLETE)
        self._bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            self._is_ended = True
        return message


BODY_INCOMPLETE = Problem(
    code=Code.INVALID_REQUEST,
    detail="The request's body broke off before its end.",
    reason="body_broken_off",
)


def _parse_length(raw: bytes) -> int:
    return int(raw) if re.fullmatch(rb"[0-9]{1,18}", raw) else 0


def _too_large(most: int) -> Refusal:
    detail = f"The body is larger than {most} bytes."
    return Refusal(
        Problem(
            code=Code.PAYLOAD_TOO_LARGE,
            detail=detail,
            errors=(FieldError(code="too_large", detail=detail, pointer=""),),
        )
    )
