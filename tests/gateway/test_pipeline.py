"""Whole calls through the pipeline to an upstream of raw bytes: each refusal in its order, and each served call.

After a refusal the ledger is unchanged and the upstream has received nothing."""

import asyncio
import base64
import gc
import json
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal

import pytest

from tests.kit.asgi_exchange import Exchange, HeaderPairs
from tests.kit.gateway import CHAIN, NOW_MS, PAY_TO, InProcessGateway, open_gateway
from tests.kit.ledger_records import claim_on, close_of, operator_origin
from tests.kit.metering import sample_metering
from tests.kit.payer import KeyWallet
from tests.kit.proxy_requests import GivenBody, sample_request
from tests.kit.stores import open_catalog
from tests.kit.upstream import Arrived, hang_up, plain, raw, say_nothing
from tollway.errors import Code
from tollway.gateway.messages import Disconnected, ProblemResponse
from tollway.ids import ChainId, TxHash, keccak256
from tollway.ledger.records import CallState, Rail
from tollway.money import Price
from tollway.registry.listing import ChargeOn, Operation, RateLimit, UpstreamAuth

THIRD_PARTY = KeyWallet.named("stranger")
CallCase = Callable[[InProcessGateway], Awaitable[Exchange]]


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway(
        upload_bytes_max=1_000, bound_body_bytes_max=500, failed_calls_per_window=3
    ) as small:
        yield small


async def picture(gateway: InProcessGateway) -> tuple[Any, ...]:
    report = await gateway.ledger.audit()
    assert report.is_balanced
    return (report.payments, report.calls, len(gateway.upstream.arrived))


# ---------------------------------------------------------------------- refusals


def operation(method: str, path: str, price: str) -> Operation:
    return Operation(method=method, path=path, price=Price.parse(price))


def unpaid(
    method: str = "GET",
    target: str = "",
    *,
    headers: HeaderPairs = (),
    chunks: tuple[bytes, ...] = (),
    listing: str = "api_quotes",
    **changes: Any,
) -> CallCase:
    """Asks without a payment. `changes`: of the published listing."""

    async def ask(gateway: InProcessGateway) -> Exchange:
        await gateway.publish(**changes)
        return await gateway.ask(method, target, headers, chunks, listing=listing)

    return ask


def plain_form(change: Callable[[Any], Any] = list, *, units: int = 10_000, **changes: Any) -> CallCase:
    """Asks with the headers of a known payment in the plain form. `change`: of these headers."""

    async def ask(gateway: InProcessGateway) -> Exchange:
        await gateway.publish(**changes)
        return await gateway.ask(headers=change(list(await gateway.plain_payment(units))))

    return ask


def plus(name: str, value: str) -> CallCase:
    return plain_form(lambda proof: [*proof, (name, value)])


def cut_hash(part: slice) -> CallCase:
    return plain_form(lambda proof: [("X-Payment-Tx", proof[0][1][part]), proof[1]])


def bound_form(*chunks: bytes, signed: bytes = b"", promises: bool = False, **more: Any) -> CallCase:
    """Asks with a bound signature over the body `signed`, and sends `chunks`."""

    async def ask(gateway: InProcessGateway) -> Exchange:
        await gateway.publish()
        payment = await gateway.pay()
        method = "POST" if signed else "GET"
        proof = gateway.bound_proof(payment.tx_hash, method=method, body=signed, promises=promises, **more)
        return await gateway.ask(method, "", proof, chunks)

    return ask


def unseen(*more: tuple[str, str]) -> CallCase:
    """Asks with a transaction that neither the ledger nor the chain has."""

    async def ask(gateway: InProcessGateway) -> Exchange:
        await gateway.publish()
        return await gateway.ask(headers=[*gateway.plain_proof(TxHash(keccak256(b"nothing"))), *more])

    return ask


def after(change: Callable[[InProcessGateway], object], case: CallCase) -> CallCase:
    """Changes the gateway before the case."""

    async def ask(gateway: InProcessGateway) -> Exchange:
        change(gateway)
        return await case(gateway)

    return ask


async def too_large(gateway: InProcessGateway) -> Exchange:
    await gateway.publish()
    return await gateway.ask("POST", "", await gateway.plain_payment(), [b"x" * 1_001])


async def wrong_currency(gateway: InProcessGateway) -> Exchange:
    listing = await gateway.publish()
    await gateway.revise(listing, currency="ETH")
    gateway.now_ms += 1_300_000  # the old price is forgotten, the old asset still counts
    return await gateway.ask(headers=await gateway.plain_payment())


async def payment_held(gateway: InProcessGateway) -> Exchange:
    await gateway.publish()
    payment = await gateway.pay()
    await gateway.ledger.mark_restored(origin=operator_origin(gateway.now_ms))
    return await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))


async def payment_gone(gateway: InProcessGateway) -> Exchange:
    await gateway.publish()
    (payment,) = await gateway.ledger.record_payments(
        [gateway.sample_payment(tx_hash=TxHash(keccak256(b"gone")), is_final=False)], now_ms=gateway.now_ms
    )
    await gateway.ledger.mark_gone(payment.id, now_ms=gateway.now_ms)
    return await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))


async def ledger_away(gateway: InProcessGateway) -> Exchange:
    await gateway.publish()
    payment = await gateway.pay()
    gateway.ledger.away = True
    return await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))


no_payment = unpaid("GET", "/quote?x=1")
wrong_method = unpaid("GET", methods=("POST", "PUT"))
too_little = plain_form(units=4_000)
POST_ONLY: Any = {"status": "paused", "methods": ("POST",)}
SECRET = UpstreamAuth(location="header", name="X-Key", value="secret")
OTHER_RAILS = [("X-PAYMENT", "e30="), ("Authorization", "Payment abc")]
PRICED: Any = {"operations": (operation("GET", "/a", "0.5"),), "other_paths": "refuse"}
DEAR: Any = {"operations": (operation("GET", "/dear", "5"),)}
OTHER_NETWORK = ("X-Payment-Network", "eip155:1")


