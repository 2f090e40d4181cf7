"""The gateway for the MCP tools: their collaborators, and gateway calls in process.

An internal call goes through the same ASGI application as a call over HTTP, without a socket, so this module decides nothing about money. The internal call
has the client address, the request id and the disconnect of the MCP request.
"""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import ASGIApp, Message

from tollway.discovery.requests import ToolRequest
from tollway.discovery.tool_results import HttpResponse
from tollway.errors import Code, Problem, Refusal
from tollway.gateway.headers import NO_CODING, is_forwardable
from tollway.ids import ListingId

RawHeaders = list[tuple[bytes, bytes]]

_PASSED_HEADERS = frozenset({b"user-agent", b"traceparent", b"tracestate", b"accept-language", b"cdn-loop"})
"""Headers of the MCP request that the internal call gets: the client, the trace, and the gateways on the way (RFC 8586)."""

_FORWARDED_FOR = "x-forwarded-for"
"""Not taken from arguments: the client address is known, and for a client in a trusted network the gateway would believe the header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpRequest:
    """One MCP request over HTTP. `request`: its body is already read. `disconnected`: set when the client disconnects."""

    request: Request
    request_id: str
    client_address: str
    disconnected: asyncio.Event


async def make_internal_call(
    app: ASGIApp,
    listing_id: ListingId,
    request: ToolRequest,
    *,
    controls: Iterable[tuple[str, str]],
    mcp_request: McpRequest,
    bytes_max: int,
) -> HttpResponse:
    """Makes one gateway call. `controls`: headers that pay for the call and limit it. Raises Refusal if the application sends no response."""
    raw_path = f"/api/v2/gateway/{listing_id}{request.rest}".encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": mcp_request.request.scope.get("http_version", "1.1"),
        "method": request.method,
        "scheme": mcp_request.request.scope.get("scheme", "http"),
        "path": raw_path.decode(),
        "raw_path": raw_path,
        "query_string": request.query.encode(),
        "root_path": "",
        "headers": _write_headers(request, controls, mcp_request),
        "client": (mcp_request.client_address, 0),
        "server": mcp_request.request.scope.get("server"),
        "state": {},
    }
    response = _InternalResponse(mcp_request.disconnected, bytes_max)
    await app(scope, BufferedReceive(request.body, mcp_request.disconnected).receive, response.send)
    return response.collect()


def _write_headers(
    request: ToolRequest, controls: Iterable[tuple[str, str]], mcp_request: McpRequest
) -> RawHeaders:
    outer: Sequence[tuple[bytes, bytes]] = mcp_request.request.scope["headers"]
    given = [
        (name.lower(), value)
        for name, value in request.headers
        if is_forwardable(name) and name.lower() != _FORWARDED_FOR
    ]
    names = {name for name, _ in given}
    headers: RawHeaders = [
        (name.encode(), value.encode("utf-8", "replace")) for name, value in [*given, *controls]
    ]
    headers += [
        (name, value) for name, value in outer if name in _PASSED_HEADERS and name.decode() not in names
    ]
    headers += [(name, value) for name, value in outer if name == b"host"]
    headers.append((b"x-request-id", mcp_request.request_id.encode()))
    if "accept" not in names:
        headers.append((b"accept", b"application/json, */*;q=0.8"))
    if "accept-encoding" not in names:
        headers.append((b"accept-encoding", NO_CODING))
    if request.body:
        headers.append((b"content-length", str(len(request.body)).encode()))
    return headers


class BufferedReceive:
    """An ASGI `receive`: delivers a body that was already read, then the disconnect of the client."""

    def __init__(self, body: bytes, disconnected: asyncio.Event) -> None:
        self._body: bytes | None = body
        self._disconnected = disconnected

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}


class _InternalResponse:
    """Collects the response to the internal call. A response above the limit disconnects the call."""

    def __init__(self, disconnected: asyncio.Event, bytes_max: int) -> None:
        self._disconnected = disconnected
        self._bytes_max = bytes_max
        self._start: Message | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._is_ended = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        chunk: bytes = message.get("body", b"")
        self._size += len(chunk)
        if self._size > self._bytes_max:
            self._chunks.clear()
            self._disconnected.set()  # the rest is discarded, so the gateway closes the upstream response
        else:
            self._chunks.append(chunk)
        self._is_ended = not message.get("more_body", False)

    def collect(self) -> HttpResponse:
        if self._start is None:
            raise Refusal(_NO_RESPONSE)
        headers: dict[str, str] = {}
        for raw_name, raw_value in self._start["headers"]:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        is_too_large = self._size > self._bytes_max
        return HttpResponse(
            status=self._start["status"],
            headers=headers,
            body=b"".join(self._chunks),
            is_whole=self._is_ended and not is_too_large,
            is_too_large=is_too_large,
        )


_NO_RESPONSE = Problem(
    code=Code.INTERNAL_ERROR,
    detail="The gateway failed. If the call had a payment, read its record (/api/v2/payments/{transaction}) before another payment.",
    payment_state="held",
)
