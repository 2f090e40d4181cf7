"""The kinds of floods of `bench/floods.py`: the requests of each, without end, and the connections that send them.

Each connection has an address of loopback of its own, so that a rate of one address does not end the flood.
"""

import asyncio
import itertools
import json
import secrets
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tollway.web.http.app import PAID_PREFIXES

Plan = dict[str, Any]

SLOW_BYTES, SLOW_PAUSE_S = 2_048, 1.0
"""Just fast enough to be let."""
SLOW_BODY_BYTES = 2_000_000
RETRY_S = 0.05


def get(plan: Plan, path: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{plan['port']}", *headers, "", "")).encode()


def post(plan: Plan, path: str, body: object, *headers: str) -> bytes:
    content = json.dumps(body).encode()
    head = get(plan, path, "Content-Type: application/json", f"Content-Length: {len(content)}", *headers)
    return b"POST" + head[3:] + content


def list_heads(plan: Plan, number: int) -> Iterator[bytes]:
    """Heads that the gateway reads and refuses."""
    filled = [f"X-Fill-{one}: {'a' * 300}" for one in range(80)]
    while True:
        yield get(plan, "/api/v2/apis", *filled, f"X-Long: {'b' * 9_000}")
        yield get(plan, "/api/v2/apis/none", *filled)
        yield get(plan, f"/api/v2/gateway/{plan['apiId']}/x", *filled[:40], "X-Payment-Tx: 0x12")


def list_documents(plan: Plan, number: int) -> Iterator[bytes]:
    paths = ("/openapi.json", "/.well-known/api-catalog", "/.well-known/did.json", "/llms.txt")
    for one in itertools.count(number):
        api_id = plan["ids"][one % len(plan["ids"])]
        for path in (*paths, f"/api/v2/apis/{api_id}/openapi.json", f"/api/v2/apis/{api_id}/agent"):
            yield get(plan, path)


def list_lists(plan: Plan, number: int) -> Iterator[bytes]:
    while True:
        yield get(plan, "/api/v2/apis?limit=100")
        yield get(plan, "/x402/discovery/resources?limit=100")


def list_sign_ins(plan: Plan, number: int) -> Iterator[bytes]:
    """Sessions and signed requests with signatures of the right form by a wrong key."""
    while True:
        address = "0x" + secrets.token_hex(20)
        message = (
            f"127.0.0.1:{plan['port']} wants you to sign in with your Ethereum account:\n{address}\n\nSign in.\n\n"
            f"URI: http://127.0.0.1:{plan['port']}\nVersion: 1\nChain ID: 84532\nNonce: {secrets.token_hex(12)}\nIssued At: 2026-01-01T00:00:00Z"
        )
        signature = "0x" + secrets.token_hex(64) + "1b"
        yield post(plan, "/api/v2/auth/session", {"message": message, "signature": signature})
        yield get(plan, "/api/v2/history", f"Authorization: Bearer {secrets.token_urlsafe(32)}")
        yield post(plan, "/api/v2/auth/nonce", {"address": address, "chainId": 84532})


def list_lookups(plan: Plan, number: int) -> Iterator[bytes]:
    """Payments that nobody made."""
    while True:
        headers = (
            f"X-Payment-Tx: 0x{secrets.token_hex(32)}",
            f"X-Signature: 0x{secrets.token_hex(64)}1b",
        )
        yield get(plan, f"/api/v2/gateway/{plan['apiId']}/quote", *headers)


def list_books(plan: Plan, number: int) -> Iterator[bytes]:
    bearer = authorize(plan, number)
    while True:
        yield get(plan, "/api/v2/history?limit=200", bearer)
        yield get(plan, "/api/v2/spending", bearer)
        yield get(plan, "/api/v2/payments?limit=100", bearer)


def list_exports(plan: Plan, number: int) -> Iterator[bytes]:
    bearer = authorize(plan, number)
    while True:
        yield get(plan, "/api/v2/history.csv", bearer)


def list_searches(plan: Plan, number: int) -> Iterator[bytes]:
    words = ("price of a coin", "fresh quotes", "market 7", "currency to the second", "nothing like it")
    for one in itertools.count(number):
        word = words[one % len(words)].replace(" ", "+")
        yield get(plan, f"/api/v2/apis?q={word}&limit=50")
        yield get(plan, f"/x402/discovery/search?query={word}")
        arguments = {"name": "search_resources", "arguments": {"query": word, "limit": 50}}
        asked = {"jsonrpc": "2.0", "id": one, "method": "tools/call", "params": arguments}
        yield post(plan, "/mcp", asked, "Accept: application/json, text/event-stream")


def list_webhooks(plan: Plan, number: int) -> Iterator[bytes]:
    bearer = authorize(plan, number)
    while True:
        url = f"http://127.0.0.1:{plan['port'] + 1}/{secrets.token_hex(4)}"
        yield post(plan, "/api/v2/webhooks", {"url": url, "types": ["call.charged"]}, bearer)
        yield get(plan, "/api/v2/webhooks", bearer)


def authorize(plan: Plan, number: int) -> str:
    return f"Authorization: Bearer {plan['tokens'][number % len(plan['tokens'])]}"


REQUESTS: dict[str, Callable[[Plan, int], Iterator[bytes]]] = {
    "heads": list_heads,
    "documents": list_documents,
    "lists": list_lists,
    "sign-ins": list_sign_ins,
    "look-ups": list_lookups,
    "books": list_books,
    "exports": list_exports,
    "searches": list_searches,
    "webhooks": list_webhooks,
}
SLOW = "slow bodies"
KINDS = (*REQUESTS, SLOW)


async def run_flood(plan: Plan, kinds: Sequence[str], connections: int) -> None:
    """Floods until SIGTERM, then prints how often each kind got which status. The connections take the kinds in turn."""
    answers: Counter[str] = Counter()
    is_over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_over.set)
    print("begins", flush=True)
    async with asyncio.TaskGroup() as group:
        tasks = []
        for number in range(connections):
            kind = kinds[number % len(kinds)]
            send = send_slowly if kind == SLOW else send_requests
            tasks.append(group.create_task(send(plan, kind, number, answers)))
        await is_over.wait()
        for task in tasks:
            task.cancel()
    print(json.dumps({"answers": answers}))


