"""What the worst days are made of: gateways that start in no time and die at once, callers who all speak in the same
moment, payments in bulk, and an upstream that misbehaves and counts what reached it.

Loaded by `conftest.py`; the fixture `zygote` is the program that forks the gateways.
"""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from tests.kit.ports import find_low_ports
from tests.live.street import PRICE_UNITS, Gateway, poll
from tollway.ids import Address, TxHash

PROGRAM = Path(__file__).parent / "zygote.py"
START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0
ANSWER_DEADLINE_S = 120.0
TURNS_MAX = 5

_HEAD_END = b"\r\n\r\n"
_TRANSFER_GAS = 100_000


# ---- Gateways.


class Zygote:
    """The program that forks gateways. Safe to use from any loop and thread; each command takes milliseconds."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._lock = threading.Lock()
        self._is_ready = False

    def start(self, *, env: dict[str, str], log: Path, folder: Path) -> "Forked":
        wanted = {"env": env, "log": str(log), "folder": str(folder)}
        return Forked(self, self.command({"start": wanted})["pid"])

    def command(self, command: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            if not self._is_ready:
                assert json.loads(self._process.stdout.readline())["ready"]
                self._is_ready = True
            self._process.stdin.write(json.dumps(command) + "\n")
            return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """Ends every gateway that is left."""
        self._process.communicate(timeout=STOP_DEADLINE_S)


class Forked:
    """A gateway's process, as `subprocess.Popen` would show it."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self._zygote = zygote
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._zygote.command({"poll": self.pid})["code"]
        return self.returncode

    def send_signal(self, number: int) -> None:
        """With SIGKILL it is gone when this returns."""
        if self.returncode is None:
            self.returncode = self._zygote.command({"kill": self.pid, "signal": number})["code"]

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (STOP_DEADLINE_S if timeout is None else timeout)
        while (code := self.poll()) is None:
            assert time.monotonic() < deadline, f"{self.pid} goes on"
            time.sleep(0.01)
        return code


class Seat:
    """A place on the street where one gateway process stands after the other, always at the same port."""

    def __init__(self, zygote: Zygote, street: Any, *, env: dict[str, str], port: int, name: str) -> None:
        self._zygote = zygote
        self._street = street
        self._env = env
        self._log = street.folder / f"{name}.log"
        self.port = port
        self.gateway = self._start()

    def _start(self) -> Gateway:
        process = self._zygote.start(env=self._env, log=self._log, folder=self._street.folder)
        return Gateway(
            process,  # type: ignore[arg-type]
            port=self.port,
            public_url=self._env["TOLLWAY_PUBLIC_URL"],
            env=self._env,
            log=self._log,
        )

    def kill_and_restart(self) -> None:
        """SIGKILL, and the next one starts in the same moment. Does not wait for it to be ready."""
        self.gateway.process.kill()
        assert self.gateway.process.returncode == -signal.SIGKILL, "it was gone before it was killed"
        self.gateway = self._start()

    async def wait_ready(self) -> None:
        await self._street.wait_ready(self.gateway)


@contextlib.asynccontextmanager
async def open_seats(
    zygote: Zygote, street: Any, count: int, *, database_url: str, settings: dict[str, str]
) -> AsyncIterator[list[Seat]]:
    """Gateways on one database that believe to be one: ready, and killed on the way out. Logs are shown on failure."""
    ports = find_low_ports(count)
    public_url = f"http://127.0.0.1:{ports[0]}"
    seats: list[Seat] = []
    try:
        for number, port in enumerate(ports):
            env = street.environment(
                database_url=database_url, public_url=public_url, port=port, settings=settings
            )
            name = f"seat-{port}-{number}"
            seats.append(Seat(zygote, street, env=env, port=port, name=name))
        for seat in seats:
            await seat.wait_ready()
        yield seats
    except BaseException:
        for seat in seats:
            print(f"---- log of {seat.gateway.base_url}\n{seat.gateway.read_log()[-3000:]}")
        raise
    finally:
        for seat in seats:
            seat.gateway.process.kill()


# ---- Payments.


async def pay_in_bulk(street: Any, payers: list[Any], to: Address, *, each: int = 1) -> list[TxHash]:
    """A payment worth `each` calls by each of these wallets, which have sent nothing before: all in a block or two."""
    driver, token = street.driver, street.playground.token
    payload = token.artifact.function("transfer").encode((str(to), each * PRICE_UNITS))
    await driver.rpc("evm_setAutomine", False)
    try:
        sent = await asyncio.gather(
            *(
                driver.send(key=payer.key, to=token.address, payload=payload, gas=_TRANSFER_GAS, nonce=0)
                for payer in payers
            )
        )
    finally:
        await driver.rpc("evm_setAutomine", True)
        await driver.mine(1)
    for tx_hash in sent:
        assert (await driver.wait_receipt(tx_hash)).succeeded
    return list(sent)


