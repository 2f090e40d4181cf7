"""The site over HTTP: cacheable files, and escaped texts of providers."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from tests.kit.listings import sample_listing
from tests.kit.routes import NOW_MS, PUBLIC_URL, RouteHarness
from tollway.discovery.gateway_operator import GatewayOperator
from tollway.ids import Address, ListingId
from tollway.money import Asset, Price, TokenDomain
from tollway.registry.listing import Listing
from tollway.sandbox.provider import SAMPLE_DOCUMENT
from tollway.web.api import site_routes
from tollway.web.api.discovery_routes import CACHE_MS
from tollway.web.api.site_routes import site_router

ALICE = Address(b"\xaa" * 20)
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
OPERATOR = GatewayOperator(
    name="Rain *Ltd*",
    url="https://rain.example",
    contact="mailto:ops@example.com",
    terms_url="https://rain.example/terms",
)
KEPT = (
    "/openapi.json",
    "/docs/payment.json",
    "/favicon.svg",
    "/llms.txt",
    "/robots.txt",
    "/sitemap.xml",
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


@pytest.fixture
async def harness() -> RouteHarness:
    harness = RouteHarness(assets=(USDC,), operator=OPERATOR, has_pages=True)
    await harness.catalog.publish(QUOTES)
    return harness


@pytest.fixture
async def client(harness: RouteHarness) -> AsyncIterator[httpx.AsyncClient]:
    async with harness.open(site_router, base_url="http://evil.test") as client:
        yield client


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


TYPES = {
    "/openapi.json": "application/json",
    "/llms.txt": "text/plain; charset=utf-8",
    "/robots.txt": "text/plain; charset=utf-8",
    "/.well-known/api-catalog": 'application/linkset+json; profile="https://www.rfc-editor.org/info/rfc9727"',
    "/.well-known/security.txt": "text/plain; charset=utf-8",
    "/favicon.svg": "image/svg+xml",
    "/docs/payment.json": "application/json",
    "/sitemap.xml": "application/xml",
}


@pytest.mark.parametrize(("path", "media_type"), TYPES.items())
async def test_a_file_has_its_media_type(client: httpx.AsyncClient, path: str, media_type: str) -> None:
    answer = await client.get(path)
    assert answer.headers["content-type"] == media_type
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/openapi.json", "/llms.txt", "/.well-known/api-catalog"])
async def test_urls_are_the_configured_ones(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path, headers={"X-Forwarded-Host": "evil.test", "Host": "evil.test"})
    assert "evil.test" not in answer.text


async def test_the_payment_guide_has_a_path_for_everything_that_it_names(client: httpx.AsyncClient) -> None:
    guide = (await client.get("/docs/payment.json")).json()
    assert guide["origin"] == PUBLIC_URL
    assert [rail["rail"] for rail in guide["rails"]] == ["x402", "mpp", "channel", "tx"]
    contract = (await client.get("/openapi.json")).json()["paths"]
    assert {guide["history"]["calls"], guide["history"]["payments"], "/docs/payment.json"} <= set(contract)


async def test_the_sitemap_has_public_listings_only(harness: RouteHarness, client: httpx.AsyncClient) -> None:
    for name in ("suspended", "retired", "paused"):
        await harness.catalog.publish(replace(QUOTES, id=ListingId(f"api_{name}")))
    paused = replace(
        QUOTES, id=ListingId("api_paused"), status="paused", updated_ms=QUOTES.created_ms + 1_000
    )
    await harness.catalog.revise(paused, expected_revision=1)
    suspended = replace(QUOTES, id=ListingId("api_suspended"), suspended_ms=NOW_MS)
    retired = replace(QUOTES, id=ListingId("api_retired"), retired_ms=NOW_MS)
    for gone in (suspended, retired):
        await harness.catalog.revise(gone, expected_revision=1)
    text = (await client.get("/sitemap.xml")).text
    assert re.findall("<loc>(.*?)</loc>", text) == [
        *(f"{PUBLIC_URL}/", f"{PUBLIC_URL}/docs"),
        *(f"{PUBLIC_URL}/apis/api_{name}" for name in ("quotes", "paused")),
    ]
    assert len(re.findall("<lastmod>", text)) == 2


async def test_many_listings_have_several_sitemaps(
    harness: RouteHarness, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_routes, "SITEMAP_LISTINGS_MAX", 2)
    for number in range(4):
        await harness.catalog.publish(replace(QUOTES, id=ListingId(f"api_{number}")))

    async def places(query: str = "") -> list[str]:
        text = (await client.get(f"/sitemap.xml{query}")).text
        return [url.removeprefix(PUBLIC_URL) for url in re.findall("<loc>(.*?)</loc>", text)]

    assert await places() == [f"/sitemap.xml?page={number}" for number in (1, 2, 3)]
    assert await places("?page=1") == ["/", "/docs", "/apis/api_quotes", "/apis/api_0"]
    assert await places("?page=3") == ["/apis/api_3"]
    for query, status in (("?page=4", 404), ("?page=0", 422), ("?page=1001", 422), ("?p=1", 422)):
        assert (await client.get(f"/sitemap.xml{query}")).status_code == status


async def test_a_gateway_without_pages_has_no_sitemap() -> None:
    async with RouteHarness(assets=(USDC,)).open(site_router) as client:
        assert (await client.get("/sitemap.xml")).status_code == 404
        assert "sitemap" not in (await client.get("/robots.txt")).text.lower()


async def test_a_new_listing_appears_within_seconds(harness: RouteHarness, client: httpx.AsyncClient) -> None:
    assert "Weather" not in (await client.get("/llms.txt")).text
    await harness.catalog.publish(replace(QUOTES, id=ListingId("api_weather"), name="Weather"))
    harness.ticks_ms += CACHE_MS
    assert "Weather" in (await client.get("/llms.txt")).text


# ---- The operator.


async def test_the_files_of_the_site_name_the_operator(client: httpx.AsyncClient) -> None:
    text = (await client.get("/llms.txt")).text
    assert (
        "\nOperator: [Rain \\*Ltd\\*](https://rain.example). Contact: mailto:ops@example.com. "
        "Terms: https://rain.example/terms.\n"
    ) in text
    (site, *_) = (await client.get("/.well-known/api-catalog")).json()["linkset"]
    assert site["author"] == [
        {"href": "https://rain.example", "title": "Rain *Ltd*"},
        {"href": "mailto:ops@example.com", "title": "Rain *Ltd*"},
    ]
    assert site["terms-of-service"] == [{"href": "https://rain.example/terms"}]
    about = (await client.get("/openapi.json")).json()["info"]
    assert (about["contact"]["name"], about["termsOfService"]) == ("Rain *Ltd*", "https://rain.example/terms")


async def test_without_settings_no_operator_is_named() -> None:
    async with RouteHarness(assets=(USDC,)).open(site_router) as client:
        assert "Operator:" not in (await client.get("/llms.txt")).text
        (site,) = (await client.get("/.well-known/api-catalog")).json()["linkset"]
        assert {"author", "terms-of-service"}.isdisjoint(site)


# ---- Without pages.


@pytest.mark.parametrize(("path", "to"), [("/", "/llms.txt"), ("/docs", "/openapi.json")])
async def test_without_pages_a_person_is_led_to_a_document(path: str, to: str) -> None:
    async with RouteHarness(assets=(USDC,)).open(site_router) as client:
        answer = await client.get(path)
        assert (answer.status_code, answer.headers["location"], answer.content) == (303, to, b"")
        assert (await client.get(to)).status_code == 200


# ---- Files.


@pytest.mark.parametrize("words", TRICKS)
async def test_texts_of_a_provider_stay_text(
    harness: RouteHarness, client: httpx.AsyncClient, words: str
) -> None:
    await harness.catalog.publish(
        replace(QUOTES, id=ListingId("api_tricks"), name=words, description=words, openapi=None)
    )
    for path in ("/llms.txt", "/openapi.json"):
        text = (await client.get(path)).text
        assert "javascript:" not in text
        assert "\u202e" not in text
        assert "<script" not in text


@pytest.mark.parametrize("query", ["?page=0", "?page=x", "?nope=1", "?page=1&page=2"])
async def test_refuses_an_invalid_query(client: httpx.AsyncClient, query: str) -> None:
    answer = await client.get(f"/.well-known/api-catalog{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")


async def test_the_contract_features_operations_that_can_be_paid_now(
    harness: RouteHarness, client: httpx.AsyncClient
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
    harness: RouteHarness, client: httpx.AsyncClient
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
    harness: RouteHarness, client: httpx.AsyncClient, changes: dict[str, object]
) -> None:
    listing: Listing = replace(QUOTES, **changes)  # type: ignore[arg-type]
    await harness.catalog.revise(listing, expected_revision=QUOTES.revision)
    assert "api_quotes" not in (await client.get("/openapi.json")).text


async def test_featured_operations_alternate_between_listings(
    harness: RouteHarness, client: httpx.AsyncClient
) -> None:
    for number in range(30):
        await harness.catalog.publish(replace(QUOTES, id=ListingId(f"api_{number:02d}")))
    document = (await client.get("/openapi.json")).json()
    featured = [path.split("/")[4] for path in document["paths"] if path.startswith("/api/v2/gateway/api_")]
    assert len(set(featured)) == len(featured), "no listing has a second operation before each has one"


async def test_a_large_catalog_is_read_page_by_page(harness: RouteHarness, client: httpx.AsyncClient) -> None:
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
    async with RouteHarness(assets=(USDC,)).open(site_router) as client:
        assert (await client.get("/.well-known/security.txt")).status_code == 404


async def test_the_security_text_expires_in_the_future(client: httpx.AsyncClient) -> None:
    text = (await client.get("/.well-known/security.txt")).text
    assert "Expires: 2027-02-19T00:00:00.000Z\n" in text


async def test_the_contract_is_one_line_of_json(client: httpx.AsyncClient) -> None:
    answer = await client.get("/openapi.json")
    assert len(answer.content) < 64 * 1024
    assert json.loads(answer.content)["openapi"] == "3.1.0"
