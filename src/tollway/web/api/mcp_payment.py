"""The payment of a tool call: from every place where a client puts it, to headers of the internal call.

A client puts its payment into `_meta` (x402 or MPP), into a header of the MCP request, into `parameters.headers` of `proxy_tool_call`, or into control
arguments. This module changes the form of a payment and decides nothing: the paid path reads the headers. The same payment in two places is one header; two
different payments are two headers, which the paid path refuses as it refuses them over HTTP.
Sources: the MCP transport of x402 v2; draft-payment-transport-mcp-00.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tollway.discovery.tool_results import MPP_CREDENTIAL, PAYMENT
from tollway.errors import Refusal
from tollway.payments.mpp import CREDENTIAL_HEADER
from tollway.payments.wire import decode_object, encode_object_urlsafe, encode_urlsafe
from tollway.payments.x402 import PAYMENT_HEADER, PAYMENT_HEADER_V1

Header = tuple[str, str]

_X402, _X402_V1, _MPP = PAYMENT_HEADER.decode(), PAYMENT_HEADER_V1.decode(), CREDENTIAL_HEADER.decode()
_SCHEME = re.compile(r"[ \t]*payment(?:[ \t]+|$)", re.IGNORECASE)


def collect_payments(meta: Mapping[str, Any], *header_sets: Iterable[Header]) -> list[Header]:
    """The headers of all payments of a tool call, names in lower case, each payment once. `meta`: the unchecked `_meta` of the call. `header_sets`: headers
    of which those that carry a payment count."""
    found: list[Header] = []
    if meta.get(PAYMENT) is not None:
        found.append(_to_x402_header(meta[PAYMENT]))
    if meta.get(MPP_CREDENTIAL) is not None:
        found.append((_MPP, _to_credential(meta[MPP_CREDENTIAL])))
    found += [
        (name.lower(), value)
        for headers in header_sets
        for name, value in headers
        if is_payment_header(name, value)
    ]
    return list({(name, _content_of(value)): (name, value) for name, value in found}.values())


def is_payment_header(name: str, value: object) -> bool:
    """Whether a header carries a payment: `PAYMENT-SIGNATURE`, `X-PAYMENT`, or `Authorization` of the scheme Payment."""
    if not isinstance(value, str):
        return False
    return name.lower() in (_X402, _X402_V1) or (name.lower() == _MPP and bool(_SCHEME.match(value)))


def _to_x402_header(payment: Any) -> Header:
    """The payment of `_meta`, which is an object, its JSON as text, or base64 of that JSON. Another value becomes a header that the paid path refuses."""
    text = payment if isinstance(payment, str) else json.dumps(payment, separators=(",", ":"))
    is_encoded = isinstance(payment, str) and not text.lstrip().startswith("{")
    value = text if is_encoded else encode_urlsafe(text.encode("utf-8", "replace"))
    is_v1 = (_decode(value) or {}).get("x402Version") == 1
    return _X402_V1 if is_v1 else _X402, value


def _to_credential(credential: Any) -> str:
    """The value of `Authorization` for the credential of `_meta`. `request` and `opaque` of a challenge are objects there and canonical base64url in HTTP; the
    challenge's id covers the latter."""
    if isinstance(credential, str):
        return credential if _SCHEME.match(credential) else f"Payment {credential}"
    if isinstance(credential, Mapping) and isinstance(credential.get("challenge"), Mapping):
        challenge = {
            name: encode_object_urlsafe(value)
            if name in ("request", "opaque") and isinstance(value, Mapping)
            else value
            for name, value in credential["challenge"].items()
        }
        credential = {**credential, "challenge": challenge}
    return "Payment " + encode_urlsafe(json.dumps(credential, separators=(",", ":")).encode())


def _content_of(value: str) -> str:
    """The canonical content of a payment header, which is the same for every spelling of one payment; the value itself where it is unreadable."""
    scheme = _SCHEME.match(value)
    content = _decode(value[scheme.end() :] if scheme else value)
    return value if content is None else encode_object_urlsafe(content)


def _decode(value: str) -> dict[str, Any] | None:
    raw = value.encode("utf-8", "replace")
    try:
        return decode_object(raw, bytes_max=len(raw))
    except Refusal:
        return None
