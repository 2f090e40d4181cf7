"""The ledger alone: claims, closes and finishes of many callers at once, as paid calls make them. One JSON line.

    python bench/books.py sqlite|postgresql [--tasks 32] [--seconds 5] [--payments 8] [--shape plain|bound|keyed|free]
                          [--pause-ms 0] [--database URL] [--profile FILE]

A pair is a claim with its close and its finish. CPU is that of this process, its writer thread included, minus that of
the same callers with a ledger that does nothing (`load_us`); the CPU of a PostgreSQL server is a separate figure. Statements and
commits are counted in a separate round: by SQLite's trace, by PostgreSQL's log. Flushes are as in production.
"""

import argparse
import asyncio
import contextlib
import cProfile
import itertools
import json
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # for `tests.kit`

import uvloop
from machine import GATEWAY_CORE, LOAD_CORE, count_server_cpu_s, describe_machine, pin
from nodes import Server

from tests.kit.ledger_records import claim_on, close_of, finish_of, new_payment
from tests.kit.sql_ledger import SqlLedger
from tollway.ids import keccak256
from tollway.ledger.ledger import Claimed, Closed
from tollway.storage.engine.database import Database, SqliteDatabase, connect_database, sqlite_module
from tollway.storage.engine.migrate import upgrade

_FRAME = ("BEGIN", "COMMIT", "ROLLBACK", "PRAGMA", "SET ")


class NoLedger:
    """Grants everything and writes nothing: it measures the cost of the callers themselves."""

    async def claim(self, claim: Any) -> None:
        await asyncio.sleep(0)

    async def close(self, close: Any) -> None:
        await asyncio.sleep(0)

    def finish(self, finish: Any) -> None: ...


class CallLoad:
    """Many callers; each runs one call at a time."""

    def __init__(self, ledger: Any, payments: list[Any], options: argparse.Namespace) -> None:
        self._ledger = ledger
        self._payments = payments
        self._options = options
        self._numbers = itertools.count()
        self.pairs = 0
        self.claim_s: list[float] = []

    async def run(self, *, seconds: float) -> None:
        self.pairs, self.claim_s = 0, []
        ends = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(self._options.tasks):
                group.create_task(self._call_until(ends))

    async def _call_until(self, ends: float) -> None:
        ledger, pause_s = self._ledger, self._options.pause_ms / 1000
        while time.monotonic() < ends:
            claim = self._make_claim()
            started = time.perf_counter()
            outcome = await ledger.claim(claim)
            self.claim_s.append(time.perf_counter() - started)
            assert outcome is None or isinstance(outcome, Claimed), outcome
            if pause_s:
                await asyncio.sleep(pause_s)
            closed = await ledger.close(close_of(claim))
            assert closed is None or isinstance(closed, Closed), closed
            ledger.finish(finish_of(claim))
            self.pairs += 1

    def _make_claim(self) -> Any:
        number = next(self._numbers)
        shape = self._options.shape
        payment = None if shape == "free" else self._payments[number % len(self._payments)]
        claim = claim_on(payment, call_id=f"call_{number:08x}{id(self):x}")
        if shape == "bound":
            return replace(claim, nonce=keccak256(b"%d" % number), ends_plain=True)
        if shape == "keyed":
            return replace(claim, method="POST", idempotency_key=f"key {number} of {id(self):x}")
        return claim


class Tally:
    """Statements and commits, as the driver reports them."""

    def __init__(self) -> None:
        self.is_on = False
        self.words: Counter[str] = Counter()

    def note(self, sql: str) -> None:
        if self.is_on:
            for one in sql.split(";"):
                word = one.split(None, 1)[0].upper() if one.strip() else ""
                if word:
                    self.words["FRAME" if (word + " ").startswith(_FRAME) else "STATEMENT"] += 1
                    self.words[word] += 1


@contextlib.contextmanager
def traced(tally: Tally) -> Iterator[None]:
    """Every new SQLite connection reports to the tally."""
    module: Any = sqlite_module
    connect = module.connect

    def connect_traced(*args: Any, **options: Any) -> Any:
        connection = connect(*args, **options)
        connection.set_trace_callback(tally.note)
        return connection

    module.connect = connect_traced
    try:
        yield
    finally:
        module.connect = connect


@contextlib.asynccontextmanager
async def logged(server: Server | None, tally: Tally) -> AsyncIterator[None]:
    """Adds the statements of the server's log in this time to the tally."""
    if server is None:
        yield
        return
    await server.ask("ALTER SYSTEM SET log_statement = 'all'")
    await server.ask("SELECT pg_reload_conf()")
    await asyncio.sleep(0.5)  # until every backend has the setting
    path = server.folder / "log"
    start = path.stat().st_size
    yield
    with path.open(errors="replace") as log:
        log.seek(start)
        for sql in re.findall(r"LOG:  (?:statement|execute [^:]*):\s+(\S.*)", log.read()):
            tally.note(sql)


