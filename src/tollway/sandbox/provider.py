"""A sample provider: an HTTP API, its OpenAPI 3.1 document in the style of a hand-written one, and a log of the requests that reached it, which tests count.

It is the server of any provider: it must contain nothing about gateways or payment. It routes on the raw path, so that received and sent requests can be
compared byte for byte.
"""

import asyncio
import hashlib
import json
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web


def document_parameter(name: str, place: str, schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    """A parameter object of OpenAPI."""
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": description,
        "schema": dict(schema),
    }


def _response(
    description: str, schema: Mapping[str, Any], *, media_type: str = "application/json"
) -> dict[str, Any]:
    return {"200": {"description": description, "content": {media_type: {"schema": dict(schema)}}}}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


_QUOTE = _object(
    {
        "symbol": {"type": "string", "examples": ["ETH"]},
        "price": {"type": "string", "description": "A decimal number.", "examples": ["1137.94"]},
        "currency": {"type": "string", "const": "USD"},
        "time": {"type": "string", "format": "date-time"},
    }
)

SAMPLE_DOCUMENT: Mapping[str, Any] = {
    "openapi": "3.1.0",
    "info": {
        "title": "Sample quotes",
        "version": "1.0.0",
        "description": "Quotes that mean nothing, an echo, a stream of events.",
    },
    "paths": {
        "/quote/{symbol}": {
            "get": {
                "operationId": "getQuote",
                "summary": "The price of a symbol now",
                "description": "Every symbol has a price here; it moves by up to a percent from second to second.",
                "parameters": [
                    document_parameter(
                        "symbol",
                        "path",
                        {"type": "string", "pattern": "^[A-Za-z0-9]{1,12}$", "examples": ["ETH"]},
                        "1 to 12 letters and digits",
                    )
                ],
                "responses": _response("The quote", _QUOTE),
            }
        },
        "/echo": {
            "post": {
                "operationId": "echo",
                "summary": "What arrived: method, target, headers, length and digest of the body",
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": {"type": "object", "examples": [{"hello": "world"}]}}
                    },
                },
                "responses": _response(
                    "What arrived",
                    _object(
                        {
                            "method": {"type": "string"},
                            "target": {"type": "string"},
                            "headers": {
                                "type": "array",
                                "items": {"type": "array", "items": {"type": "string"}},
                            },
                            "body": _object({"bytes": {"type": "integer"}, "sha256": {"type": "string"}}),
                        }
                    ),
                ),
            }
        },
        "/stream": {
            "get": {
                "operationId": "streamTicks",
                "summary": "A stream of server-sent events, one every interval",
                "parameters": [
                    document_parameter(
                        "count",
                        "query",
                        {"type": "integer", "minimum": 0, "maximum": 10_000, "default": 5, "examples": [3]},
                        "how many events",
                    ),
                    document_parameter(
                        "interval",
                        "query",
                        {"type": "number", "minimum": 0, "maximum": 300, "default": 1, "examples": [0.1]},
                        "seconds between two events",
                    ),
                ],
                "responses": _response("The events", {"type": "string"}, media_type="text/event-stream"),
            }
        },
    },
}


_CHUNK = bytes(range(256)) * 256
"""64 KiB of a pattern in which a shift or a gap is visible."""

_BYTES_MAX = 4 * 1024**3
_EVENTS_MAX = 10_000
_WAIT_MAX_S = 300.0
_LOG_MAX = 10_000
_LOG_LISTED = 100
_STOP_DEADLINE_S = 0.25

_SYMBOL = re.compile(r"[A-Za-z0-9]{1,12}")
_STATUS = re.compile(r"[2-5][0-9]{2}")
_INTEGER = re.compile(r"0|[1-9][0-9]{0,9}")
_SECONDS = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?")
_BODILESS = (HTTPStatus.NO_CONTENT, HTTPStatus.RESET_CONTENT, HTTPStatus.NOT_MODIFIED)
_INDEX = (
    "/openapi.json",
    "/quote/{symbol}",
    "/echo",
    "/stream",
    "/status/{code}",
    "/slow",
    "/bytes/{n}",
    "/log",
)

