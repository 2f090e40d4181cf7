"""Required parts of a request by the provider's document. An unclear rule is not enforced, and no document raises."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.listings import sample_listing
from tollway.errors import Code
from tollway.gateway.routing import RequestSchema
from tollway.ids import Address
from tollway.registry.listing import UpstreamAuth

PROVIDER = Address.parse("0x" + "11" * 20)
FORWARDED = ("X-Tenant", "X-Key", "X-Payment-Tx", "Host", "X-Fine")
TEXT = {"type": "string"}


def parameter(name: str, place: str = "query", **more: Any) -> dict[str, Any]:
    return {"name": name, "in": place, "required": True, "schema": TEXT, **more}


def document(*parameters: Any, path: str = "/q", method: str = "get", **more: Any) -> dict[str, Any]:
    return {"openapi": "3.1.0", "paths": {path: {method: {"parameters": list(parameters)}}}, **more}


def missing(
    doc: dict[str, Any],
    target: str = "/q",
    method: str = "GET",
    *headers: str,
    given: UpstreamAuth | None = None,
) -> list:
    rest, _, query = target.partition("?")
    sent = [(name.encode(), b"1") for name in headers]
    listing = sample_listing(provider=PROVIDER, openapi=doc, upstream_auth=given, forward_headers=FORWARDED)
    schema = RequestSchema(listing)
    problem = schema.check(method=method, rest=rest, query=query, headers=sent)
    if problem is None:
        return []
    assert (problem.code, problem.payment_state) == (Code.VALIDATION_FAILED, "none")
    return [error.parameter for error in problem.errors]


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("/q", ["a", "b c"]),
        ("/q?a=1", ["b c"]),
        ("/q?a=1&b+c=2", []),
        ("/q?b%20c=2&x&a", []),
        ("/q?aa=1&b c=1", ["a"]),
        ("/q/?a=1&b+c=", []),
        ("//q;m=1?A=1", ["a", "b c"]),
        ("/%71", ["a", "b c"]),
        ("/other", []),
        ("", []),
    ],
)
def test_names_what_the_query_lacks(target: str, told: list[str]) -> None:
    assert missing(document(parameter("a"), parameter("b c")), target) == told


@pytest.mark.parametrize(("method", "told"), [("GET", ["a"]), ("HEAD", ["a"]), ("POST", []), ("BREW", [])])
def test_methods_have_operations_of_their_own(method: str, told: list[str]) -> None:
    assert missing(document(parameter("a")), "/q", method) == told


@pytest.mark.parametrize(
    ("target", "told"),
    [("/v1/cities/x", ["a"]), ("/v1/cities/x/y", []), ("/v1/cities/", []), ("/v1/cities/all", [])],
)
def test_a_template_stands_for_one_segment_and_plain_text_goes_first(target: str, told: list[str]) -> None:
    doc = document(parameter("a"), path="/v1/cities/{city}")
    doc["paths"]["/v1/cities/all"] = {"get": {}}
    assert missing(doc, target) == told


def test_headers_count_in_any_case() -> None:
    doc = document(parameter("X-Tenant", "header"), parameter("Accept", "header"))
    assert missing(doc) == ["X-Tenant"]
    assert missing(doc, "/q", "GET", "x-tenant") == []


def test_a_parameter_that_the_gateway_adds_is_not_required() -> None:
    doc = document(parameter("X-Key", "header"), parameter("key"))
    assert missing(doc, given=UpstreamAuth(location="header", name="x-key", value="1")) == ["key"]
    assert missing(doc, given=UpstreamAuth(location="query", name="key", value="1")) == ["X-Key"]


@pytest.mark.parametrize(
    "unclear",
    [
        parameter("a", required=False),
        parameter("a", required="true"),
        parameter("a", place="path"),
        parameter("a", place="cookie"),
        parameter("a", style="deepObject"),
        parameter("a", schema={"type": "object"}),
        parameter("a", schema={"oneOf": [TEXT]}),
        parameter("a", schema=None, content={}),
        parameter(""),
        parameter("a" * 200),
        {"$ref": "https://elsewhere.example/parameters.json#/a"},
        {"$ref": "#/components/parameters/nothing"},
        {"$ref": "#/components/parameters/circle"},
        {"name": ["a"], "in": {"b": 1}, "required": True},
        None,
        7,
    ],
)
def test_what_is_unclear_is_not_required(unclear: Any) -> None:
    circle = {"parameters": {"circle": {"$ref": "#/components/parameters/circle"}}}
    assert missing(document(unclear, components=circle)) == []


def test_references_and_shared_parameters_are_followed() -> None:
    doc = document(
        {"$ref": "#/components/parameters/a"},
        parameter("d", required=False),
        components={
            "parameters": {"a": parameter("a", schema={"$ref": "#/components/schemas/t~1t"})},
            "schemas": {"t/t": TEXT},
        },
    )
    doc["paths"]["/q"]["parameters"] = [parameter("c"), parameter("d")]
    assert missing(doc) == ["c", "a"]


def test_a_template_that_would_be_slow_to_match_is_left_out() -> None:
    doc = document(parameter("a"), path="/" + "{x}" * 30 + "z")
    assert missing(doc, "/" + "y" * 8_000) == []


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["/q", "get", "parameters", "name", "in", "required", "schema", "$ref", "paths"]), inner, max_size=4
    ),
    max_leaves=20,
)  # fmt: skip


@given(paths=json, query=st.text(max_size=20))
def test_no_document_makes_it_fail(paths: Any, query: str) -> None:
    for nested in (paths, {"/q": paths}, {"/q": {"get": {"parameters": paths}}}):
        missing({"paths": nested}, f"/q?{query}")


@pytest.mark.parametrize(
    ("body", "has_body", "told"),
    [
        ({"required": True, "content": {}}, False, [""]),
        ({"required": True}, True, []),
        ({"required": False}, False, []),
        ({"content": {}}, False, []),
        ({"required": "true"}, False, []),
        ({"$ref": "#/components/requestBodies/needed"}, False, [""]),
        ({"$ref": "https://elsewhere.example/body.json"}, False, []),
        (7, False, []),
    ],
)
def test_a_required_body_is_missed(body: Any, has_body: bool, told: list[str]) -> None:
    doc = document(method="post", components={"requestBodies": {"needed": {"required": True}}})
    doc["paths"]["/q"]["post"]["requestBody"] = body
    schema = RequestSchema(sample_listing(provider=PROVIDER, openapi=doc))
    problem = schema.check(method="POST", rest="/q", query="", headers=[], has_body=has_body)
    assert ([error.pointer for error in problem.errors] if problem else []) == told


def test_a_header_that_the_gateway_does_not_forward_is_not_required() -> None:
    """The documents of the listing do not offer it, so that a caller could not add what is missing."""
    assert missing(document(parameter("X-Token", "header"), parameter("X-Fine", "header"))) == ["X-Fine"]


def test_a_header_that_no_caller_could_send_is_not_required() -> None:
    doc = document(*(parameter(name, "header") for name in ("X-Payment-Tx", "Host", "a b", "X-Fine")))
    assert missing(doc) == ["X-Fine"]