@contextlib.asynccontextmanager
async def opened(database: Database) -> AsyncIterator[SqlLedger]:
    await database.open()
    ledger = SqlLedger(database, owner_id="bench", now_ms=lambda: int(time.time() * 1000))
    writing = asyncio.get_running_loop().create_task(ledger.run())
    try:
        await ledger.open()
        yield ledger
    finally:
        ledger.stop()
        await writing
        await database.close()


async def measure(make: Any, server: Server | None, options: argparse.Namespace) -> dict[str, Any]:
    database = make()
    async with opened(database) as ledger:
        payments = await pay(ledger, options.payments, "timed")
        load = CallLoad(ledger, payments, options)
        await load.run(seconds=1.0)
        profile = cProfile.Profile() if options.profile else None
        server_before, before, started = server_cpu_s(server), own_cpu_s(), time.monotonic()
        if profile:
            await _where_written(database, profile.enable)
        await load.run(seconds=options.seconds)
        if profile:
            await _where_written(database, profile.disable)
            profile.dump_stats(options.profile)
        wall_s, cpu_s = time.monotonic() - started, own_cpu_s() - before
        server_us = (server_cpu_s(server) - server_before) * 1e6
    idle = CallLoad(NoLedger(), payments, options)
    before = own_cpu_s()
    await idle.run(seconds=1.0)
    load_us = (own_cpu_s() - before) * 1e6 / idle.pairs
    waits = sorted(load.claim_s)
    return {
        "pairs_per_s": round(load.pairs / wall_s),
        "cpu_us_per_pair": round(cpu_s * 1e6 / load.pairs - load_us, 1),
        "load_us": round(load_us, 1),
        "server_cpu_us_per_pair": round(server_us / load.pairs, 1) if server else None,
        "claim_p50_ms": round(waits[len(waits) // 2] * 1e3, 2),
        "claim_p99_ms": round(waits[len(waits) * 99 // 100] * 1e3, 2),
    }


async def _where_written(database: Any, do: Any) -> None:
    """Runs it in the thread that writes: on PostgreSQL that of the event loop."""
    if isinstance(database, SqliteDatabase):
        await database._writer.run(do)
    else:
        do()


async def count(make: Any, server: Server | None, options: argparse.Namespace) -> dict[str, Any]:
    """Runs a round that is not timed. A row of a statement for many rows counts as one statement."""
    tally = Tally()
    with traced(tally):
        async with opened(make()) as ledger:
            load = CallLoad(ledger, await pay(ledger, options.payments, "counted"), options)
            await load.run(seconds=0.5)
            tally.is_on = True
            async with logged(server, tally):
                await load.run(seconds=1.0)
            tally.is_on = False
    words = tally.words
    return {
        "statements_per_pair": round(words["STATEMENT"] / load.pairs, 2),
        "commits_per_pair": round(words["COMMIT"] / load.pairs, 2),
        "statements_per_commit": round(words["STATEMENT"] / max(words["COMMIT"], 1), 1),
    }


async def pay(ledger: SqlLedger, payments: int, name: str) -> list[Any]:
    now_ms = int(time.time() * 1000)
    new = [new_payment(10**12, f"{name} {number} {now_ms}") for number in range(payments)]
    return list(await ledger.record_payments(new, now_ms=now_ms))


def server_cpu_s(server: Server | None) -> float:
    return count_server_cpu_s(server.postmaster) if server else 0.0


def own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def run(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="books-") as folder, contextlib.ExitStack() as stack:
        server = None
        url = options.database
        if url is None and options.kind == "sqlite":
            url = f"sqlite:///{folder}/books.sqlite3"
        elif url is None:
            (Path(folder) / "pg").mkdir()
            pin(LOAD_CORE)
            server = Server(Path(folder) / "pg")
            stack.callback(server.close)
            url = server.url
        pin(GATEWAY_CORE)
        database = connect_database(url)
        await database.open()
        await upgrade(database)
        await database.close()
        timed = await measure(lambda: connect_database(url), server, options)
        counted = await count(lambda: connect_database(url), server, options)
        told = {name: getattr(options, name) for name in ("kind", "tasks", "payments", "shape", "pause_ms")}
        return {**told, **timed, **counted, "machine": describe_machine(Path(folder))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("sqlite", "postgresql"))
    parser.add_argument("--tasks", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--payments", type=int, default=8)
    parser.add_argument("--shape", choices=("plain", "bound", "keyed", "free"), default="plain")
    parser.add_argument("--pause-ms", type=float, default=0.0)
    parser.add_argument("--database", help="the URL of an empty database; one of its own otherwise")
    parser.add_argument("--profile", help="where cProfile writes what the thread that writes did")
    print(json.dumps(uvloop.run(run(parser.parse_args()))))


if __name__ == "__main__":
    main()
