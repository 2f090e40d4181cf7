"""The contract of `Catalog`, on SQLite and on PostgreSQL."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.catalogs import CatalogHarness, numbered_listing, publish_all
from tests.kit.metering import sample_metering
from tests.kit.narrowing import existing
from tollway.errors import StorageUnavailable
from tollway.ids import Address, ChainId, ListingId
from tollway.money import Price
from tollway.registry.catalog import (
    FACET_VALUES_MAX,
    TERMS_RETENTION_S,
    CatalogFacets,
    ListingQuery,
    ListingRange,
    NetworkCurrency,
    Revised,
    RevisionConflict,
)
from tollway.registry.listing import ChargeOn, Listing, Operation, RateLimit, UpstreamAuth
from tollway.registry.quality import UNKNOWN_REPUTATION, Quality, Reputation
from tollway.storage.catalog.catalog_store import FRESH_MS, CatalogStore
from tollway.storage.engine.database import Database
from tollway.storage.engine.encryption import Sealer

ALICE, BOB = Address(b"\xaa" * 20), Address(b"\xbb" * 20)
BASE, OPTIMISM = ChainId(8453), ChainId(10)
MINUTE = 60_000


def make_listing(**changes: Any) -> Listing:
    plain: dict[str, Any] = {"endpoint": "https://api.example.com/v1", "networks": (BASE,)}
    return numbered_listing(**{**plain, "created_ms": 1_700_000_000_000, **changes})


FULL = make_listing(
    name="Wetter für Köln ☔",
    description="Line one\nline two: \"quoted\", 'single', 100 %",
    price=Price.parse("0.0100"),
    pay_to=BOB,
    networks=(OPTIMISM, BASE),
    methods=("GET", "POST"),
    tags=("weather", "Köln"),
    metering=sample_metering(),
    operations=(
        Operation(method="GET", path="/v1/{city}", price=Price.parse("0.5")),
        Operation(
            method="POST",
            path="/v1/{city}",
            price=Price.parse("0.5"),
            metering=sample_metering(base="0.0002", absent="base"),
        ),
    ),
    other_paths="refuse",
    charge_on=ChargeOn.ANSWERED,
    timeout_s=300,
    forward_headers=("X-Api-Version",),
    upstream_auth=UpstreamAuth(location="header", name="X-Key", value="top secret"),
    openapi={"openapi": "3.1.0", "paths": {}, "x-odd": ["\u0000", 1.5, None]},
    openapi_url="https://api.example.com/openapi.json",
    signature="bound",
    rate_limit=RateLimit(calls=10, per_s=60),
    status="paused",
    forward_signature="none",
)


@pytest.fixture
def setup(database: Database) -> CatalogHarness:
    return CatalogHarness(database)


@pytest.fixture
def catalog(setup: CatalogHarness) -> CatalogStore:
    return setup.catalog


async def names_of(catalog: CatalogStore, query: ListingQuery) -> list[str]:
    page = await catalog.search(query)
    return [found.listing.name for found in page.found]


async def test_finds_exactly_what_was_published(catalog: CatalogStore) -> None:
    await catalog.publish(FULL)
    entry = existing(await catalog.find(FULL.id))
    assert entry.listing == FULL
    assert entry.listing.charge_on is ChargeOn.ANSWERED
    assert entry.versions == (FULL.current_terms(since_ms=FULL.created_ms),)


async def test_an_unknown_id_finds_nothing(catalog: CatalogStore) -> None:
    for odd in ("", "api_none", "\x00", "a" * 65, "äpi", "\udc80", "'; DROP TABLE listing; --"):
        assert await catalog.find(ListingId(odd)) is None, odd
        assert await catalog.terms_since(ListingId(odd), 0) == (), odd


async def test_an_id_is_published_once(catalog: CatalogStore) -> None:
    listing = make_listing()
    await catalog.publish(listing)
    with pytest.raises(StorageUnavailable):
        await catalog.publish(replace(listing, name="another"))
    assert (await catalog.search(ListingQuery())).total == 1


async def test_revise_replaces_every_field_and_counts(catalog: CatalogStore) -> None:
    first = make_listing()
    await catalog.publish(first)
    changed = replace(FULL, id=first.id, revision=77)
    outcome = await catalog.revise(changed, expected_revision=1)
    assert outcome == Revised(listing=replace(changed, revision=2))
    entry = existing(await catalog.find(first.id))
    assert entry.listing == replace(changed, revision=2)
    plain = replace(first, updated_ms=first.updated_ms + MINUTE)
    assert isinstance(await catalog.revise(plain, expected_revision=2), Revised)
    entry = existing(await catalog.find(first.id))
    assert entry.listing == replace(plain, revision=3)  # secret and document are removed


async def test_a_stale_revision_changes_nothing(catalog: CatalogStore) -> None:
    listing = make_listing()
    await catalog.publish(listing)
    await catalog.revise(replace(listing, name="second"), expected_revision=1)
    assert await catalog.revise(replace(listing, name="late"), expected_revision=1) == RevisionConflict(
        revision=2
    )
    assert existing(await catalog.find(listing.id)).listing.name == "second"
    assert await catalog.revise(make_listing(), expected_revision=1) == RevisionConflict(revision=0)


async def test_of_many_editors_one_wins(catalog: CatalogStore) -> None:
    listing = make_listing()
    await catalog.publish(listing)
    edits = [replace(listing, name=f"edit {number}") for number in range(20)]
    outcomes = await asyncio.gather(*(catalog.revise(edit, expected_revision=1) for edit in edits))
    winners = [outcome for outcome in outcomes if isinstance(outcome, Revised)]
    assert len(winners) == 1
    assert existing(await catalog.find(listing.id)).listing == winners[0].listing
    assert (await catalog.search(ListingQuery())).total == 1


TERMS_CHANGES: list[dict[str, Any]] = [
    {"price": Price.parse("0.02")},
    {"price": Price.parse("0.010")},
    {"currency": "ETH"},
    {"networks": (BASE, OPTIMISM)},
    {"pay_to": BOB},
    {"operations": (Operation(method="GET", path="/", price=Price.parse("1")),)},
    {"metering": sample_metering()},
    {"charge_on": ChargeOn.ANSWERED},
    {"other_paths": "refuse"},
    {"methods": ("GET",)},
    {"status": "paused"},
    {"suspended_ms": 5},
    {"retired_ms": 5},
]


async def test_new_terms_begin_when_they_differ(catalog: CatalogStore) -> None:
    for change in TERMS_CHANGES:
        listing = make_listing()
        await catalog.publish(listing)
        edited = replace(listing, updated_ms=listing.created_ms + MINUTE, **change)
        await catalog.revise(edited, expected_revision=1)
        assert existing(await catalog.find(listing.id)).versions == (
            edited.current_terms(since_ms=edited.updated_ms),
            replace(listing.current_terms(since_ms=listing.created_ms), until_ms=edited.updated_ms),
        ), change


async def test_other_edits_leave_the_terms(catalog: CatalogStore) -> None:
    listing = make_listing()
    await catalog.publish(listing)
    edited = replace(FULL, id=listing.id, updated_ms=listing.created_ms + MINUTE)
    kept = "price currency networks pay_to metering operations other_paths methods charge_on status"
    same = {name: getattr(listing, name) for name in kept.split()}
    await catalog.revise(replace(edited, **same), expected_revision=1)
    entry = existing(await catalog.find(listing.id))
    assert entry.versions == (listing.current_terms(since_ms=listing.created_ms),)


async def test_what_a_document_describes_is_sold_where_other_paths_are_refused(catalog: CatalogStore) -> None:
    before, after = ({"paths": {path: {"get": {}} for path in paths}} for paths in (["/a"], ["/a", "/b"]))
    listing = make_listing(other_paths="refuse", openapi=before)
    await catalog.publish(listing)
    worded = replace(listing, openapi={**before, "info": {"title": "x"}})
    await catalog.revise(worded, expected_revision=1)
    assert len(await catalog.terms_since(listing.id, 0)) == 1
    await catalog.revise(replace(listing, openapi=after), expected_revision=2)
    newest, older = await catalog.terms_since(listing.id, 0)
    assert (newest.described, older.described) == ((("GET", "/a"), ("GET", "/b")), (("GET", "/a"),))
    await catalog.revise(replace(listing, other_paths="serve"), expected_revision=3)
    assert (await catalog.terms_since(listing.id, 0))[0].described == ()


async def test_a_clock_that_steps_back_never_ends_terms_before_they_began(catalog: CatalogStore) -> None:
    listing = make_listing()
    await catalog.publish(listing)
    edited = replace(listing, pay_to=BOB, updated_ms=listing.created_ms - MINUTE)
    assert isinstance(await catalog.revise(edited, expected_revision=1), Revised)
    newest, older = await catalog.terms_since(listing.id, 0)
    assert newest.since_ms == older.since_ms == older.until_ms == listing.created_ms


async def test_terms_since_a_moment(catalog: CatalogStore) -> None:
    listing = make_listing()
    await catalog.publish(listing)
    start = listing.created_ms
    for revision, minutes in ((1, 10), (2, 20)):
        edited = replace(listing, price=Price.parse(str(revision)), updated_ms=start + minutes * MINUTE)
        await catalog.revise(edited, expected_revision=revision)

    async def prices_since(minutes: int) -> list[str]:
        return [terms.price.text for terms in await catalog.terms_since(listing.id, start + minutes * MINUTE)]

    assert await prices_since(0) == ["2", "1", "0.01"]
    assert await prices_since(10) == ["2", "1", "0.01"]  # in force at exactly this moment
    assert await prices_since(11) == ["2", "1"]
    assert await prices_since(21) == ["2"]


async def test_a_catalog_entry_has_the_terms_of_two_days(setup: CatalogHarness) -> None:
    listing = make_listing()
    await setup.catalog.publish(listing)
    edited = replace(listing, pay_to=BOB, updated_ms=listing.created_ms + MINUTE)
    await setup.catalog.revise(edited, expected_revision=1)
    setup.clock.ms = edited.updated_ms + TERMS_RETENTION_S * 1000
    entry = existing(await setup.catalog.find(listing.id))
    assert [terms.pay_to for terms in entry.versions] == [BOB, ALICE]


async def test_suspended_listings_are_listed_until_they_are_retired(catalog: CatalogStore) -> None:
    one, other, served = make_listing(name="one"), make_listing(name="other"), make_listing(name="served")
    await publish_all(catalog, [one, other, served])
    await catalog.revise(replace(one, suspended_ms=5), expected_revision=1)
    await catalog.revise(replace(other, suspended_ms=9), expected_revision=1)
    listed = await catalog.list_suspended()
    assert [(each.id, each.name, each.provider, each.suspended_ms) for each in listed] == [
        (other.id, "other", other.provider, 9),
        (one.id, "one", one.provider, 5),
    ]
    await catalog.revise(replace(other, suspended_ms=9, retired_ms=10), expected_revision=2)
    assert [each.id for each in await catalog.list_suspended()] == [one.id]


async def test_a_range_has_the_public_listings_of_its_numbers(catalog: CatalogStore) -> None:
    assert await catalog.list_range(1, 5) == ListingRange(listings=(), last_number=0)
    listed = [make_listing(created_ms=number) for number in range(5)]
    await publish_all(catalog, listed)
    await catalog.revise(replace(listed[1], suspended_ms=5), expected_revision=1)
    await catalog.revise(replace(listed[2], retired_ms=5), expected_revision=1)
    times = [(one.id, one.updated_ms) for one in listed]
    assert await catalog.list_range(1, 9) == ListingRange(listings=(times[0], *times[3:]), last_number=5)
    assert await catalog.list_range(2, 4) == ListingRange(listings=(times[3],), last_number=5)


async def test_a_provider_lists_its_own_listings_suspended_ones_last(catalog: CatalogStore) -> None:
    own = [make_listing(name=name, created_ms=number) for number, name in enumerate("abcd")]
    await publish_all(catalog, [*own, make_listing(provider=BOB)])
    await catalog.revise(replace(own[2], suspended_ms=5), expected_revision=1)
    await catalog.revise(replace(own[1], retired_ms=5), expected_revision=1)
    listed = await catalog.list_own(own[0].provider, limit=10, offset=0)
    assert [one.listing.name for one in listed] == ["d", "a", "c"]
    assert [one.listing.suspended_ms for one in listed] == [None, None, 5]
    page = await catalog.list_own(own[0].provider, limit=1, offset=1)
    assert [one.listing.name for one in page] == ["a"]
    suspended = await catalog.list_own(own[0].provider, limit=10, offset=0, only_suspended=True)
    assert [one.listing.name for one in suspended] == ["c"]
    assert await catalog.list_own(BOB, limit=10, offset=0, only_suspended=True) == ()


@pytest.mark.parametrize("field", ["retired_ms", "suspended_ms"])
async def test_retired_and_suspended_leave_lists_but_not_find(catalog: CatalogStore, field: str) -> None:
    listing = make_listing(name="weather", tags=("t",))
    await publish_all(catalog, [listing, make_listing()])
    gone = replace(listing, **{field: listing.created_ms + 1})
    await catalog.revise(gone, expected_revision=1)
    assert existing(await catalog.find(listing.id)).listing == replace(gone, revision=2)
    others = await catalog.search(ListingQuery())
    assert (len(others.found), others.total) == (1, 1)
    assert listing.id not in {found.listing.id for found in others.found}
    for query in (
        ListingQuery(sort="name", words="weather"),
        ListingQuery(provider=listing.provider, words="weather"),
        ListingQuery(words="weather"),
        ListingQuery(tag="t"),
        ListingQuery(network=BASE, words="weather"),
    ):
        page = await catalog.search(query)
        assert (page.found, page.total) == ((), 0)
    for query in (ListingQuery(provider=ALICE), ListingQuery(currency="USDC"), ListingQuery(sort="name")):
        page = await catalog.search(query)
        assert (len(page.found), page.total) == (1, 1)
    back = replace(listing, updated_ms=listing.created_ms + 2)
    await catalog.revise(back, expected_revision=2)
    assert (await catalog.search(ListingQuery())).total == 2
    assert (await catalog.search(ListingQuery(words="weather", tag="T"))).total == 1


async def test_a_paused_listing_stays_in_lists(catalog: CatalogStore) -> None:
    await catalog.publish(make_listing(status="paused"))
    assert (await catalog.search(ListingQuery())).total == 1


async def test_a_change_by_this_gateway_is_visible_at_once(catalog: CatalogStore) -> None:
    listing = make_listing()
    assert await catalog.find(listing.id) is None
    await catalog.publish(listing)
    for revision in range(1, 5):
        assert existing(await catalog.find(listing.id)).listing.revision == revision
        await catalog.revise(replace(listing, name=f"edit {revision}"), expected_revision=revision)


async def test_a_change_by_another_gateway_is_visible_within_a_second(setup: CatalogHarness) -> None:
    listing = make_listing()
    await setup.catalog.publish(listing)
    await setup.catalog.find(listing.id)
    await setup.neighbour.revise(replace(listing, pay_to=BOB), expected_revision=1)
    setup.clock.ms += 1_000
    entry = existing(await setup.catalog.find(listing.id))
    assert entry.listing.pay_to == BOB
    assert [terms.pay_to for terms in entry.versions] == [BOB, ALICE]


async def test_pages_newest_first(catalog: CatalogStore) -> None:
    await publish_all(catalog, [make_listing(name=str(number)) for number in range(7)])
    assert await names_of(catalog, ListingQuery(limit=3)) == ["6", "5", "4"]
    assert await names_of(catalog, ListingQuery(limit=3, page=3)) == ["0"]
    past = await catalog.search(ListingQuery(limit=3, page=4))
    assert (past.found, past.total, past.is_lower_bound) == ((), 7, False)
    assert (await catalog.search(ListingQuery(page=1_000_000, limit=100, words="none"))).found == ()


SHELF = [
    make_listing(name="alpha", price=Price.parse("2"), tags=("Weather",), provider=BOB),
    make_listing(name="Beta", price=Price.parse("0.5"), networks=(BASE, OPTIMISM)),
    make_listing(name="éclair", price=Price.parse("10"), tags=("weather", "food")),
    make_listing(name="delta", price=Price.parse("0.5"), currency="ETH", networks=(OPTIMISM,)),
    make_listing(name="Zeta", price=Price.parse("0"), tags=("food",)),
]

QUERIES: list[tuple[ListingQuery, list[str]]] = [
    (ListingQuery(), ["Zeta", "delta", "éclair", "Beta", "alpha"]),
    (ListingQuery(provider=BOB), ["alpha"]),
    (ListingQuery(provider=Address(20)), []),
    (ListingQuery(currency="USDC"), ["Zeta", "éclair", "Beta", "alpha"]),
    (ListingQuery(currency="usdc"), []),
    (ListingQuery(network=OPTIMISM), ["delta", "Beta"]),
    (ListingQuery(network=ChainId(1)), []),
    (ListingQuery(tag="weather"), ["éclair", "alpha"]),
    (ListingQuery(tag="FOOD"), ["Zeta", "éclair"]),
    (ListingQuery(tag="foo"), []),
    (ListingQuery(tag="food", network=BASE, currency="USDC"), ["Zeta", "éclair"]),
    (ListingQuery(currency="USDC", price_nano_max=2 * 10**9), ["Zeta", "Beta", "alpha"]),
    (ListingQuery(currency="USDC", price_nano_max=0), ["Zeta"]),
    (ListingQuery(currency="USDC", sort="price"), ["Zeta", "Beta", "alpha", "éclair"]),
    (ListingQuery(currency="USDC", sort="-price"), ["éclair", "alpha", "Beta", "Zeta"]),
    (ListingQuery(sort="name"), ["alpha", "Beta", "delta", "éclair", "Zeta"]),
    (ListingQuery(sort="name", network=BASE, page=2, limit=2), ["éclair", "Zeta"]),
    (ListingQuery(sort="price", currency="USDC", tag="weather"), ["alpha", "éclair"]),
    (ListingQuery(pay_to=BOB), []),
    (ListingQuery(pay_to=ALICE, currency="ETH"), ["delta"]),
    (ListingQuery(skip=2), ["éclair", "Beta", "alpha"]),
    (ListingQuery(skip=1, limit=2), ["delta", "éclair"]),
    (ListingQuery(skip=1, limit=2, page=2), ["Beta", "alpha"]),
    (ListingQuery(words="weather", skip=1, sort="newest"), ["alpha"]),
    (ListingQuery(verified=True), []),
    (ListingQuery(verified=False), ["Zeta", "delta", "éclair", "Beta", "alpha"]),
    (ListingQuery(min_success_rate=0.0), []),
    (ListingQuery(words="eclair"), ["éclair"]),
    (ListingQuery(words="weather", provider=BOB), ["alpha"]),
    (ListingQuery(words="weather", tag="food", sort="name"), ["éclair"]),
    (ListingQuery(words="weather", network=BASE, currency="USDC", sort="-price"), ["éclair", "alpha"]),
]


async def test_filters_and_order(catalog: CatalogStore) -> None:
    await publish_all(catalog, SHELF)
    for query, names in QUERIES:
        page = await catalog.search(query)
        assert [found.listing.name for found in page.found] == names, query
        if query.page == 1 and not query.skip:
            assert page.total == len(names), query


def measured(success_ppm: int, *, calls: int = 100) -> Reputation:
    return Reputation(quality=Quality(calls=calls, success_ppm=success_ppm, p50_ms=10, p95_ms=90))


USDC_ON_BASE, USDC_ON_OPTIMISM = (
    NetworkCurrency(chain_id=chain_id, currency="USDC") for chain_id in (BASE, OPTIMISM)
)
ETH_ON_OPTIMISM = NetworkCurrency(chain_id=OPTIMISM, currency="ETH")

STANDINGS = {
    "alpha": replace(measured(950_000), verified_ms=7),
    "Beta": measured(290_000),
    "éclair": Reputation(verified_ms=9),
    "Zeta": measured(1_000_000),
}
GRADED: list[tuple[ListingQuery, list[str]]] = [
    (ListingQuery(min_success_rate=0.0, sort="newest"), ["Zeta", "Beta", "alpha"]),
    (ListingQuery(min_success_rate=0.29, sort="newest"), ["Zeta", "Beta", "alpha"]),
    (ListingQuery(min_success_rate=0.290000001, sort="newest"), ["Zeta", "alpha"]),
    (ListingQuery(min_success_rate=0.95, sort="newest"), ["Zeta", "alpha"]),
    (ListingQuery(min_success_rate=1.0, sort="newest"), ["Zeta"]),
    (ListingQuery(verified=True, sort="newest"), ["éclair", "alpha"]),
    (ListingQuery(verified=False, sort="newest"), ["Zeta", "delta", "Beta"]),
    (ListingQuery(verified=True, min_success_rate=0.5, sort="newest"), ["alpha"]),
    (ListingQuery(verified=False, min_success_rate=0.5, sort="newest"), ["Zeta"]),
    (ListingQuery(verified=False, min_success_rate=0.1, skip=1, sort="newest"), ["Beta"]),
    (ListingQuery(verified=True, words="weather", sort="newest"), ["éclair", "alpha"]),
    (ListingQuery(min_success_rate=0.1, words="weather", sort="relevance"), ["alpha"]),
    (ListingQuery(min_success_rate=0.1, sort="name"), ["alpha", "Beta", "Zeta"]),
    (ListingQuery(verified=False, sort="name"), ["Beta", "delta", "Zeta"]),
    (ListingQuery(min_success_rate=0.1, currency="USDC", sort="-price"), ["alpha", "Beta", "Zeta"]),
    (ListingQuery(min_success_rate=0.1, provider=BOB, sort="newest"), ["alpha"]),
    (ListingQuery(min_success_rate=0.1, network=OPTIMISM, sort="newest"), ["Beta"]),
    (ListingQuery(verified=True, network_currencies=(USDC_ON_BASE,), sort="newest"), ["éclair", "alpha"]),
]


async def test_filters_by_what_is_known_of_a_listing(setup: CatalogHarness) -> None:
    """Facts about a listing that lists do not contain do not make it visible."""
    suspended = make_listing(name="suspended")
    await publish_all(setup.catalog, [*SHELF, suspended])
    await setup.know(suspended, replace(measured(1_000_000), verified_ms=3))
    await setup.catalog.revise(replace(suspended, suspended_ms=1), expected_revision=1)
    for listing in SHELF:
        await setup.know(listing, STANDINGS.get(listing.name, UNKNOWN_REPUTATION))
    for query, names in GRADED:
        page = await setup.catalog.search(query)
        assert [found.listing.name for found in page.found] == names, query
        assert page.total == len(names) + query.skip, query
        for found in page.found:
            assert found.reputation == STANDINGS.get(found.listing.name, UNKNOWN_REPUTATION)
            assert await setup.catalog.reputation(found.listing.id) == found.reputation


async def test_relevance_is_weighed_by_measured_quality(setup: CatalogHarness) -> None:
    """Among listings with the same match; a listing without quality is ranked as one with a rate of 0.82."""
    grades = {"worst": 0, "poor": 700_000, "unmeasured": None, "good": 850_000, "best": 1_000_000}
    newest_last = sorted(grades, key=lambda name: grades[name] or 0)
    listings = {name: make_listing(name=f"{name} weather") for name in reversed(newest_last)}
    fitting = make_listing(name="storm storm", description="weather storm", tags=("storm",))
    await publish_all(setup.catalog, [*listings.values(), fitting])
    for name, success_ppm in grades.items():
        if success_ppm is not None:
            await setup.know(listings[name], measured(success_ppm))
    await setup.know(fitting, measured(0))
    query = ListingQuery(words="weather", sort="relevance")
    names = [name.removesuffix(" weather") for name in await names_of(setup.catalog, query)]
    assert names == ["best", "good", "unmeasured", "poor", "worst", "storm storm"]
    assert await names_of(setup.catalog, replace(query, words="storm")) == ["storm storm"]
    assert (await names_of(setup.catalog, replace(query, skip=1, limit=1))) == ["good weather"]


MARKETS: list[tuple[ListingQuery, list[str]]] = [
    (ListingQuery(network_currencies=()), []),
    (ListingQuery(network_currencies=(USDC_ON_BASE,)), ["operations", "both", "base"]),
    (ListingQuery(network_currencies=(USDC_ON_OPTIMISM,)), ["both"]),
    (ListingQuery(network_currencies=(ETH_ON_OPTIMISM,)), ["ether"]),
    (ListingQuery(network_currencies=(USDC_ON_OPTIMISM, ETH_ON_OPTIMISM)), ["ether", "both"]),
    (ListingQuery(network_currencies=(NetworkCurrency(chain_id=BASE, currency="ETH"),)), []),
    (ListingQuery(network_currencies=(USDC_ON_BASE,), network=OPTIMISM), ["both"]),
    (ListingQuery(network_currencies=(USDC_ON_BASE,), pay_to=BOB), ["both"]),
    (ListingQuery(network_currencies=(USDC_ON_BASE,), words="weather"), ["base"]),
    (ListingQuery(network_currencies=(USDC_ON_BASE, USDC_ON_OPTIMISM), skip=1, limit=1), ["both"]),
    (ListingQuery(network_currencies=(USDC_ON_BASE,), sort="name"), ["base", "both", "operations"]),
]


async def test_markets_find_what_is_sold_there_now(catalog: CatalogStore) -> None:
    """A listing in two markets is found once; free, paused, retired and suspended ones never."""
    operation = Operation(method="GET", path="/v1", price=Price.parse("1"))
    paused = make_listing(name="paused", status="paused")
    retired, suspended = make_listing(name="retired"), make_listing(name="suspended")
    entry = [
        make_listing(name="base", tags=("weather",)),
        make_listing(name="both", networks=(OPTIMISM, BASE), pay_to=BOB),
        make_listing(name="ether", currency="ETH", networks=(OPTIMISM,)),
        make_listing(name="free", price=Price.parse("0.00")),
        make_listing(name="operations", price=Price.parse("0"), operations=(operation,)),
    ]
    await publish_all(catalog, [*entry, paused, retired, suspended])
    await catalog.revise(replace(retired, retired_ms=1), expected_revision=1)
    await catalog.revise(replace(suspended, suspended_ms=1), expected_revision=1)
    for query, names in MARKETS:
        page = await catalog.search(query)
        assert [found.listing.name for found in page.found] == names, query
        assert page.total == (3 if query.skip else len(names)), query


async def test_ties_have_one_order_everywhere(catalog: CatalogStore) -> None:
    await publish_all(catalog, [make_listing(name="tie", description=number) for number in "123"])

    async def order(query: ListingQuery) -> str:
        page = await catalog.search(query)
        return "".join(found.listing.description for found in page.found)

    assert await order(ListingQuery(currency="USDC", sort="price")) == "123"
    assert await order(ListingQuery(currency="USDC", sort="-price")) == "321"
    assert await order(ListingQuery(sort="name")) == "123"
    assert await order(ListingQuery(words="tie", sort="relevance")) == "321"


async def test_a_page_carries_no_secret_and_no_document(catalog: CatalogStore) -> None:
    await catalog.publish(FULL)
    page = await catalog.search(ListingQuery())
    assert page.found[0].listing == replace(FULL, upstream_auth=None, openapi=None)
    assert page.found[0].match == ()


async def test_reports_a_shared_payee(catalog: CatalogStore) -> None:
    listing = make_listing(provider=ALICE, pay_to=BOB)
    await catalog.publish(listing)
    assert not await catalog.is_payee_shared(BOB, ALICE)  # other listings of the same provider do not count
    assert await catalog.is_payee_shared(BOB, Address(b"\xcc" * 20))
    assert not await catalog.is_payee_shared(ALICE, BOB)
    await catalog.revise(replace(listing, retired_ms=1), expected_revision=1)
    assert not await catalog.is_payee_shared(BOB, Address(b"\xcc" * 20))


# ---- Facets.


async def test_facets_count_visible_listings_by_tag_currency_and_network(catalog: CatalogStore) -> None:
    gone = make_listing(name="red", tags=("one",))
    await publish_all(
        catalog,
        [
            make_listing(name="red", tags=("one", "two"), networks=(BASE, OPTIMISM)),
            make_listing(name="red", tags=("One",), networks=(BASE,), status="paused"),
            make_listing(name="blue", tags=("two",), networks=(OPTIMISM,), currency="EURC"),
            make_listing(name="blue"),
            gone,
        ],
    )
    await catalog.revise(replace(gone, retired_ms=1), expected_revision=1)
    every = await catalog.count_facets(None)
    assert every.tags == (("one", 2), ("two", 2))
    assert every.currencies == (("USDC", 3), ("EURC", 1))
    assert every.networks == ((BASE, 3), (OPTIMISM, 2))
    assert (every.total, every.is_lower_bound) == (4, False)
    red = await catalog.count_facets("red")
    assert (red.tags, red.currencies) == ((("one", 2), ("two", 1)), (("USDC", 2),))
    assert red.networks == ((BASE, 2), (OPTIMISM, 1))
    assert red.total == 2


async def test_facets_of_a_search_that_finds_nothing_are_empty(catalog: CatalogStore) -> None:
    await catalog.publish(make_listing(name="red", tags=("one",)))
    for words in ("nothing", "", "  ", "'; DROP TABLE listing; --", "\u0000", "a" * 256):
        assert await catalog.count_facets(words) == CatalogFacets(), words


async def test_facets_have_the_most_frequent_values(catalog: CatalogStore) -> None:
    listings = [
        make_listing(tags=(f"tag {number // 5}", f"only {number}")) for number in range(FACET_VALUES_MAX + 20)
    ]
    await publish_all(catalog, listings)
    found = (await catalog.count_facets(None)).tags
    assert len(found) == FACET_VALUES_MAX
    assert found[:14] == tuple(sorted((f"tag {number}", 5) for number in range(14)))


async def test_facets_of_a_gateway_with_verified_listings_only_count_those(setup: CatalogHarness) -> None:
    listing = make_listing(tags=("one",))
    await publish_all(setup.catalog, [listing, make_listing(tags=("two",))])
    await setup.know(listing, Reputation(verified_ms=7))
    only = CatalogStore(
        setup.database, sealer=Sealer(b"k" * 32, entropy=bytes), now_ms=setup.clock, only_verified=True
    )
    assert (await only.count_facets(None)).tags == (("one", 1),)


async def test_facets_of_the_whole_catalog_are_a_second_old_at_most_and_never_older_than_an_own_change(
    setup: CatalogHarness,
) -> None:
    listing = make_listing(tags=("one",))
    await setup.catalog.publish(listing)
    assert (await setup.catalog.count_facets(None)).tags == (("one", 1),)
    assert (await setup.neighbour.count_facets(None)).tags == (("one", 1),)
    await setup.catalog.revise(replace(listing, tags=("two",)), expected_revision=1)
    assert (await setup.catalog.count_facets(None)).tags == (("two", 1),)
    assert (await setup.neighbour.count_facets(None)).tags == (("one", 1),)
    assert (await setup.neighbour.count_facets(listing.name)).tags == (("two", 1),)
    setup.clock.ms += FRESH_MS
    assert (await setup.neighbour.count_facets(None)).tags == (("two", 1),)
    setup.clock.ms -= 2 * FRESH_MS
    await setup.catalog.revise(replace(listing, tags=("three",)), expected_revision=2)
    assert (await setup.neighbour.count_facets(None)).tags == (("three", 1),)  # a clock that stepped back


async def test_the_terms_of_payees_are_those_of_listings_that_are_not_retired(catalog: CatalogStore) -> None:
    listings = [
        make_listing(pay_to=BOB, networks=(OPTIMISM, BASE)),
        make_listing(pay_to=BOB, status="paused", currency="EURC"),
        make_listing(pay_to=BOB, networks=(ChainId(1),), retired_ms=1_700_000_000_001),
        make_listing(pay_to=ALICE),
    ]
    for one in listings:
        await catalog.publish(one)
    expected = {(BOB, OPTIMISM, "USDC"), (BOB, BASE, "USDC"), (BOB, BASE, "EURC")}
    assert await catalog.find_payee_terms([BOB, Address(b"\xcc" * 20)]) == expected
