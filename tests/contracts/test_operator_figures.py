"""The figures of the fleet, on both dialects: open calls from the partial indexes, the last audit and backup, hours of sales."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, insert, select

from tests.kit.call_rows import call_record_row, insert_calls
from tests.kit.ledger_records import NOW_MS, PROVIDER, claim_on, close_of, new_payment
from tests.kit.webhooks import WebhookHarness
from tollway.ledger.records import CallState
from tollway.ledger.sales import CLOSE_DELAY_MS, HOUR_MS, floor_to
from tollway.storage.closed_periods import ClosedPeriods
from tollway.storage.database import Database, SqliteDatabase
from tollway.storage.encryption import Sealer
from tollway.storage.operator_figures import (
    FleetFiguresStore,
    count_open,
    find_oldest,
    record_audit,
    record_backup,
)
from tollway.storage.sales_tables import sales_mark_table
from tollway.storage.webhook_tables import delivery_table, endpoint_table, event_table

KEY = b"\x01" * 32


def store_of(database: Database, *, now_ms: int = NOW_MS) -> FleetFiguresStore:
    sealer = Sealer(KEY, entropy=lambda size: bytes(size))
    return FleetFiguresStore(
        database, sealer=sealer, has_other_keys=False, now_ms=lambda: now_ms, clock=lambda: 0.0
    )


async def test_open_calls_are_counted_by_state_with_the_age_of_the_oldest(ledgers: Any) -> None:
    if ledgers.database is None:
        return  # the model has no figures
    ledger = await ledgers.gateway("one")
    (payment,) = await ledger.record_payments([new_payment(100)], now_ms=NOW_MS)
    claims = [claim_on(payment, 1) for _ in range(4)]
    for claim in claims:
        await ledger.claim(claim)
    for claim, state in zip(
        claims, (CallState.UNKNOWN, CallState.CONSUMED, CallState.RELEASED), strict=False
    ):
        await ledger.close(close_of(claim, state))
    figures = await store_of(ledgers.database, now_ms=ledger.shared_ms() + 5_000).read()
    assert {state: count for state, (count, _) in figures.open_calls.items()} == {
        "forwarding": 1,
        "settling": 0,
        "unknown": 1,
    }
    assert figures.open_calls["settling"][1] == 0
    assert 5 <= figures.open_calls["unknown"][1] < 60
    assert (figures.audit_s, figures.audit_differences, figures.backup_s) == (None, None, None)


@pytest.mark.parametrize("state", ["forwarding", "settling", "unknown"])
async def test_the_oldest_call_is_found_beyond_those_that_are_counted(database: Database, state: str) -> None:
    calls = [
        call_record_row(number, created_ms=NOW_MS - age_ms) | {"state": state, "moved_ms": NOW_MS - age_ms}
        for number, age_ms in enumerate((10, 20, 900, 30), 1)
    ]
    await database.write(lambda connection: insert_calls(connection, calls))
    counted, oldest_ms = await database.read(
        lambda connection: (
            connection.execute(count_open(state, count_max=2)).scalar_one(),
            connection.execute(find_oldest(state)).scalar_one(),
        )
    )
    assert (counted, oldest_ms) == (2, NOW_MS - 900)
    assert (await store_of(database).read()).open_calls[state] == (4, 0.9)


async def test_the_last_audit_and_the_last_backup_are_one_row_each(database: Database) -> None:
    for differences, ms in ((2, NOW_MS), (0, NOW_MS + 1_000)):
        await record_audit(database, differences=differences, now_ms=ms)
        await record_backup(database, now_ms=ms)
    figures = await store_of(database).read()
    assert (figures.audit_s, figures.audit_differences) == (NOW_MS / 1000 + 1, 0)
    assert figures.backup_s == NOW_MS / 1000 + 1


async def test_hours_of_sales_are_behind_until_they_are_written(database: Database) -> None:
    async def count(ms: int) -> int | None:
        return (await store_of(database, now_ms=ms).read()).sales_hours_behind

    hour_ms = floor_to(HOUR_MS, NOW_MS)
    due_ms = hour_ms + HOUR_MS + CLOSE_DELAY_MS
    assert await count(due_ms) == 0  # no call, no hour
    call = call_record_row(1, created_ms=hour_ms)
    await database.write(lambda connection: insert_calls(connection, [call]))
    assert [await count(due_ms + ms) for ms in (-1, 0, 5 * HOUR_MS)] == [0, 1, 6]
    await ClosedPeriods(database, read_clock=lambda connection: due_ms, ledger_ms=lambda: due_ms).write_due()
    assert [await count(due_ms + ms) for ms in (-1, 0, HOUR_MS)] == [0, 0, 1]
    marks = [{"hour_ms": ms, "marked_ms": due_ms} for ms in (hour_ms, hour_ms, hour_ms + HOUR_MS)]
    await database.write(lambda connection: connection.execute(insert(sales_mark_table), marks))
    assert await count(due_ms) == 1  # the mark of an open hour is none


async def test_events_of_webhooks_are_counted_by_state(database: Database) -> None:
    async def count() -> Any:
        return (await store_of(database).read()).webhook_events

    webhooks = WebhookHarness(database)
    assert await count() == {"pending": 0, "dead": 0}
    await webhooks.activate()
    new = [
        {"id": f"evt_new_{number}", "wallet": PROVIDER, "type": "call.charged", "subject": "1", "at_ms": NOW_MS}
        for number in range(3)
    ]  # fmt: skip
    await database.write(lambda connection: connection.execute(insert(event_table), new))
    assert await count() == {"pending": 3, "dead": 0}  # not copied yet
    (number,) = await database.read(
        lambda connection: connection.execute(select(endpoint_table.c.number)).scalars().all()
    )
    rows = [
        {"endpoint_no": owner, "event_no": event_no, "state": state}
        for event_no, (owner, state) in enumerate(
            [(number, "pending"), (number, "dead"), (number, "dead"), (number, "delivered"), (number + 1, "dead")]
        )
    ]  # fmt: skip
    await database.write(lambda connection: connection.execute(insert(delivery_table), rows))
    assert await count() == {"pending": 4, "dead": 2}


async def test_open_calls_and_events_are_found_by_their_indexes(sqlite_url: str) -> None:
    database = SqliteDatabase(Path(sqlite_url.removeprefix("sqlite:///")))
    statements: list[tuple[str, Any]] = []

    @event.listens_for(database._read_engine, "before_cursor_execute")
    def note(_c: Any, _u: Any, statement: str, parameters: Any, *_: Any) -> None:
        statements.append((statement, parameters))

    await database.open()
    try:
        await store_of(database).read()
        counts = [one for one in statements if "count(*)" in one[0]]
        plans = await database.read(
            lambda connection: [
                " ".join(
                    row[3]
                    for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
                )
                for statement, parameters in counts
            ]
        )
    finally:
        await database.close()
    indexes = [f"ix_call_{state}" for state in ("forwarding", "settling", "unknown")]
    indexes += ["ix_webhook_event_new", "ix_webhook_delivery_pending", "ix_webhook_delivery_state"]
    for index, plan in zip(indexes, plans, strict=True):
        assert index in plan, plan
