"""Which move of a call is which event, and the data of each type."""

from dataclasses import replace
from typing import Any

import pytest

from tests.kit.budgets import OWNER, policy_of
from tests.kit.history_rows import CALL, PAYMENT
from tests.kit.ledger_records import NOW_MS, PAYEE, PAYER, PROVIDER, USDC, tx_hash
from tests.kit.webhooks import find_asset
from tollway.ids import CallId, ChainId, ListingId
from tollway.ledger.budgets import Budget, replace_policy
from tollway.ledger.records import CallRecord, CallState, Payment
from tollway.webhooks.events import (
    EventType,
    budget_data,
    budget_subject,
    call_data,
    call_event_of,
    gap_data,
    listing_data,
    payment_data,
)

FORWARDING, SETTLING, CONSUMED = CallState.FORWARDING, CallState.SETTLING, CallState.CONSUMED
RELEASED, UNKNOWN, REORGED = CallState.RELEASED, CallState.UNKNOWN, CallState.REORGED
CHARGED, HELD, RESOLVED = EventType.CALL_CHARGED, EventType.CALL_HELD, EventType.CALL_RESOLVED


MOVES: list[tuple[CallState, CallState, dict[str, Any], EventType | None]] = [
    (FORWARDING, CONSUMED, {}, CHARGED),
    (SETTLING, CONSUMED, {"rail": "x402"}, CHARGED),
    (FORWARDING, CONSUMED, {"attempts": 2}, CHARGED),
    (FORWARDING, CONSUMED, {"rail": "none"}, None),
    (FORWARDING, CONSUMED, {"cut": "repeated", "attempts": 2}, None),
    (FORWARDING, SETTLING, {"rail": "mpp"}, None),
    (FORWARDING, RELEASED, {}, None),
    (SETTLING, RELEASED, {"rail": "x402"}, None),
    (FORWARDING, RELEASED, {"attempts": 2}, RESOLVED),
    (FORWARDING, UNKNOWN, {}, HELD),
    (FORWARDING, UNKNOWN, {"rail": "none"}, None),
    (CONSUMED, UNKNOWN, {}, HELD),
    (CONSUMED, FORWARDING, {}, None),
    (UNKNOWN, FORWARDING, {}, None),
    (UNKNOWN, RELEASED, {}, RESOLVED),
    (UNKNOWN, CONSUMED, {}, RESOLVED),
    (CONSUMED, REORGED, {}, None),
    (REORGED, CONSUMED, {}, None),
]


def test_a_move_of_a_call_is_at_most_one_event() -> None:
    for before, after, given, expected in MOVES:
        facts: dict[str, Any] = {"rail": "tx", "cut": "", "attempts": 1, **given}
        assert call_event_of(before, after, **facts) is expected, (before, after, given)


def record(**fields: Any) -> CallRecord:
    plain = replace(
        CALL,
        id=CallId("call_01"),
        listing_id=ListingId("api_7k2m9q"),
        listing_name="Quotes",
        provider=PROVIDER,
        payer=PAYER,
        path="/secret/path",
        asset=USDC,
        tx_hash=tx_hash("paid"),
        pay_to=PAYEE,
        idempotency_key="secret key",
    )
    return replace(plain, **fields)


@pytest.mark.parametrize(
    ("state", "shown"), [("consumed", "charged"), ("released", "released"), ("unknown", "held")]
)
def test_the_data_of_a_call_has_the_state_of_its_event_and_no_path_or_key(state: str, shown: str) -> None:
    data = call_data(record(state=REORGED), state=state, created_at="2026-11-22T14:00:00.000Z")
    assert data == {
        "callId": "call_01",
        "apiId": "api_7k2m9q",
        "provider": str(PROVIDER),
        "payer": str(PAYER),
        "price": "0.01",
        "currency": "USDC",
        "httpStatus": 200,
        "payment": {
            "state": shown,
            "rail": "tx",
            "network": "eip155:84532",
            "asset": f"eip155:84532/erc20:{USDC}",
            "transaction": str(tx_hash("paid")),
            "amount": "10000",
            "payTo": str(PAYEE),
        },
        "createdAt": "2026-11-22T14:00:00.000Z",
    }


def test_a_native_asset_has_its_own_name_and_its_base_units() -> None:
    paid = record(asset="native", currency="ETH", decimals=18, price_units=1)
    assert call_data(paid, state="consumed", created_at="")["payment"]["amount"] == str(10**9)
    assert call_data(paid, state="consumed", created_at="")["payment"]["asset"] == "eip155:84532/slip44:60"


def payment(**fields: Any) -> Payment:
    return replace(PAYMENT, tx_hash=tx_hash("paid"), payer=PAYER, payee=PAYEE, **{"asset": USDC, **fields})


def test_the_data_of_a_payment_has_its_value_as_of_the_event() -> None:
    asset = find_asset(ChainId(84532), USDC)
    assert payment_data(payment(), asset, state="credited", units=2_500_000) == {
        "transaction": str(tx_hash("paid")),
        "network": "eip155:84532",
        "asset": f"eip155:84532/erc20:{USDC}",
        "payer": str(PAYER),
        "payee": str(PAYEE),
        "state": "credited",
        "amount": "2500000",
        "value": "2.5",
        "currency": "USDC",
    }


def test_an_asset_that_is_not_configured_any_more_has_no_amount() -> None:
    data = payment_data(payment(asset="native"), None, state="reorged", units=5)
    assert (data["amount"], data["value"], data["asset"]) == (None, None, "eip155:84532/slip44:60")


def test_the_data_of_a_listing_and_of_a_gap() -> None:
    data = listing_data("api_1", "Quotes", PROVIDER, state="down")
    assert data == {"apiId": "api_1", "apiName": "Quotes", "provider": str(PROVIDER), "state": "down"}
    assert gap_data(from_at="a", to_at="b") == {"from": "a", "to": "b"}


@pytest.mark.parametrize(
    ("state", "until_ms", "shown"),
    [
        ("maxPerDay", NOW_MS, {"reason": "limit", "limit": "maxPerDay", "resetsAt": str(NOW_MS)}),
        ("maxTotal", None, {"reason": "limit", "limit": "maxTotal", "resetsAt": None}),
        ("no_policy_in_force", 0, {"reason": "no_policy_in_force", "limit": None, "resetsAt": "0"}),
    ],
)
def test_the_data_of_a_budget_is_what_refused(
    state: str, until_ms: int | None, shown: dict[str, Any]
) -> None:
    budget = replace_policy(None, policy_of(maxTotal="1", nonce=7), "0x", now_ms=NOW_MS)
    assert isinstance(budget, Budget)
    subject = budget_subject(budget, until_ms=until_ms)
    assert len(subject) <= 160
    data = budget_data(subject, state=state, format_time=str)
    assert data == {"owner": str(OWNER), "agent": str(PAYER), "nonce": 7, **shown}
