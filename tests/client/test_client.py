"""Whole calls over a fake gateway and a fake chain, with both clients."""

import asyncio
import gzip
import json
import threading
import zlib

import httpx
import pytest

from tests.client.conftest import do, sums
from tests.kit.waits import DEADLINE_S, until
from tollway.body_text import MEMBERS_MAX
from tollway.client import (
    AsyncTollwayClient,
    BudgetExhausted,
    CallHeld,
    CannotPay,
    GatewayRefused,
    GatewayUnreachable,
    NodeUnreachable,
    Patience,
    PaymentPending,
    PaymentRefused,
    PriceAboveMax,
    ResponseUnreadable,
    TollwayClient,
)
from tollway.client.records import SearchPage
from tollway.client.store import PaymentStore

API = "api_1"
PRICE = 10_000
CHAIN = 84532
GATEWAY = "https://gateway.test"


async def test_pays_a_402_and_calls_with_a_bound_signature(make, gateway, chain):
    answer = await do(make().call(API, "/quote/ETH?x=%20y", method="POST", json={"a": 1}))
    assert answer.status_code == 200
    assert answer.json() == {"path": f"/api/v2/gateway/{API}/quote/ETH", "body": '{"a":1}'}
    assert answer.payment.state == "charged"
    assert answer.payment.transaction in chain.mined
    assert answer.payment.network == "eip155:84532"
    assert gateway.seen[-1].headers["x-payment-network"] == "eip155:84532"
    assert gateway.seen[-1].headers["tollway-max-price"] == "1"
    assert len(chain.broadcasts) == 1


async def test_second_call_spends_known_credit_without_asking_first(make, gateway, chain):
    client = make()
    await do(client.call(API, prepay=3))
    before = len(gateway.seen)
    for _ in range(2):
        assert (await do(client.call(API))).status_code == 200
    assert len(gateway.seen) == before + 2
    assert len(chain.broadcasts) == 1
    assert gateway.served == 3


async def test_credit_outlives_the_process(make, gateway, chain):
    await do(make().call(API, prepay=2))
    assert (await do(make().call(API))).status_code == 200
    assert len(chain.broadcasts) == 1


async def test_spent_credit_is_followed_by_a_fresh_payment(make, gateway, chain):
    client = make()
    for _ in range(3):
        await do(client.call(API))
    assert len(chain.broadcasts) == 3
    assert gateway.served == 3


async def test_credit_that_others_spent_is_written_off(make, gateway, chain):
    client = make()
    await do(client.call(API, prepay=2))
    tx = next(iter(gateway.taken))
    gateway.taken[tx] = 2 * PRICE
    assert (await do(client.call(API))).status_code == 200
    assert [t.rest for t in client.payments()] == [0, 0]
    assert len(chain.broadcasts) == 2


async def test_underpayment_is_repaired_by_the_difference(make, gateway, chain):
    client = make()
    await do(client.call(API, prepay=2))
    gateway.price = 15_000
    assert (await do(client.call(API))).status_code == 200
    assert [t.amount for t in client.payments()] == [20_000, 5_000]


async def test_free_listing_pays_nothing(make, gateway, chain):
    gateway.price = 0
    answer = await do(make().call(API))
    assert answer.text == "free"
    assert answer.payment.transaction is None
    assert chain.asked == []


async def test_refuses_a_price_above_the_callers(make, gateway, chain):
    with pytest.raises(PriceAboveMax):
        await do(make(max_price="0.009 USDC").call(API))
    with pytest.raises(PriceAboveMax):
        await do(make(max_price="1 ETH").call(API))
    assert chain.broadcasts == []


async def test_refuses_to_exceed_the_budget_and_counts_over_processes(make, gateway, chain):
    await do(make(budget="0.02 USDC").call(API))
    await do(make(budget="0.02 USDC").call(API))
    with pytest.raises(BudgetExhausted, match=r"0\.02 of 0\.02 USDC"):
        await do(make(budget="0.02 USDC").call(API))
    assert len(chain.broadcasts) == 2


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param({"decimals": 18, "amount": "10000000000000000"}, id="decimals"),
        pytest.param({"symbol": "DAI"}, id="symbol of a known token"),
        pytest.param({"token": "0x" + "33" * 20, "symbol": "DAI"}, id="symbol of an unknown token"),
        pytest.param({"token": None, "symbol": "USDC", "decimals": 18}, id="native posing as a dollar"),
    ],
)
async def test_checks_the_gateways_description_of_an_asset(make, gateway, chain, lie):
    option = {name: value for name, value in gateway.option(**lie).items() if value is not None}
    gateway.options = [option]
    with pytest.raises(CannotPay, match="the gateway describes"):
        await do(make().call(API))
    assert chain.broadcasts == []


async def test_accepts_an_unknown_token_whose_contract_agrees(make, gateway, chain):
    gateway.options = [gateway.option(token="0x" + "33" * 20)]
    assert (await do(make().call(API))).status_code == 200


async def test_takes_the_first_offer_that_the_wallet_can_pay(make, gateway, chain):
    gateway.options = [
        {"rail": "x402", "version": 2},
        gateway.option(network="eip155:8453", chainId=8453),
        gateway.option(),
    ]
    assert (await do(make().call(API))).status_code == 200


