"""The payment of a tool call: every place where a client puts it, as headers and through the real pipeline."""

import base64
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from x402.schemas import parse_payment_required

from tests.kit.gateway import InProcessGateway, open_gateway
from tests.kit.mcp import QUOTES, mcp_context, mcp_request
from tests.kit.payer import CHAIN, AuthorizationSigner, Payer
from tollway.discovery.operations import list_operations
from tollway.discovery.tool_results import (
    MPP_CREDENTIAL,
    MPP_RECEIPT,
    MPP_REQUIRED,
    PAYMENT,
    PAYMENT_ERROR,
    PAYMENT_RESPONSE,
    TERMS_TEXT_BYTES_MAX,
    ToolResult,
)
from tollway.ids import ChainId, keccak256
from tollway.payments.wire import decode_object, encode_object, encode_object_urlsafe
from tollway.web.api.mcp_payment import collect_payments
from tollway.web.api.mcp_tools import McpTools, ToolInvocation

V2 = {"x402Version": 2, "payload": {"b": 1, "a": "ä"}}
V1 = {"x402Version": 1, "payload": {}}
REQUEST = {"recipient": "0x1", "amount": "1", "methodDetails": {"decimals": 6, "chainId": 1}}
CREDENTIAL: dict[str, Any] = {
    "challenge": {"id": "i", "request": REQUEST, "opaque": {"salt": "1"}},
    "payload": {},
}
CREDENTIAL_IN_HTTP = {
    "challenge": {
        "id": "i",
        "request": encode_object_urlsafe(REQUEST),
        "opaque": encode_object_urlsafe({"salt": "1"}),
    },
    "payload": {},
}


def standard(content: Mapping[str, Any]) -> str:
    return encode_object(content).decode()


def read(header: tuple[str, str]) -> tuple[str, Any]:
    """The name of a payment header, and its content."""
    name, value = header
    raw = value.removeprefix("Payment ").encode()
    return name, decode_object(raw, bytes_max=len(raw))


@pytest.mark.parametrize(
    ("meta", "headers", "expected"),
    [
        ({}, [], []),
        ({PAYMENT: None, MPP_CREDENTIAL: None, "other": V2}, [], []),
        ({PAYMENT: V2}, [], [("payment-signature", V2)]),
        ({PAYMENT: json.dumps(V2)}, [], [("payment-signature", V2)]),
        ({PAYMENT: standard(V2)}, [], [("payment-signature", V2)]),
        ({PAYMENT: V1}, [], [("x-payment", V1)]),
        ({PAYMENT: json.dumps(V1)}, [], [("x-payment", V1)]),
        ({PAYMENT: standard(V1)}, [], [("x-payment", V1)]),
        ({MPP_CREDENTIAL: CREDENTIAL}, [], [("authorization", CREDENTIAL_IN_HTTP)]),
        ({MPP_CREDENTIAL: CREDENTIAL_IN_HTTP}, [], [("authorization", CREDENTIAL_IN_HTTP)]),
        ({MPP_CREDENTIAL: standard(V2)}, [], [("authorization", V2)]),
        ({MPP_CREDENTIAL: f"Payment {standard(V2)}"}, [], [("authorization", V2)]),
        ({}, [("PAYMENT-SIGNATURE", standard(V2))], [("payment-signature", V2)]),
        ({}, [("x-payment", standard(V1))], [("x-payment", V1)]),
        ({}, [("Authorization", f"Payment {standard(V2)}")], [("authorization", V2)]),
        ({}, [("Authorization", "Bearer x"), ("Authorization", "Payments x"), ("Cookie", "x")], []),
    ],
)
def test_a_payment_is_read_from_each_of_its_places(
    meta: dict[str, Any], headers: list[tuple[str, str]], expected: list[tuple[str, Any]]
) -> None:
    assert [read(header) for header in collect_payments(meta, headers)] == expected


def test_the_same_payment_in_two_places_is_one() -> None:
    turned = {"payload": {"a": "ä", "b": 1}, "x402Version": 2}
    headers = [("PAYMENT-SIGNATURE", standard(V2)), ("payment-signature", standard(turned))]
    assert len(collect_payments({PAYMENT: turned}, headers, headers)) == 1
    credential = f"payment {encode_object_urlsafe(CREDENTIAL_IN_HTTP)}"
    assert len(collect_payments({MPP_CREDENTIAL: CREDENTIAL}, [("authorization", credential)])) == 1


