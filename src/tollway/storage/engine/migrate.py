"""Migrates the tables of a database to this version, and checks whether this version may serve from the tables, on both dialects.

An empty database gets the tables of the baseline: the statements of `baseline.sqlite.sql` or `baseline.postgresql.sql`, which `make schema` writes from
`metadata`. The migrations after it run with alembic, which is not loaded where there are none.

Releases overlap during an upgrade, so two directions must work for one release: new code on the tables of the release before, and old code
on the tables of the release after. A migration therefore only adds, and older code ignores the additions. A database from before the
baseline is refused. `schema_floor` has the oldest revision whose code may serve from the tables; only a migration that removes something
raises it. No decision here uses another table.

On PostgreSQL only the operator starts a migration, and an advisory lock admits one at a time. On SQLite the gateway migrates its file.
"""

from functools import partial
from pathlib import Path
from typing import Literal, assert_never

import structlog
from sqlalchemy import (
    CheckConstraint,
    Column,
    Connection,
    Integer,
    PrimaryKeyConstraint,
    String,
    Table,
    inspect,
    select,
    text,
)

from tollway.errors import SettingsInvalid
from tollway.storage.engine.database import Database, add_statement, metadata

MIGRATIONS = Path(__file__).parent / "migrations"
BASELINE = "0037_baseline"
"""The oldest revision. Until the first release, a change of its tables raises its number: a database of the tables before is then `too_old`."""
OLDEST_SERVICEABLE = BASELINE
"""The oldest tables from which this code can serve. A request that needs missing tables fails with `storage_unavailable`."""
TOO_OLD = (
    "the database was made by an older version of Tollway, and this version can neither read nor migrate it: serve it with the"
    " version that made it, or set database_url to an empty database"
)
TOO_NEW = "the database needs a newer version of Tollway than this one"

_LOCK_KEY = 0x746F6C6C
_LOCK_WAIT_S = 3
"""The longest wait of a migration for a lock on a table. Short, because every later user of the table waits behind it."""

SchemaState = Literal["empty", "too_old", "behind", "serviceable", "current", "ahead", "foreign"]
"""The state of the tables for this version. It may serve from `current`, `serviceable` (older) and `ahead` (newer). It must not serve from
`empty`, `behind` (too old, can be migrated), `too_old` (older than the baseline, cannot be migrated) and `foreign` (too new, or not of
Tollway)."""

version_table = Table(
    "alembic_version",
    metadata,
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
add_statement(version_table, f"INSERT INTO alembic_version (version_num) VALUES ('{BASELINE}')")  # noqa: S608 - a name of ours

schema_floor_table = Table(
    "schema_floor",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("revision", String(32), nullable=False),
    CheckConstraint("id = 1", name="one_row"),
)
add_statement(schema_floor_table, f"INSERT INTO schema_floor (id, revision) VALUES (1, '{BASELINE}')")  # noqa: S608 - a name of ours


async def upgrade(
    database: Database, *, revision: str = "head", migrations: Path = MIGRATIONS
) -> SchemaState:
    """Makes the tables of an empty database, runs the missing migrations up to `revision`, all in one transaction, and returns the new state. Does not
    change tables that are ahead, foreign or too old. Raises `StorageUnavailable`, and changes nothing, when the database is
    unavailable or, on PostgreSQL, busy."""
    work = partial(_upgrade, revision=revision, migrations=migrations)
    return await database.write(work, is_long=True)


async def schema_state(
    database: Database, *, migrations: Path = MIGRATIONS, oldest_serviceable: str = OLDEST_SERVICEABLE
) -> SchemaState:
    return await database.read(partial(_schema_state, migrations=migrations, oldest=oldest_serviceable))


def explain_refusal(state: SchemaState) -> str | None:
    """Why this version must not use tables of this state, and what to do; None when it may."""
    match state:
        case "current" | "ahead" | "serviceable":
            return None
        case "foreign":
            return TOO_NEW
        case "too_old":
            return TOO_OLD
        case "empty" | "behind":
            return "the tables are missing or old; run `tollway gateway migrate` first"
    assert_never(state)


async def find_revision(database: Database) -> str | None:
    """The name of the revision; None without tables."""
    return max(await database.read(_read_versions), default=None)


def _upgrade(connection: Connection, *, revision: str, migrations: Path) -> SchemaState:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
        connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_WAIT_S}s'"))
    state = _schema_state(connection, migrations)
    if state in ("ahead", "foreign", "too_old"):
        return state
    if state == "empty":
        for statement in read_baseline(migrations, connection.dialect.name):
            connection.exec_driver_sql(statement)
    if _read_versions(connection) != {list_revisions(migrations)[0]}:
        from tollway.storage.engine.migration_run import run_migrations  # noqa: PLC0415 - alembic takes 11 MiB, most starts none

        run_migrations(connection, revision, migrations)
    return _schema_state(connection, migrations)


