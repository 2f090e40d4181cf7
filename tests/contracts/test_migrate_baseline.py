"""Every command of the operator refuses tables that this version must not use, in one sentence, and changes nothing."""

import asyncio
import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection
from structlog.testing import capture_logs
from typer.testing import CliRunner

from tests.contracts.test_migrate import describe, read_rows
from tests.kit.databases import create_database, open_database
from tollway.cli.main import make_app
from tollway.storage.engine.migrate import TOO_NEW, TOO_OLD, explain_refusal, upgrade

pytestmark = pytest.mark.dialects

T = TypeVar("T")
_NUMBERS = count(1)
EMPTY = explain_refusal("empty")
TX, WALLET = f"0x{'11' * 32}", f"0x{'22' * 20}"
COMMANDS = (
    ("audit",),
    ("audit", "--release"),
    ("audit", "--restored"),
    ("audit", "--rewrite"),
    ("admit", TX),
    ("secrets", "status"),
    ("secrets", "reencrypt"),
    ("listings", "--suspended"),
    ("listings", "suspend", "api_1"),
    ("listings", "restore", "api_1"),
    ("wallets", "--blocked"),
    ("wallets", "block", WALLET),
    ("wallets", "unblock", WALLET),
    ("wallets", "unbind", WALLET),
    ("admin", "log"),
    ("admin", "link"),
)


def make_older(connection: Connection) -> None:
    """The tables of a version before the baseline: the name of its revision, and a table of a form that this version does not know."""
    for statement in (
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)",
        "INSERT INTO alembic_version VALUES ('0030_response_providers')",
        "CREATE TABLE payment (id INTEGER PRIMARY KEY, value_text TEXT NOT NULL)",
        "INSERT INTO payment VALUES (7, '12.5')",
    ):
        connection.exec_driver_sql(statement)


def make_newer(connection: Connection) -> None:
    connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9001_newer'")
    connection.exec_driver_sql("UPDATE schema_floor SET revision = '9001_newer'")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tollway.sqlite3"
    server = request.getfixturevalue("postgres_server")
    return asyncio.run(create_database(server, f"refused_{next(_NUMBERS)}", template=None))


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


def migrate(url: str) -> None:
    async def run() -> None:
        async with open_database(url) as database:
            await upgrade(database)

    asyncio.run(run())


def read_all(url: str) -> tuple[Any, Any]:
    return ask(url, read_rows), ask(url, describe)


def refused(problem: str | None) -> tuple[int, Any]:
    return 1, {"error": {"code": "command_failed", "problems": [problem]}}


def test_tables_from_before_the_baseline_are_refused_and_stay_as_they_are(url: str, operate: Any) -> None:
    ask(url, make_older)
    before = read_all(url)
    for command in (("migrate",), *COMMANDS):
        assert operate(*command) == refused(TOO_OLD), command
    code, reply = operate("doctor")
    (found,) = [finding for finding in reply["findings"] if finding["check"] == "database"]
    assert (code, found["level"]) == (1, "failed")
    assert TOO_OLD in found["detail"]
    assert read_all(url) == before


@pytest.mark.parametrize("state", ["empty", "foreign"])
def test_a_command_refuses_missing_and_too_new_tables_and_makes_none(
    url: str, operate: Any, state: str
) -> None:
    if state == "foreign":
        migrate(url)
        ask(url, make_newer)
    else:
        ask(url, lambda connection: None)  # on SQLite this makes the file
    before = read_all(url)
    for command in COMMANDS:
        assert operate(*command) == refused(EMPTY if state == "empty" else TOO_NEW), command
    assert read_all(url) == before