async def test_names_what_is_missing_when_the_wallet_is_empty(make, gateway, chain):
    chain.usdc = PRICE - 1
    with pytest.raises(CannotPay, match=r"holds 0\.009999"):
        await do(make().call(API))
    chain.usdc, chain.wei = PRICE, 10
    with pytest.raises(CannotPay, match="gas"):
        await do(make().call(API))
    assert chain.broadcasts == []


async def test_refuses_a_node_of_another_chain(make, gateway, chain):
    chain.chain_id = 1
    with pytest.raises(CannotPay, match="serves eip155:1"):
        await do(make().call(API))


async def test_a_node_that_is_away_before_signing_costs_nothing(make, gateway, chain):
    chain.is_away = True
    client = make()
    with pytest.raises(NodeUnreachable) as caught:
        await do(client.call(API))
    assert caught.value.is_retryable
    assert "secret-key" not in str(caught.value)
    assert client.payments() == ()


async def test_pending_payment_is_continued_never_repeated(make, gateway, chain):
    chain.is_mining = False
    for _ in range(3):
        with pytest.raises(PaymentPending) as caught:
            await do(make().call(API))
        assert caught.value.is_retryable
    assert len(set(chain.broadcasts)) == 1
    chain.mine()
    client = make()
    assert (await do(client.call(API))).status_code == 200
    assert len(client.payments()) == 1


async def test_pays_in_native_currency_when_the_caller_allows_it(make, gateway, chain):
    gateway.options = [{k: v for k, v in gateway.option(symbol="ETH", decimals=18).items() if k != "token"}]
    answer = await do(make(max_price="0.001 ETH").call(API))
    assert answer.status_code == 200


async def test_a_failed_transfer_is_reported_and_does_not_count_once_it_is_final(make, gateway, chain):
    chain.status = 0
    client = make(budget="0.01")
    for chain.finalized in (None, 99):  # a node may lie, or its block be replaced
        with pytest.raises(PaymentPending, match="was reverted"):
            await do(client.call(API))
        assert (sums(client.spending().total), len(chain.pool)) == ({"USDC": 10**16}, 1)
    chain.finalized = 200
    with pytest.raises(CannotPay, match="failed on the chain"):
        await do(client.call(API))
    assert (sums(client.spending().total), len(chain.pool)) == ({"USDC": 0}, 2)
    chain.status = 1
    chain.mined.clear()
    chain.pool = {"0xother": b""}
    assert (await do(client.call(API))).status_code == 200


async def test_calls_at_once_each_pay_for_themselves_and_all_are_served(client_options):
    client_options["patience"] = Patience()
    async with AsyncTollwayClient(GATEWAY, **client_options) as client:
        answers = await asyncio.gather(*(client.call(API, f"/{n}") for n in range(12)))
        assert [answer.status_code for answer in answers] == [200] * 12
        assert len(client.payments()) == 12
        shared = await asyncio.gather(*(client.call(API, f"/{n}", prepay=12) for n in range(12)))
        assert [answer.status_code for answer in shared] == [200] * 12
        assert len(client.payments()) == 13


def refusal(status, code, **members):
    def answer(_request):
        return httpx.Response(
            status,
            content=json.dumps({"code": code, "detail": code, **members}),
            headers={
                "content-type": "application/problem+json",
                "tollway-payment-state": members.get("paymentState", "none"),
                "retry-after": "0",
            },
        )

    return answer


@pytest.mark.parametrize(
    "code", ["payment_pending", "chain_unavailable", "storage_unavailable", "overloaded"]
)
async def test_an_undecided_call_is_repeated_with_the_same_proof(make, gateway, chain, code):
    client = make(patience=Patience(poll_s=0.001, wait_s=30))
    await do(client.call(API, prepay=2))
    gateway.answers = [refusal(503, code, retryable=True), refusal(503, code)]
    assert (await do(client.call(API))).status_code == 200
    proofs = {request.headers["x-signature"] for request in gateway.seen[-3:]}
    assert len(proofs) == 1
    assert len(chain.broadcasts) == 1


async def test_held_call_is_reported_with_its_url_and_never_paid_again(make, gateway, chain):
    client = make()
    await do(client.call(API, prepay=2))
    url = f"{GATEWAY}/api/v2/history/call_7"
    gateway.answers = [refusal(504, "upstream_timeout", paymentState="held", callId="call_7", call=url)]
    with pytest.raises(CallHeld) as caught:
        await do(client.call(API, method="POST"))
    assert (caught.value.call_id, caught.value.call_url) == ("call_7", url)
    assert len(chain.broadcasts) == 1


async def test_released_failure_is_handed_over_and_keeps_the_credit(make, gateway, chain):
    client = make()
    await do(client.call(API, prepay=2))
    gateway.answers = [refusal(502, "upstream_unreachable", paymentState="released")]
    answer = await do(client.call(API))
    assert (answer.status_code, answer.payment.state) == (502, "released")
    assert client.payments()[0].rest == PRICE
    assert (await do(client.call(API))).status_code == 200


