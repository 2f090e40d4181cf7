"""The rank of a listing for words, and misspelled words."""

from tests.kit.listings import PROVIDER, sample_listing
from tollway.registry.search_rank import (
    COMPLETION_WEIGHT,
    RARITY_MIN,
    Rank,
    Term,
    can_be_misspelled,
    is_misspelling,
    list_spellings,
    list_stems,
    matched_fields,
    measure_rarity,
    order_candidates,
    rank_words,
    weigh_words,
)


def weigh(name: str = "x", description: str = "", tags: tuple[str, ...] = ()) -> str:
    endpoint = "https://192.0.2.1"
    return weigh_words(
        sample_listing(provider=PROVIDER, name=name, description=description, tags=tags, endpoint=endpoint)
    )


def rank(weights: str, *words: str) -> Rank:
    return rank_words(weights, [Term(word=word, stems=(word,)) for word in words], [1.0] * len(words))


def test_the_text_of_weights_has_each_stem_once_with_its_fields() -> None:
    weights = weigh("Red doors", "A door", ("red",))
    assert list_stems(weights) == ("a", "door", "red")
    red, door = ([Term(word=one, stems=(one,))] for one in ("red", "door"))
    assert matched_fields(weights, red) == ("name", "tags")
    assert matched_fields(weights, door) == ("name", "description")
    assert matched_fields(weights, [Term(word="do", stems=("do",))]) == ()


def test_a_name_ranks_before_tags_and_tags_before_a_description() -> None:
    scores = [
        rank(one, "red").score
        for one in (weigh("red"), weigh(tags=("red",)), weigh(description="red"), weigh())
    ]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 4
    assert scores[-1] == 0


def test_a_repeated_word_gains_little_and_a_stuffed_text_loses() -> None:
    once, twice, stuffed = (
        rank(weigh(description=text), "red").score
        for text in ("a red door at the sea", "a red door, a red sea", "red " * 700)
    )
    assert once < twice < 2 * once
    assert stuffed < once
    assert rank(weigh("red red red red"), "red").score < rank(weigh("red door"), "red").score


def test_terms_add_up_and_the_share_of_found_terms_counts() -> None:
    weights = weigh("red door")
    both, one = rank(weights, "red", "door"), rank(weights, "red", "sea")
    assert both.has_all
    assert not one.has_all
    assert both.score == 4 * one.score
    rare = rank_words(weights, [Term(word="red", stems=("red",))], [3.0])
    assert rare.score == 3 * rank(weights, "red").score


def test_a_completion_counts_less_than_the_word() -> None:
    term = Term(word="door", stems=("door", "doorbel"))
    exact, completed = (rank_words(weigh(name), [term], [1.0]) for name in ("door", "doorbell"))
    assert exact.has_all
    assert completed.has_all
    assert completed.score == COMPLETION_WEIGHT * exact.score


def test_a_rarer_word_weighs_more_up_to_the_counted_maximum() -> None:
    weights = [measure_rarity(count, 33) for count in (1, 5, 20, 33)]
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] >= RARITY_MIN
    assert measure_rarity(10_001, 1_000_000) == measure_rarity(10_001, 20_000) >= RARITY_MIN
    assert measure_rarity(0, 0) > 0


def test_candidates_with_all_terms_come_first_and_of_equals_the_newest() -> None:
    ranks = [
        (1, Rank(has_all=False, score=9.0)),
        (2, Rank(has_all=True, score=1.0)),
        (3, Rank(has_all=True, score=1.0)),
        (4, Rank(has_all=True, score=2.0)),
    ]
    assert order_candidates(ranks) == [4, 3, 2, 1]
    assert order_candidates(ranks, last={4, 2}) == [3, 1, 4, 2]
    assert order_candidates(ranks, [(4, 0.9), (5, 0.5)], last={4})[-1] == 4


MISSPELLINGS = [
    ("wether", "weather", True),
    ("weathher", "weather", True),
    ("waether", "weather", True),
    ("weatger", "weather", True),
    ("plane", "place", False),  # two words
    ("planes", "places", False),
    ("paln", "plan", True),
    ("cook", "book", False),
    ("fake", "make", False),
    ("foecast", "forecast", True),
    ("weathre", "weather", True),
    ("eather", "weather", False),
    ("weathe", "weather", True),
    ("xweather", "weather", False),
    ("weather", "weather", False),
    ("wethr", "weather", False),
    ("waehter", "weather", False),
    ("", "ab", False),
]


def test_one_letter_or_one_exchange_is_a_misspelling_and_shares_a_spelling_with_the_word() -> None:
    for word, of, is_one in MISSPELLINGS:
        assert is_misspelling(word, of) is is_one, word
        assert is_misspelling(of, word) is is_one, word
        if is_one:
            assert set(list_spellings(word)) & set(list_spellings(of)), word


def test_only_words_of_letters_and_of_some_length_are_misspelled() -> None:
    words = ("abcd", "abcde", "abc1d", "a" * 24, "a" * 25, "погода")
    assert [word for word in words if can_be_misspelled(word)] == ["abcde", "a" * 24, "погода"]
