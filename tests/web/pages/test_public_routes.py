"""The public pages: content in every state, errors in their frame, escaped words of providers, and the headers of every page."""

import gzip
import html
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.kit.listings import CHANNEL, sample_listing
from tests.kit.metering import TOKENS_IN_WORDS, sample_metering
from tests.kit.pages import BROWSER, PROFILE, RULES, PageHarness, PageReader
from tests.kit.routes import PUBLIC_URL
from tollway.discovery.gateway_operator import GatewayOperator, Logo
from tollway.discovery.operations import list_operations
from tollway.errors import Code
from tollway.ids import Address, ChainId, ListingId
from tollway.money import Price
from tollway.registry.catalog import CatalogFacets, ListingMatch, ListingPage, ListingQuery
from tollway.registry.listing import Operation
from tollway.registry.quality import FAILED, Quality, Reputation, bucket_of, day_of
from tollway.sandbox.provider import SAMPLE_DOCUMENT
from tollway.web.http.problems import problem_name
from tollway.web.pages.public_views import fold_text

ALICE = Address(b"\xaa" * 20)
QUOTES = sample_listing(
    provider=ALICE,
    id=ListingId("api_quotes"),
    name="Quotes",
    description="A price for every symbol",
    tags=("data", "prices"),
    openapi=SAMPLE_DOCUMENT,
)
PAGES = (
    "/",
    "/?q=price",
    "/apis/api_quotes",
    f"/providers/{ALICE}",
    "/status",
    "/docs",
    "/docs/operations/createApi",
    "/docs/schemas/ListingDraft",
    "/problems",
    "/problems/api-retired",
)
TRICKS = (
    '"><script>alert(1)</script>',
    "<img src=x onerror=alert(1)>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "[click](javascript:alert(1))",
    "\u202egnp.exe\u2066",
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "a\r\nb",
)


@pytest.fixture
async def harness() -> PageHarness:
    harness = PageHarness()
    await harness.catalog.publish(QUOTES)
    return harness


@pytest.fixture
async def client(harness: PageHarness) -> AsyncIterator[httpx.AsyncClient]:
    async with harness.open_pages() as client:
        yield client


async def read(client: httpx.AsyncClient, path: str, status: int = 200) -> PageReader:
    answer = await client.get(path)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return PageReader(answer.text)


# ---- What every page has.


async def read_metadata(client: httpx.AsyncClient, path: str) -> dict[str, str]:
    """The descriptions of a page for search engines and previews, as a browser reads them."""
    text = (await client.get(path)).text
    named = re.findall(r'<(?:meta (?:name|property)|link rel)="([a-z:_]+)" (?:content|href)="([^"]*)">', text)
    return {name: html.unescape(value) for name, value in named}


@pytest.mark.parametrize("path", PAGES)
async def test_a_public_page_describes_itself(client: httpx.AsyncClient, path: str) -> None:
    found = await read_metadata(client, path)
    assert found["canonical"] == found["og:url"] == PUBLIC_URL + path.partition("?")[0]
    assert found["og:description"] == found["description"] != ""
    assert found["og:title"] != ""
    assert (found["og:type"], found["og:site_name"]) == ("website", "Tollway")
    picture = await client.get(found["og:image"].removeprefix(PUBLIC_URL))
    assert (picture.status_code, picture.headers["content-type"]) == (200, "image/png")


async def test_the_page_of_a_listing_describes_it_in_the_words_of_its_provider(
    client: httpx.AsyncClient, harness: PageHarness
) -> None:
    found = await read_metadata(client, "/apis/api_quotes?operation=get_quote")
    assert (found["og:title"], found["description"]) == ("Quotes", "A price for every symbol")
    assert found["canonical"] == f"{PUBLIC_URL}/apis/api_quotes"
    for number, text in enumerate((*TRICKS, "long " * 200)):
        await harness.catalog.publish(
            replace(QUOTES, id=ListingId(f"api_{number}"), name=text[:100], description=text)
        )
        found = await read_metadata(client, f"/apis/api_{number}")
        assert 0 < len(found["description"]) <= 160
        assert not set("\u202e\u2066\n") & set(found["description"] + found["og:title"])
    lower = f"/providers/{str(ALICE).lower()}"
    assert (await read_metadata(client, lower))["canonical"] == f"{PUBLIC_URL}/providers/{ALICE}"