_Clock = Callable[[], float]
Product = Callable[[Mapping[str, str]], web.Response]
Service = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """The head of a received request. `target` is the raw path and query."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class BadInput(Exception):
    """A request that the provider cannot serve; it answers with this status and detail."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        self.status = status
        self.detail = detail


class SampleProvider:
    """A running sample provider. `seen_total` counts the requests whose head arrived, except `/log`; `seen` has the last 10,000 of them. `document`: its OpenAPI document.
    `products`: further paths, with the response to a query of each; it raises BadInput for another query. `services`: further paths that take a POST."""

    def __init__(
        self,
        *,
        clock: _Clock = time.time,
        document: Mapping[str, Any] = SAMPLE_DOCUMENT,
        products: Mapping[str, Product] = MappingProxyType({}),
        services: Mapping[str, Service] = MappingProxyType({}),
    ) -> None:
        self.base_url = ""
        self.seen: deque[ReceivedRequest] = deque(maxlen=_LOG_MAX)
        self.seen_total = 0
        self._clock = clock
        self._document = document
        self._products = products
        self._services = services
        self._files: dict[str, str] = {}

    def put_file(self, path: str, text: str) -> None:
        """Serves the text at exactly this raw path, as a web server serves a file."""
        self._files[path] = text

    def count(self, path: str, *, method: str | None = None) -> int:
        """Counts the requests in `seen` with exactly this raw path."""
        return sum(1 for seen in self.seen if seen.path == path and method in (None, seen.method))

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        target = request.raw_path
        path, _, query = target.partition("?")
        if path != "/log":
            headers = tuple((k.decode("latin-1"), v.decode("latin-1")) for k, v in request.raw_headers)
            self.seen.append(ReceivedRequest(method=request.method, target=target, headers=headers))
            self.seen_total += 1
        try:
            return await self._route(request, path, dict(parse_qsl(query, keep_blank_values=True)))
        except BadInput as bad:
            return _answer_problem(bad)

    async def _route(self, request: web.BaseRequest, path: str, query: dict[str, str]) -> web.StreamResponse:
        _, first, *rest = path.split("/") if path.startswith("/") else ("", "")
        if first == "echo":  # with any path below it, so that tests can send unusual paths
            return await _answer_echo(request)
        if request.method == "POST" and path in self._services:
            return await self._services[path](request)
        if request.method not in ("GET", "HEAD") and first != "status":
            raise BadInput(HTTPStatus.METHOD_NOT_ALLOWED, f"{request.method} is for /echo and /status only")
        if path in self._files:
            return web.Response(text=self._files[path])
        if path in self._products:
            return self._products[path](query)
        match [first, *rest]:
            case [""]:
                return web.json_response({"endpoints": _INDEX})
            case ["openapi.json"]:
                return web.json_response(self._document)
            case ["quote", symbol]:
                return self._answer_quote(symbol)
            case ["stream"]:
                return await self._answer_stream(request, query)
            case ["status", code]:
                return _answer_status(code)
            case ["slow"]:
                return await _answer_slowly(query)
            case ["bytes", amount]:
                return await _answer_bytes(request, amount)
            case ["log"]:
                return self._answer_log()
        raise BadInput(HTTPStatus.NOT_FOUND, "no such endpoint here")

    def _answer_quote(self, symbol: str) -> web.Response:
        if not _SYMBOL.fullmatch(symbol):
            raise BadInput(HTTPStatus.BAD_REQUEST, "a symbol is 1 to 12 letters and digits")
        symbol, now = symbol.upper(), int(self._clock())
        return web.json_response(
            {
                "symbol": symbol,
                "price": _make_price(symbol, now),
                "currency": "USD",
                "time": _format_time(now),
            }
        )

    async def _answer_stream(self, request: web.BaseRequest, query: dict[str, str]) -> web.StreamResponse:
        count = _parse_integer(query.get("count", "5"), maximum=_EVENTS_MAX, name="count")
        interval_s = _parse_seconds(query.get("interval", "1"), name="interval")
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        await response.prepare(request)
        for number in range(1, count + 1):
            if number > 1:
                await asyncio.sleep(interval_s)
            event = json.dumps({"number": number, "of": count, "time": _format_time(self._clock())})
            await response.write(f"id: {number}\nevent: tick\ndata: {event}\n\n".encode())
        await response.write_eof()
        return response

    def _answer_log(self) -> web.Response:
        counts = Counter(f"{seen.method} {seen.path}" for seen in self.seen)
        latest = [{"method": seen.method, "target": seen.target} for seen in list(self.seen)[-_LOG_LISTED:]]
        return web.json_response({"total": self.seen_total, "counts": counts, "latest": latest})


