"""Times to the millisecond, and all errors of a query at once."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from tollway.errors import Code, FieldError, Refusal
from tollway.validation import UNKNOWN_NAMED_MAX
from tollway.web.api.discovery_routes import ResourceSearchParameters
from tollway.web.api.history_routes import HistoryParameters
from tollway.web.api.listing_routes import ListingParameters
from tollway.web.http.query import (
    NoParameters,
    QueryModel,
    format_time,
    parse_time,
    parsed,
    read_query,
    whole_number,
)


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


class Probe(QueryModel):
    limit: Annotated[int, whole_number(1, 100)] = 20
    sort: Literal["newest", "name"] | None = None
    from_ms: Annotated[int | None, parsed(parse_time)] = Field(None, alias="from")
    q: Annotated[str, Field(max_length=5)] | None = None


def list_refused(model: type[QueryModel], raw: bytes) -> tuple[FieldError, ...]:
    try:
        read_query(model, raw)
    except Refusal as refusal:
        return refusal.problem.errors
    return ()


def test_a_bad_query_is_a_validation_failure() -> None:
    with pytest.raises(Refusal) as refusal:
        read_query(NoParameters, b"nothing=1")
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
        (b"limit=%2B1", [("limit", "not_a_number")]),
        (b"limit=1%20", [("limit", "not_a_number")]),
        (b"limit=1_0", [("limit", "not_a_number")]),
        (b"limit=true", [("limit", "not_a_number")]),
        ("limit=٣".encode(), [("limit", "not_a_number")]),
        (b"limit=" + b"9" * 5000, [("limit", "not_a_number")]),
        (b"limit=1&limit=1", [("limit", "duplicate")]),
        (b"limit=1&%6Cimit=2", [("limit", "duplicate")]),
        (b"LIMIT=1", [("LIMIT", "unknown")]),
        (b"cursor=1", [("cursor", "unknown")]),
        (b"%ff=1", [("?", "unknown")]),
        (b"q=%ff", [("q", "encoding")]),
        (b"from_ms=1", [("from_ms", "unknown")]),
        (b"=1", [("?", "unknown")]),
        (b"x" * 65 + b"=1", [("x" * 64, "unknown")]),
        (b"q=abcdef", [("q", "too_long")]),
        (b"sort=price", [("sort", "unknown_value")]),
        (b"from=yesterday", [("from", "malformed")]),
        (b"limit=x&sort=y", [("limit", "not_a_number"), ("sort", "unknown_value")]),
    ],
)
def test_a_query_reports_all_errors(raw: bytes, errors: list[tuple[str, str]]) -> None:
    assert [(one.parameter, one.code) for one in list_refused(Probe, raw)] == errors


def test_a_plus_and_a_percent_escape_are_decoded() -> None:
    assert read_query(Probe, b"q=a+b%20c").q == "a b c"


def test_an_absent_parameter_has_its_default() -> None:
    assert dict(read_query(Probe, b"")) == {"limit": 20, "sort": None, "from_ms": None, "q": None}


ADDRESS = "provider malformed an address is 0x followed by 40 hex digits"


@pytest.mark.parametrize(
    ("model", "raw", "errors"),
    [
        (
            ListingParameters,
            "tag=&network=8453&provider=me&limit=x&page=0&verified=1&currency=%00&sort=up&maxPrice=x&minSuccessRate=2"
            f"&q={'x' * 257}&fields=1",
            [
                "fields unknown there is no such parameter",
                "q too_long must have at most 256 characters",
                "maxPrice malformed a price is a decimal string such as 0.01",
                "sort unknown_value must be one of: recommended, relevance, newest, price, -price, name",
                "currency malformed must be plain text",
                "verified unknown_value must be one of: true, false",
                "page out_of_range must lie between 1 and 1000000",
                "limit not_a_number must be a whole number from 1 to 100",
                ADDRESS,
                "network malformed a network is eip155: followed by a decimal chain id",
                "tag malformed must be plain text",
                "minSuccessRate malformed must be a number from 0 to 1, such as 0.95",
            ],
        ),
        (
            ListingParameters,
            "maxprice=1&Page=1&page_=1&max=1&zebra=1",
            [
                "maxprice unknown there is no such parameter; did you mean maxPrice?",
                "Page unknown there is no such parameter; did you mean page?",
                "page_ unknown there is no such parameter; did you mean page?",
                "max unknown there is no such parameter",
                "zebra unknown there is no such parameter",
            ],
        ),
        (
            ListingParameters,
            "sort=-price&maxPrice=x&provider=me",
            [
                "maxPrice malformed a price is a decimal string such as 0.01",
                "maxPrice needs_currency needs currency",
                "sort needs_currency sorting by price needs currency",
                ADDRESS,
            ],
        ),
        (ListingParameters, "sort=price&currency=", ["currency malformed must be plain text"]),
        (ListingParameters, "sort=relevance&q=+", ["sort needs_q sorting by relevance needs q"]),
        (
            ListingParameters,
            f"sort=relevance&q={'x' * 257}&currency={'x' * 33}&maxPrice=1",
            [
                "q too_long must have at most 256 characters",
                "currency too_long must have at most 32 characters",
                "sort needs_q sorting by relevance needs q",
            ],
        ),
        (
            HistoryParameters,
            f"offset=10001&limit=1001&to=x&from=1969-01-01T00:00:00Z&status=done&role=all&before={'x' * 65}&apiId={'x' * 65}&wallet=0x1",
            [
                "wallet malformed an address is 0x followed by 40 hex digits",
                "apiId too_long must have at most 64 characters",
                "before too_long must have at most 64 characters",
                "role unknown_value must be one of: payer, provider",
                "status unknown_value must be one of: pending, succeeded, failed, unknown",
                "from malformed must be a time between 1970 and 9998",
                "to malformed must be a time such as 2026-11-21T09:15:00.000Z",
                "limit out_of_range must lie between 1 and 200",
                "offset out_of_range must lie between 0 and 10000",
            ],
        ),
        (
            ResourceSearchParameters,
            f"cursor=0&limit=0&extensions={'x' * 65}&scheme={'x' * 65}&payTo=me&type=ftp&network=base&query=%ff",
            [
                "query encoding must be percent-encoded UTF-8",
                "network malformed a network is written like eip155:8453",
                "type unknown_value must be one of: http, mcp",
                "payTo malformed an address is 0x followed by 40 hex digits",
                "scheme too_long must have at most 64 characters",
                "extensions too_long must have at most 64 characters",
                "limit out_of_range must lie between 1 and 100",
                "query required must be given",
                "cursor malformed must be a cursor that a search gave",
            ],
        ),
    ],
)
def test_the_errors_of_a_query_have_the_order_of_the_model(
    model: type[QueryModel], raw: str, errors: list[str]
) -> None:
    found = list_refused(model, raw.encode())
    assert [f"{one.parameter} {one.code} {one.detail}" for one in found] == errors


def test_the_first_unknown_names_get_a_suggestion() -> None:
    found = list_refused(ListingParameters, b"&".join(b"pages=%d" % number for number in range(50)))
    assert sum("did you mean page?" in one.detail for one in found) == UNKNOWN_NAMED_MAX
    assert len(found) == 50
