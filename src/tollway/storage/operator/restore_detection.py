"""Detects that the database was restored to an older moment, and holds every balance in it.

A restore, or a failover to a standby that lacked commits, removes calls that were paid: their payments have too much credit.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import structlog
from sqlalchemy import Connection, exists, insert, select, update

from tollway.ids import CallId
from tollway.storage.engine.database import Database, SqliteDatabase, open_private
from tollway.storage.ledger.ledger_tables import call_table, generation_table, owner_table
from tollway.storage.operator.operator_writes import mark_restored

BACKUP_GENERATION = -1
"""The generation of a backup. No database in service has it, so a backup that is put back by hand is detected."""

# The table has one row.
_GENERATION_ROW = 1
_CHECKED = "tollway_is_checked"
_HINT = "every balance is held; list them with `tollway gateway audit`, free them with `tollway gateway audit --release`"

_log = structlog.get_logger(__name__)


class RestoreDetected(Exception):
    """The database lacks a write that it has acknowledged. The transaction wrote nothing."""


class RestoreDetector:
    """A detector of restores, one for each gateway process, and the hold that follows.

    Promise: before this gateway claims from a database that lacks a write it has acknowledged to this gateway, every balance in that database is
    held. The hold is a row and a mark on each payment: it counts for all gateways and survives restarts. It has no deadline, because time does not
    show which calls were lost. The operator ends it: `tollway gateway audit` lists what is held, `tollway gateway audit --release` frees it.

    Compares rows, never clocks: the last renewal and the last claim of this gateway that were acknowledged, in each renewal (`check`) and
    before the first claim on each connection (`check_once`). On SQLite it also compares the generation in the file with the mark beside the
    file, at start and in each recovery (`check_file`).

    Does not detect a restore of PostgreSQL while all gateways are stopped, nor the loss of writes of other gateways only: after such a restore the
    operator runs `tollway gateway audit --restored`. `check` and `check_once` also run in the database's threads.
    """

    def __init__(
        self,
        database: Database,
        owner_id: str,
        *,
        now_ms: Callable[[], int],
        shared_clock: Callable[[Connection, int], int],
        kept_ms: int,
        on_restore: Callable[[], None],
    ) -> None:
        """`kept_ms`: the row of a gateway without a renewal for so long may have been pruned. `on_restore`: called after each hold."""
        self._database = database
        self._owner_id = owner_id
        self._now_ms = now_ms
        self._shared_clock = shared_clock
        self._kept_ms = kept_ms
        self._on_restore = on_restore
        self._holding = asyncio.Lock()
        # The earliest renewal that this gateway's row may hold, and the last claim. One tuple, because another thread reads both at
        # once.
        self._acknowledged: tuple[int | None, CallId | None] = (None, None)

    def note_renewing(self, seen_ms: int) -> None:
        """Call before the renewal is written: it may be committed although its answer is lost."""
        before_ms, call_id = self._acknowledged
        if before_ms is not None:
            self._acknowledged = (min(before_ms, seen_ms), call_id)

    def note_renewed(self, seen_ms: int) -> None:
        self._acknowledged = (seen_ms, self._acknowledged[1])

    def note_claimed(self, call_id: CallId) -> None:
        """The row of a call is never deleted."""
        self._acknowledged = (self._acknowledged[0], call_id)

    def check(self, connection: Connection) -> None:
        """Raises `RestoreDetected` when an acknowledged write is missing. Writes nothing."""
        # Read before the query: a write that is acknowledged while the query runs may be missing in its result.
        seen_ms_min, call_id = self._acknowledged
        owner = owner_table.c
        seen = select(owner.seen_ms).where(owner.id == self._owner_id).scalar_subquery()
        is_claimed = exists().where(call_table.c.id == (call_id or ""))
        row = connection.execute(select(seen.label("seen_ms"), is_claimed.label("is_claimed"))).one()
        if call_id is not None and not row.is_claimed:
            raise RestoreDetected(f"the call {call_id} is gone")
        if seen_ms_min is None:
            return
        if row.seen_ms is None:
            # The row is written before the first claim: where the claim is there, the row was pruned.
            if call_id is None and not self._may_be_pruned(connection, seen_ms_min):
                raise RestoreDetected("this gateway's last renewal is gone")
        elif row.seen_ms < seen_ms_min:
            raise RestoreDetected("this gateway's last renewal is an older one")

    def check_once(self, connection: Connection) -> None:
        """`check` before the first claim on each connection: an open connection cannot change its server."""
        if not connection.info.get(_CHECKED):
            self.check(connection)
            connection.info[_CHECKED] = True

    async def hold_balances(self) -> None:
        """When it returns, the hold is durable."""
        async with self._holding:
            work = partial(self._hold_missing, now_ms=self._now_ms())
            reason = await self._database.write(work, is_long=True)
            # None: another task of this gateway wrote the hold.
            if reason is not None:
                self._acknowledged = (None, None)
                _log.error("database_went_back", reason=reason, hint=_HINT)
                self._on_restore()

    async def check_file(self, *, now_ms: int) -> None:
        """SQLite: holds every balance when the mark is ahead of the file, then raises both by one."""
        if not isinstance(self._database, SqliteDatabase):
            return
        path = mark_path(self._database.path)
        async with self._holding:
            marked = await asyncio.to_thread(read_mark, path)
            work = partial(_bump_and_hold, marked=marked, now_ms=now_ms)
            number, is_restored = await self._database.write(work)
            await asyncio.to_thread(write_mark, path, number)
        if is_restored:
            _log.error("database_restored", database=self._database.describe_location(), hint=_HINT)
            self._on_restore()

    def _may_be_pruned(self, connection: Connection, seen_ms: int) -> bool:
        return self._shared_clock(connection, self._now_ms()) - seen_ms > self._kept_ms

    def _hold_missing(self, connection: Connection, *, now_ms: int) -> str | None:
        try:
            self.check(connection)
        except RestoreDetected as found:
            mark_restored(connection, now_ms=now_ms)
            return str(found)
        return None


def _bump_and_hold(connection: Connection, *, marked: int, now_ms: int) -> tuple[int, bool]:
    # A backup (-1) is behind every mark, also behind a missing one (0).
    is_restored = marked > read_generation(connection)
    if is_restored:
        mark_restored(connection, now_ms=now_ms)
    return bump_generation(connection, marked=marked), is_restored


def bump_generation(connection: Connection, *, marked: int) -> int:
    """Returns the new generation. `marked`: the number in the mark, 0 without one."""
    number = max(marked, read_generation(connection), 0) + 1
    _write_generation(connection, number)
    return number


def read_generation(connection: Connection) -> int:
    """0 in a database from which no gateway has served."""
    return connection.execute(select(generation_table.c.number)).scalar() or 0


def mark_as_backup(connection: Connection) -> None:
    """Makes a database a backup: a gateway that serves from it holds its balances."""
    _write_generation(connection, BACKUP_GENERATION)


def mark_path(database_path: Path) -> Path:
    """The file beside a SQLite database that keeps its generation."""
    return database_path.with_name(database_path.name + ".generation")


def read_mark(path: Path) -> int:
    """0 for a missing or unreadable mark."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def write_mark(path: Path, number: int) -> None:
    """Replaces the mark atomically. Call it after the commit of the generation: else a crash would look like a restore."""
    draft = path.with_name(path.name + ".new")
    with open(draft, "w", opener=open_private) as file:
        file.write(f"{number}\n")
    draft.replace(path)


def _write_generation(connection: Connection, number: int) -> None:
    at = update(generation_table).where(generation_table.c.id == _GENERATION_ROW).values(number=number)
    if connection.execute(at).rowcount == 0:
        connection.execute(insert(generation_table), {"id": _GENERATION_ROW, "number": number})
