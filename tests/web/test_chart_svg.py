"""The geometry of charts: bars inside of the box, stacked, visible, with a table of the same steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollway.web.chart_svg import (
    BOTTOM,
    HEIGHT,
    TOP,
    WIDTH,
    ChartStep,
    format_number,
    lay_out_bars,
    round_up_nicely,
)


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


def test_a_chart_without_values_is_empty() -> None:
    chart = lay_out_bars([step(0, 0)], series=("a", "b"), summary="nothing")
    assert (chart.is_empty, chart.bars, chart.lines, chart.summary) == (True, (), (), "nothing")
    assert lay_out_bars([], series=(), summary="").first_label == ""


def test_the_lines_have_round_values() -> None:
    chart = lay_out_bars([step(7, label="a"), step(31, label="b")], series=("calls",), summary="")
    assert [line.label for line in chart.lines] == ["25", "50"]
    assert (chart.first_label, chart.last_label) == ("a", "b")


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


@pytest.mark.parametrize(("value", "text"), [(1000, "1,000"), (0.5, "0.5"), (2.50, "2.5"), (0, "0")])
def test_numbers_are_short(value: float, text: str) -> None:
    assert format_number(value) == text
