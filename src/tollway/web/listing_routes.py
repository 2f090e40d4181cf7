"""The routes of listings: list, publish, read, edit, retire.

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
from tollway.rate_limits.limiter import RateLimiter
from tollway.registry.catalog import (
    Catalog,
    CreationBegun,
    CreationResponse,
    ListingQuery,
    Revised,
    Sort,
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
from tollway.registry.listing_patch import list_dropped_operations, parse_patch, warn_about_dropped
from tollway.registry.moderation import (
    BlockedWallet,
    check_registration,
    describe_suspension,
    explain_block,
)
from tollway.registry.openapi import YamlRefused, parse_yaml_object
from tollway.registry.ownership import OWNED_BY_ANOTHER, UNVERIFIED_WARNING
from tollway.registry.quality import UNKNOWN_REPUTATION, Reputation
from tollway.registry.text import find_refused_character
from tollway.validation import WireError, value_error
from tollway.web.admission import PublishingLimits
from tollway.web.auth_routes import client_address_of
from tollway.web.idempotent_create import IdempotentCreate, lost_key_refusal
from tollway.web.json import parse_json_object
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
from tollway.web.problems import MERGE_PATCH_TYPE, describe_errors
from tollway.web.query import QueryModel, parsed, read_query, whole_number

_NOT_FOUND = Problem(code=Code.API_NOT_FOUND, detail="No API has this id. GET /api/v2/apis lists all APIs.")
_RETIRED = Problem(code=Code.API_RETIRED, detail="The provider has retired this API.")


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
        detail = describe_suspension(listing)
        raise Refusal(Problem(code=Code.API_PAUSED, detail=detail, reason="suspended"))
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
"""The placeholder for the id in a dry run; its response has `id` null, and the agent document `{apiId}`."""

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
    requires the proof; else None. `describe_draft`: the agent document of a listing, for dry runs; None leaves it out.
    """

    catalog: Catalog
    rules: DraftRules
    encoder: ListingEncoder
    limits: Limits
    authenticate: Callable[[Request], Awaitable[ProvenWallet]]
    check_endpoint: Callable[[Endpoint], Awaitable[None]]
    creations: IdempotentCreate
    find_block: Callable[[Address], BlockedWallet | None]
    allowlist: frozenset[Address] | None
    now_ms: Callable[[], int]
    entropy: Callable[[int], bytes]
    rate_limiter: RateLimiter
    is_unprotected: Callable[[Endpoint], Awaitable[bool]] | None = None
    fetch_document: Callable[[str], Awaitable[bytes]] | None = None
    find_owner: Callable[[str], Awaitable[Address | None]] | None = None
    describe_draft: Callable[[Listing], Awaitable[dict[str, Any]]] | None = None


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
            Route("/api/v2/apis/{apiId}", routes.patch, methods=["PATCH"]),
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
        if read_query(DryRunParameters, request.scope["query_string"]).dry_run == "true":
            _check_media_type(request)
            return await self._preview(await self._read_draft(request, provider, previous=None), provider)
        begun = await self._services.creations.begin(request, provider)
        if isinstance(begun, Response):
            return begun
        async with self._services.creations.holding(begun):
            return await self._create(request, provider, begun)

    async def _create(self, request: Request, provider: Address, begun: CreationBegun | None) -> Response:
        _check_media_type(request)
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
            _check_if_match(request, previous)
            block = self._services.find_block(provider)
            if block is not None:
                raise Refusal(explain_block(block))
            _check_media_type(request)
            draft = await self._read_draft(request, provider, previous=previous)
            if attempt == 0:
                await self._limits.charge_edit(provider, client_address=client_address_of(request))
            written = await self._revise(draft, previous)
            if written is not None:
                return written
        raise _edited_meanwhile()

    async def patch(self, request: Request) -> Response:
        """A merge patch (RFC 7396) onto the newest state; when another edit comes first, onto the state after it. A patch that changes
        nothing makes no revision."""
        provider = (await self._services.authenticate(request)).address
        await self._find_own_listing(request, provider)
        block = self._services.find_block(provider)
        if block is not None:
            raise Refusal(explain_block(block))
        is_dry_run = read_query(DryRunParameters, request.scope["query_string"]).dry_run == "true"
        _check_patch_type(request)
        patch = parse_json_object(await request.body())
        for attempt in range(EDITS_MAX):
            previous = await self._find_own_listing(request, provider)
            _check_if_match(request, previous)
            parsed = parse_patch(patch, self._services.rules, previous=previous)
            draft = await self._check_draft(request, provider, parsed, previous=previous)
            if is_dry_run:
                await self._limits.charge_probe(client_address_of(request))
                return await self._preview_edit(draft, previous)
            if attempt == 0:
                await self._limits.charge_edit(provider, client_address=client_address_of(request))
            written = await self._revise(draft, previous, writes_same=False)
            if written is not None:
                return written
        raise _edited_meanwhile()

    async def _revise(self, draft: Draft, previous: Listing, *, writes_same: bool = True) -> Response | None:
        """Writes the next revision. None when another edit came first. `writes_same`: also without a change."""
        listing = edit_listing(draft, previous, now_ms=self._services.now_ms())
        if writes_same or not is_same_listing(listing, previous):
            outcome = await self._services.catalog.revise(listing, expected_revision=previous.revision)
            if not isinstance(outcome, Revised):
                return None
            listing = outcome.listing
        else:
            listing = previous
        reputation = await self._services.catalog.reputation(listing.id)
        warnings = await self._list_edit_warnings(listing, previous, reputation)
        return self._written_response(listing, reputation, warnings, headers={}, status=200)

    async def _preview_edit(self, draft: Draft, previous: Listing) -> Response:
        """The response to a dry run of a patch: the listing after it, which is not written."""
        listing = edit_listing(draft, previous, now_ms=self._services.now_ms())
        reputation = await self._services.catalog.reputation(listing.id)
        warnings = warnings_json(await self._list_edit_warnings(listing, previous, reputation))
        written = {**self._services.encoder.details(listing, reputation), "dryRun": True}
        return await self._preview_response(listing, {**written, "warnings": warnings})

    async def _list_edit_warnings(
        self, listing: Listing, previous: Listing, reputation: Reputation
    ) -> tuple[ListingWarning, ...]:
        warnings = await self._list_warnings(listing, reputation)
        return (*warnings, *warn_about_dropped(list_dropped_operations(listing, previous)))

    async def retire(self, request: Request) -> Response:
        provider = (await self._services.authenticate(request)).address
        for _ in range(EDITS_MAX):
            previous = await self._find_own_listing(request, provider)
            _check_if_match(request, previous)
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
            provider, allowlist=services.allowlist, block=services.find_block(provider)
        )
        if problem is not None:
            raise Refusal(problem)
        return provider

    async def _find_own_listing(self, request: Request, provider: Address) -> Listing:
        """The current listing of this provider. Raises Refusal when another wallet published it."""
        listing = await find_listing(self._services.catalog, ListingId(request.path_params["apiId"]))
        if listing.provider != provider:
            detail = "Only the wallet that published this API may change it."
            raise Refusal(Problem(code=Code.NOT_PROVIDER, detail=detail))
        return listing

    # ---- The body.

    async def _read_draft(self, request: Request, provider: Address, *, previous: Listing | None) -> Draft:
        """The draft of the body, after all its checks."""
        parsed = parse_draft(parse_json_object(await request.body()), self._services.rules, previous=previous)
        return await self._check_draft(request, provider, parsed, previous=previous)

    async def _check_draft(
        self,
        request: Request,
        provider: Address,
        parsed: Draft | tuple[FieldError, ...],
        *,
        previous: Listing | None,
    ) -> Draft:
        """The checks of a draft: its form, then its endpoint, then its document."""
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
        return await self._preview_response(listing, {**written, "warnings": warnings})

    async def _preview_response(self, listing: Listing, written: dict[str, Any]) -> Response:
        """`agent`: the document that agents will read, with `{apiId}` for the id of a listing that is not created."""
        describe_draft = self._services.describe_draft
        if describe_draft is not None:
            agent = render_json(await describe_draft(listing)).replace(DRY_RUN_ID.encode(), b"{apiId}")
            written["agent"] = parse_json_object(agent)
        return _json_response(render_json(written), {"Cache-Control": "no-store"})

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


