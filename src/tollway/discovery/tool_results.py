"""The results of MCP tools: the HTTP response of a call, the terms of an unpaid call, or a problem. Pure.

Shapes: the MCP transports of x402 (v2) and MPP for terms and receipts; a problem (RFC 9457) for every other refusal; one envelope for the response of an API,
which labels the provider's content as untrusted.
"""

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_core import from_json

from tollway.body_text import Undecoded, decode_body, read_text
from tollway.discovery.forms import is_json
from tollway.discovery.requests import ToolRequest
from tollway.discovery.safe_text import clean_line
from tollway.discovery.tools import TOOL_RESPONSE_BYTES_MAX, UNTRUSTED
from tollway.ids import keccak256

PAYMENT = "x402/payment"
PAYMENT_RESPONSE = "x402/payment-response"
PAYMENT_ERROR = "x402/error"
"""Members of `_meta` in the MCP transport of x402. `PAYMENT_ERROR`: the terms, where the client of `agents` (Cloudflare) reads them."""

MPP_CREDENTIAL = "org.paymentauth/credential"
MPP_REQUIRED = "org.paymentauth/payment-required"
MPP_RECEIPT = "org.paymentauth/receipt"
"""Members of `_meta` in the MCP transport of MPP. `MPP_REQUIRED`: the data of its error -32042, in a result."""

USED = "tollway/price"
"""Member of `_meta` of a metered call: `callId`, `price` (null until the end of the response has decided it), `priceMax`, `currency` and `quantities`, each with `unit` and
`quantity` (null with the price)."""

TERMS_TEXT_BYTES_MAX = 1_400
"""Of the text of an unpaid result. A model reads it; the whole terms are in the structured content."""

_PROBLEM = "application/problem+json"
_UNPAID_STATUS, _FAULT_STATUS_MIN = 402, 400
_CHALLENGE = re.compile(r'(?:^|, )Payment ((?:[a-z]+="[^"]*", )*[a-z]+="[^"]*")')
_PARAMETER = re.compile(r'([a-z]+)="([^"]*)"')
_HTTP_ONLY = ("bazaar", "offer-receipt")
"""Extensions of a 402 about the HTTP resource: its call by URL, and offers signed for that URL."""

