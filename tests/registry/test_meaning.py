"""Which texts of a listing are embedded, and how two orders become one."""

from typing import Any

import pytest

from tests.kit.listings import PROVIDER, sample_listing
from tollway.registry.meaning import OPERATIONS_MAX, SUMMARIES_MAX, embedded_texts, fuse
from tollway.registry.search_rank import Rank, order_candidates

ABOUT = "Weather Rain by hour. sky sea"


def describe(summaries: list[object]) -> dict[str, Any]:
    paths = {f"/{number}": {"get": {"summary": summary}} for number, summary in enumerate(summaries)}
    return {"openapi": "3.1.0", "paths": paths}


@pytest.mark.parametrize(
    ("openapi", "texts"),
    [
        (None, (ABOUT,)),
        ({"openapi": "3.1.0"}, (ABOUT,)),
        (describe(["Rain", "Wind"]), (f"{ABOUT} Rain Wind",)),
        (describe(["Rain", 7, None, "", {"x": 1}]), (f"{ABOUT} Rain",)),
        (describe(["a", "b", "c", "d"]), (f"{ABOUT} a b c d",)),
        (
            describe(["a", "b", "c", "d", "e"]),
            (f"{ABOUT} a b c d", "Weather a", "Weather b", "Weather c", "Weather d", "Weather e"),
        ),
    ],
    ids=["no document", "an empty one", "few", "not texts", "as many as fit", "many"],
)
def test_a_listing_is_one_text_and_each_of_many_operations_one_more(
    openapi: dict[str, Any] | None, texts: tuple[str, ...]
) -> None:
    listing = sample_listing(
        provider=PROVIDER, name="Weather", description="Rain by hour.", tags=("sky", "sea"), openapi=openapi
    )
    assert embedded_texts(listing) == texts


def test_a_document_of_a_thousand_operations_is_a_bounded_number_of_texts() -> None:
    listing = sample_listing(provider=PROVIDER, openapi=describe([f"Operation {n}" for n in range(1_000)]))
    texts = embedded_texts(listing)
    assert len(texts) == 1 + OPERATIONS_MAX
    assert all(len(text) < 200 for text in texts)
    assert SUMMARIES_MAX < OPERATIONS_MAX


@pytest.mark.parametrize(
    ("orders", "fused"),
    [
        ([], ""),
        (["abc"], "abc"),
        (["", "abc"], "abc"),
        (["abc", ""], "abc"),
        (["abc", "abc"], "abc"),
        (["ab", "cd"], "acbd"),  # of equal places the first order
        (["abcde", "ec"], "ecabd"),
        (["abc", "bx"], "baxc"),
    ],
)
def test_orders_are_fused_by_reciprocal_rank(orders: list[str], fused: str) -> None:
    assert "".join(fuse(*orders)) == fused


def test_an_order_alone_stays_as_it_is() -> None:
    ranks = [
        (1, Rank(has_all=False, score=9.0)),
        (2, Rank(has_all=True, score=1.0)),
        (3, Rank(has_all=True, score=1.0)),
    ]
    assert order_candidates(ranks) == [3, 2, 1]
    assert order_candidates([], [(1, 0.3), (2, 0.5), (3, 0.3)]) == [2, 3, 1]


def test_what_both_orders_have_high_leads() -> None:
    ranks = [(1, Rank(has_all=True, score=3.0)), (2, Rank(has_all=True, score=2.0))]
    assert order_candidates(ranks, [(2, 0.6), (9, 0.3)]) == [2, 1, 9]