@pytest.mark.parametrize("path", [*PAGES, "/nowhere"])
async def test_every_page_names_the_operator_with_its_logo(path: str) -> None:
    operator = GatewayOperator(
        name='Rain "&" Co',
        url="https://rain.example",
        contact="mailto:ops@rain.example",
        terms_url="https://rain.example/t",
    )
    logo = Logo(media_type="image/png", suffix=".png", content=b"an image")
    harness = PageHarness(operator=operator, logo=logo)
    await harness.catalog.publish(QUOTES)
    async with harness.open_pages() as client:
        text = (await client.get(path, headers=BROWSER)).text
        page = PageReader(text)
        assert {operator.url, operator.contact, operator.terms_url} <= set(page.addresses)
        assert text.count('rel="noreferrer noopener">') >= 3
        assert "Rain &#34;&amp;&#34; Co</a>" in text
        assert "· Rain &#34;&amp;&#34; Co</title>" in text
        (source,) = re.findall('<img src="(/ui/[0-9a-f]{12}/operator_logo.png)"', text)
        shown = await client.get(source, headers={"Accept-Encoding": "identity"})
    assert (shown.content, shown.headers["content-type"]) == (b"an image", "image/png")
    assert shown.headers["x-content-type-options"] == "nosniff"
    assert "immutable" in shown.headers["cache-control"]


async def test_another_logo_has_another_path() -> None:
    logos = [Logo(media_type="image/png", suffix=".png", content=content) for content in (b"1", b"2")]
    assert len({PageHarness(logo=logo).renderer.assets.logo_path for logo in logos}) == 2
    assert PageHarness().renderer.assets.logo_path is None


@pytest.mark.parametrize("path", ["/apis/api_none", "/nowhere", "/?maxPrice=x"])
async def test_a_refusal_has_no_canonical_url(client: httpx.AsyncClient, path: str) -> None:
    assert "canonical" not in (await client.get(path, headers=BROWSER)).text


@pytest.mark.parametrize("path", [*PAGES, "/apis/api_none", "/nowhere"])
async def test_no_public_page_says_that_its_reader_is_signed_out(
    client: httpx.AsyncClient, path: str
) -> None:
    """The session counts at `/my` alone: a page that offers a sign-in would be wrong for a reader with a session."""
    page = PageReader((await client.get(path, headers=BROWSER)).text)
    assert "Sign in" not in page.words
    assert "My pages" in page.words
    assert "/my" in page.addresses


async def test_a_paused_api_is_marked_in_the_search(harness: PageHarness, client: httpx.AsyncClient) -> None:
    assert "paused" not in (await read(client, "/?q=price")).words
    await harness.catalog.publish(replace(QUOTES, id=ListingId("api_paused"), status="paused"))
    assert "paused" in (await read(client, "/?q=price")).words


# ---- Headers.


