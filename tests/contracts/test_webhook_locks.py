"""Transactions that change messages or deliveries of one endpoint lock the endpoint first, so none of them ends in a deadlock. On PostgreSQL: SQLite has one
writer at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from tests.contracts.test_webhook_outbox import GONE, OK, SMALL
from tests.kit.ledger_records import NOW_MS, PROVIDER, new_payment
from tests.kit.waits import wait_blocked
from tests.kit.webhooks import WebhookHarness
from tollway.errors import StorageUnavailable
from tollway.storage.engine.database import Database
from tollway.storage.ledger.payments import PaymentLedgerStore

pytestmark = pytest.mark.dialects

Move = Callable[[WebhookHarness, Any, Any], Awaitable[Any]]


class CountingDatabase:
    """Counts the transactions that the server rolled back: the stores run these again."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.dialect = database.dialect
        self.rolled_back = 0

    async def read(self, work: Any, **options: Any) -> Any:
        return await self._database.read(work, **options)

    async def write(self, work: Any, **options: Any) -> Any:
        try:
            return await self._database.write(work, **options)
        except StorageUnavailable:
            self.rolled_back += 1
            raise


async def end_gone(webhooks: WebhookHarness, endpoint: Any, attempt: Any) -> None:
    await webhooks.end(attempt, GONE)


async def end_well(webhooks: WebhookHarness, endpoint: Any, attempt: Any) -> None:
    await webhooks.end(attempt, OK)


async def remove(webhooks: WebhookHarness, endpoint: Any, attempt: Any) -> None:
    await webhooks.store.remove(PROVIDER, endpoint.id)


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("first", "second"),
    [(remove, end_gone), (remove, end_well), (end_gone, remove)],
    ids=("remove-gone", "remove-delivered", "gone-remove"),
)
async def test_two_transactions_of_an_endpoint_end_without_a_deadlock(
    postgres_database: Database, operator: asyncpg.Connection, first: Move, second: Move
) -> None:
    """Both wait for the endpoint. A transaction that held a message meanwhile would be waited for by the one that gets the endpoint."""
    await PaymentLedgerStore(postgres_database).record_payments([new_payment(100)], now_ms=NOW_MS)
    counting: Any = CountingDatabase(postgres_database)
    webhooks = WebhookHarness(counting, limits=SMALL)
    endpoint = await webhooks.activate()
    await webhooks.emit()
    attempt = await webhooks.begin(endpoint)
    start = asyncio.get_running_loop().create_task
    async with operator.transaction():
        await operator.execute("SELECT id FROM webhook_endpoint FOR UPDATE")
        one = start(first(webhooks, endpoint, attempt))
        await wait_blocked(postgres_database)
        two = start(second(webhooks, endpoint, attempt))
        await wait_blocked(postgres_database, 2)
    await asyncio.gather(one, two)
    assert counting.rolled_back == 0
    if remove in (first, second):
        assert (await webhooks.deliveries(), await webhooks.messages()) == ([], [])