# ---- Callers who speak at once.


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    status: int
    head: bytes
    body: bytes

    @property
    def problem(self) -> Any:
        return json.loads(self.body)


class Line(asyncio.Protocol):
    """One kept connection: a request is one write, so that a thousand of them leave in the same moment."""

    def __init__(self) -> None:
        self._heard = bytearray()
        self._transport: Any = None
        self._waiting: asyncio.Future[Heard] | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def say(self, request: bytes) -> "asyncio.Future[Heard]":
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
        heard = Heard(status=int(head[9:12]), head=head, body=bytes(body))
        self._waiting, waiting = None, self._waiting
        waiting.set_result(heard)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionResetError("closed before the answer"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Chorus:
    """Callers with a connection each, spread over gateways, who all ask in the same moment, again and again."""

    def __init__(self, ports: list[int], size: int) -> None:
        self._ports = [ports[number % len(ports)] for number in range(size)]
        self._lines: list[Line] = []

    async def ask(self, requests: list[bytes]) -> list[Heard]:
        """Everybody says one of these, and hears one answer; whoever is told to come back does."""
        await asyncio.gather(*(self._line(number) for number in range(len(requests))))
        async with asyncio.timeout(ANSWER_DEADLINE_S):
            return await asyncio.gather(*(self._say(*one) for one in enumerate(requests)))

    async def _say(self, number: int, request: bytes) -> Heard:
        for _ in range(TURNS_MAX):
            line = await self._line(number)
            try:
                heard = await line.say(request)
            except ConnectionError:
                continue  # a gateway closes connections that idle away
            if heard.status != HTTPStatus.SERVICE_UNAVAILABLE:
                return heard
        raise AssertionError(f"{self._ports[number]} never had an answer: {heard}")

    async def _line(self, number: int) -> Line:
        if len(self._lines) <= number:
            self._lines.extend(Line() for _ in range(len(self._ports) - len(self._lines)))
        if not self._lines[number].is_open:
            loop, port = asyncio.get_running_loop(), self._ports[number]
            _, self._lines[number] = await loop.create_connection(Line, "127.0.0.1", port)
        return self._lines[number]

    def close(self) -> None:
        for line in self._lines:
            line.close()


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


# ---- An upstream for bad days.


@dataclass(slots=True, kw_only=True)
class Upstream:
    """Answers as the path's first part says, and counts by method and path whatever reached it; nothing falls out.

    `/echo` at once; `/slow?s=0.3` after that long; `/cut` breaks its answer off; `/fail` is a 500; `/long` sends its
    body in pieces with pauses; `/mute` hangs up without a word.
    """

    base_url: str = ""
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path, _, query = request.raw_path.partition("?")
        self.seen[request.method, path] += 1
        pause_s = float(dict(parse_qsl(query)).get("s", "0.05"))
        body = await request.read()
        match path.split("/")[1]:
            case "slow":
                await asyncio.sleep(pause_s)
            case "mute":
                assert request.transport is not None
                request.transport.abort()
            case "fail":
                return web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, text="no")
            case "cut" | "long" as kind:
                return await self._answer_in_pieces(request, pause_s, is_cut=kind == "cut")
        return web.json_response({"path": path, "bytes": len(body)})

    async def _answer_in_pieces(
        self, request: web.BaseRequest, pause_s: float, *, is_cut: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = 4_096
        await response.prepare(request)
        for piece in range(4):
            await response.write(bytes(1_024))
            await asyncio.sleep(pause_s)
            if is_cut and piece == 1:
                assert request.transport is not None
                request.transport.abort()
                break
        return response


@contextlib.asynccontextmanager
async def run_upstream() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    server = web.Server(upstream.answer, access_log=None, handler_cancellation=True)
    runner = web.ServerRunner(server, shutdown_timeout=0.25, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=4_096).start()
        upstream.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield upstream
    finally:
        await runner.cleanup()


# ---- Reading the clock of progress.


class Progress:
    """A count that others wait for."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        self.count += 1

    async def wait_more(self, more: int, *, deadline_s: float, what: str) -> None:
        goal = self.count + more
        await poll(lambda: self.count >= goal, deadline_s=deadline_s, what=what)


@contextlib.contextmanager
def stopwatch() -> Iterator[Callable[[], float]]:
    started = time.monotonic()
    yield lambda: max(time.monotonic() - started, 0.001)
