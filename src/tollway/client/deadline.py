"""A deadline for a whole exchange, beside the timeouts of its steps, so that an exchange ends however slowly the other side sends.

A read timeout of httpx restarts with each byte, so a response of one byte at a time never meets it.
`within(seconds)` sets the deadline of its block; the network streams of `open_transport` and `interrupted` keep
it. Blocks nest, and the earliest deadline counts.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any

import httpcore
import httpx

from tollway.client.issuers import open_tls

_WRITE_BYTES = 64 * 1024
_KEEPALIVE_S = 5.0
_CONNECTIONS_MAX = 100
_ends_at: ContextVar[float | None] = ContextVar("ends_at", default=None)
"""On the monotonic clock. None: no deadline."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Sets a deadline for its block: `seconds` from now, or an earlier deadline that is in force."""
    outer, ends_at = _ends_at.get(), time.monotonic() + seconds
    token = _ends_at.set(ends_at if outer is None else min(outer, ends_at))
    try:
        yield
    finally:
        _ends_at.reset(token)


def remaining_s() -> float | None:
    """Seconds until the deadline, never below 0; None without one."""
    ends_at = _ends_at.get()
    return None if ends_at is None else max(ends_at - time.monotonic(), 0.0)


def check_deadline() -> None:
    """Raises `httpx.ReadTimeout` once the deadline has passed."""
    if remaining_s() == 0.0:
        raise httpx.ReadTimeout("the exchange took too long")


@contextlib.asynccontextmanager
async def interrupted() -> AsyncIterator[None]:
    """Interrupts its block at the deadline. Raises `httpx.ReadTimeout`."""
    try:
        async with asyncio.timeout(remaining_s()):
            yield
    except TimeoutError as exc:
        raise httpx.ReadTimeout("the exchange took too long") from exc


def fetch_bounded(
    method: str, url: str, *, deadline_s: float, bytes_max: int, content: bytes = b""
) -> tuple[int, bytes]:
    """Status and body of one exchange on a connection of its own, requested without a content coding. `content`: a JSON body to send.
    Raises OSError for more than `bytes_max`, `httpx.HTTPError`, `httpx.InvalidURL`."""
    headers = {"Accept-Encoding": "identity"} | ({"Content-Type": "application/json"} if content else {})
    with (
        within(deadline_s),
        httpx.Client(transport=open_transport(), trust_env=False, timeout=deadline_s) as http,
        http.stream(method, url, headers=headers, content=content or None) as response,
    ):
        body = bytearray()
        for chunk in response.iter_raw():
            body += chunk
            if len(body) > bytes_max:
                raise OSError(f"the response is larger than {bytes_max} bytes")
    return response.status_code, bytes(body)


# ---- A transport for the synchronous client, which cannot be interrupted: the deadline shortens each network timeout.


def open_transport() -> httpx.BaseTransport:
    """An HTTP/1.1 transport that keeps the deadline. No proxies, no redirects; of the environment it reads the issuers alone. Raises IssuersUnusable."""
    return _Transport()


class _Transport(httpx.BaseTransport):
    def __init__(self) -> None:
        self._pool = httpcore.ConnectionPool(
            ssl_context=open_tls(),
            max_connections=_CONNECTIONS_MAX,
            keepalive_expiry=_KEEPALIVE_S,
            network_backend=_Backend(httpcore.SyncBackend()),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.SyncByteStream)
        url = request.url
        core_request = httpcore.Request(
            request.method,
            httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _translated():
            response = self._pool.handle_request(core_request)
        assert isinstance(response.stream, Iterable)
        return httpx.Response(
            response.status,
            headers=response.headers,
            stream=_Body(response.stream),
            extensions=response.extensions,
        )

    def close(self) -> None:
        self._pool.close()

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, stream: Iterable[bytes]) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        with _translated():
            yield from self._stream

    def close(self) -> None:
        close = getattr(self._stream, "close", None)
        if close is not None:
            close()


class _Backend(httpcore.NetworkBackend):
    def __init__(self, backend: httpcore.NetworkBackend) -> None:
        self._backend = backend

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        timeout = _shorten(timeout, httpcore.ConnectTimeout)
        return _Stream(self._backend.connect_tcp(host, port, timeout, local_address, socket_options))


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _shorten(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _WRITE_BYTES):
            piece = buffer[start : start + _WRITE_BYTES]
            self._stream.write(piece, _shorten(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        timeout = _shorten(timeout, httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _shorten(timeout: float | None, failure: type[httpcore.TimeoutException]) -> float | None:
    rest = remaining_s()
    if rest == 0.0:
        raise failure("the exchange took too long")
    return timeout if rest is None else rest if timeout is None else min(timeout, rest)


_FAILURES: tuple[tuple[type[Exception], type[httpx.TransportError]], ...] = (
    (httpcore.ConnectTimeout, httpx.ConnectTimeout),
    (httpcore.ReadTimeout, httpx.ReadTimeout),
    (httpcore.WriteTimeout, httpx.WriteTimeout),
    (httpcore.PoolTimeout, httpx.PoolTimeout),
    (httpcore.ConnectError, httpx.ConnectError),
    (httpcore.ReadError, httpx.ReadError),
    (httpcore.WriteError, httpx.WriteError),
    (httpcore.UnsupportedProtocol, httpx.UnsupportedProtocol),
    (httpcore.LocalProtocolError, httpx.LocalProtocolError),
    (httpcore.RemoteProtocolError, httpx.RemoteProtocolError),
    (httpcore.TimeoutException, httpx.ReadTimeout),
    (httpcore.NetworkError, httpx.ReadError),
    (httpcore.ProtocolError, httpx.RemoteProtocolError),
)
"""The exceptions of httpcore and their counterparts in httpx. The most specific ones come first."""


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (
        httpcore.TimeoutException,
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.UnsupportedProtocol,
    ) as exc:
        own = next(own for foreign, own in _FAILURES if isinstance(exc, foreign))
        raise own(str(exc)) from exc
