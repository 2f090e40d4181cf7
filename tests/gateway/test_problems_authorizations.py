"""Tables of refused authorisations: each has its code and its reason, nothing reaches the upstream, nothing is settled, and the ledger
is unchanged. And the terms that count: of one version, in force recently, and with a settlement that is possible now."""

import base64
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import ETHER, GAS_KEY, PAY_TO, USDC, InProcessGateway, open_gateway
from tests.kit.metering import sample_metering
from tests.kit.payer import (
    CHAIN,
    Header,
    KeyWallet,
    Payer,
    bind_nonce,
    encode_header,
    has_terms,
    read_challenge,
)
from tests.kit.upstream import plain
from tollway.chain.port import ContractResult
from tollway.chain.tokens import ERC1271_MAGIC
from tollway.ids import Address, ChainId
from tollway.ledger.records import CallState, Dialect
from tollway.money import Price
from tollway.registry.listing import RateLimit

PRICE = 10_000
TARGET = "/quote?x=1"
NONCE = b"\x42" * 32
ELSEWHERE = Address(b"\xee" * 20)
OTHER = ChainId(11_155_111)
THIRD_PARTY = KeyWallet.named("stranger")
TEN_MINUTES_MS = 600_000
CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway(upload_bytes_max=200_000, bound_body_bytes_max=1_000) as small:
        yield small


@pytest.fixture
async def payer(gateway: InProcessGateway) -> Payer:
    await gateway.publish()
    return Payer.funded(gateway, 10 * PRICE)


async def check_nothing_happened(gateway: InProcessGateway, answer: Exchange, *, calls: int = 0) -> None:
    assert answer.status >= 400
    report = await gateway.ledger.audit()
    assert (report.is_balanced, report.calls, report.payments) == (True, calls, calls)
    assert (gateway.served, gateway.transfers) == (calls, calls)
    assert answer.problem["paymentState"] in ("none", "released", "charged")
    assert (answer.status == 402) == has_terms(answer)


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


# ---------------------------------------------------------------------- the presented payment

Show = Callable[[Payer, Exchange], list[Header]]


def raw_header(value: str, name: str = "PAYMENT-SIGNATURE") -> Show:
    return lambda payer, asked: [(name, value)]


def signed(**fields: Any) -> Show:
    return lambda payer, asked: payer.show(asked, **fields)


def later(**seconds: int) -> Show:
    """Times relative to now."""

    def show(payer: Payer, asked: Exchange) -> list[Header]:
        now_s = payer.gateway.now_ms // 1000
        times: dict[str, Any] = {name: now_s + more for name, more in seconds.items()}
        return payer.show(asked, **times)

    return show


