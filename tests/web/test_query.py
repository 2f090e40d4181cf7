"""Times to the millisecond, and all errors of a query at once."""

import pytest

from tollway.errors import Code, Refusal
from tollway.web.query import QueryParameters, format_time, parse_time


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_795_252_500_007, "2026-11-21T09:15:00.007Z"),
        (999, "1970-01-01T00:00:00.999Z"),
    ],
)
def test_a_time_has_three_digits_and_survives_the_round_trip(ms: int, text: str) -> None:
    assert format_time(ms) == text
    assert parse_time(text) == ms


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2026-11-21T10:15:00+01:00", "2026-11-21T09:15:00.000Z"),
        ("2026-11-21T09:15:00.1Z", "2026-11-21T09:15:00.100Z"),
        ("2026-11-21t09:15:00.123456789z", "2026-11-21T09:15:00.123Z"),
        ("2026-11-20T23:15:00-10:00", "2026-11-21T09:15:00.000Z"),
    ],
)
def test_reads_other_spellings_of_a_time(text: str, same: str) -> None:
    assert format_time(parse_time(text)) == same


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-21",
        "2026-11-21T09:15:00",
        "2026-11-21 09:15:00Z",
        "2026-13-21T09:15:00Z",
        "2026-11-21T25:15:00Z",
        "2026-11-21T09:15:00.Z",
        "2026-11-21T09:15:00+24:00",
        "1969-11-21T09:15:00Z",
        "9999-12-31T23:59:59-23:59",
        "٢٠٢٦-11-21T09:15:00Z",
        "1795252500",
    ],
)
def test_refuses_a_text_that_is_not_a_time(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text)


def refused(raw: bytes) -> list[tuple[str | None, str]]:
    query = QueryParameters(raw, known=("limit", "sort", "from", "q"))
    query.integer("limit", default=20, least=1, most=100)
    query.choice("sort", ("newest", "name"))
    query.parsed("from", parse_time)
    query.text("q", length_max=5)
    try:
        query.finish()
    except Refusal as refusal:
        return [(error.parameter, error.code) for error in refusal.problem.errors]
    return []


def test_a_bad_query_is_a_validation_failure() -> None:
    query = QueryParameters(b"nothing=1", known=())
    with pytest.raises(Refusal) as refusal:
        query.finish()
    assert refusal.value.problem.code is Code.VALIDATION_FAILED


@pytest.mark.parametrize(
    ("raw", "errors"),
    [
        (b"", []),
        (b"&&", []),
        (b"limit=100&sort=name&from=2026-11-21T09:15:00Z&q=abcde", []),
        (b"limit=0", [("limit", "out_of_range")]),
        (b"limit=101", [("limit", "out_of_range")]),
        (b"limit=-1", [("limit", "out_of_range")]),
        (b"limit=1e3", [("limit", "not_a_number")]),
        (b"limit=+1", [("limit", "not_a_number")]),
        (b"limit=", [("limit", "not_a_number")]),
        (b"limit=1.0", [("limit", "not_a_number")]),
        ("limit=٣".encode(), [("limit", "not_a_number")]),
        (b"limit=" + b"9" * 5000, [("limit", "not_a_number")]),
        (b"limit=1&limit=1", [("limit", "duplicate")]),
        (b"limit=1&%6Cimit=2", [("limit", "duplicate")]),
        (b"LIMIT=1", [("LIMIT", "unknown")]),
        (b"cursor=1", [("cursor", "unknown")]),
        (b"%ff=1", [("?", "unknown")]),
        (b"q=%ff", [("q", "encoding")]),
        (b"q=abcdef", [("q", "too_long")]),
        (b"sort=price", [("sort", "unknown_value")]),
        (b"from=yesterday", [("from", "malformed")]),
        (b"limit=x&sort=y", [("limit", "not_a_number"), ("sort", "unknown_value")]),
    ],
)
def test_a_query_reports_all_errors(raw: bytes, errors: list[tuple[str, str]]) -> None:
    assert refused(raw) == errors


def test_a_plus_and_a_percent_escape_are_decoded() -> None:
    query = QueryParameters(b"q=a+b%20c", known=("q",))
    assert query.text("q") == "a b c"
