"""Whether the database has gone back in time: a restore, or a failover to a standby that lacked commits.

A gateway remembers the little that it was told is durable: its last sign of life, and its last claim. A database that
lacks one of them has forgotten others too, so every balance in it is held (`operator_notes`). Only rows are compared,
never clocks. At its start a gateway on SQLite compares the file with its mark (`generation`). Nothing here may be taken for a promise: what was forgotten by a database whose gateways were all stopped,
or in which none of them had written anything since, is not found out.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import structlog
from sqlalchemy import Connection, exists, select

from tollway.identifiers import CallId
from tollway.storage.book_tables import call_table, owner_table
from tollway.storage.database import Database, SqliteDatabase
from tollway.storage.generation import GenerationCounter
from tollway.storage.operator_notes import mark_restored

_CHECKED = "tollway_is_checked"
_HINT = "every balance is held; look with `tollway audit`, free with `tollway audit --release`"

_log = structlog.get_logger(__name__)


class RestoreDetected(Exception):
    """The database lacks something that it had acknowledged. Nothing was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _LastAcknowledged:
    """`seen_ms_min`: the least that this gateway's own row can say, a renewal of unknown outcome included."""

    seen_ms_min: int | None = None
    call_id: CallId | None = None


class AcknowledgedWrites:
    """What one gateway knows to be written. `is_forgotten`: a row last renewed then may have been pruned by others."""

    def __init__(self, owner_id: str, *, is_forgotten: Callable[[Connection, int], bool]) -> None:
        self._owner_id = owner_id
        self._is_forgotten = is_forgotten
        self._last = _LastAcknowledged()

    def note_renewing(self, seen_ms: int) -> None:
        """Before it is written: it may be committed although nobody hears of that."""
        before_ms = self._last.seen_ms_min
        if before_ms is not None:
            self._last = replace(self._last, seen_ms_min=min(before_ms, seen_ms))

    def note_renewed(self, seen_ms: int) -> None:
        self._last = replace(self._last, seen_ms_min=seen_ms)

    def note_claimed(self, call_id: CallId) -> None:
        """Its row is never deleted."""
        self._last = _LastAcknowledged(seen_ms_min=self._last.seen_ms_min, call_id=call_id)

    def forget(self) -> None:
        """What the database had forgotten was dealt with."""
        self._last = _LastAcknowledged()

    def check(self, connection: Connection) -> None:
        """Raises `RestoreDetected`."""
        # Taken before the question: what is acknowledged while it is on its way need not show in its answer.
        last = self._last
        owner = owner_table.c
        seen = select(owner.seen_ms).where(owner.id == self._owner_id).scalar_subquery()
        is_claimed = exists().where(call_table.c.id == (last.call_id or ""))
        row = connection.execute(select(seen.label("seen_ms"), is_claimed.label("is_claimed"))).one()
        if last.call_id is not None and not row.is_claimed:
            raise RestoreDetected(f"the call {last.call_id} is gone")
        if last.seen_ms_min is None:
            return
        if row.seen_ms is None:
            # It is written before the first claim: a database that has the claim has not forgotten the row.
            if last.call_id is None and not self._is_forgotten(connection, last.seen_ms_min):
                raise RestoreDetected("this gateway's sign of life is gone")
        elif row.seen_ms < last.seen_ms_min:
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
