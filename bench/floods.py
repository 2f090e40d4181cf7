"""Ordinary paid calls beside floods: p50 and p99 of steady callers, in turn quiet and beside each kind of flood, and beside all of them at once.

    python bench/floods.py [--database sqlite|postgresql] [--control-workers 1] [--calls credit|metered|channel|mixed] [--kinds heads documents …] [--rounds 3] [--seconds 6] [--connections 48]

The callers pay on credit, at a price by use, or over a channel each (`flood_callers.py`); `mixed`: all three ways at once, with the figures of each.

The gateway has a core of its own; callers, floods, upstream, chain node and PostgreSQL share the other, the floods at a low priority. A flood is that many
connections from as many addresses of loopback, each of which sends the next request after the last response. An ordinary call without a 200 fails the run. Control workers share the core of their
gateway; a flood sends them what a proxy would. Beside the time of a call stands the CPU time of the gateway's own process meanwhile, which other programs of the machine hardly change. Writes
`bench/results/floods-<database>-<calls>.json` and `.md`, with control workers `floods-<database>-<calls>-workers`.
"""

import argparse
import asyncio
import contextlib
import datetime
import json
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from flood_callers import (
    KINDS_OF_CALLS,
    MIXED,
    PACE_S,
    call_steadily,
    list_settings,
    prepare_callers,
    summarise_calls,
)
from flood_kinds import KINDS, run_flood
from gateways import Bench, Gateway, furnish_callers, serving_gateway
from load import LoadGenerator, write_requests
from machine import (
    LOAD_CORE,
    ROOT,
    describe_commit,
    describe_machine,
    find_free_port,
    forget_peak,
    list_family,
    pin,
    prepare_child,
    read_memory_kib,
)
from nodes import Server
from rivals import find_programs
from upstream import serving_upstream

from tollway.client.client import AsyncTollwayClient
from tollway.client.wallet import Wallet
from tollway.identity.signatures import eip191_digest
from tollway.sandbox.chain import ChainDriver, make_account, prepare_playground, run_anvil
from tollway.sandbox.provider import SAMPLE_DOCUMENT

RESULTS = ROOT / "bench" / "results"
PAYERS = 24
LISTINGS = 90
BOOK_S = 8
"""So long a load fills the books of the payers."""
LEAD_S = 1.0
"""From the start of a flood to the first call that counts."""
ALL = "all at once"
SETTINGS = {
    # All addresses are those of loopback, and all callers one machine.
    "TOLLWAY_LIMIT_IN_FLIGHT_PER_ADDRESS_MAX": "5000",
}


# ---- The harness.


async def measure_calls(plan: Path, seconds: float) -> dict[str, Any]:
    """The summary of each kind of calls."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--as-callers",
        str(plan),
        "--seconds",
        str(seconds),
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=prepare_child(LOAD_CORE),
    )
    told, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError("the ordinary callers failed")
    found: dict[str, Any] = json.loads(told)
    return found


@contextlib.asynccontextmanager
async def flooding(plan: Path, kind: str, connections: int) -> AsyncIterator[dict[str, Any]]:
    """Runs a flood for the time of the block. Gives what it was answered, once it has ended."""
    process = await asyncio.create_subprocess_exec(
        "nice",
        "-n",
        "5",
        sys.executable,
        __file__,
        "--as-flood",
        kind,
        str(plan),
        "--connections",
        str(connections),
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=prepare_child(LOAD_CORE),
    )
    told: dict[str, Any] = {}
    try:
        assert process.stdout is not None
        await process.stdout.readline()  # it begins
        await asyncio.sleep(LEAD_S)
        yield told
    finally:
        process.send_signal(signal.SIGTERM)
        output, _ = await process.communicate()
        told.update(json.loads(output or "{}"))


async def measure_kind(
    plan: Path, kind: str, gateway: Gateway, options: argparse.Namespace
) -> dict[str, Any]:
    """Alternating rounds, quiet and beside the flood."""
    quiet: list[dict[str, Any]] = []
    beside: list[dict[str, Any]] = []
    answers, rates = Counter[str](), []
    quiet_peaks, peaks = [], []
    for _ in range(options.rounds):
        forget_peaks(gateway)
        quiet.append(await measure_calls(plan, options.seconds))
        quiet_peaks.append(read_peak_kib(gateway))
        forget_peaks(gateway)
        started = time.monotonic()
        async with flooding(plan, kind, options.connections) as told:
            beside.append(await measure_calls(plan, options.seconds))
            seconds = time.monotonic() - started
        answers.update(told["answers"])
        rates.append(sum(told["answers"].values()) / seconds)
        peaks.append(read_peak_kib(gateway))
        await asyncio.sleep(1.0)
    return {
        "kind": kind,
        "floodPerS": round(statistics.median(rates)),
        "answers": dict(answers.most_common(8)),
        "quietPeakKiB": max(quiet_peaks),
        "peakKiB": max(peaks),
        "calls": {one: compare([r[one] for r in quiet], [r[one] for r in beside]) for one in quiet[0]},
    }


def compare(quiet: Sequence[Mapping[str, Any]], beside: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The medians of the rounds for one kind of calls, and the statuses of all."""
    figures = {
        f"{name}{part}Ms": statistics.median(one[f"{part}Ms"] for one in rounds)
        for name, rounds in (("quiet", quiet), ("beside", beside))
        for part in ("p50", "p99", "Cpup50", "Cpup99")
    }
    return {
        "statuses": dict(sum((Counter(one["statuses"]) for one in (*quiet, *beside)), Counter[str]())),
        **{name: round(value, 2) for name, value in figures.items()},
        "p50Ratio": round(figures["besidep50Ms"] / figures["quietp50Ms"], 2),
        "p99Ratio": round(figures["besidep99Ms"] / figures["quietp99Ms"], 2),
    }


