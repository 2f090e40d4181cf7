"""The shapes of the gateway's own bodies, as JSON Schema for its OpenAPI document. Pure, and data only: it decides nothing,
and no shape of a provider's API stands here.

Answers may gain members in a later release, so their schemas are open; what is sent is closed, as it is read.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

Schema = Mapping[str, Any]


def ref(name: str) -> dict[str, Any]:
    """A schema of this table by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": [kind, "null"], **more}


def listed(items: Schema, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def answered(members: Mapping[str, Schema], *, optional: Sequence[str] = ()) -> dict[str, Any]:
    """An object of ours: everything is there but what is named in `optional`."""
    required = [name for name in members if name not in optional]
    return {"type": "object", "required": required, "properties": dict(members)}


def asked(members: Mapping[str, Schema], *, required: Sequence[str] = ()) -> dict[str, Any]:
    """An object that is sent to us: a member that nobody knows is refused."""
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "additionalProperties": False, **needed, "properties": dict(members)}


TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
YES_NO: Schema = {"type": "boolean"}
URL: Schema = {"type": "string", "format": "uri"}
ANY_OBJECT: Schema = {"type": "object"}
ADDRESS: Schema = {"type": "string", "pattern": "^0x[0-9a-fA-F]{40}$"}
HASH: Schema = {"type": "string", "pattern": "^0x[0-9a-fA-F]{64}$"}
HEX: Schema = {"type": "string", "pattern": "^0x([0-9a-fA-F]{2})*$"}
AMOUNT: Schema = {"type": "string", "pattern": r"^(0|[1-9][0-9]*)(\.[0-9]+)?$"}
UNITS: Schema = {"type": "string", "pattern": "^(0|[1-9][0-9]*)$"}
NETWORK: Schema = {"type": "string", "pattern": "^eip155:(0|[1-9][0-9]{0,14})$"}
TIME: Schema = {
    "type": "string",
    "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$",
}

PAYMENT_STATES = ("none", "charged", "released", "held", "reorged")
CALL_STATUSES = ("pending", "succeeded", "failed", "unknown")
RAILS = ("none", "tx", "credit", "x402", "mpp")

_SEVEN: Mapping[str, Schema] = {
    "id": TEXT,
    "name": TEXT,
    "provider": ref("Address"),
    "pricePerRequest": ref("Amount"),
    "currency": TEXT,
    "endpoint": URL,
    "description": TEXT,
}

_OPERATION: Mapping[str, Schema] = {
    "method": TEXT,
    "path": TEXT,
    "pricePerRequest": ref("Amount"),
}

_DRAFT: Mapping[str, Schema] = {
    "name": {"type": "string", "minLength": 1, "maxLength": 120},
    "pricePerRequest": ref("Amount"),
    "currency": {"type": "string", "description": "A symbol that this gateway accepts, such as USDC."},
    "endpoint": {"type": "string", "maxLength": 2048, "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://"},
    "description": {"type": "string", "maxLength": 4000},
    "payTo": ref("Address"),
    "networks": listed(ref("Network"), minItems=1, maxItems=32),
    "methods": listed({"type": "string", "pattern": "^[A-Z][A-Z0-9-]{0,31}$"}, maxItems=16),
    "tags": listed({"type": "string", "maxLength": 32}, maxItems=5),
    "openapi": nullable("object"),
    "openapiUrl": nullable("string", maxLength=2048),
    "operations": listed(ref("PricedOperation"), maxItems=200),
    "otherPaths": {"enum": ["serve", "refuse"], "default": "serve"},
    "chargeOn": {"enum": ["success", "answered"], "default": "success"},
    "timeoutSeconds": {"type": "integer", "minimum": 1, "maximum": 300, "default": 30},
    "forwardHeaders": listed({"type": "string", "maxLength": 128}, maxItems=20),
    "upstreamAuth": {"oneOf": [ref("UpstreamSecret"), {"type": "null"}]},
    "signature": {"enum": ["any", "bound"], "default": "any"},
    "rateLimit": {"oneOf": [ref("RateLimit"), {"type": "null"}]},
    "status": {"enum": ["active", "paused"], "default": "active"},
}

_OWNERSHIP: Mapping[str, Schema] = {
    "apiId": TEXT,
    "origin": TEXT,
    "state": {"enum": ["unverified", "verified"]},
    "method": {"enum": ["wellKnown", "dns", "signature", None]},
    "verifiedAt": {"oneOf": [ref("Time"), {"type": "null"}]},
    "checkedAt": {"oneOf": [ref("Time"), {"type": "null"}]},
    "failures": {**WHOLE, "description": "Checks in a row that found no proof."},
    "challenge": answered(
        {
            "wellKnown": answered({"url": TEXT, "content": TEXT}),
            "dns": {"oneOf": [answered({"name": TEXT, "value": TEXT}), {"type": "null"}]},
            "signature": answered({"url": TEXT, "pointer": TEXT, "message": TEXT, "signer": ref("Address")}),
        }
    ),
}
_SIGHT: Schema = {"enum": ["proved", "not_found", "unreachable"]}

