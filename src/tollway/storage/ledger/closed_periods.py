"""Closed hours and days in SQL: written from the calls by the gateway that leads, proved by the audit.

An hour is closed ten minutes after its end. One transaction reads its calls and the marks that it sees; a second one replaces its rows
and deletes those marks, if the hour still has the version of the read. So a kill between the two changes nothing, two leaders write
once, and a call that moves after the read leaves a mark that stays. The reads take their own connection: calls wait for the writes only,
and these write a few rows.

The calls of an hour are found provider by provider, along the index that the history has: an index by time would cost every call.
Hours become days after 90 days, by one transaction that sums their rows; a late move then writes its day again, from the calls.

The audit compares every closed period without a mark with its calls, one after the other, part by part of each sum. The operator can mark the wrong
ones, which are then written again like those of late moves.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

from sqlalchemy import (
    BigInteger,
    Connection,
    RowMapping,
    and_,
    cast,
    delete,
    func,
    insert,
    literal,
    select,
    text,
    update,
)

from tollway.ids import Address
from tollway.ledger.sales import (
    DAY_MS,
    HOUR_MS,
    HOURS_KEPT_MS,
    LAST_LOOK_MS,
    STEP_MS,
    Step,
    closable_until,
    floor_to,
)
from tollway.storage.engine.database import Database, write_retried
from tollway.storage.engine.statements import insert_for
from tollway.storage.ledger.sales_tables import (
    CALL_KEY,
    CALL_SUMS,
    KEY_COLUMNS,
    SALES_TABLES,
    SUM_COLUMNS,
    UNITS_BASE,
    read_ends,
    sales_closed_table,
    sales_day_table,
    sales_hour_table,
    sales_mark_table,
)

MARKS_MAX = 10_000
"""The marks that are read to count the hours that wait for their next write."""
PERIODS_MAX = 500
"""How many late hours, and hours for a last look, one round writes; the next round has the others. Also the ids in one statement."""


HOURS_AT_ONCE = 24
"""How many hours one transaction closes, where several are due: after an outage, and at the first start on an older ledger."""
PERIOD_LINES_MAX = 5
"""The sums of one wrong period that the audit names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Periods:
    """Hours or days in a row, closed or to be closed: from `start_ms` up to `end_ms`."""

    step: Step
    start_ms: int
    end_ms: int

    @classmethod
    def of_one(cls, step: Step, start_ms: int) -> Self:
        return cls(step=step, start_ms=start_ms, end_ms=start_ms + STEP_MS[step])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What one round has to do. `closed_until_ms`: the end of the last closed period. `next_ms`: the first hour that is not closed; None
    without any call. `late`: periods with marks, and hours that are due for their last look. `days`: days whose hours are too old."""

    shared_ms: int
    closed_until_ms: int | None
    next_ms: int | None
    late: Sequence[_Periods]
    days: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """One period and its calls as a snapshot has them. `version`: of the closed period, 0 before its first write. `marks`: the ids of its marks."""

    start_ms: int
    version: int = 0
    marks: list[int] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)


class ClosedPeriods:
    """Writes closed hours and days. `write_due` may run at several gateways at once."""

    def __init__(
        self, database: Database, *, read_clock: Callable[[Connection], int], ledger_ms: Callable[[], int]
    ) -> None:
        """`read_clock`: the time that all gateways of the database share. `ledger_ms`: that time as the ledger of this gateway has it. The earlier
        one counts: after a step of the clock the ledger still writes without marks in hours that it takes for open."""
        self._database = database
        self._read_clock = read_clock
        self._ledger_ms = ledger_ms

    async def write_due(self) -> None:
        """Writes late periods again, closes every hour that is due, and turns old hours into days. Raises `StorageUnavailable`; what is written then stays,
        and the next call goes on."""
        plan = await self._database.read(self._make_plan, is_long=True)
        if plan.next_ms is None:
            return
        until_ms = closable_until(plan.shared_ms)
        if plan.closed_until_ms is not None and plan.closed_until_ms > until_ms:
            # The clock was ahead. Hours that are not over must be open, or their calls would leave no mark.
            await write_retried(self._database, partial(_reopen_from, until_ms=until_ms), flush=False)
        for periods in plan.late:
            await self._write(periods, plan.shared_ms)
        for start_ms in range(plan.next_ms, until_ms, HOURS_AT_ONCE * HOUR_MS):
            end_ms = min(until_ms, start_ms + HOURS_AT_ONCE * HOUR_MS)
            await self._write(_Periods(step="hour", start_ms=start_ms, end_ms=end_ms), plan.shared_ms)
        for day_ms in plan.days:
            merge = partial(_merge_day, day_ms=day_ms, now_ms=plan.shared_ms)
            await write_retried(self._database, merge, flush=False)

    async def _write(self, periods: _Periods, now_ms: int) -> None:
        """Leaves out what another gateway has written since it was read."""
        readings = await self._database.read(partial(_read_periods, periods=periods), is_long=True)
        write = partial(_replace_periods, step=periods.step, readings=readings, now_ms=now_ms)
        await write_retried(self._database, write, flush=False)

    def _make_plan(self, connection: Connection) -> _Plan:
        shared_ms = min(self._read_clock(connection), self._ledger_ms())
        days_until_ms, closed_until_ms = read_ends(connection)
        return _Plan(
            shared_ms=shared_ms,
            closed_until_ms=closed_until_ms,
            next_ms=_find_first_hour(connection) if closed_until_ms is None else closed_until_ms,
            late=_find_late(connection, days_until_ms or 0, closed_until_ms or 0, shared_ms=shared_ms),
            days=_find_old_days(connection, floor_to(DAY_MS, shared_ms - HOURS_KEPT_MS)),
        )


def _find_first_hour(connection: Connection) -> int | None:
    first_ms = connection.execute(_FIRST_CALL).scalar()
    return None if first_ms is None else floor_to(HOUR_MS, first_ms)


def _find_late(
    connection: Connection, days_until_ms: int, closed_until_ms: int, *, shared_ms: int
) -> tuple[_Periods, ...]:
    marks, closed = sales_mark_table.c, sales_closed_table.c
    marked = select(marks.hour_ms).distinct().where(marks.hour_ms < closed_until_ms)
    hours = set(connection.execute(marked.order_by(marks.hour_ms).limit(PERIODS_MAX)).scalars())
    final_ms = closed.start_ms + HOUR_MS + LAST_LOOK_MS
    unlooked = select(closed.start_ms).where(
        closed.step == "hour", closed.written_ms < final_ms, final_ms <= shared_ms
    )
    hours.update(connection.execute(unlooked.order_by(closed.start_ms).limit(PERIODS_MAX)).scalars())
    late = {
        _Periods.of_one("day", floor_to(DAY_MS, hour_ms))
        if hour_ms < days_until_ms
        else _Periods.of_one("hour", hour_ms)
        for hour_ms in hours
    }
    return tuple(sorted(late, key=lambda period: period.start_ms))


def _find_old_days(connection: Connection, before_ms: int) -> tuple[int, ...]:
    columns = sales_closed_table.c
    old = select(columns.start_ms).where(columns.step == "hour", columns.start_ms < before_ms)
    hours = connection.execute(old.order_by(columns.start_ms).limit(PERIODS_MAX)).scalars()
    return tuple(sorted({floor_to(DAY_MS, hour_ms) for hour_ms in hours}))


def _reopen_from(connection: Connection, *, until_ms: int) -> None:
    closed = sales_closed_table.c
    for step, table in SALES_TABLES.items():
        last_ms = until_ms - STEP_MS[step]
        connection.execute(delete(table).where(table.c.start_ms > last_ms))
        connection.execute(delete(sales_closed_table).where(closed.step == step, closed.start_ms > last_ms))


def _read_periods(connection: Connection, *, periods: _Periods) -> list[_Reading]:
    step_ms = STEP_MS[periods.step]
    found = {
        start_ms: _Reading(start_ms=start_ms, version=version)
        for start_ms, version in _read_versions(connection, periods).items()
    }
    marks = sales_mark_table.c
    within = (marks.hour_ms >= periods.start_ms, marks.hour_ms < periods.end_ms)
    for mark in connection.execute(select(marks.id, marks.hour_ms).where(*within)):
        found[floor_to(step_ms, mark.hour_ms)].marks.append(mark.id)
    for row in _read_calls(connection, periods):
        found[row["start_ms"]].rows.append(dict(row))
    return list(found.values())


def _read_calls(connection: Connection, periods: _Periods) -> Iterable[RowMapping]:
    calls = _CALLS_POSTGRES if connection.dialect.name == "postgresql" else _CALLS_SQLITE
    values = {"from_ms": periods.start_ms, "to_ms": periods.end_ms, "step_ms": STEP_MS[periods.step]}
    return connection.execute(calls, values).mappings()


def _read_versions(connection: Connection, periods: _Periods) -> dict[int, int]:
    columns = sales_closed_table.c
    closed = select(columns.start_ms, columns.version).where(
        columns.step == periods.step,
        columns.start_ms >= periods.start_ms,
        columns.start_ms < periods.end_ms,
    )
    starts = range(periods.start_ms, periods.end_ms, STEP_MS[periods.step])
    return dict.fromkeys(starts, 0) | {row.start_ms: row.version for row in connection.execute(closed)}


def _replace_periods(
    connection: Connection, *, step: Step, readings: Sequence[_Reading], now_ms: int
) -> None:
    """Writes the rows of periods and deletes the marks that are in them; nothing of a period that has another version than at the read."""
    starts = _take_periods(connection, step, readings, now_ms=now_ms)
    taken = [reading for reading in readings if reading.start_ms in starts]
    if not taken:
        return
    table = SALES_TABLES[step]
    connection.execute(delete(table).where(table.c.start_ms.in_(starts)))
    if step == "day":
        hour_ms = sales_hour_table.c.start_ms
        for day_ms in starts:
            within = and_(hour_ms >= day_ms, hour_ms < day_ms + DAY_MS)
            connection.execute(delete(sales_hour_table).where(within))
    if rows := [row for reading in taken for row in reading.rows]:
        connection.execute(insert(table), rows)
    marks = [mark for reading in taken for mark in reading.marks]
    for start in range(0, len(marks), PERIODS_MAX):
        some = marks[start : start + PERIODS_MAX]
        connection.execute(delete(sales_mark_table).where(sales_mark_table.c.id.in_(some)))


def _take_periods(
    connection: Connection, step: Step, readings: Sequence[_Reading], *, now_ms: int
) -> set[int]:
    """Raises the versions of periods from those of the read. Returns the starts of the taken ones: without those where another gateway was faster, and
    without hours whose day is closed."""
    closed = sales_closed_table.c
    taken: set[int] = set()
    for one in readings:
        if one.version:
            same = update(sales_closed_table).where(
                closed.step == step, closed.start_ms == one.start_ms, closed.version == one.version
            )
            if connection.execute(same.values(version=one.version + 1, written_ms=now_ms)).rowcount == 1:
                taken.add(one.start_ms)
    new = [one.start_ms for one in readings if not one.version]
    if new and step == "hour":
        of_days = select(closed.start_ms).where(
            closed.step == "day", closed.start_ms.in_({floor_to(DAY_MS, start_ms) for start_ms in new})
        )
        days = set(connection.execute(of_days).scalars())
        new = [start_ms for start_ms in new if floor_to(DAY_MS, start_ms) not in days]
    return taken | _add_closed(connection, step, new, now_ms=now_ms)


def _add_closed(connection: Connection, step: Step, starts: Sequence[int], *, now_ms: int) -> set[int]:
    """Returns the starts that were not closed before. Waits for a transaction that closes them."""
    if not starts:
        return set()
    first = insert_for(connection, sales_closed_table).values(
        [{"step": step, "start_ms": start_ms, "version": 1, "written_ms": now_ms} for start_ms in starts]
    )
    added = first.on_conflict_do_nothing().returning(sales_closed_table.c.start_ms)
    return set(connection.execute(added).scalars())


def _merge_day(connection: Connection, *, day_ms: int, now_ms: int) -> None:
    """Makes a day of its hours. Where the day is closed already, hours that came late are deleted, and a mark lets it be written from its calls."""
    closed, hours = sales_closed_table.c, sales_hour_table.c
    end_ms = day_ms + DAY_MS
    within = and_(hours.start_ms >= day_ms, hours.start_ms < end_ms)
    is_first = bool(_add_closed(connection, "day", [day_ms], now_ms=now_ms))
    of_day = delete(sales_closed_table).where(
        closed.step == "hour", closed.start_ms >= day_ms, closed.start_ms < end_ms
    )
    hours_left = connection.execute(of_day).rowcount
    if is_first:
        key = [literal(day_ms, BigInteger) if name == "start_ms" else hours[name] for name in KEY_COLUMNS]
        sums = [cast(func.sum(hours[name]), BigInteger) for name in SUM_COLUMNS]
        merged = select(*key, *sums).where(within)
        merged = merged.group_by(*(hours[name] for name in KEY_COLUMNS if name != "start_ms"))
        connection.execute(insert(sales_day_table).from_select([*KEY_COLUMNS, *SUM_COLUMNS], merged))
    elif hours_left:
        connection.execute(insert(sales_mark_table).values(hour_ms=day_ms, marked_ms=now_ms))
    connection.execute(delete(sales_hour_table).where(within))


_KNOWN = """WITH RECURSIVE known (provider) AS (
  SELECT (SELECT provider FROM call ORDER BY provider LIMIT 1)
  UNION ALL
  SELECT (SELECT provider FROM call WHERE provider > known.provider ORDER BY provider LIMIT 1)
  FROM known WHERE known.provider IS NOT NULL)