def row(
    name: str,
    case: CallCase,
    code: Code,
    status: int,
    *,
    state: str = "none",
    reason: str | None = None,
    has_terms: bool = False,
    has_delay: bool = False,
) -> Any:
    return pytest.param(case, code, status, state, reason, has_terms, has_delay, id=name)


INVALID, EXPIRED, TOO_LARGE = Code.INVALID_REQUEST, Code.SIGNATURE_EXPIRED, Code.PAYLOAD_TOO_LARGE
UNVERIFIED, PENDING = Code.PAYMENT_VERIFICATION_FAILED, Code.PAYMENT_PENDING
BAD_HEADER, NO_HEADER, BAD_HASH = "malformed_header", "missing_header", "body_hash_mismatch"
REFUSALS = (
    row("two_hosts", unpaid(headers=[("host", "other.example")]), INVALID, 400),
    row("loop", unpaid(headers=[("cdn-loop", "other, GW.example.com;v=1")]), Code.LOOP_DETECTED, 508),
    row("unknown", unpaid(listing="api_nothing"), Code.API_NOT_FOUND, 404),
    row("retired", unpaid(retired_ms=NOW_MS, suspended_ms=NOW_MS, **POST_ONLY), Code.API_RETIRED, 410),
    row("suspended", unpaid(suspended_ms=NOW_MS, **POST_ONLY), Code.API_PAUSED, 503, reason="suspended"),
    row("paused", unpaid(**POST_ONLY), Code.API_PAUSED, 503, has_delay=True),
    row("wrong_method", wrong_method, Code.METHOD_NOT_ALLOWED, 405),
    row("trace", unpaid("TRACE", upstream_auth=SECRET), Code.METHOD_NOT_ALLOWED, 405),
    row("lower_case_method", unpaid("get"), Code.METHOD_NOT_ALLOWED, 405),
    row("other_path", unpaid("GET", "/b", **PRICED), Code.ROUTE_NOT_FOUND, 404),
    row("ambiguous_path", unpaid("GET", "/DEAR", **DEAR), INVALID, 400),
    row("path_that_leaves", unpaid("GET", "/%2e%2e/admin"), INVALID, 400),
    row("no_payment", no_payment, Code.PAYMENT_REQUIRED, 402, has_terms=True),
    row(
        "no_payment_and_a_huge_body",
        unpaid("POST", "/quote", chunks=(b"x" * 2_000,)),
        Code.PAYMENT_REQUIRED,
        402,
        has_terms=True,
    ),
    row("hash_without_signature", plain_form(lambda proof: proof[:1]), INVALID, 400, reason=NO_HEADER),
    row("signature_without_hash", plain_form(lambda proof: proof[1:]), INVALID, 400, reason=NO_HEADER),
    row("doubled_hash", plain_form(lambda proof: [*proof, proof[0]]), INVALID, 400),
    row("short_hash", cut_hash(slice(None, -1)), INVALID, 400, reason=BAD_HEADER),
    row("unprefixed_hash", cut_hash(slice(2, None)), INVALID, 400, reason=BAD_HEADER),
    row("bad_params", plus("X-Signature-Params", "v=2"), INVALID, 400, reason=BAD_HEADER),
    row("bad_network", plus("X-Payment-Network", "base"), INVALID, 400, reason=BAD_HEADER),
    row("two_rails", plus("PAYMENT-SIGNATURE", "e30="), INVALID, 400, reason="more_than_one_rail"),
    row("two_rails_without_ours", unpaid(headers=OTHER_RAILS), INVALID, 400),
    row("nominated_proof", plus("Connection", "X-Payment-Tx"), INVALID, 400),
    row("too_large", too_large, TOO_LARGE, 413),
    row("long_idempotency_key", plus("Idempotency-Key", "k" * 256), INVALID, 400),
    row(
        "plain_where_bound_is_asked",
        plain_form(signature="bound"),
        INVALID,
        400,
        state="released",
        reason="bound_signature_required",
    ),
    row("expired", bound_form(valid_for_s=-1), EXPIRED, 401),
    row("valid_for_too_long", bound_form(valid_for_s=306), EXPIRED, 401, reason="valid_until_too_far"),
    row("bound_body_too_large", bound_form(b"x" * 501, signed=b"x" * 501), TOO_LARGE, 413),
    row(
        "body_unlike_its_hash",
        bound_form(b"two", signed=b"one", promises=True),
        INVALID,
        400,
        reason=BAD_HASH,
    ),
    row(
        "hash_of_a_body_that_is_not_there",
        bound_form(signed=b"one", promises=True),
        INVALID,
        400,
        reason=BAD_HASH,
    ),
    row("network_not_sold_on", unseen(OTHER_NETWORK), UNVERIFIED, 402, reason="wrong_chain", has_terms=True),
    row(
        "another_network_than_it_is_known_on",
        plus(*OTHER_NETWORK),
        INVALID,
        400,
        state="released",
        reason="wrong_chain",
    ),
    row("not_mined", unseen(), PENDING, 409, reason="not_mined", has_delay=True),
    row(
        "no_chain",
        after(lambda gateway: gateway.chain.disconnect(CHAIN), unseen()),
        Code.CHAIN_UNAVAILABLE,
        503,
        has_delay=True,
    ),
    row(
        "blocked_wallet",
        after(lambda gateway: gateway.blocked.add(gateway.wallet.address), plain_form()),
        Code.WALLET_BLOCKED,
        403,
    ),
    row(
        "dearer_than_allowed", plus("Tollway-Max-Price", "0.009"), Code.PRICE_ABOVE_MAX, 412, state="released"
    ),
    row("bad_price_max", plus("Tollway-Max-Price", "1e3"), INVALID, 400),
    row("too_little", too_little, Code.PAYMENT_INSUFFICIENT, 402, state="released", has_terms=True),
    row("wrong_currency", wrong_currency, UNVERIFIED, 402, reason="wrong_token", has_terms=True),
    row("payment_held", payment_held, Code.PAYMENT_HELD, 409, state="held"),
    row("payment_gone", payment_gone, PENDING, 409, reason="not_mined", has_delay=True),
)


