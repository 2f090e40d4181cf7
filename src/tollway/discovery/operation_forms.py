"""One operation as an agent document shows it, from the whole of it down to its bare name. Pure.

Providers write as much as they like, and an agent document has 8 KiB for everything: so there are forms, each shorter
than the one before. What is left out is never made up; the whole stands in the discovery document.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tollway.discovery.example_call import example_json
from tollway.discovery.shown_listing import ListingView, arguments_json
from tollway.discovery.sold_operations import ApiOperation

SUMMARY_LENGTH_MAX = 200
"""Characters of a summary in an agent document."""

_MEMBERS_MAX = 16
_NAME_LENGTH_MAX = 64
_CHOICES_MAX = 8
_DEPTH_MAX = 70

# What a schema says beside what it demands.
_ANNOTATIONS = frozenset(
    {
        "title",
        "description",
        "examples",
        "example",
        "default",
        "$comment",
        "deprecated",
        "externalDocs",
        "xml",
    }
)
_NAMED = frozenset({"properties", "patternProperties", "$defs", "dependentSchemas"})
_ASSERTIONS = ("type", "format", "enum", "minimum", "maximum")


def list_forms(view: ListingView, operation: ApiOperation) -> Iterator[dict[str, Any]]:
    """The whole; without the schema of the answer; without the remarks in the schema; the names and types of the first
    members only; no schema."""
    head: dict[str, Any] = {
        "tool": operation.tool,
        "method": operation.method,
        "path": operation.path,
        "price": view.price_json(operation.price),
    }
    words = operation.summary or operation.description
    if words:
        head["summary"] = words if len(words) <= SUMMARY_LENGTH_MAX else words[: SUMMARY_LENGTH_MAX - 1] + "…"
    example = example_json(operation, view.gateway_url)
    tail = {"example": example} if example else {}
    body = {"bodyType": operation.body_type} if operation.body_type else {}
    places = {"arguments": arguments_json(operation)} if operation.arguments else {}
    bare = strip_annotations(operation.input_schema)
    lean = {**head, **places, **body}
    if operation.output_schema is not None:
        schemas = {"inputSchema": operation.input_schema, "outputSchema": operation.output_schema}
        yield {**lean, **schemas, **tail}
        yield {
            **lean,
            "inputSchema": bare,
            "outputSchema": strip_annotations(operation.output_schema),
            **tail,
        }
    yield {**lean, "inputSchema": operation.input_schema, **tail}
    yield {**lean, "inputSchema": bare, **tail}
    few = [one for one in operation.arguments if len(one.name) <= _NAME_LENGTH_MAX]
    few.sort(key=lambda one: not one.is_required)
    kept = {one.name for one in few[:_MEMBERS_MAX]}
    places = {"arguments": {name: place for name, place in arguments_json(operation).items() if name in kept}}
    yield {**head, **places, **body, "inputSchema": shallow_schema(operation.input_schema, kept), **tail}
    yield head


def strip_annotations(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Without remarks: what is demanded stays, so what it allows is the same."""
    bare = _strip(schema, 0)
    return bare if isinstance(bare, dict) else {}


def _strip(schema: Any, depth: int) -> Any:
    if isinstance(schema, list):
        return [_strip(one, depth + 1) for one in schema]
    if not isinstance(schema, Mapping) or depth > _DEPTH_MAX:
        return schema
    bare: dict[str, Any] = {}
    for word, said in schema.items():
        if word in _NAMED and isinstance(said, Mapping):
            bare[word] = {name: _strip(own, depth + 1) for name, own in said.items()}
        elif word in ("enum", "const", "required"):
            bare[word] = said
        elif word not in _ANNOTATIONS and not word.startswith("x-"):
            bare[word] = _strip(said, depth + 1)
    return bare


def shallow_schema(schema: Mapping[str, Any], kept: set[str]) -> dict[str, Any]:
    """The types of the members in `kept`; open, because it does not say all."""
    properties = schema.get("properties")
    required = schema.get("required")
    shallow: dict[str, Any] = {
        "type": "object",
        "properties": {
            name: _assertions(own)
            for name, own in (properties.items() if isinstance(properties, Mapping) else ())
            if name in kept
        },
    }
    needed = [name for name in required if name in kept] if isinstance(required, list) else []
    return {**shallow, "required": needed} if needed else shallow


def _assertions(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        return {}
    demands = {word: schema[word] for word in _ASSERTIONS if word in schema}
    choices = demands.get("enum")
    if isinstance(choices, list) and (len(choices) > _CHOICES_MAX or json_size(choices) > 200):
        del demands["enum"]
    return demands


def json_size(content: Any) -> int:
    """Bytes on the wire."""
    return len(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode())
