"""The attack on memory and time, run inside its own network: a production gateway, ordinary callers that pay, and
beside them all moves of `exhaustion_moves.py`. Prints one line of JSON.

This module decides nothing about the result; `test_exhaustion.py` does.
"""

import asyncio
import contextlib
import json
import os
import resource
import secrets
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvloop

from tests.kit.waits import bounded, kill
from tests.system.attack import exhaustion_moves as moves
from tests.system.attack.attacked_gateway import AttackedGateway, free_listing
from tests.system.attack.counting_node import CHAIN_ID, CountingNode
from tests.system.attack.exhaustion_moves import AttackTarget, Outcomes
from tests.system.attack.hostile_upstream import HostileUpstream
from tollway.chain.networks import PRESETS
from tollway.client.wallet import Wallet
from tollway.ids import TxHash
from tollway.limits import DEFAULT_LIMITS

PORT, NODE_PORT, HOSTILE_PORT = 8402, 8545, 9_001
PUBLIC_ADDRESS = "23.192.228.80"
PUBLIC_URL = f"http://gateway.street.test:{PORT}"
ORIGINS = 8
"""So many origins of the hostile provider: no more than 256 calls run at one of them."""
CALLERS = 8
CREDIT_UNITS = 50_000_000
PRICE = "0.0001"
SAMPLE_S = 0.05
STANDING = ("slow_readers", "patient_bodies", "slow_heads", "slow_bodies", "held_bodies")
ENDED = ("slow_heads", "slow_bodies")
"""By the gateway, sooner or later: they are waited for, because a busy machine is late."""
PATIENCE_S = 60.0
FLOODS = (
    *("header_floods", "bombs", "upstream_floods", "json_bombs", "tool_floods", "pipelines", "nonces"),
    "junk_hashes",
)
RATES = (
    *("free_calls_per_minute", "registrations_per_hour", "edits_per_hour", "signed_requests_per_minute"),
    "authenticated_requests_per_minute",
)
"""What other attacks lift, to be in nobody's way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How much of each. `alone`: weighed one after another; then `together` beside all that stands, weighed as one."""

    count: int
    bombs: int
    junk: int
    hold_s: float
    quiet_s: float
    rest_s: float
    alone: tuple[str, ...]
    together: tuple[str, ...]


ALONE = ("bombs", "json_bombs")
SHORT = Form(
    count=60,
    bombs=28,
    junk=300,
    hold_s=12.0,
    quiet_s=2.0,
    rest_s=0.0,
    alone=ALONE,
    together=tuple(name for name in FLOODS if name not in ALONE),
)
LONG = Form(
    count=1_000,
    bombs=120,
    junk=10_000,
    hold_s=25.0,
    quiet_s=20.0,
    rest_s=2.0,
    alone=(*FLOODS, *STANDING),
    together=FLOODS,
)


class MemoryMeter:
    """Weighs a process, often enough to see what is gone again a moment later. KiB."""

    def __init__(self, pid: int) -> None:
        self._statm = Path(f"/proc/{pid}/statm")
        self._page_kib = resource.getpagesize() // 1024
        self._peak = 0
        self.is_over = False
        threading.Thread(target=self._watch, daemon=True).start()

    def read(self) -> int:
        return int(self._statm.read_text().split()[1]) * self._page_kib

    def take_peak(self) -> int:
        """The peak since the last call."""
        peak, self._peak = max(self._peak, self.read()), 0
        return peak

    def _watch(self) -> None:
        with contextlib.suppress(OSError):
            while not self.is_over:
                self._peak = max(self._peak, self.read())
                time.sleep(SAMPLE_S)


