"""Callers that write HTTP/1.1 requests byte by byte: one that sends as much of a request as a test wants and leaves when it
wants, and many that send in the same moment.
"""

import asyncio
import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import psutil

ANSWER_DEADLINE_S = 120.0
TURNS_MAX = 5

_HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawResponse:
    """What a caller got. `status` None: nothing at all. `head` is in lower case."""

    status: int | None
    is_whole: bool = True
    head: bytes = b""
    body: bytes = b""

    @property
    def problem(self) -> Any:
        return json.loads(self.body)


class RawCaller:
    """One connection and one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._heard = b""
        self._port: int = writer.get_extra_info("sockname")[1]

    @classmethod
    async def send(
        cls,
        port: int,
        target: str,
        headers: list[tuple[str, str]],
        *,
        method: str,
        body: bytes,
        bytes_max: int | None = None,
    ) -> "RawCaller":
        """`bytes_max`: so much of the body and no more."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        request = write_request(port, target, headers, method=method, body=body)
        writer.write(request if bytes_max is None else request[: len(request) - len(body) + bytes_max])
        await writer.drain()
        return cls(reader, writer)

    def leave(self) -> None:
        self._writer.transport.abort()

    def is_known_to(self, pid: int) -> bool:
        """Whether that process still has its end of the connection. A server that has seen the caller leave has not."""
        ends = psutil.Process(pid).net_connections(kind="tcp")
        return any(end.raddr and end.raddr.port == self._port for end in ends)

    async def hear(self, mark: bytes, *, deadline_s: float = 30.0) -> None:
        """Until this much of the answer has come."""
        async with asyncio.timeout(deadline_s):
            while mark not in self._heard:
                piece = await self._reader.read(65_536)
                assert piece, f"it ended before {mark!r}: {self._heard!r}"
                self._heard += piece

    async def listen(self, *, deadline_s: float = 60.0) -> RawResponse:
        """Until the answer ends, whole or not."""
        try:
            async with asyncio.timeout(deadline_s):
                while not _is_whole(self._heard) and (piece := await self._reader.read(65_536)):
                    self._heard += piece
        except ConnectionError:
            pass
        finally:
            self._writer.close()
        head, _, body = self._heard.partition(b"\r\n\r\n")
        if not head:
            return RawResponse(status=None, is_whole=False)
        is_whole = _is_whole(self._heard)
        return RawResponse(status=int(head[9:12]), is_whole=is_whole, head=head.lower(), body=body)


def _is_whole(heard: bytes) -> bool:
    head, parted, body = heard.partition(b"\r\n\r\n")
    if not parted:
        return False
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.partition(b":")[2])
    return body.endswith(b"0\r\n\r\n")


# ---- Many at once.


class _Connection(asyncio.Protocol):
    """One kept connection: a request is one write, so that a thousand of them leave in the same moment."""

    def __init__(self) -> None:
        self._heard = bytearray()
        self._transport: Any = None
        self._waiting: asyncio.Future[RawResponse] | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes) -> "asyncio.Future[RawResponse]":
        self._waiting = asyncio.get_running_loop().create_future()
        self._heard.clear()
        self._transport.write(request)
        return self._waiting

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard += data
        end = self._heard.find(_HEAD_END)
        if end < 0 or self._waiting is None:
            return
        head = bytes(self._heard[:end]).lower()
        length = _read_length(head)
        body = self._heard[end + len(_HEAD_END) :]
        if len(body) < length:
            return
        heard = RawResponse(status=int(head[9:12]), head=head, body=bytes(body))
        waiting, self._waiting = self._waiting, None
        waiting.set_result(heard)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionResetError("closed before the answer"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class ParallelCallers:
    """Callers with a connection each, spread over gateways, that all send in the same moment, again and again."""

    def __init__(self, ports: list[int], size: int) -> None:
        self._ports = [ports[number % len(ports)] for number in range(size)]
        self._connections: list[_Connection] = []

    async def ask(self, requests: list[bytes]) -> list[RawResponse]:
        """Each caller sends one of these and gets one answer; a 503 is followed by the same request."""
        await asyncio.gather(*(self._connect(number) for number in range(len(requests))))
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            return await asyncio.gather(*(self._send(*one) for one in enumerate(requests)))

    async def _send(self, number: int, request: bytes) -> RawResponse:
        for _ in range(TURNS_MAX):
            connection = await self._connect(number)
            try:
                heard = await connection.send(request)
            except ConnectionError:
                continue  # a gateway closes connections that idle away
            if heard.status != HTTPStatus.SERVICE_UNAVAILABLE:
                return heard
        raise AssertionError(f"{self._ports[number]} never had an answer: {heard}")

    async def _connect(self, number: int) -> _Connection:
        if len(self._connections) <= number:
            self._connections.extend(_Connection() for _ in range(len(self._ports) - len(self._connections)))
        if not self._connections[number].is_open:
            loop, port = asyncio.get_running_loop(), self._ports[number]
            _, self._connections[number] = await loop.create_connection(_Connection, "127.0.0.1", port)
        return self._connections[number]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


def write_request(
    port: int, target: str, headers: list[tuple[str, str]], *, method: str = "GET", body: bytes = b""
) -> bytes:
    """One HTTP/1.1 request, as bytes."""
    fields = [("Host", f"127.0.0.1:{port}"), *headers]
    if body or method not in ("GET", "HEAD"):
        fields.append(("Content-Length", str(len(body))))
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode() + body


def _read_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return int(value)
    raise ValueError(f"an answer without a length: {head!r}")
