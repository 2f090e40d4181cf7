"""The tables of a new SQLite file, written down: so the first start of a gateway loads nothing of what migrates.

They are what the migrations give; `make schema` writes them anew. Whenever the migrations are not those that they were
written from, they count for nothing, and the migrations are run.
"""

import json
from hashlib import sha256
from pathlib import Path

from pydantic_core import from_json
from sqlalchemy import Connection

FILE_NAME = "sqlite.json"
_OBJECTS = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid"


def read_statements(migrations: Path) -> tuple[str, ...]:
    """What makes the tables, in order; nothing where they were not written down, or not from these migrations."""
    path = migrations / FILE_NAME
    if not path.exists():
        return ()
    contents = from_json(path.read_bytes())
    return tuple(contents["statements"]) if contents["madeOf"] == name_migrations(migrations) else ()


def name_migrations(migrations: Path) -> str:
    """Another name whenever one of them is another."""
    digest = sha256()
    for path in sorted((migrations / "versions").glob("[0-9]*.py")):
        digest.update(path.name.encode() + b"\n" + path.read_bytes())
    return digest.hexdigest()


def write_down(connection: Connection, migrations: Path) -> str:
    """The file's text, from a database that holds these tables and nothing else yet."""
    tables = [str(name) for (name,) in connection.exec_driver_sql(_TABLES)]
    objects = [(str(name), str(sql)) for name, sql in connection.exec_driver_sql(_OBJECTS)]
    virtual = {name for name, sql in objects if sql.startswith("CREATE VIRTUAL")}
    shadows = {name for name in tables if any(name.startswith(one + "_") for one in virtual)}
    statements = [sql for name, sql in objects if name not in shadows]
    for table in tables:
        if table not in shadows | virtual:
            statements += _write_rows(connection, table)
    contents = {"madeOf": name_migrations(migrations), "statements": statements}
    return json.dumps(contents, indent=1) + "\n"


def _write_rows(connection: Connection, table: str) -> list[str]:
    columns = [str(row[1]) for row in connection.exec_driver_sql(f"PRAGMA table_info({table})")]
    quoted = ", ".join(f"quote({column})" for column in columns)
    return [
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(row)})"  # noqa: S608 - our own names
        for row in connection.exec_driver_sql(f"SELECT {quoted} FROM {table}")  # noqa: S608
    ]