def find_port(plan: Plan, request: bytes) -> int:
    """Where the proxy of a gateway with control workers sends a request."""
    is_paid = request.split(b" ", 2)[1].decode().startswith(PAID_PREFIXES)
    return int(plan["port" if is_paid else "controlPort"])


async def dial(plan: Plan, number: int, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    source = f"127.1.{number // 250}.{number % 250 + 1}"
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0), limit=8 * 2**20)


async def send_requests(plan: Plan, kind: str, number: int, answers: Counter[str]) -> None:
    requests = REQUESTS[kind](plan, number)
    while True:
        try:
            connections: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
            for request in requests:
                port = find_port(plan, request)
                if port not in connections:
                    connections[port] = await dial(plan, number, port)
                reader, writer = connections[port]
                writer.write(request)
                answers[f"{kind} {await read_answer(reader)}"] += 1
        except (OSError, EOFError):
            answers[f"{kind} closed"] += 1
            await asyncio.sleep(RETRY_S)


async def send_slowly(plan: Plan, kind: str, number: int, answers: Counter[str]) -> None:
    """A body to a listing and to the control plane, in pieces."""
    path = ("/api/v2/apis", f"/api/v2/gateway/{plan['apiId']}/x", "/mcp")[number % 3]
    head = get(plan, path, "Content-Type: application/json", f"Content-Length: {SLOW_BODY_BYTES}")
    while True:
        try:
            _, writer = await dial(plan, number, find_port(plan, head))
            writer.write(b"POST" + head[3:])
            while not writer.is_closing():
                writer.write(b" " * SLOW_BYTES)
                answers[f"{kind} pieces"] += 1
                await asyncio.sleep(SLOW_PAUSE_S)
        except OSError:
            answers[f"{kind} closed"] += 1
            await asyncio.sleep(RETRY_S)


async def read_answer(reader: asyncio.StreamReader) -> str:
    """The status of a response, which is read to its end."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"transfer-encoding: chunked" in head:
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            await reader.readexactly(size + 2)
        await reader.readuntil(b"\r\n")
    elif b"content-length:" in head:
        await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
    return head[9:12].decode()
