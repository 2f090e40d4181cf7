"""Pages of calls and listings find their rows by an index, in the order of the page, on both databases."""

import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from operator import methodcaller
from typing import Any

import pytest
from sqlalchemy import Connection, insert

from tests.kit.call_rows import call_record_row, insert_calls
from tests.kit.databases import create_database, database_url, drop_database, open_database, run_in_thread
from tests.kit.ledger_records import NOW_MS, PAYER, PROVIDER, new_payment
from tests.kit.listings import sample_listing
from tests.kit.query_plans import read_plans, settle_down
from tollway.ids import Address, CallId, ChainId, ListingId
from tollway.ledger.history import HistoryQuery
from tollway.registry.catalog import ListingQuery
from tollway.registry.search_rank import weigh_words
from tollway.storage.catalog.catalog_search import count_facets, find_page
from tollway.storage.catalog.catalog_tables import (
    listing_table,
    listing_values,
    network_table,
    ownership_table,
    quality_table,
    tag_table,
    total_table,
)
from tollway.storage.catalog.catalog_words import write_spellings, write_weights
from tollway.storage.catalog.reputation_store import find_due, find_owner
from tollway.storage.catalog.search_blocks import change_features, list_features, rate_feature
from tollway.storage.engine.database import Database
from tollway.storage.ledger.history import read_history
from tollway.storage.ledger.payments import insert_payment, unfinal_query

pytestmark = pytest.mark.dialects

CALLS, LISTINGS = 3_000, 1_500
DIALECTS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]
OTHER = Address(b"\x0c" * 20)
STATES = {0: ("released", 503), 1: ("consumed", 404), 2: ("unknown", None), 3: ("forwarding", None)}


def is_sorted(plan: str) -> bool:
    return "TEMP B-TREE" in plan or "Sort" in plan


def all_but_ties(plan: str) -> str:
    """The plan without the sort of calls of one millisecond by id, which runs while the index is read."""
    return re.sub(
        "USE TEMP B-TREE FOR LAST TERM OF ORDER BY|Incremental Sort; Sort Key: [^;]*; Presorted Key: [^;]*created_ms;",
        "",
        plan,
    )


def call_rows() -> list[dict[str, Any]]:
    """Most calls with a known outcome are of PAYER and all of PROVIDER; few fail, and few run. Of the calls with an
    unknown outcome few are theirs."""
    rows = []
    for number in range(CALLS):
        state, status = STATES.get(number % 100, ("consumed", 200))
        if state == "forwarding" and number < CALLS - 200:
            state, status = "consumed", 200
        payer = PAYER if number % 10 else Address(number.to_bytes(20, "big"))
        told = {"state": state, "upstream_status": status, "listing_id": f"api_{number % 7}"}
        rows.append(call_record_row(number, id=CallId(f"call_{number:026}"), payer=payer, **told))
    others = {"payer": OTHER, "provider": OTHER, "state": "unknown", "upstream_status": None}
    return rows + [call_record_row(number, **others) for number in range(CALLS, 2 * CALLS)]


Fill = Callable[[Database], Awaitable[None]]


def make_filled(request: pytest.FixtureRequest, name: str, fill: Fill) -> Iterator[str]:
    """The URL of a database that all tests of this file read, and none writes."""

    async def run() -> None:
        async with open_database(url) as database:
            await fill(database)
        await settle_down(url)

    if request.param == "sqlite":
        path = request.getfixturevalue("tmp_path_factory").mktemp(name) / "filled.sqlite3"
        shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
        url = f"sqlite:///{path}"
        run_in_thread(run())
        yield url
        return
    server = request.getfixturevalue("postgres_server")
    url = database_url(server, name)
    run_in_thread(create_database(server, name, template=request.getfixturevalue("postgres_template")))
    run_in_thread(run())
    yield url
    run_in_thread(drop_database(server, name))


