"""What reads of one payment, of held payments and of suspended listings read: their own rows, by an index, however many others there are."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection

from tests.kit.query_plans import read_plans
from tollway.ids import Address, TxHash
from tollway.storage.catalog.catalog_store import select_suspended
from tollway.storage.engine.database import Database
from tollway.storage.ledger.history import read_payments_in
from tollway.storage.ledger.payment_list import find_held_by_calls
from tollway.storage.operator.operator_reads import read_held

WALLET, TX = Address(b"\x11" * 20), TxHash(b"\x22" * 32)

WHOLE_TABLE = re.compile(r"SCAN (payment|listing|call)\b(?! USING)|Seq Scan on (payment|listing|call)\b")

READS: list[tuple[str, Callable[[Connection], Any], dict[str, str]]] = [
    (
        "the payments in one transaction",
        partial(read_payments_in, payer=WALLET, tx_hash=TX),
        {"sqlite": "sqlite_autoindex_payment_1 (tx_hash=?", "postgresql": "Index"},
    ),
    (
        "payments that calls hold",
        partial(find_held_by_calls, payment_ids=[1, 2]),
        {"sqlite": "ix_call_repeatable (payment_id=?)", "postgresql": "ix_call_repeatable"},
    ),
    ("held payments", read_held, {"sqlite": "ix_payment_held", "postgresql": "ix_payment_held"}),
    (
        "suspended listings",
        lambda connection: connection.execute(select_suspended()),
        {"sqlite": "ix_listing_suspended", "postgresql": "ix_listing_suspended"},
    ),
]


@pytest.mark.parametrize(
    ("work", "plan"), [(work, plan) for _, work, plan in READS], ids=[name for name, *_ in READS]
)
async def test_a_read_of_few_rows_reads_no_table(
    database: Database, work: Callable[[Connection], Any], plan: dict[str, str]
) -> None:
    plans = await read_plans(database, work)
    assert any(plan[database.dialect] in one for one in plans), plans
    assert not any(WHOLE_TABLE.search(one) for one in plans), plans
