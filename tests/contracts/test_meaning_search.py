"""Search by meaning, on SQLite and on PostgreSQL: what it finds beside the words, and what it never shows."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.kit.catalogs import numbered_listing, open_catalog
from tests.kit.relevance import LIST_LENGTH, Relevance, measure, read_listings, read_questions
from tollway.ids import Address, ChainId
from tollway.registry.catalog import ListingPage, ListingQuery
from tollway.registry.listing import Listing
from tollway.registry.meaning import WeightsUnusable
from tollway.registry.word_vectors import WordVectors, load_word_vectors
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.catalog.listing_vectors import read_due
from tollway.storage.catalog.meaning_search import MeaningSearch
from tollway.storage.catalog.word_search import RANKED_MAX
from tollway.storage.engine.database import Database

ALICE, BOB = Address(b"\xaa" * 20), Address(b"\xbb" * 20)
BASE, OPTIMISM = ChainId(8453), ChainId(10)

AIRCRAFT = "Live positions of aircraft in an area."
QUESTION = "airplanes overhead"
"""It has no word of the listing."""


@dataclass
class Gateway:
    """One gateway with the extra, over the database of the test."""

    catalog: CatalogStore
    meaning: MeaningSearch

    async def find(self, words: str = QUESTION, **more: Any) -> list[str]:
        return [match.listing.name for match in (await self.search(words, **more)).found]

    async def search(self, words: str = QUESTION, **more: Any) -> ListingPage:
        return await self.catalog.search(ListingQuery(words=words, **{"sort": "relevance", **more}))


def make_gateway(database: Database, **options: Any) -> Gateway:
    meaning = MeaningSearch(database, **options)
    return Gateway(catalog=open_catalog(database, meaning=meaning), meaning=meaning)


@pytest.fixture
async def gateway(database: Database) -> AsyncIterator[Gateway]:
    it = make_gateway(database)
    yield it
    it.meaning.close()


@pytest.fixture
async def neighbour(database: Database) -> AsyncIterator[Gateway]:
    """Another gateway over the same database."""
    it = make_gateway(database)
    yield it
    it.meaning.close()


@pytest.fixture
def without_extra(database: Database) -> CatalogStore:
    """The catalog of a gateway without the extra."""
    return open_catalog(database)


def make_listing(**changes: Any) -> Listing:
    return numbered_listing(networks=(BASE,), **changes)


def aircraft_listing(**changes: Any) -> Listing:
    return make_listing(
        **{"name": "Aircraft positions", "description": AIRCRAFT, "tags": ("aviation",), **changes}
    )


async def publish(gateway: Gateway, *listings: Listing) -> None:
    for listing in listings:
        await gateway.catalog.publish(listing)
    await gateway.meaning.refresh()


OTHERS = (
    make_listing(name="Exchange rates", description="Rates of 170 currencies."),
    make_listing(name="Chess engine", description="Best move of a position."),
    make_listing(name="Recipes", description="Dishes by ingredients."),
)


# ---- The relevance set.


async def judge(catalog: CatalogStore) -> Relevance:
    async def search(text: str) -> Sequence[str]:
        page = await catalog.search(ListingQuery(words=text, sort="relevance", limit=LIST_LENGTH))
        return [match.listing.id for match in page.found]

    return await measure(search, read_questions())


async def test_the_relevance_set_is_found_by_words_and_better_with_meaning(
    gateway: Gateway, without_extra: CatalogStore
) -> None:
    """The least figures that are kept. docs/measuring.md has those of `make bench`, which are equal on both databases."""
    await publish(gateway, *read_listings())
    words, meaning = await judge(without_extra), await judge(gateway.catalog)
    assert words.hit_5 >= 0.75, words.missed
    assert meaning.hit_5 >= 0.92, meaning.missed
    assert meaning.hit_1 > words.hit_1
    assert meaning.ndcg_10 > words.ndcg_10
    # What nothing answers stays unanswered: no more often found than by words alone.
    assert meaning.empty >= words.empty - 0.06
    proposed = [await gateway.meaning.propose(one.text) for one in read_questions() if not one.right]
    assert sum(not found for found in proposed) >= 0.7 * len(proposed)


def test_the_relevance_set_is_large_enough_and_each_of_its_keys_is_a_listing() -> None:
    listings, questions = read_listings(), read_questions()
    keys = [listing.id for listing in listings]
    assert (len(listings) >= 300, len(questions) >= 200) == (True, True)
    assert len(set(keys)) == len(keys)
    assert len({question.text for question in questions}) == len(questions)
    assert {key for question in questions for key in question.right} <= set(keys)
    assert sum(not question.right for question in questions) >= 10


# ---- What is found.


async def test_a_listing_without_any_word_of_the_query_is_found_by_meaning(
    gateway: Gateway, without_extra: CatalogStore
) -> None:
    await publish(gateway, aircraft_listing(), *OTHERS)
    page = await gateway.search()
    assert [match.listing.name for match in page.found] == ["Aircraft positions"]
    assert (page.total, page.total_all) == (1, 0)
    assert page.found[0].match == ()
    assert (await without_extra.search(ListingQuery(words=QUESTION))).total == 0


@pytest.mark.parametrize("words", ["babysitter for tonight", "asdfgh qwertz", "", "!!!", "\u200f"])
async def test_nothing_is_found_where_nothing_is_near(gateway: Gateway, words: str) -> None:
    await publish(gateway, aircraft_listing(), *OTHERS)
    page = await gateway.search(words)
    assert (page.found, page.total) == ((), 0)


async def test_a_listing_with_many_operations_is_found_by_one_of_them(gateway: Gateway) -> None:
    others = (
        "Current price of a coin",
        "Open an inbox",
        "Best chess move",
        "Merge PDF files",
        "Speak a text",
    )
    paths = {f"/{number}": {"get": {"summary": text}} for number, text in enumerate([*others, AIRCRAFT])}
    document = {"openapi": "3.1.0", "paths": paths}
    await publish(gateway, make_listing(name="Everything", openapi=document), *OTHERS)
    assert await gateway.find() == ["Everything"]


async def test_words_and_meaning_find_a_listing_once_and_count_it_once(gateway: Gateway) -> None:
    await publish(gateway, aircraft_listing(), aircraft_listing(name="Planes"), *OTHERS)
    page = await gateway.search("planes overhead")
    assert [match.listing.name for match in page.found] == ["Planes", "Aircraft positions"]
    assert (page.total, page.total_all) == (2, 0)


async def test_pages_have_each_listing_once(gateway: Gateway) -> None:
    names = [f"Planes of country {number}" for number in range(12)]
    await publish(gateway, *(aircraft_listing(name=name) for name in names), *OTHERS)
    pages = [await gateway.search("planes exchange", page=number, limit=5) for number in (1, 2, 3, 4)]
    found = [match.listing.name for page in pages for match in page.found]
    assert sorted(found) == sorted([*names, "Exchange rates"])
    assert {page.total for page in pages} == {13}


async def test_pages_behind_the_ranked_listings_have_each_listing_once(gateway: Gateway) -> None:
    """More listings have the word than are ranked. Some of them, and some without the word, are near to the query."""
    far = "Rates of 170 currencies by day and hour, also for a club of chess."
    with_word = [make_listing(name=f"Money {n}", description=far) for n in range(RANKED_MAX + 30)]
    both = [aircraft_listing(name=f"Aircraft chess {number}") for number in range(10)]
    near = [aircraft_listing(name=f"Aircraft {number}") for number in range(10)]
    await publish(gateway, *both, *with_word[:300], *near, *with_word[300:])
    first = await gateway.search("airplanes overhead, chess", limit=100)
    found = [match.listing.id for match in first.found]
    for page in range(2, 8):
        matches = (await gateway.search("airplanes overhead, chess", page=page, limit=100)).found
        found += [match.listing.id for match in matches]
    assert len(found) == first.total == len(set(found))
    assert set(found) == {listing.id for listing in (*both, *with_word, *near)}


async def test_other_orders_than_relevance_find_by_words_alone(gateway: Gateway) -> None:
    await publish(gateway, aircraft_listing(), *OTHERS)
    assert await gateway.find(sort="newest") == []
    assert await gateway.find(sort="name") == []
    assert await gateway.find(sort="recommended") == ["Aircraft positions"]


async def test_the_counts_of_a_search_have_what_meaning_finds_once(gateway: Gateway) -> None:
    await publish(gateway, aircraft_listing(), aircraft_listing(name="Planes", tags=("sky",)), *OTHERS)
    facets = await gateway.catalog.count_facets("planes overhead")
    assert (dict(facets.tags), facets.total) == ({"aviation": 1, "sky": 1}, 2)


# ---- Filters.


# a filter that the listing passes -> one that it does not pass
FILTERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tag": "aviation"}, {"tag": "weather"}),
    ({"provider": ALICE}, {"provider": BOB}),
    ({"network": BASE}, {"network": OPTIMISM}),
    ({"currency": "USDC"}, {"currency": "EURC"}),
    ({"currency": "USDC", "price_nano_max": 10**9}, {"currency": "USDC", "price_nano_max": 1}),
    ({"verified": False}, {"verified": True}),
    ({}, {"min_success_rate": 0.5}),
    ({}, {"network_currencies": ()}),
]


async def test_a_filter_holds_for_what_meaning_proposes(gateway: Gateway) -> None:
    await publish(gateway, aircraft_listing(), *OTHERS)
    for passes, refuses in FILTERS:
        page = await gateway.search(**passes)
        assert ([match.listing.name for match in page.found], page.total) == (["Aircraft positions"], 1), (
            passes
        )
        page = await gateway.search(**refuses)
        assert (page.found, page.total) == ((), 0), refuses


# ---- Writes, and other gateways.


async def test_a_gateway_finds_what_another_one_published_after_its_next_refresh(
    gateway: Gateway, neighbour: Gateway
) -> None:
    assert await neighbour.find() == []
    await publish(gateway, aircraft_listing(), *OTHERS)
    assert await neighbour.find() == []
    await neighbour.meaning.refresh()
    assert await neighbour.find() == ["Aircraft positions"]


async def test_the_first_search_of_a_gateway_finds_what_another_one_embedded(
    gateway: Gateway, neighbour: Gateway
) -> None:
    await publish(gateway, aircraft_listing(), *OTHERS)
    found = await asyncio.gather(neighbour.find(), neighbour.find())
    assert found == [["Aircraft positions"]] * 2


async def test_the_first_search_reads_a_bounded_part_and_the_next_refresh_the_rest(
    gateway: Gateway, database: Database
) -> None:
    await publish(gateway, aircraft_listing())
    other = make_gateway(database, first_reads_max=0)
    try:
        assert await other.find() == []
        await other.meaning.refresh()
        assert await other.find() == ["Aircraft positions"]
    finally:
        other.meaning.close()


async def test_a_refresh_before_the_first_search_loads_nothing_where_no_listing_is_due(
    gateway: Gateway, database: Database
) -> None:
    await publish(gateway, aircraft_listing())
    loads: list[int] = []

    def load() -> WordVectors:
        loads.append(1)
        return load_word_vectors()

    other = make_gateway(database, load_vectors=load)
    try:
        await other.meaning.refresh()
        assert loads == []
        assert await other.find() == ["Aircraft positions"]
        await other.meaning.refresh()
        assert loads == [1]
    finally:
        other.meaning.close()


async def test_a_gateway_whose_weights_are_unusable_searches_by_words_and_reports_it(
    gateway: Gateway, database: Database
) -> None:
    def load() -> WordVectors:
        raise WeightsUnusable("weights.safetensors cannot be read")

    await publish(gateway, aircraft_listing())
    other = make_gateway(database, load_vectors=load)
    try:
        await other.meaning.refresh()
        assert (await other.find(), await other.find("aircraft")) == ([], ["Aircraft positions"])
        with pytest.raises(WeightsUnusable, match="cannot be read"):
            await other.meaning.refresh()
    finally:
        other.meaning.close()


async def test_what_a_gateway_without_the_extra_wrote_is_embedded_by_one_with_it(
    gateway: Gateway, without_extra: CatalogStore
) -> None:
    for listing in (aircraft_listing(), *OTHERS):
        await without_extra.publish(listing)
    await gateway.meaning.refresh()
    assert await gateway.find() == ["Aircraft positions"]


async def test_many_new_listings_are_embedded_in_one_run(gateway: Gateway, database: Database) -> None:
    names = [f"Planes {number}" for number in range(45)]
    await publish(gateway, *(aircraft_listing(name=name) for name in names))
    assert await database.read(read_due) == []
    assert sorted(await gateway.find(limit=100)) == sorted(names)


@pytest.mark.parametrize("hidden", [{"retired_ms": 1}, {"suspended_ms": 1}], ids=["retired", "suspended"])
async def test_a_listing_that_is_not_visible_is_never_found(
    gateway: Gateway, neighbour: Gateway, hidden: dict[str, Any]
) -> None:
    listing = aircraft_listing()
    await publish(gateway, listing, *OTHERS)
    assert (await gateway.find(), await neighbour.find()) == ([listing.name], [listing.name])
    await gateway.catalog.revise(replace(listing, **hidden), expected_revision=1)
    # At once, before any refresh: the database decides.
    assert (await gateway.find(), await neighbour.find()) == ([], [])
    await gateway.meaning.refresh()
    assert [one.similarity for one in await gateway.meaning.propose(QUESTION)] == []


async def test_a_listing_that_is_shown_again_is_found_again(gateway: Gateway) -> None:
    listing = aircraft_listing()
    await publish(gateway, listing)
    assert await gateway.find() == ["Aircraft positions"]
    await gateway.catalog.revise(replace(listing, suspended_ms=1), expected_revision=1)
    await gateway.meaning.refresh()
    await gateway.catalog.revise(listing, expected_revision=2)
    await gateway.meaning.refresh()
    assert await gateway.find() == ["Aircraft positions"]


async def test_an_edited_listing_is_found_by_its_new_text(gateway: Gateway, neighbour: Gateway) -> None:
    listing = aircraft_listing()
    await publish(gateway, listing, *OTHERS)
    assert await neighbour.find() == ["Aircraft positions"]
    edited = replace(listing, name="Poems", description="Verses by author.", tags=())
    await gateway.catalog.revise(edited, expected_revision=1)
    await gateway.meaning.refresh()
    await neighbour.meaning.refresh()
    assert (await gateway.find(), await neighbour.find()) == ([], [])
    assert await neighbour.find("poetry of a famous writer") == ["Poems"]


async def test_after_a_restore_all_vectors_are_read_again(gateway: Gateway) -> None:
    await publish(gateway, aircraft_listing())
    assert await gateway.find() == ["Aircraft positions"]
    gateway.catalog.clear_cache()
    assert await gateway.find() == []
    await gateway.meaning.refresh()
    assert await gateway.find() == ["Aircraft positions"]