async def test_refused_payment_is_never_followed_by_another(make, gateway, chain):
    client = make()
    await do(client.call(API, prepay=2))
    no = refusal(402, "payment_verification_failed", reason="wrong_recipient")
    for _ in range(2):
        gateway.answers = [no]
        with pytest.raises(PaymentRefused) as caught:
            await do(client.call(API))
        assert caught.value.reason == "wrong_recipient"
    assert len(chain.broadcasts) == 1
    assert (await do(client.call(API))).status_code == 200  # the gateway has thought better of it


async def test_abandoned_payment_frees_its_payee(make, gateway, chain):
    client = make()
    await do(client.call(API, prepay=2))
    gateway.answers = [refusal(402, "payment_verification_failed")]
    with pytest.raises(PaymentRefused) as caught:
        await do(client.call(API))
    assert client.abandon(str(caught.value.transaction))
    assert (await do(client.call(API))).status_code == 200
    assert len(chain.broadcasts) == 2


@pytest.mark.parametrize("price", [PRICE, PRICE + 1], ids=["the same bytes", "another amount"])
async def test_abandoned_payment_that_was_never_mined_frees_its_nonce(make, gateway, chain, price):
    chain.is_mining = False
    client = make()
    with pytest.raises(PaymentPending) as caught:
        await do(client.call(API))
    assert client.abandon(str(caught.value.transaction))
    chain.pool.clear()  # the node has dropped it
    chain.is_mining, gateway.price = True, price
    assert (await do(client.call(API))).status_code == 200
    assert {payment.nonce for payment in client.payments()} == {0}
    assert gateway.served == 1


async def test_held_credit_is_neither_written_off_nor_replaced_by_a_payment(make, gateway, chain):
    client = make()
    await do(client.call(API, prepay=2))
    held = refusal(409, "payment_already_used", paymentState="held")
    gateway.answers = [held, lambda _request: gateway.refuse(402, "payment_required"), *[held] * 9]
    with pytest.raises(CallHeld):
        await do(client.call(API))
    assert client.payments()[0].rest == PRICE
    gateway.answers = []
    assert (await do(client.call(API))).status_code == 200
    assert len(chain.broadcasts) == 1


async def test_expiry_after_a_broken_connection_is_never_signed_anew(make, gateway, chain):
    client = make()
    await do(client.call(API, prepay=3))

    def breaks(_request):
        raise httpx.ReadTimeout("no head")

    gateway.answers = [breaks, refusal(401, "signature_expired")]
    before = len(gateway.seen)
    with pytest.raises(CallHeld, match="/history"):
        await do(client.call(API))
    assert len({request.headers["x-signature"] for request in gateway.seen[before:]}) == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [(409, "payment_already_used"), (402, "payment_insufficient"), (402, "payment_required"), (504, "x")],
)
async def test_a_response_of_an_upstream_never_makes_a_caller_pay(make, gateway, chain, status, code):
    client = make()
    await do(client.call(API, prepay=2))

    def relayed(_request):
        headers = gateway.relayed("released", rest=PRICE, status=status)
        content = json.dumps({"code": code, "paymentState": "held"})
        return httpx.Response(
            status, content=content, headers={**headers, "content-type": "application/problem+json"}
        )

    gateway.answers = [relayed]
    answer = await do(client.call(API))
    assert answer.status_code == status
    assert len(chain.broadcasts) == 1
    assert client.payments()[0].rest == PRICE


async def test_broken_connection_after_sending_is_not_repeated_for_a_post(make, gateway, chain):
    client = make()
    await do(client.call(API, prepay=3))

    def breaks(_request):
        raise httpx.ReadError("reset")

    gateway.answers = [breaks]
    with pytest.raises(GatewayUnreachable) as caught:
        await do(client.call(API, method="POST"))
    assert (caught.value.is_sent, caught.value.is_retryable) == (True, False)
    gateway.answers = [breaks]
    assert (await do(client.call(API, method="POST", idempotency_key="k"))).status_code == 200
    gateway.answers = [breaks]
    assert (await do(client.call(API))).status_code == 200
    assert len(chain.broadcasts) == 1


async def test_expired_signature_is_signed_anew_once(make, gateway, chain):
    client = make()
    await do(client.call(API, prepay=2))
    gateway.answers = [refusal(401, "signature_expired")]
    assert (await do(client.call(API))).status_code == 200
    assert gateway.seen[-1].headers["x-signature"] != gateway.seen[-2].headers["x-signature"]


async def test_a_second_expiry_is_handed_to_the_caller(make, gateway, chain):
    client = make()
    await do(client.call(API, prepay=2))
    before = len(gateway.seen)
    gateway.answers = [refusal(401, "signature_expired")] * 9
    assert (await do(client.call(API))).status_code == 401
    assert len(gateway.seen) == before + 2


async def test_reused_nonce_is_never_signed_anew(make, gateway, chain):
    client = make()
    await do(client.call(API, prepay=2))
    gateway.answers = [refusal(401, "nonce_reused", callId="call_9", paymentState="charged")]
    with pytest.raises(CallHeld):
        await do(client.call(API))


async def test_head_learns_the_terms_by_get(make, gateway, chain):
    gateway.answers = [lambda request: httpx.Response(402)]
    assert (await do(make().call(API, method="HEAD"))).status_code == 200
    assert [request.method for request in gateway.seen] == ["HEAD", "GET", "HEAD"]


