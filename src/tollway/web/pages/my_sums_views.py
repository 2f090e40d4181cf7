"""The records that the signed-in pages show of sums: totals by asset, rows of a table, charts by day. Pure: from the sums of the ledger to plain texts.

No sum adds two assets. Calls are added across assets: they are a number of calls.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import quote, urlencode

from tollway.chain.networks import NetworkProfile
from tollway.discovery.safe_text import clean_line
from tollway.ids import ChainId
from tollway.ledger.history import ListedPayment
from tollway.ledger.records import PaymentState
from tollway.ledger.sales import (
    STEP_MS,
    AssetTotal,
    CallSum,
    GroupSum,
    Step,
    SumKey,
    SumState,
    add_by,
)
from tollway.money import Asset
from tollway.web.api.context import FindAsset
from tollway.web.api.sums_routes import asset_of_sum
from tollway.web.http.query import format_time
from tollway.web.pages.chart_svg import BarChart, ChartStep, format_tick, lay_out_bars
from tollway.web.pages.my_views import NAME_LENGTH_MAX
from tollway.web.pages.public_views import name_network

SUM_ROWS_MAX, DAY_ROWS_MAX = 15, 31
"""Rows of a table of sums, and of one by day: a month has a row for each."""
CHARTS_MAX = 3
"""Charts of money on a page: one for each asset, those with most calls."""
BARS_MAX = 53
"""Bars of a chart, and rows of its table: the weeks of a year. A bar of a longer period has several steps."""

SpendingGroup = Literal["day", "api", "provider", "wallet"]
Profiles = Mapping[ChainId, NetworkProfile]
_SHOWN: tuple[SumState, ...] = ("charged", "released", "held", "reorged")


@dataclass(frozen=True, slots=True, kw_only=True)
class SumView:
    """The sum of one group and one asset. `label` and `href`: of the group; empty for a total. Amounts are decimals of the asset; empty for calls of free APIs."""

    label: str
    href: str
    currency: str
    network: str
    calls: int
    charged: str
    released: str
    held: str
    reorged: str
    refunded: str
    net: str
    calls_released: int
    calls_held: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodBefore:
    """The sums of the period before, for the line of a chart. Its steps begin at `from_ms` and end before `to_ms`."""

    rows: Sequence[GroupSum]
    from_ms: int
    to_ms: int

    def of(self, key: SumKey) -> "PeriodBefore":
        """The sums of one asset."""
        return replace(self, rows=[row for row in self.rows if row.key == key])


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodView:
    """The sums of a period as a half of `/my`. `totals_before`: of the same days of the month before. `calls`: of all assets. `chart`: calls by day, by what became of
    their price."""

    totals: tuple[SumView, ...]
    totals_before: tuple[SumView, ...]
    calls: int
    chart: BarChart
    is_lower_bound: bool


def view_period(
    rows: Sequence[GroupSum],
    profiles: Profiles,
    *,
    from_ms: int,
    to_ms: int,
    is_lower_bound: bool,
    before: PeriodBefore | None,
) -> PeriodView:
    """The sums of the days from `from_ms` up to `to_ms`, which is not in them. `before`: the same days of the month before."""
    return PeriodView(
        totals=view_groups(rows, "", profiles),
        calls=sum(row.total.calls for row in rows),
        totals_before=() if before is None else view_groups(before.rows, "", profiles),
        chart=view_call_chart(rows, step="day", from_ms=from_ms, to_ms=to_ms, before=before),
        is_lower_bound=is_lower_bound,
    )


# ---- Tables.


def view_groups(
    rows: Iterable[GroupSum], group: SpendingGroup | Literal[""], profiles: Profiles, *, step: Step = "day"
) -> tuple[SumView, ...]:
    """A sum for each group and asset: the newest period first, or the group with most calls first. `group` empty: the totals."""
    rows = list(rows)
    names = {row.group: row.name for row in rows if row.name is not None}

    def name_row(row: GroupSum) -> tuple[str | int, SumKey]:
        return "" if group == "" else row.start_ms if group == "day" else row.group, row.key

    summed = add_by(rows, name_row)
    found = [
        _view_sum(*_name_group(of, group, names, step=step), key, total, profiles)
        for (of, key), total in sorted(summed.items(), key=lambda one: (str(one[0][0]), repr(one[0][1])))
    ]
    if group == "day":
        return tuple(reversed(found))
    return tuple(sorted(found, key=lambda one: -one.calls))


def _name_group(
    of: str | int, group: SpendingGroup | Literal[""], names: Mapping[str, str], *, step: Step
) -> tuple[str, str]:
    """The text of a group, and the page about it."""
    match group:
        case "day":
            return _label_step(int(of), step), ""
        case "api":
            return clean_line(names.get(str(of), ""), NAME_LENGTH_MAX) or str(
                of
            ), f"/apis/{quote(str(of), safe='')}"
        case "provider":
            return str(of), f"/providers/{quote(str(of), safe='')}"
        case "wallet":
            return str(of), f"/my/calls?{urlencode({'wallet': of})}"
        case "":
            return "", ""


def _view_sum(label: str, href: str, key: SumKey, total: AssetTotal, profiles: Profiles) -> SumView:
    asset = asset_of_sum(key)
    units: dict[str, int] = {state: total.of(state).units for state in _SHOWN}
    units |= {"refunded": total.refunded.units, "net": total.net_units}
    amounts = {name: "" if asset is None else asset.format_units(one) for name, one in units.items()}
    return SumView(
        label=label,
        href=href,
        currency="" if asset is None else asset.symbol,
        network="" if asset is None else name_network(asset.chain_id, profiles),
        calls=total.calls,
        **amounts,
        calls_released=total.of("released").calls,
        calls_held=total.of("held").calls,
    )


# ---- Charts.


def view_call_chart(
    rows: Sequence[GroupSum], *, step: Step, from_ms: int, to_ms: int, before: PeriodBefore | None = None
) -> BarChart:
    """The number of calls in each step, by what became of their price."""
    return _lay_out(
        rows,
        lambda one: (one.calls, f"{one.calls:,}"),
        step=step,
        from_ms=from_ms,
        to_ms=to_ms,
        before=before,
    )


def view_money_charts(
    rows: Sequence[GroupSum], *, step: Step, from_ms: int, to_ms: int, before: PeriodBefore | None = None
) -> tuple[tuple[Asset, BarChart], ...]:
    """The money in each step, a chart for each of the `CHARTS_MAX` assets with most calls."""
    calls: dict[SumKey, int] = {}
    for row in rows:
        if row.key.asset is not None:
            calls[row.key] = calls.get(row.key, 0) + sum(one.calls for one in row.by_state.values())
    charts = []
    for key in sorted(calls, key=lambda one: (-calls[one], repr(one)))[:CHARTS_MAX]:
        asset = asset_of_sum(key)
        if asset is None:
            continue
        scale, show = 10**asset.ledger_decimals, asset.format_units
        chart = _lay_out(
            [row for row in rows if row.key == key],
            lambda one, scale=scale, show=show: (one.units / scale, show(one.units)),  # type: ignore[misc]  # defaults bind the asset of this turn
            step=step,
            from_ms=from_ms,
            to_ms=to_ms,
            before=None if before is None else before.of(key),
        )
        charts.append((asset, chart))
    return tuple(charts)


def _lay_out(
    rows: Iterable[GroupSum],
    measure: Callable[[CallSum], tuple[float, str]],
    *,
    step: Step,
    from_ms: int,
    to_ms: int,
    before: PeriodBefore | None,
) -> BarChart:
    summed = _sum_by_start(rows)
    starts = range(from_ms, to_ms, STEP_MS[step])
    width = max(1, -(-len(starts) // BARS_MAX))
    steps, previous = [], []
    summed_before = {} if before is None else _sum_by_start(before.rows)
    for first in range(0, len(starts), width):
        merged = starts[first : first + width]
        measured = [measure(_add_up(summed, merged, state)) for state in _SHOWN]
        steps.append(
            ChartStep(
                label=_label_steps(merged, step),
                short=_shorten_steps(merged, step),
                start_ms=merged[0],
                values=tuple(value for value, _ in measured),
                texts=tuple(shown for _, shown in measured),
            )
        )
        if before is not None:
            shift = before.from_ms - from_ms
            moved = range(merged.start + shift, min(merged.stop + shift, before.to_ms), merged.step)
            previous.append(sum(measure(_add_up(summed_before, moved, state))[0] for state in _SHOWN))
    return lay_out_bars(steps, series=_SHOWN, summary="", previous=previous)


def _sum_by_start(rows: Iterable[GroupSum]) -> dict[int, dict[SumState, CallSum]]:
    summed: dict[int, dict[SumState, CallSum]] = {}
    for row in rows:
        states = summed.setdefault(row.start_ms, {})
        for state, one in row.by_state.items():
            states[state] = states.get(state, CallSum()).plus(one)
    return summed


def _add_up(summed: Mapping[int, Mapping[SumState, CallSum]], starts: range, state: SumState) -> CallSum:
    total = CallSum()
    for start_ms in starts:
        total = total.plus(summed.get(start_ms, {}).get(state, CallSum()))
    return total


def _label_steps(starts: range, step: Step) -> str:
    """The label of a bar. A long period has several steps in one bar."""
    first = _label_step(starts[0], step)
    return first if len(starts) == 1 else f"{first} – {_label_step(starts[-1], step)}"


def _shorten_steps(starts: range, step: Step) -> str:
    """The same, as it stands above a bar: `21 Nov`, `21 Nov 18:00`, `2 Nov – 8 Nov`."""
    first, last = (_shorten_step(one, step) for one in (starts[0], starts[-1]))
    return first if first == last else f"{first} – {last}"


def _shorten_step(start_ms: int, step: Step) -> str:
    day = format_tick(start_ms, is_hour=False)
    return day if step == "day" else f"{day} {format_tick(start_ms, is_hour=True)}"


def _label_step(start_ms: int, step: Step) -> str:
    shown = format_time(start_ms)
    return shown[:10] if step == "day" else f"{shown[:10]} {shown[11:16]}"


# ---- Credit.


def sum_credit(payments: Iterable[ListedPayment], find_asset: FindAsset) -> tuple[tuple[Asset, int], ...]:
    """What is left of the payments, by asset, in its units; nothing for an asset without credit."""
    units: dict[tuple[ChainId, str], int] = {}
    for one in payments:
        payment = one.payment
        if payment.state is not PaymentState.GONE and payment.remaining_units > 0:
            place = (payment.chain_id, payment.asset)
            units[place] = units.get(place, 0) + payment.remaining_units
    found = []
    for (chain_id, key), left in sorted(units.items()):
        asset = find_asset(chain_id, key)
        if asset is not None:
            found.append((asset, left))
    return tuple(found)


# ---- Spending.


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingView:
    """What wallets spent in a period, both days in it. `rows_left_out`: beyond `SUM_ROWS_MAX`. `complete_from`: sums of days before it are lower bounds."""

    group: SpendingGroup
    from_day: str
    to_day: str
    rows: tuple[SumView, ...]
    rows_left_out: int
    totals: tuple[SumView, ...]
    charts: tuple[tuple[Asset, BarChart], ...]
    wallets_summed: int
    are_more_wallets: bool
    complete_from: str | None

    @property
    def has_one_asset(self) -> bool:
        """Whether all rows have the asset of the total above them, which no column repeats."""
        return len({(one.currency, one.network) for one in self.rows}) == 1 and bool(self.rows[0].currency)


def link_groups(given: Mapping[str, str], groups: Iterable[SpendingGroup]) -> Mapping[SpendingGroup, str]:
    """The page with these fields by each of the groups."""
    return {group: f"/my/spending?{urlencode({**given, 'groupBy': group})}" for group in groups}
