"""The operations beside the registry: the gateway call, MCP, and the files of the site. Data, and pure. Pages for
people (`/`, `/docs`, `/problems`) are no part of the contract.

A gateway call may have any method; the usual ones are written out, and all of them are the same.
What the provider answers is his own and stands here only as `default`.
"""

from tollway.discovery.site_contract import (
    QUOTE_CODES,
    SiteOperation,
    json_body,
    parameter,
    parameter_ref,
    response,
)
from tollway.discovery.site_operations import EVERYWHERE, PLAIN_TEXT, STORED, UNMODIFIED
from tollway.discovery.site_schemas import ANY_OBJECT, TEXT, schema_ref
from tollway.errors import Code

CALLS, AGENTS, SITE = "Paid calls", "Agents", "Site"

_ENDPOINT, _BELOW = "/api/v2/gateway/{apiId}", "/api/v2/gateway/{apiId}/{path}"
CALL_METHODS = {_ENDPOINT: ("get",), _BELOW: ("get", "post")}
"""They stand for all: every method that HTTP has a word for is a call all the same, with the same answers."""

_CALL = (
    *STORED,
    Code.ROUTE_NOT_FOUND,
    Code.API_NOT_FOUND,
    Code.API_RETIRED,
    Code.API_PAUSED,
    Code.UPSTREAM_UNAVAILABLE,
    Code.METHOD_NOT_ALLOWED,
    *QUOTE_CODES,
    Code.SIGNATURE_EXPIRED,
    Code.NONCE_REUSED,
    Code.PAYER_MISMATCH,
    Code.PAYER_IN_DEBT,
    Code.WALLET_BLOCKED,
    Code.OWNERSHIP_UNVERIFIED,
    Code.PAYMENT_ALREADY_USED,
    Code.PAYMENT_TOO_OLD,
    Code.PAYMENT_HELD,
    Code.PAYMENT_PENDING,
    Code.IDEMPOTENCY_IN_PROGRESS,
    Code.PRICE_ABOVE_MAX,
    Code.PAYLOAD_TOO_LARGE,
    Code.VALIDATION_FAILED,
    Code.ENDPOINT_NOT_ALLOWED,
    Code.IDEMPOTENCY_KEY_REUSED,
    Code.RATE_LIMITED,
    Code.FAILED_CALL_BUDGET_EXHAUSTED,
    Code.UPSTREAM_UNREACHABLE,
    Code.UPSTREAM_BAD_RESPONSE,
    Code.UPSTREAM_PAYMENT_REQUIRED,
    Code.PAYMENT_OUTCOME_UNKNOWN,
    Code.CHAIN_UNAVAILABLE,
    Code.UPSTREAM_TIMEOUT,
    Code.LOOP_DETECTED,
)

CALL_PARAMETERS = (
    "X-Payment-Tx",
    "X-Signature",
    "X-Signature-Params",
    "X-Payment-Network",
    "PAYMENT-SIGNATURE",
    "X-PAYMENT",
    "Idempotency-Key",
    "Tollway-Max-Price",
)
"""Optional headers of a gateway call. `Authorization: Payment …` (MPP) is one too; OpenAPI has no word for it."""


def _call(method: str, path: str) -> SiteOperation:
    is_below = path == _BELOW
    return SiteOperation(
        method=method,
        path=path,
        name=method + ("Below" if is_below else "Endpoint"),
        tag=CALLS,
        summary=f"Call an API ({method.upper()}), " + ("below its endpoint" if is_below else "its endpoint"),
        responses={"default": {"$ref": "#/components/responses/Relayed"}},
        codes=_CALL,
    )


GATEWAY_CALLS = tuple(_call(method, path) for path, methods in CALL_METHODS.items() for method in methods)

GATEWAY_CALL_PARAMETERS = {
    _ENDPOINT: (parameter_ref("apiId"), *(parameter_ref(name) for name in CALL_PARAMETERS)),
    _BELOW: (
        parameter_ref("apiId"),
        parameter(
            "path", TEXT, "Any path below the endpoint, slashes included; goes on as it is.", place="path"
        ),
        *(parameter_ref(name) for name in CALL_PARAMETERS),
    ),
}


def _mcp(path: str, name: str, summary: str) -> SiteOperation:
    return SiteOperation(
        method="post",
        path=path,
        name=name,
        tag=AGENTS,
        summary=summary,
        description="JSON-RPC 2.0, revisions 2026-07-28 and 2025-11-25. Any MCP client speaks it; the answers are MCP's.",
        parameters=() if path == "/mcp" else (parameter_ref("apiId"),),
        body=json_body(ANY_OBJECT),
        responses={"default": {"description": "What MCP answers."}},
        codes=(),
    )


MCP = (
    _mcp("/mcp", "mcp", "All APIs over MCP (streamable HTTP): search, describe, call, my calls"),
    _mcp("/mcp/{apiId}", "mcpOfApi", "The operations of one API as MCP tools"),
)


def _page(
    path: str,
    name: str,
    summary: str,
    *,
    media_type: str,
    is_stored: bool = False,
    more: tuple[Code, ...] = (),
    is_cached: bool = False,
) -> SiteOperation:
    shown = ANY_OBJECT if media_type.endswith("json") else TEXT
    names = ["ETag"] if is_cached else []
    unmodified = {"304": UNMODIFIED} if is_cached else {}
    return SiteOperation(
        method="get",
        path=path,
        name=name,
        tag=SITE,
        summary=summary,
        parameters=(parameter_ref("If-None-Match"),) if is_cached else (),
        responses={"200": response("As it says.", shown, media_type=media_type, headers=names), **unmodified},
        codes=(*(STORED if is_stored else EVERYWHERE), *more),
    )


_WELL_KNOWN = "/.well-known/"

FILES = (
    _page("/openapi.json", "siteOpenapi", "This document", media_type="application/json", is_cached=True),
    _page("/llms.txt", "siteLlmsTxt", "This site in plain words", media_type=PLAIN_TEXT, is_cached=True),
    _page(
        _WELL_KNOWN + "api-catalog",
        "apiCatalog",
        "Every API and its documents (RFC 9727)",
        media_type="application/linkset+json",
        is_stored=True,
        is_cached=True,
        more=(Code.VALIDATION_FAILED,),
    ),
    _page(
        _WELL_KNOWN + "did.json",
        "did",
        "Under which key offers and receipts are signed",
        media_type="application/did+json",
    ),
    _page(
        _WELL_KNOWN + "http-message-signatures-directory",
        "signingKeys",
        "Under which keys calls are signed that reach the APIs (RFC 9421)",
        media_type="application/http-message-signatures-directory+json",
    ),
    SiteOperation(
        method="get",
        path="/healthz",
        name="alive",
        tag=SITE,
        summary="Is it alive",
        responses={"200": response("It is.", ANY_OBJECT)},
        codes=EVERYWHERE,
    ),
    SiteOperation(
        method="get",
        path="/readyz",
        name="ready",
        tag=SITE,
        summary="May it be sent traffic",
        responses={"200": response("It may.", schema_ref("Ready"))},
        codes=(*STORED, Code.CHAIN_UNAVAILABLE),
    ),
)