async def test_without_a_wallet_only_free_listings_can_be_called(make, gateway, chain):
    with pytest.raises(CannotPay, match="no wallet"):
        await do(make(wallet=None).call(API))


async def test_streams_an_answer(client_options):
    with TollwayClient(GATEWAY, **client_options) as client, client.stream(API, "/s") as answer:
        assert answer.payment.state == "charged"
        assert b"".join(answer.iter_bytes()).startswith(b"{")
    async with AsyncTollwayClient(GATEWAY, **client_options) as client, client.stream(API, "/s") as answer:
        assert (await answer.aread()).startswith(b"{")


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/../../apis", {}),
        ("/x", {"headers": {"X-Payment-Tx": "0x"}}),
        ("/x", {"json": 1, "content": b""}),
        ("/x", {"prepay": 0}),
    ],
)
async def test_refuses_what_cannot_be_sent(make, gateway, path, options):
    with pytest.raises(ValueError):
        await do(make().call(API, path, **options))
    assert gateway.seen == []


@pytest.mark.parametrize("api_id", ["../apis", "a/b", "a?b", ""])
async def test_refuses_an_api_id_that_is_a_path(make, gateway, api_id):
    with pytest.raises(ValueError, match="API id"):
        await do(make().call(api_id, ""))
    assert gateway.seen == []


async def test_control_requests_are_signed_and_read(make, gateway):
    names = ("name", "provider", "pricePerRequest", "currency", "endpoint", "description")
    written = {"id": "api_9", **dict.fromkeys(names, "x")}
    gateway.answers = [lambda request: httpx.Response(201, json=written)]
    client = make()
    assert (await do(client.publish({"name": "x"}))).id == "api_9"
    request = gateway.seen[0]
    assert request.url.path == "/api/v2/apis"
    assert 'keyid="erc8128:84532:' in request.headers["signature-input"]
    assert "content-digest" in request.headers
    gateway.answers = [lambda request: httpx.Response(200, json=PAGE)]
    assert (await do(client.search("weather now", verified=True))).total == 0
    assert gateway.seen[1].url.raw_path == b"/api/v2/apis?q=weather%20now&verified=true"
    assert "signature" not in gateway.seen[1].headers


async def test_a_provider_reads_patches_tries_and_decides(make, gateway):
    """The entity tag of what was read goes back as `If-Match`."""
    names = ("name", "provider", "pricePerRequest", "currency", "endpoint", "description")
    listing = {"id": "api_9", **dict.fromkeys(names, "x")}
    trial = {
        "status": 200,
        "price": "1",
        "currency": "USDC",
        "wouldCharge": True,
        "callId": "call_1",
        "body": "hi",
        "warnings": [
            {"code": "header_not_returned", "detail": "No caller gets it.", "pointer": "/headers/a"}
        ],
    }
    call = {
        "id": "call_1",
        "apiId": "api_9",
        "status": "failed",
        "method": "GET",
        "path": "",
        "price": "1",
        "currency": "USDC",
        "payment": {"state": "released"},
        "createdAt": "2026-11-23T19:53:11.000Z",
    }
    gateway.answers = [
        lambda request: httpx.Response(200, json=listing, headers={"etag": '"r1-a"'}),
        lambda request: httpx.Response(200, json={**listing, "revision": 2}, headers={"etag": '"r2-b"'}),
        lambda request: httpx.Response(200, json=trial),
        lambda request: httpx.Response(200, json=call),
    ]
    client = make()
    shown = await do(client.show("api_9"))
    changed = await do(client.patch("api_9", {"tags": None}, etag=shown.etag))
    assert (changed.revision, changed.etag) == (2, '"r2-b"')
    tried = await do(client.try_out("api_9", "/a?b=1", method="POST", content="x"))
    assert (tried.would_charge, tried.body, tried.is_cut) == (True, "hi", False)
    assert [one.code for one in tried.warnings] == ["header_not_returned"]
    assert (await do(client.resolve("call_1", "released"))).payment.state == "released"
    _, patch, asked, decided = gateway.seen
    assert (patch.method, patch.headers["if-match"], patch.content) == ("PATCH", '"r1-a"', b'{"tags":null}')
    assert patch.headers["content-type"] == "application/merge-patch+json"
    assert asked.url.path == "/api/v2/apis/api_9/trial"
    assert json.loads(asked.content) == {"method": "POST", "path": "/a?b=1", "headers": {}, "body": "x"}
    assert (decided.url.path, decided.content) == (
        "/api/v2/history/call_1/resolution",
        b'{"outcome":"released"}',
    )
    assert all("signature" in request.headers for request in (patch, asked, decided))


async def test_control_refusals_carry_the_problem(make, gateway):
    gateway.answers = [refusal(404, "api_not_found")]
    with pytest.raises(GatewayRefused) as caught:
        await do(make().show("api_0"))
    assert (caught.value.status, caught.value.code) == (404, "api_not_found")


async def test_crash_between_store_and_broadcast_broadcasts_the_same_bytes(make, gateway, chain, store):
    class PulledPlug(BaseException):
        pass

    def crash(_self, raw):
        raise PulledPlug

    original = type(chain)._eth_sendRawTransaction
    type(chain)._eth_sendRawTransaction = crash
    try:
        with pytest.raises(PulledPlug):
            await do(make().call(API))
    finally:
        type(chain)._eth_sendRawTransaction = original
    (stored,) = store.unresolved(make().payments()[0].payer)
    assert chain.broadcasts == []
    assert (await do(make().call(API))).status_code == 200
    assert set(chain.broadcasts) == {stored.raw}
    assert isinstance(store, PaymentStore)


