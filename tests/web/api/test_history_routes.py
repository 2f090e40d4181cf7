"""`/history` and `/payments`: the members of a record, the records of each wallet, and resolutions of the provider."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from tests.kit.history_rows import (
    CALL,
    CHAIN,
    ETHER,
    FREE,
    NOW_MS,
    PAYER,
    PAYMENT,
    PROVIDER,
    STRANGER,
    TX,
    USDC,
    FakeRecords,
)
from tests.kit.routes import NamedBooks, authenticate_as, make_app, make_context, open_client
from tollway.identity.authenticator import Identity
from tollway.ids import Address, CallId, ListingId, TxHash
from tollway.ledger.history import HistoryPage, HistoryQuery
from tollway.ledger.records import (
    CallRecord,
    CallState,
    PaymentState,
    Rail,
)
from tollway.money import Asset
from tollway.payments.held_calls import ChargeFault
from tollway.web.api.history_routes import (
    TransactionStatus,
    call_json,
    call_status,
    history_router,
    x402_history_router,
)
from tollway.web.http.query import format_time
from tollway.web.http.read_turns import ReadTurns, enter_turn


async def ask(
    records: FakeRecords,
    path: str,
    *,
    wallet: Address | None = PAYER,
    method: str = "GET",
    body: bytes | None = None,
    transaction_status: TransactionStatus | None = None,
    assets: Sequence[Asset] = (USDC, ETHER),
    base: str = "/api/v2",
    readable: Sequence[Address] = (),
) -> httpx.Response:
    async def look_up(tx_hash: TxHash, payer: Address) -> TransactionStatus | None:
        return transaction_status

    async def challenge(request: Request) -> list[tuple[str, str]]:
        return [("WWW-Authenticate", "Bearer"), ("PAYMENT-REQUIRED", "e30=")]

    context = make_context(
        call_history=records,
        held_calls=records,
        payment_ledger=records,
        authenticate=authenticate_as(wallet),
        book_access=NamedBooks([(wallet, one) for one in readable]) if wallet else NamedBooks(),
        look_up_transaction=look_up,
        assets=assets,
        now_ms=lambda: NOW_MS,
    )
    app = make_app(context, history_router(context), x402_history_router(context), challenge=challenge)
    async with open_client(app) as client:
        return await client.request(method, base + path, content=body)


async def test_a_record_has_the_public_members_and_no_others() -> None:
    answer = await ask(FakeRecords([CALL]), "/history/call_1")
    assert answer.json() == {
        "id": "call_1",
        "apiId": "api_1",
        "apiName": "Weather",
        "provider": str(PROVIDER),
        "payer": str(PAYER),
        "method": "GET",
        "path": "/v1/cities/berlin",
        "status": "succeeded",
        "httpStatus": 200,
        "upstreamStatus": 200,
        "price": "0.01",
        "currency": "USDC",
        "payment": {
            "state": "charged",
            "rail": "tx",
            "network": "eip155:84532",
            "asset": "eip155:84532/erc20:0x036cbd53842c5426634e7929541ec2318f3dcf7e",
            "transaction": str(TX),
            "amount": "10000",
            "payTo": str(PROVIDER),
        },
        "requestBytes": 0,
        "responseBytes": 512,
        "latencyMs": 31,
        "upstreamLatencyMs": 30,
        "idempotencyKey": None,
        "requestId": "req_12345678",
        "error": None,
        "createdAt": "2026-11-21T09:15:00.007Z",
        "completedAt": "2026-11-21T09:15:00.038Z",
    }


@pytest.mark.parametrize(
    ("state", "upstream", "status", "payment_state"),
    [
        (CallState.FORWARDING, None, "pending", "held"),
        (CallState.SETTLING, 200, "pending", "held"),
        (CallState.CONSUMED, 200, "succeeded", "charged"),
        (CallState.CONSUMED, 304, "succeeded", "charged"),
        (CallState.CONSUMED, 399, "succeeded", "charged"),
        (CallState.CONSUMED, 400, "failed", "charged"),
        (CallState.CONSUMED, None, "failed", "charged"),
        (CallState.RELEASED, 500, "failed", "released"),
        (CallState.UNKNOWN, None, "unknown", "held"),
        (CallState.REORGED, 200, "succeeded", "reorged"),
        (CallState.REORGED, 404, "failed", "reorged"),
    ],
)
async def test_states_have_their_names_on_the_wire(
    state: CallState, upstream: int | None, status: str, payment_state: str
) -> None:
    call = replace(CALL, state=state, upstream_status=upstream)
    assert call_status(call) == status
    record = (await ask(FakeRecords([call]), "/history/call_1")).json()
    assert (record["status"], record["payment"]["state"]) == (status, payment_state)


async def test_a_free_call_has_no_payment() -> None:
    payment = (await ask(FakeRecords([FREE]), "/history/call_1")).json()["payment"]
    assert payment == {
        "state": "none",
        "rail": "none",
        "network": None,
        "asset": None,
        "transaction": None,
        "amount": None,
        "payTo": None,
    }


async def test_amounts_are_base_units_of_the_asset() -> None:
    call = replace(CALL, asset="native", currency="ETH", price_units=2, decimals=9)
    assert (await ask(FakeRecords([call]), "/history/call_1")).json()["payment"]["amount"] == "2000000000"


@pytest.mark.parametrize(("wallet", "status"), [(PAYER, 200), (PROVIDER, 200), (STRANGER, 404), (None, 401)])
async def test_a_call_is_visible_to_its_payer_and_its_provider_only(
    wallet: Address | None, status: int
) -> None:
    assert (await ask(FakeRecords([CALL]), "/history/call_1", wallet=wallet)).status_code == status


@pytest.mark.parametrize("call_id", ["call_2", "x" * 100, "%00"])
async def test_an_unknown_call_is_a_404(call_id: str) -> None:
    answer = await ask(FakeRecords([CALL]), f"/history/{call_id}")
    assert (answer.status_code, answer.json()["code"]) == (404, "call_not_found")


async def test_a_page_has_its_total_limit_and_offset() -> None:
    records = FakeRecords([CALL])
    page = (await ask(records, "/history")).json()
    assert [call["id"] for call in page.pop("calls")] == ["call_1"]
    assert page == {"total": 1, "limit": 50, "offset": 0, "asOf": format_time(NOW_MS)}
    assert records.queries == [HistoryQuery(wallet=PAYER)]


async def test_every_filter_reaches_the_ledger() -> None:
    records = FakeRecords()
    path = (
        "/history?apiId=api_1&limit=200&offset=10000&status=failed&from=2026-11-20T00:00:00Z"
        "&to=2026-11-21T09:15:00.007Z&before=call_9&role=provider"
    )
    assert (await ask(records, path)).status_code == 200
    (query,) = records.queries
    assert query == HistoryQuery(
        wallet=PAYER,
        role="provider",
        listing_id=ListingId("api_1"),
        status="failed",
        from_ms=1_795_132_800_000,
        to_ms=NOW_MS,
        before=CallId("call_9"),
        limit=100,
        offset=10_000,
    )


async def test_a_look_at_a_chain_holds_no_turn() -> None:
    turns, held = ReadTurns(at_once=1), []

    async def lookup(tx_hash: TxHash, payer: Address) -> TransactionStatus | None:
        async with turns.turn("books", STRANGER):  # waits for ever where the request holds the only turn
            held.append(tx_hash)
        return TransactionStatus(state="unseen")

    async def authenticate(request: Request) -> Identity:
        await enter_turn(request.scope, PAYER)
        return Identity(address=PAYER, method="session", chain_id=None)

    records: Any = FakeRecords()
    context = make_context(
        call_history=records,
        payment_ledger=records,
        authenticate=authenticate,
        look_up_transaction=lookup,
    )
    app = make_app(context, history_router(context), read_turns=turns)
    async with open_client(app) as client:
        assert (await client.get(f"/api/v2/payments/{TX}")).json()["state"] == "unseen"
    assert held == [TX]


class SlicedRecords(FakeRecords):
    """Each read gives as many calls as it asks for, after the call `before`."""

    async def history(self, query: HistoryQuery) -> HistoryPage:
        return HistoryPage(calls=await self.read_calls(query), total=len(self.calls))

    async def read_calls(self, query: HistoryQuery) -> tuple[CallRecord, ...]:
        self.queries.append(query)
        ids = list(self.calls)
        start = query.offset if query.before is None else ids.index(query.before) + 1
        return tuple(self.calls.values())[start : start + query.limit]


@pytest.mark.parametrize(
    ("limit", "slices"), [(1, [1]), (99, [99]), (100, [100]), (101, [100, 1]), (200, [100, 100])]
)
async def test_a_page_of_calls_is_read_in_slices(limit: int, slices: list[int]) -> None:
    records = SlicedRecords([replace(CALL, id=CallId(f"call_{number}")) for number in range(250)])
    page = (await ask(records, f"/history?limit={limit}&offset=10")).json()
    assert [call["id"] for call in page["calls"]] == [f"call_{number}" for number in range(10, 10 + limit)]
    assert [query.limit for query in records.queries] == slices
    assert [query.offset for query in records.queries] == [10, *[0] * (len(slices) - 1)]


async def test_a_short_slice_is_the_last_one() -> None:
    records = SlicedRecords([replace(CALL, id=CallId(f"call_{number}")) for number in range(100)])
    assert len((await ask(records, "/history?limit=200&offset=50")).json()["calls"]) == 50
    assert len(records.queries) == 1


async def test_records_have_the_bytes_of_plain_json() -> None:
    call = replace(CALL, listing_name='Wetter "ü" \u2028 \x7f </script>', path="/%F0/\U0001f600")
    answer = await ask(FakeRecords([call]), "/history/call_1")
    assert answer.content == json.dumps(answer.json(), ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    ("to_ms", "as_of_ms"), [(NOW_MS - 5, NOW_MS - 5), (NOW_MS, NOW_MS), (NOW_MS + 5, NOW_MS)]
)
async def test_as_of_never_lies_in_the_future(to_ms: int, as_of_ms: int) -> None:
    page = (await ask(FakeRecords(), f"/history?to={format_time(to_ms)}")).json()
    assert page["asOf"] == format_time(as_of_ms)


async def test_a_total_that_is_a_lower_bound_is_marked() -> None:
    records = FakeRecords()
    records.is_lower_bound = True
    assert (await ask(records, "/history?status=failed")).json()["totalIsLowerBound"] is True


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "limit=x", "limit=1e1", "offset=-1", "offset=10001", "status=done", "from=now",
     "role=owner", "page=1", "limit=1&limit=2", "to=2026-11-21", "apiId=" + "x" * 65],
)  # fmt: skip
async def test_an_invalid_query_names_its_parameter_and_reads_nothing(query: str) -> None:
    records = FakeRecords()
    answer = await ask(records, f"/history?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")
    assert answer.json()["errors"][0]["parameter"] == query.split("=")[0]
    assert records.queries == []


async def test_authentication_comes_before_validation() -> None:
    assert (await ask(FakeRecords(), "/history?limit=x", wallet=None)).status_code == 401


UNKNOWN = replace(CALL, state=CallState.UNKNOWN, upstream_status=None)


@pytest.mark.parametrize(("outcome", "status"), [("released", "failed"), ("consumed", "failed")])
async def test_the_provider_resolves_an_unknown_call(outcome: str, status: str) -> None:
    records = FakeRecords([UNKNOWN])
    body = b'{"outcome":"%s"}' % outcome.encode()
    answer = await ask(records, "/history/call_1/resolution", wallet=PROVIDER, method="POST", body=body)
    assert (answer.status_code, answer.json()["status"]) == (200, status)
    again = await ask(records, "/history/call_1/resolution", wallet=PROVIDER, method="POST", body=body)
    assert again.status_code == 200
    assert records.calls[UNKNOWN.id].state is CallState(outcome)


AUTHORIZED = replace(UNKNOWN, rail=Rail.X402, tx_hash=None)


async def test_a_charge_by_authorisation_is_accepted_and_not_charged_yet() -> None:
    records, path = FakeRecords([AUTHORIZED]), "/history/call_1/resolution"
    for _ in range(2):  # the same decision again changes nothing
        answer = await ask(records, path, wallet=PROVIDER, method="POST", body=b'{"outcome":"consumed"}')
        record = answer.json()
        assert (answer.status_code, record["status"], record["payment"]["state"]) == (202, "pending", "held")
    answer = await ask(records, path, wallet=PROVIDER, method="POST", body=b'{"outcome":"released"}')
    assert (answer.status_code, answer.json()["reason"]) == (412, "not_unknown")
    assert records.calls[AUTHORIZED.id].state is CallState.SETTLING


@pytest.mark.parametrize("fault", list(ChargeFault))
async def test_a_call_that_can_only_be_released_names_the_reason(fault: ChargeFault) -> None:
    records, path = FakeRecords([AUTHORIZED]), "/history/call_1/resolution"
    records.charge_fault = fault
    answer = await ask(records, path, wallet=PROVIDER, method="POST", body=b'{"outcome":"consumed"}')
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["reason"]) == (
        412,
        "precondition_failed",
        fault.value,
    )
    assert "It can only be released" in problem["detail"]
    assert records.calls[AUTHORIZED.id] == AUTHORIZED
    answer = await ask(records, path, wallet=PROVIDER, method="POST", body=b'{"outcome":"released"}')
    assert (answer.status_code, answer.json()["payment"]["state"]) == (200, "released")


async def test_a_call_that_another_request_has_decided_alike_is_no_refusal() -> None:
    records = DecidedMeanwhile([AUTHORIZED])
    body = b'{"outcome":"consumed"}'
    answer = await ask(records, "/history/call_1/resolution", wallet=PROVIDER, method="POST", body=body)
    assert answer.status_code == 202


class DecidedMeanwhile(FakeRecords):
    """Between the read and the decision of a call, another request charges it."""

    async def resolve(
        self, call: CallRecord, outcome: CallState, *, client_address: str
    ) -> CallState | ChargeFault | None:
        await super().resolve(call, CallState.CONSUMED, client_address=client_address)
        return await super().resolve(call, outcome, client_address=client_address)


@pytest.mark.parametrize(
    ("call", "wallet", "body", "code"),
    [
        (UNKNOWN, PAYER, b'{"outcome":"released"}', "not_provider"),
        (UNKNOWN, STRANGER, b'{"outcome":"released"}', "call_not_found"),
        (UNKNOWN, None, b"{", "authentication_required"),
        (UNKNOWN, PROVIDER, b"{", "invalid_request"),
        (UNKNOWN, PROVIDER, b"[]", "validation_failed"),
        (UNKNOWN, PROVIDER, b"{}", "validation_failed"),
        (UNKNOWN, PROVIDER, b'{"outcome":"unknown"}', "validation_failed"),
        (UNKNOWN, PROVIDER, b'{"outcome":["released"]}', "validation_failed"),
        (UNKNOWN, PROVIDER, b'{"outcome":"released","why":1}', "validation_failed"),
        (CALL, PROVIDER, b'{"outcome":"released"}', "precondition_failed"),
        (CALL, PROVIDER, b'{"outcome":"consumed"}', "precondition_failed"),
    ],
)
async def test_a_resolution_is_refused_and_nothing_changes(
    call: CallRecord, wallet: Address | None, body: bytes, code: str
) -> None:
    records = FakeRecords([call])
    answer = await ask(records, "/history/call_1/resolution", wallet=wallet, method="POST", body=body)
    assert answer.json()["code"] == code
    assert records.calls[call.id] == call


@pytest.mark.parametrize(
    ("changes", "state", "credit", "reason"),
    [
        ({}, "credited", "20000", None),
        ({"state": PaymentState.FINAL}, "credited", "20000", None),
        ({"taken_units": 30_000}, "spent", "0", None),
        ({"state": PaymentState.GONE, "value_units": 10_000}, "reorged", "0", None),
        ({"is_held": True}, "credited", "20000", "held_by_dispute"),
    ],
)
async def test_the_state_of_a_payment(
    changes: dict[str, Any], state: str, credit: str, reason: str | None
) -> None:
    payment = replace(PAYMENT, **changes)
    answer = (await ask(FakeRecords(payments=[payment]), f"/payments/{str(TX).upper()}")).json()
    assert answer == {
        "transaction": str(TX),
        "network": "eip155:84532",
        "asset": USDC.caip19,
        "payer": str(PAYER),
        "payee": str(PROVIDER),
        "amount": str(payment.value_units),
        "credit": credit,
        "state": state,
        "reason": reason,
        "calls": ["call_1"],
    }


@pytest.mark.parametrize(("held_before_ms", "reason"), [(None, "held_by_dispute"), (1, "held_after_restore")])
async def test_a_held_payment_has_the_reason(held_before_ms: int | None, reason: str) -> None:
    records = FakeRecords(payments=[replace(PAYMENT, is_held=True)])
    records.held_before_ms = held_before_ms
    answer = (await ask(records, f"/payments/{TX}")).json()
    assert (answer["state"], answer["reason"]) == ("credited", reason)
    listed = (await ask(records, "/payments")).json()
    assert listed["payments"][0]["reason"] == reason


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({}, "credited", "held_by_call"),
        ({"taken_units": 30_000}, "spent", "held_by_call"),
        ({"is_held": True}, "credited", "held_by_dispute"),
        ({"state": PaymentState.GONE}, "reorged", None),
    ],
)
async def test_a_payment_with_units_held_by_an_unknown_call_has_the_reason(
    changes: dict[str, Any], state: str, reason: str | None
) -> None:
    records = FakeRecords(payments=[replace(PAYMENT, **changes)])
    records.unknown = (CallId("call_1"),)
    answer = (await ask(records, f"/payments/{TX}")).json()
    assert (answer["state"], answer["reason"], answer["calls"]) == (state, reason, ["call_1"])


async def test_a_payment_lists_a_call_that_holds_units_at_any_age() -> None:
    records = FakeRecords(payments=[PAYMENT])
    records.claimed = tuple(CallId(f"call_{number:03}") for number in range(200, 0, -1))
    records.unknown = (CallId("call_101"), CallId("call_002"))
    calls = (await ask(records, f"/payments/{TX}")).json()["calls"]
    assert calls == [*records.claimed[:98], "call_101", "call_002"]


async def test_several_payments_in_one_transaction_are_all_listed() -> None:
    other = replace(PAYMENT, id=8, payee=STRANGER)
    answer = (await ask(FakeRecords(payments=[PAYMENT, other]), f"/payments/{TX}")).json()
    assert answer["payee"] == str(PROVIDER)
    assert [payment["payee"] for payment in answer["others"]] == [str(STRANGER)]


async def test_a_payment_in_an_unconfigured_asset_has_no_amount() -> None:
    answer = (await ask(FakeRecords(payments=[PAYMENT]), f"/payments/{TX}", assets=())).json()
    assert (answer["amount"], answer["credit"], answer["asset"]) == (None, None, USDC.caip19)


@pytest.mark.parametrize(
    ("transaction_status", "state", "network"),
    [
        (TransactionStatus(state="unseen"), "unseen", None),
        (TransactionStatus(state="pending", chain_id=CHAIN), "pending", "eip155:84532"),
        (TransactionStatus(state="refused", reason="failed", chain_id=CHAIN), "refused", "eip155:84532"),
    ],
)
async def test_a_payment_that_is_not_in_the_ledger_is_read_from_the_chain(
    transaction_status: TransactionStatus, state: str, network: str | None
) -> None:
    answer = (await ask(FakeRecords(), f"/payments/{TX}", transaction_status=transaction_status)).json()
    assert (answer["state"], answer["network"], answer["reason"]) == (
        state,
        network,
        transaction_status.reason,
    )
    assert answer["calls"] == []


async def test_the_payments_of_others_are_not_listed() -> None:
    records = FakeRecords(payments=[PAYMENT])
    answer = await ask(records, f"/payments/{TX}", wallet=STRANGER)
    assert (answer.status_code, answer.json()["code"]) == (404, "payment_not_found")
    assert (await ask(records, "/payments", wallet=STRANGER)).json()["payments"] == []


@pytest.mark.parametrize("transaction", ["0x12", "ab" * 32, "0x" + "zz" * 32])
async def test_a_malformed_hash_is_refused(transaction: str) -> None:
    answer = await ask(FakeRecords(), f"/payments/{transaction}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


async def test_payments_are_listed_in_pages() -> None:
    answer = (await ask(FakeRecords(payments=[PAYMENT]), "/payments?limit=1&offset=0")).json()
    assert (len(answer["payments"]), answer["limit"], answer["offset"]) == (1, 1, 0)
    assert (await ask(FakeRecords(), "/payments?limit=101")).status_code == 422


@pytest.mark.parametrize(("error", "status"), [("upstream_timeout", 504), ("shutdown", None)])
def test_a_call_that_the_gateway_answered_has_the_status_of_its_problem(
    error: str, status: int | None
) -> None:
    answered = replace(CALL, http_status=None, error=error)
    assert call_json(answered, lambda chain_id, key: USDC)["httpStatus"] == status


@pytest.mark.parametrize("path", ["/history", "/history?limit=1&role=provider", "/history/call_1"])
async def test_x402_clients_read_the_same_history_at_their_own_path(path: str) -> None:
    own, plain = FakeRecords([CALL]), FakeRecords([CALL])
    answer = await ask(own, path, base="/x402")
    assert (answer.status_code, answer.json()) == (200, (await ask(plain, path)).json())
    assert own.queries == plain.queries


@pytest.mark.parametrize(
    ("path", "method", "wallet", "status", "plain_status"),
    [
        ("/history", "GET", None, 402, 401),
        ("/history/call_1", "GET", None, 402, 401),
        ("/history/call_1", "GET", STRANGER, 404, 404),
        ("/history?limit=0", "GET", PAYER, 422, 422),
        ("/history", "POST", PAYER, 405, 405),
        ("/history/call_1/resolution", "POST", PROVIDER, 404, 422),  # reads only
    ],
)
async def test_at_the_path_of_x402_only_a_401_differs(
    path: str, method: str, wallet: Address | None, status: int, plain_status: int
) -> None:
    for base, expected in (("/x402", status), ("/api/v2", plain_status)):
        answer = await ask(FakeRecords([CALL]), path, method=method, wallet=wallet, body=b"{}", base=base)
        assert answer.status_code == expected, base
        assert ("payment-required" in answer.headers) is (wallet is None)


@pytest.mark.parametrize(
    ("call", "held_until"),
    [
        (replace(CALL, state=CallState.UNKNOWN, held_until_ms=NOW_MS + 1), True),
        (replace(CALL, state=CallState.UNKNOWN), False),
        (replace(FREE, state=CallState.UNKNOWN, held_until_ms=NOW_MS + 1), False),
        (CALL, False),
    ],
    ids=("held by the clock", "held until it is decided", "free", "charged"),
)
def test_a_held_price_names_the_time_at_which_it_comes_back(call: CallRecord, held_until: bool) -> None:
    payment = call_json(call, lambda chain_id, key: USDC)["payment"]
    assert payment.get("heldUntil") == (format_time(NOW_MS + 1) if held_until else None)
    assert ("heldUntil" in payment) is held_until
