"""From which tables a gateway serves, at its start and while it runs. What the states mean is in contracts/test_migrations."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from tollway.errors import SettingsInvalid
from tollway.storage.database import Database, connect_database
from tollway.storage.migrate import OLDEST_SERVICEABLE, schema_state, upgrade
from tollway.storage.schema_keeper import SchemaKeeper


class Shared:
    """A file that has to be treated as PostgreSQL is: others serve from it too."""

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


async def bring(database: Database, state: str) -> None:
    """Makes the tables such that they are `state` to this code."""
    if state == "empty":
        return
    await upgrade(database, revision=OLDEST_SERVICEABLE if state in ("serviceable", "behind") else "head")
    version = {"behind": "0006_settled_by_chain", "ahead": "9001_newer", "foreign": "9001_newer"}.get(state)
    if version is not None:
        rename = text("UPDATE alembic_version SET version_num = :version")
        await database.write(lambda connection: connection.execute(rename, {"version": version}))
    if state == "foreign":
        raised = text("UPDATE schema_floor SET revision = '9001_newer'")
        await database.write(lambda connection: connection.execute(raised))
    assert await schema_state(database) == state


@pytest.mark.parametrize(
    ("state", "refusal", "told"),
    [
        ("current", None, []),
        ("ahead", None, ["schema_ahead"]),
        ("serviceable", None, ["schema_serviceable"]),
        ("empty", "run `tollway migrate` first", []),
        ("behind", "run `tollway migrate` first", []),
        ("foreign", "needs a newer version", []),
    ],
)
async def test_shared_tables_are_served_from_or_refused_and_never_changed(
    database: Database, state: str, refusal: str | None, told: list[str]
) -> None:
    await bring(database, state)
    keeper = SchemaKeeper(Shared(database))  # type: ignore[arg-type]  # all of it, by delegation
    with capture_logs() as logs:
        if refusal is None:
            await keeper.prepare()
        else:
            with pytest.raises(SettingsInvalid, match=refusal):
                await keeper.prepare()
    assert [line["event"] for line in logs] == told
    assert keeper.is_served is (refusal is None)
    assert await schema_state(database) == state


@pytest.mark.parametrize("state", ["empty", "serviceable", "current"])
async def test_a_file_of_our_own_is_migrated(database: Database, state: str) -> None:
    await bring(database, state)
    await SchemaKeeper(database).prepare()
    assert await schema_state(database) == "current"


async def test_a_newer_file_stays_as_it_is(database: Database) -> None:
    await bring(database, "ahead")
    await SchemaKeeper(database).prepare()
    assert await schema_state(database) == "ahead"


async def test_tables_that_grow_beyond_this_code_while_it_serves_are_noticed(database: Database) -> None:
    keeper = SchemaKeeper(database)
    await keeper.prepare()
    await keeper.watch()
    assert keeper.is_served
    await bring(database, "foreign")
    with capture_logs() as logs:
        await keeper.watch()
    assert not keeper.is_served
    assert [(line["event"], line["state"]) for line in logs] == [("schema_not_served", "foreign")]
