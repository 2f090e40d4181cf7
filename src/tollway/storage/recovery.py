"""Which gateways live, the calls that dead gateways left open, and whether the database is an older copy of itself.

A gateway is dead to the others when it has not renewed for its lease, by the database's clock on PostgreSQL; on SQLite one
process serves, so every other one is dead. A `boot_mark` names one run of the machine (SQLite) or of the database server
(PostgreSQL): a close is written, not flushed, so a call that another run left open may have ended without a trace, and the
clock alone never gives its price back. A gateway that was stalled does not call another one dead (`Lease`).

A restore, or a failover to a standby that lacked commits, forgets calls that were paid: every balance in such a database is
held until the operator releases it. A gateway remembers its last renewal and its last claim that were durable; a database that
lacks one of them has lost others too. On SQLite a counter in the file is compared with a small file beside it. Only rows are
compared, never clocks. This is no promise: a loss is not found when all gateways were stopped, or when none of them had written
since.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    delete,
    exists,
    func,
    insert,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from tollway.ids import CallId, TxHash
from tollway.ledger.records import CallState, Interruption
from tollway.storage.authorizations import mark_calls_orphaned
from tollway.storage.database import Database, SqliteDatabase
from tollway.storage.ledger_tables import (
    UNPAID,
    admission_table,
    authorization_table,
    call_table,
    generation_table,
    outage_table,
    owner_table,
    payment_table,
    readiness_table,
    restore_table,
)
from tollway.storage.locked_rows import LockedRows

GAP_MS = 60_000
"""Between two notes of readiness further apart than this, no gateway was ready."""

_ROW = 1  # the one row of a table that has one
IS_RESTORED = exists().where(restore_table.c.released_ms.is_(None))
"""Balances are held after a restore that the operator has not released yet."""
_HELD_BEFORE = select(func.max(restore_table.c.noted_ms)).where(restore_table.c.released_ms.is_(None))


def admit(connection: Connection, tx_hash: TxHash, *, now_ms: int) -> None:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(admission_table).values(tx_hash=tx_hash, admitted_ms=now_ms)
    connection.execute(statement.on_conflict_do_nothing())


def find_operator_records(connection: Connection, tx_hash: TxHash) -> tuple[bool, int | None]:
    """Whether a transaction is admitted, and before which moment everything else is held: by the last restore that is
    not released yet."""
    admitted = exists().where(admission_table.c.tx_hash == tx_hash)
    is_admitted, held_before_ms = connection.execute(select(admitted, _HELD_BEFORE.scalar_subquery())).one()
    return bool(is_admitted), held_before_ms


def mark_ready(connection: Connection, *, now_ms: int) -> None:
    """The first gateway that is back after a gap writes the outage down."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    first = dialect.insert(readiness_table).values(id=_ROW, ready_ms=now_ms).on_conflict_do_nothing()
    connection.execute(first)
    query = select(readiness_table.c.ready_ms).where(readiness_table.c.id == _ROW).with_for_update()
    ready_ms = connection.execute(query).scalar_one()
    if now_ms <= ready_ms:
        return
    if now_ms - ready_ms > GAP_MS:
        outage = dialect.insert(outage_table).values(from_ms=ready_ms, to_ms=now_ms)
        connection.execute(outage.on_conflict_do_nothing())
    connection.execute(update(readiness_table).where(readiness_table.c.id == _ROW).values(ready_ms=now_ms))


def downtime_ms(connection: Connection, *, since_ms: int, now_ms: int) -> int:
    """Time before the first note of all counts as ready: a new gateway does not take old transfers for new."""
    columns = outage_table.c
    query = select(columns.from_ms, columns.to_ms).where(columns.to_ms > since_ms, columns.from_ms < now_ms)
    gaps = [(row.from_ms, row.to_ms) for row in connection.execute(query)]
    ready_ms = connection.execute(select(readiness_table.c.ready_ms)).scalar()
    if ready_ms is not None and now_ms - ready_ms > GAP_MS:
        gaps.append((ready_ms, now_ms))
    return sum(max(0, min(to_ms, now_ms) - max(from_ms, since_ms)) for from_ms, to_ms in gaps)


