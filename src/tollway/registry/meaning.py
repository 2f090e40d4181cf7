"""Search by meaning: which texts of a listing are embedded, how similar a listing must be to a query, and how its order joins the order by words. Pure.

A listing that is similar to a query is proposed, also when it has none of the query's words. The database decides what is visible and what passes the filters.
Without the extra `tollway[search]` nothing is proposed, and a search is one by words.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from typing import TypeVar

from tollway.registry.listing import Listing
from tollway.registry.openapi import walk_operations

SUMMARIES_MAX = 4
"""A listing with at most this number of operations has one vector, with all their summaries. With more, one vector would be about everything and near to nothing:
each of its first `OPERATIONS_MAX` operations has a vector of its own besides."""
OPERATIONS_MAX = 31

SIMILARITY_MIN = 0.26
"""Calibrated with the relevance set (docs/measuring.md): 14 of its 17 questions that no listing answers are near to none."""

PROPOSED_MAX = 50
"""How many listings are proposed for a query. The median question of the relevance set has three."""

RANK_OFFSET = 5
"""Of reciprocal rank fusion: how little the first ranks differ."""

EXTRA_PACKAGES = ("numpy", "wordllama")
REINSTALL = "run: pip install 'tollway[search]'"

T = TypeVar("T")


class WeightsUnusable(Exception):
    """The weights of the embeddings cannot be used. The message says why and what to do."""


def is_extra_installed() -> bool:
    """Imports no package."""
    return all(find_spec(name) is not None for name in EXTRA_PACKAGES)


@dataclass(frozen=True, slots=True)
class Proposed:
    """A listing, by its row number, that is similar to a query. `similarity`: the cosine of the query and the nearest vector of the listing."""

    seq: int
    similarity: float


def embedded_texts(listing: Listing) -> tuple[str, ...]:
    """The texts of a listing's vectors, at most 1 + `OPERATIONS_MAX`: the listing, then its operations where there are many."""
    summaries = list(islice(_summaries(listing), OPERATIONS_MAX))
    about = f"{listing.name} {listing.description} {' '.join(listing.tags)}"
    whole = " ".join([about, *summaries[:SUMMARIES_MAX]])
    if len(summaries) <= SUMMARIES_MAX:
        return (whole,)
    return (whole, *(f"{listing.name} {summary}" for summary in summaries))


def _summaries(listing: Listing) -> Iterator[str]:
    for operation in walk_operations(listing.openapi or {}):
        summary = operation.content.get("summary")
        if isinstance(summary, str) and summary:
            yield summary


def fuse(*orders: Sequence[T]) -> list[T]:
    """Joins several orders into one by reciprocal rank: an entry counts 1 / (`RANK_OFFSET` + its place) in each order that has it. Entries with equal
    counts keep the order of their first appearance."""
    scores: dict[T, float] = {}
    for order in orders:
        for place, entry in enumerate(order):
            scores[entry] = scores.get(entry, 0.0) + 1 / (RANK_OFFSET + place)
    return sorted(scores, key=lambda entry: -scores[entry])
