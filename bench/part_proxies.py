"""A plain proxy of two parts: one of granian's interfaces and one HTTP client. It checks, counts and writes nothing.

    python bench/part_proxies.py asgi|rsgi aiohttp|pyreqwest|ours PORT UPSTREAM_PORT

Every pair does the same for a call: it forwards the headers without those of the connection, and streams the body, in one message
where the body has its declared length. Other costs of a pair (bytes or text, the kind of header map) are its own.
The other clients run in the bench's virtualenv, `ours` in the gateway's: same versions, see `parts.py`.
"""

import asyncio
import gc
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from importlib import metadata
from typing import Any, Protocol

import aiohttp
import uvloop
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server
from yarl import URL

with suppress(ImportError):  # only in the bench's own virtualenv
    from pyreqwest.client import ClientBuilder
with suppress(ImportError):  # only in the gateway's
    from tollway.limits import DEFAULT_LIMITS
    from tollway.outbound.client import HttpClient, UpstreamRequest
    from tollway.outbound.http1 import format_fields
    from tollway.outbound.policy import Endpoint, parse_endpoint

PACKAGES = ("granian", "aiohttp", "uvloop", "httptools", "pyreqwest")
DEADLINE_S = 30.0
OF_CONNECTION = frozenset(
    {"host", "connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "te"}
)
OF_CONNECTION_BYTES = frozenset(name.encode() for name in OF_CONNECTION)
Headers = list[tuple[str, str]]
BytesHeaders = list[tuple[bytes, bytes]]


class Answer(Protocol):
    """A response after its head. `read` returns b"" at the end."""

    status: int
    length: int | None

    def list_bytes(self) -> BytesHeaders: ...

    def list_text(self) -> Headers: ...

    async def read(self) -> bytes: ...

    async def close(self) -> None: ...


Ask = Callable[[str, str, Headers], Awaitable[Answer]]


class BytesAnswer:
    """A response with headers in bytes, as of aiohttp and of Tollway's client."""

    def __init__(
        self,
        status: int,
        headers: Sequence[tuple[bytes, bytes]],
        read: Callable[[], Awaitable[bytes]],
        close: Callable[[], None],
    ) -> None:
        self.status = status
        self.read = read
        self.length: int | None = None
        self._close = close
        self._headers: BytesHeaders = []
        for name, value in headers:
            lowered = name.lower()
            if lowered == b"content-length":
                self.length = int(value)
            elif lowered not in OF_CONNECTION_BYTES:
                self._headers.append((lowered, value))

    def list_bytes(self) -> BytesHeaders:
        return self._headers

    def list_text(self) -> Headers:
        return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self._headers]

    async def close(self) -> None:
        self._close()


class TextAnswer:
    """A response with headers in text, as of pyreqwest."""

    def __init__(self, request: Any, response: Any) -> None:
        self.status = response.status
        self.length: int | None = None
        self._request = request
        self._body = response.body_reader
        self._headers: Headers = []
        for name, value in response.headers.items():
            if name == "content-length":
                self.length = int(value)
            elif name not in OF_CONNECTION:
                self._headers.append((name, value))

    def list_bytes(self) -> BytesHeaders:
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._headers]

    def list_text(self) -> Headers:
        return self._headers

    async def read(self) -> bytes:
        chunk = await self._body.read_chunk()
        return b"" if chunk is None else bytes(chunk)

    async def close(self) -> None:
        await self._request.__aexit__(None, None, None)


def open_aiohttp(base: str) -> Ask:
    """With the options of a proxy: no added header, no decoding, no redirects, streamed."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        timeout=aiohttp.ClientTimeout(total=None),
    )

    async def ask(method: str, target: str, headers: Headers) -> Answer:
        raw = await session.request(
            method, URL(base + target, encoded=True), headers=headers, allow_redirects=False
        )
        return BytesAnswer(raw.status, raw.raw_headers, raw.content.readany, raw.close)

    return ask


def open_pyreqwest(base: str) -> Ask:
    """The same options, as far as it has them."""
    builder = ClientBuilder().follow_redirects(False).referer(False).no_proxy()
    client = builder.gzip(False).brotli(False).zstd(False).deflate(False).build()

    async def ask(method: str, target: str, headers: Headers) -> Answer:
        request = client.request(method, base + target).headers(headers).build_streamed()
        return TextAnswer(request, await request.__aenter__())

    return ask


def open_ours(base: str) -> Ask:
    """Tollway's outbound client with all its checks; nothing is claimed."""
    http_client = HttpClient(limits=DEFAULT_LIMITS, allow_private=True)
    endpoint = parse_endpoint(base, allow_private=True)
    if not isinstance(endpoint, Endpoint):
        raise TypeError(endpoint)

    async def ask(method: str, target: str, headers: Headers) -> Answer:
        request = UpstreamRequest(
            method=method, endpoint=endpoint, target=target, fields=format_fields(headers)
        )
        async with http_client.connect(request) as raw:
            await raw.send(head_deadline_s=DEADLINE_S)
        return BytesAnswer(raw.status, raw.headers, raw.read_chunk, raw.close)

    return ask


def make_asgi(ask: Ask) -> Any:
    async def serve(scope: Any, receive: Any, send: Any) -> None:
        headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in scope["headers"]
            if name not in OF_CONNECTION_BYTES
        ]
        target, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
        answer = await ask(scope["method"], f"{target}?{query}" if query else target, headers)
        try:
            start = {"type": "http.response.start", "status": answer.status, "headers": answer.list_bytes()}
            chunk = await answer.read()
            await send(start)
            if len(chunk) == answer.length:
                await send({"type": "http.response.body", "body": chunk, "more_body": False})
                return
            while chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await answer.read()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await answer.close()

    return serve


def make_rsgi(ask: Ask) -> Any:
    async def serve(scope: Any, protocol: Any) -> None:
        headers = [(name, value) for name, value in scope.headers.items() if name not in OF_CONNECTION]
        query = scope.query_string
        # Decoded: RSGI has no other. Nothing is escaped in what the bench asks for.
        answer = await ask(scope.method, f"{scope.path}?{query}" if query else scope.path, headers)
        try:
            chunk = await answer.read()
            if len(chunk) == answer.length:
                protocol.response_bytes(answer.status, answer.list_text(), chunk)
                return
            line = protocol.response_stream(answer.status, answer.list_text())
            while chunk:
                await line.send_bytes(chunk)
                chunk = await answer.read()
        finally:
            await answer.close()

    return serve


CLIENTS = {"aiohttp": open_aiohttp, "pyreqwest": open_pyreqwest, "ours": open_ours}
SERVERS = {"asgi": (Interfaces.ASGINL, make_asgi), "rsgi": (Interfaces.RSGI, make_rsgi)}


async def serve(interface: str, client: str, port: int, upstream_port: int) -> None:
    kind, make = SERVERS[interface]
    server = Server(
        make(CLIENTS[client](f"http://127.0.0.1:{upstream_port}")),
        address="127.0.0.1",
        port=port,
        interface=kind,
        http=HTTPModes.http1,
        websockets=False,
        backlog=1024,
        backpressure=10_000,
        log_enabled=False,
        http1_settings=HTTP1Settings(max_buffer_size=64 * 1024),
    )
    gc.collect()
    gc.freeze()
    await server.serve()


def tell_versions() -> dict[str, str]:
    versions = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


if __name__ == "__main__":
    if sys.argv[1:] == ["versions"]:
        print(json.dumps(tell_versions()))
    else:
        with suppress(asyncio.CancelledError, KeyboardInterrupt):
            uvloop.run(serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
