"""How the pages write a moment and a column of amounts. Pure: from the values of records to short texts, whole where they are cut.

A template writes the words: the name of a month is a message of the catalog.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from jinja2 import Environment, pass_environment
from jinja2.filters import make_attrgetter

from tollway.web.http.query import format_time, parse_time

ZERO = "–"
"""What a column of amounts has in the place of 0, and of an amount that a row does not have."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTime:
    """A moment in UTC. `exact`: RFC 3339 with milliseconds. `month`: 1 to 12. `year`: empty for the year of the page. `clock`: hours and minutes; `seconds`: with seconds."""

    exact: str
    day: int
    month: int
    year: str
    clock: str
    seconds: str
    is_today: bool


def split_time(value: int | str, now_ms: int) -> ShownTime:
    """A moment for a reader at `now_ms`. `value`: milliseconds since the epoch, or RFC 3339."""
    ms = parse_time(value) if isinstance(value, str) else value
    at, now = (_EPOCH + timedelta(milliseconds=one) for one in (ms, now_ms))
    return ShownTime(
        exact=format_time(ms),
        day=at.day,
        month=at.month,
        year="" if at.year == now.year else str(at.year),
        clock=f"{at:%H:%M}",
        seconds=f"{at:%H:%M:%S}",
        is_today=at.date() == now.date(),
    )


@pass_environment
def align_amounts(
    environment: Environment, rows: Sequence[Any], amount: str, unit: str | None = None, zero: str = ZERO
) -> tuple[str, ...]:
    """The amounts of a column, one for each row, so that figures align at the right: each has as many decimals as the longest of its unit.

    `amount`, `unit`: the attributes of a row, as in the filter `map`. A row whose amount is empty or 0 has `zero`.
    """
    read_amount = make_attrgetter(environment, amount)
    read_unit = make_attrgetter(environment, unit) if unit is not None else lambda row: ""
    pairs = [(str(read_amount(row) or ""), read_unit(row)) for row in rows]
    places: dict[Any, int] = {}
    for text, kind in pairs:
        if not _is_zero(text):
            places[kind] = max(places.get(kind, 0), len(text.partition(".")[2]))
    return tuple(zero if _is_zero(text) else _pad(text, places[kind]) for text, kind in pairs)


def keep_amounts(columns: Sequence[tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...]:
    """The first of some columns (their names, their amounts, and what else they have), and of the others those with an amount."""
    return tuple(one for number, one in enumerate(columns) if number == 0 or set(one[1]) != {ZERO})


def _is_zero(amount: str) -> bool:
    return not amount.strip("-0.")


def _pad(amount: str, places: int) -> str:
    whole, _, fraction = amount.partition(".")
    return f"{whole}.{fraction.ljust(places, '0')}" if places else whole
