"""The totals of calls by wallet are updated with each written call, and no page counts calls."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import Connection, func, select
from sqlalchemy.util import await_only

from tests.kit.call_rows import call_record_row, insert_calls
from tests.kit.ledger_records import NOW_MS, PAYER, PROVIDER, claim_on, close_of, new_payment
from tests.kit.sql_ledger import SqlLedger
from tests.kit.waits import DEADLINE_S
from tollway.ids import Address
from tollway.ledger.history import HistoryQuery
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.engine.database import Database
from tollway.storage.ledger.history import HistoryStore, count_batch
from tollway.storage.ledger.ledger_tables import call_total_table

OTHER = Address(b"\x0c" * 20)


async def add(database: Database, *rows: dict[str, Any]) -> None:
    await database.write(lambda connection: insert_calls(connection, rows))


async def totals(database: Database) -> dict[str, int]:
    reader = HistoryStore(database, limits=DEFAULT_LIMITS)
    asked = {
        "payer": HistoryQuery(wallet=PAYER),
        "provider": HistoryQuery(wallet=PROVIDER, role="provider"),
        "other": HistoryQuery(wallet=OTHER),
        "nobody": HistoryQuery(wallet=PROVIDER),
    }
    return {name: (await reader.history(query)).total for name, query in asked.items()}


async def test_every_written_call_is_counted_for_payer_and_provider(database: Database) -> None:
    """The statement that writes a call names no total."""
    await add(
        database,
        call_record_row(1),
        call_record_row(2),
        call_record_row(3, payer=None),
        call_record_row(4, payer=OTHER),
    )
    await add(database, call_record_row(5, provider=OTHER))
    assert await totals(database) == {"payer": 3, "provider": 4, "other": 1, "nobody": 0}


async def test_on_sqlite_calls_are_counted_in_lots_each_of_them_once(
    sqlite_url: str, open_database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollway.storage.ledger.history.CALLS_PER_BATCH", 2)
    async with open_database(sqlite_url) as database:
        await add(database, *(call_record_row(number) for number in range(3)), call_record_row(3, payer=None))
        expected = {"payer": 3, "provider": 4, "other": 0, "nobody": 0}
        assert await totals(database) == expected
        for is_more in (True, False, False):
            assert await database.write(count_batch) is is_more
            assert await totals(database) == expected
        await add(database, call_record_row(4))
        assert await totals(database) == {**expected, "payer": 4, "provider": 5}


async def test_on_sqlite_a_renewal_counts_the_written_calls(sqlite_url: str, open_database: Any) -> None:
    async with open_database(sqlite_url) as database:
        ledger = SqlLedger(database, owner_id="one", now_ms=lambda: NOW_MS)
        await add(database, call_record_row(1), call_record_row(2))
        await ledger.renew_ownership(now_ms=NOW_MS)
        kept = select(call_total_table.c.calls).where(call_total_table.c.wallet == PAYER)
        assert await database.read(lambda connection: connection.scalar(kept)) == 2


async def test_what_is_rolled_back_is_not_counted(database: Database) -> None:
    def fail(connection: Connection) -> None:
        insert_calls(connection, [call_record_row(1)])
        raise LookupError

    with pytest.raises(LookupError):
        await database.write(fail)
    assert (await totals(database))["payer"] == 0


async def test_moving_a_call_changes_no_total(ledgers: Any) -> None:
    ledger = await ledgers.gateway("one")
    (payment,) = await ledger.record_payments([new_payment(10)], now_ms=NOW_MS)
    claim = claim_on(payment)
    await ledger.claim(claim)
    await ledger.close(close_of(claim))
    await ledger.claim(claim_on(payment, 100))  # refused: more than the balance
    assert (await ledger.history(HistoryQuery(wallet=PAYER))).total == 1


@pytest.mark.postgres
async def test_sessions_that_count_for_one_wallet_do_not_wait_for_each_other(
    postgres_url: str, open_database: Any
) -> None:
    async with open_database(postgres_url) as database:
        await add(database, call_record_row(0))  # its terms equal those of the other calls
        both = asyncio.Barrier(2)

        def work(number: int) -> Any:
            def write(connection: Connection) -> None:
                insert_calls(connection, [call_record_row(number)])
                # Both have counted before either commits.
                await_only(both.wait())

            return write

        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(database.write(work(number)) for number in (1, 2)))
        assert (await totals(database))["payer"] == 3
        slots = select(func.count()).select_from(call_total_table).where(call_total_table.c.wallet == PAYER)
        assert await database.read(lambda connection: connection.scalar(slots)) == 2
