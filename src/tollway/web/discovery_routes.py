"""The four documents of one API: `/api/v2/apis/{apiId}/discovery`, `/agent`, `/openapi.json` and `/llms.txt`.

Reads only. What stands in a document is decided in `discovery`; here is asked what it needs to know (the listing, what is
measured of it, which ways to pay are open now), and it is written beside the event loop: a provider's document may be large.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from tollway.discovery.agent import describe_for_agents
from tollway.discovery.discovery_document import describe_listing
from tollway.discovery.listing_text import write_listing_text
from tollway.discovery.openapi import build_openapi
from tollway.discovery.shown_listing import ListingView, list_prices
from tollway.discovery.sold_operations import ApiOperation, list_operations
from tollway.identifiers import ListingId
from tollway.limits import Limits
from tollway.registry.catalog import Catalog
from tollway.registry.listing import Listing
from tollway.registry.pricing import payable_assets
from tollway.web.bazaar_routes import BazaarServices, IsOffered, describe_for_bazaar
from tollway.web.document_memory import Document, DocumentCache
from tollway.web.listing_finder import find_public_listing
from tollway.web.listing_wire import ListingEncoder, etag_of, has_etag, is_same_content, render_json
from tollway.web.wire import format_time

CACHE_CONTROL = "public, max-age=60"
"""Who calls at a price that is a minute old pays that one: the terms rule remembers prices for ten."""

_JSON, _OPENAPI, _TEXT = "application/json", "application/openapi+json", "text/markdown; charset=utf-8"

Compose = Callable[[ListingView, dict[str, Any] | None], bytes]
"""A document as bytes, from the listing and its entry in the bazaar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentServices:
    """The collaborators of the routes. `is_mpp_offered`: which amounts MPP settles now. `is_bound_required`: by the
    operator, for all listings."""

    catalog: Catalog
    encoder: ListingEncoder
    bazaar: BazaarServices
    limits: Limits
    is_mpp_offered: IsOffered
    is_bound_required: bool
    ticks_ms: Callable[[], int]


def discovery_router(services: DocumentServices) -> APIRouter:
    routes = DocumentRoutes(services)
    router = APIRouter(prefix="/api/v2/apis/{apiId}", tags=["discovery"])
    router.add_api_route("/discovery", routes.show_discovery, methods=["GET"])
    router.add_api_route("/agent", routes.show_agent, methods=["GET"])
    router.add_api_route("/openapi.json", routes.show_openapi, methods=["GET"])
    router.add_api_route("/llms.txt", routes.show_text, methods=["GET"])
    return router


class DocumentRoutes:
    """Safe to call from many tasks at once."""

    def __init__(self, services: DocumentServices) -> None:
        self._services = services
        self._cache = DocumentCache(ticks_ms=services.ticks_ms)

    async def show_discovery(self, request: Request) -> Response:
        return await self._show_document(request, "discovery", _JSON, _compose_discovery)

    async def show_agent(self, request: Request) -> Response:
        limits = self._services.limits
        return await self._show_document(
            request, "agent", _JSON, lambda view, _: render_json(describe_for_agents(view, limits))
        )

    async def show_openapi(self, request: Request) -> Response:
        return await self._show_document(
            request, "openapi", _OPENAPI, lambda view, _: render_json(_openapi(view))
        )

    async def show_text(self, request: Request) -> Response:
        return await self._show_document(
            request, "llms", _TEXT, lambda view, _: write_listing_text(view).encode()
        )

    async def _show_document(
        self, request: Request, kind: str, media_type: str, compose: Compose
    ) -> Response:
        listing_id = ListingId(request.path_params["apiId"])
        listing = await find_public_listing(self._services.catalog, listing_id)

        async def write() -> Document:
            return await self._write(listing, compose)

        document = await self._cache.get_or_write(f"{kind} {listing_id}", listing.revision, write)
        headers = {
            "ETag": document.etag,
            "Cache-Control": CACHE_CONTROL,
            "Link": f'<{self._services.encoder.url_of(listing_id)}>; rel="describes"',
        }
        known = request.headers.get("if-none-match")
        if known is not None and has_etag(known, headers["ETag"], same=is_same_content):
            return Response(status_code=304, headers=headers)
        return Response(document.body, media_type=media_type, headers=headers)

    async def _write(self, listing: Listing, compose: Compose) -> Document:
        """What may be large is done in a thread; what asks the gateway's own state is not."""
        operations = await asyncio.to_thread(list_operations, listing)
        view = await self._make_view(listing, operations)
        entry = describe_for_bazaar(self._services.bazaar, listing)
        return await asyncio.to_thread(_compose_document, compose, view, entry)

    async def _make_view(self, listing: Listing, operations: tuple[ApiOperation, ...]) -> ListingView:
        services = self._services
        reputation = await services.catalog.reputation(listing.id)
        return ListingView(
            listing=listing,
            operations=operations,
            details=services.encoder.details(listing, reputation),
            options={
                price.nano: services.encoder.options(listing, price)
                for price in list_prices(listing, operations)
            },
            public_url=services.encoder.public_url,
            verified_at=None if reputation.verified_ms is None else format_time(reputation.verified_ms),
            has_mpp=self._has_mpp(listing, operations),
            is_bound_only=services.is_bound_required or listing.signature == "bound",
        )

    def _has_mpp(self, listing: Listing, operations: tuple[ApiOperation, ...]) -> bool:
        assets = payable_assets(
            self._services.encoder.assets, currency=listing.currency, networks=listing.networks
        )
        prices = [price for price in list_prices(listing, operations) if not price.is_free]
        return any(
            self._services.is_mpp_offered(asset, price.units_in(asset), listing.id)
            for asset in assets
            for price in prices
        )


def _compose_document(compose: Compose, view: ListingView, entry: dict[str, Any] | None) -> Document:
    body = compose(view, entry)
    return Document(body=body, etag=etag_of(view.listing, body))


def _openapi(view: ListingView) -> dict[str, Any]:
    return build_openapi(
        view.listing,
        gateway_url=view.gateway_url,
        options_at=lambda price: view.options.get(price.nano, ()),
        has_mpp=view.has_mpp,
    )


def _compose_discovery(view: ListingView, entry: dict[str, Any] | None) -> bytes:
    return render_json(describe_listing(view, openapi=_openapi(view), bazaar=entry))
