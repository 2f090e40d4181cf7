"""The difference between two states of a listing, as values and as lines."""

from typing import Any

import pytest

from tests.kit.metering import TOKENS
from tollway.cli.listing_changes import MEMBERS, format_changes, list_changes
from tollway.registry.draft import ListingBody

PRICED = {"method": "GET", "path": "/a", "pricePerRequest": "1"}
BEFORE: dict[str, Any] = {
    "name": "A",
    "tags": ["x", "y"],
    "operations": [PRICED],
    "rateLimit": None,
    "upstreamAuth": {"in": "header", "name": "X-Key", "set": True},
    "openapi": None,
    "revision": 1,
}


def test_every_member_of_the_body_is_compared() -> None:
    assert set(MEMBERS) == set(ListingBody.member_names())


@pytest.mark.parametrize(
    ("after", "patch", "lines"),
    [
        ({}, {}, []),
        ({"revision": 2, "updatedAt": "now"}, {}, []),
        ({"name": "B"}, {}, ["name              A → B"]),
        ({"name": "B\x1b[2J\nC"}, {}, ["name              A → B�[2J C"]),
        (
            {"rateLimit": {"calls": 1, "perSeconds": 2}},
            {},
            ["rateLimit         none → calls 1, perSeconds 2"],
        ),
        ({"tags": ["x", "z"]}, {}, ["tags", "  - y", "  + z"]),
        ({"tags": ["y", "x"]}, {}, ["tags", "  in the order y, x"]),
        (
            {"operations": [{"method": "GET", "path": "/a", "pricePerRequest": "2"}]},
            {},
            ["operations", "  - GET /a 1", "  + GET /a 2"],
        ),
        (
            {"metering": {**TOKENS, "parts": TOKENS["parts"][:1]}},
            {},
            [
                "metering",
                "  + base 0.0001",
                "  + absent max",
                "  + show false",
                "  + 0.000002 per 1 prompt token: json /usage/prompt_tokens, sse /usage/prompt_tokens",
            ],
        ),
        (
            {"operations": [{**PRICED, "metering": {**TOKENS, "parts": "\x1b"}}]},
            {},
            ["operations", "  - GET /a 1", "  + GET /a 1, base 0.0001, absent max, show false"],
        ),
        ({"openapi": {"a": 1}}, {}, ["openapi           none → a document of 7 characters"]),
        (
            {},
            {"upstreamAuth": {"value": "s3cret"}},
            ["upstreamAuth      in header, name X-Key, set true → the same place, a new value"],
        ),
        ({}, {"upstreamAuth": {"name": "X-Key"}}, []),
    ],
)
def test_a_line_for_each_change(after: dict[str, Any], patch: dict[str, Any], lines: list[str]) -> None:
    changes = list_changes(BEFORE, {**BEFORE, **after}, patch=patch)
    assert format_changes(changes) == lines