"""
"""Every provider with a call, by one jump along an index for each."""
_FIRST_CALL = text(
    f"{_KNOWN} SELECT min((SELECT min(created_ms) FROM call WHERE call.provider = known.provider)) FROM known"  # noqa: S608 - names of ours
)
_COLUMNS = (
    "c.provider AS provider, c.created_ms / CAST(:step_ms AS BIGINT) * CAST(:step_ms AS BIGINT) AS start_ms,"
    f" t.listing_id AS listing_id, {CALL_KEY}, {CALL_SUMS}"
)
_GROUPED = "GROUP BY 1, 2, 3, 4, 5, 6, 7, 8"
_CALLS_SQLITE = text(
    f"""{_KNOWN} SELECT {_COLUMNS}
FROM known CROSS JOIN call c INDEXED BY ix_call_provider_time CROSS JOIN call_terms t
WHERE c.provider = known.provider AND c.created_ms >= :from_ms AND c.created_ms < :to_ms
  AND t.id = c.terms_id {_GROUPED}"""  # noqa: S608 - names of ours
)
# OFFSET 0 keeps the planner from reading the calls of all hours.
_CALLS_POSTGRES = text(
    f"""{_KNOWN} SELECT {_COLUMNS}
FROM known CROSS JOIN LATERAL (
  SELECT own.provider, own.created_ms, own.terms_id, own.state, own.price_units, own.actual_units,
    own.quantities FROM call own
  WHERE own.provider = known.provider AND own.created_ms >= :from_ms AND own.created_ms < :to_ms OFFSET 0) c
