"""The statements of a paid call find their rows by an index, however many calls one payment has paid."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from tollway.ledger.statement import HistoryQuery
from tollway.storage.book_store import BookStore
from tollway.storage.database import SqliteDatabase
from tollway.testing.book_samples import NOW_MS, PAYER, claim_on, close_of, new_payment

# a piece of the statement -> the search that it must be
PLANS = {
    "call.nonce IN": "uq_call_nonce (nonce=? AND tx_hash=?",
    "call.digest =": "ix_call_repeatable (payment_id=? AND digest=?",
    "call.pay_to =": "ix_call_reorged (payer=?",
    "call.payer IN": "ix_call_reorged (payer=?",
    "call.taken_units AS units": "ix_call_repeatable (payment_id=?",
    "call_topup.payment_id IN": "ix_call_topup_payment_id (payment_id=?",
    "call.owner_id = ? AND call.state = 'forwarding'": "ix_call_forwarding (owner_id=?",
    "call.state = 'unknown'": "ix_call_unknown (moved_ms<?",
    "SELECT count(*)": "ix_call_payer_time (payer=?",
    "payment.payee = ?": "(tx_hash=? AND chain_id=? AND asset=? AND payer=? AND payee=?",
    "UPDATE payment SET taken_units": "PRIMARY KEY",
}


@pytest.fixture
async def plans(sqlite_url: str, tmp_path: Path) -> dict[str, str]:
    """Every statement of a few calls, with its plan."""
    database = SqliteDatabase(tmp_path / "tollway.sqlite3")
    found: dict[str, str] = {}

    def explain(connection: Any, _cursor: Any, sql: str, values: Any, _context: Any, is_many: bool) -> None:
        if sql.startswith(("SELECT", "UPDATE")) and sql not in found:
            one = values[0] if is_many else values
            plan = connection.connection.driver_connection.execute(f"EXPLAIN QUERY PLAN {sql}", one)
            found[sql] = "; ".join(row[3] for row in plan.fetchall())

    for engine in (database._read_engine, database._write_engine):
        event.listen(engine, "before_cursor_execute", explain)
    book = BookStore(database, owner_id="one", now_ms=lambda: NOW_MS)
    writing = asyncio.get_running_loop().create_task(book.run())
    await book.open()
    (payment,) = await book.record_payments([new_payment(10)], now_ms=NOW_MS)
    claim = claim_on(payment, nonce=b"\x01" * 32)
    await book.claim(claim)
    await book.find_repeat(payment.id, claim.digest)
    await book.claim(claim_on(payment, 9))
    await book.claim(claim_on(payment))
    await book.close(close_of(claim))
    await book.debts(PAYER)
    await book.history(HistoryQuery(wallet=PAYER))
    book.stop()
    await writing
    await database.close()
    return found


@pytest.mark.parametrize(("piece", "search"), PLANS.items())
def test_uses_its_index(plans: dict[str, str], piece: str, search: str) -> None:
    statements = [" ".join(sql.split()) for sql in plans]
    matching = [plan for sql, plan in zip(statements, plans.values(), strict=True) if piece in sql]
    assert matching, statements
    assert all(search in plan for plan in matching), matching
