"""The query of `GET /apis`, read into a `ListingQuery` or refused with everything that is wrong. Pure."""

import re
from typing import cast, get_args

from tollway.identifiers import Address, parse_network
from tollway.money import Price
from tollway.registry.catalog import ListingQuery, Sort
from tollway.registry.plain_text import find_unclean
from tollway.web.wire import QueryParameters

PAGE_MAX = 1_000_000
LIMIT_DEFAULT, LIMIT_MAX = 20, 100
SEARCH_LENGTH_MAX = 256
TAG_LENGTH_MAX = CURRENCY_LENGTH_MAX = 32

_LISTING_PARAMETERS = (
    "page",
    "limit",
    "q",
    "provider",
    "currency",
    "network",
    "tag",
    "maxPrice",
    "minSuccessRate",
    "verified",
    "sort",
)
_RATE = re.compile(r"0(?:\.[0-9]{1,9})?|1(?:\.0{1,9})?")


def parse_listing_query(raw: bytes) -> ListingQuery:
    """Raises Refusal (422 naming each parameter). An empty `q` asks for nothing, like an absent one."""
    query = QueryParameters(raw, known=_LISTING_PARAMETERS)
    words = query.text("q", length_max=SEARCH_LENGTH_MAX)
    max_price = query.parsed("maxPrice", Price.parse)
    sort = query.choice("sort", get_args(Sort)) or "newest"
    currency = _plain_text(query, "currency", CURRENCY_LENGTH_MAX)
    if not query.has("currency"):
        if query.has("maxPrice"):
            query.refuse("maxPrice", "needs_currency", "needs currency")
        if sort in ("price", "-price"):
            query.refuse("sort", "needs_currency", "sorting by price needs currency")
    if sort == "relevance" and not (words or "").strip():
        query.refuse("sort", "needs_q", "sorting by relevance needs q")
    verified = query.choice("verified", ("true", "false"))
    parsed = ListingQuery(
        page=query.integer("page", default=1, least=1, most=PAGE_MAX),
        limit=query.integer("limit", default=LIMIT_DEFAULT, least=1, most=LIMIT_MAX),
        words=words if (words or "").strip() else None,
        provider=query.parsed("provider", Address.parse),
        currency=currency,
        network=query.parsed("network", parse_network),
        tag=_plain_text(query, "tag", TAG_LENGTH_MAX),
        price_nano_max=None if max_price is None else max_price.nano,
        min_success_rate=query.parsed("minSuccessRate", _parse_rate),
        verified=None if verified is None else verified == "true",
        sort=cast(Sort, sort),
    )
    query.finish()
    return parsed


def _plain_text(query: QueryParameters, name: str, length_max: int) -> str | None:
    text = query.text(name, length_max=length_max)
    if text is not None and (not text or find_unclean(text, is_multiline=False)):
        query.refuse(name, "malformed", "must be plain text")
        return None
    return text


def _parse_rate(text: str) -> float:
    if not _RATE.fullmatch(text):
        raise ValueError("must be a number from 0 to 1, such as 0.95")
    return float(text)
