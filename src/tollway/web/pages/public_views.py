"""What the public pages show beside listings and operations: prices, ways to pay, the form of the search, calls by day. Pure: from the records of services to plain texts and numbers.

Words of providers are cleaned here, or in the templates where they come with their record. Sentences of the pages are in the templates, where they can be translated; this module has only numbers, names and addresses.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode, urlsplit

from tollway.chain.networks import NetworkProfile
from tollway.discovery.operations import ApiOperation
from tollway.discovery.safe_text import clean_line, clean_prose, clean_tags
from tollway.ids import ChainId, ListingId
from tollway.ledger.sales import DAY_MS
from tollway.money import Price
from tollway.registry.catalog import CatalogFacets, ListingMatch, ListingPage, ListingQuery
from tollway.registry.listing import Listing
from tollway.registry.metering import HasPrice, describe_metering, offer
from tollway.registry.quality import DayQuality
from tollway.web.pages.chart_svg import BarChart, ChartStep, format_tick, lay_out_bars

PROSE_LENGTH_MAX = 2_000
OPERATIONS_SHOWN_MAX = 100
FOLDED_LENGTH_MIN = 360
"""Characters of a description that is shown whole."""
FILTERED_MIN = 10
"""Operations of a page that have a filter."""
SORTS = ("recommended", "newest", "price", "-price", "name")
PLACEHOLDER_TAGS_MAX, ROW_TAGS_MAX, CHIPS_MAX = 3, 3, 14
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An option of a filter."""

    value: str
    label: str
    count: int | None
    is_chosen: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRange:
    """The prices of a listing. `is_metered`: one of them at least; `high` is then said as a maximum. `formula`: in words, where it is the only price."""

    low: Price
    high: Price
    is_metered: bool = False
    formula: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRow:
    """A listing of a page of results. `host`: of its endpoint. `by_day`: its paid calls of 30 days, in steps of two."""

    found: ListingMatch
    prices: PriceRange
    host: str
    tags: Sequence[str]
    by_day: Sequence[int]

    @property
    def calls(self) -> int:
        return sum(self.by_day)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsView:
    """A page of results. `has_words`: of the search. `previous`, `following`: paths of the pages beside it."""

    rows: tuple[ResultRow, ...]
    total: int
    is_lower_bound: bool
    has_words: bool
    previous: str | None
    following: str | None


def find_prices(listing: Listing, operations: Sequence[ApiOperation] = ()) -> PriceRange:
    """The prices of a listing and its operations. `operations`: where they are known; a price that no operation has is left out then."""
    own: Sequence[HasPrice] = (listing, *listing.operations)
    offered = {offer(one) for one in operations or own}
    formulas = [one.metering for one in offered if one.metering is not None]
    prices = [one.price for one in offered]
    return PriceRange(
        low=min(prices, key=lambda price: price.nano),
        high=max(prices, key=lambda price: price.nano),
        is_metered=bool(formulas),
        formula=describe_metering(formulas[0]) if formulas and len(offered) == 1 else "",
    )


def name_network(chain_id: ChainId, profiles: Mapping[ChainId, NetworkProfile]) -> str:
    return profiles[chain_id].name if chain_id in profiles else f"eip155:{chain_id}"


# ---- The search.


def view_results(
    page: ListingPage,
    query: ListingQuery,
    given: Sequence[tuple[str, str]],
    *,
    by_day: Mapping[ListingId, Sequence[int]],
) -> ResultsView:
    """`given`: the parameters of the request; the links to the pages beside have them. `by_day`: paid calls of the last 30 days, of the listings that have any."""
    last = -(-page.total // query.limit)
    has_following = query.page < last or (page.is_lower_bound and len(page.found) == query.limit)
    kept = [(name, value) for name, value in given if name != "page" and value]

    def link(number: int) -> str:
        return "?" + urlencode([*kept, ("page", str(number))] if number > 1 else kept)

    return ResultsView(
        rows=tuple(_view_row(found, by_day.get(found.listing.id, ())) for found in page.found),
        total=page.total,
        is_lower_bound=page.is_lower_bound,
        has_words=query.words is not None,
        previous=link(query.page - 1) if query.page > 1 else None,
        following=link(query.page + 1) if has_following else None,
    )


def _view_row(found: ListingMatch, by_day: Sequence[int]) -> ResultRow:
    return ResultRow(
        found=found,
        prices=find_prices(found.listing),
        host=host_of(found.listing),
        tags=clean_tags(found.listing.tags[:ROW_TAGS_MAX]),
        by_day=[sum(by_day[first : first + 2]) for first in range(0, len(by_day), 2)],
    )


def list_choices(
    given: Mapping[str, str], facets: CatalogFacets, profiles: Mapping[ChainId, NetworkProfile]
) -> Mapping[str, Sequence[Choice]]:
    """What can be chosen in the form of the search, by the name of the field."""
    networks = [
        (f"eip155:{chain_id}", name_network(chain_id, profiles), count) for chain_id, count in facets.networks
    ]
    return {
        "network": _choices(networks, given.get("network", "")),
        "currency": _choices(
            [(one, clean_line(one, 32), count) for one, count in facets.currencies], given.get("currency", "")
        ),
        "tag": _choices(
            [(one, clean_line(one, 32), count) for one, count in facets.tags], given.get("tag", "")
        ),
        "sort": _list_sorts(given),
    }


def _list_sorts(given: Mapping[str, str]) -> tuple[Choice, ...]:
    """The orders, first the one without `sort`: by relevance with words, else the recommended one."""
    orders = ("relevance", *SORTS[1:]) if given.get("q", "").strip() else SORTS
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


def describe(listing: Listing) -> str:
    """The listing's description; without one, that of the provider's document."""
    info = (listing.openapi or {}).get("info")
    text = listing.description.strip() or (info.get("description") if isinstance(info, Mapping) else "")
    return clean_prose(text, PROSE_LENGTH_MAX)


def fold_text(text: str) -> tuple[str, str]:
    """A description as the part that is shown, up to the end of a line or of a word, and the rest, which is folded; empty where all of it is short."""
    if len(text) <= FOLDED_LENGTH_MIN:
        return text, ""
    start = text[:FOLDED_LENGTH_MIN]
    place = max(start.rfind("\n"), start.rfind(". ") + 1)
    if place < FOLDED_LENGTH_MIN // 3:
        place = start.rfind(" ") if " " in start else FOLDED_LENGTH_MIN
    return text[:place].rstrip(), text[place:].lstrip()


def host_of(listing: Listing) -> str:
    return clean_line(urlsplit(listing.endpoint).netloc.rpartition("@")[2], 255)


def view_calls_by_day(days: Sequence[DayQuality], *, series: tuple[str, str], summary: str) -> BarChart:
    """Measured calls by UTC day: those that succeeded, and on top those that failed."""
    steps = [
        ChartStep(
            label=(_EPOCH + timedelta(days=one.day)).date().isoformat(),
            short=format_tick(one.day * DAY_MS, is_hour=False),
            start_ms=one.day * DAY_MS,
            values=(one.successes, one.calls - one.successes),
            texts=(f"{one.successes:,}", f"{one.calls - one.successes:,}"),
        )
        for one in days
    ]
    return lay_out_bars(steps, series=series, summary=summary)


# ---- One provider.


def list_proved_hosts(found: Sequence[ListingMatch]) -> tuple[str, ...]:
    """The hosts of the listings whose ownership is proved, each once."""
    hosts = (host_of(one.listing) for one in found if one.reputation.is_verified)
    return tuple(dict.fromkeys(hosts))
