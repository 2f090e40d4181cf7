"""An upstream that tries to exhaust a gateway: the path selects its behaviour. Responses and heads without end, many
interim heads, wrong lengths, and bodies that grow a thousandfold when they are decompressed."""

import asyncio
import contextlib
import gzip
import hashlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable

HEAD_BYTES_MAX = 256 * 1024
SEND_BUFFER_BYTES = 64 * 1024
"""What the kernel holds of an answer is nobody's memory that is looked at here; it is kept small all the same."""
PIECE = bytes(64 * 1024)
LARGE_BYTES = 100 * 1024 * 1024
PATIENCE_S = 120.0

BOMB = gzip.compress(bytes(1024 * 1024), 9, mtime=0) * 2_048
"""2 MiB that are 2 GiB once unpacked: members one after another are one gzip file (RFC 1952 §2.2)."""
BOMB_DIGEST = hashlib.sha256(BOMB).hexdigest()

_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKED = _OK + b"Transfer-Encoding: chunked\r\n\r\n"
Pieces = AsyncIterator[bytes]


async def _forever(first: bytes, piece: bytes) -> Pieces:
    yield first
    while True:
        yield piece


async def _once(*pieces: bytes) -> Pieces:
    for piece in pieces:
        yield piece


def _sized(size: int) -> bytes:
    return _OK + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % size


async def _large() -> Pieces:
    yield _sized(LARGE_BYTES)
    for _ in range(LARGE_BYTES // len(PIECE)):
        yield PIECE


def _packed(coding: bytes) -> Pieces:
    head = _OK + b"Connection: close\r\nContent-Type: application/json\r\nContent-Encoding: %s\r\n"
    return _once(head % coding + b"Content-Length: %d\r\n\r\n" % len(BOMB), BOMB)


ANSWERS: dict[str, Callable[[], Pieces]] = {
    # Heads that do not end: the gateway has to give up by itself.
    "early-hints": lambda: _forever(
        b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n" * 200
    ),
    "continues": lambda: _forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 400),
    "processing": lambda: _forever(b"", b"HTTP/1.1 102 Processing\r\nX-Fill: " + b"a" * 9_000 + b"\r\n\r\n"),
    "headers": lambda: _forever(_OK, b"X-Fill: " + b"a" * 1_000 + b"\r\n"),
    "small-headers": lambda: _forever(_OK, b"A:\r\n" * 4_000),
    "header-line": lambda: _forever(_OK + b"X-Fill: ", b"a" * 16_384),
    "status-line": lambda: _forever(b"HTTP/1.1 200 ", b"O" * 16_384),
    "garbage": lambda: _forever(b"", b"\x00\xff" * 8_192),
    # Bodies that lie: they break off, visibly, or the caller leaves.
    "short": lambda: _once(_sized(100_000) + b"ten bytes."),
    "chunk-size": lambda: _forever(_CHUNKED, b"0" * 16_384),
    "chunk-extension": lambda: _forever(_CHUNKED + b"5;a=", b"b" * 16_384),
    "huge-chunk": lambda: _forever(_CHUNKED + b"f" * 16 + b"\r\n", PIECE),
    "trailers": lambda: _forever(_CHUNKED + b"5\r\nhello\r\n0\r\n", b"X-Fill: " + b"a" * 1_000 + b"\r\n"),
    "trailer-line": lambda: _forever(_CHUNKED + b"5\r\nhello\r\n0\r\nX-Fill: ", b"a" * 16_384),
    "long": lambda: _forever(_sized(5), PIECE),
    # Bodies without an end, each piece of them sound.
    "endless": lambda: _forever(_OK + b"Connection: close\r\n\r\n", PIECE),
    "tiny-chunks": lambda: _forever(_CHUNKED, b"1\r\na\r\n" * 2_000),
    "large": _large,
    "gzip": lambda: _packed(b"gzip"),
    "deflate": lambda: _packed(b"deflate"),
    "br": lambda: _packed(b"br"),
    "twice": lambda: _packed(b"gzip, gzip"),
}
ENDLESS_HEADS = (
    *("early-hints", "continues", "processing", "headers", "small-headers", "header-line", "status-line"),
    "garbage",
)
LYING_BODIES = ("short", "chunk-size", "chunk-extension", "huge-chunk", "trailers", "trailer-line", "long")
ENDLESS_BODIES = ("endless", "tiny-chunks")
PACKED = ("gzip", "deflate", "br", "twice")


class HostileUpstream:
    """`seen`: requests by the last part of their path; `bodies`: digests of the bodies that came whole."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.bodies: Counter[str] = Counter()
        self.sent_bytes = 0

    async def run(self, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "0.0.0.0", port, limit=HEAD_BYTES_MAX, backlog=4_096)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line: socket.socket = writer.get_extra_info("socket")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        writer.transport.set_write_buffer_limits(0)
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._serve_one(reader, writer)
        writer.transport.abort()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        what = head.split(b" ", 2)[1].rpartition(b"/")[2].decode()
        self.seen[what] += 1
        if what == "take":
            await self._take(reader, head)
            writer.write(_sized(2) + b"ok")
            await self._leave(reader, writer)
            return
        if what not in ANSWERS:
            writer.write(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            await self._leave(reader, writer)
            return
        async for piece in ANSWERS[what]():
            writer.write(piece)
            await writer.drain()
            self.sent_bytes += len(piece)
        if what == "short":
            return
        await self._leave(reader, writer)

    async def _take(self, reader: asyncio.StreamReader, head: bytes) -> None:
        """A body of any length, piece by piece."""
        digest, left = hashlib.sha256(), _find_length(head)
        while left is None or left:
            piece = await reader.read(min(65_536, left or 65_536))
            if not piece:
                raise EOFError
            digest.update(piece)
            left = None if left is None else left - len(piece)
            if left is None and piece.endswith(b"0\r\n\r\n"):
                break
        self.bodies[digest.hexdigest()] += 1

    async def _leave(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Not before the gateway has read it: to hang up on unread bytes would lose the answer."""
        await writer.drain()
        while await reader.read(65_536):
            pass


def _find_length(head: bytes) -> int | None:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
        if line.startswith(b"transfer-encoding:"):
            return None
    return 0