@pytest.mark.parametrize("path", [*PAGES, "/apis/api_none", "/nowhere"])
async def test_every_page_has_the_headers_of_a_page_and_no_cors(client: httpx.AsyncClient, path: str) -> None:
    headers = (await client.get(path, headers=BROWSER)).headers
    assert headers["content-security-policy"] == (
        f"default-src 'none'; script-src {PUBLIC_URL}/ui/; script-src-elem {PUBLIC_URL}/ui/; style-src {PUBLIC_URL}/ui/; "
        "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["permissions-policy"] == "camera=(), geolocation=(), microphone=(), payment=()"
    assert headers["x-request-id"].startswith("req_")
    assert not [name for name in headers if name.startswith("access-control-")]


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_is_kept_by_its_reader_alone_and_compressed_where_that_is_accepted(
    client: httpx.AsyncClient, path: str
) -> None:
    plain = await client.get(path, headers={"Accept-Encoding": "identity"})
    assert plain.headers["cache-control"] == "private, max-age=60"
    assert plain.headers["vary"] == "Cookie, Accept-Language, Accept-Encoding"
    assert "content-encoding" not in plain.headers
    async with client.stream("GET", path, headers={"Accept-Encoding": "br, gzip"}) as packed:
        raw = b"".join([chunk async for chunk in packed.aiter_raw()])
    assert gzip.decompress(raw) == plain.content
    assert len(raw) < len(plain.content) / 2
    head = await client.head(path, headers={"Accept-Encoding": "identity"})
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_loads_files_of_this_release_alone(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    page = PageReader(answer.text)
    assert page.handlers == []
    assert "style" not in page.tags
    assert re.search(r"<script(?![^>]*\bsrc=\"/ui/[0-9a-f]{12}/[a-z_]+\.js\")", answer.text) is None
    assert all(re.match(r"[/?#](?!/)", one) for one in page.addresses)
    assert len(set(page.ids)) == len(page.ids)
    for one in {one for one in page.addresses if one.startswith("/ui/")}:
        assert (await client.get(one)).status_code == 200


@pytest.mark.parametrize(
    ("cookie", "theme"), [("theme=dark", "dark"), ("a=b; theme=light", "light"), ("theme=x", "")]
)
async def test_the_theme_of_the_cookie_is_in_the_page(
    client: httpx.AsyncClient, cookie: str, theme: str
) -> None:
    text = (await client.get("/", headers={"Cookie": cookie})).text
    assert (f'data-theme="{theme}"' in text) == bool(theme)
    assert ("data-theme=" in text.split("<head>")[0]) == bool(theme)


# ---- Search.


async def test_the_search_shows_price_quality_and_proof(
    harness: PageHarness, client: httpx.AsyncClient
) -> None:
    quality = Quality(calls=4_120, success_ppm=992_300, p50_ms=40, p95_ms=90)
    await harness.stores.set_reputation(QUOTES.id, Reputation(quality=quality, verified_ms=1))
    page = await read(client, "/?q=price")
    assert "0.01 USDC a call" in page.words
    assert "✓ proved 0.01 USDC a call 99.23 % of 4,120 calls succeeded p50 40 ms" in page.words
    assert "found in: description" in page.words
    assert "/apis/api_quotes" in page.addresses
    assert "1 API" in page.words


async def test_the_search_links_to_the_documents_of_the_site(client: httpx.AsyncClient) -> None:
    relations = set(re.findall(r'rel="([^"]+)"', (await client.head("/")).headers["link"]))
    assert relations == {"api-catalog", "service-desc", "service-doc"}


async def test_a_range_of_prices_is_shown(harness: PageHarness, client: httpx.AsyncClient) -> None:
    dear = Operation(method="GET", path="/dear", price=Price.parse("0.5"))
    await harness.catalog.publish(
        replace(QUOTES, id=ListingId("api_range"), name="Range", operations=(dear,))
    )
    assert "0.01 – 0.5 USDC a call" in (await read(client, "/?q=range")).words


async def test_a_metered_price_is_a_maximum_with_its_formula(
    harness: PageHarness, client: httpx.AsyncClient
) -> None:
    by_use = {"price": Price.parse("0.02"), "metering": sample_metering()}
    await harness.catalog.publish(replace(QUOTES, id=ListingId("api_metered"), name="Metered", **by_use))
    assert f"up to 0.02 USDC {TOKENS_IN_WORDS}" in (await read(client, "/?q=metered")).words
    page = await read(client, "/apis/api_metered")
    assert f"up to 0.02 USDC {TOKENS_IN_WORDS}" in page.words
    assert f"This is the most that the call can cost: {TOKENS_IN_WORDS}." in page.words
    assert "Pay up to 0.02 USDC and call" in page.words
    assert "a signature on" not in page.words
    assert "a transaction on" in page.words
    fixed = Operation(method="GET", path="/quote/{symbol}", price=Price.parse("0.05"))
    mixed = replace(QUOTES, id=ListingId("api_mixed"), name="Mixed", operations=(fixed,), **by_use)
    await harness.catalog.publish(mixed)
    assert "up to 0.05 USDC a call" in (await read(client, "/?q=mixed")).words
    page = await read(client, "/apis/api_mixed")
    assert f"up to 0.02 USDC {TOKENS_IN_WORDS}" in page.words
    tool = next(one.tool for one in list_operations(mixed) if one.metering is None)
    assert "This is the most" not in (await read(client, f"/apis/api_mixed?operation={tool}")).words


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", 1),
        ("q=symbol&network=&currency=&tag=&maxPrice=&minSuccessRate=&sort=", 1),
        ("tag=data", 1),
        ("tag=other", 0),
        ("maxPrice=0.02", 1),
        ("maxPrice=0.001", 0),
        ("sort=price", 1),
        ("network=eip155:84532", 1),
        ("network=eip155:8453", 0),
        ("verified=true", 0),
        ("minSuccessRate=0.9", 0),
        ("currency=USDC", 1),
        ("page=2", 0),
    ],
)
async def test_the_filters_of_the_form_find(query: str, found: int) -> None:
    """At a gateway with one currency, which a price needs no other word for."""
    harness = PageHarness(assets=RULES.assets[:1])
    await harness.catalog.publish(QUOTES)
    async with harness.open_pages() as client:
        page = await read(client, f"/?{query}")
    assert page.addresses.count("/apis/api_quotes") == found


# the words -> what the page says of them
UNDERSTOOD = [
    ("quotes", 1, []),
    ("what are the qoutes", 1, ['No API matches "qoutes"; showing "quotes".']),
    ("quotes zeppelin", 1, ['No API matches all of "quotes", "zeppelin"; these are the closest.']),
    (
        "zeppelin",
        0,
        ["Nothing was found", 'No API matches "zeppelin".', "Tags of this catalog: data, prices"],
    ),
    ("zeppelin&tag=x", 0, ['No API matches "zeppelin".', "Try other words or fewer filters."]),
    ("!!", 0, ["The search has no word."]),
]