_DETAILS: Mapping[str, Schema] = {
    **_SEVEN,
    "id": nullable("string"),
    "payTo": ref("Address"),
    "networks": listed(ref("Network")),
    "methods": listed(TEXT),
    "tags": listed(TEXT),
    "openapi": nullable("object"),
    "openapiUrl": nullable("string"),
    "operations": listed(answered(_OPERATION)),
    "otherPaths": {"enum": ["serve", "refuse"]},
    "chargeOn": {"enum": ["success", "answered"]},
    "timeoutSeconds": WHOLE,
    "forwardHeaders": listed(TEXT),
    "upstreamAuth": {"oneOf": [answered({"in": TEXT, "name": TEXT, "set": YES_NO}), {"type": "null"}]},
    "signature": {"enum": ["any", "bound"]},
    "rateLimit": {"oneOf": [ref("RateLimit"), {"type": "null"}]},
    "status": {"enum": ["active", "paused"]},
    "pricing": ref("Pricing"),
    "quality": ref("Quality"),
    "verified": YES_NO,
    "links": {"type": "object", "additionalProperties": URL},
    "createdAt": ref("Time"),
    "updatedAt": ref("Time"),
    "revision": WHOLE,
}

_OPTION: Mapping[str, Schema] = {
    "rail": {"enum": ["tx", "x402"]},
    "network": ref("Network"),
    "chainId": WHOLE,
    "asset": {"type": "string", "description": "CAIP-19."},
    "token": ref("Address"),
    "symbol": TEXT,
    "decimals": WHOLE,
    "amount": ref("Units"),
    "payTo": ref("Address"),
    "confirmations": WHOLE,
    "headers": listed(TEXT),
    "version": WHOLE,
    "header": TEXT,
    "maxTimeoutSeconds": WHOLE,
    "extra": ANY_OBJECT,
}

_CALL: Mapping[str, Schema] = {
    "id": TEXT,
    "apiId": TEXT,
    "apiName": TEXT,
    "provider": ref("Address"),
    "payer": {"oneOf": [ref("Address"), {"type": "null"}]},
    "method": TEXT,
    "path": TEXT,
    "status": {"enum": list(CALL_STATUSES)},
    "httpStatus": nullable("integer"),
    "upstreamStatus": nullable("integer"),
    "price": TEXT,
    "currency": TEXT,
    "payment": answered(
        {
            "state": {"enum": list(PAYMENT_STATES)},
            "rail": {"enum": list(RAILS)},
            "network": nullable("string"),
            "asset": nullable("string"),
            "transaction": nullable("string"),
            "amount": nullable("string"),
            "payTo": nullable("string"),
        }
    ),
    "requestBytes": nullable("integer"),
    "responseBytes": nullable("integer"),
    "latencyMs": nullable("integer"),
    "upstreamLatencyMs": nullable("integer"),
    "idempotencyKey": nullable("string"),
    "requestId": nullable("string"),
    "error": nullable("string"),
    "createdAt": ref("Time"),
    "completedAt": {"oneOf": [ref("Time"), {"type": "null"}]},
}

_PAYMENT: Mapping[str, Schema] = {
    "transaction": ref("Hash"),
    "network": nullable("string"),
    "asset": nullable("string"),
    "payer": ref("Address"),
    "payee": nullable("string"),
    "amount": nullable("string"),
    "credit": nullable("string"),
    "state": {"enum": ["unseen", "pending", "credited", "spent", "reorged", "refused"]},
    "reason": nullable("string"),
    "calls": listed(TEXT),
}

