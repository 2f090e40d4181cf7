"""The parts that the gateway's own OpenAPI contract is written with: schemas of its bodies, operations, parameters, and responses by error code. Pure.

Responses may gain members in a later release, so their schemas are open; request schemas are closed. A problem is declared only through its code; the status of
each code is a parameter (`SiteProblemKind`), because the one table of statuses is in `web/problems.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tollway.errors import Code

Schema = Mapping[str, Any]


def schema_ref(name: str) -> dict[str, Any]:
    """A schema of this table by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": [kind, "null"], **more}


def array_of(items: Schema, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


def response_object(members: Mapping[str, Schema], *, optional: Sequence[str] = ()) -> dict[str, Any]:
    """An object of ours: everything is there but what is named in `optional`."""
    required = [name for name in members if name not in optional]
    return {"type": "object", "required": required, "properties": dict(members)}


def request_object(members: Mapping[str, Schema], *, required: Sequence[str] = ()) -> dict[str, Any]:
    """An object that is sent to us: a member that nobody knows is refused."""
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "additionalProperties": False, **needed, "properties": dict(members)}


TEXT: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
BOOLEAN: Schema = {"type": "boolean"}
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

_SUMMARY: Mapping[str, Schema] = {
    "id": TEXT,
    "name": TEXT,
    "provider": schema_ref("Address"),
    "pricePerRequest": schema_ref("Amount"),
    "currency": TEXT,
    "endpoint": URL,
    "description": TEXT,
}

_OPERATION: Mapping[str, Schema] = {
    "method": TEXT,
    "path": TEXT,
    "pricePerRequest": schema_ref("Amount"),
}

_DRAFT: Mapping[str, Schema] = {
    "name": {"type": "string", "minLength": 1, "maxLength": 120},
    "pricePerRequest": schema_ref("Amount"),
    "currency": {"type": "string", "description": "A symbol that this gateway accepts, such as USDC."},
    "endpoint": {"type": "string", "maxLength": 2048, "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://"},
    "description": {"type": "string", "maxLength": 4000},
    "payTo": schema_ref("Address"),
    "networks": array_of(schema_ref("Network"), minItems=1, maxItems=32),
    "methods": array_of({"type": "string", "pattern": "^[A-Z][A-Z0-9-]{0,31}$"}, maxItems=16),
    "tags": array_of({"type": "string", "maxLength": 32}, maxItems=5),
    "openapi": nullable("object"),
    "openapiUrl": nullable("string", maxLength=2048),
    "operations": array_of(schema_ref("PricedOperation"), maxItems=200),
    "otherPaths": {"enum": ["serve", "refuse"], "default": "serve"},
    "chargeOn": {"enum": ["success", "answered"], "default": "success"},
    "timeoutSeconds": {"type": "integer", "minimum": 1, "maximum": 300, "default": 30},
    "forwardHeaders": array_of({"type": "string", "maxLength": 128}, maxItems=20),
    "upstreamAuth": {"oneOf": [schema_ref("UpstreamSecret"), {"type": "null"}]},
    "signature": {"enum": ["any", "bound"], "default": "any"},
    "rateLimit": {"oneOf": [schema_ref("RateLimit"), {"type": "null"}]},
    "status": {"enum": ["active", "paused"], "default": "active"},
    "forwardSignature": {"enum": ["ed25519", "none"], "default": "ed25519"},
}

_OWNERSHIP: Mapping[str, Schema] = {
    "apiId": TEXT,
    "origin": TEXT,
    "state": {"enum": ["unverified", "verified"]},
    "method": {"enum": ["wellKnown", "dns", "signature", None]},
    "verifiedAt": {"oneOf": [schema_ref("Time"), {"type": "null"}]},
    "checkedAt": {"oneOf": [schema_ref("Time"), {"type": "null"}]},
    "failures": {**INTEGER, "description": "Checks in a row that found no proof."},
    "challenge": response_object(
        {
            "wellKnown": response_object({"url": TEXT, "content": TEXT}),
            "dns": {"oneOf": [response_object({"name": TEXT, "value": TEXT}), {"type": "null"}]},
            "signature": response_object(
                {"url": TEXT, "pointer": TEXT, "message": TEXT, "signer": schema_ref("Address")}
            ),
        }
    ),
}
_CHECK_RESULT: Schema = {"enum": ["proved", "not_found", "unreachable"]}

