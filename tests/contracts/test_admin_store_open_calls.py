"""The open calls of the operator's pages: the oldest first, held payments; on both dialects."""

from typing import Any

import pytest

from tests.kit.ledger_records import NOW_MS, claim_on, close_of, new_payment, operator_origin
from tollway.ledger.records import CallState
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.admin_store import OpenCallStore


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