async def test_the_page_says_how_the_words_were_understood_and_what_to_try(client: httpx.AsyncClient) -> None:
    for words, found, sentences in UNDERSTOOD:
        page = await read(client, f"/?q={words}")
        assert page.addresses.count("/apis/api_quotes") == found, words
        for sentence in sentences:
            assert sentence in page.words, (words, page.words)
        assert ("No API" in page.words) == any("No API" in one for one in sentences), words


class SimilarCatalog:
    """A catalog whose searches find one listing, which has none of the words."""

    async def search(self, query: ListingQuery) -> ListingPage:
        return ListingPage(found=(ListingMatch(listing=QUOTES),), total=1)

    async def count_facets(self, words: str | None) -> CatalogFacets:
        return CatalogFacets()


async def test_a_card_says_why_the_search_found_it(client: httpx.AsyncClient) -> None:
    async with PageHarness(catalog=SimilarCatalog()).open_pages() as similar:
        pages = [
            await read(client, "/?q=data"),
            await read(similar, "/?q=worth"),
            await read(similar, "/"),
        ]
    reasons = ("found in: tags", "similar in meaning")
    assert [[one for one in reasons if one in page.words] for page in pages] == [
        [reasons[0]],
        [reasons[1]],
        [],
    ]


async def test_a_page_without_results_links_to_the_tags_of_the_catalog(
    harness: PageHarness, client: httpx.AsyncClient
) -> None:
    for query in ("q=zeppelin", "q=quotes&tag=none", "tag=none"):
        assert {"/?tag=data", "/?tag=prices"} <= set((await read(client, f"/?{query}")).addresses), query
    await harness.catalog.revise(replace(QUOTES, tags=('a" onfocus="x&b',)), expected_revision=1)
    text = (await client.get("/?q=zeppelin")).text
    assert '<a href="/?tag=a%22%20onfocus%3D%22x%26b">a&#34; onfocus=&#34;x&amp;b</a>' in text


async def test_the_field_of_the_search_names_tags_of_the_catalog_which_find_something(
    harness: PageHarness, client: httpx.AsyncClient
) -> None:
    async def read_placeholder() -> str:
        found = re.search(r'<input id="q"[^>]*?placeholder="([^"]*)"', (await client.get("/")).text)
        return found[1] if found else ""

    assert await read_placeholder() == "Such as data, prices"
    for tag in ("data", "prices"):
        assert "/apis/api_quotes" in (await read(client, f"/?q={tag}")).addresses
    await harness.catalog.revise(replace(QUOTES, tags=()), expected_revision=1)
    assert await read_placeholder() == ""
    await harness.catalog.revise(replace(QUOTES, tags=('a" onfocus="x',)), expected_revision=2)
    assert await read_placeholder() == "Such as a&#34; onfocus=&#34;x"


@pytest.mark.parametrize(
    ("query", "orders", "chosen"),
    [
        ("", ["recommended first", "newest first"], "recommended first"),
        ("sort=newest", ["recommended first", "newest first"], "newest first"),
        ("sort=name", ["recommended first", "newest first"], "name"),
        ("q=symbol", ["best match first", "newest first"], "best match first"),
        ("q=symbol&sort=newest", ["best match first", "newest first"], "newest first"),
    ],
)
async def test_the_order_is_named_by_what_sorts(
    harness: PageHarness, client: httpx.AsyncClient, query: str, orders: list[str], chosen: str
) -> None:
    """`GET /apis` sorts by relevance with words alone; without words the newest listing is the first."""
    newer = replace(
        QUOTES, id=ListingId("api_newer"), name="Abc", description="", created_ms=QUOTES.created_ms + 1
    )
    await harness.catalog.publish(newer)
    text = (await client.get(f"/?{query}")).text
    options = re.findall(
        r'<option value="([^"]*)"( selected)?>([^<]*)</option>', text.partition('id="sort"')[2]
    )
    assert [label for _, _, label in options] == [*orders, "price, low to high", "price, high to low", "name"]
    assert [label for _, is_chosen, label in options if is_chosen] == [chosen]
    assert options[0][0] == ""  # the order of a form that names none
    if chosen == "newest first" and "q=" not in query:
        assert text.index("/apis/api_newer") < text.index("/apis/api_quotes")


@pytest.mark.parametrize(
    ("query", "name", "text"),
    [
        ("maxPrice=abc", "maxPrice", "a price is a decimal string such as 0.01"),
        ("minSuccessRate=2", "minSuccessRate", "must be a number from 0 to 1, such as 0.95"),
        ("network=base", "network", ""),
        ("sort=upwards", "sort", ""),
    ],
)
async def test_a_field_that_is_not_valid_has_its_error(
    client: httpx.AsyncClient, query: str, name: str, text: str
) -> None:
    answer = await client.get(f"/?{query}&q=keep")
    assert answer.status_code == 422
    page = PageReader(answer.text)
    assert f"error-{name}" in page.ids
    assert f'aria-describedby="error-{name}"' in answer.text
    assert text in page.words
    assert 'value="keep"' in answer.text
    assert "The search was not understood" in page.words