@asynccontextmanager
async def run_provider(*, port: int = 0, **given: Any) -> AsyncIterator[SampleProvider]:
    """Serves a sample provider on loopback; `port` 0 takes any free one. `given`: to `SampleProvider`. Its `base_url` has no final slash.

    At the end, running responses get a quarter of a second. Raises OSError when the port is in use.
    """
    provider = SampleProvider(**given)
    # A client that disconnects ends its response at once, also during a wait.
    server = web.Server(provider.handle, access_log=None, handler_cancellation=True)
    runner = web.ServerRunner(server, shutdown_timeout=_STOP_DEADLINE_S, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        provider.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield provider
    finally:
        await runner.cleanup()


async def _answer_echo(request: web.BaseRequest) -> web.Response:
    digest, length = hashlib.sha256(), 0
    async for chunk in request.content.iter_any():
        digest.update(chunk)
        length += len(chunk)
    headers = [[k.decode("latin-1"), v.decode("latin-1")] for k, v in request.raw_headers]
    body = {"bytes": length, "sha256": digest.hexdigest()}
    return web.json_response(
        {"method": request.method, "target": request.raw_path, "headers": headers, "body": body}
    )


def _answer_status(text: str) -> web.Response:
    if not _STATUS.fullmatch(text):
        raise BadInput(HTTPStatus.BAD_REQUEST, "a status is 200 to 599")
    status = int(text)
    if status in _BODILESS:
        return web.Response(status=status)
    location = {"Location": "/quote/ETH"} if status in (301, 302, 303, 307, 308) else None
    return web.json_response({"status": status}, status=status, headers=location)


async def _answer_slowly(query: dict[str, str]) -> web.Response:
    seconds = _parse_seconds(query.get("seconds", "1"), name="seconds")
    await asyncio.sleep(seconds)
    return web.json_response({"seconds": seconds})


async def _answer_bytes(request: web.BaseRequest, text: str) -> web.StreamResponse:
    """Streams the requested number of bytes in chunks; `write` waits for a slow reader."""
    left = _parse_integer(text, maximum=_BYTES_MAX, name="n")
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    response.content_length = left
    await response.prepare(request)
    while left > 0 and request.method != "HEAD":
        chunk = _CHUNK[:left]
        await response.write(chunk)
        left -= len(chunk)
    await response.write_eof()
    return response


def _answer_problem(bad: BadInput) -> web.Response:
    problem = {
        "type": "about:blank",
        "title": bad.status.phrase,
        "status": int(bad.status),
        "detail": bad.detail,
    }
    return web.json_response(problem, status=bad.status, content_type="application/problem+json")


def _make_price(symbol: str, now: int) -> str:
    """A price from 1.00 to 9,999.99 that depends on the symbol and the second alone, and moves by up to a percent from second to second."""
    base = int.from_bytes(hashlib.sha256(symbol.encode()).digest()[:4], "big") % 980_000 + 1_000
    step = int.from_bytes(hashlib.sha256(f"{symbol} {now}".encode()).digest()[:4], "big") % (base // 50 + 1)
    cents = base - base // 100 + step
    return f"{cents // 100}.{cents % 100:02}"


def _format_time(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _parse_integer(text: str, *, maximum: int, name: str) -> int:
    if not _INTEGER.fullmatch(text) or int(text) > maximum:
        raise BadInput(HTTPStatus.BAD_REQUEST, f"{name} is a whole number up to {maximum}")
    return int(text)


def _parse_seconds(text: str, *, name: str) -> float:
    if not _SECONDS.fullmatch(text) or float(text) > _WAIT_MAX_S:
        raise BadInput(HTTPStatus.BAD_REQUEST, f"{name} is a number of seconds up to {_WAIT_MAX_S:.0f}")
    return float(text)
