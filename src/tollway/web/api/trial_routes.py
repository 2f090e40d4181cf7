"""The route of trial calls: `POST /apis/{apiId}/trial`. Its provider sends one request to the upstream of a listing, without a payment.

The response of the upstream is a member of the JSON, never a response of this origin: whatever the upstream answers, no client takes it for the gateway's own.
"""

import base64
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, PlainValidator, Strict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from tollway.errors import Code, Problem, Refusal, refuse
from tollway.gateway.messages import ProxyRequest
from tollway.gateway.target import GATEWAY_PREFIX, split_target
from tollway.gateway.trial import TrialResult
from tollway.ids import Address, ListingId
from tollway.limits import KIB
from tollway.rate_limits.limiter import Quota
from tollway.registry.draft import METHOD_LENGTH_MAX, PATH_LENGTH_MAX
from tollway.registry.header_names import is_header_name, is_reserved_header
from tollway.registry.listing import CatalogEntry
from tollway.registry.listing_warnings import ListingWarning
from tollway.validation import RequestModel, value_error, value_errors
from tollway.web.api.auth_routes import client_address_of
from tollway.web.api.context import WebContext
from tollway.web.api.listing_edits import find_public_listing
from tollway.web.api.listing_json import json_response, warnings_json
from tollway.web.http.json import parse_json_object
from tollway.web.http.problems import request_id_of
from tollway.web.http.query import NoParameters, read_members, read_query

BODY_LENGTH_MAX = 64 * KIB
HEADERS_MAX, HEADER_VALUE_LENGTH_MAX = 20, 1_024

_METHOD = re.compile(r"[A-Z][A-Z0-9-]*")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


def _check_method(value: object) -> str:
    if not isinstance(value, str) or len(value) > METHOD_LENGTH_MAX or not _METHOD.fullmatch(value):
        raise value_error("method", "must be an HTTP method in upper case")
    if value in ("CONNECT", "TRACE"):
        raise value_error("method", f"{value} does not go through a gateway")
    return value


def _check_path(value: object) -> str:
    if not isinstance(value, str) or len(value) > PATH_LENGTH_MAX or value[:1] not in ("", "/", "?"):
        raise value_error(
            "path", f"must be a path and query of at most {PATH_LENGTH_MAX} characters, from its slash on"
        )
    return value