@pytest.fixture(scope="module", params=DIALECTS)
def calls_url(request: pytest.FixtureRequest) -> Iterator[str]:
    write = partial(insert_calls, rows=call_rows())
    yield from make_filled(request, "plans_of_calls", lambda database: database.write(write, is_long=True))


@pytest.fixture
async def of_calls(calls_url: str) -> AsyncIterator[Database]:
    async with open_database(calls_url) as database:
        yield database


def in_index(index: str, terms: str) -> tuple[str, str]:
    """What a plan says of a search in an index, on SQLite and on PostgreSQL."""
    return f"{index} ({terms}", f"using {index}"


# what is asked -> on SQLite and on PostgreSQL, the search of the page
TIME = in_index("ix_call_payer_time", "payer=?")
LISTED = ListingId("api_1")
HISTORIES: list[tuple[dict[str, Any], str, str]] = [
    ({}, TIME[0], f"{TIME[1]} on call"),
    ({"offset": 1_000}, f"COVERING INDEX {TIME[0]}", "Index Only Scan Backward using ix_call_payer_time"),
    ({"from_ms": NOW_MS + 9}, f"{TIME[0]} AND created_ms>?", f"{TIME[1]} on call"),
    ({"to_ms": NOW_MS + 999}, f"{TIME[0]} AND created_ms<?", f"{TIME[1]} on call"),
    ({"before": CallId(f"call_{77:026}")}, f"{TIME[0]} AND", f"{TIME[1]} on call"),
    ({"status": "succeeded"}, TIME[0], f"{TIME[1]} on call"),
    ({"status": "failed"}, *in_index("ix_call_payer_failed", "payer=?")),
    ({"status": "unknown"}, *in_index("ix_call_payer_unknown", "payer=?")),
    ({"status": "pending"}, "ix_call_forwarding", "ix_call_forwarding"),
    ({"listing_id": LISTED}, *in_index("ix_call_payer_listing", "payer=? AND listing_key=?")),
    ({"listing_id": LISTED, "status": "failed"}, "ix_call_payer_failed (payer=?", "using ix_call_payer_"),
]


async def test_a_history_is_read_by_its_index(of_calls: Database) -> None:
    for asked, on_sqlite, on_postgresql in HISTORIES:
        for role, wallet in (("payer", PAYER), ("provider", PROVIDER)):
            query = HistoryQuery(wallet=wallet, role=role, limit=5, **asked)  # type: ignore[arg-type]
            wanted = (on_sqlite if of_calls.dialect == "sqlite" else on_postgresql).replace("payer", role)
            pages = await read_plans(of_calls, partial(read_history, query=query, unknown_hold_ms=0))
            page = pages[1 if query.before else 0]
            assert wanted in page, (asked, page)
            assert not [plan for plan in pages if "Seq Scan" in plan or "SCAN call;" in plan], (asked, pages)
            if not query.offset and query.status != "pending":
                assert not is_sorted(all_but_ties(page)), (asked, page)


async def test_the_total_of_a_wallet_is_kept_and_filtered_ones_are_counted_in_indexes(
    of_calls: Database,
) -> None:
    for asked in ({}, *({"status": status} for status in ("succeeded", "failed", "unknown"))):
        query = HistoryQuery(wallet=PAYER, limit=5, **asked)  # type: ignore[arg-type]
        plans = await read_plans(of_calls, partial(read_history, query=query, unknown_hold_ms=0))
        for plan in plans[1:]:
            if not asked:
                assert "call_total" in plan or "INTEGER PRIMARY KEY (rowid>?)" in plan, plan
                assert "ix_call" not in plan, plan
            else:
                assert (
                    "COVERING INDEX ix_call_" in plan or "Index Only Scan" in plan or "forwarding" in plan
                ), plan