def baseline_path(migrations: Path, dialect: str) -> Path:
    return migrations / f"baseline.{dialect}.sql"


def read_baseline(migrations: Path, dialect: str) -> list[str]:
    """The statements that make the tables of the baseline, in order. An empty line ends a statement."""
    return [
        part.strip().removesuffix(";")
        for part in baseline_path(migrations, dialect).read_text().split(";\n\n")
    ]


def _schema_state(connection: Connection, migrations: Path, oldest: str = OLDEST_SERVICEABLE) -> SchemaState:
    found = _read_versions(connection)
    if not found:
        return "empty"
    known = list_revisions(migrations)
    if found == {known[0]}:
        return "current"
    if not found <= set(known):
        if max(found) < known[-1]:
            return "too_old"
        floor = _read_floor(connection)
        return "ahead" if floor is not None and floor <= known[0] else "foreign"
    return "serviceable" if min(found) >= oldest else "behind"


def list_revisions(migrations: Path = MIGRATIONS) -> list[str]:
    """The names of the revisions, the newest first, the baseline last. A revision is named as its file, and names sort by age: so the older of two
    revisions is known even when this version has only one of them."""
    return sorted((path.stem for path in (migrations / "versions").glob("[0-9]*.py")), reverse=True)


def _read_versions(connection: Connection) -> set[str]:
    if not inspect(connection).has_table(version_table.name):
        return set()
    return set(connection.scalars(select(version_table.c.version_num)))


def _read_floor(connection: Connection) -> str | None:
    if not inspect(connection).has_table(schema_floor_table.name):
        return None
    return connection.scalar(select(schema_floor_table.c.revision))


_log = structlog.get_logger(__name__)


class SchemaCheck:
    """A check of the tables at start and while the gateway serves. `is_served`: this code may serve from the tables, as of the last check."""

    def __init__(
        self,
        database: Database,
        *,
        migrations: Path = MIGRATIONS,
        oldest_serviceable: str = OLDEST_SERVICEABLE,
    ) -> None:
        self._database = database
        self._migrations = migrations
        self._oldest_serviceable = oldest_serviceable
        self.is_served = False

    async def prepare(self) -> None:
        """Checks the tables at start; on SQLite it migrates them first. Raises `SettingsInvalid` when this code must not serve from them."""
        state = await self._find_state()
        if self._database.dialect == "sqlite" and state in ("empty", "behind", "serviceable"):
            state = await upgrade(self._database, migrations=self._migrations)
        if (refusal := explain_refusal(state)) is not None:
            raise SettingsInvalid([f"database_url: {refusal}"])
        if state == "ahead":
            _log.warning("schema_ahead", hint="this gateway is older than its tables; it can serve")
        if state == "serviceable":
            _log.warning(
                "schema_serviceable", hint="the tables are one release old; run tollway gateway migrate"
            )
        self.is_served = True

    async def watch(self) -> None:
        """Checks the tables again and updates `is_served`. Run it as a background task."""
        state = await self._find_state()
        self.is_served = explain_refusal(state) is None
        if not self.is_served:
            _log.error("schema_not_served", state=state, hint="run a gateway of the version of the tables")

    async def _find_state(self) -> SchemaState:
        return await schema_state(
            self._database, migrations=self._migrations, oldest_serviceable=self._oldest_serviceable
        )