# ---- By authorisations (what each answer leads to: test_authorizing.py).


async def test_pays_by_an_authorisation_where_that_is_cheaper(make, gateway, chain):
    gateway.offer_authorizations()
    answer = await do(make().call(API, "/quote/ETH", method="POST", json={"a": 1}))
    assert answer.json() == {"path": f"/api/v2/gateway/{API}/quote/ETH", "body": '{"a":1}'}
    assert (answer.payment.rail, answer.payment.state) == ("x402", "charged")
    assert answer.payment.transaction == next(iter(gateway.cashed.values()))
    assert answer.payment.receipt.is_success
    assert "x-payment-tx" not in gateway.seen[-1].headers
    assert chain.broadcasts == []


async def test_every_call_has_an_authorisation_of_its_own(make, gateway, chain):
    gateway.offer_authorizations()
    client = make()
    for _ in range(3):
        assert (await do(client.call(API))).payment.rail == "x402"
    assert (len(gateway.cashed), chain.broadcasts) == (3, [])
    assert [signed.state for signed in client.authorizations()] == ["charged"] * 3
    assert {signed.proof for signed in client.authorizations()} == {""}


async def test_says_which_rail_paid(make, gateway):
    gateway.offer_authorizations()
    client = make(rail="tx")
    rails = [(await do(client.call(API, prepay=2))).payment.rail, (await do(client.call(API))).payment.rail]
    rails.append((await do(client.call(API, rail="x402"))).payment.rail)
    gateway.price = 0
    rails.append((await do(client.call(API))).payment.rail)
    assert rails == ["tx", "credit", "x402", None]


async def test_needs_no_node_on_a_chain_that_was_named(make, gateway, chain):
    gateway.offer_authorizations()
    assert (await do(make(rpc_urls={}, chains=(CHAIN,)).call(API))).payment.rail == "x402"
    assert chain.asked == []


async def test_budget_counts_what_is_promised_on_either_rail(make, gateway, chain):
    gateway.offer_authorizations()
    client = make(budget="0.025 USDC")
    await do(client.call(API))
    await do(client.call(API, rail="tx"))
    for rail in ("x402", "tx"):
        with pytest.raises(BudgetExhausted):
            await do(client.call(API, "/other", rail=rail))
    assert (len(gateway.cashed), len(chain.broadcasts)) == (1, 1)


async def test_the_next_process_shows_what_the_last_one_left_open(make, gateway):
    gateway.offer_authorizations()
    unknown = gateway.refuse(503, "payment_outcome_unknown", {"paymentState": "held"})
    gateway.answers = [gateway._call, *[lambda _: unknown] * 9]
    with pytest.raises(CallHeld):
        await do(make().call(API, "/a"))
    first = gateway.seen[-1].headers["payment-signature"]
    gateway.answers = []
    # Another request is another call; the same one, in another process, is the same call.
    assert (await do(make().call(API, "/b"))).status_code == 200
    assert gateway.seen[-1].headers["payment-signature"] != first
    assert (await do(make().call(API, "/a"))).status_code == 200
    assert gateway.seen[-1].headers["payment-signature"] == first
    assert len(gateway.cashed) == 2


async def test_a_call_that_is_cancelled_leaves_its_authorisation_to_the_same_request(gateway, client_options):
    gateway.offer_authorizations()

    async def hang(request):
        if "payment-signature" in request.headers and not gateway.cashed:
            gateway.cashed[b"seen"] = request.headers["payment-signature"]
            await asyncio.Event().wait()
        return gateway.handle(request)

    client_options["transport"] = httpx.MockTransport(hang)
    async with AsyncTollwayClient(GATEWAY, **client_options) as client:
        async with asyncio.TaskGroup() as group:
            call = group.create_task(client.call(API))
            await until(lambda: gateway.cashed)
            call.cancel()
        assert call.cancelled()
        assert [signed.state for signed in client.authorizations()] == ["open"]
        assert (await client.call(API)).payment.rail == "x402"
        assert gateway.seen[-1].headers["payment-signature"] == gateway.cashed[b"seen"]
        assert len(client.authorizations()) == 1


class HeldStep:
    """A step of the store that its thread has done and whose end it waits to be let to: what a slow disk does to a call that is cancelled meanwhile."""

    def __init__(self, step):
        self._step = step
        self.is_begun, self._may_end = threading.Event(), threading.Event()

    def __call__(self, *args, **options):
        done = self._step(*args, **options)
        self.is_begun.set()
        assert self._may_end.wait(DEADLINE_S)
        return done

    async def cancel(self, call):
        """Cancels the call while its step is in the thread, and lets the step end once the call has heard of it."""
        await asyncio.to_thread(self.is_begun.wait, DEADLINE_S)
        call.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        is_over = call.done()
        self._may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not is_over, "the call ends while its step still reserves a payment"