def forget_peaks(gateway: Gateway) -> None:
    for pid in list_family(gateway.child.pid):
        forget_peak(pid)


def read_peak_kib(gateway: Gateway) -> int:
    """Of the gateway and its control workers, since `forget_peaks`."""
    return sum(read_memory_kib(pid, "VmHWM") for pid in list_family(gateway.child.pid))


async def prepare(
    gateway: Gateway, bench: Bench, folder: Path, upstream_url: str, *, calls: str, control_port: int
) -> Path:
    """Listings, books and sessions for the floods. The file of what floods and callers send."""
    seller = make_account("seller")
    ids = []
    async with AsyncTollwayClient(gateway.url, wallet=Wallet.from_key(seller.key)) as client:
        for number in range(LISTINGS):
            listing = await client.publish(
                {
                    "name": f"Quotes of market {number}",
                    "description": "The price of a coin in a currency, fresh to the second.",
                    "pricePerRequest": "0.01",
                    "currency": "USDC",
                    "tags": ["prices", f"market-{number % 7}"],
                    "endpoint": upstream_url,
                    "openapi": dict(SAMPLE_DOCUMENT),
                }
            )
            ids.append(listing.id)
    requests = write_requests(folder / "book.requests", gateway.sign_plainly())
    generator = LoadGenerator(wrk=find_programs(is_plain=False).wrk)
    await asyncio.to_thread(
        generator.run, gateway.port, requests, connections=32, seconds=BOOK_S, is_once=False
    )
    tokens = [await sign_in(gateway, Wallet.from_key(payment.key)) for payment in gateway.payments]
    plan = {
        "pid": gateway.child.pid,
        "port": gateway.port,
        "controlPort": control_port,
        "apiId": gateway.api_id,
        "ids": ids,
        "tokens": tokens,
        "callers": await prepare_callers(gateway, bench, calls, upstream_url=upstream_url),
    }
    path = folder / "plan.json"
    path.write_text(json.dumps(plan))
    return path


async def sign_in(gateway: Gateway, wallet: Wallet) -> str:
    body = {"address": str(wallet.address), "chainId": int(gateway.chain_id)}
    async with aiohttp.ClientSession(gateway.url) as session:
        async with session.post("/api/v2/auth/nonce", json=body) as answer:
            message = (await answer.json())["message"]
        signature = "0x" + wallet.sign_digest(eip191_digest(message.encode())).hex()
        signed = {"message": message, "signature": signature}
        async with session.post("/api/v2/auth/session", json=signed) as answer:
            if answer.status != 201:
                raise RuntimeError(await answer.text())
            return str((await answer.json())["accessToken"])


@contextlib.asynccontextmanager
async def serving(options: argparse.Namespace, folder: Path) -> AsyncIterator[tuple[Gateway, Path]]:
    async with run_anvil() as anvil, aiohttp.ClientSession() as session, contextlib.AsyncExitStack() as stack:
        driver = ChainDriver(session, anvil.rpc_url, anvil.chain_id)
        bench = await furnish_callers(driver, await prepare_playground(driver), folder, count=PAYERS)
        url = f"sqlite:///{folder}/floods.sqlite3"
        if options.database == "postgresql":
            (folder / "pg").mkdir()
            server = Server(folder / "pg")
            stack.callback(server.close)
            url = await server.make_database("floods")
        upstream = await stack.enter_async_context(
            serving_upstream(folder, find_programs(is_plain=False).nginx)
        )
        control_port = find_free_port() if options.control_workers else 0
        workers = {
            "TOLLWAY_CONTROL_WORKERS": str(options.control_workers),
            "TOLLWAY_CONTROL_LISTEN": f"127.0.0.1:{control_port}",
        }
        gateway = await stack.enter_async_context(
            serving_gateway(
                "floods",
                bench,
                database_url=url,
                upstream_url=upstream.url,
                is_known=True,
                settings=SETTINGS
                | list_settings(options.calls)
                | (workers if options.control_workers else {}),
            )
        )
        port = control_port or gateway.port
        yield (
            gateway,
            await prepare(gateway, bench, folder, upstream.url, calls=options.calls, control_port=port),
        )


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    pin(LOAD_CORE)
    begun = datetime.datetime.now(datetime.UTC)
    with tempfile.TemporaryDirectory(prefix="floods-", dir=options.folder) as name:
        folder = Path(name)
        found: dict[str, Any] = {
            "startedAt": begun.strftime("%Y-%m-%d %H:%M UTC"),
            "database": options.database,
            "calls": options.calls,
            "rounds": options.rounds,
            "seconds": options.seconds,
            "connections": options.connections,
            "controlWorkers": options.control_workers,
            "machine": describe_machine(folder),
            "commit": describe_commit(),
            "kinds": [],
        }
        async with serving(options, folder) as (gateway, plan):
            found["idleKiB"] = sum(map(read_memory_kib, list_family(gateway.child.pid)))
            await measure_calls(plan, 2.0)
            for kind in options.kinds:
                told = await measure_kind(plan, kind, gateway, options)
                found["kinds"].append(told)
                print(json.dumps(told), file=sys.stderr, flush=True)
    return found


