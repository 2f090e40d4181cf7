"""The moves of an attacker that wants to exhaust a gateway, from as many addresses as needed: each move is a number
of connections or requests of one kind, and reports their outcomes. This module decides nothing about the result."""

import asyncio
import contextlib
import hashlib
import json
import secrets
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.system.attack.hostile_upstream import (
    BOMB,
    BOMB_DIGEST,
    ENDLESS_BODIES,
    ENDLESS_HEADS,
    LYING_BODIES,
    PACKED,
)
from tests.system.attack.json_bombs import list_bombs
from tollway.client.wallet import Wallet
from tollway.identity.signatures import eip191_digest

KIB = 1024
MIB = 1024 * KIB
PER_ADDRESS = 10
"""Connections from one address: far from any share of an address, which is somebody else's test."""
REST_S = 60.0
STEP_S = 1.0
WINDOW_BYTES = 4 * KIB
TAKEN_BYTES_MAX = 256 * KIB
"""Of an answer without end; then the caller leaves."""
CREATES_PER_WALLET = 20
CREATED = 201
AS_AN_AGENT = ("Content-Type: application/json", "Accept: application/json, text/event-stream")
SIGNERS = 400
JUNK_PER_ADDRESS = 500

Outcomes = Counter[str]
SignBody = Callable[[Wallet, str, str, bytes], dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`ending`: `whole`, `cut` (before its end), or `left` (the caller had enough). Status 0: none came."""

    status: int = 0
    body: bytes = b""
    ending: str = "cut"

    def __str__(self) -> str:
        return f"{self.status} {self.ending}" if self.status else "closed"


@dataclass(slots=True, kw_only=True)
class AttackTarget:
    """Where the gateway is, and what was registered: `free_ids` lead to the hostile upstream, each at an origin of its
    own; `priced_id` costs something; `tool_id` has a document."""

    address: str
    port: int
    host: str
    free_ids: Sequence[str]
    priced_id: str
    tool_id: str
    sign_body: SignBody
    signed: int = 0
    standing: int = 0
    created: int = 0
    junk_sources: set[str] = field(default_factory=set)
    _sources: int = 0
    _wallet: Wallet | None = None

    def sources(self, count: int, per: int = PER_ADDRESS) -> Iterator[str]:
        """Addresses that were not used before."""
        for number in range(count):
            if number % per == 0:
                self._sources += 1
            high, low = divmod(self._sources, 250)
            yield f"23.{40 + high // 250}.{high % 250}.{low + 1}"

    def sign(self, body: bytes) -> dict[str, str]:
        """The headers of a create; no wallet comes near its share."""
        if self._wallet is None or self.signed % CREATES_PER_WALLET == 0:
            self._wallet = Wallet.from_key(secrets.token_bytes(32))
        self.signed += 1
        return self.sign_body(self._wallet, "POST", "/api/v2/apis", body)

    def free(self, number: int, what: str) -> str:
        return f"/api/v2/gateway/{self.free_ids[number % len(self.free_ids)]}/{what}"

    def head(self, line: str, *lines: str) -> bytes:
        return "\r\n".join([f"{line} HTTP/1.1", f"Host: {self.host}", *lines, "", ""]).encode("latin-1")

    @contextlib.asynccontextmanager
    async def dial(
        self, source: str, *, window: int | None = None
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        line = socket.socket()
        if window is not None:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        line.setblocking(False)
        line.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(line, (self.address, self.port))
        reader, writer = await asyncio.open_connection(sock=line, limit=window or 64 * KIB)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def ask(self, source: str, request: bytes, *, most: int = 8 * MIB) -> Answer:
        """One request on a connection of its own."""
        try:
            async with asyncio.timeout(REST_S), self.dial(source) as (reader, writer):
                with contextlib.suppress(ConnectionError):
                    writer.write(request)
                    await writer.drain()
                return await read_answer(reader, most=most)
        except (OSError, EOFError):
            return Answer()
        except TimeoutError:
            return Answer(ending="in no time")


async def read_answer(reader: asyncio.StreamReader, *, most: int) -> Answer:
    head = await reader.readuntil(b"\r\n\r\n")
    status, length, is_chunked = int(head.split(b" ", 2)[1]), 0, False
    for line in head.lower().split(b"\r\n"):
        length = int(line[15:]) if line.startswith(b"content-length:") else length
        is_chunked = is_chunked or line == b"transfer-encoding: chunked"
    body, size = bytearray(), 0
    with contextlib.suppress(ConnectionError):
        while (is_chunked or size < length) and (piece := await reader.read(64 * KIB)):
            size += len(piece)
            if size > most:
                return Answer(status=status, ending="left")
            body += piece
    is_whole = bytes(body).endswith(b"0\r\n\r\n") if is_chunked else size >= length
    return Answer(status=status, body=bytes(body), ending="whole" if is_whole else "cut")


async def crowd(count: int, move: Callable[[int], Awaitable[str]], *, width: int) -> Outcomes:
    """`move(number)` for each number, so many of them at a time."""
    outcomes: Outcomes = Counter()
    turns = iter(range(count))

    async def one() -> None:
        for number in turns:
            outcomes[await move(number)] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(min(width, count)):
            group.create_task(one())
    return outcomes


# ---- Connections that stand.


async def trickle(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    first: bytes,
    step: bytes,
    until: asyncio.Event,
) -> str:
    """Sends a little each second until it is over, or until the gateway ends the connection; what it has said."""
    writer.write(first)
    told = b""
    while not until.is_set():
        try:
            async with asyncio.timeout(STEP_S):
                piece = await reader.read(KIB)
        except TimeoutError:
            if step:
                writer.write(step)
            continue
        except ConnectionError:
            piece = b""
        if not piece:
            return f"ended with {told[9:12].decode() or 'nothing'}"
        told = told or piece
    return "still there"


async def stand(
    target: AttackTarget, count: int, until: asyncio.Event, shapes: Sequence[tuple[str, bytes, bytes]]
) -> Outcomes:
    """Connections of these shapes in turn: a name, what is sent first, and what each second."""
    sources = list(target.sources(count))

    async def one(number: int) -> str:
        name, first, step = shapes[number % len(shapes)]
        try:
            async with target.dial(sources[number]) as streams:
                return f"{name}: {await trickle(*streams, first, step, until)}"
        except OSError as exc:
            return f"{name}: {type(exc).__name__}"

    return await crowd(count, one, width=count)


async def slow_heads(target: AttackTarget, count: int, until: asyncio.Event) -> Outcomes:
    line = b"GET /api/v2/apis HTTP/1.1\r\n"
    shapes = (
        ("nothing", b"", b""),
        ("a byte a second", b"GET ", b"/"),
        ("a header a second", line, b"X-A: b\r\n"),
        ("half a header", line + b"X-Fill: " + b"a" * 20_000, b"a"),
        ("a second request", target.head("GET /healthz") + line, b"X-A: b\r\n"),
    )
    return await stand(target, count, until, shapes)


async def slow_bodies(target: AttackTarget, count: int, until: asyncio.Event) -> Outcomes:
    long, chunked = f"Content-Length: {10 * MIB}", "Transfer-Encoding: chunked"
    kind = "Content-Type: application/json"
    call, control = f"POST {target.free(count, 'take')}", "POST /api/v2/apis"
    shapes = (
        ("call", target.head(call, long), b"a"),
        ("call in chunks", target.head(call, chunked), b"1\r\na\r\n"),
        ("call, small", target.head(call, "Content-Length: 60000"), b"a"),
        ("control plane", target.head(control, kind, f"Content-Length: {MIB}"), b"{"),
        ("tools in chunks", target.head("POST /mcp", kind, chunked), b"1\r\n{\r\n"),
    )
    return await stand(target, count, until, shapes)


async def patient_bodies(target: AttackTarget, count: int, until: asyncio.Event) -> Outcomes:
    """Just fast enough to be let."""
    step = bytes(2 * KIB)
    heads = [
        target.head(f"POST {target.free(number, 'take')}", f"Content-Length: {10 * MIB}")
        for number in range(len(target.free_ids))
    ]
    shapes = [(f"call {number}", head + step * 16, step) for number, head in enumerate(heads)]
    outcomes: Outcomes = Counter()
    for name, times in (await stand(target, count, until, shapes)).items():
        outcomes[name.split(": ", 1)[1]] += times
    return outcomes


async def held_bodies(target: AttackTarget, count: int, until: asyncio.Event) -> Outcomes:
    """All but the last byte at once, where a body is read whole before anything is done with it."""
    control = [
        (
            door,
            target.head(f"POST {door}", *AS_AN_AGENT, f"Content-Length: {2 * MIB}")
            + b"["
            + b" " * (2 * MIB - 2),
        )
        for door in ("/api/v2/apis", "/mcp", "/api/v2/auth/session")
    ]
    wallet, tx_hash = Wallet.from_key(secrets.token_bytes(32)), "0x" + secrets.token_hex(32)
    bound = f"X-Signature-Params: v=1;validUntil={int(time.time()) + 290};nonce=0x{secrets.token_hex(32)}"
    line = f"POST /api/v2/gateway/{target.priced_id}/quote"
    call = target.head(line, *show(wallet, tx_hash), bound, f"Content-Length: {MIB}") + b" " * (MIB - 1)
    shapes = [(door, request, b"") for door, request in (*control, ("call", call))]
    return await stand(target, count, until, shapes)


async def slow_readers(target: AttackTarget, count: int, until: asyncio.Event) -> Outcomes:
    """Each asks for 100 MiB; every other one takes a KiB a second of it, the others nothing."""
    sources = list(target.sources(count))

    async def one(number: int) -> str:
        request = target.head(f"GET {target.free(number, 'large')}")
        try:
            async with target.dial(sources[number], window=WINDOW_BYTES) as (reader, writer):
                writer.write(request)
                status = (await reader.readuntil(b"\r\n\r\n"))[9:12].decode()
                target.standing += 1
                while not until.is_set():
                    if number % 2 and not await reader.read(KIB):
                        return f"{status}, cut"
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(until.wait(), STEP_S)
                return f"{status}, still there"
        except (OSError, EOFError) as exc:
            return type(exc).__name__

    return await crowd(count, one, width=count)


# ---- Floods.


async def header_floods(target: AttackTarget, count: int) -> Outcomes:
    sources = list(target.sources(count))
    line, fill = b"GET /api/v2/apis HTTP/1.1\r\n", b"X-%d: " + b"a" * 1_000 + b"\r\n"
    shapes = (
        ("150 headers", target.head("GET /api/v2/apis", *("A: b" for _ in range(150)))),
        ("99 KiB", line + b"".join(fill % number for number in range(99)) + b"\r\n"),
        ("one of a MiB", line + b"X-Fill: " + b"a" * MIB + b"\r\n\r\n"),
        ("without end", line + b"".join(fill % number for number in range(4_000))),
        ("a line of a MiB", b"GET /" + b"a" * MIB + b" HTTP/1.1\r\n\r\n"),
        ("40 KiB", target.head("GET /api/v2/apis", *(f"X-{number}: " + "a" * 500 for number in range(80)))),
    )

    async def one(number: int) -> str:
        name, request = shapes[number % len(shapes)]
        return f"{name}: {(await target.ask(sources[number], request)).status or 'closed'}"

    return await crowd(count, one, width=100)


async def bombs(target: AttackTarget, count: int) -> Outcomes:
    """Down: what the upstream has packed. Up: what a caller has packed. And a document that the gateway fetches itself."""
    sources = list(target.sources(count))
    ways = (*PACKED, "up", "control plane", "document")

    async def one(number: int) -> str:
        way, source = ways[number % len(ways)], sources[number]
        coding = ("Content-Encoding: gzip", "Content-Type: application/json", "Connection: close")
        match way:
            case "up":
                line = f"POST {target.free(number, 'take')}"
                answer = await target.ask(
                    source, target.head(line, *coding, f"Content-Length: {len(BOMB)}") + BOMB
                )
                return f"up: {answer}"
            case "control plane":
                answer = await create(target, source, BOMB[: len(BOMB) // 2], "Content-Encoding: gzip")
                return f"control plane: {answer.status}"
            case "document":
                url = f"http://11.0.0.{number % 8 + 1}:9001/"
                draft = {"name": "a", "pricePerRequest": "0", "currency": "USDC", "endpoint": url}
                body = json.dumps({**draft, "openapiUrl": url + "gzip"}).encode()
                return f"document: {(await create(target, source, body)).status}"
        request = target.head(f"GET {target.free(number, way)}", "Accept-Encoding: gzip, deflate, br")
        answer = await target.ask(source, request)
        is_same = hashlib.sha256(answer.body).hexdigest() == BOMB_DIGEST
        return f"down: {answer}, {'untouched' if is_same else 'changed'}"

    return await crowd(count, one, width=8)


async def create(target: AttackTarget, source: str, body: bytes, *more: str) -> Answer:
    lines = [f"{name}: {value}" for name, value in target.sign(body).items()]
    lines += [*more, f"Content-Length: {len(body)}", "Connection: close"]
    answer = await target.ask(source, target.head("POST /api/v2/apis", *lines) + body)
    target.created += answer.status == CREATED
    return answer


async def upstream_floods(target: AttackTarget, count: int) -> Outcomes:
    """Each asks for one of the answers without end, and takes 256 KiB of it at most."""
    sources = list(target.sources(count))
    ways = (*ENDLESS_HEADS, *LYING_BODIES, *ENDLESS_BODIES)

    async def one(number: int) -> str:
        way = ways[number % len(ways)]
        request = target.head(f"GET {target.free(number, way)}")
        return f"{way}: {await target.ask(sources[number], request, most=TAKEN_BYTES_MAX)}"

    return await crowd(count, one, width=50)


async def json_bombs(target: AttackTarget, count: int) -> Outcomes:
    """At every door of the control plane that reads JSON."""
    sources, documents = list(target.sources(count)), list(list_bombs().items())
    doors = ("/api/v2/apis", "/mcp", "/api/v2/auth/session", f"/mcp/{target.tool_id}")

    async def one(number: int) -> str:
        name, bomb = documents[number % len(documents)]
        door = doors[number // len(documents) % len(doors)]
        if door == doors[0]:
            return f"{name}: {(await create(target, sources[number], bomb)).status or 'closed'}"
        lines = (*AS_AN_AGENT, f"Content-Length: {len(bomb)}", "Connection: close")
        answer = await target.ask(sources[number], target.head(f"POST {door}", *lines) + bomb)
        return f"{name}: {answer.status or 'closed'}"

    return await crowd(count, one, width=8)


async def tool_floods(target: AttackTarget, count: int) -> Outcomes:
    """Agents that begin a session and never return, that list tools, and that let the gateway fetch endless
    documents."""
    sources = list(target.sources(count))
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    asked = (
        ("initialize", hello, "/mcp"),
        ("tools/list", {}, f"/mcp/{target.tool_id}"),
        ("tools/call", {"name": "endless", "arguments": {}}, f"/mcp/{target.tool_id}"),
    )

    async def one(number: int) -> str:
        method, params, door = asked[number % len(asked)]
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        lines = (*AS_AN_AGENT, f"Content-Length: {len(body)}", "Connection: close")
        answer = await target.ask(sources[number], target.head(f"POST {door}", *lines) + body)
        return f"{method}: {answer}"

    return await crowd(count, one, width=16)


async def pipelines(target: AttackTarget, count: int) -> Outcomes:
    """A thousand requests on each connection of a client that reads no response."""
    sources = list(target.sources(count))
    request = target.head("GET /api/v2/apis?limit=100") * 1_000

    async def one(number: int) -> str:
        try:
            async with target.dial(sources[number], window=WINDOW_BYTES) as (_, writer):
                writer.write(request)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(5 * STEP_S):
                        await writer.drain()
                await asyncio.sleep(STEP_S)
            return "left"
        except OSError:
            return "closed"

    return await crowd(count, one, width=count)


async def nonces(target: AttackTarget, count: int) -> Outcomes:
    """Sign-ins that are begun, from two addresses."""
    sources = list(target.sources(count, per=(count + 1) // 2))
    request = target.head("POST /api/v2/auth/nonce", "Content-Length: 0", "Connection: close")

    async def one(number: int) -> str:
        return str((await target.ask(sources[number], request)).status)

    return await crowd(count, one, width=16)


async def junk_hashes(target: AttackTarget, count: int) -> Outcomes:
    """Payments that do not exist, each with a valid signature; few addresses and many wallets."""
    sources = list(target.sources(count, per=JUNK_PER_ADDRESS))
    target.junk_sources.update(sources)
    wallets = [Wallet.from_key(secrets.token_bytes(32)) for _ in range(min(SIGNERS, count))]

    async def one(number: int) -> str:
        tx_hash = "0x" + secrets.token_hex(32)
        lines = show(wallets[number % len(wallets)], tx_hash)
        request = target.head(f"GET /api/v2/gateway/{target.priced_id}/junk", *lines, "Connection: close")
        answer = await target.ask(sources[number], request)
        code = json.loads(answer.body)["code"] if answer.ending == "whole" else answer.ending
        return f"{answer.status} {code}"

    return await crowd(count, one, width=32)


def show(wallet: Wallet, tx_hash: str) -> list[str]:
    """A payment in the plain form, as header lines."""
    signature = wallet.sign_digest(eip191_digest(tx_hash.encode())).hex()
    return [f"X-Payment-Tx: {tx_hash}", f"X-Signature: 0x{signature.removeprefix('0x')}"]