def mark_restored(connection: Connection, *, now_ms: int) -> None:
    """Holds every balance that is in the ledger now."""
    if connection.dialect.name == "postgresql":
        # Claims lock payments in an order that this cannot keep: it waits for them, and they for it.
        connection.execute(text("LOCK TABLE payment IN EXCLUSIVE MODE"))
    connection.execute(insert(restore_table), {"noted_ms": now_ms})
    connection.execute(update(payment_table).where(~payment_table.c.is_held).values(is_held=True))


def held_before_ms(connection: Connection) -> int | None:
    found: int | None = connection.execute(_HELD_BEFORE).scalar_one()
    return found


def release_held(connection: Connection, *, now_ms: int) -> int:
    columns = restore_table.c
    connection.execute(update(restore_table).where(columns.released_ms.is_(None)).values(released_ms=now_ms))
    held = update(payment_table).where(payment_table.c.is_held).values(is_held=False)
    return connection.execute(held).rowcount


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
        """Before it is written: it may be committed although nobody hears of that."""
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


class Lease:
    """The renewals of one gateway. All times in milliseconds of the shared clock."""

    def __init__(self, *, length_ms: int) -> None:
        self.length_ms = length_ms
        # Half: the others may have renewed a little earlier than we did before a stall that is too short to be seen.
        self._gap_ms_max = length_ms // 2
        self._steady_from_ms: int | None = None
        self._renewed_ms: int | None = None

    def note_renewed(self, at_ms: int) -> int | None:
        """Returns for how long nothing was heard of this gateway, when that was longer than its lease: then others
        may have settled its calls."""
        before_ms, self._renewed_ms = self._renewed_ms, at_ms
        if before_ms is None or not self._is_without_gap(before_ms, at_ms):
            self._steady_from_ms = at_ms
        silent_ms = 0 if before_ms is None else at_ms - before_ms
        return silent_ms if silent_ms >= self.length_ms else None

    def is_steady(self, at_ms: int) -> bool:
        """True when this gateway may say of another that it is dead."""
        if self._renewed_ms is None or self._steady_from_ms is None:
            return False
        is_whole = at_ms - self._steady_from_ms >= self.length_ms
        return is_whole and self._is_without_gap(self._renewed_ms, at_ms)

    def _is_without_gap(self, from_ms: int, to_ms: int) -> bool:
        """A clock that was set back is a gap too."""
        return 0 <= to_ms - from_ms <= self._gap_ms_max


class ClusterClock:
    """All times in milliseconds. `ticks_ms`: a monotonic clock; without one this gateway's own stands in, and no jumps
    are looked for."""

    def __init__(self, *, own_ms: Callable[[], int], ticks_ms: Callable[[], int] | None = None) -> None:
        self._own_ms = own_ms
        self._ticks_ms = ticks_ms or own_ms
        self._looks_for_jumps = ticks_ms is not None
        self._drift_ms: int | None = None  # the shared clock before the ticks
        self._drift_min_ms = 0

    def set_shared_ms(self, shared_ms: int) -> None:
        """What the shared clock says now."""
        drift_ms = shared_ms - self._ticks_ms()
        self._drift_min_ms = drift_ms if self._drift_ms is None else min(drift_ms, self._drift_min_ms)
        self._drift_ms = drift_ms

    def read(self) -> int:
        return self._own_ms() if self._drift_ms is None else self._ticks_ms() + self._drift_ms

    def translate(self, own_ms: int) -> int:
        """A moment of this gateway's own clock, as the shared one has it."""
        return self.read() + own_ms - self._own_ms()

    @property
    def ahead_ms(self) -> int:
        """By how much the shared clock has been set forward since it was furthest back, as far as was seen."""
        if self._drift_ms is None or not self._looks_for_jumps:
            return 0
        return self._drift_ms - self._drift_min_ms


BootMark = Callable[[Connection], str]
SharedClock = Callable[[Connection, int], int]
"""(connection, this gateway's time) -> the time that all gateways of this database go by, in milliseconds."""

