"""`GET /api/v2/facets` and `GET /api/v2/apis/{apiId}/stats`: counts for filters, and the measured calls of one API by day. Read only.

Both responses are cached in memory for seconds, as the documents of an API are.
"""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from tollway.ids import ListingId, format_network
from tollway.registry.catalog import CatalogFacets
from tollway.registry.quality import DayQuality, day_of, summarise_days
from tollway.web.api.context import WebContext
from tollway.web.api.discovery_routes import CACHE_CONTROL, Document, DocumentCache
from tollway.web.api.listing_edits import find_public_listing
from tollway.web.api.listing_json import render_json
from tollway.web.api.listing_routes import SEARCH_LENGTH_MAX
from tollway.web.http.query import QueryModel, read_query

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FacetParameters(QueryModel):
    """The query of `GET /facets`."""

    q: Annotated[str, Field(max_length=SEARCH_LENGTH_MAX)] | None = None


def catalog_router(context: WebContext) -> Router:
    cache = DocumentCache(ticks_ms=context.ticks_ms)

    async def show_facets(request: Request) -> Response:
        words = read_query(FacetParameters, request.scope["query_string"]).q

        async def write() -> Document:
            return _document(_facets_json(await context.catalog.count_facets(words)))

        return _answer(await cache.get_or_write(f"facets {words!r}", 0, write))

    async def show_stats(request: Request) -> Response:
        listing = await find_public_listing(context.catalog, ListingId(request.path_params["apiId"]))
        today = day_of(context.now_ms())

        async def write() -> Document:
            counts = await context.quality.read_days(listing.id, today=today)
            days = [_day_json(day) for day in summarise_days(counts, today=today)]
            return _document({"id": listing.id, "days": days})

        return _answer(await cache.get_or_write(f"stats {listing.id}", today, write))

    return Router(
        [
            Route("/api/v2/facets", show_facets, methods=["GET"]),
            Route("/api/v2/apis/{apiId}/stats", show_stats, methods=["GET"]),
        ]
    )


def _document(content: dict[str, Any]) -> Document:
    return Document(body=render_json(content), etag="")


def _answer(document: Document) -> Response:
    return Response(document.body, media_type="application/json", headers={"Cache-Control": CACHE_CONTROL})


def _facets_json(facets: CatalogFacets) -> dict[str, Any]:
    return {
        "tags": [{"tag": tag, "count": count} for tag, count in facets.tags],
        "currencies": [{"currency": currency, "count": count} for currency, count in facets.currencies],
        "networks": [
            {"network": format_network(chain_id), "count": count} for chain_id, count in facets.networks
        ],
        "total": facets.total,
        **({"totalIsLowerBound": True} if facets.is_lower_bound else {}),
    }


def _day_json(day: DayQuality) -> dict[str, Any]:
    return {
        "day": (_EPOCH + timedelta(days=day.day)).date().isoformat(),
        "calls": day.calls,
        "successes": day.successes,
        "p50Ms": day.p50_ms,
        "p95Ms": day.p95_ms,
    }
