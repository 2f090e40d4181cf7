"""Examples made from schemas: valid where the schema is plain, none where it is not, and never long or endless."""

from typing import Any

import jsonschema
import pytest

from tests.kit.listings import show_listing
from tollway.discovery.agent_document import json_size
from tollway.discovery.operations import ApiOperation
from tollway.discovery.requests import EXAMPLE_BYTES_MAX, example_arguments, example_json
from tollway.registry.listing import Listing
from tollway.sandbox.provider import SAMPLE_DOCUMENT

GATEWAY = "https://gw.example.com/api/v2/gateway/api_1"


def sold(document: dict[str, Any]) -> ApiOperation:
    operation, *_ = show_listing(openapi=document).operations
    return operation


def query(schema: dict[str, Any], *, is_required: bool = True) -> ApiOperation:
    parameter = {"name": "q", "in": "query", "required": is_required, "schema": schema}
    return sold(_document("/a", "get", {"parameters": [parameter], "responses": {}}))


def body(schema: dict[str, Any], *, media_type: str = "application/json") -> ApiOperation:
    content = {media_type: {"schema": schema}}
    return sold(
        _document("/a", "post", {"requestBody": {"required": True, "content": content}, "responses": {}})
    )


def _document(path: str, method: str, operation: dict[str, Any]) -> dict[str, Any]:
    return {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {path: {method: operation}}}


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
    parameter = {
        "name": "id",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "default": "a/b c"},
    }
    operation = sold(_document("/x/{id}", "get", {"parameters": [parameter], "responses": {}}))
    assert example_json(operation, GATEWAY) == {"method": "GET", "url": f"{GATEWAY}/x/a%2Fb%20c"}


def test_a_reference_is_followed_and_a_circle_ends() -> None:
    operation = body({"$ref": "#/components/schemas/Node"})
    assert example_arguments(operation) is None or json_size(example_arguments(operation)) < 1_000
    document = _document(
        "/a",
        "post",
        {
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Node"}}},
            },
            "responses": {},
        },
    )
    node = {
        "type": "object",
        "required": ["next"],
        "properties": {"next": {"$ref": "#/components/schemas/Node"}},
    }
    document["components"] = {"schemas": {"Node": node}}
    assert example_arguments(sold(document)) is None
    leaf = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "next": node}}
    document["components"] = {"schemas": {"Node": leaf}}
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
        {
            "name": f"q{n}",
            "in": "query",
            "required": True,
            "schema": {"type": "string", "default": f"{n}" * 150},
        }
        for n in range(5)
    ]
    operation = sold(_document("/a", "get", {"parameters": parameters, "responses": {}}))
    assert example_arguments(operation) is not None
    assert example_json(operation, GATEWAY) is None


def test_the_sample_provider_gets_whole_examples() -> None:
    for operation in show_listing(openapi=SAMPLE_DOCUMENT).operations:
        arguments = example_arguments(operation)
        assert arguments is not None
        jsonschema.validate(arguments, operation.input_schema)
        assert example_json(operation, GATEWAY) is not None


def test_a_listing_as_a_whole_is_its_url() -> None:
    listing: Listing = show_listing().listing
    (whole,) = show_listing().operations
    assert whole.price == listing.price
    assert example_json(whole, GATEWAY) == {"method": "GET", "url": GATEWAY}
