"""The agent document of a listing: one fetch, at most 8 KiB, with everything needed to call and to pay. Pure.

Payment, charging, limits and links are always there. The other parts are written once, in this order, while room lasts: the description, the tags,
further options to pay, operations, their request schemas, their response schemas. An operation is either whole or counted; a member that an
operation leaves out is named in its `leftOut`; `operationsAt` is the path of the document that has the rest.

No payment step advises a second payment while a payment can still move money.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tollway.discovery.listing_view import MCP_REVISIONS, UNTRUSTED_NOTICE, ListingView, arguments_json
from tollway.discovery.operations import ApiOperation
from tollway.discovery.requests import example_json
from tollway.discovery.safe_text import clean_line, clean_prose, clean_tags
from tollway.limits import KIB, MIB, Limits
from tollway.money import Price
from tollway.payments.proof import BOUND_VALIDITY_S
from tollway.registry.listing import ChargeOn, Listing

AGENT_BYTES_MAX = 8 * KIB
SUMMARY_BYTES_MAX = 240
DESCRIPTION_LENGTH_MAX, DESCRIPTION_BYTES_MIN = 600, 200
OPTIONS_MAX = 4
OPERATIONS_BYTES_MIN = 2_000
"""Bytes that the description, the tags and further options leave to the operations."""

_OPERATION_BYTES_MIN = 100  # no operation is shorter


def describe_for_agents(view: ListingView, limits: Limits) -> dict[str, Any]:
    """The document. Its size on the wire is at most `AGENT_BYTES_MAX`."""
    content = _describe_all_but_operations(view, limits)
    content.update(_list_operations(view, AGENT_BYTES_MAX - json_size(content)))
    return content


def json_size(content: Any) -> int:
    """Bytes on the wire."""
    return len(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode())


# ---- The operations.


def _list_operations(view: ListingView, bytes_left: int) -> dict[str, Any]:
    """First the operations in their order, without schemas; then request schemas in that order; then response schemas."""
    operations_at = _path_of(view, "discovery")
    left = bytes_left - json_size({"operationsLeftOut": len(view.operations), "operationsAt": operations_at})
    listed: list[tuple[ApiOperation, dict[str, Any]]] = []
    for operation in view.operations:
        if left < _OPERATION_BYTES_MIN:
            break
        entry = describe_operation(view, operation)
        size = json_size(entry) + 1
        if size <= left:
            listed.append((operation, entry))
            left -= size
    for members_of in (_input_members, _output_members):
        for operation, entry in listed:
            members = members_of(operation)
            # The braces go, a comma comes.
            size = json_size(members) - 1 if members else 0
            if size <= left:
                left -= size
                _add_members(entry, members)
    entries = [entry for _, entry in listed]
    count = len(view.operations) - len(entries)
    content: dict[str, Any] = {"operations": entries}
    if count:
        content["operationsLeftOut"] = count
    if count or any("leftOut" in entry for entry in entries):
        content["operationsAt"] = operations_at
    return content


def describe_operation(view: ListingView, operation: ApiOperation) -> dict[str, Any]:
    """An operation that can be called: how, for how much, and an example where one is short. `leftOut` names its other members."""
    summary = operation.summary or operation.description
    example = example_json(operation, view.gateway_url)
    left_out = [*_input_members(operation), *_output_members(operation)]
    return {
        "tool": operation.tool,
        "method": operation.method,
        "path": operation.path,
        "price": view.price_json(operation.price),
        **({"summary": _cut_bytes(summary, SUMMARY_BYTES_MAX)} if summary else {}),
        **({"bodyType": operation.body_type} if operation.body_type else {}),
        **({"example": example} if example else {}),
        "leftOut": left_out,
    }


def _input_members(operation: ApiOperation) -> dict[str, Any]:
    places = {"arguments": arguments_json(operation)} if operation.arguments else {}
    return {**places, "inputSchema": operation.input_schema}


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


def _add_members(entry: dict[str, Any], members: Mapping[str, Any]) -> None:
    left_out = [name for name in entry.pop("leftOut", ()) if name not in members]
    changed = {**entry, **members, **({"leftOut": left_out} if left_out else {})}
    entry.clear()
    entry.update((name, changed[name]) for name in _MEMBER_ORDER if name in changed)


# ---- The rails: for each, its steps in words and as a form that a program fills in.

_PAID_CALL = (
    "PaidCall(string gateway,string apiId,string method,string target,bytes32 bodyHash,bytes32 transaction,"
    "uint256 validUntil,bytes32 nonce)"
)
_AUTHORIZATION = (
    "TransferWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,"
    "bytes32 nonce)"
)


def list_rails(view: ListingView, rails: frozenset[str]) -> list[dict[str, Any]]:
    """`rails`: those of the options (`tx`, `x402`). MPP has no options of its own: it is added where a 402 offers it."""
    found: list[dict[str, Any]] = []
    if "x402" in rails:
        found.append(_x402())
    if view.has_mpp:
        found.append(_mpp())
    if "tx" in rails:
        found.append(_tx(view))
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


def _tx(view: ListingView) -> dict[str, Any]:
    bound = (
        "Sign eip712 with the wallet that paid: {method} in capitals, {target} path and query after the http url, {bodyHash} keccak256 "
        f"of the body, {{validUntil}} at most now + {BOUND_VALIDITY_S} (unix s), {{nonce}} 32 random bytes."
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


# ---- Everything but the operations.


def _describe_all_but_operations(view: ListingView, limits: Limits) -> dict[str, Any]:
    """First what every document has, with one option to pay for each rail; then the description, the tags and further options, while they leave
    `OPERATIONS_BYTES_MIN` to the operations."""
    options = view.options[view.quoted_price.nano]
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
    content["payment"] = _payment(view, limits, _add_options(options, chosen, left))
    return content


def _first_of_each_rail(options: Sequence[Mapping[str, Any]]) -> list[int]:
    """Their positions."""
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
    ChargeOn.SUCCESS: "answers 2xx and 304",
    ChargeOn.ANSWERED: "answers 2xx to 4xx, except 401, 402, 403, 407, 408, 425 and 429",
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
        "interfaces": _interfaces(view),
        "operations": [],
        "payment": _payment(view, limits, chosen),
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
        "links": {name: _path_of(view, name) for name in view.links if name not in _LINKS_LEFT_OUT},
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


def _payment(view: ListingView, limits: Limits, chosen: Sequence[int]) -> dict[str, Any]:
    """`chosen`: the positions of the options that the document has."""
    price = view.quoted_price
    options = view.options[price.nano]
    payment: dict[str, Any] = {"required": not _is_all_free(view), **view.price_json(price)}
    if not options:
        return payment
    payment["steps"] = list(_STEPS)
    payment["options"] = [options[position] for position in chosen]
    if len(chosen) < len(options):
        payment["optionsLeftOut"] = len(options) - len(chosen)
        payment["optionsAt"] = _path_of(view, "discovery")
    if any(one.price.nano != price.nano for one in view.operations):
        payment["otherPrices"] = "an option's amount = price x 10^decimals"
    rails = frozenset(option["rail"] for option in options)
    payment["rails"] = list_rails(view, rails)
    payment["cap"] = "Tollway-Max-Price: <decimal> refuses a dearer call, unpaid"
    return payment


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
