"""The wire format of x402, compared with the models of the `x402` package."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from x402.extensions.payment_identifier import declare_payment_identifier_extension
from x402.schemas import PaymentPayload, PaymentRequirements, ResourceInfo
from x402.schemas.v1 import PaymentPayloadV1, PaymentRequirementsV1

from tests.kit.payer import CHAIN, USDC, AuthorizationSigner, encode_header, requirement_of
from tollway.errors import Code, Refusal
from tollway.ids import ChainId
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Price
from tollway.payments.x402 import (
    PAYMENT_IDENTIFIER_EXTENSION,
    Resource,
    network_name_v1,
    parse_payment,
    parse_payment_v1,
    requirement_json,
    requirement_json_v1,
    resource_json,
)

RESOURCE = Resource(url="https://gw.example.com/api/v2/gateway/api_1/quote?city=Wien", description="Quotes")


def refusal_of(content: Any, *, is_v1: bool = False) -> tuple[Code, str | None]:
    parse = parse_payment_v1 if is_v1 else parse_payment
    with pytest.raises(Refusal) as caught:
        parse(encode_header(content), limits=DEFAULT_LIMITS)
    return caught.value.problem.code, caught.value.problem.reason


def test_parses_a_payment_of_version_2() -> None:
    payment = AuthorizationSigner().payment()
    PaymentPayload.model_validate(payment)
    shown = parse_payment(encode_header(payment), limits=DEFAULT_LIMITS)
    assert (shown.chain_id, shown.token, shown.identifier) == (CHAIN, USDC.token, None)
    assert (shown.payer, shown.base_units) == (AuthorizationSigner().address, 10_000)


def test_a_payment_of_version_1_names_no_token() -> None:
    payment = AuthorizationSigner().payment_v1()
    PaymentPayloadV1.model_validate(payment)
    shown = parse_payment_v1(encode_header(payment), limits=DEFAULT_LIMITS)
    assert (shown.chain_id, shown.token, shown.identifier) == (CHAIN, None, None)


def test_accepted_decides_only_network_and_token() -> None:
    payment = {**AuthorizationSigner().payment(), "extensions": {"unknown": 5}, "resource": {"note": [None]}}
    payment["accepted"] |= {"amount": "1", "payTo": "nobody", "maxTimeoutSeconds": -1.5, "extra": {"more": 1}}
    shown = parse_payment(encode_header(payment), limits=DEFAULT_LIMITS)
    assert (shown.base_units, shown.fault) == (10_000, None)


@pytest.mark.parametrize(
    "path",
    ["price", "accepted.note", "payload.permit2Authorization", "payload.authorization.token", "payload.ü"],
)
@pytest.mark.parametrize("value", ["1", None, {}])
def test_an_unknown_member_is_a_fault_that_names_it(path: str, value: Any) -> None:
    """A fault and not a refusal: the authorisation is parsed, so that it can be looked up in the ledger first."""
    shown = parse_payment(encode_header(changed(path, value)), limits=DEFAULT_LIMITS)
    assert shown.nonce == AuthorizationSigner().nonce
    assert shown.fault is not None
    assert (shown.fault.code, shown.fault.reason) == SHAPE
    assert f"`{path.replace('ü', '?')}`" in shown.fault.detail


def repeated(**changes: Any) -> dict[str, Any]:
    """A payment of version 2 with the members of version 1 and of older drafts beside those that they repeat."""
    payment = AuthorizationSigner().payment()
    payment |= {"scheme": "exact", "network": payment["accepted"]["network"]}
    payment["resource"] = {
        "url": "https://gateway.example/x",
        "description": "Weather",
        "mimeType": "application/json",
    }
    payment["accepted"] |= {
        "maxAmountRequired": payment["accepted"]["amount"],
        "resource": "https://gateway.example/x",
        "description": "Weather",
        "mimeType": "application/json",
    }
    for path, value in changes.items():
        payment = changed(path.replace("__", "."), value, payment)
    return payment


@pytest.mark.parametrize("network", ["eip155:84532", "base-sepolia"])
def test_members_of_older_versions_are_ignored_where_they_repeat_what_was_offered(network: str) -> None:
    presented = parse_payment(encode_header(repeated(network=network)), limits=DEFAULT_LIMITS)
    assert presented == parse_payment(encode_header(AuthorizationSigner().payment()), limits=DEFAULT_LIMITS)
    assert presented.fault is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("scheme", "upto"),
        ("network", "eip155:8453"),
        ("network", "base"),
        ("network", {"x": 1}),
        ("accepted__maxAmountRequired", "10001"),
        ("accepted__maxAmountRequired", 10_000),
        ("accepted__resource", "https://gateway.example/y"),
        ("accepted__description", "Other weather"),
        ("accepted__mimeType", ["text/plain"]),
    ],
)
def test_members_of_older_versions_are_refused_where_they_contradict(path: str, value: Any) -> None:
    presented = parse_payment(encode_header(repeated(**{path: value})), limits=DEFAULT_LIMITS)
    assert presented.fault is not None
    assert presented.fault.code is Code.PAYMENT_MALFORMED
    assert f"`{path.replace('__', '.')}` contradicts" in presented.fault.detail


@pytest.mark.parametrize("path", ["accepted", "extensions", "payload.token", "payload.authorization.chainId"])
def test_version_1_has_its_own_members(path: str) -> None:
    payment = changed(path, {}, AuthorizationSigner().payment_v1())
    shown = parse_payment_v1(encode_header(payment), limits=DEFAULT_LIMITS)
    assert shown.fault is not None
    assert (shown.fault.code, shown.fault.reason) == SHAPE


def test_the_name_of_an_unknown_member_is_cut() -> None:
    shown = parse_payment(encode_header(changed("x" * 9_000 + "\n", 1)), limits=DEFAULT_LIMITS)
    assert shown.fault is not None
    assert len(shown.fault.detail) < 200


MALFORMED, UNSUPPORTED = Code.PAYMENT_MALFORMED, Code.PAYMENT_METHOD_UNSUPPORTED
VERSION = (UNSUPPORTED, "invalid_x402_version")
SHAPE = (MALFORMED, "invalid_payload")


def changed(path: str, value: Any, payment: dict[str, Any] | None = None) -> dict[str, Any]:
    content: dict[str, Any] = payment or AuthorizationSigner().payment()
    *steps, last = path.split(".")
    place = content
    for step in steps:
        place = place[step]
    place[last] = value
    return content


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (AuthorizationSigner().payment_v1(), VERSION),
        ({}, SHAPE),
        (changed("x402Version", "2"), SHAPE),
        (changed("x402Version", 2.0), SHAPE),
        (changed("x402Version", True), SHAPE),
        (changed("x402Version", 3), VERSION),
        (changed("accepted", None), SHAPE),
        (changed("accepted", []), SHAPE),
        (changed("accepted.scheme", "upto"), (UNSUPPORTED, "unsupported_scheme")),
        (changed("accepted.scheme", 5), SHAPE),
        (changed("accepted.network", "base-sepolia"), (UNSUPPORTED, "invalid_network")),
        (changed("accepted.network", "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp"), (UNSUPPORTED, "invalid_network")),
        (changed("accepted.network", 84532), SHAPE),
        (changed("accepted.asset", "USDC"), SHAPE),
        (changed("accepted.asset", "0x036cBD53842c5426634e7929541eC2318f3dCF7e"), SHAPE),
        (changed("payload", "0x"), SHAPE),
        (changed("payload", {}), SHAPE),
        (changed("payload.authorization", []), SHAPE),
        (changed("payload.signature", None), SHAPE),
        (changed("payload", {"permit2Authorization": {}, "signature": "0x00"}), (UNSUPPORTED, "unsupported_transfer_method")),
        (changed("extensions", {"payment-identifier": {"info": {"id": "short"}}}), (Code.INVALID_REQUEST, "invalid_payment_identifier")),
        (changed("extensions", {"payment-identifier": {"info": {"id": 5}}}), (Code.INVALID_REQUEST, "invalid_payment_identifier")),
        (changed("extensions", {"payment-identifier": {"info": {"id": "x" * 129}}}), (Code.INVALID_REQUEST, "invalid_payment_identifier")),
        (changed("extensions", {"payment-identifier": {"info": {"id": "no spaces please"}}}), (Code.INVALID_REQUEST, "invalid_payment_identifier")),
    ],
)  # fmt: skip
def test_refusals_of_version_2(content: Any, expected: tuple[Code, str]) -> None:
    assert refusal_of(content) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (AuthorizationSigner().payment(), VERSION),
        ({**AuthorizationSigner().payment_v1(), "scheme": "upto"}, (UNSUPPORTED, "unsupported_scheme")),
        ({**AuthorizationSigner().payment_v1(), "network": "eip155:84532"}, (UNSUPPORTED, "invalid_network")),
        ({**AuthorizationSigner().payment_v1(), "network": "solana"}, (UNSUPPORTED, "invalid_network")),
        ({**AuthorizationSigner().payment_v1(), "network": None}, SHAPE),
        ({**AuthorizationSigner().payment_v1(), "payload": None}, SHAPE),
    ],
)
def test_refusals_of_version_1(content: Any, expected: tuple[Code, str]) -> None:
    assert refusal_of(content, is_v1=True) == expected


@pytest.mark.parametrize("identifier", ["pay_0123456789ab", "x" * 128, "A-Z_a-z_0-9_16ch"])
def test_parses_the_clients_identifier(identifier: str) -> None:
    payment = changed("extensions", {"payment-identifier": {"info": {"required": False, "id": identifier}}})
    assert parse_payment(encode_header(payment), limits=DEFAULT_LIMITS).identifier == identifier


@pytest.mark.parametrize(
    "extensions",
    [None, [], {}, {"payment-identifier": None}, {"payment-identifier": {"info": []}},
     {"payment-identifier": {"info": {"required": False}}}],
)  # fmt: skip
def test_an_extension_without_an_id_has_no_identifier(extensions: Any) -> None:
    payment = changed("extensions", extensions)
    assert parse_payment(encode_header(payment), limits=DEFAULT_LIMITS).identifier is None


def test_the_identifier_extension_is_declared_as_the_package_declares_it() -> None:
    assert declare_payment_identifier_extension() == PAYMENT_IDENTIFIER_EXTENSION


def test_the_package_parses_a_requirement() -> None:
    content = requirement_json(requirement_of())
    assert content == {
        "scheme": "exact",
        "network": "eip155:84532",
        "amount": "10000",
        "asset": "0x036CbD53842c5426634e7929541eC2318f3dCF7e",
        "payTo": str(requirement_of().pay_to),
        "maxTimeoutSeconds": 90,
        "extra": {"name": "USDC", "version": "2"},
    }
    assert PaymentRequirements.model_validate(content).model_dump(by_alias=True) == content


def test_a_requirement_of_version_1_has_every_required_field() -> None:
    content = requirement_json_v1(requirement_of(), replace(RESOURCE, description=""))
    assert content is not None
    PaymentRequirementsV1.model_validate(content)
    assert (content["network"], content["maxAmountRequired"]) == ("base-sepolia", "10000")
    assert (content["description"], content["mimeType"]) == ("", "application/json")
    assert content["resource"] == RESOURCE.url
    assert None not in content.values()


@pytest.mark.parametrize("chain_id", [1, 10, 42161, 56, 31337, 988])
def test_a_network_without_a_name_in_version_1_is_left_out(chain_id: int) -> None:
    elsewhere = requirement_of(replace(USDC, chain_id=ChainId(chain_id)))
    assert requirement_json_v1(elsewhere, RESOURCE) is None
    assert network_name_v1(ChainId(chain_id)) == f"eip155:{chain_id}"


def test_an_amount_too_long_for_version_1_is_left_out() -> None:
    coarse = replace(USDC, decimals=18)
    assert requirement_json_v1(requirement_of(coarse, price=Price.parse("0.9")), RESOURCE) is not None
    assert requirement_json_v1(requirement_of(coarse, price=Price.parse("1")), RESOURCE) is None


def test_the_package_parses_a_resource() -> None:
    content = resource_json(replace(RESOURCE, service_name="Weather", tags=("weather", "eu")))
    assert ResourceInfo.model_validate(content).model_dump(by_alias=True, exclude_none=True) == content


def test_names_and_tags_that_facilitators_drop_are_left_out() -> None:
    content = resource_json(
        replace(
            RESOURCE,
            service_name="Wetter — für alle, die es brauchen können",
            tags=("ok", "für", "x" * 33, *"abcdef"),
        )
    )
    assert content["serviceName"] == "Wetter  fr alle, die es brauchen"
    assert content["tags"] == ["ok", "a", "b", "c", "d"]
    assert "serviceName" not in resource_json(replace(RESOURCE, service_name="天気"))
    assert "tags" not in resource_json(replace(RESOURCE, tags=("天気",)))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(["x402Version", "accepted", "accepted.network", "accepted.asset", "payload",
                        "payload.authorization", "payload.authorization.value", "payload.signature", "extensions",
                        "resource"]), JSON)  # fmt: skip
def test_nothing_raises_anything_but_a_refusal(path: str, value: Any) -> None:
    for parse in (parse_payment, parse_payment_v1):
        try:
            parse(encode_header(changed(path, value)), limits=DEFAULT_LIMITS)
        except Refusal:
            continue
