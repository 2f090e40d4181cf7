"""An upstream that does to each path what the path says, byte by byte, and counts what reached it. For tests with real
gateways; `tests/kit/upstream.py` answers every path in the same way.
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from urllib.parse import parse_qsl

from tests.kit.upstream import RawServer, reset_connection

ANSWER_BYTES = 4_096
ANSWERED = "echo"
REST = "+"
PIECES = 4
PAUSE_S = 0.05
ALWAYS = 10**9
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})


class ScriptedUpstream(RawServer):
    """`/ACT/...`: the first `turns` requests of a path are answered as the act says (`turns_default`, unless the test says
    otherwise for a path), all later ones at once with 200. `heads`, `wholes`: requests whose head, whose body has come, by
    method and path; `left`: paths whose gateway has closed the connection before the answer ended.

    A kept connection that `reset` or `close` ends ends as an idle one does, before the request is read: a gateway sends an idempotent request
    again on a new connection, and only that one counts.

    `echo` at once; `fail` is a 500; `silent` says nothing; `late` says 200 and half the body once the test lets it,
    the rest once it lets `path + REST`; `reset`, `close`: the
    connection, and no answer; `half` a head, then it closes; `stall` half a head, then silence; `hold` half the
    body, the rest once the test lets it; `cut` half the body, then a reset once the test lets it, which would overtake
    what was sent; `deaf` does not read the request's body. `slow` after the seconds of the query's `s`; `long` sends its
    body in pieces with pauses of that length; `broken` does so, and closes after two of four.
    """

    def __init__(self, *, turns_default: int = 1) -> None:
        super().__init__()
        self.heads: Counter[tuple[str, str]] = Counter()
        self.wholes: Counter[tuple[str, str]] = Counter()
        self.turns: dict[str, int] = {}
        self.turns_default = turns_default
        self.left: set[str] = set()
        self._gates: dict[str, asyncio.Event] = {}

    def count(self, path: str, method: str) -> int:
        """How many requests have come whole."""
        return self.wholes[method, path]

    def let(self, path: str) -> None:
        self._gate(path).set()

    def _gate(self, path: str) -> asyncio.Event:
        return self._gates.setdefault(path, asyncio.Event())

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_kept = False
        while await self._answer(reader, writer, is_kept=is_kept):
            is_kept = True

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_kept: bool
    ) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, target, _ = head.split(" ", 2)
        path, _, query = target.partition("?")
        is_played = self.heads[method, path] < self.turns.get(path, self.turns_default)
        act = path.split("/")[1] if is_played else ANSWERED
        if is_kept and method in IDEMPOTENT and act in ("reset", "close"):
            reset_connection(writer.transport)
            return False
        self.heads[method, path] += 1
        try:
            if act == "deaf":
                await self._gate(path).wait()
                return False
            await _read_body(reader, head)
            self.wholes[method, path] += 1
            pause_s = float(dict(parse_qsl(query)).get("s", PAUSE_S))
            return await self._play(act, path, reader, writer, pause_s=pause_s)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.add(path)
            raise

    async def _play(
        self,
        act: str,
        path: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        pause_s: float,
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
            case "slow":
                await asyncio.sleep(pause_s)
            case "long" | "broken":
                writer.write(head)
                size = ANSWER_BYTES // PIECES
                for piece in range(PIECES if act == "long" else PIECES // 2):
                    writer.write(body[piece * size : (piece + 1) * size])
                    await writer.drain()
                    await asyncio.sleep(pause_s)
                return act == "long"
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
async def run_scripted_upstream(*, turns_default: int = 1) -> AsyncIterator[ScriptedUpstream]:
    upstream = ScriptedUpstream(turns_default=turns_default)
    async with upstream.listen():
        yield upstream
