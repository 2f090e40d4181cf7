"""The Bazaar's description of a call and of a listing, validated with the parser of the x402 package and a JSON Schema validator."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from x402.extensions.bazaar.facilitator import validate_discovery_extension
from x402.extensions.bazaar.facilitator_client import _parse_list_response, _parse_search_response
from x402.extensions.bazaar.types import parse_discovery_extension
from x402.schemas import PaymentRequirements

from tests.kit.listings import sample_listing
from tests.kit.narrowing import existing
from tests.kit.openapi_documents import parameter, request_body
from tests.kit.payer import PAY_TO, USDC, requirement_of
from tollway.discovery.bazaar import (
    RepresentativeCall,
    ResourceFilter,
    choose_representative_call,
    describe_call,
    describe_resource,
    resources_json,
    search_json,
)
from tollway.ids import Address, ChainId, Network
from tollway.money import Price
from tollway.registry.listing import Listing, Operation

TEXT = {"type": "string"}
QUOTE_BODY = {
    "type": "object",
    "required": ["city"],
    "properties": {
        "city": {**TEXT, "example": "Wien", "description": "Where"},
        "deep": {"type": "object"},
        "hot": {"type": "boolean", "default": True},
    },
}
QUOTE_PARAMETERS = [
    parameter("city", TEXT, required=True, example="Wien"),
    parameter("days", {"type": "integer", "default": 3}),
    parameter("units", TEXT, required=True),
    {"name": "X-Key", "in": "header", "example": "no", "schema": TEXT},
]
OPENAPI: dict[str, Any] = {
    "paths": {
        "/v1/quote": {
            "parameters": [parameter("lang", {**TEXT, "enum": ["en", "de"]})],
            "get": {"parameters": QUOTE_PARAMETERS},
            "post": {"requestBody": request_body(QUOTE_BODY)},
        },
        "/v1/cities/{city}": {"get": {"parameters": [parameter("q", {"type": "number"})]}},
    }
}


def call(method: str, path: str = "/v1/quote", openapi: Any = OPENAPI) -> dict[str, Any]:
    """The extension, once the package and a validator have agreed with it."""
    extension = existing(describe_call(method, path=path, openapi=openapi))
    Draft202012Validator.check_schema(extension["schema"])
    Draft202012Validator(extension["schema"]).validate(extension["info"])
    parsed = parse_discovery_extension(extension)
    assert validate_discovery_extension(parsed).valid
    return extension


def test_a_query_call_shows_examples_that_the_document_gives() -> None:
    extension = call("GET")
    assert extension["info"]["input"] == {
        "type": "http",
        "method": "GET",
        "queryParams": {"city": "Wien", "days": 3, "lang": "en"},
    }
    described = extension["schema"]["properties"]["input"]["properties"]["queryParams"]
    assert set(described["properties"]) == {"city", "days", "units", "lang"}
    assert described["required"] == ["city"]  # `units` is required too, and has no example


def test_a_body_call_shows_the_plain_members_of_its_body() -> None:
    extension = call("POST")
    assert extension["info"]["input"] == {
        "type": "http",
        "method": "POST",
        "bodyType": "json",
        "body": {"city": "Wien", "hot": True},
    }
    described = extension["schema"]["properties"]["input"]["properties"]["body"]
    assert described["properties"]["city"] == {"type": "string", "description": "Where"}


@pytest.mark.parametrize(
    ("media_type", "kind", "names"),
    [
        ("multipart/form-data", "form-data", {"to"}),
        ("application/x-www-form-urlencoded", "form-data", {"to"}),
        ("application/xml", "text", None),
        ("application/json", "json", {"to"}),
    ],
)
def test_a_body_has_the_type_of_the_document(media_type: str, kind: str, names: set[str] | None) -> None:
    binary = {"type": "string", "format": "binary"}
    schema = {"properties": {"to": {"type": "string"}, "file": binary}, "required": ["to", "file"]}
    request = {"content": {media_type: {"schema": schema}}}
    described = call("POST", "/a", {"paths": {"/a": {"post": {"requestBody": request}}}})
    assert described["info"]["input"]["bodyType"] == kind
    body = described["schema"]["properties"]["input"]["properties"]["body"]
    assert body.get("properties", {}).keys() == (names or set())
    Draft202012Validator(described["schema"]).validate(described["info"])


@pytest.mark.parametrize("path", ["/v1/cities/wien", "/v1/cities/wien/", "/v1/cities/wien?q=1"])
def test_a_template_matches_a_path(path: str) -> None:
    described = call("GET", path)["schema"]["properties"]["input"]["properties"]
    assert set(described["queryParams"]["properties"]) == {"q"}


@pytest.mark.parametrize("openapi", [None, {}, {"paths": []}, OPENAPI])
def test_a_call_without_a_document_is_described_by_its_method(openapi: Any) -> None:
    methods = ["GET", "HEAD", "DELETE", "POST", "PUT", "PATCH"]
    assert [call(method, "/elsewhere", openapi)["info"]["input"]["method"] for method in methods] == methods


ANSWERS = [
    ({"type": "object", "description": "x" * 9_999}, {"type": "object"}),
    ({"type": "array"}, {"type": "array"}),
    ({"type": ["object", "null"]}, {}),
    ({"type": "javascript:"}, {}),
    ({}, {}),
    (True, {}),
]


@pytest.mark.parametrize(("schema", "told"), ANSWERS)
def test_a_response_is_described_by_its_type_alone(schema: Any, told: dict[str, Any]) -> None:
    responses = {"200": {"content": {"application/json": {"schema": schema}}}}
    openapi = {"paths": {"/v1/quote": {"get": {"responses": responses}}}}
    output = call("GET", openapi=openapi)["schema"]["properties"]["output"]
    assert output == {"type": "object", "properties": {"example": told}}


@pytest.mark.parametrize("method", ["OPTIONS", "TRACE", "PURGE", "get"])
def test_a_method_without_a_word_is_not_described(method: str) -> None:
    assert describe_call(method) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": ["string", "null"]},
        {"$ref": "#/x"},
        {},
        {"type": "string", "example": "x" * 81},
        {"type": "string", "example": "a\u202eb"},
        {"type": "integer", "example": "3"},
        {"type": "integer", "example": True},
        {"type": "string", "enum": ["a", "b", "c", "d", "e", "f", "g"], "example": 5},
    ],
)
def test_only_plain_and_short_values_become_examples(schema: dict[str, Any]) -> None:
    document = {"paths": {"/": {"get": {"parameters": [parameter("p", schema)]}}}}
    shown = call("GET", "", document)["info"]["input"].get("queryParams", {})
    assert shown in ({}, {"p": "a"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
PARAMETER = st.fixed_dictionaries(
    {"name": JSON | st.just("p"), "in": st.just("query")},
    optional={
        "example": JSON,
        "required": JSON,
        "schema": st.dictionaries(
            st.sampled_from(["type", "enum", "default", "example", "examples", "description"]),
            JSON | st.sampled_from(["string", "integer"]),
        ),
    },
)


@given(st.lists(PARAMETER | JSON, max_size=4) | JSON, JSON)
def test_no_document_makes_it_fail_or_lie(parameters: Any, body: Any) -> None:
    document = {"paths": {"/v1/quote": {"get": {"parameters": parameters}, "post": {"requestBody": body}}}}
    call("GET", openapi=document)
    call("POST", openapi=document)


# ---- The records.


def listing(**given_: Any) -> Listing:
    plain = sample_listing(
        provider=PAY_TO,
        name="Quotes",
        description="What things cost",
        tags=("prices",),
        networks=(USDC.chain_id,),
        updated_ms=1_800_000_000_123,
    )
    return replace(plain, **given_)


GATEWAY = "https://gw.example.com/api/v2/gateway/api_1"


def record(**given_: Any) -> dict[str, Any]:
    return existing(describe_resource(listing(**given_), [requirement_of()], gateway_url=GATEWAY))


def test_a_listing_is_a_resource() -> None:
    described = record()
    assert {name: value for name, value in described.items() if name not in ("accepts", "extensions")} == {
        "resource": GATEWAY,
        "type": "http",
        "x402Version": 2,
        "lastUpdated": "2027-01-15T08:00:00.000Z",
        "description": "What things cost",
        "mimeType": "application/json",
        "serviceName": "Quotes",
        "tags": ["prices"],
    }
    PaymentRequirements.model_validate(described["accepts"][0])
    assert described["extensions"]["bazaar"]["info"]["input"]["method"] == "GET"


def test_the_packages_client_reads_both_answers() -> None:
    listed = _parse_list_response(resources_json([record()], limit=20, offset=40, total=41))
    assert (listed.pagination.limit, listed.pagination.offset, listed.pagination.total) == (20, 40, 41)
    assert listed.items[0].resource == GATEWAY
    found = _parse_search_response(search_json([record()], limit=5, cursor="5", is_partial=True))
    assert (found.partial_results, found.resources[0].service_name) == (True, "Quotes")
    assert found.pagination is not None
    assert (found.pagination.limit, found.pagination.cursor) == (5, "5")


@pytest.mark.parametrize("given_", [{"status": "paused"}, {"retired_ms": 5}, {"suspended_ms": 5}])
def test_an_inactive_listing_and_one_without_authorised_payment_have_no_record(
    given_: dict[str, Any],
) -> None:
    assert describe_resource(listing(**given_), [requirement_of()], gateway_url=GATEWAY) is None
    assert describe_resource(listing(), [], gateway_url=GATEWAY) is None


DESCRIBED = {"openapi": "3.1.0", "paths": {"/c/{id}": {"get": {}}, "/d": {"put": {}}}}


def operation(method: str, path: str) -> Operation:
    return Operation(method=method, path=path, price=Price.parse("1"))


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({}, RepresentativeCall(method="GET", path="")),
        ({"methods": ("OPTIONS", "POST")}, RepresentativeCall(method="POST", path="")),
        ({"methods": ("PURGE",)}, RepresentativeCall(method="GET", path="")),
        ({"operations": (operation("PUT", "/x"),)}, RepresentativeCall(method="GET", path="")),
        ({"other_paths": "refuse", "openapi": DESCRIBED}, RepresentativeCall(method="PUT", path="/d")),
        (
            {"other_paths": "refuse", "openapi": DESCRIBED, "methods": ("GET",)},
            RepresentativeCall(method="GET", path=""),
        ),
        (
            {"other_paths": "refuse", "openapi": DESCRIBED, "operations": (operation("GET", "/c/{id}"),)},
            RepresentativeCall(method="PUT", path="/d"),
        ),
        (
            {"other_paths": "refuse", "operations": (operation("GET", "/c/{id}"), operation("PUT", "/x"))},
            RepresentativeCall(method="PUT", path="/x"),
        ),
        (
            {"other_paths": "refuse", "operations": (operation("GET", "/c/{id}"),)},
            RepresentativeCall(method="GET", path="/c/{id}"),
        ),
        (
            {"other_paths": "refuse", "operations": (operation("GET", "/"),)},
            RepresentativeCall(method="GET", path=""),
        ),
    ],
)
def test_one_call_stands_for_a_listing(given_: dict[str, Any], expected: RepresentativeCall) -> None:
    assert choose_representative_call(listing(**given_)) == expected


@pytest.mark.parametrize(
    ("wanted", "is_met"),
    [
        ({}, True),
        ({"kind": "http"}, True),
        ({"kind": "mcp"}, False),
        ({"scheme": "exact"}, True),
        ({"scheme": "upto"}, False),
        ({"pay_to": PAY_TO}, True),
        ({"pay_to": Address(b"\1" * 20)}, False),
        ({"network": Network("eip155:84532")}, True),
        ({"network": Network("eip155:1")}, False),
        ({"network": Network("eip155:8453"), "pay_to": PAY_TO}, False),  # not both in one requirement
    ],
)
def test_filters(wanted: dict[str, Any], is_met: bool) -> None:
    there = requirement_of(replace(USDC, chain_id=ChainId(8453)), pay_to=Address(b"\2" * 20))
    assert ResourceFilter(**wanted).is_met_by([requirement_of(), there]) is is_met


def test_an_extension_is_looked_for_in_the_record() -> None:
    assert ResourceFilter(extension="bazaar").has_extension(record())
    assert not ResourceFilter(extension="other").has_extension(record())
    assert ResourceFilter().has_extension(record())


def test_references_within_the_document_are_followed_and_words_cleaned() -> None:
    document = {
        "openapi": "3.1.0",
        "paths": {"/a": {"get": {"parameters": [{"$ref": "#/components/parameters/Q"}]}, "post": {"$ref": "#/x"}}},
        "components": {
            "parameters": {"Q": {"name": "q", "in": "query", "example": "x", "schema": {"$ref": "#/components/schemas/T"}}},
            "schemas": {"T": {"type": "string", "description": "<b>Words</b> [x](javascript:y)"}},
        },
    }  # fmt: skip
    found = existing(describe_call("GET", path="/a", openapi=document))
    query = found["schema"]["properties"]["input"]["properties"]["queryParams"]
    assert query["properties"] == {"q": {"type": "string", "description": "Words x"}}
    assert found["info"]["input"]["queryParams"] == {"q": "x"}
