"""The rank of a listing for the words of a search. Pure, and computed by us, so that both databases have one order.

When a listing is written, `weigh_words` computes what each of its stems counts (BM25 with the weights of the fields), and stores it as
one text. A search reads the texts of its candidates, looks up its own stems in them, and multiplies by how rare each one is.
A word that is repeated in a name, in tags or in operations counts once, and at most `REPEATS_MAX` times in a description: a text
stuffed with a word is long, and so counts less.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tollway.registry.listing import Listing
from tollway.registry.meaning import fuse
from tollway.registry.search_tokens import FIELDS, searched_words, stem

# Of name, description, tags, operations and domain, as in `FIELDS`.
FIELD_WEIGHTS = (6.0, 2.5, 5.0, 3.0, 2.0)
REPEATS_MAX = (1, 3, 1, 1, 1)
USUAL_LENGTHS = (3, 30, 4, 25, 1)
"""The number of words of a usual field, to which the length of each field is compared. It is fixed: an average of the catalog would change
the weights of all listings with each write."""

COMPLETION_WEIGHT = 0.25
"""What a word counts that only begins with the last word of a query."""
RARITY_MIN = 0.1
"""The least weight of a word that every listing has."""
COUNTED_MAX = 10_000
"""Listings with a word are counted up to here; more frequent words weigh the same."""

_SATURATION, _LENGTH_SHARE = 1.2, 0.75  # k1 and b of BM25
_SCALE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A word of a query. `word`: as it is searched, after a correction. `stems`: that of the word first, then those of its completions; a
    listing has the term when it has one of them."""

    word: str
    stems: tuple[str, ...]


class Rank(NamedTuple):
    """The rank of one listing. `score` above 0: it has some term. A tuple, because a search makes hundreds."""

    has_all: bool
    score: float


def weigh_words(listing: Listing) -> str:
    """The text that `rank_words` reads: ` stem=<fields><weight>` for each stem, in order. `fields`: the bits of `FIELDS` as two hexadecimal digits."""
    fields: dict[str, int] = defaultdict(int)
    weights: dict[str, float] = defaultdict(float)
    for number, words in enumerate(searched_words(listing)):
        length = 1 - _LENGTH_SHARE + _LENGTH_SHARE * len(words) / USUAL_LENGTHS[number]
        for one, count in Counter(map(stem, words)).items():
            occurrences = min(count, REPEATS_MAX[number]) / length
            saturated = occurrences * (_SATURATION + 1) / (occurrences + _SATURATION)
            fields[one] |= 1 << number
            weights[one] += FIELD_WEIGHTS[number] * saturated
    return "".join(
        f" {one}={fields[one]:02x}{max(1, round(weights[one] * _SCALE))}" for one in sorted(fields)
    )


def list_stems(weights: str) -> tuple[str, ...]:
    return tuple(part.partition("=")[0] for part in weights.split())


def rank_words(weights: str, terms: Sequence[Term], rarities: Sequence[float]) -> Rank:
    """The rank of the listing that `weigh_words` has weighed: the sum over its terms, times the share of the terms that it has. `rarities`: of each term."""
    score, matched = 0.0, 0
    for term, rarity in zip(terms, rarities, strict=True):
        best = 0.0
        for number, one in enumerate(term.stems):
            found = _find(weights, one)
            if found is not None:
                best = max(best, found[1] * (1.0 if number == 0 else COMPLETION_WEIGHT))
        matched += best > 0
        score += best * rarity
    return Rank(has_all=matched == len(terms), score=score * matched / len(terms))


def matched_fields(weights: str, terms: Sequence[Term]) -> tuple[str, ...]:
    bits = 0
    for term in terms:
        for one in term.stems:
            found = _find(weights, one)
            bits |= 0 if found is None else found[0]
    return tuple(field for number, field in enumerate(FIELDS) if bits >> number & 1)


def _find(weights: str, one: str) -> tuple[int, int] | None:
    """The fields and the weight of a stem. A search for a piece of text: the text is not split for each candidate."""
    start = weights.find(f" {one}=")
    if start < 0:
        return None
    start += len(one) + 2
    end = weights.find(" ", start)
    return int(weights[start : start + 2], 16), int(weights[start + 2 : end if end >= 0 else None])


def measure_rarity(count: int, listings: int) -> float:
    """The inverse document frequency of BM25. `count`: listings with the word, counted up to `COUNTED_MAX`; `listings`: all."""
    every = max(min(listings, COUNTED_MAX), count)
    return max(RARITY_MIN, math.log(1 + (every - count + 0.5) / (count + 0.5)))


def order_candidates(
    by_words: Sequence[tuple[int, Rank]],
    by_meaning: Sequence[tuple[int, float]] = (),
    *,
    last: Collection[int] = (),
) -> list[int]:
    """The candidates of a search by relevance, best first: the one place that decides their order. `by_words`: row number and rank. Listings
    with all terms come first; of equal ones the newest. `by_meaning`: row number and similarity of the listings that are proposed by meaning; the two
    orders are fused. `last`: row numbers of listings whose endpoint another wallet owns; they stand behind all others."""
    words = sorted(by_words, key=lambda one: (not one[1].has_all, -one[1].score, -one[0]))
    meaning = sorted(by_meaning, key=lambda one: (-one[1], -one[0]))
    fused = fuse([seq for seq, _ in words], [seq for seq, _ in meaning])
    return sorted(fused, key=lambda seq: seq in last)


# ---- Spelling.

MISSPELLED_LENGTH_MIN, MISSPELLED_LENGTH_MAX = 5, 24
SUBSTITUTED_LENGTH_MIN = 7
"""The least length of a word with one wrong letter. Most pairs of shorter words at this distance are two words: `plane` is no misspelled `place`."""


def can_be_misspelled(word: str) -> bool:
    """Whether a misspelling of this word is found: a word of letters, neither short nor very long."""
    return MISSPELLED_LENGTH_MIN <= len(word) <= MISSPELLED_LENGTH_MAX and word.isalpha()


def list_spellings(word: str) -> tuple[str, ...]:
    """The word, and the word without one of its letters but the first. Two words at distance 1 have one of these in common."""
    return tuple(dict.fromkeys((word, *(word[:at] + word[at + 1 :] for at in range(1, len(word))))))


def is_misspelling(word: str, of: str) -> bool:
    """Whether one letter too many, too few or wrong, or two exchanged neighbours, make one of the words the other (Damerau, distance 1). The first letter of
    a misspelled word is right."""
    if word == of or word[:1] != of[:1] or abs(len(word) - len(of)) > 1:
        return False
    start = next(
        (at for at, (one, other) in enumerate(zip(word, of, strict=False)) if one != other),
        min(len(word), len(of)),
    )
    rest, of_rest = word[start:], of[start:]
    if len(word) != len(of):
        return rest[1:] == of_rest or rest == of_rest[1:]
    is_exchange = rest[:2] == of_rest[1::-1] and rest[2:] == of_rest[2:]
    return is_exchange or (len(word) >= SUBSTITUTED_LENGTH_MIN and rest[1:] == of_rest[1:])
