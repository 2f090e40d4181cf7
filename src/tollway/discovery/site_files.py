"""The small files of the site for crawlers and agents: `llms.txt`, the API catalog of RFC 9727, `robots.txt`, the sitemap and `security.txt`. Pure.

Texts of providers appear as plain text: their headings, links, code and markup are escaped.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from tollway.discovery.gateway_operator import UNNAMED, GatewayOperator
from tollway.discovery.listing_documents import escape_markdown
from tollway.discovery.listing_view import MCP_REVISIONS, UNTRUSTED_NOTICE
from tollway.discovery.payment_guide import GUIDE_PATH
from tollway.discovery.safe_text import clean_line
from tollway.registry.listing import Listing

TEXT_LENGTH_MAX = 3_999
"""Crawlers warn about a longer `llms.txt`."""

CATALOG_PAGE_SIZE, CATALOG_PAGES_MAX = 100, 100
"""An API catalog of several pages is nested (RFC 9727 §5). Listings beyond the last page are found by search only."""

SITEMAP_PATH = "/sitemap.xml"
SITEMAP_LISTINGS_MAX, SITEMAP_PAGES_MAX = 10_000, 1_000
"""Of one sitemap, and the most sitemaps that the index names. The protocol allows 50,000 URLs, which are 7 MB that a gateway would hold in memory."""

CATALOG_TYPE = "application/linkset+json"
CATALOG_PROFILE = "https://www.rfc-editor.org/info/rfc9727"
_NAME_LENGTH_MAX, _WORDS_MAX = 80, 120


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogPage:
    """One page of the API catalog. `total`: listings on all pages, at least. `number` 0: the request names no page."""

    listings: tuple[Listing, ...]
    total: int
    number: int = 0

    @property
    def is_nested(self) -> bool:
        """A nested document links to pages instead of listings."""
        return self.number == 0 and self.total > CATALOG_PAGE_SIZE

    @property
    def pages(self) -> int:
        return min(max(1, -(-self.total // CATALOG_PAGE_SIZE)), CATALOG_PAGES_MAX)


def write_site_text(
    public_url: str, listings: Sequence[Listing], *, total: int, operator: GatewayOperator = UNNAMED
) -> str:
    """Writes `/llms.txt`: what the gateway is, who operates it, how to use it, and as many listings as fit into `TEXT_LENGTH_MAX`."""
    api = f"{public_url}/api/v2"
    head = (
        "# Tollway gateway\n\n"
        "> HTTP APIs that are paid per request on EVM chains: find one, call it, pay for the call. No account is needed.\n\n"
        f"{_write_operator(operator)}{UNTRUSTED_NOTICE}\n\n"
        "## How to use it\n\n"
        f"1. Search: GET {api}/apis?q=words (filters: currency, network, tag, maxPrice, minSuccessRate, verified).\n"
        f"2. Read: GET {api}/apis/(id)/agent is enough to integrate an API (8 KiB at most).\n"
        f"3. Call: {api}/gateway/(id)/(path). Without a payment the response is a 402 with every way to pay. x402 and MPP "
        "clients pay by themselves; any other client transfers the amount and repeats the request with X-Payment-Tx and "
        f"X-Signature: see the [payment guide]({public_url}{GUIDE_PATH}).\n"
        "4. Pay on a 402 only. On 409, 503 or 504 send the same payment again. `charged` of the agent document says which calls cost.\n"
        f"5. Check the bill: GET {api}/history, signed by the wallet that paid.\n\n"
        "## Documents\n\n"
        f"- [OpenAPI]({public_url}/openapi.json): the whole contract, with every error\n"
        f"- [API catalog]({public_url}/.well-known/api-catalog): every API and its documents\n"
        f"- [MCP]({public_url}/mcp): the same as MCP tools, revisions {' and '.join(MCP_REVISIONS)}\n"
        f"- [Bazaar]({public_url}/x402/discovery/resources): for x402 clients\n"
        f"- [Problems]({public_url}/problems): the meaning of each error and what to do\n"
        f"- [Signing keys]({public_url}/.well-known/http-message-signatures-directory): for providers, the keys that "
        "sign the calls to them\n\n"
    )
    return head + _list_apis(public_url, listings, total=total, length_left=TEXT_LENGTH_MAX - len(head))


def _write_operator(operator: GatewayOperator) -> str:
    """A paragraph about the operator; empty where the settings say nothing about it."""
    name = "" if operator.name is None else escape_markdown(operator.name)
    named = f"[{name or operator.url}]({operator.url})" if operator.url else name
    parts = [("Operator", named), ("Contact", operator.contact), ("Terms", operator.terms_url)]
    text = ". ".join(f"{label}: {value}" for label, value in parts if value)
    return f"{text}.\n\n" if text else ""


def _list_apis(public_url: str, listings: Sequence[Listing], *, total: int, length_left: int) -> str:
    heading = "## APIs\n\n"
    ending = f"- and more: [search]({public_url}/api/v2/apis)\n"
    left = length_left - len(heading) - len(ending)
    lines = []
    for listing in listings:
        line = _listing_line(public_url, listing)
        if len(line) > left:
            break
        lines.append(line)
        left -= len(line)
    if total > len(lines):
        lines.append(ending)
    return heading + "".join(lines) if lines else ""


def _listing_line(public_url: str, listing: Listing) -> str:
    name = escape_markdown(clean_line(listing.name, _NAME_LENGTH_MAX)) or listing.id
    words = escape_markdown(clean_line(listing.description, _WORDS_MAX))
    maximum = "" if listing.metering is None else "up to "
    cost = "free" if listing.price.is_free else f"{maximum}{listing.price.text} {listing.currency} a call"
    url = f"{public_url}/api/v2/apis/{listing.id}/llms.txt"
    return f"- [{name}]({url}): {cost}" + (f". {words}" if words else "") + "\n"


def describe_catalog(
    public_url: str, page: CatalogPage, *, operator: GatewayOperator = UNNAMED
) -> dict[str, Any]:
    """A linkset (RFC 9264) for `/.well-known/api-catalog`. It contains only URLs of the gateway and of its operator."""
    own = f"{public_url}/.well-known/api-catalog"
    anchor = f"{own}?page={page.number}" if page.number else own
    if page.is_nested:
        pages = [{"href": f"{own}?page={number}"} for number in range(1, page.pages + 1)]
        return {"linkset": [_site_links(public_url, anchor, operator) | {"api-catalog": pages}]}
    first = _site_links(public_url, anchor, operator)
    items = [{"href": f"{public_url}/api/v2/gateway/{listing.id}"} for listing in page.listings]
    if items:
        first["item"] = items
    if 0 < page.number < page.pages:
        first["next"] = [{"href": f"{own}?page={page.number + 1}"}]
    return {"linkset": [first, *(_listing_links(public_url, listing.id) for listing in page.listings)]}


def _site_links(public_url: str, anchor: str, operator: GatewayOperator) -> dict[str, Any]:
    title = {} if operator.name is None else {"title": operator.name}
    reached = [url for url in (operator.url, operator.contact) if url is not None]
    if title and not reached:
        reached = [f"{public_url}/"]
    terms = [] if operator.terms_url is None else [{"href": operator.terms_url}]
    return {
        "anchor": anchor,
        "service-desc": [{"href": f"{public_url}/openapi.json", "type": "application/json"}],
        "service-doc": [
            {"href": f"{public_url}/docs", "type": "text/html"},
            {"href": f"{public_url}/llms.txt", "type": "text/plain"},
        ],
        "status": [{"href": f"{public_url}/readyz", "type": "application/json"}],
        **({"author": [{"href": url, **title} for url in reached]} if reached else {}),
        **({"terms-of-service": terms} if terms else {}),
    }


def _listing_links(public_url: str, listing_id: str) -> dict[str, Any]:
    own = f"{public_url}/api/v2/apis/{listing_id}"
    return {
        "anchor": f"{public_url}/api/v2/gateway/{listing_id}",
        "service-desc": [{"href": f"{own}/openapi.json", "type": "application/openapi+json"}],
        "service-doc": [{"href": f"{own}/llms.txt", "type": "text/markdown"}],
        "service-meta": [{"href": own, "type": "application/json"}],
        "describedby": [{"href": f"{own}/agent", "type": "application/json"}],
    }


def write_robots(public_url: str, *, has_pages: bool) -> str:
    """Crawlers may read everything except paid calls and records of wallets. `has_pages`: whether the gateway has pages, and so a sitemap."""
    closed = (
        "/api/v2/gateway/",
        "/api/v2/auth/",
        "/api/v2/history",
        "/api/v2/payments",
        "/x402/history",
        "/mcp",
        "/my",
        "/signin",
    )
    lines = ["User-agent: *", *(f"Disallow: {path}" for path in closed), "Allow: /"]
    if has_pages:
        lines += ["", f"Sitemap: {public_url}{SITEMAP_PATH}"]
    return "\n".join(lines) + f"\n\n# What is here: {public_url}/llms.txt\n"


def write_sitemap(public_url: str, listings: Iterable[tuple[str, str]], *, has_site_pages: bool) -> str:
    """A sitemap (sitemaps.org 0.9) of the pages of listings. `listings`: ids with the times of their last edits, RFC 3339. `has_site_pages`: with the start page
    and the reference."""
    own = [f"{public_url}/", f"{public_url}/docs"] if has_site_pages else []
    entries = [
        *(f"<url><loc>{escape(url)}</loc></url>" for url in own),
        *(
            f"<url><loc>{escape(f'{public_url}/apis/{listing_id}')}</loc><lastmod>{escape(time)}</lastmod></url>"
            for listing_id, time in listings
        ),
    ]
    return _write_sitemap_file("urlset", entries)


def write_sitemap_index(public_url: str, pages: int) -> str:
    """The index of several sitemaps. `pages`: how many."""
    urls = (f"{public_url}{SITEMAP_PATH}?page={number}" for number in range(1, pages + 1))
    return _write_sitemap_file(
        "sitemapindex", [f"<sitemap><loc>{escape(url)}</loc></sitemap>" for url in urls]
    )


def _write_sitemap_file(root: str, entries: Sequence[str]) -> str:
    lines = "".join(f"{entry}\n" for entry in entries)
    schema = "http://www.sitemaps.org/schemas/sitemap/0.9"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} xmlns="{schema}">\n{lines}</{root}>\n'


def write_security_text(public_url: str, contact: str, *, expires: str) -> str:
    """The format is RFC 9116. `contact`: a URI. `expires`: RFC 3339."""
    return (
        f"Contact: {contact}\nExpires: {expires}\nCanonical: {public_url}/.well-known/security.txt\n"
        "Preferred-Languages: en\n"
    )
