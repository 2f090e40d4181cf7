"""An upstream that does to each path what the test says, byte by byte, and counts what reached it; and callers who send as
much of a request as they like and leave when they like. Loaded by `conftest.py`.
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import psutil

from tests.kit.upstream import reset_connection
from tests.live.torture.rig import write_request

ANSWER_BYTES = 4_096
GOES_ON = "echo"
REST = "+"


@dataclass(slots=True, kw_only=True)
class Puppet:
    """`/ACT/...`: the first `turns` requests of a path are played as the act says (one, unless the test says more), all
    later ones are answered at once with 200.

    `echo` at once; `fail` is a 500; `silent` says nothing; `late` says 200 and half the body once the test lets it,
    the rest once it lets `path + REST`; `reset`, `close`: the
    connection, and no answer; `half` a head, then it closes; `stall` half a head, then silence; `hold` half the
    body, the rest once the test lets it; `cut` half the body, then a reset once the test lets it, which would overtake
    what was sent; `deaf` does not read the request's body.
    """

    base_url: str = ""
    heads: Counter[tuple[str, str]] = field(default_factory=Counter)
    wholes: Counter[tuple[str, str]] = field(default_factory=Counter)
    turns: dict[str, int] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    _gates: dict[str, asyncio.Event] = field(default_factory=dict)

    def count(self, path: str, method: str) -> int:
        """How many requests have come whole."""
        return self.wholes[method, path]

    def let(self, path: str) -> None:
        self._gate(path).set()

    def _gate(self, path: str) -> asyncio.Event:
        return self._gates.setdefault(path, asyncio.Event())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, target, _ = head.split(" ", 2)
        path = target.partition("?")[0]
        self.heads[method, path] += 1
        is_played = self.heads[method, path] <= self.turns.get(path, 1)
        act = path.split("/")[1] if is_played else GOES_ON
        try:
            if act == "deaf":
                await self._gate(path).wait()
                return False
            await _read_body(reader, head)
            self.wholes[method, path] += 1
            return await self._play(act, path, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.add(path)
            raise

    async def _play(
        self, act: str, path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        body = json.dumps({"path": path}).encode().ljust(ANSWER_BYTES)
        status = b"500 Oh No" if act == "fail" else b"200 OK"
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
            status,
            len(body),
        )
        match act:
            case "silent" | "stall":
                writer.write(head[:20] if act == "stall" else b"")
                await self._wait_left(path, reader)
            case "late":
                await self._wait(path, reader)
                writer.write(head + body[: ANSWER_BYTES // 2])
                await self._wait(path + REST, reader)
                head, body = b"", body[ANSWER_BYTES // 2 :]
            case "reset" | "cut":
                writer.write(head + body[: ANSWER_BYTES // 2] if act == "cut" else b"")
                if act == "cut":
                    await self._wait(path, reader)
                reset_connection(writer.transport)
                return False
            case "half":
                writer.write(head[:20])
                return False
            case "close":
                return False
            case "hold":
                writer.write(head + body[: ANSWER_BYTES // 2])
                await self._wait(path, reader)
                head, body = b"", body[ANSWER_BYTES // 2 :]
        writer.write(head + body)
        await writer.drain()
        return True

    async def _wait(self, path: str, reader: asyncio.StreamReader) -> None:
        """Until the test lets it go on; raises when its peer has left before."""
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(self._watch(path, reader))
            await self._gate(path).wait()
            watcher.cancel()
        if path in self.left:
            raise ConnectionResetError

    async def _wait_left(self, path: str, reader: asyncio.StreamReader) -> None:
        await self._watch(path, reader)
        raise ConnectionResetError

    async def _watch(self, path: str, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read(1)
        self.left.add(path)
        self.let(path)


async def _read_body(reader: asyncio.StreamReader, head: str) -> None:
    fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    if fields.get("transfer-encoding") == "chunked":
        while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)
    else:
        await reader.readexactly(int(fields.get("content-length", "0")))


@contextlib.asynccontextmanager
async def run_puppet() -> AsyncIterator[Puppet]:
    puppet = Puppet()
    server = await asyncio.start_server(puppet.serve, "127.0.0.1", 0, backlog=1_024)
    try:
        puppet.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield puppet
    finally:
        server.close()


# ---- Callers.


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a caller got. `status` None: nothing at all."""

    status: int | None
    is_whole: bool
    head: str = ""
    body: bytes = b""

    @property
    def problem(self) -> Any:
        return json.loads(self.body)


class Caller:
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
    ) -> "Caller":
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

    async def listen(self, *, deadline_s: float = 60.0) -> Told:
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
            return Told(status=None, is_whole=False)
        is_whole = _is_whole(self._heard)
        return Told(status=int(head[9:12]), is_whole=is_whole, head=head.decode("latin-1"), body=body)


def _is_whole(heard: bytes) -> bool:
    head, parted, body = heard.partition(b"\r\n\r\n")
    if not parted:
        return False
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return len(body) >= int(line.partition(b":")[2])
    return body.endswith(b"0\r\n\r\n")
