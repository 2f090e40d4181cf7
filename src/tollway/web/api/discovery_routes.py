"""The documents of one API (`/discovery`, `/agent`, `/openapi.json`, `/llms.txt`) and the x402 bazaar over all listings. Read only.

`discovery` decides what a document contains. `/agent` has pages. Documents are written in a thread, because a provider's document can be large, and are cached for seconds.
The bazaar shows only what an authorization can pay for at this moment; a page may therefore hold less than `limit`.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from tollway.bounded_cache import BoundedCache
from tollway.discovery.agent_document import describe_for_agents
from tollway.discovery.bazaar import (
    BAZAAR,
    LIMIT_DEFAULT,
    LIMIT_MAX,
    ResourceFilter,
    choose_representative_call,
    describe_resource,
    resources_json,
    search_json,
)
from tollway.discovery.listing_documents import describe_listing, write_listing_text
from tollway.discovery.listing_view import ListingView, list_prices
from tollway.discovery.openapi import build_openapi
from tollway.discovery.operations import ApiOperation, list_operations
from tollway.errors import FieldError, Problem
from tollway.gateway.target import match_operation
from tollway.ids import Address, ListingId, Network, format_network, parse_network
from tollway.limits import MIB
from tollway.money import UNITS_MAX, Asset
from tollway.payments.pricing import PaymentRequirement, current_requirements, price_operation
from tollway.registry.catalog import ListingPage, ListingQuery, NetworkCurrency
from tollway.registry.listing import Listing, RevisionCache, payable_assets
from tollway.registry.metering import OfferedPrice
from tollway.web.api.context import WebContext
from tollway.web.api.listing_edits import find_public_listing
from tollway.web.api.listing_json import IsOffered, etag_of, etag_response, render_json, write_in_slices
from tollway.web.api.ownership_routes import find_other_owner
from tollway.web.http.problems import refuse_fields
from tollway.web.http.query import QueryModel, format_time, parsed, read_query, whole_number

CACHE_MS = 5_000
CACHE_WRITE_TIMES = 100
"""The least lifetime of a document, in multiples of the time to write it: writing takes at most a hundredth of a core."""
CACHE_MS_MAX = 60_000
CACHE_BYTES_MAX, CACHED_MAX = 32 * MIB, 65_536
OPERATIONS_CACHED_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The bytes of a document with their entity tag. The tag is kept because the digest of a large body is expensive."""

    body: bytes
    etag: str
    next_pages: tuple["Document", ...] = ()
    """The pages after this one, of a document with pages. They are written and cached with the first."""

    @property
    def size_bytes(self) -> int:
        return len(self.body) + sum(len(page.body) for page in self.next_pages)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CachedDocument:
    revision: int
    document: Document
    until_ms: int


