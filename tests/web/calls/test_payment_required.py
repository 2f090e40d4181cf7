"""The 402 response with the terms of every protocol: small, without nulls, with the exact URL of the request, and valid for the types of the x402 package."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from x402.schemas import PaymentRequired
from x402.schemas.v1 import PaymentRequiredV1

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import NOW_MS, PUBLIC_URL, USDC, InProcessGateway
from tests.kit.metering import TOKENS, TOKENS_IN_WORDS, sample_metering
from tests.kit.payer import CHAIN, decode_header, read_challenge
from tollway.chain.networks import PRESETS
from tollway.identity.signatures import ReceiptSigner, recover
from tollway.ids import Address, ChainId
from tollway.money import Asset, Price, TokenDomain
from tollway.payments.offer_receipt import offer_digest
from tollway.registry.listing import Operation
from tollway.web.calls.payment_required import HEADERS_CACHED_MAX, PaymentRequiredRenderer
from tollway.web.http.query import parse_time

URL = f"{PUBLIC_URL}/api/v2/gateway/api_quotes"
UNSUPPORTED = ("PAYMENT-SIGNATURE", base64.b64encode(b'{"x402Version":3}').decode())
"""A valid payment that this gateway does not accept: 402 with terms."""
V1_UNKNOWN = ChainId(11_155_111)  # a network without a name in version 1


def required(answer: Exchange) -> dict[str, Any]:
    content: dict[str, Any] = decode_header(answer.headers["payment-required"].encode())
    return content


def nulls(content: object, path: str = "") -> Iterator[str]:
    if content is None:
        yield path
    elif isinstance(content, dict):
        for name, member in content.items():
            yield from nulls(member, f"{path}.{name}")
    elif isinstance(content, list):
        for member in content:
            yield from nulls(member, path + "[]")


def sell_on_two_networks(gateway: InProcessGateway) -> None:
    """A second network where authorizations can be settled; version 1 has no name for it."""
    token = replace(USDC, chain_id=V1_UNKNOWN, token=Address(b"\x1c" * 20))
    gateway.rules[V1_UNKNOWN] = replace(PRESETS["sandbox"].rules(), chain_id=V1_UNKNOWN, assets=(token,))
    gateway.settlement.gas_budget._rules[V1_UNKNOWN] = replace(
        gateway.settlement.gas_budget._rules[CHAIN], chain_id=V1_UNKNOWN
    )
    gateway.settlement.gas_budget._network_gas[V1_UNKNOWN] = gateway.settlement.gas_budget._network_gas[CHAIN]
    gateway.settlement.gas_budget._sequences[V1_UNKNOWN] = gateway.settlement.gas_budget._sequences[CHAIN]
    spending = gateway.settlement.gas_budget._spending
    spending.update({(V1_UNKNOWN, payers): spending[CHAIN, payers] for _, payers in list(spending)})
    gateway.settlement.settlement._rules = gateway.rules


async def test_one_402_has_the_terms_of_every_protocol(gateway: InProcessGateway) -> None:
    await gateway.publish()
    answer = await gateway.ask("GET", "/quote?x=1")
    assert (answer.status, answer.problem["code"]) == (402, "payment_required")
    v2 = required(answer)
    (accepted,) = v2["accepts"]
    assert accepted == {
        "scheme": "exact",
        "network": "eip155:84532",
        "amount": "10000",
        "asset": str(USDC.token),
        "payTo": answer.problem["payment"]["options"][0]["payTo"],
        "maxTimeoutSeconds": 65,
        "extra": {"name": "USDC", "version": "2"},
    }
    (v1,) = answer.problem["accepts"]
    assert (v1["network"], v1["maxAmountRequired"]) == ("base-sepolia", "10000")
    assert answer.problem["x402Version"] == 1
    challenge = read_challenge(answer.headers["www-authenticate"].encode())
    request = decode_header(challenge["request"].encode())
    assert (challenge["method"], challenge["intent"]) == ("evm", "charge")
    assert (request["amount"], request["currency"]) == ("10000", str(USDC.token))
    assert [option["rail"] for option in answer.problem["payment"]["options"]] == ["tx", "x402"]
    assert {v2["error"], answer.problem["error"]} == {"payment_required"}


async def test_a_metered_call_has_the_terms_of_a_transaction_alone(gateway: InProcessGateway) -> None:
    """An operation with a fixed price of the same amount has the terms of every protocol."""
    maximum = Price.parse("0.02")
    fixed = Operation(method="GET", path="/fixed", price=maximum)
    await gateway.publish(price=maximum, metering=sample_metering(), operations=(fixed,))
    answer = await gateway.ask("GET", "/quote")
    assert (answer.status, answer.problem["code"]) == (402, "payment_required")
    assert f"costs up to 0.02 USDC: {TOKENS_IN_WORDS}. Send" in answer.problem["detail"]
    payment = answer.problem["payment"]
    assert [(option["rail"], option["amount"]) for option in payment["options"]] == [("tx", "20000")]
    assert (payment["mode"], payment["amount"]) == ("metered", "0.02")
    assert (payment["formula"], payment["metering"]) == (TOKENS_IN_WORDS, TOKENS)
    assert answer.headers["tollway-price-max"] == "0.02 USDC"
    assert not {"accepts", "x402Version", "error"} & answer.problem.keys()
    assert not {"payment-required", "www-authenticate", "tollway-price"} & answer.headers.keys()
    plain = await gateway.ask("GET", "/fixed")
    assert [option["rail"] for option in plain.problem["payment"]["options"]] == ["tx", "x402"]
    assert {"payment-required", "www-authenticate"} <= plain.headers.keys()
    assert "tollway-price-max" not in plain.headers
    assert plain.problem["payment"].keys() == {"amount", "currency", "expiresAt", "options"}


async def test_a_402_links_to_the_agent_document(gateway: InProcessGateway) -> None:
    await gateway.publish()
    for target in ("", "/quote?x=1"):
        link = (await gateway.ask("GET", target)).headers["link"]
        url = f"{PUBLIC_URL}/api/v2/apis/api_quotes/agent"
        assert link == f'<{url}>; rel="describedby"; type="application/json"'


async def test_the_x402_package_parses_a_402(gateway: InProcessGateway) -> None:
    await gateway.publish(description="Quotes.", tags=("finance",))
    answer = await gateway.ask("GET", "/quote?x=1")
    v2 = PaymentRequired.model_validate(required(answer))
    assert v2.accepts[0].amount == "10000"
    v1 = PaymentRequiredV1.model_validate(json.loads(answer.body))
    assert v1.accepts[0].max_amount_required == "10000"


@pytest.mark.parametrize(
    "target",
    [
        "",
        "/",
        "/quote",
        "/quote?x=1",
        "/quote?",
        "/quote?x=1&x=2&&y",
        "/a%2Fb/%C3%A9%20x?q=%2F+%20",
        "/a//b/./c;v=1?a=b?c",
        "?only=query",
    ],
)
async def test_the_resource_is_the_public_url_byte_for_byte(gateway: InProcessGateway, target: str) -> None:
    await gateway.publish()
    answer = await gateway.ask("GET", target, [("x-forwarded-host", "evil.example")])
    written = target.rstrip("?") if target.endswith("?") else target
    assert required(answer)["resource"]["url"] in (URL + target, URL + written)
    assert answer.problem["accepts"][0]["resource"] == required(answer)["resource"]["url"]


async def test_the_host_header_is_not_used(gateway: InProcessGateway) -> None:
    await gateway.publish()
    exchange = gateway.open("GET", "/quote")
    exchange.scope["headers"] = [(b"host", b"evil.example")]
    answer = await gateway.run(exchange)
    assert required(answer)["resource"]["url"] == URL + "/quote"
    assert "evil" not in answer.headers["www-authenticate"]
    assert b"evil" not in answer.body


async def test_a_402_is_small_and_has_no_nulls_for_any_listing(gateway: InProcessGateway) -> None:
    parameters = [
        {"name": f"p{number}", "in": "query", "required": False, "description": "é" * 200, "schema": {"type": "string"}}
        for number in range(50)
    ]  # fmt: skip
    document = {"openapi": "3.1.0", "paths": {"/quote": {"get": {"parameters": parameters}}}}
    wordy = replace(
        gateway.sample("api_quotes"),
        name="Ü" * 120,
        description="漢" * 4_000,
        tags=("ä" * 32, "b" * 32, "c" * 32, "d" * 32, "e" * 32),
        openapi=document,
    )
    await gateway.catalog.publish(wordy)
    for target in ("/quote", "/quote?q=" + "x" * 3_000, "/" + "y" * 6_000):
        answer = await gateway.ask("GET", target, listing="api_quotes")
        assert len(answer.headers["payment-required"]) <= 4_096
        head = sum(len(name) + len(value) for name, value in answer.headers.items())
        assert head <= 8_192
        assert list(nulls(required(answer))) == []
        assert list(nulls(answer.problem)) == []
        assert required(answer)["accepts"]
        PaymentRequired.model_validate(required(answer))


async def test_accepts_stand_in_the_listings_order_of_preference(gateway: InProcessGateway) -> None:
    sell_on_two_networks(gateway)
    await gateway.publish("api_a", networks=(CHAIN, V1_UNKNOWN))
    await gateway.publish("api_b", networks=(V1_UNKNOWN, CHAIN))
    for name, networks in {
        "api_a": ["eip155:84532", "eip155:11155111"],
        "api_b": ["eip155:11155111", "eip155:84532"],
    }.items():
        answer = await gateway.ask("GET", "/quote", listing=name)
        assert [accepted["network"] for accepted in required(answer)["accepts"]] == networks
        options = answer.problem["payment"]["options"]
        assert [option["network"] for option in options if option["rail"] == "x402"] == networks
        # MPP's clients use one challenge: of the preferred requirement.
        request = decode_header(
            read_challenge(answer.headers["www-authenticate"].encode())["request"].encode()
        )
        assert f"eip155:{request['methodDetails']['chainId']}" == networks[0]
        # Version 1 gets only what it can parse.
        assert [accepted["network"] for accepted in answer.problem["accepts"]] == ["base-sepolia"]


async def test_version_1_is_left_out_where_its_clients_would_fail(gateway: InProcessGateway) -> None:
    sell_on_two_networks(gateway)
    await gateway.publish(networks=(V1_UNKNOWN,))
    answer = await gateway.ask("GET", "/quote")
    assert not {"accepts", "x402Version", "error"} & set(answer.problem)
    assert len(required(answer)["accepts"]) == 1


async def test_a_token_without_authorisations_is_sold_by_transaction_only(gateway: InProcessGateway) -> None:
    bare = replace(USDC, domain=None)
    gateway.rules[CHAIN] = replace(gateway.rules[CHAIN], assets=(bare,))
    await gateway.publish()
    answer = await gateway.ask("GET", "/quote")
    assert answer.status == 402
    assert not {"payment-required", "www-authenticate"} & set(answer.headers)
    assert [option["rail"] for option in answer.problem["payment"]["options"]] == ["tx"]


@pytest.mark.parametrize(
    "asset",
    [
        Asset(chain_id=CHAIN, token=Address(b"\x1c" * 20), symbol="USDC", decimals=18,
              domain=TokenDomain(name="USDC", version="2")),
        USDC,
    ],
    ids=["18 decimals", "6 decimals"],
)  # fmt: skip
async def test_amounts_are_of_base_units_to_the_unit(gateway: InProcessGateway, asset: Asset) -> None:
    gateway.rules[CHAIN] = replace(gateway.rules[CHAIN], assets=(asset,))
    await gateway.publish(price=Price.parse("12.345678"))
    answer = await gateway.ask("GET", "/quote")
    amount = str(12_345_678 * 10 ** (asset.decimals - 6))
    assert required(answer)["accepts"][0]["amount"] == amount
    options = answer.problem["payment"]["options"]
    assert {option["amount"] for option in options} == {amount}
    accepts_v1 = answer.problem.get("accepts", [])
    assert [one["maxAmountRequired"] for one in accepts_v1] == ([] if len(amount) > 18 else [amount])


async def test_an_extension_offers_an_identifier_and_none_offers_to_sign_in(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish()
    extensions = required(await gateway.ask("GET", "/quote"))["extensions"]
    assert extensions["payment-identifier"]["info"] == {"required": False}
    assert "sign-in-with-x" not in extensions


async def test_browsers_may_read_the_headers_of_every_protocol(gateway: InProcessGateway) -> None:
    await gateway.publish()
    answer = await gateway.ask("GET", "/quote")
    exposed = {name.strip().lower() for name in answer.headers["access-control-expose-headers"].split(",")}
    assert {
        "payment-required",
        "payment-response",
        "x-payment-response",
        "www-authenticate",
        "payment-receipt",
        "idempotency-replayed",
        "tollway-call-id",
        "tollway-payment-state",
        "retry-after",
    } <= exposed
    assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.headers["cache-control"] == "no-store"


async def test_every_protocol_has_the_reason_of_the_refusal(gateway: InProcessGateway) -> None:
    await gateway.publish()
    answer = await gateway.ask("GET", "/quote", [UNSUPPORTED])
    reason = answer.problem["reason"]
    assert required(answer)["error"] == answer.problem["error"] == reason
    assert isinstance(reason, str)


async def test_head_gets_the_headers_of_the_same_402(gateway: InProcessGateway) -> None:
    await gateway.publish()
    answer = await gateway.ask("HEAD", "/quote?x=1")
    assert (answer.status, answer.body) == (402, b"")
    assert required(answer)["resource"]["url"] == URL + "/quote?x=1"
    assert answer.headers["www-authenticate"].startswith("Payment id=")


async def test_no_header_is_repeated(gateway: InProcessGateway) -> None:
    """`RecordedExchange.headers` refuses repeated headers; the wire must not have them either."""
    await gateway.publish()
    answer = await gateway.ask("GET", "/quote", [("authorization", "Payment garbage")])
    names = [name for name, _ in answer.sent[0]["headers"]]
    for name in (b"www-authenticate", b"payment-required", b"cache-control", b"content-type"):
        assert names.count(name) == 1


# ---- Caches.


def payment_of(answer: Exchange) -> dict[str, Any]:
    content: dict[str, Any] = answer.problem["payment"]
    return content


async def test_a_changed_listing_is_quoted_at_once(gateway: InProcessGateway) -> None:
    listing = await gateway.publish(description="Old.")
    assert required(await gateway.ask("GET", "/quote"))["resource"]["description"] == "Old."
    other_wallet = Address(b"\x77" * 20)
    listing = await gateway.revise(
        listing, description="New.", price=Price.parse("0.02"), pay_to=other_wallet, timeout_s=7
    )
    answer = await gateway.ask("GET", "/quote")
    v2 = required(answer)
    (accepted,) = v2["accepts"]
    assert v2["resource"]["description"] == "New."
    assert (accepted["amount"], accepted["payTo"], accepted["maxTimeoutSeconds"]) == (
        "20000",
        str(other_wallet),
        67,
    )
    assert payment_of(answer)["amount"] == "0.02"
    assert {option["payTo"] for option in payment_of(answer)["options"]} == {str(other_wallet)}
    (v1,) = answer.problem["accepts"]
    assert (v1["maxAmountRequired"], v1["description"]) == ("20000", "New.")
    request = decode_header(read_challenge(answer.headers["www-authenticate"].encode())["request"].encode())
    assert (request["amount"], request["recipient"]) == ("20000", str(other_wallet))


async def test_each_operation_has_its_own_price_and_description(
    gateway: InProcessGateway,
) -> None:
    document = {
        "paths": {
            f"/{name}": {"get": {"parameters": [{"name": name, "in": "query", "schema": {"type": "string"}}]}}
            for name in ("cheap", "dear", "{any}")
        }
    }
    dear = Operation(method="GET", path="/dear", price=Price.parse("0.5"))
    await gateway.publish(openapi=document, operations=(dear,))
    for _ in range(2):
        for path, amount, name in (
            ("/cheap", "10000", "cheap"),
            ("/dear", "500000", "dear"),
            ("/x", "10000", "{any}"),
            ("/cheap", "10000", "cheap"),
        ):
            v2 = required(await gateway.ask("GET", path))
            assert v2["accepts"][0]["amount"] == amount
            properties = v2["extensions"]["bazaar"]["schema"]["properties"]["input"]["properties"]
            assert list(properties["queryParams"].get("properties", [])) == [name] * (name.isalpha())


async def test_each_method_has_its_own_description(gateway: InProcessGateway) -> None:
    await gateway.publish()
    for method in ("GET", "POST", "GET", "HEAD", "POST"):
        v2 = required(await gateway.ask(method, "/quote"))
        assert v2["extensions"]["bazaar"]["info"]["input"]["method"] == method


async def test_an_unsettled_asset_is_not_offered_until_it_can_be_settled_again(
    gateway: InProcessGateway,
) -> None:
    dear = Operation(method="GET", path="/dear", price=Price.parse("0.5"))
    await gateway.publish(operations=(dear,))
    assert (await gateway.ask("GET", "/quote")).headers["payment-required"]
    shedder = gateway.settlement.gas_budget._network_gas[CHAIN]
    seen_s, shedder.seen_s = shedder.seen_s, -1e9
    answer = await gateway.ask("GET", "/quote")
    assert not {"payment-required", "www-authenticate"} & set(answer.headers)
    assert not {"accepts", "x402Version", "error"} & set(answer.problem)
    assert [option["rail"] for option in payment_of(answer)["options"]] == ["tx"]
    assert "x402" not in answer.problem["detail"]
    assert payment_of(await gateway.ask("GET", "/dear"))["amount"] == "0.5"
    shedder.seen_s = seen_s
    answer = await gateway.ask("GET", "/quote")
    assert required(answer)["accepts"]
    assert [option["rail"] for option in payment_of(answer)["options"]] == ["tx", "x402"]


async def test_each_request_has_its_own_expiry_url_and_challenge(gateway: InProcessGateway) -> None:
    await gateway.publish()
    first = await gateway.ask("GET", "/quote")
    gateway.now_ms += 1_234
    second = await gateway.ask("GET", "/quote")
    moments = [parse_time(payment_of(answer)["expiresAt"]) for answer in (first, second)]
    assert moments == [NOW_MS + 600_000, NOW_MS + 601_234]
    challenges = [read_challenge(one.headers["www-authenticate"].encode()) for one in (first, second)]
    assert challenges[0]["id"] != challenges[1]["id"]
    assert challenges[0]["expires"] < challenges[1]["expires"]
    third = await gateway.ask("GET", "/quote")  # at the same time
    assert read_challenge(third.headers["www-authenticate"].encode())["id"] != challenges[1]["id"]
    other = await gateway.ask("GET", "/quote?x=1")
    assert required(other)["resource"]["url"] == URL + "/quote?x=1" != required(second)["resource"]["url"]
    assert other.problem["instance"] == second.problem["instance"]


async def test_other_refusals_have_the_same_quote_with_their_own_text(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish()
    plain = await gateway.ask("GET", "/quote")
    for _ in range(2):
        refused = await gateway.ask("GET", "/quote", [UNSUPPORTED])
        assert payment_of(refused) == payment_of(plain)
        assert required(refused)["accepts"] == required(plain)["accepts"]
        assert required(refused)["error"] != required(plain)["error"]


async def test_no_member_of_a_402_is_repeated(gateway: InProcessGateway) -> None:
    """The terms and the problem are encoded separately and joined as text."""
    await gateway.publish()
    tiny = await gateway.pay(1)
    for headers in ([], [UNSUPPORTED], gateway.plain_proof(tiny.tx_hash)):
        answer = await gateway.ask("GET", "/quote", headers)
        assert answer.status == 402
        names = [name for name, _ in json.loads(answer.body, object_pairs_hook=list)]
        assert len(names) == len(set(names)), names


class Notarised:
    """A gateway that signs its offers."""

    def __init__(self, gateway: InProcessGateway) -> None:
        self.receipt_signer = ReceiptSigner.derive(b"\x07" * 32)
        gateway.calls._payment_required = PaymentRequiredRenderer(
            gateway.rules,
            public_url=PUBLIC_URL,
            challenger=None,
            now_ms=lambda: gateway.now_ms,
            entropy=gateway._entropy,
            receipt_signer=self.receipt_signer,
        )

    def read_offers(self, answer: Exchange) -> list[dict[str, Any]]:
        """The payload of each offer, after a check of the gateway's signature."""
        offers = required(answer)["extensions"]["offer-receipt"]["info"]["offers"]
        for offer in offers:
            signature = bytes.fromhex(offer["signature"][2:])
            assert recover(offer_digest(offer["payload"]), signature) == self.receipt_signer.address
        return [offer["payload"] for offer in offers]


