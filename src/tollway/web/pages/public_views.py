"""The records that the public pages show: listings, operations, prices, quality, ways to pay, networks. Pure: from the records of services to plain texts and numbers.

Words of providers are cleaned here and escaped by the templates. Sentences of the pages are in the templates, where they can be translated; this module has only numbers, names and addresses.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from tollway.chain.networks import NetworkProfile
from tollway.discovery.listing_view import ListingView
from tollway.discovery.operations import ApiOperation
from tollway.discovery.safe_text import clean_line, clean_prose, clean_tags
from tollway.ids import ChainId
from tollway.money import format_decimal
from tollway.registry.catalog import CatalogFacets, ListingMatch, ListingPage, ListingQuery
from tollway.registry.listing import ChargeOn, Listing
from tollway.registry.quality import DayQuality, Quality
from tollway.registry.text import join_lines
from tollway.web.pages.chart_svg import BarChart, ChartStep, lay_out_bars

NAME_LENGTH_MAX, WORDS_LENGTH_MAX, PROSE_LENGTH_MAX = 120, 280, 2_000
OPERATIONS_SHOWN_MAX = 100
SORTS = ("newest", "price", "-price", "name")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceView:
    """The prices of a listing: the lowest and the highest of its own and its operations'. `low` is the only one where both are equal."""

    low: str
    high: str
    currency: str
    is_range: bool
    is_free: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityView:
    """Measured calls of 30 days. `rate`: in percent, rounded down."""

    calls: str
    rate: str
    p50_ms: int | None
    p95_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardView:
    """A listing in a list. `match`: the fields in which the words of a search were found."""

    id: str
    name: str
    words: str
    price: PriceView
    quality: QualityView | None
    networks: tuple[str, ...]
    match: tuple[str, ...]
    is_verified: bool
    is_paused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An option of a filter."""

    value: str
    label: str
    count: int | None
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterView:
    """The form of the search: what it holds and what can be chosen. `errors`: sentences, by parameter."""

    words: str
    price_max: str
    success_min: str
    is_verified: bool
    networks: tuple[Choice, ...]
    currencies: tuple[Choice, ...]
    tags: tuple[Choice, ...]
    sorts: tuple[Choice, ...]
    errors: Mapping[str, str]
    has_filters: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsView:
    """A page of results. `older`, `newer`: paths of the pages beside it."""

    cards: tuple[CardView, ...]
    total: int
    is_lower_bound: bool
    older: str | None
    newer: str | None


def view_card(found: ListingMatch, profiles: Mapping[ChainId, NetworkProfile]) -> CardView:
    listing = found.listing
    return CardView(
        id=listing.id,
        name=name_of(listing),
        words=clean_line(listing.description, WORDS_LENGTH_MAX),
        price=view_price(listing),
        quality=view_quality(found.reputation.quality),
        networks=tuple(_network_name(chain_id, profiles) for chain_id in listing.networks),
        match=found.match,
        is_verified=found.reputation.is_verified,
        is_paused=listing.status == "paused",
    )


def name_of(listing: Listing) -> str:
    return clean_line(listing.name, NAME_LENGTH_MAX) or listing.id


def view_price(listing: Listing, operations: Sequence[ApiOperation] = ()) -> PriceView:
    """`operations`: of the listing, where they are known; a price that no operation has is left out then."""
    prices = [one.price for one in operations] or [listing.price, *(one.price for one in listing.operations)]
    low, high = min(prices, key=lambda price: price.nano), max(prices, key=lambda price: price.nano)
    return PriceView(
        low=low.text,
        high=high.text,
        currency=listing.currency,
        is_range=low.nano != high.nano,
        is_free=high.is_free,
    )


def view_quality(quality: Quality | None) -> QualityView | None:
    if quality is None:
        return None
    return QualityView(
        calls=f"{quality.calls:,}",
        rate=f"{quality.success_ppm // 100 / 100:.2f}".rstrip("0").rstrip("."),
        p50_ms=quality.p50_ms,
        p95_ms=quality.p95_ms,
    )


def _network_name(chain_id: ChainId, profiles: Mapping[ChainId, NetworkProfile]) -> str:
    return profiles[chain_id].name if chain_id in profiles else f"eip155:{chain_id}"


# ---- The search.


def view_results(
    page: ListingPage, query: ListingQuery, given: Sequence[tuple[str, str]], cards: Iterable[CardView]
) -> ResultsView:
    """`given`: the parameters of the request; the links to the pages beside have them."""
    last = -(-page.total // query.limit)
    has_older = query.page < last or (page.is_lower_bound and len(page.found) == query.limit)
    kept = [(name, value) for name, value in given if name != "page" and value]

    def link(number: int) -> str:
        return "?" + urlencode([*kept, ("page", str(number))] if number > 1 else kept)

    return ResultsView(
        cards=tuple(cards),
        total=page.total,
        is_lower_bound=page.is_lower_bound,
        older=link(query.page + 1) if has_older else None,
        newer=link(query.page - 1) if query.page > 1 else None,
    )


def view_filters(
    given: Mapping[str, str],
    facets: CatalogFacets,
    profiles: Mapping[ChainId, NetworkProfile],
    errors: Mapping[str, str],
) -> FilterView:
    networks = [
        (f"eip155:{chain_id}", _network_name(chain_id, profiles), count)
        for chain_id, count in facets.networks
    ]
    filters = ("network", "currency", "tag", "maxPrice", "minSuccessRate", "verified", "provider")
    return FilterView(
        words=join_lines(given.get("q", "")),
        price_max=given.get("maxPrice", ""),
        success_min=given.get("minSuccessRate", ""),
        is_verified=given.get("verified") == "true",
        networks=_choices(networks, given.get("network", "")),
        currencies=_choices(
            [(one, clean_line(one, 32), count) for one, count in facets.currencies], given.get("currency", "")
        ),
        tags=_choices(
            [(one, clean_line(one, 32), count) for one, count in facets.tags], given.get("tag", "")
        ),
        sorts=_list_sorts(given),
        errors=errors,
        has_filters=any(given.get(name) for name in filters),
    )


def _list_sorts(given: Mapping[str, str]) -> tuple[Choice, ...]:
    """The orders, first the one without `sort`: by relevance with words, else the newest."""
    orders = ("relevance", *SORTS) if given.get("q", "").strip() else SORTS
    chosen = given.get("sort") or orders[0]
    return tuple(
        Choice(value="" if one == orders[0] else one, label=one, count=None, is_chosen=one == chosen)
        for one in orders
    )


def _choices(rows: Iterable[tuple[str, str, int]], chosen: str) -> tuple[Choice, ...]:
    """The rows as options. A chosen value that no row has stays chosen, so that the form shows what was searched."""
    found = [
        Choice(value=value, label=label, count=count, is_chosen=value == chosen)
        for value, label, count in rows
    ]
    if chosen and not any(one.is_chosen for one in found):
        found.insert(0, Choice(value=chosen, label=clean_line(chosen, 64), count=0, is_chosen=True))
    return tuple(found)


# ---- One listing.


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationView:
    """An operation in the table of a listing. `href`: selects it in the panel beside."""

    tool: str
    method: str
    path: str
    summary: str
    price: str
    is_free: bool
    is_any: bool
    is_chosen: bool
    href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WayToPay:
    """A rail on a network. `explorer`: of the payee there, None where the settings name none."""

    rail: str
    network: str
    symbol: str
    amount: str
    pay_to: str
    confirmations: int
    explorer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingPageView:
    """The page of one listing, without its panel and its snippets."""

    id: str
    name: str
    words: str
    tags: tuple[str, ...]
    provider: str
    host: str
    price: PriceView
    quality: QualityView | None
    verified_at: str | None
    is_paused: bool
    operations: tuple[OperationView, ...]
    operations_left_out: int
    ways: tuple[WayToPay, ...]
    has_mpp: bool
    is_free: bool
    charges_success_only: bool
    timeout_s: int
    rate_calls: int | None
    rate_seconds: int | None
    links: Mapping[str, str]
    updated_at: str


def view_listing(
    view: ListingView,
    profiles: Mapping[ChainId, NetworkProfile],
    *,
    chosen: ApiOperation | None,
) -> ListingPageView:
    """`chosen`: the operation of the form; None where the form has a call that none of them describes."""
    listing = view.listing
    shown = view.operations[:OPERATIONS_SHOWN_MAX]
    rate = listing.rate_limit
    return ListingPageView(
        id=listing.id,
        name=name_of(listing),
        words=clean_prose(_described(listing), PROSE_LENGTH_MAX),
        tags=tuple(clean_tags(listing.tags)),
        provider=str(listing.provider),
        host=clean_line(urlsplit(listing.endpoint).netloc.rpartition("@")[2], 255),
        price=view_price(listing, view.operations),
        quality=view_quality(view.quality),
        verified_at=view.verified_at,
        is_paused=listing.status == "paused",
        operations=tuple(_view_operation(view, one, is_chosen=one is chosen) for one in shown),
        operations_left_out=len(view.operations) - len(shown),
        ways=tuple(_view_way(option, profiles) for option in view.options[view.quoted_price.nano]),
        has_mpp=view.has_mpp,
        is_free=all(one.price.is_free for one in view.operations),
        charges_success_only=listing.charge_on is ChargeOn.SUCCESS,
        timeout_s=listing.timeout_s,
        rate_calls=rate.calls if rate else None,
        rate_seconds=rate.per_s if rate else None,
        links={name: url.removeprefix(view.public_url) for name, url in view.links.items()},
        updated_at=view.details["updatedAt"],
    )


def _described(listing: Listing) -> object:
    """The listing's description; without one, that of the provider's document."""
    info = (listing.openapi or {}).get("info")
    return listing.description.strip() or (info.get("description") if isinstance(info, Mapping) else "")


def _view_operation(view: ListingView, operation: ApiOperation, *, is_chosen: bool) -> OperationView:
    return OperationView(
        tool=operation.tool,
        method="any" if operation.is_any else operation.method,
        path=clean_line(operation.path, 200) or "/",
        summary=operation.summary or clean_line(operation.description, WORDS_LENGTH_MAX),
        price=operation.price.text,
        is_free=operation.price.is_free,
        is_any=operation.is_any,
        is_chosen=is_chosen,
        href=f"/apis/{quote(view.listing.id, safe='')}?operation={quote(operation.tool, safe='')}#try",
    )


def _view_way(option: Mapping[str, Any], profiles: Mapping[ChainId, NetworkProfile]) -> WayToPay:
    chain_id = ChainId(option["chainId"])
    profile = profiles.get(chain_id)
    return WayToPay(
        rail=option["rail"],
        network=_network_name(chain_id, profiles),
        symbol=option["symbol"],
        amount=format_decimal(int(option["amount"]), decimals=option["decimals"]),
        pay_to=option["payTo"],
        confirmations=option.get("confirmations", 0),
        explorer=profile.link_address(option["payTo"]) if profile else None,
    )


def view_calls_by_day(days: Sequence[DayQuality], *, series: tuple[str, str], summary: str) -> BarChart:
    """Measured calls by UTC day: those that succeeded, and on top those that failed."""
    steps = [
        ChartStep(
            label=(_EPOCH + timedelta(days=one.day)).date().isoformat(),
            values=(one.successes, one.calls - one.successes),
            texts=(f"{one.successes:,}", f"{one.calls - one.successes:,}"),
        )
        for one in days
    ]
    return lay_out_bars(steps, series=series, summary=summary)


# ---- One provider.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderView:
    """`origins`: hosts of listings whose ownership is proved, of the shown page."""

    address: str
    origins: tuple[str, ...]


def view_provider(address: str, found: Sequence[ListingMatch]) -> ProviderView:
    hosts = (
        clean_line(urlsplit(one.listing.endpoint).netloc.rpartition("@")[2], 255)
        for one in found
        if one.reputation.is_verified
    )
    return ProviderView(address=address, origins=tuple(dict.fromkeys(hosts)))


# ---- The networks.


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawnView:
    """Rails that are closed. `subject`: the symbol of the token, or empty for the whole network."""

    rails: str
    reason: str
    since: str
    subject: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkView:
    """A network on the page of the status. `unreachable_since`: None while it is reachable, empty where it was never reached."""

    id: str
    name: str
    is_test: bool
    explorer: str | None
    assets: tuple[str, ...]
    rails: tuple[str, ...]
    unreachable_since: str | None
    withdrawn: tuple[WithdrawnView, ...]


def view_networks(
    status: Sequence[Mapping[str, Any]], networks: Sequence[Mapping[str, Any]]
) -> tuple[NetworkView, ...]:
    """`status`, `networks`: those of `GET /status` and `GET /networks`, in the same order."""
    found = []
    for one, network in zip(status, networks, strict=True):
        symbols = {asset["asset"]: asset["symbol"] for asset in network["assets"]}
        found.append(
            NetworkView(
                id=one["network"],
                name=one["name"],
                is_test=network["kind"] == "test",
                explorer=network["explorerUrl"],
                assets=tuple(asset["symbol"] for asset in network["assets"]),
                rails=tuple(one["rails"]),
                unreachable_since=None if one["reachable"] else one["unreachableSince"] or "",
                withdrawn=tuple(
                    WithdrawnView(
                        rails=", ".join(gone["rails"]),
                        reason=gone["reason"].replace("_", " "),
                        since=gone["since"],
                        subject=symbols.get(gone.get("asset", ""), ""),
                    )
                    for gone in one["withdrawn"]
                ),
            )
        )
    return tuple(found)
