"""The text of CSV files for accountants: RFC 4180, with every cell that a spreadsheet would run disarmed, wherever it splits a line. Pure.

The exports of the gateway and of the command line write their lines here and nowhere else, so that no column is forgotten. Text of providers, callers and
upstreams is in these files: names of listings, paths, keys.
"""

import csv
import io
import re
from collections.abc import Iterable

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The first characters of a cell that Excel, LibreOffice or Google Sheets may read as a formula; the last four are the full-width forms that some
input methods write and Excel accepts."""
DISARM_MARK = "'"
"""Spreadsheets show a cell that begins with this mark as text. The rest of the text is unchanged."""
_LINE_ENDS = "\r\n"
_STARTS = re.escape("".join(FORMULA_STARTS))
_INNER_STARTS = re.escape("".join(start for start in FORMULA_STARTS if start not in _LINE_ENDS))
_FORMULA = re.compile(rf"""(?:\A|(?<=[;\t"]))(?=[{_STARTS}])|(?<=[\r\n])(?=[{_INNER_STARTS}])""")
"""The places where a cell may begin with a formula. A spreadsheet of another system splits at `;` or a tab, and there the quotes of a cell are text: a cell then
begins behind each of them, behind a quote and on each line. A line end behind a line end begins no cell."""
_SPLITS = re.compile(r"""[;\t"\r\n]""")
"""Text without one of these is one cell everywhere."""
_QUOTED, _ENDS = (",", '"', *_LINE_ENDS), (";", "\t", *_LINE_ENDS)
"""Text with one of the first is quoted. Where it ends with one of the second, its closing quote opens a cell there, and the cell would begin with a line end."""


def csv_cells(values: Iterable[object]) -> list[str]:
    """The cells of one row: None is empty, text gets the mark in front of each formula that a spreadsheet could find in it. Other values are their `str`, disarmed
    alike: a negative number becomes text, and the exports have none, because a state is a column of its own and never a sign."""
    return [_disarm("" if value is None else str(value)) for value in values]


def csv_line(values: Iterable[object]) -> str:
    """One record of RFC 4180 with its CRLF, made of `csv_cells`. Cells with commas, quotes or line ends are quoted."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(csv_cells(values))
    return line.getvalue()


def _disarm(text: str) -> str:
    if not text.startswith(FORMULA_STARTS) and _SPLITS.search(text) is None:
        return text
    disarmed = _FORMULA.sub(DISARM_MARK, text)
    is_quoted = any(char in text for char in _QUOTED)
    return disarmed + DISARM_MARK if is_quoted and text.endswith(_ENDS) else disarmed
