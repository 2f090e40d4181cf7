"""What the pages of a provider show beside its listings: their calls, the networks of the editor, its sales. Pure: from the records of stores to plain texts.

No sum adds two assets: every asset has its sums, its chart and its rows.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from tollway.chain.networks import NetworkProfile
from tollway.csv_text import csv_line
from tollway.discovery.safe_text import clean_line
from tollway.ids import ChainId, ListingId, format_network
from tollway.ledger.channels import ChannelMoney
from tollway.ledger.records import ClaimState
from tollway.ledger.sales import (
    AssetTotal,
    CallSum,
    GroupSum,
    PeriodSums,
    SalesQuery,
    SumKey,
    SumState,
    add_by,
)
from tollway.registry.catalog import ListingMatch
from tollway.registry.draft import DraftRules
from tollway.registry.listing import Listing
from tollway.web.api.context import FindAsset
from tollway.web.api.sums_routes import STATES, add_totals, asset_of_sum, channel_sums_json
from tollway.web.http.query import format_time
from tollway.web.pages.chart_svg import BarChart
from tollway.web.pages.my_sums_views import PeriodBefore, view_money_charts
from tollway.web.pages.my_views import NAME_LENGTH_MAX, ROWS_MAX
from tollway.web.pages.public_views import name_network

LISTINGS_MAX = ROWS_MAX
"""Rows of a page of listings."""
SALES_ROWS_MAX = 10
"""Listings in the table of sales of one asset, those with the most charged."""
CHOICES_MAX = 16
"""APIs that the filter of the sales offers, the newest. Others are chosen with `apiId` in the address."""
CSV_COLUMNS = (
    *("start", "step", "apiId", "apiName", "network", "asset", "currency"),
    *("state", "calls", "amount", "units", "isComplete"),
)

# ---- Listings.


def count_calls(sums: PeriodSums) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """All calls and the held ones, by listing; 0 for a listing without any."""
    calls: Counter[str] = Counter()
    held: Counter[str] = Counter()
    for row in sums.rows:
        calls[row.group] += sum(one.calls for one in row.by_state.values())
        held[row.group] += row.by_state.get("held", CallSum()).calls
    return calls, held


def state_of(listing: Listing) -> str:
    """Active, paused or suspended."""
    return "suspended" if listing.suspended_ms is not None else listing.status


def name_networks(rules: DraftRules, profiles: Mapping[ChainId, NetworkProfile]) -> Mapping[str, str]:
    """The networks on which a listing can be sold, each with its name and its currencies."""
    symbols: dict[ChainId, list[str]] = {}
    for asset in rules.assets:
        symbols.setdefault(asset.chain_id, []).append(asset.symbol)
    return {
        format_network(chain_id): f"{name_network(chain_id, profiles)} ({', '.join(names)})"
        for chain_id, names in symbols.items()
    }


# ---- Sales.


@dataclass(frozen=True, slots=True, kw_only=True)
class SalesRowView:
    """The sums of one listing in one asset, or of all. `amounts`: decimals, by state, with `refunded` and `net`. `failed`: calls that were released. `p95_ms`: of the quality of the listing, which has its paid
    calls of 30 days in every range; None without a measurement, for the sum of all, and for listings after the newest 100."""

    href: str
    name: str
    calls: str
    failed: str
    failed_share: str
    p95_ms: int | None
    amounts: Mapping[str, str]
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


def view_channels(
    money: Sequence[ChannelMoney], find_asset: FindAsset, profiles: Mapping[ChainId, NetworkProfile]
) -> list[dict[str, Any]]:
    """The sums of `GET /sales` for channels, with the name of each network."""
    names = {format_network(chain_id): profile.name for chain_id, profile in profiles.items()}
    sums = channel_sums_json(money, find_asset)
    return [{**one, "name": names.get(one["network"], one["network"])} for one in sums]


def view_sales(
    sums: PeriodSums,
    query: SalesQuery,
    profiles: Mapping[ChainId, NetworkProfile],
    *,
    kept: Mapping[str, str],
    listings: Sequence[ListingMatch],
    before: PeriodBefore | None = None,
) -> tuple[AssetSalesView, ...]:
    """`before`: the sums of the period before. `kept`: the range of the form, for the links to one listing. `listings`: of the provider, with their quality."""
    p95_ms = {
        one.listing.id: one.reputation.quality.p95_ms
        for one in listings
        if one.reputation.quality is not None and one.reputation.quality.p95_ms is not None
    }
    return tuple(
        _view_asset(
            number,
            key,
            total,
            [row for row in sums.rows if row.key == key],
            query,
            profiles,
            kept,
            p95_ms,
            before,
        )
        for number, (key, total) in enumerate(add_totals(sums.rows).items())
    )


def _view_asset(
    number: int,
    key: SumKey,
    total: AssetTotal,
    rows: Sequence[GroupSum],
    query: SalesQuery,
    profiles: Mapping[ChainId, NetworkProfile],
    kept: Mapping[str, str],
    p95_ms: Mapping[ListingId, int],
    before: PeriodBefore | None,
) -> AssetSalesView:
    by_listing = add_by(rows, lambda row: row.group)
    names = {row.group: clean_line(row.name, NAME_LENGTH_MAX) or row.group for row in rows}
    order = sorted(by_listing, key=lambda group: -by_listing[group].of("charged").units)
    return AssetSalesView(
        number=number,
        currency=key.currency,
        network="" if key.chain_id is None else name_network(ChainId(key.chain_id), profiles),
        total=_view_sums("", "", total, key, kept),
        rows=tuple(
            _view_sums(group, names[group], by_listing[group], key, kept, p95_ms.get(ListingId(group)))
            for group in order[:SALES_ROWS_MAX]
        ),
        rows_left_out=max(0, len(order) - SALES_ROWS_MAX),
        chart=None if asset_of_sum(key) is None else _draw(rows, query, before),
    )


def _view_sums(
    group: str,
    name: str,
    total: AssetTotal,
    key: SumKey,
    kept: Mapping[str, str],
    p95_ms: int | None = None,
) -> SalesRowView:
    calls, failed = total.calls, total.of("released").calls
    named = {"apiId": group} if group else {}
    return SalesRowView(
        href=f"/my/sales?{urlencode({**named, **kept})}",
        name=name,
        calls=f"{calls:,}",
        failed=f"{failed:,}",
        failed_share=f"{100 * failed / calls:.1f}" if calls else "0",
        p95_ms=p95_ms,
        amounts={name: _format(one.units, key) for name, one in _list_lines(total)},
        held_calls=total.of("held").calls,
        held_href=f"/my/sales?{urlencode({'state': 'held', **named})}",
    )


def _list_lines(total: AssetTotal) -> list[tuple[str, CallSum]]:
    """The sums by state, then what came back of the charged calls and the net, which is of as many calls as were charged."""
    net = CallSum(calls=total.of("charged").calls, units=total.net_units)
    return [*((state, total.of(state)) for state in STATES), ("refunded", total.refunded), ("net", net)]


def _format(units: int, key: SumKey) -> str:
    asset = asset_of_sum(key)
    return "0" if asset is None else asset.format_units(units)


def _draw(rows: Sequence[GroupSum], query: SalesQuery, before: PeriodBefore | None) -> BarChart:
    """Money by step, of rows in one asset."""
    ((_, chart),) = view_money_charts(
        rows, step=query.step, from_ms=query.from_ms, to_ms=query.to_ms, before=before
    )
    return chart


def write_sales_csv(
    sums: PeriodSums,
    query: SalesQuery,
    *,
    channels: Sequence[Mapping[str, Any]] = (),
    only: SumState | None = None,
) -> Iterator[str]:
    """The lines of the file: one for each period, listing, asset and state that has calls, and where something came back one for `refunded` and one for `net`; then one without a
    period for each asset and claim state of `channels`, of `channel_sums_json`. `isComplete` false: the row is a lower bound."""
    yield csv_line(CSV_COLUMNS)
    for row in sums.rows:
        asset = asset_of_sum(row.key)
        is_complete = sums.complete_from_ms is None or row.start_ms >= sums.complete_from_ms
        for state, one in _list_lines(row.total):
            is_empty = row.refunded.calls == 0 if state == "net" else one.calls == 0
            if is_empty or only not in (None, state):
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
                "amount": _format(one.units, row.key),
                "units": 0 if asset is None else asset.to_base_units(one.units),
                "isComplete": "true" if is_complete else "false",
            }
            yield csv_line(cells[name] for name in CSV_COLUMNS)
    for money in channels:
        for claim_state in ClaimState:
            own = money[claim_state]
            if own["units"] != "0":
                cells = {**money, "state": claim_state.value, **own, "isComplete": "true"}
                yield csv_line(cells.get(name) for name in CSV_COLUMNS)
