"""The links of a provider in its listing: what is refused, and that every reader shows them as untrusted words of the provider."""

from typing import Any

import pytest

from tests.kit.listings import sample_assets, sample_listing, show_listing
from tests.kit.narrowing import of_type
from tests.kit.pages import PageHarness
from tollway.discovery.listing_documents import write_listing_text
from tollway.ids import Address
from tollway.registry.draft import Draft, DraftRules, parse_draft
from tollway.registry.text import LINK_LENGTH_MAX

LINKS = {
    "contact": "mailto:help@example.com",
    "website": "https://example.com",
    "terms": "https://example.com/terms?v=2",
}
FIELDS: dict[str, Any] = {
    "contact": LINKS["contact"],
    "website": LINKS["website"],
    "terms_url": LINKS["terms"],
}
REFUSED = [
    "javascript:alert(1)",
    "JavaScript:alert(1)",
    "data:text/html,x",
    "http://example.com",
    "//example.com",
    "example.com",
    "https://",
    "https:///x",
    "https://user@example.com",
    "https://user:secret@example.com/",
    "https://example.com#x",
    "https://example.com/\u202egpj.exe",
    "https://ex\u0430mple.com",
    "https://example.com/\x00",
    "https://example.com/\n",
    "https://example.com/a b",
    'https://example.com/"><script>alert(1)</script>',
    "https://example.com/'x",
    "https://example.com/](https://evil.example)",
    "https://example.com/`x`",
    "https://example.com\\@evil.example",
    "",
    " https://example.com",
    "https://example.com/" + "a" * 10_000,
    "https://example.com/" + "a" * (LINK_LENGTH_MAX - 19),
]
REFUSED_MAIL = [
    "mailto:",
    "mailto:help",
    "mailto:help@localhost",
    "mailto:a@example.com,b@example.com",
    "mailto:a@example.com?bcc=b@example.com",
    "mailto:a@example.com%0abcc:b@example.com",
    "help@example.com",
    "MAILTO:help@example.com",
    "mailto:" + "a" * 65 + "@example.com",
    "tel:+4912345",
]
ASSETS = sample_assets(1)
RULES = DraftRules(
    assets=ASSETS, main_networks=frozenset(), allow_private_endpoints=True, check_endpoint=lambda url: None
)


def parse(**members: object) -> Draft | list[tuple[str | None, str]]:
    body = {
        "name": "A",
        "pricePerRequest": "1",
        "currency": ASSETS[0].symbol,
        "endpoint": "https://a.example",
    }
    parsed = parse_draft({**body, **members}, RULES, previous=None)
    return parsed if isinstance(parsed, Draft) else [(error.pointer, error.code) for error in parsed]


def test_a_listing_has_the_links_of_its_provider() -> None:
    draft = of_type(Draft, parse(**LINKS))
    assert {"contact": draft.contact, "website": draft.website, "terms": draft.terms_url} == LINKS
    without = of_type(Draft, parse(contact=None))
    assert (without.contact, without.website, without.terms_url) == (None, None, None)
    assert isinstance(parse(contact="https://example.com/help"), Draft)


NO_TEXTS = [7, True, ["https://example.com"], {"url": "https://example.com"}]


@pytest.mark.parametrize("member", LINKS)
def test_a_hostile_link_is_refused_at_its_member(member: str) -> None:
    addresses = [] if member == "contact" else ["mailto:help@example.com"]
    for link in (*REFUSED, *REFUSED_MAIL, *addresses):
        assert parse(**{member: link}) == [(f"/{member}", "url")], link
    for value in NO_TEXTS:
        assert parse(**{member: value}) == [(f"/{member}", "type")], value


def test_documents_show_the_links_as_unchecked() -> None:
    text = write_listing_text(show_listing(**FIELDS))
    for name, url in LINKS.items():
        assert f"Provider's {name}, not checked: <{url}>" in text
    assert "not checked" not in write_listing_text(show_listing())


async def test_the_page_shows_the_links_and_follows_none() -> None:
    harness = PageHarness()
    listing = sample_listing(provider=Address(b"\x22" * 20), **FIELDS)
    await harness.catalog.publish(listing)
    async with harness.open_pages() as client:
        text = (await client.get(f"/apis/{listing.id}")).text
    for url in LINKS.values():
        assert f'<a href="{url}" rel="nofollow noopener noreferrer ugc">' in text
    assert text.count("of the provider, not checked") == len(LINKS)
