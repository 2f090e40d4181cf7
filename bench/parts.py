"""Compares the parts of Tollway with alternatives: docs/decisions/0020-what-a-call-costs.md.

    python bench/parts.py [--short] [--stages proxies sqlite postgres]

Proxies: granian's ASGI and RSGI, each with aiohttp, pyreqwest and Tollway's client; one process on one core, load and
upstream on the other. Writers: a claim and its close on SQLite and PostgreSQL, by one caller and by 32; the writer on
one core, PostgreSQL on the other. In turn, each round in the opposite order of the one before; medians and ratios.
Writes JSON and Markdown to bench/results/. Needs the virtualenv of the bench (`make bench` makes it).
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from operator import sub
from pathlib import Path
from typing import Any

import uvloop
from children import running
from load import LoadGenerator, format_request
from machine import (
    GATEWAY_CORE,
    LOAD_CORE,
    ROOT,
    count_busy_s,
    describe_commit,
    describe_machine,
    find_free_port,
    pin,
    prepare_child,
)
from nodes import Server
from report import show_spread
from rivals import VENV, find_programs
from throughput import Cell, compare, compare_cpu, run_rounds, summarise
from upstream import serving_upstream

HERE = Path(__file__).parent
RESULTS = ROOT / "bench" / "results"
RIVALS_PYTHON = str(VENV / "bin" / "python")
OWN_PYTHON = sys.executable
SHARED = ("python", "granian", "aiohttp", "uvloop")
PATH = "/quote/ETH"
HEADERS = (
    ("User-Agent", "bench"),
    ("Accept", "*/*"),
    ("X-Payment-Tx", "0x" + "5a" * 32),
    ("X-Signature", "0x" + "3c" * 65),
)
PROXIES = (
    ("ASGI + aiohttp", "asgi", "aiohttp"),
    ("RSGI + aiohttp", "rsgi", "aiohttp"),
    ("ASGI + pyreqwest", "asgi", "pyreqwest"),
    ("RSGI + pyreqwest", "rsgi", "pyreqwest"),
    ("ASGI + our client", "asgi", "ours"),
    ("RSGI + our client", "rsgi", "ours"),
)
WRITERS = {
    "sqlite": (
        ("aiosqlite", "aiosqlite, a transaction each"),
        ("aiosqlite-batches", "aiosqlite, batches"),
        ("thread", "writer thread, a transaction each"),
        ("thread-batches", "writer thread, batches"),
    ),
    "postgres": (
        ("asyncpg", "asyncpg, a transaction each"),
        ("asyncpg-lines", "asyncpg, a transaction each, eight connections"),
        ("asyncpg-decided", "asyncpg, batches decided in Python"),
        ("asyncpg-statement", "asyncpg, batches as one statement"),
        ("pipeline", "psycopg pipeline, a transaction each"),
        ("pipeline-batches", "psycopg pipeline, batches"),
    ),
}
KEPT = {"proxies": "ASGI + our client", "sqlite": "thread-batches", "postgres": "asyncpg-decided"}
"""What the gateway is made of. Every ratio is over it."""
CALLERS = (1, 32)
FIGURES = (
    "pairsPerSecond",
    "cpuUsPerPair",
    "serverCpuUsPerPair",
    "claimP50Ms",
    "claimP99Ms",
    "othersOnItsCore",
)
WRITER_DEADLINE_S = 60
QUIET_WINDOW_S = 2.0
QUIET_SHARE_MAX = 0.15
STAGES = ("proxies", "sqlite", "postgres")
Tell = Callable[[str], None]


def tell_versions(python: str, script: str) -> dict[str, str]:
    told = subprocess.run(
        (python, str(HERE / script), "versions"), capture_output=True, text=True, check=True
    )
    versions: dict[str, str] = json.loads(told.stdout)
    return versions


def check_versions() -> dict[str, str]:
    """Raises RuntimeError when the two virtualenvs differ in a common package."""
    ours, theirs = (tell_versions(python, "part_proxies.py") for python in (OWN_PYTHON, RIVALS_PYTHON))
    if any(ours[name] != theirs[name] for name in SHARED):
        raise RuntimeError(f"the virtualenvs differ: {ours} and {theirs}")
    return {**theirs, **ours, **tell_versions(RIVALS_PYTHON, "part_writers.py")}


def wait_quiet(longest_s: float, tell: Tell) -> None:
    """Waits until no other process uses CPU, or until the deadline."""
    end = time.monotonic() + longest_s
    while time.monotonic() < end:
        before = [count_busy_s(core) for core in (GATEWAY_CORE, LOAD_CORE)]
        time.sleep(QUIET_WINDOW_S)
        now = [count_busy_s(core) for core in (GATEWAY_CORE, LOAD_CORE)]
        busiest = max(map(sub, now, before)) / QUIET_WINDOW_S
        if busiest < QUIET_SHARE_MAX:
            return
    if longest_s:
        tell(f"not quiet within {longest_s} s")


async def measure_proxies(options: argparse.Namespace, folder: Path, tell: Tell) -> dict[str, Any]:
    programs = find_programs()
    generator = LoadGenerator(wrk=programs.wrk)
    async with serving_upstream(folder, programs.nginx) as upstream, AsyncExitStack() as stack:
        cells = []
        for name, interface, client in PROXIES:
            port = find_free_port()
            python = OWN_PYTHON if client == "ours" else RIVALS_PYTHON
            command = (
                python,
                str(HERE / "part_proxies.py"),
                interface,
                client,
                str(port),
                str(upstream.port),
            )
            log = name.replace(" ", "-")
            child = await stack.enter_async_context(running(log, command, core=GATEWAY_CORE, folder=folder))
            await child.wait_up(f"http://127.0.0.1:{port}{PATH}", status=200)
            request = format_request(port, PATH, HEADERS)
            cells.append(
                Cell(name=name, port=port, child=child, prepare=lambda _, request=request: [request])
            )
        for number in range(options.rounds):
            wait_quiet(options.wait, tell)
            run_rounds(
                cells if number % 2 == 0 else cells[::-1],
                generator,
                folder,
                rounds=1,
                connections=options.connections,
                seconds=options.seconds,
                warm=() if number else cells,
                tell=tell,
            )
    kept = next(cell for cell in cells if cell.name == KEPT["proxies"])
    return {
        "load": generator.kind,
        "upstream": upstream.kind,
        "cells": {cell.name: cell.tell() for cell in cells},
        "ratios": {cell.name: compare(cell, kept) for cell in cells},
        "cpuRatios": {cell.name: compare_cpu(cell, kept) for cell in cells},
    }


def run_writer(
    writer: str, *, callers: int, seconds: float, url: str, postmaster: int | None
) -> dict[str, Any]:
    command = [RIVALS_PYTHON, str(HERE / "part_writers.py"), writer, str(callers), str(seconds), url]
    told = subprocess.run(
        command + ([] if postmaster is None else [str(postmaster)]),
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds + WRITER_DEADLINE_S,
        preexec_fn=prepare_child(GATEWAY_CORE),
    )
    if told.returncode:
        raise RuntimeError(f"{writer}: {told.stderr}")
    figures: dict[str, Any] = json.loads(told.stdout)
    return figures


def measure_writers(kind: str, options: argparse.Namespace, folder: Path, tell: Tell) -> dict[str, Any]:
    server = None
    if kind == "postgres":
        (folder / "pg").mkdir()
        server = Server(folder / "pg")
    cells = [(writer, callers) for callers in CALLERS for writer, _ in WRITERS[kind]]
    samples: dict[tuple[str, int], list[dict[str, Any]]] = {cell: [] for cell in cells}
    try:
        for number in range(options.rounds):
            wait_quiet(options.wait, tell)
            for writer, callers in cells if number % 2 == 0 else reversed(cells):
                url = f"sqlite:{folder}/{writer}-{callers}-{number}" if server is None else server.url
                sample = run_writer(
                    writer,
                    callers=callers,
                    seconds=options.writer_seconds,
                    url=url,
                    postmaster=None if server is None else server.postmaster,
                )
                samples[writer, callers].append(sample)
                tell(f"round {number + 1}: {writer}, {callers}: {sample['pairsPerSecond']:,.0f} pairs/s")
    finally:
        if server is not None:
            server.close()
    return {
        str(callers): {
            title: summarise_writer(samples[writer, callers], samples[KEPT[kind], callers])
            for writer, title in WRITERS[kind]
        }
        for callers in CALLERS
    }


def summarise_writer(samples: Sequence[dict[str, Any]], kept: Sequence[dict[str, Any]]) -> dict[str, Any]:
    told = {name: summarise([sample[name] for sample in samples]) for name in FIGURES}
    for ratio, name in (("ratio", "pairsPerSecond"), ("cpuRatio", "cpuUsPerPair")):
        pairs = zip(samples, kept, strict=True)
        told[ratio] = summarise([mine[name] / its[name] for mine, its in pairs])
    return told


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    pin(LOAD_CORE)
    started, begun = time.monotonic(), datetime.datetime.now(datetime.UTC)

    def tell(text: str) -> None:
        print(f"[{time.monotonic() - started:5.0f} s] {text}", file=sys.stderr, flush=True)

    found: dict[str, Any] = {"versions": check_versions()}
    with tempfile.TemporaryDirectory(prefix="parts-", dir=options.folder) as name:
        folder = Path(name)
        found["machine"] = describe_machine(folder)
        for stage in options.stages:
            before = os.getloadavg()[0]
            if stage == "proxies":
                found[stage] = await measure_proxies(options, folder, tell)
            else:
                found[stage] = measure_writers(stage, options, folder, tell)
            found.setdefault("loadBefore", {})[stage] = round(before, 2)
    found["commit"] = describe_commit()
    found["run"] = {
        "startedAt": begun.strftime("%Y-%m-%d %H:%M UTC"),
        "mode": "short form" if options.short else "long form",
        "rounds": options.rounds,
        "seconds": options.seconds,
        "writerSeconds": options.writer_seconds,
        "connections": options.connections,
    }
    return found


def write_markdown(found: dict[str, Any]) -> str:
    run, machine, commit = found["run"], found["machine"], found["commit"]
    state = "with changes that are not in it" if commit["isDirty"] else "clean"
    lines = [
        f"# Parts compared, {run['startedAt']}, {run['mode']}",
        "",
        f"Commit `{commit['commit']}`, {state}. {machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, "
        f"databases on {machine['databasesOn']}; load of the machine before each stage: {found['loadBefore']}.",
        f"{run['rounds']} rounds; {run['seconds']} s for each proxy in each, {run['writerSeconds']} s for each writer; "
        f"{run['connections']} connections. Medians, with the least and the most of the rounds in brackets.",
    ]
    if "proxies" in found:
        lines += write_proxies(found["proxies"])
    for kind in WRITERS:
        if kind in found:
            lines += write_writers(kind, found[kind])
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return "\n".join([*lines, "", f"Versions: {versions}.", ""])


def write_proxies(proxies: dict[str, Any]) -> list[str]:
    lines = [
        "",
        f"## Plain proxies (load by {proxies['load']}, upstream {proxies['upstream']})",
        "",
        "| | answers/s | over what is kept | CPU us an answer | over what is kept | p50 ms | p99 ms | its core | others on it | load's core |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, told in proxies["cells"].items():
        ratio, cpu_ratio = proxies["ratios"][name], proxies["cpuRatios"][name]
        lines.append(
            f"| {name} | {told['perSecond']:,.0f} ({told['min']:,.0f} to {told['max']:,.0f}) "
            f"| {show_ratio(ratio)} | {told['cpuUsPerAnswer']:.0f} | {show_ratio(cpu_ratio)} | {told['p50Ms']:.2f} | {told['p99Ms']:.2f} | {told['ownCore']:.2f} "
            f"| {told['othersOnItsCore']:.2f} "
            f"| {told['loadCore']:.2f} |"
        )
    return lines


def show_ratio(ratio: dict[str, Any]) -> str:
    return f"{ratio['median']:.2f} ({show_spread(ratio)})"


def write_writers(kind: str, by_callers: dict[str, Any]) -> list[str]:
    lines = []
    for callers, writers in by_callers.items():
        lines += [
            "",
            f"## Writers on {kind}, callers: {callers}",
            "",
            "| | pairs/s | over what is kept | CPU us a pair | over what is kept | server's CPU us a pair | claim p50 ms | claim p99 ms | others on its core |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for title, told in writers.items():
            rate, ratio = told["pairsPerSecond"], told["ratio"]
            server = f"{told['serverCpuUsPerPair']['median']:.0f}" if kind == "postgres" else ""
            lines.append(
                f"| {title} | {rate['median']:,.0f} ({rate['min']:,.0f} to {rate['max']:,.0f}) "
                f"| {show_ratio(ratio)} | {told['cpuUsPerPair']['median']:.0f} | {show_ratio(told['cpuRatio'])} | {server} "
                f"| {told['claimP50Ms']['median']:.2f} | {told['claimP99Ms']['median']:.2f} "
                f"| {told['othersOnItsCore']['median']:.2f} |"
            )
    return lines


def write_results(found: dict[str, Any]) -> Path:
    commit = found["commit"]
    day = found["run"]["startedAt"].split(" ")[0]
    missing = [stage for stage in STAGES if stage not in found]
    stages = "".join(f"-{stage}" for stage in STAGES if stage in found) if missing else ""
    name = f"{day}-{(commit['commit'] or 'nowhere')[:9]}-parts{stages}"
    name += ("-dirty" if commit["isDirty"] else "") + (
        "-short" if found["run"]["mode"] == "short form" else ""
    )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    path = RESULTS / f"{name}.md"
    path.write_text(write_markdown(found))
    return path


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="about a minute")
    parser.add_argument("--rounds", type=int, help="7; short: 2")
    parser.add_argument("--seconds", type=int, default=1, help="for each proxy in each round")
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--folder", help="where databases are made; not on tmpfs")
    parser.add_argument(
        "--wait", type=float, default=0.0, help="seconds, at most, for a quiet machine before a round"
    )
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.short else 7)
    options.writer_seconds = 0.5 if options.short else 1.0
    return options


def main() -> None:
    path = write_results(uvloop.run(measure(read_options())))
    print(path.read_text())
    print(f"{path.relative_to(ROOT)} and its .json")


if __name__ == "__main__":
    main()