@pytest.mark.parametrize(
    ("case", "code", "status", "payment_state", "reason", "has_terms", "has_delay"), REFUSALS
)
async def test_refuses_in_order_and_nothing_changes(
    gateway: InProcessGateway,
    case: CallCase,
    code: Code,
    status: int,
    payment_state: str,
    reason: str | None,
    has_terms: bool,
    has_delay: bool,
) -> None:
    answer = await case(gateway)
    problem = answer.problem
    assert (problem["code"], answer.status, problem["status"]) == (code.value, status, status)
    assert problem["paymentState"] == payment_state == answer.headers["tollway-payment-state"]
    assert ("payment" in problem) == has_terms
    assert has_terms == (status == 402)
    if reason is not None:
        assert problem["reason"] == reason
    assert ("retry-after" in answer.headers) == has_delay
    assert answer.headers["proxy-status"].startswith('"gw.example.com"; error=')
    assert answer.headers["x-request-id"] == problem["requestId"] == "req_test"
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["cache-control"] == "no-store"
    _, calls, seen = await picture(gateway)
    assert (calls, seen) == (0, 0)
    assert gateway.outcomes == [code.value]


async def test_refuses_while_the_ledger_is_unavailable_without_a_402(
    gateway: InProcessGateway,
) -> None:
    answer = await ledger_away(gateway)
    assert (answer.status, answer.problem["code"]) == (503, "storage_unavailable")
    assert "payment" not in answer.problem
    assert answer.headers["retry-after"]
    assert not gateway.upstream.arrived


async def test_a_405_names_what_is_possible(gateway: InProcessGateway) -> None:
    assert (await wrong_method(gateway)).headers["allow"] == "POST, PUT"
    await gateway.publish("api_any")
    answer = await gateway.ask("TRACE", listing="api_any")
    assert answer.headers["allow"] == "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"


async def test_a_402_carries_every_number_needed_to_pay(gateway: InProcessGateway) -> None:
    answer = await no_payment(gateway)
    terms = answer.problem["payment"]
    assert (terms["amount"], terms["currency"]) == ("0.01", "USDC")
    assert terms["expiresAt"] == "2027-01-15T08:10:00.000Z"
    tx, x402 = terms["options"]
    assert tx == {
        "rail": "tx",
        "network": "eip155:84532",
        "chainId": 84532,
        "asset": "eip155:84532/erc20:0x036cbd53842c5426634e7929541ec2318f3dcf7e",
        "token": "0x036CbD53842c5426634e7929541eC2318f3dCF7e",
        "symbol": "USDC",
        "decimals": 6,
        "amount": "10000",
        "payTo": str(PAY_TO),
        "confirmations": 1,
        "headers": ["X-Payment-Tx", "X-Signature"],
    }
    numbers = {name: tx[name] for name in tx if name not in ("rail", "confirmations", "headers")}
    assert x402 == {
        "rail": "x402",
        "version": 2,
        "header": "PAYMENT-SIGNATURE",
        "maxTimeoutSeconds": 65,
        "extra": {"name": "USDC", "version": "2"},
        **numbers,
    }


async def test_a_402_to_head_has_no_body(gateway: InProcessGateway) -> None:
    await gateway.publish()
    answer = await gateway.ask("HEAD")
    assert (answer.status, answer.body) == (402, b"")
    assert int(answer.headers["content-length"]) > 500


DOCUMENT = {
    "openapi": "3.1.0",
    "paths": {"/q": {"get": {"parameters": [
        {"name": "symbol", "in": "query", "required": True, "schema": {"type": "string"}}
    ]}}},
}  # fmt: skip


async def test_a_call_without_a_required_parameter_spends_nothing(gateway: InProcessGateway) -> None:
    await gateway.publish(openapi=DOCUMENT)
    payment = await gateway.pay()
    assert (await gateway.ask("GET", "/q")).status == 402  # never a parameter check before the terms
    refused = await gateway.ask("GET", "/q?other=1", gateway.plain_proof(payment.tx_hash))
    assert (refused.status, refused.problem["code"]) == (422, "validation_failed")
    assert [error["parameter"] for error in refused.problem["errors"]] == ["symbol"]
    assert refused.problem["paymentState"] == "none"
    assert not gateway.upstream.arrived
    served = await gateway.ask("GET", "/q?symbol=A", gateway.plain_proof(payment.tx_hash))
    assert served.status == 200


NEEDS_BODY = {"openapi": "3.1.0", "paths": {"/q": {"post": {"requestBody": {"required": True}}}}}


async def test_a_call_without_a_required_body_spends_nothing(gateway: InProcessGateway) -> None:
    await gateway.publish(openapi=NEEDS_BODY)
    payment = await gateway.pay()
    assert (await gateway.ask("POST", "/q")).status == 402
    refused = await gateway.ask("POST", "/q", gateway.plain_proof(payment.tx_hash))
    assert (refused.status, refused.problem["code"]) == (422, "validation_failed")
    assert not gateway.upstream.arrived
    served = await gateway.ask("POST", "/q", gateway.plain_proof(payment.tx_hash), [b"x"])
    assert served.status == 200


async def test_a_documented_operation_is_sold_where_nothing_else_is(gateway: InProcessGateway) -> None:
    await gateway.publish(openapi=NEEDS_BODY, other_paths="refuse")
    assert (await gateway.ask("POST", "/q")).status == 402
    for method, target in (("GET", "/q"), ("POST", "/other"), ("POST", "/q%2Fother"), ("POST", "")):
        refused = await gateway.ask(method, target)
        assert (refused.status, refused.problem["code"]) == (404, "route_not_found")
    assert (await gateway.ask("POST", "/q", await gateway.plain_payment(), [b"x"])).status == 200
    assert len(gateway.upstream.arrived) == 1


