"""The routes of listings: list, publish, read, edit, retire, and prove the ownership of the endpoint.

A request runs in this order: authentication, listing, permission, body, checks of the endpoint. The rules are in `registry`. A response never contains the
upstream secret.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Protocol
from urllib.parse import parse_qsl

from pydantic import AfterValidator, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from tollway.errors import (
    Code,
    EndpointNotAllowed,
    FieldError,
    Problem,
    Refusal,
    UpstreamBadResponse,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from tollway.ids import Address, ChainId, ListingId, format_id, parse_network
from tollway.limits import Limits
from tollway.money import Price
from tollway.outbound.policy import Endpoint, EndpointRefused, parse_endpoint
from tollway.outbound.probes import OwnershipChecker
from tollway.rate_limits.limiter import Quota, RateLimiter
from tollway.registry.catalog import (
    BLOCKED,
    Catalog,
    CreationBegun,
    CreationResponse,
    ListingQuery,
    Revised,
    Sort,
    check_registration,
)
from tollway.registry.draft import (
    ENDPOINT_POLICY,
    ENDPOINT_UNPROTECTED,
    PAYTO_SHARED,
    Draft,
    DraftRules,
    EndpointFault,
    ListingWarning,
    create_listing,
    edit_listing,
    find_document_fault,
    find_nothing_served,
    list_warnings,
    parse_draft,
)
from tollway.registry.listing import Listing
from tollway.registry.openapi import YamlRefused, parse_yaml_object
from tollway.registry.ownership import (
    DOCUMENT_MEMBERS,
    OWNED_BY_ANOTHER,
    UNVERIFIED_WARNING,
    Challenge,
    Ownership,
    OwnershipClaim,
    Ownerships,
)
from tollway.registry.quality import UNKNOWN_REPUTATION, Reputation
from tollway.registry.text import find_refused_character
from tollway.validation import WireError, value_error
from tollway.web.admission import PublishingLimits
from tollway.web.auth_routes import client_address_of
from tollway.web.idempotent_create import IdempotentCreate, lost_key_refusal
from tollway.web.json import find_unknown_members, parse_json_object
from tollway.web.listing_json import (
    ListingEncoder,
    etag_of,
    has_etag,
    is_same_content,
    is_same_revision,
    page_json,
    page_links,
    render_json,
    warnings_json,
)
from tollway.web.problems import describe_errors
from tollway.web.query import NoParameters, QueryModel, format_time, parsed, read_query, whole_number

_NOT_FOUND = Problem(code=Code.API_NOT_FOUND, detail="No API has this id. GET /api/v2/apis lists all APIs.")
_RETIRED = Problem(code=Code.API_RETIRED, detail="The provider has retired this API.")
_SUSPENDED = Problem(code=Code.API_PAUSED, detail="The operator has suspended this API.", reason="suspended")


async def find_listing(catalog: Catalog, listing_id: ListingId) -> Listing:
    """The current listing, also a suspended one. Raises Refusal: `api_not_found`, `api_retired`."""
    entry = await catalog.find(listing_id)
    if entry is None:
        raise Refusal(_NOT_FOUND)
    if entry.listing.retired_ms is not None:
        raise Refusal(_RETIRED)
    return entry.listing


async def find_public_listing(catalog: Catalog, listing_id: ListingId) -> Listing:
    """The current listing, for every client. Raises Refusal: also `api_paused` for a listing that the operator has suspended."""
    listing = await find_listing(catalog, listing_id)
    if listing.suspended_ms is not None:
        raise Refusal(_SUSPENDED)
    return listing


PAGE_MAX = 1_000_000
LIMIT_DEFAULT, LIMIT_MAX = 20, 100
SEARCH_LENGTH_MAX = 256
TAG_LENGTH_MAX = CURRENCY_LENGTH_MAX = 32

_RATE = re.compile(r"0(?:\.[0-9]{1,9})?|1(?:\.0{1,9})?")


def _parse_rate(text: str) -> float:
    if not _RATE.fullmatch(text):
        raise ValueError("must be a number from 0 to 1, such as 0.95")
    return float(text)


def _check_plain_text(text: str) -> str:
    if not text or find_refused_character(text, is_multiline=False):
        raise value_error("malformed", "must be plain text")
    return text


Words = Annotated[
    str, Field(max_length=SEARCH_LENGTH_MAX), AfterValidator(lambda text: text if text.strip() else None)
]
"""The words of a search. Blank words count as absent."""
PageNumber = Annotated[int, whole_number(1, PAGE_MAX)]


class ListingParameters(QueryModel):
    """The query of `GET /apis`, with the field names of `ListingQuery`."""

    words: Words | None = Field(None, alias="q")
    price_nano_max: Annotated[int | None, parsed(lambda text: Price.parse(text).nano)] = Field(
        None, alias="maxPrice"
    )
    sort: Sort = "newest"
    currency: (
        Annotated[str, Field(max_length=CURRENCY_LENGTH_MAX), AfterValidator(_check_plain_text)] | None
    ) = None
    verified: Annotated[Literal["true", "false"], AfterValidator(lambda text: text == "true")] | None = None
    page: PageNumber = 1
    limit: Annotated[int, whole_number(1, LIMIT_MAX)] = LIMIT_DEFAULT
    provider: Annotated[Address | None, parsed(Address.parse)] = None
    network: Annotated[ChainId | None, parsed(parse_network)] = None
    tag: Annotated[str, Field(max_length=TAG_LENGTH_MAX), AfterValidator(_check_plain_text)] | None = None
    min_success_rate: Annotated[float | None, parsed(_parse_rate)] = None

    @classmethod
    def check_between(
        cls, given: Mapping[str, str], values: Mapping[str, Any]
    ) -> Iterator[tuple[str | None, WireError]]:
        sort = values.get("sort")
        if "currency" not in given:
            if "maxPrice" in given:
                yield "currency", (("maxPrice",), "needs_currency", "needs currency")
            if sort in ("price", "-price"):
                yield "currency", (("sort",), "needs_currency", "sorting by price needs currency")
        if sort == "relevance" and values.get("words") is None:
            yield "currency", (("sort",), "needs_q", "sorting by relevance needs q")


def parse_listing_query(raw: bytes) -> ListingQuery:
    """The query of `GET /apis`. Raises Refusal (422) with all errors."""
    return ListingQuery(**dict(read_query(ListingParameters, raw)))


class ProviderDocuments:
    """The reader of OpenAPI documents at an `openapiUrl`. Safe to call from many tasks at once."""

    def __init__(self, fetch: Callable[[str], Awaitable[bytes]]) -> None:
        """`fetch` bounds the length of a response; it raises `EndpointNotAllowed` and the failures of an upstream."""
        self._fetch = fetch
        self._yaml_semaphore = asyncio.Semaphore(1)

    async def read(self, url: str) -> Mapping[str, Any]:
        """The document at that URL. Raises Refusal (`validation_failed`) when it cannot be fetched or listed."""
        try:
            raw = await self._fetch(url)
        except (EndpointNotAllowed, UpstreamUnreachable, UpstreamBadResponse, UpstreamTimeout) as exc:
            raise refuse_document("could not be fetched") from exc
        document = await self._parse(raw)
        fault = find_document_fault(document)
        if fault is not None:
            raise refuse_document(fault)
        return document

    async def _parse(self, raw: bytes) -> Mapping[str, Any]:
        if raw.lstrip()[:1] in (b"{", b"["):
            try:
                return parse_json_object(raw)
            except Refusal as exc:
                raise refuse_document("could not be read as a JSON object") from exc
        # A long YAML text takes most of a second: it is parsed in a thread, one at a time.
        async with self._yaml_semaphore:
            try:
                return await asyncio.to_thread(parse_yaml_object, raw)
            except YamlRefused as exc:
                raise refuse_document(str(exc)) from exc


def refuse_document(detail: str) -> Refusal:
    error = FieldError(code="openapi", detail=detail, pointer="/openapiUrl")
    return Refusal(Problem(code=Code.VALIDATION_FAILED, detail=f"The document {detail}.", errors=(error,)))


EDITS_MAX = 3
"""Attempts of an edit. When another edit comes first, the edit is tried again on the newer state; `If-Match` refuses it then."""

DRY_RUN_ID = ListingId("api_00000000000000000000000000")
"""The placeholder for the id in a dry run; its response has `id` null."""

_POLICY_REASONS = frozenset({"address", "port"})


class ProvenWallet(Protocol):
    """The part of an identity that the routes need."""

    @property
    def address(self) -> Address: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingServices:
    """The collaborators of the routes.

    `authenticate` reads the body and proves a wallet, or raises Refusal. `check_endpoint` resolves and checks an endpoint, or
    raises `EndpointNotAllowed`. `is_unprotected` requests an endpoint without the listing's secret and returns whether it
    answers. `fetch_document` fetches an `openapiUrl` through the outbound client. The last two may be None.
    `allowlist` None: every wallet may publish. `find_owner`: the wallet that has proved an origin, where the operator
    requires the proof; else None.
    """

    catalog: Catalog
    rules: DraftRules
    encoder: ListingEncoder
    limits: Limits
    authenticate: Callable[[Request], Awaitable[ProvenWallet]]
    check_endpoint: Callable[[Endpoint], Awaitable[None]]
    creations: IdempotentCreate
    is_blocked: Callable[[Address], bool]
    allowlist: frozenset[Address] | None
    now_ms: Callable[[], int]
    entropy: Callable[[int], bytes]
    rate_limiter: RateLimiter
    is_unprotected: Callable[[Endpoint], Awaitable[bool]] | None = None
    fetch_document: Callable[[str], Awaitable[bytes]] | None = None
    find_owner: Callable[[str], Awaitable[Address | None]] | None = None


def make_endpoint_check(*, allow_private: bool) -> Callable[[str], EndpointFault | None]:
    """`DraftRules.check_endpoint` by the outbound policy."""

    def check(endpoint: str) -> EndpointFault | None:
        parsed = parse_endpoint(endpoint, allow_private=allow_private)
        if isinstance(parsed, Endpoint):
            return None
        return EndpointFault(detail=parsed.detail, is_policy=parsed.reason in _POLICY_REASONS)

    return check


def listing_router(services: ListingServices) -> Router:
    """`/api/v2/apis` and `/api/v2/apis/{apiId}`."""
    routes = ListingRoutes(services)
    return Router(
        [
            Route("/api/v2/apis", routes.list_listings, methods=["GET"]),
            Route("/api/v2/apis", routes.create, methods=["POST"]),
            Route("/api/v2/apis/{apiId}", routes.show_listing, methods=["GET"]),
            Route("/api/v2/apis/{apiId}", routes.update, methods=["PUT"]),
            Route("/api/v2/apis/{apiId}", routes.retire, methods=["DELETE"]),
        ]
    )


class ListingRoutes:
    """The handlers of the routes of listings. Safe to call from many tasks at once."""

    def __init__(self, services: ListingServices) -> None:
        self._services = services
        fetch = services.fetch_document
        self._documents = None if fetch is None else ProviderDocuments(fetch)
        self._limits = PublishingLimits(limits=services.limits, rate_limiter=services.rate_limiter)

    async def list_listings(self, request: Request) -> Response:
        raw: bytes = request.scope["query_string"]
        query = parse_listing_query(raw)
        page = await self._services.catalog.search(query)
        given = parse_qsl(raw.decode("ascii", "replace"), keep_blank_values=True)
        link = page_links(f"{self._services.encoder.public_url}/api/v2/apis", given, page, query)
        return _json_response(render_json(page_json(self._services.encoder, page, query)), {"Link": link})

    async def show_listing(self, request: Request) -> Response:
        listing_id = ListingId(request.path_params["apiId"])
        listing = await find_public_listing(self._services.catalog, listing_id)
        reputation = await self._services.catalog.reputation(listing.id)
        body = render_json(self._services.encoder.details(listing, reputation))
        headers = {
            "ETag": etag_of(listing, body),
            "Cache-Control": "no-cache",
            "Link": self._services.encoder.link_header(listing),
        }
        known = request.headers.get("if-none-match")
        if known is not None and has_etag(known, headers["ETag"], same=is_same_content):
            return Response(status_code=304, headers=headers)
        return _json_response(body, headers)

    async def create(self, request: Request) -> Response:
        provider = await self._authorize_publisher(request)
        if read_query(CreationParameters, request.scope["query_string"]).dry_run == "true":
            return await self._preview(await self._read_draft(request, provider, previous=None), provider)
        begun = await self._services.creations.begin(request, provider)
        if isinstance(begun, Response):
            return begun
        async with self._services.creations.holding(begun):
            return await self._create(request, provider, begun)

    async def _create(self, request: Request, provider: Address, begun: CreationBegun | None) -> Response:
        draft = await self._read_draft(request, provider, previous=None)
        now_ms = self._services.now_ms()
        listing_id = ListingId(format_id("api", now_ms=now_ms, entropy=self._services.entropy(10)))
        listing = create_listing(draft, listing_id=listing_id, provider=provider, now_ms=now_ms)
        warnings = await self._list_warnings(listing, UNKNOWN_REPUTATION)
        await self._limits.charge(provider, client_address=client_address_of(request))
        location = self._services.encoder.url_of(listing.id)
        written = self._written_response(
            listing, UNKNOWN_REPUTATION, warnings, headers={"Location": location}, status=201
        )
        if begun is None:
            await self._services.catalog.publish(listing)
            return written
        etag, body = written.headers["etag"], bytes(written.body)
        answer = CreationResponse(listing_id=listing.id, location=location, etag=etag, body=body)
        answer = self._services.creations.keep(answer)
        if not await self._services.catalog.publish_once(listing, under=begun, answer=answer):
            raise lost_key_refusal()
        return written

    async def update(self, request: Request) -> Response:
        provider = (await self._services.authenticate(request)).address
        for attempt in range(EDITS_MAX):
            previous = await self._find_own_listing(request, provider)
            if self._services.is_blocked(provider):
                raise Refusal(BLOCKED)
            draft = await self._read_draft(request, provider, previous=previous)
            if attempt == 0:
                await self._limits.charge_edit(provider, client_address=client_address_of(request))
            listing = edit_listing(draft, previous, now_ms=self._services.now_ms())
            outcome = await self._services.catalog.revise(listing, expected_revision=previous.revision)
            if isinstance(outcome, Revised):
                reputation = await self._services.catalog.reputation(listing.id)
                warnings = await self._list_warnings(outcome.listing, reputation)
                return self._written_response(outcome.listing, reputation, warnings, headers={}, status=200)
        raise _edited_meanwhile()

    async def retire(self, request: Request) -> Response:
        provider = (await self._services.authenticate(request)).address
        for _ in range(EDITS_MAX):
            previous = await self._find_own_listing(request, provider)
            now_ms = self._services.now_ms()
            # A retired listing needs no secret, so it is deleted.
            retired = replace(previous, retired_ms=now_ms, updated_ms=now_ms, upstream_auth=None)
            outcome = await self._services.catalog.revise(retired, expected_revision=previous.revision)
            if isinstance(outcome, Revised):
                return Response(status_code=204)
        raise _edited_meanwhile()

    # ---- Permission.

    async def _authorize_publisher(self, request: Request) -> Address:
        """The wallet that may publish here."""
        services = self._services
        provider = (await services.authenticate(request)).address
        problem = check_registration(
            provider, allowlist=services.allowlist, is_blocked=services.is_blocked(provider)
        )
        if problem is not None:
            raise Refusal(problem)
        return provider

    async def _find_own_listing(self, request: Request, provider: Address) -> Listing:
        """The current listing of this provider. Raises Refusal when another wallet published it, or when `If-Match` names another revision."""
        listing = await find_listing(self._services.catalog, ListingId(request.path_params["apiId"]))
        if listing.provider != provider:
            detail = "Only the wallet that published this API may change it."
            raise Refusal(Problem(code=Code.NOT_PROVIDER, detail=detail))
        wanted = request.headers.get("if-match")
        etag = etag_of(listing, b"")
        if wanted is not None and not has_etag(wanted, etag, same=is_same_revision):
            detail = f"The API has changed; its revision is {listing.revision} now. Read it and send its ETag as If-Match."
            raise Refusal(Problem(code=Code.PRECONDITION_FAILED, detail=detail))
        return listing

    # ---- The body.

    async def _read_draft(self, request: Request, provider: Address, *, previous: Listing | None) -> Draft:
        """The draft of the body, after all its checks: its form, then its endpoint, then its document."""
        _check_media_type(request)
        parsed = parse_draft(parse_json_object(await request.body()), self._services.rules, previous=previous)
        if isinstance(parsed, tuple):
            raise Refusal(_draft_problem(parsed))
        if (
            previous is None or previous.endpoint != parsed.endpoint
        ):  # a dead host name must not stop other edits
            endpoint = self._parse_endpoint(parsed)
            await self._limits.charge_probe(client_address_of(request))
            await self._services.check_endpoint(endpoint)
            await self._refuse_owned_by_another(endpoint, provider)
        if not parsed.is_document_wanted:
            return parsed
        assert parsed.openapi_url is not None
        await self._limits.charge_probe(client_address_of(request))
        return await self._with_document(parsed, parsed.openapi_url)

    def _parse_endpoint(self, draft: Draft) -> Endpoint:
        allow_private = self._services.rules.allow_private_endpoints
        endpoint = parse_endpoint(draft.endpoint, allow_private=allow_private)
        if isinstance(endpoint, EndpointRefused):
            raise EndpointNotAllowed(endpoint.detail)
        return endpoint

    async def _refuse_owned_by_another(self, endpoint: Endpoint, provider: Address) -> None:
        find_owner = self._services.find_owner
        if find_owner is not None and await find_owner(endpoint.origin) not in (None, provider):
            raise Refusal(OWNED_BY_ANOTHER)

    async def _with_document(self, draft: Draft, url: str) -> Draft:
        document = None if self._documents is None else await self._documents.read(url)
        found = replace(draft, openapi=document)
        conflict = find_nothing_served(
            other_paths=draft.other_paths,
            operations=draft.operations,
            openapi=document,
            methods=draft.methods,
        )
        if conflict is not None:
            raise Refusal(_draft_problem((conflict,)))
        return found

    # ---- The response.

    async def _list_warnings(self, listing: Listing, reputation: Reputation) -> tuple[ListingWarning, ...]:
        services = self._services
        found = list(list_warnings(listing, services.rules.assets))
        if await services.catalog.is_payee_shared(listing.pay_to, listing.provider):
            found.append(PAYTO_SHARED)
        if services.is_unprotected is not None and not listing.price.is_free:
            endpoint = parse_endpoint(listing.endpoint, allow_private=services.rules.allow_private_endpoints)
            if isinstance(endpoint, Endpoint) and await services.is_unprotected(endpoint):
                found.append(ENDPOINT_UNPROTECTED)
        if services.find_owner is not None and not reputation.is_verified:
            found.append(UNVERIFIED_WARNING)
        return tuple(found)

    async def _preview(self, draft: Draft, provider: Address) -> Response:
        """The response to a dry run: the listing that a create would write, without an id and links."""
        now_ms = self._services.now_ms()
        listing = create_listing(draft, listing_id=DRY_RUN_ID, provider=provider, now_ms=now_ms)
        warnings = warnings_json(await self._list_warnings(listing, UNKNOWN_REPUTATION))
        written = {
            **self._services.encoder.details(listing, UNKNOWN_REPUTATION),
            "id": None,
            "links": {},
            "dryRun": True,
        }
        return _json_response(render_json({**written, "warnings": warnings}), {"Cache-Control": "no-store"})

    def _written_response(
        self,
        listing: Listing,
        reputation: Reputation,
        warnings: tuple[ListingWarning, ...],
        *,
        headers: dict[str, str],
        status: int,
    ) -> Response:
        written = self._services.encoder.details(listing, reputation)
        headers["ETag"] = etag_of(listing, render_json(written))
        body = render_json({**written, "warnings": warnings_json(warnings)})
        return _json_response(body, {**headers, "Cache-Control": "no-store"}, status=status)


def _json_response(body: bytes, headers: dict[str, str], *, status: int = 200) -> Response:
    return Response(body, status_code=status, media_type="application/json", headers=headers)


class CreationParameters(QueryModel):
    """The query of `POST /apis`."""

    dry_run: Literal["true", "false"] = "false"


def _check_media_type(request: Request) -> None:
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        detail = "Send the body as application/json."
        raise Refusal(Problem(code=Code.UNSUPPORTED_MEDIA_TYPE, detail=detail))


def _draft_problem(errors: tuple[FieldError, ...]) -> Problem:
    """The problem of a draft. When the outbound policy is its only error, the body is valid: that has a code of its own."""
    if all(error.code == ENDPOINT_POLICY for error in errors):
        return Problem(code=Code.ENDPOINT_NOT_ALLOWED, detail=errors[0].detail, errors=errors)
    return Problem(code=Code.VALIDATION_FAILED, detail=describe_errors(errors), errors=errors)


def _edited_meanwhile() -> Refusal:
    detail = "Another request changed the API at the same time. Read it and try again."
    return Refusal(Problem(code=Code.PRECONDITION_FAILED, detail=detail))


CHECKS_MAX = 3
"""Attempts of a check. When the listing is edited during a check, its new state is checked again."""

_SIGNATURE_POINTER = f"/{DOCUMENT_MEMBERS[0]}/ownershipProofs"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipServices:
    """The collaborators of the routes. `authenticate` reads the body and proves a wallet, or raises Refusal."""

    catalog: Catalog
    ownerships: Ownerships
    checker: OwnershipChecker
    authenticate: Callable[[Request], Awaitable[ProvenWallet]]
    is_blocked: Callable[[Address], bool]
    rate_limiter: RateLimiter
    limits: Limits
    now_ms: Callable[[], int]


def ownership_router(services: OwnershipServices) -> Router:
    """Two routes: every client may read the ownership, the provider may have it checked."""
    routes = OwnershipRoutes(services)
    path = "/api/v2/apis/{apiId}/ownership"
    return Router(
        [
            Route(path, routes.show_ownership, methods=["GET"]),
            Route(path, routes.check_ownership, methods=["POST"]),
        ]
    )


class OwnershipRoutes:
    """The handlers of the routes of ownership. Safe to call from many tasks at once."""

    def __init__(self, services: OwnershipServices) -> None:
        self._services = services
        # Each check calls a server that a provider names.
        self._quota = Quota(
            "ownership-checks",
            "ownership checks",
            amount=services.limits.ownership_checks_per_hour,
            per="hour",
            rate_limiter=services.rate_limiter,
            namespace="ownership",
        )

    async def show_ownership(self, request: Request) -> Response:
        read_query(NoParameters, request.scope["query_string"])
        listing = await find_public_listing(self._services.catalog, _listing_id(request))
        challenge = self._services.checker.challenge(OwnershipClaim.of(listing))
        known = await self._services.ownerships.find(listing.id)
        return _ownership_response(ownership_json(challenge, known))

    async def check_ownership(self, request: Request) -> Response:
        services = self._services
        provider = (await services.authenticate(request)).address
        await self._find_own_listing(request, provider)
        read_query(NoParameters, request.scope["query_string"])
        _refuse_members(await request.body())
        await self._quota.charge(provider, client_address=client_address_of(request))
        for _ in range(CHECKS_MAX):
            listing = await self._find_own_listing(request, provider)
            challenge = services.checker.challenge(OwnershipClaim.of(listing))
            sights = await services.checker.find_evidence(challenge)
            known = await services.ownerships.record_check(
                challenge,
                sights.proved,
                now_ms=services.now_ms(),
                failures_max=services.limits.ownership_failures_max,
            )
            if known is not None:
                return _ownership_response({**ownership_json(challenge, known), "checks": sights.of})
        raise Refusal(_EDITED_MEANWHILE)

    async def _find_own_listing(self, request: Request, provider: Address) -> Listing:
        listing = await find_listing(self._services.catalog, _listing_id(request))
        if listing.provider != provider:
            detail = "Only the wallet that published this API may request a check of its ownership. Sign the request with that wallet."
            raise Refusal(Problem(code=Code.NOT_PROVIDER, detail=detail))
        if self._services.is_blocked(provider):
            raise Refusal(BLOCKED)
        return listing


def ownership_json(challenge: Challenge, known: Ownership | None) -> dict[str, Any]:
    """The ownership and the challenge that proves it. `method` and `verifiedAt` are those of a valid proof; else null."""
    is_verified = known is not None and known.is_verified
    return {
        "apiId": challenge.listing_id,
        "origin": challenge.origin,
        "state": "verified" if is_verified else "unverified",
        "method": known.method if known is not None and is_verified else None,
        "verifiedAt": _format_time(None if known is None else known.verified_ms),
        "checkedAt": _format_time(None if known is None else known.checked_ms),
        "failures": 0 if known is None else known.failures,
        "challenge": {
            "wellKnown": {"url": challenge.file_url, "content": challenge.content},
            "dns": None
            if challenge.dns_name is None
            else {"name": challenge.dns_name, "value": challenge.content},
            "signature": {
                "url": challenge.document_url,
                "pointer": _SIGNATURE_POINTER,
                "message": challenge.origin,
                "signer": str(challenge.pay_to),
            },
        },
    }


def _listing_id(request: Request) -> ListingId:
    return ListingId(request.path_params["apiId"])


def _format_time(ms: int | None) -> str | None:
    return None if ms is None else format_time(ms)


def _ownership_response(content: Mapping[str, Any]) -> Response:
    return Response(
        render_json(content), media_type="application/json", headers={"Cache-Control": "no-store"}
    )


def _refuse_members(raw: bytes) -> None:
    """Refuses a body with members: a check has none. Some clients send an empty object."""
    given = parse_json_object(raw) if raw.strip() else {}
    if given:
        problem = Problem(
            code=Code.VALIDATION_FAILED,
            detail="A check takes no members. Send an empty body.",
            errors=find_unknown_members(given, ()),
        )
        raise Refusal(problem)


_EDITED_MEANWHILE = Problem(
    code=Code.PRECONDITION_FAILED,
    detail="The API was changed at the same time. Read it and try again.",
)
