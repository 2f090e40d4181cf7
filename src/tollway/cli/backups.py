"""Commands that copy a SQLite database and put a copy back. PostgreSQL has its own way, and these say so.

They never touch the secret key: a backup that holds it would open every secret of the listings to whoever finds it.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Annotated

import typer

from tollway.cli.operate import FAILED, LATER, AsJson, CommandFailed, Config, explained_failures, print_result
from tollway.config.settings import Settings, load_settings
from tollway.storage.backup import BackupCopy, BackupUnusable, RestoredBackup, back_up, restore_backup
from tollway.storage.database import ProcessLock, SqliteDatabase, connect_database

POSTGRES_NOTICE = (
    "this database is PostgreSQL: use its base backups and archived log, restore to a point in time,"
    " and then say `tollway audit --restored` (docs/operators.md, Backups)"
)
HELD_NOTICE = "every balance in it is held; look with `tollway audit`, free with `tollway audit --release`"

File = Annotated[Path, typer.Argument(metavar="FILE", help="The copy.")]


def register_backups(app: typer.Typer) -> None:
    @app.command()
    def backup(
        file: File,
        force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
        config: Config = None,
        as_json: AsJson = False,
    ) -> None:
        """Copies a SQLite database to FILE, also while a gateway serves from it."""
        with explained_failures(as_json=as_json):
            settings = load_settings(os.environ, config=config)
            copy = _back_up(_find_database(settings), file, force=force)
            key_file = _name_key_file(settings)
            lines = [f"{file}: {copy.size_bytes} bytes, generation {copy.generation}", *_describe_audit(copy)]
            lines.append(
                f"the secret key is not in it: keep a copy of {key_file or 'your settings'} elsewhere"
            )
            print_result({"file": str(file), **_report(copy), "secretKeyFile": key_file}, lines, as_json)
            _fail_unbalanced(copy)

    @app.command()
    def restore(file: File, config: Config = None, as_json: AsJson = False) -> None:
        """Puts FILE in the place of the SQLite database. No gateway may run; every balance in it is held."""
        with explained_failures(as_json=as_json):
            settings = load_settings(os.environ, config=config)
            database = _find_database(settings)
            done = _restore(database, file)
            kept, key_file = None if done.kept is None else str(done.kept), _name_key_file(settings)
            lines = [f"{database.path} is the copy now", *_describe_audit(done.copy)]
            lines += [f"what it replaced: {kept}"] if kept else []
            lines += (
                [f"put {key_file} back too, before you serve: a new key opens no secret of a listing"]
                if (key_file and not Path(key_file).exists())
                else []
            )
            answer = {"database": str(database.path), **_report(done.copy), "replaced": kept}
            print_result(answer, [*lines, HELD_NOTICE], as_json)
            _fail_unbalanced(done.copy)


def _find_database(settings: Settings) -> SqliteDatabase:
    """No rooms are furnished for this: that would make a secret key where there is none."""
    database = connect_database(settings.database_url.reveal())
    if not isinstance(database, SqliteDatabase):
        raise CommandFailed(POSTGRES_NOTICE)
    return database


def _back_up(database: SqliteDatabase, file: Path, *, force: bool) -> BackupCopy:
    if not database.path.exists():
        raise CommandFailed(f"there is no database at {database.path} yet")
    _check_target(database, file, force=force)
    try:
        return asyncio.run(back_up(database.path, file))
    except (BackupUnusable, OSError) as exc:
        raise CommandFailed(f"nothing was backed up: {exc}") from exc


def _restore(database: SqliteDatabase, file: Path) -> RestoredBackup:
    if not file.is_file():
        raise CommandFailed(f"there is no file {file}")
    database.path.parent.mkdir(parents=True, exist_ok=True)
    lock = ProcessLock(Path(f"{database.path}.lock"))
    try:
        if not lock.acquire():
            detail = f"a gateway is serving from {database.path}; stop it first"
            raise CommandFailed(detail, exit_code=LATER)
        return asyncio.run(restore_backup(file, database.path, now_ms=time.time_ns() // 1_000_000))
    except (BackupUnusable, OSError) as exc:
        raise CommandFailed(f"nothing was restored: {exc}") from exc
    finally:
        lock.release()


def _check_target(database: SqliteDatabase, file: Path, *, force: bool) -> None:
    endings = ("", "-wal", "-shm", "-journal", ".lock", ".generation", ".key")
    if file.resolve() in {Path(f"{database.path}{ending}").resolve() for ending in endings}:
        raise CommandFailed(f"{file} belongs to the database; name another file")
    if file.exists() and not force:
        raise CommandFailed(f"{file} is there already; --force replaces it")


def _name_key_file(settings: Settings) -> str | None:
    """None: the key stands in the settings."""
    return None if settings.secret_key_file is None else str(settings.secret_key_file)


def _report(copy: BackupCopy) -> dict[str, object]:
    report = copy.report
    return {
        "bytes": copy.size_bytes,
        "generation": copy.generation,
        "payments": None if report is None else report.payments,
        "calls": None if report is None else report.calls,
        "balanced": None if report is None else report.is_balanced,
    }


def _describe_audit(copy: BackupCopy) -> list[str]:
    if copy.report is None:
        return ["not audited: its tables are those of an older version"]
    verdict = (
        "the books balance" if copy.report.is_balanced else "THE BOOKS DO NOT BALANCE; see `tollway audit`"
    )
    return [f"{verdict}: {copy.report.payments} payments, {copy.report.calls} calls"]


def _fail_unbalanced(copy: BackupCopy) -> None:
    if copy.report is not None and not copy.report.is_balanced:
        raise typer.Exit(FAILED)
