"""Old deliveries and messages of webhooks are found and deleted by an index, page by page, on SQLite and on PostgreSQL."""

import asyncio
from functools import partial
from itertools import product
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Connection, func, insert, select, update

from tests.kit.ledger_records import NOW_MS, PROVIDER
from tests.kit.query_plans import as_if_large, plans_of, settle_down
from tests.kit.waits import wait_blocked
from tests.kit.webhooks import WebhookHarness
from tollway.storage.engine.database import Database
from tollway.storage.webhooks.webhook_pruning import (
    DEAD_KEPT_MS,
    DELIVERED_KEPT_MS,
    DELIVERIES,
    KEPT_MS,
    MESSAGES,
    PRUNE_MAX,
    Prunable,
    delete_settled,
    delete_settled_of,
    find_settled,
)
from tollway.storage.webhooks.webhook_tables import delivery_table, event_table, message_table
from tollway.webhooks.endpoints import DeliveryState

OLD_MS = NOW_MS - DELIVERED_KEPT_MS - 10_000
ROWS = 2 * PRUNE_MAX + 5
TABLES = (delivery_table, message_table, event_table)


def rows_of(state: str, count: int, *, at_ms: int, first: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Events from number `first` on, each with one delivery and one message."""
    deliveries, messages, events = [], [], []
    for number in range(first, first + count):
        shared = {"endpoint_no": number % 20, "state": state}
        settled = None if state == "pending" else at_ms + number - first
        deliveries.append({**shared, "event_no": number, "message_no": number, "settled_ms": settled})
        attempts = {"attempts": 1, "first_ms": at_ms, "due_ms": at_ms, "last_ms": settled}
        messages.append({**shared, **attempts, "number": number, "id": f"evt_{number:08}"})
        event = {"number": number, "id": f"evt_{number:08}", "wallet": PROVIDER, "type": "call.charged"}
        events.append({**event, "subject": "call_1", "at_ms": at_ms, "data": "{}"})
    return deliveries, messages, events


async def fill(database: Database, *given: tuple[list[Any], list[Any], list[Any]]) -> None:
    def work(connection: Connection) -> None:
        for rows in given:
            for table, each in zip(TABLES, rows, strict=True):
                connection.execute(insert(table), each)

    await database.write(work, is_long=True)


async def count(database: Database) -> tuple[int, ...]:
    """The rows of deliveries, messages and events."""

    def work(connection: Connection) -> tuple[int, ...]:
        return tuple(connection.scalar(select(func.count()).select_from(table)) or 0 for table in TABLES)

    return await database.read(work)


async def test_one_run_deletes_more_than_a_page_with_its_events(database: Database) -> None:
    await fill(
        database,
        rows_of("delivered", ROWS, at_ms=OLD_MS, first=10_000),
        rows_of("delivered", 3, at_ms=NOW_MS, first=20_000),
        rows_of("dead", 4, at_ms=OLD_MS, first=30_000),
    )
    await WebhookHarness(database).outbox.prune(now_ms=NOW_MS)
    assert await count(database) == (7, 7, 7)


async def test_the_data_of_an_event_goes_with_its_last_delivery(database: Database) -> None:
    """Two webhooks of one wallet: one got the event, the receiver of the other one refused it."""
    deliveries, messages, events = rows_of("delivered", 1, at_ms=OLD_MS, first=10_000)
    dead = {**deliveries[0], "endpoint_no": 99, "state": "dead"}
    await fill(database, ([*deliveries, dead], messages, events))
    outbox = WebhookHarness(database).outbox
    await outbox.prune(now_ms=NOW_MS)
    assert await count(database) == (1, 0, 1)
    await outbox.prune(now_ms=OLD_MS + DEAD_KEPT_MS + 1)
    assert await count(database) == (0, 0, 0)


async def test_a_row_that_is_sent_again_stays_with_its_event(database: Database) -> None:
    await fill(database, rows_of("delivered", 2, at_ms=OLD_MS, first=10_000))
    named = [(10_000, 0), (10_001, 1)]
    again = update(delivery_table).where(delivery_table.c.event_no == 10_000).values(state="pending")

    def work(connection: Connection) -> None:
        connection.execute(again)
        delete_settled(connection, DELIVERIES, named=named)

    await database.write(work)
    assert await count(database) == (1, 2, 1)


@pytest.mark.postgres
async def test_two_that_delete_the_last_deliveries_of_an_event_delete_the_event(
    postgres_database: Database, operator: asyncpg.Connection
) -> None:
    """The deliveries of two removed webhooks, each in a transaction of its own."""
    deliveries, messages, events = rows_of("delivered", 1, at_ms=OLD_MS, first=10_000)
    await fill(postgres_database, ([*deliveries, {**deliveries[0], "endpoint_no": 99}], messages, events))
    start = asyncio.get_running_loop().create_task
    async with operator.transaction():
        await operator.execute("SELECT number FROM webhook_event FOR UPDATE")
        both = [start(delete_settled_of(postgres_database, number)) for number in (0, 99)]
        await wait_blocked(postgres_database, 2)
    await asyncio.gather(*both)
    assert await count(postgres_database) == (0, 0, 0)


SETTLED = ((DELIVERIES, "ix_webhook_delivery_settled"), (MESSAGES, "ix_webhook_message_settled"))


async def test_pruning_reads_an_index(database: Database, url: str) -> None:
    await fill(
        database,
        rows_of("delivered", ROWS, at_ms=OLD_MS, first=10_000),
        rows_of("dead", ROWS, at_ms=OLD_MS, first=20_000),
        rows_of("pending", 100, at_ms=OLD_MS, first=30_000),
    )
    await settle_down(url)

    def work(connection: Connection, rows: Prunable, settled: str, state: DeliveryState) -> None:
        as_if_large(connection)
        (found,) = plans_of(
            connection,
            lambda one: find_settled(one, rows, state, from_ms=OLD_MS, until_ms=OLD_MS + ROWS // 2),
        )
        named = [(10_001, 1), (10_002, 2)] if rows is DELIVERIES else [(10_001,), (10_002,)]
        deleted = plans_of(connection, lambda one: delete_settled(one, rows, named=named))
        assert settled in found, state
        assert "TEMP B-TREE" not in found, state
        assert len(deleted) == (3 if rows is DELIVERIES else 1), state
        for plan in (found, *deleted):
            assert "Seq Scan" not in plan, state
            assert "SCAN webhook" not in plan, state

    for (rows, settled), state in product(SETTLED, KEPT_MS):
        await database.write(partial(work, rows=rows, settled=settled, state=state))
