"""The tokens of full-text search: one rule for both databases and for the catalog in memory, so that all find the same listings. Pure.

A word is a run of letters, digits and marks after compatibility folding: case, width and accents do not count
(`Ｃafé` is `cafe`). In scripts without spaces each character is a word. Only whole words match.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from tollway.registry.listing import Listing

WORD_LENGTH_MAX = 64
"""Longer words are cut to this length, in texts and in queries."""

QUERY_WORDS_MAX = 16
"""Further words are ignored."""

FIELDS = ("name", "description", "tags")
FIELD_WEIGHTS = (10, 1, 5)

_ASCII_WORD = re.compile(r"[a-z0-9]+")
"""A word of folded ASCII text: ten times faster than a check of each character."""

# Scripts without spaces between words: kana, CJK ideographs, Thai, Lao, Khmer, Myanmar.
_UNSPACED = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x3040, 0x30FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0x20000, 0x3FFFF),
)


def split_words(text: str) -> tuple[str, ...]:
    """The folded words of a text, in order."""
    folded = fold(text)
    if folded.isascii():
        return tuple(word[:WORD_LENGTH_MAX] for word in _ASCII_WORD.findall(folded))
    words: list[str] = []
    word = ""
    for char in folded:
        if unicodedata.category(char)[0] not in "LNM":
            words.append(word)
            word = ""
        elif any(first <= ord(char) <= last for first, last in _UNSPACED):
            words += (word, char)
            word = ""
        else:
            word += char
    words.append(word)
    return tuple(word[:WORD_LENGTH_MAX] for word in words if word)


def query_words(text: str) -> tuple[str, ...]:
    """Returns nothing when the query has no word."""
    return tuple(dict.fromkeys(split_words(text)))[:QUERY_WORDS_MAX]


def fold(text: str) -> str:
    """The form in which texts are compared: case, width and accents do not count."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text)
    plain = "".join(char for char in decomposed if not unicodedata.combining(char))
    return unicodedata.normalize("NFKC", plain.casefold())


def searched_texts(listing: Listing) -> tuple[str, str, str]:
    """The texts have the order of `FIELDS`."""
    return listing.name, listing.description, " ".join(listing.tags)


def matched_fields(listing: Listing, words: Sequence[str]) -> tuple[str, ...]:
    wanted = frozenset(words)
    texts = zip(FIELDS, searched_texts(listing), strict=True)
    return tuple(field for field, text in texts if wanted & frozenset(split_words(text)))


def rank_fields(fields: Iterable[Sequence[str]], words: Sequence[str]) -> float:
    """The rank of a listing for the words. `fields`: the split words of each of `FIELDS`. A word that occurs often in a field
    counts at most twice as much as one that occurs once."""
    rank = 0.0
    for weight, field in zip(FIELD_WEIGHTS, fields, strict=True):
        for word in words:
            count = field.count(word)
            rank += weight * count / (count + 1)
    return rank


def contains_all(texts: Iterable[str], words: Sequence[str]) -> bool:
    """Returns False without any word."""
    present = {word for text in texts for word in split_words(text)}
    return bool(words) and present.issuperset(words)
