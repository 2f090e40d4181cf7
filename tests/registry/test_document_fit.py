"""A long document is shortened in steps: first what nothing reads, then named losses; each operation stays."""

from collections.abc import Mapping
from typing import Any

import pytest

from tollway.registry.document_fit import (
    LEFT_OUT,
    STEPS,
    fit_document,
    list_left_out,
    measure_document,
)
from tollway.registry.openapi import ProviderDocument
from tollway.storage.catalog.catalog_tables import write_document

MANY = 10**9
LONG = "A text of the document. " * 400


def document() -> dict[str, Any]:
    thing = {
        "type": "object",
        "description": LONG,
        "x-oaiMeta": {"example": LONG},
        "example": {"name": LONG},
        "properties": {
            "name": {"type": "string", "description": LONG, "examples": [LONG]},
            "x-kept": {"type": "string", "externalDocs": {"url": "https://example.com"}},
            "links": {"$ref": "#/components/schemas/Link"},
            "description": {"type": "string", "default": {"x-data": "kept", "example": 1}},
        },
    }
    body = {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "t", "version": "1", "x-logo": {"url": LONG}},
        "servers": [{"url": "https://api.example.com/v1"}],
        "externalDocs": {"url": "https://example.com"},
        "security": [{"key": []}],
        "webhooks": {"made": {"post": {"requestBody": {"$ref": "#/components/requestBodies/Unused"}}}},
        "x-tagGroups": [LONG],
        "paths": {
            "/things/{id}": {
                "parameters": [{"$ref": "#/components/parameters/Id"}],
                "post": {
                    "operationId": "makeThing",
                    "summary": "Makes a thing",
                    "description": LONG,
                    "security": [{"key": []}],
                    "callbacks": {"done": {"{$request.body#/url}": {"post": {"description": LONG}}}},
                    "x-codeSamples": [{"lang": "curl", "source": LONG}],
                    "parameters": [
                        {"name": "q", "in": "query", "required": True, "description": LONG, "schema": {"type": "string"}}
                    ],
                    "requestBody": body,
                    "responses": {
                        "200": {
                            "description": "OK",
                            "headers": {"x-rate": {"schema": {"type": "integer"}}},
                            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Answer"}}},
                            "links": {"next": {"description": LONG}},
                        },
                        "404": {"$ref": "#/components/responses/Missing"},
                    },
                },
                "get": {"requestBody": {"$ref": "#/components/requestBodies/Used"}, "responses": {}},
            }
        },
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "parameters": {"Id": {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}},
            "requestBodies": {"Used": body, "Unused": body},
            "responses": {"Missing": {"description": "Not found", "content": {"text/plain": {"schema": {}}}}},
            "schemas": {
                "Thing": thing,
                "Link": {"type": "string"},
                "Answer": {"oneOf": [{"$ref": "#/components/schemas/A~1B"}], "discriminator": {"propertyName": "k", "mapping": {"c": "C"}}},
                "A/B": {"type": "integer"},
                "C": {"$ref": "#/components/x-more/D"},
                "Unused": {"type": "string", "description": LONG},
                "Circle": {"properties": {"next": {"$ref": "#/components/schemas/Circle"}}},
            },
            "x-more": {"D": {"type": "boolean"}, "E": {"type": "string"}},
        },
    }  # fmt: skip


def test_a_short_document_is_itself() -> None:
    short = document()
    size, values = measure_document(short)
    assert fit_document(short, bytes_max=size, values_max=values) is short


def test_what_nothing_reads_goes_first_and_is_no_loss() -> None:
    whole = document()
    fitted = fit_document(whole, bytes_max=measure_document(whole)[0] - 1, values_max=MANY)
    assert set(fitted) == {"openapi", "info", "servers", "paths", "components"}
    assert list_left_out(fitted) == ()
    assert fitted["info"] == {"title": "t", "version": "1"}
    components = fitted["components"]
    assert set(components) == {"parameters", "requestBodies", "responses", "schemas", "x-more"}
    assert set(components["schemas"]) == {"Thing", "Link", "Answer", "A/B", "C"}
    assert set(components["requestBodies"]) == {"Used"}
    assert components["x-more"] == {"D": {"type": "boolean"}}
    thing = components["schemas"]["Thing"]
    assert set(thing) == {"type", "description", "example", "properties"}
    assert len(thing["description"]) == 4_000
    assert set(thing["properties"]) == {"name", "x-kept", "links", "description"}
    assert thing["properties"]["x-kept"] == {"type": "string"}
    assert thing["properties"]["description"]["default"] == {"x-data": "kept", "example": 1}
    operation = fitted["paths"]["/things/{id}"]["post"]
    members = "operationId summary description parameters requestBody responses"
    assert set(operation) == set(members.split())
    assert set(operation["responses"]["200"]) == {"description", "headers", "content"}
    assert "x-rate" in operation["responses"]["200"]["headers"]
    assert whole == document()  # it is copied


def test_each_further_step_has_a_name_and_keeps_each_operation_with_its_parameters() -> None:
    def list_parameters(content: Mapping[str, Any]) -> list[tuple[str, str, list[str]]]:
        read = ProviderDocument(content)
        return [
            (one.method, one.path, [parameter.name for parameter in read.list_parameters(one)])
            for one in read.operations
        ]

    sizes = [measure_document(document())[0]]
    for number in range(len(STEPS)):
        fitted = fit_document(document(), bytes_max=sizes[-1] - 1, values_max=MANY)
        sizes.append(measure_document(fitted)[0])
        assert list_left_out(fitted) == tuple(step.name for step in STEPS[1 : number + 1])
        assert list_parameters(fitted) == list_parameters(document())
    assert sizes == sorted(sizes, reverse=True)
    post = fitted["paths"]["/things/{id}"]["post"]
    assert post["requestBody"] == {"required": True, "content": {"application/json": {}}}
    assert post["responses"]["200"] == {
        "description": "",
        "headers": {"x-rate": {"schema": {"type": "integer"}}},
    }
    assert fitted["components"]["requestBodies"]["Used"] == post["requestBody"]
    assert fitted["components"]["schemas"] == {}
    assert fit_document(document(), bytes_max=1, values_max=MANY) == fitted  # the last form, where none fits


def test_a_document_of_many_values_is_shortened_too() -> None:
    whole = document()
    size, values = measure_document(whole)
    assert measure_document(fit_document(whole, bytes_max=size, values_max=values - 1))[1] < values


def test_the_measure_is_that_of_the_stored_text() -> None:
    for value in (document(), {}, {"a": {}}, {"a": {"b": {"c": {"d": [1, {}, "é"]}}}, "ü": []}):
        text = write_document(value)
        size, values = measure_document(value)
        assert size == len(text.encode())
        assert values <= text.count(",") + text.count("[") + text.count("{")


@pytest.mark.parametrize("raw", [None, "examples", [1, "other"], {"examples": 1}])
def test_another_writer_of_the_member_names_no_loss(raw: object) -> None:
    assert list_left_out({LEFT_OUT: raw}) == ()
