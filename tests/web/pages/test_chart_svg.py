"""The geometry of charts: bars inside of the box, stacked, visible, with a table of the same steps."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tollway.web.pages.assets import UI_FOLDER
from tollway.web.pages.chart_svg import (
    BOTTOM,
    HEIGHT,
    HEIGHT_MIN,
    TOP,
    WIDTH,
    ChartStep,
    format_number,
    lay_out_bars,
    round_up_nicely,
)

LABEL_LENGTH_MAX = 11


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
    for line in chart.lines:
        assert TOP <= line.y <= HEIGHT - BOTTOM
        assert re.fullmatch(r"[0-9][0-9,]*(?:\.[0-9]+)?(?:e[+-][0-9]+)?", line.label), line.label
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
    assert lay_out_bars([], series=(), summary="").first_label == ""


def test_the_lines_have_round_values() -> None:
    chart = lay_out_bars([step(7, label="a"), step(31, label="b")], series=("calls",), summary="")
    assert [line.label for line in chart.lines] == ["50", "25"]
    assert (chart.first_label, chart.last_label) == ("a", "b")


@pytest.mark.parametrize(
    ("values", "labels"), [((1, 4), ["5"]), ((1,), ["1"]), ((2,), ["2", "1"]), ((1.0, 4.0), ["5", "2.5"])]
)
def test_a_count_has_no_half(values: tuple[float, ...], labels: list[str]) -> None:
    chart = lay_out_bars([step(value) for value in values], series=("calls",), summary="")
    assert [line.label for line in chart.lines] == labels


def test_the_style_puts_each_label_beside_its_line() -> None:
    rows = re.search(r"\.marks \{[^}]*grid-template-rows: ([^;]*);", (UI_FOLDER / "app.css").read_text())
    assert rows is not None
    first, second, rest = (int(share) for share in re.findall(r"minmax\(0, ([0-9]+)fr\)", rows[1]))
    assert first + second + rest == HEIGHT
    chart = lay_out_bars([step(2)], series=("calls",), summary="")
    assert [line.y for line in chart.lines] == [first / 2, first + second / 2]


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
        (2.5e-7, "2.5e-07"),
        (5e8, "500,000,000"),
        (2e9, "2e+09"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert format_number(value) == text
