"""The discovery document of a listing: everything about it in one answer, for programs that build something on it. Pure.

Every operation stands in it. Where their schemas are too much together, the later ones are left out and stand in `openapi`
only, and that is told.
"""

from collections.abc import Mapping
from typing import Any

from tollway.discovery.example_call import example_json
from tollway.discovery.operation_forms import json_size
from tollway.discovery.plain_words import clean_line, clean_prose, clean_tags
from tollway.discovery.shown_listing import (
    MCP_REVISIONS,
    UNTRUSTED_NOTICE,
    ListingView,
    arguments_json,
    list_prices,
)
from tollway.discovery.sold_operations import ApiOperation
from tollway.limits import MIB

SCHEMAS_BYTES_MAX = 1 * MIB
"""Of all operations together. A short document can name one large schema two thousand times."""

NAME_LENGTH_MAX, DESCRIPTION_LENGTH_MAX = 120, 4_000


def describe_listing(
    view: ListingView, *, openapi: Mapping[str, Any], bazaar: Mapping[str, Any] | None
) -> dict[str, Any]:
    """`openapi`: the document that the listing's own URL serves. `bazaar`: its entry there; None while no authorisation
    can pay for it."""
    details, listing = view.details, view.listing
    same = ("provider", "status", "methods", "chargeOn", "timeoutSeconds", "signature", "rateLimit")
    return {
        "id": listing.id,
        "name": clean_line(listing.name, NAME_LENGTH_MAX),
        "description": clean_prose(listing.description, DESCRIPTION_LENGTH_MAX),
        "untrusted": UNTRUSTED_NOTICE,
        **{name: details[name] for name in same},
        "tags": clean_tags(listing.tags),
        "gatewayUrl": view.gateway_url,
        "interfaces": {
            "http": view.gateway_url,
            "mcp": {
                "url": view.links["mcp"],
                "transport": "streamable-http",
                "revisions": list(MCP_REVISIONS),
                "registry": f"{view.public_url}/mcp",
            },
        },
        "pricing": _pricing(view),
        "quality": details["quality"],
        "verified": details["verified"],
        "verifiedAt": view.verified_at,
        **_operations(view),
        "openapi": openapi,
        "bazaar": bazaar,
        "links": view.links,
        "createdAt": details["createdAt"],
        "updatedAt": details["updatedAt"],
        "revision": listing.revision,
    }


def _pricing(view: ListingView) -> dict[str, Any]:
    """The listing's, as its details tell it, and the options of every other price that an operation has."""
    _, *others = list_prices(view.listing, view.operations)
    pricing = dict(view.details["pricing"])
    if others:
        pricing["otherPrices"] = [
            {**view.price_json(price), "options": view.options[price.nano]} for price in others
        ]
    return pricing


def _operations(view: ListingView) -> dict[str, Any]:
    """Schemas as long as they have room together; the ones after that are null."""
    listed: list[dict[str, Any]] = []
    left, left_out = SCHEMAS_BYTES_MAX, 0
    for operation in view.operations:
        entry = _operation(view, operation)
        size = json_size([operation.input_schema, operation.output_schema]) if left > 0 else 0
        left -= size
        if left <= 0:
            entry["inputSchema"] = entry["outputSchema"] = None
            left_out += 1
        listed.append(entry)
    return {"operations": listed, **({"schemasLeftOut": left_out} if left_out else {})}


def _operation(view: ListingView, operation: ApiOperation) -> dict[str, Any]:
    return {
        "operationId": operation.tool,
        "method": operation.method,
        "path": operation.path,
        "url": view.url_of(operation),
        "summary": operation.summary,
        "description": operation.description,
        "isAny": operation.is_any,
        "price": {"mode": "fixed", **view.price_json(operation.price)},
        "arguments": arguments_json(operation),
        "bodyType": operation.body_type,
        "inputSchema": operation.input_schema,
        "outputSchema": operation.output_schema,
        "example": example_json(operation, view.gateway_url),
        "mcpTool": f"{view.listing.id}.{operation.tool}",
    }