def test_two_different_payments_stay_two() -> None:
    other = {**V2, "payload": {}}
    assert len(collect_payments({PAYMENT: V2}, [("PAYMENT-SIGNATURE", standard(other))])) == 2
    assert len(collect_payments({PAYMENT: V2}, [("X-PAYMENT", standard(V1))])) == 2
    assert len(collect_payments({PAYMENT: V2, MPP_CREDENTIAL: CREDENTIAL})) == 2
    assert len(collect_payments({PAYMENT: "x"}, [("PAYMENT-SIGNATURE", "y")])) == 2


@pytest.mark.parametrize("value", [[], 7, {}, {"challenge": 1}, {"challenge": {"request": 1}}, "\ud800", ""])
def test_a_value_that_is_no_payment_is_still_a_header(value: Any) -> None:
    """The paid path refuses it; a dropped one would be answered with terms, and the client would sign again."""
    assert len(collect_payments({PAYMENT: value})) == 1
    assert len(collect_payments({MPP_CREDENTIAL: value})) == 1


# ---------------------------------------------------------------------- through the pipeline


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway() as small:
        await small.publish(openapi=QUOTES)
        yield small


@pytest.fixture
def mcp_tools(gateway: InProcessGateway) -> McpTools:
    return McpTools(mcp_context(gateway))


async def call(
    mcp_tools: McpTools,
    *,
    meta: Mapping[str, Any] | None = None,
    headers: tuple[tuple[str, str], ...] = (),
    api_id: str = "api_quotes",
    **arguments: Any,
) -> ToolResult:
    """Calls the operation by `proxy_tool_call`."""
    listing = await mcp_tools.find_listing(api_id)
    (operation,) = [one for one in list_operations(listing) if one.path == "/quote/{asset}"]
    given = arguments or {"arguments": {"asset": "ETH"}}
    answer = await mcp_tools.run(
        ToolInvocation(
            name="proxy_tool_call",
            arguments={"toolName": f"{api_id}.{operation.tool}", **given},
            meta=meta or {},
            mcp_request=mcp_request(*headers),
        )
    )
    assert answer is not None
    return answer


def sign(gateway: InProcessGateway, required: Mapping[str, Any], **signed_fields: Any) -> dict[str, Any]:
    """The payment of an x402 client for the first of `accepts`."""
    payer = Payer.funded(gateway, 10_000)
    accepted = required["accepts"][0]
    signed = payer.sign(accepted, chain_id=CHAIN, amount=accepted["amount"], **signed_fields)
    return {
        "x402Version": 2,
        "resource": required["resource"],
        "accepted": accepted,
        "payload": signed.payload(),
    }


PLACES: dict[str, Any] = {
    "object in _meta": lambda paid: {"meta": {PAYMENT: paid}},
    "JSON text in _meta": lambda paid: {"meta": {PAYMENT: json.dumps(paid)}},
    "base64 in _meta (agents)": lambda paid: {"meta": {PAYMENT: standard(paid)}},
    "header of the POST": lambda paid: {"headers": (("PAYMENT-SIGNATURE", standard(paid)),)},
    "parameters.headers (AgentCore)": lambda paid: {
        "parameters": {"asset": "ETH", "headers": {"PAYMENT-SIGNATURE": standard(paid)}}
    },
    "two places": lambda paid: {
        "meta": {PAYMENT: paid},
        "headers": (("PAYMENT-SIGNATURE", standard(paid)),),
    },
}


@pytest.mark.parametrize(
    ("source", "place"),
    [
        *(("structured content", place) for place in PLACES),
        ("x402/error", "base64 in _meta (agents)"),
        ("text", "object in _meta"),
    ],
)
async def test_a_client_pays_from_what_it_reads_and_where_it_writes(
    gateway: InProcessGateway, mcp_tools: McpTools, source: str, place: str
) -> None:
    terms = await call(mcp_tools)
    assert terms.text is not None
    read_from = {
        "structured content": terms.content,
        "x402/error": terms.meta[PAYMENT_ERROR],
        "text": json.loads(terms.text),
    }
    paid = await call(mcp_tools, **PLACES[place](sign(gateway, read_from[source])))
    assert not paid.is_error, paid.content
    assert paid.content["call"]["paymentState"] == "charged"
    assert paid.meta[PAYMENT_RESPONSE]["success"] is True
    assert MPP_RECEIPT not in paid.meta
    assert gateway.earned == 10_000
    assert [one.target for one in gateway.upstream.arrived] == ["/base/quote/ETH"]


