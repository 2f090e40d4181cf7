"""Arguments become a request: equal arguments make equal bytes, and no value leaves its place in the URL."""

from typing import Any

import jsonschema
import pytest

from tests.kit.listings import sample_operation, show_listing
from tests.kit.narrowing import existing, of_type
from tests.kit.openapi_documents import openapi_document, parameter, request_body
from tollway.discovery.agent_document import json_size
from tollway.discovery.operations import ApiOperation, Argument
from tollway.discovery.requests import (
    EXAMPLE_BYTES_MAX,
    ToolRequest,
    example_arguments,
    example_json,
    make_request,
)
from tollway.errors import FieldError
from tollway.registry.listing import Listing
from tollway.sandbox.provider import SAMPLE_DOCUMENT


def argument(name: str, place: Any = "query", **given: Any) -> Argument:
    styles: dict[str, Any] = {"style": "form", "is_exploded": True} if place == "query" else {}
    parameter = "" if place == "body" else name
    fields: dict[str, Any] = {"parameter": parameter, "is_required": False, **styles}
    return Argument(name=name, place=place, **{**fields, **given})


def operation(*arguments: Argument, **given: Any) -> ApiOperation:
    return sample_operation(arguments=arguments, **{"path": "/v1/{city}", **given})


def make(sold: ApiOperation, arguments: dict[str, Any]) -> ToolRequest:
    return of_type(ToolRequest, make_request(sold, arguments))


CITY = argument("city", "path", is_required=True, style="simple")

TARGETS: list[tuple[tuple[Argument, ...], dict[str, Any], str]] = [
    ((CITY,), {"city": "Berlin"}, "/v1/Berlin"),
    ((CITY,), {"city": "a/../b"}, "/v1/a%2F..%2Fb"),
    ((CITY,), {"city": "a?b#c%"}, "/v1/a%3Fb%23c%25"),
    ((CITY,), {"city": "Zürich"}, "/v1/Z%C3%BCrich"),
    ((CITY,), {"city": 7}, "/v1/7"),
    ((CITY,), {"city": ["a", "b"]}, "/v1/a,b"),
    ((CITY, argument("n")), {"city": "x", "n": 3}, "/v1/x?n=3"),
    ((CITY, argument("n")), {"city": "x", "n": None}, "/v1/x"),
    ((CITY, argument("ok")), {"city": "x", "ok": True}, "/v1/x?ok=true"),
    ((CITY, argument("f")), {"city": "x", "f": 0.5}, "/v1/x?f=0.5"),
    ((CITY, argument("q")), {"city": "x", "q": "a b&c=d"}, "/v1/x?q=a%20b%26c%3Dd"),
    ((CITY, argument("n")), {"city": "x", "n": [1, 2]}, "/v1/x?n=1&n=2"),
    ((CITY, argument("n", is_exploded=False)), {"city": "x", "n": [1, "a,b"]}, "/v1/x?n=1,a%2Cb"),
    (
        (CITY, argument("n", style="pipeDelimited", is_exploded=False)),
        {"city": "x", "n": [1, 2]},
        "/v1/x?n=1%7C2",
    ),
    ((CITY, argument("n", is_exploded=False)), {"city": "x", "n": []}, "/v1/x"),
    ((CITY, argument("n")), {"city": "x", "n": {"b": 2, "a": 1}}, "/v1/x?a=1&b=2"),
    (
        (CITY, argument("n", style="deepObject")),
        {"city": "x", "n": {"b": 2, "a": 1}},
        "/v1/x?n%5Ba%5D=1&n%5Bb%5D=2",
    ),
    ((CITY, argument("n", is_exploded=False)), {"city": "x", "n": {"b": 2, "a": 1}}, "/v1/x?n=a,1,b,2"),
]


@pytest.mark.parametrize(("arguments", "given", "target"), TARGETS)
def test_arguments_stand_where_the_document_puts_them(
    arguments: tuple[Argument, ...], given: dict[str, Any], target: str
) -> None:
    assert make(operation(*arguments), given).target == target


@pytest.mark.parametrize("city", ["", ".", "..", None, []])
def test_a_part_of_the_path_is_never_empty_nor_dots(city: Any) -> None:
    assert of_type(FieldError, make_request(operation(CITY), {"city": city})).pointer == "/city"