ABANDONED_MAX = 1_000
"""How many calls one round of recovery looks at, of each kind."""
OWNER_KEPT_MS = 24 * 3600 * 1000
"""A gateway that is dead for so long and left nothing open is forgotten."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonedCall:
    """A call to move on: only if it is still in that state and epoch. From `settling` to `settling`: orphaned. `error`
    None: its record keeps the one that it has."""

    call_id: CallId
    epoch: int
    before: CallState
    after: CallState
    clock_releases: bool = True
    error: Interruption | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOpenCall:
    """A call of this gateway without an outcome. `was_consumed`: once, and it is repeated since."""

    call_id: CallId
    epoch: int
    state: CallState
    was_consumed: bool


def read_boot_mark(connection: Connection) -> str:
    """'' where it cannot be known: then every restart counts as a power loss."""
    if connection.dialect.name == "postgresql":
        return str(connection.execute(text("SELECT pg_postmaster_start_time()::text")).scalar_one())
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def read_shared_clock(connection: Connection, now_ms: int) -> int:
    """The database's clock where gateways share one, so that theirs need not agree."""
    if connection.dialect.name != "postgresql":
        return now_ms
    query = text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)")
    return int(connection.execute(query).scalar_one())


def renew_owner(
    connection: Connection,
    owner_id: str,
    *,
    now_ms: int,
    shared_clock: SharedClock,
    boot_mark: BootMark,
    acknowledged: AcknowledgedWrites,
) -> int:
    """Returns the moment of the renewal. The boot mark stays that of the first time, until recovery has looked at
    what another life may have lost. Raises `RestoreDetected`."""
    seen_ms = shared_clock(connection, now_ms)
    acknowledged.check(connection)
    acknowledged.note_renewing(seen_ms)
    at = update(owner_table).where(owner_table.c.id == owner_id).values(seen_ms=seen_ms)
    if connection.execute(at).rowcount == 0:
        row = {"id": owner_id, "started_ms": seen_ms, "seen_ms": seen_ms, "boot_mark": boot_mark(connection)}
        connection.execute(insert(owner_table), row)
    return seen_ms


def prune_owners(connection: Connection, owner_id: str, *, now_ms: int, shared_clock: SharedClock) -> None:
    columns = owner_table.c
    seen_before = shared_clock(connection, now_ms) - OWNER_KEPT_MS
    needed = select(call_table.c.owner_id).where(
        _is_in_state("forwarding")
    )  # their boot marks are still asked for
    connection.execute(
        delete(owner_table).where(
            columns.seen_ms < seen_before, columns.id != owner_id, columns.id.not_in(needed)
        )
    )


def renew_boot_mark(connection: Connection, owner_id: str, *, boot_mark: BootMark) -> None:
    at = update(owner_table).where(owner_table.c.id == owner_id)
    connection.execute(at.values(boot_mark=boot_mark(connection)))


def find_own_open(connection: Connection, owner_id: str) -> list[OwnOpenCall]:
    """What this gateway is forwarding, or settling and not orphaned."""
    columns = call_table.c
    query = select(columns.id, columns.epoch, columns.state, columns.cut).where(columns.owner_id == owner_id)
    rows = list(connection.execute(query.where(_is_in_state("forwarding"))))
    rows += connection.execute(_not_orphaned(query))
    return [
        OwnOpenCall(
            call_id=CallId(row.id),
            epoch=row.epoch,
            state=CallState(row.state),
            was_consumed=row.cut == "repeated",
        )
        for row in rows
    ]


def find_abandoned(
    connection: Connection,
    owner_id: str,
    *,
    now_ms: int,
    lease: Lease,
    hold_ms: int,
    shared_clock: SharedClock,
    boot_mark: BootMark,
) -> list[AbandonedCall]:
    """What dead gateways were forwarding, and the unknown calls that the clock releases now. Not those that an
    authorisation is to pay: it may have moved its money meanwhile, so settlement recovery looks at the chain first."""
    columns = call_table.c
    shared_ms = shared_clock(connection, now_ms)
    abandoned = []
    if connection.dialect.name != "postgresql":
        abandoned = _find_left_open(connection, [owner_id], boot_mark=boot_mark)
    elif lease.is_steady(shared_ms):
        seen_ms = owner_table.c.seen_ms
        # Whoever was seen in the future is dead too: that clock was set back, and the living have renewed since. By less
        # than a lease it may have been unseen.
        is_recent = seen_ms.between(shared_ms - lease.length_ms + 1, shared_ms + lease.length_ms)
        living = {owner_id, *connection.execute(select(owner_table.c.id).where(is_recent)).scalars()}
        abandoned = _find_left_open(connection, living, boot_mark=boot_mark)
    expired = (
        select(columns.id, columns.epoch)
        .where(_is_in_state("unknown"), columns.moved_ms <= now_ms - hold_ms, columns.clock_releases)
        .where(text(f"NOT ({UNPAID})"))
        .limit(ABANDONED_MAX)
    )
    abandoned += [
        AbandonedCall(
            call_id=CallId(row.id), epoch=row.epoch, before=CallState.UNKNOWN, after=CallState.RELEASED
        )
        for row in connection.execute(expired)
    ]
    return abandoned


