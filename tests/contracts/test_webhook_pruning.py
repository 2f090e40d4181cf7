"""Old deliveries and messages of webhooks are found and deleted by an index, page by page, on SQLite and on PostgreSQL."""

from typing import Any

import pytest
from sqlalchemy import Connection, func, insert, select, update

from tests.contracts.test_catalog_search_plans import as_if_large, plans_of, settle_down
from tests.kit.ledger_records import NOW_MS
from tests.kit.webhooks import WebhookHarness
from tollway.storage.database import Database
from tollway.storage.webhook_pruning import (
    DELIVERED_KEPT_MS,
    DELIVERIES,
    KEPT_MS,
    MESSAGES,
    PRUNE_MAX,
    Prunable,
    delete_settled,
    find_settled,
)
from tollway.storage.webhook_tables import delivery_table, message_table
from tollway.webhooks.endpoints import DeliveryState

OLD_MS = NOW_MS - DELIVERED_KEPT_MS - 10_000
ROWS = 2 * PRUNE_MAX + 5


def rows_of(state: str, count: int, *, at_ms: int, prefix: str) -> tuple[list[Any], list[Any]]:
    deliveries, messages = [], []
    for number in range(count):
        name = f"{prefix}_{number:08}"
        shared = {"endpoint_id": f"wh_{number % 20}", "state": state}
        settled = None if state == "pending" else at_ms + number
        deliveries.append(
            {
                **shared,
                "event_id": name,
                "type": "call.charged",
                "message_id": name,
                "at_ms": at_ms,
                "settled_ms": settled,
                "data": "{}",
            }
        )
        messages.append(
            {
                **shared,
                "id": name,
                "body": "",
                "attempts": 1,
                "first_ms": at_ms,
                "due_ms": at_ms,
                "last_ms": settled,
            }
        )
    return deliveries, messages


async def fill(database: Database, *given: tuple[list[Any], list[Any]]) -> None:
    def work(connection: Connection) -> None:
        for deliveries, messages in given:
            connection.execute(insert(delivery_table), deliveries)
            connection.execute(insert(message_table), messages)

    await database.write(work, is_long=True)


async def count(database: Database) -> tuple[int, int]:
    def work(connection: Connection) -> tuple[int, int]:
        one, two = (
            connection.scalar(select(func.count()).select_from(table)) or 0
            for table in (delivery_table, message_table)
        )
        return one, two

    return await database.read(work)


async def test_one_run_deletes_more_than_a_page(database: Database) -> None:
    await fill(
        database,
        rows_of("delivered", ROWS, at_ms=OLD_MS, prefix="old"),
        rows_of("delivered", 3, at_ms=NOW_MS, prefix="new"),
        rows_of("dead", 4, at_ms=OLD_MS, prefix="dead"),
    )
    await WebhookHarness(database).outbox.prune(now_ms=NOW_MS)
    assert await count(database) == (7, 7)


async def test_a_row_that_is_sent_again_stays(database: Database) -> None:
    await fill(database, rows_of("delivered", 2, at_ms=OLD_MS, prefix="old"))
    named = [("wh_0", "old_00000000"), ("wh_1", "old_00000001")]
    again = update(delivery_table).where(delivery_table.c.endpoint_id == "wh_0").values(state="pending")

    def work(connection: Connection) -> None:
        connection.execute(again)
        delete_settled(connection, DELIVERIES, named=named)

    await database.write(work)
    assert await count(database) == (1, 2)


@pytest.mark.parametrize("state", KEPT_MS)
@pytest.mark.parametrize(
    ("rows", "settled", "key"),
    [
        (DELIVERIES, "ix_webhook_delivery_settled", "webhook_delivery"),
        (MESSAGES, "ix_webhook_message_settled", "webhook_message"),
    ],
)
async def test_pruning_reads_an_index(
    database: Database,
    request: pytest.FixtureRequest,
    rows: Prunable,
    settled: str,
    key: str,
    state: DeliveryState,
) -> None:
    await fill(
        database,
        rows_of("delivered", ROWS, at_ms=OLD_MS, prefix="old"),
        rows_of("dead", ROWS, at_ms=OLD_MS, prefix="dead"),
        rows_of("pending", 100, at_ms=OLD_MS, prefix="pending"),
    )
    await settle_down(request, database)

    def work(connection: Connection) -> None:
        as_if_large(connection)
        found = plans_of(
            connection,
            lambda one: find_settled(one, rows, state, from_ms=OLD_MS, until_ms=OLD_MS + ROWS // 2),
        )
        named = [("wh_1", "old_00000001"), ("wh_2", "old_00000002")]
        deleted = plans_of(connection, lambda one: delete_settled(one, rows, named=named))
        (found_plan,), (deleted_plan,) = found, deleted
        assert settled in found_plan
        assert "Seq Scan" not in found_plan
        assert "SCAN " + key not in found_plan
        assert "TEMP B-TREE" not in found_plan
        assert "endpoint_id" in deleted_plan
        assert "Seq Scan" not in deleted_plan
        assert "SCAN " + key not in deleted_plan

    await database.write(work)
