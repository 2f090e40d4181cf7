"""Databases for tests: a PostgreSQL server of the test wheel, databases in it, files of SQLite, and the migrations of a release
after this one.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncpg
from alembic.script import ScriptDirectory
from sqlalchemy import make_url

from tests.kit.waits import DEADLINE_S, until
from tollway.storage.engine.database import Database, connect_database
from tollway.storage.engine.migrate import MIGRATIONS, upgrade

TEMPLATE = "template_books"
UNSAFE_SETTINGS = ("-c", "fsync=off", "-c", "max_wal_size=256MB")
"""A server that is lost with its machine: the files need not outlive it."""

NO_LOCKS = "no_locks"
"""A schema of functions that take no advisory lock."""

_NEWER_MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision = "9001_newer"
down_revision = "{down}"
branch_labels = None
depends_on = None


def upgrade():
    op.add_column("call", sa.Column("colour", sa.Text(), nullable=True))
    op.add_column("listing", sa.Column("rank", sa.Integer(), nullable=False, server_default="0"))
    op.create_table("parcel", sa.Column("id", sa.Integer(), primary_key=True), sa.Column("note", sa.Text()))
    op.create_index("ix_call_colour", "call", ["colour"])
    if {floor!r}:
        op.execute("UPDATE schema_floor SET revision = '{floor}'")
"""


@contextlib.contextmanager
def run_postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server, stopped and deleted at the end."""
    from tests.kit.postgres_programs import (  # not in `make quick`
        end_server,
        find_memory,
        find_user,
        run_program,
        start_server,
    )

    folder = Path(tempfile.mkdtemp(prefix=f"pg-{os.getpid()}-", dir=find_memory()))
    data, log = folder / "data", folder / "log"
    user = find_user(folder)
    try:
        run_program(
            "initdb",
            "--auth=trust",
            "-U",
            "postgres",
            "--encoding=utf8",
            "--no-sync",
            "-D",
            str(data),
            user=user,
        )
        server = start_server(data, "-h", "", "-k", str(folder), *UNSAFE_SETTINGS, log=log, user=user)
        try:
            url = f"postgresql://postgres:@/postgres?host={folder}"
            run_in_thread(_wait_for_response(url, server, log))
            yield url
        finally:
            end_server(server)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _wait_for_response(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return await execute_sql(url, "SELECT 1")
        except (OSError, asyncpg.PostgresError):
            assert server.poll() is None, log.read_text()[-4_000:]
            assert time.monotonic() < deadline, log.read_text()[-4_000:]
            await asyncio.sleep(0.02)


def database_url(server: str, name: str) -> str:
    """The URL of the database of that name."""
    return make_url(server).set(database=name).render_as_string(hide_password=False)


async def create_database(server: str, name: str, *, template: str | None) -> str:
    """Makes a database in a PostgreSQL server, copied from `template` if there is one. Gives its URL.

    A copy of the files takes a third of the time of a copy through the log.
    """
    copied = f" TEMPLATE {template} STRATEGY file_copy" if template else ""
    await execute_sql(server, f"CREATE DATABASE {name}{copied}")
    return database_url(server, name)


async def drop_database(server: str, name: str) -> None:
    await execute_sql(server, f"DROP DATABASE {name} WITH (FORCE)")


async def migrate_database(url: str) -> None:
    async with open_database(url) as database:
        await upgrade(database)


@contextlib.asynccontextmanager
async def open_database(url: str) -> AsyncIterator[Database]:
    database = connect_database(url)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


async def execute_sql(url: str, *statements: str) -> None:
    """Executes statements in a PostgreSQL database."""
    connection = await asyncpg.connect(url, command_timeout=DEADLINE_S)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def set_database_clock(url: str, *, skew_s: int) -> None:
    """Makes the time of day of a PostgreSQL database wrong by so many seconds: of every session, if the first time is before the first session."""
    skewed = f"SELECT pg_catalog.clock_timestamp() + interval '{skew_s} s'"
    await execute_sql(
        url,
        f"ALTER DATABASE {make_url(url).database} SET search_path = public, pg_catalog",
        f"CREATE OR REPLACE FUNCTION public.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql AS $$ {skewed} $$",
    )


def choose_session(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of the product's sessions that a run changes, to show what a distributed database would change: `POSTGRES_ISOLATION`
    (such as `serializable`), and `POSTGRES_ADVISORY_LOCKS=off`, with which the locks of transactions exclude nothing."""
    chosen = {}
    if isolation := environment.get("POSTGRES_ISOLATION"):
        chosen["default_transaction_isolation"] = isolation
    if environment.get("POSTGRES_ADVISORY_LOCKS") == "off":
        chosen["search_path"] = f"{NO_LOCKS}, public, pg_catalog"
    return chosen


async def add_unlocked(url: str) -> None:
    """Adds `NO_LOCKS` to a database; a session that has it in its `search_path`, before `pg_catalog`, takes no lock."""
    function = f"{NO_LOCKS}.pg_advisory_xact_lock(integer, integer)"
    await execute_sql(
        url,
        f"CREATE SCHEMA {NO_LOCKS}",
        f"CREATE FUNCTION {function} RETURNS void LANGUAGE sql AS ''",
    )


async def pass_lease(url: str, *, lease_s: int, renewing: int) -> None:
    """Lets more than a lease pass by the clock of a PostgreSQL database (`set_database_clock`), in steps of a third of it. `renewing`: the gateways that run; each renews its
    lease within each step, so that it may then recover the calls of the others."""
    connection = await asyncpg.connect(url, command_timeout=DEADLINE_S)

    async def is_renewed() -> bool:
        counted = "SELECT count(*) FROM gateway_owner WHERE seen_ms >= $1"
        return bool(await connection.fetchval(counted, moment_ms) >= renewing)

    try:
        skew_s = await connection.fetchval(
            "SELECT round(extract(epoch FROM clock_timestamp() - pg_catalog.clock_timestamp()))"
        )
        for step in range(1, 5):
            await set_database_clock(url, skew_s=int(skew_s) + step * lease_s // 3)
            moment_ms = await connection.fetchval(
                "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
            )
            await until(is_renewed)
    finally:
        await connection.close()


def run_in_thread(job: Coroutine[Any, Any, object]) -> None:
    """Runs a coroutine to its end in a thread, beside the event loop of the test."""
    with ThreadPoolExecutor(max_workers=1) as threads:
        threads.submit(asyncio.run, asyncio.wait_for(job, DEADLINE_S)).result()


def write_newer_migrations(folder: Path, *, floor: str = "") -> Path:
    """Writes the migrations of the release after this one, which only add. Gives their folder. `floor`: the oldest revision
    whose code may still serve; empty: the release leaves the floor as it is."""
    folder = folder / f"newer-{floor}"
    shutil.copytree(MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (head,) = ScriptDirectory(str(folder)).get_heads()
    (folder / "versions" / "9001_newer.py").write_text(_NEWER_MIGRATION.format(down=head, floor=floor))
    return folder
