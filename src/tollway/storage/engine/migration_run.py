"""Runs migrations with alembic. `storage.engine.migrate` imports it only when there are migrations to run."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def run_migrations(connection: Connection, revision: str, migrations: Path) -> None:
    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
