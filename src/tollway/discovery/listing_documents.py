"""Two documents of a listing: the discovery document (everything in one JSON response) and its `llms.txt` (at most 3,999 characters). Pure.

The discovery document lists every operation; schemas beyond the limit are null there and stand in its `openapi` member. In `llms.txt` the provider's text is
escaped: no heading, link, code or markup of the provider is kept.
"""

import re
from collections.abc import Mapping
from typing import Any

from tollway.discovery.agent_document import json_size
from tollway.discovery.listing_view import (
    MCP_REVISIONS,
    UNTRUSTED_NOTICE,
    ListingView,
    arguments_json,
    list_prices,
)
from tollway.discovery.operations import ApiOperation
from tollway.discovery.payment_guide import GUIDE_PATH
from tollway.discovery.requests import example_json
from tollway.discovery.safe_text import clean_line, clean_prose, clean_tags
from tollway.limits import MIB
from tollway.registry.listing import list_links
from tollway.registry.metering import offer

SCHEMAS_BYTES_MAX = 1 * MIB
"""Of all operations together. A short document can reference one large schema two thousand times."""

NAME_LENGTH_MAX, DESCRIPTION_LENGTH_MAX = 120, 4_000


def describe_listing(
    view: ListingView, *, openapi: Mapping[str, Any], bazaar: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The discovery document. `openapi`: the listing's OpenAPI document. `bazaar`: its record in the Bazaar; None while no authorisation can pay for it."""
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
    _, *others = list_prices(view.listing, view.operations)
    pricing = dict(view.details["pricing"])
    if others:
        pricing["otherPrices"] = [
            {**view.price_json(offered), "options": view.options[offered]} for offered in others
        ]
    return pricing


def _operations(view: ListingView) -> dict[str, Any]:
    """Schemas up to `SCHEMAS_BYTES_MAX` in order; later schemas are null and counted."""
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
        "price": offer(operation).to_json(view.listing.currency),
        "arguments": arguments_json(operation),
        "bodyType": operation.body_type,
        "inputSchema": operation.input_schema,
        "outputSchema": operation.output_schema,
        "example": example_json(operation, view.gateway_url),
        "mcpTool": f"{view.listing.id}.{operation.tool}",
    }


TEXT_LENGTH_MAX = 3_999
"""Crawlers warn about longer texts."""

_NAME_LENGTH_MAX, _SUMMARY_MAX = 120, 100
_WORDS_STEPS, _OPERATIONS_LENGTH_MIN = (400, 100), 600
_PATH_LENGTH_MAX = 200
_MARKUP = re.compile(r"[\\`*_{}\[\]<>#|~!]")
_NOT_IN_CODE = re.compile(r"[`\s]")


def write_listing_text(view: ListingView) -> str:
    """The text ends with a line break."""
    tail = _tail(view)
    for words_max in _WORDS_STEPS:
        head = _head(view, words_max)
        length_left = TEXT_LENGTH_MAX - len(head) - len(tail)
        if length_left >= _OPERATIONS_LENGTH_MIN:
            break
    return head + _list_operations(view, length_left) + tail


def _head(view: ListingView, words_max: int) -> str:
    listing = view.listing
    words = escape_markdown(clean_line(listing.description, words_max))
    name = escape_markdown(clean_line(listing.name, _NAME_LENGTH_MAX))
    offered = view.quoted_price
    cost = offered.describe(listing.currency)
    if not offered.price.is_free:
        cost = (
            f"{cost} for each call, if not said otherwise"
            if offered.metering is None
            else f"{cost}, if not said otherwise"
        )
    return (
        f"# {name}\n\n"
        + (f"> {words}\n\n" if words else "")
        + f"{UNTRUSTED_NOTICE}\n\n"
        + f"An HTTP API sold through a Tollway gateway. Price: {cost}. {_reputation(view)}\n\n"
        + "## How to call\n\n"
        + f"1. Send the request to {view.gateway_url} and the path of an operation. Unpaid it gets 402 with the terms.\n"
        + "2. Pay: x402 and MPP clients do it alone; or transfer the tokens and show the transaction (X-Payment-Tx, X-Signature).\n"
        + "3. Send the request again with the payment. Pay on a 402 only; on 409, 503 or 504 show the same payment again.\n\n"
        + f"The [agent document]({view.links['agent']}) has the operations, every number, and the steps of one way to pay.\n"
        + f"The payment guide (`{GUIDE_PATH}` of this gateway) has the other ways.\n\n"
        + "".join(f"Provider's {name}, not checked: <{url}>\n\n" for name, url in list_links(listing).items())
        + "## Operations\n\n"
    )


def _reputation(view: ListingView) -> str:
    quality: Mapping[str, Any] = view.details["quality"]
    if view.verified_at:
        owner = "The provider has proved the ownership of the endpoint."
    elif view.owned_by is None:
        owner = "The ownership of the endpoint is not proved."
    else:
        owner = f"Another wallet has proved the ownership of the endpoint, with the API {view.owned_by}."
    if quality["calls30d"] is None:
        return f"{owner} Too few paid calls to measure."
    return (
        f"{owner} {quality['calls30d']} paid calls in 30 days, success rate {quality['successRate30d']}, "
        f"p95 {quality['p95Ms']} ms."
    )


def _list_operations(view: ListingView, length_left: int) -> str:
    lines: list[str] = []
    ending = "- and {} more, see the OpenAPI document\n"
    left = length_left - len(ending.format(10**6))
    for operation in view.operations:
        line = _operation_line(view, operation)
        if len(line) > left:
            break
        lines.append(line)
        left -= len(line)
    missing = len(view.operations) - len(lines)
    return "".join(lines) + (ending.format(missing) if missing else "")


def _operation_line(view: ListingView, operation: ApiOperation) -> str:
    if operation.is_any:
        return f"- any method and path below {view.gateway_url}\n"
    path = _NOT_IN_CODE.sub("", operation.path)[:_PATH_LENGTH_MAX] or "/"
    cost = offer(operation).describe(view.listing.currency)
    summary = escape_markdown(clean_line(operation.summary, _SUMMARY_MAX))
    return f"- `{operation.method} {path}` ({cost})" + (f": {summary}" if summary else "") + "\n"


def _tail(view: ListingView) -> str:
    links = view.links
    return (
        "\n## Documents\n\n"
        f"- [Agent document]({links['agent']}): JSON, at most 8 KiB: operations, prices, and the steps of one way to pay\n"
        f"- [OpenAPI 3.1]({links['openapi']}): every operation with its price\n"
        f"- [Discovery]({links['discovery']}): everything in one JSON document\n"
        f"- [MCP server]({links['mcp']}): the operations as tools, streamable HTTP\n"
        f"- [Details]({links['self']})\n"
    )


def escape_markdown(text: str) -> str:
    return _MARKUP.sub(lambda match: "\\" + match[0], " ".join(text.split()))
