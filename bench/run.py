"""`make bench`: Tollway beside Envoy, nginx and the x402 middleware, in one run, on one machine. What and how:
docs/measuring.md and each module's first lines.

Writes JSON and Markdown to bench/results/ and prints the table of goals. `--short` takes less than two minutes and is
for work on the code; quoted figures come from the long form on a machine without other load:

1. A clean commit, two cores without other load, and a disk below `/tmp` or `--folder`. A Python 3.13 built with
   `--enable-optimizations --with-lto`: that of Debian 13, of the image python:3.13, or of pyenv with these options in
   `PYTHON_CONFIGURE_OPTS`. `make clean install PYTHON=python3.13` takes five minutes and 1.5 GB.
2. `make bench` twice, eleven minutes each. A second result of one commit has a name of its own. Commit the files of both.
3. The first table of a result begins with what a provider would run instead: the x402 middleware as deployed, then in one
   process, then Envoy, the limit of a gateway behind it. Of each row the lower figure of the two results goes into the README
   (below "Beside other ways") and into docs/measuring.md (below "What is compared"), with commit, machine and Python.
4. A goal counts as reached when both results say "yes".

One goal alone in its long form: `--stages latency` (a paid call at one connection, three minutes), `--stages streaming` (the
first byte of 100 MiB, 30 s), `--stages presentation` (the first presentation of a payment, 20 s).
"""

import argparse
import compileall
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from first_calls import counting, show_first
from gateways import VARIED, Bench, Gateway, furnish_callers, serving_gateway
from latency import Delays
from load import LoadGenerator, format_request
from machine import (
    GATEWAY_CORE,
    LOAD_CORE,
    ROOT,
    count_server_cpu_s,
    describe_commit,
    describe_machine,
    describe_packages,
    pin,
)
from nodes import Server
from report import Row, judge, write_markdown
from rivals import Programs, Rival, find_programs, pay_x402, serving_envoy, serving_nginx, serving_x402
from search import measure_search
from starting import time_starts
from streaming import Streams
from throughput import Cell, compare, compare_cpu, find_spread, run_rounds
from upstream import Upstream, serving_upstream
from variety import HEADS, PATH, PATHS, vary_headers, vary_path
from x402_rival import PATH as X402_PATH

from tollway.app.doctor_findings import is_optimised_build
from tollway.sandbox.chain import ChainDriver, prepare_playground, run_anvil

RESULTS = ROOT / "bench" / "results"
OTHERS_SHARE_MAX = 0.25
"""The most CPU of other processes, as a part of the measured core. Some of it is the kernel's work for the packets of the measured program."""
ENVOY_SPREAD_MAX = 0.10
"""The most by which Envoy's best round may exceed its worst. Beyond it the machine was not quiet."""
SLOW_BUILD = "Python was built without profile-guided optimisation, and Envoy and nginx are release builds: a tenth of each ratio is the build."
STAGES = ("start", "presentation", "search", "throughput", "latency", "streaming")


@dataclass(slots=True, kw_only=True)
class Run:
    """One run: its options, its processes, its results so far."""

    options: argparse.Namespace
    programs: Programs
    generator: LoadGenerator
    folder: Path
    bench: Bench
    upstream: Upstream
    found: dict[str, Any] = field(default_factory=dict)
    rivals: dict[str, Rival] = field(default_factory=dict)
    gateways: dict[str, Gateway] = field(default_factory=dict)
    database_urls: dict[str, str] = field(default_factory=dict)
    server: Server | None = None
    started: float = field(default_factory=time.monotonic)

    def tell(self, text: str) -> None:
        if not self.options.quiet:
            print(f"[{time.monotonic() - self.started:5.0f} s] {text}", file=sys.stderr, flush=True)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    pin(LOAD_CORE)
    programs = find_programs(is_plain=options.plain)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.folder) as name:
        folder = Path(name)
        machine, begun = describe_machine(folder), datetime.datetime.now(datetime.UTC)
        async with (
            run_anvil() as anvil,
            aiohttp.ClientSession() as session,
            serving_upstream(folder, programs.nginx) as upstream,
        ):
            driver = ChainDriver(session, anvil.rpc_url, anvil.chain_id)
            playground = await prepare_playground(driver)
            run = Run(
                options=options,
                programs=programs,
                generator=LoadGenerator(wrk=programs.wrk),
                folder=folder,
                bench=await furnish_callers(driver, playground, folder, count=options.payers),
                upstream=upstream,
            )
            await run_stages(run)
    run.found |= {
        "run": describe_run(run, begun),
        "commit": describe_commit(),
        "machine": machine,
        "versions": describe_packages() | programs.describe() | run.found.pop("databases", {}),
        "notes": list_notes(run, machine),
    }
    return run.found