_DETAILS: Mapping[str, Schema] = {
    **_SUMMARY,
    "id": nullable("string"),
    "payTo": schema_ref("Address"),
    "networks": array_of(schema_ref("Network")),
    "methods": array_of(TEXT),
    "tags": array_of(TEXT),
    "openapi": nullable("object"),
    "openapiUrl": nullable("string"),
    "operations": array_of(response_object(_OPERATION)),
    "otherPaths": {"enum": ["serve", "refuse"]},
    "chargeOn": {"enum": ["success", "answered"]},
    "timeoutSeconds": INTEGER,
    "forwardHeaders": array_of(TEXT),
    "upstreamAuth": {
        "oneOf": [response_object({"in": TEXT, "name": TEXT, "set": BOOLEAN}), {"type": "null"}]
    },
    "signature": {"enum": ["any", "bound"]},
    "rateLimit": {"oneOf": [schema_ref("RateLimit"), {"type": "null"}]},
    "status": {"enum": ["active", "paused"]},
    "forwardSignature": {"enum": ["ed25519", "none"]},
    "pricing": schema_ref("Pricing"),
    "quality": schema_ref("Quality"),
    "verified": BOOLEAN,
    "links": {"type": "object", "additionalProperties": URL},
    "createdAt": schema_ref("Time"),
    "updatedAt": schema_ref("Time"),
    "revision": INTEGER,
}

_OPTION: Mapping[str, Schema] = {
    "rail": {"enum": ["tx", "x402"]},
    "network": schema_ref("Network"),
    "chainId": INTEGER,
    "asset": {"type": "string", "description": "CAIP-19."},
    "token": schema_ref("Address"),
    "symbol": TEXT,
    "decimals": INTEGER,
    "amount": schema_ref("Units"),
    "payTo": schema_ref("Address"),
    "confirmations": INTEGER,
    "headers": array_of(TEXT),
    "version": INTEGER,
    "header": TEXT,
    "maxTimeoutSeconds": INTEGER,
    "extra": ANY_OBJECT,
}