async def test_an_empty_catalog_and_an_empty_result_say_what_to_do(client: httpx.AsyncClient) -> None:
    assert "Nothing was found" in (await read(client, "/?q=nothing")).words
    async with PageHarness().open_pages() as empty:
        page = await read(empty, "/")
    assert "Nothing is for sale here yet" in page.words
    assert "tollway listing publish" in page.words


@pytest.mark.parametrize(
    ("query", "found", "links"),
    [
        ("", 20, ["?page=2"]),
        ("?page=2", 5, ["?"]),
        ("?page=3", 0, ["?page=2"]),
        ("?q=price&tag=data&page=2", 5, ["?q=price&tag=data"]),
    ],
)
async def test_the_page_links_to_its_neighbours(
    harness: PageHarness, client: httpx.AsyncClient, query: str, found: int, links: list[str]
) -> None:
    for number in range(24):
        await harness.catalog.publish(replace(QUOTES, id=ListingId(f"api_{number:02d}")))
    page = await read(client, f"/{query}")
    assert sum(one.startswith("/apis/") for one in page.addresses) == found
    assert [one for one in page.addresses if one.startswith("?")] == links
    assert "25 APIs" in page.words  # also on a page after the last one
    assert ("‹ previous" in page.words, "next ›" in page.words) == ("page=" in query, query == "")


async def test_a_row_has_what_a_reader_compares(harness: PageHarness, client: httpx.AsyncClient) -> None:
    today = day_of(harness.now_ms)
    await harness.quality.add({(QUOTES.id, bucket_of(10)): 1_200, (QUOTES.id, FAILED): 34}, day=today)
    answer = await client.get("/")
    page = PageReader(answer.text)
    assert (
        "Quotes A price for every symbol data · prices api.example.com not proved 0.01 USDC a call "
        "not measured yet 1,234 calls".replace(" · ", "")
        in page.words
    )
    assert 'role="img" aria-label="Calls of 30 days, day by day"><path d="M' in answer.text
    assert PROFILE.name not in page.words.partition("1 API")[2], "every row would have the only network"


async def test_the_first_page_has_three_doors_and_chips_of_tags(client: httpx.AsyncClient) -> None:
    page = await read(client, "/")
    assert {"#q", "/my/apis/new", "/?tag=data", "/?tag=prices"} <= set(page.addresses)
    settings = json.loads(page.text[page.text.index("{") : page.text.rindex("}") + 1])
    (server,) = settings["mcpServers"].values()
    assert (server["command"], server["args"]) == ("tollway", ["mcp", "--chain", "84532"])
    assert server["env"]["TOLLWAY_GATEWAY"] == PUBLIC_URL
    assert {"TOLLWAY_KEY_FILE", "TOLLWAY_MAX_PRICE", "TOLLWAY_BUDGET"} <= set(server["env"])
    found = await read(client, "/?q=price&tag=data")
    assert "mcpServers" not in found.text
    assert {"/?q=price&tag=prices", "/?q=price"} <= set(found.addresses), "a chip keeps the words"


# ---- One API.


async def test_the_page_of_an_api_has_operations_ways_to_pay_and_terms(client: httpx.AsyncClient) -> None:
    page = await read(client, "/apis/api_quotes")
    for words in (
        "GET /quote/{symbol}",
        "The price of a symbol now",
        "POST /echo",
        "x402, MPP",
        "a transaction on Sandbox, 1 confirmation",
        "responses 2xx and 304; everything else is released",
        "30 seconds",
        "api.example.com",
        "not measured yet",
        "0 paid calls in the last 30 days",
    ):
        assert words in page.words
    assert page.words.count(str(ALICE)) == 1, "the address that money goes to is whole, and stands once"


async def test_the_page_of_an_api_names_the_channels_that_pay_it(harness: PageHarness) -> None:
    assets = harness.context.encoder.assets
    encoder = replace(
        harness.context.encoder, find_channels=lambda listing, price: dict.fromkeys(assets, CHANNEL)
    )
    harness.context = replace(harness.context, encoder=encoder)
    async with harness.open_pages() as client:
        page = await read(client, "/apis/api_quotes")
    assert "a payment channel on Sandbox: one deposit pays many calls x402 batch-settlement" in page.words
    assert page.words.count(str(ALICE)) == 1


