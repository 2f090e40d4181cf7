"""Recovery: the leases of gateways, the clock that they share, and the open calls of dead gateways.

A gateway is dead when it has not renewed within its lease, by the database's clock on PostgreSQL. On SQLite one process serves, so every
other owner is dead. A `boot_mark` names one run of the machine (SQLite) or of the database server (PostgreSQL). A close is committed
without a flush, so a call that was left open in an earlier run may have ended without a trace; the clock alone never releases
its price. A gateway after a pause does not declare another gateway dead (`Lease`).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, delete, insert, literal_column, select, text, update

from tollway.ids import CallId
from tollway.ledger.records import CallState, Interruption, Usage, decide_resolution
from tollway.registry.metering import BASE, compute_cost, read_formulas, write_measured
from tollway.storage.ledger.authorizations import lock_authorization, mark_calls_orphaned
from tollway.storage.ledger.ledger_tables import (
    UNMEASURED,
    UNPAID,
    authorization_table,
    call_table,
    call_terms_table,
    owner_table,
)
from tollway.storage.ledger.locked_rows import LockedCall, LockedRows
from tollway.storage.operator.restore_detection import RestoreDetector
from tollway.storage.webhooks.webhook_events import NO_EVENTS, EventLog


class Lease:
    def __init__(self, *, length_ms: int) -> None:
        self.length_ms = length_ms
        # Half of the lease: the other gateways may have renewed shortly before a pause that this gateway cannot see.
        self._gap_ms_max = length_ms // 2
        self._steady_from_ms: int | None = None
        self._renewed_ms: int | None = None

    def note_renewed(self, at_ms: int) -> int | None:
        """Records a renewal. Returns the time since the last renewal when that is a whole lease or more: then other gateways may have
        recovered the calls of this gateway."""
        before_ms, self._renewed_ms = self._renewed_ms, at_ms
        if before_ms is None or not self._is_without_gap(before_ms, at_ms):
            self._steady_from_ms = at_ms
        silent_ms = 0 if before_ms is None else at_ms - before_ms
        return silent_ms if silent_ms >= self.length_ms else None

    def is_steady(self, at_ms: int) -> bool:
        """True when this gateway may declare another gateway dead: it has renewed without a gap for a whole lease."""
        if self._renewed_ms is None or self._steady_from_ms is None:
            return False
        is_whole = at_ms - self._steady_from_ms >= self.length_ms
        return is_whole and self._is_without_gap(self._renewed_ms, at_ms)

    def _is_without_gap(self, from_ms: int, to_ms: int) -> bool:
        """False also when the clock was set back."""
        return 0 <= to_ms - from_ms <= self._gap_ms_max


class ClusterClock:
    """The clock that all gateways share, as of the last renewal. All times in milliseconds. `own_ms`: this gateway's clock. `ticks_ms`: a
    monotonic clock; without it `own_ms` takes its place, and jumps are not detected."""

    def __init__(self, *, own_ms: Callable[[], int], ticks_ms: Callable[[], int] | None = None) -> None:
        self._own_ms = own_ms
        self._ticks_ms = ticks_ms or own_ms
        self._looks_for_jumps = ticks_ms is not None
        # How far the shared clock is ahead of the monotonic clock.
        self._drift_ms: int | None = None
        self._drift_min_ms = 0

    def set_shared_ms(self, shared_ms: int) -> None:
        drift_ms = shared_ms - self._ticks_ms()
        self._drift_min_ms = drift_ms if self._drift_ms is None else min(drift_ms, self._drift_min_ms)
        self._drift_ms = drift_ms

    def read(self) -> int:
        return self._own_ms() if self._drift_ms is None else self._ticks_ms() + self._drift_ms

    def translate(self, own_ms: int) -> int:
        return self.read() + own_ms - self._own_ms()

    def read_offset(self) -> tuple[int, int]:
        """The shared time, and how far the shared clock is ahead of this gateway's clock."""
        shared_ms = self.read()
        return shared_ms, shared_ms - self._own_ms()

    @property
    def ahead_ms(self) -> int:
        """How far the shared clock is ahead of its earliest observed position: the forward jumps since then."""
        if self._drift_ms is None or not self._looks_for_jumps:
            return 0
        return self._drift_ms - self._drift_min_ms


BootMark = Callable[[Connection], str]
SharedClock = Callable[[Connection, int], int]
"""(connection, this gateway's time) -> shared time, both in milliseconds."""