def test_the_order_of_arguments_and_of_members_makes_no_difference() -> None:
    sold = operation(
        argument("b"), argument("a"), argument("body", "body"), path="/v1", body_type="application/json"
    )
    first = make(sold, {"a": 1, "b": 2, "body": {"x": 1, "y": {"p": 1, "q": 2}}})
    assert first == make(sold, {"body": {"y": {"q": 2, "p": 1}, "x": 1}, "b": 2, "a": 1})
    assert first.body == b'{"x":1,"y":{"p":1,"q":2}}'


@pytest.mark.parametrize(
    ("media_type", "content", "body"),
    [
        ("application/json", {"a": "é"}, '{"a":"é"}'.encode()),
        ("application/json", None, b"null"),
        ("application/merge-patch+json", [1], b"[1]"),
        ("application/x-www-form-urlencoded", {"b": [1, 2], "a": "x y"}, b"a=x+y&b=1&b=2"),
        ("application/x-www-form-urlencoded", "a=1", b"a=1"),
        ("text/csv", "a;b\n", b"a;b\n"),
    ],
)
def test_a_body_is_encoded_by_its_media_type(media_type: str, content: Any, body: bytes) -> None:
    sold = operation(argument("body", "body"), path="", method="POST", body_type=media_type)
    request = make(sold, {"body": content})
    assert request.body == body
    assert request.headers == (("content-type", media_type),)


def test_without_a_body_there_is_no_media_type() -> None:
    sold = operation(argument("body", "body"), path="", method="POST", body_type="application/json")
    assert make(sold, {}) == ToolRequest(method="POST", rest="")


def test_headers_hold_printable_ascii_only() -> None:
    sold = operation(argument("Range", "header"), path="")
    assert make(sold, {"Range": "bytes=0-1"}).headers == (("Range", "bytes=0-1"),)
    for value in ("a\r\nX-Payment-Tx: 1", "é", "\x00"):
        assert isinstance(make_request(sold, {"Range": value}), FieldError)


@pytest.mark.parametrize("value", ["\ud800", {"a": "\ud800"}, float("nan")])
def test_values_that_no_request_can_carry_are_refused(value: Any) -> None:
    sold = operation(argument("body", "body"), path="", method="POST", body_type="application/json")
    refused = of_type(FieldError, make_request(sold, {"body": value}))
    assert (refused.code, refused.pointer) == ("unwritable", "/body")


@pytest.mark.parametrize(
    ("arguments", "method", "target"),
    [
        ({}, "GET", ""),
        ({"path": "/v1/x"}, "GET", "/v1/x"),
        ({"path": "v1/x"}, "GET", "/v1/x"),
        ({"path": "/v1/x?a=1", "query": {"b": "2"}}, "GET", "/v1/x?a=1&b=2"),
        ({"path": "/a b", "method": "DELETE"}, "DELETE", "/a%20b"),
        ({"path": "/a%20b"}, "GET", "/a%20b"),
    ],
)
def test_the_caller_chooses_the_request_of_an_undocumented_listing(
    arguments: dict[str, Any], method: str, target: str
) -> None:
    request = make(operation(path="", is_any=True), arguments)
    assert (request.method, request.target, request.body) == (method, target, b"")


def test_an_undocumented_listing_takes_any_json() -> None:
    request = make(operation(path="", is_any=True), {"method": "POST", "body": [1]})
    assert (request.body, request.headers) == (b"[1]", (("content-type", "application/json"),))


# ---- Examples made from schemas: valid where the schema is plain, none where it is not, and never long or endless.


GATEWAY = "https://gw.example.com/api/v2/gateway/api_1"


def sold(document: dict[str, Any]) -> ApiOperation:
    operation, *_ = show_listing(openapi=document).operations
    return operation


def query(schema: dict[str, Any], *, is_required: bool = True) -> ApiOperation:
    q = parameter("q", schema, required=is_required)
    return sold(openapi_document({"/a": {"get": {"parameters": [q]}}}))


def post_of(schema: Any) -> dict[str, Any]:
    return {"/a": {"post": {"requestBody": request_body(schema, required=True)}}}


