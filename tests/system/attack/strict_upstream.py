"""An upstream that records every byte and reads it by the letter of RFC 9112: what a gateway sends here must leave no reader
in doubt where a request ends. Each breach of that is kept.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

from tests.kit.upstream import RawServer

# Bytes beyond ASCII are passed on as they came: they stand in a path and end nothing.
_LINE = re.compile(rb"([A-Z!#$%&'*+.^_`|~0-9a-z-]+) (/[\x21-\x7e\x80-\xff]*) HTTP/1\.1")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\x80-\xff\t]*?)[ \t]*")
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,17}")
_CHUNK = re.compile(rb"(0|[1-9A-Fa-f][0-9A-Fa-f]{0,15})")
HEAD_BYTES_MAX = 256 * 1024


class Breach(Exception):
    """Bytes that are no request in the strictest sense."""


class StrictUpstream(RawServer):
    """`targets`: of every request, in the order in which they came, and `heads`: their bytes; `breaches`: what was wrong with
    the bytes. `extra`: header lines that every answer carries."""

    def __init__(self) -> None:
        super().__init__()
        self.extra = b""
        self.targets: list[str] = []
        self.heads: list[bytes] = []
        self.breaches: list[str] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve_one(reader, writer):
                pass
        except Breach as breach:
            self.breaches.append(str(breach))

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as exc:
            if exc.partial:
                raise Breach(f"the connection ended within a head: {exc.partial[:200]!r}") from exc
            return False
        except asyncio.LimitOverrunError as exc:
            raise Breach("a head without end") from exc
        if len(head) > HEAD_BYTES_MAX:
            raise Breach("a long head")
        method, target, fields = read_head(head)
        self.targets.append(target)
        self.heads.append(head)
        await read_body(reader, fields)
        body = target.encode("latin-1")
        told = b"HTTP/1.1 200 OK\r\nX-Served: %s\r\nContent-Length: %d\r\n%s\r\n" % (
            body,
            len(body),
            self.extra,
        )
        writer.write(told + (b"" if method == "HEAD" else body))
        await writer.drain()
        return True


@contextlib.asynccontextmanager
async def run_upstream() -> AsyncIterator[StrictUpstream]:
    upstream = StrictUpstream()
    async with upstream.listen():
        yield upstream


def read_head(head: bytes) -> tuple[str, str, dict[bytes, list[bytes]]]:
    """Method, target and fields by lower-case name. Raises Breach."""
    line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    start = _LINE.fullmatch(line)
    if start is None:
        raise Breach(f"no request line: {line[:200]!r}")
    fields: dict[bytes, list[bytes]] = {}
    for one in lines:
        field = _FIELD.fullmatch(one)
        if field is None:
            raise Breach(f"no header: {one[:200]!r}")
        fields.setdefault(field[1].lower(), []).append(field[2])
    if len(fields.get(b"host", ())) != 1:
        raise Breach("not exactly one Host")
    return start[1].decode(), start[2].decode("latin-1"), fields


async def read_body(reader: asyncio.StreamReader, fields: dict[bytes, list[bytes]]) -> None:
    """Exactly one way to say where the body ends, and a body that keeps to it. Raises Breach."""
    lengths, encodings = fields.get(b"content-length", []), fields.get(b"transfer-encoding", [])
    if lengths and encodings:
        raise Breach("both a length and an encoding")
    if len(lengths) > 1 or len(encodings) > 1:
        raise Breach("two lengths or two encodings")
    if lengths:
        if not _LENGTH.fullmatch(lengths[0]):
            raise Breach(f"a length of {lengths[0]!r}")
        await reader.readexactly(int(lengths[0]))
    elif encodings:
        if encodings[0].lower() != b"chunked":
            raise Breach(f"an encoding of {encodings[0]!r}")
        await _read_chunks(reader)


async def _read_chunks(reader: asyncio.StreamReader) -> None:
    while True:
        line = (await reader.readuntil(b"\r\n")).removesuffix(b"\r\n")
        size = _CHUNK.fullmatch(line)
        if size is None:
            raise Breach(f"a chunk of {line[:60]!r}")
        if int(size[1], 16) == 0:
            break
        await reader.readexactly(int(size[1], 16))
        if await reader.readexactly(2) != b"\r\n":
            raise Breach("a chunk that goes on behind its end")
    if await reader.readexactly(2) != b"\r\n":
        raise Breach("a trailer")