async def test_a_missing_sum_is_named(gateway: InProcessGateway) -> None:
    problem = (await too_little(gateway)).problem
    assert (problem["available"], problem["missing"], problem["currency"]) == ("0.004", "0.006", "USDC")


async def test_a_metered_call_needs_its_maximum(gateway: InProcessGateway) -> None:
    await gateway.publish(metering=sample_metering())
    payment = await gateway.pay(4_000)
    refused = await gateway.ask("GET", "", gateway.plain_proof(payment.tx_hash))
    assert refused.problem["code"] == "payment_insufficient"
    assert "the call costs up to 0.01. Send the missing 0.006 USDC" in refused.problem["detail"]


async def test_sending_the_difference_repairs_an_underpayment(gateway: InProcessGateway) -> None:
    await too_little(gateway)
    answer = await gateway.ask(headers=await gateway.plain_payment(6_000))
    assert answer.status == 200
    assert answer.headers["tollway-credit-remaining"] == "0 USDC"
    await gateway.check_balanced()


async def test_a_stranger_may_not_spend_a_known_payment(gateway: InProcessGateway) -> None:
    """The ledger has no payment of this wallet, so the chain is read; it has no transaction with this hash."""
    await gateway.publish()
    payment = await gateway.pay()
    answer = await gateway.ask(headers=gateway.plain_proof(payment.tx_hash, wallet=THIRD_PARTY))
    assert answer.problem["code"] == "payment_pending"
    assert not gateway.upstream.arrived
    assert await gateway.remaining_units(payment) == 10_000


@pytest.mark.parametrize("field", ["method", "target", "body", "listing"])
async def test_a_bound_signature_counts_for_its_own_request_only(
    gateway: InProcessGateway, field: str
) -> None:
    await gateway.publish()
    await gateway.publish("api_other")
    payment = await gateway.pay()
    signed: dict[str, Any] = {"method": "POST", "target": "/a?b=1", "body": b"body", "listing": "api_quotes"}
    other = {"method": "PUT", "target": "/a?b=2", "body": b"BODY", "listing": "api_other"}
    shown = {**signed, field: other[field]}
    proof = gateway.bound_proof(payment.tx_hash, **signed)
    answer = await gateway.ask(
        shown["method"], shown["target"], proof, [shown["body"]], listing=shown["listing"]
    )
    assert answer.problem["code"] == "payment_pending"  # another signer, without a transfer on the chain
    assert not gateway.upstream.arrived
    assert (await gateway.ask("POST", "/a?b=1", proof, [b"body"])).status == 200


