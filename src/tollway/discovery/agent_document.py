"""The agent document of a listing: one fetch, at most 8 KiB, with everything needed to call and to pay. Pure.

Payment, charging, limits and links are always there, short: the form of one rail, and the path of the payment guide, which has the other rails and all rules. The
other parts are written once, in this order, while room lasts: the description, the tags, further options to pay, operations, their request schemas, their
response schemas. An operation is either listed or counted; a member that a listed operation leaves out is named in its `leftOut`. The next pages have
both, whole and in the order of the operations; `operationsAt` is the path of the first of them.

No payment step advises a second payment while a payment can still move money.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tollway.discovery.listing_view import UNTRUSTED_NOTICE, ListingView, arguments_json
from tollway.discovery.operations import ApiOperation, Argument
from tollway.discovery.payment_guide import GUIDE_PATH, channel_rail, transaction_rail, x402_rail
from tollway.discovery.requests import example_json
from tollway.discovery.safe_text import clean_line, clean_prose, clean_tags
from tollway.limits import KIB, MIB, Limits
from tollway.money import Price
from tollway.registry.listing import ChargeOn, Listing, list_links
from tollway.registry.metering import offer

AGENT_BYTES_MAX = 8 * KIB
"""Of each page. A page after the first has more when its only operation does."""
PAGED_SCHEMAS_BYTES_MAX = 1 * MIB
"""Of the schemas on all pages after the first. A short document can reference one large schema two thousand times. Operations beyond it name their schemas in
`leftOut`; the OpenAPI document has them."""
SUMMARY_BYTES_MAX = 240
DESCRIPTION_LENGTH_MAX, DESCRIPTION_BYTES_MIN = 600, 200
OPTIONS_MAX = 4
OPERATIONS_BYTES_MIN = 4_000
"""Bytes that the description, the tags and further options leave to the operations."""

_OPERATION_BYTES_MIN = 70  # no operation is shorter


def describe_for_agents(view: ListingView, limits: Limits) -> tuple[dict[str, Any], ...]:
    """The pages of the document, at least one. The first is the agent document: its size on the wire is at most `AGENT_BYTES_MAX`."""
    first = _describe_all_but_operations(view, limits)
    members, incomplete = _list_operations(view, AGENT_BYTES_MAX - json_size(first))
    first.update(members)
    return first, *_describe_pages(view, incomplete)


def json_size(content: Any) -> int:
    return len(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode())


# ---- The operations.


def _list_operations(view: ListingView, bytes_left: int) -> tuple[dict[str, Any], list[ApiOperation]]:
    """The members of the first page about operations, and the operations that it does not have whole. First the operations in their order, without schemas; then
    request schemas in that order; then response schemas."""
    left = bytes_left - json_size(
        {"operationsLeftOut": len(view.operations), "operationsAt": _page_path(view, 2)}
    )
    listed: dict[str, dict[str, Any]] = {}
    for operation in view.operations:
        if left < _OPERATION_BYTES_MIN:
            break
        entry = describe_operation(view, operation)
        size = json_size(entry) + 1
        if size <= left:
            listed[operation.tool] = entry
            left -= size
    chosen = [operation for operation in view.operations if operation.tool in listed]
    for members_of in (_input_members, _output_members):
        for operation in chosen:
            entry = listed[operation.tool]
            whole = _add_members(entry, members_of(operation))
            size = json_size(whole) - json_size(entry)
            if size <= left:
                left -= size
                listed[operation.tool] = whole
    content: dict[str, Any] = {"operations": list(listed.values())}
    if len(listed) < len(view.operations):
        content["operationsLeftOut"] = len(view.operations) - len(listed)
    incomplete = [one for one in view.operations if "leftOut" in listed.get(one.tool, {"leftOut": ()})]
    if incomplete:
        content["operationsAt"] = _page_path(view, 2)
    return content, incomplete


def _describe_pages(view: ListingView, operations: Sequence[ApiOperation]) -> list[dict[str, Any]]:
    """The pages after the first: the operations whole, as many on a page as fit, at least one."""
    pages = list(_split_into_pages(view, operations))
    count = len(pages) + 1
    return [
        {
            **_page_head(view, number, count),
            "operations": entries,
            **({"next": _page_path(view, number + 1)} if number < count else {}),
        }
        for number, entries in enumerate(pages, start=2)
    ]


def _split_into_pages(
    view: ListingView, operations: Sequence[ApiOperation]
) -> Iterator[list[dict[str, Any]]]:
    last = len(view.operations) + 1
    room = AGENT_BYTES_MAX - json_size(
        {**_page_head(view, last, last), "operations": [], "next": _page_path(view, last)}
    )
    page: list[dict[str, Any]] = []
    left, schemas_left = room, PAGED_SCHEMAS_BYTES_MAX
    for operation in operations:
        entry = describe_operation(view, operation)
        whole = _add_members(_add_members(entry, _input_members(operation)), _output_members(operation))
        schemas_left -= json_size(whole) - json_size(entry)
        written = whole if schemas_left >= 0 else entry
        size = json_size(written) + 1
        if page and size > left:
            yield page
            page, left = [], room
        page.append(written)
        left -= size
    if page:
        yield page


def _page_head(view: ListingView, number: int, count: int) -> dict[str, Any]:
    return {"id": view.listing.id, "page": number, "pages": count, "untrusted": UNTRUSTED_NOTICE}


def _page_path(view: ListingView, number: int) -> str:
    return f"{_path_of(view, 'agent')}?page={number}"


def describe_operation(view: ListingView, operation: ApiOperation) -> dict[str, Any]:
    """An operation that can be called: how, for how much, and an example where one is short. `leftOut` names its other members."""
    summary = operation.summary or operation.description
    example = _example(view, operation)
    return {
        "tool": operation.tool,
        "method": operation.method,
        "path": operation.path,
        "price": _describe_price(view, operation),
        **({"summary": _cut_bytes(summary, SUMMARY_BYTES_MAX)} if summary else {}),
        **({"bodyType": operation.body_type} if operation.body_type else {}),
        **({"example": example} if example else {}),
        "leftOut": [*_input_members(operation), *_output_members(operation)],
    }


def _describe_price(view: ListingView, operation: ApiOperation) -> str:
    offered, currency = offer(operation), view.listing.currency
    return f"{operation.price.text} {currency}" if operation.price.is_free else offered.describe(currency)


def _example(view: ListingView, operation: ApiOperation) -> dict[str, Any] | None:
    """The example request: its target below the URL of the listing, and what else it has beside method and `bodyType`."""
    example = example_json(operation, view.gateway_url)
    if example is None:
        return None
    headers = {
        name: value
        for name, value in example.get("headers", {}).items()
        if name != "content-type"
        or value != operation.body_type  # one with a boundary is a part of the example
    }
    return {
        "target": example["url"].removeprefix(view.gateway_url),
        **({"headers": headers} if headers else {}),
        **({"body": example["body"]} if "body" in example else {}),
    }


_REQUEST_RULE = "url + target. Arguments: in the path where it has {name}, body as the body, others in the query, or by `arguments`"


def _input_members(operation: ApiOperation) -> dict[str, Any]:
    places = arguments_json(operation)
    exceptions = {
        one.name: places[one.name]
        for one in operation.arguments
        if places[one.name] != _usual_place(operation, one)
    }
    return {**({"arguments": exceptions} if exceptions else {}), "inputSchema": operation.input_schema}


def _usual_place(operation: ApiOperation, argument: Argument) -> dict[str, Any]:
    """The place of an argument by `_REQUEST_RULE`, in the form of `arguments_json`."""
    if "{" + argument.name + "}" in operation.path:
        return {"in": "path", "name": argument.name}
    return {"in": "body"} if argument.name == "body" else {"in": "query", "name": argument.name}


def _output_members(operation: ApiOperation) -> dict[str, Any]:
    return {} if operation.output_schema is None else {"outputSchema": operation.output_schema}


_MEMBER_ORDER = (
    "tool",
    "method",
    "path",
    "price",
    "summary",
    "arguments",
    "bodyType",
    "inputSchema",
    "outputSchema",
    "example",
    "leftOut",
)


def _add_members(entry: Mapping[str, Any], members: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the members to the entry and removes them from `leftOut`."""
    left_out = [name for name in entry.get("leftOut", ()) if name not in members]
    changed = {**entry, **members, "leftOut": left_out}
    return {
        name: changed[name] for name in _MEMBER_ORDER if name in changed and (name != "leftOut" or left_out)
    }


