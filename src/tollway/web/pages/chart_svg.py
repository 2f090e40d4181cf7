"""Lays out charts of bars: from numbers to the geometry that a template draws as SVG, and the rows of the table beside it. Pure.

Values of one step are stacked in their order, the first at the bottom. Lengths are in the units of the view box. A template draws; it computes nothing. The labels stand beside the
picture, in a column of their own and below it, as text of the page: a bar never covers them, and they keep their size where the picture shrinks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 640, 140
BOTTOM, TOP = 4, 12
"""Room below the bars, and above the line of the highest value. The rows of `.marks` in `app.css` put the label of each line beside it."""
GAP_SHARE = 0.25
HEIGHT_MIN = 1.5
"""A value above zero is never invisible."""

VALUE_MAX = 1e300
"""Larger values are drawn as this one: the sum of a step stays a number."""
SPARK_WIDTH, SPARK_HEIGHT = 60, 16
_NICE = (1, 2, 5, 10)
_PLAIN_MIN, _PLAIN_MAX = 1e-6, 1e9
"""Smaller and larger numbers are written with their power of ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartStep:
    """One step of time. `values`: one of each series, 0 or more. `texts`: the same, as they are shown."""

    label: str
    values: Sequence[float]
    texts: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartBar:
    """A rectangle. `series`: the position of its series."""

    x: float
    y: float
    width: float
    height: float
    series: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """A horizontal line of the grid with its value. The first one is that of the highest value."""

    y: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """A chart, and the steps that its table has as rows. `summary`: the sentence that stands for the picture. `series`: the names, in the order of the values."""

    summary: str
    series: Sequence[str]
    steps: Sequence[ChartStep]
    bars: Sequence[ChartBar]
    lines: Sequence[ChartLine]
    is_empty: bool
    width: int = WIDTH
    height: int = HEIGHT
    base: int = HEIGHT - BOTTOM

    @property
    def outlines(self) -> list[tuple[int, str]]:
        """The bars of each series that has any, as one path: a page of a year needs a tenth of the bytes of its rectangles."""
        drawn: dict[int, list[str]] = {}
        for bar in self.bars:
            corner = f"M{bar.x:g} {bar.y:g}h{bar.width:g}v{bar.height:g}h-{bar.width:g}z"
            drawn.setdefault(bar.series, []).append(corner)
        return [(number, "".join(drawn[number])) for number in sorted(drawn)]

    @property
    def first_label(self) -> str:
        return self.steps[0].label if self.steps else ""

    @property
    def last_label(self) -> str:
        return self.steps[-1].label if self.steps else ""


def lay_out_bars(steps: Sequence[ChartStep], *, series: Sequence[str], summary: str) -> BarChart:
    """A chart with a bar for each step. Every step has a value of every series. Values that are no number count as 0. Where all values are of type int, no line
    has a fraction as its value."""
    heights = [[_limit(value) for value in step.values] for step in steps]
    highest = max((sum(values) for values in heights), default=0.0)
    ceiling = round_up_nicely(highest)
    room = HEIGHT - BOTTOM - TOP
    slot = WIDTH / max(len(steps), 1)
    bars: list[ChartBar] = []
    for position, values in enumerate(heights):
        foot = float(HEIGHT - BOTTOM)
        for number, value in enumerate(values):
            if value <= 0:
                continue
            height = round(max(room * value / ceiling, HEIGHT_MIN), 1)
            foot = round(foot - height, 1)
            bars.append(
                ChartBar(
                    x=round(position * slot + slot * GAP_SHARE / 2, 1),
                    y=foot,
                    width=round(slot * (1 - GAP_SHARE), 1),
                    height=height,
                    series=number,
                )
            )
    are_counts = all(isinstance(value, int) for step in steps for value in step.values)
    lines = [
        ChartLine(y=round(HEIGHT - BOTTOM - room * share, 2), label=format_number(ceiling * share))
        for share in (1.0, 0.5)
        if not are_counts or (ceiling * share).is_integer()
    ]
    return BarChart(
        summary=summary,
        series=tuple(series),
        steps=tuple(steps),
        bars=tuple(bars),
        lines=tuple(lines) if highest > 0 else (),
        is_empty=highest <= 0,
    )


def outline_spark(values: Sequence[float]) -> str:
    """The path of a small picture of values in a row, in a box of `SPARK_WIDTH` times `SPARK_HEIGHT`; empty where all are 0."""
    limited = [_limit(value) for value in values]
    highest = max(limited, default=0.0)
    if highest <= 0:
        return ""
    slot, parts = SPARK_WIDTH / len(limited), []
    for number, value in enumerate(limited):
        if value > 0:
            height = round(max((SPARK_HEIGHT - 1) * (value / highest), 1.0), 1)
            width = round(slot * (1 - GAP_SHARE), 2)
            parts.append(f"M{round(number * slot, 2):g} {SPARK_HEIGHT}v-{height:g}h{width:g}v{height:g}z")
    return "".join(parts)


def round_up_nicely(value: float) -> float:
    """The least of 1, 2 and 5 times a power of ten that is not below the value, at most 10 times `VALUE_MAX`; 1 for zero."""
    if value <= 0:
        return 1.0
    exponent = math.floor(math.log10(value))
    # A text is read exactly: products of powers lose the smallest numbers, whose next lower power is 0.
    ceilings = (float(f"{step}e{exponent}") for step in _NICE)
    return next(ceiling for ceiling in ceilings if ceiling >= value)


def _limit(value: float) -> float:
    return float(min(value, VALUE_MAX)) if value > 0 else 0.0


def format_number(value: float) -> str:
    """With thousands separated by commas, and without superfluous decimals."""
    if 0 < value < _PLAIN_MIN or value >= _PLAIN_MAX:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.6f}".rstrip("0").rstrip(".")
