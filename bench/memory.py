"""Resident memory of a real `tollway gateway serve` under work: over many paid calls, over a thousand slow readers, over one
long stream. Whether it is flat, in JSON and Markdown.

Memory must be flat against work: it may grow while caches fill (pages of SQLite, a few known payments), and not
after. So growth counts from the end of the first tenth.
"""

import argparse
import asyncio
import contextlib
import datetime
import json
import logging
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from gateways import Bench, Gateway, furnish_callers, serving_gateway
from load import LoadGenerator, format_request, write_requests
from machine import (
    LOAD_CORE,
    ROOT,
    describe_commit,
    describe_machine,
    describe_packages,
    pin,
    read_memory_kib,
)
from nodes import Server
from rivals import find_programs
from upstream import serving_upstream

from tollway.sandbox.chain import ChainDriver, prepare_playground, run_anvil
from tollway.sandbox.provider import SampleProvider, run_provider

RESULTS = ROOT / "bench" / "results"
SAMPLE_S = 0.25
TENTHS = 10
FLAT_KIB = 10 * 1024
"""How much the memory may grow after the first tenth: the allocator's normal variation."""
STREAM_BYTES = 1024**3
SETTLED_S, SETTLED_S_MAX, SETTLED_KIB = 4.0, 120.0, 1_024
READERS = 1_000
OPENING_MAX = 50
"""So many readers wait for their heads at the same time: the provider is one Python process."""
HELD_S = 20.0
READ_EVERY_S = 1.0
READ_BYTES = 32_768
READ_AHEAD = 32_768
WINDOW_BYTES = 262_144
CALLS_A_ROUND_MIN_S, CALLS_A_ROUND_MAX_S = 2, 60

SETTINGS = {
    "TOLLWAY_LIMIT_IN_FLIGHT_PER_ADDRESS_MAX": "5000",
    "TOLLWAY_LIMIT_IN_FLIGHT_PER_ORIGIN_MAX": "5000",
    "TOLLWAY_LIMIT_FAILED_CALLS_PER_WINDOW": "100000",
}
"""A thousand readers from one address, of one wallet: only here."""


@dataclass(slots=True)
class Trace:
    """The memory of a process, sample by sample, in KiB."""

    pid: int
    samples: list[tuple[float, int]] = field(default_factory=list)

    def take(self) -> int:
        resident = read_memory_kib(self.pid)
        self.samples.append((time.monotonic(), resident))
        return resident

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async def sample() -> None:
            while True:
                self.take()
                await asyncio.sleep(SAMPLE_S)

        async with asyncio.TaskGroup() as group:
            sampling = group.create_task(sample())
            try:
                yield
            finally:
                sampling.cancel()

    async def wait_settled(self) -> int:
        """Waits until every queue is full: at most one MiB arrived in a few seconds."""
        ends = time.monotonic() + SETTLED_S_MAX
        before = self.take()
        while time.monotonic() < ends:
            await asyncio.sleep(SETTLED_S)
            now = self.take()
            if now - before < SETTLED_KIB:
                break
            before = now
        return before

    @property
    def peak(self) -> int:
        return max(resident for _, resident in self.samples)


async def count_calls(gateway: Gateway, folder: Path, *, calls: int, form: str, tell: Any) -> dict[str, Any]:
    """Makes so many calls in ten parts; resident memory after each part."""
    generator = LoadGenerator(wrk=find_programs(is_plain=False).wrk)
    trace, made, after, rate = Trace(gateway.child.pid), 0, [], 2_000.0
    before = trace.take()
    for part in range(TENTHS):
        while made < calls * (part + 1) // TENTHS:
            left = calls * (part + 1) // TENTHS - made
            seconds = int(min(CALLS_A_ROUND_MAX_S, max(CALLS_A_ROUND_MIN_S, left / rate + 1)))
            plain = form == "plain"
            requests = gateway.sign_plainly() if plain else gateway.sign_bound(int(left * 1.02) + 64)
            path = write_requests(folder / f"memory-{form}.requests", requests)
            outcome = await asyncio.to_thread(
                generator.run, gateway.port, path, connections=32, seconds=seconds, is_once=not plain
            )
            if outcome.refused or outcome.broken:
                raise RuntimeError(f"{outcome.refused} refused, {outcome.broken} broken")
            made += outcome.answers
            rate = max(1.0, outcome.answers / seconds)
        after.append(trace.take())
        tell(f"{made:,} calls, {form} signature: {after[-1] / 1024:.1f} MiB")
    return {
        "calls": made,
        "signature": form,
        "beforeKiB": before,
        "afterEachTenthKiB": after,
        "growthKiB": after[-1] - after[0],
        "bytesPerCall": round((after[-1] - after[0]) * 1024 / (made * 0.9), 2),
        "isFlat": after[-1] - after[0] <= FLAT_KIB,
    }


