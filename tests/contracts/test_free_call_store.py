"""The contract of `FreeCallStore`: no wallet gets more free calls than its listing gives, on one gateway or on several."""

import asyncio

import pytest

from tollway.ids import Address, ListingId
from tollway.ledger.free_calls import FreeCallTaken, FreeCallTerms, NoneLeft, TooManyWallets
from tollway.storage.engine.database import Database
from tollway.storage.ledger.free_call_store import SqlFreeCalls

LISTING, OTHER_LISTING = ListingId("api_1"), ListingId("api_2")
DAY_MS = 86_400_000
NOW_MS = 20_833 * DAY_MS
ADDRESS, OTHER_ADDRESS = "203.0.113.5", "203.0.113.6"


def wallet(number: int) -> Address:
    return Address(number.to_bytes(20, "big"))


def terms(count: int = 2, *, listing_id: ListingId = LISTING, per_ms: int | None = None) -> FreeCallTerms:
    return FreeCallTerms(listing_id=listing_id, count=count, per_ms=per_ms)


async def take(
    store: SqlFreeCalls,
    given: FreeCallTerms,
    number: int = 1,
    *,
    address: str = ADDRESS,
    now_ms: int = NOW_MS,
    wallets_max: int = 3,
) -> NoneLeft | TooManyWallets | None:
    """None where the call is free."""
    taken = await store.take(given, wallet(number), address=address, wallets_max=wallets_max, now_ms=now_ms)
    return None if isinstance(taken, FreeCallTaken) else taken


@pytest.fixture
def store(database: Database) -> SqlFreeCalls:
    return SqlFreeCalls(database)


async def test_each_wallet_has_its_own_calls_at_each_listing(store: SqlFreeCalls) -> None:
    for given, number in ((terms(), 1), (terms(), 2), (terms(listing_id=OTHER_LISTING), 1)):
        assert [await take(store, given, number) for _ in range(3)] == [None, None, NoneLeft(until_ms=None)]


async def test_a_question_counts_nothing(store: SqlFreeCalls) -> None:
    for _ in range(3):
        assert await store.find_refusal(terms(1), wallet(1), now_ms=NOW_MS) is None
    assert await take(store, terms(1)) is None
    assert await store.find_refusal(terms(1), wallet(1), now_ms=NOW_MS) == NoneLeft(until_ms=None)


async def test_a_new_period_begins_with_the_first_call_after_the_old_one(store: SqlFreeCalls) -> None:
    given = terms(2, per_ms=1_000)
    left = NoneLeft(until_ms=NOW_MS + 1_000)
    for after_ms, refused in ((0, None), (500, None), (999, left), (1_000, None), (1_999, None)):
        assert await take(store, given, now_ms=NOW_MS + after_ms) == refused
    assert await take(store, given, now_ms=NOW_MS + 1_999) == NoneLeft(until_ms=NOW_MS + 2_000)


async def test_a_call_that_is_given_back_can_be_taken_again_and_never_becomes_more(
    store: SqlFreeCalls,
) -> None:
    await take(store, terms(1))
    taken = FreeCallTaken(since_ms=NOW_MS)
    for _ in range(2):  # the second finds nothing to give back
        await store.give_back(LISTING, wallet(1), taken)
    await store.give_back(LISTING, wallet(9), taken)
    assert [await take(store, terms(1)) for _ in range(2)] == [None, NoneLeft(until_ms=None)]


async def test_a_call_of_a_period_that_has_ended_gives_nothing_back_to_the_new_one(
    store: SqlFreeCalls,
) -> None:
    given = terms(1, per_ms=1_000)
    old, new = [
        await store.take(given, wallet(1), address=ADDRESS, wallets_max=3, now_ms=NOW_MS + after_ms)
        for after_ms in (0, 1_000)
    ]
    assert (old, new) == (FreeCallTaken(since_ms=NOW_MS), FreeCallTaken(since_ms=NOW_MS + 1_000))
    assert isinstance(old, FreeCallTaken)
    await store.give_back(LISTING, wallet(1), old)
    assert await take(store, given, now_ms=NOW_MS + 1_001) == NoneLeft(until_ms=NOW_MS + 2_000)


async def test_a_lower_number_holds_at_once_and_a_higher_one_adds(store: SqlFreeCalls) -> None:
    for _ in range(2):
        await take(store, terms(2))
    assert await take(store, terms(1)) == NoneLeft(until_ms=None)
    assert [await take(store, terms(3)) for _ in range(2)] == [None, NoneLeft(until_ms=None)]


async def test_so_many_new_wallets_of_an_address_begin_at_a_listing_in_a_day(store: SqlFreeCalls) -> None:
    assert [await take(store, terms(), number) for number in (1, 2, 3, 4)] == [None] * 3 + [TooManyWallets()]
    assert await take(store, terms(), 1) is None  # a wallet that has begun goes on
    for number, changes in (
        (5, {"address": OTHER_ADDRESS}),
        (6, {"now_ms": NOW_MS + DAY_MS}),
        (7, {"wallets_max": 4}),
    ):
        assert await take(store, terms(), number, **changes) is None  # type: ignore[arg-type]
    assert await take(store, terms(listing_id=OTHER_LISTING), 4) is None


async def test_gateways_that_count_at_once_never_pass_the_maximum(database: Database) -> None:
    """Two stores over one database are two gateways."""
    gateways = SqlFreeCalls(database), SqlFreeCalls(database)
    given = terms(5)
    taken = await asyncio.gather(*(take(gateways[index % 2], given) for index in range(20)))
    assert taken.count(None) == 5


async def test_gateways_that_meet_new_wallets_at_once_begin_no_more_of_them(database: Database) -> None:
    gateways = SqlFreeCalls(database), SqlFreeCalls(database)
    begun = await asyncio.gather(*(take(gateways[number % 2], terms(), number) for number in range(1, 13)))
    assert begun.count(None) == 3


async def test_no_address_is_stored(store: SqlFreeCalls, database: Database) -> None:
    await take(store, terms())
    rows = await database.read(
        lambda connection: connection.exec_driver_sql("SELECT * FROM free_call").fetchall()
    )
    assert ADDRESS not in str(rows)
