"""What is asked of both sizes: lists, search, details, history, payments, sums, exports, and the pages that read them. Each question asks for the same number of rows at both sizes, or
as many as its maximum allows.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlencode

from scale_routes import Routes
from scale_rows import (
    END_MS,
    FREQUENT_TAG,
    FREQUENT_WORD,
    RARE_CHAIN,
    RARE_TAG,
    RARE_WORD,
    START_MS,
    WHALE,
    WHALE_PROVIDER,
    Scale,
    account,
    channel_account,
    listing,
    provider_of,
    tx_hash_of,
)

from tollway.ids import Address, TxHash
from tollway.ledger.sales import DAY_MS
from tollway.storage.engine.database import Database
from tollway.web.http.query import format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One size of the data and the routes over it. `chance` gives both sides of a pair the same random draws."""

    scale: Scale
    is_small: bool
    database: Database
    routes: Routes
    chance: random.Random

    def deep(self, *, small: int, large: int) -> int:
        """An offset with a full page after it."""
        return small if self.is_small else large

    def any_listing(self) -> int:
        """A listing that lists contain."""
        while listing(self.scale, number := self.chance.randrange(1, self.scale.listings + 1)).retired_ms:
            pass
        return number

    def any_pair(self) -> int:
        return self.chance.randrange(self.scale.payments // 2) // 100 * 100 + 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request and its wallet. `rounds_part`: of the rounds of other questions. `is_file`: its first byte is timed, and its rows by the thousand."""

    name: str
    ask: Callable[[Side], str]
    wallet: Callable[[Side], Address] = lambda side: WHALE
    app: Literal["public", "operator"] = "public"
    rounds_part: float = 1.0
    is_file: bool = False


def apis(**query: Any) -> Callable[[Side], str]:
    """`GET /apis`; values may depend on the side."""
    return _get("/apis", query)


def history(**query: Any) -> Callable[[Side], str]:
    return _get("/history", query)


def _get(path: str, query: dict[str, Any]) -> Callable[[Side], str]:
    def ask(side: Side) -> str:
        given = {name.rstrip("_"): value(side) if callable(value) else value for name, value in query.items()}
        return f"/api/v2{path}?{urlencode(given, quote_via=quote)}"

    return ask


def page_at(small: int, large: int) -> Callable[[Side], int]:
    return lambda side: side.deep(small=small, large=large)


def document_of(side: Side, kind: str) -> str:
    """The document of a listing with an OpenAPI document of its provider."""
    number = side.chance.randrange(1, side.scale.listings // 10) * 10
    while listing(side.scale, number).retired_ms:
        number = side.chance.randrange(1, side.scale.listings // 10) * 10
    return f"/api/v2/apis/{listing(side.scale, number).id}/{kind}"


def whale_listing(side: Side) -> str:
    """One of the many listings that the largest payer calls."""
    pairs = side.scale.payments // 2
    return account(side.scale, side.chance.randrange(pairs) // 100 * 100).listing.id


def provider_listing(side: Side) -> str:
    """A called listing of the provider with the most listings."""
    for pair in range(1, side.scale.payments // 2):
        if (sold := account(side.scale, pair).listing).provider == WHALE_PROVIDER:
            return sold.id
    return "api_none"


def channel_payer(side: Side) -> Address:
    """A payer of few channels."""
    key = side.chance.randrange(1, side.scale.channels)
    return channel_account(side.scale, key + (key % 100 == 0)).payer


def any_provider(side: Side) -> Address:
    """The provider of a called listing."""
    while (paid := account(side.scale, side.any_pair()).listing).provider == WHALE_PROVIDER:
        pass
    return paid.provider


def any_payer(side: Side) -> Address:
    return account(side.scale, side.any_pair()).payer


def the_provider(side: Side) -> Address:
    return WHALE_PROVIDER


TOP = START_MS + 90 * 86_400_000
HALF = format_time(TOP)
BIG = str(WHALE_PROVIDER)
DEEP_PAGE = page_at(25, 501)
QUESTIONS = [
    Question(name="list, first page", ask=apis()),
    Question(name="list, offset 10,000", ask=apis(page=DEEP_PAGE)),
    Question(name="list, 100 a page", ask=apis(limit=100)),
    Question(name="list, sort=name", ask=apis(sort="name")),
    Question(name="list, sort=name, offset 10,000", ask=apis(sort="name", page=DEEP_PAGE)),
    Question(name="list, currency", ask=apis(currency="USDC")),
    Question(name="list, currency, offset 10,000", ask=apis(currency="USDC", page=DEEP_PAGE)),
    Question(name="list, rarer currency", ask=apis(currency="EURC", limit=5)),
    Question(name="list, sort=price", ask=apis(currency="USDC", sort="price")),
    Question(name="list, sort=-price", ask=apis(currency="USDC", sort="-price")),
    Question(name="list, sort=price, offset 10,000", ask=apis(currency="USDC", sort="price", page=DEEP_PAGE)),
    Question(name="list, maxPrice", ask=apis(currency="USDC", maxPrice="0.03")),
    Question(name="list, maxPrice, few", ask=apis(currency="USDC", maxPrice="0.0005", limit=5)),
    Question(name="list, maxPrice, sort=price", ask=apis(currency="USDC", maxPrice="0.03", sort="price")),
    Question(name="list, frequent tag", ask=apis(tag=FREQUENT_TAG)),
    Question(name="list, frequent tag, offset 10,000", ask=apis(tag=FREQUENT_TAG, page=page_at(10, 501))),
    Question(name="list, rare tag", ask=apis(tag=RARE_TAG)),
    Question(name="list, frequent network", ask=apis(network="eip155:8453")),
    Question(
        name="list, frequent network, offset 10,000", ask=apis(network="eip155:8453", page=page_at(25, 501))
    ),
    Question(name="list, rare network", ask=apis(network=f"eip155:{RARE_CHAIN}")),
    Question(name="list, provider of many", ask=apis(provider=BIG)),
    Question(name="list, provider of many, offset 10,000", ask=apis(provider=BIG, page=page_at(10, 501))),
    Question(
        name="list, any provider",
        ask=apis(provider=lambda side: str(provider_of(side.scale, side.any_listing())), limit=5),
    ),
    Question(name="list, tag and network", ask=apis(tag=FREQUENT_TAG, network="eip155:8453")),
    Question(
        name="list, frequent tag and rare network",
        ask=apis(tag=FREQUENT_TAG, network=f"eip155:{RARE_CHAIN}", limit=5),
    ),
    Question(name="list, tag and currency", ask=apis(tag=FREQUENT_TAG, currency="USDC")),
    Question(name="list, provider of many and rare tag", ask=apis(provider=BIG, tag=RARE_TAG, limit=5)),
    Question(
        name="list, provider of many and rarer currency", ask=apis(provider=BIG, currency="EURC", limit=1)
    ),
    Question(name="list, tag, sort=price", ask=apis(tag=FREQUENT_TAG, currency="USDC", sort="price")),
    Question(name="list, network, sort=name", ask=apis(network="eip155:8453", sort="name")),
    Question(name="list, provider of many, sort=name", ask=apis(provider=BIG, sort="name")),
    Question(
        name="list, provider of many, sort=price", ask=apis(provider=BIG, currency="USDC", sort="price")
    ),
    Question(name="search, rare word", ask=apis(q=RARE_WORD)),
    Question(name="search, rare word, by relevance", ask=apis(q=RARE_WORD, sort="relevance")),
    Question(name="search, frequent word", ask=apis(q=FREQUENT_WORD)),
    Question(name="search, frequent word, offset 10,000", ask=apis(q=FREQUENT_WORD, page=page_at(10, 501))),
    Question(name="search, frequent word, by relevance", ask=apis(q=FREQUENT_WORD, sort="relevance")),
    Question(name="search, frequent word, sort=name", ask=apis(q=FREQUENT_WORD, sort="name")),
    Question(name="search, several words", ask=apis(q=f"{FREQUENT_WORD} price river", limit=5)),
    Question(name="search, frequent and rare word", ask=apis(q=f"{FREQUENT_WORD} {RARE_WORD}", limit=5)),
    Question(name="search, nothing found", ask=apis(q="xyzzy")),
    Question(name="search, two words never together", ask=apis(q=f"{RARE_WORD} 77")),
    Question(name="search, frequent word and tag", ask=apis(q=FREQUENT_WORD, tag=FREQUENT_TAG)),
    Question(name="search, frequent word and rare tag", ask=apis(q=FREQUENT_WORD, tag=RARE_TAG, limit=5)),
    Question(name="search, rare word and network", ask=apis(q=RARE_WORD, network=f"eip155:{RARE_CHAIN}")),
    Question(name="list, minSuccessRate", ask=apis(minSuccessRate="0.9")),
    Question(
        name="list, minSuccessRate, offset 10,000", ask=apis(minSuccessRate="0.5", page=page_at(10, 501))
    ),
    Question(name="list, minSuccessRate, few", ask=apis(minSuccessRate="1")),
    Question(name="list, minSuccessRate, sort=name", ask=apis(minSuccessRate="0.9", sort="name")),
    Question(
        name="list, minSuccessRate, sort=price",
        ask=apis(minSuccessRate="0.9", currency="USDC", sort="price"),
    ),
    Question(name="list, minSuccessRate and rare tag", ask=apis(minSuccessRate="0.9", tag=RARE_TAG)),
    Question(name="list, verified", ask=apis(verified="true")),
    Question(name="list, not verified", ask=apis(verified="false")),
    Question(name="list, verified and minSuccessRate", ask=apis(verified="true", minSuccessRate="0.9")),
    Question(
        name="search, frequent word and tag, by relevance",
        ask=apis(q=FREQUENT_WORD, tag=FREQUENT_TAG, sort="relevance"),
    ),
    Question(
        name="search, frequent word and minSuccessRate, by relevance",
        ask=apis(q=FREQUENT_WORD, minSuccessRate="0.9", sort="relevance"),
    ),
    Question(name="details", ask=lambda side: f"/api/v2/apis/{listing(side.scale, side.any_listing()).id}"),
    *(
        Question(name=f"document of one API: {kind}", ask=lambda side, kind=kind: document_of(side, kind))
        for kind in ("agent", "discovery", "openapi.json", "llms.txt")
    ),
    Question(name="history of the whale", ask=history()),
    Question(name="history of the whale, offset 10,000", ask=history(offset=page_at(40, 10_000))),
    Question(name="history of any payer", ask=history(limit=5), wallet=any_payer),
    Question(name="history, succeeded", ask=history(status="succeeded")),
    Question(
        name="history, succeeded, offset 10,000", ask=history(status="succeeded", offset=page_at(30, 10_000))
    ),
    Question(name="history, failed", ask=history(status="failed", limit=3)),
    Question(
        name="history, failed, offset 10,000",
        ask=history(status="failed", limit=1, offset=page_at(2, 10_000)),
    ),
    Question(name="history, unknown", ask=history(status="unknown", limit=1)),
    Question(name="history, pending", ask=history(status="pending", limit=1)),
    Question(name="history, from the middle on", ask=history(from_=HALF, limit=30)),
    Question(name="history, to the middle", ask=history(to=HALF, limit=30)),
    Question(name="history, one API", ask=history(apiId=whale_listing, limit=5)),
    Question(name="history, one API, failed", ask=history(apiId=whale_listing, status="failed", limit=1)),
    Question(
        name="history, one API, succeeded", ask=history(apiId=whale_listing, status="succeeded", limit=5)
    ),
    Question(name="history, somebody else's API", ask=history(apiId="api_none")),
    Question(name="history of the provider", ask=history(role="provider"), wallet=the_provider),
    Question(
        name="history of the provider, offset 10,000",
        ask=history(role="provider", offset=page_at(200, 10_000)),
        wallet=the_provider,
    ),
    Question(
        name="history of the provider, one API",
        ask=history(role="provider", apiId=provider_listing, limit=1),
        wallet=the_provider,
    ),
    Question(
        name="history of the provider, failed",
        ask=history(role="provider", status="failed", limit=5),
        wallet=the_provider,
    ),
    Question(
        name="history of the provider, succeeded",
        ask=history(role="provider", status="succeeded"),
        wallet=the_provider,
    ),
    Question(name="payments of the whale", ask=_get("/payments", {"limit": 5})),
    Question(
        name="payments of the whale, deep",
        ask=_get(
            "/payments", {"limit": 5, "offset": lambda side: min(side.scale.payments // 100 - 10, 10_000)}
        ),
    ),
    Question(name="payments of any payer", ask=_get("/payments", {"limit": 2}), wallet=any_payer),
    Question(
        name="one payment of the whale",
        ask=lambda side: f"/api/v2/payments/{TxHash(tx_hash_of(side.scale, 1))}",
    ),
    Question(
        name="history of a payer on channels", ask=history(limit=2), wallet=lambda side: channel_payer(side)
    ),
]


# ---- Sums, files and pages.


def sales(**query: Any) -> Callable[[Side], str]:
    return _get("/sales", query)


def spending(**query: Any) -> Callable[[Side], str]:
    return _get("/spending", query)


def page(path: str, **query: Any) -> Callable[[Side], str]:
    """A page; `query` as for the API."""
    ask = _get("", query)
    return lambda side: ask(side).replace("/api/v2", path)


WEEK = {"from_": format_time(END_MS - 60 * DAY_MS), "to": format_time(END_MS - 53 * DAY_MS)}
ALL = {"from_": format_time(START_MS), "to": format_time(END_MS)}
ROWS = 10_000
"""Of a file at the large size."""
QUESTIONS += [
    Question(name="sales of the provider, 30 days", ask=sales(), wallet=the_provider, rounds_part=0.2),
    Question(name="sales of the provider, a week", ask=sales(**WEEK), wallet=the_provider, rounds_part=0.2),
    Question(name="sales of the provider, all", ask=sales(**ALL), wallet=the_provider, rounds_part=0.2),
    Question(
        name="sales of the provider, 24 hours", ask=sales(step="hour"), wallet=the_provider, rounds_part=0.2
    ),
    Question(
        name="sales of the provider, one API, all",
        ask=sales(apiId=provider_listing, **ALL),
        wallet=the_provider,
        rounds_part=0.2,
    ),
    Question(name="sales of any provider, 30 days", ask=sales(), wallet=any_provider),
    Question(name="sales of any provider, all", ask=sales(**ALL), wallet=any_provider),
    *(
        Question(
            name=f"spending of the whale by {group}, {words}",
            ask=spending(groupBy=group, **given),
            rounds_part=0.2,
        )
        for group in ("api", "provider", "wallet")
        for words, given in (("30 days", {}), ("a week", WEEK), ("all", ALL))
    ),
    Question(name="spending of any payer, 30 days", ask=spending(), wallet=any_payer),
    Question(name="spending of any payer, all", ask=spending(**ALL), wallet=any_payer),
    Question(
        name="history.csv of the whale",
        ask=_get("/history.csv", {"limit": ROWS}),
        rounds_part=0.1,
        is_file=True,
    ),
    Question(
        name="history.csv of the provider",
        ask=_get("/history.csv", {"limit": ROWS, "role": "provider"}),
        wallet=the_provider,
        rounds_part=0.1,
        is_file=True,
    ),
    Question(
        name="payments.csv of the whale",
        ask=_get("/payments.csv", {"limit": ROWS}),
        rounds_part=0.1,
        is_file=True,
    ),
    Question(
        name="sales.csv of the provider",
        ask=page("/my/sales.csv"),
        wallet=the_provider,
        rounds_part=0.1,
        is_file=True,
    ),
    Question(name="page: front", ask=page("/")),
    Question(name="page: search, frequent word", ask=page("/", q=FREQUENT_WORD)),
    Question(name="page: listing", ask=lambda side: f"/apis/{listing(side.scale, side.any_listing()).id}"),
    Question(name="page: provider of many", ask=page(f"/providers/{BIG}")),
    Question(name="page: my overview", ask=page("/my"), rounds_part=0.2),
    Question(name="page: my calls", ask=page("/my/calls")),
    Question(name="page: my failed calls", ask=page("/my/calls", status="failed")),
    Question(name="page: calls of my APIs", ask=page("/my/calls", role="provider"), wallet=the_provider),
    Question(name="page: my credit", ask=page("/my/credit")),
    Question(name="page: my spending", ask=page("/my/spending"), rounds_part=0.2),
    Question(name="page: my APIs", ask=page("/my/apis"), wallet=the_provider),
    Question(name="page: my sales", ask=page("/my/sales"), wallet=the_provider, rounds_part=0.2),
    *(
        Question(name=f"page: operator, {words}", ask=page(path), app="operator")
        for words, path in (
            ("overview", "/"),
            ("calls", "/calls"),
            ("books", "/books"),
            ("chains", "/chains"),
            ("listings", "/listings"),
        )
    ),
]
