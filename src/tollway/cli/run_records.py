"""Records the end of an audit or a backup in the database, where metrics find it (`tollway_audit_last_seconds`, `tollway_backup_last_seconds`).

A command that cannot record its end has succeeded nevertheless: it returns a note.
"""

import time
from collections.abc import Callable
from pathlib import Path

from tollway.errors import StorageUnavailable
from tollway.ledger.ledger import AuditReport
from tollway.storage.engine.database import Database, ProcessLock, SqliteDatabase
from tollway.storage.operator.backup import BackupCopy
from tollway.storage.operator.operator_reads import record_audit, record_backup

_NOT = "not recorded for metrics: "


async def note_audit(
    database: Database,
    report: AuditReport,
    *,
    is_write_safe: Callable[[], bool] | None,
) -> str | None:
    """Records an audit. `is_write_safe`: whether two processes may write to one SQLite file; None where the command writes anyway. Returns a note where nothing is
    recorded."""
    return await _record(database, report, is_write_safe, is_backup=False)


async def note_backup(
    database: SqliteDatabase, copy: BackupCopy, *, is_write_safe: Callable[[], bool]
) -> str | None:
    """Records a backup, and the audit that its copy passed or failed. Returns a note where nothing is recorded."""
    if copy.report is None:
        return f"{_NOT}the tables are of an older version, run `tollway gateway migrate`"
    try:
        return await _record(database, copy.report, is_write_safe, is_backup=True)
    finally:
        await database.close()


async def _record(
    database: Database, report: AuditReport, is_write_safe: Callable[[], bool] | None, *, is_backup: bool
) -> str | None:
    lock = None
    if is_write_safe is not None and isinstance(database, SqliteDatabase):
        lock = ProcessLock(Path(f"{database.path}.lock"))
        if not lock.acquire() and not is_write_safe():
            lock.release()
            return f"{_NOT}a gateway has this file open, and this SQLite does not support two writers"
    now_ms = time.time_ns() // 1_000_000
    try:
        if lock is not None:
            await database.open()
        await record_audit(database, differences=len(report.wrong), now_ms=now_ms)
        if is_backup:
            await record_backup(database, now_ms=now_ms)
    except StorageUnavailable:
        return f"{_NOT}the database takes no writes now"
    finally:
        if lock is not None:
            lock.release()
    return None
