"""Examples of responses: from the document, from its schema, and from documents that are hostile."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.listings import sample_listing
from tests.kit.narrowing import existing
from tests.kit.routes import ALICE
from tollway.discovery.example_responses import LENGTH_MAX, write_example_response
from tollway.discovery.operations import list_operations

QUOTE = {"symbol": "ETH", "price": 7}
TEXT = json.dumps(QUOTE, indent=2)
SCHEMA = {"type": "object", "required": ["price"], "properties": {"price": {"type": "integer"}}}


def read(responses: Any, **components: Any) -> tuple[str, str] | None:
    """Text and source of the example of an operation with these responses."""
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Quotes", "version": "1"},
        "paths": {"/quote": {"get": {"responses": responses}}},
        "components": components,
    }
    (operation,) = list_operations(replace(sample_listing(provider=ALICE), openapi=document))
    found = write_example_response(operation)
    return None if found is None else (found.text, found.source)


def json_response(**entry: Any) -> dict[str, Any]:
    return {"200": {"content": {"application/json": entry}}}


@pytest.mark.parametrize(
    ("responses", "found"),
    [
        (json_response(example=QUOTE, schema=SCHEMA), (TEXT, "document")),
        (json_response(examples={"one": {"value": QUOTE}, "two": {"value": 2}}), (TEXT, "document")),
        (json_response(examples={"one": {"$ref": "#/components/examples/quote"}}), (TEXT, "document")),
        (json_response(schema={**SCHEMA, "examples": [QUOTE]}), (TEXT, "document")),
        (json_response(schema={**SCHEMA, "example": QUOTE}), (TEXT, "document")),
        (json_response(schema=SCHEMA), ('{\n  "price": 1\n}', "schema")),
        ({"200": {"content": {"text/csv": {"example": "a,b\n1,2"}}}}, ("a,b\n1,2", "document")),
        ({"404": {"content": {"application/json": {"example": QUOTE}}}}, None),
        ({"default": {"content": {"application/json": {"example": QUOTE}}}}, (TEXT, "document")),
        (json_response(schema={"type": "object"}), None),
        (json_response(schema={"type": "string"}), None),
        (json_response(), None),
        (json_response(example="   "), None),
        (json_response(examples=["no object"], schema="no schema"), None),
        ({"200": {"content": "no object"}}, None),
        ("no object", None),
    ],
)
def test_an_example_is_the_documents_else_of_its_schema(
    responses: Any, found: tuple[str, str] | None
) -> None:
    assert read(responses, examples={"quote": {"value": QUOTE}}) == found


def nest(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", ["long " * 100_000, ["word"] * 200_000, {"a": "b" * 1_000_000}, nest(100_000)]
)
def test_a_huge_example_is_cut(value: Any) -> None:
    found = existing(read(json_response(example=value)))
    assert len(found[0]) == LENGTH_MAX


def test_an_example_has_no_control_and_no_direction_character() -> None:
    found = existing(read(json_response(example="a\u202eb\x00c\u2066d")))
    assert not set("\u202e\x00\u2066") & set(found[0])
