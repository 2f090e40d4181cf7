"""How a search was understood, as sentences."""

from typing import Any

from tollway.discovery.search_text import advise_search, explain_search, read_names

PAGES: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"total": 3, "totalAll": 2, "words": ["price"], "corrections": []}, ""),
    (
        {"total": 3, "totalAll": 0, "words": ["price"], "corrections": []},
        'No API matches "price"; these are the closest.',
    ),
    (
        {"total": 3, "totalAll": 0, "words": ["price", "of", "ether"]},
        'No API matches all of "price", "of" and "ether"; these are the closest.',
    ),
    (
        {
            "total": 3,
            "totalAll": 3,
            "words": ["weather"],
            "corrections": [{"word": "wether", "replacement": "weather"}],
        },
        'No API matches "wether"; showing "weather".',
    ),
    ({"total": 0, "totalAll": 0, "words": ["a", "b"]}, 'No API matches "a" or "b".'),
    ({"total": 0, "totalAll": 0, "words": []}, "Nothing found."),
    ({"total": 0, "words": [7, "a\u202e\x1b[2J", None]}, 'No API matches "a[2J".'),
    ({"total": 0, "words": "x", "corrections": [1, "x"]}, "Nothing found."),
]


def test_says_which_words_no_api_has() -> None:
    for page, sentences in PAGES:
        assert explain_search(page) == sentences


def test_a_long_query_is_named_in_part() -> None:
    said = explain_search({"total": 0, "words": ["x" * 500] * 100})
    assert len(said) < 400


ADVICE: list[tuple[dict[str, Any], str]] = [
    ({"closest": ["Rain"], "tags": []}, 'Without the filters: "Rain".'),
    ({"closest": list("abcd"), "tags": []}, 'Without the filters: "a", "b", "c".'),
    (
        {"closest": [], "tags": ["data", "geo"]},
        'Try other words, such as the tags of this catalog: "data", "geo".',
    ),
    ({"closest": [], "tags": []}, "Try other words."),
]


def test_says_what_to_try_when_nothing_was_found() -> None:
    for given, sentences in ADVICE:
        assert advise_search(**given) == sentences


# a document -> the names that are read
NAMED: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"apis": [{"id": "api_1", "name": "Rain"}]}, "apis", ["Rain"]),
    ({"tags": [{"tag": "data", "count": 3}, {"tag": 7}, 7, None]}, "tags", ["data"]),
    ({"tags": "x"}, "tags", []),
    ({}, "tags", []),
]


def test_reads_names_of_listings_and_tags() -> None:
    for document, member, names in NAMED:
        assert read_names(document, member) == names
