"""The geometry of charts: bars inside of the box, stacked, visible, with a table of the same steps."""

import itertools
import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tollway.web.pages.chart_svg import (
    BOTTOM,
    HEIGHT,
    HEIGHT_MIN,
    TICK_GAP_MIN,
    TICK_LEFT_MAX,
    TICKS_MAX,
    TOP,
    WIDTH,
    ChartStep,
    format_number,
    lay_out_bars,
    outline_spark,
    round_up_nicely,
)

LABEL_LENGTH_MAX = 8
"""Six, but for values that no asset has."""
LABELS_MAX = 4
DAY_MS, HOUR_MS = 86_400_000, 3_600_000


def step(*values: float, label: str = "2026-11-21") -> ChartStep:
    return ChartStep(label=label, values=values, texts=tuple(str(one) for one in values))


@given(st.lists(st.tuples(st.floats(0, 1e12), st.floats(0, 1e12)), min_size=1, max_size=60))
def test_bars_stay_inside_and_stand_on_each_other(rows: list[tuple[float, float]]) -> None:
    chart = lay_out_bars([step(*row) for row in rows], series=("a", "b"), summary="")
    for bar in chart.bars:
        assert bar.x >= 0
        assert bar.x + bar.width <= WIDTH + 0.02
        assert bar.height > 0
        assert bar.y + 0.02 >= TOP - 4
        assert bar.y + bar.height <= HEIGHT - BOTTOM + 0.02
    assert len(chart.bars) == sum(value > 0 for row in rows for value in row)
    assert chart.steps[0].values == rows[0]
    lower = {bar.x: bar for bar in chart.bars if bar.series == 0}
    for bar in (one for one in chart.bars if one.series == 1 and one.x in lower):
        assert bar.y + bar.height == pytest.approx(lower[bar.x].y, abs=0.02)


ANY_VALUE = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from(
    (0, 5e-324, 1e-323, 2.2e-308, 1e-9, 1, 10**40, 1e300, 1.7976931348623157e308, 10**400)
)


@settings(max_examples=500)
@given(st.lists(st.lists(ANY_VALUE, max_size=8), max_size=400))
@example([])
@example([[5e-324]])
@example([[1.7976931348623157e308, 1.7976931348623157e308]])
@example([[float("inf")], [1]])
@example([[float("nan"), -1.0, 1.0]])
def test_any_series_is_a_picture_of_numbers_inside_of_its_box(rows: list[list[float]]) -> None:
    chart = lay_out_bars([step(*row) for row in rows], series=("a",) * 8, summary="")
    drawn = [value for row in rows for value in row if value > 0]
    assert len(chart.bars) == len(drawn)
    assert chart.is_empty is not bool(drawn)
    for bar in chart.bars:
        assert 0 <= bar.x <= bar.x + bar.width <= WIDTH + 0.1
        assert HEIGHT_MIN <= bar.height <= HEIGHT - BOTTOM
        assert 0 <= bar.y <= bar.y + bar.height <= HEIGHT - BOTTOM + 0.1
    for number, path in chart.outlines:
        assert re.fullmatch(r"(?:M[0-9.]+ [0-9.]+h[0-9.]+v[0-9.]+h-[0-9.]+z)+", path), (
            f"series {number}: {path}"
        )
    assert len(chart.lines) <= LABELS_MAX
    assert len(chart.readings) == len(rows)
    for line in chart.lines:
        assert TOP <= line.y <= HEIGHT - BOTTOM
        assert re.fullmatch(r"[0-9][0-9,]*(?:\.[0-9]+)?(?:e-?[0-9]+|k|M)?", line.label), line.label
        assert len(line.label) <= LABEL_LENGTH_MAX


@settings(max_examples=500)
@given(st.floats(min_value=5e-324, max_value=1e300))
def test_a_ceiling_is_the_least_round_number_above_any_value(value: float) -> None:
    ceiling = round_up_nicely(value)
    assert value <= ceiling <= value * 10
    assert f"{ceiling:.0e}"[0] in "125"


def test_a_chart_without_values_is_empty() -> None:
    chart = lay_out_bars([step(0, 0)], series=("a", "b"), summary="nothing")
    assert (chart.is_empty, chart.bars, chart.lines, chart.summary) == (True, (), (), "nothing")
    assert lay_out_bars([], series=(), summary="").steps == ()


def test_the_lines_have_round_values() -> None:
    chart = lay_out_bars([step(7, label="a"), step(31, label="b")], series=("calls",), summary="")
    assert [line.label for line in chart.lines] == ["50", "25", "0"]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ((1, 4), ["5", "0"]),
        ((1,), ["1", "0"]),
        ((2,), ["2", "1", "0"]),
        ((1.0, 4.0), ["5", "2.5", "0"]),
    ],
)
def test_a_count_has_no_half(values: tuple[float, ...], labels: list[str]) -> None:
    chart = lay_out_bars([step(value) for value in values], series=("calls",), summary="")
    assert [line.label for line in chart.lines] == labels


