"""How a gateway finds out at its start that its SQLite file was replaced by an older one.

A counter in the database is bumped all the time, and a small file beside it keeps the last one. A database behind its
file is an older one; so is one of generation `BACKUP_GENERATION`, which is what `tollway backup` writes into its copies. Every
balance in it is held (`operator_notes`). A file that is only moments older than the last bump looks like its own.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, insert, select, update

from tollway.storage.book_tables import generation_table
from tollway.storage.database import SqliteDatabase
from tollway.storage.operator_notes import mark_restored

BACKUP_GENERATION = -1
"""The generation of a backup: no database that serves has it, so putting one back by hand is found out too."""

_GENERATION_ROW = 1  # the one row of the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """`is_restored`: the database was an older one, and its balances are held now."""

    number: int
    is_restored: bool


class GenerationCounter:
    """Keeps the counter of one file and its mark."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self._path = mark_path(database.path)
        self._marking = asyncio.Lock()

    async def bump(self, *, now_ms: int, is_known_restored: bool = False) -> bool:
        """In the database first, then in the file beside it. True when the database was restored."""
        async with self._marking:
            marked = await asyncio.to_thread(read_mark, self._path)
            work = partial(bump_generation, marked=marked, now_ms=now_ms, is_known_restored=is_known_restored)
            generation = await self._database.write(work)
            await asyncio.to_thread(write_mark, self._path, generation.number)
            return generation.is_restored


def bump_generation(
    connection: Connection, *, marked: int, now_ms: int, is_known_restored: bool = False
) -> Generation:
    """The next generation. `marked`: what the file beside the database says, 0 without one. A database behind it was
    restored, and that is noted in the same transaction."""
    found = read_generation(connection)
    is_restored = is_known_restored or marked > found  # as every mark is of a copy, and none at all
    if is_restored:
        mark_restored(connection, now_ms=now_ms)
    number = max(marked, found, 0) + 1
    _write_generation(connection, number)
    return Generation(number=number, is_restored=is_restored)


def read_generation(connection: Connection) -> int:
    """0 where no gateway has served yet."""
    return connection.execute(select(generation_table.c.number)).scalar() or 0


def mark_as_backup(connection: Connection) -> None:
    """Makes a database a backup: whoever serves from it finds out that it is one."""
    _write_generation(connection, BACKUP_GENERATION)


def mark_path(database_path: Path) -> Path:
    """The file beside a SQLite database that keeps its generation."""
    return database_path.with_name(database_path.name + ".generation")


def read_mark(path: Path) -> int:
    """0 when there is none, or none that can be read."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def write_mark(path: Path, number: int) -> None:
    """Whole or not at all, and only after the generation was committed: else a crash would look like a restore."""
    draft = path.with_name(path.name + ".new")
    draft.write_text(f"{number}\n")
    draft.replace(path)


def _write_generation(connection: Connection, number: int) -> None:
    at = update(generation_table).where(generation_table.c.id == _GENERATION_ROW).values(number=number)
    if connection.execute(at).rowcount == 0:
        connection.execute(insert(generation_table), {"id": _GENERATION_ROW, "number": number})
