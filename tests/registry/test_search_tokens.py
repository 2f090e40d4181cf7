"""The words of a text, of a query and of a listing."""

from typing import Any

from tests.kit.listings import PROVIDER, sample_listing
from tollway.money import Price
from tollway.registry.listing import Operation
from tollway.registry.search_tokens import (
    QUERY_WORDS_MAX,
    TEXT_WORDS_MAX,
    WORD_LENGTH_MAX,
    fold,
    query_words,
    searched_words,
    split_words,
    stem,
)

WORDS: list[tuple[str, tuple[str, ...]]] = [
    ("", ()),
    ("  \t\n", ()),
    ("Weather Pro", ("weather", "pro")),
    ("e-mail a_b v2.5", ("e", "mail", "a", "b", "v2", "5")),
    ("Ｃafé CAFÉ cafe\u0301", ("cafe", "cafe", "cafe")),
    ("wea\U000e0152ther wea\u200bther", ("wea", "ther", "wea", "ther")),  # hidden characters are in no word
    ("Straße", ("strasse",)),
    ("İstanbul", ("istanbul",)),
    ("天気API", ("天", "気", "api")),
    ("हिन्दी", ("हिनदी",)),
    ('"a" OR (b) NOT c* ^d', ("a", "or", "b", "not", "c", "d")),
    ("\x00a\x00", ("a",)),
    ("👍🏽", ()),
    ("🌧\ufe0f rain \ufe0f", ("rain",)),
]


def test_splits() -> None:
    for text, words in WORDS:
        assert split_words(text) == words


def test_splits_a_plain_text_as_it_splits_any_other() -> None:
    plain = [f"x{chr(code)}y z9" for code in range(128)]
    assert [split_words(text) for text in plain] == [split_words(text + " ж")[:-1] for text in plain]


def test_long_words_are_cut_alike_in_texts_and_queries() -> None:
    assert split_words("a" * 1_000) == ("a" * WORD_LENGTH_MAX,)
    assert query_words("a" * 2_000) == ("a" * WORD_LENGTH_MAX,)


def test_a_query_has_a_bounded_number_of_distinct_words() -> None:
    assert query_words("b c b") == ("b", "c")
    assert len(query_words(" ".join(str(number) for number in range(100)))) == QUERY_WORDS_MAX


def test_split_words_hold_no_character_that_a_database_reads() -> None:
    everything = "".join(chr(code) for code in range(0x2FF))
    for word in split_words(everything):
        assert not set(word) & set("\"'\\:*&|!()<>- \x00")


def test_folding_removes_case_width_and_accents() -> None:
    assert {fold(text) for text in ("Éclair", "ECLAIR", "ｅclair", "e\u0301clair")} == {"eclair"}


STEMS = [
    ("rates rate", "rate"),
    ("geocode geocoding geocoded", "geocod"),
    ("currency currencies", "currenc"),
    ("prices price pricing", "price"),
    ("погода", "погода"),
    ("v2", "v2"),
    ("is", "is"),
]


def test_forms_of_a_word_have_one_stem() -> None:
    for words, one in STEMS:
        assert {stem(word) for word in words.split()} == {one}


MEANT = [
    ("What is the weather in Berlin?", ("weather", "berlin")),
    ("find an API for stock quotes", ("stock", "quotes")),
    ("the who", ("the", "who")),
    ("api", ("api",)),
    ("AND OR NOT *", ("and", "or", "not")),
    ("?!", ()),
    ("tomorrow's rain", ("tomorrow", "rain")),
    ("WHAT’S the coin’s price", ("coin", "price")),
    ("I'd see what we've sold", ("see", "sold")),
    ("dogs' 's x's1", ("dogs", "s", "x", "s1")),
]


def test_a_query_means_its_words_without_those_of_every_question() -> None:
    for text, words in MEANT:
        assert query_words(text) == words


def test_operations_are_searched_by_the_words_of_their_names() -> None:
    named = {"operationId": "getWeatherByCity", "summary": "A forecast, by HTTPClient"}
    odd = {"operationId": 7, "summary": None}
    paths = {"/v1/cities/{cityName}": {"get": named}, "/v1/cities": {"get": odd}}
    priced = Operation(method="GET", path="/storm-alerts", price=Price.parse("1"))
    texts: dict[str, Any] = {"name": "One two", "description": "Three", "tags": ("four five",)}
    listing = sample_listing(provider=PROVIDER, openapi={"paths": paths}, operations=(priced,), **texts)
    name, description, tags, operations, _ = searched_words(listing)
    assert (name, description, tags) == (("one", "two"), ("three",), ("four", "five"))
    assert " ".join(operations) == "storm alerts v1 cities city name get weather by a forecast httpclient"


DOMAINS = [
    ("https://api.open-weather.example.com/v1", ("open", "weather", "example")),
    ("https://www.tides.example", ("tides",)),
    ("https://192.0.2.7/v1", ()),
    ("https://localhost", ()),
    ("https://[::1]/", ()),
    ("https://[bad", ()),
]


def test_a_domain_is_searched_without_its_last_label_and_without_those_of_every_api() -> None:
    for endpoint, words in DOMAINS:
        assert searched_words(sample_listing(provider=PROVIDER, endpoint=endpoint))[-1] == words


def test_the_words_of_a_listing_are_bounded() -> None:
    long = " ".join(f"w{number}" for number in range(5_000))
    paths = {f"/p{number}": {"get": {"summary": f"s{number}"}} for number in range(1_900)}
    listing = sample_listing(provider=PROVIDER, description=long, openapi={"paths": paths})
    assert [len(words) for words in searched_words(listing)] == [1, TEXT_WORDS_MAX, 0, TEXT_WORDS_MAX, 1]