def days(count: int, *, first: str = "2026-11-02", step_ms: int = DAY_MS) -> list[ChartStep]:
    """Steps with a call each, from the first moment of a day on. 2026-11-02 is a Monday."""
    start_ms = int(datetime.fromisoformat(f"{first}T00:00:00+00:00").timestamp()) * 1000
    return [
        ChartStep(label=str(number), values=(1,), texts=("1",), start_ms=start_ms + number * step_ms)
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("steps", "ticks"),
    [
        (days(5), ["2 Nov", "3 Nov", "4 Nov", "5 Nov", "6 Nov"]),
        (days(30, first="2026-11-01"), ["2 Nov", "9 Nov", "16 Nov", "23 Nov"]),
        (days(30), ["2 Nov", "9 Nov", "16 Nov", "23 Nov"]),
        (days(53, first="2026-01-05", step_ms=7 * DAY_MS), ["16 Feb", "8 Jun", "28 Sep"]),
        (days(24, step_ms=HOUR_MS), ["00:00", "06:00", "12:00", "18:00"]),
        (days(72, step_ms=HOUR_MS), ["2 Nov", "3 Nov", "4 Nov"]),
        (days(1), ["2 Nov"]),
        (days(6, first="2026-12-01"), ["1 Dec", "3 Dec", "5 Dec"]),
        (days(11, first="2026-12-01"), ["1 Dec", "4 Dec", "7 Dec", "10 Dec"]),
        (days(48, step_ms=HOUR_MS), ["2 Nov", "3 Nov"]),  # hours alone would stand twice
        (days(400, step_ms=7 * DAY_MS), ["2 Nov"]),
        ([step(1), step(2)], []),
        ([], []),
    ],
)
def test_the_steps_in_which_a_unit_of_time_begins_have_their_date(
    steps: list[ChartStep], ticks: list[str]
) -> None:
    chart = lay_out_bars(steps, series=("calls",), summary="")
    assert [one.label for one in chart.ticks] == ticks


@given(
    st.integers(2, 400), st.integers(0, 3_000), st.sampled_from((HOUR_MS, 14 * HOUR_MS, DAY_MS, 7 * DAY_MS))
)
def test_dates_have_room_for_their_text(count: int, first_day: int, step_ms: int) -> None:
    """A sixth of the picture of a window of 360 px is wider than any date, and the last date ends inside of it."""
    first = (datetime(2020, 1, 1, tzinfo=UTC) + timedelta(days=first_day)).date().isoformat()
    lefts = [
        one.left
        for one in lay_out_bars(
            days(count, first=first, step_ms=step_ms), series=("calls",), summary=""
        ).ticks
    ]
    assert 1 <= len(lefts) <= TICKS_MAX
    assert all(left <= TICK_LEFT_MAX for left in lefts)
    assert all(later - earlier > TICK_GAP_MIN for earlier, later in itertools.pairwise(lefts))


@pytest.mark.parametrize("last", range(1, 32))
def test_a_month_has_dates_on_each_of_its_days(last: int) -> None:
    for first in ("2026-11-01", "2026-12-01", "2027-01-01", "2027-02-01"):
        ticks = lay_out_bars(days(last, first=first), series=("calls",), summary="").ticks
        assert len(ticks) >= min(2, last), first


def test_each_step_says_its_values_that_are_not_0() -> None:
    steps = [step(0, 0), step(1, 0), step(0, 2), step(1, 2)]
    chart = lay_out_bars(steps, series=("charged", "held"), summary="")
    assert chart.readings == ((), ((0, "1"),), ((1, "2"),), ((0, "1"), (1, "2")))


def test_series_that_are_0_everywhere_are_not_shown() -> None:
    chart = lay_out_bars([step(1, 0, 0, 2)], series=("charged", "released", "held", "reorged"), summary="")
    assert chart.shown == (0, 3)


def test_the_period_before_is_a_line_at_the_height_of_its_values() -> None:
    room, base = HEIGHT - TOP - BOTTOM, HEIGHT - BOTTOM
    chart = lay_out_bars([step(5), step(10)], series=("calls",), summary="", previous=[20, 10, 99])
    assert chart.lines[0].label == "20"  # the line is inside of the picture
    assert chart.previous == f"M0 {TOP}H{WIDTH / 2:g}V{base - room / 2:g}H{WIDTH}"
    assert lay_out_bars([step(5)], series=("calls",), summary="", previous=[0]).previous == ""
    shorter = lay_out_bars([step(5), step(5)], series=("calls",), summary="", previous=[5])
    assert shorter.previous == f"M0 {TOP}H{WIDTH / 2:g}"


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ((), ""),
        ((0, 0), ""),
        ((1, 0, 2), "M0 16v-7.5h15v7.5zM40 16v-15h15v15z"),
        ((float("nan"), -1, 3), "M40 16v-15h15v15z"),
        ((1, 1e300), "M0 16v-1h22.5v1zM30 16v-15h22.5v15z"),
    ],
)
def test_a_sparkline_has_a_bar_for_each_value(values: tuple[float, ...], path: str) -> None:
    assert outline_spark(values) == path


def test_the_bars_of_a_series_are_one_path() -> None:
    chart = lay_out_bars([step(1, 0), step(2, 2)], series=("a", "b"), summary="")
    assert [number for number, _ in chart.outlines] == [0, 1]
    (_, low), (_, high) = chart.outlines
    assert (low.count("M"), high.count("M")) == (2, 1)
    only = next(bar for bar in chart.bars if bar.series == 1)
    assert high == f"M{only.x:g} {only.y:g}h{only.width:g}v{only.height:g}h-{only.width:g}z"


@pytest.mark.parametrize(
    ("value", "ceiling"),
    [(0, 1), (-1, 1), (1, 1), (1.5, 2), (3, 5), (7, 10), (10, 10), (31, 50), (0.003, 0.005), (101, 200)],
)
def test_ceilings_are_round(value: float, ceiling: float) -> None:
    assert round_up_nicely(value) == pytest.approx(ceiling)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1000, "1,000"),
        (0.5, "0.5"),
        (2.50, "2.5"),
        (0, "0"),
        (1.0000001, "1"),
        (0.0025, "0.0025"),
        (2.5e-7, "2.5e-7"),
        (1e-10, "1e-10"),
        (5000, "5,000"),
        (25_000, "25k"),
        (2.5e6, "2.5M"),
        (5e8, "500M"),
        (2e9, "2e9"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert format_number(value) == text
