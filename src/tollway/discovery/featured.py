"""Some of the paid operations of this gateway, as they stand in the site's own OpenAPI document. Pure.

The words are the providers', cleaned and cut before they come here; nothing of them becomes the name of anything. The
whole description of an operation is in the document of its API.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tollway.discovery.sold_operations import ApiOperation, Argument

SUMMARY_LENGTH_MAX = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturedOperation:
    """`payment`: `x-payment-info` of the operation. `title`: the name of its listing, cleaned."""

    listing_id: str
    title: str
    operation: ApiOperation
    payment: Mapping[str, Any]

    @property
    def method(self) -> str:
        """As a path item calls it."""
        return self.operation.method.lower()


def describe_featured(
    featured: FeaturedOperation, *, responses: Mapping[str, Any], has_schemas: bool
) -> tuple[str, dict[str, Any]]:
    """Path and operation. Without schemas, each argument is still there by its name."""
    operation = featured.operation
    path = f"/api/v2/gateway/{featured.listing_id}" + quote(operation.path, safe="/{}%:@!$&'()*+,;=~-._")
    summary = operation.summary or featured.title or operation.method
    written: dict[str, Any] = {
        "operationId": f"{featured.listing_id}.{operation.tool}",
        "tags": ["Featured"],
        "summary": summary[:SUMMARY_LENGTH_MAX],
        "security": [],
        "x-payment-info": _with_first_offer(featured.payment),
    }
    parameters = [
        _parameter(one, operation.input_schema, has_schemas=has_schemas)
        for one in operation.arguments
        if one.place != "body"
    ]
    if parameters:
        written["parameters"] = parameters
    body = next((one for one in operation.arguments if one.place == "body"), None)
    if body is not None:
        schema = _schema(body, operation.input_schema) if has_schemas else {}
        written["requestBody"] = {
            "required": body.is_required,
            "content": {operation.body_type or "application/json": {"schema": schema}},
        }
    written["responses"] = dict(responses)
    if has_schemas and operation.output_schema is not None and _is_self_contained(operation.output_schema):
        written["responses"]["200"] = {
            "description": "OK",
            "content": {"application/json": {"schema": operation.output_schema}},
        }
    return path, written


def _with_first_offer(payment: Mapping[str, Any]) -> dict[str, Any]:
    """With the first offer alone: it says where to look, and the document of the API says all."""
    short = dict(payment)
    offers = short.get("offers")
    if offers:
        short["offers"] = [{name: value for name, value in offers[0].items() if name != "description"}]
    return short


def _parameter(argument: Argument, schema: Mapping[str, Any], *, has_schemas: bool) -> dict[str, Any]:
    return {
        "name": argument.parameter,
        "in": argument.place,
        "required": argument.is_required or argument.place == "path",
        "schema": _schema(argument, schema) if has_schemas else {"type": "string"},
    }


def _schema(argument: Argument, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The argument's own schema; open where it points to definitions, which have no place in this document."""
    own = schema.get("properties", {}).get(argument.name, {})
    return dict(own) if _is_self_contained(own) else {}


def _is_self_contained(schema: Mapping[str, Any]) -> bool:
    return '"$ref"' not in json.dumps(schema)
