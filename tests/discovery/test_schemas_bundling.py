"""Schemas bundled with their definitions: shared where they are equal, and bounded over a document."""

from typing import Any

import jsonschema

from tests.kit.listings import show_listing
from tollway.discovery.operations import list_operations
from tollway.discovery.schemas import DEFINITIONS_MAX, SchemaBundler, SchemaCopier
from tollway.registry.openapi import ProviderDocument

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
        f"/v1/{number}": {
            "post": {
                "requestBody": {"content": {"application/json": {"schema": refer(number)}}},
                "responses": {},
            }
        }
        for number in range(2_000)
    }
    shown = show_listing(openapi={**DOCUMENT, "paths": paths}, sold=())
    operations = list_operations(shown.listing)
    written = {id(one.input_schema["$defs"]): len(one.input_schema["$defs"]) for one in operations}
    assert len(operations) == 2_000
    assert sum(written.values()) <= DEFINITIONS_MAX + 2_000
