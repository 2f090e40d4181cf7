"""An upstream of raw bytes on loopback, for tests: it returns the configured bytes, invalid ones included, and its
log counts the served requests. It does not depend on the gateway."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.kit.waits import until


@dataclass(slots=True, kw_only=True)
class Arrived:
    """One request as it came. `body` grows while it arrives; `is_whole` once its true end was seen."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False

    def find(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(key.lower() for key, _ in self.headers)


_NO_LINGER = struct.pack("ii", 1, 0)


def reset_connection(transport: asyncio.WriteTransport) -> None:
    """Ends it with a RST, where `abort` alone sends a FIN once everything is written."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


Answerer = Callable[[Arrived, asyncio.StreamWriter], Awaitable[None]]


def raw(*parts: bytes, close: bool = False) -> Answerer:
    """These bytes, and then the next request, or the end of the connection."""

    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if close:
            raise ConnectionAbortedError

    return answer


def plain(body: bytes = b"ok", *, status: int = 200, headers: tuple[str, ...] = ()) -> Answerer:
    """A well-made answer with a length; no body to HEAD."""

    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} Told", f"Content-Length: {len(body)}", *headers]
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        writer.write(head if arrived.method == "HEAD" else head + body)
        await writer.drain()

    return answer


def held(may_answer: asyncio.Event, *parts: bytes, body: bytes = b"ok") -> Answerer:
    """A well-made answer after the event; or `parts`, the last of them after the event."""

    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        for part in parts[:-1]:
            writer.write(part)
        await writer.drain()
        await may_answer.wait()
        await (raw(parts[-1]) if parts else plain(body))(arrived, writer)

    return answer


async def hang_up(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
    """No answer at all: the connection ends."""
    raise ConnectionAbortedError


async def say_nothing(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
    """No answer at all, and the connection stays."""
    await asyncio.Event().wait()


def stalled(head: bytes) -> Answerer:
    """These bytes, and nothing after them; the connection stays."""

    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        await say_nothing(arrived, writer)

    return answer


async def pour(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
    """A GiB, as fast as it is read."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
    while True:
        writer.write(b"x" * 65_536)
        await writer.drain()


class RawServer:
    """A server of raw bytes on loopback: `handle` reads and writes. `accepted`, `ended`: how many connections have begun, and how many of them are over."""

    def __init__(self) -> None:
        self.accepted = 0
        self.ended = 0
        self.port = 0
        self.writers: list[asyncio.StreamWriter] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.writers.append(writer)
        try:
            await self.handle(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.ended += 1
            writer.transport.abort() if writer.is_closing() else writer.close()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    @asynccontextmanager
    async def listen(
        self, host: str = "127.0.0.1", *, port: int = 0, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[asyncio.Server]:
        """Its end ends every connection."""
        serving: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(self.serve(reader, writer))
            serving.add(task)
            task.add_done_callback(serving.discard)

        server = await asyncio.start_server(accept, host, port, limit=2**20, backlog=4_096, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield server
        finally:
            server.close()
            self.stop()
            for task in serving:
                task.cancel()
            await until(lambda: not serving)


class LoopbackUpstream(RawServer):
    """`arrived`: every request whose head came."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived: list[Arrived] = []
        self.answer: Answerer = plain()
        self.is_body_read_first = True

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            arrived = _parse_head(await reader.readuntil(b"\r\n\r\n"))
            self.arrived.append(arrived)
            await self._converse(arrived, reader, writer)

    async def _converse(
        self, arrived: Arrived, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Responds when the body is complete; or, if configured, at once, while the body arrives. A caller that
        leaves ends it."""
        if self.is_body_read_first:
            await _read_body(arrived, reader)
            reading = asyncio.get_running_loop().create_task(_wait_gone(reader))
        else:
            reading = asyncio.get_running_loop().create_task(_read_body(arrived, reader))
        answering = asyncio.get_running_loop().create_task(_run(self.answer, arrived, writer))
        try:
            done, _ = await asyncio.wait({reading, answering}, return_when=asyncio.FIRST_COMPLETED)
            if answering not in done and reading.exception() is None:
                await answering
            for task in done:
                task.result()
        finally:
            reading.cancel()
            answering.cancel()
            await asyncio.gather(reading, answering, return_exceptions=True)


@asynccontextmanager
async def run_upstream() -> AsyncIterator[LoopbackUpstream]:
    upstream = LoopbackUpstream()
    async with upstream.listen():
        yield upstream


async def _run(answer: Answerer, arrived: Arrived, writer: asyncio.StreamWriter) -> None:
    await answer(arrived, writer)


async def _wait_gone(reader: asyncio.StreamReader) -> None:
    """Ends with ConnectionResetError when the other side closes; what it sends stays unread."""
    while not reader.at_eof() and reader.exception() is None:
        await asyncio.sleep(0.002)
    raise ConnectionResetError


async def _read_body(arrived: Arrived, reader: asyncio.StreamReader) -> None:
    length = arrived.find("content-length")
    if (arrived.find("transfer-encoding") or "").lower() == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            arrived.body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
    elif length is not None:
        while len(arrived.body) < int(length):
            chunk = await reader.read(min(65536, int(length) - len(arrived.body)))
            if not chunk:
                raise ConnectionResetError
            arrived.body += chunk
    arrived.is_whole = True


def _parse_head(head: bytes) -> Arrived:
    line, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, target, _ = line.split(" ", 2)
    headers = tuple((name, value.strip()) for name, _, value in (one.partition(":") for one in lines))
    return Arrived(method=method, target=target, headers=headers)
