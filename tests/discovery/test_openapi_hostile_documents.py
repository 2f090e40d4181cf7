"""Hostile documents of providers: for every content, each document that the gateway writes from them is complete,
within its size, and valid for tools of others."""

import copy
import json
import random
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.kit.listings import show_listing
from tests.kit.openapi_documents import openapi_document, parameter
from tollway.discovery.agent_document import AGENT_BYTES_MAX, describe_for_agents
from tollway.discovery.listing_documents import TEXT_LENGTH_MAX, describe_listing, write_listing_text
from tollway.discovery.openapi import build_openapi
from tollway.limits import DEFAULT_LIMITS
from tollway.sandbox.provider import SAMPLE_DOCUMENT
from tollway.web.api.listing_json import render_json

_WORDS = """
type $ref properties items enum required schema parameters in name query path header content application/json responses
200 object string array allOf const default examples nullable format style explode deepObject get post
#/components/schemas/A #/ # http://x/y
"""
WORDS = (*_WORDS.split(), "", "\u202e", "\U0001f310" * 50, "<b>", "{id}", "/a/{id}")


def write_all(openapi: dict[str, Any]) -> dict[str, Any]:
    """Every document of a listing; its OpenAPI is given back."""
    view = show_listing(openapi=openapi)
    assert len(render_json(describe_for_agents(view, DEFAULT_LIMITS))) <= AGENT_BYTES_MAX
    assert len(write_listing_text(view)) <= TEXT_LENGTH_MAX
    written = build_openapi(
        view.listing,
        gateway_url=view.gateway_url,
        options_at=lambda offered: view.options.get(offered, ()),
        has_mpp=True,
    )
    render_json(describe_listing(view, openapi=written, bazaar=None))
    for operation in view.operations:
        for schema in (operation.input_schema, operation.output_schema or {}):
            jsonschema.Draft202012Validator.check_schema(schema)
    return written


def check_openapi(written: dict[str, Any]) -> None:
    assert [str(error) for error in OpenAPIV31SpecValidator(written).iter_errors()] == []


def with_schema(schema: Any) -> dict[str, Any]:
    operation = {"parameters": [parameter("q", schema)], "responses": {"200": {"description": "ok"}}}
    components = {"schemas": {"A": {"type": "string"}}}
    return openapi_document({"/a": {"get": operation}}, components=components)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "default": "five"},
        {"type": "integer", "default": True},
        {"type": "integer", "minimum": 3, "default": 2},
        {"type": "integer", "exclusiveMaximum": 3, "default": 3},
        {"type": "integer", "multipleOf": 2, "default": 3},
        {"type": "string", "maxLength": 2, "default": "abc"},
        {"type": "string", "pattern": "^a$", "default": "b"},
        {"type": "string", "enum": ["a"], "default": "b"},
        {"enum": [1], "default": True},
        {"const": "a", "default": "b"},
        {"type": "object", "required": ["a"], "default": {}},
        {"type": "array", "minItems": 1, "default": []},
        {"anyOf": [{"type": "string"}], "default": 7},
        {"not": {"type": "string"}, "default": "a"},
        {"$ref": "#/components/schemas/A", "default": 7},
        {"default": {"$ref": "#/nowhere"}},
        {"const": {"$ref": "#/nowhere"}},
        {"enum": [{"$ref": "http://127.0.0.1/x"}]},
        {"examples": [{"a": {"$ref": "#/nowhere"}}]},
    ],
)
def test_a_value_that_does_not_fit_or_refers_is_left_out(schema: dict[str, Any]) -> None:
    written = write_all(with_schema(schema))
    check_openapi(written)
    (parameter,) = written["paths"]["/a"]["get"]["parameters"]
    assert "default" not in parameter["schema"]
    assert "nowhere" not in json.dumps(written)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "default": 5},
        {"type": ["string", "null"], "default": None},
        {"type": "number", "minimum": 0, "maximum": 1, "default": 0.5},
        {"type": "string", "enum": ["a", "b"], "default": "b"},
        {"type": "boolean", "default": False},
        {"default": "a"},
    ],
)
def test_a_default_that_fits_stays(schema: dict[str, Any]) -> None:
    written = write_all(with_schema(schema))
    check_openapi(written)
    (parameter,) = written["paths"]["/a"]["get"]["parameters"]
    assert parameter["schema"]["default"] == schema["default"]


class Liar:
    """Takes a good document and puts wrong things in wrong places."""

    def __init__(self, seed: int) -> None:
        self._source = random.Random(seed)

    def document(self) -> dict[str, Any]:
        spoilt: dict[str, Any] = copy.deepcopy(_GOOD)
        for _ in range(self._source.randrange(1, 7)):
            self._spoil(spoilt)
        return spoilt

    def _spoil(self, document: dict[str, Any]) -> None:
        places = list(_walk(document))
        if not places:
            return
        holder, key = self._source.choice(places)
        match self._source.randrange(4):
            case 0:
                holder[key] = self._value(0)
            case 1 if isinstance(holder, dict):
                holder[self._source.choice(WORDS)] = self._value(0)
            case 2 if isinstance(holder, dict):
                holder[self._source.choice(WORDS)] = holder.pop(key)
            case _:
                other, other_key = self._source.choice(places)
                holder[key] = copy.deepcopy(other[other_key])

    def _value(self, depth: int) -> Any:
        source = self._source
        match source.randrange(8):
            case 0:
                return source.choice([None, True, False])
            case 1:
                return source.choice([0, -1, 10**20, 1.5, 1e300, 2**63])
            case 2 | 3 | 4:
                return source.choice(WORDS)
            case 5 if depth < 5:
                return [self._value(depth + 1) for _ in range(source.randrange(4))]
            case _ if depth < 5:
                return {source.choice(WORDS): self._value(depth + 1) for _ in range(source.randrange(5))}
        return "x"


def _walk(node: Any) -> Any:
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        yield node, key
        yield from _walk(node[key])


def _good() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(SAMPLE_DOCUMENT))
    document["components"] = {
        "schemas": {
            "A": {"type": "object", "properties": {"b": {"$ref": "#/components/schemas/B"}}},
            "B": {"anyOf": [{"$ref": "#/components/schemas/A"}, {"type": "null"}]},
        },
        "parameters": {"P": {"name": "p", "in": "query", "schema": {"$ref": "#/components/schemas/A"}}},
    }
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/B"}}}}
    document["paths"]["/a/{id}"] = {
        "parameters": [{"$ref": "#/components/parameters/P"}],
        "put": {"requestBody": body, "responses": {"default": {"description": "x"}}},
    }
    return document


_GOOD = _good()


def test_documents_damaged_at_random_raise_no_error(seed: int) -> None:
    liar = Liar(seed)
    for number in range(40):
        written = write_all(liar.document())
        if number % 10 == 0:
            check_openapi(written)
