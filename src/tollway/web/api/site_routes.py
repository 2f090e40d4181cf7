"""The site for programs: the contract (`/openapi.json`), files for crawlers and agents, published keys, health and problem pages. Read only.

`discovery` and `contract.py` decide what the files contain. URLs come from the configured public URL, never from the request.
"""

import asyncio
import html
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route, Router

from tollway.discovery.openapi import payment_info
from tollway.discovery.operations import ApiOperation, list_operations
from tollway.discovery.payment_guide import GUIDE_PATH, describe_payment
from tollway.discovery.safe_text import clean_line
from tollway.discovery.site_files import (
    CATALOG_PAGE_SIZE,
    CATALOG_PAGES_MAX,
    CATALOG_PROFILE,
    CATALOG_TYPE,
    SITEMAP_LISTINGS_MAX,
    SITEMAP_PAGES_MAX,
    SITEMAP_PATH,
    CatalogPage,
    describe_catalog,
    write_robots,
    write_security_text,
    write_site_text,
    write_sitemap,
    write_sitemap_index,
)
from tollway.errors import Code, FieldError, Problem, Refusal, refuse
from tollway.gateway.request_signing import NONCE_BYTES, UpstreamSigner
from tollway.identity.did_document import DID_PATH, DID_TYPE, describe_signers
from tollway.ids import Address, ListingId
from tollway.registry.catalog import ListingQuery
from tollway.registry.listing import Listing, RevisionCache
from tollway.registry.metering import offer
from tollway.web.api.context import WebContext
from tollway.web.api.discovery_routes import Document, DocumentCache, has_mpp
from tollway.web.api.listing_json import etag_response, render_json
from tollway.web.http.contract import FEATURED_MAX, FeaturedOperation, Site, SiteContract
from tollway.web.http.problems import PROBLEM_KINDS, PROBLEM_PAGES, problem_name, split_code
from tollway.web.http.query import QueryModel, format_time, read_query, whole_number

PER_LISTING_MAX = 5
LISTINGS_CACHED_MAX = 200
TITLE_LENGTH_MAX = 120


