"""Lays out charts of bars: from numbers to the geometry that a template draws as SVG, and the rows of the table beside it. Pure.

Values of one step are stacked in their order, the first at the bottom. A template draws; it computes nothing. Heights are pixels. Places from left to right are shares of the
width in percent, so that texts keep their size in every window; the outlines of bars and of the period before are in the units of a box that is stretched to that width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

WIDTH, HEIGHT = 640, 176
BOTTOM, TOP = 24, 24
"""Room below the bars for the ticks, and above the line of the highest value for the value of a bar."""
GAP_SHARE = 0.25
HEIGHT_MIN = 1.5
"""A value above zero is never invisible."""

VALUE_MAX = 1e300
"""Larger values are drawn as this one: the sum of a step stays a number."""
TICKS_MAX = 5
TICK_LEFT_MAX = 82.0
TICK_GAP_MIN = 15.0
"""Percent. With at most five ticks, this far apart and none in the last part, no date reaches another one in a window of 360 px."""
SPARK_WIDTH, SPARK_HEIGHT = 60, 16
_NICE = (1, 2, 5, 10)
_PLAIN_MIN, _PLAIN_MAX = 1e-3, 1e9
"""Smaller and larger numbers are written with their power of ten."""
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_MONDAY_MS = 4 * _DAY_MS
"""1970-01-05."""
_TICK_UNITS_MS = (6 * _HOUR_MS, *(days * _DAY_MS for days in (1, 2, 3, 7, 14, 28, 56, 112)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartStep:
    """One step of time. `label`: of its row in the table. `short`: of its bar. `values`: one of each series, 0 or more. `texts`: the same, as they are shown.
    `start_ms`: of the step, for the ticks."""

    label: str
    short: str = ""
    values: Sequence[float]
    texts: Sequence[str]
    start_ms: int | None = None


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
class ChartTick:
    """A date below the bars. `left`: percent."""

    left: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """A chart, and the steps that its table has as rows. `summary`: the sentence that stands for the picture. `series`: the names, in the order of the values.
    `readings`: of each step, the position of each series that is not 0, with its text. `shown`: the positions of the series that are not 0 everywhere. `previous`: the outline of the period before; empty without one."""

    summary: str
    series: Sequence[str]
    steps: Sequence[ChartStep]
    bars: Sequence[ChartBar]
    lines: Sequence[ChartLine]
    ticks: Sequence[ChartTick]
    readings: Sequence[Sequence[tuple[int, str]]]
    shown: Sequence[int]
    previous: str
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


def lay_out_bars(
    steps: Sequence[ChartStep], *, series: Sequence[str], summary: str, previous: Sequence[float] = ()
) -> BarChart:
    """A chart with a bar for each step. Every step has a value of every series. Values that are no number count as 0. Where all values are of type int, no line
    has a fraction as its value. `previous`: the total of each step of the period before, from its first step on; it may be shorter."""
    heights = [[_limit(value) for value in step.values] for step in steps]
    before = [_limit(value) for value in previous[: len(steps)]]
    highest = max((*(sum(values) for values in heights), *before), default=0.0)
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
        for share in (1.0, 0.5, 0.0)
        if not are_counts or (ceiling * share).is_integer()
    ]
    drawn = {bar.series for bar in bars}
    return BarChart(
        summary=summary,
        series=tuple(series),
        steps=tuple(steps),
        bars=tuple(bars),
        lines=tuple(lines) if highest > 0 else (),
        ticks=tuple(_place_ticks(steps)),
        readings=tuple(
            tuple((number, text) for number, text in enumerate(step.texts) if values[number] > 0)
            for step, values in zip(steps, heights, strict=True)
        ),
        shown=tuple(number for number in range(len(series)) if number in drawn),
        previous=_outline_before(before, ceiling, slot) if any(before) else "",
        is_empty=highest <= 0,
    )


def _place_ticks(steps: Sequence[ChartStep]) -> list[ChartTick]:
    """The steps in which the least unit of time begins that has at most `TICKS_MAX` beginnings here. Where no unit begins, the first step. Where the start of a step
    is not known, no step."""
    starts = [step.start_ms for step in steps if step.start_ms is not None]
    if not starts or len(starts) != len(steps):
        return []
    length = starts[1] - starts[0] if len(starts) > 1 else _DAY_MS
    for unit in _TICK_UNITS_MS:
        zero = _MONDAY_MS if unit > _DAY_MS else 0
        found = [
            (number, start)
            for number, start in enumerate(starts)
            if (start + length - 1 - zero) // unit > (start - 1 - zero) // unit
        ]
        if unit >= length and len(found) <= TICKS_MAX:
            ticks: list[ChartTick] = []
            for number, start in found:
                left = round(100 * number / len(starts), 2)
                if left <= TICK_LEFT_MAX and (not ticks or left - ticks[-1].left > TICK_GAP_MIN):
                    ticks.append(ChartTick(left=left, label=format_tick(start, is_hour=unit < _DAY_MS)))
            if ticks:
                return ticks
    return [ChartTick(left=0, label=format_tick(starts[0], is_hour=False))]


def format_tick(start_ms: int, *, is_hour: bool) -> str:
    """A day as `2 Nov`, or an hour as `18:00`, in UTC."""
    moment = datetime.fromtimestamp(start_ms / 1000, UTC)
    return f"{moment:%H:%M}" if is_hour else f"{moment.day} {moment:%b}"


def _outline_before(values: Sequence[float], ceiling: float, slot: float) -> str:
    """A line at the height of each value, from step to step."""
    room, parts = HEIGHT - BOTTOM - TOP, list[str]()
    for number, value in enumerate(values):
        y = round(HEIGHT - BOTTOM - room * value / ceiling, 1)
        parts.append(f"{'V' if parts else 'M0 '}{y:g}H{round((number + 1) * slot, 1):g}")
    return "".join(parts)


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
    """A value of a line: at most six characters for the room beside the picture, with `k` for thousands and `M` for millions."""
    if 0 < value < _PLAIN_MIN or value >= _PLAIN_MAX:
        return f"{value:.2g}".replace("e+", "e").replace("e0", "e").replace("e-0", "e-")
    if value >= 1e4:
        return f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1e3:g}k"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4f}".rstrip("0").rstrip(".")
