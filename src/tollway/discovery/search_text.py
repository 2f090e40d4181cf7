"""How a search was understood, as sentences for agents and for terminals: words that no API has, corrections, and what to try. Pure.

The sentences quote words of the query, and words of listings in the place of misspelled ones: letters without spaces, but still data of providers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tollway.discovery.safe_text import clean_line

WORDS_NAMED_MAX = 8
WORD_LENGTH_MAX = 32
CLOSEST_MAX, TAGS_NAMED_MAX, NAME_LENGTH_MAX = 3, 8, 40
"""The most listings and tags that the advice after a search without a result names, and the most characters of each name."""

FILTERS = frozenset({"tag", "currency", "network", "maxPrice", "minSuccessRate", "provider", "verified"})
"""The parameters of a search, apart from its words, that leave listings out."""


def explain_search(page: Mapping[str, Any]) -> str:
    """The sentences about a page of `GET /apis` with `q`; empty when some API has all words as they are written. `page` is untrusted."""
    words = _read_texts(page.get("words"))
    sentences = []
    for one in _read_objects(page.get("corrections")):
        word, replacement = (clean_line(one.get(name), WORD_LENGTH_MAX) for name in ("word", "replacement"))
        sentences.append(f'No API matches "{word}"; showing "{replacement}".')
    if page.get("total") == 0:
        sentences.append(f"No API matches {_join(words, 'or')}." if words else "Nothing found.")
    elif page.get("totalAll") == 0 and words:
        every = f"all of {_join(words, 'and')}" if len(words) > 1 else _join(words, "and")
        sentences.append(f"No API matches {every}; these are the closest.")
    return " ".join(sentences)


def advise_search(*, closest: Sequence[str], tags: Sequence[str]) -> str:
    """What to try when nothing was found. `closest`: names of the listings that the words find without the filters; `tags`: of the catalog, the most
    frequent first."""
    advice = []
    if closest:
        advice.append(f"Without the filters: {_quote(closest[:CLOSEST_MAX])}.")
    if tags:
        advice.append(f"Try other words, such as the tags of this catalog: {_quote(tags[:TAGS_NAMED_MAX])}.")
    elif not closest:
        advice.append("Try other words.")
    return " ".join(advice)


def read_names(document: Mapping[str, Any], member: str) -> list[str]:
    """The names of the listings of a page (`apis`), or the tags of the facets (`tags`). `document` is untrusted."""
    listed = document.get(member)
    objects = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    return [name for one in objects if isinstance(name := one.get("name", one.get("tag")), str)]


def _join(words: Sequence[str], last: str) -> str:
    named = [f'"{word}"' for word in words[:WORDS_NAMED_MAX]]
    return ", ".join(named[:-1]) + f" {last} {named[-1]}" if len(named) > 1 else "".join(named)


def _quote(names: Sequence[str]) -> str:
    return ", ".join(f'"{clean_line(name, NAME_LENGTH_MAX)}"' for name in names)


def _read_texts(value: object) -> list[str]:
    texts = value if isinstance(value, list | tuple) else ()
    return [cleaned for text in texts if (cleaned := clean_line(text, WORD_LENGTH_MAX))]


def _read_objects(value: object) -> list[Mapping[str, Any]]:
    objects = value if isinstance(value, list | tuple) else ()
    return [one for one in objects[:WORDS_NAMED_MAX] if isinstance(one, Mapping)]