# ---- Everything but the operations.


def _describe_all_but_operations(view: ListingView, limits: Limits) -> dict[str, Any]:
    """First what every document has, with one option to pay for each rail; then the description, the tags and further options, while they leave
    `OPERATIONS_BYTES_MIN` to the operations."""
    options = view.options[view.quoted_price]
    chosen = _first_of_each_rail(options)
    content = _required_members(view, limits, chosen)
    left = AGENT_BYTES_MAX - OPERATIONS_BYTES_MIN - json_size(content)
    description = clean_prose(_description(view.listing), DESCRIPTION_LENGTH_MAX)
    content["whenToUse"] = _cut_bytes(description, max(left, DESCRIPTION_BYTES_MIN))
    left -= json_size(content["whenToUse"])
    tags = clean_tags(view.listing.tags)
    if json_size(tags) <= left:
        content["tags"] = tags
        left -= json_size(tags)
    else:
        del content["tags"]
    content["payment"] = _payment(view, _add_options(options, chosen, left))
    return content


def _first_of_each_rail(options: Sequence[Mapping[str, Any]]) -> list[int]:
    return sorted(
        {option["rail"]: position for position, option in reversed(list(enumerate(options)))}.values()
    )


def _add_options(options: Sequence[Mapping[str, Any]], chosen: Sequence[int], bytes_left: int) -> list[int]:
    """`chosen`, and the positions of the next options, up to `OPTIONS_MAX` while they fit."""
    added = list(chosen)
    for position, option in enumerate(options):
        if position not in chosen and len(added) < OPTIONS_MAX:
            bytes_left -= json_size(option) + 1
            if bytes_left < 0:
                break
            added.append(position)
    return sorted(added)