async def test_the_days_of_an_api_are_a_chart_and_a_table(
    harness: PageHarness, client: httpx.AsyncClient
) -> None:
    today = day_of(1_795_239_000_000)
    await harness.quality.add({(QUOTES.id, FAILED): 2, (QUOTES.id, bucket_of(10)): 5}, day=today)
    answer = await client.get("/apis/api_quotes")
    page = PageReader(answer.text)
    assert "7 paid calls in the last 30 days" in page.words
    assert "2026-11-21 5 2" in page.words
    assert '<figcaption id="calls-words">7 paid calls in the last 30 days</figcaption>' in answer.text
    assert 'role="img" aria-labelledby="calls-words"' in answer.text
    assert 'role="img" title="21 Nov: 5 succeeded, 2 failed"' in answer.text
    assert [len(re.findall("M", one)) for one in re.findall(r'class="bar .*? d="(.*?)"', answer.text)] == [
        1,
        1,
    ]


def document_of(paths: dict[str, Any]) -> dict[str, Any]:
    return {"openapi": "3.1.0", "info": {"title": "Orders", "version": "1"}, "paths": paths}


ORDER = {
    "parameters": [
        {
            "name": "shop",
            "in": "query",
            "required": True,
            "description": "Of the country",
            "schema": {"type": "string"},
        }
    ],
    "requestBody": {
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["item"],
                    "properties": {
                        "item": {"type": "string", "description": "Its number in the catalog"},
                        "gift": {"type": "boolean"},
                    },
                }
            }
        }
    },
    "responses": {"200": {"content": {"application/json": {"example": {"order": "<b>7</b>"}}}}},
}


async def test_parameters_have_their_meaning_and_a_response_its_example(
    harness: PageHarness, client: httpx.AsyncClient
) -> None:
    orders = replace(QUOTES, id=ListingId("api_orders"), openapi=document_of({"/orders": {"post": ORDER}}))
    await harness.catalog.publish(orders)
    answer = await client.get("/apis/api_orders")
    page = PageReader(answer.text)
    for words in (
        "shop required in the query",
        "Of the country",
        "item string, required Its number in the catalog",
        "gift boolean",
        "From the provider's document.",
        '{ "order": "<b>7</b>" }',
    ):
        assert words in page.words
    bare = PageReader(re.findall(r"<noscript>(.*?)</noscript>", answer.text, re.DOTALL)[0]).words
    for words in ("shop required Of the country", "item string, required Its number in the catalog"):
        assert words in bare, "without a script there is no form"
    document = document_of({"/orders": {"post": {**ORDER, "responses": {}}}})
    await harness.catalog.publish(replace(orders, id=ListingId("api_plain"), openapi=document))
    assert "The provider's document has none." in (await read(client, "/apis/api_plain")).words


@pytest.mark.parametrize(("count", "has_filter"), [(9, False), (10, True)])
async def test_many_operations_have_a_filter(
    harness: PageHarness, client: httpx.AsyncClient, count: int, has_filter: bool
) -> None:
    paths: dict[str, Any] = {f"/orders/{number}": {"get": {"responses": {}}} for number in range(count)}
    await harness.catalog.publish(
        replace(QUOTES, id=ListingId("api_many"), operations=(), openapi=document_of(paths))
    )
    text = (await client.get("/apis/api_many")).text
    assert ('data-filter="Filter the operations"' in text) is has_filter
    assert text.count("0.01 USDC") == (await client.get("/apis/api_quotes")).text.count("0.01 USDC"), (
        "a price that all operations have is no part of their rows"
    )


@pytest.mark.parametrize(
    ("description", "shown", "rest"),
    [
        ("short " * 60, "short " * 59 + "short", ""),
        ("A sentence. " * 40, "A sentence. " * 29 + "A sentence.", "A sentence. " * 9 + "A sentence."),
        ("word " * 100, "word " * 71 + "word", "word " * 27 + "word"),
        ("x" * 500, "x" * 360, "x" * 140),
        ("Line\n" + "y" * 500, "Line\n" + "y" * 355, "y" * 145),
    ],
)
def test_a_long_description_folds_at_a_sentence_or_a_word(description: str, shown: str, rest: str) -> None:
    assert fold_text(description.strip()) == (shown, rest)


async def test_a_long_description_is_folded_and_whole(
    harness: PageHarness, client: httpx.AsyncClient
) -> None:
    words = " ".join(f"word{number}" for number in range(200))
    await harness.catalog.publish(replace(QUOTES, id=ListingId("api_long"), description=words))
    shown, rest = fold_text(words)
    page = await read(client, "/apis/api_long")
    assert f"{shown} The whole description {rest}" in page.words


async def test_an_operation_is_chosen_by_its_name(client: httpx.AsyncClient) -> None:
    page = await read(client, "/apis/api_quotes?operation=echo")
    assert "--data" in page.words
    await read(client, "/apis/api_quotes?operation=none", 404)


