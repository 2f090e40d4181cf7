"""The records that the pages of a provider show: its listings, their editor, its sales. Pure: from the records of stores to plain texts.

No sum adds two assets: every asset has its sums, its chart and its rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from tollway.chain.networks import NetworkProfile
from tollway.csv_text import csv_line
from tollway.discovery.operations import list_operations
from tollway.discovery.safe_text import clean_line
from tollway.ids import ChainId, ListingId, format_network
from tollway.ledger.records import CallRecord
from tollway.ledger.sales import (
    CallSum,
    GroupSum,
    PeriodSums,
    SalesQuery,
    SumKey,
    SumState,
)
from tollway.outbound.probes import OwnershipEvidence
from tollway.registry.catalog import ListingMatch
from tollway.registry.draft import DraftRules
from tollway.registry.listing import Listing
from tollway.registry.listing_warnings import ListingWarning
from tollway.registry.ownership import Challenge, Ownership
from tollway.web.api.context import FindAsset
from tollway.web.api.sums_routes import STATES, add_totals, asset_of_sum
from tollway.web.http.query import format_time
from tollway.web.pages.chart_svg import BarChart
from tollway.web.pages.my_sums_views import view_money_charts
from tollway.web.pages.my_views import NAME_LENGTH_MAX, ROWS_MAX, CallRowView, name_network, view_call_row

LISTINGS_MAX = ROWS_MAX
"""Rows of a page of listings."""
SALES_ROWS_MAX = 15
"""Listings in the table of sales of one asset, those with the most charged."""
CHOICES_MAX = 20
"""APIs that the filter of the sales offers, the newest. Others are chosen with `apiId` in the address."""
OPERATIONS_SHOWN_MAX = 50
CSV_COLUMNS = (
    *("start", "step", "apiId", "apiName", "network", "asset", "currency"),
    *("state", "calls", "amount", "units", "isComplete"),
)

# ---- Listings.


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnListingView:
    """A listing of the reader in a list. `state`: active, paused or suspended. `calls`, `held`: of the last 30 days."""

    href: str
    name: str
    price: str
    currency: str
    is_free: bool
    state: str
    is_proved: bool
    calls: str
    held_calls: int
    held_href: str


def view_own_listings(found: Sequence[ListingMatch], sums: PeriodSums) -> tuple[OwnListingView, ...]:
    """`sums`: of the sales of all listings of the provider."""
    calls: dict[str, int] = {}
    held: dict[str, int] = {}
    for row in sums.rows:
        calls[row.group] = calls.get(row.group, 0) + sum(one.calls for one in row.by_state.values())
        held[row.group] = held.get(row.group, 0) + row.by_state.get("held", CallSum()).calls
    return tuple(
        OwnListingView(
            href=link_listing(one.listing.id),
            name=clean_line(one.listing.name, NAME_LENGTH_MAX) or one.listing.id,
            price=one.listing.price.text,
            currency=one.listing.currency,
            is_free=one.listing.price.is_free and not one.listing.operations,
            state=state_of(one.listing),
            is_proved=one.reputation.is_verified,
            calls=f"{calls.get(one.listing.id, 0):,}",
            held_calls=held.get(one.listing.id, 0),
            held_href=f"/my/sales?state=held&apiId={quote(one.listing.id, safe='')}",
        )
        for one in found
    )


def link_listing(listing_id: str) -> str:
    return f"/my/apis/{quote(listing_id, safe='')}"


def state_of(listing: Listing) -> str:
    return "suspended" if listing.suspended_ms is not None else listing.status


# ---- The editor.


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedListingView:
    """The stored listing beside its form. `document`: what is stored of the provider's document. `suspension`: the operator's reason."""

    id: str
    name: str
    href: str
    public_href: str
    state: str
    suspension: str
    revision: int
    has_secret: bool
    document_operations: int | None


def view_edited(listing: Listing) -> EditedListingView:
    return EditedListingView(
        id=listing.id,
        name=clean_line(listing.name, NAME_LENGTH_MAX) or listing.id,
        href=link_listing(listing.id),
        public_href=f"/apis/{quote(listing.id, safe='')}",
        state=state_of(listing),
        suspension=clean_line(listing.suspended_reason, 500),
        revision=listing.revision,
        has_secret=listing.upstream_auth is not None,
        document_operations=None
        if listing.openapi is None
        else sum(not one.is_any for one in list_operations(listing)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceView:
    """A value of a field with its label."""

    value: str
    label: str


def view_networks(rules: DraftRules, profiles: Mapping[ChainId, NetworkProfile]) -> tuple[ChoiceView, ...]:
    """The networks on which a listing can be sold, each with its currencies."""
    symbols: dict[ChainId, list[str]] = {}
    for asset in rules.assets:
        symbols.setdefault(asset.chain_id, []).append(asset.symbol)
    return tuple(
        ChoiceView(
            value=format_network(chain_id), label=f"{name_network(chain_id, profiles)} ({', '.join(names)})"
        )
        for chain_id, names in symbols.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SoldOperationView:
    method: str
    path: str
    summary: str
    price: str
    is_free: bool
    is_any: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedView:
    """The result of a dry run: what would be sold, and what would be called. `warnings`: code, sentence, field."""

    addresses: tuple[str, ...]
    operations: tuple[SoldOperationView, ...]
    operations_left_out: int
    currency: str
    pay_to: str
    networks: tuple[str, ...]
    warnings: tuple[tuple[str, str, str], ...]


def view_checked(
    listing: Listing,
    warnings: Iterable[ListingWarning],
    *,
    addresses: Sequence[str],
    profiles: Mapping[ChainId, NetworkProfile],
) -> CheckedView:
    sold = list_operations(listing)
    return CheckedView(
        addresses=tuple(addresses),
        operations=tuple(
            SoldOperationView(
                method=clean_line(one.method, 32),
                path=clean_line(one.path, 200) or "/",
                summary=one.summary,
                price=one.price.text,
                is_free=one.price.is_free,
                is_any=one.is_any,
            )
            for one in sold[:OPERATIONS_SHOWN_MAX]
        ),
        operations_left_out=max(0, len(sold) - OPERATIONS_SHOWN_MAX),
        currency=listing.currency,
        pay_to=str(listing.pay_to),
        networks=tuple(name_network(chain_id, profiles) for chain_id in listing.networks),
        warnings=tuple((one.code, one.detail, one.pointer.removeprefix("/")) for one in warnings),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipView:
    """What proves the ownership of the endpoint, and what the last check found. `evidence`: of each method, after a check."""

    origin: str
    is_proved: bool
    method: str
    verified_at: str | None
    checked_at: str | None
    file_url: str
    content: str
    dns_name: str | None
    document_url: str
    pay_to: str
    evidence: Mapping[str, str]


def view_ownership(
    challenge: Challenge, known: Ownership | None, evidence: OwnershipEvidence | None
) -> OwnershipView:
    is_proved = known is not None and known.is_verified
    return OwnershipView(
        origin=challenge.origin,
        is_proved=is_proved,
        method=(known.method or "") if known is not None and is_proved else "",
        verified_at=_optional_time(None if known is None else known.verified_ms),
        checked_at=_optional_time(None if known is None else known.checked_ms),
        file_url=challenge.file_url,
        content=challenge.content,
        dns_name=challenge.dns_name,
        document_url=challenge.document_url,
        pay_to=str(challenge.pay_to),
        evidence={} if evidence is None else dict(evidence.of.items()),
    )


def _optional_time(ms: int | None) -> str | None:
    return None if ms is None else format_time(ms)


# ---- Sales.


@dataclass(frozen=True, slots=True, kw_only=True)
class SalesRowView:
    """The sums of one listing in one asset, or of all. `amounts`: decimals, by state. `failed`: calls that were released. `p95_ms`: of the quality of the listing, which has its paid
    calls of 30 days in every range; None without a measurement, for the sum of all, and for listings after the newest 100."""

    href: str
    name: str
    calls: str
    failed: str
    failed_share: str
    p95_ms: int | None
    amounts: Mapping[SumState, str]
    held_calls: int
    held_href: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetSalesView:
    """The sales in one asset. `chart` None: of free calls, which have no money. `rows_left_out`: listings beyond `SALES_ROWS_MAX`."""

    number: int
    currency: str
    network: str
    total: SalesRowView
    rows: tuple[SalesRowView, ...]
    rows_left_out: int
    chart: BarChart | None


def view_sales(
    sums: PeriodSums,
    query: SalesQuery,
    profiles: Mapping[ChainId, NetworkProfile],
    *,
    kept: Mapping[str, str],
    listings: Sequence[ListingMatch],
) -> tuple[AssetSalesView, ...]:
    """`kept`: the range of the form, for the links to one listing. `listings`: of the provider, with their quality."""
    p95_ms = {
        one.listing.id: one.reputation.quality.p95_ms
        for one in listings
        if one.reputation.quality is not None and one.reputation.quality.p95_ms is not None
    }
    return tuple(
        _view_asset(
            number, key, states, [row for row in sums.rows if row.key == key], query, profiles, kept, p95_ms
        )
        for number, (key, states) in enumerate(add_totals(sums.rows).items())
    )


def _view_asset(
    number: int,
    key: SumKey,
    states: Mapping[SumState, CallSum],
    rows: Sequence[GroupSum],
    query: SalesQuery,
    profiles: Mapping[ChainId, NetworkProfile],
    kept: Mapping[str, str],
    p95_ms: Mapping[ListingId, int],
) -> AssetSalesView:
    by_listing: dict[str, dict[SumState, CallSum]] = {}
    names: dict[str, str] = {}
    for row in rows:
        names[row.group] = clean_line(row.name, NAME_LENGTH_MAX) or row.group
        own = by_listing.setdefault(row.group, {})
        for state, one in row.by_state.items():
            own[state] = own.get(state, CallSum()).plus(one)
    order = sorted(by_listing, key=lambda group: -by_listing[group].get("charged", CallSum()).units)
    return AssetSalesView(
        number=number,
        currency=key.currency,
        network="" if key.chain_id is None else name_network(ChainId(key.chain_id), profiles),
        total=_view_sums("", "", states, key, kept),
        rows=tuple(
            _view_sums(group, names[group], by_listing[group], key, kept, p95_ms.get(ListingId(group)))
            for group in order[:SALES_ROWS_MAX]
        ),
        rows_left_out=max(0, len(order) - SALES_ROWS_MAX),
        chart=None if asset_of_sum(key) is None else _draw(rows, query, profiles),
    )


def _view_sums(
    group: str,
    name: str,
    by_state: Mapping[SumState, CallSum],
    key: SumKey,
    kept: Mapping[str, str],
    p95_ms: int | None = None,
) -> SalesRowView:
    calls = sum(one.calls for one in by_state.values())
    failed = by_state.get("released", CallSum()).calls
    named = {"apiId": group} if group else {}
    return SalesRowView(
        href=f"/my/sales?{urlencode({**named, **kept})}",
        name=name,
        calls=f"{calls:,}",
        failed=f"{failed:,}",
        failed_share=f"{100 * failed / calls:.1f}" if calls else "0",
        p95_ms=p95_ms,
        amounts={state: _format(by_state.get(state, CallSum()), key) for state in STATES},
        held_calls=by_state.get("held", CallSum()).calls,
        held_href=f"/my/sales?{urlencode({'state': 'held', **named})}",
    )


def _format(one: CallSum, key: SumKey) -> str:
    asset = asset_of_sum(key)
    return "0" if asset is None else asset.format_units(one.units)


def _draw(
    rows: Sequence[GroupSum], query: SalesQuery, profiles: Mapping[ChainId, NetworkProfile]
) -> BarChart:
    """Money by step, of rows in one asset."""
    (one,) = view_money_charts(rows, profiles, step=query.step, from_ms=query.from_ms, to_ms=query.to_ms)
    return one.chart


def write_sales_csv(sums: PeriodSums, query: SalesQuery, *, only: SumState | None = None) -> Iterator[str]:
    """The lines of the file: one for each period, listing, asset and state that has calls. `isComplete` false: the row is a lower bound."""
    yield csv_line(CSV_COLUMNS)
    for row in sums.rows:
        asset = asset_of_sum(row.key)
        is_complete = sums.complete_from_ms is None or row.start_ms >= sums.complete_from_ms
        for state in STATES:
            one = row.by_state.get(state)
            if one is None or not one.calls or only not in (None, state):
                continue
            cells = {
                "start": format_time(row.start_ms),
                "step": query.step,
                "apiId": row.group,
                "apiName": row.name,
                "network": None if asset is None else asset.network,
                "asset": None if asset is None else asset.caip19,
                "currency": row.key.currency,
                "state": state,
                "calls": one.calls,
                "amount": _format(one, row.key),
                "units": 0 if asset is None else asset.to_base_units(one.units),
                "isComplete": "true" if is_complete else "false",
            }
            yield csv_line(cells[name] for name in CSV_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCallView:
    """A call that the provider decides. `lapses_at`: when its price is released without a decision; None where the chain decides."""

    row: CallRowView
    payer: str
    lapses_at: str | None


def view_held_calls(calls: Sequence[CallRecord], find_asset: FindAsset) -> tuple[HeldCallView, ...]:
    return tuple(
        HeldCallView(
            row=view_call_row(call, find_asset),
            payer="" if call.payer is None else str(call.payer),
            lapses_at=_optional_time(call.held_until_ms),
        )
        for call in calls
    )
