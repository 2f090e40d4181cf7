"""`make schema`: writes the tables of a new SQLite file down, as the migrations give them (`storage.migrate`)."""

import asyncio
import json
import tempfile
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from tollway.storage.database import SqliteDatabase
from tollway.storage.migrate import FILE_NAME, MIGRATIONS, name_migrations, upgrade

_OURS = "name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
"""SQLite makes the others itself."""
_OBJECTS = f"SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND {_OURS} ORDER BY rowid"
_TABLES = f"SELECT name FROM sqlite_master WHERE type = 'table' AND {_OURS} ORDER BY rowid"


async def describe(folder: Path, migrations: Path = MIGRATIONS) -> str:
    """Describes the schema that the migrations make, not the stored one."""
    database = SqliteDatabase(folder / "written.sqlite3")
    await database.open()
    try:
        await upgrade(database, migrations=migrations, is_step_by_step=True)
        return await database.read(partial(write_down, migrations=migrations))
    finally:
        await database.close()


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
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(row)})"
        for row in connection.exec_driver_sql(f"SELECT {quoted} FROM {table}")
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = asyncio.run(describe(Path(folder)))
    (MIGRATIONS / FILE_NAME).write_text(text)


if __name__ == "__main__":
    main()
