"""Runs migrations with alembic. Loaded by `storage.migrate` when there are some to run, and by nobody else."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection


def run_migrations(connection: Connection, revision: str, migrations: Path) -> None:
    """Those that are missing, up to `revision`, inside the transaction of `connection`."""
    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
