"""The routes of the registry: list, publish, read, edit and retire listings.

It tells the story of each request in order (who asks, which listing, may he, what does the body say, does the endpoint
pass) and leaves every rule to the room that owns it. It never shows an upstream secret.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request, Response

from tollway.errors import Code, EndpointNotAllowed, FieldError, Problem, Refusal
from tollway.identifiers import Address, ListingId, format_id
from tollway.limits import Limits
from tollway.outbound.policy import Endpoint, EndpointRefused, parse_endpoint
from tollway.rates import Rates
from tollway.registry.advice import ENDPOINT_UNPROTECTED, PAYTO_SHARED, Advice, advise
from tollway.registry.catalog import Catalog, Revised
from tollway.registry.creation import Begun, CreationAnswer
from tollway.registry.draft import Draft, edit_listing, find_nothing_served, open_listing, parse_draft
from tollway.registry.draft_rules import ENDPOINT_POLICY, DraftRules, EndpointFault
from tollway.registry.listing import Listing
from tollway.registry.moderation import BLOCKED, check_registration
from tollway.registry.ownership import HELD_BY_ANOTHER, NOT_SHOWN_YET
from tollway.registry.standing import UNKNOWN_STANDING, Standing
from tollway.web.authentication import client_address_of
from tollway.web.creation_desk import CreationDesk, lost_key
from tollway.web.json_body import parse_json_object
from tollway.web.listing_finder import find_listing, find_shown_listing
from tollway.web.listing_query import parse_listing_query
from tollway.web.listing_wire import (
    ListingShape,
    advice_json,
    etag_of,
    has_etag,
    is_same_revision,
    is_same_weakly,
    page_json,
    page_links,
    render_json,
)
from tollway.web.problems import describe_errors
from tollway.web.provider_documents import ProviderDocuments
from tollway.web.registration_meter import RegistrationMeter
from tollway.web.wire import Query

EDITS_MAX = 3
"""An edit without `If-Match` that somebody else overtakes is tried again on the newer state."""

DRY_RUN_ID = ListingId("api_00000000000000000000000000")
"""Stands for the id that a dry run does not make; it is shown as null."""

_POLICY_REASONS = frozenset({"address", "port"})


class HasAddress(Protocol):
    """What the routes need of a proven identity."""

    @property
    def address(self) -> Address: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingDesk:
    """The collaborators of the routes.

    `authenticate` reads the body and proves a wallet, or raises Refusal. `probe` resolves and judges an endpoint, or
    raises `EndpointNotAllowed`. `is_unprotected` asks an endpoint whether it answers without the listing's secret.
    `fetch_document` reads an `openapiUrl` through the outbound dialer. The last two may be absent.
    `allowlist` None: anybody may publish. `find_holder`: who has proved that an origin is theirs, where the operator
    requires that.
    """

    catalog: Catalog
    rules: DraftRules
    shape: ListingShape
    limits: Limits
    authenticate: Callable[[Request], Awaitable[HasAddress]]
    probe: Callable[[Endpoint], Awaitable[None]]
    creations: CreationDesk
    is_blocked: Callable[[Address], bool]
    allowlist: frozenset[Address] | None
    now_ms: Callable[[], int]
    entropy: Callable[[int], bytes]
    rates: Rates
    is_unprotected: Callable[[Endpoint], Awaitable[bool]] | None = None
    fetch_document: Callable[[str], Awaitable[bytes]] | None = None
    find_holder: Callable[[str], Awaitable[Address | None]] | None = None


def endpoint_judge(*, allow_private: bool) -> Callable[[str], EndpointFault | None]:
    """`DraftRules.judge_endpoint` from the outbound policy."""

    def judge(endpoint: str) -> EndpointFault | None:
        parsed = parse_endpoint(endpoint, allow_private=allow_private)
        if isinstance(parsed, Endpoint):
            return None
        return EndpointFault(detail=parsed.detail, is_policy=parsed.reason in _POLICY_REASONS)

    return judge


def listing_router(desk: ListingDesk) -> APIRouter:
    """`/api/v2/apis` and `/api/v2/apis/{apiId}`."""
    routes = ListingRoutes(desk)
    router = APIRouter(prefix="/api/v2", tags=["registry"])
    router.add_api_route("/apis", routes.list_page, methods=["GET"])
    router.add_api_route("/apis", routes.create, methods=["POST"])
    router.add_api_route("/apis/{apiId}", routes.show, methods=["GET"])
    router.add_api_route("/apis/{apiId}", routes.update, methods=["PUT"])
    router.add_api_route("/apis/{apiId}", routes.retire, methods=["DELETE"])
    return router


class ListingRoutes:
    """Safe to call from many tasks at once."""

    def __init__(self, desk: ListingDesk) -> None:
        self._desk = desk
        fetch = desk.fetch_document
        self._documents = None if fetch is None else ProviderDocuments(fetch)
        self._meter = RegistrationMeter(limits=desk.limits, rates=desk.rates)

    async def list_page(self, request: Request) -> Response:
        raw: bytes = request.scope["query_string"]
        query = parse_listing_query(raw)
        page = await self._desk.catalog.search(query)
        given = parse_qsl(raw.decode("ascii", "replace"), keep_blank_values=True)
        link = page_links(f"{self._desk.shape.public_url}/api/v2/apis", given, page, query)
        return _answer(render_json(page_json(self._desk.shape, page, query)), {"Link": link})

    async def show(self, request: Request) -> Response:
        listing_id = ListingId(request.path_params["apiId"])
        listing = await find_shown_listing(self._desk.catalog, listing_id)
        standing = await self._desk.catalog.standing(listing.id)
        body = render_json(self._desk.shape.details(listing, standing))
        headers = {
            "ETag": etag_of(listing, body),
            "Cache-Control": "no-cache",
            "Link": self._desk.shape.link_header(listing),
        }
        known = request.headers.get("if-none-match")
        if known is not None and has_etag(known, headers["ETag"], same=is_same_weakly):
            return Response(status_code=304, headers=headers)
        return _answer(body, headers)

    async def create(self, request: Request) -> Response:
        provider = await self._admit(request)
        if _read_dry_run(request):
            return await self._preview(await self._read_draft(request, provider, previous=None), provider)
        begun = await self._desk.creations.begin(request, provider)
        if isinstance(begun, Response):
            return begun
        async with self._desk.creations.holding(begun):
            return await self._create(request, provider, begun)

    async def _create(self, request: Request, provider: Address, begun: Begun | None) -> Response:
        draft = await self._read_draft(request, provider, previous=None)
        now_ms = self._desk.now_ms()
        listing_id = ListingId(format_id("api", now_ms=now_ms, entropy=self._desk.entropy(10)))
        listing = open_listing(draft, listing_id=listing_id, provider=provider, now_ms=now_ms)
        warnings = await self._advise(listing, UNKNOWN_STANDING)
        await self._meter.charge(provider, client_address=client_address_of(request))
        location = self._desk.shape.url_of(listing.id)
        shown = self._show_written(
            listing, UNKNOWN_STANDING, warnings, headers={"Location": location}, status=201
        )
        if begun is None:
            await self._desk.catalog.publish(listing)
            return shown
        etag, body = shown.headers["etag"], bytes(shown.body)
        answer = CreationAnswer(listing_id=listing.id, location=location, etag=etag, body=body)
        answer = self._desk.creations.keep(answer)
        if not await self._desk.catalog.publish_once(listing, under=begun, answer=answer):
            raise lost_key()
        return shown

    async def update(self, request: Request) -> Response:
        provider = (await self._desk.authenticate(request)).address
        for turn in range(EDITS_MAX):
            previous = await self._find_own(request, provider)
            if self._desk.is_blocked(provider):
                raise Refusal(BLOCKED)
            draft = await self._read_draft(request, provider, previous=previous)
            if turn == 0:
                await self._meter.charge_edit(provider, client_address=client_address_of(request))
            listing = edit_listing(draft, previous, now_ms=self._desk.now_ms())
            outcome = await self._desk.catalog.revise(listing, expected_revision=previous.revision)
            if isinstance(outcome, Revised):
                standing = await self._desk.catalog.standing(listing.id)
                warnings = await self._advise(outcome.listing, standing)
                return self._show_written(outcome.listing, standing, warnings, headers={}, status=200)
        raise _overtaken()

    async def retire(self, request: Request) -> Response:
        provider = (await self._desk.authenticate(request)).address
        for _ in range(EDITS_MAX):
            previous = await self._find_own(request, provider)
            now_ms = self._desk.now_ms()
            # The secret has no use any more, so it is not kept.
            retired = replace(previous, retired_ms=now_ms, updated_ms=now_ms, upstream_auth=None)
            outcome = await self._desk.catalog.revise(retired, expected_revision=previous.revision)
            if isinstance(outcome, Revised):
                return Response(status_code=204)
        raise _overtaken()

    # ---- Who may.

    async def _admit(self, request: Request) -> Address:
        """The wallet that may publish here."""
        desk = self._desk
        provider = (await desk.authenticate(request)).address
        problem = check_registration(provider, allowlist=desk.allowlist, is_blocked=desk.is_blocked(provider))
        if problem is not None:
            raise Refusal(problem)
        return provider

    async def _find_own(self, request: Request, provider: Address) -> Listing:
        """The listing as it is now, when it is this provider's and is still what `If-Match` says."""
        listing = await find_listing(self._desk.catalog, ListingId(request.path_params["apiId"]))
        if listing.provider != provider:
            detail = "Only the wallet that published this API may change it."
            raise Refusal(Problem(code=Code.NOT_PROVIDER, detail=detail))
        wanted = request.headers.get("if-match")
        etag = etag_of(listing, b"")
        if wanted is not None and not has_etag(wanted, etag, same=is_same_revision):
            detail = f"The API has changed; it is at revision {listing.revision} now."
            raise Refusal(Problem(code=Code.PRECONDITION_FAILED, detail=detail))
        return listing

    # ---- What the body says.

    async def _read_draft(self, request: Request, provider: Address, *, previous: Listing | None) -> Draft:
        """The body, judged whole: its form, then its endpoint, then its document."""
        _check_media_type(request)
        parsed = parse_draft(parse_json_object(await request.body()), self._desk.rules, previous=previous)
        if isinstance(parsed, tuple):
            raise Refusal(_describe(parsed))
        if previous is None or previous.endpoint != parsed.endpoint:  # a dead name must not stop other edits
            endpoint = self._parse_endpoint(parsed)
            await self._meter.charge_look(client_address_of(request))
            await self._desk.probe(endpoint)
            await self._refuse_held(endpoint, provider)
        if not parsed.is_document_wanted:
            return parsed
        assert parsed.openapi_url is not None
        await self._meter.charge_look(client_address_of(request))
        return await self._with_document(parsed, parsed.openapi_url)

    def _parse_endpoint(self, draft: Draft) -> Endpoint:
        allow_private = self._desk.rules.allow_private_endpoints
        endpoint = parse_endpoint(draft.endpoint, allow_private=allow_private)
        if isinstance(endpoint, EndpointRefused):
            raise EndpointNotAllowed(endpoint.detail)
        return endpoint

    async def _refuse_held(self, endpoint: Endpoint, provider: Address) -> None:
        find_holder = self._desk.find_holder
        if find_holder is not None and await find_holder(endpoint.origin) not in (None, provider):
            raise Refusal(HELD_BY_ANOTHER)

    async def _with_document(self, draft: Draft, url: str) -> Draft:
        document = None if self._documents is None else await self._documents.read(url)
        found = replace(draft, openapi=document)
        conflict = find_nothing_served(found)
        if conflict is not None:
            raise Refusal(_describe((conflict,)))
        return found

    # ---- What is answered.

    async def _advise(self, listing: Listing, standing: Standing) -> tuple[Advice, ...]:
        desk = self._desk
        found = list(advise(listing, desk.rules.assets))
        if await desk.catalog.is_payee_shared(listing.pay_to, listing.provider):
            found.append(PAYTO_SHARED)
        if desk.is_unprotected is not None and not listing.price.is_free:
            endpoint = parse_endpoint(listing.endpoint, allow_private=desk.rules.allow_private_endpoints)
            if isinstance(endpoint, Endpoint) and await desk.is_unprotected(endpoint):
                found.append(ENDPOINT_UNPROTECTED)
        if desk.find_holder is not None and not standing.is_verified:
            found.append(NOT_SHOWN_YET)
        return tuple(found)

    async def _preview(self, draft: Draft, provider: Address) -> Response:
        """What a create would have made. Nothing has an id yet, so nothing links to it."""
        now_ms = self._desk.now_ms()
        listing = open_listing(draft, listing_id=DRY_RUN_ID, provider=provider, now_ms=now_ms)
        warnings = advice_json(await self._advise(listing, UNKNOWN_STANDING))
        shown = {
            **self._desk.shape.details(listing, UNKNOWN_STANDING),
            "id": None,
            "links": {},
            "dryRun": True,
        }
        return _answer(render_json({**shown, "warnings": warnings}), {"Cache-Control": "no-store"})

    def _show_written(
        self,
        listing: Listing,
        standing: Standing,
        warnings: tuple[Advice, ...],
        *,
        headers: dict[str, str],
        status: int,
    ) -> Response:
        shown = self._desk.shape.details(listing, standing)
        headers["ETag"] = etag_of(listing, render_json(shown))
        body = render_json({**shown, "warnings": advice_json(warnings)})
        return _answer(body, {**headers, "Cache-Control": "no-store"}, status=status)


def _answer(body: bytes, headers: dict[str, str], *, status: int = 200) -> Response:
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def _read_dry_run(request: Request) -> bool:
    query = Query(request.scope["query_string"], known=("dryRun",))
    is_dry_run = query.choice("dryRun", ("true", "false")) == "true"
    query.finish()
    return is_dry_run


def _check_media_type(request: Request) -> None:
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        detail = "Send the body as application/json."
        raise Refusal(Problem(code=Code.UNSUPPORTED_MEDIA_TYPE, detail=detail))


def _describe(errors: tuple[FieldError, ...]) -> Problem:
    """A body whose only fault is where its endpoint leads is well formed: that has a code of its own."""
    if all(error.code == ENDPOINT_POLICY for error in errors):
        return Problem(code=Code.ENDPOINT_NOT_ALLOWED, detail=errors[0].detail, errors=errors)
    return Problem(code=Code.VALIDATION_FAILED, detail=describe_errors(errors), errors=errors)


def _overtaken() -> Refusal:
    detail = "The API was changed by somebody else at the same moment. Read it and try again."
    return Refusal(Problem(code=Code.PRECONDITION_FAILED, detail=detail))
