"""The operations of the gateway's own contract, as data: registry, sign-in, history and payments, gateway calls, MCP, files of the site. Pure.

A test compares this table with the routes that the service has, and another one (schemathesis) with the responses that they give. Pages for people (`/`, `/docs`,
`/problems`) are not part of the contract. A gateway call can have any method; the usual ones are listed. The provider's own response stands only as `default`.
"""

from tollway.discovery.site_contract import (
    ANY_OBJECT,
    CALL_STATUSES,
    HASH,
    HEX,
    QUOTE_CODES,
    TEXT,
    SiteOperation,
    json_body,
    nullable,
    parameter,
    parameter_ref,
    request_object,
    response,
    schema_ref,
)
from tollway.errors import Code

APIS, AUTH, BOOKS, BAZAAR = "Registry", "Sign-in", "Books", "Bazaar"

EVERYWHERE = (Code.INVALID_REQUEST, Code.OVERLOADED)
"""A fault of ours (500) is declared nowhere: it may be answered by anything, and is part of no contract."""

STORED = (*EVERYWHERE, Code.STORAGE_UNAVAILABLE)
ONE_LISTING = (*STORED, Code.ROUTE_NOT_FOUND, Code.API_NOT_FOUND, Code.API_RETIRED)
PUBLIC_LISTING = (*ONE_LISTING, Code.API_PAUSED)
SIGN_IN = (
    Code.AUTHENTICATION_REQUIRED,
    Code.INVALID_SIGNATURE,
    Code.SIGNATURE_EXPIRED,
    Code.NONCE_REUSED,
    Code.SESSION_EXPIRED,
    Code.CONFLICTING_IDENTITIES,
)
WALLET = (*STORED, *SIGN_IN, Code.RATE_LIMITED, Code.CHAIN_UNAVAILABLE)
WRITTEN = (
    *WALLET,
    Code.PAYLOAD_TOO_LARGE,
    Code.NOT_PROVIDER,
    Code.WALLET_BLOCKED,
    Code.UNSUPPORTED_MEDIA_TYPE,
    Code.VALIDATION_FAILED,
    Code.ENDPOINT_NOT_ALLOWED,
)
OWN_LISTING = (*WRITTEN, Code.ROUTE_NOT_FOUND, Code.API_NOT_FOUND, Code.API_RETIRED, Code.PRECONDITION_FAILED)

PLAIN_TEXT = "text/plain"

