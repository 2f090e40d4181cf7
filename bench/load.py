"""The load: keep-alive connections that each send the next request as soon as the last response is complete, from a file of whole
requests.

wrk with a script where there is wrk; else the same in Python (`python bench/load.py`), in a process of its own. No
connection is closed before its last response is complete, because a caller that leaves a paid call would distort the figures.
"""

import argparse
import asyncio
import gc
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import uvloop
from machine import LOAD_CORE, prepare_child

END = b"\0"
SPARE_S = 30
QUIET_S_MAX = 10
LAST_ANSWERS_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one load: `answers` of any status, `refused` of them with status 400 and above, `broken`
    connections.

    `in_time`: responses within `seconds`. Each connection has one open request at any moment, so at most one response
    of each is not in time. `is_exhausted`: the requests that may be sent once were all sent, so the figure does not
    count.
    """

    seconds: float
    answers: int
    in_time: int
    refused: int
    broken: int
    p50_us: float
    p99_us: float
    max_us: float
    is_exhausted: bool

    @classmethod
    def read(cls, told: Mapping[str, Any], *, connections: int) -> Self:
        return cls(
            seconds=told["seconds"],
            answers=told["answers"],
            in_time=max(0, told["answers"] - connections),
            refused=told["refused"],
            broken=told["broken"],
            p50_us=told["p50Us"],
            p99_us=told["p99Us"],
            max_us=told["maxUs"],
            is_exhausted=told["exhausted"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGenerator:
    """`wrk`: its binary; None for the Python one."""

    wrk: Path | None

    @property
    def kind(self) -> str:
        return "python" if self.wrk is None else "wrk"

    def run(self, port: int, requests: Path, *, connections: int, seconds: int, is_once: bool) -> Outcome:
        """Blocks until the load has ended. `is_once`: no request is sent twice."""
        environment = {"REQUESTS": str(requests), "ONCE": "1" if is_once else "0", "SECONDS": str(seconds)}
        if self.wrk is None:
            command = [sys.executable, __file__, str(port), str(connections)]
        else:
            script = str(Path(__file__).with_name("walk.lua"))
            command = [str(self.wrk), "-t1", f"-c{connections}", f"-d{seconds + QUIET_S_MAX}s", "-s", script]
            command += ["--timeout", f"{QUIET_S_MAX}s", f"http://127.0.0.1:{port}"]
        with subprocess.Popen(
            command,
            env={**os.environ, **environment},
            preexec_fn=prepare_child(LOAD_CORE),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                end_when_quiet(process)
                told, _ = process.communicate(timeout=seconds + SPARE_S)
            finally:
                process.kill()
        return Outcome.read(json.loads(told.decode().strip().splitlines()[-1]), connections=connections)


def end_when_quiet(process: subprocess.Popen[bytes]) -> None:
    """Ends a load generator that has written "quiet" and sends nothing more, a moment later (wrk ends on SIGINT with
    its report). One that ends by itself does not write it."""
    assert process.stderr is not None
    if process.stderr.readline().strip() == b"quiet":
        time.sleep(LAST_ANSWERS_S)
        process.send_signal(signal.SIGINT)


def write_requests(path: Path, requests: Iterable[bytes]) -> Path:
    path.write_bytes(b"".join(request + END for request in requests))
    return path


def format_request(port: int, path: str, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


class Asker(asyncio.Protocol):
    """One connection: sends the next request after the last response. Responses have a Content-Length."""

    def __init__(self, requests: Iterator[bytes], latencies: list[float], end: float) -> None:
        self.is_done = asyncio.get_running_loop().create_future()
        self.refused = self.broken = 0
        self._requests = requests
        self._latencies = latencies
        self._end = end
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_done.done():
            self.broken += 1
            self.is_done.set_result(None)

    def data_received(self, received: bytes) -> None:
        self._buffer += received
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
        if len(self._buffer) < end + 4 + int(length):
            return
        self._latencies.append((time.perf_counter() - self._asked) * 1e6)
        if head[9:12] >= b"400":
            self.refused += 1
        self._buffer = b""
        self._ask()

    def _ask(self) -> None:
        self._asked = time.perf_counter()
        request = next(self._requests, None) if self._asked < self._end else None
        if request is None:
            self.is_done.set_result(None)
            self._transport.close()
        else:
            self._transport.write(request)


async def ask(
    port: int, requests: Sequence[bytes], *, connections: int, seconds: float, is_once: bool
) -> Outcome:
    loop = asyncio.get_running_loop()
    walk = iter(requests) if is_once else cycle(requests)
    latencies: list[float] = []
    start = time.perf_counter()
    askers = []
    for _ in range(connections):
        _, asker = await loop.create_connection(
            lambda: Asker(walk, latencies, start + seconds), "127.0.0.1", port
        )
        askers.append(asker)
    await asyncio.gather(*(asker.is_done for asker in askers))
    cuts = statistics.quantiles(latencies, n=100) if len(latencies) > 1 else [math.nan] * 99
    return Outcome(
        seconds=seconds,
        answers=len(latencies),
        in_time=max(0, len(latencies) - connections),
        refused=sum(asker.refused for asker in askers),
        broken=sum(asker.broken for asker in askers),
        p50_us=cuts[49],
        p99_us=cuts[98],
        max_us=max(latencies, default=math.nan),
        is_exhausted=is_once and next(walk, None) is None,
    )


async def measure(url: str, headers: Mapping[str, str], *, connections: int, seconds: float) -> float:
    """Responses per second of one request. Raises RuntimeError when one of them is a refusal."""
    parts = urlsplit(url)
    port = parts.port or 80
    request = format_request(port, parts.path, headers.items())
    outcome = await ask(port, [request], connections=connections, seconds=seconds, is_once=False)
    if outcome.refused or outcome.broken:
        raise RuntimeError(f"{outcome.refused} refused, {outcome.broken} broken")
    return outcome.in_time / outcome.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("connections", type=int)
    options = parser.parse_args()
    gc.disable()  # it would pause what it measures
    requests = Path(os.environ["REQUESTS"]).read_bytes().split(END)[:-1]
    outcome = uvloop.run(
        ask(
            options.port,
            requests,
            connections=options.connections,
            seconds=float(os.environ["SECONDS"]),
            is_once=os.environ.get("ONCE") == "1",
        )
    )
    told = {"p50Us": outcome.p50_us, "p99Us": outcome.p99_us, "maxUs": outcome.max_us}
    told |= {"seconds": outcome.seconds, "answers": outcome.answers, "refused": outcome.refused}
    print(json.dumps({**told, "broken": outcome.broken, "exhausted": outcome.is_exhausted}))


if __name__ == "__main__":
    main()