def _cut_bytes(text: str, bytes_max: int) -> str:
    """The text, or as much of its beginning as takes `bytes_max` bytes of JSON with its quotation marks and an ellipsis."""
    if json_size(text) <= bytes_max:
        return text
    left = bytes_max - json_size("…")
    for position, character in enumerate(text):
        left -= json_size(character) - 2
        if left < 0:
            return text[:position].rstrip() + "…"
    return text


_CHARGED_FOR = {
    ChargeOn.SUCCESS: "responses 2xx and 304",
    ChargeOn.ANSWERED: "responses 2xx to 4xx, except 401, 402, 403, 407, 408, 425 and 429",
}


def _required_members(view: ListingView, limits: Limits, chosen: Sequence[int]) -> dict[str, Any]:
    details, listing = view.details, view.listing
    return {
        "id": listing.id,
        "name": clean_line(listing.name, 120),
        "status": listing.status,
        "whenToUse": "",
        "tags": [],
        "untrusted": UNTRUSTED_NOTICE,
        "origin": view.public_url,
        "interfaces": {
            "http": {
                "url": view.gateway_url,
                "methods": list(listing.methods) or "any",
                "request": _REQUEST_RULE,
            },
            "mcp": {"url": view.links["mcp"]},
        },
        "operations": [],
        "payment": _payment(view, chosen),
        "charged": {"for": _CHARGED_FOR[listing.charge_on]},
        "idempotency": {"header": "Idempotency-Key", "hours": limits.response_ttl_s // 3_600},
        "limits": _limits(view, limits),
        "errors": {
            "pay": "on 402 only; never on 409, 503, 504 or a lost response",
        },
        "trust": {
            "provider": str(listing.provider),
            **list_links(listing),
            "ownershipVerified": view.verified_at is not None,
            **({"verifiedAt": view.verified_at} if view.verified_at else {}),
            "quality": details["quality"],
        },
        "links": {
            "guide": GUIDE_PATH,
            "history": "/api/v2/history",
            **{name: _path_of(view, name) for name in ("discovery", "openapi")},
        },
        "updatedAt": details["updatedAt"],
        "revision": listing.revision,
    }


def _path_of(view: ListingView, link: str) -> str:
    return view.links[link].removeprefix(view.public_url)


def _description(listing: Listing) -> object:
    """The listing's description; without one, that of its OpenAPI document."""
    info = (listing.openapi or {}).get("info")
    described = info.get("description") or info.get("summary") if isinstance(info, Mapping) else ""
    return listing.description.strip() or described


def _payment(view: ListingView, chosen: Sequence[int]) -> dict[str, Any]:
    """`chosen`: the positions of the options in the document."""
    offered = view.quoted_price
    options = view.options[offered]
    # The formula in words has a maximum; its pointers could fill the document, and stand in the discovery document.
    price = {name: value for name, value in view.price_json(offered).items() if name != "metering"}
    payment: dict[str, Any] = {"required": not _is_all_free(view), **price}
    if not options:
        return payment
    payment["steps"] = (
        "Choose an option, follow the steps of its rail, send the request with the payment. links.guide has all rails and rules"
    )
    payment["options"] = [options[position] for position in chosen]
    if len(chosen) < len(options):
        payment["optionsLeftOut"] = len(options) - len(chosen)
        payment["optionsAt"] = _path_of(view, "discovery")
    if any(offer(one) != offered for one in view.operations):
        payment["otherPrices"] = "an option's amount = price x 10^decimals"
    payment["rails"] = list_rails(view, frozenset(option["rail"] for option in options))
    return payment


def list_rails(view: ListingView, rails: frozenset[str]) -> list[dict[str, Any]]:
    """The open rails, the first of them with its form; the payment guide has the forms of the others. `rails`: those of the options (`tx`, `x402`, `channel`). MPP has no options
    of its own: it is added where a 402 offers it."""
    found: list[dict[str, Any]] = []
    if "x402" in rails:
        found.append(x402_rail())
    if view.has_mpp:
        found.append({"rail": "mpp"})
    if "channel" in rails:
        found.append(channel_rail())
    if "tx" in rails:
        found.append(_transaction_rail(view, has_form="x402" not in rails))
    return found


def _transaction_rail(view: ListingView, *, has_form: bool) -> dict[str, Any]:
    signature = {"signature": "bound"} if view.is_bound_only else {}
    if has_form:
        return {**transaction_rail(is_bound_only=view.is_bound_only), **signature}
    return {
        "rail": "tx",
        "gas": "yours",
        "steps": [
            "Transfer amount to payTo, wait for confirmations, sign and send the headers of the guide."
        ],
        **signature,
    }


def _is_all_free(view: ListingView) -> bool:
    prices: Iterable[Price] = (view.listing.price, *(one.price for one in view.operations))
    return all(price.is_free for price in prices)


def _limits(view: ListingView, limits: Limits) -> dict[str, Any]:
    rate = view.details["rateLimit"]
    return {
        "timeoutSeconds": view.listing.timeout_s,
        "requestMiB": limits.upload_bytes_max // MIB,
        **({"ratePerPayer": rate} if rate else {}),
    }