async def test_a_free_api_says_so(harness: PageHarness, client: httpx.AsyncClient) -> None:
    free = replace(QUOTES, id=ListingId("api_free"), price=Price.parse("0"))
    await harness.catalog.publish(free)
    page = await read(client, "/apis/api_free")
    assert "Every call is free. Nothing is signed." in page.words
    assert "402" not in page.words.partition("From a program")[2].partition("What is charged")[0]


@pytest.mark.parametrize("words", TRICKS)
async def test_words_of_a_provider_stay_text(
    harness: PageHarness, client: httpx.AsyncClient, words: str
) -> None:
    document = {
        **SAMPLE_DOCUMENT,
        "paths": {
            "/x": {"get": {"operationId": "tricky", "summary": words, "description": words, "responses": {}}}
        },
    }
    tricky = replace(
        QUOTES,
        id=ListingId("api_tricks"),
        name=words,
        description=words,
        tags=() if "\u202e" in words else (words[:30],),
        openapi=document,
    )
    await harness.catalog.publish(tricky)
    plain = await read(client, "/apis/api_quotes")
    for path in ("/", "/?q=alert", f"/providers/{ALICE}", "/apis/api_tricks"):
        text = (await client.get(path, params={"q": words} if path == "/" else None)).text
        page = PageReader(text)
        assert page.handlers == []
        assert set(page.tags) <= {*plain.tags, "h3", "form", "input", "select", "option", "label", "button"}
        assert page.tags.count("script") == text.count('src="/ui/')
        assert "\u202e" not in text
        assert not [one for one in page.addresses if not re.match(r"[/?#](?!/)", one)]
        assert "49" not in page.words.partition("Skip")[2][:200]


async def test_the_page_of_a_copy_says_that_another_api_has_proved_its_endpoint(
    harness: PageHarness, client: httpx.AsyncClient
) -> None:
    copy = replace(QUOTES, id=ListingId("api_copy"), provider=Address(b"\x0c" * 20), name="Quotes, cheap")
    await harness.stores.set_reputation(QUOTES.id, Reputation(verified_ms=1))
    await harness.catalog.publish(copy)
    page = await read(client, "/apis/api_copy")
    assert "endpoint proved by another API" in page.words
    assert "Another wallet has proved that this endpoint is its own: the API of that wallet." in page.words
    assert "/apis/api_quotes" in page.addresses
    assert "Another wallet" not in (await read(client, "/apis/api_quotes")).words
    for path in ("/", "/?q=quotes+cheap", "/?q=quotes&sort=relevance"):
        page = await read(client, path)
        assert [one for one in page.addresses if one.startswith("/apis/")] == [
            "/apis/api_quotes",
            "/apis/api_copy",
        ]
        assert "proved by another API" in page.words


async def test_a_search_text_stays_inside_its_field(client: httpx.AsyncClient) -> None:
    answer = await client.get("/", params={"q": '"><b>x</b>'})
    assert 'value="&#34;&gt;&lt;b&gt;x&lt;/b&gt;"' in answer.text


# ---- One provider, the gateway.


async def test_the_page_of_a_provider_lists_what_it_sells(
    harness: PageHarness, client: httpx.AsyncClient
) -> None:
    await harness.stores.set_reputation(QUOTES.id, Reputation(verified_ms=1))
    page = await read(client, f"/providers/{ALICE}")
    assert "Sells 1 API" in page.words
    assert "✓ api.example.com" in page.words
    page = await read(client, f"/providers/{Address(bytes(20))}")
    assert "Sells nothing here" in page.words
    assert "This is no address" in (await read(client, "/providers/bob", 404)).words


async def test_the_status_says_what_is_open(harness: PageHarness, client: httpx.AsyncClient) -> None:
    page = await read(client, "/status")
    assert "✓ reachable" in page.words
    assert "by transaction, by signature" in page.words
    harness.away_s, harness.settles = 60.0, False
    page = await read(client, "/status")
    assert "not reachable since 05:29 UTC" in page.words
    assert "none: new payments do not count now" in page.words


@pytest.mark.parametrize(
    ("path", "marks"),
    [
        ("/", ['href="/" aria-current="page"']),
        ("/apis/api_quotes", ['href="/" aria-current="true"']),
        ("/status", ['href="/status" aria-current="page"']),
        ("/problems/payment-required", []),
    ],
)
async def test_the_navigation_marks_where_a_page_is(
    client: httpx.AsyncClient, path: str, marks: list[str]
) -> None:
    navigation = (await client.get(path)).text.partition("</nav>")[0]
    assert re.findall(r'href="[^"]*" aria-current="[^"]*"', navigation) == marks


