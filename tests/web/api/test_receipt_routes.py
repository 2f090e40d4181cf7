"""`GET /api/v2/history/{callId}/receipt`: what a receipt says in each state, when there is none yet, and for which wallets."""

from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.kit.history_rows import (
    CALL,
    ETHER,
    FREE,
    NOW_MS,
    PAYER,
    PROVIDER,
    STRANGER,
    TX,
    USDC,
    FakeRecords,
)
from tests.kit.receipts import DID_DOCUMENT, KEYS, SIGNER
from tests.kit.routes import NamedBooks, authenticate_as, make_app, make_context, open_client
from tollway.ids import Address, TxHash
from tollway.ledger.history import JoinedCredit
from tollway.ledger.records import CallRecord, CallRefund, CallState, Rail
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.call_receipt import CALL_FIELDS, NOTE_FIELDS, verify_call_receipt
from tollway.web.api.receipt_routes import receipt_router

GATEWAY = "http://127.0.0.1:8402"
VIEWER = Address(b"v" * 20)
WAIT_MS = DEFAULT_LIMITS.receipt_wait_s * 1000
RUNNING = {"delivery": None, "completed_ms": CALL.moved_ms}
"""A call whose response is still being read: it is charged, and its end is not written."""


async def ask(
    records: FakeRecords,
    *,
    wallet: Address = PAYER,
    now_ms: int = NOW_MS + 1_000,
    path: str = "/api/v2/history/call_1/receipt",
) -> httpx.Response:
    context = make_context(
        call_history=records,
        authenticate=authenticate_as(wallet),
        book_access=NamedBooks([(VIEWER, PAYER)]),
        assets=(USDC, ETHER),
        receipt_signer=SIGNER,
        public_url=GATEWAY,
        now_ms=lambda: now_ms,
    )
    async with open_client(make_app(context, receipt_router(context)), base_url=GATEWAY) as client:
        return await client.get(path)


async def receipt_of(call: CallRecord, **options: Any) -> dict[str, Any]:
    answer = await ask(FakeRecords([call]), **options)
    assert answer.status_code == 200, answer.text
    receipt: dict[str, Any] = answer.json()
    assert verify_call_receipt(receipt, KEYS).is_valid
    return receipt


async def test_a_charged_call() -> None:
    receipt = await receipt_of(CALL)
    assert receipt["payload"] == {
        "version": 1,
        "network": "eip155:84532",
        "resourceUrl": f"{GATEWAY}/api/v2/gateway/api_1/v1/cities/berlin",
        "payer": str(PAYER),
        "issuedAt": CALL.moved_ms // 1000,
        "transaction": str(TX),
        "gateway": GATEWAY,
        "callId": "call_1",
        "apiId": "api_1",
        "operation": "GET /v1/cities/berlin",
        "payee": str(PROVIDER),
        "asset": USDC.caip19,
        "decimals": 6,
        "currency": "USDC",
        "price": "0.01",
        "amount": "10000",
        "quantities": "",
        "rail": "tx",
        "channel": "",
        "state": "charged",
        "httpStatus": 200,
        "createdAt": NOW_MS // 1000,
        "completedAt": (NOW_MS + 31) // 1000,
    }
    assert list(receipt["payload"]) == list(CALL_FIELDS)
    assert set(receipt) == {"format", "primaryType", "domain", "payload", "signature", "kid", "x402"}
    assert receipt["kid"] == DID_DOCUMENT["verificationMethod"][0]["id"]


async def test_asking_twice_gives_the_same_bytes() -> None:
    first = await ask(FakeRecords([CALL]))
    later = await ask(FakeRecords([CALL]), wallet=PROVIDER, now_ms=NOW_MS + 10**9)
    assert first.content == later.content


@pytest.mark.parametrize("rail", [Rail.TX, Rail.CREDIT, Rail.X402, Rail.MPP])
async def test_a_charged_call_with_an_answer_has_a_part_of_x402_on_every_rail(rail: Rail) -> None:
    receipt = await receipt_of(replace(CALL, rail=rail))
    assert (receipt["payload"]["rail"], "x402" in receipt) == (rail.value, True)


