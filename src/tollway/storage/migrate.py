"""Brings the tables of a database to this version, each step whole or not at all, on both dialects.

On PostgreSQL many gateways may start at once: an advisory lock lets one of them do the work.
"""

from pathlib import Path
from typing import Literal

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from tollway.storage.database import Database

MIGRATIONS = Path(__file__).parent / "migrations"
_LOCK_KEY = 0x746F6C6C  # any constant of ours

SchemaState = Literal["empty", "behind", "current", "foreign"]
"""`foreign`: written by a newer version, or by something else; do not touch it."""


async def upgrade(database: Database) -> None:
    """Runs the missing migrations in one transaction. Raises `StorageUnavailable` when the database is away."""
    await database.write(_upgrade)


async def schema_state(database: Database) -> SchemaState:
    """How the tables stand against this version."""
    return await database.read(_schema_state)


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _schema_state(connection: Connection) -> SchemaState:
    scripts = ScriptDirectory.from_config(_config())
    found = MigrationContext.configure(connection).get_current_heads()
    if not found:
        return "empty"
    known = {script.revision for script in scripts.walk_revisions()}
    if not set(found) <= known:
        return "foreign"
    return "current" if set(found) == set(scripts.get_heads()) else "behind"


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