async def test_signed_offers_of_a_url_are_cached_and_stay_within_their_validity(
    gateway: InProcessGateway,
) -> None:
    signed = Notarised(gateway)
    await gateway.publish()
    now_s = gateway.now_ms // 1000
    (first,) = signed.read_offers(await gateway.ask("GET", "/quote"))
    assert first["validUntil"] == now_s + 600
    gateway.now_ms += 4_000
    (again,) = signed.read_offers(await gateway.ask("GET", "/quote"))
    assert again == first
    (other,) = signed.read_offers(await gateway.ask("GET", "/quote?x=1"))
    assert (other["resourceUrl"], other["validUntil"]) == (URL + "/quote?x=1", now_s + 604)
    gateway.now_ms += 1_000
    (fresh,) = signed.read_offers(await gateway.ask("GET", "/quote"))
    assert fresh["validUntil"] == now_s + 605
    gateway.now_ms -= 60_000  # the clock was set back
    (back,) = signed.read_offers(await gateway.ask("GET", "/quote"))
    assert back["validUntil"] == now_s - 55 + 600


async def test_a_cached_offer_ends_with_its_price(gateway: InProcessGateway) -> None:
    signed = Notarised(gateway)
    listing = await gateway.publish()
    (before,) = signed.read_offers(await gateway.ask("GET", "/quote"))
    await gateway.revise(listing, price=Price.parse("0.02"))
    (after,) = signed.read_offers(await gateway.ask("GET", "/quote"))
    assert (before["amount"], after["amount"]) == ("10000", "20000")


async def test_the_cache_of_urls_is_bounded(gateway: InProcessGateway) -> None:
    await gateway.publish()
    for number in range(HEADERS_CACHED_MAX + 2):
        await gateway.ask("GET", f"/quote?x={number}")
    assert len(gateway.calls._payment_required._required) <= HEADERS_CACHED_MAX
    assert len(gateway.calls._payment_required._templates) == 1