async def test_a_call_cancelled_while_it_takes_an_authorisation_up_gives_it_back(
    gateway, client_options, monkeypatch
):
    gateway.offer_authorizations()
    unknown = gateway.refuse(503, "payment_outcome_unknown", {"paymentState": "held"})
    gateway.answers = [gateway._call, *[lambda _: unknown] * 9]
    async with AsyncTollwayClient(GATEWAY, **client_options) as client:
        with pytest.raises(CallHeld):
            await client.call(API)
        gateway.answers = []
        (shown,) = client.authorizations()
        with monkeypatch.context() as patched:
            step = HeldStep(client._driver.store.lease_authorization)
            patched.setattr(client._driver.store, "lease_authorization", step)
            await step.cancel(asyncio.get_running_loop().create_task(client.call(API)))
        await client.call(API)
        assert [signed.nonce for signed in client.authorizations()] == [shown.nonce]
        assert len(gateway.cashed) == 1


async def test_a_call_cancelled_while_it_stores_its_payment_leaves_it_to_the_next_call(
    gateway, client_options, chain, monkeypatch
):
    async with AsyncTollwayClient(GATEWAY, **client_options) as client:
        with monkeypatch.context() as patched:
            step = HeldStep(client._driver.store.store)
            patched.setattr(client._driver.store, "store", step)
            await step.cancel(asyncio.get_running_loop().create_task(client.call(API, rail="tx")))
        for _ in range(2):
            assert (await client.call(API, rail="tx")).status_code == 200
    assert len(set(chain.broadcasts)) == 2


async def test_a_cancelled_call_does_not_wait_for_the_question_of_its_caller(gateway, client_options):
    asked, answered = threading.Event(), threading.Event()

    def ask(quote):
        asked.set()
        assert answered.wait(DEADLINE_S)

    async with AsyncTollwayClient(GATEWAY, **client_options, before_signing=ask) as client:
        call = asyncio.get_running_loop().create_task(client.call(API))
        await asyncio.to_thread(asked.wait, DEADLINE_S)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        answered.set()
        assert client.payments() == ()


async def test_two_equal_calls_at_once_are_two_calls(gateway, client_options):
    gateway.offer_authorizations()
    async with AsyncTollwayClient(GATEWAY, **client_options) as client:
        answers = await asyncio.gather(*[client.call(API) for _ in range(5)])
    assert [answer.status_code for answer in answers] == [200] * 5
    assert len(gateway.cashed) == 5


async def test_an_open_authorisation_can_be_given_up_by_its_nonce(make, gateway):
    gateway.offer_authorizations()
    unknown = gateway.refuse(503, "payment_outcome_unknown", {"paymentState": "held"})
    gateway.answers = [gateway._call, *[lambda _: unknown] * 9]
    client = make()
    with pytest.raises(CallHeld):
        await do(client.call(API))
    (signed,) = client.authorizations()
    assert client.abandon(signed.name())
    assert not client.abandon(signed.name())
    gateway.answers = []
    await do(client.call(API))
    assert [signed.state for signed in client.authorizations()] == ["abandoned", "charged"]


@pytest.mark.parametrize("rail", ["mpp", "", "X402", None])
async def test_refuses_a_rail_that_it_does_not_know(make, rail):
    with pytest.raises(ValueError, match="rail"):
        make(rail=rail)


@pytest.mark.parametrize("name", ["PAYMENT-SIGNATURE", "X-Payment"])
async def test_refuses_a_payment_header_of_the_callers(make, name):
    with pytest.raises(ValueError, match="payment headers"):
        await do(make().call(API, headers={name: "x"}))


@pytest.mark.parametrize("state", ["charged", "held"])
@pytest.mark.parametrize("rail", ["tx", "x402"])
async def test_a_used_key_does_not_decide_about_the_payment(make, gateway, chain, rail, state):
    """The call of the key is paid and its answer is gone: nothing more is paid, and credit stays what it is."""
    gateway.offer_authorizations()
    client = make(rail=rail)
    if rail == "tx":
        await do(client.call(API, prepay=3))
    used = {"paymentState": state, "reason": "idempotency_key_used", "callId": "call_7"}
    asks = [] if rail == "tx" else [lambda _: gateway.refuse(402, "payment_required")]
    gateway.answers = [*asks, lambda _: gateway.refuse(409, "payment_already_used", used)]
    before = (len(chain.broadcasts), gateway.served)
    with pytest.raises(CallHeld) as held:
        await do(client.call(API, idempotency_key="k"))
    assert (held.value.call_id, held.value.transaction is None) == ("call_7", rail == "x402")
    assert (len(chain.broadcasts), gateway.served) == before
    assert [transfer.rest for transfer in client.payments()] == ([2 * PRICE] if rail == "tx" else [])


@pytest.mark.parametrize("rail", ["tx", "x402"])
async def test_a_session_signs_no_more_than_its_limit_and_another_one_begins_anew(make, gateway, chain, rail):
    gateway.offer_authorizations()
    client = make(rail=rail, session_budget="0.02 USDC")
    for number in range(2):
        assert (await do(client.call(API, f"/{number}"))).status_code == 200
    with pytest.raises(BudgetExhausted, match=r"limit of this session: 0\.02 of 0\.02 USDC"):
        await do(client.call(API, "/2"))
    assert gateway.served == 2
    other = make(rail=rail, session_budget="0.02 USDC")
    assert (await do(other.call(API, "/2"))).status_code == 200
    spending = other.spending()
    assert (sums(spending.total), sums(spending.session)) == ({"USDC": 3 * 10**16}, {"USDC": 10**16})


