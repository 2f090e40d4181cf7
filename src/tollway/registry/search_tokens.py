"""The words of full-text search: one rule for both databases, so that both find the same listings in the same order. Pure.

A word is a run of letters, digits and marks after compatibility folding: case, width and accents do not count
(`Ｃafé` is `cafe`). In scripts without spaces each character is a word. Words are compared by their stem (Snowball, English):
`rates` is `rate`, and `geocode` is `geocoding`. Words of other scripts are their own stems.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from tollway.registry.listing import Listing
from tollway.registry.openapi import walk_operations
from tollway.registry.text import drop_refused_characters

WORD_LENGTH_MAX = 64
"""Longer words are cut to this length, in texts and in queries."""

QUERY_WORDS_MAX = 16
"""Further words are ignored."""

TEXT_WORDS_MAX = 600
"""Further words of the operations of a listing, and of its description, are not searched."""

FIELDS = ("name", "description", "tags", "operations", "endpoint")
"""The searched fields of a listing. Of `endpoint` it is the domain."""

_STOP_WORDS = (
    "a about an and any api apis are as at be by can could do does find for from get give has have how i in into is it its let "
    "looking me my need not of on one or our out please provide service show some tell that the their them there these "
    "this to up us use want was we what when where which who will with would you your"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words of questions and words of every listing. A query is searched without them, unless it has no other word."""

STEMS_KEPT_MAX = 20_000

_ASCII_WORD = re.compile(r"[a-z0-9]+")
"""A word of folded ASCII text: ten times faster than a check of each character."""
_CONTRACTION = re.compile(r"(?<=[^\W\d_])['’](?:s|d|m|re|ve|ll)\b", re.IGNORECASE)
"""What English appends to a word: "tomorrow's" means "tomorrow"."""
_STEMMED = re.compile(r"[a-z]{3,}")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""A border between two words in camel case."""

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
        kind = unicodedata.category(char)[0]
        if kind not in "LNM" or (kind == "M" and not drop_refused_characters(char)):
            words.append(word)
            word = ""
        elif is_unspaced(char):
            words += (word, char)
            word = ""
        elif (
            word or kind != "M"
        ):  # no word begins with a mark: one that selects the colours of an emoji is alone
            word += char
    words.append(word)
    return tuple(word[:WORD_LENGTH_MAX] for word in words if word)


def is_unspaced(char: str) -> bool:
    """Whether a character belongs to a script without spaces between words."""
    return any(first <= ord(char) <= last for first, last in _UNSPACED)


def query_words(text: str) -> tuple[str, ...]:
    """The folded words that a query means, each once. Returns nothing when the query has no word."""
    words = dict.fromkeys(split_words(_CONTRACTION.sub("", text)))
    meant = [word for word in words if word not in STOP_WORDS]
    return tuple(meant or words)[:QUERY_WORDS_MAX]


def fold(text: str) -> str:
    """The form in which texts are compared: case, width and accents do not count."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text)
    plain = "".join(char for char in decomposed if not unicodedata.combining(char))
    return unicodedata.normalize("NFKC", plain.casefold())


class _Stems(dict[str, str]):
    """The stems of the words that were met, at most `STEMS_KEPT_MAX`. Many threads may read it: a word has the same stem in each."""

    def __missing__(self, word: str) -> str:
        found = _find_stem(word) if _STEMMED.fullmatch(word) else word
        if len(self) >= STEMS_KEPT_MAX:
            self.clear()
        self[word] = found
        return found


def _find_stem(word: str) -> str:
    from snowballstemmer.english_stemmer import EnglishStemmer  # noqa: PLC0415 - loads the stemmers of forty languages, which a start does not need

    # A stemmer holds the word that it works on, so threads do not share one.
    return str(EnglishStemmer().stemWord(word))


_STEMS = _Stems()


def stem(word: str) -> str:
    """The stem of a folded word."""
    return _STEMS[word]


def searched_words(listing: Listing) -> tuple[tuple[str, ...], ...]:
    """The folded words of each of `FIELDS`, of operations and of the domain each once. The operations are those with a price of their own and
    those of the provider's document: the words of their paths, of `operationId` and of their summaries."""
    return (
        split_words(listing.name),
        split_words(listing.description)[:TEXT_WORDS_MAX],
        split_words(" ".join(listing.tags)),
        _list_operation_words(listing),
        _list_domain_words(listing),
    )


def _list_operation_words(listing: Listing) -> tuple[str, ...]:
    words: dict[str, None] = {}
    for text in _operation_texts(listing):
        words |= dict.fromkeys(split_words(text))
        if len(words) >= TEXT_WORDS_MAX:
            break
    return tuple(words)[:TEXT_WORDS_MAX]


def _list_domain_words(listing: Listing) -> tuple[str, ...]:
    """The labels of the domain but for its last one, and but for those of every API; none of an address."""
    try:
        labels = (urlsplit(listing.endpoint).hostname or "").split(".")
    except ValueError:
        return ()
    if labels[-1].isdigit():
        return ()
    words = split_words(" ".join(labels[:-1]))
    return tuple(word for word in dict.fromkeys(words) if word not in _PLAIN_LABELS)


_PLAIN_LABELS = ("api", "apis", "www")


def _operation_texts(listing: Listing) -> Iterator[str]:
    for priced in listing.operations:
        yield _split_name(priced.path)
    for operation in walk_operations(listing.openapi or {}):
        yield _split_name(operation.path)
        yield _split_name(_text(operation.content, "operationId"))
        yield _text(operation.content, "summary")


def _split_name(name: str) -> str:
    """`getWeatherByCity` as words. A variable of a path is part of the path."""
    return _HUMP.sub(" ", name)


_SUMMARY_LENGTH_MAX = 500


def _text(content: Mapping[str, Any], name: str) -> str:
    value = content.get(name)
    return value[:_SUMMARY_LENGTH_MAX] if isinstance(value, str) else ""
