"""Times one bare durable commit: a row of sixteen bytes is inserted and flushed, repeatedly. One JSON line: p50 and p99 in us.

    python bench/bare_commits.py sqlite:///FILE|postgresql://… COUNT

SQLite by the library that the gateway uses, with its writer's pragmas (WAL, `synchronous=FULL`); PostgreSQL by asyncpg
with `synchronous_commit=on`. It runs no code of Tollway.
"""

import asyncio
import json
import os
import statistics
import sys
import time

import asyncpg

try:
    import pysqlite3 as sqlite
except ImportError:  # not Linux on x86-64
    import sqlite3 as sqlite

ROW = "INSERT INTO bare_commit (word) VALUES "


def time_sqlite(path: str, count: int) -> list[float]:
    connection = sqlite.connect(path, isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}").close()
    connection.execute("CREATE TABLE IF NOT EXISTS bare_commit (id INTEGER PRIMARY KEY, word BLOB)")
    latencies = []
    for _ in range(count):
        word = os.urandom(16)
        start = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(ROW + "(?)", (word,))
        connection.execute("COMMIT")
        latencies.append((time.perf_counter() - start) * 1e6)
    connection.close()
    return latencies


async def time_postgres(url: str, count: int) -> list[float]:
    connection = await asyncpg.connect(url)
    await connection.execute("SET synchronous_commit = on")
    await connection.execute("CREATE TABLE IF NOT EXISTS bare_commit (id bigserial PRIMARY KEY, word bytea)")
    statement = await connection.prepare(ROW + "($1)")
    latencies = []
    for _ in range(count):
        word = os.urandom(16)
        start = time.perf_counter()
        await statement.fetch(word)
        latencies.append((time.perf_counter() - start) * 1e6)
    await connection.close()
    return latencies


def main() -> None:
    url, count = sys.argv[1], int(sys.argv[2])
    if url.startswith("sqlite:///"):
        latencies = time_sqlite(url.removeprefix("sqlite:///"), count)
    else:
        latencies = asyncio.run(time_postgres(url, count))
    cuts = statistics.quantiles(latencies, n=100)
    print(json.dumps({"p50Us": cuts[49], "p99Us": cuts[98]}))


if __name__ == "__main__":
    main()