@pytest.mark.parametrize(
    ("changes", "state", "amount", "status", "completed_s"),
    [
        ({"state": CallState.REORGED}, "reorged", "0", 200, CALL.completed_ms),
        ({"state": CallState.RELEASED, "http_status": 500, "upstream_status": 500}, "released", "0", 500, CALL.completed_ms),
        (
            {"state": CallState.RELEASED, "http_status": None, "upstream_status": None, "error": "upstream_unreachable"},
            "released",
            "0",
            502,
            CALL.completed_ms,
        ),
        (
            {"state": CallState.UNKNOWN, "http_status": None, "upstream_status": None, "error": "upstream_timeout"},
            "held",
            "10000",
            504,
            0,
        ),
        (
            {"state": CallState.UNKNOWN, "http_status": None, "upstream_status": None, "error": "gateway_died"},
            "held",
            "10000",
            0,
            0,
        ),
        # The provider has decided it: charged, and no caller got an answer.
        (
            {"state": CallState.CONSUMED, "http_status": None, "upstream_status": None, "error": "gateway_died"},
            "charged",
            "10000",
            0,
            CALL.completed_ms,
        ),
    ],
)  # fmt: skip
async def test_every_other_state_has_a_receipt_without_a_part_of_x402(
    changes: dict[str, Any], state: str, amount: str, status: int, completed_s: int
) -> None:
    receipt = await receipt_of(replace(CALL, **changes))
    payload = receipt["payload"]
    assert (payload["state"], payload["amount"], payload["httpStatus"]) == (state, amount, status)
    assert payload["completedAt"] == completed_s // 1000
    assert "x402" not in receipt


async def test_a_free_call_names_no_payment() -> None:
    receipt = await receipt_of(replace(FREE, price="0"))
    payload = receipt["payload"]
    empty = ("network", "transaction", "payee", "asset")
    assert [payload[field] for field in empty] == [""] * 4
    assert (payload["state"], payload["amount"], payload["rail"]) == ("none", "0", "none")
    assert "x402" not in receipt
    anonymous = await receipt_of(replace(FREE, payer=None), wallet=PROVIDER)
    assert anonymous["payload"]["payer"] == ""


async def test_a_receipt_of_the_native_currency_is_in_wei() -> None:
    call = replace(CALL, asset="native", currency="ETH", decimals=18, price="0.001", price_units=1_000_000)
    payload = (await receipt_of(call))["payload"]
    assert (payload["asset"], payload["decimals"]) == ("eip155:84532/slip44:60", 18)
    assert payload["amount"] == str(10**15)


async def test_joined_credit_is_listed_beside_the_signed_fields() -> None:
    records = FakeRecords([CALL])
    records.joined = (JoinedCredit(tx_hash=TxHash(b"u" * 32), units=4_000),)
    receipt = (await ask(records)).json()
    assert receipt["alsoFrom"] == [{"transaction": str(TxHash(b"u" * 32)), "amount": "4000"}]
    assert verify_call_receipt(receipt, KEYS).is_valid
    records.calls[CALL.id] = replace(CALL, state=CallState.REORGED)
    assert "alsoFrom" not in (await ask(records)).json()


async def test_a_maximum_of_joined_transfers_is_listed() -> None:
    records = FakeRecords([CALL])
    records.joined = (JoinedCredit(tx_hash=TX, units=1),) * (DEFAULT_LIMITS.joined_transfers_max + 1)
    assert len((await ask(records)).json()["alsoFrom"]) == DEFAULT_LIMITS.joined_transfers_max