SCHEMAS: Mapping[str, Schema] = MappingProxyType(
    {
        "Address": ADDRESS,
        "Amount": {**AMOUNT, "description": "A decimal string, in the currency named beside it."},
        "Units": {**UNITS, "description": "Base units of the asset, a decimal integer string."},
        "Network": {**NETWORK, "description": "CAIP-2."},
        "Hash": HASH,
        "Time": {**TIME, "description": "RFC 3339, UTC, three fractional digits."},
        "Ownership": answered(_OWNERSHIP),
        "CheckedOwnership": {
            "allOf": [
                ref("Ownership"),
                answered(
                    {
                        "checks": answered(
                            {"wellKnown": _SIGHT, "dns": _SIGHT, "signature": _SIGHT},
                            optional=("wellKnown", "dns", "signature"),
                        )
                    }
                ),
            ]
        },
        "Problem": answered(
            {
                "type": URL,
                "title": TEXT,
                "status": WHOLE,
                "detail": TEXT,
                "instance": {"type": "string", "format": "uri-reference"},
                "code": TEXT,
                "requestId": TEXT,
                "retryable": {
                    **YES_NO,
                    "description": "The very same request, sent again later, can succeed.",
                },
                "paymentState": {"enum": ["none", "charged", "released", "held"]},
                "errors": listed(
                    answered(
                        {"pointer": TEXT, "parameter": TEXT, "code": TEXT, "detail": TEXT},
                        optional=("pointer", "parameter"),
                    )
                ),
                "retryAfterSeconds": WHOLE,
                "callId": TEXT,
                "reason": TEXT,
            },
            optional=("errors", "retryAfterSeconds", "callId", "reason"),
        ),
        "ListingDraft": asked(_DRAFT, required=("name", "pricePerRequest", "currency", "endpoint")),
        "PricedOperation": asked(_OPERATION, required=tuple(_OPERATION)),
        "UpstreamSecret": asked(
            {"in": {"enum": ["header", "query"]}, "name": TEXT, "value": {**TEXT, "writeOnly": True}},
            required=("in", "name", "value"),
        ),
        "RateLimit": asked(
            {
                "calls": {"type": "integer", "minimum": 1, "maximum": 1_000_000},
                "perSeconds": {"type": "integer", "minimum": 1, "maximum": 86_400},
            },
            required=("calls", "perSeconds"),
        ),
        "ListingItem": answered({**_SEVEN, "match": listed(TEXT)}, optional=("match",)),
        "ListingPage": answered(
            {
                "apis": listed(ref("ListingItem")),
                "total": WHOLE,
                "page": WHOLE,
                "limit": WHOLE,
                "totalIsLowerBound": YES_NO,
            },
            optional=("totalIsLowerBound",),
        ),
        "Listing": answered(_DETAILS),
        "WrittenListing": {
            "allOf": [
                ref("Listing"),
                answered(
                    {
                        "warnings": listed(answered({"code": TEXT, "detail": TEXT, "pointer": TEXT})),
                        "dryRun": YES_NO,
                    },
                    optional=("dryRun",),
                ),
            ]
        },
        "Pricing": answered(
            {
                "mode": {"const": "fixed"},
                "amount": ref("Amount"),
                "currency": TEXT,
                "options": listed(ref("PaymentOption")),
            }
        ),
        "PaymentOption": {
            **answered(
                _OPTION,
                optional=(
                    "token",
                    "confirmations",
                    "headers",
                    "version",
                    "header",
                    "maxTimeoutSeconds",
                    "extra",
                ),
            ),
            "description": "One way to pay, the same in details, in a 402 and in agent documents.",
        },
        "Quality": {
            **answered(
                {
                    "calls30d": nullable("integer"),
                    "successRate30d": nullable("number"),
                    "p50Ms": nullable("integer"),
                    "p95Ms": nullable("integer"),
                }
            ),
            "description": "Measured from the paid calls of 30 days, self-paid ones left out; null until 20 calls.",
        },
        "Terms": answered(
            {
                "amount": ref("Amount"),
                "currency": TEXT,
                "expiresAt": ref("Time"),
                "options": listed(ref("PaymentOption")),
            }
        ),
        "Call": answered(_CALL),
        "CallPage": answered(
            {
                "calls": listed(ref("Call")),
                "total": WHOLE,
                "limit": WHOLE,
                "offset": WHOLE,
                "asOf": ref("Time"),
                "totalIsLowerBound": YES_NO,
            },
            optional=("totalIsLowerBound",),
        ),
        "Payment": answered({**_PAYMENT, "others": listed(ANY_OBJECT)}, optional=("others",)),
        "PaymentPage": answered({"payments": listed(ref("Payment")), "limit": WHOLE, "offset": WHOLE}),
        "Nonce": answered(
            {
                "nonce": TEXT,
                "domain": TEXT,
                "uri": URL,
                "issuedAt": ref("Time"),
                "expirationTime": ref("Time"),
                "message": nullable("string"),
            }
        ),
        "Session": answered(
            {
                "accessToken": TEXT,
                "tokenType": {"const": "Bearer"},
                "expiresIn": WHOLE,
                "address": ref("Address"),
            }
        ),
        "Resources": answered(
            {"x402Version": {"const": 2}, "items": listed(ANY_OBJECT), "pagination": ANY_OBJECT}
        ),
        "ResourceSearch": answered(
            {
                "x402Version": {"const": 2},
                "resources": listed(ANY_OBJECT),
                "partialResults": YES_NO,
                "pagination": ANY_OBJECT,
            }
        ),
        "Ready": answered(
            {"status": {"const": "ok"}, "checks": {"type": "object", "additionalProperties": YES_NO}}
        ),
    }
)