ABANDONED_MAX = 1_000
"""How many calls of each kind one recovery reads."""
OWNER_KEPT_MS = 24 * 3600 * 1000
"""The row of a gateway that is dead for so long and has no open call is deleted."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonedCall:
    """A planned move of an abandoned call, valid only in that state and epoch. From `settling` to `settling` means: mark it orphaned. From a charged
    state to the same: the response of a metered call never ended here, so it takes its base.
    `error` None: its record keeps its error."""

    call_id: CallId
    epoch: int
    before: CallState
    after: CallState
    clock_releases: bool = True
    error: Interruption | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOpenCall:
    """An open call of this gateway. `was_consumed`: it was consumed before it was repeated."""

    call_id: CallId
    epoch: int
    state: CallState
    was_consumed: bool


def read_boot_mark(connection: Connection) -> str:
    """The name of the current run; '' when it is unknown: then every restart counts as a power loss."""
    if connection.dialect.name == "postgresql":
        return str(connection.execute(text("SELECT pg_postmaster_start_time()::text")).scalar_one())
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def read_shared_clock(connection: Connection, now_ms: int) -> int:
    """The database's clock on PostgreSQL, so that the clocks of the gateways need not agree; `now_ms` on SQLite."""
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
    restore_detector: RestoreDetector,
) -> int:
    """Renews the lease of this gateway and returns the moment. The row keeps the boot mark of its first renewal until recovery has checked
    the calls that another run may have lost. Raises `RestoreDetected`."""
    seen_ms = shared_clock(connection, now_ms)
    restore_detector.check(connection)
    restore_detector.note_renewing(seen_ms)
    at = update(owner_table).where(owner_table.c.id == owner_id).values(seen_ms=seen_ms)
    if connection.execute(at).rowcount == 0:
        row = {"id": owner_id, "started_ms": seen_ms, "seen_ms": seen_ms, "boot_mark": boot_mark(connection)}
        connection.execute(insert(owner_table), row)
    return seen_ms


def prune_owners(connection: Connection, owner_id: str, *, now_ms: int, shared_clock: SharedClock) -> None:
    columns = owner_table.c
    seen_before = shared_clock(connection, now_ms) - OWNER_KEPT_MS
    # Owners of open calls keep their rows: the boot mark is still needed.
    needed = select(call_table.c.owner_id).where(_is_in_state("forwarding"))
    connection.execute(
        delete(owner_table).where(
            columns.seen_ms < seen_before, columns.id != owner_id, columns.id.not_in(needed)
        )
    )


def renew_boot_mark(connection: Connection, owner_id: str, *, boot_mark: BootMark) -> None:
    at = update(owner_table).where(owner_table.c.id == owner_id)
    connection.execute(at.values(boot_mark=boot_mark(connection)))


def find_own_open(connection: Connection, owner_id: str) -> list[OwnOpenCall]:
    """The calls of this gateway that are forwarding, or settling and not orphaned, or charged without a price."""
    columns = call_table.c
    query = select(columns.id, columns.epoch, columns.state, columns.cut).where(columns.owner_id == owner_id)
    rows = list(connection.execute(query.where(_is_in_state("forwarding"))))
    rows += connection.execute(_not_orphaned(query))
    rows += connection.execute(query.where(text(UNMEASURED)))
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
    """Finds the open calls of dead gateways, and the unknown calls that the clock releases now. Skips unpaid calls of an authorisation: its
    transfer may have happened, so settlement recovery reads the chain first."""
    columns = call_table.c
    shared_ms = shared_clock(connection, now_ms)
    abandoned = []
    if connection.dialect.name != "postgresql":
        abandoned = _find_left_open(connection, [owner_id], boot_mark=boot_mark)
    elif lease.is_steady(shared_ms):
        seen_ms = owner_table.c.seen_ms
        # A renewal more than a lease in the future is of a dead gateway: the clock was set back, and live gateways have renewed since then.
        # A smaller step back may not have been seen yet.
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


