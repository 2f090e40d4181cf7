"""`make schema`: writes the tables of a new database, as `metadata` has them, into the two files of the baseline (`storage.engine.migrate`).

A released baseline never changes (`release/check.py`). With the first migration after it, `make schema` ends. contracts/test_migrate.py goes on comparing
the tables of the baseline and its migrations with those of `metadata`.
"""

import importlib
import pkgutil
import re
from typing import Any

from sqlalchemy import create_mock_engine
from sqlalchemy.schema import CreateIndex, CreateTable

import tollway.storage
from tollway.storage.engine.database import metadata
from tollway.storage.engine.migrate import MIGRATIONS, baseline_path

DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+asyncpg"}
HEADER = (
    "-- The tables of a new database. `make schema` writes this file from the tables of tollway.storage.\n"
)

for module in pkgutil.walk_packages(tollway.storage.__path__, "tollway.storage."):
    if ".migrations." not in module.name:
        importlib.import_module(module.name)  # the tables of every module


def list_statements(dialect: str) -> list[str]:
    """The statements that make every table of `metadata` with its indexes, in the order in which the table names them, and its first rows."""
    statements: list[str] = []

    def keep(statement: Any, *_: object, **__: object) -> None:
        text = str(statement.compile(dialect=engine.dialect)).strip().replace("\t", "  ")
        statements.append(re.sub(r" +\n", "\n", text))

    engine: Any = create_mock_engine(f"{DRIVERS[dialect]}://", keep)
    for table in metadata.sorted_tables:
        engine.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda index: index.info["number"]):
            engine.execute(CreateIndex(index))
        table.dispatch.after_create(table, engine)
    return statements


def write_baseline(dialect: str) -> str:
    """The text of the file, which psql and sqlite3 run too. An empty line ends a statement (`migrate.read_baseline`)."""
    return HEADER + "".join(f"\n{statement};\n" for statement in list_statements(dialect))


def main() -> None:
    for dialect in DRIVERS:
        baseline_path(MIGRATIONS, dialect).write_text(write_baseline(dialect))


if __name__ == "__main__":
    main()