async def test_a_payment_of_version_1_has_its_receipt(gateway: InProcessGateway, mcp_tools: McpTools) -> None:
    payment = sign(gateway, (await call(mcp_tools)).content)
    older = {
        "x402Version": 1,
        "scheme": "exact",
        "network": "base-sepolia",
        "payload": payment["payload"],
    }
    paid = await call(mcp_tools, meta={PAYMENT: standard(older)})
    assert not paid.is_error, paid.content
    assert (paid.meta[PAYMENT_RESPONSE]["success"], paid.meta[PAYMENT_RESPONSE]["network"]) == (
        True,
        "base-sepolia",
    )


def sign_challenge(gateway: InProcessGateway, challenge: Mapping[str, Any]) -> dict[str, Any]:
    """The credential of an MPP client for a challenge of MCP, whose `request` is an object."""
    payer = Payer.funded(gateway, 10_000)
    request = challenge["request"]
    signed: AuthorizationSigner = payer.sign(
        {
            "asset": request["currency"],
            "payTo": request["recipient"],
            "maxTimeoutSeconds": 65,
            "extra": {"name": "USDC", "version": "2"},
        },
        chain_id=ChainId(request["methodDetails"]["chainId"]),
        amount=request["amount"],
        nonce=keccak256((challenge["id"] + challenge["realm"]).encode()),
    )
    payload = {
        "type": "authorization",
        **signed.fields,
        "signature": "0x" + signed.signature.hex(),
    }
    return {"challenge": dict(challenge), "payload": payload}


async def test_a_credential_in_meta_pays_and_the_result_has_the_receipt_of_mpp(
    gateway: InProcessGateway, mcp_tools: McpTools
) -> None:
    required = (await call(mcp_tools)).meta[MPP_REQUIRED]
    (challenge,) = required["challenges"]
    assert (required["httpStatus"], challenge["method"], challenge["intent"]) == (402, "evm", "charge")
    assert challenge["request"]["amount"] == "10000"
    paid = await call(mcp_tools, meta={MPP_CREDENTIAL: sign_challenge(gateway, challenge)})
    assert not paid.is_error, paid.content
    receipt = paid.meta[MPP_RECEIPT]
    assert (receipt["status"], receipt["challengeId"]) == ("success", challenge["id"])
    assert PAYMENT_RESPONSE not in paid.meta
    assert gateway.earned == 10_000


async def test_a_credential_of_another_call_is_refused_with_a_new_challenge(
    gateway: InProcessGateway, mcp_tools: McpTools
) -> None:
    (challenge,) = (await call(mcp_tools)).meta[MPP_REQUIRED]["challenges"]
    credential = sign_challenge(gateway, challenge)
    refused = await call(mcp_tools, meta={MPP_CREDENTIAL: credential}, arguments={"asset": "BTC"})
    required = refused.meta[MPP_REQUIRED]
    assert (refused.is_error, required["failure"]["reason"]) == (True, "invalid_challenge")
    assert required["challenges"][0]["id"] != challenge["id"]
    assert (gateway.earned, gateway.served) == (0, 0)


@pytest.mark.parametrize("place", ["header of the POST", "parameters.headers (AgentCore)"])
async def test_different_payments_in_two_places_are_refused_as_over_http(
    gateway: InProcessGateway, mcp_tools: McpTools, place: str
) -> None:
    terms = (await call(mcp_tools)).content
    one, other = sign(gateway, terms), sign(gateway, terms, nonce=keccak256(b"another"))
    refused = await call(mcp_tools, **{**PLACES[place](other), "meta": {PAYMENT: one}})
    assert (refused.content["code"], refused.content["status"]) == ("invalid_request", 400)
    assert "accepts" not in refused.content
    assert (gateway.earned, gateway.served) == (0, 0)