async def run_stages(run: Run) -> None:
    stages = run.options.stages
    if "start" in stages:
        await measure_starts(run)
    if "presentation" in stages:
        await measure_presentations(run)
    if "search" in stages:
        run.tell("search: the questions of the relevance set, and a million vectors")
        run.found["search"] = await measure_search(run.folder, has_postgres=not run.options.no_postgres)
    if set(stages) & {"throughput", "latency", "streaming"}:
        async with AsyncExitStack() as stack:
            await serve_all(run, stack)
            if "throughput" in stages:
                await measure_throughput(run)
            if "latency" in stages:
                measure_latency(run)
            if "streaming" in stages:
                measure_streaming(run)


async def measure_starts(run: Run) -> None:
    # A wheel is compiled when it is installed; a checkout that was never run is not.
    compileall.compile_dir(ROOT / "src", quiet=1)
    run.found["start"] = await time_starts(
        run.folder,
        rpc_url=run.bench.driver.rpc_url,
        gas_key=run.bench.playground.account("gas").private_key,
        rounds=run.options.starts,
        idle_s=run.options.idle_seconds,
        tell=run.tell,
    )


async def measure_presentations(run: Run) -> None:
    async with (
        counting(run.bench.driver.rpc_url) as line,
        serving_gateway(
            "presentation",
            run.bench,
            database_url=f"sqlite:///{run.folder}/presentation.sqlite3",
            upstream_url=run.upstream.url,
            rpc_url=line.url,
            is_known=False,
        ) as gateway,
    ):
        run.found["firstPresentation"] = await show_first(gateway, line, tell=run.tell)


async def serve_all(run: Run, stack: AsyncExitStack) -> None:
    """Starts all programs and gateways; only one of them has load at a time."""
    programs, port = run.programs, run.upstream.port
    if programs.envoy is not None:
        run.rivals["envoy"] = await stack.enter_async_context(serving_envoy(programs.envoy, port, run.folder))
    if programs.nginx is not None:
        run.rivals["nginx"] = await stack.enter_async_context(serving_nginx(programs.nginx, port, run.folder))
    run.rivals["x402"] = await stack.enter_async_context(serving_x402(run.folder))
    run.rivals["x402 deployed"] = await stack.enter_async_context(
        serving_x402(run.folder, upstream_url=run.upstream.url)
    )
    run.database_urls["sqlite"] = f"sqlite:///{run.folder}/sqlite.sqlite3"
    if not run.options.no_postgres:
        (run.folder / "pg").mkdir()
        server = Server(run.folder / "pg")
        stack.callback(server.close)
        run.server = server
        run.database_urls["postgres"] = await server.make_database("bench")
        durability = [str((await server.ask(f"SHOW {name}"))[0]) for name in ("fsync", "synchronous_commit")]
        version = str((await server.ask("SHOW server_version"))[0])
        run.found["databases"] = {
            "PostgreSQL": f"{version} (fsync {durability[0]}, synchronous_commit {durability[1]})"
        }
    for name, url in run.database_urls.items():
        run.gateways[name] = await stack.enter_async_context(
            serving_gateway(name, run.bench, database_url=url, upstream_url=run.upstream.url)
        )
    run.found.setdefault("databases", {})["SQLite"] = tell_sqlite()
    run.tell("all stand: " + ", ".join([*run.rivals, *run.gateways]))


