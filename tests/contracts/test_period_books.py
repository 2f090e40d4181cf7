"""Questions whose answer has a maximum of rows: it begins as the answer that has all, and what lies beyond its last period is not summed."""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Connection, event, func, insert, select

from tests.kit.call_rows import call_record_row, insert_calls
from tests.kit.ledger_records import NOW_MS, PROVIDER, USDC
from tollway.ids import ListingId
from tollway.ledger.sales import DAY_MS, HOUR_MS, STEP_MS, SalesQuery, Step, floor_to
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.storage.engine.database import Database
from tollway.storage.ledger.period_books import read_sales
from tollway.storage.ledger.sales_tables import KEY_COLUMNS, SALES_TABLES, sales_closed_table

DAY = floor_to(DAY_MS, NOW_MS)
"""Its first hours are closed, and then calls follow."""
CLOSED_UNTIL = DAY + 5 * HOUR_MS
LISTINGS = ("api_1", "api_2", "api_3")
ASSETS = ((0, "", "AUD", 6), (1, "native", "ETH", 18), (84532, USDC, "USDC", 6))
STATES = ("charged", "released", "held", "reorged")
ALL_ROWS = 100_000

Row = dict[str, Any]


def stored_row(start_ms: int, listing_id: str, asset: tuple[Any, ...], state: str, calls: int = 1) -> Row:
    key = (bytes(PROVIDER), start_ms, listing_id, *asset, state)
    sums = {"calls": calls, "high_units": calls % 3, "low_units": calls}
    return dict(zip(KEY_COLUMNS, key, strict=True)) | sums


def draw_rows(dice: random.Random, starts: Iterable[int]) -> Iterator[Row]:
    """Some periods have no sums, some have all of them."""
    for start_ms in starts:
        part = dice.choice([0, 0.1, 0.1, 0.4, 1])
        for listing_id, asset, state in product(LISTINGS, ASSETS, STATES):
            if dice.random() < part:
                yield stored_row(start_ms, listing_id, asset, state, dice.randrange(1, 1_000))


def write_book(connection: Connection, rows: Mapping[Step, list[Row]]) -> None:
    for step, some in rows.items():
        connection.execute(insert(SALES_TABLES[step]), some)


def close(connection: Connection) -> None:
    last = {"step": "hour", "start_ms": CLOSED_UNTIL - HOUR_MS, "version": 1, "written_ms": NOW_MS}
    connection.execute(insert(sales_closed_table), [last])


def limit_rows(rows_max: int) -> Limits:
    return replace(DEFAULT_LIMITS, sum_rows_max=rows_max)


@pytest.mark.parametrize("seed", [1, 2])
async def test_an_answer_with_a_maximum_begins_as_the_answer_with_all_rows(
    database: Database, seed: int
) -> None:
    print(f"seed {seed}")
    dice = random.Random(seed)
    days = range(DAY - 9 * DAY_MS, DAY - 4 * DAY_MS, DAY_MS)
    hours = range(DAY - 4 * DAY_MS, CLOSED_UNTIL, HOUR_MS)
    late_hours = range(days[2] + HOUR_MS, days[4], 7 * HOUR_MS)
    calls = [
        call_record_row(number, created_ms=CLOSED_UNTIL + number * HOUR_MS, listing_id=dice.choice(LISTINGS))
        for number in range(3)
    ]

    def write(connection: Connection) -> None:
        close(connection)
        drawn = [*draw_rows(dice, hours), *draw_rows(dice, late_hours)]
        write_book(connection, {"hour": drawn, "day": [*draw_rows(dice, days)]})
        insert_calls(connection, calls)

    await database.write(write)
    steps: tuple[Step, ...] = ("hour", "day")
    for step, listing_id, first in product(steps, (None, ListingId("api_2")), (0, 7)):
        query = SalesQuery(
            wallet=PROVIDER,
            step=step,
            listing_id=listing_id,
            from_ms=days[0] + first * DAY_MS,
            to_ms=DAY + DAY_MS,
        )
        whole = await database.read(partial(read_sales, query=query, limits=limit_rows(ALL_ROWS)))
        assert whole.complete_from_ms is None
        count = len(whole.rows)
        for rows_max in (1, 3, 13, 40, count - 1, count):
            rows, beyond = whole.rows[:rows_max], whole.rows[rows_max:]
            complete_from_ms = beyond[0].start_ms + STEP_MS[step] if beyond else None
            found = await database.read(partial(read_sales, query=query, limits=limit_rows(rows_max)))
            assert found == replace(whole, rows=rows, complete_from_ms=complete_from_ms), (query, rows_max)


def count_summed(connection: Connection, query: SalesQuery, limits: Limits) -> int:
    """The stored rows in the ranges of all statements that sum some."""
    counts = []

    def record(
        _connection: object, _cursor: object, sql: str, _values: Any, context: Any, _many: bool
    ) -> None:
        for table in SALES_TABLES.values():
            if f"FROM {table.name} " in sql and "GROUP BY" in sql:
                (values,) = context.compiled_parameters
                within = (table.c.start_ms >= values["from_ms"], table.c.start_ms < values["until_ms"])
                counts.append(select(func.count()).select_from(table).where(*within))

    event.listen(connection, "before_cursor_execute", record)
    read_sales(connection, query=query, limits=limits)
    event.remove(connection, "before_cursor_execute", record)
    return sum(connection.execute(one).scalar_one() for one in counts)


@pytest.mark.parametrize(("step", "stored"), [("hour", "hour"), ("day", "hour"), ("day", "day")])
async def test_periods_beyond_the_maximum_of_rows_are_not_summed(
    database: Database, step: Step, stored: Step
) -> None:
    """However many they are. The newest periods are far apart, so that no length of time bounds the rows."""
    near = [stored_row(DAY - number * 9 * DAY_MS, "api_1", ASSETS[2], "charged") for number in range(1, 5)]
    dense_until_ms = near[-1]["start_ms"]
    query = SalesQuery(wallet=PROVIDER, step=step, from_ms=DAY - 400 * DAY_MS, to_ms=DAY)

    async def count_with(rows: list[Row]) -> int:
        await database.write(partial(write_book, rows={stored: rows}))
        return await database.read(partial(count_summed, query=query, limits=limit_rows(12)))

    def make_dense(days: int, *, until_ms: int) -> list[Row]:
        starts = range(until_ms - days * DAY_MS, until_ms, STEP_MS[stored])
        return [stored_row(start_ms, name, ASSETS[2], "charged") for start_ms in starts for name in LISTINGS]

    await database.write(close)
    few = await count_with([*near, *make_dense(20, until_ms=dense_until_ms)])
    many = await count_with(make_dense(100, until_ms=dense_until_ms - 20 * DAY_MS))
    found = await database.read(partial(read_sales, query=query, limits=limit_rows(12)))
    assert len(found.rows) == 12
    assert many == few > 12