def edited(path: str, value: Any, dialect: Dialect = Dialect.X402_V2) -> Show:
    """The message with one member changed after it was signed."""

    def edit(content: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            content = content[parent]
        content[last] = value(content[last]) if callable(value) else value

    return lambda payer, asked: payer.show(asked, dialect, edit=edit)


def in_the_other_header(payer: Payer, asked: Exchange) -> list[Header]:
    return [("PAYMENT-SIGNATURE", payer.show(asked, Dialect.X402_V1)[0][1])]


def v2_in_the_header_of_v1(payer: Payer, asked: Exchange) -> list[Header]:
    return [("X-PAYMENT", payer.show(asked)[0][1])]


def in_both_headers(payer: Payer, asked: Exchange) -> list[Header]:
    return [*payer.show(asked), *payer.show(asked, Dialect.X402_V1, nonce=NONCE)]


def with_mpp_beside(payer: Payer, asked: Exchange) -> list[Header]:
    return [*payer.show(asked), *payer.show(asked, Dialect.MPP)]


def with_a_transaction_beside(payer: Payer, asked: Exchange) -> list[Header]:
    proof = payer.gateway.plain_proof(payer.gateway.sample_payment().tx_hash)
    return [*payer.show(asked), *proof]


def twice(payer: Payer, asked: Exchange) -> list[Header]:
    return [*payer.show(asked), *payer.show(asked)]


def by_another_key(payer: Payer, asked: Exchange) -> list[Header]:
    thief = Payer(wallet=THIRD_PARTY, gateway=payer.gateway)

    def name_the_payer(content: dict[str, Any]) -> None:
        content["payload"]["authorization"]["from"] = str(payer.address)

    return thief.show(asked, edit=name_the_payer)


def of_a_used_nonce(payer: Payer, asked: Exchange) -> list[Header]:
    assert USDC.token is not None
    payer.gateway.chain.settle_by_third_party(
        CHAIN, USDC.token, payer=payer.address, payee=PAY_TO, base_units=PRICE, nonce=NONCE
    )
    return payer.show(asked, nonce=NONCE)


def taken_back(payer: Payer, asked: Exchange) -> list[Header]:
    assert USDC.token is not None
    payer.gateway.chain.cancel_authorization(CHAIN, USDC.token, payer=payer.address, nonce=NONCE)
    return payer.show(asked, nonce=NONCE)


def refused_by_the_token(payer: Payer, asked: Exchange) -> list[Header]:
    payer.gateway.chain.refuse_transfer(CHAIN, payer.address, NONCE)
    return payer.show(asked, nonce=NONCE)


def by_a_poor_wallet(payer: Payer, asked: Exchange) -> list[Header]:
    payer.fund(PRICE - 1)
    return payer.show(asked)


def with_permit2(payer: Payer, asked: Exchange) -> list[Header]:
    def edit(content: dict[str, Any]) -> None:
        content["payload"] = {"signature": "0x00", "permit2Authorization": {}}

    return payer.show(asked, edit=edit)


def with_identifier(name: str) -> Show:
    def edit(content: dict[str, Any]) -> None:
        content["extensions"] = {"payment-identifier": {"info": {"id": name}, "schema": {}}}

    return lambda payer, asked: payer.show(asked, edit=edit)


def mpp(**fields: Any) -> Show:
    return lambda payer, asked: payer.show(asked, Dialect.MPP, **fields)


def swap_case(text: str) -> str:
    return "0x" + text[2:].swapcase()


def dearer(request: str) -> str:
    content = json.loads(base64.urlsafe_b64decode(request + "=" * (-len(request) % 4)))
    return encode_header(content | {"amount": "1"}, is_urlsafe=True).decode()


def of_a_cheaper_challenge(payer: Payer, asked: Exchange) -> list[Header]:
    """The nonce and the signature match the tampered challenge."""
    challenge = read_challenge(asked.headers["www-authenticate"].encode())
    cheaper = {**challenge, "request": dearer(challenge["request"])}
    signed = {"base_units": 1, "nonce": bind_nonce(cheaper)}
    return payer.show(asked, Dialect.MPP, edit=lambda content: content.update(challenge=cheaper), **signed)


def with_high_s(signature: str) -> str:
    """The same signature with the high s, which no wallet makes."""
    raw = bytes.fromhex(signature[2:])
    s = CURVE_ORDER - int.from_bytes(raw[32:64], "big")
    return "0x" + (raw[:32] + s.to_bytes(32, "big") + bytes([55 - raw[64]])).hex()


BOMB = b64(b"[" * 12_000)
DEEP = b64(b'{"a":' * 2_000 + b"1" + b"}" * 2_000)
V = "payment_verification_failed"
M = "payment_malformed"
MALFORMED_STATUS = {Dialect.X402_V2: 400, Dialect.X402_V1: 400, Dialect.MPP: 402}
U = "payment_method_unsupported"
X = "payment_expired"

ROWS: list[tuple[str, Show, int, str, str | None]] = [
    ("garbage", raw_header("!!!not base64!!!"), 400, M, "invalid_payload"),
    ("nothing", raw_header(""), 400, M, "invalid_payload"),
    ("text", raw_header(b64(b"hello")), 400, M, "invalid_payload"),
    ("no object", raw_header(b64(b"[1]")), 400, M, "invalid_payload"),
    ("null", raw_header(b64(b"null")), 400, M, "invalid_payload"),
    ("bomb", raw_header(BOMB), 400, M, "invalid_payload"),
    ("deep", raw_header(DEEP), 400, M, "invalid_payload"),
    ("endless number", raw_header(b64(b'{"x402Version":1e999999}')), 400, M, None),
    ("lone surrogate", raw_header(b64(b'{"x402Version":"\\ud800"}')), 400, M, None),
    ("no text", raw_header("\xff\xfe"), 400, M, "invalid_payload"),
    ("v1 no text", raw_header("\xff\xfe", "X-PAYMENT"), 400, M, "invalid_payload"),
    ("MPP no text", raw_header("Payment \xff\xfe", "Authorization"), 402, M, "invalid_payload"),
    ("another scheme, no text", raw_header("Bearer \xff\xfe", "Authorization"), 400, "invalid_request", None),
    ("v1 garbage", raw_header("%%%", "X-PAYMENT"), 400, M, "invalid_payload"),
    ("v1 bomb", raw_header(BOMB, "X-PAYMENT"), 400, M, "invalid_payload"),
    ("v1 in v2", in_the_other_header, 402, U, "invalid_x402_version"),
    ("v2 in v1", v2_in_the_header_of_v1, 402, U, "invalid_x402_version"),
    ("v3", edited("x402Version", 3), 402, U, "invalid_x402_version"),
    ("version as text", edited("x402Version", "2"), 400, M, "invalid_payload"),
    ("version is true", edited("x402Version", True, Dialect.X402_V1), 400, M, "invalid_payload"),
    ("both headers", in_both_headers, 400, "invalid_request", "more_than_one_rail"),
    ("x402 and MPP", with_mpp_beside, 400, "invalid_request", "more_than_one_rail"),
    ("X-Payment-Tx", with_a_transaction_beside, 400, "invalid_request", "more_than_one_rail"),
    ("twice", twice, 400, "invalid_request", None),
    ("too large", raw_header("A" * 16_400), 400, "invalid_request", None),
    ("other network", edited("accepted.network", "eip155:1"), 402, U, "invalid_network"),
    ("a name as network", edited("accepted.network", "base-sepolia"), 402, U, "invalid_network"),
    ("other v1 network", edited("network", "base", Dialect.X402_V1), 402, U, "invalid_network"),
    ("no v1 network", edited("network", "nowhere", Dialect.X402_V1), 402, U, "invalid_network"),
    ("other token", edited("accepted.asset", str(ELSEWHERE)), 402, U,
     "invalid_exact_evm_eip3009_not_supported"),
    ("scheme", edited("accepted.scheme", "upto"), 402, U, "unsupported_scheme"),
    ("v1 scheme", edited("scheme", "deferred", Dialect.X402_V1), 402, U, "unsupported_scheme"),
    ("permit2", with_permit2, 402, U, "unsupported_transfer_method"),
    ("other payTo", signed(payee=ELSEWHERE), 402, V, "invalid_exact_evm_payload_recipient_mismatch"),
    ("one more", signed(base_units=PRICE + 1), 402, V,
     "invalid_exact_evm_payload_authorization_value_mismatch"),
    ("one less", signed(base_units=PRICE - 1), 402, V,
     "invalid_exact_evm_payload_authorization_value_mismatch"),
    ("nothing paid", signed(base_units=0), 402, V, "invalid_exact_evm_payload_authorization_value_mismatch"),
    ("all there is", signed(base_units=2**256 - 1), 402, V,
     "invalid_exact_evm_payload_authorization_value_mismatch"),
    ("expired", later(valid_before=-1), 402, X, "invalid_exact_evm_payload_authorization_valid_before"),
    ("too short", later(valid_before=34), 402, X, "invalid_exact_evm_payload_authorization_valid_before"),
    ("endless", signed(valid_before=2**256 - 1), 402, V,
     "invalid_exact_evm_payload_authorization_valid_before_too_large"),
    ("not yet", later(valid_after=60), 402, V, "invalid_exact_evm_payload_authorization_valid_after"),
    ("used", of_a_used_nonce, 409, "payment_already_used", "invalid_exact_evm_nonce_already_used"),
    ("taken back", taken_back, 409, "payment_already_used", "invalid_exact_evm_nonce_already_used"),
    ("poor", by_a_poor_wallet, 402, V, "insufficient_balance"),
    ("token says no", refused_by_the_token, 402, V, "invalid_exact_evm_transaction_simulation_failed"),
    ("another's key", by_another_key, 402, V, "invalid_exact_evm_payload_signature"),
    ("signed for another token", signed(asset=replace(USDC, token=ELSEWHERE)), 402, V,
     "invalid_exact_evm_payload_signature"),
    ("other from", edited("payload.authorization.from", str(ELSEWHERE)), 402, V,
     "invalid_exact_evm_payload_signature"),
    ("other nonce", edited("payload.authorization.nonce", "0x" + "00" * 32), 402, V,
     "invalid_exact_evm_payload_signature"),
    ("signature with the high s", edited("payload.signature", with_high_s), 402, V,
     "invalid_exact_evm_payload_signature"),
    ("signature of zeros", edited("payload.signature", "0x" + "00" * 65), 402, V,
     "invalid_exact_evm_payload_signature"),
    ("no signature", edited("payload.signature", "0x"), 400, M, "invalid_payload"),
    ("null signature", edited("payload.signature", None), 400, M, "invalid_payload"),
    ("wrong checksum", edited("payload.authorization.to", "0x036cbD53842c5426634e7929541eC2318f3dCF7e"),
     400, M, "invalid_payload"),
    ("short address", edited("payload.authorization.to", "0xbb"), 400, M, "invalid_payload"),
    ("value as number", edited("payload.authorization.value", PRICE), 400, M, "invalid_payload"),
    ("negative value", edited("payload.authorization.value", "-10000"), 400, M, "invalid_payload"),
    ("value beyond uint256", edited("payload.authorization.value", "9" * 78), 400, M, "invalid_payload"),
    ("other digits", edited("payload.authorization.value", "١٠٠٠٠"), 400, M, "invalid_payload"),
    ("no payload", edited("payload", None), 400, M, "invalid_payload"),
    ("no accepted", edited("accepted", []), 400, M, "invalid_payload"),
    ("bad identifier", with_identifier("short"), 400, "invalid_request", "invalid_payment_identifier"),
    ("MPP garbage", raw_header("Payment garbage", "Authorization"), 402, M, "invalid_payload"),
    ("MPP nothing", raw_header("Payment", "Authorization"), 402, M, "invalid_payload"),
    ("MPP parameters", raw_header('PAYMENT id="x", realm="y"', "Authorization"), 402, M, "invalid_payload"),
    ("MPP two words", raw_header("payment AAAA AAAA", "Authorization"), 402, M, "invalid_payload"),
    ("MPP bomb", raw_header("Payment " + BOMB, "Authorization"), 402, M, "invalid_payload"),
    ("MPP v2 content", lambda payer, asked: [("Authorization", "Payment " + payer.show(asked)[0][1])],
     402, M, "invalid_payload"),
    ("MPP method", edited("challenge.method", "tempo", Dialect.MPP), 402, U, "method_unsupported"),
    ("MPP intent", edited("challenge.intent", "session", Dialect.MPP), 402, U, "method_unsupported"),
    ("MPP type", edited("payload.type", "hash", Dialect.MPP), 402, U, "method_unsupported"),
    ("MPP id", edited("challenge.id", "x" * 43, Dialect.MPP), 402, V, "invalid_challenge"),
    ("MPP realm", edited("challenge.realm", "other.example", Dialect.MPP), 402, V, "invalid_challenge"),
    ("MPP request", edited("challenge.request", dearer, Dialect.MPP), 402, V, "invalid_challenge"),
    ("MPP expires", edited("challenge.expires", "2099-01-01T00:00:00.000Z", Dialect.MPP), 402, V,
     "invalid_challenge"),
    ("MPP opaque", edited("challenge.opaque", "", Dialect.MPP), 402, V, "invalid_challenge"),
    ("MPP opaque is no text", edited("challenge.opaque", {}, Dialect.MPP), 402, V, "invalid_challenge"),
    ("MPP of a cheaper challenge", of_a_cheaper_challenge, 402, V, "invalid_challenge"),
    ("MPP nonce", mpp(nonce=NONCE), 402, V, "invalid_challenge_nonce"),
    ("MPP amount", mpp(base_units=PRICE - 1), 402, V,
     "invalid_exact_evm_payload_authorization_value_mismatch"),
    ("MPP payee", mpp(payee=ELSEWHERE), 402, V, "invalid_exact_evm_payload_recipient_mismatch"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("show", "status", "code", "reason"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
async def test_refuses_with_its_code_and_reason_and_nothing_happens(
    gateway: InProcessGateway, payer: Payer, show: Show, status: int, code: str, reason: str | None
) -> None:
    asked = await payer.quote()
    answer = await gateway.ask("GET", TARGET, show(payer, asked))
    assert (answer.status, answer.problem["code"]) == (status, code), answer.body
    if reason is not None:
        assert answer.problem["reason"] == reason
    await check_nothing_happened(gateway, answer)
    assert ("payment" in answer.problem, "www-authenticate" in answer.headers) == (status == 402,) * 2
    if status == 402:  # its terms are good
        payer.fund(10 * PRICE)
        assert (await gateway.ask("GET", TARGET, payer.show(answer))).status == 200


async def test_a_challenge_is_good_for_its_own_method_and_url_only(
    gateway: InProcessGateway, payer: Payer
) -> None:
    await gateway.publish("api_others")
    shown = payer.show(await payer.quote(), Dialect.MPP)
    for method, target, listing in [
        ("POST", TARGET, "api_quotes"),
        ("GET", "/quote?x=2", "api_quotes"),
        ("GET", "/quote", "api_quotes"),
        ("GET", TARGET, "api_others"),
    ]:
        answer = await gateway.ask(method, target, shown, listing=listing)
        assert (answer.status, answer.problem["reason"]) == (402, "invalid_challenge")
        await check_nothing_happened(gateway, answer)
    assert (await gateway.ask("GET", TARGET, shown)).status == 200


async def test_a_challenge_expires(gateway: InProcessGateway, payer: Payer) -> None:
    asked = await payer.quote()
    gateway.now_ms += 65_000
    await gateway.settlement.gas_budget.refresh()
    answer = await gateway.ask("GET", TARGET, payer.show(asked, Dialect.MPP))
    assert (answer.status, answer.problem["code"]) == (402, "payment_expired")
    assert answer.problem["reason"] == "challenge_expired"
    await check_nothing_happened(gateway, answer)


def embroider_x402(content: dict[str, Any]) -> None:
    content["accepted"] |= {"amount": "1", "payTo": str(ELSEWHERE), "extra": {"name": "Other"}}
    content["accepted"]["maxTimeoutSeconds"] = 9_999
    content["resource"] = {"url": "https://evil.example/"}
    content["extensions"] = {"nobody-knows": {"info": None}}


def embroider_mpp(content: dict[str, Any]) -> None:
    content["source"] = "did:pkh:eip155:1:0x0"
    content["challenge"]["description"] = "x"


@pytest.mark.parametrize(
    ("dialect", "edit"), [(Dialect.X402_V2, embroider_x402), (Dialect.MPP, embroider_mpp)]
)
async def test_members_outside_the_signature_decide_nothing(
    gateway: InProcessGateway, payer: Payer, dialect: Dialect, edit: Callable[[dict[str, Any]], None]
) -> None:
    answer = await payer.buy(dialect=dialect, edit=edit)
    assert answer.status == 200
    assert (gateway.earned, payer.balance) == (PRICE, 9 * PRICE)


@pytest.mark.parametrize("dialect", Dialect)
async def test_a_paid_authorisation_in_an_unknown_dialect_gets_no_402(
    gateway: InProcessGateway, payer: Payer, dialect: Dialect
) -> None:
    """An unknown member is refused, but only where the ledger does not know the authorisation."""
    asked = await payer.quote()
    signed = {} if dialect is Dialect.MPP else {"nonce": NONCE}
    strange = payer.show(asked, dialect, edit=lambda content: content.update(note=1), **signed)
    refused = await gateway.ask("GET", TARGET, strange)
    assert (refused.status, refused.problem["code"]) == (MALFORMED_STATUS[dialect], "payment_malformed")
    assert ("payment" in refused.problem) == (dialect is Dialect.MPP)
    assert "`note`" in refused.problem["detail"]
    await check_nothing_happened(gateway, refused)
    assert (await gateway.ask("GET", TARGET, payer.show(asked, dialect, **signed))).status == 200
    for method in ("GET", "POST"):
        late = await gateway.ask(method, TARGET, strange)
        assert (late.status, late.problem["code"]) == (409, "payment_already_used")
        await check_nothing_happened(gateway, late, calls=1)


async def test_a_body_over_the_limit_spends_nothing(gateway: InProcessGateway, payer: Payer) -> None:
    shown = payer.show(await payer.quote("POST"))
    answer = await gateway.ask("POST", TARGET, shown, [b"x" * 200_001])
    assert (answer.status, answer.problem["code"]) == (413, "payload_too_large")
    await check_nothing_happened(gateway, answer)
    assert (await gateway.ask("POST", TARGET, shown, [b"x" * 200_000])).status == 200


DOCUMENT = {
    "openapi": "3.1.0",
    "paths": {
        "/quote": {
            "post": {
                "parameters": [{"name": "x", "in": "query", "required": True, "schema": {"type": "string"}}],
                "requestBody": {"required": True},
            }
        }
    },
}


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize(
    ("target", "body", "told"),
    [
        ("/quote", [b"{}"], {"parameter": "x"}),
        ("/quote?x=1", [], {"pointer": ""}),
    ],
)
async def test_what_the_document_requires_is_missed_before_anything_is_spent(
    gateway: InProcessGateway, dialect: Dialect, target: str, body: list[bytes], told: dict[str, str]
) -> None:
    await gateway.publish(openapi=DOCUMENT)
    payer = Payer.funded(gateway, PRICE)
    answer = await gateway.ask("POST", target, payer.show(await payer.quote("POST", target), dialect), body)
    assert (answer.status, answer.problem["code"]) == (422, "validation_failed")
    assert told.items() <= answer.problem["errors"][0].items()
    await check_nothing_happened(gateway, answer)
    shown = payer.show(await payer.quote("POST"), dialect)
    assert (await gateway.ask("POST", TARGET, shown, [b"{}"])).status == 200


async def test_a_body_that_turns_out_too_long_is_released(gateway: InProcessGateway, payer: Payer) -> None:
    shown = payer.show(await payer.quote("POST"))
    answer = await gateway.ask("POST", TARGET, shown, [b"x" * 100_000] * 3, is_chunked=True)
    assert (answer.status, answer.problem["code"]) == (413, "payload_too_large")
    assert answer.problem["paymentState"] == "released"
    assert not has_terms(answer)
    assert (gateway.transfers, gateway.earned) == (0, 0)
    (call,) = await payer.history()
    assert call.state is CallState.RELEASED
    assert (await gateway.ask("POST", TARGET, shown, [b"{}"])).status == 200


async def test_a_chain_that_is_away_is_no_reason_to_pay_otherwise(
    gateway: InProcessGateway, payer: Payer
) -> None:
    shown = payer.show(await payer.quote())
    gateway.chain.disconnect(CHAIN)
    answer = await gateway.ask("GET", TARGET, shown)
    assert (answer.status, answer.problem["code"]) == (503, "chain_unavailable")
    await check_nothing_happened(gateway, answer)
    gateway.chain.reconnect(CHAIN)
    assert (await gateway.ask("GET", TARGET, shown)).status == 200


# ---------------------------------------------------------------------- the terms that it is held against


async def test_a_price_is_remembered_for_ten_minutes_and_charged_as_quoted(gateway: InProcessGateway) -> None:
    listing = await gateway.publish()
    payer = Payer.funded(gateway, 100 * PRICE)
    asked = await payer.quote()
    await gateway.pass_time(1_000)
    await gateway.revise(listing, price=Price.parse("0.05"))
    await gateway.pass_time(TEN_MINUTES_MS - 1_000)
    old = await gateway.ask("GET", TARGET, payer.show(asked))
    assert (old.status, old.headers["tollway-price"]) == (200, "0.01 USDC")
    assert (await payer.buy()).headers["tollway-price"] == "0.05 USDC"
    assert gateway.earned == 6 * PRICE
    await gateway.pass_time(1_001)
    late = await gateway.ask("GET", TARGET, payer.show(asked))
    assert late.problem["reason"] == "invalid_exact_evm_payload_authorization_value_mismatch"
    await check_nothing_happened(gateway, late, calls=2)
    assert (await gateway.ask("GET", TARGET, payer.show(late))).headers["tollway-price"] == "0.05 USDC"


async def test_another_payee_is_paid_for_ten_minutes_more(gateway: InProcessGateway) -> None:
    listing = await gateway.publish()
    payer = Payer.funded(gateway, 100 * PRICE)
    asked = await payer.quote()
    await gateway.pass_time(1_000)
    await gateway.revise(listing, pay_to=ELSEWHERE)
    await gateway.pass_time(TEN_MINUTES_MS)
    assert (await gateway.ask("GET", TARGET, payer.show(asked))).status == 200
    assert gateway.earned == PRICE
    await gateway.pass_time(1)
    late = await gateway.ask("GET", TARGET, payer.show(asked))
    assert late.problem["reason"] == "invalid_exact_evm_payload_recipient_mismatch"
    await check_nothing_happened(gateway, late, calls=1)


async def test_a_network_that_is_sold_on_no_more_is_taken_for_ten_minutes(gateway: InProcessGateway) -> None:
    listing = await gateway.publish()
    payer = Payer.funded(gateway, 100 * PRICE)
    asked = await payer.quote()
    await gateway.pass_time(1_000)
    gateway.rules[OTHER] = replace(gateway.rules[CHAIN], chain_id=OTHER, assets=())
    await gateway.revise(listing, networks=(OTHER,))
    assert "payment-required" not in (await payer.quote()).headers
    assert (await gateway.ask("GET", TARGET, payer.show(asked))).status == 200
    await gateway.pass_time(TEN_MINUTES_MS + 1)
    late = await gateway.ask("GET", TARGET, payer.show(asked))
    assert (late.status, late.problem["reason"]) == (402, "invalid_network")


async def test_the_fields_of_two_versions_are_never_mixed(gateway: InProcessGateway) -> None:
    listing = await gateway.publish()
    payer = Payer.funded(gateway, 100 * PRICE)
    asked = await payer.quote()
    await gateway.pass_time(1_000)
    await gateway.revise(listing, price=Price.parse("0.05"), pay_to=ELSEWHERE)
    for amount, payee in [(PRICE, ELSEWHERE), (5 * PRICE, PAY_TO)]:
        answer = await gateway.ask("GET", TARGET, payer.show(asked, base_units=amount, payee=payee))
        assert answer.problem["reason"] == "invalid_exact_evm_payload_authorization_value_mismatch"
        await check_nothing_happened(gateway, answer)
    for amount, payee in [(PRICE, PAY_TO), (5 * PRICE, ELSEWHERE)]:
        answer = await gateway.ask("GET", TARGET, payer.show(asked, base_units=amount, payee=payee))
        assert answer.status == 200


async def test_nothing_is_taken_for_what_is_free_by_now(gateway: InProcessGateway) -> None:
    listing = await gateway.publish()
    payer = Payer.funded(gateway, 100 * PRICE)
    asked = await payer.quote()
    await gateway.revise(listing, price=Price.parse("0"))
    answer = await gateway.ask("GET", TARGET, payer.show(asked))
    assert (answer.status, answer.headers["tollway-payment-state"]) == (200, "none")
    assert (gateway.earned, gateway.transfers) == (0, 0)


async def test_what_was_free_is_not_bought_for_nothing(gateway: InProcessGateway) -> None:
    listing = await gateway.publish(price=Price.parse("0"))
    payer = Payer.funded(gateway, 100 * PRICE)
    await gateway.pass_time(1_000)
    await gateway.revise(listing, price=Price.parse("0.01"))
    answer = await payer.buy(base_units=0)
    assert answer.problem["reason"] == "invalid_exact_evm_payload_authorization_value_mismatch"
    await check_nothing_happened(gateway, answer)


# ---------------------------------------------------------------------- a rail that is withdrawn

Withdraw = Callable[[InProcessGateway], Awaitable[None]]


async def gas_is_dear(gateway: InProcessGateway) -> None:
    gateway.chain.set_fees(CHAIN, base_fee_wei=501 * 10**9, tip_wei=1)
    await gateway.settlement.gas_budget.refresh()


async def the_key_is_below_its_floor(gateway: InProcessGateway) -> None:
    gateway.chain.fund_gas(CHAIN, GAS_KEY.address, ETHER // 1000 - 1)
    await gateway.settlement.gas_budget.refresh()


async def the_budget_is_spent(gateway: InProcessGateway) -> None:
    await gateway.settlement.gas_budget.refresh()
    gateway.settlement.gas_budget.add_spent(CHAIN, gateway.sample("api_quotes").id, ETHER)


async def nothing_is_known_of_gas(gateway: InProcessGateway) -> None:
    gateway.chain.disconnect(CHAIN)
    gateway.now_ms += 61_000


WITHDRAWN = [gas_is_dear, the_key_is_below_its_floor, the_budget_is_spent, nothing_is_known_of_gas]


@pytest.mark.parametrize("withdraw", WITHDRAWN)
async def test_a_rail_that_cannot_be_settled_is_not_offered_and_not_taken(
    gateway: InProcessGateway, payer: Payer, withdraw: Withdraw
) -> None:
    asked = await payer.quote()
    await withdraw(gateway)
    bare = await payer.quote()
    assert not {"payment-required", "www-authenticate"} & set(bare.headers)
    assert not {"accepts", "x402Version"} & set(bare.problem)
    assert [option["rail"] for option in bare.problem["payment"]["options"]] == ["tx"]
    answer = await gateway.ask("GET", TARGET, payer.show(asked))
    if withdraw is nothing_is_known_of_gas:  # a node that is away is no reason to pay otherwise
        assert (answer.status, answer.problem["code"]) == (503, "chain_unavailable")
        assert not has_terms(answer)
        await check_nothing_happened(gateway, answer)
        return
    assert (answer.status, answer.problem["code"]) == (402, "payment_method_unsupported")
    assert answer.problem["reason"] == "rail_withdrawn"
    assert [option["rail"] for option in answer.problem["payment"]["options"]] == ["tx"]
    await check_nothing_happened(gateway, answer)


async def test_a_price_below_what_is_worth_settling_is_not_offered(gateway: InProcessGateway) -> None:
    await gateway.publish()
    await gateway.publish("api_cheap", price=Price.parse("0.0009"))
    payer = Payer.funded(gateway, PRICE)
    bare = await payer.quote(listing="api_cheap")
    assert not {"payment-required", "www-authenticate"} & set(bare.headers)
    shown = payer.show(await payer.quote(), base_units=900)
    answer = await gateway.ask("GET", TARGET, shown, listing="api_cheap")
    assert (answer.status, answer.problem["reason"]) == (402, "rail_withdrawn")
    await check_nothing_happened(gateway, answer)


@pytest.mark.parametrize("withdraw", WITHDRAWN)
async def test_a_known_authorisation_is_answered_from_the_record_on_a_withdrawn_rail(
    gateway: InProcessGateway, payer: Payer, withdraw: Withdraw
) -> None:
    key = [("Idempotency-Key", "one")]
    kept, plainly = payer.show(await payer.quote()), payer.show(await payer.quote())
    assert (await gateway.ask("GET", TARGET, [*kept, *key])).status == 200
    assert (await gateway.ask("GET", TARGET, plainly)).status == 200
    await withdraw(gateway)
    again = await gateway.ask("GET", TARGET, [*kept, *key])
    assert (again.status, again.headers["idempotency-replayed"]) == (200, "true")
    used = await gateway.ask("GET", TARGET, plainly)
    assert (used.status, used.problem["code"]) == (409, "payment_already_used")
    assert not has_terms(used)
    assert gateway.served == 2


# ---------------------------------------------------------------------- access of the wallet


async def test_a_blocked_wallet_buys_nothing(gateway: InProcessGateway, payer: Payer) -> None:
    gateway.blocked.add(payer.address)
    answer = await payer.buy()
    assert (answer.status, answer.problem["code"]) == (403, "wallet_blocked")
    await check_nothing_happened(gateway, answer)


async def test_a_dearer_call_than_allowed_is_not_settled(gateway: InProcessGateway, payer: Payer) -> None:
    answer = await payer.buy(headers=[("Tollway-Max-Price", "0.009")])
    assert (answer.status, answer.problem["code"]) == (412, "price_above_max")
    assert answer.problem["paymentState"] == "none"  # there is no credit that it could be kept as
    await check_nothing_happened(gateway, answer)
    assert (await payer.buy(headers=[("Tollway-Max-Price", "0.01")])).status == 200


async def test_a_listing_has_its_rate_on_this_rail(gateway: InProcessGateway) -> None:
    await gateway.publish(rate_limit=RateLimit(calls=1, per_s=60))
    payer = Payer.funded(gateway, 2 * PRICE)
    assert (await payer.buy()).status == 200
    questions = gateway.chain.request_count
    answer = await payer.buy()
    assert (answer.status, answer.problem["code"]) == (429, "rate_limited")
    assert gateway.chain.request_count == questions  # without a chain request
    await check_nothing_happened(gateway, answer, calls=1)


@pytest.mark.parametrize("is_contract", [False, True])
async def test_an_unverified_request_does_not_use_up_the_rate_of_a_wallet(
    gateway: InProcessGateway, is_contract: bool
) -> None:
    await gateway.publish(rate_limit=RateLimit(calls=1, per_s=60))
    payer = Payer.funded(gateway, 2 * PRICE)
    if is_contract:  # the token calls the wallet, which refuses a foreign signature
        gateway.chain.deploy(CHAIN, payer.address)
        gateway.chain.refuse_transfer(CHAIN, payer.address, NONCE)
    asked = await payer.quote()
    for _ in range(3):
        forged = payer.show(asked, nonce=NONCE, edit=_forge)
        refused = await gateway.ask("GET", TARGET, forged, client="198.51.100.9")
        assert (refused.status, refused.problem["code"]) == (402, "payment_verification_failed")
    assert (await payer.buy()).status == 200


def _forge(content: dict[str, Any]) -> None:
    content["payload"]["signature"] = "0x" + "11" * 65


async def test_a_contract_is_a_customer_like_any_other(gateway: InProcessGateway, payer: Payer) -> None:
    yes = ContractResult(reverted=False, payload=ERC1271_MAGIC.ljust(32, b"\0"))
    gateway.chain.deploy(CHAIN, payer.address, lambda calldata: yes)
    assert (await payer.buy(edit=_forge)).status == 200  # the token took its signature, and so did the wallet
    gateway.blocked.add(payer.address)
    answer = await payer.buy(edit=_forge)
    assert (answer.status, answer.problem["code"]) == (403, "wallet_blocked")


@pytest.mark.parametrize("dialect", [Dialect.X402_V2, Dialect.X402_V1])
async def test_one_authorisation_in_both_headers_is_one_payment(
    gateway: InProcessGateway, payer: Payer, dialect: Dialect
) -> None:
    asked = await payer.quote()
    shown = payer.show(asked, nonce=NONCE)
    again = (
        [("X-PAYMENT", shown[0][1])]
        if dialect is Dialect.X402_V2
        else payer.show(asked, dialect, nonce=NONCE)
    )
    answer = await gateway.ask("GET", TARGET, [*shown, *again])
    assert answer.status == 200
    assert (gateway.served, gateway.transfers) == (1, 1)


async def test_a_dial_that_fails_leaves_no_row_and_the_authorisation_as_it_was(
    gateway: InProcessGateway, payer: Payer
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
    await gateway.publish("api_gone", endpoint=f"http://127.0.0.1:{port}/")
    shown = payer.show(await payer.quote())
    answer = await gateway.ask("GET", TARGET, shown, listing="api_gone")
    assert (answer.status, answer.problem["paymentState"]) == (502, "released")
    await check_nothing_happened(gateway, answer)
    gateway.upstream.answer = plain()
    assert (await gateway.ask("GET", TARGET, shown)).status == 200


@pytest.mark.parametrize("dialect", Dialect)
async def test_no_authorisation_pays_a_metered_price(gateway: InProcessGateway, dialect: Dialect) -> None:
    """The price was fixed as the payer asked; ten minutes after the edit only the metered one counts."""
    listing = await gateway.publish()
    payer = Payer.funded(gateway, 10 * PRICE)
    quoted = await payer.quote()
    await gateway.revise(listing, metering=sample_metering())
    gateway.now_ms += TEN_MINUTES_MS + 1
    answer = await gateway.ask("GET", TARGET, payer.show(quoted, dialect))
    assert (answer.status, answer.problem["code"]) == (402, "payment_method_unsupported")
    assert answer.problem["reason"] == "unsupported_scheme"
    assert answer.problem["payment"]["mode"] == "metered"
    assert [option["rail"] for option in answer.problem["payment"]["options"]] == ["tx"]
    await check_nothing_happened(gateway, answer)
