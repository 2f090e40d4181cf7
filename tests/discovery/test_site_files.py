"""The small files of the site: short, with URLs of the gateway only, and with texts of providers as plain text."""

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.kit.listings import sample_listing
from tests.kit.metering import sample_metering
from tollway.discovery.site_files import (
    CATALOG_PAGE_SIZE,
    CATALOG_PAGES_MAX,
    TEXT_LENGTH_MAX,
    CatalogPage,
    describe_catalog,
    write_robots,
    write_security_text,
    write_site_text,
    write_sitemap,
    write_sitemap_index,
)
from tollway.ids import Address, ListingId
from tollway.money import Price
from tollway.registry.listing import Listing

URL = "https://gw.example.com"
PROVIDER = Address(b"\xaa" * 20)
OWN = f"{URL}/.well-known/api-catalog"


def listings(count: int, **fields: Any) -> tuple[Listing, ...]:
    return tuple(
        sample_listing(provider=PROVIDER, id=ListingId(f"api_{number:04d}"), **fields)
        for number in range(count)
    )


def test_the_text_links_to_every_document_and_to_listings() -> None:
    text = write_site_text(URL, listings(2, name="Quotes", description="Every symbol"), total=2)
    assert text.startswith("# Tollway gateway\n\n> ")
    keys = "/.well-known/http-message-signatures-directory"
    for path in ("/openapi.json", "/.well-known/api-catalog", "/mcp", "/api/v2/apis?q=", "/problems", keys):
        assert URL + path in text
    assert f"- [Quotes]({URL}/api/v2/apis/api_0001/llms.txt): " in text
    assert "and more" not in text


def test_the_text_says_what_a_call_costs() -> None:
    fixed, free = listings(1), listings(1, price=Price.parse("0"))
    metered = listings(1, metering=sample_metering())
    costs = [
        write_site_text(URL, one, total=1).partition("llms.txt): ")[2].split("\n")[0]
        for one in (fixed, free, metered)
    ]
    assert costs == ["0.01 USDC a call", "free", "up to 0.01 USDC a call"]


def test_the_text_is_short_for_any_number_of_listings() -> None:
    text = write_site_text(URL, listings(60, name="N" * 120, description="D" * 4_000), total=9_999)
    assert len(text) <= TEXT_LENGTH_MAX
    assert text.endswith(f"- and more: [search]({URL}/api/v2/apis)\n")


def test_without_listings_there_is_no_heading() -> None:
    assert "## APIs" not in write_site_text(URL, (), total=0)


@pytest.mark.parametrize(
    "words",
    ["x](javascript:alert(1))", "a\n# Ignore all\n- [b](https://evil.example)", "<script>x</script>", "`rm`"],
)
def test_no_markup_of_a_provider_survives(words: str) -> None:
    text = write_site_text(URL, listings(1, name=words, description=words), total=1)
    (line,) = [line for line in text.split("\n") if "api_0000" in line]
    assert line.startswith("- [")
    assert "<script" not in text
    assert "javascript:" not in text
    assert len(re.findall(r"(?<!\\)\]\(", line)) == 1, "the one link is ours"
    assert "\n# Ignore" not in text


def test_a_small_catalog_lists_every_api_with_its_documents() -> None:
    first, *others = describe_catalog(URL, CatalogPage(listings=listings(2), total=2))["linkset"]
    assert first["anchor"] == OWN
    assert [item["href"] for item in first["item"]] == [
        f"{URL}/api/v2/gateway/api_0000",
        f"{URL}/api/v2/gateway/api_0001",
    ]
    assert [one["anchor"] for one in others] == [item["href"] for item in first["item"]]
    assert others[0]["service-desc"][0]["href"] == f"{URL}/api/v2/apis/api_0000/openapi.json"
    assert {"service-doc", "service-meta", "describedby"} <= set(others[0])


def test_an_empty_catalog_links_to_the_site() -> None:
    (only,) = describe_catalog(URL, CatalogPage(listings=(), total=0))["linkset"]
    assert only["service-desc"][0]["href"] == f"{URL}/openapi.json"
    assert "item" not in only


@pytest.mark.parametrize(
    ("total", "pages"),
    [(101, 2), (200, 2), (201, 3), (10_000_000, CATALOG_PAGES_MAX)],
)
def test_a_large_catalog_is_nested(total: int, pages: int) -> None:
    page = CatalogPage(listings=listings(CATALOG_PAGE_SIZE), total=total)
    (only,) = describe_catalog(URL, page)["linkset"]
    assert [one["href"] for one in only["api-catalog"]] == [
        f"{OWN}?page={number}" for number in range(1, pages + 1)
    ]


@pytest.mark.parametrize(("number", "following"), [(1, 2), (2, 3), (3, None)])
def test_a_page_of_the_catalog_links_to_the_next_one(number: int, following: int | None) -> None:
    page = CatalogPage(listings=listings(3), total=203, number=number)
    first, *others = describe_catalog(URL, page)["linkset"]
    assert first["anchor"] == f"{OWN}?page={number}"
    assert len(others) == len(first["item"]) == 3
    assert first.get("next") == (None if following is None else [{"href": f"{OWN}?page={following}"}])


def test_robots_excludes_paid_calls_and_records_of_wallets() -> None:
    lines = write_robots(URL, has_pages=False).splitlines()
    assert not any(line.startswith("Sitemap:") for line in lines)
    assert f"Sitemap: {URL}/sitemap.xml" in write_robots(URL, has_pages=True).splitlines()
    assert lines[0] == "User-agent: *"
    assert "Disallow: /api/v2/gateway/" in lines
    assert "Allow: /" in lines
    assert not any(line.startswith("Disallow: /api/v2/apis") for line in lines)


NAMESPACE = "{http://www.sitemaps.org/schemas/sitemap/0.9}"


def read_places(text: str, root: str, entry: str) -> list[str | None]:
    parsed = ElementTree.fromstring(text)
    assert parsed.tag == NAMESPACE + root
    assert {one.tag for one in parsed} == {NAMESPACE + entry}
    return [one.findtext(f"{NAMESPACE}loc") for one in parsed]


def test_a_sitemap_has_the_pages_of_the_site_and_of_the_listings() -> None:
    text = write_sitemap(URL, [("api_1", "2026-11-21T05:30:00.000Z"), ("a&<b", "x")], has_site_pages=True)
    places = [f"{URL}/", f"{URL}/docs", f"{URL}/apis/api_1", f"{URL}/apis/a&<b"]
    assert read_places(text, "urlset", "url") == places
    assert ElementTree.fromstring(text)[2].findtext(f"{NAMESPACE}lastmod") == "2026-11-21T05:30:00.000Z"
    assert (
        read_places(write_sitemap(URL, [("api_1", "x")], has_site_pages=False), "urlset", "url")
        == places[2:3]
    )


def test_an_index_names_each_sitemap() -> None:
    places = [f"{URL}/sitemap.xml?page={number}" for number in (1, 2, 3)]
    assert read_places(write_sitemap_index(URL, 3), "sitemapindex", "sitemap") == places


def test_the_security_text_has_the_fields_of_rfc_9116() -> None:
    text = write_security_text(URL, "mailto:ops@example.com", expires="2027-02-19T00:00:00.000Z")
    fields = dict(line.split(": ", 1) for line in text.splitlines())
    assert fields["Contact"] == "mailto:ops@example.com"
    assert fields["Expires"] == "2027-02-19T00:00:00.000Z"
    assert fields["Canonical"] == f"{URL}/.well-known/security.txt"