async def test_two_rails_in_meta_are_refused_as_over_http(
    gateway: InProcessGateway, mcp_tools: McpTools
) -> None:
    terms = await call(mcp_tools)
    (challenge,) = terms.meta[MPP_REQUIRED]["challenges"]
    meta = {
        PAYMENT: sign(gateway, terms.content),
        MPP_CREDENTIAL: sign_challenge(gateway, challenge),
    }
    refused = await call(mcp_tools, meta=meta)
    assert refused.content["reason"] == "more_than_one_rail"
    assert gateway.earned == 0


# ---------------------------------------------------------------------- the shape of Bedrock AgentCore


@pytest.mark.parametrize(
    ("arguments", "pointer"),
    [
        ({"arguments": {"asset": "ETH"}, "parameters": {"asset": "ETH"}}, "/arguments/parameters"),
        ({"parameters": {"asset": "ETH", "headers": {"Accept": "x"}}}, "/arguments/parameters/headers"),
        (
            {"parameters": {"asset": "ETH", "headers": {"Authorization": "Bearer x"}}},
            "/arguments/parameters/headers",
        ),
        (
            {"parameters": {"asset": "ETH", "headers": {"PAYMENT-SIGNATURE": 7}}},
            "/arguments/parameters/headers",
        ),
    ],
)
async def test_parameters_take_payment_headers_and_no_others(
    gateway: InProcessGateway, mcp_tools: McpTools, arguments: dict[str, Any], pointer: str
) -> None:
    refused = await call(mcp_tools, **arguments)
    assert (refused.content["code"], refused.content["errors"][0]["pointer"]) == (
        "validation_failed",
        pointer,
    )
    assert gateway.served == 0


async def test_parameters_are_checked_as_arguments_are(mcp_tools: McpTools) -> None:
    assert (await call(mcp_tools, parameters={})).content["errors"][0]["code"] == "required"
    assert (await call(mcp_tools, parameters={"asset": "ETH", "headers": 1})).content["code"] == (
        "validation_failed"
    )
    assert (await call(mcp_tools, parameters={"asset": "ETH", "headers": {}})).content["accepts"]


async def test_an_operation_keeps_its_own_argument_headers(gateway: InProcessGateway) -> None:
    document = json.loads(json.dumps(QUOTES))
    document["paths"]["/quote/{asset}"]["get"]["parameters"].append(
        {
            "name": "headers",
            "in": "query",
            "style": "form",
            "explode": True,
            "schema": {"type": "object"},
        }
    )
    await gateway.publish("api_headers", openapi=document)
    mcp_tools = McpTools(mcp_context(gateway))
    parameters = {"asset": "ETH", "headers": {"lang": "de"}}
    payment = sign(gateway, (await call(mcp_tools, api_id="api_headers", parameters=parameters)).content)
    parameters["headers"] = {"lang": "de", "payment-signature": standard(payment)}
    paid = await call(mcp_tools, api_id="api_headers", parameters=parameters)
    assert not paid.is_error, paid.content
    assert [one.target for one in gateway.upstream.arrived] == ["/base/quote/ETH?lang=de"]


# ---------------------------------------------------------------------- the unpaid result


async def test_the_text_of_an_unpaid_result_is_a_short_payment_required(mcp_tools: McpTools) -> None:
    """The text is required by x402's MCP transport; the package's own parser reads it."""
    terms = await call(mcp_tools)
    assert terms.text is not None
    assert len(terms.text.encode()) <= TERMS_TEXT_BYTES_MAX < 1_500
    text = json.loads(terms.text)
    assert parse_payment_required(text).accepts[0].amount == "10000"
    assert {name: text[name] for name in ("x402Version", "error", "accepts")} == {
        name: terms.content[name] for name in ("x402Version", "error", "accepts")
    }
    assert "costs 0.01 USDC" in text["detail"]
    assert terms.meta[PAYMENT_ERROR].items() <= dict(terms.content).items()


async def test_a_paid_result_has_its_json_as_text(gateway: InProcessGateway, mcp_tools: McpTools) -> None:
    payment = sign(gateway, (await call(mcp_tools)).content)
    assert (await call(mcp_tools, meta={PAYMENT: payment})).text is None
    refused = await call(mcp_tools, meta={PAYMENT: base64.b64encode(b"[]").decode()})
    assert (refused.text, refused.content["code"]) == (None, "payment_malformed")
    assert not refused.meta
