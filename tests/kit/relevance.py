"""The relevance set of the catalog's search: listings of the kinds that are sold, the questions of people and agents, and the figures of a search.

The set is text (`relevance_set/`): a key that is right for a question names a listing. `measure` counts what a search returned.
"""

import math
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.listings import sample_listing
from tollway.ids import Address, ListingId
from tollway.registry.listing import Listing

FOLDER = Path(__file__).parent / "relevance_set"
LIST_LENGTH = 10
"""How many listings of each search are judged."""
_OPERATION = re.compile(r"(\S+) (\S+): (.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`right`: the keys of the right listings, the best first; none where no listing is right."""

    text: str
    right: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relevance:
    """The figures of a search over the questions that have a right listing, each from 0 to 1. `hit_1`, `hit_5`: a right listing is the first one, or among the
    first five. `ndcg_10`: the order of the first ten, where the best listing counts most. `missed`: the questions without a right listing among the first five.
    `empty`: of the questions that no listing answers, the share for which nothing was found."""

    hit_1: float
    hit_5: float
    ndcg_10: float
    missed: tuple[str, ...]
    empty: float


def read_listings() -> tuple[Listing, ...]:
    """One listing for each line. Its id is the key."""
    return tuple(
        _make_listing(*(cell.strip() for cell in line.split("|"))) for line in _read_lines("listings.txt")
    )


def read_questions() -> tuple[Question, ...]:
    questions = []
    for line in _read_lines("questions.txt"):
        text, right = line.split("|")
        keys = tuple(key.strip() for key in right.split(",") if key.strip())
        questions.append(Question(text=text.strip(), right=keys))
    return tuple(questions)


async def measure(
    search: Callable[[str], Awaitable[Sequence[str]]], questions: Sequence[Question]
) -> Relevance:
    """`search`: the keys of the first listings that a question finds."""
    found = [(question, (await search(question.text))[:LIST_LENGTH]) for question in questions]
    answered = [(question.right, keys) for question, keys in found if question.right]
    unanswered = [keys for question, keys in found if not question.right]
    return Relevance(
        hit_1=sum(bool(set(keys[:1]) & set(right)) for right, keys in answered) / len(answered),
        hit_5=sum(bool(set(keys[:5]) & set(right)) for right, keys in answered) / len(answered),
        ndcg_10=sum(_ndcg(right, keys) for right, keys in answered) / len(answered),
        missed=tuple(one.text for one, keys in found if one.right and not set(keys[:5]) & set(one.right)),
        empty=sum(not keys for keys in unanswered) / len(unanswered),
    )


def _ndcg(right: Sequence[str], keys: Sequence[str]) -> float:
    """The best of n right listings gains n, the last one 1."""
    gains = {key: len(right) - place for place, key in enumerate(right)}
    ideal = sum(gain / math.log2(place + 2) for place, gain in enumerate(gains.values()))
    return sum(gains.get(key, 0) / math.log2(place + 2) for place, key in enumerate(keys)) / ideal


def _read_lines(name: str) -> list[str]:
    lines = (FOLDER / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _make_listing(key: str, name: str, tags: str, description: str, operations: str) -> Listing:
    paths: dict[str, dict[str, Any]] = {}
    for line in operations.split("; "):
        match = _OPERATION.fullmatch(line)
        assert match is not None, line
        method, path, summary = match.groups()
        paths.setdefault(path, {})[method.lower()] = {"summary": summary, "responses": {}}
    return sample_listing(
        provider=Address(b"\xaa" * 20),
        id=ListingId(key),
        name=name,
        description=description,
        tags=tuple(tags.split(",")),
        openapi={"openapi": "3.1.0", "info": {"title": name, "version": "1"}, "paths": paths},
    )