def dial(port: int) -> socket.socket:
    """Connects with a small receive window, so that unread bytes wait at the gateway and not in this process's
    kernel."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW_BYTES)
    line.connect(("127.0.0.1", port))
    line.setblocking(False)
    return line


async def read_slowly(
    gateway: Gateway, headers: Mapping[str, str], path: str, until: asyncio.Event, opening: asyncio.Semaphore
) -> None:
    """A caller that reads 32 KiB a second of an endless response. `opening`: how many wait for their heads at the
    same time. Raises RuntimeError for another response and at its end."""
    async with opening:
        reader, writer = await asyncio.open_connection(sock=dial(gateway.port), limit=READ_AHEAD)
        writer.write(format_request(gateway.port, gateway.path + path, headers.items()))
        head = await reader.readuntil(b"\r\n\r\n")
    try:
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"a reader was answered {head.splitlines()[0]!r}")
        while not until.is_set():
            if not await reader.read(READ_BYTES):
                raise RuntimeError("a reader was cut off")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(until.wait(), READ_EVERY_S)
    finally:
        writer.transport.abort()


async def hold_readers(
    gateway: Gateway, *, readers: int, held_s: float, size: int, tell: Any
) -> dict[str, Any]:
    """So many readers at once, for so long: memory per reader, and whether it grows meanwhile."""
    trace, until, opening = Trace(gateway.child.pid), asyncio.Event(), asyncio.Semaphore(OPENING_MAX)
    before = trace.take()
    async with trace.running(), asyncio.TaskGroup() as group:
        for number in range(readers):
            headers = dict(gateway.payments[number % len(gateway.payments)].sign())
            group.create_task(read_slowly(gateway, headers, f"/bytes/{size}", until, opening))
        settled = await trace.wait_settled()
        await asyncio.sleep(held_s)
        held = trace.take()
        until.set()
    await asyncio.sleep(2.0)
    told = {
        "readers": readers,
        "heldS": held_s,
        "beforeKiB": before,
        "settledKiB": settled,
        "atTheEndKiB": held,
        "afterTheyLeftKiB": trace.take(),
        "peakKiB": trace.peak,
        "kibPerReader": round((held - before) / readers, 1),
        "growthKiB": held - settled,
        "isFlat": held - settled <= FLAT_KIB,
    }
    tell(f"{readers:,} slow readers: {before / 1024:.1f} -> {held / 1024:.1f} MiB")
    return told


async def stream_once(gateway: Gateway, *, size: int, tell: Any) -> dict[str, Any]:
    """A caller that reads the whole response as fast as it arrives."""
    trace = Trace(gateway.child.pid)
    before, got = trace.take(), 0
    started = time.perf_counter()
    async with (
        trace.running(),
        aiohttp.ClientSession() as session,
        session.get(
            gateway.url + gateway.path + f"/bytes/{size}", headers=gateway.payments[0].sign(), timeout=None
        ) as answer,
    ):
        answer.raise_for_status()
        async for chunk in answer.content.iter_any():
            got += len(chunk)
    if got != size:
        raise RuntimeError(f"{got} bytes of {size}")
    seconds = time.perf_counter() - started
    tell(f"{size / 2**20:,.0f} MiB streamed: {before / 1024:.1f}, at most {trace.peak / 1024:.1f} MiB")
    return {
        "bytes": size,
        "mibPerSecond": round(size / 2**20 / seconds, 1),
        "beforeKiB": before,
        "peakKiB": trace.peak,
        "growthKiB": trace.peak - before,
        "isFlat": trace.peak - before <= FLAT_KIB,
    }


@contextlib.asynccontextmanager
async def standing(
    options: argparse.Namespace, folder: Path
) -> AsyncIterator[tuple[Bench, str, SampleProvider]]:
    async with run_anvil() as anvil, aiohttp.ClientSession() as session, run_provider() as provider:
        driver = ChainDriver(session, anvil.rpc_url, anvil.chain_id)
        playground = await prepare_playground(driver)
        bench = await furnish_callers(driver, playground, folder, count=options.payers)
        if options.database == "sqlite":
            yield bench, f"sqlite:///{folder}/memory.sqlite3", provider
            return
        (folder / "pg").mkdir()
        server = Server(folder / "pg")
        try:
            yield bench, await server.make_database("memory"), provider
        finally:
            server.close()


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    pin(LOAD_CORE)
    begun, started = datetime.datetime.now(datetime.UTC), time.monotonic()

    def tell(text: str) -> None:
        print(f"[{time.monotonic() - started:5.0f} s] {text}", file=sys.stderr, flush=True)

    found: dict[str, Any] = {"startedAt": begun.strftime("%Y-%m-%d %H:%M UTC"), "database": options.database}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.folder) as name:
        folder = Path(name)
        found["machine"] = describe_machine(folder)
        async with standing(options, folder) as (bench, database_url, provider):
            nginx = find_programs(is_plain=False).nginx
            async with (
                serving_upstream(folder, nginx) as upstream,
                serving_gateway(
                    "memory-calls", bench, database_url=database_url, upstream_url=upstream.url
                ) as gateway,
            ):
                await asyncio.sleep(2.0)
                found["idleKiB"] = read_memory_kib(gateway.child.pid)
                tell(f"idle: {found['idleKiB'] / 1024:.1f} MiB")
                forms = (("plain", options.calls), ("bound", options.bound_calls))
                for form, calls in forms:
                    if calls:
                        told = await count_calls(gateway, folder, calls=calls, form=form, tell=tell)
                        found[f"{form}Calls"] = told
            async with serving_gateway(
                "memory-streams",
                bench,
                database_url=database_url,
                upstream_url=provider.base_url,
                settings=SETTINGS,
            ) as gateway:
                for _ in range(2):  # the first of them warms it up
                    found["stream"] = await stream_once(gateway, size=options.stream_bytes, tell=tell)
                found["slowReaders"] = await hold_readers(
                    gateway, readers=options.readers, held_s=options.held, size=STREAM_BYTES, tell=tell
                )
    found |= {"commit": describe_commit(), "versions": describe_packages()}
    found["tookS"] = round(time.monotonic() - started, 1)
    return found


def write_markdown(found: dict[str, Any]) -> str:
    commit = found["commit"]
    dirty = ", with changes that are not in it" if commit["isDirty"] else ""
    machine = found["machine"]
    lines = [
        f"# Memory of {found['startedAt']}, {found['database']}",
        "",
        f"Commit `{commit['commit']}`{dirty}. {machine['cpu']}, {machine['cores']} cores, databases on "
        f"{machine['databasesOn']}; load of the machine before: {machine['loadBefore']}. {found['tookS']} s in all.",
        "",
        "Resident memory of one `tollway gateway serve`, MiB. Growth: of calls, from the end of the first tenth to the last; of the "
        "stream, from before it to its peak; of slow readers, while all their queues were full.",
        "",
        "| work | before | after or at most | growth | flat (≤ 10 MiB) |",
        "|---|---|---|---|---|",
        f"| idle | | {found['idleKiB'] / 1024:.1f} | | |",
    ]
    for form in ("plain", "bound"):
        told = found.get(f"{form}Calls")
        if told:
            lines.append(
                write_row(
                    f"{told['calls']:,} paid calls, {form} signature", told, told["afterEachTenthKiB"][-1]
                )
            )
    stream, readers = found["stream"], found["slowReaders"]
    lines.append(write_row(f"{stream['bytes'] / 2**20:,.0f} MiB in one stream", stream, stream["peakKiB"]))
    lines.append(
        write_row(
            f"{readers['readers']:,} slow readers for {readers['heldS']:.0f} s",
            readers,
            readers["atTheEndKiB"],
        )
    )
    lines += ["", f"A slow reader takes {readers['kibPerReader']} KiB.", ""]
    return "\n".join(lines)


def write_row(work: str, told: dict[str, Any], last: int) -> str:
    flat = "yes" if told["isFlat"] else "**no**"
    return f"| {work} | {told['beforeKiB'] / 1024:.1f} | {last / 1024:.1f} | {told['growthKiB'] / 1024:+.1f} | {flat} |"


def write_results(found: dict[str, Any]) -> Path:
    commit, day = found["commit"], found["startedAt"].split(" ")[0]
    dirty = "-dirty" if commit["isDirty"] else ""
    path = RESULTS / f"{day}-{(commit['commit'] or 'nowhere')[:9]}{dirty}-memory-{found['database']}"
    RESULTS.mkdir(exist_ok=True)
    path.with_name(path.name + ".json").write_text(json.dumps(found, indent=1) + "\n")
    path.with_name(path.name + ".md").write_text(write_markdown(found))
    return path.with_name(path.name + ".md")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--short", action="store_true", help="a minute or two")
    parser.add_argument("--calls", type=int, help="with plain signatures: 1,000,000; short: 30,000")
    parser.add_argument("--bound-calls", type=int, help="with bound ones: 100,000; short: 10,000")
    parser.add_argument("--readers", type=int, default=READERS)
    parser.add_argument("--held", type=float, default=HELD_S, help="how long they are there, seconds")
    parser.add_argument("--stream-bytes", type=int, help="1 GiB; short: 256 MiB")
    parser.add_argument("--payers", type=int, default=32)
    parser.add_argument("--folder", help="where databases are made; not on tmpfs")
    options = parser.parse_args()
    options.calls = (30_000 if options.short else 1_000_000) if options.calls is None else options.calls
    if options.bound_calls is None:
        options.bound_calls = 10_000 if options.short else 100_000
    options.stream_bytes = options.stream_bytes or (STREAM_BYTES // 4 if options.short else STREAM_BYTES)
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # callers that leave are expected here
    found = uvloop.run(measure(options))
    print(write_results(found))
    print(write_markdown(found))


if __name__ == "__main__":
    main()
