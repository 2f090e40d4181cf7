"""The page for people at `/`: what this is, a search box, and what is for sale. Pure.

Every word of a provider is cleaned, cut and escaped; no link leads anywhere but to this gateway. No script runs here.
"""

import html
from urllib.parse import urlencode

from tollway.discovery.plain_words import clean_line
from tollway.registry.catalog import ListingMatch, ListingPage, ListingQuery
from tollway.registry.plain_text import drop_unclean

NAME_LENGTH_MAX, DESCRIPTION_LENGTH_MAX = 120, 280


def write_home(page: ListingPage, query: ListingQuery) -> str:
    """A whole document. `query`: what was asked for, by its words and its page."""
    words = " ".join(drop_unclean(query.words or "").split())
    found = "".join(_article(one) for one in page.found) or "<p>Nothing was found.</p>"
    heading = f"Found for “{html.escape(words)}”" if words else "What is for sale"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Tollway gateway</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="description" content="HTTP APIs that are paid per request on EVM chains.">'
        '<link rel="icon" href="/favicon.svg" type="image/svg+xml">'
        '<link rel="stylesheet" href="/docs/style.css">'
        '<link rel="service-desc" href="/openapi.json" type="application/json">'
        '<link rel="api-catalog" href="/.well-known/api-catalog"></head><body>'
        "<h1>Tollway gateway</h1>"
        "<p>HTTP APIs that are paid per request on EVM chains. No account is needed: call one, and the answer says what "
        "to pay and how. Programs that speak x402 or MPP pay by themselves.</p>"
        '<nav><a href="/docs">API reference</a><a href="/openapi.json">OpenAPI</a><a href="/llms.txt">llms.txt</a>'
        '<a href="/.well-known/api-catalog">API catalog</a><a href="/problems">Problems</a></nav>'
        '<form action="/" method="get" role="search"><input type="search" name="q" maxlength="256" '
        f'aria-label="Words to search for" value="{html.escape(words)}"><button>Search</button></form>'
        f"<h2>{heading}</h2>{found}{_pages(page, query)}"
        '<p class="note">Names and descriptions are the providers\' own words.</p></body></html>'
    )


def _article(found: ListingMatch) -> str:
    listing = found.listing
    name = html.escape(clean_line(listing.name, NAME_LENGTH_MAX)) or html.escape(listing.id)
    words = html.escape(clean_line(listing.description, DESCRIPTION_LENGTH_MAX))
    own = f"/api/v2/apis/{html.escape(listing.id)}"
    cost = "free" if listing.price.is_free else f"{listing.price.text} {html.escape(listing.currency)} a call"
    return (
        f"<article><h2>{name}</h2><p>{cost} · {_reputation(found)}</p>"
        + (f"<p>{words}</p>" if words else "")
        + f'<p class="note"><a href="{own}">details</a> · <a href="{own}/agent">for agents</a> · '
        f'<a href="{own}/openapi.json">OpenAPI</a> · <a href="{own}/llms.txt">in words</a> · '
        f"<code>{html.escape(listing.id)}</code></p></article>"
    )


def _reputation(found: ListingMatch) -> str:
    quality, parts = found.reputation.quality, []
    if found.listing.status == "paused":
        parts.append("paused")
    parts.append("endpoint verified" if found.reputation.is_verified else "endpoint not verified")
    if quality is not None:
        parts.append(f"{quality.success_ppm / 10_000:.2f} % of {quality.calls} calls went well")
    return " · ".join(parts)


def _pages(page: ListingPage, query: ListingQuery) -> str:
    last = -(-page.total // query.limit)
    has_next = query.page < last or (page.is_lower_bound and len(page.found) == query.limit)
    numbers = [("previous", query.page - 1)] if query.page > 1 else []
    if has_next:
        numbers.append(("next", query.page + 1))
    links = "".join(f'<a href="{_link(query, number)}">{name}</a>' for name, number in numbers)
    return f"<nav>{links}</nav>" if links else ""


def _link(query: ListingQuery, number: int) -> str:
    given = {"q": query.words} if query.words else {}
    return html.escape("/?" + urlencode({**given, "page": number}))
