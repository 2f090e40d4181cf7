"""The words of a text, and their match."""

from tollway.registry.search_tokens import (
    QUERY_WORDS_MAX,
    WORD_LENGTH_MAX,
    contains_all,
    fold,
    query_words,
    rank_fields,
    split_words,
)

WORDS: list[tuple[str, tuple[str, ...]]] = [
    ("", ()),
    ("  \t\n", ()),
    ("Weather Pro", ("weather", "pro")),
    ("e-mail a_b v2.5", ("e", "mail", "a", "b", "v2", "5")),
    ("Ｃafé CAFÉ cafe\u0301", ("cafe", "cafe", "cafe")),
    ("Straße", ("strasse",)),
    ("İstanbul", ("istanbul",)),
    ("天気API", ("天", "気", "api")),
    ("हिन्दी", ("हिनदी",)),
    ('"a" OR (b) NOT c* ^d', ("a", "or", "b", "not", "c", "d")),
    ("\x00a\x00", ("a",)),
    ("👍🏽", ()),
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
    assert query_words("b a b") == ("b", "a")
    assert len(query_words(" ".join(str(number) for number in range(100)))) == QUERY_WORDS_MAX


def test_split_words_hold_no_character_that_a_database_reads() -> None:
    everything = "".join(chr(code) for code in range(0x2FF))
    for word in split_words(everything):
        assert not set(word) & set("\"'\\:*&|!()<>- \x00")


def test_each_word_must_be_in_one_of_the_texts() -> None:
    assert contains_all(["red door", "blue"], ("blue", "red"))
    assert not contains_all(["red door"], ("red", "blue"))
    assert not contains_all(["red door"], ("re",))
    assert not contains_all(["red door"], ())


def test_folding_removes_case_width_and_accents() -> None:
    assert {fold(text) for text in ("Éclair", "ECLAIR", "ｅclair", "e\u0301clair")} == {"eclair"}


def test_a_name_ranks_before_tags_and_tags_before_a_description() -> None:
    def rank(name: str = "", description: str = "", tags: str = "", *, words: str = "red") -> float:
        return rank_fields([text.split() for text in (name, description, tags)], words.split())

    assert rank("red") > rank(tags="red") > rank(description="red") > rank("blue", "blue", "blue") == 0
    assert rank("red", "red") > rank("red")
    # Saying it again helps a little, and less than twice.
    assert rank("red red") > rank("red")
    assert rank("red " * 1_000) < 2 * rank("red")
    assert rank("red", words="red blue") == rank("red")
    assert rank("red blue", words="red blue") == 2 * rank("red")