def write_markdown(found: Mapping[str, Any]) -> str:
    commit = found["commit"]
    dirty = ", with changes that are not in it" if commit["isDirty"] else ""
    lines = [
        f"# Paid calls beside floods, {found['startedAt']}, {found['database']}",
        "",
        f"Commit `{commit['commit']}`{dirty}. {found['machine']['cpu']}, {found['machine']['cores']} cores; load of the machine before: "
        f"{found['machine']['loadBefore']}. Control workers: {found['controlWorkers']}. Each caller calls {1 / PACE_S:.0f} times a second; a flood of {found['connections']} connections; medians of "
        f"{found['rounds']} alternating rounds of {found['seconds']:g} s. Memory: of the gateway and its control workers, {found['idleKiB'] / 1024:.0f} MiB before the first call.",
        "",
        "| flood | answers a second | calls | quiet p50, p99 ms | beside it p50, p99 ms | × p50 | × p99 | CPU of the gateway meanwhile, p99 ms: quiet, beside it | not 200 | at most MiB: quiet, beside it |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found["kinds"]:
        memory = f"{one['quietPeakKiB'] / 1024:.0f}, {one['peakKiB'] / 1024:.0f}"
        lines += [
            f"| {one['kind']} | {one['floodPerS']} | {kind} | {calls['quietp50Ms']}, {calls['quietp99Ms']} | {calls['besidep50Ms']}, {calls['besidep99Ms']} | {calls['p50Ratio']} | "
            f"{calls['p99Ratio']} | {calls['quietCpup99Ms']}, {calls['besideCpup99Ms']} | {count_refused(calls)} | {memory} |"
            for kind, calls in one["calls"].items()
        ]
    kinds = list(found["kinds"][0]["calls"])
    lines += ["", f"| × p50, × p99 | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for one in found["kinds"]:
        ratios = [f"{one['calls'][kind]['p50Ratio']}, {one['calls'][kind]['p99Ratio']}" for kind in kinds]
        lines.append(f"| {one['kind']} | {' | '.join(ratios)} |")
    return "\n".join([*lines, ""])


def count_refused(calls: Mapping[str, Any]) -> int:
    return sum(times for status, times in calls["statuses"].items() if status != "200")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--control-workers", type=int, default=0, help="PostgreSQL only")
    parser.add_argument("--calls", choices=(*KINDS_OF_CALLS, MIXED), default=KINDS_OF_CALLS[0])
    parser.add_argument("--kinds", nargs="+", choices=(*KINDS, ALL), default=[*KINDS, ALL])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each round")
    parser.add_argument("--connections", type=int, default=48)
    parser.add_argument("--folder", help="where databases are made; not on tmpfs")
    parser.add_argument("--as-callers", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--as-flood", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_callers:
        plan = json.loads(options.as_callers.read_text())
        found = uvloop.run(call_steadily(plan, options.seconds))
        print(json.dumps({kind: summarise_calls(calls) for kind, calls in found.items()}))
    elif options.as_flood:
        kind, path = options.as_flood
        kinds = KINDS if kind == ALL else (kind,)
        uvloop.run(run_flood(json.loads(Path(path).read_text()), kinds, options.connections))
    else:
        found = uvloop.run(measure(options))
        RESULTS.mkdir(exist_ok=True)
        workers = "-workers" if options.control_workers else ""
        path = RESULTS / f"floods-{options.database}-{options.calls}{workers}"
        path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        path.with_suffix(".md").write_text(write_markdown(found))
        print(write_markdown(found))
        refused = sum(count_refused(calls) for one in found["kinds"] for calls in one["calls"].values())
        if refused:
            sys.exit(f"{refused} ordinary calls were not answered 200")


if __name__ == "__main__":
    main()
