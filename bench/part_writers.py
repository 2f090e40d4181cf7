"""One writer of claims and closes, by so many callers at once. One JSON line. Runs in the bench's virtualenv.

    python bench/part_writers.py WRITER CALLERS SECONDS sqlite:FILE|postgresql://… [PID OF THE SERVER]

A pair is a claim (the payment debited, the call inserted) and its close (the call updated). Each is committed, and flushed,
before its caller continues: SQLite in WAL with `synchronous=FULL`, PostgreSQL with `synchronous_commit=on`. It runs no code
of Tollway: two tables, and the minimum that each way of writing needs.
"""

import asyncio
import itertools
import json
import queue
import resource
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

try:  # aiosqlite and the thread with the same library, the one that the gateway bundles
    import pysqlite3

    sys.modules["sqlite3"] = pysqlite3
    sys.modules["sqlite3.dbapi2"] = pysqlite3.dbapi2
except ImportError:
    pass
import sqlite3

import aiosqlite
import asyncpg
import psycopg
import uvloop
from machine import GATEWAY_CORE, count_busy_s, count_cpu_s, list_family

PAYMENTS = 64
PRICE = 3
VALUE = 10**15
LINES = 8
OPEN, CONSUMED = 0, 1
SCHEMA = (
    "CREATE TABLE payment (id bigint PRIMARY KEY, value bigint NOT NULL, taken bigint NOT NULL, CHECK (taken <= value))",
    "CREATE TABLE call (id bigint PRIMARY KEY, payment_id bigint NOT NULL, price bigint NOT NULL, state bigint NOT NULL,"
    " claimed_ms bigint NOT NULL, closed_ms bigint)",
    "CREATE INDEX ix_call_payment_id_id ON call (payment_id, id)",
)
NOW_MS = 1_790_000_000_000


class Claim(NamedTuple):
    call_id: int
    payment_id: int


class Close(NamedTuple):
    call_id: int


Entry = Claim | Close
Submit = Callable[[Entry], Awaitable[bool]]


class Gathered:
    """Natural batching: the entries that wait when a batch is written are the next batch. `write` returns one result for each entry, in order."""

    def __init__(self, write: Callable[[Sequence[Entry]], Awaitable[Sequence[bool]]]) -> None:
        self._write = write
        self._waiting: list[tuple[Entry, asyncio.Future[bool]]] = []
        self._wake = asyncio.Event()

    async def submit(self, entry: Entry) -> bool:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((entry, future))
        self._wake.set()
        return bool(await future)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._waiting = self._waiting, []
            written = await self._write([entry for entry, _ in batch])
            for (_, future), is_done in zip(batch, written, strict=True):
                future.set_result(is_done)


@asynccontextmanager
async def gathering(write: Callable[[Sequence[Entry]], Awaitable[Sequence[bool]]]) -> Any:
    gathered = Gathered(write)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(gathered.run())
        try:
            yield gathered.submit
        finally:
            running.cancel()


# ---- SQLite.

DEBIT = "UPDATE payment SET taken = taken + ?1 WHERE id = ?2 AND taken + ?1 <= value"
INSERT = "INSERT INTO call (id, payment_id, price, state, claimed_ms) VALUES (?, ?, ?, ?, ?)"
CLOSE = "UPDATE call SET state = ?, closed_ms = ? WHERE id = ? AND state = ?"
PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "cache_size=-65536", "temp_store=MEMORY")


