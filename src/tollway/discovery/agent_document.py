"""The agent document of a listing: one fetch, at most 8 KiB, with everything needed to call and to pay. Pure.

The document always fits. Parts are left out in this order: options to pay after the first four and the end of a long description; then schemas of responses,
annotations in schemas, schemas except names and types; then operations are only named, then only counted. How to pay, what is charged and the links to the rest
are never left out. No step tells a reader to pay again while a payment can still move money.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from tollway.discovery.listing_view import MCP_REVISIONS, UNTRUSTED_NOTICE, ListingView, arguments_json
from tollway.discovery.operations import ApiOperation
from tollway.discovery.requests import example_json
from tollway.discovery.safe_text import clean_line, clean_prose, clean_tags
from tollway.limits import KIB, MIB, Limits
from tollway.money import Price
from tollway.registry.listing import ChargeOn, Listing

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


_PAID_CALL = (
    "PaidCall(string gateway,string apiId,string method,string target,bytes32 bodyHash,bytes32 transaction,"
    "uint256 validUntil,bytes32 nonce)"
)
_AUTHORIZATION = (
    "TransferWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,"
    "bytes32 nonce)"
)


def list_rails(view: ListingView, rails: frozenset[str], limits: Limits) -> list[dict[str, Any]]:
    """`rails`: of the options to pay (`tx`, `x402`); MPP is added where it is open, because it settles what x402 does."""
    found: list[dict[str, Any]] = []
    if "x402" in rails:
        found.append(_x402())
    if view.has_mpp:
        found.append(_mpp())
    if "tx" in rails:
        found.append(_tx(view, limits))
    return found


def _x402() -> dict[str, Any]:
    return {
        "rail": "x402",
        "gas": "none",
        "steps": [
            "An x402 client does all of it, given the URL. By hand:",
            "Sign eip712 with the paying wallet: {from} its address, {validBefore} now + maxTimeoutSeconds (unix s), {nonce} "
            "32 random bytes.",
            "Send the request with the header: base64 of the JSON payload. One authorisation pays one call.",
        ],
        "eip712": {
            "domain": {
                "name": "{extra.name}",
                "version": "{extra.version}",
                "chainId": "{chainId}",
                "verifyingContract": "{token}",
            },
            "type": _AUTHORIZATION,
            "message": {
                "from": "{from}",
                "to": "{payTo}",
                "value": "{amount}",
                "validAfter": "0",
                "validBefore": "{validBefore}",
                "nonce": "{nonce}",
            },
        },
        "header": "PAYMENT-SIGNATURE",
        "payload": {
            "x402Version": 2,
            "accepted": {
                "scheme": "exact",
                "network": "{network}",
                "amount": "{amount}",
                "asset": "{token}",
                "payTo": "{payTo}",
                "maxTimeoutSeconds": "{maxTimeoutSeconds}",
                "extra": "{extra}",
            },
            "payload": {"signature": "{signature}", "authorization": "{message}"},
        },
    }


def _mpp() -> dict[str, Any]:
    return {
        "rail": "mpp",
        "method": "evm",
        "intent": "charge",
        "steps": [
            "An MPP client does all of it: answer a WWW-Authenticate: Payment challenge of the 402 with Authorization: "
            "Payment, type authorization.",
        ],
    }


def _tx(view: ListingView, limits: Limits) -> dict[str, Any]:
    bound = (
        "Sign eip712 with the wallet that paid: {method} in capitals, {target} path and query after the http url, {bodyHash} keccak256 "
        f"of the body, {{validUntil}} at most now + {limits.bound_validity_s} (unix s), {{nonce}} 32 random bytes."
    )
    plain = " Or personal_sign the hash (66 characters) and leave X-Signature-Params out."
    return {
        "rail": "tx",
        "gas": "yours",
        "steps": [
            "Transfer amount base units of token (native currency if none) to payTo on chainId; more pays for more calls.",
            "Wait for confirmations; the block with the transfer counts.",
            bound if view.is_bound_only else bound + plain,
            "Send the request with the headers. For the next call: the same hash, a new signature.",
        ],
        "eip712": {
            "domain": {"name": "Tollway", "version": "1", "chainId": "{chainId}"},
            "type": _PAID_CALL,
            "message": {
                "gateway": view.public_url,
                "apiId": view.listing.id,
                "method": "{method}",
                "target": "{target}",
                "bodyHash": "{bodyHash}",
                "transaction": "{transaction}",
                "validUntil": "{validUntil}",
                "nonce": "{nonce}",
            },
        },
        "headers": {
            "X-Payment-Tx": "{transaction}",
            "X-Signature": "{signature}",
            "X-Signature-Params": "v=1;validUntil={validUntil};nonce={nonce};bodyHash={bodyHash}",
        },
    }


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