class FeaturedOperations:
    """Chooses the featured operations. A thread reads the document of a listing, once for each revision."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        self._cached: RevisionCache[tuple[ApiOperation, ...]] = RevisionCache(LISTINGS_CACHED_MAX)

    async def choose(self) -> tuple[FeaturedOperation, ...]:
        """At most `FEATURED_MAX` operations: the first of each listing, then the second of each, and so on."""
        page = await self._context.catalog.search(ListingQuery(limit=FEATURED_MAX))
        rows = [await self._describe(found.listing.id) for found in page.found]
        positions = range(max((len(row) for row in rows), default=0))
        return tuple(row[position] for position in positions for row in rows if position < len(row))[
            :FEATURED_MAX
        ]

    async def _describe(self, listing_id: ListingId) -> Sequence[FeaturedOperation]:
        entry = await self._context.catalog.find(listing_id)
        if entry is None or entry.listing.status != "active" or entry.listing.retired_ms is not None:
            return ()
        listing = entry.listing
        title = clean_line(listing.name, TITLE_LENGTH_MAX)
        found = []
        for operation in await self._read(listing):
            offered = offer(operation)
            info = payment_info(
                offered,
                listing.currency,
                self._context.encoder.options(listing, offered),
                has_mpp=has_mpp(self._context, listing, [offered]),
            )
            if info is not None and info["protocols"] and "price" in info:
                found.append(
                    FeaturedOperation(listing_id=listing.id, title=title, operation=operation, payment=info)
                )
        return found

    async def _read(self, listing: Listing) -> tuple[ApiOperation, ...]:
        known = self._cached.find(listing, None)
        if known is not None:
            return known
        operations = await asyncio.to_thread(list_operations, listing)
        return self._cached.put(listing, None, operations[:PER_LISTING_MAX])


CACHE_S, ASSET_CACHE_S = 60, 86_400
TEXT_LISTINGS_MAX = 40
SECURITY_TEXT_DAYS = 90
_DAY_MS = 86_400_000

FAVICON = Path(__file__).parents[1] / "pages" / "favicon.svg"
_TEXT = "text/plain; charset=utf-8"
_XML = "application/xml"


def site_router(context: WebContext) -> Router:
    routes = SiteRoutes(context)
    leads = [_lead("/", "/llms.txt"), _lead("/docs", "/openapi.json")]
    return Router(
        [
            *([Route(SITEMAP_PATH, routes.show_sitemap, methods=["GET"])] if context.has_pages else leads),
            Route("/openapi.json", routes.show_openapi, methods=["GET"]),
            Route(GUIDE_PATH, routes.show_payment_guide, methods=["GET"]),
            Route("/favicon.svg", routes.show_favicon, methods=["GET"]),
            Route("/llms.txt", routes.show_text, methods=["GET"]),
            Route("/robots.txt", routes.show_robots, methods=["GET"]),
            Route("/.well-known/api-catalog", routes.show_catalog, methods=["GET"]),
            Route("/.well-known/security.txt", routes.show_security, methods=["GET"]),
        ]
    )


def _lead(path: str, to: str) -> Route:
    """A route of a gateway without pages, which leads to a document instead."""

    async def lead(request: Request) -> Response:
        return Response(
            status_code=303, headers={"Location": to, "Cache-Control": f"public, max-age={CACHE_S}"}
        )

    return Route(path, lead, methods=["GET"])


class CatalogParameters(QueryModel):
    """The query of the API catalog. `page` 0: the request names no page."""

    page: Annotated[int, whole_number(1, CATALOG_PAGES_MAX)] = 0


class SitemapParameters(QueryModel):
    """The query of the sitemap. `page` 0: the request names no page."""

    page: Annotated[int, whole_number(1, SITEMAP_PAGES_MAX)] = 0


class SiteRoutes:
    """The handlers of the site's pages and files. Many tasks may call them at once."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        self._contract = SiteContract(
            Site(public_url=context.public_url, version=context.version, operator=context.operator)
        )
        self._featured_operations = FeaturedOperations(context)
        self._cache = DocumentCache(ticks_ms=context.ticks_ms)
        self._links = format_links()
        self._favicon = _with_etag(FAVICON.read_bytes())
        self._robots = _with_etag(write_robots(context.public_url, has_pages=context.has_pages).encode())
        self._payment_guide = _with_etag(render_json(describe_payment(context.public_url, context.limits)))

    async def show_openapi(self, request: Request) -> Response:
        document = await self._cache.get_or_write("openapi", 0, self._write_openapi)
        return self._answer(request, document, "application/json")

    async def show_payment_guide(self, request: Request) -> Response:
        return self._answer(request, self._payment_guide, "application/json")

    async def show_favicon(self, request: Request) -> Response:
        return self._answer(request, self._favicon, "image/svg+xml", cache_s=ASSET_CACHE_S)

    async def show_text(self, request: Request) -> Response:
        return self._answer(request, await self._cache.get_or_write("llms", 0, self._write_text), _TEXT)

    async def show_robots(self, request: Request) -> Response:
        return self._answer(request, self._robots, _TEXT)

    async def show_sitemap(self, request: Request) -> Response:
        number = read_query(SitemapParameters, request.scope["query_string"]).page
        write = partial(self._write_sitemap, number)
        document = await self._cache.get_or_write(f"sitemap {number}", 0, write)
        return self._answer(request, document, _XML)

    async def show_catalog(self, request: Request) -> Response:
        number = read_query(CatalogParameters, request.scope["query_string"]).page
        write = partial(self._write_catalog, number)
        document = await self._cache.get_or_write(f"catalog {number}", 0, write)
        return self._answer(request, document, f'{CATALOG_TYPE}; profile="{CATALOG_PROFILE}"')

    async def show_security(self, request: Request) -> Response:
        contact = self._context.operator.contact
        if contact is None:
            raise Refusal(_NO_CONTACT)
        today_ms = self._context.now_ms() // _DAY_MS * _DAY_MS
        expires = format_time(today_ms + SECURITY_TEXT_DAYS * _DAY_MS)
        body = write_security_text(self._context.public_url, contact, expires=expires)
        return self._answer(request, _with_etag(body.encode()), _TEXT)

    # ---- Documents.

    async def _write_openapi(self) -> Document:
        featured = await self._featured_operations.choose()
        return _with_etag(await asyncio.to_thread(self._contract.build, featured))

    async def _write_text(self) -> Document:
        page = await self._context.catalog.search(ListingQuery(limit=TEXT_LISTINGS_MAX))
        listings = tuple(found.listing for found in page.found)
        text = write_site_text(
            self._context.public_url, listings, total=page.total, operator=self._context.operator
        )
        return _with_etag(text.encode())

    async def _write_catalog(self, number: int) -> Document:
        page = await self._context.catalog.search(
            ListingQuery(page=number or 1, limit=CATALOG_PAGE_SIZE, sort="newest")
        )
        catalog_page = CatalogPage(
            listings=tuple(found.listing for found in page.found), total=page.total, number=number
        )
        content = await asyncio.to_thread(
            describe_catalog, self._context.public_url, catalog_page, operator=self._context.operator
        )
        return _with_etag(render_json(content))

    async def _write_sitemap(self, number: int) -> Document:
        """The sitemap of this number; without one, the only sitemap or the index of several. Raises Refusal for a number after the last."""
        public_url, size = self._context.public_url, SITEMAP_LISTINGS_MAX
        start = max(number - 1, 0) * size
        found = await self._context.catalog.list_range(start + 1, start + size)
        pages = min(max(1, -(-found.last_number // size)), SITEMAP_PAGES_MAX)
        if number > pages:
            raise Refusal(_NO_SITEMAP)
        if number == 0 and pages > 1:
            return _with_etag(write_sitemap_index(public_url, pages).encode())
        listings = [(listing_id, format_time(updated_ms)) for listing_id, updated_ms in found.listings]
        text = await asyncio.to_thread(write_sitemap, public_url, listings, has_site_pages=number <= 1)
        return _with_etag(text.encode())

    # ---- Responses.

    def _answer(
        self,
        request: Request,
        document: Document,
        media_type: str,
        *,
        cache_s: int = CACHE_S,
    ) -> Response:
        """A response with an entity tag, and links to the other documents of the site; a 304 if the client has the document."""
        headers = {
            "ETag": document.etag,
            "Cache-Control": f"public, max-age={cache_s}",
            "Link": self._links,
        }
        return etag_response(request, document.body, media_type, headers)


def _with_etag(body: bytes) -> Document:
    return Document(body=body, etag=f'"{sha256(body).hexdigest()[:24]}"')


def format_links() -> str:
    """The `Link` header (RFC 8288) to the documents of the site."""
    links = (
        ("/.well-known/api-catalog", "api-catalog", CATALOG_TYPE),
        ("/openapi.json", "service-desc", "application/json"),
        ("/docs", "service-doc", "text/html"),
        ("/llms.txt", "service-doc", "text/plain"),
    )
    return ", ".join(f'<{path}>; rel="{rel}"; type="{media_type}"' for path, rel, media_type in links)


_NO_SITEMAP = Problem(
    code=Code.ROUTE_NOT_FOUND, detail="There are not so many sitemaps; /sitemap.xml names each of them."
)
_NO_CONTACT = Problem(
    code=Code.ROUTE_NOT_FOUND,
    detail="The operator has not configured a contact (setting operator_contact).",
)


def did_router(*, authority: str, signers: Sequence[Address]) -> Router:
    """`/.well-known/did.json`. `authority`: host and port of the public URL. `signers`: the current one first; signatures of the others stay valid."""
    document = describe_signers(authority=authority, signers=signers)

    async def read_did(request: Request) -> JSONResponse:
        headers = {"Cache-Control": "public, max-age=300"}
        return JSONResponse(document, headers=headers, media_type=DID_TYPE)

    return Router([Route(DID_PATH, read_did, methods=["GET"])])


KEY_DIRECTORY_PATH = "/.well-known/http-message-signatures-directory"
KEY_DIRECTORY_TYPE = "application/http-message-signatures-directory+json"
KEY_DIRECTORY_CACHE_S = 300


def key_directory_router(
    signer: UpstreamSigner,
    *,
    authority: str,
    now_ms: Callable[[], int],
    entropy: Callable[[int], bytes],
) -> Router:
    """The directory of signing keys (RFC 9421). `authority`: host and port of the public URL, independent of `Host`."""
    body = render_json(signer.describe())

    async def read_directory(request: Request) -> Response:
        signed = signer.sign_directory(
            authority=authority, created_s=now_ms() // 1000, nonce=entropy(NONCE_BYTES).hex()
        )
        headers = {"Cache-Control": f"public, max-age={KEY_DIRECTORY_CACHE_S}", **signed}
        return Response(body, headers=headers, media_type=KEY_DIRECTORY_TYPE)

    return Router([Route(KEY_DIRECTORY_PATH, read_directory, methods=["GET"])])


Readiness = Callable[[], Awaitable[Mapping[str, bool]]]
"""The checks by name (`storage`, `chain_8453`, …); true: passed."""


def health_router(readiness: Readiness, traffic: Readiness, *, has_pages: bool = False) -> Router:
    """`/healthz` (the process), `/readyz` (the process and its dependencies), `/problems` and `/problems/{code}`. `traffic`: the checks of
    `/readyz?for=traffic`, which a load balancer reads. `has_pages`: `page_router` serves the last two."""

    async def healthz(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"}, headers={"cache-control": "no-store"})

    async def readyz(request: Request) -> JSONResponse:
        purpose = request.query_params.get("for")
        if purpose not in (None, "traffic"):
            raise Refusal(_OTHER_PURPOSE)
        checks = dict(await (readiness() if purpose is None else traffic()))
        failed = [name for name, is_well in checks.items() if not is_well]
        if failed:
            raise Refusal(_not_ready(checks, failed))
        return JSONResponse({"status": "ok", "checks": checks}, headers={"cache-control": "no-store"})

    async def list_problems(request: Request) -> HTMLResponse:
        rows = "".join(
            f'<li><a href="/problems/{problem_name(code)}"><code>{code.value}</code></a> {html.escape(PROBLEM_KINDS[code].title)}</li>'
            for code in Code
        )
        return HTMLResponse(_page("Problems", f"<ul>{rows}</ul>"))

    async def show_problem(request: Request) -> HTMLResponse:
        name = request.path_params["name"]
        code = next((code for code in Code if problem_name(code) == name), None)
        if code is None:
            raise refuse(
                code=Code.ROUTE_NOT_FOUND, detail="No problem has this name. See /problems for all names."
            )
        kind, page = PROBLEM_KINDS[code], PROBLEM_PAGES[code]
        again = "The same request, sent again later, can succeed." if kind.is_retryable else ""
        text = (
            f"<p><code>{code.value}</code>, HTTP status {kind.status}.</p>"
            f"<h2>What it means</h2><p>{_write_prose(page.meaning)}</p>"
            f"<h2>What to do</h2><p>{_write_prose(page.remedy)} {again}</p>"
            '<p><a href="/problems">All problems</a></p>'
        )
        return HTMLResponse(_page(kind.title, text), headers={"cache-control": "public, max-age=3600"})

    problems = [
        Route("/problems", list_problems, methods=["GET"]),
        Route("/problems/{name}", show_problem, methods=["GET"]),
    ]
    return Router(
        [
            Route("/healthz", healthz, methods=["GET"]),
            Route("/readyz", readyz, methods=["GET"]),
            *([] if has_pages else problems),
        ]
    )


_OTHER_PURPOSE = Problem(
    code=Code.INVALID_REQUEST,
    detail="`for` can be `traffic` only. Leave it out to check the chains and the background tasks too.",
    errors=(FieldError(code="unknown_value", detail="must be traffic", parameter="for"),),
)


def _not_ready(checks: Mapping[str, bool], failed: Sequence[str]) -> Problem:
    """The problem of the most severe failed check: without storage a gateway serves no call, without a chain it still serves credit."""
    code = Code.OVERLOADED
    if any(name.startswith("chain") for name in failed):
        code = Code.CHAIN_UNAVAILABLE
    if "storage" in failed:
        code = Code.STORAGE_UNAVAILABLE
    return Problem(code=code, detail="Not ready: " + ", ".join(failed), members={"checks": checks})


def _write_prose(text: str) -> str:
    """A sentence as HTML, with its code."""
    parts = ((html.escape(part), is_code) for part, is_code in split_code(text))
    return "".join(f"<code>{part}</code>" if is_code else part for part, is_code in parts)


def _page(title: str, text: str) -> str:
    heading = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{heading} - Tollway</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1"></head>'
        f"<body><h1>{heading}</h1>{text}</body></html>"
    )