@pytest.mark.parametrize(
    "changes",
    [
        {"state": CallState.FORWARDING, "http_status": None, "completed_ms": None, "delivery": None},
        {"state": CallState.SETTLING, "http_status": 200, "completed_ms": None, "delivery": None},
        RUNNING,
        {**RUNNING, "state": CallState.RELEASED, "http_status": 500, "upstream_status": 500},
    ],
)
async def test_a_call_that_still_runs_has_no_receipt_yet(changes: dict[str, Any]) -> None:
    answer = await ask(FakeRecords([replace(CALL, **changes)]))
    assert (answer.status_code, answer.headers["retry-after"]) == (409, "2")
    problem = answer.json()
    assert (problem["code"], problem["reason"]) == ("idempotency_in_progress", "call_running")
    assert (problem["retryable"], problem["callId"]) == (True, "call_1")


async def test_an_end_that_is_never_written_is_waited_for_ten_minutes() -> None:
    call = replace(CALL, **RUNNING)
    assert (await ask(FakeRecords([call]), now_ms=call.moved_ms + WAIT_MS - 1)).status_code == 409
    receipt = await receipt_of(call, now_ms=call.moved_ms + WAIT_MS)
    assert receipt["payload"]["completedAt"] == call.moved_ms // 1000
    # A stream that ends later leaves the receipt as it is.
    ended = replace(CALL, completed_ms=call.moved_ms + WAIT_MS)
    assert await receipt_of(ended, now_ms=call.moved_ms + 2 * WAIT_MS) == receipt
    sooner = replace(CALL, completed_ms=call.moved_ms + WAIT_MS - 1)
    assert (await receipt_of(sooner))["payload"]["completedAt"] == (call.moved_ms + WAIT_MS - 1) // 1000


async def test_a_later_state_has_a_later_time() -> None:
    charged = await receipt_of(CALL)
    reorged = await receipt_of(
        replace(CALL, state=CallState.REORGED, moved_ms=CALL.moved_ms + 60_000), now_ms=NOW_MS + 120_000
    )
    assert reorged["payload"]["issuedAt"] == charged["payload"]["issuedAt"] + 60
    assert reorged["payload"]["callId"] == charged["payload"]["callId"]


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"wallet": STRANGER}, 404, "call_not_found"),
        ({"path": "/api/v2/history/call_2/receipt"}, 404, "call_not_found"),
        ({"path": f"/api/v2/history/{'c' * 65}/receipt"}, 404, "call_not_found"),
        ({"path": "/api/v2/history/call_1/receipt?format=pdf"}, 422, "validation_failed"),
    ],
)
async def test_refusals(options: dict[str, Any], status: int, code: str) -> None:
    answer = await ask(FakeRecords([CALL]), **options)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_a_viewer_reads_the_receipts_of_the_wallet_that_named_it() -> None:
    path = f"/api/v2/history/call_1/receipt?wallet={PAYER}"
    own = await ask(FakeRecords([CALL]))
    assert (await ask(FakeRecords([CALL]), wallet=VIEWER, path=path)).content == own.content
    assert (await ask(FakeRecords([CALL]), wallet=STRANGER, path=path)).status_code == 403
    assert (await ask(FakeRecords([CALL]), wallet=VIEWER)).status_code == 404


async def test_the_provider_reads_the_same_receipt() -> None:
    assert (await ask(FakeRecords([CALL]), wallet=PROVIDER)).status_code == 200


async def test_the_receipt_of_a_refunded_call_has_a_credit_note() -> None:
    refund = CallRefund(
        units=4_000, tx_hash=TxHash(b"r" * 32), is_credit=False, is_final=True, created_ms=NOW_MS + 60_000
    )
    plain, refunded = await receipt_of(CALL), await receipt_of(replace(CALL, refund=refund))
    note = refunded.pop("creditNote")
    assert refunded == plain
    assert note["payload"] == {
        **{name: plain["payload"].get(name) for name in NOTE_FIELDS},
        "amount": "4000",
        "kind": "transfer",
        "transaction": str(refund.tx_hash),
        "issuedAt": (NOW_MS + 60_000) // 1000,
    }
    assert verify_call_receipt({**refunded, "creditNote": note}, KEYS).is_valid
