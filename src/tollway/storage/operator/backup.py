"""Backups of a SQLite database: taken while a gateway serves from it, and restored in its place.

A backup is complete or missing: it is written to a temporary file (the draft) and renamed. A backup never writes to its source database, and a restore keeps
the database that it replaces. The caller of a restore holds the gateway's lock (`ProcessLock`).

The calls that were paid after the backup are missing in it, so a gateway that serves from a restored database holds all balances until the
operator frees them (`restore_detection`). `restore_backup` holds them itself. A backup file that was copied into place by hand is detected by its
generation (`BACKUP_GENERATION`).
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

from tollway.audit_log import AuditAction, AuditEntry, AuditOrigin
from tollway.errors import StorageUnavailable
from tollway.ledger.ledger import AuditReport
from tollway.storage.engine.database import SqliteDatabase, list_auxiliary_files, restrict_to_owner
from tollway.storage.engine.database import sqlite_module as _sqlite  # type: ignore[attr-defined]  # an import of that module, not an export
from tollway.storage.engine.migrate import TOO_NEW, TOO_OLD, explain_refusal, schema_state, upgrade
from tollway.storage.ledger.ledger_audit import audit
from tollway.storage.operator.operator_writes import mark_restored, record_audit_entry
from tollway.storage.operator.restore_detection import (
    bump_generation,
    mark_as_backup,
    mark_path,
    read_generation,
    read_mark,
    write_mark,
)

_BUSY_S = 30.0


class BackupUnusable(Exception):
    """The file is no database that a gateway of this version can serve from. The message has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupCopy:
    """A checked copy of a database. `generation`: the number in the copied database by which a gateway detects a restore. `report`: the audit of the ledger;
    None when the tables must be migrated first."""

    generation: int
    size_bytes: int
    report: AuditReport | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredBackup:
    """`kept`: the path of the replaced database; None without one."""

    copy: BackupCopy
    kept: Path | None


async def back_up(database_path: Path, target: Path) -> BackupCopy:
    """The copy is of one moment, and its owner alone can read it. Replaces an existing file. Raises `BackupUnusable` and OSError."""
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


async def restore_backup(copy_path: Path, database_path: Path, *, origin: AuditOrigin) -> RestoredBackup:
    """Puts a copy in the place of the database, migrated to this version and with every balance held. After `BackupUnusable` nothing has changed.
    The entry is recorded in the restored database. Also raises OSError."""
    entry = AuditEntry(kind=AuditAction.RESTORE_BACKUP, target=str(copy_path), origin=origin)
    mark = mark_path(database_path)
    with _draft(database_path) as draft:
        await asyncio.to_thread(_copy, copy_path, draft)
        database = SqliteDatabase(draft)
        try:
            copy = await _examine(database, is_to_serve=True)
            hold = partial(_bump_and_hold, marked=read_mark(mark), entry=entry)
            generation = await database.write(hold)
        finally:
            await database.close()
        await asyncio.to_thread(_close_journal, draft)
        # Before the files change: after a crash between the two steps the mark is newer than the database, and the gateway holds all balances.
        await asyncio.to_thread(write_mark, mark, generation)
        kept = await asyncio.to_thread(_set_aside, database_path, draft, now_ms=origin.at_ms)
        await asyncio.to_thread(_move_into_place, draft, database_path)
    return RestoredBackup(copy=copy, kept=kept)


def _bump_and_hold(connection: Connection, *, marked: int, entry: AuditEntry) -> int:
    mark_restored(connection, now_ms=entry.origin.at_ms)
    record_audit_entry(connection, entry)
    return bump_generation(connection, marked=marked)


async def _examine(database: SqliteDatabase, *, is_to_serve: bool = False) -> BackupCopy:
    """`is_to_serve`: also migrates older tables. Raises `BackupUnusable`."""
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
            raise BackupUnusable(TOO_NEW)
        if state == "too_old":
            raise BackupUnusable(TOO_OLD)
        generation = await database.read(read_generation)
        if is_to_serve:
            state = await upgrade(database)
        report = await database.read(audit) if explain_refusal(state) is None else None
    except StorageUnavailable as exc:
        raise BackupUnusable("the file is damaged") from exc
    return BackupCopy(generation=generation, size_bytes=database.path.stat().st_size, report=report)


def _copy(source: Path, target: Path) -> None:
    """One step of the backup is one snapshot, also during writes. The connection is read-only, so that it never checkpoints."""
    try:
        origin = _sqlite.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)
        with contextlib.closing(origin), contextlib.closing(_sqlite.connect(str(target))) as copy:
            origin.backup(copy)
    except _sqlite.DatabaseError as exc:
        raise BackupUnusable(f"{source} cannot be read as a SQLite database: {exc}") from exc


@contextlib.contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """An empty file beside the target, readable by its owner only. The end deletes it unless it was moved into place."""
    number, name = tempfile.mkstemp(dir=target.absolute().parent, prefix=f"{target.name}.")
    os.close(number)
    draft = Path(name)
    try:
        yield draft
    finally:
        for path in (draft, *list_auxiliary_files(draft)):
            path.unlink(missing_ok=True)


def _close_journal(draft: Path) -> None:
    with contextlib.closing(_sqlite.connect(str(draft))) as connection:
        connection.execute("PRAGMA journal_mode=DELETE").close()


def _move_into_place(draft: Path, target: Path) -> None:
    with draft.open("rb") as written:
        os.fsync(written.fileno())
    draft.replace(target)
    folder = os.open(target.absolute().parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _set_aside(database_path: Path, draft: Path, *, now_ms: int) -> Path | None:
    """Gives the current database a second name and returns it. Copies the owner of the database to the draft; only that owner can read the files.
    The database is not opened, because it may be damaged. Its log is renamed too, so that SQLite never reads it into another database."""
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
    # Only root may change an owner.
    with contextlib.suppress(PermissionError):
        os.chown(draft, owner.st_uid, owner.st_gid)
    return kept
