"""What an operator reads, on both dialects: open calls, held payments, the figures of the fleet, the large tables, the release of each gateway."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, delete, event, insert, select, text

from tests.kit.call_rows import call_record_row, insert_calls
from tests.kit.ledger_records import NOW_MS, PROVIDER, claim_on, close_of, new_payment, operator_origin
from tests.kit.ledger_steps import pay
from tests.kit.query_plans import plans_of
from tests.kit.webhooks import WebhookHarness
from tollway.ledger.records import CallState
from tollway.ledger.sales import CLOSE_DELAY_MS, HOUR_MS, floor_to
from tollway.limits import DEFAULT_LIMITS
from tollway.observability.fleet import GatewayBuild
from tollway.storage.engine.database import Database, SqliteDatabase
from tollway.storage.engine.encryption import Sealer
from tollway.storage.ledger.closed_periods import ClosedPeriods
from tollway.storage.ledger.ledger_tables import owner_table
from tollway.storage.ledger.sales_tables import sales_mark_table
from tollway.storage.operator.operator_reads import (
    GATEWAYS_MAX,
    HELD_SHOWN,
    OPEN_CALLS_MAX,
    BookFigures,
    FleetFiguresStore,
    GatewayBuildStore,
    OpenCallStore,
    count_open,
    find_oldest,
    gateway_build_table,
    record_audit,
    record_backup,
)
from tollway.storage.webhooks.webhook_tables import delivery_table, endpoint_table, event_table

IN_SQL = pytest.mark.parametrize(
    "ledgers", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True
)
"""The model in memory has nothing for an operator."""
KEY = b"\x01" * 32
LEASE_MS = 30_000
OLD = GatewayBuild(name="gw-1:8402", version="1.0", schema="0037_baseline")
NEW = GatewayBuild(name="gw-1:8402", version="1.1", schema="0032_more")


@pytest.fixture
def open_calls(ledgers: Any) -> OpenCallStore:
    return OpenCallStore(ledgers.database, limits=DEFAULT_LIMITS)


@IN_SQL
async def test_lists_unknown_calls_the_oldest_first(ledgers: Any, open_calls: OpenCallStore) -> None:
    ledger = await ledgers.gateway("one")
    payment = await pay(ledger, 100)
    ids = []
    for _ in range(3):
        claim = claim_on(payment)
        await ledger.claim(claim)
        await ledger.close(close_of(claim, CallState.UNKNOWN))
        ids.append(claim.call_id)
    claim = claim_on(payment)
    await ledger.claim(claim)
    await ledger.close(close_of(claim, CallState.CONSUMED))
    found = await open_calls.list_open("unknown")
    assert sorted(call.id for call in found) == sorted(ids)
    assert [call.created_ms for call in found] == sorted(call.created_ms for call in found)
    assert all(call.held_until_ms is not None for call in found)
    assert await open_calls.list_open("settling") == ()


@IN_SQL
async def test_counts_held_payments(ledgers: Any, open_calls: OpenCallStore) -> None:
    ledger = await ledgers.gateway("one")
    await pay(ledger, 100)
    assert await open_calls.count_held_payments() == 0
    await ledger.mark_restored(origin=operator_origin())
    assert await open_calls.count_held_payments() == 1


async def test_calls_that_wait_longest_come_first_up_to_the_limit(database: Database) -> None:
    """By the move into their state and not by their creation."""
    states = ("settling", "unknown", "consumed", "released")
    rows = [
        call_record_row(number, state=states[number % 4], moved_ms=NOW_MS - number)
        for number in range(4 * (OPEN_CALLS_MAX + 3))
    ]
    await database.write(lambda connection: insert_calls(connection, rows))
    store = OpenCallStore(database, limits=DEFAULT_LIMITS)
    for state in ("settling", "unknown"):
        oldest = [row["id"] for row in reversed(rows) if row["state"] == state]
        found = await store.list_open(state)
        assert [call.id for call in found] == oldest[:OPEN_CALLS_MAX]
        assert {call.state.value for call in found} == {state}


async def test_the_last_audit_is_that_of_any_gateway(database: Database) -> None:
    store = OpenCallStore(database, limits=DEFAULT_LIMITS)
    assert await store.find_last_audit() is None
    await record_audit(database, differences=0, now_ms=NOW_MS)
    assert await store.find_last_audit() == (NOW_MS, 0)
    await record_audit(database, differences=3, now_ms=NOW_MS + 1)
    other = OpenCallStore(database, limits=DEFAULT_LIMITS)
    assert await other.find_last_audit() == (NOW_MS + 1, 3)


def figures_of(database: Database, *, now_ms: int = NOW_MS) -> FleetFiguresStore:
    sealer = Sealer(KEY, entropy=lambda size: bytes(size))
    return FleetFiguresStore(
        database, sealer=sealer, has_other_keys=False, now_ms=lambda: now_ms, clock=lambda: 0.0
    )


@IN_SQL
async def test_open_calls_are_counted_by_state_with_the_age_of_the_oldest(ledgers: Any) -> None:
    ledger = await ledgers.gateway("one")
    payment = await pay(ledger, 100)
    claims = [claim_on(payment, 1) for _ in range(4)]
    for claim in claims:
        await ledger.claim(claim)
    ends = (CallState.UNKNOWN, CallState.CONSUMED, CallState.RELEASED)
    for claim, state in zip(claims, ends, strict=False):
        await ledger.close(close_of(claim, state))
    figures = await figures_of(ledgers.database, now_ms=ledger.shared_ms() + 5_000).read()
    counts = {state: count for state, (count, _) in figures.open_calls.items()}
    assert counts == {"forwarding": 1, "settling": 0, "unknown": 1}
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
    assert (await figures_of(database).read()).open_calls[state] == (4, 0.9)


async def test_the_last_audit_and_the_last_backup_are_one_row_each(database: Database) -> None:
    for differences, ms in ((2, NOW_MS), (0, NOW_MS + 1_000)):
        await record_audit(database, differences=differences, now_ms=ms)
        await record_backup(database, now_ms=ms)
    figures = await figures_of(database).read()
    assert (figures.audit_s, figures.audit_differences) == (NOW_MS / 1000 + 1, 0)
    assert figures.backup_s == NOW_MS / 1000 + 1


async def test_hours_of_sales_are_behind_until_they_are_written(database: Database) -> None:
    async def count(ms: int) -> int | None:
        return (await figures_of(database, now_ms=ms).read()).sales_hours_behind

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
        return (await figures_of(database).read()).webhook_events

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


def explain(asked: tuple[str, Any], connection: Connection) -> list[str]:
    statement, values = asked
    return plans_of(connection, lambda one: one.exec_driver_sql(statement, values))


async def test_open_calls_and_events_are_found_by_their_indexes(sqlite_url: str) -> None:
    database = SqliteDatabase(Path(sqlite_url.removeprefix("sqlite:///")))
    statements: list[tuple[str, Any]] = []

    @event.listens_for(database._read_engine, "before_cursor_execute")
    def note(_c: Any, _u: Any, statement: str, parameters: Any, *_: Any) -> None:
        statements.append((statement, parameters))

    await database.open()
    try:
        await figures_of(database).read()
        counts = [one for one in statements if "count(*)" in one[0]]
        plans = [(await database.read(partial(explain, one)))[0] for one in counts]
    finally:
        await database.close()
    indexes = [f"ix_call_{state}" for state in ("forwarding", "settling", "unknown")]
    indexes += ["ix_webhook_event_new", "ix_webhook_delivery_pending", "ix_webhook_delivery_state"]
    for index, plan in zip(indexes, plans, strict=True):
        assert index in plan, plan


async def claim_three(ledgers: Any) -> None:
    """Three calls on one payment."""
    ledger = await ledgers.gateway("one")
    payment = await pay(ledger, 100)
    for _ in range(3):
        await ledger.claim(claim_on(payment, 1))


@IN_SQL
async def test_the_large_tables_have_their_rows_and_their_oldest(ledgers: Any) -> None:
    await claim_three(ledgers)
    await ledgers.database.write(lambda connection: connection.execute(text("ANALYZE")))
    sizes = await BookFigures(ledgers.database).read_sizes()
    assert sizes.size_bytes > 10_000
    tables = {one.name: one for one in sizes.tables}
    assert (tables["call"].rows, tables["payment"].rows, tables["stored_response"].rows) == (3, 1, 0)
    assert tables["payment"].oldest_ms == NOW_MS
    assert tables["call"].oldest_ms is not None
    assert tables["stored_response"].oldest_ms is None
    assert (tables["call"].size_bytes is None) is (ledgers.database.dialect == "sqlite")


@IN_SQL
async def test_a_table_without_an_estimate_is_counted(ledgers: Any) -> None:
    """A new PostgreSQL database has no statistics yet, and the key of `call_terms` is a hash."""
    await claim_three(ledgers)
    rows = {one.name: one.rows for one in (await BookFigures(ledgers.database).read_sizes()).tables}
    expected = {"call": 3, "payment": 1, "call_terms": 1, "stored_response": 0}
    assert {name: rows[name] for name in expected} == expected


@IN_SQL
async def test_held_payments_are_listed_in_order_up_to_a_limit(ledgers: Any) -> None:
    ledger, figures = await ledgers.gateway("one"), BookFigures(ledgers.database)
    payments = await ledger.record_payments(
        [new_payment(10, f"tx {number}") for number in range(HELD_SHOWN + 1)], now_ms=NOW_MS
    )
    assert await figures.list_held() == ()
    await ledger.mark_restored(origin=operator_origin())
    held = await figures.list_held()
    first = sorted(payments, key=lambda one: one.id)[:HELD_SHOWN]
    assert [one.tx_hash for one in held] == [payment.tx_hash for payment in first]
    assert (held[0].units, held[0].payer, held[0].recorded_ms) == (10, payments[0].payer, NOW_MS)
    await ledger.release_held(origin=operator_origin())
    assert await figures.list_held() == ()


def builds_of(database: Database, owner_id: str) -> GatewayBuildStore:
    return GatewayBuildStore(database, owner_id=owner_id, lease_ms=LEASE_MS, now_ms=lambda: NOW_MS)


async def add_owner(database: Database, owner_id: str, *, seen_ms: int = NOW_MS) -> None:
    row = {"id": owner_id, "started_ms": NOW_MS - 1, "seen_ms": seen_ms, "boot_mark": ""}
    await database.write(lambda connection: connection.execute(insert(owner_table), row))


async def test_each_gateway_has_the_release_that_it_wrote_last(database: Database) -> None:
    for owner_id, seen_ms in (("a", NOW_MS), ("b", NOW_MS - 1), ("c", NOW_MS - LEASE_MS)):
        await add_owner(database, owner_id, seen_ms=seen_ms)
    for build in (OLD, NEW):
        await builds_of(database, "a").record(build)
    await builds_of(database, "c").record(OLD)
    found = await builds_of(database, "b").list_gateways()
    assert [(one.owner_id, one.build, one.is_alive) for one in found] == [
        ("a", NEW, True),
        ("b", None, True),  # its row is not written yet
        ("c", OLD, False),
    ]
    assert found[0].started_ms == NOW_MS - 1


async def test_the_row_of_a_gateway_without_a_lease_is_deleted(database: Database) -> None:
    await add_owner(database, "gone")
    await builds_of(database, "gone").record(OLD)
    await database.write(lambda connection: connection.execute(delete(owner_table)))
    await builds_of(database, "a").record(NEW)  # its own lease is not written yet
    rows = await database.read(
        lambda connection: connection.execute(select(gateway_build_table.c.owner_id)).all()
    )
    assert [row.owner_id for row in rows] == ["a"]


async def test_a_bounded_number_of_gateways_is_read(database: Database) -> None:
    for number in range(GATEWAYS_MAX + 2):
        await add_owner(database, f"o{number}", seen_ms=NOW_MS - number)
    found = await builds_of(database, "a").list_gateways()
    assert [one.owner_id for one in found] == [f"o{number}" for number in range(GATEWAYS_MAX)]
