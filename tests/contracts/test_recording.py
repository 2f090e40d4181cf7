"""A transaction on its way into the books: in memory, on SQLite, on PostgreSQL."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.ledger_records import NOW_MS, new_payment, tx_hash
from tollway.errors import StorageUnavailable
from tollway.ledger.call import Recorded


async def test_what_was_judged_before_a_restore_was_known_is_not_recorded(book: Any) -> None:
    """It may have been recorded and spent in what the database has forgotten."""
    judged_by = await book.find_recorded(tx_hash("late"))
    assert judged_by == Recorded(payments=(), is_admitted=False, held_before_ms=None)
    await book.note_restored(now_ms=NOW_MS)
    late = new_payment(10, "late")
    with pytest.raises(StorageUnavailable):
        await book.record_payments([late], now_ms=NOW_MS, judged_by=judged_by)
    assert await book.find_payments(late.tx_hash) == ()
    judged_by = await book.find_recorded(late.tx_hash)
    assert judged_by.held_before_ms == NOW_MS
    (payment,) = await book.record_payments([late], now_ms=NOW_MS, judged_by=judged_by)
    assert await book.find_recorded(late.tx_hash) == replace(judged_by, payments=(payment,))
    await book.note_restored(now_ms=NOW_MS + 1)
    with pytest.raises(StorageUnavailable):
        await book.record_payments([new_payment(10, "later")], now_ms=NOW_MS, judged_by=judged_by)
    await book.release_held()  # nothing is held any more, whatever was known
    assert await book.record_payments([new_payment(10, "later")], now_ms=NOW_MS, judged_by=judged_by)


async def test_crowds_are_told_and_written_each_as_asked(book: Any) -> None:
    """Questions that wait together are one read, and what waits to be written is one transaction."""
    await book.admit(tx_hash("b"), now_ms=NOW_MS)
    names = ("a", "b", "c")
    told = await asyncio.gather(*(book.find_recorded(tx_hash(name)) for name in names))
    assert [one.is_admitted for one in told] == [False, True, False]
    news = [new_payment(10 + number, name) for number, name in enumerate(names)]
    written = await asyncio.gather(
        *(
            book.record_payments([new], now_ms=NOW_MS, judged_by=judged_by)
            for new, judged_by in zip(news, told, strict=True)
        )
    )
    assert [payments[0].value_units for payments in written] == [10, 11, 12]
    again = await asyncio.gather(*(book.find_recorded(tx_hash(name)) for name in names))
    assert [one.payments for one in again] == written
