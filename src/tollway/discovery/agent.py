"""The agent document of a listing: one fetch, at most 8 KiB, is enough to call and to pay. Pure.

It always fits. What gives way, in this order: schemas of answers, remarks in schemas, schemas as far as they are not names and
types; then operations are named only, then only counted; before any of that, options to pay beyond the first four and
the end of a long description. How to pay, what is charged, and where the rest stands are never left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from tollway.discovery.operation_forms import json_size, list_forms
from tollway.discovery.payment_steps import list_rails
from tollway.discovery.plain_words import clean_line, clean_prose, clean_tags
from tollway.discovery.shown_listing import MCP_REVISIONS, UNTRUSTED_NOTICE, ListingView
from tollway.discovery.sold_operations import ApiOperation
from tollway.limits import KIB, MIB, Limits
from tollway.money import Price
from tollway.registry.listing import ChargeOn, Listing

AGENT_BYTES_MAX = 8 * KIB
OPERATIONS_BYTES_MIN = 2_000
"""The room that options and descriptions leave to operations, where there are many of either."""

_OPTION_STEPS = (4, 3, 2)  # one for each rail at least
_DESCRIPTION_STEPS = (600, 200, 60)
_OPERATION_BYTES_MAX = 1_200  # of one among many
_FORM_BYTES_MIN = 120  # no form of any operation is shorter
_FORMS_MAX = 40  # more operations than that never find room with their schemas
_CHARGED_FOR = {
    ChargeOn.SUCCESS: "answers 2xx and 304",
    ChargeOn.ANSWERED: "answers 2xx to 4xx, except 401, 402, 403, 407, 408, 425 and 429",
}


def describe_for_agents(view: ListingView, limits: Limits) -> dict[str, Any]:
    """The document; its size on the wire is at most `AGENT_BYTES_MAX`."""
    content = _frame(view, limits)
    bytes_left = AGENT_BYTES_MAX - json_size(content)
    content.update(_operations(view, bytes_left))
    return content


# ---- Everything but the operations.


def _frame(view: ListingView, limits: Limits) -> dict[str, Any]:
    """With as many options and as much description as leave room for operations; the last try is small enough whatever
    the provider wrote."""
    most = AGENT_BYTES_MAX - OPERATIONS_BYTES_MIN
    for options_max in _OPTION_STEPS:
        for words_max in _DESCRIPTION_STEPS:
            frame = _fill_frame(view, limits, options_max=options_max, words_max=words_max)
            if json_size(frame) <= most:
                return frame
    return frame


def _fill_frame(view: ListingView, limits: Limits, *, options_max: int, words_max: int) -> dict[str, Any]:
    details, listing = view.details, view.listing
    return {
        "id": listing.id,
        "name": clean_line(listing.name, 120),
        "status": listing.status,
        "whenToUse": clean_prose(_description(listing), words_max),
        "tags": [] if words_max == _DESCRIPTION_STEPS[-1] else clean_tags(listing.tags),
        "untrusted": UNTRUSTED_NOTICE,
        "origin": view.public_url,
        "interfaces": _interfaces(view),
        "operations": [],
        "payment": _payment(view, limits, options_max),
        "charged": {
            "for": _CHARGED_FOR[listing.charge_on],
            "else": "nothing; Tollway-Payment-State says charged, released (yours again), held (not known yet) or none",
        },
        "idempotency": {
            "header": "Idempotency-Key",
            "hours": limits.answer_ttl_s // 3_600,
            "rule": "same key, wallet and request: the stored answer, no second charge",
        },
        "limits": _limits(view, limits),
        "errors": {
            "format": "application/problem+json",
            "catalog": "/problems/{code-with-dashes}",
            "retry": "where retryable is true: after Retry-After, same proof, same Idempotency-Key",
            "pay": "on 402 only; never on 409, 503, 504 or a lost answer",
        },
        "trust": {
            "provider": str(listing.provider),
            "ownershipVerified": view.verified_at is not None,
            **({"verifiedAt": view.verified_at} if view.verified_at else {}),
            "quality": details["quality"],
            "qualityOf": "paid calls by others; null: fewer than 20",
        },
        "history": _history(limits),
        "links": {
            name: url.removeprefix(view.public_url)
            for name, url in view.links.items()
            if name not in _LINKS_LEFT_OUT
        },
        "updatedAt": details["updatedAt"],
        "revision": listing.revision,
    }


def _description(listing: Listing) -> object:
    """The listing's description, or its document's."""
    info = (listing.openapi or {}).get("info")
    described = info.get("description") or info.get("summary") if isinstance(info, Mapping) else ""
    return listing.description.strip() or described


_LINKS_LEFT_OUT = frozenset({"agent", "gateway", "mcp", "ownership"})


def _interfaces(view: ListingView) -> dict[str, Any]:
    return {
        "http": {
            "url": view.gateway_url,
            "methods": list(view.listing.methods) or "any",
            "request": "url + path + query",
        },
        "mcp": {
            "url": view.links["mcp"],
            "transport": "streamable-http",
            "revisions": list(MCP_REVISIONS),
            "tools": "each operation by its tool name; at /mcp by proxy_tool_call, toolName <id>.<tool>",
            "payment": "_meta x402/payment, or (bound form) arguments paymentTx, paymentSignature, paymentSignatureParams",
        },
    }


_STEPS = (
    "Unpaid, a request gets 402 with the current price and these options.",
    "Take an option, do what its rail says, send the same request with the payment.",
    "PAYMENT-RESPONSE and Tollway-Payment-State of the answer tell what was charged.",
)


def _payment(view: ListingView, limits: Limits, options_max: int) -> dict[str, Any]:
    price = view.quoted_price
    options = view.options[price.nano]
    payment: dict[str, Any] = {"required": not _is_all_free(view), **view.price_json(price)}
    if not options:
        return payment
    chosen = _choose_options(options, options_max)
    payment["steps"] = list(_STEPS)
    payment["options"] = chosen
    if len(chosen) < len(options):
        payment["optionsLeftOut"] = len(options) - len(chosen)
    if any(one.price.nano != price.nano for one in view.operations):
        payment["otherPrices"] = "an option's amount = price x 10^decimals"
    rails = frozenset(option["rail"] for option in options)
    payment["rails"] = list_rails(view, rails, limits)
    payment["cap"] = "Tollway-Max-Price: <decimal> refuses a dearer call, unpaid"
    return payment


def _choose_options(options: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """The first of each rail, then the next ones, in their order."""
    firsts = {option["rail"]: number for number, option in reversed(list(enumerate(options)))}
    numbers = sorted(firsts.values())[:most]
    numbers += [number for number in range(len(options)) if number not in numbers][: most - len(numbers)]
    return [options[number] for number in sorted(numbers)]


def _is_all_free(view: ListingView) -> bool:
    prices: Iterable[Price] = (view.listing.price, *(one.price for one in view.operations))
    return all(price.is_free for price in prices)


def _limits(view: ListingView, limits: Limits) -> dict[str, Any]:
    rate = view.details["rateLimit"]
    return {
        "timeoutSeconds": view.listing.timeout_s,
        "requestMiB": limits.upload_bytes_max // MIB,
        **({"ratePerPayer": rate} if rate else {}),
        "failedCalls": f"{limits.failed_calls_per_window} in {limits.failed_calls_window_s // 60} minutes, then 429",
    }


def _history(limits: Limits) -> dict[str, Any]:
    return {
        "calls": "/api/v2/history",
        "payments": "/api/v2/payments",
        "auth": [
            "ERC-8128 (RFC 9421): keyid erc8128:<chainId>:<address>; covers @authority @method @path, @query if any; "
            f"created, expires <= {limits.signed_request_ttl_s} s, nonce",
            "or POST /api/v2/auth/nonce {address, chainId}, personal_sign its message, POST /api/v2/auth/session {message, "
            "signature}: Bearer accessToken",
            "or SIGN-IN-WITH-X at /x402/history",
        ],
    }


# ---- The operations, in what room there is.

_Form = tuple[int, dict[str, Any]]
"""Bytes on the wire with its comma, and the form."""


def _operations(view: ListingView, bytes_left: int) -> dict[str, Any]:
    fitting = _fit_all(view, bytes_left)
    return {"operations": fitting} if fitting is not None else _fit_some(view, bytes_left)


def _fit_all(view: ListingView, bytes_left: int) -> list[dict[str, Any]] | None:
    """All of them with their schemas; where room is short, the longest are shortened first."""
    if len(view.operations) > _FORMS_MAX:
        return None
    forms = [_list_shorter_forms(view, operation)[:-1] for operation in view.operations]
    chosen = [0] * len(forms)
    while sum(forms[number][at][0] for number, at in enumerate(chosen)) > bytes_left:
        longest = [number for number, at in enumerate(chosen) if at + 1 < len(forms[number])]
        if not longest:
            return None
        chosen[max(longest, key=lambda number: forms[number][chosen[number]][0])] += 1
    return [forms[number][at][1] for number, at in enumerate(chosen)]


def _fit_some(view: ListingView, bytes_left: int) -> dict[str, Any]:
    """The first ones with schemas, then names, then a number."""
    listed: list[dict[str, Any]] = []
    left = bytes_left - _COUNTED_BYTES
    share = left * 2 // 3
    operations = iter(view.operations)
    rest: list[ApiOperation] = []
    for operation in islice(operations, _FORMS_MAX):
        if share < _FORM_BYTES_MIN:
            rest.append(operation)
            break
        forms = _list_shorter_forms(view, operation)
        most = min(share, _OPERATION_BYTES_MAX)
        size, form = next((one for one in forms if one[0] <= most), (0, {}))
        if not form:
            rest.append(operation)
            continue
        listed.append(form)
        left, share = left - size, share - size
    names: list[str] = []
    for operation in (*rest, *operations):
        name = _name(view, operation)
        size = json_size(name) + 1
        if size > left:
            break
        names.append(name)
        left -= size
    counted = len(view.operations) - len(listed) - len(names)
    return {
        "operations": listed,
        **({"otherOperations": names} if names else {}),
        "operationsLeftOut": counted,
        "operationsAt": "links.discovery",
    }


_COUNTED_BYTES = json_size(
    {"otherOperations": [], "operationsLeftOut": 10**6, "operationsAt": "links.discovery"}
)


def _list_shorter_forms(view: ListingView, operation: ApiOperation) -> list[_Form]:
    """Its forms, those that save nothing left out."""
    found: list[_Form] = []
    for form in list_forms(view, operation):
        size = json_size(form) + 1
        if not found or size < found[-1][0]:
            found.append((size, form))
    return found


def _name(view: ListingView, operation: ApiOperation) -> str:
    name = f"{operation.method} {operation.path or '/'}"
    if operation.price.nano == view.quoted_price.nano:
        return name
    return f"{name} ({operation.price.text} {view.listing.currency})"
