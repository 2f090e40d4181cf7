"""Copies of a SQLite database: taken while a gateway serves from it, and put back in its place.

A copy is whole or not there: it is written beside its place and renamed. Here nothing is ever written to the database
that is copied, and what a restore replaces is kept. Who restores holds the gateway's lock (`ProcessLock`).

A copy carries the generation of a copy, and a restore notes itself: either way its balances are held, because what was
paid since is not in it.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from tollway.errors import StorageUnavailable
from tollway.ledger.ledger import AuditReport
from tollway.storage.database import SqliteDatabase, list_auxiliary_files, restrict_to_owner
from tollway.storage.database import sqlite_module as _sqlite  # type: ignore[attr-defined]  # whichever it has found
from tollway.storage.history import audit
from tollway.storage.migrate import TOO_OLD, SchemaState, schema_state, upgrade
from tollway.storage.operator_store import mark_restored
from tollway.storage.restore_detection import (
    bump_generation,
    mark_as_backup,
    mark_path,
    read_generation,
    read_mark,
    write_mark,
)

_BUSY_S = 30.0
_AUDITED: frozenset[SchemaState] = frozenset({"current", "ahead", "serviceable"})


class BackupUnusable(Exception):
    """The file is no database that a gateway of this version can serve from. Says why, in plain words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupCopy:
    """`generation`: of the database that was copied. `report`: None where its tables are too old to be audited."""

    generation: int
    size_bytes: int
    report: AuditReport | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredBackup:
    """`kept`: where the database is that was replaced; None when there was none."""

    copy: BackupCopy
    kept: Path | None


async def back_up(database_path: Path, target: Path) -> BackupCopy:
    """A copy of the database as it is at one moment, readable by nobody else. Replaces what is at `target`. Raises
    `BackupUnusable`, and OSError."""
    with _draft(target) as draft:
        await asyncio.to_thread(_copy, database_path, draft)
        database = SqliteDatabase(draft)
        try:
            copy = await _examine(database)
            await database.write(mark_as_backup)
        finally:
            await database.close()
        await asyncio.to_thread(_close_journal, draft)
        await asyncio.to_thread(_move_into_place, draft, target)
    return copy


async def restore_backup(copy_path: Path, database_path: Path, *, now_ms: int) -> RestoredBackup:
    """Puts a copy in the place of the database, brought to this version's tables, with every balance held. Raises
    `BackupUnusable`: then nothing has changed; and OSError."""
    mark = mark_path(database_path)
    with _draft(database_path) as draft:
        await asyncio.to_thread(_copy, copy_path, draft)
        database = SqliteDatabase(draft)
        try:
            copy = await _examine(database, is_to_serve=True)
            hold = partial(_bump_and_hold, marked=read_mark(mark), now_ms=now_ms)
            generation = await database.write(hold)
        finally:
            await database.close()
        await asyncio.to_thread(_close_journal, draft)
        # First, so that a copy that a crash leaves unfinished is taken for a restored one.
        await asyncio.to_thread(write_mark, mark, generation)
        kept = await asyncio.to_thread(_set_aside, database_path, draft, now_ms=now_ms)
        await asyncio.to_thread(_move_into_place, draft, database_path)
    return RestoredBackup(copy=copy, kept=kept)


def _bump_and_hold(connection: Connection, *, marked: int, now_ms: int) -> int:
    mark_restored(connection, now_ms=now_ms)
    return bump_generation(connection, marked=marked)


async def _examine(database: SqliteDatabase, *, is_to_serve: bool = False) -> BackupCopy:
    """`is_to_serve`: brings older tables to this version."""
    try:
        sound = await database.read(
            lambda connection: connection.exec_driver_sql("PRAGMA quick_check").scalar()
        )
        if sound != "ok":
            raise BackupUnusable("the file is damaged")
        state = await schema_state(database)
        if state == "empty":
            raise BackupUnusable("the file is no database of Tollway")
        if state == "foreign":
            raise BackupUnusable("the file needs a newer version of Tollway than this one")
        if state == "too_old" and is_to_serve:
            raise BackupUnusable(TOO_OLD)
        generation = await database.read(read_generation)
        if is_to_serve:
            state = await upgrade(database)
        report = await database.read(audit) if state in _AUDITED else None
    except StorageUnavailable as exc:
        raise BackupUnusable("the file is damaged") from exc
    return BackupCopy(generation=generation, size_bytes=database.path.stat().st_size, report=report)


def _copy(source: Path, target: Path) -> None:
    """As it is at one moment, whoever writes to it meanwhile: one step is one snapshot. The connection can only read, so
    that it never checkpoints."""
    try:
        origin = _sqlite.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)
        with contextlib.closing(origin), contextlib.closing(_sqlite.connect(str(target))) as copy:
            origin.backup(copy)
    except _sqlite.DatabaseError as exc:
        raise BackupUnusable(f"{source} cannot be read as a SQLite database: {exc}") from exc


@contextlib.contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """An empty file beside the target that only its owner can read; gone at the end, if it was not put in place."""
    number, name = tempfile.mkstemp(dir=target.absolute().parent, prefix=f"{target.name}.")
    os.close(number)
    draft = Path(name)
    try:
        yield draft
    finally:
        for path in (draft, *list_auxiliary_files(draft)):
            path.unlink(missing_ok=True)


def _close_journal(draft: Path) -> None:
    """One file, without a log beside it."""
    with contextlib.closing(_sqlite.connect(str(draft))) as connection:
        connection.execute("PRAGMA journal_mode=DELETE").close()


def _move_into_place(draft: Path, target: Path) -> None:
    """Written through, and under its name."""
    with draft.open("rb") as written:
        os.fsync(written.fileno())
    draft.replace(target)
    folder = os.open(target.absolute().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _set_aside(database_path: Path, draft: Path, *, now_ms: int) -> Path | None:
    """Gives the database that is to be replaced a second name, and the draft its owner. Only that owner can read either.
    It is not opened: it may be damaged. Its log goes along, which must never be read into another database."""
    if not database_path.exists():
        return None
    moment = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    kept = database_path.with_name(f"{database_path.name}.replaced-{moment}")
    os.link(database_path, kept)
    for before, after in zip(list_auxiliary_files(database_path), list_auxiliary_files(kept), strict=True):
        if before.exists():
            before.replace(after)
    restrict_to_owner(kept)
    owner = database_path.stat()
    with contextlib.suppress(PermissionError):  # only root gives files away
        os.chown(draft, owner.st_uid, owner.st_gid)
    return kept
