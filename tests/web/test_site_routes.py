"""The site over HTTP: pages without foreign files and inline scripts, cacheable files, and escaped texts of providers."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from tests.kit.listings import sample_listing
from tests.kit.stores import ControlStores
from tollway.ids import Address, ListingId
from tollway.limits import Limits
from tollway.money import Asset, Price, TokenDomain
from tollway.registry.listing import Listing
from tollway.registry.quality import Quality, Reputation
from tollway.sandbox.provider import SAMPLE_DOCUMENT
from tollway.web.admission import LoadShedder
from tollway.web.app import build_app
from tollway.web.contract import Site
from tollway.web.discovery_routes import CACHE_MS
from tollway.web.listing_json import ListingEncoder
from tollway.web.site_routes import ASSETS, PAGES, FeaturedOperations, SiteServices, site_router

PUBLIC_URL = "https://gw.example.com"
ALICE = Address(b"\xaa" * 20)
NOW_MS = 1_795_239_000_000
QUOTES = sample_listing(
    provider=ALICE,
    id=ListingId("api_quotes"),
    name="Quotes",
    description="A price for every symbol",
    openapi=SAMPLE_DOCUMENT,
)
USDC = Asset(
    chain_id=QUOTES.networks[0],
    token=Address(b"\x01" * 20),
    symbol="USDC",
    decimals=6,
    domain=TokenDomain(name="USD Coin", version="2"),
)
KEPT = (
    "/",
    "/openapi.json",
    "/docs",
    "/docs/payment.json",
    "/docs/docs.js",
    "/docs/swagger-ui-bundle.js",
    "/favicon.svg",
    "/llms.txt",
    "/robots.txt",
    "/.well-known/api-catalog",
    "/.well-known/security.txt",
)
TRICKS = (
    '"><script>alert(1)</script>',
    "<img src=x onerror=alert(1)>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "[click](javascript:alert(1))",
    "\u202egnp.exe\u2066",
    "' onmouseover='alert(1)",
    "a\r\nb",
)


class Harness:
    """The routes of the site over a catalog in memory."""

    def __init__(self) -> None:
        self.stores = ControlStores(now_ms=lambda: NOW_MS)
        self.catalog = self.stores.catalog
        self.ticks_ms = 0
        self.settles = True
        self.contact: str | None = "mailto:ops@example.com"

    def open(self) -> httpx.AsyncClient:
        encoder = ListingEncoder(
            public_url=PUBLIC_URL,
            assets=(USDC,),
            confirmations_for=lambda asset, units: 1,
            is_offered=lambda asset, units, listing_id: self.settles,
        )
        services = SiteServices(
            catalog=self.catalog,
            featured_operations=FeaturedOperations(
                self.catalog, encoder, is_mpp_offered=lambda asset, units, listing_id: self.settles
            ),
            site=Site(public_url=PUBLIC_URL, version="1.2.3", contact=self.contact),
            limits=Limits(),
            now_ms=lambda: NOW_MS,
            ticks_ms=lambda: self.ticks_ms,
        )
        app = build_app(
            call_app=no_calls,
            routers=[site_router(services)],
            public_url=PUBLIC_URL,
            limits=Limits(),
            clock=lambda: 0.0,
            entropy=lambda size: bytes(size),
            shedder=LoadShedder(limits=Limits(), clock=lambda: 0.0, read_memory_bytes=lambda: 0),
        )
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://evil.test", follow_redirects=False
        )


async def no_calls(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotImplementedError


@pytest.fixture
async def harness() -> Harness:
    harness = Harness()
    await harness.catalog.publish(QUOTES)
    return harness


@pytest.fixture
async def client(harness: Harness) -> AsyncIterator[httpx.AsyncClient]:
    async with harness.open() as client:
        yield client


class Reader(HTMLParser):
    """Parses a page as a browser does."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.handlers.append(name)
            if name in ("href", "src", "action"):
                self.addresses.append(value or "")


# ---- Caching.


