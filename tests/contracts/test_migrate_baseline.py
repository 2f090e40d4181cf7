"""A real database of the version before the baseline (`databases/`) is refused by every command in one sentence, and is not changed."""

import asyncio
import contextlib
import json
import re
import sqlite3
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection, text
from structlog.testing import capture_logs
from typer.testing import CliRunner

from tests.kit.databases import create_database, execute_sql, open_database
from tollway.cli.main import make_app
from tollway.storage.migrate import TOO_OLD

T = TypeVar("T")
_NUMBERS = count(1)
DATABASES = Path(__file__).parent / "databases"
PRAGMAS = ("table_xinfo", "foreign_key_list", "index_list")
CATALOG = (
    """SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
        pg_get_expr(d.adbin, d.adrelid), l.collname, a.attstorage
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_collation l ON l.oid = a.attcollation
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'S', 'v') AND a.attnum > 0 ORDER BY 1, 2""",
    """SELECT conrelid::regclass::text, conname, contype::text, convalidated, pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2""",
    "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1, 2",
    "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1",
    "SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1",
    """SELECT sequencename, data_type::text, start_value, min_value, max_value, increment_by, cycle, cache_size
    FROM pg_sequences WHERE schemaname = 'public' ORDER BY 1""",
)


def describe(connection: Connection) -> list[Any]:
    """The schema: on PostgreSQL from the server's catalog; on SQLite its statements without layout and their meaning,
    with the order of a table's indexes."""
    if connection.dialect.name == "postgresql":
        return [[tuple(row) for row in connection.exec_driver_sql(query)] for query in CATALOG]
    objects = connection.exec_driver_sql("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name")
    told: list[Any] = [(kind, name, table, squeeze(sql)) for kind, name, table, sql in objects]
    for table in tables_of(connection):
        for pragma in PRAGMAS:
            told.append((table, *map(tuple, connection.exec_driver_sql(f'PRAGMA {pragma}("{table}")'))))
    return told


def squeeze(sql: str | None) -> str:
    """Removes spaces without meaning."""
    return re.sub(r"\s*([(),]|\s)\s*", r"\1", re.sub(r"\s+", " ", sql or ""))


def tables_of(connection: Connection) -> list[str]:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
    if connection.dialect.name == "postgresql":
        query = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
    return list(connection.execute(text(query)).scalars())


def read_rows(connection: Connection) -> dict[str, list[Any]]:
    return {
        table: sorted(tuple(map(repr, row)) for row in connection.exec_driver_sql(f'SELECT * FROM "{table}"'))
        for table in tables_of(connection)
    }


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of that database."""
    script = (DATABASES / f"0015_{request.param}.sql").read_text()
    if request.param == "sqlite":
        path = tmp_path / "0015.sqlite3"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.executescript(script)
        return f"sqlite:///{path}"
    server, name = request.getfixturevalue("postgres_server"), f"old_{next(_NUMBERS)}"
    url = asyncio.run(create_database(server, name, template=None))
    asyncio.run(execute_sql(url, script))
    return url


@pytest.fixture
def operate(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Any]]:
    """Runs an operator's command on it: exit code and output."""
    monkeypatch.chdir(tmp_path)
    env = {
        "TOLLWAY_DATABASE_URL": url,
        "TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:1",
        "TOLLWAY_SECRET_KEY": bytes(range(32)).hex(),
    }

    def run(*arguments: str) -> tuple[int, Any]:
        with capture_logs():  # logs of the node that does not respond
            result = CliRunner(env=env).invoke(make_app(), ["gateway", *arguments, "--json"])
        return result.exit_code, json.loads(result.stdout or result.stderr)

    return run


def ask(url: str, work: Callable[[Connection], T]) -> T:
    async def run() -> T:
        async with open_database(url) as database:
            return await database.write(work)

    return asyncio.run(run())


@pytest.mark.parametrize("revision", [None, "0009_scale"], ids=["as it was made", "older still"])
def test_one_from_before_the_baseline_is_refused_and_stays_as_it_is(
    url: str, operate: Any, revision: str | None
) -> None:
    if revision is not None:
        older = text("UPDATE alembic_version SET version_num = :revision")
        ask(url, lambda connection: connection.execute(older, {"revision": revision}).rowcount)
    before = ask(url, read_rows), ask(url, describe)
    assert {table for table, rows in before[0].items() if not rows} <= {"generation"}  # PostgreSQL has none
    assert operate("migrate") == (1, {"error": {"code": "command_failed", "problems": [TOO_OLD]}})
    code, told = operate("doctor")
    (found,) = [finding for finding in told["findings"] if finding["check"] == "database"]
    assert (code, found["level"]) == (1, "failed")
    assert TOO_OLD in found["detail"]
    assert (ask(url, read_rows), ask(url, describe)) == before