@pytest.fixture(scope="module", params=DIALECTS)
def listings_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Half of the listings have one tag and one network, one in a hundred has another; the same for words."""

    def write(connection: Connection) -> None:
        for number in range(1, LISTINGS + 1):
            is_rare = number % 100 == 0
            one = sample_listing(
                id=ListingId(f"api_{number}"),
                name=f"Weather {number} {'zeppelin' if is_rare else ''}",
                provider=PROVIDER if number % 2 else Address(number.to_bytes(20, "big")),
                pay_to=PROVIDER if number % 2 else Address(number.to_bytes(20, "big")),
            )
            connection.execute(insert(listing_table).values(**listing_values(one), seq=number))
            weights = weigh_words(one)
            write_weights(connection, number, weights)
            write_spellings(connection, one)
            own_tags = ["rare"] if is_rare else []
            features = list_features(weights, tags=own_tags, networks=(), currency=one.currency)
            change_features(connection, number, before=(), after=features)
        seqs = range(1, LISTINGS)
        tags = ["rare" if seq % 100 == 0 else f"other {seq % 7}" if seq % 3 else "often" for seq in seqs]
        rows = [{"tag": tag, "listing_seq": seq} for seq, tag in enumerate(tags, 1)]
        connection.execute(insert(tag_table), rows)
        chains = [10 if seq % 100 == 0 else seq % 3 for seq in seqs]
        rows = [{"chain_id": chain_id, "listing_seq": seq} for seq, chain_id in enumerate(chains, 1)]
        connection.execute(insert(network_table), rows)
        quality = {"calls": 50, "day": 1, "p50_ms": 5, "p95_ms": 9}
        for seq in seqs:
            ppm = 1_000 if seq % 50 else 999_000
            graded = {"listing_seq": seq, "success_ppm": ppm, "score": seq * 7_919 % 5_000}
            connection.execute(insert(quality_table).values(**quality, **graded))
            change_features(connection, seq, before=(), after=[rate_feature(ppm)])
        proof = {"origin": "https://a.example", "method": "file", "checked_ms": 1, "failures": 0}
        owned = [{"listing_seq": seq, "verified_ms": None if seq % 30 else 7} for seq in seqs]
        found = [{**proof, **row, "owned_by_another": False} for row in owned]
        connection.execute(insert(ownership_table), found)
        connection.execute(total_table.update().values(shown=LISTINGS))

    yield from make_filled(request, "plans_of_listings", lambda database: database.write(write, is_long=True))


@pytest.fixture
async def of_listings(listings_url: str) -> AsyncIterator[Database]:
    async with open_database(listings_url) as database:
        yield database


async def test_due_proofs_and_the_holder_of_an_origin_are_found_by_their_index(
    of_listings: Database,
) -> None:
    asked: list[tuple[str, Callable[[Connection], object]]] = [
        ("due", lambda connection: find_due(connection, 5, 10)),
        ("origin", lambda connection: find_owner(connection, "https://a.example")),
    ]
    for name, question in asked:
        (plan,) = await read_plans(of_listings, question)
        assert f"ix_listing_ownership_{name}" in plan, plan
        assert "Seq Scan" not in plan, plan
        assert not is_sorted(plan), plan


def count_exactly_to(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    for module in ("catalog_facets", "catalog_search", "word_search"):
        monkeypatch.setattr(f"tollway.storage.catalog.{module}.TOTAL_EXACT_MAX", most)


def in_index_alone(index: str, terms: str = "") -> tuple[str, str]:
    """The same, without a look at the rows."""
    return f"COVERING INDEX {index}{f' ({terms}' if terms else ''}", f"using {index}"


BY_PRICE = in_index_alone("ix_listing_price", "currency=?")
TAGGED = ("SEARCH tagged USING COVERING INDEX", "using pk_listing_tag")
PAGES: list[tuple[dict[str, Any], str, str]] = [
    ({}, *in_index_alone("ix_listing_shown")),
    ({"sort": "name"}, *in_index_alone("ix_listing_name")),
    ({"provider": PROVIDER}, *in_index_alone("ix_listing_provider", "provider=? AND is_shown=?")),
    (
        {"provider": PROVIDER, "currency": "USDC"},
        *in_index_alone("ix_listing_provider_currency", "provider=? AND currency=? AND is_shown=?"),
    ),
    ({"pay_to": PROVIDER}, *in_index_alone("ix_listing_payee", "pay_to=? AND is_shown=?")),
    ({"currency": "USDC"}, *in_index_alone("ix_listing_currency", "currency=? AND is_shown=?")),
    ({"currency": "USDC", "sort": "price"}, *BY_PRICE),
    ({"currency": "USDC", "sort": "-price"}, *BY_PRICE),
    ({"tag": "often"}, "(tag=?", "using pk_listing_tag"),
    ({"network": ChainId(1)}, "(chain_id=?", "using pk_listing_network"),
    ({"tag": "rare", "provider": PROVIDER}, *TAGGED),
    (
        {"tag": "often", "network": ChainId(10)},
        *("SEARCH networked USING COVERING INDEX", "using pk_listing_network"),
    ),
    ({"min_success_rate": 0.9}, *in_index_alone("ix_listing_quality_success", "success_ppm>?)")),
    (
        {"verified": True},
        "SCAN by_ix_listing_ownership_verified USING INDEX ix_listing_ownership_verified",
        "using ix_listing_ownership_verified",
    ),
    ({"verified": False}, *in_index_alone("ix_listing_shown")),
    ({"tag": "rare", "verified": True, "min_success_rate": 0.0}, *TAGGED),
]


async def test_a_list_begins_with_the_smallest_set_in_its_index(of_listings: Database) -> None:
    for asked, on_sqlite, on_postgresql in PAGES:
        query = ListingQuery(**asked)
        *counts, page = await read_plans(of_listings, partial(find_page, query=query))
        wanted = on_sqlite if of_listings.dialect == "sqlite" else on_postgresql
        assert wanted in page, (asked, page)
        one_row = "listing_total"
        scans = [plan for plan in (*counts, page) if "Seq Scan" in plan and one_row not in plan]
        assert not scans, (asked, scans)
        if query.min_success_rate != 0.9:  # few enough to sort
            assert not is_sorted(page), (asked, page)


# what is spelled, misspelled, matched, filtered, measured, by name
STEPS = {
    "sqlite": (
        "COVERING INDEX ix_search_spelling_word (word>? AND word<?)",
        "SEARCH search_spelling USING PRIMARY KEY (spelling=?)",
        "SEARCH search_block USING PRIMARY KEY (feature=? AND block>? AND block<?)",
        "SEARCH search_block USING PRIMARY KEY (feature=? AND block=?)",
        "quality USING INTEGER PRIMARY KEY",
        "COVERING INDEX ix_listing_name",
    ),
    "postgresql": (
        "ix_search_spelling_word",
        "pk_search_spelling",
        "pk_search_block",
        "pk_search_block",
        "pk_listing_quality",
        "using ix_listing_name",
    ),
}


async def test_the_words_of_a_search_are_looked_up_in_their_indexes(
    of_listings: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Completions, spellings, the blocks of the words, and the words, quality and rows of the candidates. A filter with many listings is tested for each of those."""
    count_exactly_to(monkeypatch, 50)
    spelled, misspelled, matched, filtered, measured, by_name = STEPS[of_listings.dialect]
    searches: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"words": "zeppelin"}, (spelled, matched)),
        ({"words": "zepelin"}, (spelled, misspelled, matched)),
        ({"words": "zeppelin weather 77"}, (matched,)),
        ({"words": "zeppelin", "tag": "rare"}, (matched, filtered)),
        ({"words": "weather", "sort": "name"}, (matched, by_name)),
        ({"words": "weather", "min_success_rate": 0.0}, (matched, filtered)),
        ({"words": "weather", "min_success_rate": 0.99}, (matched, filtered, measured)),
    ]
    for asked, wanted in searches:
        words = asked["words"]
        search = partial(find_page, query=ListingQuery(**asked))
        plans = await read_plans(of_listings, search, with_prepared=True)
        for step in wanted:
            assert any(step in plan for plan in plans), (words, step, plans)
        harmless = ("listing_total", "SCAN json_each", "SCAN anon_", "ix_listing_name", "SCAN listing USING")
        scans = [plan for plan in plans if "Seq Scan" in plan or "SCAN" in plan]
        assert not [plan for plan in scans if not any(one in plan for one in harmless)], (words, scans)


