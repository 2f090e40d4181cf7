"""The two databases of the transcripts, read from outside the gateway: SQLite files and a PostgreSQL server of our own."""

import asyncio
import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg

from tests.system.transcripts import adapter

CLOCK_LOCK = 1_800_000_000
"""Whoever has asked the database for the time holds it to the end of the transaction: the clock must not move meanwhile."""
BUSY = (
    "SELECT 1 FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active'"
)
KINDS = ("sqlite", "postgresql")


class PostgresServer:
    """Databases at the server of that URL. The clock for a database is that of its transcript. `migrate(url, clock)` makes the tables, once."""

    def __init__(self, url: str, migrate: Callable[[str, Path], None]) -> None:
        self._url = url
        self._folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self._folder.chmod(0o755)  # the database server may be another user, and reads the clock
        self._loop = asyncio.new_event_loop()
        self._number = 0
        clock = self._folder / "clock"
        clock.write_bytes(bytes(8))
        migrate(self._create("template_transcript", clock, of="template1"), clock)

    def run(self, job: Any) -> Any:
        return self._loop.run_until_complete(job)

    def close(self) -> None:
        self._loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def make(self, clock: Path) -> str:
        """The URL of a new database whose `clock_timestamp()` shows what stands in that file."""
        self._number += 1
        return self._create(f"transcript_{self._number}", clock, of="template_transcript")

    def _create(self, name: str, clock: Path, *, of: str) -> str:
        self.run(self._execute(self._url, f"CREATE DATABASE {name} TEMPLATE {of}"))
        base, _, rest = self._url.rpartition("/postgres")
        url = f"{base}/{name}{rest}"
        shown = f"pg_read_binary_file('{clock}', 0, 8)"
        self.run(
            self._execute(
                url,
                "CREATE SCHEMA IF NOT EXISTS transcript",
                "CREATE OR REPLACE FUNCTION transcript.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ "
                f"SELECT pg_advisory_xact_lock_shared({CLOCK_LOCK}); "
                f"SELECT to_timestamp(('x' || encode({shown}, 'hex'))::bit(64)::bigint / 1000.0) $$",
                f"ALTER DATABASE {name} SET search_path TO public, transcript, pg_catalog",
            )
        )
        return url

    async def _execute(self, url: str, *statements: str) -> None:
        connection = await asyncpg.connect(url)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()


class Rows:
    """What stands in the tables, as text, and what of it is new since it was last asked."""

    def __init__(self, url: str, server: PostgresServer | None) -> None:
        self._queries = adapter.queries()
        self._seen: dict[tuple[str, str], dict[str, str]] = {}
        self._server = server
        self._sqlite: sqlite3.Connection | None = None
        self._postgres: Any = None
        self._url = url

    def open(self) -> None:
        if self._server is None:
            path = self._url.removeprefix("sqlite:///")
            self._sqlite = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
        else:
            self._postgres = self._server.run(asyncpg.connect(self._url))

    def close(self) -> None:
        if self._sqlite is not None:
            self._sqlite.close()
        if self._postgres is not None:
            assert self._server is not None
            self._server.run(self._postgres.close())
        self._sqlite = self._postgres = None

    def calls(self, condition: str = "TRUE") -> set[str]:
        """Each try of a call, by its id and number."""
        return {row[0] for row in self._ask(adapter.TRIES + condition)}

    @property
    def is_database_busy(self) -> bool:
        """Whether the server works on a statement of the gateway. SQLite works within the gateway's process."""
        return self._server is not None and bool(self._ask(BUSY))

    @contextlib.contextmanager
    def clock_held(self) -> Iterator[None]:
        """Inside, no gateway gets the time of the database. One that got it before may not have compared it with its own
        yet."""
        if self._postgres is None:
            yield
            return
        assert self._server is not None
        run, execute = self._server.run, self._postgres.execute
        run(execute(f"SELECT pg_advisory_lock({CLOCK_LOCK})"))
        try:
            yield
        finally:
            run(execute(f"SELECT pg_advisory_unlock({CLOCK_LOCK})"))

    @property
    def renewed_ms(self) -> int:
        return int(self._ask(adapter.RENEWED)[0][0])

    def take(self) -> list[str]:
        """A line for each row that is new, changed or gone."""
        told, self._seen = self._compare()
        return told

    def peek(self) -> list[str]:
        """The same, to be told again."""
        return self._compare()[0]

    def _compare(self) -> tuple[list[str], dict[tuple[str, str], dict[str, str]]]:
        told: list[str] = []
        found: dict[tuple[str, str], dict[str, str]] = {}
        for name, query in self._queries.items():
            columns = ["", *adapter.COLUMNS[name][3]]
            for key, *values in self._ask(query):
                row = {
                    column: _write(column, value)
                    for column, value in zip(columns[1:], values, strict=True)
                    if value is not None
                }
                found[name, str(key)] = row
                before = self._seen.get((name, str(key)))
                if before is None:
                    told.append(f"+ {name} " + " ".join(f"{column}={value}" for column, value in row.items()))
                elif before != row:
                    changed = [
                        f"{column}={before.get(column, '-')}->{row.get(column, '-')}"
                        for column in columns[1:]
                        if before.get(column) != row.get(column)
                    ]
                    told.append(f"~ {name} {_title(name, key, row)} " + " ".join(changed))
        told += [
            f"- {name} {_title(name, key, row)}"
            for (name, key), row in self._seen.items()
            if (name, key) not in found
        ]
        return told, found

    def _ask(self, query: str) -> Any:
        if self._sqlite is not None:
            return self._sqlite.execute(query).fetchall()
        assert self._server is not None
        return self._server.run(self._postgres.fetch(query))


def _write(column: str, value: Any) -> str:
    if column in adapter.FLAGS:
        return "yes" if value else "no"
    if isinstance(value, bytes | memoryview):
        return "0x" + bytes(value).hex()
    return str(value)


def _title(name: str, key: Any, row: dict[str, str]) -> str:
    if name in ("payment", "settlement"):
        return row["transaction"]
    return str(key)
