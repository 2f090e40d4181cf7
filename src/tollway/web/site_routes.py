"""The site: the page at `/`, the contract at `/openapi.json` and drawn at `/docs`, and the files by which crawlers and agents
find their way (`/llms.txt`, `/.well-known/api-catalog`, `/robots.txt`, `/.well-known/security.txt`). Reads only.

What stands in them is decided in `discovery`. No page loads anything from another host, and none runs a script of ours
inside itself; the addresses in them are the configured one, never what a request says it is.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fastapi import APIRouter, Request, Response

from tollway.discovery.catalog_files import (
    CATALOG_PAGE_SIZE,
    CATALOG_PAGES_MAX,
    CATALOG_PROFILE,
    CATALOG_TYPE,
    CatalogPage,
    describe_catalog,
    write_robots,
    write_security_text,
    write_site_text,
)
from tollway.discovery.site_contract import SiteProblemKind
from tollway.discovery.site_openapi import Site, build_site_openapi
from tollway.errors import Code, Problem, Refusal
from tollway.registry.catalog import Catalog, ListingQuery
from tollway.web.document_memory import Document, DocumentCache
from tollway.web.listing_query import PAGE_MAX, SEARCH_LENGTH_MAX
from tollway.web.listing_wire import has_etag, is_same_content, render_json
from tollway.web.problems import PROBLEM_KINDS
from tollway.web.shop_window import FeaturedOperations
from tollway.web.site_page import write_home
from tollway.web.wire import QueryParameters, format_time

CACHE_S, ASSET_CACHE_S = 60, 86_400
HOME_LIMIT = 20
TEXT_LISTINGS_MAX = 40
SECURITY_TEXT_DAYS = 90
_DAY_MS = 86_400_000

PAGES = Path(__file__).parent / "pages"
ASSETS = {
    "docs.js": "text/javascript; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "favicon.svg": "image/svg+xml",
}

_HTML, _TEXT = "text/html; charset=utf-8", "text/plain; charset=utf-8"
_CSP = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; img-src 'self' data:; style-src 'self'"
HOME_CSP = f"{_CSP}; form-action 'self'"
DOCS_CSP = f"{_CSP}; form-action 'none'; script-src 'self'; connect-src 'self'"
"""Content-Security-Policy. The page that draws the contract asks nobody but this origin, and runs files of ours alone."""

SITE_PROBLEM_KINDS = {
    code: SiteProblemKind(status=kind.status, is_delayed=kind.retry_after_s is not None)
    for code, kind in PROBLEM_KINDS.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteServices:
    """The collaborators of the routes."""

    catalog: Catalog
    featured_operations: FeaturedOperations
    site: Site
    now_ms: Callable[[], int]
    ticks_ms: Callable[[], int]


def site_router(services: SiteServices) -> APIRouter:
    routes = SiteRoutes(services)
    router = APIRouter(tags=["site"])
    router.add_api_route("/", routes.show_home, methods=["GET"])
    router.add_api_route("/openapi.json", routes.show_openapi, methods=["GET"])
    router.add_api_route("/docs", routes.show_docs, methods=["GET"])
    router.add_api_route("/docs/{name}", routes.show_asset, methods=["GET"])
    router.add_api_route("/favicon.svg", routes.show_favicon, methods=["GET"])
    router.add_api_route("/llms.txt", routes.show_text, methods=["GET"])
    router.add_api_route("/robots.txt", routes.show_robots, methods=["GET"])
    router.add_api_route("/.well-known/api-catalog", routes.show_catalog, methods=["GET"])
    router.add_api_route("/.well-known/security.txt", routes.show_security, methods=["GET"])
    return router


class SiteRoutes:
    """Safe to call from many tasks at once."""

    def __init__(self, services: SiteServices) -> None:
        self._services = services
        self._cache = DocumentCache(ticks_ms=services.ticks_ms)
        self._links = _format_links()

    async def show_home(self, request: Request) -> Response:
        query = QueryParameters(request.scope["query_string"], known=("q", "page"))
        words = query.text("q", length_max=SEARCH_LENGTH_MAX)
        number = query.integer("page", default=1, least=1, most=PAGE_MAX)
        query.finish()
        words = words if (words or "").strip() else None
        listing_query = ListingQuery(
            page=number, limit=HOME_LIMIT, words=words, sort="relevance" if words else "newest"
        )
        page = await self._services.catalog.search(listing_query)
        document = _with_etag(write_home(page, listing_query).encode())
        return self._answer(request, document, _HTML, more={"Content-Security-Policy": HOME_CSP})

    async def show_openapi(self, request: Request) -> Response:
        document = await self._cache.get_or_write("openapi", 0, self._write_openapi)
        return self._answer(request, document, "application/json")

    async def show_docs(self, request: Request) -> Response:
        document = await _read_page("docs.html")
        return self._answer(request, document, _HTML, more={"Content-Security-Policy": DOCS_CSP})

    async def show_asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ASSETS:
            raise Refusal(_NO_FILE)
        return await self._show_file(request, name)

    async def show_favicon(self, request: Request) -> Response:
        return await self._show_file(request, "favicon.svg")

    async def show_text(self, request: Request) -> Response:
        return self._answer(request, await self._cache.get_or_write("llms", 0, self._write_text), _TEXT)

    async def show_robots(self, request: Request) -> Response:
        return self._answer(request, _with_etag(write_robots(self._services.site.public_url).encode()), _TEXT)

    async def show_catalog(self, request: Request) -> Response:
        query = QueryParameters(request.scope["query_string"], known=("page",))
        number = query.integer("page", default=0, least=1, most=CATALOG_PAGES_MAX)
        query.finish()

        async def write() -> Document:
            return await self._write_catalog(number)

        document = await self._cache.get_or_write(f"catalog {number}", 0, write)
        return self._answer(request, document, f'{CATALOG_TYPE}; profile="{CATALOG_PROFILE}"')

    async def show_security(self, request: Request) -> Response:
        contact = self._services.site.contact
        if contact is None:
            raise Refusal(_NO_CONTACT)
        today_ms = self._services.now_ms() // _DAY_MS * _DAY_MS
        expires = format_time(today_ms + SECURITY_TEXT_DAYS * _DAY_MS)
        body = write_security_text(self._services.site.public_url, contact, expires=expires)
        return self._answer(request, _with_etag(body.encode()), _TEXT)

    # ---- What is written.

    async def _write_openapi(self) -> Document:
        featured = await self._services.featured_operations.choose()
        return _with_etag(
            await asyncio.to_thread(
                build_site_openapi, self._services.site, kinds=SITE_PROBLEM_KINDS, featured=featured
            )
        )

    async def _write_text(self) -> Document:
        page = await self._services.catalog.search(ListingQuery(limit=TEXT_LISTINGS_MAX))
        listings = tuple(found.listing for found in page.found)
        return _with_etag(
            write_site_text(self._services.site.public_url, listings, total=page.total).encode()
        )

    async def _write_catalog(self, number: int) -> Document:
        page = await self._services.catalog.search(ListingQuery(page=number or 1, limit=CATALOG_PAGE_SIZE))
        catalog_page = CatalogPage(
            listings=tuple(found.listing for found in page.found), total=page.total, number=number
        )
        content = await asyncio.to_thread(describe_catalog, self._services.site.public_url, catalog_page)
        return _with_etag(render_json(content))

    # ---- How it is answered.

    async def _show_file(self, request: Request, name: str) -> Response:
        return self._answer(request, await _read_page(name), ASSETS[name], cache_s=ASSET_CACHE_S)

    def _answer(
        self,
        request: Request,
        document: Document,
        media_type: str,
        *,
        cache_s: int = CACHE_S,
        more: dict[str, str] | None = None,
    ) -> Response:
        """With a validator of its content, and relations to the rest of the site."""
        headers = {
            "ETag": document.etag,
            "Cache-Control": f"public, max-age={cache_s}",
            "Link": self._links,
            **(more or {}),
        }
        known = request.headers.get("if-none-match")
        if known is not None and has_etag(known, document.etag, same=is_same_content):
            return Response(status_code=304, headers=headers)
        return Response(document.body, media_type=media_type, headers=headers)


async def _read_page(name: str) -> Document:
    return await asyncio.to_thread(lambda: _with_etag((PAGES / name).read_bytes()))


def _with_etag(body: bytes) -> Document:
    return Document(body=body, etag=f'"{sha256(body).hexdigest()[:24]}"')


def _format_links() -> str:
    links = (
        ("/.well-known/api-catalog", "api-catalog", CATALOG_TYPE),
        ("/openapi.json", "service-desc", "application/json"),
        ("/docs", "service-doc", "text/html"),
        ("/llms.txt", "service-doc", "text/plain"),
    )
    return ", ".join(f'<{path}>; rel="{rel}"; type="{media_type}"' for path, rel, media_type in links)


_NO_FILE = Problem(code=Code.ROUTE_NOT_FOUND, detail="Nothing lives at this path.")
_NO_CONTACT = Problem(code=Code.ROUTE_NOT_FOUND, detail="The operator has named no contact.")
