"""The exports over a database: row by row the JSON list, for each filter; and their sums are those of the ledger and its audit."""

from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import pytest

from tests.contracts.conftest import Ledgers
from tests.kit.clocks import Clock
from tests.kit.csv_exports import assert_exports_equal_ledger, export_app, read_rows
from tests.kit.ledger_records import (
    NOW_MS,
    PAYEE,
    PAYER,
    PROVIDER,
    claim_on,
    close_of,
    new_payment,
)
from tollway.ids import Address
from tollway.ledger.history import HistoryQuery, PaymentQuery
from tollway.ledger.records import CallState
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Asset
from tollway.storage.engine.database import Database
from tollway.storage.ledger.history import HistoryStore
from tollway.web.api.export_rows import CALL_COLUMNS, PAYMENT_COLUMNS
from tollway.web.api.history_routes import call_json, payment_members, read_history_query
from tollway.web.http.query import format_time

STRANGER = Address(b"\x09" * 20)
LATER_MS = NOW_MS + 60_000
NATIVE_VALUE = 3_000_000_000


def find_asset(chain_id: Any, key: str) -> Asset:
    token = None if key == "native" else Address.parse(key)
    return Asset(
        chain_id=chain_id,
        token=token,
        symbol="ETH" if token is None else "USDC",
        decimals=18 if token is None else 6,
    )


@pytest.fixture
async def ledger(database: Database) -> AsyncIterator[Any]:
    ledgers = Ledgers(database, Clock(NOW_MS))
    yield await ledgers.gateway("one")
    await ledgers.close()


async def pay(ledger: Any, name: str, units: int = 1_000, **fields: Any) -> Any:
    (payment,) = await ledger.record_payments([new_payment(units, name, **fields)], now_ms=NOW_MS)
    return payment


@pytest.fixture
async def books(ledger: Any) -> Any:
    """Calls in every state, of two payers and two assets: charged, released, held, in progress, reorged, free."""
    final = await pay(ledger, "final")
    gone = await pay(ledger, "gone", is_final=False)
    native = await pay(
        ledger, "native", NATIVE_VALUE, asset="native", payer=STRANGER, payee=PROVIDER, block_time=7
    )
    ends = [
        (final, CallState.CONSUMED, 200),
        (final, CallState.CONSUMED, 404),
        (final, CallState.RELEASED, 503),
        (final, CallState.UNKNOWN, None),
        (gone, CallState.CONSUMED, 200),
        (native, CallState.CONSUMED, 200),
        (native, CallState.RELEASED, None),
        (final, None, None),
    ]
    for number, (payment, after, status) in enumerate(ends):
        currency = {"currency": "ETH", "decimals": 18} if payment is native else {}
        claim = claim_on(
            payment,
            number + 5,
            created_ms=NOW_MS + number // 2,
            call_id=f"call_{number:02}",
            path=f"/a,b/{number}",
            listing_id=f"api_{number % 2}",
            listing_name='=HYPERLINK("http://x")' if number % 2 else 'Städte, "live"',
            provider=PROVIDER if number else STRANGER,
            **currency,
        )
        await ledger.claim(claim)
        if after is not None:
            await ledger.close(close_of(claim, after, upstream_status=status))
    await ledger.claim(claim_on(None))
    await ledger.mark_gone(gone.id, now_ms=NOW_MS)
    return ledger


FILTERS = [
    "",
    "status=failed",
    "status=succeeded",
    "status=pending",
    "status=unknown",
    "apiId=api_1",
    f"from={format_time(NOW_MS + 1)}&to={format_time(NOW_MS + 2)}",
    "before=call_03",
    "role=provider",
    "role=provider&apiId=api_1&status=failed",
]


async def test_the_file_has_the_rows_of_the_list(database: Database, books: Any) -> None:
    store = HistoryStore(database, limits=DEFAULT_LIMITS)
    app = export_app(store, now_ms=LATER_MS, find_asset=find_asset)
    for query, page_rows, wallet in product(FILTERS, (2, 100), (PAYER, PROVIDER, STRANGER)):
        rows = await read_rows(app, f"history.csv?{query}&limit={page_rows}", wallet)
        listed = (await store.history(read_history_query(query.encode(), wallet))).calls
        assert [row["callId"] for row in rows] == [call.id for call in listed], (query, page_rows, wallet)
        for row, call in zip(rows, listed, strict=True):
            record = call_json(call, find_asset)
            payment = record.pop("payment")
            same = {**payment, **record, "callId": record["id"], "payee": payment["payTo"]}
            shared = {name: same[name] for name in CALL_COLUMNS if name in same and name != "amount"}
            assert {name: row[name].removeprefix("'") for name in shared} == {
                name: "" if value is None else str(value) for name, value in shared.items()
            }
            assert (row["units"], row["state"]) == (payment["amount"] or "", payment["state"])


PAYMENT_FILTERS: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("role=provider", {"role": "provider"}),
    (f"from={format_time(NOW_MS + 1)}", {"from_ms": NOW_MS + 1}),
]


async def test_the_file_has_the_payments_of_the_list(database: Database, books: Any) -> None:
    store = HistoryStore(database, limits=DEFAULT_LIMITS)
    app = export_app(store, now_ms=LATER_MS, find_asset=find_asset)
    for (query, fields), wallet in product(PAYMENT_FILTERS, (PAYER, PAYEE, PROVIDER, STRANGER)):
        rows = await read_rows(app, f"payments.csv?{query}&limit=1", wallet)
        listed = await store.read_payments(PaymentQuery(wallet=wallet, **fields))
        listed_hashes = [str(one.payment.tx_hash) for one in listed]
        assert [row["transaction"] for row in rows] == listed_hashes, (query, wallet)
        for row, one in zip(rows, listed, strict=True):
            members = payment_members(
                one.payment, find_asset, is_restored=False, is_held_by_call=one.has_unknown_call
            )
            amounts = members.pop("amount"), members.pop("credit")
            assert (row["units"], row["creditUnits"]) == amounts
            shared = {name: members[name] or "" for name in PAYMENT_COLUMNS if name in members}
            assert {name: row[name] for name in shared} == shared


async def test_the_sums_of_the_exports_are_those_of_the_ledger_and_its_audit(
    database: Database, books: Any
) -> None:
    sums = await assert_exports_equal_ledger(database, now_ms=LATER_MS, page_rows=3)
    usdc, ether = find_asset(84532, new_payment(1).asset).caip19, find_asset(84532, "native").caip19
    assert sums == {
        ("charged", usdc): 5 + 6,
        ("released", usdc): 7,
        ("held", usdc): 8 + 12,
        ("reorged", usdc): 9,
        ("charged", ether): 10 * 10**9,
        ("released", ether): 11 * 10**9,
    }


async def test_a_call_that_begins_during_an_export_is_not_in_its_later_pages(
    database: Database, books: Any
) -> None:
    store = HistoryStore(database, limits=DEFAULT_LIMITS)
    app = export_app(store, now_ms=LATER_MS, find_asset=find_asset)
    before = [row["callId"] for row in await read_rows(app, "history.csv", PAYER)]
    payment = await pay(books, "late")
    await books.claim(claim_on(payment, created_ms=LATER_MS + 1))
    after = await read_rows(app, "history.csv?limit=2", PAYER)
    assert [row["callId"] for row in after] == before
    assert len((await store.history(HistoryQuery(wallet=PAYER))).calls) == len(before) + 1