@dataclass(slots=True, kw_only=True)
class Attack:
    target: AttackTarget
    meter: MemoryMeter
    form: Form
    callers: asyncio.subprocess.Process
    moves: dict[str, dict[str, Any]] = field(default_factory=dict)
    junk_minutes: int = 0

    async def begin(self, phase: str) -> None:
        assert self.callers.stdin is not None
        self.callers.stdin.write(phase.encode() + b"\n")
        await self.callers.stdin.drain()

    @contextlib.asynccontextmanager
    async def weighed(self, name: str, count: int) -> AsyncIterator[Outcomes]:
        """The outcomes of a move, with the memory that it took."""
        await self.begin(name)
        before, started, outcomes = self.meter.read(), time.monotonic(), Counter[str]()
        self.meter.take_peak()
        yield outcomes
        peak = self.meter.take_peak()
        await self.begin("between")
        await asyncio.sleep(self.form.rest_s)
        self.moves[name] = {
            "count": count,
            "outcomes": dict(sorted(outcomes.items())),
            "beforeKiB": before,
            "peakKiB": peak,
            "afterKiB": self.meter.read(),
            "tookS": round(time.monotonic() - started, 1),
        }

    async def run(self) -> None:
        await self.begin("quiet")
        await asyncio.sleep(self.form.quiet_s)
        for name in self.form.alone:
            async with self.weighed(name, self._count(name)) as outcomes:
                outcomes.update(await (self._stand(name) if name in STANDING else self._do(name)))
        async with self.weighed("all at once", self.form.count) as outcomes, asyncio.TaskGroup() as group:
            standing = {}
            for name in STANDING:  # one after another: a silent new connection has a deadline
                standing[name] = group.create_task(self._stand(name))
                await asyncio.sleep(self.form.rest_s)
            for name in self.form.together:
                found = await self._do(name)
                outcomes.update({f"{name}: {told}": times for told, times in found.items()})
            for name, task in standing.items():
                outcomes.update({f"{name}: {told}": times for told, times in (await task).items()})

    async def _do(self, name: str) -> Outcomes:
        started = time.monotonic()
        found: Outcomes = await getattr(moves, name)(self.target, self._count(name))
        took_s = time.monotonic() - started
        if name == "junk_hashes":
            self.junk_minutes = max(self.junk_minutes, int(took_s // 60))
        print(f"{name}: {took_s:.1f} s", file=sys.stderr, flush=True)
        return found

    def _count(self, name: str) -> int:
        counts = {"json_bombs": self.form.bombs, "bombs": self.form.bombs, "junk_hashes": self.form.junk}
        return counts.get(name, self.form.count)

    async def _stand(self, name: str) -> Outcomes:
        until = asyncio.Event()
        move: Callable[..., Awaitable[Outcomes]] = getattr(moves, name)
        async with asyncio.TaskGroup() as group:
            standing = group.create_task(move(self.target, self.form.count, until))
            hold_s = PATIENCE_S if name in ENDED else self.form.hold_s
            await asyncio.wait((standing,), timeout=hold_s)
            until.set()
        return standing.result()


# ---- The world.


def start_gateway(folder: Path) -> AttackedGateway:
    """Every limit as it is by default, a chain node of the operator's, and no private endpoints."""
    environment = {
        "TOLLWAY_RPC_BASE": f"http://127.0.0.1:{NODE_PORT}",
        **{f"TOLLWAY_LIMIT_{name.upper()}": str(getattr(DEFAULT_LIMITS, name)) for name in RATES},
    }
    return AttackedGateway(folder, host="0.0.0.0", port=PORT, public_url=PUBLIC_URL, environment=environment)


async def publish(gateway: AttackedGateway, http: httpx.AsyncClient, wallet: Wallet, **draft: Any) -> str:
    body, headers = gateway.sign_create(wallet, draft)
    answer = await http.post("/api/v2/apis", content=body, headers=headers)
    if not answer.is_success:
        raise RuntimeError(answer.text)
    return str(answer.json()["id"])


def document() -> dict[str, Any]:
    """Of the listing that is a tool: what has no end, and what never begins."""
    paths = {
        f"/{name}": {"get": {"operationId": name, "responses": {"200": {"description": "more"}}}}
        for name in ("endless", "headers")
    }
    return {"openapi": "3.1.0", "info": {"title": "Endless", "version": "1"}, "paths": paths}


async def open_target(gateway: AttackedGateway, http: httpx.AsyncClient) -> tuple[AttackTarget, str, Wallet]:
    """With everything used once, so that what is loaded with its first use was loaded before memory is weighed."""
    provider = Wallet.from_key(secrets.token_bytes(32))
    free = [
        await publish(gateway, http, provider, **free_listing(f"http://11.0.0.{one + 1}:{HOSTILE_PORT}/"))
        for one in range(ORIGINS)
    ]
    priced = {
        "name": "Priced",
        "pricePerRequest": PRICE,
        "currency": "USDC",
        "networks": [f"eip155:{CHAIN_ID}"],
    }
    quotes = await publish(gateway, http, provider, endpoint="http://11.0.1.1:9000/", **priced)
    tool = await publish(
        gateway, http, provider, **free_listing(f"http://11.0.0.9:{HOSTILE_PORT}/", openapi=document())
    )
    target = AttackTarget(
        address=PUBLIC_ADDRESS,
        port=PORT,
        host=PUBLIC_URL.removeprefix("http://"),
        free_ids=free,
        priced_id=quotes,
        tool_id=tool,
        sign_body=gateway.sign_body,
    )
    for number in range(4):
        for way in ("take", "gzip"):
            await target.ask(
                f"12.1.0.{number}", target.head(f"GET {target.free(number, way)}", "Connection: close")
            )
    await moves.tool_floods(target, 2)
    await moves.nonces(target, 2)
    return target, quotes, provider


@contextlib.asynccontextmanager
async def ordinary_callers(
    node: CountingNode, quotes: str, provider: Wallet
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Callers with a payment each that the gateway has not seen."""
    callers = []
    for number in range(CALLERS):
        wallet, tx_hash = Wallet.from_key(secrets.token_bytes(32)), TxHash(secrets.token_bytes(32))
        node.pay(tx_hash, payer=wallet.address, payee=provider.address, base_units=CREDIT_UNITS)
        lines = [line.split(": ", 1) for line in moves.show(wallet, str(tx_hash))]
        callers.append({"source": f"12.0.0.{number + 1}", "headers": lines})
    wish = {
        "address": PUBLIC_ADDRESS,
        "port": PORT,
        "host": PUBLIC_URL.removeprefix("http://"),
        "target": f"/api/v2/gateway/{quotes}/quote",
        "callers": callers,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("ordinary_callers.py")),
        json.dumps(wish),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        await kill(process)


def count_rows(folder: Path) -> dict[str, int]:
    """Once the gateway is gone."""
    with contextlib.closing(sqlite3.connect(f"file:{folder}/attacked.sqlite3?mode=ro", uri=True)) as database:
        names = [
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if "_words" not in name
        ]
        return {name: database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names}


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def main(folder: Path, form: Form) -> dict[str, Any]:
    token = PRESETS["base"].usdc
    node, hostile = CountingNode(token), HostileUpstream()
    runner, server = await node.run(NODE_PORT), await hostile.run(HOSTILE_PORT)
    gateway = start_gateway(folder)
    report: dict[str, Any] = {}
    try:
        await gateway.wait_up()
        async with httpx.AsyncClient(base_url=gateway.base_url, trust_env=False, timeout=60) as http:
            target, quotes, provider = await open_target(gateway, http)
        async with ordinary_callers(node, quotes, provider) as callers:
            meter = MemoryMeter(gateway.pid)
            attack = Attack(target=target, meter=meter, form=form, callers=callers)
            await attack.begin("first")
            await asyncio.sleep(1.0)
            report["idleKiB"] = meter.read()
            await attack.run()
            report["restKiB"] = meter.read()
            assert callers.stdin is not None
            callers.stdin.close()
            told, _ = await bounded(callers.communicate())
            meter.is_over = True
        report |= {"moves": attack.moves, "latency": json.loads(told)}
        report["served"] = sum(phase["calls"] for phase in report["latency"].values())
        report["created"] = ORIGINS + 2 + target.created
        report["junkMinutes"] = attack.junk_minutes
        report["isRunning"] = gateway.is_running
    finally:
        await gateway.stop()
        server.close()
        await runner.cleanup()
    return report | tell_counts(folder, form, target, node, hostile, gateway)


def tell_counts(
    folder: Path,
    form: Form,
    target: AttackTarget,
    node: CountingNode,
    hostile: HostileUpstream,
    gateway: AttackedGateway,
) -> dict[str, Any]:
    log = gateway.read_log()
    return {
        "rows": count_rows(folder),
        "rpc": dict(node.methods),
        "strange": dict(node.strange),
        "junkAddresses": len(target.junk_sources),
        "seenTotal": hostile.seen.total(),
        "signed": target.signed + ORIGINS + 2,
        "callers": CALLERS,
        "nonceRounds": 1 + form.alone.count("nonces"),
        "logBytes": len(log),
        "failures": [line[:600] for line in log.splitlines() if '"level": "error"' in line][:5],
    }


if __name__ == "__main__":
    with many_files():
        wanted = LONG if os.environ.get("ATTACK") == "long" else SHORT
        print(json.dumps(uvloop.run(main(Path(sys.argv[1]), wanted))))