async def test_an_unsent_authorisation_does_not_count_in_the_session(make, gateway):
    gateway.offer_authorizations()
    client = make(rail="x402", session_budget="0.01 USDC", budget="0.01 USDC")

    def away(_):
        raise httpx.ConnectError("refused")

    for _ in range(3):
        gateway.answers = [lambda _: gateway.refuse(402, "payment_required"), *[away] * 3]
        with pytest.raises(GatewayUnreachable):
            await do(client.call(API))
    assert (await do(client.call(API))).status_code == 200
    assert sums(client.spending().session) == {"USDC": 10**16}


async def test_a_session_without_a_limit_counts_all_the_same(make, gateway):
    client = make()
    await do(client.call(API, prepay=2))
    assert sums(client.spending().session) == {"USDC": 2 * 10**16}
    allowance = client.allowance
    assert (allowance.session_budget, allowance.budget) == (None, None)
    assert allowance.max_price.atto_for("USDC") == 10**18


PAGE = {"apis": [], "total": 0, "page": 1, "limit": 20}


async def test_search_leaves_the_order_to_the_gateway_unless_it_is_given(make, gateway):
    asked = []

    def answer(request):
        asked.append(request.url.raw_path.decode())
        return httpx.Response(200, json=PAGE)

    gateway.answers = [answer] * 4
    client = make()
    page = SearchPage(apis=(), total=0, page=1, limit=20)
    assert await do(client.search("rain & sun", limit=5, tag=None)) == page
    await do(client.search(currency="USDC", max_price="0.05"))
    await do(client.search("rain", sort="price", currency="USDC"))
    await do(client.search("", verified=True))
    assert asked == [
        "/api/v2/apis?q=rain%20%26%20sun&limit=5",
        "/api/v2/apis?currency=USDC&maxPrice=0.05",
        "/api/v2/apis?q=rain&currency=USDC&sort=price",
        "/api/v2/apis?verified=true",
    ]


async def test_describe_falls_back_to_details_only_where_there_is_no_such_document(make, gateway):
    def no_document(_):
        return gateway.refuse(404, "route_not_found")

    client = make()
    document = {"id": "api_1", "name": "Quotes", "agent": 1}
    gateway.answers = [lambda _: httpx.Response(200, json=document)] * 2
    described = await do(client.describe("api_1"))
    assert (described.name, json.loads(described.text)) == ("Quotes", document)
    assert await do(client.fetch_agent_document("api_1")) == document
    gateway.answers = [no_document, lambda _: httpx.Response(200, json={"id": "api_1"})]
    assert await do(client.fetch_agent_document("api_1")) == {"id": "api_1"}
    assert [request.url.path for request in gateway.seen[-2:]] == [
        "/api/v2/apis/api_1/agent",
        "/api/v2/apis/api_1",
    ]
    for status, code in ((404, "api_not_found"), (410, "api_retired"), (503, "storage_unavailable")):
        gateway.answers = [lambda _, status=status, code=code: gateway.refuse(status, code)]
        with pytest.raises(GatewayRefused) as refused:
            await do(client.describe("api_1"))
        assert refused.value.code == code
        assert gateway.answers == []


def coded(gateway, encoding, content):
    headers = {
        **gateway.relayed("charged", rest=0),
        "content-encoding": encoding,
        "content-type": "text/plain",
    }
    return httpx.Response(200, headers=headers, stream=Bytes(content))


