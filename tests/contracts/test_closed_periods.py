"""Closed hours equal the calls, to the unit and for each state, whatever moved, died or led meanwhile."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, delete, insert, select, text, update

from tests.kit.call_rows import call_record_row, insert_calls
from tests.kit.clocks import Clock
from tests.kit.gateway_cluster import audit_with_sums
from tests.kit.ledger_records import (
    NOW_MS,
    PAYER,
    PROVIDER,
    USDC,
    claim_on,
    close_of,
    new_payment,
    operator_origin,
)
from tests.kit.sql_ledger import SqlLedger
from tollway.ids import Address, ListingId
from tollway.ledger.ledger import AuditReport, Claimed
from tollway.ledger.records import CallState
from tollway.ledger.sales import (
    CLOSE_DELAY_MS,
    DAY_MS,
    HOUR_MS,
    HOURS_KEPT_MS,
    LAST_LOOK_MS,
    SUM_STATES,
    UNMARKED_MS,
    PeriodSums,
    SalesQuery,
    SpendingQuery,
    Step,
    floor_to,
)
from tollway.limits import DEFAULT_LIMITS
from tollway.money import UNITS_MAX
from tollway.storage.engine.database import Database
from tollway.storage.ledger.closed_periods import HOURS_AT_ONCE, ClosedPeriods
from tollway.storage.ledger.ledger_audit import audit
from tollway.storage.ledger.ledger_tables import call_table
from tollway.storage.ledger.period_books import PeriodBookStore
from tollway.storage.ledger.sales_tables import (
    sales_closed_table,
    sales_day_table,
    sales_hour_table,
    sales_mark_table,
)
from tollway.storage.operator.operator_writes import AuditLogStore, OperatorStore

HOUR = floor_to(HOUR_MS, NOW_MS)
OTHER = Address(b"\x0c" * 20)
PAID = {"chain_id": 84532, "asset": USDC}
STATES = ("forwarding", "settling", "consumed", "released", "unknown", "reorged")
Sums = dict[tuple[str, str], tuple[int, int]]


async def add(database: Database, *rows: dict[str, Any]) -> None:
    await database.write(lambda connection: insert_calls(connection, rows))


def writer_at(database: Database, ms: int) -> ClosedPeriods:
    return ClosedPeriods(database, read_clock=lambda connection: ms, ledger_ms=lambda: ms)


async def close_at(database: Database, ms: int) -> None:
    await writer_at(database, ms).write_due()


async def rows_of(database: Database, table: Any) -> list[Any]:
    return await database.read(lambda connection: list(connection.execute(select(table))))


async def audited(database: Database) -> AuditReport:
    return await database.read(audit)


async def proved(database: Database) -> AuditReport:
    """The report, of which every closed period is right."""
    report = await audited(database)
    assert report.wrong_periods == ()
    return report


async def read_sales(
    database: Database,
    *,
    from_ms: int = HOUR,
    to_ms: int = HOUR + 6 * HOUR_MS,
    step: Step = "hour",
    wallet: Address = PROVIDER,
    **limits: int,
) -> PeriodSums:
    books = PeriodBookStore(database, limits=replace(DEFAULT_LIMITS, **limits))
    return await books.sales(SalesQuery(wallet=wallet, step=step, from_ms=from_ms, to_ms=to_ms))


def sum_up(found: PeriodSums) -> Sums:
    """Calls and units by listing and state."""
    sums: Sums = {}
    for row in found.rows:
        for state, one in row.by_state.items():
            calls, units = sums.get((row.group, state), (0, 0))
            sums[row.group, state] = (calls + one.calls, units + one.units)
    return sums


async def count_calls(database: Database, wallet: Address = PROVIDER) -> Sums:
    """The same sums, added up here from the rows of the calls."""
    sql = "SELECT t.listing_id, c.state, c.price_units FROM call c JOIN call_terms t ON t.id = c.terms_id WHERE c.provider = :wallet"
    calls = await database.read(
        lambda connection: connection.execute(text(sql), {"wallet": bytes(wallet)}).all()
    )
    sums: Sums = {}
    for listing_id, state, units in calls:
        key = (listing_id, SUM_STATES[CallState(state)])
        seen, total = sums.get(key, (0, 0))
        sums[key] = (seen + 1, total + units)
    return sums


async def test_an_hour_is_closed_ten_minutes_after_its_end_with_each_state_by_itself(
    database: Database,
) -> None:
    await add(
        database,
        *(
            call_record_row(number, state=state, created_ms=HOUR + number, price_units=10**number, **PAID)
            for number, state in enumerate(STATES)
        ),
        call_record_row(6, created_ms=HOUR, provider=OTHER, price_units=7, **PAID),
        call_record_row(7, created_ms=HOUR + HOUR_MS, price_units=9, **PAID),
        call_record_row(8, created_ms=HOUR, price_units=0),
    )
    end = HOUR + HOUR_MS
    await close_at(database, end + CLOSE_DELAY_MS - 1)
    assert await rows_of(database, sales_closed_table) == []
    await close_at(database, end + CLOSE_DELAY_MS)
    stored = {
        (row.provider, row.asset, row.state): (row.calls, row.high_units, row.low_units)
        for row in await rows_of(database, sales_hour_table)
    }
    own = bytes(PROVIDER)
    assert stored == {
        (own, USDC, "held"): (3, 0, 10**0 + 10**1 + 10**4),
        (own, USDC, "charged"): (1, 0, 10**2),
        (own, USDC, "released"): (1, 0, 10**3),
        (own, USDC, "reorged"): (1, 0, 10**5),
        (own, "", "charged"): (1, 0, 0),
        (bytes(OTHER), USDC, "charged"): (1, 0, 7),
    }
    report = await proved(database)
    assert (report.closed_periods, report.marked_periods) == (1, 0)
    assert sum_up(await read_sales(database)) == await count_calls(database)


async def test_closing_again_changes_nothing_and_hours_without_calls_are_closed_too(
    database: Database,
) -> None:
    await add(database, call_record_row(1, created_ms=HOUR, **PAID))
    moment = HOUR + 3 * HOUR_MS + CLOSE_DELAY_MS
    await close_at(database, moment)
    before = [await rows_of(database, table) for table in (sales_closed_table, sales_hour_table)]
    assert [row.start_ms for row in before[0]] == [HOUR, HOUR + HOUR_MS, HOUR + 2 * HOUR_MS]
    await close_at(database, moment)
    assert [await rows_of(database, table) for table in (sales_closed_table, sales_hour_table)] == before


async def test_a_sum_beyond_64_bits_is_exact(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tollway.storage.ledger.closed_periods.HOURS_KEPT_MS", DAY_MS)
    calls = [
        call_record_row(number, created_ms=HOUR, price_units=UNITS_MAX - number, **PAID)
        for number in range(5)
    ]
    await add(database, *calls)
    expected = {("api_1", "charged"): (5, 5 * UNITS_MAX - 10)}
    assert sum_up(await read_sales(database)) == expected  # from the calls
    await close_at(database, HOUR + HOUR_MS + CLOSE_DELAY_MS)
    assert sum_up(await read_sales(database)) == expected  # from the closed hour
    await proved(database)
    await close_at(database, HOUR + 3 * DAY_MS)
    day = floor_to(DAY_MS, HOUR)
    assert sum_up(await read_sales(database, from_ms=day, to_ms=day + DAY_MS, step="day")) == expected
    await proved(database)


async def open_ledger(database: Database, clock: Clock) -> SqlLedger:
    ledger = SqlLedger(database, owner_id="one", now_ms=clock, shared_clock=lambda connection, now_ms: now_ms)
    await ledger.open()
    return ledger


LATE_MOVES: dict[str, tuple[CallState, Callable[[SqlLedger, Any, int], Any]]] = {
    "resolved": (
        CallState.UNKNOWN,
        lambda ledger, call, now_ms: ledger.resolve(call.call_id, CallState.CONSUMED, now_ms=now_ms),
    ),
    "given back": (
        CallState.UNKNOWN,
        lambda ledger, call, now_ms: ledger.resolve(call.call_id, CallState.RELEASED, now_ms=now_ms),
    ),
    "hold lapsed": (CallState.UNKNOWN, lambda ledger, call, now_ms: ledger.recover(now_ms=now_ms + DAY_MS)),
    "reorged": (
        CallState.CONSUMED,
        lambda ledger, call, now_ms: ledger.mark_gone(call.payment_id, now_ms=now_ms),
    ),
}


@pytest.mark.parametrize("name", LATE_MOVES)
async def test_a_call_that_moves_late_moves_its_hour(database: Database, name: str) -> None:
    state, move = LATE_MOVES[name]
    clock = Clock(NOW_MS)
    ledger = await open_ledger(database, clock)
    running = asyncio.get_running_loop().create_task(ledger.run())
    (payment,) = await ledger.record_payments([new_payment(1000, is_final=name != "reorged")], now_ms=NOW_MS)
    call = claim_on(payment, 5, created_ms=NOW_MS)
    await ledger.claim(call)
    status = 200 if state is CallState.CONSUMED else None
    await ledger.close(close_of(call, state, upstream_status=status))
    assert await rows_of(database, sales_mark_table) == []  # nothing is added to the way of a call
    closed = NOW_MS + 2 * HOUR_MS
    await close_at(database, closed)
    before = sum_up(await read_sales(database, from_ms=HOUR))
    clock.ms = closed + 5_000
    await move(ledger, call, closed)
    marks = await rows_of(database, sales_mark_table)
    assert [mark.hour_ms for mark in marks] == [HOUR]
    report = await proved(database)  # a marked hour is no difference
    assert report.marked_periods == 1
    await database.read(audit_with_sums)  # nor for the audit of the live tests
    asked = await read_sales(database, from_ms=HOUR)
    assert (sum_up(asked), asked.as_of_ms) == (before, marks[0].marked_ms)
    await close_at(database, closed)
    assert await rows_of(database, sales_mark_table) == []
    after = sum_up(await read_sales(database, from_ms=HOUR))
    assert after == await count_calls(database) != before
    assert (await proved(database)).marked_periods == 0
    ledger.stop()
    await running


@pytest.mark.parametrize(("late_ms", "marks"), [(UNMARKED_MS - 1, 0), (UNMARKED_MS, 1), (3 * HOUR_MS, 1)])
async def test_claims_and_ends_leave_a_mark_once_their_hour_may_close(
    database: Database, late_ms: int, marks: int
) -> None:
    """The claim of a slow upload, and the end of a call that took its time."""
    clock = Clock(HOUR + HOUR_MS + late_ms)
    ledger = await open_ledger(database, clock)
    running = asyncio.get_running_loop().create_task(ledger.run())
    (payment,) = await ledger.record_payments([new_payment(1000)], now_ms=NOW_MS)
    first = claim_on(payment, 5, created_ms=clock.ms)
    await ledger.claim(first)  # writes the terms, so that the next claim is plain
    call = claim_on(payment, 5, created_ms=HOUR + HOUR_MS - 1)
    assert isinstance(await ledger.claim(call), Claimed)
    assert [mark.hour_ms for mark in await rows_of(database, sales_mark_table)] == [HOUR] * marks
    await ledger.close(close_of(call, CallState.CONSUMED, upstream_status=200))
    assert [mark.hour_ms for mark in await rows_of(database, sales_mark_table)] == [HOUR] * 2 * marks
    ledger.stop()
    await running


async def test_no_hour_is_closed_that_the_ledger_takes_for_open(database: Database) -> None:
    """The clock of the database steps forward, and a round runs before this gateway renews."""
    clock, step_ms = Clock(HOUR + HOUR_MS + UNMARKED_MS - 60_000), CLOSE_DELAY_MS
    ledger = await open_ledger(database, clock)
    running = asyncio.get_running_loop().create_task(ledger.run())
    (payment,) = await ledger.record_payments([new_payment(1000)], now_ms=NOW_MS)
    call = claim_on(payment, 5, created_ms=HOUR + HOUR_MS - 1)
    await ledger.claim(call)
    stepped = ClosedPeriods(
        database, read_clock=lambda connection: clock.ms + step_ms, ledger_ms=ledger.shared_ms
    )
    await stepped.write_due()
    await ledger.close(close_of(call, CallState.CONSUMED, upstream_status=200))
    await proved(database)
    assert sum_up(await read_sales(database)) == {("api_1", "charged"): (1, 5)}
    clock.ms += step_ms
    await ledger.renew_ownership(now_ms=clock.ms)
    await stepped.write_due()
    assert (await proved(database)).closed_periods == 1
    assert sum_up(await read_sales(database)) == {("api_1", "charged"): (1, 5)}
    ledger.stop()
    await running


async def move_call(database: Database, number: int, state: str) -> None:
    """A late move with its mark, as one transaction."""
    of_call = call_table.c.id == f"call_{number}"

    def work(connection: Connection) -> None:
        connection.execute(update(call_table).where(of_call).values(state=state))
        created_ms = connection.scalar(select(call_table.c.created_ms).where(of_call))
        hour_ms = floor_to(HOUR_MS, created_ms or 0)
        connection.execute(insert(sales_mark_table).values(hour_ms=hour_ms, marked_ms=NOW_MS))

    await database.write(work)


class Interrupted(Exception):
    pass


class Interrupting:
    """A database that runs `between` after a read, before the write that belongs to it."""

    def __init__(self, database: Database, between: Callable[[], Any], *, at: int = 2) -> None:
        self._database = database
        self._between = between
        self._reads_left = at
        self.dialect = database.dialect

    async def read(self, work: Any, *, is_long: bool = False) -> Any:
        found = await self._database.read(work, is_long=is_long)
        self._reads_left -= 1
        if self._reads_left == 0:
            await self._between()
        return found

    async def write(self, work: Any, **options: Any) -> Any:
        return await self._database.write(work, **options)


async def test_a_call_that_moves_between_the_read_and_the_write_stays_marked(database: Database) -> None:
    await add(database, call_record_row(1, state="unknown", created_ms=HOUR, **PAID))
    moment = HOUR + HOUR_MS + CLOSE_DELAY_MS
    between = Interrupting(database, lambda: move_call(database, 1, "consumed"))
    await ClosedPeriods(between, read_clock=lambda connection: moment, ledger_ms=lambda: moment).write_due()  # type: ignore[arg-type]  # a part of a database
    assert sum_up(await read_sales(database)) == {("api_1", "held"): (1, 1)}
    assert (await proved(database)).marked_periods == 1
    await close_at(database, moment)
    assert sum_up(await read_sales(database)) == {("api_1", "charged"): (1, 1)}
    assert (await proved(database)).marked_periods == 0


@pytest.mark.parametrize("is_first_write", [True, False])
async def test_of_two_leaders_the_one_with_the_older_read_writes_nothing(
    database: Database, is_first_write: bool
) -> None:
    await add(database, call_record_row(1, state="unknown", created_ms=HOUR, **PAID))
    moment = HOUR + HOUR_MS + CLOSE_DELAY_MS
    if not is_first_write:
        await close_at(database, moment)
        await move_call(database, 1, "unknown")

    async def other_leader() -> None:
        await move_call(database, 1, "consumed")
        await close_at(database, moment)

    older = Interrupting(database, other_leader)
    await ClosedPeriods(older, read_clock=lambda connection: moment, ledger_ms=lambda: moment).write_due()  # type: ignore[arg-type]  # a part of a database
    assert sum_up(await read_sales(database)) == {("api_1", "charged"): (1, 1)}
    assert (await proved(database)).marked_periods == 0
    assert len(await rows_of(database, sales_closed_table)) == 1


async def test_a_kill_between_read_and_write_loses_nothing(database: Database) -> None:
    await add(database, call_record_row(1, created_ms=HOUR, **PAID))
    moment = HOUR + 4 * HOURS_AT_ONCE * HOUR_MS + CLOSE_DELAY_MS

    async def die() -> None:
        raise Interrupted

    for kills in (
        1,
        2,
        3,
    ):  # after the plan, the first hours are read and written, the next ones are only read
        dying = Interrupting(database, die, at=3)
        with pytest.raises(Interrupted):
            await ClosedPeriods(
                dying, read_clock=lambda connection: moment, ledger_ms=lambda: moment
            ).write_due()  # type: ignore[arg-type]  # a part of a database
        assert (await proved(database)).closed_periods == kills * HOURS_AT_ONCE
        assert sum_up(await read_sales(database)) == await count_calls(database)
    await close_at(database, moment)
    assert (await proved(database)).closed_periods == 4 * HOURS_AT_ONCE


async def test_hours_become_days_after_90_days_and_late_moves_then_write_the_day_again(
    database: Database,
) -> None:
    day = floor_to(DAY_MS, NOW_MS) + DAY_MS
    calls = [
        call_record_row(
            number, created_ms=day + number * HOUR_MS, price_units=number + 1, state="unknown", **PAID
        )
        for number in range(0, 48, 5)
    ]
    await add(database, *calls)
    moment = day + DAY_MS + HOURS_KEPT_MS
    await close_at(database, moment - 1)
    assert await rows_of(database, sales_day_table) == []
    await close_at(database, moment)
    assert {row.start_ms for row in await rows_of(database, sales_day_table)} == {day}
    hours = {row.start_ms for row in await rows_of(database, sales_hour_table)}
    assert hours
    assert min(hours) >= day + DAY_MS
    await proved(database)
    await move_call(database, 5, "released")
    await move_call(database, 30, "released")
    assert (await proved(database)).marked_periods == 2
    await close_at(database, moment)
    assert (await proved(database)).marked_periods == 0
    both = await read_sales(database, from_ms=day, to_ms=day + 3 * DAY_MS, step="day")
    assert [row.start_ms for row in both.rows] == [day + DAY_MS, day]
    assert sum_up(both) == await count_calls(database)
    assert sum_up(both)["api_1", "released"] == (2, 6 + 31)
    await close_at(database, moment)
    await proved(database)


async def test_two_leaders_make_one_day_of_its_hours(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollway.storage.ledger.closed_periods.HOURS_KEPT_MS", 2 * DAY_MS)
    day = floor_to(DAY_MS, NOW_MS)
    await add(database, call_record_row(1, created_ms=day, **PAID))
    await close_at(database, day + DAY_MS + CLOSE_DELAY_MS)
    moment = day + DAY_MS + 2 * DAY_MS
    second = Interrupting(database, lambda: close_at(database, moment), at=1)
    await ClosedPeriods(second, read_clock=lambda connection: moment, ledger_ms=lambda: moment).write_due()  # type: ignore[arg-type]  # a part of a database
    (row,) = await rows_of(database, sales_day_table)
    assert (row.calls, row.low_units) == (1, 1)
    await proved(database)


async def test_a_move_without_a_mark_is_found_by_the_audit_and_repaired_by_the_last_look(
    database: Database,
) -> None:
    await add(database, call_record_row(1, state="unknown", created_ms=HOUR, price_units=5, **PAID))
    await close_at(database, HOUR + HOUR_MS + CLOSE_DELAY_MS)
    await database.write(lambda connection: connection.execute(update(call_table).values(state="released")))
    wrong = (await audited(database)).wrong_periods
    moment = "2027-01-15T08:00Z"
    about = f"closed period {moment} of api_1 by {PROVIDER}"
    assert sorted(wrong) == [
        f"{about}, held, {USDC} on chain 84532: +1 calls and +5 units more than its calls",
        f"{about}, released, {USDC} on chain 84532: -1 calls and -5 units more than its calls",
    ]
    last = HOUR + HOUR_MS + LAST_LOOK_MS
    await close_at(database, last - 1)
    assert (await audited(database)).wrong_periods == wrong
    await close_at(database, last)
    assert (await proved(database)).closed_periods > 1
    assert (await audited(database)).is_right


@pytest.mark.parametrize("change", ["calls", "low_units", "missing", "extra"])
async def test_the_audit_finds_one_unit_one_call_one_row(database: Database, change: str) -> None:
    await add(database, call_record_row(1, created_ms=HOUR, price_units=5, **PAID))
    await close_at(database, HOUR + HOUR_MS + CLOSE_DELAY_MS)

    def damage(connection: Connection) -> None:
        columns = sales_hour_table.c
        if change == "missing":
            connection.execute(delete(sales_hour_table))
        elif change == "extra":
            (row,) = connection.execute(select(sales_hour_table)).mappings()
            connection.execute(insert(sales_hour_table).values(**{**row, "listing_id": "api_2"}))
        else:
            connection.execute(update(sales_hour_table).values({change: columns[change] + 1}))

    await database.write(damage)
    report = await audited(database)
    assert len(report.wrong_periods) == 1
    assert report.is_balanced  # the sums stand beside the books and decide nothing
    assert not report.is_right


async def test_a_period_with_many_wrong_sums_hides_no_other(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollway.storage.ledger.ledger_audit.LINES_MAX", 8)
    number_of = 20
    first = [
        call_record_row(number, created_ms=HOUR, listing_id=f"api_{number:02}", **PAID)
        for number in range(number_of)
    ]
    await add(database, *first, call_record_row(number_of, created_ms=HOUR + 2 * HOUR_MS, **PAID))
    await close_at(database, HOUR + 3 * HOUR_MS + CLOSE_DELAY_MS)
    beyond = {"low_units": 2**63 - 1, "high_units": 2**63 - 1}  # a sum of two of them has no 64 bits
    await database.write(lambda connection: connection.execute(update(sales_hour_table).values(beyond)))
    report = await audited(database)
    assert report.wrong_period_starts == (HOUR, HOUR + 2 * HOUR_MS)
    assert (report.closed_periods, len(report.wrong_periods)) == (3, 7)
    assert report.wrong_periods[5] == "closed period 2027-01-15T08:00Z: 15 further sums differ"
    assert "T10:00Z" in report.wrong_periods[6]


@pytest.mark.parametrize("step", ["hour", "day"])
async def test_wrong_periods_are_written_again_when_the_operator_marks_them(
    database: Database, step: Step
) -> None:
    await add(
        database,
        call_record_row(1, created_ms=HOUR, price_units=5, **PAID),
        call_record_row(2, created_ms=HOUR + HOUR_MS, price_units=7, **PAID),
    )
    moment = HOUR + (HOURS_KEPT_MS + 3 * DAY_MS if step == "day" else 2 * DAY_MS)
    await close_at(database, moment)
    await close_at(database, moment)  # the second round makes days
    table = {"hour": sales_hour_table, "day": sales_day_table}[step]
    (before, *_) = right = sorted(await rows_of(database, table))
    of_first = table.c.start_ms == before.start_ms
    await database.write(
        lambda connection: connection.execute(update(table).where(of_first).values(low_units=99))
    )
    await database.write(
        lambda connection: connection.execute(
            insert(sales_hour_table).values(before._asdict() | {"start_ms": HOUR, "listing_id": "api_2"})
        )
    )
    await close_at(database, moment)  # nothing else repairs them
    operator = OperatorStore(database, now_ms=lambda: moment)
    report = await operator.audit()
    assert report.wrong_period_starts == (before.start_ms,)
    assert await operator.rewrite_periods(report.wrong_period_starts, origin=operator_origin()) == 1
    marked = await audited(database)
    assert (marked.wrong_periods, marked.marked_periods) == ((), 1)
    await close_at(database, moment)
    assert sorted(await rows_of(database, table)) == right
    assert (await proved(database)).marked_periods == 0
    (entry,) = await AuditLogStore(database).list_audit_entries(limit=10)
    assert (entry.kind, entry.target, entry.origin) == ("rewrite_periods", "sales", operator_origin())


async def test_without_a_wrong_period_nothing_is_marked_and_no_act_is_recorded(database: Database) -> None:
    operator = OperatorStore(database, now_ms=lambda: NOW_MS)
    assert await operator.rewrite_periods((), origin=operator_origin()) == 0
    assert await rows_of(database, sales_mark_table) == []
    assert await AuditLogStore(database).list_audit_entries(limit=10) == ()


async def test_hours_that_a_fast_clock_closed_are_open_again(database: Database) -> None:
    await add(database, call_record_row(1, created_ms=HOUR, **PAID))
    await close_at(database, HOUR + 40 * HOUR_MS)
    await add(database, call_record_row(2, created_ms=HOUR + 2 * HOUR_MS, **PAID))
    moment = HOUR + HOUR_MS + CLOSE_DELAY_MS
    await close_at(database, moment)
    assert [row.start_ms for row in await rows_of(database, sales_closed_table)] == [HOUR]
    assert sum_up(await read_sales(database)) == {("api_1", "charged"): (2, 2)}
    await close_at(database, moment + 3 * HOUR_MS)
    assert (await proved(database)).closed_periods == 4
    assert sum_up(await read_sales(database)) == {("api_1", "charged"): (2, 2)}


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_sums_equal_the_calls_in_any_order_of_calls_moves_and_rounds(
    database: Database, seed: int
) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    now, number = HOUR, 0
    providers, listings = (PROVIDER, OTHER), ("api_1", "api_2")
    for turn in range(60):
        match dice.randrange(4):
            case 0 | 1:
                rows = []
                for _ in range(dice.randrange(1, 6)):
                    number += 1
                    asset: dict[str, Any] = dice.choice(
                        [PAID, {"chain_id": 1, "asset": "native", "decimals": 18}]
                    )
                    shared = {
                        "listing_id": dice.choice(listings),
                        "provider": dice.choice(providers),
                        "state": dice.choice(STATES),
                        "price_units": dice.choice([1, 10**6, UNITS_MAX]),
                    }
                    rows.append(call_record_row(number, created_ms=now, **shared, **asset))
                await add(database, *rows)
            case 2 if number:
                await move_call(database, dice.randrange(1, number + 1), dice.choice(STATES))
            case _:
                await close_at(database, now)
        now += dice.choice([1, HOUR_MS // 3, 2 * HOUR_MS, 9 * HOUR_MS])
        if turn % 6 == 0:
            await proved(database)
    await close_at(database, now)
    await close_at(database, now + CLOSE_DELAY_MS + HOUR_MS)
    report = await proved(database)
    assert report.closed_periods
    assert not report.marked_periods
    day = floor_to(DAY_MS, HOUR)
    for wallet in providers:
        found = await read_sales(database, wallet=wallet, from_ms=day, to_ms=day + 400 * DAY_MS, step="day")
        assert sum_up(found) == await count_calls(database, wallet)


async def test_spending_is_the_same_from_the_other_side(database: Database) -> None:
    await add(
        database,
        call_record_row(1, created_ms=HOUR, price_units=3, **PAID),
        call_record_row(2, created_ms=HOUR + 1, price_units=4, state="released", **PAID),
        call_record_row(3, created_ms=HOUR + 2, price_units=5, provider=OTHER, listing_id="api_2", **PAID),
        call_record_row(4, created_ms=HOUR + 3, price_units=6, payer=OTHER, **PAID),
        call_record_row(5, created_ms=HOUR + 4, price_units=7, chain_id=1, asset="native", decimals=18),
    )
    books = PeriodBookStore(database)

    async def ask(group_by: Any) -> Sums:
        query = SpendingQuery(
            wallet=PAYER, step="hour", from_ms=HOUR, to_ms=HOUR + HOUR_MS, group_by=group_by
        )
        found = await books.spending(query)
        assert found.complete_from_ms is None
        assert {row.key.asset for row in found.rows} == {USDC, "native"}
        return sum_up(found)

    assert await ask("api") == {
        ("api_1", "charged"): (2, 10),
        ("api_1", "released"): (1, 4),
        ("api_2", "charged"): (1, 5),
    }
    assert await ask("provider") == {
        (str(PROVIDER), "charged"): (2, 10),
        (str(PROVIDER), "released"): (1, 4),
        (str(OTHER), "charged"): (1, 5),
    }
    assert await ask("wallet") == {(str(PAYER), "charged"): (3, 15), (str(PAYER), "released"): (1, 4)}


async def test_beyond_the_limit_of_calls_the_older_periods_are_lower_bounds(database: Database) -> None:
    calls = [call_record_row(number, created_ms=HOUR + number * HOUR_MS // 2, **PAID) for number in range(8)]
    await add(database, *calls)
    found = await read_sales(database, live_calls_max=8)
    assert (len(found.rows), found.complete_from_ms) == (4, None)
    found = await read_sales(database, live_calls_max=5)
    assert found.complete_from_ms == HOUR + 2 * HOUR_MS
    assert [(row.start_ms - HOUR, row.by_state["charged"].calls) for row in found.rows] == [
        (3 * HOUR_MS, 2),
        (2 * HOUR_MS, 2),
        (HOUR_MS, 1),
    ]
    # A question with `to` at that moment goes on where this one stopped.
    older = await read_sales(database, to_ms=HOUR + 2 * HOUR_MS, live_calls_max=5)
    assert (sum(row.by_state["charged"].calls for row in older.rows), older.complete_from_ms) == (4, None)


@pytest.mark.parametrize("is_closed", [False, True])
async def test_beyond_the_limit_of_rows_whole_periods_are_missing(
    database: Database, is_closed: bool
) -> None:
    calls = [
        call_record_row(
            number, created_ms=HOUR + number // 2 * HOUR_MS, listing_id=f"api_{number % 2}", **PAID
        )
        for number in range(8)
    ]
    await add(database, *calls)
    if is_closed:
        await close_at(database, HOUR + 6 * HOUR_MS)
    found = await read_sales(database, sum_rows_max=4)
    assert {row.start_ms - HOUR for row in found.rows} == {2 * HOUR_MS, 3 * HOUR_MS}
    assert found.complete_from_ms == HOUR + 2 * HOUR_MS


async def test_one_listing_and_another_wallet(database: Database) -> None:
    await add(
        database,
        call_record_row(1, created_ms=HOUR, **PAID),
        call_record_row(2, created_ms=HOUR, listing_id="api_2", **PAID),
        call_record_row(3, created_ms=HOUR + HOUR_MS, listing_id="api_2", **PAID),
    )
    books = PeriodBookStore(database)
    query = {"step": "hour", "from_ms": HOUR, "to_ms": HOUR + 2 * HOUR_MS}
    for moment in (
        HOUR,
        HOUR + HOUR_MS + CLOSE_DELAY_MS,
    ):  # from the calls; then half of it from a closed hour
        await close_at(database, moment)
        own = SalesQuery(wallet=PROVIDER, listing_id=ListingId("api_2"), **query)  # type: ignore[arg-type]  # a row of the table
        assert sum_up(await books.sales(own)) == {("api_2", "charged"): (2, 2)}
        other = SalesQuery(wallet=OTHER, listing_id=ListingId("api_2"), **query)  # type: ignore[arg-type]  # a row of the table
        assert sum_up(await books.sales(other)) == {}
