"""A price in words and in JSON: fixed, free, and metered with its formula."""

from typing import Any

import pytest

from tests.kit.metering import TOKENS, TOKENS_IN_WORDS, sample_metering
from tollway.money import Price
from tollway.registry.metering import OfferedPrice, describe_metering

WORDS: list[tuple[str, str, int, str]] = [
    ("image", "0.02", 1, "0.02 per image"),
    ("image", "0.001", 1, "0.001 per image"),
    ("prompt token", "0.000002", 1, "0.002 per 1,000 prompt tokens"),
    ("prompt token", "0.0000002", 1, "0.2 per 1,000,000 prompt tokens"),
    ("byte", "0.000000000001", 1, "0.000001 per 1,000,000 bytes"),
    ("token", "2.5", 1_000_000, "2.5 per 1,000,000 tokens"),
    ("token", "0.00002", 10, "0.002 per 1,000 tokens"),
    ("token", "0.0002", 1_500, "0.0002 per 1,500 tokens"),
    ("token", "0.0001", 1_000_000_000, "0.0001 per 1,000,000,000 tokens"),
    ("cached token", "0", 1, "0 per cached token"),
    ("KiB", "0.0001", 1, "0.1 per 1,000 KiB"),
    ("search query", "0.0001", 1, "0.1 per 1,000 search queries"),
    ("key", "0.0001", 1, "0.1 per 1,000 keys"),
    ("match", "0.0001", 1, "0.1 per 1,000 matches"),
]


@pytest.mark.parametrize(("unit", "unit_price", "per", "words"), WORDS)
def test_a_tiny_price_is_that_of_many_units(unit: str, unit_price: str, per: int, words: str) -> None:
    part = {"unit": unit, "unitPrice": unit_price, "per": per, "quantity": {"bytes": True}}
    assert describe_metering(sample_metering(base="0", parts=[part])) == words


def test_the_parts_of_a_formula_stand_after_its_base() -> None:
    assert describe_metering(sample_metering()) == TOKENS_IN_WORDS


OFFERS: list[tuple[OfferedPrice, str, dict[str, Any]]] = [
    (OfferedPrice(Price.parse("0")), "free", {"mode": "fixed", "amount": "0"}),
    (OfferedPrice(Price.parse("0.01")), "0.01 USDC", {"mode": "fixed", "amount": "0.01"}),
    (
        OfferedPrice(Price.parse("0.02"), sample_metering()),
        f"up to 0.02 USDC: {TOKENS_IN_WORDS}",
        {"mode": "metered", "amount": "0.02", "formula": TOKENS_IN_WORDS, "metering": TOKENS},
    ),
]


@pytest.mark.parametrize(("offered", "words", "members"), OFFERS, ids=["free", "fixed", "metered"])
def test_an_offered_price_in_words_and_in_json(
    offered: OfferedPrice, words: str, members: dict[str, Any]
) -> None:
    assert offered.describe("USDC") == words
    assert offered.to_json("USDC") == {**members, "currency": "USDC"}
