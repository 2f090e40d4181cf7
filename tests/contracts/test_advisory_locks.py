"""A server that does not keep transactions apart is refused at the start of a gateway: no wrong grant has to show it."""

import os
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.kit.databases import NO_LOCKS, add_unlocked, choose_session, execute_sql, open_database
from tests.kit.gateway_process import TOLLWAY
from tests.kit.waits import run_program
from tollway.errors import SettingsInvalid, StorageUnavailable
from tollway.storage.engine import postgres
from tollway.storage.engine.advisory_locks import (
    FUNCTION_MISSING,
    LOCKS_EXCLUDE_NOTHING,
    NOT_POSTGRESQL,
    SNAPSHOT_IS_OLD,
    find_exclusion_fault,
    require_exclusion,
)
from tollway.storage.engine.database import Database, connect_database

LIKE_A_DISTRIBUTED_DATABASE = [
    ({"POSTGRES_ADVISORY_LOCKS": "off"}, LOCKS_EXCLUDE_NOTHING),
    ({"POSTGRES_ISOLATION": "repeatable read"}, SNAPSHOT_IS_OLD),
    ({"POSTGRES_ISOLATION": "serializable"}, SNAPSHOT_IS_OLD),
]


async def test_the_databases_that_are_supported_keep_transactions_apart(database: Database) -> None:
    assert await find_exclusion_fault(database) is None
    await require_exclusion(database)


@pytest.mark.postgres
@pytest.mark.parametrize(("changed", "fault"), LIKE_A_DISTRIBUTED_DATABASE)
async def test_a_server_that_does_not_is_refused(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], fault: str
) -> None:
    await add_unlocked(postgres_url)
    for setting, value in choose_session(changed).items():
        monkeypatch.setitem(postgres._SESSION, setting, value)
    async with open_database(postgres_url) as database:
        with pytest.raises(SettingsInvalid) as refused:
            await require_exclusion(database)
    assert refused.value.problems == [f"database_url: {NOT_POSTGRESQL.format(fault)}"]


async def break_snapshots(postgres_url: str, monkeypatch: pytest.MonkeyPatch, condition: str) -> None:
    """`pg_current_snapshot` fails with that condition, by its name in PostgreSQL."""
    raising = f"BEGIN RAISE EXCEPTION 'no snapshot' USING ERRCODE = '{condition}'; END"
    await execute_sql(
        postgres_url,
        "CREATE FUNCTION public.pg_current_snapshot() RETURNS text LANGUAGE plpgsql AS $$ " + raising + " $$",
    )
    monkeypatch.setitem(postgres._SESSION, "search_path", "public, pg_catalog")


@pytest.mark.postgres
async def test_a_server_without_the_functions_is_refused(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await break_snapshots(postgres_url, monkeypatch, "feature_not_supported")
    async with open_database(postgres_url) as database:
        assert await find_exclusion_fault(database) == NOT_POSTGRESQL.format(FUNCTION_MISSING)


@pytest.mark.postgres
async def test_another_error_of_the_server_is_not_called_another_database(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await break_snapshots(postgres_url, monkeypatch, "disk_full")
    async with open_database(postgres_url) as database:
        with pytest.raises(StorageUnavailable):
            await require_exclusion(database)


@pytest.mark.postgres
async def test_a_server_that_does_not_answer_is_not_called_another_database() -> None:
    database = connect_database("postgresql://127.0.0.1:1/books")
    with pytest.raises(StorageUnavailable):
        await require_exclusion(database)


@pytest.mark.postgres
@pytest.mark.parametrize("command", ["serve", "migrate", "doctor"])
async def test_each_command_that_begins_with_a_server_names_it(
    postgres_url: str, tmp_path: Path, command: str
) -> None:
    await add_unlocked(postgres_url)
    name = make_url(postgres_url).database
    await execute_sql(postgres_url, f"ALTER DATABASE {name} SET search_path = {NO_LOCKS}, public, pg_catalog")
    ended = await run_program(
        *(*TOLLWAY, "gateway", command),
        env={
            **os.environ,
            "TOLLWAY_DATABASE_URL": postgres_url,
            "TOLLWAY_SECRET_KEY": "4e7c1b9a05d2f683" * 4,
            "TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:1",
        },
        cwd=tmp_path,
    )
    assert ended.code != 0
    assert NOT_POSTGRESQL.format(LOCKS_EXCLUDE_NOTHING) in ended.output + ended.errors