_PAID_CALL = (
    "PaidCall(string gateway,string apiId,string method,string target,bytes32 bodyHash,bytes32 transaction,"
    "uint256 validUntil,bytes32 nonce)"
)
_SHOWN_HEADERS = (
    "location",
    "etag",
    "last-modified",
    "retry-after",
    "link",
    "content-language",
    "content-encoding",
)
_SHOWN_LENGTH_MAX, _DESCRIPTION_MAX = 1024, 300


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """The names of headers are in lower case. `is_whole` False: the response is larger than a tool returns, or incomplete."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_whole: bool = True
    is_too_large: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The result of a tool. `content` is the structured content. `text` None: the text of the result is the JSON of `content`. `has_payment`: the call
    presented a payment, in any place."""

    content: Mapping[str, Any]
    is_error: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)
    text: str | None = None
    has_payment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of an operation: its qualified `name`, its request and the URL of its listing. `origin`: of the gateway, as in signatures."""

    name: str
    listing_id: str
    request: ToolRequest
    gateway_url: str
    origin: str

    @property
    def url(self) -> str:
        return self.gateway_url + self.request.target


def response_result(call: ToolCall, response: HttpResponse) -> ToolResult:
    """The result of a call: terms, a problem of the gateway, or the response of the API."""
    response = _without_coding(response)
    meta = _list_receipts(response.headers)
    if _is_of_gateway(response):
        problem = _read_object(response.body)
        if response.status == _UNPAID_STATUS:
            return _unpaid_result(call, problem, response, meta)
        return ToolResult(content=problem, is_error=True, meta=meta)
    return ToolResult(
        content=_envelope(call, response),
        is_error=response.status >= _FAULT_STATUS_MIN or not response.is_whole,
        meta=meta,
    )


def _list_receipts(headers: Mapping[str, str]) -> dict[str, Any]:
    """The receipt of the rail that paid, as the members of `_meta` that its clients read."""
    receipts = {
        PAYMENT_RESPONSE: _decode(headers.get("payment-response") or headers.get("x-payment-response")),
        MPP_RECEIPT: _decode(headers.get("payment-receipt")),
    }
    return {name: receipt for name, receipt in receipts.items() if receipt is not None}


def describe_signing(call: ToolCall) -> dict[str, Any]:
    """The steps of a client without x402, and the message that it signs after its transaction, with the values known before."""
    return {
        "steps": [
            "Transfer the `amount` of one of payment.options with rail tx to its payTo, from your wallet.",
            "Sign eip712 with that wallet: chainId of the option, transaction the hash, validUntil at most 300 s ahead, nonce "
            "32 random bytes.",
            "Call this tool again with the same arguments and paymentTx, paymentSignature and paymentSignatureParams "
            "(v=1;validUntil=...;nonce=0x...). One transaction can pay for many calls: sign each anew.",
        ],
        "eip712": {
            "domain": {"name": "Tollway", "version": "1", "chainId": "{chainId}"},
            "type": _PAID_CALL,
            "message": {
                "gateway": call.origin,
                "apiId": call.listing_id,
                "method": call.request.method,
                "target": call.request.target,
                "bodyHash": "0x" + keccak256(call.request.body).hex(),
                "transaction": "{transaction}",
                "validUntil": "{validUntil}",
                "nonce": "{nonce}",
            },
        },
    }


def _is_of_gateway(response: HttpResponse) -> bool:
    """True for a response of the gateway itself: `Proxy-Status` never comes from an upstream."""
    is_refusal = "; error=" in response.headers.get("proxy-status", "")
    return is_refusal and response.headers.get("content-type", "").startswith(_PROBLEM)


def _unpaid_result(
    call: ToolCall, problem: Mapping[str, Any], response: HttpResponse, receipts: Mapping[str, Any]
) -> ToolResult:
    """The terms in every place where a client looks: structured content and text (x402), and `_meta` (Cloudflare, MPP)."""
    required = _payment_required(call, problem, response)
    detail = _explain(problem)
    content = {
        **required,
        "code": problem.get("code"),
        "detail": detail,
        "paymentState": problem.get("paymentState", "none"),
        "payment": problem.get("payment"),
        "withoutX402": describe_signing(call),
        "url": call.url,
        "notice": UNTRUSTED,
    }
    mpp = _mpp_required(problem, response)
    meta = {
        **receipts,
        **({PAYMENT_ERROR: required} if required["accepts"] else {}),
        **({} if mpp is None else {MPP_REQUIRED: mpp}),
    }
    return ToolResult(content=content, is_error=True, meta=meta, text=_write_terms(required, detail))


def _payment_required(call: ToolCall, problem: Mapping[str, Any], response: HttpResponse) -> dict[str, Any]:
    required = _decode(response.headers.get("payment-required")) or {"x402Version": 2, "accepts": []}
    resource = required.get("resource")
    described = dict(resource) if isinstance(resource, Mapping) else {}
    if "description" in described:
        described["description"] = clean_line(described["description"], _DESCRIPTION_MAX)
    extensions = required.get("extensions")
    kept = {
        name: value
        for name, value in (extensions.items() if isinstance(extensions, Mapping) else ())
        if name not in _HTTP_ONLY
    }
    return {
        "x402Version": 2,
        "error": required.get("error") or problem.get("reason") or problem.get("code", "payment_required"),
        "resource": {**described, "url": f"mcp://tool/{call.name}"},
        "accepts": required.get("accepts", []),
        **({"extensions": kept} if kept else {}),
    }


def _write_terms(required: Mapping[str, Any], detail: Any) -> str:
    """The text of an unpaid result: a shorter `PaymentRequired`, from which a client that reads only the text can pay. It has as many of the options as fit."""
    accepts = required["accepts"]
    short = {
        "detail": str(detail)[:_DESCRIPTION_MAX],
        "x402Version": 2,
        "error": required["error"],
        "resource": {"url": required["resource"]["url"]},
    }
    for count in range(len(accepts), -1, -1):
        text = json.dumps({**short, "accepts": accepts[:count]}, ensure_ascii=False, separators=(",", ":"))
        if len(text.encode()) <= TERMS_TEXT_BYTES_MAX:
            break
    return text


def _mpp_required(problem: Mapping[str, Any], response: HttpResponse) -> dict[str, Any] | None:
    """The data of MPP's error -32042, with `request` of a challenge as an object; None where MPP is off."""
    value = response.headers.get("www-authenticate", "")
    challenges = [dict(_PARAMETER.findall(found[1])) for found in _CHALLENGE.finditer(value)]
    if not challenges:
        return None
    is_refused = problem.get("code") != "payment_required"
    failure = {name: problem[name] for name in ("reason", "detail") if is_refused and name in problem}
    return {
        "httpStatus": _UNPAID_STATUS,
        "challenges": [{**one, "request": _decode(one.get("request")) or {}} for one in challenges],
        **({"failure": failure} if failure else {}),
    }


