"""What the operator's pages read of the ledger: open calls, the oldest first, held payments, the last audit; on both dialects."""

from typing import Any

import pytest

from tests.kit.call_rows import call_record_row, insert_calls
from tests.kit.ledger_records import NOW_MS, claim_on, close_of, new_payment, operator_origin
from tollway.ledger.records import CallState
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.admin_store import OPEN_CALLS_MAX, OpenCallStore
from tollway.storage.database import Database
from tollway.storage.operator_figures import record_audit


@pytest.fixture
def open_calls(ledgers: Any) -> OpenCallStore:
    if ledgers.database is None:
        pytest.skip("the pages read SQL")
    return OpenCallStore(ledgers.database, limits=DEFAULT_LIMITS)


async def test_lists_unknown_calls_the_oldest_first(ledgers: Any, open_calls: OpenCallStore) -> None:
    ledger = await ledgers.gateway("one")
    (payment,) = await ledger.record_payments([new_payment(100)], now_ms=NOW_MS)
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


async def test_counts_held_payments(ledgers: Any, open_calls: OpenCallStore) -> None:
    ledger = await ledgers.gateway("one")
    await ledger.record_payments([new_payment(100)], now_ms=NOW_MS)
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
