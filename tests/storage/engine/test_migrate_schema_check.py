"""The tables from which a gateway serves, at its start and while it runs. The states: contracts/test_migrate.py."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from tests.kit.databases import write_newer_migrations
from tollway.errors import SettingsInvalid
from tollway.storage.engine.database import Database, connect_database
from tollway.storage.engine.migrate import SchemaCheck, schema_state, upgrade


class Shared:
    """A SQLite file with the dialect name of PostgreSQL: other gateways share it."""

    dialect = "postgresql"

    def __init__(self, database: Database) -> None:
        self._database = database

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = connect_database(f"sqlite:///{tmp_path}/books.sqlite3")
    await database.open()
    yield database
    await database.close()


async def bring(database: Database, state: str, **code: Any) -> None:
    """Puts the tables into `state` for that code."""
    if state == "empty":
        return
    await upgrade(database)
    version = {"too_old": "0009_scale", "ahead": "9001_newer", "foreign": "9001_newer"}.get(state)
    if version is not None:
        rename = text("UPDATE alembic_version SET version_num = :version")
        await database.write(lambda connection: connection.execute(rename, {"version": version}))
    if state == "foreign":
        raised = text("UPDATE schema_floor SET revision = '9001_newer'")
        await database.write(lambda connection: connection.execute(raised))
    assert await schema_state(database, **code) == state


@pytest.fixture
def code(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The code for which the tables have the state of the test: this release or the next one."""
    state = request.getfixturevalue("state")
    if state not in ("serviceable", "behind"):
        return {}
    oldest = {"oldest_serviceable": "9001_newer"} if state == "behind" else {}
    return {"migrations": write_newer_migrations(tmp_path), **oldest}


@pytest.mark.parametrize(
    ("state", "refusal", "logged"),
    [
        ("current", None, []),
        ("ahead", None, ["schema_ahead"]),
        ("serviceable", None, ["schema_serviceable"]),
        ("empty", "run `tollway gateway migrate` first", []),
        ("behind", "run `tollway gateway migrate` first", []),
        ("too_old", "neither read nor migrate it", []),
        ("foreign", "needs a newer version", []),
    ],
)
async def test_shared_tables_are_accepted_or_refused_and_never_changed(
    database: Database, state: str, refusal: str | None, logged: list[str], code: dict[str, Any]
) -> None:
    await bring(database, state, **code)
    check = SchemaCheck(Shared(database), **code)  # type: ignore[arg-type]  # by delegation
    with capture_logs() as logs:
        if refusal is None:
            await check.prepare()
        else:
            with pytest.raises(SettingsInvalid, match=refusal):
                await check.prepare()
    assert [line["event"] for line in logs] == logged
    assert check.is_served is (refusal is None)
    assert await schema_state(database, **code) == state


@pytest.mark.parametrize("state", ["empty", "behind", "serviceable", "current"])
async def test_a_sqlite_file_is_migrated_at_the_start(
    database: Database, state: str, code: dict[str, Any]
) -> None:
    await bring(database, state, **code)
    await SchemaCheck(database, **code).prepare()
    assert await schema_state(database, **code) == "current"


async def test_a_file_from_before_the_baseline_is_refused_and_not_changed(database: Database) -> None:
    await bring(database, "too_old")
    check = SchemaCheck(database)
    with pytest.raises(SettingsInvalid, match="made by an older version"):
        await check.prepare()
    assert not check.is_served
    assert await schema_state(database) == "too_old"


async def test_a_newer_file_is_not_changed(database: Database) -> None:
    await bring(database, "ahead")
    await SchemaCheck(database).prepare()
    assert await schema_state(database) == "ahead"


async def test_detects_tables_that_become_too_new_while_it_serves(database: Database) -> None:
    check = SchemaCheck(database)
    await check.prepare()
    await check.watch()
    assert check.is_served
    await bring(database, "foreign")
    with capture_logs() as logs:
        await check.watch()
    assert not check.is_served
    assert [(line["event"], line["state"]) for line in logs] == [("schema_not_served", "foreign")]
