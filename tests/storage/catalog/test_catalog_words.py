"""The words of listings in SQL, over SQLite in memory. `tests/contracts/test_catalog_search.py` has what both databases find."""

from collections.abc import Sequence

import pytest
from sqlalchemy import Connection, insert, select

from tests.kit.listings import PROVIDER, sample_listing
from tests.kit.stores import InlineDatabase
from tollway.registry.listing import Listing
from tollway.registry.search_rank import Term
from tollway.storage.catalog.catalog_tables import spelling_table
from tollway.storage.catalog.catalog_words import (
    COMPLETIONS_MAX,
    CORRECTED_WORDS_MAX,
    CORRECTIONS_TRIED_MAX,
    LISTING_SPELLED_MAX,
    Understood,
    erase_spellings,
    list_spelled_words,
    spelling_rows,
    understand,
    write_spellings,
)


def listing(name: str, description: str = "") -> Listing:
    return sample_listing(provider=PROVIDER, name=name, description=description)


@pytest.fixture
def database() -> InlineDatabase:
    return InlineDatabase()


async def spell(database: InlineDatabase, *words: str) -> None:
    def work(connection: Connection) -> None:
        rows = [{"spelling": spelling, "word": word} for spelling, word in spelling_rows(words)]
        connection.execute(insert(spelling_table), rows)

    await database.write(work)


async def read_words(database: InlineDatabase) -> Sequence[tuple[str, str]]:
    query = select(spelling_table.c.spelling, spelling_table.c.word).order_by(*spelling_table.c)
    return await database.read(lambda connection: [(row[0], row[1]) for row in connection.execute(query)])


async def ask(database: InlineDatabase, words: str, counts: dict[str, int]) -> tuple[Understood, list[str]]:
    """What is understood, and the words whose listings were counted. `counts`: of the listings with a word."""
    counted: list[str] = []

    def count(terms: Sequence[Term]) -> Sequence[int]:
        counted.extend(term.word for term in terms)
        return [counts.get(term.word, 0) for term in terms]

    understood = await database.read(lambda connection: understand(connection, words, count))
    return understood, counted


async def test_a_word_is_written_once_with_its_spellings(database: InlineDatabase) -> None:
    for _ in range(2):
        await database.write(lambda connection: write_spellings(connection, listing("tides a1b2 abc")))
    spelled = ("tdes", "tids", "ties", "tide", "tides")
    completed = ("a1b2", "a1b2")
    assert await read_words(database) == sorted([completed, *((one, "tides") for one in spelled)])


def test_a_listing_adds_a_bounded_number_of_words() -> None:
    texts = " ".join(f"word{number}" for number in range(1_000))
    words = list_spelled_words(listing("the weather report", texts))
    assert len(words) == LISTING_SPELLED_MAX
    assert words[:2] == ("weather", "report")
    assert list_spelled_words(listing("abc " + "x" * 60)) == ()


async def test_the_last_word_is_completed_by_the_shortest_words_of_other_stems(
    database: InlineDatabase,
) -> None:
    await spell(database, "weather", "weathers", "weatherman", "weathervane", "west")
    (last,) = (await ask(database, "weat", {}))[0].terms
    assert last.stems == ("weat", "weather", "weatherman", "weathervan")
    first, _ = (await ask(database, "weat zzz", {}))[0].terms
    assert first.stems == ("weat",)
    await spell(database, *(f"prefix{chr(97 + number)}" for number in range(20)))
    (many,) = (await ask(database, "prefix", {}))[0].terms
    assert len(many.stems) == COMPLETIONS_MAX + 1
    (short,) = (await ask(database, "we", {}))[0].terms
    assert short.stems == ("we",)


async def test_what_a_query_costs_is_bounded_by_its_words(database: InlineDatabase) -> None:
    await spell(database, *(f"weather{letter}" for letter in "abcdefghij"))
    understood, counted = await ask(database, "weather", {})
    assert not understood.corrections
    assert len(counted) == 1 + CORRECTIONS_TRIED_MAX
    words = [f"weather{letter}x zzz" for letter in "abcdefghij"]
    understood, _ = await ask(database, " ".join(words), {f"weather{letter}": 1 for letter in "abcdefghij"})
    assert len(understood.corrections) == CORRECTED_WORDS_MAX


async def test_a_word_that_a_listing_has_is_never_corrected(database: InlineDatabase) -> None:
    await spell(database, "weather", "wether")
    understood, counted = await ask(database, "wether now", {"wether": 1, "weather": 9})
    assert (understood.corrections, counted) == ((), ["wether", "now"])
    assert understood.counts == (1, 0)


async def test_the_words_of_a_stem_are_erased_with_their_spellings(database: InlineDatabase) -> None:
    await spell(database, "cities", "citys", "citizen", "tides")
    await database.write(lambda connection: erase_spellings(connection, ["citi", "tag:tides", "unknown"]))
    assert {word for _, word in await read_words(database)} == {"citizen", "tides"}
