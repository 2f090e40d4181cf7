"""The text of CSV files for accountants: RFC 4180, with every cell that a spreadsheet would run disarmed. Pure.

The exports of the gateway and of the command line write their lines here and nowhere else, so that no column is forgotten. Text of providers, callers and
upstreams is in these files: names of listings, paths, keys.
"""

import csv
import io
from collections.abc import Iterable

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The first characters of a cell that Excel, LibreOffice or Google Sheets may read as a formula; the last four are the full-width forms that some
input methods write and Excel accepts."""
DISARM_MARK = "'"
"""Spreadsheets show a cell that begins with this mark as text. The rest of the cell is unchanged."""


def csv_cells(values: Iterable[object]) -> list[str]:
    """The cells of one row: None is empty, text that begins like a formula gets the mark in front. Other values are their `str`, disarmed alike: a
    negative number becomes text, and the exports have none, because a state is a column of its own and never a sign."""
    return [_disarm("" if value is None else str(value)) for value in values]


def csv_line(values: Iterable[object]) -> str:
    """One record of RFC 4180 with its CRLF, made of `csv_cells`. Cells with commas, quotes or line ends are quoted."""
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(csv_cells(values))
    return line.getvalue()


def _disarm(text: str) -> str:
    return DISARM_MARK + text if text.startswith(FORMULA_STARTS) else text
