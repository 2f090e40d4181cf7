"""Search by words, and the order without words: one result and one order on SQLite and on PostgreSQL."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from tests.kit.catalogs import CatalogHarness, numbered_listing, publish_all
from tollway.ids import Address, ChainId
from tollway.money import Price
from tollway.registry.catalog import Correction, ListingQuery, NetworkCurrency, Sort
from tollway.registry.listing import Listing, Operation
from tollway.registry.quality import FAILED, Bucket, Quality, Reputation
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.catalog.catalog_tables import spelling_table
from tollway.storage.catalog.reputation_store import QualityStore
from tollway.storage.engine.database import Database

PROVIDER, OTHER = Address(b"\xaa" * 20), Address(b"\xbb" * 20)


def make_listing(name: str = "", description: str = "", **changes: Any) -> Listing:
    """Without a domain, whose words would be searched too."""
    return numbered_listing(
        name=name, description=description, **{"endpoint": "https://192.0.2.1", **changes}
    )


@pytest.fixture
def setup(database: Database) -> CatalogHarness:
    return CatalogHarness(database)


@pytest.fixture
def catalog(setup: CatalogHarness) -> CatalogStore:
    return setup.catalog


async def find_names(catalog: CatalogStore, words: str | None, **query: Any) -> list[str]:
    page = await catalog.search(ListingQuery(words=words, **query))
    return [found.listing.name for found in page.found]


# ---- Which listings a query finds.

TEXTS = [
    make_listing("Weather Pro", "Hourly forecasts, city by city.", tags=("data", "e-mail")),
    make_listing("Café Ｆinder", "The STRASSE and the Straße; naïve co-op v2.5 a_b"),
    make_listing("天気予報 API", "東京の天気", tags=("日本",)),
    make_listing("Погода", "weather in Москва; don't panic: O'Brien's 100%"),
    make_listing("Exchange rates", "Convert currencies.", endpoint="https://api.moneyhub.example.com/v1"),
    make_listing("Geocoding", "Addresses to coordinates"),
    make_listing("שלום مرحبا", "mixed עברית and العربية texts"),
    make_listing(
        "Ledger",
        openapi={
            "paths": {"/v1/blocks/{hash}": {"get": {"operationId": "getTxReceipt", "summary": "One receipt"}}}
        },
        operations=(Operation(method="GET", path="/tokenHolders", price=Price.parse("1")),),
    ),
]

# the words -> the listings that are found, best first, and how many of them have all words
WORDS: list[tuple[str, list[int], int]] = [
    ("weather", [0, 3], 2),
    ("WEATHER", [0, 3], 2),
    ("weather city", [0, 3], 1),
    ("city   hourly,forecasts!", [0], 1),
    ("weather missing", [0, 3], 0),
    ("weath", [0, 3], 2),
    ("weath panic", [3], 0),  # only the last word is a beginning
    ("weather*", [0, 3], 2),
    ('"weather pro"', [0, 3], 1),
    ("weather OR cafe", [1, 0, 3], 0),
    ("weather AND pro", [0, 3], 1),
    ("NOT weather", [0, 3], 2),
    ("name:weather", [0, 3], 0),
    ("-weather", [0, 3], 2),
    ("cafe", [1], 1),
    ("CAFÉ finder", [1], 1),
    ("strasse", [1], 1),
    ("naive co op", [1], 1),
    ("co-op", [1], 1),
    ("2.5", [1], 0),  # the text has v2 and 5
    ("v2", [1], 1),
    ("a b", [1], 1),
    ("天気", [2], 1),
    ("日本 api", [2], 1),
    ("погода москва", [3], 1),
    ("ПОГОДА", [3], 1),
    ("o'brien's", [3], 1),
    ("100", [3], 1),
    ("data", [0], 1),
    ("exchange rate", [4], 1),
    ("exchange rates", [4], 1),
    ("currency converter", [4], 1),
    ("converting", [4], 1),
    ("geocode", [5], 1),
    ("geocodi", [5], 1),
    ("address coordinate", [5], 1),
    ("moneyhub", [4], 1),  # the domain
    ("com", [], 0),
    ("receipts", [7], 1),
    ("tx receipt", [7], 1),  # of getTxReceipt
    ("block", [7], 1),
    ("token holder", [7], 1),
    ("שלום", [6], 1),
    ("مرحبا weather", [6, 0, 3], 0),
    ("\u202eشلوم weather", [0, 3], 0),
    ("what is the weather", [0, 3], 2),
    ("api", [2], 1),  # only stop words
    ("is the", [1], 0),
    ("what is an api", [2], 0),
    ("the", [1], 1),
    ('AND OR NOT * " NEAR(', [], 0),  # "near" is a word
    ("", [], 0),
    ("   ", [], 0),
    ("*", [], 0),
    ('"', [], 0),
    ("''", [], 0),
    ("( & | ! : <-> )", [], 0),
    ("\x00", [], 0),
    ("a" * 5_000, [], 0),
    ("weather " * 50, [0, 3], 2),
    ("weather " * 1_300, [0, 3], 2),  # 10 kB
    (" ".join(f"w{number}" for number in range(2_000)), [], 0),
    ("\\ weather \\", [0, 3], 2),
    ("%", [], 0),
    ("😀", [], 0),
]


async def test_a_search_finds_the_same_in_one_order_on_both_databases(catalog: CatalogStore) -> None:
    await publish_all(catalog, TEXTS)
    by_id = {listing.id: number for number, listing in enumerate(TEXTS)}
    for words, numbers, with_all in WORDS:
        page = await catalog.search(ListingQuery(words=words))
        assert [by_id[found.listing.id] for found in page.found] == numbers, words
        assert (page.total, page.total_all) == (len(numbers), with_all), words


# the words -> how the page says that it understood them
UNDERSTOOD: list[tuple[str, tuple[str, ...], tuple[Correction, ...]]] = [
    ("What is the WEATHER in Berlin?", ("weather", "berlin"), ()),
    ("wether", ("weather",), (Correction(word="wether", replacement="weather"),)),
    ("waether pro", ("weather", "pro"), (Correction(word="waether", replacement="weather"),)),
    ("exchnge", ("exchange",), (Correction(word="exchnge", replacement="exchange"),)),
    ("exxchange", ("exchange",), (Correction(word="exxchange", replacement="exchange"),)),
    ("пгода", ("погода",), (Correction(word="пгода", replacement="погода"),)),
    ("exchenge", ("exchange",), (Correction(word="exchenge", replacement="exchange"),)),
    ("paris", ("paris",), ()),  # no misspelling of "panic"
    ("wethr", ("wethr",), ()),  # two letters away
    ("dat", ("dat",), ()),  # the beginning of a word
    ("cit7", ("cit7",), ()),
]


async def test_a_misspelled_word_is_corrected_and_the_page_says_so(catalog: CatalogStore) -> None:
    await publish_all(catalog, TEXTS)
    for words, understood, corrections in UNDERSTOOD:
        page = await catalog.search(ListingQuery(words=words))
        assert (page.words, page.corrections) == (understood, corrections), words
        assert bool(page.total) == (words not in ("wethr", "cit7", "paris")), words


async def test_a_word_is_corrected_to_the_word_of_most_visible_listings(catalog: CatalogStore) -> None:
    gone = make_listing("tester")
    await publish_all(
        catalog, [make_listing("taster"), make_listing("tasted"), make_listing("taster two"), gone]
    )
    await catalog.revise(replace(gone, retired_ms=1), expected_revision=1)
    for word, replacement in (("taste", None), ("tastr", "taster"), ("testr", None)):
        page = await catalog.search(ListingQuery(words=f"{word} zzz"))
        found = page.corrections[0].replacement if page.corrections else None
        assert found == replacement, word


async def test_a_match_names_the_fields_that_have_some_word(catalog: CatalogStore) -> None:
    document = {"paths": {"/doors": {"get": {"summary": "Opens"}}}}
    listings = [
        make_listing("red", "a red door", tags=("Red", "door")),
        make_listing("blue", "door", openapi=document),
        make_listing("green", endpoint="https://www.doors.example"),
    ]
    await publish_all(catalog, listings)
    page = await catalog.search(ListingQuery(words="red door"))
    assert [found.match for found in page.found] == [
        ("name", "description", "tags"),
        ("description", "operations"),
        ("endpoint",),
    ]
    page = await catalog.search(ListingQuery(words="open"))
    assert [found.match for found in page.found] == [("operations",)]


async def test_publications_and_edits_of_the_same_words_at_once_all_succeed(catalog: CatalogStore) -> None:
    words = [f"{letter * 5}word" for letter in "abcdefgh"]
    old = [make_listing("old") for _ in range(6)]
    await publish_all(catalog, old)
    async with asyncio.TaskGroup() as group:
        for number, listing in enumerate(old):
            shuffled = " ".join(words[number:] + words[:number])
            edit = replace(listing, name=shuffled[:60], description=shuffled)
            group.create_task(catalog.revise(edit, expected_revision=1))
            group.create_task(catalog.publish(make_listing(shuffled[::-1][:60], shuffled)))
    assert len(await find_names(catalog, words[3])) == 12


# ---- Their order.


async def test_listings_with_all_words_come_first_then_those_with_rarer_words(catalog: CatalogStore) -> None:
    listings = [make_listing(f"price {number}") for number in range(8)]
    ethereum, both = make_listing("Ethereum nodes"), make_listing("Chains", "ethereum and its price")
    await publish_all(catalog, [both, ethereum, *listings])
    page = await catalog.search(ListingQuery(words="price of ethereum", limit=2))
    assert [found.listing.name for found in page.found] == ["Chains", "Ethereum nodes"]
    assert (page.total, page.total_all) == (10, 1)
    names = await find_names(catalog, "node price of ethereum", limit=3)
    assert names[:2] == ["Ethereum nodes", "Chains"]


RANKS: list[tuple[str, list[tuple[str, str, tuple[str, ...]]], str]] = [
    (
        "a name, then tags, then a description",
        [("x", "tide", ()), ("x2", "", ("tide",)), ("Tide", "", ())],
        "210",
    ),
    ("a short name before a long one", [("Tide and moon and stars", "", ()), ("Tide", "", ())], "10"),
    ("a word before its beginning", [("Tideland", "", ()), ("x", "tide", ())], "10"),
    ("a word of a long text less", [("x", "tide " + "lorem ipsum " * 100, ()), ("x2", "tide", ())], "10"),
    ("a stuffed description last", [("x", "tide " * 700, ()), ("x2", "High tide at your beach", ())], "10"),
    ("a stuffed name last", [("tide " * 20, "", ()), ("Tide tables", "", ())], "10"),
]


async def test_ranks_by_field_and_length(catalog: CatalogStore) -> None:
    for number, (about, texts, order) in enumerate(RANKS):
        word = "tide" + chr(ord("a") + number) * 2
        listings = [
            make_listing(
                name.replace("ide", word[1:]),
                text.replace("ide", word[1:]),
                tags=tuple(tag.replace("ide", word[1:]) for tag in tags),
            )
            for name, text, tags in texts
        ]
        await publish_all(catalog, listings)
        page = await catalog.search(ListingQuery(words=word))
        ids = [listing.id for listing in listings]
        assert "".join(str(ids.index(found.listing.id)) for found in page.found) == order, about


async def test_explicit_orders_list_those_with_all_words_or_else_those_with_some(
    catalog: CatalogStore,
) -> None:
    await publish_all(catalog, [make_listing("red door"), make_listing("door"), make_listing("red")])
    sorts: list[Sort] = ["newest", "name"]
    for sort in sorts:
        assert await find_names(catalog, "red door", sort=sort) == ["red door"]
    assert await find_names(catalog, "red zzz", sort="newest") == ["red", "red door"]


async def test_pages_of_relevance_have_no_gap_beyond_the_ranked_candidates(
    catalog: CatalogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollway.storage.catalog.word_search.RANKED_MAX", 6)
    all_words = [make_listing(f"red door {number}") for number in range(4)]
    some = [make_listing(f"{'red' if number % 2 else 'door'} {number}") for number in range(7)]
    await publish_all(catalog, [*all_words, *some])
    seen = []
    for page in range(1, 5):
        found = await catalog.search(ListingQuery(words="red door", limit=3, page=page))
        assert (found.total, found.total_all) == (11, 4)
        seen += [one.listing.id for one in found.found]
    assert sorted(seen) == sorted(listing.id for listing in (*all_words, *some))
    assert set(seen[:4]) == {listing.id for listing in all_words}
    skipped = await catalog.search(ListingQuery(words="red door", skip=5, limit=4))
    assert [one.listing.id for one in skipped.found] == seen[5:9]


async def test_filters_hold_for_listings_with_some_words(catalog: CatalogStore) -> None:
    listings = [
        make_listing("red", tags=("a",)),
        make_listing("door", tags=("b",)),
        make_listing("red door", tags=("b",)),
    ]
    await publish_all(catalog, listings)
    page = await catalog.search(ListingQuery(words="red door", tag="b"))
    assert [found.listing.name for found in page.found] == ["red door", "door"]
    assert (page.total, page.total_all) == (2, 1)


async def test_an_edit_changes_the_words_that_find_a_listing(catalog: CatalogStore) -> None:
    listing = make_listing("Zeppelin rides", tags=("sky",))
    await catalog.publish(listing)
    edited = replace(listing, name="Balloon rides", tags=("air",))
    await catalog.revise(edited, expected_revision=1)
    assert await find_names(catalog, "zeppelin") == []
    for words, tag, names in (
        ("balloon", "air", ["Balloon rides"]),
        ("rides", "air", ["Balloon rides"]),
        ("rides", "sky", []),
    ):
        assert await find_names(catalog, words, tag=tag) == names
    await catalog.revise(replace(edited, retired_ms=1), expected_revision=2)
    assert await find_names(catalog, "rides") == []


async def test_a_word_is_a_correction_until_its_last_listing_goes(setup: CatalogHarness) -> None:
    catalog = setup.catalog
    one, other = make_listing("Zeppelin rides"), make_listing("Zeppelins")
    await publish_all(catalog, [one, other])
    await catalog.revise(replace(one, retired_ms=1), expected_revision=1)
    assert (await catalog.search(ListingQuery(words="zepelin"))).corrections
    await catalog.revise(replace(other, name="Balloons"), expected_revision=1)
    assert not (await catalog.search(ListingQuery(words="zepelin"))).corrections
    words = await setup.database.read(
        lambda connection: set(connection.scalars(select(spelling_table.c.word)))
    )
    assert "balloons" in words
    assert not words & {"zeppelin", "zeppelins", "rides"}


async def test_publications_at_the_same_time_keep_each_others_words(catalog: CatalogStore) -> None:
    listings = [make_listing(f"Weather station {number}", tags=("sky",)) for number in range(12)]
    await asyncio.gather(*map(catalog.publish, listings))
    edits = [replace(one, name=f"Weather balloon {number}") for number, one in enumerate(listings)]
    await asyncio.gather(*(catalog.revise(one, expected_revision=1) for one in edits))
    for words, total in (("weather", 12), ("balloon", 12), ("station", 0)):
        assert (await catalog.search(ListingQuery(words=words, tag="sky"))).total == total


# a filter -> what the matching listing of two has
FILTERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tag": "b"}, {"tags": ("b",)}),
    ({"network": ChainId(10)}, {"networks": (ChainId(10),)}),
    ({"currency": "EURC"}, {"currency": "EURC"}),
    ({"provider": OTHER}, {"provider": OTHER}),
    ({"provider": OTHER, "currency": "EURC"}, {"provider": OTHER, "currency": "EURC"}),
    ({"pay_to": OTHER}, {"pay_to": OTHER}),
    ({"currency": "USDC", "price_nano_max": 10}, {"price": Price.from_nano(10)}),
    (
        {"network_currencies": (NetworkCurrency(chain_id=ChainId(10), currency="EURC"),)},
        {"networks": (ChainId(10),), "currency": "EURC"},
    ),
    ({"tag": "b", "network": ChainId(10)}, {"tags": ("a", "b"), "networks": (ChainId(10),)}),
]


@pytest.mark.parametrize("exact_max", [0, 10_000], ids=["tested for each listing", "read as a set"])
async def test_each_filter_holds_beside_words(
    catalog: CatalogStore, monkeypatch: pytest.MonkeyPatch, exact_max: int
) -> None:
    for number, (query, having) in enumerate(FILTERS):
        word = f"word{number}x"
        listings = [make_listing(f"{word} {kind}") for kind in ("without", "gone", "first", "second")]
        kinds = [listings[0], *(replace(one, **having) for one in listings[1:])]
        await publish_all(catalog, kinds)
        await catalog.revise(replace(kinds[1], retired_ms=1), expected_revision=1)
        with monkeypatch.context() as patched:
            patched.setattr("tollway.storage.catalog.word_search.TOTAL_EXACT_MAX", exact_max)
            sorts: list[Sort] = ["relevance", "newest", "name"]
            for sort in sorts:
                names = await find_names(catalog, f"{word} unknown{number}", sort=sort, **query)
                wanted = [f"{word} first", f"{word} second"]
                assert names == (wanted if sort == "name" else wanted[::-1]), (query, sort)


async def test_a_success_rate_holds_beside_words_from_the_next_sum_on(setup: CatalogHarness) -> None:
    listing, other = make_listing("Weather"), make_listing("Weather too")
    await publish_all(setup.catalog, [listing, other])
    quality = QualityStore(setup.database)
    # day, calls that succeed, calls that fail -> how many listings have at least each rate
    sums: list[tuple[int, int, int, dict[float, int]]] = [
        (1, 50, 0, {0.0: 1, 0.93: 1, 1.0: 1}),
        (1, 0, 3, {0.9: 1, 0.93: 1, 0.95: 0}),
        (1, 0, 60, {0.4: 1, 0.45: 0}),
        (90, 0, 0, {0.0: 0}),
    ]
    for day, successes, failures, found in sums:
        await quality.add({(listing.id, Bucket(1)): successes, (listing.id, FAILED): failures}, day=day)
        await quality.update_sums([listing.id], today=day)
        for rate, total in found.items():
            page = await setup.catalog.search(ListingQuery(words="weather", min_success_rate=rate))
            assert page.total == len(page.found) == total, (successes, failures, rate)


# ---- The order without words.


def measured(calls: int, rate: float = 1.0, *, verified: bool = False) -> Reputation:
    quality = Quality(calls=calls, success_ppm=round(rate * 1_000_000), p50_ms=10, p95_ms=90)
    return Reputation(quality=quality, verified_ms=7 if verified else None)


async def test_the_score_counts_proof_quality_and_calls(setup: CatalogHarness) -> None:
    standings = {
        "failing": measured(10_000, 0.1, verified=True),
        "few": measured(20, verified=True),
        "unproved": measured(2_000),
        "good": measured(2_000, verified=True),
        "often": measured(100_000, 0.9, verified=True),
    }
    listings = {name: make_listing(name) for name in standings}
    await publish_all(setup.catalog, list(listings.values()))
    for name, reputation in standings.items():
        await setup.know(listings[name], reputation)
    for query in ({}, {"sort": "newest"}):
        names = await find_names(setup.catalog, None, **query)
        assert names == ["often", "good", "unproved", "few", "failing"]


# listings with a score (named by it) and without (in the order of publishing) -> the list
MIXES: list[tuple[int, int, str]] = [
    (0, 3, "cba"),
    (3, 0, "321"),
    (6, 3, "6543c21ba"),
    (8, 1, "8765a4321"),
    (2, 6, "21fedcba"),
    (9, 3, "9876c5432b1a"),
    (4, 1, "4321a"),
]


async def test_each_fifth_place_has_a_listing_without_a_score_on_every_page(setup: CatalogHarness) -> None:
    for scored, unscored, mixed in MIXES:
        tag = f"t{scored}-{unscored}"
        old = [make_listing(str(number), tags=(tag,)) for number in range(1, scored + 1)]
        new = [make_listing("abcdef"[number], tags=(tag,)) for number in range(unscored)]
        await publish_all(setup.catalog, [*old, *new])
        for number, listing in enumerate(old, 1):
            await setup.know(listing, measured(100 * 2**number))
        for limit in (1, 2, 4, 5, 20):
            pages = [
                "".join(await find_names(setup.catalog, None, tag=tag, limit=limit, page=page))
                for page in range(1, len(mixed) // limit + 2)
            ]
            assert "".join(pages) == mixed, (limit, pages)


async def test_large_sets_are_mixed_by_the_index_of_the_score(
    setup: CatalogHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("catalog_facets", "catalog_search"):
        monkeypatch.setattr(f"tollway.storage.catalog.{module}.TOTAL_EXACT_MAX", 2)
    listings = [make_listing(name, tags=("t",)) for name in "123456ab"]
    gone = make_listing("gone", tags=("t",))
    await publish_all(setup.catalog, [*listings, gone])
    for number, listing in enumerate((*listings[:6], gone)):
        await setup.know(listing, measured(100 * 2**number))
    await setup.catalog.revise(replace(gone, retired_ms=1), expected_revision=1)
    for query in ({}, {"tag": "t"}):
        assert "".join(await find_names(setup.catalog, None, **query)) == "6543b21a"


async def test_a_proof_that_ends_lowers_the_score(setup: CatalogHarness) -> None:
    first, second = make_listing("first"), make_listing("second")
    await publish_all(setup.catalog, [first, second])
    await setup.know(first, measured(1_000, verified=True))
    await setup.know(second, measured(2_000))
    assert await find_names(setup.catalog, None) == ["first", "second"]
    moved = replace(first, endpoint="https://other.example")
    await setup.catalog.revise(moved, expected_revision=1)
    assert await find_names(setup.catalog, None) == ["second", "first"]


# ---- Listings whose endpoint another wallet has proved.

OWNED = Reputation(is_owned_by_another=True)
MEASURED = Quality(calls=5_000, success_ppm=1_000_000, p50_ms=1, p95_ms=2)


async def test_a_listing_whose_endpoint_another_wallet_owns_stands_behind_all_others(
    setup: CatalogHarness,
) -> None:
    """Also where it is newer, fits better, and has better quality; with words, without, with a filter, and by meaning it keeps its place in the total."""
    catalog = setup.catalog
    own = [make_listing(f"Weather {number}", tags=("weather",)) for number in range(4)]
    copies = [make_listing("Weather weather weather", "weather", tags=("weather",)) for _ in range(3)]
    await publish_all(catalog, [own[0], copies[0], own[1], copies[1], *own[2:], copies[2]])
    for listing, reputation in (
        (own[0], Reputation(verified_ms=1)),
        (own[1], Reputation(quality=replace(MEASURED, calls=20, success_ppm=0))),
        (copies[0], OWNED),
        (copies[1], replace(OWNED, quality=MEASURED)),
        (copies[2], OWNED),
    ):
        await setup.know(listing, reputation)
    last = {copy.id for copy in copies}
    for query in (
        ListingQuery(words="weather"),
        ListingQuery(),
        ListingQuery(tag="weather"),
        ListingQuery(verified=False),
    ):
        page = await catalog.search(query)
        found = [one.listing.id for one in page.found]
        count = len(own) - (query.verified is False)
        assert page.total == len(found) == count + len(copies)
        assert set(found[count:]) == last, query
        assert [one.reputation.is_owned_by_another for one in page.found] == [False] * count + [True] * 3
        for limit in (1, 2, 3, 5):
            pages = [
                one.listing.id
                for number in range(1, len(found) // limit + 2)
                for one in (await catalog.search(replace(query, limit=limit, page=number))).found
            ]
            assert pages == found, (query, limit)
    newest = await catalog.search(ListingQuery(sort="newest", limit=1))
    assert newest.found[0].listing.id == copies[2].id, "an order that a reader chooses is that order"


async def test_a_catalog_of_owned_listings_alone_is_listed(setup: CatalogHarness) -> None:
    copies = [make_listing("Weather") for _ in range(3)]
    await publish_all(setup.catalog, copies)
    for copy in copies:
        await setup.know(copy, OWNED)
    for words in (None, "weather"):
        page = await setup.catalog.search(ListingQuery(words=words))
        assert [one.listing.id for one in page.found] == [copy.id for copy in reversed(copies)]
