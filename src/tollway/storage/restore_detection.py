"""Detects that the database is an older copy of itself.

A restore, or a failover to a standby that lacked commits, forgets calls that were paid: every balance in such a database is held
until the operator releases it. A gateway remembers its last durable renewal and its last durable claim; a database that lacks one of
them has lost others too. On SQLite a counter in the file is compared with a small file beside it. Only rows are compared, never
clocks. This is no promise: a loss is not found when all gateways were stopped, or when none of them had written since.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
from sqlalchemy import Connection, exists, insert, select, update

from tollway.ids import CallId
from tollway.storage.database import Database, SqliteDatabase
from tollway.storage.ledger_tables import call_table, generation_table, owner_table
from tollway.storage.operator_store import mark_restored

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
    """Makes a database a backup: a gateway that serves from it detects that."""
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


_CHECKED = "tollway_is_checked"
_HINT = "every balance is held; look with `tollway audit`, free with `tollway audit --release`"

_log = structlog.get_logger(__name__)


class RestoreDetected(Exception):
    """The database lacks something that it had acknowledged. Nothing was written."""


class AcknowledgedWrites:
    """What one gateway knows to be written. `is_forgotten`: a row last renewed then may have been pruned by others."""

    def __init__(self, owner_id: str, *, is_forgotten: Callable[[Connection, int], bool]) -> None:
        self._owner_id = owner_id
        self._is_forgotten = is_forgotten
        # The least that this gateway's own row can say, a renewal of unknown outcome included; and the last call. One tuple,
        # because another thread reads both at once.
        self._last: tuple[int | None, CallId | None] = (None, None)

    def note_renewing(self, seen_ms: int) -> None:
        """Before it is written: it can be committed although the answer is lost."""
        before_ms, call_id = self._last
        if before_ms is not None:
            self._last = (min(before_ms, seen_ms), call_id)

    def note_renewed(self, seen_ms: int) -> None:
        self._last = (seen_ms, self._last[1])

    def note_claimed(self, call_id: CallId) -> None:
        """Its row is never deleted."""
        self._last = (self._last[0], call_id)

    def forget(self) -> None:
        """What the database had forgotten was dealt with."""
        self._last = (None, None)

    def check(self, connection: Connection) -> None:
        """Raises `RestoreDetected`."""
        # Taken before the question: what is acknowledged while it is on its way need not show in its answer.
        seen_ms_min, call_id = self._last
        owner = owner_table.c
        seen = select(owner.seen_ms).where(owner.id == self._owner_id).scalar_subquery()
        is_claimed = exists().where(call_table.c.id == (call_id or ""))
        row = connection.execute(select(seen.label("seen_ms"), is_claimed.label("is_claimed"))).one()
        if call_id is not None and not row.is_claimed:
            raise RestoreDetected(f"the call {call_id} is gone")
        if seen_ms_min is None:
            return
        if row.seen_ms is None:
            # It is written before the first claim: a database that has the claim has not forgotten the row.
            if call_id is None and not self._is_forgotten(connection, seen_ms_min):
                raise RestoreDetected("this gateway's sign of life is gone")
        elif row.seen_ms < seen_ms_min:
            raise RestoreDetected("this gateway's sign of life is an older one")

    def hold_balances(self, connection: Connection, *, now_ms: int) -> str | None:
        """Holds every balance in a database that has gone back in time. Returns what it has forgotten."""
        try:
            self.check(connection)
        except RestoreDetected as found:
            mark_restored(connection, now_ms=now_ms)
            return str(found)
        return None

    def check_once(self, connection: Connection) -> None:
        """`check`, once for each connection: while one lives, its server is the same. Raises `RestoreDetected`."""
        if not connection.info.get(_CHECKED):
            self.check(connection)
            connection.info[_CHECKED] = True


class RestoreDetector:
    """What one gateway does about it. `kept_ms`: a row that was last renewed longer ago may have been pruned."""

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
        self._database = database
        self._now_ms = now_ms
        self._on_restore = on_restore
        self._holding = asyncio.Lock()
        self._generation = GenerationCounter(database) if isinstance(database, SqliteDatabase) else None
        self.acknowledged = AcknowledgedWrites(
            owner_id,
            is_forgotten=lambda connection, seen_ms: shared_clock(connection, now_ms()) - seen_ms > kept_ms,
        )

    async def hold_balances(self) -> None:
        """Holds what a database remembers that has gone back in time. Until that is written, nothing here is claimed.
        Raises StorageUnavailable."""
        async with self._holding:
            work = partial(self.acknowledged.hold_balances, now_ms=self._now_ms())
            reason = await self._database.write(work, is_long=True)
            if reason is None:
                return  # another task has seen to it
            self.acknowledged.forget()
            _log.error("database_went_back", reason=reason, hint=_HINT)
            self._on_restore()

    async def check_file(self, *, now_ms: int) -> None:
        """Says of a SQLite file, again and again, that it is the newest, and finds out when it is not."""
        if self._generation is not None and await self._generation.bump(now_ms=now_ms):
            _log.error("database_restored", database=self._database.describe_location(), hint=_HINT)
            self._on_restore()
