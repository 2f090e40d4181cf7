"""The slowest statement of a request or a round, with its plan, so that a ratio above the goal says what was read."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event

from tollway.storage.engine.database import Database

STATEMENTS_MAX = 60
PLAN_LINES_MAX = 40
_READS = ("SELECT", "WITH")


@asynccontextmanager
async def recorded() -> AsyncIterator[dict[str, Any]]:
    """The statements that all databases of this process run meanwhile, with the values of the first time. Statements take a slower way, so nothing is timed meanwhile."""
    found: dict[str, Any] = {}

    def record(_connection: object, _cursor: object, sql: str, values: Any, *_rest: object) -> None:
        if len(found) < STATEMENTS_MAX and sql.lstrip().startswith(_READS):
            found.setdefault(sql, values)

    event.listen(Engine, "before_cursor_execute", record)
    try:
        yield found
    finally:
        event.remove(Engine, "before_cursor_execute", record)


async def find_slowest(database: Database, statements: dict[str, Any]) -> dict[str, Any] | None:
    """Runs each of the statements again, whole, and explains the slowest one; on PostgreSQL with what it reads."""
    if not statements:
        return None
    times = {sql: await _time(database, sql, values) for sql, values in statements.items()}
    sql = max(times, key=lambda one: times[one])
    words = "EXPLAIN QUERY PLAN " if database.dialect == "sqlite" else "EXPLAIN (ANALYZE, BUFFERS) "

    def explain(connection: Connection) -> list[str]:
        rows = connection.exec_driver_sql(words + sql, statements[sql]).all()
        return [str(row[-1]) for row in rows[:PLAN_LINES_MAX]]

    return {
        "statements": len(statements),
        "statement": " ".join(sql.split()),
        "ms": round(times[sql], 2),
        "plan": await database.read(explain, is_long=True),
    }


async def _time(database: Database, sql: str, values: Any) -> float:
    def run(connection: Connection) -> float:
        began = time.perf_counter()
        connection.exec_driver_sql(sql, values).all()
        return (time.perf_counter() - began) * 1000

    return await database.read(run, is_long=True)