def fill_sqlite(path: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL").close()
    for statement in SCHEMA:
        connection.execute(statement)
    connection.executemany("INSERT INTO payment VALUES (?, ?, 0)", [(n, VALUE) for n in range(PAYMENTS)])
    connection.close()


def audit_sqlite(path: str) -> tuple[int, int]:
    connection = sqlite3.connect(path)
    (taken,) = connection.execute("SELECT sum(taken) FROM payment").fetchone()
    (closed,) = connection.execute("SELECT count(*) FROM call WHERE state = 1").fetchone()
    connection.close()
    return taken // PRICE, closed


def write_one(connection: Any, entry: Entry) -> bool:
    if isinstance(entry, Close):
        return bool(connection.execute(CLOSE, (CONSUMED, NOW_MS, entry.call_id, OPEN)).rowcount == 1)
    if connection.execute(DEBIT, (PRICE, entry.payment_id)).rowcount != 1:
        return False
    connection.execute(INSERT, (entry.call_id, entry.payment_id, PRICE, OPEN, NOW_MS))
    return True


async def await_one(connection: aiosqlite.Connection, entry: Entry) -> bool:
    """As `write_one`: a hop to the thread and back for each statement."""
    if isinstance(entry, Close):
        return (await connection.execute(CLOSE, (CONSUMED, NOW_MS, entry.call_id, OPEN))).rowcount == 1
    if (await connection.execute(DEBIT, (PRICE, entry.payment_id))).rowcount != 1:
        return False
    await connection.execute(INSERT, (entry.call_id, entry.payment_id, PRICE, OPEN, NOW_MS))
    return True


@asynccontextmanager
async def open_aiosqlite(path: str) -> Any:
    """A transaction for each entry, in sequence."""
    async with aiosqlite.connect(path, isolation_level=None) as connection:
        for pragma in PRAGMAS:
            await (await connection.execute(f"PRAGMA {pragma}")).close()
        turn = asyncio.Lock()

        async def submit(entry: Entry) -> bool:
            async with turn:
                await connection.execute("BEGIN IMMEDIATE")
                is_done = await await_one(connection, entry)
                await connection.execute("COMMIT")
                return is_done

        yield submit


@asynccontextmanager
async def open_aiosqlite_batches(path: str) -> Any:
    """A transaction for all waiting entries."""
    async with aiosqlite.connect(path, isolation_level=None) as connection:
        for pragma in PRAGMAS:
            await (await connection.execute(f"PRAGMA {pragma}")).close()

        async def write(batch: Sequence[Entry]) -> Sequence[bool]:
            await connection.execute("BEGIN IMMEDIATE")
            written = [await await_one(connection, entry) for entry in batch]
            await connection.execute("COMMIT")
            return written

        async with gathering(write) as submit:
            yield submit


class WriterThread:
    """One thread with one connection; one hop to it and one back for each transaction."""

    def __init__(self, path: str, *, batch_max: int) -> None:
        self._path = path
        self._batch_max = batch_max
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    async def submit(self, entry: Entry) -> bool:
        future: asyncio.Future[bool] = self._loop.create_future()
        self._queue.put((entry, future))
        return await future

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        connection = sqlite3.connect(self._path, isolation_level=None)
        for pragma in PRAGMAS:
            connection.execute(f"PRAGMA {pragma}").close()
        while batch := self._take():
            connection.execute("BEGIN IMMEDIATE")
            written = [write_one(connection, entry) for entry, _ in batch]
            connection.execute("COMMIT")
            self._loop.call_soon_threadsafe(self._answer, batch, written)
        connection.close()

    def _take(self) -> list[Any]:
        """All waiting entries; empty at the end, when no caller waits any more."""
        batch = [self._queue.get()]
        with suppress(queue.Empty):
            while len(batch) < self._batch_max:
                batch.append(self._queue.get_nowait())
        return [] if None in batch else batch

    @staticmethod
    def _answer(batch: list[Any], written: list[bool]) -> None:
        for (_, future), is_done in zip(batch, written, strict=True):
            future.set_result(is_done)


@asynccontextmanager
async def open_thread(path: str, *, batch_max: int = 1) -> Any:
    """A transaction for each entry, in sequence."""
    writer = WriterThread(path, batch_max=batch_max)
    try:
        yield writer.submit
    finally:
        writer.close()


def open_thread_batches(path: str) -> Any:
    return open_thread(path, batch_max=4096)


# ---- PostgreSQL. A claim and its debit are one statement, so that each entry needs one round trip and no BEGIN.

PG_CLAIM = (
    "WITH paid AS (UPDATE payment SET taken = taken + $3 WHERE id = $2 AND taken + $3 <= value RETURNING id)"
    " INSERT INTO call (id, payment_id, price, state, claimed_ms) SELECT $1, id, $3, 0, $4 FROM paid RETURNING id"
)
PG_END = "UPDATE call SET state = 1, closed_ms = $2 WHERE id = $1 AND state = 0"
PG_CLOSE = PG_END + " RETURNING id"
PG_DEBIT = "UPDATE payment SET taken = taken + $1 WHERE id = $2"
PG_INSERT = "INSERT INTO call (id, payment_id, price, state, claimed_ms) VALUES ($1, $2, $3, 0, $4)"
PG_LOCK_PAYMENTS = (
    "SELECT id, value - taken FROM payment WHERE id = ANY($1::bigint[]) ORDER BY id FOR NO KEY UPDATE"
)
PG_LOCK_CALLS = "SELECT id FROM call WHERE id = ANY($1::bigint[]) AND state = 0 ORDER BY id FOR NO KEY UPDATE"
PG_BATCH = """
WITH closed AS (UPDATE call SET state = 1, closed_ms = $4 FROM unnest($1::bigint[]) AS c(id)
    WHERE call.id = c.id AND call.state = 0 RETURNING call.id),
  wanted AS (SELECT * FROM unnest($2::bigint[], $3::bigint[]) AS w(id, payment_id)),
  locked AS MATERIALIZED (SELECT id, taken, value FROM payment
    WHERE id IN (SELECT payment_id FROM wanted) ORDER BY id FOR NO KEY UPDATE),
  sums AS (SELECT payment_id, $5::bigint * count(*) AS sum FROM wanted GROUP BY payment_id),
  paid AS (UPDATE payment SET taken = locked.taken + sums.sum FROM sums JOIN locked ON locked.id = sums.payment_id
    WHERE payment.id = locked.id AND locked.taken + sums.sum <= locked.value RETURNING payment.id),
  claimed AS (INSERT INTO call (id, payment_id, price, state, claimed_ms)
    SELECT wanted.id, wanted.payment_id, $5, 0, $4 FROM wanted JOIN paid ON paid.id = wanted.payment_id RETURNING id)
SELECT id FROM closed UNION ALL SELECT id FROM claimed
"""
SETTINGS = {"synchronous_commit": "on", "jit": "off"}


async def fill_postgres(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("DROP TABLE IF EXISTS call, payment")
    for statement in SCHEMA:
        await connection.execute(statement)
    await connection.executemany(
        "INSERT INTO payment VALUES ($1, $2, 0)", [(n, VALUE) for n in range(PAYMENTS)]
    )
    await connection.execute("VACUUM ANALYZE payment")
    await connection.close()


async def audit_postgres(url: str) -> tuple[int, int]:
    connection = await asyncpg.connect(url)
    taken = await connection.fetchval("SELECT sum(taken)::bigint FROM payment")
    closed = await connection.fetchval("SELECT count(*) FROM call WHERE state = 1")
    await connection.close()
    return taken // PRICE, closed


class PreparedConnection:
    """A connection of asyncpg with prepared statements."""

    async def open(self, url: str) -> "PreparedConnection":
        self.connection = await asyncpg.connect(url, server_settings=SETTINGS)
        self._claim = await self.connection.prepare(PG_CLAIM)
        self._close = await self.connection.prepare(PG_CLOSE)
        self._batch = await self.connection.prepare(PG_BATCH)
        self._payments = await self.connection.prepare(PG_LOCK_PAYMENTS)
        self._calls = await self.connection.prepare(PG_LOCK_CALLS)
        return self

    async def write(self, entry: Entry) -> bool:
        if isinstance(entry, Close):
            return await self._close.fetchval(entry.call_id, NOW_MS) is not None
        return await self._claim.fetchval(entry.call_id, entry.payment_id, PRICE, NOW_MS) is not None

    async def write_statement(self, batch: Sequence[Entry]) -> Sequence[bool]:
        closes = [entry.call_id for entry in batch if isinstance(entry, Close)]
        claims = [entry for entry in batch if isinstance(entry, Claim)]
        done = await self._batch.fetch(
            closes, [c.call_id for c in claims], [c.payment_id for c in claims], NOW_MS, PRICE
        )
        ids = {row[0] for row in done}
        return [entry.call_id in ids for entry in batch]

    async def write_decided(self, batch: Sequence[Entry]) -> Sequence[bool]:
        """As the ledger does it: locks the rows, decides in Python, writes by `executemany`."""
        closes = [entry.call_id for entry in batch if isinstance(entry, Close)]
        claims = [entry for entry in batch if isinstance(entry, Claim)]
        async with self.connection.transaction():
            payment_ids = list({claim.payment_id for claim in claims})
            rests = {row[0]: row[1] for row in await self._payments.fetch(payment_ids)} if claims else {}
            done = {row[0] for row in await self._calls.fetch(closes)} if closes else set()
            debits: Counter[int] = Counter()
            granted = []
            for claim in claims:
                if rests[claim.payment_id] - debits[claim.payment_id] >= PRICE:
                    debits[claim.payment_id] += PRICE
                    granted.append((claim.call_id, claim.payment_id, PRICE, NOW_MS))
            if done:
                await self.connection.executemany(PG_END, [(call_id, NOW_MS) for call_id in done])
            if granted:
                await self.connection.executemany(PG_DEBIT, [(sum_, id_) for id_, sum_ in debits.items()])
                await self.connection.executemany(PG_INSERT, granted)
        done.update(row[0] for row in granted)
        return [entry.call_id in done for entry in batch]


async def open_lines(url: str, count: int) -> Any:
    return [await PreparedConnection().open(url) for _ in range(count)]


@asynccontextmanager
async def open_asyncpg(url: str, *, lines: int = 1) -> Any:
    """A transaction for each entry, one at a time on each connection."""
    opened = await open_lines(url, lines)
    idle: asyncio.Queue[PreparedConnection] = asyncio.Queue()
    for line in opened:
        idle.put_nowait(line)

    async def submit(entry: Entry) -> bool:
        line = await idle.get()
        try:
            return await line.write(entry)
        finally:
            idle.put_nowait(line)

    yield submit
    for line in opened:
        await line.connection.close()


def open_asyncpg_lines(url: str) -> Any:
    return open_asyncpg(url, lines=LINES)


@asynccontextmanager
async def open_asyncpg_statement(url: str) -> Any:
    """One statement over arrays for all waiting entries. A payment that is too small for all its claims grants none
    of them here; a gateway would try them one by one."""
    (line,) = await open_lines(url, 1)
    async with gathering(line.write_statement) as submit:
        yield submit
    await line.connection.close()


@asynccontextmanager
async def open_asyncpg_decided(url: str) -> Any:
    """One transaction for all waiting entries."""
    (line,) = await open_lines(url, 1)
    async with gathering(line.write_decided) as submit:
        yield submit
    await line.connection.close()


@asynccontextmanager
async def open_pipeline(url: str, *, commits_each: bool = True) -> Any:
    """psycopg's pipeline mode: all waiting entries are sent before the first result is read, each with its own commit
    or all with one."""
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    for name, value in SETTINGS.items():
        await connection.execute(f"SET {name} = '{value}'")

    async def write(batch: Sequence[Entry]) -> Sequence[bool]:
        cursors = []
        async with connection.pipeline() as pipeline:
            for entry in batch:
                cursor = psycopg.AsyncRawCursor(connection)
                if isinstance(entry, Close):
                    await cursor.execute(PG_CLOSE, (entry.call_id, NOW_MS), prepare=True, binary=True)
                else:
                    values = (entry.call_id, entry.payment_id, PRICE, NOW_MS)
                    await cursor.execute(PG_CLAIM, values, prepare=True, binary=True)
                cursors.append(cursor)
                if commits_each:
                    await pipeline.sync()
        return [cursor.rowcount == 1 for cursor in cursors]

    async with gathering(write) as submit:
        yield submit
    await connection.close()


def open_pipeline_batches(url: str) -> Any:
    return open_pipeline(url, commits_each=False)


SQLITE = {
    "aiosqlite": open_aiosqlite,
    "aiosqlite-batches": open_aiosqlite_batches,
    "thread": open_thread,
    "thread-batches": open_thread_batches,
}
POSTGRES = {
    "asyncpg": open_asyncpg,
    "asyncpg-lines": open_asyncpg_lines,
    "asyncpg-decided": open_asyncpg_decided,
    "asyncpg-statement": open_asyncpg_statement,
    "pipeline": open_pipeline,
    "pipeline-batches": open_pipeline_batches,
}


class CallLoad:
    """Many callers; each runs one call at a time."""

    def __init__(self, callers: int) -> None:
        self._callers = callers
        self._ids = itertools.count()
        self.pairs = 0
        self.claims_s: list[float] = []

    async def run(self, submit: Submit, seconds: float) -> float:
        """The seconds that it took."""
        self.pairs, self.claims_s = 0, []
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._callers):
                group.create_task(self._call(submit, started + seconds))
        return time.perf_counter() - started

    async def _call(self, submit: Submit, end: float) -> None:
        while (asked := time.perf_counter()) < end:
            call_id = next(self._ids)
            if not await submit(Claim(call_id, call_id % PAYMENTS)):
                raise RuntimeError("a claim was not granted")
            self.claims_s.append(time.perf_counter() - asked)
            if not await submit(Close(call_id)):
                raise RuntimeError("a close found no open call")
            self.pairs += 1


async def grant(_entry: Entry) -> bool:
    """Writes nothing: it measures the cost of the callers themselves."""
    await asyncio.sleep(0)
    return True


def count_own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(
    writer: str, callers: int, seconds: float, url: str, postmaster: int | None
) -> dict[str, Any]:
    is_sqlite = url.startswith("sqlite:")
    place = url.removeprefix("sqlite:") if is_sqlite else url
    if is_sqlite:
        fill_sqlite(place)
    else:
        await fill_postgres(place)
    writers: dict[str, Any] = SQLITE if is_sqlite else POSTGRES
    load = CallLoad(callers)
    async with writers[writer](place) as submit:
        await load.run(submit, 0.3)
        before_pairs = load.pairs
        family = list_family(postmaster) if postmaster else []
        server_s, own_s, core_s = count_cpu_s(family), count_own_cpu_s(), count_busy_s(GATEWAY_CORE)
        took = await load.run(submit, seconds)
        own_s, server_s = count_own_cpu_s() - own_s, count_cpu_s(family) - server_s
        others_s = max(0.0, count_busy_s(GATEWAY_CORE) - core_s - own_s)
        pairs, cuts = load.pairs, statistics.quantiles(load.claims_s, n=100)
    told = audit_sqlite(place) if is_sqlite else await audit_postgres(place)
    if told != (before_pairs + pairs,) * 2:
        raise RuntimeError(f"{before_pairs + pairs} pairs were answered, the books hold {told}")
    own = count_own_cpu_s()
    await load.run(grant, 0.3)
    load_us = (count_own_cpu_s() - own) / load.pairs * 1e6
    return {
        "pairsPerSecond": pairs / took,
        "cpuUsPerPair": own_s / pairs * 1e6 - load_us,
        "serverCpuUsPerPair": server_s / pairs * 1e6,
        "claimP50Ms": cuts[49] * 1e3,
        "claimP99Ms": cuts[98] * 1e3,
        "othersOnItsCore": others_s / took,
    }


def tell_versions() -> dict[str, str]:
    versions = {"SQLite": sqlite3.sqlite_version, "aiosqlite": aiosqlite.__version__}
    return versions | {"asyncpg": asyncpg.__version__, "psycopg": psycopg.__version__}


def main() -> None:
    if sys.argv[1:] == ["versions"]:
        print(json.dumps(tell_versions()))
        return
    writer, callers, seconds, url = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    postmaster = int(sys.argv[5]) if len(sys.argv) > 5 else None
    print(json.dumps(uvloop.run(measure(writer, callers, seconds, url, postmaster))))


if __name__ == "__main__":
    main()
