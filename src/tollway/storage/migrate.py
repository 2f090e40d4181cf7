"""Brings the tables of a database to this version, each step whole or not at all, on both dialects; and says whether
this version may serve from the tables that it finds.

Releases overlap while they are rolled out, so both ways have to work for one release: new code on the tables of the
release before, and old code on the tables of the release after. A migration therefore only adds; what it adds, older
code can ignore. `schema_floor` names the oldest revision whose code may serve from the tables; only a migration that
takes something away raises it. Nothing here decides on what it reads from any other table.

On PostgreSQL many gateways may start at once: an advisory lock lets one of them do the work. Where there is nothing to
do, nothing of what would do it is loaded.
"""

from functools import partial
from pathlib import Path
from typing import Literal

from sqlalchemy import CheckConstraint, Column, Connection, Integer, String, Table, inspect, select, text

from tollway.storage.database import Database, metadata
from tollway.storage.fresh_schema import read_statements

MIGRATIONS = Path(__file__).parent / "migrations"
OLDEST_SERVICEABLE = "0007_gas_by_network"
"""The oldest tables from which this code can serve. What is missing there fails alone: keyed creations, and
calls that an authorisation pays (x402, MPP), answer `storage_unavailable`."""

_LOCK_KEY = 0x746F6C6C  # any constant of ours
_LOCK_WAIT_S = 3
"""While a migration waits for a table, everybody who asks for that table waits behind it."""

SchemaState = Literal["empty", "behind", "serviceable", "current", "ahead", "foreign"]
"""`serviceable`: older than this version, and it can serve. `ahead`: newer, and this version may serve from it.
`behind` and `foreign` (a version too new, or something else altogether): it must not."""

schema_floor_table = Table(
    "schema_floor",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("revision", String(32), nullable=False),
    CheckConstraint("id = 1", name="one_row"),
)


async def upgrade(
    database: Database,
    *,
    revision: str = "head",
    migrations: Path = MIGRATIONS,
    is_step_by_step: bool = False,
) -> SchemaState:
    """Runs the missing migrations, up to `revision`, in one transaction; tables that are ahead are left alone. How
    they stand then. Raises `StorageUnavailable` when the database is away, or too busy on PostgreSQL: then nothing
    has changed. A new SQLite file gets its tables as they are written down, unless `is_step_by_step`."""
    is_short = revision == "head" and not is_step_by_step
    work = partial(_upgrade, revision=revision, migrations=migrations, is_short=is_short)
    return await database.write(work, is_long=True)


async def schema_state(database: Database, *, migrations: Path = MIGRATIONS) -> SchemaState:
    """How the tables stand against this version."""
    return await database.read(lambda connection: _schema_state(connection, migrations))


def _upgrade(connection: Connection, *, revision: str, migrations: Path, is_short: bool) -> SchemaState:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
        connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_WAIT_S}s'"))
    state = _schema_state(connection, migrations)
    if state == "ahead":
        return "ahead"
    if is_short and state == "empty" and connection.dialect.name == "sqlite":
        statements = read_statements(migrations)
        for statement in statements:
            connection.exec_driver_sql(statement)
        if statements:
            return _schema_state(connection, migrations)
    from tollway.storage.migration_run import run_migrations  # noqa: PLC0415 - alembic takes 11 MiB, most starts none

    run_migrations(connection, revision, migrations)
    return _schema_state(connection, migrations)


def _schema_state(connection: Connection, migrations: Path) -> SchemaState:
    found = _read_versions(connection)
    if not found:
        return "empty"
    known = list_revisions(migrations)  # the newest first
    if found == {known[0]}:
        return "current"
    if not found <= set(known):
        return "ahead" if _read_floor(connection) in known else "foreign"
    can_serve = all(known.index(name) <= known.index(OLDEST_SERVICEABLE) for name in found)
    return "serviceable" if can_serve else "behind"


def list_revisions(migrations: Path = MIGRATIONS) -> list[str]:
    """The newest first. One line of them, in the order of their files, each of which has its revision's name."""
    return sorted((path.stem for path in (migrations / "versions").glob("[0-9]*.py")), reverse=True)


def _read_versions(connection: Connection) -> set[str]:
    if not inspect(connection).has_table("alembic_version"):
        return set()
    return set(connection.execute(text("SELECT version_num FROM alembic_version")).scalars())


def _read_floor(connection: Connection) -> str | None:
    if not inspect(connection).has_table(schema_floor_table.name):
        return None
    return connection.scalar(select(schema_floor_table.c.revision))