@pytest.mark.parametrize("path", KEPT)
async def test_a_file_is_cacheable_and_has_a_validator(client: httpx.AsyncClient, path: str) -> None:
    client.headers["Accept-Encoding"] = "identity"
    answer = await client.get(path)
    assert answer.status_code == 200
    assert re.fullmatch(r"public, max-age=[1-9][0-9]*", answer.headers["cache-control"])
    again = await client.get(path, headers={"If-None-Match": f'"other", W/{answer.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == answer.headers["etag"]
    head = await client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(answer.content))


@pytest.mark.parametrize("path", KEPT)
async def test_every_response_links_to_the_documents_of_the_site(
    client: httpx.AsyncClient, path: str
) -> None:
    relations = set(re.findall(r'rel="([^"]+)"', (await client.head(path)).headers["link"]))
    assert relations == {"api-catalog", "service-desc", "service-doc"}


@pytest.mark.parametrize("name", ["docs/swagger-ui-bundle.js", "docs/swagger-ui.css", "favicon.svg"])
async def test_a_vendored_file_is_compressed_where_that_is_accepted(
    client: httpx.AsyncClient, name: str
) -> None:
    plain = await client.get(f"/{name}", headers={"Accept-Encoding": "identity"})
    packed = await client.get(f"/{name}", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"
    assert packed.content == plain.content
    assert packed.num_bytes_downloaded < len(plain.content)
    assert packed.headers["etag"] != plain.headers["etag"]


TYPES = {
    "/": "text/html; charset=utf-8",
    "/openapi.json": "application/json",
    "/docs": "text/html; charset=utf-8",
    "/llms.txt": "text/plain; charset=utf-8",
    "/robots.txt": "text/plain; charset=utf-8",
    "/.well-known/api-catalog": 'application/linkset+json; profile="https://www.rfc-editor.org/info/rfc9727"',
    "/.well-known/security.txt": "text/plain; charset=utf-8",
    "/favicon.svg": "image/svg+xml",
    "/docs/swagger-ui.css": "text/css; charset=utf-8",
    "/docs/payment.json": "application/json",
}


@pytest.mark.parametrize(("path", "media_type"), TYPES.items())
async def test_a_file_has_its_media_type(client: httpx.AsyncClient, path: str, media_type: str) -> None:
    answer = await client.get(path)
    assert answer.headers["content-type"] == media_type
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/openapi.json", "/llms.txt", "/.well-known/api-catalog", "/"])
async def test_urls_are_the_configured_ones(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path, headers={"X-Forwarded-Host": "evil.test", "Host": "evil.test"})
    assert "evil.test" not in answer.text


async def test_the_payment_guide_has_a_path_for_everything_that_it_names(client: httpx.AsyncClient) -> None:
    guide = (await client.get("/docs/payment.json")).json()
    assert guide["origin"] == PUBLIC_URL
    assert [rail["rail"] for rail in guide["rails"]] == ["x402", "mpp", "tx"]
    contract = (await client.get("/openapi.json")).json()["paths"]
    assert {guide["history"]["calls"], guide["history"]["payments"], "/docs/payment.json"} <= set(contract)


async def test_a_new_listing_appears_within_seconds(harness: Harness, client: httpx.AsyncClient) -> None:
    assert "Weather" not in (await client.get("/llms.txt")).text
    await harness.catalog.publish(replace(QUOTES, id=ListingId("api_weather"), name="Weather"))
    harness.ticks_ms += CACHE_MS
    assert "Weather" in (await client.get("/llms.txt")).text


# ---- Pages.


@pytest.mark.parametrize("path", ["/", "/?q=price", "/docs"])
async def test_a_page_loads_nothing_from_other_hosts_and_runs_no_inline_script(
    client: httpx.AsyncClient, path: str
) -> None:
    answer = await client.get(path)
    rules = answer.headers["content-security-policy"]
    assert "default-src 'none'" in rules
    assert "unsafe" not in rules
    assert f"style-src {PUBLIC_URL}/docs/;" in rules
    assert ("script-src" in rules) == (f"script-src {PUBLIC_URL}/docs/;" in rules) == (path == "/docs")
    assert answer.headers["x-frame-options"] == "DENY"
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    reader = Reader(answer.text)
    assert reader.handlers == []
    assert "style" not in reader.tags
    assert all(re.match(r"/(?!/)", address) for address in reader.addresses)
    assert re.search(r"<script(?![^>]*\bsrc=)", answer.text) is None
    assert ("script" in reader.tags) == (path == "/docs")


async def test_the_files_of_the_rendered_contract_exist(client: httpx.AsyncClient) -> None:
    wanted = [one for one in Reader((await client.get("/docs")).text).addresses if one.startswith("/docs/")]
    assert len(wanted) == 3
    assert [(await client.get(one)).status_code for one in wanted] == [200, 200, 200]
    assert {path.name for path in PAGES.iterdir()} >= set(ASSETS)


VENDORED = {
    "swagger-ui-bundle.js": "e6a898692f2d768e807c3ba4626068a69a2c5dd960dd6c76f3e4d3a3de180af2",
    "swagger-ui.css": "5ed08757e53da3e026d6cbecc61fe5d43585c9560b302d534ad56692519a273d",
}
"""The digests of swagger-ui-dist 5.35.0 as published."""


@pytest.mark.parametrize(("name", "digest"), VENDORED.items())
def test_vendored_files_are_unchanged(name: str, digest: str) -> None:
    assert sha256((PAGES / name).read_bytes()).hexdigest() == digest
    assert (PAGES / "swagger-ui.LICENSE").exists()


@pytest.mark.parametrize(
    "name", ["docs.html", "..%2Fsite_routes.py", "%2e%2e/app.py", "x", "swagger-ui.LICENSE"]
)
async def test_only_listed_files_are_served(client: httpx.AsyncClient, name: str) -> None:
    answer = await client.get(f"/docs/{name}")
    assert (answer.status_code, answer.json()["code"]) == (404, "route_not_found")


@pytest.mark.parametrize("words", TRICKS)
async def test_texts_of_a_provider_stay_text(harness: Harness, client: httpx.AsyncClient, words: str) -> None:
    await harness.catalog.publish(
        replace(QUOTES, id=ListingId("api_tricks"), name=words, description=words, openapi=None)
    )
    plain = Reader((await client.get("/")).text)
    assert set(plain.tags) <= {
        *("html", "head", "meta", "title", "link", "body", "h1", "h2", "p", "nav", "a", "form"),
        *("input", "button", "article", "code"),
    }
    assert plain.handlers == []
    for path in ("/", "/llms.txt", "/openapi.json"):
        text = (await client.get(path)).text
        assert "javascript:" not in text
        assert "\u202e" not in text
        assert "<script" not in text


async def test_html_characters_are_escaped(harness: Harness, client: httpx.AsyncClient) -> None:
    await harness.catalog.publish(
        replace(QUOTES, id=ListingId("api_signs"), name='R&D <3 "x"', description="1 < 2")
    )
    text = (await client.get("/")).text
    assert "<h2>R&amp;D &lt;3 &quot;x&quot;</h2>" in text
    assert "<p>1 &lt; 2</p>" in text


@pytest.mark.parametrize("words", TRICKS)
async def test_a_search_text_stays_text(client: httpx.AsyncClient, words: str) -> None:
    text = (await client.get("/", params={"q": words})).text
    assert not {"\u202e", "\r", "\n"} & set(text)
    page = Reader(text)
    assert page.handlers == []
    assert not {"script", "img"} & set(page.tags)


async def test_the_page_has_price_reputation_and_links(harness: Harness, client: httpx.AsyncClient) -> None:
    quality = Quality(calls=40, success_ppm=975_000, p50_ms=1, p95_ms=2)
    await harness.stores.set_reputation(QUOTES.id, Reputation(quality=quality, verified_ms=NOW_MS))
    text = (await client.get("/")).text
    assert "0.01 USDC a call" in text
    assert "endpoint verified" in text
    assert "97.50 % of 40 calls went well" in text
    assert '<a href="/api/v2/apis/api_quotes/agent">' in text


@pytest.mark.parametrize(
    ("query", "found", "links"),
    [
        ("", 20, ["/?page=2"]),
        ("?page=2", 5, ["/?page=1"]),
        ("?page=3", 0, ["/?page=2"]),
        ("?q=price&page=2", 5, ["/?q=price&page=1"]),
        ("?q=nothing", 0, []),
    ],
)
async def test_the_page_links_to_its_neighbours(
    harness: Harness, client: httpx.AsyncClient, query: str, found: int, links: list[str]
) -> None:
    for number in range(24):
        await harness.catalog.publish(replace(QUOTES, id=ListingId(f"api_{number:02d}")))
    page = Reader((await client.get(f"/{query}")).text)
    assert page.tags.count("article") == found
    assert [one for one in page.addresses if one.startswith("/?")] == links


WRONG = ["?page=0", "?page=x", "?nope=1", "?q=" + "x" * 257, "?page=1&page=2"]


@pytest.mark.parametrize("query", WRONG)
async def test_refuses_an_invalid_query(client: httpx.AsyncClient, query: str) -> None:
    answer = await client.get(f"/{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")


# ---- Files.


async def test_the_contract_features_operations_that_can_be_paid_now(
    harness: Harness, client: httpx.AsyncClient
) -> None:
    document = (await client.get("/openapi.json")).json()
    paths = [path for path in document["paths"] if path.startswith("/api/v2/gateway/api_quotes")]
    assert "/api/v2/gateway/api_quotes/quote/{symbol}" in paths
    quote = document["paths"]["/api/v2/gateway/api_quotes/quote/{symbol}"]["get"]
    assert quote["x-payment-info"]["price"] == {"mode": "fixed", "currency": "USD", "amount": "0.01"}
    assert [name for one in quote["x-payment-info"]["protocols"] for name in one] == ["x402", "mpp"]
    harness.settles, harness.ticks_ms = False, CACHE_MS
    document = (await client.get("/openapi.json")).json()
    assert not any("api_quotes" in path for path in document["paths"])


async def test_an_edited_document_changes_the_featured_operations(
    harness: Harness, client: httpx.AsyncClient
) -> None:
    assert "/api/v2/gateway/api_quotes/quote/{symbol}" in (await client.get("/openapi.json")).text
    document = {**SAMPLE_DOCUMENT, "paths": {"/rates": {"get": {"responses": {}}}}}
    await harness.catalog.revise(replace(QUOTES, openapi=document), expected_revision=QUOTES.revision)
    harness.ticks_ms += CACHE_MS
    text = (await client.get("/openapi.json")).text
    assert "/api/v2/gateway/api_quotes/rates" in text
    assert "/api/v2/gateway/api_quotes/quote" not in text


NOT_FEATURED = [{"status": "paused"}, {"price": Price.parse("0"), "openapi": None}, {"retired_ms": NOW_MS}]


@pytest.mark.parametrize("changes", NOT_FEATURED)
async def test_a_free_paused_or_retired_listing_is_not_featured(
    harness: Harness, client: httpx.AsyncClient, changes: dict[str, object]
) -> None:
    listing: Listing = replace(QUOTES, **changes)  # type: ignore[arg-type]
    await harness.catalog.revise(listing, expected_revision=QUOTES.revision)
    assert "api_quotes" not in (await client.get("/openapi.json")).text


async def test_featured_operations_alternate_between_listings(
    harness: Harness, client: httpx.AsyncClient
) -> None:
    for number in range(30):
        await harness.catalog.publish(replace(QUOTES, id=ListingId(f"api_{number:02d}")))
    document = (await client.get("/openapi.json")).json()
    featured = [path.split("/")[4] for path in document["paths"] if path.startswith("/api/v2/gateway/api_")]
    assert len(set(featured)) == len(featured), "no listing has a second operation before each has one"


async def test_a_large_catalog_is_read_page_by_page(harness: Harness, client: httpx.AsyncClient) -> None:
    for number in range(150):
        await harness.catalog.publish(replace(QUOTES, id=ListingId(f"api_{number:03d}")))
    (root,) = (await client.get("/.well-known/api-catalog")).json()["linkset"]
    seen = []
    for one in root["api-catalog"]:
        first, *_ = (await client.get(one["href"].removeprefix(PUBLIC_URL))).json()["linkset"]
        seen += [item["href"] for item in first["item"]]
    assert len(seen) == len(set(seen)) == 151
    assert (await client.get("/.well-known/api-catalog?page=101")).status_code == 422


async def test_without_a_contact_there_is_no_security_text() -> None:
    harness = Harness()
    harness.contact = None
    async with harness.open() as client:
        assert (await client.get("/.well-known/security.txt")).status_code == 404


async def test_the_security_text_expires_in_the_future(client: httpx.AsyncClient) -> None:
    text = (await client.get("/.well-known/security.txt")).text
    assert "Expires: 2027-02-19T00:00:00.000Z\n" in text


async def test_the_contract_is_one_line_of_json(client: httpx.AsyncClient) -> None:
    answer = await client.get("/openapi.json")
    assert len(answer.content) < 64 * 1024
    assert json.loads(answer.content)["openapi"] == "3.1.0"