class DryRunParameters(QueryModel):
    """The query of `POST /apis` and `PATCH /apis/{apiId}`."""

    dry_run: Literal["true", "false"] = "false"


def _check_media_type(request: Request) -> None:
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        detail = "Send the body as application/json."
        raise Refusal(Problem(code=Code.UNSUPPORTED_MEDIA_TYPE, detail=detail))


def _check_patch_type(request: Request) -> None:
    """RFC 7396 §4 gives the type no parameters. A body of another type may be a whole listing, which must not count as a patch."""
    if request.headers.get("content-type", "").strip().lower() != MERGE_PATCH_TYPE:
        detail = f"Send the patch as {MERGE_PATCH_TYPE}. PUT replaces the whole listing."
        raise Refusal(Problem(code=Code.UNSUPPORTED_MEDIA_TYPE, detail=detail))


def _check_if_match(request: Request, listing: Listing) -> None:
    """Raises Refusal when `If-Match` names another revision."""
    wanted = request.headers.get("if-match")
    if wanted is not None and not has_etag(wanted, etag_of(listing, b""), same=is_same_revision):
        detail = f"The API has changed; its revision is {listing.revision} now. Read it and send its ETag as If-Match."
        raise Refusal(Problem(code=Code.PRECONDITION_FAILED, detail=detail))


def is_same_listing(listing: Listing, previous: Listing) -> bool:
    """Whether an edit changed nothing but the revision and its time."""
    return replace(listing, revision=previous.revision, updated_ms=previous.updated_ms) == previous


def _draft_problem(errors: tuple[FieldError, ...]) -> Problem:
    """The problem of a draft. When the outbound policy is its only error, the body is valid: that has a code of its own."""
    if all(error.code == ENDPOINT_POLICY for error in errors):
        return Problem(code=Code.ENDPOINT_NOT_ALLOWED, detail=errors[0].detail, errors=errors)
    return Problem(code=Code.VALIDATION_FAILED, detail=describe_errors(errors), errors=errors)


def _edited_meanwhile() -> Refusal:
    detail = "Another request changed the API at the same time. Read it and try again."
    return Refusal(Problem(code=Code.PRECONDITION_FAILED, detail=detail))