_API = (parameter_ref("apiId"),)
_DRY_RUN = parameter(
    "dryRun", {"enum": ["true", "false"]}, "Check and probe, create nothing: 200 instead of 201."
)
_LIMIT = parameter("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20})
UNMODIFIED = {"$ref": "#/components/responses/Unmodified"}

_LIST_PARAMETERS = (
    parameter("page", {"type": "integer", "minimum": 1, "maximum": 1_000_000, "default": 1}),
    _LIMIT,
    parameter("q", {"type": "string", "maxLength": 256}, "Words over name, description and tags."),
    parameter("provider", schema_ref("Address")),
    parameter("currency", {"type": "string", "minLength": 1, "maxLength": 32}),
    parameter("network", schema_ref("Network")),
    parameter("tag", {"type": "string", "minLength": 1, "maxLength": 32}),
    parameter("maxPrice", schema_ref("Amount"), "Needs `currency`."),
    parameter(
        "minSuccessRate",
        {"type": "string", "pattern": r"^(0(\.[0-9]{1,9})?|1(\.0{1,9})?)$"},
        "Of 1, such as 0.95.",
    ),
    parameter("verified", {"enum": ["true", "false"]}, "Whether the provider has proved the endpoint."),
    parameter(
        "sort",
        {"enum": ["newest", "price", "-price", "name", "relevance"], "default": "newest"},
        "By price: needs `currency`. By relevance: needs `q`.",
    ),
)

_HISTORY_PARAMETERS = (
    parameter("apiId", {"type": "string", "maxLength": 64}),
    parameter("limit", {"type": "integer", "minimum": 1, "maximum": 1_000, "default": 50}),
    parameter_ref("offset"),
    parameter("status", {"enum": list(CALL_STATUSES)}),
    parameter("from", {"type": "string", "format": "date-time"}),
    parameter("to", {"type": "string", "format": "date-time"}),
    parameter("before", {"type": "string", "maxLength": 64}, "A call id: the page ends before it."),
    parameter("role", {"enum": ["payer", "provider"], "default": "payer"}),
)

_RESOURCE_FILTERS = (
    parameter("type", {"enum": ["http", "mcp"]}),
    parameter("payTo", schema_ref("Address")),
    parameter("scheme", {"type": "string", "maxLength": 64}),
    parameter("network", {"type": "string", "pattern": "^[-a-z0-9]{3,8}:[-_a-zA-Z0-9]{1,32}$"}),
    parameter("extensions", {"type": "string", "maxLength": 64}),
    _LIMIT,
)

REGISTRY = (
    SiteOperation(
        method="get",
        path="/api/v2/apis",
        name="searchApis",
        tag=APIS,
        summary="Search and list the APIs that are for sale",
        description="An unknown parameter is refused. Items carry `match` when `q` was given.",
        parameters=_LIST_PARAMETERS,
        responses={"200": response("A page of the catalog.", schema_ref("ListingPage"), headers=["Link"])},
        codes=(*STORED, Code.VALIDATION_FAILED),
    ),
    SiteOperation(
        method="post",
        path="/api/v2/apis",
        name="createApi",
        tag=APIS,
        summary="Put an API up for sale",
        parameters=(_DRY_RUN, parameter_ref("Idempotency-Key")),
        body=json_body(schema_ref("ListingDraft")),
        responses={
            "200": response("What would have been created (`dryRun`).", schema_ref("WrittenListing")),
            "201": response("Created.", schema_ref("WrittenListing"), headers=["Location", "ETag"]),
        },
        codes=(
            *WRITTEN,
            Code.IDEMPOTENCY_IN_PROGRESS,
            Code.IDEMPOTENCY_KEY_REUSED,
            Code.ALREADY_EXISTS,
        ),
        is_wallet=True,
    ),
    SiteOperation(
        method="get",
        path="/api/v2/apis/{apiId}",
        name="getApi",
        tag=APIS,
        summary="Everything about one API: price, ways to pay, quality, links",
        parameters=(*_API, parameter_ref("If-None-Match")),
        responses={"200": response("The API.", schema_ref("Listing"), headers=["ETag"]), "304": UNMODIFIED},
        codes=PUBLIC_LISTING,
    ),
    SiteOperation(
        method="put",
        path="/api/v2/apis/{apiId}",
        name="updateApi",
        tag=APIS,
        summary="Change an API of your own",
        parameters=(*_API, parameter_ref("If-Match")),
        body=json_body(schema_ref("ListingDraft")),
        responses={"200": response("Changed.", schema_ref("WrittenListing"), headers=["ETag"])},
        codes=(*OWN_LISTING, Code.ALREADY_EXISTS),
        is_wallet=True,
    ),
    SiteOperation(
        method="delete",
        path="/api/v2/apis/{apiId}",
        name="retireApi",
        tag=APIS,
        summary="Retire an API of your own",
        parameters=(*_API, parameter_ref("If-Match")),
        responses={"204": response("Retired; its history stays.")},
        codes=(
            *WALLET,
            Code.NOT_PROVIDER,
            Code.ROUTE_NOT_FOUND,
            Code.API_NOT_FOUND,
            Code.API_RETIRED,
            Code.PRECONDITION_FAILED,
        ),
        is_wallet=True,
    ),
)


def _document(part: str, name: str, summary: str, *, media_type: str) -> SiteOperation:
    shown = ANY_OBJECT if media_type.endswith("json") else TEXT
    return SiteOperation(
        method="get",
        path=f"/api/v2/apis/{{apiId}}/{part}",
        name=name,
        tag=APIS,
        summary=summary,
        parameters=(*_API, parameter_ref("If-None-Match")),
        responses={
            "200": response("The document.", shown, media_type=media_type, headers=["ETag"]),
            "304": UNMODIFIED,
        },
        codes=PUBLIC_LISTING,
    )


DOCUMENTS = (
    _document("discovery", "getDiscovery", "How one API is called and paid", media_type="application/json"),
    _document(
        "agent",
        "getAgentInfo",
        "One fetch (8 KiB at most) that is enough to integrate an API",
        media_type="application/json",
    ),
    _document(
        "openapi.json",
        "getApiOpenapi",
        "The API as OpenAPI 3.1, with prices",
        media_type="application/openapi+json",
    ),
    _document("llms.txt", "getApiLlmsTxt", "The API in plain words", media_type="text/markdown"),
)

OWNERSHIP = (
    SiteOperation(
        method="get",
        path="/api/v2/apis/{apiId}/ownership",
        name="getOwnership",
        tag=APIS,
        summary="How the ownership of the endpoint is proved, and whether it is",
        parameters=_API,
        responses={"200": response("Challenge and state.", schema_ref("Ownership"))},
        codes=(*PUBLIC_LISTING, Code.VALIDATION_FAILED),
    ),
    SiteOperation(
        method="post",
        path="/api/v2/apis/{apiId}/ownership",
        name="checkOwnership",
        tag=APIS,
        summary="Check the ownership of the endpoint now",
        parameters=_API,
        description="The body is empty, or an empty object. `checks` says what each place showed.",
        responses={"200": response("The state after the check.", schema_ref("CheckedOwnership"))},
        codes=OWN_LISTING,
        is_wallet=True,
    ),
)

_NONCE_BODY = request_object(
    {
        "address": {"oneOf": [schema_ref("Address"), {"type": "null"}]},
        "chainId": nullable("integer", minimum=0, maximum=10**15 - 1),
        "uri": nullable("string", description="Under the public URL; a nonce for that URI alone."),
    }
)

SIGNING_IN = (
    SiteOperation(
        method="post",
        path="/api/v2/auth/nonce",
        name="createNonce",
        tag=AUTH,
        summary="A nonce for a sign-in message",
        description="With `address` and `chainId` the answer holds a ready EIP-4361 text to sign.",
        body=json_body(_NONCE_BODY, is_required=False),
        responses={"200": response("Good once, for five minutes.", schema_ref("Nonce"))},
        codes=(*STORED, Code.VALIDATION_FAILED, Code.PAYLOAD_TOO_LARGE, Code.RATE_LIMITED),
    ),
    SiteOperation(
        method="post",
        path="/api/v2/auth/session",
        name="createSession",
        tag=AUTH,
        summary="A session for a signed message",
        body=json_body(
            request_object({"message": TEXT, "signature": HEX}, required=("message", "signature"))
        ),
        responses={"201": response("The token, good for 24 hours.", schema_ref("Session"))},
        codes=(
            *STORED,
            Code.INVALID_SIGNATURE,
            Code.SIGNATURE_EXPIRED,
            Code.NONCE_REUSED,
            Code.VALIDATION_FAILED,
            Code.PAYLOAD_TOO_LARGE,
            Code.RATE_LIMITED,
            Code.CHAIN_UNAVAILABLE,
        ),
    ),
    SiteOperation(
        method="delete",
        path="/api/v2/auth/session",
        name="deleteSession",
        tag=AUTH,
        summary="End the session",
        responses={"204": response("Ended.")},
        codes=(*STORED, Code.AUTHENTICATION_REQUIRED, Code.SESSION_EXPIRED),
        is_session=True,
    ),
)

HISTORY = (
    SiteOperation(
        method="get",
        path="/api/v2/history",
        name="listCalls",
        tag=BOOKS,
        summary="Your calls, newest first",
        parameters=_HISTORY_PARAMETERS,
        responses={"200": response("A page of calls.", schema_ref("CallPage"))},
        codes=(*WALLET, Code.VALIDATION_FAILED),
        is_wallet=True,
    ),
    SiteOperation(
        method="get",
        path="/api/v2/history/{callId}",
        name="getCall",
        tag=BOOKS,
        summary="One call of yours, or of an API of yours",
        parameters=(parameter_ref("callId"),),
        responses={"200": response("The call.", schema_ref("Call"))},
        codes=(*WALLET, Code.VALIDATION_FAILED, Code.CALL_NOT_FOUND, Code.ROUTE_NOT_FOUND),
        is_wallet=True,
    ),
    SiteOperation(
        method="post",
        path="/api/v2/history/{callId}/resolution",
        name="resolveCall",
        tag=BOOKS,
        summary="The provider decides a call whose outcome is unknown",
        parameters=(parameter_ref("callId"),),
        body=json_body(
            request_object({"outcome": {"enum": ["released", "consumed"]}}, required=("outcome",))
        ),
        responses={"200": response("The call.", schema_ref("Call"))},
        codes=(
            *WALLET,
            Code.PAYLOAD_TOO_LARGE,
            Code.VALIDATION_FAILED,
            Code.CALL_NOT_FOUND,
            Code.ROUTE_NOT_FOUND,
            Code.NOT_PROVIDER,
            Code.PRECONDITION_FAILED,
        ),
        is_wallet=True,
    ),
    SiteOperation(
        method="get",
        path="/api/v2/payments",
        name="listPayments",
        tag=BOOKS,
        summary="Your payments and what is left of them",
        parameters=(
            parameter("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 50}),
            parameter_ref("offset"),
        ),
        responses={
            "200": response(
                "A page of payments.",
                schema_ref("PaymentPage"),
            )
        },
        codes=(*WALLET, Code.VALIDATION_FAILED),
        is_wallet=True,
    ),
    SiteOperation(
        method="get",
        path="/api/v2/payments/{transaction}",
        name="getPayment",
        tag=BOOKS,
        summary="What became of one payment",
        parameters=(parameter("transaction", HASH, place="path"),),
        responses={"200": response("The payment.", schema_ref("Payment"))},
        codes=(*WALLET, Code.VALIDATION_FAILED, Code.PAYMENT_NOT_FOUND, Code.ROUTE_NOT_FOUND),
        is_wallet=True,
    ),
)

RESOURCES = (
    SiteOperation(
        method="get",
        path="/x402/discovery/resources",
        name="listResources",
        tag=BAZAAR,
        summary="What is for sale, in the shape of an x402 bazaar",
        parameters=(*_RESOURCE_FILTERS, parameter_ref("offset")),
        responses={"200": response("A page of resources.", schema_ref("Resources"))},
        codes=(*STORED, Code.VALIDATION_FAILED),
    ),
    SiteOperation(
        method="get",
        path="/x402/discovery/search",
        name="searchResources",
        tag=BAZAAR,
        summary="Search in the shape of an x402 bazaar",
        parameters=(
            {**parameter("query", {"type": "string", "maxLength": 256}), "required": True},
            *_RESOURCE_FILTERS,
            parameter("cursor", {"type": "string", "pattern": "^[1-9][0-9]{0,4}$"}),
        ),
        responses={"200": response("What was found.", schema_ref("ResourceSearch"))},
        codes=(*STORED, Code.VALIDATION_FAILED),
    ),
)


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
