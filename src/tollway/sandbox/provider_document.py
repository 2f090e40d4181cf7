"""What the sample provider says of itself: an OpenAPI 3.1 document, as a provider would write one by hand. It must never
say anything of payment or of a gateway.
"""

from collections.abc import Mapping
from typing import Any


def _parameter(name: str, place: str, schema: Mapping[str, Any], description: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": description,
        "schema": dict(schema),
    }


def _response(
    description: str, schema: Mapping[str, Any], *, media_type: str = "application/json"
) -> dict[str, Any]:
    return {"200": {"description": description, "content": {media_type: {"schema": dict(schema)}}}}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


_QUOTE = _object(
    {
        "symbol": {"type": "string", "examples": ["ETH"]},
        "price": {"type": "string", "description": "A decimal number.", "examples": ["1137.94"]},
        "currency": {"type": "string", "const": "USD"},
        "time": {"type": "string", "format": "date-time"},
    }
)

SAMPLE_DOCUMENT: Mapping[str, Any] = {
    "openapi": "3.1.0",
    "info": {
        "title": "Sample quotes",
        "version": "1.0.0",
        "description": "Quotes that mean nothing, an echo, a stream of events.",
    },
    "paths": {
        "/quote/{symbol}": {
            "get": {
                "operationId": "getQuote",
                "summary": "The price of a symbol now",
                "description": "Every symbol has a price here; it moves by up to a percent from second to second.",
                "parameters": [
                    _parameter(
                        "symbol",
                        "path",
                        {"type": "string", "pattern": "^[A-Za-z0-9]{1,12}$", "examples": ["ETH"]},
                        "1 to 12 letters and digits",
                    )
                ],
                "responses": _response("The quote", _QUOTE),
            }
        },
        "/echo": {
            "post": {
                "operationId": "echo",
                "summary": "What arrived: method, target, headers, length and digest of the body",
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": {"type": "object", "examples": [{"hello": "world"}]}}
                    },
                },
                "responses": _response(
                    "What arrived",
                    _object(
                        {
                            "method": {"type": "string"},
                            "target": {"type": "string"},
                            "headers": {
                                "type": "array",
                                "items": {"type": "array", "items": {"type": "string"}},
                            },
                            "body": _object({"bytes": {"type": "integer"}, "sha256": {"type": "string"}}),
                        }
                    ),
                ),
            }
        },
        "/stream": {
            "get": {
                "operationId": "streamTicks",
                "summary": "A stream of server-sent events, one every interval",
                "parameters": [
                    _parameter(
                        "count",
                        "query",
                        {"type": "integer", "minimum": 0, "maximum": 10_000, "default": 5, "examples": [3]},
                        "how many events",
                    ),
                    _parameter(
                        "interval",
                        "query",
                        {"type": "number", "minimum": 0, "maximum": 300, "default": 1, "examples": [0.1]},
                        "seconds between two events",
                    ),
                ],
                "responses": _response("The events", {"type": "string"}, media_type="text/event-stream"),
            }
        },
    },
}