async def test_a_listing_without_an_open_way_to_pay_offers_nothing_to_sign(
    harness: PageHarness, client: httpx.AsyncClient
) -> None:
    """Its networks are no longer those of the gateway."""
    other = replace(QUOTES, id=ListingId("api_other"), networks=(ChainId(1),))
    await harness.catalog.publish(other)
    answer = await client.get(f"/apis/{other.id}")
    assert "No way to pay for this call is open now" in PageReader(answer.text).words
    assert "data-pay" not in answer.text
    assert "data-pay" in (await client.get(f"/apis/{QUOTES.id}")).text


async def test_the_problems_have_pages(client: httpx.AsyncClient) -> None:
    assert "/problems/payment-required" in (await read(client, "/problems")).addresses
    page = await read(client, "/problems/payment-outcome-unknown")
    assert "The same request, sent again later, can succeed." in page.words
    await read(client, "/problems/none", 404)


# ---- Errors.


async def test_the_form_keeps_the_call_of_a_402(client: httpx.AsyncClient) -> None:
    text = (await client.get("/apis/api_quotes?method=GET&target=/quote/BTC")).text
    assert re.findall(r'<input id="argument-0"[^>]* value="([^"]*)"', text) == ["BTC"]
    assert "/quote/BTC" in PageReader(text).words.partition("From a program")[2]
    whole = (await client.get('/apis/api_quotes?method=GET&target=/other?x="><script>')).text
    assert re.findall(r'<input id="any-path"[^>]* value="([^"]*)"', whole) == [
        "/other?x=&#34;&gt;&lt;script&gt;"
    ]
    assert '<option value="" selected>GET /other?x=&#34;' in whole
    assert "GET /other?x=" in PageReader(whole).words.partition("From a program")[2]
    # The choice of the form that keeps the call has no operation.
    assert (await client.get("/apis/api_quotes?operation=")).status_code == 200
    assert (await client.get("/apis/api_quotes?method=BREW&target=/x")).status_code == 422


async def test_code_in_sentences_is_code(client: httpx.AsyncClient) -> None:
    reference = (await client.get("/docs")).text
    operations = sorted(set(re.findall(r'href="(/docs/operations/[^"]+)"', reference)))
    problems = [f"/problems/{problem_name(code)}" for code in Code]
    assert len(operations) > 40
    for path in ("/docs", *operations, *problems):
        page = (await client.get(path)).text.partition("<main")[2]
        assert "`" not in re.sub(r"<pre.*?</pre>", "", page, flags=re.S), path
    page = (await client.get("/problems/upstream-timeout")).text
    assert "<code>paymentState</code> is <code>held</code>" in page
    page = (await client.get("/docs/operations/searchApis")).text
    assert "<code>relevance</code> needs <code>q</code>." in page


async def test_code_in_words_of_a_client_is_no_markup(client: httpx.AsyncClient) -> None:
    page = (await client.get("/?network=`<img src=x onerror=alert(1)>`")).text
    assert "<img" not in page
    assert (await client.get("/apis/api_quotes?operation=`<b>`")).text.count("<b>") == 0


@pytest.mark.parametrize("path", ["/", "/apis/api_quotes", f"/providers/{ALICE}"])
async def test_a_page_says_that_storage_is_away_and_offers_to_try_again(
    harness: PageHarness, client: httpx.AsyncClient, path: str
) -> None:
    harness.stores.database.is_away = True
    answer = await client.get(path)
    assert answer.status_code == 503
    assert answer.headers["cache-control"] == "no-store"
    page = PageReader(answer.text)
    assert "Storage unavailable" in page.words
    assert "Try again in 3 seconds" in page.words
    assert "/problems/storage-unavailable" in page.addresses
    assert answer.headers["x-request-id"] in page.words
    assert answer.headers["retry-after"] == "3"


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/apis/api_none", 404, "API not found"),
        ("/apis/api_gone", 410, "API retired"),
        ("/apis/api_quotes?x=1", 422, "Validation failed"),
        ("/problems/x", 404, "Route not found"),
    ],
)
async def test_a_problem_of_a_page_is_a_page_where_html_is_accepted(
    harness: PageHarness, client: httpx.AsyncClient, path: str, status: int, words: str
) -> None:
    await harness.catalog.publish(replace(QUOTES, id=ListingId("api_gone"), retired_ms=1))
    assert words in (await read(client, path, status)).words
    answer = await client.get(path, headers={"Accept": "*/*"})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


async def test_a_defect_of_a_page_is_a_page(harness: PageHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*given: object) -> None:
        raise RuntimeError("a defect")

    broken = type("Broken", (), {"search": fail, "find": fail})()
    async with PageHarness(catalog=broken).open_pages() as client:
        page = await read(client, "/", 500)
    assert "Internal error" in page.words
    assert "a defect" not in page.words


async def test_a_query_with_too_many_fields_is_refused() -> None:
    async with PageHarness().open_pages() as browser:
        answer = await browser.get("/?" + "&".join(["a=1"] * 101))
    assert answer.status_code == 400