def recover_calls(
    connection: Connection,
    abandoned: Sequence[AbandonedCall],
    *,
    now_ms: int,
    events: EventLog = NO_EVENTS,
) -> list[AbandonedCall]:
    """Moves the calls that are still in their state and epoch. Returns those that moved."""
    settling = [one for one in abandoned if one.before is CallState.SETTLING]
    orphaned = mark_calls_orphaned(connection, [one.call_id for one in settling])
    moved = [one for one in settling if one.call_id in orphaned]
    locked_rows = LockedRows(connection, events=events)
    others = [one for one in abandoned if one.before is not CallState.SETTLING]
    calls = locked_rows.lock_with_payments([one.call_id for one in others])
    for one in others:
        call = calls.get(one.call_id)
        if call is None or call.state is not one.before or call.epoch != one.epoch:
            continue
        if one.before is one.after:
            if call.is_unmeasured:
                usage = _take_base(connection, call)
                locked_rows.measure(call, usage, moved_ms=now_ms)
        elif one.before is CallState.UNKNOWN:
            locked_rows.move(call, one.after, moved_ms=now_ms)
        else:
            # A call whose end a power loss may have lost stays in doubt, even after it runs again.
            may_release = one.clock_releases and call.clock_releases
            values = {} if one.error is None else {"error": one.error.value}
            if one.after is CallState.CONSUMED and call.cut == "repeated":
                # Nothing was sent for its repeat, so it may run again.
                values["cut"] = "cut"
            locked_rows.move(
                call, one.after, moved_ms=now_ms, clock_releases=may_release, completed_ms=now_ms, **values
            )
        moved.append(one)
    locked_rows.write()
    return moved


def resolve(
    connection: Connection,
    call_id: CallId,
    outcome: CallState,
    *,
    now_ms: int,
    events: EventLog = NO_EVENTS,
) -> CallState | None:
    """Ends an unknown call as its provider decides. A charge by authorisation goes to settlement recovery, in the same transaction. A call of a channel is only
    released: its voucher pays the next call."""
    locked_rows = LockedRows(connection, events=events)
    lock_authorization(connection, call_id)
    call = locked_rows.lock_with_payments([call_id]).get(call_id)
    if call is None or call.state is not CallState.UNKNOWN:
        return None
    if call.channel_key is not None and outcome is CallState.CONSUMED:
        return None
    after = decide_resolution(outcome, is_unpaid=call.is_unpaid)
    if after is CallState.SETTLING:
        # No upstream status: by that `is_charged_by_provider` knows the call later.
        after = locked_rows.move(call, after, moved_ms=now_ms, upstream_status=None)
    else:
        is_metered = call.is_unmeasured and after is CallState.CONSUMED
        usage = _take_base(connection, call) if is_metered else None
        after = locked_rows.move(call, after, usage, moved_ms=now_ms, completed_ms=now_ms)
    locked_rows.write()
    if after is CallState.SETTLING:
        mark_calls_orphaned(connection, [call_id])
    return after


def _take_base(connection: Connection, call: LockedCall) -> Usage:
    """The price of a metered call whose response did not end: callers do not pay the maximum for the failure of another."""
    terms = call_terms_table.c
    query = select(terms.metering, terms.decimals).join(call_table, call_table.c.terms_id == terms.id)
    row = connection.execute(query.where(call_table.c.id == call.id)).one()
    cost = compute_cost(read_formulas(row.metering), BASE, max_units=call.price_units, decimals=row.decimals)
    return Usage(actual_units=cost.units, quantities=write_measured(BASE))


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
    query = select(columns.id, columns.epoch, columns.state).where(columns.owner_id.not_in(living))
    query = query.limit(ABANDONED_MAX)
    left_rows = [
        *connection.execute(_not_orphaned(query)),
        *connection.execute(query.where(text(UNMEASURED))),
    ]
    return forwarding + [
        AbandonedCall(
            call_id=CallId(row.id),
            epoch=row.epoch,
            before=CallState(row.state),
            after=CallState(row.state),
        )
        for row in left_rows
    ]


def _boot_marks(connection: Connection) -> dict[str, str]:
    columns = owner_table.c
    open_owners = select(call_table.c.owner_id).where(_is_in_state("forwarding"))
    query = select(columns.id, columns.boot_mark).where(columns.id.in_(open_owners))
    return {row.id: row.boot_mark for row in connection.execute(query)}


def _not_orphaned(query: Select[Any]) -> Select[Any]:
    """Restricts a query of calls to those in `settling` that are not orphaned: a live gateway waits for them."""
    held = authorization_table
    joined = query.join(held, held.c.call_id == call_table.c.id)
    return joined.where(_is_in_state("settling"), ~held.c.is_adrift)


def _is_in_state(state: str) -> ColumnElement[bool]:
    return call_table.c.state == literal_column(f"'{state}'")
