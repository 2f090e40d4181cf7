"""Moments and columns of amounts as the pages write them."""

from types import SimpleNamespace
from typing import Any

import pytest
from jinja2 import Environment

from tests.kit.pages import PageHarness, PageReader
from tollway.web.http.query import parse_time
from tollway.web.pages.figures import align_amounts, keep_amounts, split_time

NOW_MS = parse_time("2026-11-28T23:59:59.000Z")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("2026-11-28T19:10:17.434Z", (True, "", "19:10", "19:10:17")),
        ("2026-11-27T19:10:17.434Z", (False, "", "19:10", "19:10:17")),
        ("2025-11-28T00:00:00Z", (False, "2025", "00:00", "00:00:00")),
        ("2026-11-29T00:30:00+01:00", (True, "", "23:30", "23:30:00")),
        (NOW_MS + 1_000, (False, "", "00:00", "00:00:00")),
        (0, (False, "1970", "00:00", "00:00:00")),
    ],
)
def test_a_moment_is_written_for_the_day_of_its_reader(given: int | str, shown: tuple[Any, ...]) -> None:
    at = split_time(given, NOW_MS)
    assert (at.is_today, at.year, at.clock, at.seconds) == shown
    assert parse_time(at.exact) == (given if isinstance(given, int) else parse_time(given))


@pytest.mark.parametrize(
    ("amounts", "aligned"),
    [
        (("1", "0.25", "0", ""), ("1.00", "0.25", "–", "–")),
        (("10", "2"), ("10", "2")),
        (("0.000000", "-0.5"), ("–", "-0.5")),
        ((), ()),
    ],
)
def test_amounts_of_a_column_have_as_many_decimals_as_the_longest(
    amounts: tuple[str, ...], aligned: tuple[str, ...]
) -> None:
    rows = [SimpleNamespace(price=one) for one in amounts]
    assert align_amounts(Environment(), rows, "price") == aligned


def test_amounts_of_two_units_do_not_lengthen_each_other() -> None:
    rows = [
        {"paid": {"all": "0.01"}, "unit": "USDC"},
        {"paid": {"all": "0.000000000000000001"}, "unit": "ETH"},
        {"paid": {"all": "3"}, "unit": "USDC"},
    ]
    assert align_amounts(Environment(), rows, "paid.all", "unit") == ("0.01", "0.000000000000000001", "3.00")


WRITTEN = {
    "time(1795132800000)": ("20 Nov, 00:00 UTC", "2026-11-20T00:00:00.000Z"),
    "time('2026-11-21T05:29:00Z', with_seconds=true)": ("05:29:00 UTC", "2026-11-21T05:29:00.000Z"),
    "time('1999-01-02T03:04:05Z', zone='')": ("2 Jan 1999, 03:04", "1999-01-02T03:04:05.000Z"),
    "address('0x' ~ 'ab' * 20)": ("0xabab…abab", "0x" + "ab" * 20),
    "hash('0x' ~ 'cd' * 32)": ("0xcdcdcdcd…cdcdcd", "0x" + "cd" * 32),
    "id('call_1')": ("call_1", ""),
    "id('<b>' * 9)": ("<b><b><b><…<b><b>", "<b>" * 9),
    "whole_address('0x' ~ 'ab' * 20)": ("0x" + "ab" * 20, ""),
    "rail('tx')": ("by transaction", "tx"),
    "rail('x402')": ("by signature", "x402"),
}


@pytest.mark.parametrize("macro", WRITTEN)
def test_what_is_cut_is_whole_in_its_title(macro: str) -> None:
    words, title = WRITTEN[macro]
    renderer = PageHarness().renderer
    environment = renderer._environments["en"]
    template = environment.from_string(
        "{% import 'macros.j2' as parts with context %}{{ parts." + macro + " }}"
    )
    html = template.render(frame=SimpleNamespace(now_ms=parse_time("2026-11-21T23:00:00Z")))
    assert PageReader(html).words == words
    assert ("<b>" in html) is False
    assert (f'title="{title}"'.replace("<", "&lt;").replace(">", "&gt;") in html) is (title != "")


def test_a_column_after_the_first_needs_an_amount() -> None:
    columns = (("Charged", ("–", "–")), ("Held", ("–", "–")), ("Released", ("–", "0.10")), ("Reorged", ()))
    assert [name for name, _ in keep_amounts(columns)] == ["Charged", "Released", "Reorged"]