def recover_calls(connection: Connection, abandoned: Sequence[AbandonedCall], *, now_ms: int) -> int:
    """Moves what is still as it was found; returns how many calls moved."""
    settling = [one for one in abandoned if one.before is CallState.SETTLING]
    moved = mark_calls_orphaned(connection, [one.call_id for one in settling])
    locked_rows = LockedRows(connection)
    others = [one for one in abandoned if one.before is not CallState.SETTLING]
    calls = locked_rows.lock_with_payments([one.call_id for one in others])
    for one in others:
        call = calls.get(one.call_id)
        if call is None or call.state is not one.before or call.epoch != one.epoch:
            continue
        if one.before is CallState.UNKNOWN:
            locked_rows.move(call, one.after, moved_ms=now_ms)
        else:
            # What a power loss may have lost once stays in doubt, however often the call runs again.
            may_release = one.clock_releases and call.clock_releases
            values = {} if one.error is None else {"error": one.error.value}
            if one.after is CallState.CONSUMED and call.cut == "repeated":
                values["cut"] = "cut"  # nothing was sent for its repeat
            locked_rows.move(
                call, one.after, moved_ms=now_ms, clock_releases=may_release, completed_ms=now_ms, **values
            )
        moved += 1
    locked_rows.write()
    return moved


def resolve(connection: Connection, call_id: CallId, after: CallState, *, now_ms: int) -> bool:
    locked_rows = LockedRows(connection)
    call = locked_rows.lock_with_payments([call_id]).get(call_id)
    if call is None or call.state is not CallState.UNKNOWN:
        return False
    if after is CallState.CONSUMED and call.is_unpaid:
        return False
    locked_rows.move(call, after, moved_ms=now_ms, completed_ms=now_ms)
    locked_rows.write()
    return True


def _find_left_open(
    connection: Connection, living: Collection[str], *, boot_mark: BootMark
) -> list[AbandonedCall]:
    columns = call_table.c
    marks, mark = _boot_marks(connection), boot_mark(connection)
    left = (
        select(columns.id, columns.epoch, columns.owner_id)
        .where(_is_in_state("forwarding"), columns.owner_id.not_in(living))
        .limit(ABANDONED_MAX)
    )
    forwarding = [
        AbandonedCall(
            call_id=CallId(row.id),
            epoch=row.epoch,
            before=CallState.FORWARDING,
            after=CallState.UNKNOWN,
            clock_releases=bool(mark) and marks.get(row.owner_id) == mark,
            error=Interruption.GATEWAY_DIED,
        )
        for row in connection.execute(left)
    ]
    query = select(columns.id, columns.epoch).where(columns.owner_id.not_in(living)).limit(ABANDONED_MAX)
    return forwarding + [
        AbandonedCall(
            call_id=CallId(row.id), epoch=row.epoch, before=CallState.SETTLING, after=CallState.SETTLING
        )
        for row in connection.execute(_not_orphaned(query))
    ]


def _boot_marks(connection: Connection) -> dict[str, str]:
    """Of the owners of open calls only."""
    columns = owner_table.c
    open_owners = select(call_table.c.owner_id).where(_is_in_state("forwarding"))
    query = select(columns.id, columns.boot_mark).where(columns.id.in_(open_owners))
    return {row.id: row.boot_mark for row in connection.execute(query)}


def _not_orphaned(query: Select[Any]) -> Select[Any]:
    """The calls of that query that settle and that somebody waits for, if he lives."""
    held = authorization_table
    joined = query.join(held, held.c.call_id == call_table.c.id)
    return joined.where(_is_in_state("settling"), ~held.c.is_adrift)


def _is_in_state(state: str) -> ColumnElement[bool]:
    return call_table.c.state == literal_column(f"'{state}'")