JOIN call_terms t ON t.id = c.terms_id {_GROUPED}"""  # noqa: S608 - names of ours
)


def count_hours_behind(connection: Connection, *, now_ms: int) -> int:
    """Counts the hours that are due at `now_ms` and not closed, and the closed ones that wait to be written again; of these as many as `MARKS_MAX` marks name."""
    _, closed_until_ms = read_ends(connection)
    next_ms = _find_first_hour(connection) if closed_until_ms is None else closed_until_ms
    if next_ms is None:
        return 0
    marks = select(sales_mark_table.c.hour_ms).where(sales_mark_table.c.hour_ms < next_ms)
    some = marks.order_by(sales_mark_table.c.hour_ms).limit(MARKS_MAX).subquery()
    late = connection.execute(select(func.count(some.c.hour_ms.distinct()))).scalar_one()
    return max(0, closable_until(now_ms) - next_ms) // HOUR_MS + late


# ---- The audit.


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodAudit:
    """The result of comparing closed periods with their calls. `compared`: hours and days; `marked`: the periods that wait for their next write and
    are not compared. `wrong`: lines about sums that differ, `PERIOD_LINES_MAX` and one more of a period at most."""

    compared: int
    marked: int
    wrong: tuple[str, ...]
    wrong_starts: tuple[int, ...]


def audit_periods(connection: Connection, *, lines_max: int) -> PeriodAudit:
    """Compares every closed period without a mark with its calls, to the unit, for each state. Reads every call; run it in the snapshot of the audit."""
    days_until_ms, closed_until_ms = read_ends(connection)
    if closed_until_ms is None:
        return PeriodAudit(compared=0, marked=0, wrong=(), wrong_starts=())
    days_until_ms = days_until_ms or 0
    marked = set(connection.execute(text(_marked_text(days_until_ms))).scalars())
    closed = set(connection.execute(select(sales_closed_table.c.start_ms)).scalars())
    found = connection.execute(text(_starts_text(days_until_ms, closed_until_ms))).scalars()
    lines: list[str] = []
    wrong_starts: list[int] = []
    starts = {*closed, *found} - marked
    for periods in _group_periods(sorted(starts), days_until_ms):
        for start_ms, wrong in _find_wrong(connection, periods).items():
            if start_ms in starts:
                wrong_starts.append(start_ms)
                lines += _shorten(wrong, start_ms)
    return PeriodAudit(
        compared=len(closed - marked),
        marked=len(closed & marked),
        wrong=tuple(lines[:lines_max]),
        wrong_starts=tuple(wrong_starts),
    )


def mark_wrong(connection: Connection, starts_ms: Sequence[int], *, now_ms: int) -> None:
    """The next round writes these closed periods again from their calls."""
    if starts_ms:
        rows = [{"hour_ms": start_ms, "marked_ms": now_ms} for start_ms in starts_ms]
        connection.execute(insert(sales_mark_table), rows)


def _period_text(column: str, days_until_ms: int) -> str:
    day, hour = (f"{column} / {step_ms} * {step_ms}" for step_ms in (DAY_MS, HOUR_MS))
    return f"CASE WHEN {column} < {days_until_ms} THEN {day} ELSE {hour} END"


def _marked_text(days_until_ms: int) -> str:
    return f"SELECT DISTINCT {_period_text('hour_ms', days_until_ms)} FROM sales_mark"  # noqa: S608 - numbers of ours


def _starts_text(days_until_ms: int, closed_until_ms: int) -> str:
    """The periods with sums, and those with calls before the end of the last closed one: a period may lack its row of `sales_closed`."""
    start, created = (_period_text(name, days_until_ms) for name in ("start_ms", "created_ms"))
    return f"""SELECT {start} FROM sales_hour UNION SELECT {start} FROM sales_day
    UNION SELECT {created} FROM call WHERE created_ms < {closed_until_ms}"""  # noqa: S608 - names of ours


def _group_periods(starts: Iterable[int], days_until_ms: int) -> Iterator[_Periods]:
    """The ranges in which all of these periods lie: one day, or hours that are read at once. A range of hours may have others between them."""
    end_ms = 0
    for start_ms in starts:
        if start_ms < end_ms:
            continue
        if start_ms < days_until_ms:
            periods = _Periods.of_one("day", start_ms)
        else:
            periods = _Periods(step="hour", start_ms=start_ms, end_ms=start_ms + HOURS_AT_ONCE * HOUR_MS)
        end_ms = periods.end_ms
        yield periods


def _find_wrong(connection: Connection, periods: _Periods) -> dict[int, list[str]]:
    """For each period of the range a line for each sum that is not the sum of its calls. Sums are compared here, because a wrong one may be any number."""
    step_ms = STEP_MS[periods.step]
    differences: dict[tuple[Any, ...], list[int]] = {}
    for table in SALES_TABLES.values():
        within = and_(table.c.start_ms >= periods.start_ms, table.c.start_ms < periods.end_ms)
        for row in connection.execute(select(table).where(within)).mappings():
            _add_difference(differences, floor_to(step_ms, row["start_ms"]), row, sign=1)
    for row in _read_calls(connection, periods):
        _add_difference(differences, row["start_ms"], row, sign=-1)
    wrong: dict[int, list[str]] = {}
    for key, (calls, high_units, low_units) in sorted(differences.items()):
        if calls or high_units or low_units:
            start_ms, provider, listing_id, chain_id, asset, _, _, state = key
            paid = f"{asset} on chain {chain_id}" if asset else "free calls"
            wrong.setdefault(start_ms, []).append(
                f"closed period {_format_moment(start_ms)} of {listing_id} by {Address(provider)}, {state}, {paid}:"
                f" {calls:+} calls and {high_units * UNITS_BASE + low_units:+} units more than its calls"
            )
    return wrong


_KEY_IN_PERIOD = tuple(name for name in KEY_COLUMNS if name != "start_ms")


def _add_difference(
    differences: dict[tuple[Any, ...], list[int]], start_ms: int, row: Mapping[Any, Any], *, sign: int
) -> None:
    key = (start_ms, bytes(row["provider"]), *(row[name] for name in _KEY_IN_PERIOD[1:]))
    sums = differences.setdefault(key, [0] * len(SUM_COLUMNS))
    for place, name in enumerate(SUM_COLUMNS):
        sums[place] += sign * row[name]


def _shorten(wrong: Sequence[str], start_ms: int) -> Iterator[str]:
    """A bad period must not hide the others."""
    yield from wrong[:PERIOD_LINES_MAX]
    if (more := len(wrong) - PERIOD_LINES_MAX) > 0:
        yield f"closed period {_format_moment(start_ms)}: {more} further sums differ"


def _format_moment(ms: int) -> str:
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%MZ")
