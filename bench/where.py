"""Where the CPU of a paid call goes in a real `tollway gateway serve` under load: by thread, then by function. Markdown on standard output.

    python bench/where.py [--database sqlite|postgres] [--form plain|bound] [--connections 32] [--gil] [--least 2]

CPU by thread is exact: the kernel counts it, under a load that is not sampled. Within a thread `py-spy` samples a second load (in
the bench's virtualenv: `make bench` makes it). It stops the process for each sample, so only its proportions are
used. A thread that waits for a disk counts as busy there: `--gil` takes only samples that run Python, and leaves out what
libraries do without its lock. Lines with a system call weigh a little too much. Needs the right to trace a child.
"""

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import aiohttp
import uvloop
from gateways import Gateway, furnish_callers, serving_gateway
from load import LoadGenerator, Outcome, write_requests
from machine import LOAD_CORE, TICK_S, list_family, pin
from nodes import Server
from rivals import VENV, find_programs
from upstream import serving_upstream
from variety import HEADS, PATHS

from tollway.sandbox.chain import ChainDriver, prepare_playground, run_anvil

SPY = VENV / "bin" / "py-spy"
SIGNED_PER_S = 4_000
WARM_S, LEAD_S = 3, 1
LEAST_THREAD_US = 0.5
FUNCTIONS_MAX = 40
_PACKAGES = re.compile(r"\(.*?/(?:site-packages|src|lib/python3\.\d+)/")
_LINE = re.compile(r":\d+\)$")
_THREAD = re.compile(r"thread \((\d+)\)(?:: (.*))?")

Frames = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadUse:
    """The CPU use of a thread so far, and its voluntary and involuntary context switches."""

    name: str
    cpu_s: float
    system_s: float
    voluntary: int
    involuntary: int

    @classmethod
    def read(cls, task: Path) -> Self:
        """Raises OSError when the process has ended."""
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        switches = [
            int(line.split()[1])
            for line in (task / "status").read_text().splitlines()
            if "ctxt_switches" in line
        ]
        return cls(
            name=(task / "comm").read_text().strip(),
            cpu_s=int((task / "schedstat").read_text().split()[0]) / 1e9,
            system_s=int(fields[12]) * TICK_S,
            voluntary=switches[0],
            involuntary=switches[1],
        )

    def since(self, before: Self | None) -> Self:
        if before is None:
            return self
        return type(self)(
            name=self.name,
            cpu_s=self.cpu_s - before.cpu_s,
            system_s=self.system_s - before.system_s,
            voluntary=self.voluntary - before.voluntary,
            involuntary=self.involuntary - before.involuntary,
        )


def read_threads(pid: int) -> dict[int, ThreadUse]:
    """The threads of a process and of all its descendants."""
    found = {}
    for one in list_family(pid):
        for task in Path(f"/proc/{one}/task").iterdir():
            try:
                found[int(task.name)] = ThreadUse.read(task)
            except OSError:
                continue
    return found


@dataclass(slots=True)
class Node:
    """A function in the tree of calls: samples in it and below it."""

    count: int = 0
    below: dict[str, "Node"] = field(default_factory=lambda: defaultdict(Node))

    def add(self, frames: Iterable[str], count: int) -> None:
        node = self
        node.count += count
        for frame in frames:
            node = node.below[frame]
            node.count += count

    def write(self, us_each: float, least_us: float, depth: int = 0) -> Iterator[str]:
        for name, node in sorted(self.below.items(), key=lambda item: -item[1].count):
            if node.count * us_each >= least_us:
                own = node.count - sum(one.count for one in node.below.values())
                yield f"{'  ' * depth}{node.count * us_each:.1f} (itself {own * us_each:.1f}) {name}"
                yield from node.write(us_each, least_us, depth + 1)


def parse_stacks(text: str) -> dict[int, tuple[str, Counter[Frames]]]:
    """`py-spy record --format raw` -> by thread: its name, and how often each stack was seen, outermost function first."""
    names: dict[int, str] = {}
    stacks: dict[int, Counter[Frames]] = defaultdict(Counter)
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        head, *frames = stack.split(";")
        thread = _THREAD.match(head)
        if thread is not None and frames:
            number = int(thread[1])
            names[number] = thread[2] or ""
            stacks[number][tuple(shorten(frame) for frame in frames)] += int(count)
    return {number: (names[number], stacks[number]) for number in stacks}


def shorten(frame: str) -> str:
    return _LINE.sub(")", _PACKAGES.sub("(", frame))


def write_threads(used: dict[int, ThreadUse], names: dict[int, str], answers: int) -> Iterator[str]:
    yield "| thread | CPU us a call | of it the kernel | switches a call, voluntary | involuntary |"
    yield "|---|---|---|---|---|"
    for number, use in sorted(used.items(), key=lambda item: -item[1].cpu_s):
        cpu_us = use.cpu_s / answers * 1e6
        if cpu_us >= LEAST_THREAD_US:
            yield (
                f"| {names.get(number) or use.name} {number} | {cpu_us:.1f} | {use.system_s / answers * 1e6:.1f} "
                f"| {use.voluntary / answers:.2f} | {use.involuntary / answers:.2f} |"
            )


