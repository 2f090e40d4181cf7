"""Plans of statements on both databases, and what makes a small table planned as a large one."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, event, text

from tests.kit.databases import execute_sql
from tollway.storage.engine.database import Database


def plans_of(
    connection: Connection, work: Callable[[Connection], object], *, with_prepared: bool = False
) -> list[str]:
    """The plan of each statement that `work` runs, on one line. `with_prepared`: of prepared statements too."""
    asked: list[tuple[str, Any]] = []

    def record_check(_connection: object, _cursor: object, sql: str, values: Any, *_rest: object) -> None:
        asked.append((sql, values))

    target = connection.engine if with_prepared else connection
    event.listen(target, "before_cursor_execute", record_check)
    work(connection)
    event.remove(target, "before_cursor_execute", record_check)
    is_sqlite = connection.dialect.name == "sqlite"
    words = "EXPLAIN QUERY PLAN " if is_sqlite else "EXPLAIN (COSTS OFF) "
    return [
        "; ".join(str(row[-1]).strip() for row in connection.exec_driver_sql(words + sql, values))
        for sql, values in asked
    ]


async def settle_down(url: str) -> None:
    """Updates the statistics of a PostgreSQL database and its visibility map."""
    if url.startswith("postgresql"):
        await execute_sql(url, "VACUUM ANALYZE")


def as_if_large(connection: Connection) -> None:
    """Makes PostgreSQL use the indexes of short tables."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL enable_seqscan = off"))


async def read_plans(
    database: Database, work: Callable[[Connection], object], *, with_prepared: bool = False
) -> list[str]:
    """The plan of each statement of `work`, which reads, with the tables taken for large ones."""

    def explain(connection: Connection) -> list[str]:
        as_if_large(connection)
        return plans_of(connection, work, with_prepared=with_prepared)

    return await database.read(explain)
