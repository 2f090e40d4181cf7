"""Ordinary callers that pay, and their provider, in a separate process, so that they wait for the gateway only.
Started by `exhaustion_inside.py`: a line on standard input begins a phase, its end stops the process; then it prints
one line of JSON for all phases."""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import uvloop

PORT = 9_000
PACE_S = 0.05
REST_S = 20.0
ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n"
    + b'{"quote": 3021.4400}'
)


@dataclass(slots=True)
class Phase:
    latencies_s: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)

    def tell(self) -> dict[str, Any]:
        """Milliseconds."""
        found = sorted(self.latencies_s)
        if not found:
            return {"calls": 0, "statuses": dict(self.statuses)}
        at = {name: found[int(part * (len(found) - 1))] for name, part in (("p50", 0.5), ("p99", 0.99))}
        told = {name: round(value * 1_000, 2) for name, value in {**at, "max": found[-1]}.items()}
        return {"calls": len(found), "statuses": dict(self.statuses), **told}


class Callers:
    def __init__(self, wish: Mapping[str, Any]) -> None:
        self.wish = wish
        self.phases: dict[str, Phase] = {}
        self.phase = Phase()
        self.is_over = False

    def begin(self, name: str) -> None:
        self.phase = self.phases.setdefault(name, Phase())

    async def call_on(self, caller: Mapping[str, Any]) -> None:
        """One caller with its own address, at a steady rate; a slow response delays the next call only."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in caller["headers"])
        request = f"GET {self.wish['target']} HTTP/1.1\r\nHost: {self.wish['host']}\r\n{lines}\r\n".encode()
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while not self.is_over:
            phase, started = self.phase, time.perf_counter()
            try:
                async with asyncio.timeout(REST_S):
                    streams = streams or await self._dial(caller["source"])
                    status = await self._call(*streams, request)
            except (OSError, EOFError, TimeoutError) as exc:
                status = type(exc).__name__
            if status != "200" and streams is not None:
                streams[1].close()
                streams = None
            took = time.perf_counter() - started
            phase.statuses[status] += 1
            phase.latencies_s.append(took)
            await asyncio.sleep(max(0.0, PACE_S - took))

    async def _dial(self, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.wish["address"], self.wish["port"], local_addr=(source, 0))

    @staticmethod
    async def _call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> str:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        await reader.readexactly(length)
        return head.split(b" ", 2)[1].decode()


async def serve_quotes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ANSWER)
    except (EOFError, OSError):
        writer.close()


async def main() -> None:
    callers = Callers(json.loads(sys.argv[1]))
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(orders), sys.stdin
    )
    await asyncio.start_server(serve_quotes, "0.0.0.0", PORT)  # to the end: the gateway keeps its connections
    async with asyncio.TaskGroup() as group:
        for caller in callers.wish["callers"]:
            group.create_task(callers.call_on(caller))
        while line := await orders.readline():
            callers.begin(line.decode().strip())
        callers.is_over = True
    print(json.dumps({name: phase.tell() for name, phase in callers.phases.items()}))


if __name__ == "__main__":
    uvloop.run(main())