def write_stacks(name: str, stacks: Counter[Frames], cpu_us: float, least_us: float) -> Iterator[str]:
    total = stacks.total()
    us_each = cpu_us / total
    tree, own, whole = Node(), Counter[str](), Counter[str]()
    for frames, count in stacks.items():
        tree.add(frames, count)
        own[frames[-1]] += count
        for frame in set(frames):
            whole[frame] += count
    yield from ("", f"## {name}: {cpu_us:.1f} us, {total} samples", "", "```")
    yield from tree.write(us_each, least_us)
    yield from ("```", "", "| function | itself, us | with what it calls |", "|---|---|---|")
    for frame, count in own.most_common(FUNCTIONS_MAX):
        if count * us_each >= least_us / 2:
            yield f"| {frame} | {count * us_each:.1f} | {whole[frame] * us_each:.1f} |"


@asynccontextmanager
async def serving(options: argparse.Namespace, folder: Path) -> AsyncIterator[Gateway]:
    nginx = find_programs().nginx
    async with (
        run_anvil() as anvil,
        aiohttp.ClientSession() as session,
        serving_upstream(folder, nginx) as upstream,
    ):
        driver = ChainDriver(session, anvil.rpc_url, anvil.chain_id)
        bench = await furnish_callers(driver, await prepare_playground(driver), folder, count=options.payers)
        server, url = None, f"sqlite:///{folder}/where.sqlite3"
        if options.database == "postgres":
            (folder / "pg").mkdir()
            server = Server(folder / "pg")
            url = await server.make_database("bench")
        try:
            async with serving_gateway(
                "where", bench, database_url=url, upstream_url=upstream.url
            ) as gateway:
                yield gateway
        finally:
            if server is not None:
                server.close()


def put_load(options: argparse.Namespace, gateway: Gateway, folder: Path, seconds: int) -> Outcome:
    """Runs the load. Raises RuntimeError for an unexpected response."""
    varied = {"heads": options.heads, "paths": options.paths}
    is_plain = options.form == "plain"
    requests = (
        gateway.sign_plainly(**varied) if is_plain else gateway.sign_bound(seconds * SIGNED_PER_S, **varied)
    )
    generator = LoadGenerator(wrk=find_programs().wrk if options.connections > 1 else None)
    outcome = generator.run(
        gateway.port,
        write_requests(folder / "requests", requests),
        connections=options.connections,
        seconds=seconds,
        is_once=not is_plain,
    )
    if outcome.refused or outcome.broken or not outcome.answers:
        raise RuntimeError(f"{outcome}; its log ends: {gateway.child.tell_end()}")
    return outcome


async def watch(options: argparse.Namespace, gateway: Gateway, folder: Path) -> str:
    """py-spy's output for a load."""
    raw = folder / "stacks"
    command = [str(SPY), "record", "--pid", str(gateway.child.pid), "--threads", "--rate", str(options.rate)]
    command += ["--duration", str(options.watched), "--format", "raw", "-o", str(raw)]
    command += ["--gil"] if options.gil else []
    async with asyncio.TaskGroup() as group:
        seconds = options.watched + 2 * LEAD_S
        group.create_task(asyncio.to_thread(put_load, options, gateway, folder, seconds))
        await asyncio.sleep(LEAD_S)
        told = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    if told.returncode:
        raise RuntimeError(told.stderr)
    return raw.read_text()


async def measure(options: argparse.Namespace) -> AsyncIterator[str]:
    pin(LOAD_CORE)
    with tempfile.TemporaryDirectory(prefix="where-", dir=options.folder) as name:
        folder = Path(name)
        async with serving(options, folder) as gateway:
            put_load(options, gateway, folder, WARM_S)
            before = read_threads(gateway.child.pid)
            outcome = put_load(options, gateway, folder, options.seconds)
            after = read_threads(gateway.child.pid)
            stacks = parse_stacks(await watch(options, gateway, folder))
    used = {number: use.since(before.get(number)) for number, use in after.items()}
    cpu_us = {number: use.cpu_s / outcome.answers * 1e6 for number, use in used.items()}
    yield (
        f"{outcome.answers} answers, {outcome.in_time / outcome.seconds:.0f} a second, {options.connections} connections, "
        f"{options.form}, {options.database}: {sum(cpu_us.values()):.0f} us of CPU a call\n"
    )
    for line in write_threads(used, {number: told for number, (told, _) in stacks.items()}, outcome.answers):
        yield line
    for number, (told, seen) in sorted(stacks.items(), key=lambda item: -cpu_us.get(item[0], 0)):
        if cpu_us.get(number, 0) >= 2 * options.least:
            for line in write_stacks(told, seen, cpu_us[number], options.least):
                yield line


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--form", choices=("plain", "bound"), default="plain")
    parser.add_argument("--heads", choices=HEADS, default="same")
    parser.add_argument("--paths", choices=PATHS, default="same")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--payers", type=int, default=16)
    parser.add_argument("--seconds", type=int, default=8, help="of the load that is not watched")
    parser.add_argument("--watched", type=int, default=25, help="seconds of the other one")
    parser.add_argument("--rate", type=int, default=150, help="samples a second")
    parser.add_argument("--gil", action="store_true", help="only samples that run Python")
    parser.add_argument("--least", type=float, default=2.0, help="us a call, for a line of the trees")
    parser.add_argument("--folder", help="where the database is made; not on tmpfs")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    if not SPY.exists():
        sys.exit(f"no {SPY}: `make bench` installs what the benches need")

    async def run() -> None:
        async for line in measure(options):
            print(line, flush=True)

    uvloop.run(run())


if __name__ == "__main__":
    main()
