"""Paid calls per second on known credit: a gateway on one core, its upstream and the load on another. Thin for now.

One JSON line. Absolute numbers drift on shared machines, so the same load on the upstream directly stands beside.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import uvloop
from eth_account import Account
from eth_account.messages import encode_defunct
from granian.constants import HTTPModes, Interfaces
from granian.server.embed import Server

from tollway.client.client import AsyncTollwayClient
from tollway.client.wallet import Wallet
from tollway.sandbox.anvil import run_anvil
from tollway.sandbox.chain_driver import ChainDriver
from tollway.sandbox.playground import furnish_playground

GATEWAY_CORE, LOAD_CORE = 0, 1
ANSWER = b'{"symbol":"ETH","price":"3021.17","currency":"USD"}'
PRICE_UNITS = 10_000
CALLS_PAID = 1_000


def pin(core: int) -> None:
    """Keeps this process on one core, where the machine has so many."""
    if core < (os.cpu_count() or 1):
        os.sched_setaffinity(0, {core})


async def serve_upstream(port: int) -> None:
    """The smallest honest upstream: a JSON answer for every request."""

    async def app(scope, receive, send):  # type: ignore[no-untyped-def]
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": ANSWER})

    server = Server(
        app, port=port, interface=Interfaces.ASGI, http=HTTPModes.http1, websockets=False, log_enabled=False
    )
    await server.serve()


async def measure(url: str, headers: Mapping[str, str], *, connections: int, seconds: float) -> float:
    """Answers per second with that many keep-alive connections, each asking again as soon as it is answered."""
    parts = urlsplit(url)
    head = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    request = (head + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n").encode()
    end = time.monotonic() + seconds

    async def ask() -> int:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        answers = 0
        while time.monotonic() < end:
            writer.write(request)
            answer_head = await reader.readuntil(b"\r\n\r\n")
            if not answer_head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(answer_head.split(b"\r\n", 1)[0].decode())
            length = answer_head.lower().split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0]
            await reader.readexactly(int(length))
            answers += 1
        writer.close()
        return answers

    return sum(await asyncio.gather(*(ask() for _ in range(connections)))) / seconds


@asynccontextmanager
async def child(*command: str, core: int, environment: Mapping[str, str]) -> AsyncIterator[None]:
    """A process of ours on one core, ended with the block."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        preexec_fn=lambda: pin(core),
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait)


async def wait_up(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)


async def compare(options: argparse.Namespace) -> dict[str, object]:
    gateway_url, upstream_url = "http://127.0.0.1:18502", "http://127.0.0.1:18503"
    with tempfile.TemporaryDirectory() as folder:
        async with run_anvil() as anvil, aiohttp.ClientSession() as session:
            driver = ChainDriver(session, anvil.rpc_url, anvil.chain_id)
            playground = await furnish_playground(driver)
            environment = {
                "TOLLWAY_RPC_LOCAL": anvil.rpc_url,
                "TOLLWAY_DATABASE_URL": f"sqlite:///{folder}/books.sqlite3",
                "TOLLWAY_PUBLIC_URL": gateway_url,
                "TOLLWAY_LISTEN": urlsplit(gateway_url).netloc,
                "TOLLWAY_ADMIN_LISTEN": "off",
                "TOLLWAY_ALLOW_PRIVATE_ENDPOINTS": "true",
            }
            upstream = (sys.executable, __file__, "--upstream", str(urlsplit(upstream_url).port))
            gateway = (str(Path(sys.executable).with_name("tollway")), "serve")
            async with (
                child(*upstream, core=LOAD_CORE, environment={}),
                child(*gateway, core=GATEWAY_CORE, environment=environment),
            ):
                await wait_up(upstream_url)
                await wait_up(gateway_url + "/healthz")
                provider, caller = playground.account("provider"), playground.account("caller")
                async with AsyncTollwayClient(gateway_url, wallet=Wallet.from_key(provider.key)) as client:
                    listing = await client.publish(
                        {
                            "name": "Bench",
                            "pricePerRequest": "0.000001",
                            "currency": "USDC",
                            "endpoint": upstream_url,
                        }
                    )
                tx_hash = await driver.send_token(
                    key=caller.key,
                    token=playground.token,
                    to=provider.address,
                    amount=CALLS_PAID * PRICE_UNITS,
                )
                await driver.wait_receipt(tx_hash)
                signed = Account.sign_message(encode_defunct(text=str(tx_hash)), caller.private_key)
                headers = {"X-Payment-Tx": str(tx_hash), "X-Signature": "0x" + bytes(signed.signature).hex()}
                call_url = f"{gateway_url}/api/v2/gateway/{listing['id']}/quote/ETH"
                load = {"connections": options.connections, "seconds": options.seconds}
                direct = await measure(upstream_url + "/quote/ETH", {}, **load)
                await measure(call_url, headers, connections=options.connections, seconds=1.0)
                rounds = [await measure(call_url, headers, **load) for _ in range(options.rounds)]
    return {
        "paidCallsPerSecond": round(sorted(rounds)[len(rounds) // 2]),
        "rounds": [round(rate) for rate in rounds],
        "upstreamDirectPerSecond": round(direct),
        "connections": options.connections,
        "database": "sqlite, synchronous=FULL for every claim",
        "signature": "plain",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--upstream", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.upstream:
        uvloop.run(serve_upstream(options.upstream))
        return
    pin(LOAD_CORE)
    print(json.dumps(uvloop.run(compare(options))))


if __name__ == "__main__":
    main()
