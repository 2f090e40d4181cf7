"""Shorter and shorter forms of one operation: each still true, each with all that it needs to be called."""

from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from tests.kit.listings import show_listing
from tollway.discovery.agent_document import SUMMARY_LENGTH_MAX, list_forms, shallow_schema, strip_annotations
from tollway.sandbox.provider import SAMPLE_DOCUMENT

SHOWN = show_listing(openapi=SAMPLE_DOCUMENT)
QUOTE = SHOWN.operations[0]


def test_from_the_whole_to_the_name() -> None:
    forms = list(list_forms(SHOWN, QUOTE))
    assert ["outputSchema" in form for form in forms] == [True, True, False, False, False, False]
    assert all("inputSchema" in form for form in forms[:-1])
    assert set(forms[-1]) == {"tool", "method", "path", "price", "summary"}
    for form in forms:
        assert (form["method"], form["path"], form["tool"]) == ("GET", "/quote/{symbol}", QUOTE.tool)
        assert form["price"] == {"amount": "0.01", "currency": "USDC"}


def test_a_summary_is_cut() -> None:
    form, *_ = list_forms(SHOWN, replace(QUOTE, summary="w" * 500))
    assert len(form["summary"]) == SUMMARY_LENGTH_MAX


def test_a_description_stands_in_for_a_summary() -> None:
    form, *_ = list_forms(SHOWN, replace(QUOTE, summary="", description="what it does"))
    assert form["summary"] == "what it does"


@pytest.mark.parametrize(
    ("schema", "bare"),
    [
        ({"type": "string", "description": "d", "title": "t", "examples": [1], "x-y": 2}, {"type": "string"}),
        (
            {"properties": {"description": {"type": "string", "title": "t"}}},
            {"properties": {"description": {"type": "string"}}},
        ),
        ({"enum": [{"title": "kept"}]}, {"enum": [{"title": "kept"}]}),
        ({"const": {"title": "kept"}}, {"const": {"title": "kept"}}),
        ({"anyOf": [{"title": "t"}, {"default": 1, "type": "null"}]}, {"anyOf": [{}, {"type": "null"}]}),
        ({"$defs": {"title": {"title": "t"}}}, {"$defs": {"title": {}}}),
        ({"required": ["title"]}, {"required": ["title"]}),
    ],
)
def test_remarks_go_and_demands_stay(schema: dict[str, Any], bare: dict[str, Any]) -> None:
    assert strip_annotations(schema) == bare


def test_a_shallow_schema_asks_for_no_more_than_the_whole() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "description": "d", "enum": ["x", "y"]},
            "b": {"type": "object", "properties": {"c": {"type": "integer"}}},
            "dropped": {"type": "string"},
        },
        "required": ["a", "dropped"],
        "additionalProperties": False,
    }
    shallow = shallow_schema(schema, {"a", "b"})
    assert shallow == {
        "type": "object",
        "properties": {"a": {"type": "string", "enum": ["x", "y"]}, "b": {"type": "object"}},
        "required": ["a"],
    }
    arguments = {"a": "x", "b": {"c": 1}, "dropped": "z"}
    jsonschema.validate(arguments, schema)
    jsonschema.validate(arguments, shallow)


@pytest.mark.parametrize("odd", [{}, {"properties": 3}, {"required": 4}, {"properties": {"a": 5}}])
def test_odd_schemas_hurt_nobody(odd: dict[str, Any]) -> None:
    assert shallow_schema(odd, {"a"})["type"] == "object"
    strip_annotations(odd)