async def test_recommended_listings_are_walked_by_their_score(
    of_listings: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_exactly_to(monkeypatch, 50)
    monkeypatch.setattr("tollway.storage.catalog.catalog_search.SCORED_MAX", 60)
    for query in (ListingQuery(), ListingQuery(tag="often", currency="USDC")):
        plans = await read_plans(of_listings, partial(find_page, query=query))
        by_score = [plan for plan in plans if "ix_listing_quality_score" in plan]
        assert len(by_score) >= 2, plans
        for plan in plans:
            assert not is_sorted(plan), (query, plan)
            assert "Seq Scan" not in plan or "listing_total" in plan, (query, plan)


async def test_sets_that_are_too_large_to_sort_are_walked_in_the_order_of_the_page(
    of_listings: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_exactly_to(monkeypatch, 50)
    for sort, index, rate in (
        ("name", "ix_listing_name", None),
        ("price", "ix_listing_price", None),
        ("newest", "ix_listing_currency", None),
        ("newest", "ix_listing_currency", 0.0),
        ("name", "ix_listing_name", 0.0),
    ):
        filters: dict[str, Any] = {"tag": "often", "currency": "USDC", "price_nano_max": 10**9}
        query = ListingQuery(min_success_rate=rate, sort=sort, **filters)  # type: ignore[arg-type]
        page = (await read_plans(of_listings, partial(find_page, query=query)))[-1]
        assert f" {index}" in page or (sort == "newest" and "tag" in page), page
        assert not is_sorted(page), page


async def test_a_large_measured_set_is_walked_by_age(
    of_listings: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_exactly_to(monkeypatch, 50)
    query = ListingQuery(min_success_rate=0.0)
    page = (await read_plans(of_listings, partial(find_page, query=query)))[-1]
    wanted = {"sqlite": "SCAN measured", "postgresql": "pk_listing_quality"}  # SQLite: by rowid
    assert wanted[of_listings.dialect] in page or "ix_listing_shown" in page, page
    assert not is_sorted(page), page


async def test_what_a_wallet_has_spent_before_it_is_final_is_summed_by_one_index(
    database: Database, url: str
) -> None:
    """Most payments of each wallet are final; a claim with a maximum reads those of its wallet that are not."""

    def fill(connection: Connection) -> None:
        for number in range(3_000):
            payer = PAYER if number % 10 == 0 else Address(number.to_bytes(20, "big"))
            new = new_payment(10, f"{number}", payer=payer, is_final=number % 7 != 0)
            insert_payment(connection, new, NOW_MS)

    await database.write(fill)
    await settle_down(url)
    (plan,) = await read_plans(database, methodcaller("execute", unfinal_query(), {"payers": [PAYER]}))
    assert "ix_payment_unfinal_payer" in plan, plan
    assert "Seq Scan" not in plan, plan


async def test_facets_read_tags_and_networks_by_listing(of_listings: Database) -> None:
    for words in (None, "weather"):
        count = partial(count_facets, query=ListingQuery(words=words))
        *_, tags, networks, currencies = await read_plans(of_listings, count)
        assert "ix_listing_tag_listing" in tags, tags
        assert "ix_listing_network_listing" in networks, networks
        for plan in (tags, networks, currencies):
            assert "Seq Scan" not in plan, (words, plan)


async def test_facets_count_the_newest_of_many_listings(
    of_listings: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_exactly_to(monkeypatch, 50)
    found = await of_listings.read(lambda connection: count_facets(connection, ListingQuery()))
    assert (found.total, found.is_lower_bound) == (50, True)
    assert sum(count for _, count in found.currencies) == 50