_CALL: Mapping[str, Schema] = {
    "id": TEXT,
    "apiId": TEXT,
    "apiName": TEXT,
    "provider": schema_ref("Address"),
    "payer": {"oneOf": [schema_ref("Address"), {"type": "null"}]},
    "method": TEXT,
    "path": TEXT,
    "status": {"enum": list(CALL_STATUSES)},
    "httpStatus": nullable("integer"),
    "upstreamStatus": nullable("integer"),
    "price": TEXT,
    "currency": TEXT,
    "payment": response_object(
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
    "createdAt": schema_ref("Time"),
    "completedAt": {"oneOf": [schema_ref("Time"), {"type": "null"}]},
}

_PAYMENT: Mapping[str, Schema] = {
    "transaction": schema_ref("Hash"),
    "network": nullable("string"),
    "asset": nullable("string"),
    "payer": schema_ref("Address"),
    "payee": nullable("string"),
    "amount": nullable("string"),
    "credit": nullable("string"),
    "state": {"enum": ["unseen", "pending", "credited", "spent", "reorged", "refused"]},
    "reason": nullable("string"),
    "calls": array_of(TEXT),
}

SCHEMAS: Mapping[str, Schema] = MappingProxyType(
    {
        "Address": ADDRESS,
        "Amount": {**AMOUNT, "description": "A decimal string, in the currency named beside it."},
        "Units": {**UNITS, "description": "Base units of the asset, a decimal integer string."},
        "Network": {**NETWORK, "description": "CAIP-2."},
        "Hash": HASH,
        "Time": {**TIME, "description": "RFC 3339, UTC, three fractional digits."},
        "Ownership": response_object(_OWNERSHIP),
        "CheckedOwnership": {
            "allOf": [
                schema_ref("Ownership"),
                response_object(
                    {
                        "checks": response_object(
                            {"wellKnown": _CHECK_RESULT, "dns": _CHECK_RESULT, "signature": _CHECK_RESULT},
                            optional=("wellKnown", "dns", "signature"),
                        )
                    }
                ),
            ]
        },
        "Problem": response_object(
            {
                "type": URL,
                "title": TEXT,
                "status": INTEGER,
                "detail": TEXT,
                "instance": {"type": "string", "format": "uri-reference"},
                "code": TEXT,
                "requestId": TEXT,
                "retryable": {
                    **BOOLEAN,
                    "description": "The very same request, sent again later, can succeed.",
                },
                "paymentState": {"enum": ["none", "charged", "released", "held"]},
                "errors": array_of(
                    response_object(
                        {"pointer": TEXT, "parameter": TEXT, "code": TEXT, "detail": TEXT},
                        optional=("pointer", "parameter"),
                    )
                ),
                "retryAfterSeconds": INTEGER,
                "callId": TEXT,
                "reason": TEXT,
            },
            optional=("errors", "retryAfterSeconds", "callId", "reason"),
        ),
        "ListingDraft": request_object(_DRAFT, required=("name", "pricePerRequest", "currency", "endpoint")),
        "PricedOperation": request_object(_OPERATION, required=tuple(_OPERATION)),
        "UpstreamSecret": request_object(
            {"in": {"enum": ["header", "query"]}, "name": TEXT, "value": {**TEXT, "writeOnly": True}},
            required=("in", "name", "value"),
        ),
        "RateLimit": request_object(
            {
                "calls": {"type": "integer", "minimum": 1, "maximum": 1_000_000},
                "perSeconds": {"type": "integer", "minimum": 1, "maximum": 86_400},
            },
            required=("calls", "perSeconds"),
        ),
        "ListingItem": response_object({**_SUMMARY, "match": array_of(TEXT)}, optional=("match",)),
        "ListingPage": response_object(
            {
                "apis": array_of(schema_ref("ListingItem")),
                "total": INTEGER,
                "page": INTEGER,
                "limit": INTEGER,
                "totalIsLowerBound": BOOLEAN,
            },
            optional=("totalIsLowerBound",),
        ),
        "Listing": response_object(_DETAILS),
        "WrittenListing": {
            "allOf": [
                schema_ref("Listing"),
                response_object(
                    {
                        "warnings": array_of(
                            response_object({"code": TEXT, "detail": TEXT, "pointer": TEXT})
                        ),
                        "dryRun": BOOLEAN,
                    },
                    optional=("dryRun",),
                ),
            ]
        },
        "Pricing": response_object(
            {
                "mode": {"const": "fixed"},
                "amount": schema_ref("Amount"),
                "currency": TEXT,
                "options": array_of(schema_ref("PaymentOption")),
            }
        ),
        "PaymentOption": {
            **response_object(
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
            **response_object(
                {
                    "calls30d": nullable("integer"),
                    "successRate30d": nullable("number"),
                    "p50Ms": nullable("integer"),
                    "p95Ms": nullable("integer"),
                }
            ),
            "description": "Measured from the paid calls of 30 days, self-paid ones left out; null until 20 calls.",
        },
        "Terms": response_object(
            {
                "amount": schema_ref("Amount"),
                "currency": TEXT,
                "expiresAt": schema_ref("Time"),
                "options": array_of(schema_ref("PaymentOption")),
            }
        ),
        "Call": response_object(_CALL),
        "CallPage": response_object(
            {
                "calls": array_of(schema_ref("Call")),
                "total": INTEGER,
                "limit": INTEGER,
                "offset": INTEGER,
                "asOf": schema_ref("Time"),
                "totalIsLowerBound": BOOLEAN,
            },
            optional=("totalIsLowerBound",),
        ),
        "Payment": response_object({**_PAYMENT, "others": array_of(ANY_OBJECT)}, optional=("others",)),
        "PaymentPage": response_object(
            {"payments": array_of(schema_ref("Payment")), "limit": INTEGER, "offset": INTEGER}
        ),
        "Nonce": response_object(
            {
                "nonce": TEXT,
                "domain": TEXT,
                "uri": URL,
                "issuedAt": schema_ref("Time"),
                "expirationTime": schema_ref("Time"),
                "message": nullable("string"),
            }
        ),
        "Session": response_object(
            {
                "accessToken": TEXT,
                "tokenType": {"const": "Bearer"},
                "expiresIn": INTEGER,
                "address": schema_ref("Address"),
            }
        ),
        "Resources": response_object(
            {"x402Version": {"const": 2}, "items": array_of(ANY_OBJECT), "pagination": ANY_OBJECT}
        ),
        "ResourceSearch": response_object(
            {
                "x402Version": {"const": 2},
                "resources": array_of(ANY_OBJECT),
                "partialResults": BOOLEAN,
                "pagination": ANY_OBJECT,
            }
        ),
        "Ready": response_object(
            {"status": {"const": "ok"}, "checks": {"type": "object", "additionalProperties": BOOLEAN}}
        ),
    }
)


PROBLEM_TYPE = "application/problem+json"
QUOTE_CODES = frozenset(
    {
        Code.PAYMENT_REQUIRED,
        Code.PAYMENT_MALFORMED,
        Code.PAYMENT_EXPIRED,
        Code.PAYMENT_METHOD_UNSUPPORTED,
        Code.PAYMENT_SETTLEMENT_FAILED,
        Code.PAYMENT_INSUFFICIENT,
        Code.PAYMENT_VERIFICATION_FAILED,
    }
)
"""These come with terms: what is to be paid, and how."""

QUOTE_RESPONSE = "PaymentRequired"
"""The name of their answer among the components."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteProblemKind:
    """What is the same for every problem of one code. `is_delayed`: it comes with `Retry-After`."""

    status: int
    is_delayed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteOperation:
    """One method of one path. `responses`: by status, what is no problem. `codes`: what else it can answer.

    `is_wallet`: a wallet proves itself. `sign_in_status`: where its refusals come under another status than their own.
    """

    method: str
    path: str
    name: str
    tag: str
    summary: str
    responses: Mapping[str, Schema]
    codes: tuple[Code, ...]
    description: str = ""
    parameters: tuple[Schema, ...] = ()
    body: Schema | None = None
    is_wallet: bool = False
    is_session: bool = False


def parameter(name: str, schema: Schema, description: str = "", *, place: str = "query") -> dict[str, Any]:
    """Optional, but in a path."""
    described = {"description": description} if description else {}
    needed = {"required": True} if place == "path" else {}
    return {"name": name, "in": place, **needed, **described, "schema": schema}


def parameter_ref(name: str) -> dict[str, Any]:
    """A parameter of the components by its name."""
    return {"$ref": f"#/components/parameters/{name}"}


def json_body(schema: Schema, *, is_required: bool = True) -> dict[str, Any]:
    return {"required": is_required, "content": {"application/json": {"schema": schema}}}


def response(
    description: str,
    schema: Schema | None = None,
    *,
    media_type: str = "application/json",
    headers: Sequence[str] = (),
) -> dict[str, Any]:
    """An answer that is no problem. `headers`: names of the components."""
    content = {} if schema is None else {"content": {media_type: {"schema": schema}}}
    return {"description": description, **_headers(headers), **content}


def _headers(names: Sequence[str]) -> dict[str, Any]:
    return {"headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names}} if names else {}


class ProblemResponses:
    """Collects the problems of all operations, each set of codes once. `components` are what the operations refer to."""

    def __init__(self, kinds: Mapping[Code, SiteProblemKind]) -> None:
        self._kinds = kinds
        self._names: dict[tuple[int, tuple[Code, ...]], str] = {}
        self.components: dict[str, Any] = {}

    def refer(self, codes: Iterable[Code]) -> dict[str, Any]:
        """The answers of these codes by status."""
        by_status: dict[int, list[Code]] = {}
        for code in sorted(set(codes), key=list(Code).index):
            by_status.setdefault(self._kinds[code].status, []).append(code)
        return {
            str(status): {"$ref": f"#/components/responses/{self._name(status, tuple(found))}"}
            for status, found in sorted(by_status.items())
        }

    def _name(self, status: int, codes: tuple[Code, ...]) -> str:
        if QUOTE_CODES.issuperset(codes):
            self.components.setdefault(QUOTE_RESPONSE, _quote_response())
            return QUOTE_RESPONSE
        known = self._names.get((status, codes))
        if known is None:
            number = sum(1 for other, _ in self._names if other == status)
            known = f"P{status}" + (f"-{number + 1}" if number else "")
            self._names[status, codes] = known
            self.components[known] = self.problem(status, codes)
        return known

    def problem(self, status: int, codes: Sequence[Code], *, headers: Sequence[str] = ()) -> dict[str, Any]:
        """An answer that is one of these problems."""
        described = {"code": {"enum": [code.value for code in codes]}}
        schema = {**schema_ref("Problem"), "properties": described}
        delay = ["Retry-After"] if all(self._kinds[code].is_delayed for code in codes) else []
        return response("A problem.", schema, media_type=PROBLEM_TYPE, headers=[*delay, *headers])


def _quote_response() -> dict[str, Any]:
    described: dict[str, Any] = {
        "code": {"enum": sorted(code.value for code in QUOTE_CODES)},
        "payment": schema_ref("Terms"),
        "x402Version": {"const": 1},
        "error": {"type": "string"},
        "accepts": {"type": "array", "items": {"type": "object"}},
    }
    return response(
        "What is to be paid, and how: `payment` for every rail, `PAYMENT-REQUIRED` for x402 v2, `accepts` for "
        "x402 v1, `WWW-Authenticate: Payment` for MPP. Nothing was spent.",
        {**schema_ref("Problem"), "properties": described},
        media_type=PROBLEM_TYPE,
        headers=["PAYMENT-REQUIRED", "WWW-Authenticate"],
    )
