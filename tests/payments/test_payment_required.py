"""One 402 for every dialect, small enough for every client; receipts in the dialect that paid."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from x402.schemas import PaymentRequired, SettleResponse
from x402.schemas.v1 import PaymentRequiredV1

from tests.kit.payer import (
    NOW_S,
    USDC,
    decode_header,
    requirement_of,
)
from tollway.discovery.bazaar import describe_call
from tollway.ids import Address, ChainId, TxHash
from tollway.ledger.records import Dialect
from tollway.money import Asset
from tollway.payments.payment_required import (
    ERROR,
    REQUIRED_BYTES_MAX,
    JsonTemplate,
    PaymentRequiredEncoder,
    TemplateSlot,
    encode_failure,
    encode_receipt,
)
from tollway.payments.payment_required import URL as URL_HOLE
from tollway.payments.pricing import ChannelOffer, PaymentRequirement
from tollway.payments.wire import encode_json
from tollway.payments.x402 import PAYMENT_IDENTIFIER_EXTENSION, Resource

URL = "https://gw.example.com/api/v2/gateway/api_1/v1/quote?city=Wien%20Mitte"
RESOURCE = Resource(url=URL, description="Quotes", service_name="Quotes", tags=("weather",))
OPENAPI = {
    "paths": {
        "/v1/quote": {
            "get": {
                "parameters": [
                    {"name": f"p{n}", "in": "query", "schema": {"type": "string", "description": "d" * 80}}
                    for n in range(12)
                ]
            }
        }
    }
}
BAZAAR = describe_call("GET", path="/v1/quote", openapi=OPENAPI)
EXTENSIONS: dict[str, Any] = {"bazaar": BAZAAR, "payment-identifier": PAYMENT_IDENTIFIER_EXTENSION}


def ask(
    *requirements: PaymentRequirement, resource: Resource = RESOURCE, extensions: dict[str, Any] | None = None
) -> PaymentRequiredEncoder:
    return PaymentRequiredEncoder(
        requirements, resource, extensions=EXTENSIONS if extensions is None else extensions
    )


def required_of(
    form: PaymentRequiredEncoder, url: str = URL, values: dict[str, bytes] | None = None
) -> dict[str, Any]:
    value = form.encode_required(url, {ERROR: b'"payment_required"', **(values or {})})
    assert len(value) <= REQUIRED_BYTES_MAX
    content: dict[str, Any] = decode_header(value)
    PaymentRequired.model_validate(content)
    assert holds_no_null(content)
    return content


def members_of(form: PaymentRequiredEncoder) -> dict[str, Any]:
    filled = JsonTemplate(form.members).fill(
        {URL_HOLE: json.dumps(URL).encode(), ERROR: b'"payment_required"'}
    )
    content: dict[str, Any] = json.loads(filled)
    return content


def holds_no_null(value: Any) -> bool:
    if isinstance(value, dict):
        return all(holds_no_null(one) for one in value.values())
    if isinstance(value, list):
        return all(holds_no_null(one) for one in value)
    return value is not None


def elsewhere(number: int) -> PaymentRequirement:
    return requirement_of(replace(USDC, chain_id=ChainId(number)))


def test_version_2_is_in_the_header() -> None:
    content = required_of(ask(requirement_of(), elsewhere(8453)))
    assert (content["x402Version"], content["error"]) == (2, "payment_required")
    assert content["resource"] == {
        "url": URL,
        "description": "Quotes",
        "mimeType": "application/json",
        "serviceName": "Quotes",
        "tags": ["weather"],
    }
    assert [one["network"] for one in content["accepts"]] == ["eip155:84532", "eip155:8453"]
    assert set(content["extensions"]) == {"bazaar", "payment-identifier"}
    assert all(set(one) == {"info", "schema"} for one in content["extensions"].values())


def test_without_extensions_there_is_no_such_member() -> None:
    assert "extensions" not in required_of(ask(requirement_of(), extensions={}))


def test_version_1_is_in_the_body() -> None:
    members = members_of(ask(requirement_of(), elsewhere(8453)))
    PaymentRequiredV1.model_validate(members)
    assert holds_no_null(members)
    assert members["error"] == "payment_required"
    assert [one["network"] for one in members["accepts"]] == ["base-sepolia", "base"]
    assert {one["resource"] for one in members["accepts"]} == {URL}


def test_a_network_without_a_name_in_version_1_is_left_out_of_its_members() -> None:
    """Clients of version 1 refuse the whole list for one unknown name."""
    form = ask(elsewhere(42161), requirement_of(), elsewhere(1))
    assert [one["network"] for one in members_of(form)["accepts"]] == ["base-sepolia"]
    assert len(required_of(form)["accepts"]) == 3


def test_without_a_network_of_version_1_there_are_no_members_of_it() -> None:
    assert ask(elsewhere(42161)).members == {}


LONG = replace(RESOURCE, description="ä" * 4_000, tags=("a" * 32, "b" * 32))


def test_a_long_description_is_cut() -> None:
    content = required_of(ask(requirement_of(), resource=LONG, extensions={}))
    assert len(content["resource"]["description"]) == 500
    assert content["resource"]["tags"]


def shrunk(count: int, resource: Resource = LONG) -> dict[str, Any]:
    return required_of(ask(*(elsewhere(1_000 + number) for number in range(count)), resource=resource))


def test_the_least_important_parts_are_dropped_first() -> None:
    """Schema details, then tags, then the description, then the extensions, then the later ways to pay."""
    details = shrunk(1)
    assert details["extensions"]["bazaar"]["schema"] == {"type": "object"}
    assert details["extensions"]["bazaar"]["info"] == BAZAAR["info"] if BAZAAR else None
    assert details["resource"]["tags"]
    seen = []
    for count in range(1, 30):
        content = shrunk(count)
        seen.append(
            (
                "tags" not in content["resource"],
                len(content["resource"]["description"]) <= 100,
                "extensions" not in content,
                len(content["accepts"]) < count,
            )
        )
    for step in seen:
        assert list(step) == sorted(step, reverse=True), "a later thing went before an earlier one"
    assert seen[-1] == (True, True, True, True)
    assert [accepted["network"] for accepted in shrunk(29)["accepts"]][:2] == ["eip155:1000", "eip155:1001"]


def channel_in(asset: Asset) -> PaymentRequirement:
    offer = ChannelOffer(authorizer=Address(b"\x0a" * 20), withdraw_delay=900, deposit_min=1_000_000)
    return replace(requirement_of(asset), channel=offer)


def test_single_authorisations_of_further_networks_go_before_channels() -> None:
    other = replace(USDC, token=Address(b"\x77" * 20))
    further = [elsewhere(1_000 + number) for number in range(12)]
    form = ask(
        requirement_of(),
        requirement_of(other),
        *further,
        channel_in(USDC),
        channel_in(replace(USDC, chain_id=ChainId(1_000))),
        resource=LONG,
    )

    def list_offers(url: str) -> list[tuple[str, str, str]]:
        accepts = required_of(form, url)["accepts"]
        return [(one["scheme"], one["network"], one["asset"]) for one in accepts]

    home, token = "eip155:84532", str(USDC.token)
    channels = [("batch-settlement", home, token), ("batch-settlement", "eip155:1000", token)]
    singles = [("exact", home, token), ("exact", home, str(other.token))]
    found = [list_offers(URL + "x" * length) for length in range(0, 2_600, 20)]
    for offers in found:
        kept = [one for one in offers if one[0] == "exact" and one[1] != home]
        assert offers == [*singles, *kept, *channels] or not kept, offers
        assert offers[0] == singles[0]
        assert offers[-2:] == channels or offers in ([singles[0], channels[0]], [singles[0]]), offers
    assert [*singles, *channels] in found
    assert [singles[0], *channels] in found
    assert [singles[0], channels[0]] in found


def test_the_query_is_dropped_last() -> None:
    content = required_of(ask(requirement_of(), resource=LONG), URL + "x" * 2_600)
    assert content["resource"]["url"] == URL.partition("?")[0]
    assert content["accepts"]


def test_even_the_longest_path_fits() -> None:
    content = required_of(ask(requirement_of(), resource=LONG), "https://gw.example.com/" + "x" * 8_000)
    assert content["resource"]["url"].startswith("https://gw.example.com/xxx")


@settings(max_examples=60)
@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=3_000).map(
        lambda t: "https://a/" + t
    ),
    st.builds(
        Resource,
        url=st.just(""),
        description=st.text(max_size=1_500),
        service_name=st.text(max_size=130),
        tags=st.lists(st.text(max_size=40), max_size=6).map(tuple),
    ),
    st.integers(1, 12),
)
def test_every_402_fits_and_is_readable(url: str, resource: Resource, count: int) -> None:
    required_of(ask(*(elsewhere(1_000 + number) for number in range(count)), resource=resource), url)


def test_a_short_url_after_a_long_one_gets_the_longest_draft() -> None:
    form = ask(requirement_of(), elsewhere(8453))
    before = required_of(form)
    assert required_of(form, URL + "x" * 2_400) != before
    assert required_of(form) == before


def test_slots_count_for_the_size_and_extensions_with_slots_are_dropped_first() -> None:
    extensions = {
        **EXTENSIONS,
        "offers": {"info": {"all": TemplateSlot("offers")}, "schema": {"type": "object"}},
    }
    form = ask(requirement_of(), extensions=extensions)
    assert set(required_of(form, values={"offers": b"[]"})["extensions"]) == set(extensions)
    filled = json.dumps(["x" * 2_600]).encode()
    assert set(required_of(form, values={"offers": filled})["extensions"]) == set(EXTENSIONS)


# ---- Receipts.

HASH, PAYER = TxHash(b"\xab" * 32), Address(b"\x12" * 20)


def receipt(dialect: Dialect, **given_: Any) -> tuple[bytes, Any]:
    fields: dict[str, Any] = {
        "transaction": HASH,
        "network_chain_id": ChainId(84532),
        "payer": PAYER,
        "base_units": 10_000,
        "challenge_id": "ch",
        "now": NOW_S + 0.5,
    }
    name, value = encode_receipt(dialect, **{**fields, **given_})
    return name, decode_header(value)


def test_a_receipt_has_the_dialect_of_the_payment() -> None:
    name, content = receipt(Dialect.X402_V2)
    assert name == b"payment-response"
    SettleResponse.model_validate(content)
    assert content == {
        "success": True,
        "transaction": str(HASH),
        "network": "eip155:84532",
        "payer": str(PAYER),
        "amount": "10000",
    }
    assert receipt(Dialect.X402_V1) == (
        b"x-payment-response",
        {"success": True, "transaction": str(HASH), "network": "base-sepolia", "payer": str(PAYER)},
    )
    assert receipt(Dialect.MPP) == (
        b"payment-receipt",
        {
            "status": "success",
            "method": "evm",
            "timestamp": "2027-01-15T08:00:00.000Z",
            "reference": str(HASH),
            "chainId": 84532,
            "challengeId": "ch",
        },
    )


def test_only_version_2_carries_extensions() -> None:
    extra: dict[str, Any] = {"offer-receipt": {"info": {}, "schema": {}}}
    assert receipt(Dialect.X402_V2, extensions=extra)[1]["extensions"] == extra
    assert "extensions" not in receipt(Dialect.X402_V1, extensions=extra)[1]
    assert "challengeId" not in receipt(Dialect.MPP, challenge_id="")[1]


@pytest.mark.parametrize(
    ("dialect", "name", "network"),
    [
        (Dialect.X402_V2, b"payment-response", "eip155:84532"),
        (Dialect.X402_V1, b"x-payment-response", "base-sepolia"),
    ],
)
def test_a_failure_says_that_nothing_moved(dialect: Dialect, name: bytes, network: str) -> None:
    header = encode_failure(
        dialect, reason="insufficient_balance", network_chain_id=ChainId(84532), payer=PAYER
    )
    assert header is not None
    assert header[0] == name
    content = decode_header(header[1])
    SettleResponse.model_validate(content)
    assert content == {
        "success": False,
        "errorReason": "insufficient_balance",
        "transaction": "",
        "network": network,
        "payer": str(PAYER),
    }


def test_mpp_has_no_receipt_of_a_failure() -> None:
    assert encode_failure(Dialect.MPP, reason="x", network_chain_id=ChainId(1), payer=PAYER) is None


# ---- A filled template equals the encoded content.


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.sampled_from([TemplateSlot("a"), TemplateSlot("b")])
)
CONTENTS = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)  # fmt: skip


def put(content: Any, values: dict[str, Any]) -> Any:
    if isinstance(content, TemplateSlot):
        return values[content]
    if isinstance(content, dict):
        return {name: put(value, values) for name, value in content.items()}
    return [put(value, values) for value in content] if isinstance(content, list) else content


@given(CONTENTS, st.text(), st.lists(st.integers()))
def test_a_filled_template_equals_the_encoded_content(content: Any, first: str, second: list[int]) -> None:
    values: dict[str, Any] = {"a": first, "b": second}
    filled = {name: encode_json(value) for name, value in values.items()}
    template = JsonTemplate(content)
    assert template.fill(filled) == encode_json(put(content, values))
    assert template.count(filled) == len(template.fill(filled))


def test_a_text_equal_to_a_slots_name_is_not_a_slot() -> None:
    template = JsonTemplate({"url": TemplateSlot("url"), "name": "url", "other": '"url"'})
    assert json.loads(template.fill({"url": b"1"})) == {"url": 1, "name": "url", "other": '"url"'}
    assert template.slots == 1


def test_a_slot_may_repeat_and_unknown_values_are_ignored() -> None:
    template = JsonTemplate([TemplateSlot("a"), {"x": TemplateSlot("a")}])
    assert template.fill({"a": b"true", "b": b"never"}) == b'[true,{"x":true}]'