async def test_an_exhausted_payment_is_refused_without_terms_and_names_its_calls(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish()
    proof = await gateway.plain_payment()
    first = await gateway.ask(headers=proof)
    for _ in range(2):
        answer = await gateway.ask(headers=proof)
        assert (answer.status, answer.problem["code"]) == (409, "payment_already_used")
        assert answer.problem["paymentState"] == "charged"
        assert "payment" not in answer.problem
        assert answer.problem["callIds"] == [first.headers["tollway-call-id"]]
    assert len(gateway.upstream.arrived) == 1


def refuse_to_dial(*_args: Any) -> Any:
    raise AssertionError("dialled for nothing")


@pytest.mark.parametrize("form", ["plain", "bound", "the same bound one"])
async def test_a_spent_payment_opens_no_connection_to_its_upstream(
    gateway: InProcessGateway, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    await gateway.publish()
    payment = await gateway.pay()
    first = gateway.plain_proof(payment.tx_hash) if form == "plain" else gateway.bound_proof(payment.tx_hash)
    assert (await gateway.ask(headers=first)).status == 200
    monkeypatch.setattr(gateway.http_client, "connect", refuse_to_dial)
    for _ in range(3):
        proof = gateway.bound_proof(payment.tx_hash) if form == "bound" else first
        answer = await gateway.ask(headers=proof)
        code = "nonce_reused" if form == "the same bound one" else "payment_already_used"
        assert (answer.problem["code"], "payment" in answer.problem) == (code, False)


async def test_the_first_bound_signature_ends_the_plain_form(gateway: InProcessGateway) -> None:
    await gateway.publish()
    payment = await gateway.pay(20_000)
    assert (await gateway.ask(headers=gateway.bound_proof(payment.tx_hash))).status == 200
    answer = await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
    assert (answer.status, answer.problem["reason"]) == (400, "bound_signature_required")
    assert len(gateway.upstream.arrived) == 1


async def test_an_operator_can_require_the_bound_form() -> None:
    async with open_gateway(is_bound_required=True) as gateway:
        await gateway.publish()
        payment = await gateway.pay()
        answer = await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
        assert answer.problem["reason"] == "bound_signature_required"
        assert (await gateway.ask(headers=gateway.bound_proof(payment.tx_hash))).status == 200


async def test_failed_calls_end_in_a_budget_and_the_payment_is_untouched(gateway: InProcessGateway) -> None:
    await gateway.publish()
    gateway.upstream.answer = plain(status=500)
    payment = await gateway.pay()
    proof = gateway.plain_proof(payment.tx_hash)
    for _ in range(3):
        assert (await gateway.ask(headers=proof)).status == 500
    answer = await gateway.ask(headers=proof)
    assert (answer.status, answer.problem["code"]) == (429, "failed_call_budget_exhausted")
    assert answer.problem["paymentState"] == "released"
    assert 1 <= int(answer.headers["retry-after"]) <= 600
    assert answer.headers["ratelimit-policy"] == '"failed-calls";q=3;w=600'
    assert answer.headers["ratelimit"].startswith('"failed-calls";r=0;t=')
    assert len(gateway.upstream.arrived) == 3
    assert await gateway.remaining_units(payment) == 10_000


async def test_the_failures_of_one_caller_do_not_close_the_listing_for_others(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish()
    gateway.upstream.answer = plain(status=404)
    proof = gateway.plain_proof((await gateway.pay()).tx_hash)
    for _ in range(3):
        await gateway.ask(headers=proof)
    assert (await gateway.ask(headers=proof)).status == 429
    gateway.upstream.answer = plain()
    answer = await gateway.ask(headers=await gateway.plain_payment(wallet=THIRD_PARTY), client="198.51.100.9")
    assert answer.status == 200


async def test_a_listing_has_a_rate_of_its_own_per_payer(gateway: InProcessGateway) -> None:
    await gateway.publish(rate_limit=RateLimit(calls=1, per_s=60))
    mine, theirs = await gateway.pay(50_000), await gateway.pay(50_000, wallet=THIRD_PARTY)
    assert (await gateway.ask(headers=gateway.plain_proof(mine.tx_hash))).status == 200
    answer = await gateway.ask(headers=gateway.plain_proof(mine.tx_hash))
    assert (answer.status, answer.problem["code"]) == (429, "rate_limited")
    assert answer.headers["ratelimit-policy"] == '"listing";q=1;w=60'
    assert answer.headers["retry-after"]
    assert await gateway.remaining_units(mine) == 40_000
    assert (await gateway.ask(headers=gateway.plain_proof(theirs.tx_hash, wallet=THIRD_PARTY))).status == 200


async def test_an_endpoint_that_may_not_be_dialled_any_more_costs_nothing(gateway: InProcessGateway) -> None:
    await gateway.publish(endpoint="http://169.254.169.254/latest")
    payment = await gateway.pay()
    answer = await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
    assert (answer.status, answer.problem["code"]) == (502, "upstream_unreachable")
    assert await gateway.remaining_units(payment) == 10_000


# ---------------------------------------------------------------------- served calls


async def forms(gateway: InProcessGateway, form: str, tx_hash: TxHash) -> Any:
    return {
        "plain_text": gateway.plain_proof(tx_hash),
        "plain_raw": gateway.plain_proof(tx_hash, is_raw=True),
        "bound": gateway.bound_proof(tx_hash, target="/q"),
        "upper_case_hash": [
            ("X-Payment-Tx", "0X" + str(tx_hash)[2:].upper()),
            gateway.plain_proof(tx_hash)[1],
        ],
        "with_network": [*gateway.plain_proof(tx_hash), ("X-Payment-Network", "eip155:84532")],
        "price_max_met": [*gateway.plain_proof(tx_hash), ("Tollway-Max-Price", "0.01")],
    }[form]


@pytest.mark.parametrize(
    "form", ["plain_text", "plain_raw", "bound", "upper_case_hash", "with_network", "price_max_met"]
)
async def test_serves_every_form_of_proof(gateway: InProcessGateway, form: str) -> None:
    await gateway.publish()
    payment = await gateway.pay(25_000)
    answer = await gateway.ask("GET", "/q", await forms(gateway, form, payment.tx_hash))
    assert (answer.status, answer.body) == (200, b"ok")
    headers = answer.headers
    assert headers["tollway-payment-state"] == "charged"
    assert headers["tollway-price"] == "0.01 USDC"
    assert headers["tollway-credit-remaining"] == "0.015 USDC"
    assert headers["proxy-status"] == '"gw.example.com"; received-status=200'
    assert headers["x-request-id"] == "req_test"
    assert headers["access-control-allow-origin"] == "*"
    assert "Tollway-Call-Id" in headers["access-control-expose-headers"]
    receipt = json.loads(base64.b64decode(headers["payment-response"]))
    assert receipt == {
        "success": True,
        "transaction": str(payment.tx_hash),
        "network": "eip155:84532",
        "payer": str(gateway.wallet.address),
        "amount": "10000",
    }
    (call,) = await gateway.history()
    assert (call.id, call.state, call.rail) == (headers["tollway-call-id"], CallState.CONSUMED, Rail.TX)
    assert gateway.chain.requests["fetch_facts", CHAIN] == 0
    assert gateway.outcomes == ["charged"]


async def test_a_record_has_the_latencies_of_caller_and_upstream(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish()
    payment = await gateway.pay()

    async def slow(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        gateway.now_ms += 250
        await plain()(arrived, writer)

    gateway.upstream.answer = slow
    await gateway.ask(headers=gateway.bound_proof(payment.tx_hash))
    (call,) = await gateway.history()
    assert (call.latency_ms, call.upstream_latency_ms) == (250, 250)
    assert gateway.upstream_s == [0.25]


async def test_one_payment_buys_many_calls(gateway: InProcessGateway) -> None:
    await gateway.publish()
    proof = await gateway.plain_payment(30_000)
    left = [(await gateway.ask(headers=proof)).headers["tollway-credit-remaining"] for _ in range(3)]
    assert left == ["0.02 USDC", "0.01 USDC", "0 USDC"]
    assert [call.rail for call in await gateway.history()] == [Rail.CREDIT, Rail.CREDIT, Rail.TX]


async def test_fifty_callers_and_a_payment_for_ten_make_ten_requests(gateway: InProcessGateway) -> None:
    await gateway.publish()
    proof = await gateway.plain_payment(100_000)
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(gateway.ask(headers=proof)) for _ in range(50)]
    statuses = sorted(task.result().status for task in asking)
    assert statuses == [200] * 10 + [409] * 40
    assert len(gateway.upstream.arrived) == 10
    await gateway.check_balanced()


@pytest.mark.parametrize(
    ("method", "path", "price"),
    [
        ("GET", "/v1/cities/berlin", "0.02"),
        ("HEAD", "/v1/cities/berlin", "0.02"),
        ("GET", "/v1/cities/berlin/", "0.02"),
        ("GET", "/v1//cities/berlin;a=b", "0.02"),
        ("GET", "/v1/c%69ties/berlin", "0.02"),
        ("GET", "/v1/cities/rome", "0.03"),
        ("POST", "/v1/cities/berlin", "0.01"),
        ("GET", "/v1/rivers", "0.01"),
    ],
)
async def test_charges_each_operation_its_own_price(
    gateway: InProcessGateway, method: str, path: str, price: str
) -> None:
    await gateway.publish(
        operations=(
            operation("GET", "/v1/cities/{city}", "0.02"),
            operation("GET", "/v1/cities/rome", "0.03"),
        )
    )
    quoted = await gateway.ask(method, path)
    assert quoted.status == 402
    if method != "HEAD":
        assert quoted.problem["payment"]["amount"] == price
    answer = await gateway.ask(method, path, await gateway.plain_payment(100_000))
    assert answer.headers["tollway-price"] == f"{price} USDC"
    assert gateway.upstream.arrived[0].target == "/base" + path


async def test_serves_a_free_listing_without_looking_at_a_proof_sixty_times_a_minute(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish(price=Price.parse("0"))
    answer = await gateway.ask("GET", "/q", [("X-Payment-Tx", "junk"), ("X-Signature", "junk")])
    assert (answer.status, answer.headers["tollway-payment-state"]) == (200, "none")
    assert answer.headers["tollway-price"] == "0 USDC"
    assert "payment-response" not in answer.headers
    assert "tollway-credit-remaining" not in answer.headers
    assert answer.headers["tollway-call-id"].startswith("call_")
    for _ in range(59):
        assert (await gateway.ask("GET")).status == 200
    answer = await gateway.ask("GET")
    assert (answer.status, answer.problem["code"]) == (429, "rate_limited")
    assert answer.headers["ratelimit-policy"] == '"free-calls";q=60;w=60'
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert (await gateway.ask("GET", client="203.0.113.6")).status == 200
    assert len(gateway.upstream.arrived) == 61


async def test_a_free_operation_of_a_paid_listing_is_free(gateway: InProcessGateway) -> None:
    await gateway.publish(operations=(operation("GET", "/health", "0"),))
    assert (await gateway.ask("GET", "/health")).status == 200
    assert (await gateway.ask("GET", "/other")).status == 402


STATUSES = (
    200,
    201,
    204,
    206,
    299,
    301,
    304,
    400,
    401,
    403,
    404,
    407,
    408,
    418,
    422,
    425,
    429,
    451,
    500,
    503,
    599,
)
FREE_OF_ANSWERED = {301, 401, 403, 407, 408, 425, 429, 500, 503, 599}


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("charge_on", list(ChargeOn))
async def test_charges_by_the_status_of_the_answer(
    gateway: InProcessGateway, status: int, charge_on: ChargeOn
) -> None:
    await gateway.publish(charge_on=charge_on)
    gateway.upstream.answer = raw(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode())
    payment = await gateway.pay()
    answer = await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
    if charge_on is ChargeOn.SUCCESS:
        costs = status in (200, 201, 204, 206, 299, 304)
    else:
        costs = status not in FREE_OF_ANSWERED or status == 301
    assert answer.status == status
    assert answer.headers["tollway-payment-state"] == ("charged" if costs else "released")
    assert ("payment-response" in answer.headers) == costs
    assert await gateway.remaining_units(payment) == (0 if costs else 10_000)
    assert answer.headers["tollway-credit-remaining"] == ("0 USDC" if costs else "0.01 USDC")
    await gateway.check_balanced()


async def test_an_upstreams_own_402_never_reaches_a_caller_that_pays_by_itself(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish(charge_on=ChargeOn.ANSWERED)
    gateway.upstream.answer = plain(
        b'{"accepts": []}', status=402, headers=("PAYMENT-REQUIRED: abc", "WWW-Authenticate: Payment x")
    )
    payment = await gateway.pay()
    answer = await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
    assert (answer.status, answer.problem["code"]) == (502, "upstream_payment_required")
    assert answer.problem["paymentState"] == "released"
    assert answer.problem["callId"] == answer.headers["tollway-call-id"]
    assert not {"payment-required", "www-authenticate"} & set(answer.headers)
    assert await gateway.remaining_units(payment) == 10_000
    (call,) = await gateway.history()
    assert (call.state, call.upstream_status, call.error) == (
        CallState.RELEASED,
        402,
        "upstream_payment_required",
    )


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("/base/next?x=1", "/api/v2/gateway/api_quotes/next?x=1"),
        ("next", "/api/v2/gateway/api_quotes/a/next"),
        ("https://elsewhere.example/x", "https://elsewhere.example/x"),
    ],
)
async def test_passes_redirects_through_and_rewrites_their_location(
    gateway: InProcessGateway, location: str, shown: str
) -> None:
    await gateway.publish()
    gateway.upstream.answer = plain(b"", status=302, headers=(f"Location: {location}",))
    answer = await gateway.ask("GET", "/a/b", await gateway.plain_payment())
    assert (answer.status, answer.headers["location"]) == (302, shown)
    assert len(gateway.upstream.arrived) == 1


# ---------------------------------------------------------------------- what the upstream sees


@pytest.mark.parametrize(
    ("target", "arrived"),
    [
        ("", "/base"),
        ("/", "/base/"),
        ("?q=1", "/base?q=1"),
        ("/a%2Fb%20c;x=1//d", "/base/a%2Fb%20c;x=1//d"),
        ("/a?x=%2F&y=a+b&&z=%zz", "/base/a?x=%2F&y=a+b&&z=%zz"),
        ("/ü", "/base/ü"),
    ],
)
async def test_leaves_path_and_query_as_they_are(
    gateway: InProcessGateway, target: str, arrived: str
) -> None:
    await gateway.publish()
    payment = await gateway.pay()
    answer = await gateway.ask("GET", target, gateway.bound_proof(payment.tx_hash, target=target))
    assert answer.status == 200
    assert gateway.upstream.arrived[0].target.encode("latin-1").decode() == arrived


async def test_sends_what_the_list_allows_and_no_proof(gateway: InProcessGateway) -> None:
    await gateway.publish(forward_headers=("X-Tenant",))
    payment = await gateway.pay()
    proof = gateway.bound_proof(payment.tx_hash, method="POST", body=b"{}")
    sent = [
        ("content-type", "application/json"),
        ("accept", "text/plain"),
        ("x-tenant", "7"),
        ("cookie", "a=b"),
        ("authorization", "Bearer x"),
        ("x-other", "y"),
        ("upgrade", "websocket"),
        ("connection", "upgrade"),
        ("idempotency-key", '"k1"'),
        ("tollway-max-price", "1"),
    ]
    assert (await gateway.ask("POST", "", [*sent, *proof], [b"{}"])).status == 200
    (arrived,) = gateway.upstream.arrived
    assert arrived.names == {
        "host",
        "content-type",
        "accept",
        "x-tenant",
        "content-length",
        "via",
        "cdn-loop",
        "tollway-call-id",
        "tollway-api-id",
        "tollway-payer",
        "content-digest",
        "signature-input",
        "signature",
    }
    assert arrived.find("content-type") == "application/json"
    assert (bytes(arrived.body), arrived.find("content-length")) == (b"{}", "2")
    (call,) = await gateway.history()
    assert call.idempotency_key == "k1"


@pytest.mark.parametrize("place", ["header", "query"])
async def test_without_its_secret_a_listing_is_neither_called_nor_paid_for(
    gateway: InProcessGateway, place: Literal["header", "query"]
) -> None:
    """The gateway's secret key was changed without the old one: no request gets a 402, and the upstream gets no call without its secret."""
    before = open_catalog(gateway.database, now_ms=lambda: gateway.now_ms, key=b"\x08" * 32)
    await before.publish(
        replace(
            gateway.sample("api_quotes"),
            upstream_auth=UpstreamAuth(location=place, name="X-Key", value="s3cret"),
        )
    )
    payment = await gateway.pay()
    for headers in ((), gateway.plain_proof(payment.tx_hash)):
        answer = await gateway.ask(headers=headers)
        assert (answer.status, answer.problem["code"]) == (503, "storage_unavailable")
        assert ("retry-after" in answer.headers, answer.problem["retryable"]) == (False, False)
        assert "payment" not in answer.problem
    assert gateway.upstream.arrived == []
    assert await gateway.history() == ()


async def test_injects_the_secret_as_a_header_and_never_shows_it(gateway: InProcessGateway) -> None:
    await gateway.publish(upstream_auth=UpstreamAuth(location="header", name="X-Key", value="s3cret"))
    answer = await gateway.ask(headers=[*await gateway.plain_payment(), ("x-key", "mine")])
    assert gateway.upstream.arrived[0].find("x-key") == "s3cret"
    assert "s3cret" not in str(answer.sent)


async def test_injects_the_secret_into_the_query_and_the_bound_target_stays_the_callers(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish(upstream_auth=UpstreamAuth(location="query", name="key", value="s3 cret"))
    gateway.upstream.answer = plain(b"", status=302, headers=("Location: ?page=2&key=s3%20cret",))
    payment = await gateway.pay()
    answer = await gateway.ask(
        "GET", "/a?x=1&key=mine", gateway.bound_proof(payment.tx_hash, target="/a?x=1&key=mine")
    )
    assert gateway.upstream.arrived[0].target == "/base/a?x=1&key=s3%20cret"
    assert answer.headers["location"] == "/api/v2/gateway/api_quotes/a?page=2"
    assert "s3" not in str(answer.sent)


async def test_keeps_cookies_and_control_names_of_the_upstream_from_the_caller(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish()
    hostile = (
        "Set-Cookie: a=b",
        "Tollway-Payment-State: released",
        "PAYMENT-RESPONSE: forged",
        "Strict-Transport-Security: max-age=1",
        "X-Good: yes",
        "Content-Type: text/html",
        "Content-Encoding: br",
    )
    gateway.upstream.answer = plain(b"abc", headers=hostile)
    answer = await gateway.ask(headers=await gateway.plain_payment())
    headers = answer.headers
    assert headers["tollway-payment-state"] == "charged"
    assert headers["x-good"] == "yes"
    assert (headers["content-type"], headers["content-encoding"]) == ("text/html", "br")
    assert headers["payment-response"] != "forged"
    assert not {"set-cookie", "strict-transport-security"} & set(headers)
    assert "sandbox" in headers["content-security-policy"]


async def test_the_next_callers_request_carries_no_cookie_of_the_upstream(gateway: InProcessGateway) -> None:
    await gateway.publish()
    gateway.upstream.answer = plain(b"abc", headers=("Set-Cookie: session=1; Path=/",))
    payment = await gateway.pay(20_000)
    for _ in range(2):
        await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
    assert "cookie" not in gateway.upstream.arrived[1].names


# ---------------------------------------------------------------------- terms over time


async def test_an_edit_between_quote_and_call_never_costs_the_caller(gateway: InProcessGateway) -> None:
    listing = await gateway.publish()
    payment = await gateway.pay(100_000)
    listing = await gateway.revise(listing, price=Price.parse("0.05"))
    proof = gateway.plain_proof(payment.tx_hash)
    assert (await gateway.ask()).problem["payment"]["amount"] == "0.05"
    assert (await gateway.ask(headers=proof)).headers["tollway-price"] == "0.01 USDC"
    gateway.now_ms += 599_000
    assert (await gateway.ask(headers=proof)).headers["tollway-price"] == "0.01 USDC"
    gateway.now_ms += 2_000
    assert (await gateway.ask(headers=proof)).headers["tollway-price"] == "0.05 USDC"


async def test_old_terms_with_an_ambiguous_path_refuse_no_call(
    gateway: InProcessGateway,
) -> None:
    listing = await gateway.publish(operations=(operation("GET", "/dear", "5"),))
    payment = await gateway.pay()
    assert (await gateway.ask("GET", "/DEAR")).status == 400
    gateway.now_ms += 1_000
    await gateway.revise(listing, operations=())
    answer = await gateway.ask("GET", "/DEAR", gateway.plain_proof(payment.tx_hash))
    assert (answer.status, answer.headers["tollway-price"]) == (200, "0.01 USDC")


async def owe(gateway: InProcessGateway, value_units: int) -> None:
    """Leaves a debt: a payment of that value pays for calls of 0.01 until nothing is left, and leaves its chain."""
    (lost,) = await gateway.ledger.record_payments(
        [gateway.sample_payment(tx_hash=TxHash(keccak256(b"lost")), value_units=value_units, is_final=False)],
        now_ms=gateway.now_ms,
    )
    for _ in range(value_units // 10_000):
        assert (await gateway.ask(headers=gateway.plain_proof(lost.tx_hash))).status == 200
    await gateway.ledger.mark_gone(lost.id, now_ms=gateway.now_ms)


async def test_a_payer_in_debt_gets_the_amount_that_credit_does_not_pay_and_the_payee(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish()
    other = await gateway.pay(15_000)
    await owe(gateway, 30_000)
    answer = await gateway.ask(headers=gateway.plain_proof(other.tx_hash))
    assert (answer.status, answer.problem["code"]) == (403, "payer_in_debt")
    assert (answer.problem["debt"], answer.problem["payTo"]) == ("0.015", str(PAY_TO))
    assert (answer.problem["currency"], answer.problem["network"]) == ("USDC", "eip155:84532")
    assert "payment" not in answer.problem
    assert len(gateway.upstream.arrived) == 3


async def test_a_payer_whose_credit_covers_the_debt_is_served(gateway: InProcessGateway) -> None:
    await gateway.publish()
    other = await gateway.pay(10_000_000)
    await owe(gateway, 10_000)
    answer = await gateway.ask(headers=gateway.plain_proof(other.tx_hash))
    assert (answer.status, answer.headers["tollway-credit-remaining"]) == (200, "9.98 USDC")


async def test_a_debt_is_seen_by_a_gateway_that_remembers_another_payment(gateway: InProcessGateway) -> None:
    await gateway.publish()
    other = await gateway.pay(30_000)
    for _ in range(2):
        assert (await gateway.ask(headers=gateway.plain_proof(other.tx_hash))).status == 200
    await owe(gateway, 20_000)
    answer = await gateway.ask(headers=gateway.plain_proof(other.tx_hash))
    assert (answer.status, answer.problem["code"], answer.problem["debt"]) == (403, "payer_in_debt", "0.01")


async def test_a_call_whose_payment_left_the_chain_before_its_end_is_not_charged(
    gateway: InProcessGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response says `held`: its price is a debt, unless the payment returns."""
    await gateway.publish()
    (lost,) = await gateway.ledger.record_payments(
        [gateway.sample_payment(tx_hash=TxHash(keccak256(b"lost")), is_final=False)], now_ms=gateway.now_ms
    )
    close = gateway.ledger.close

    async def leave(written: Any) -> Any:
        await gateway.ledger.mark_gone(lost.id, now_ms=gateway.now_ms)
        return await close(written)

    monkeypatch.setattr(gateway.ledger, "close", leave)
    answer = await gateway.ask(headers=gateway.plain_proof(lost.tx_hash))
    assert (answer.status, answer.headers["tollway-payment-state"]) == (200, "held")
    assert not {"payment-response", "payment-receipt"} & {name.lower() for name in answer.headers}


async def test_a_debt_on_another_chain_refuses_no_call(gateway: InProcessGateway) -> None:
    await gateway.publish()
    (lost,) = await gateway.ledger.record_payments(
        [gateway.sample_payment(chain_id=ChainId(10), is_final=False)], now_ms=gateway.now_ms
    )
    claim = claim_on(lost, 10_000)
    await gateway.ledger.claim(claim)
    await gateway.ledger.close(close_of(claim))
    assert await gateway.ledger.mark_gone(lost.id, now_ms=gateway.now_ms) == 10_000
    assert (await gateway.ask(headers=gateway.plain_proof((await gateway.pay()).tx_hash))).status == 200


async def test_a_revised_listing_keeps_its_id_and_serves_its_new_endpoint(gateway: InProcessGateway) -> None:
    listing = await gateway.publish()
    payment = await gateway.pay()
    await gateway.revise(listing, endpoint=gateway.upstream.url + "/other")
    await gateway.ask("GET", "/x", gateway.plain_proof(payment.tx_hash))
    assert gateway.upstream.arrived[0].target == "/other/x"


@pytest.mark.parametrize(
    ("answer", "is_gone"),
    [(hang_up, False), (say_nothing, True), (raw(b"no HTTP\r\n\r\n"), False)],
    ids=["the upstream hangs up", "the caller leaves", "no response of HTTP"],
)
async def test_a_call_that_fails_leaves_its_request_to_no_garbage_collector(
    gateway: InProcessGateway, answer: Any, is_gone: bool
) -> None:
    """The server closes the connection of a refused request once nothing holds its body: a caller that drips would keep it open until then."""
    await gateway.publish(price=Price.parse("0"))
    gateway.upstream.answer = answer
    await check_freed(gateway, is_gone=is_gone)


async def test_a_failure_that_a_variable_holds_keeps_no_request(gateway: InProcessGateway) -> None:
    """The verifier raises the failure that it has found among several look-ups."""
    await gateway.publish()
    gateway.chain.disconnect(CHAIN)
    proof = dict(gateway.plain_proof(TxHash(b"\x07" * 32)))
    await check_freed(gateway, **{name.replace("-", "_").lower(): value for name, value in proof.items()})


async def check_freed(gateway: InProcessGateway, *, is_gone: bool = False, **headers: str) -> None:
    body = GivenBody(b"x", is_gone=is_gone)
    held = weakref.ref(body)
    gc.disable()
    try:
        outcome = await gateway.pipeline.handle(sample_request("POST", "/quote", "x=1", body=body, **headers))
        del body
        assert isinstance(outcome, ProblemResponse | Disconnected)
        assert held() is None
    finally:
        gc.enable()