def body(schema: dict[str, Any]) -> ApiOperation:
    return sold(openapi_document(post_of(schema)))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "text"),
        ({"type": "string", "examples": ["Oslo"]}, "Oslo"),
        ({"type": "string", "default": "Rome"}, "Rome"),
        ({"type": "string", "enum": ["b", "a"]}, "b"),
        ({"const": 7}, 7),
        ({"type": "string", "format": "date"}, "2026-01-31"),
        ({"type": "integer"}, 1),
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "number", "maximum": 0.5}, 0.5),
        ({"type": "boolean"}, True),
        ({"type": ["null", "integer"]}, 1),
        ({"type": "array", "items": {"type": "integer"}}, [1]),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, True),
        ({"oneOf": [{"type": "integer", "minimum": 3}]}, 3),
    ],
)
def test_a_value_fits_its_schema(schema: dict[str, Any], value: Any) -> None:
    operation = query(schema)
    arguments = example_arguments(operation)
    assert arguments == {"q": value}
    jsonschema.validate(arguments, operation.input_schema)


def test_an_optional_argument_needs_a_value_of_the_document() -> None:
    assert example_arguments(query({"type": "string"}, is_required=False)) == {}
    assert example_arguments(query({"type": "string", "default": "x"}, is_required=False)) == {"q": "x"}


def test_a_body_has_its_required_members() -> None:
    operation = body(
        {
            "type": "object",
            "required": ["city"],
            "properties": {
                "city": {"type": "string", "examples": ["Oslo"]},
                "days": {"type": "integer"},
                "units": {"type": "string", "default": "metric"},
            },
        }
    )
    assert example_json(operation, GATEWAY) == {
        "method": "POST",
        "url": f"{GATEWAY}/a",
        "headers": {"content-type": "application/json"},
        "body": {"city": "Oslo", "units": "metric"},
    }


def test_parts_of_a_path_are_escaped() -> None:
    part = parameter("id", {"type": "string", "default": "a/b c"}, **{"in": "path", "required": True})
    operation = sold(openapi_document({"/x/{id}": {"get": {"parameters": [part]}}}))
    assert example_json(operation, GATEWAY) == {"method": "GET", "url": f"{GATEWAY}/x/a%2Fb%20c"}


def test_a_reference_is_followed_and_a_circle_ends() -> None:
    schema = {"$ref": "#/components/schemas/Node"}
    operation = body(schema)
    assert example_arguments(operation) is None or json_size(example_arguments(operation)) < 1_000
    node = {"type": "object", "required": ["next"], "properties": {"next": schema}}
    assert (
        example_arguments(sold(openapi_document(post_of(schema), components={"schemas": {"Node": node}})))
        is None
    )
    leaf = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "next": node}}
    document = openapi_document(post_of(schema), components={"schemas": {"Node": leaf}})
    assert example_arguments(sold(document)) == {"body": {"name": "text"}}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "required": [f"m{n}" for n in range(40)]},
        {"type": "string", "const": "x" * 5_000},
        {"type": "string", "pattern": "^[0-9]+$", "default": "\U0001f310" * 4_000},
    ],
)
def test_no_example_is_long(schema: dict[str, Any]) -> None:
    told = example_json(body(schema), GATEWAY)
    assert told is None or json_size(told) <= EXAMPLE_BYTES_MAX


@pytest.mark.parametrize(
    "schema", [True, 7, [], {"type": 9}, {"enum": 3}, {"examples": "x"}, {"items": 4}, {"allOf": [9]}]
)
def test_odd_schemas_do_not_fail(schema: Any) -> None:
    example_json(query(schema), GATEWAY)
    example_json(body(schema), GATEWAY)


def test_many_short_values_are_no_short_example() -> None:
    parameters = [
        parameter(f"q{n}", {"type": "string", "default": f"{n}" * 150}, required=True) for n in range(5)
    ]
    operation = sold(openapi_document({"/a": {"get": {"parameters": parameters}}}))
    assert example_arguments(operation) is not None
    assert example_json(operation, GATEWAY) is None


def test_the_sample_provider_gets_whole_examples() -> None:
    for operation in show_listing(openapi=SAMPLE_DOCUMENT).operations:
        arguments = existing(example_arguments(operation))
        jsonschema.validate(arguments, operation.input_schema)
        assert example_json(operation, GATEWAY) is not None


def test_a_listing_as_a_whole_is_its_url() -> None:
    listing: Listing = show_listing().listing
    (whole,) = show_listing().operations
    assert whole.price == listing.price
    assert example_json(whole, GATEWAY) == {"method": "GET", "url": GATEWAY}