def _explain(problem: Mapping[str, Any]) -> Any:
    """The detail: for a faulty payment that of the HTTP response; without a payment, how to pay in MCP."""
    payment = problem.get("payment")
    if problem.get("code") != "payment_required" or not isinstance(payment, Mapping):
        return problem.get("detail")
    return (
        f"This call costs {'up to ' if payment.get('mode') == 'metered' else ''}{payment.get('amount')} {payment.get('currency')}. With x402: call again with the payment in "
        f'_meta["{PAYMENT}"]. Without: pay one of payment.options, then follow withoutX402; both are in structuredContent.'
    )


def _envelope(call: ToolCall, response: HttpResponse) -> dict[str, Any]:
    headers = response.headers
    returned = {name: headers[name][:_SHOWN_LENGTH_MAX] for name in _SHOWN_HEADERS if name in headers}
    envelope: dict[str, Any] = {
        "status": response.status,
        "contentType": headers.get("content-type"),
        **_body(response),
        **({"headers": returned} if returned else {}),
        "call": {
            name: headers[header]
            for name, header in (
                ("id", "tollway-call-id"),
                ("paymentState", "tollway-payment-state"),
                ("price", "tollway-price"),
                ("priceMax", "tollway-price-max"),
                ("creditRemaining", "tollway-credit-remaining"),
                ("isReplayed", "idempotency-replayed"),
                ("requestId", "x-request-id"),
            )
            if header in headers
        },
        "notice": UNTRUSTED,
    }
    if response.is_too_large:
        envelope["detail"] = f"The response is larger than a tool returns. Call it over HTTP: {call.url}"
    elif not response.is_whole:
        envelope["detail"] = "The response ended before it was complete."
    return envelope


def _without_coding(response: HttpResponse) -> HttpResponse:
    """The response without the content coding that an upstream adds unasked. One that becomes larger than a tool returns is too large."""
    coding = response.headers.get("content-encoding", "")
    if not coding or not response.body or not response.is_whole:
        return response
    decoded = decode_body(response.body, coding, bytes_max=TOOL_RESPONSE_BYTES_MAX)
    if decoded is Undecoded.TOO_LARGE:
        return replace(response, body=b"", is_whole=False, is_too_large=True)
    if isinstance(decoded, Undecoded):
        return response
    headers = {name: value for name, value in response.headers.items() if name != "content-encoding"}
    return replace(response, headers=headers, body=decoded)


def _body(response: HttpResponse) -> dict[str, Any]:
    """`bodyFormat` is the form of `body`: a JSON value, text, or base64 of the bytes."""
    if response.is_too_large or not response.body:
        return {"bodyFormat": "none"}
    if "content-encoding" not in response.headers:
        content_type = response.headers.get("content-type", "")
        text = read_text(response.body, content_type)
        if is_json(content_type):
            is_valid, parsed = _read_json(response.body if text is None else text.encode())
            if is_valid:
                return {"bodyFormat": "json", "body": parsed}
        if text is not None:
            return {"bodyFormat": "text", "body": text}
    return {"bodyFormat": "base64", "body": base64.b64encode(response.body).decode()}


def _read_json(raw: bytes) -> tuple[bool, Any]:
    try:
        parsed = from_json(raw, allow_inf_nan=False)  # refuses deep nesting, which would end the process
        json.dumps(parsed, ensure_ascii=False).encode()  # a lone surrogate cannot be encoded
    except (ValueError, RecursionError):
        return False, None
    return True, parsed


def _read_object(raw: bytes) -> dict[str, Any]:
    _, parsed = _read_json(raw)
    return parsed if isinstance(parsed, dict) else {}


def _decode(value: str | None) -> dict[str, Any] | None:
    """Decodes base64 of a JSON object, in the alphabet of x402 (standard) or MPP (URL-safe, without padding)."""
    if not value:
        return None
    standard = value.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return _read_object(base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)) or None
    except binascii.Error:
        return None


def problem_result(rendered: bytes) -> ToolResult:
    return ToolResult(content=_read_object(rendered), is_error=True)


def list_result(items: Sequence[Mapping[str, Any]], name: str, **more: Any) -> ToolResult:
    """A list with provider text, labelled as untrusted."""
    return ToolResult(content={name: list(items), **more, "notice": UNTRUSTED})
