"""Waiting recordings are written in one transaction. The contract of the port: tests/contracts/test_payments_recording.py."""

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.kit.ledger_records import NOW_MS, new_payment
from tollway.errors import StorageUnavailable
from tollway.ledger.records import RecordedTransaction
from tollway.storage.database import SqliteDatabase
from tollway.storage.migrate import upgrade
from tollway.storage.operator_acts import mark_restored
from tollway.storage.payments import Recording, read_transaction, record_each

UNKNOWN = RecordedTransaction(payments=(), is_admitted=False, held_before_ms=None)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    database = SqliteDatabase(tmp_path / "ledger.sqlite3")
    await database.open()
    await upgrade(database)
    yield database
    await database.close()


def recording(name: str, based_on: RecordedTransaction | None = UNKNOWN) -> Recording:
    return Recording((new_payment(10, name),), based_on, NOW_MS)


def test_recordings_of_equal_payments_are_equal_at_any_time() -> None:
    assert recording("a") == replace(recording("a"), now_ms=1)
    assert recording("a") != recording("a", None)


async def test_a_recording_verified_before_a_restore_fails_its_batch(database: SqliteDatabase) -> None:
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
