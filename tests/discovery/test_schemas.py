"""Untrusted schemas become JSON Schema 2020-12 without unknown or slow members."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.listings import show_listing
from tests.kit.openapi_documents import request_body
from tollway.discovery.operations import list_operations
from tollway.discovery.schemas import DEFINITIONS_MAX, STEPS_MAX, SchemaBundler, SchemaCopier
from tollway.registry.openapi import ProviderDocument


def copier(version: str = "3.1.0", *, is_checked: bool = False, **schemas: Any) -> SchemaCopier:
    document = ProviderDocument({"openapi": version, "components": {"schemas": schemas}})
    return SchemaCopier(document, prefix="#/$defs/", is_checked=is_checked)


def whole(raw: Any, version: str = "3.1.0", *, is_checked: bool = False, **schemas: Any) -> dict[str, Any]:
    copies = copier(version, is_checked=is_checked, **schemas)
    copied = copies.copy(raw)
    defs = copies.define(copied.refs, weight_max=100_000)
    return {**copied.schema, "$defs": defs} if defs else copied.schema


def to(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


@pytest.mark.parametrize(
    ("raw", "copied"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": True, "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"nullable": True}, {}),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, {"type": "integer", "exclusiveMinimum": 1}),
        ({"type": "integer", "maximum": 1, "exclusiveMaximum": False}, {"type": "integer", "maximum": 1}),
        ({"type": "string", "example": "x"}, {"type": "string", "examples": ["x"]}),
        ({"type": "file"}, {}),
        ({**to("A"), "description": "lost"}, {"$ref": "#/$defs/A", "$defs": {"A": {"type": "string"}}}),
    ],
)  # fmt: skip
def test_reads_the_dialect_of_3_0(raw: Any, copied: dict[str, Any]) -> None:
    assert whole(raw, "3.0.3", A={"type": "string"}) == copied


@pytest.mark.parametrize(
    ("raw", "copied"),
    [
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": True}, {"type": "string"}),
        ({"exclusiveMinimum": 1}, {"exclusiveMinimum": 1}),
        ({"exclusiveMinimum": True, "minimum": 2}, {"exclusiveMinimum": 2}),
        (True, {}),
        (False, {"not": {}}),
        ({"items": False}, {"items": False}),
        ({"prefixItems": [{"type": "string"}], "items": False}, {"prefixItems": [{"type": "string"}], "items": False}),
        ({"const": None}, {"const": None}),
        ({"default": False}, {"default": False}),
        ({"type": "string", "pattern": "^a+$"}, {"type": "string", "pattern": "^a+$"}),
        ({"required": ["a", "a", 7]}, {"required": ["a"]}),
        ({"minLength": -1, "maxLength": True, "multipleOf": 0, "maximum": 1e400}, {}),
        ({"$id": "https://x.example", "$anchor": "a", "$dynamicRef": "#a", "xml": {}, "x-run": 1}, {}),
        ({"externalDocs": {"url": "javascript:alert(1)"}, "discriminator": {"propertyName": "a"}}, {}),
        ({"title": "<b>T</b>", "description": "[x](javascript:y)"}, {"title": "T", "description": "x"}),
        ({"enum": ["a\u202eb"]}, {}),
        ({"properties": {"a\u200b": {}, "b": {}}, "required": ["a\u200b", "b"]}, {"properties": {"b": {}}, "required": ["b"]}),
        ({"additionalProperties": False, "patternProperties": {"^x": {}}}, {}),
        ({"$ref": "https://elsewhere.example/schema.json", "type": "string"}, {}),
        ({"$ref": "other.json#/x"}, {}),
        ({"$ref": "#/nowhere"}, {}),
        ({"$ref": "#"}, {}),
        ({"$ref": 7}, {}),
        (7, {}),
        (None, {}),
        ([], {}),
    ],
)  # fmt: skip
def test_copies_known_members(raw: Any, copied: dict[str, Any]) -> None:
    assert whole(raw) == copied


def test_slow_keywords_are_left_out_of_checked_schemas() -> None:
    raw = {"type": "array", "uniqueItems": True, "items": {"pattern": "(a+)+$"}}
    assert whole(raw, is_checked=True) == {"type": "array", "items": {}}


def test_a_recursive_schema_keeps_its_reference() -> None:
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": to("Tree")}}}
    schema = whole(to("Tree"), Tree=tree)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert jsonschema.Draft202012Validator(schema).is_valid({"kids": [{"kids": []}]})
    assert not jsonschema.Draft202012Validator(schema).is_valid({"kids": [{"kids": 7}]})


@pytest.mark.parametrize(
    "schemas",
    [
        {"A": to("A")},
        {"A": to("B"), "B": to("A")},
        {"A": {"allOf": [{"anyOf": [{"not": to("B")}]}]}, "B": {"oneOf": [to("C")]}, "C": {"if": to("A")}},
        {"A": {"allOf": [to("B"), to("B")]}, "B": {"allOf": [to("A"), to("A")]}},
        {f"{chr(65 + at)}": {"allOf": [to(chr(66 + at))] * 2} for at in range(20)},
    ],
    ids=["itself", "each other", "through others", "twice", "doubling"],
)
def test_a_schema_that_would_never_be_done_with_is_open(schemas: dict[str, Any]) -> None:
    schema = whole(to("A"), **schemas)
    assert jsonschema.Draft202012Validator(schema).is_valid({"a": 1}) in (True, False)


def test_steps_are_counted_through_definitions() -> None:
    """Twice each: 2, 4, 8 … until one of them would take more than a schema may."""
    schemas = {f"S{at}": {"allOf": [to(f"S{at + 1}")] * 2} for at in range(40)}
    copies = copier(**schemas, S40={"type": "string"})
    defined = copies.define(copies.copy(to("S0")).refs, weight_max=100_000)
    open_ones = [name for name, schema in defined.items() if schema == {}]
    assert open_ones
    assert 2 ** len([name for name in defined if name not in open_ones]) <= STEPS_MAX * 2


def test_definitions_are_bounded_and_have_plain_names() -> None:
    document = ProviderDocument(
        {"openapi": "3.1.0", "components": {"schemas": {"a b": {"type": "string"}}}, "x": {"a_b": {}}}
    )
    copies = SchemaCopier(document, prefix="#/", is_checked=False, taken=("Taken",))
    first, second = (copies.copy({"$ref": ref}) for ref in ("#/components/schemas/a b", "#/x/a_b"))
    assert (first.schema, second.schema) == ({"$ref": "#/a_b"}, {"$ref": "#/a_b_2"})
    assert copies.define(first.refs, weight_max=100) == {"a_b": {"type": "string"}}
    assert copies.define(first.refs, weight_max=1) == {"a_b": {}}


@pytest.mark.parametrize(
    "raw",
    [
        {"enum": ["x" * 1_000 + str(at) for at in range(900)]},
        {"required": [f"name{at}" for at in range(9_000)]},
        {"properties": {f"name{at}": {} for at in range(9_000)}},
        {"examples": ["x" * 4_000] * 9},
        {"type": "string", "description": "y" * 900},
        {"allOf": [{"title": "z" * 100}] * 900},
    ],
    ids=lambda raw: next(iter(raw)),
)
def test_a_weight_is_about_the_length_as_json(raw: dict[str, Any]) -> None:
    copied = copier().copy(raw)
    length = len(json.dumps(copied.schema))
    assert 0.8 * length <= copied.weight <= 2 * length + 100


keywords = [
    "type", "items", "properties", "allOf", "$ref", "enum", "required", "minimum", "exclusiveMinimum", "not", "default",
    "additionalProperties", "multipleOf", "prefixItems", "examples", "maxLength", "format", "const", "if", "contains",
]  # fmt: skip
names = ["string", "object", "a", "#/components/schemas/a", "#/components/schemas/b", "https://x.example/"]
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(names) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(keywords + names), inner, max_size=4),
    max_leaves=25,
)  # fmt: skip


@given(raw=values, a=values, b=values, version=st.sampled_from(["3.0.0", "3.1.0"]))
def test_every_copy_is_a_valid_schema(raw: Any, a: Any, b: Any, version: str) -> None:
    jsonschema.Draft202012Validator.check_schema(whole(raw, version, a=a, b=b))


@pytest.mark.parametrize(
    "reference", ["xxcomponents/schemas/A", "/components/schemas/A", "s.json#/components/schemas/A"]
)
def test_a_reference_leads_nowhere_but_into_the_document(reference: str) -> None:
    assert whole({"$ref": reference}, A={"type": "string"}) == {}


# ---- Schemas bundled with their definitions: shared where they are equal, and bounded over a document.


COUNT = 1_000


def refer(number: int) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/N{number % COUNT}"}


# Every definition leads to every other one.
WEB = {
    f"N{number}": {"type": "object", "properties": {"a": refer(number + 1), "b": refer(7 * number + 3)}}
    for number in range(COUNT)
}
DOCUMENT = {"openapi": "3.1.0", "components": {"schemas": WEB}}


def open_closer(**options: int) -> tuple[SchemaCopier, SchemaBundler]:
    copier = SchemaCopier(ProviderDocument(DOCUMENT), prefix="#/$defs/", is_checked=True)
    return copier, SchemaBundler(copier, weight_max=16_384, **options)


def test_a_schema_comes_with_all_that_it_names() -> None:
    copier, bundler = open_closer()
    closed = bundler.bundle(copier.copy({"type": "object", "properties": {"x": refer(5)}}))
    assert closed["properties"]["x"] == {"$ref": "#/$defs/N5"}
    assert {"N5", "N6", "N38"} <= closed["$defs"].keys()
    jsonschema.validate({"x": {"a": {"b": {}}}}, closed)


def test_one_that_names_nothing_stays_as_it_is() -> None:
    copier, bundler = open_closer()
    copied = copier.copy({"type": "string"})
    assert bundler.bundle(copied) is copied.schema


def test_one_that_is_too_long_is_open() -> None:
    copier, _ = open_closer()
    bundler = SchemaBundler(copier, weight_max=20)
    assert bundler.bundle(copier.copy({"type": "string", "description": "d" * 100})) == {}


def test_equal_sets_are_written_once() -> None:
    copier, bundler = open_closer()
    first = bundler.bundle(copier.copy({"items": refer(1)}))
    again = bundler.bundle(copier.copy({"anyOf": [refer(1)]}))
    assert first["$defs"] is again["$defs"]


def test_when_it_is_too_much_definitions_are_open_and_still_there() -> None:
    copier, bundler = open_closer(definitions_max=10)
    whole = bundler.bundle(copier.copy({"items": refer(1)}))
    later = bundler.bundle(copier.copy({"items": refer(2)}))
    assert len(whole["$defs"]) > 10
    assert later == {"items": {"$ref": "#/$defs/N2"}, "$defs": {"N2": {}}}
    jsonschema.validate([{"anything": 1}], later)


def test_a_short_document_cannot_make_the_gateway_write_a_long_one() -> None:
    """Half a megabyte that would come to two thousand times hundreds of definitions."""
    paths = {
        f"/v1/{number}": {"post": {"requestBody": request_body(refer(number))}} for number in range(2_000)
    }
    shown = show_listing(openapi={**DOCUMENT, "paths": paths}, sold=())
    operations = list_operations(shown.listing)
    written = {id(one.input_schema["$defs"]): len(one.input_schema["$defs"]) for one in operations}
    assert len(operations) == 2_000
    assert sum(written.values()) <= DEFINITIONS_MAX + 2_000
