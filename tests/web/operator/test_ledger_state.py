"""What the operator's page of the books shows, as a table."""

import pytest

from tests.kit.admin_pages import ALICE, TX
from tests.kit.payer import USDC
from tollway.observability.fleet import BookSizes, EncryptedValues, HeldPayment, TableSize
from tollway.web.operator.ledger_state import books_json, format_size


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1_048_575, "1023.9 KiB"),
        (1_048_576, "1.0 MiB"),
        (5_000_000, "4.7 MiB"),
        (3 * 2**40, "3.0 TiB"),
    ],
)
def test_sizes_are_rounded_down(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(("held_count", "text"), [(0, "0"), (9_999, "9999"), (10_000, "at least 10000")])
def test_a_count_that_was_cut_is_no_exact_number(held_count: int, text: str) -> None:
    found = books_json(
        last_audit=None,
        held_count=held_count,
        held=(),
        encrypted_values=(),
        sizes=BookSizes(tables=(), size_bytes=0),
        rules={},
        profiles={},
    )
    assert found["heldPayments"] == text


def test_a_held_payment_of_an_asset_that_the_settings_lost_is_shown_by_its_key() -> None:
    held = HeldPayment(
        chain_id=USDC.chain_id,
        tx_hash=TX,
        asset="0xgone",
        payer=ALICE,
        payee=ALICE,
        units=10_000,
        recorded_ms=0,
    )
    found = books_json(
        last_audit=(0, 2),
        held_count=1,
        held=[held],
        encrypted_values=[EncryptedValues(kind="responses", current=1, older=2, lost=3, is_whole=False)],
        sizes=BookSizes(
            tables=(TableSize(name="call", rows=7, size_bytes=None, oldest_ms=None),), size_bytes=2048
        ),
        rules={},
        profiles={},
    )
    assert found["lastAudit"] == {"ended": "1970-01-01T00:00:00.000Z", "differences": 2}
    (one,) = found["held"]
    assert (one["credit"], one["currency"], one["asset"], one["explorer"]) == (None, None, "0xgone", None)
    assert found["encrypted_values"] == [
        {"kind": "responses", "firstKey": 1, "olderKeys": 2, "noKey": 3, "isWhole": False}
    ]
    assert (found["size"], found["tables"]) == (
        "2.0 KiB",
        [{"name": "call", "rows": 7, "size": None, "oldest": None}],
    )