def tell_sqlite() -> str:
    asked = "import bare_commits; print(bare_commits.sqlite.sqlite_version)"
    told = subprocess.run(
        (sys.executable, "-c", asked),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    return told.stdout.strip()


def proxy_cells(run: Run) -> list[Cell]:
    """The upstream itself, then the plain proxies before it. They get the same requests as a gateway, headers
    included."""
    headers = run.gateways["sqlite"].payments[0].sign()
    directly = Rival(name="upstream directly", port=run.upstream.port, child=run.upstream.child)
    stands = [directly, *(run.rivals[name] for name in ("envoy", "nginx") if name in run.rivals)]
    cells = [make_cell(stand.name, stand, [format_request(stand.port, PATH, headers)]) for stand in stands]
    cells[0].core = LOAD_CORE
    return cells


def paid_cells(run: Run) -> list[Cell]:
    """For each gateway: the same requests repeatedly, plain and bound."""
    return [
        cell
        for name, gateway in run.gateways.items()
        for cell in (
            make_cell(f"{name} plain", gateway, gateway.sign_plainly(), database=find_database(run, name)),
            make_bound_cell(run, f"{name} bound", gateway),
        )
    ]


def varied_cells(run: Run) -> list[Cell]:
    """Requests that differ by `--heads` and `--paths`: to Envoy, and paid ones to each gateway."""
    heads, paths = run.options.heads, run.options.paths
    cells = []
    if "envoy" in run.rivals:
        envoy, signed = run.rivals["envoy"], run.gateways["sqlite"].payments[0].sign()
        requests = [
            format_request(envoy.port, vary_path(paths, number), (*signed, *vary_headers(heads, number)))
            for number in range(VARIED)
        ]
        cells.append(make_cell("envoy varied", envoy, requests))
    for name, gateway in run.gateways.items():
        requests = gateway.sign_plainly(heads=heads, paths=paths)
        database = find_database(run, name)
        cells.append(make_cell(f"{name} plain varied", gateway, requests, database=database))
    sqlite = run.gateways["sqlite"]
    return [*cells, make_bound_cell(run, "sqlite bound varied", sqlite, heads=heads, paths=paths)]


def find_database(run: Run, name: str) -> Callable[[], float] | None:
    """The counter of the CPU of that gateway's database server. SQLite has none."""
    if name != "postgres" or run.server is None:
        return None
    return partial(count_server_cpu_s, run.server.postmaster)


def make_bound_cell(
    run: Run, name: str, gateway: Gateway, *, heads: str = "same", paths: str = "same"
) -> Cell:
    return Cell(
        name=name,
        port=gateway.port,
        child=gateway.child,
        prepare=partial(gateway.sign_bound, heads=heads, paths=paths),
        is_once=True,
        database=find_database(run, gateway.name),
    )


async def middleware_cells(run: Run) -> list[Cell]:
    """Paid calls at both forms of the middleware; unpaid ones at its fastest form and at the gateway."""
    rival, gateway = run.rivals["x402"], run.gateways["sqlite"]
    cells = []
    for name in ("x402", "x402 deployed"):
        paying = format_request(run.rivals[name].port, X402_PATH, await pay_x402(run.rivals[name]))
        cells.append(make_cell(name, run.rivals[name], [paying]))
    unpaid = [format_request(rival.port, X402_PATH)]
    cells.append(make_cell("x402 402", rival, unpaid, are_refused=True))
    unpaid = [format_request(gateway.port, gateway.path + PATH)]
    return [*cells, make_cell("402", gateway, unpaid, are_refused=True)]


def make_cell(
    name: str,
    stand: Rival | Gateway,
    requests: Sequence[bytes],
    *,
    are_refused: bool = False,
    database: Callable[[], float] | None = None,
) -> Cell:
    """A cell of requests that may be sent repeatedly."""
    return Cell(
        name=name,
        port=stand.port,
        child=stand.child,
        prepare=lambda _: requests,
        are_refused=are_refused,
        database=database,
    )


COMPARED = (
    ("sqlite plain", "envoy"),
    ("sqlite bound", "envoy"),
    ("postgres plain", "envoy"),
    ("postgres bound", "envoy"),
    ("sqlite plain varied", "envoy varied"),
    ("sqlite bound varied", "envoy varied"),
    ("postgres plain varied", "envoy varied"),
    ("envoy varied", "envoy"),
    ("sqlite plain varied", "sqlite plain"),
    ("sqlite plain", "x402"),
    ("sqlite bound", "x402"),
    ("postgres plain", "x402"),
    ("sqlite plain", "x402 deployed"),
    ("sqlite bound", "x402 deployed"),
    ("postgres plain", "x402 deployed"),
    ("envoy", "x402"),
    ("sqlite plain", "nginx"),
    ("envoy", "nginx"),
    ("402", "x402 402"),
)


async def measure_throughput(run: Run) -> None:
    options = run.options
    cells = [*proxy_cells(run), *paid_cells(run), *varied_cells(run), *await middleware_cells(run)]
    cells = choose_cells(cells, options)
    run_rounds(
        cells,
        run.generator,
        run.folder,
        rounds=options.rounds,
        connections=options.connections,
        seconds=options.seconds,
        warm=[cell for cell in cells if not options.short or cell.child.name in run.gateways],
        tell=run.tell,
    )
    by_name = {cell.name: cell for cell in cells}
    run.found["throughput"] = {cell.name: cell.tell() for cell in cells}
    pairs = [(ours, theirs) for ours, theirs in COMPARED if ours in by_name and theirs in by_name]
    for told, measure_pair in (("ratios", compare), ("cpuRatios", compare_cpu)):
        run.found[told] = {
            f"{ours} / {theirs}": measure_pair(by_name[ours], by_name[theirs]) for ours, theirs in pairs
        }
    if "envoy" in by_name:
        spread = find_spread(by_name["envoy"])
        run.found["envoySpread"] = {"share": round(spread, 3), "isQuiet": spread <= ENVOY_SPREAD_MAX}


def choose_cells(cells: Sequence[Cell], options: argparse.Namespace) -> list[Cell]:
    """The cells of `--cells`, or all. Raises ValueError for an unknown name."""
    unknown = set(options.cells or ()) - {cell.name for cell in cells}
    if unknown:
        raise ValueError(f"no such cells: {sorted(unknown)}; there are {[cell.name for cell in cells]}")
    return [cell for cell in cells if not options.cells or cell.name in options.cells]


def measure_latency(run: Run) -> None:
    cells = [*proxy_cells(run), *paid_cells(run)]
    delays = Delays(cells, {f"bare commit, {name}": url for name, url in bare_urls(run).items()})
    delays.run_rounds(run.folder, rounds=run.options.delay_rounds, seconds=run.options.seconds, tell=run.tell)
    run.found["latency"] = delays.tell()
    over = "upstream directly"
    run.found["added"] = {
        name: delays.tell_added(name, over=over, beyond=None)
        for name in ("envoy", "nginx")
        if name in run.rivals
    } | {
        f"{name} {form}": delays.tell_added(f"{name} {form}", over=over, beyond=f"bare commit, {name}")
        for name in run.gateways
        for form in ("plain", "bound")
    }


def bare_urls(run: Run) -> dict[str, str]:
    """SQLite: a separate file on the same file system; PostgreSQL: a separate table on the same server."""
    return run.database_urls | {"sqlite": f"sqlite:///{run.folder}/bare.sqlite3"}


def measure_streaming(run: Run) -> None:
    gateway = run.gateways["sqlite"]
    requests = {"upstream directly": (run.upstream.port, format_request(run.upstream.port, "/blob"))}
    for name in ("envoy", "nginx"):
        if name in run.rivals:
            port = run.rivals[name].port
            requests[name] = (port, format_request(port, "/blob"))
    paid = format_request(gateway.port, gateway.path + "/blob", gateway.payments[0].sign())
    requests["paid call"] = (gateway.port, paid)
    streams = Streams(requests, gateway_pid=gateway.child.pid)
    streams.run_rounds(rounds=run.options.rounds, tell=run.tell)
    told = streams.tell()
    run.found["streaming"] = {
        "gatewayMemory": told.pop("gatewayMemory"),
        "streams": told,
        "firstByteAddedMs": streams.tell_first_byte_added("paid call", "upstream directly"),
        "peakGrowthKiB": streams.peak_growth_kib(),
    }
    if "nginx" in run.rivals:
        run.found["streaming"]["overNginx"] = streams.compare("paid call", "nginx")


def describe_run(run: Run, begun: datetime.datetime) -> dict[str, Any]:
    options = run.options
    return {
        "startedAt": begun.strftime("%Y-%m-%d %H:%M UTC"),
        "tookS": round(time.monotonic() - run.started, 1),
        "mode": "short form" if options.short else "long form",
        "stages": options.stages,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "connections": options.connections,
        "payers": options.payers,
        "varied": {"heads": options.heads, "paths": options.paths},
        "load": run.generator.kind,
        "upstream": run.upstream.kind,
    }


def list_notes(run: Run, machine: dict[str, Any]) -> list[str]:
    """The notes that a reader needs before the figures."""
    cores = machine["cores"]
    notes = [
        f"Core {GATEWAY_CORE}: the rival or gateway whose turn it is; the others stand idle there. Core {LOAD_CORE}: load, "
        "upstream, chain node and PostgreSQL, so what its database takes slows a gateway's load on PostgreSQL."
    ]
    if cores < 2:
        notes.append("One core only: nothing is pinned, and the ratios mean little.")
    if not is_optimised_build():
        notes.append(SLOW_BUILD)
    if run.options.short:
        notes.append("Short form: too few and too short rounds for a figure that is quoted.")
    if machine["databasesOn"] in ("tmpfs", "ramfs"):
        notes.append("The databases are in memory: a flush is none, and no figure here is one of production.")
    if machine["loadBefore"][0] > 0.5:
        notes.append(f"The machine was not quiet: load {machine['loadBefore'][0]} before the run.")
    busy = [told["othersOnItsCore"] for told in run.found.get("throughput", {}).values()]
    if busy and statistics.median(busy) > OTHERS_SHARE_MAX:
        notes.append(
            f"Others took {statistics.median(busy):.2f} of the measured core meanwhile: do not quote these figures."
        )
    spread = run.found.get("envoySpread")
    if spread is not None and not spread["isQuiet"]:
        notes.append(
            f"Envoy's own rounds differ by {spread['share']:.0%}, more than {ENVOY_SPREAD_MAX:.0%}: the machine was not quiet, "
            "and no goal counts as reached by this run."
        )
    if run.programs.wrk is None:
        notes.append(
            "No wrk: the load is generated in Python, which may be slower than a plain proxy; see the load's core."
        )
    notes += [f"No {name}: {why}." for name, why in run.programs.why.items()]
    missing = [stage for stage in STAGES if stage not in run.options.stages]
    if missing:
        notes.append(f"Left out: {', '.join(missing)}.")
    return notes


def write_results(found: dict[str, Any], rows: list[Row]) -> Path:
    """Writes files named after the day and the commit; a short form never replaces a long one, nor a second run the first."""
    commit = found["commit"]
    day = found["run"]["startedAt"].split(" ")[0]
    short = "-short" if found["run"]["mode"] == "short form" else ""
    name = f"{day}-{(commit['commit'] or 'nowhere')[:9]}{'-dirty' if commit['isDirty'] else ''}"
    RESULTS.mkdir(exist_ok=True)
    number = 1
    while (path := RESULTS / f"{name}{f'-{number}' if number > 1 else ''}{short}.md").exists():
        number += 1
    path.with_suffix(".json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    path.write_text(write_markdown(found, rows))
    return path


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="less than two minutes")
    parser.add_argument("--rounds", type=int, help="5; short: 3")
    parser.add_argument("--seconds", type=int, help="for each figure in each round: 4; short: 1")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--payers", type=int, help="each with payments of its own: 32; short: 16")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--cells", nargs="+", help="only these rows of the throughput, by their names")
    parser.add_argument("--heads", choices=HEADS, default="vary", help="of the varied rows")
    parser.add_argument("--paths", choices=PATHS, default="vary", help="of the varied rows")
    parser.add_argument("--no-postgres", action="store_true")
    parser.add_argument(
        "--slow-build", action="store_true", help="measure although Python is not an optimised build"
    )
    parser.add_argument("--plain", action="store_true", help="as if nginx and wrk were not to be had")
    parser.add_argument("--folder", help="where databases are made; not on tmpfs")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    options = parser.parse_args()
    options.rounds = options.rounds or (3 if options.short else 5)
    options.seconds = options.seconds or (1 if options.short else 4)
    options.payers = options.payers or (16 if options.short else 32)
    options.delay_rounds = min(options.rounds, 2) if options.short else options.rounds
    options.starts = 1 if options.short else 5
    options.idle_seconds = 2.0 if options.short else 10.0
    return options


def refuse_slow_build() -> None:
    """Envoy and nginx are release builds: a Python without profile-guided optimisation beside them measures its build."""
    if not is_optimised_build():
        sys.exit(
            f"{platform.python_version()}: {SLOW_BUILD} Use an optimised Python, or measure this one with --slow-build; the result says so."
        )


def main() -> None:
    options = read_options()
    if not options.slow_build:
        refuse_slow_build()
    found = uvloop.run(measure(options))
    rows = judge(found)
    found["goals"] = [
        {
            "measured": row.title,
            "median": row.figure,
            "spread": row.spread,
            "cpuOverEnvoy": row.cpu,
            "goal": row.goal,
            "beyond": row.beyond,
            "isReached": row.is_reached,
            "isQuiet": found.get("envoySpread", {}).get("isQuiet"),
        }
        for row in rows
    ]
    path = write_results(found, rows)
    text = path.read_text()
    print(text.partition("\nMeasured elsewhere")[0])
    print(f"\nAll of it: {path.relative_to(ROOT)} and its .json")


if __name__ == "__main__":
    main()