class Bytes(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A response as it arrives from the network, with its content coding."""

    def __init__(self, content):
        self.content = content

    def __iter__(self):
        yield self.content

    async def __aiter__(self):
        yield self.content


def many(count: int) -> bytes:
    return b"".join(gzip.compress(b"%d," % number, mtime=0) for number in range(count))


@pytest.mark.parametrize(
    ("encoding", "content", "read", "named"),
    [
        ("gzip", gzip.compress(b"hello"), b"hello", None),
        ("deflate", zlib.compress(b"hello"), b"hello", None),
        ("gzip", b"no gzip at all", b"no gzip at all", "gzip"),
        ("gzip", gzip.compress(b"hello", mtime=0)[:-9], gzip.compress(b"hello", mtime=0)[:-9], "gzip"),
        ("x-odd", b"whatever", b"whatever", "x-odd"),
        ("identity", b"hello", b"hello", "identity"),
        ("gzip", many(3), b"0,1,2,", None),
        ("gzip", many(3) + b"\0\0", b"0,1,2,", None),
        ("gzip", many(MEMBERS_MAX), b"".join(b"%d," % number for number in range(MEMBERS_MAX)), None),
        ("gzip", many(MEMBERS_MAX + 1), many(MEMBERS_MAX + 1), "gzip"),
        ("gzip", many(2) + b"\x1f\x8b half", many(2) + b"\x1f\x8b half", "gzip"),
    ],
    ids=(
        "gzip",
        "deflate",
        "not gzip",
        "half of gzip",
        "unknown",
        "none",
        "three members",
        "padding",
        "as many as count",
        "one more",
        "half a member",
    ),
)
async def test_a_paid_answer_arrives_whatever_its_coding(make, gateway, encoding, content, read, named):
    gateway.price = 0
    gateway.answers = [lambda _: coded(gateway, encoding, content)]
    answer = await do(make().call(API))
    assert (answer.content, answer.headers.get("content-encoding")) == (read, named)


@pytest.mark.parametrize(
    "content",
    [gzip.compress(bytes(10_001)), gzip.compress(bytes(6_000)) * 2],
    ids=("one member", "two members"),
)
async def test_an_answer_that_swells_is_too_long(make, gateway, monkeypatch, content):
    monkeypatch.setattr("tollway.client.client.RESPONSE_BYTES_MAX", 10_000)
    gateway.price = 0
    gateway.answers = [lambda _: coded(gateway, "gzip", content)]
    with pytest.raises(GatewayUnreachable, match="too long to be kept"):
        await do(make().call(API))


@pytest.mark.parametrize(
    ("encoding", "content", "detail"),
    [
        ("gzip", gzip.compress(b'{"code": "rate_limited", "detail": "later"}'), "later"),
        ("gzip", gzip.compress(bytes(64 * 1024 * 1024)), "The gateway responded with status 429."),
        ("gzip", b"no gzip", "The gateway responded with status 429."),
        ("br", b"whatever", "The gateway responded with status 429."),
    ],
    ids=("gzip", "a bomb", "not gzip", "unknown"),
)
async def test_a_coded_problem_is_bounded_and_never_fails(make, gateway, encoding, content, detail):
    """64 KiB of gzip that become 64 MiB are no document; nothing inflates them."""
    kind = ("content-type", "application/problem+json")

    def refuse(_: httpx.Request) -> httpx.Response:
        headers = [kind, ("content-encoding", encoding)]
        return httpx.Response(429, headers=headers, stream=Bytes(content))

    gateway.answers = [refuse]
    answer = await do(make().call(API))
    assert (answer.status_code, answer.payment.state) == (429, "none")
    assert len(answer.content) < 1_000_000
    assert detail in (answer.text or detail)
    assert "content-encoding" not in answer.headers


async def test_a_stream_that_does_not_match_its_coding_is_an_error_of_the_client(make, gateway):
    gateway.price = 0
    gateway.answers = [lambda _: coded(gateway, "gzip", b"no gzip")] * 2
    client = make()
    with pytest.raises(ResponseUnreadable, match="iter_raw"):
        await read_stream(client)


async def read_stream(client):
    if isinstance(client, TollwayClient):
        with client.stream(API) as response:
            return b"".join(response.iter_bytes())
    async with client.stream(API) as response:
        return b"".join([chunk async for chunk in response.aiter_bytes()])


@pytest.mark.parametrize(
    ("charset", "text"),
    [
        ("iso-8859-1", "caf\xe9"),
        ("windows-1252", "caf\xe9"),
        ("utf-8", "caf\ufffd"),
        ("zlib", "caf\ufffd"),
        ("idna", "caf\ufffd"),
        ("punycode", "caf\ufffd"),
        ("unicode_escape", "caf\ufffd"),
        ("undefined", "caf\ufffd"),
        ("x" * 500, "caf\ufffd"),
        ("utf-8\x00", "caf\ufffd"),
    ],
)
async def test_text_never_fails_whatever_charset_a_provider_names(make, gateway, charset, text):
    gateway.price = 0
    headers = [("content-type", f"text/plain; charset={charset}")]
    gateway.answers = [lambda _: httpx.Response(200, headers=headers, stream=Bytes(b"caf\xe9"))]
    answer = await do(make().call(API))
    assert answer.text == text


# ---- Metered calls.


async def test_a_metered_stream_is_returned_while_its_maximum_is_held(make, gateway):
    gateway.actual = 3_000
    answer = await do(make().call(API))
    assert (answer.status_code, answer.content) == (200, b"data: {}\n\n")
    assert (answer.payment.state, answer.payment.price, answer.payment.price_max) == (
        "held",
        None,
        "0.01 USDC",
    )


async def test_what_metered_calls_leave_pays_the_next_ones(make, gateway, chain):
    gateway.actual = 2_500
    client = make()
    for _ in range(3):  # the head of the first one names no rest: the maximum is the whole payment
        assert (await do(client.call(API, prepay=1))).status_code == 200
        gateway.price = 2_500
    assert (gateway.served, len(chain.broadcasts)) == (3, 1)


async def test_an_authorisation_never_pays_a_metered_call(make, gateway, chain):
    gateway.actual = 2_500
    gateway.offer_authorizations()
    answer = await do(make().call(API))
    assert (answer.payment.rail, len(chain.broadcasts), gateway.cashed) == ("tx", 1, {})
    with pytest.raises(CannotPay):
        await do(make(rail="x402").call(API))


async def test_the_maximum_of_a_metered_call_counts_against_max_price(make, gateway, chain):
    gateway.actual = 1
    with pytest.raises(PriceAboveMax, match=r"costs up to 0\.01 USDC; allowed in USDC: 0\.009999"):
        await do(make(max_price="0.009999 USDC").call(API))
    assert chain.broadcasts == []
    assert (await do(make(max_price="0.01 USDC").call(API))).status_code == 200