def _read_headers(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > HEADERS_MAX:
        raise value_error("type", f"must be an object of at most {HEADERS_MAX} headers")
    errors = []
    for name, text in value.items():
        if not is_header_name(name) or is_reserved_header(name):
            errors.append(((name[:64],), "header", "is not a header that goes to an upstream"))
        elif (
            not isinstance(text, str)
            or len(text) > HEADER_VALUE_LENGTH_MAX
            or not _HEADER_VALUE.fullmatch(text)
        ):
            detail = f"must be printable ASCII of at most {HEADER_VALUE_LENGTH_MAX} characters"
            errors.append(((name[:64],), "bad_character", detail))
    if errors:
        raise value_errors(errors)
    return {name.lower(): text for name, text in value.items()}


class TrialBody(RequestModel):
    """The request that goes to the upstream. `path`: below the endpoint, with the query. `body`: text; None for a request without a body."""

    method: Annotated[str, PlainValidator(_check_method)] = "GET"
    path: Annotated[str, PlainValidator(_check_path)] = ""
    headers: Annotated[dict[str, str], PlainValidator(_read_headers)] = Field(default_factory=dict)
    body: Annotated[str, Strict(), Field(max_length=BODY_LENGTH_MAX)] | None = None


class GivenBody:
    """A request body that is in memory (`RequestBody`)."""

    is_broken = False

    def __init__(self, content: bytes | None) -> None:
        self.is_present = content is not None
        self.length: int | None = len(content or b"")
        self.bytes_read = 0
        self._content = content or b""

    async def read_chunk(self) -> bytes:
        content, self._content = self._content, b""
        self.bytes_read += len(content)
        return content

    def prove(self) -> None:
        """See `reserve`."""

    def reserve(self, size: int) -> None:
        """The middleware has reserved the body that this one is a part of."""

    async def has_disconnected(self) -> bool:
        return False


def trial_router(context: WebContext) -> Router:
    """`POST /api/v2/apis/{apiId}/trial`."""
    trials = TrialRequests(context)

    async def try_call(request: Request) -> Response:
        provider = (await context.authenticate(request)).address
        entry = await trials.find_entry(ListingId(request.path_params["apiId"]), provider)
        read_query(NoParameters, request.scope["query_string"])
        raw = await request.body()
        result = await trials.run(request, entry, parse_json_object(raw) if raw.strip() else {})
        return json_response(trial_json(result))

    return Router([Route("/api/v2/apis/{apiId}/trial", try_call, methods=["POST"])])


class TrialRequests:
    """Trial calls by the members of a body or of a form, at most so many an hour for each provider. Many tasks may call it at once."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        self._quota = Quota(
            "trials",
            "trial calls",
            amount=context.limits.trials_per_hour,
            per="hour",
            rate_limiter=context.rate_limiter,
            namespace="trial",
        )

    async def find_entry(self, listing_id: ListingId, provider: Address) -> CatalogEntry:
        """The listing of the provider. Raises Refusal for another wallet, a blocked one, and an unknown id."""
        return await _find_own_entry(self._context, listing_id, provider)

    async def run(self, request: Request, entry: CatalogEntry, members: Mapping[str, Any]) -> TrialResult:
        """Sends the request once. `members`: of `TrialBody`. Raises Refusal and the failures of the upstream."""
        call = _build_request(read_members(TrialBody, members), entry, request, now_ms=self._context.now_ms())
        await self._quota.charge(entry.listing.provider, client_address=client_address_of(request))
        return await self._context.trials.run(call, entry)


async def _find_own_entry(context: WebContext, listing_id: ListingId, provider: Address) -> CatalogEntry:
    listing = await find_public_listing(context.catalog, listing_id)
    if listing.provider != provider:
        detail = "Only the wallet that published this API may make trial calls. Other wallets call it through the gateway."
        raise refuse(code=Code.NOT_PROVIDER, detail=detail)
    context.check_block(provider)
    entry = await context.catalog.find(listing_id)
    assert entry is not None  # listings are retired, never deleted
    return entry


def _build_request(trial: TrialBody, entry: CatalogEntry, request: Request, *, now_ms: int) -> ProxyRequest:
    listing_id = entry.listing.id
    path, _, query = trial.path.partition("?")
    target = split_target(f"{GATEWAY_PREFIX}{listing_id}{path}".encode(), query.encode())
    if target is None or isinstance(target, Problem):
        detail = "The path of the trial call is not valid. Percent-encode it."
        raise Refusal(target or Problem(code=Code.INVALID_REQUEST, detail=detail))
    return ProxyRequest(
        method=trial.method,
        listing_id=listing_id,
        target=target,
        headers=[(name.encode(), text.encode()) for name, text in trial.headers.items()],
        body=GivenBody(None if trial.body is None else trial.body.encode()),
        client_address=client_address_of(request),
        request_id=request_id_of(request.scope),
        received_ms=now_ms,
    )


def trial_json(result: TrialResult) -> dict[str, Any]:
    """The result on the wire. `body` of text in UTF-8, else `bodyBase64`. Equal header names are joined (RFC 9110 §5.3)."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in result.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    content: dict[str, Any] = {"status": result.status, "headers": headers}
    try:
        content["body"] = result.body.decode()
    except UnicodeDecodeError:
        content["bodyBase64"] = base64.b64encode(result.body).decode()
    return {
        **content,
        "isCut": result.is_cut,
        "latencyMs": result.latency_ms,
        "callId": result.call_id,
        "wouldCharge": result.is_charged,
        "warnings": warnings_json(
            ListingWarning(
                code="header_not_returned",
                detail=f"No caller gets the response header {name}: {reason}.",
                pointer=f"/headers/{name.replace('~', '~0')}",
            )
            for name, reason in result.dropped.items()
        ),
        "price": result.price.text,
        "currency": result.currency,
        **_describe_use(result),
    }


def _describe_use(result: TrialResult) -> dict[str, Any]:
    """Of a metered listing, as in a record of a call. `quantities` is null where one is absent."""
    if result.price_max is None:
        return {}
    stated = result.quantities
    named = None if stated is None else [{"unit": unit, "quantity": quantity} for unit, quantity in stated]
    return {"priceMax": result.price_max.text, "quantities": named}
