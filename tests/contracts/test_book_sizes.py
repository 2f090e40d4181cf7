"""Sizes of the large tables, and held payments, on both dialects: bounded, by index."""

from typing import Any

from sqlalchemy import text

from tests.kit.ledger_records import NOW_MS, claim_on, new_payment, operator_origin
from tollway.storage.book_sizes import HELD_SHOWN, BookFigures


async def test_the_large_tables_have_their_rows_and_their_oldest(ledgers: Any) -> None:
    if ledgers.database is None:
        return  # the model has no tables
    ledger = await ledgers.gateway("one")
    (payment,) = await ledger.record_payments([new_payment(100)], now_ms=NOW_MS)
    for _ in range(3):
        await ledger.claim(claim_on(payment, 1))
    await ledgers.database.write(lambda connection: connection.execute(text("ANALYZE")))
    sizes = await BookFigures(ledgers.database).read_sizes()
    assert sizes.size_bytes > 10_000
    tables = {one.name: one for one in sizes.tables}
    assert (tables["call"].rows, tables["payment"].rows, tables["answer"].rows) == (3, 1, 0)
    assert tables["payment"].oldest_ms == NOW_MS
    assert tables["call"].oldest_ms is not None
    assert tables["answer"].oldest_ms is None
    assert (tables["call"].size_bytes is None) is (ledgers.database.dialect == "sqlite")


async def test_a_table_without_an_estimate_is_counted(ledgers: Any) -> None:
    """A new PostgreSQL database has no statistics yet, and the key of `call_terms` is a hash."""
    if ledgers.database is None:
        return
    ledger = await ledgers.gateway("one")
    (payment,) = await ledger.record_payments([new_payment(100)], now_ms=NOW_MS)
    for _ in range(3):
        await ledger.claim(claim_on(payment, 1))
    rows = {one.name: one.rows for one in (await BookFigures(ledgers.database).read_sizes()).tables}
    assert {name: rows[name] for name in ("call", "payment", "call_terms", "answer")} == {
        "call": 3,
        "payment": 1,
        "call_terms": 1,
        "answer": 0,
    }


async def test_held_payments_are_listed_in_order_up_to_a_limit(ledgers: Any) -> None:
    if ledgers.database is None:
        return
    ledger, figures = await ledgers.gateway("one"), BookFigures(ledgers.database)
    payments = await ledger.record_payments(
        [new_payment(10, f"tx {number}") for number in range(HELD_SHOWN + 1)], now_ms=NOW_MS
    )
    assert await figures.list_held() == ()
    await ledger.mark_restored(origin=operator_origin())
    held = await figures.list_held()
    assert [str(one.tx_hash) for one in held] == [
        str(payment.tx_hash) for payment in sorted(payments, key=lambda one: one.id)[:HELD_SHOWN]
    ]
    assert (held[0].units, held[0].payer, held[0].recorded_ms) == (10, payments[0].payer, NOW_MS)
    await ledger.release_held(origin=operator_origin())
    assert await figures.list_held() == ()
