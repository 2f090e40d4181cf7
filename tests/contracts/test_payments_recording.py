"""The recording of verified transactions: in memory, on SQLite, on PostgreSQL."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.kit.ledger_records import NOW_MS, new_payment, operator_origin, tx_hash
from tollway.errors import StorageUnavailable
from tollway.ledger.records import RecordedTransaction
from tollway.storage.engine.database import Database
from tollway.storage.ledger.payments import Recording, read_transaction, record_each
from tollway.storage.operator.operator_writes import mark_restored

UNKNOWN = RecordedTransaction(payments=(), is_admitted=False, held_before_ms=None)


async def test_what_was_judged_before_a_restore_was_known_is_not_recorded(ledger: Any) -> None:
    """The restored database may lack its record and its spending."""
    based_on = await ledger.find_transaction(tx_hash("late"))
    assert based_on == UNKNOWN
    await ledger.mark_restored(origin=operator_origin())
    late = new_payment(10, "late")
    with pytest.raises(StorageUnavailable):
        await ledger.record_payments([late], now_ms=NOW_MS, based_on=based_on)
    assert await ledger.find_payments(late.tx_hash) == ()
    based_on = await ledger.find_transaction(late.tx_hash)
    assert based_on.held_before_ms == NOW_MS
    (payment,) = await ledger.record_payments([late], now_ms=NOW_MS, based_on=based_on)
    assert await ledger.find_transaction(late.tx_hash) == replace(based_on, payments=(payment,))
    await ledger.mark_restored(origin=operator_origin(NOW_MS + 1))
    with pytest.raises(StorageUnavailable):
        await ledger.record_payments([new_payment(10, "later")], now_ms=NOW_MS, based_on=based_on)
    await ledger.release_held(origin=operator_origin())  # afterwards no payment is held
    assert await ledger.record_payments([new_payment(10, "later")], now_ms=NOW_MS, based_on=based_on)


async def test_concurrent_recordings_get_their_own_payments(ledger: Any) -> None:
    """Reads that wait together are one read, and waiting writes are one transaction."""
    await ledger.admit(tx_hash("b"), origin=operator_origin())
    names = ("a", "b", "c")
    told = await asyncio.gather(*(ledger.find_transaction(tx_hash(name)) for name in names))
    assert [one.is_admitted for one in told] == [False, True, False]
    news = [new_payment(10 + number, name) for number, name in enumerate(names)]
    written = await asyncio.gather(
        *(
            ledger.record_payments([new], now_ms=NOW_MS, based_on=based_on)
            for new, based_on in zip(news, told, strict=True)
        )
    )
    assert [payments[0].value_units for payments in written] == [10, 11, 12]
    again = await asyncio.gather(*(ledger.find_transaction(tx_hash(name)) for name in names))
    assert [one.payments for one in again] == written


def recording(name: str, based_on: RecordedTransaction | None = UNKNOWN) -> Recording:
    return Recording((new_payment(10, name),), based_on, NOW_MS)


def test_recordings_of_equal_payments_are_equal_at_any_time() -> None:
    assert recording("a") == replace(recording("a"), now_ms=1)
    assert recording("a") != recording("a", None)


async def test_a_recording_verified_before_a_restore_fails_its_batch(database: Database) -> None:
    """None of the recordings is written; the caller tries again."""
    await database.write(partial(mark_restored, now_ms=NOW_MS))
    known = replace(UNKNOWN, held_before_ms=NOW_MS)
    both = [recording("a", known), recording("b")]
    with pytest.raises(StorageUnavailable):
        await database.write(partial(record_each, recordings=both))
    for one in both:
        (new,) = one.payments
        assert await database.read(partial(read_transaction, tx_hash=new.tx_hash)) == known
    recorded = await database.write(partial(record_each, recordings=[both[0], recording("c", None)]))
    assert [one.payments[0].value_units for one in recorded] == [10, 10]