class DocumentCache:
    """A cache of written documents for one process, bounded in bytes. `ticks_ms`: a monotonic clock. The turns of reads bound the documents that are written at once."""

    def __init__(self, *, ticks_ms: Callable[[], int], bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._ticks_ms = ticks_ms
        self._cached: BoundedCache[str, _CachedDocument] = BoundedCache(
            entries_max=CACHED_MAX, bytes_max=bytes_max, entry_bytes_max=bytes_max
        )

    async def get_or_write(
        self, name: str, revision: int, write: Callable[[], Awaitable[Document]]
    ) -> Document:
        """The document of this name and revision; calls `write` if the cache has none."""
        known = self._find(name, revision)
        if known is not None:
            return known
        began_ms = self._ticks_ms()
        document = await write()
        now_ms = self._ticks_ms()
        fresh_ms = min(max(CACHE_MS, CACHE_WRITE_TIMES * (now_ms - began_ms)), CACHE_MS_MAX)
        cached = _CachedDocument(revision=revision, document=document, until_ms=now_ms + fresh_ms)
        self._cached.put(name, cached, size_bytes=document.size_bytes)
        return document

    def _find(self, name: str, revision: int) -> Document | None:
        cached = self._cached.find(name)
        if cached is None or cached.revision != revision or cached.until_ms <= self._ticks_ms():
            return None
        self._cached.touch(name)
        return cached.document


OFFSET_MAX = 10_000
QUERY_LENGTH_MAX = 256
_FILTER_LENGTH_MAX = 64
_NETWORK = re.compile(r"[-a-z0-9]{3,8}:[-_a-zA-Z0-9]{1,32}")
_CURSOR = re.compile(r"[1-9][0-9]{0,4}")
ANY_RESOURCE = ResourceFilter()
_NO_LISTING = ListingId("")
_PROBE_UNITS = tuple(1 << power for power in range(UNITS_MAX.bit_length()))
"""Prices from the lowest to the highest. A network is open if any of them can be settled: a low price may not be worth its gas, and a high
one may need more confirmations than a call waits for."""


def is_settled_now(asset: Asset, is_offered: IsOffered) -> bool:
    """Whether some price in this asset can be settled for a listing without gas costs so far."""
    return asset.domain is not None and any(is_offered(asset, units, _NO_LISTING) for units in _PROBE_UNITS)


def bazaar_router(context: WebContext) -> Router:
    """Two routes under `/x402/discovery`. A client configures `{publicUrl}/x402` as its facilitator."""

    async def list_resources(request: Request) -> JSONResponse:
        query = read_query(ResourceParameters, request.scope["query_string"])
        wanted, limit, offset = query.to_filter(), query.limit, query.offset
        page = await _find_page(context, wanted, ListingQuery(limit=limit, skip=offset))
        records = await _write_records(context, wanted, page)
        return JSONResponse(resources_json(records, limit=limit, offset=offset, total=page.total))

    async def search(request: Request) -> JSONResponse:
        query = read_query(ResourceSearchParameters, request.scope["query_string"])
        wanted, limit, start = query.to_filter(), query.limit, query.cursor
        listing_query = ListingQuery(limit=limit, skip=start, words=query.query)
        page = await _find_page(context, wanted, listing_query)
        has_more = page.total > start + limit or (page.is_lower_bound and len(page.found) == limit)
        is_cut = has_more and start + limit > OFFSET_MAX
        cursor = str(start + limit) if has_more and not is_cut else None
        records = await _write_records(context, wanted, page)
        return JSONResponse(search_json(records, limit=limit, cursor=cursor, is_partial=is_cut))

    return Router(
        [
            Route("/x402/discovery/resources", list_resources, methods=["GET"]),
            Route("/x402/discovery/search", search, methods=["GET"]),
        ]
    )


async def _find_page(context: WebContext, wanted: ResourceFilter, query: ListingQuery) -> ListingPage:
    """A page of listings on networks where authorizations can be settled now."""
    network_currencies = tuple(
        network_currency
        for network_currency in _open_markets(context)
        if _is_wanted(network_currency, wanted)
    )
    if wanted.is_impossible or wanted.extension not in (None, BAZAAR) or not network_currencies:
        return ListingPage(found=(), total=0)
    network = network_currencies[0].chain_id if wanted.network is not None else None
    return await context.catalog.search(
        ListingQuery(
            limit=query.limit,
            skip=query.skip,
            words=query.words,
            sort=query.sort,
            network=network,
            pay_to=wanted.pay_to,
            network_currencies=network_currencies,
        )
    )


def _open_markets(context: WebContext) -> tuple[NetworkCurrency, ...]:
    """The networks and currencies on which some price can be settled for a listing without gas costs so far.

    The search leaves out the others (a key below its floor, gas too expensive, no domain): they would fill pages with nothing.
    """
    assets = (asset for rules in context.rules.values() for asset in rules.assets)
    return tuple(
        dict.fromkeys(
            NetworkCurrency(chain_id=asset.chain_id, currency=asset.symbol)
            for asset in assets
            if is_settled_now(asset, context.encoder.is_offered)
        )
    )


def _is_wanted(network_currency: NetworkCurrency, wanted: ResourceFilter) -> bool:
    return wanted.network in (None, format_network(network_currency.chain_id))


async def _write_records(
    context: WebContext, wanted: ResourceFilter, page: ListingPage
) -> list[dict[str, Any]]:
    records = await write_in_slices(
        page.found, lambda found: describe_for_bazaar(context, found.listing, wanted)
    )
    return [record for record in records if record is not None and wanted.has_extension(record)]


def describe_for_bazaar(
    context: WebContext, listing: Listing, wanted: ResourceFilter = ANY_RESOURCE
) -> dict[str, Any] | None:
    """The record of a listing; None if no requirement that can be settled now meets the filter."""
    requirements = tuple(
        one
        for one in _list_requirements(context, listing)
        if one.units <= UNITS_MAX and context.encoder.is_offered(one.asset, one.units, listing.id)
    )
    if not wanted.is_met_by(requirements):
        return None
    gateway_url = f"{context.public_url}/api/v2/gateway/{listing.id}"
    return describe_resource(listing, requirements, gateway_url=gateway_url)


def _list_requirements(context: WebContext, listing: Listing) -> tuple[PaymentRequirement, ...]:
    """The requirements of the listing's representative call, one for each way to pay; none for a free call."""
    entry = choose_representative_call(listing)
    operation = match_operation(listing.operations, entry.method, entry.path)
    if isinstance(operation, Problem):
        return ()
    operation_price = price_operation(listing.current_terms(since_ms=listing.updated_ms), operation)
    return current_requirements(operation_price, context.rules, timeout_s=listing.timeout_s)


# ---- The query.


def _parse_network(text: str) -> Network:
    """Parses CAIP-2. Namespaces other than eip155 are valid too."""
    if not _NETWORK.fullmatch(text):
        raise ValueError("a network is written like eip155:8453")
    return format_network(parse_network(text)) if text.startswith("eip155:") else Network(text)


def _parse_cursor(text: str) -> int:
    if not _CURSOR.fullmatch(text) or int(text) > OFFSET_MAX:
        raise ValueError("must be a cursor that a search gave")
    return int(text)


class FilterParameters(QueryModel):
    """The parameters of both routes. A well-formed value that this gateway does not offer (a type, scheme, network or extension) finds
    nothing and is no error."""

    network: Annotated[Network | None, parsed(_parse_network)] = None
    type: Literal["http", "mcp"] | None = None
    pay_to: Annotated[Address | None, parsed(Address.parse)] = None
    scheme: Annotated[str, Field(max_length=_FILTER_LENGTH_MAX)] | None = None
    extensions: Annotated[str, Field(max_length=_FILTER_LENGTH_MAX)] | None = None
    limit: Annotated[int, whole_number(1, LIMIT_MAX)] = LIMIT_DEFAULT

    def to_filter(self) -> ResourceFilter:
        return ResourceFilter(
            kind=self.type,
            pay_to=self.pay_to,
            scheme=self.scheme,
            network=self.network,
            extension=self.extensions,
        )


class ResourceParameters(FilterParameters):
    """The query of `GET /x402/discovery/resources`."""

    offset: Annotated[int, whole_number(0, OFFSET_MAX)] = 0


class ResourceSearchParameters(FilterParameters):
    """The query of `GET /x402/discovery/search`. An empty `query` finds nothing."""

    query: Annotated[str, Field(max_length=QUERY_LENGTH_MAX)]
    cursor: Annotated[int, parsed(_parse_cursor)] = 0


AGENT_PAGES_MAX = 10_000
"""The largest number that a request may name. An operation takes at most one page."""


class AgentParameters(QueryModel):
    """The query of `GET /apis/{apiId}/agent`."""

    page: Annotated[int, whole_number(1, AGENT_PAGES_MAX)] = 1


CACHE_CONTROL = "public, max-age=60"
"""A price may be a minute old: a call at an earlier price stays valid for ten minutes (the rule of terms)."""

_JSON, _OPENAPI, _TEXT = "application/json", "application/openapi+json", "text/markdown; charset=utf-8"

Compose = Callable[[ListingView, dict[str, Any] | None], tuple[bytes, ...]]
"""Composes the pages of a document, mostly one, from the view of a listing and its record in the bazaar."""


def discovery_router(context: WebContext) -> Router:
    routes = DocumentRoutes(context)
    return Router(
        [
            Route("/api/v2/apis/{apiId}/discovery", routes.show_discovery, methods=["GET"]),
            Route("/api/v2/apis/{apiId}/agent", routes.show_agent, methods=["GET"]),
            Route("/api/v2/apis/{apiId}/openapi.json", routes.show_openapi, methods=["GET"]),
            Route("/api/v2/apis/{apiId}/llms.txt", routes.show_text, methods=["GET"]),
        ]
    )


class DocumentRoutes:
    """The handlers of the documents of one listing. Many tasks may call them at once."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        self._cache = DocumentCache(ticks_ms=context.ticks_ms)
        self._operations: RevisionCache[tuple[ApiOperation, ...]] = RevisionCache(OPERATIONS_CACHED_MAX)

    async def show_discovery(self, request: Request) -> Response:
        return self._answer(request, await self._read(request, "discovery", _compose_discovery), _JSON)

    async def show_agent(self, request: Request) -> Response:
        number = read_query(AgentParameters, request.scope["query_string"]).page
        limits = self._context.limits
        document = await self._read(
            request,
            "agent",
            lambda view, _: tuple(render_json(page) for page in describe_for_agents(view, limits)),
        )
        pages = (document, *document.next_pages)
        if number > len(pages):
            detail = f"the document has {len(pages)} pages"
            raise refuse_fields(FieldError(code="out_of_range", detail=detail, parameter="page"))
        return self._answer(request, pages[number - 1], _JSON)

    async def describe_draft(self, listing: Listing) -> dict[str, Any]:
        """The first page of the agent document of a listing that is not published, or not yet changed."""
        view = await self.read_view(listing)
        pages = await asyncio.to_thread(describe_for_agents, view, self._context.limits)
        return dict(pages[0])

    async def show_openapi(self, request: Request) -> Response:
        document = await self._read(request, "openapi", lambda view, _: (render_json(_openapi(view)),))
        return self._answer(request, document, _OPENAPI)

    async def show_text(self, request: Request) -> Response:
        document = await self._read(request, "llms", lambda view, _: (write_listing_text(view).encode(),))
        return self._answer(request, document, _TEXT)

    async def _read(self, request: Request, kind: str, compose: Compose) -> Document:
        listing_id = ListingId(request.path_params["apiId"])
        listing = await find_public_listing(self._context.catalog, listing_id)
        write = partial(self._write, listing, compose)
        return await self._cache.get_or_write(f"{kind} {listing_id}", listing.revision, write)

    def _answer(self, request: Request, document: Document, media_type: str) -> Response:
        listing_id = ListingId(request.path_params["apiId"])
        headers = {
            "ETag": document.etag,
            "Cache-Control": CACHE_CONTROL,
            "Link": f'<{self._context.encoder.url_of(listing_id)}>; rel="describes"',
        }
        return etag_response(request, document.body, media_type, headers)

    async def _write(self, listing: Listing, compose: Compose) -> Document:
        """Reads and composes large documents in threads; reads the state of the gateway on the event loop."""
        view = await self.read_view(listing)
        entry = describe_for_bazaar(self._context, listing)
        return await asyncio.to_thread(_compose_document, compose, view, entry)

    async def read_view(self, listing: Listing) -> ListingView:
        """The view that all documents of a listing are made of. A large provider's document is read in a thread, once for each revision."""
        context = self._context
        operations = self._operations.find(listing, None)
        if operations is None:
            operations = self._operations.put(
                listing, None, await asyncio.to_thread(list_operations, listing)
            )
        reputation = await context.catalog.reputation(listing.id)
        owned_by = None
        if reputation.is_owned_by_another:
            owned_by = await find_other_owner(context, listing)
        return ListingView(
            listing=listing,
            operations=operations,
            details=context.encoder.details(listing, reputation),
            options={
                offered: context.encoder.options(listing, offered)
                for offered in list_prices(listing, operations)
            },
            public_url=context.encoder.public_url,
            verified_at=None if reputation.verified_ms is None else format_time(reputation.verified_ms),
            owned_by=owned_by,
            quality=reputation.quality,
            has_mpp=has_mpp(context, listing, list_prices(listing, operations)),
            is_bound_only=context.is_bound_required or listing.signature == "bound",
        )


def has_mpp(context: WebContext, listing: Listing, prices: Iterable[OfferedPrice]) -> bool:
    """Whether one of these prices of a listing can be paid by MPP now. A metered one cannot: it cannot take less than was signed."""
    assets = payable_assets(context.encoder.assets, currency=listing.currency, networks=listing.networks)
    return any(
        context.is_mpp_offered(asset, offered.price.units_in(asset), listing.id)
        for offered in prices
        if not offered.price.is_free and offered.metering is None
        for asset in assets
    )


def _compose_document(compose: Compose, view: ListingView, entry: dict[str, Any] | None) -> Document:
    first, *pages = compose(view, entry)
    return Document(
        body=first,
        etag=etag_of(view.listing, first),
        next_pages=tuple(Document(body=page, etag=etag_of(view.listing, page)) for page in pages),
    )


def _openapi(view: ListingView) -> dict[str, Any]:
    return build_openapi(
        view.listing,
        gateway_url=view.gateway_url,
        options_at=lambda offered: view.options.get(offered, ()),
        has_mpp=view.has_mpp,
    )


def _compose_discovery(view: ListingView, entry: dict[str, Any] | None) -> tuple[bytes, ...]:
    return (render_json(describe_listing(view, openapi=_openapi(view), bazaar=entry)),)
