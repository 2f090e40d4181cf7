"""The contract of `Creations`, on SQLite and on PostgreSQL, with one gateway and with many."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.kit.clocks import Clock
from tests.kit.listings import sample_listing
from tests.kit.narrowing import of_type
from tollway.errors import StorageUnavailable
from tollway.ids import Address, ListingId
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.registry.catalog import (
    CREATION_KEY_TTL_S,
    Catalog,
    CreationBegun,
    CreationInProgress,
    CreationResponse,
    Creations,
    KeyedCreation,
    OtherRequest,
    TooManyKeys,
)
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.catalog.creation_store import CREATION_LEASE_MS, CreationStore, creation_table
from tollway.storage.engine.database import Database
from tollway.storage.engine.encryption import Sealer

ALICE, BOB = Address(b"\xaa" * 20), Address(b"\xbb" * 20)
LISTING = sample_listing(provider=ALICE)
LEASE_MS = CREATION_LEASE_MS
DAY_MS = CREATION_KEY_TTL_S * 1000


@dataclass
class Setup:
    clock: Clock
    make: Callable[[Limits], tuple[Creations, Catalog]]

    def __post_init__(self) -> None:
        self.creations, self.catalog = self.make(DEFAULT_LIMITS)

    async def begin(self, *, wallet: Address = ALICE, key: str = "k", body: bytes = b"a") -> Any:
        asked = KeyedCreation(wallet=wallet, key=key, fingerprint=body * 32)
        return await self.creations.begin(asked, claim=os.urandom(16))

    async def publish(self, begun: CreationBegun, listing_id: str = "api_1", body: bytes = b"{}") -> bool:
        listing = replace(LISTING, id=ListingId(listing_id))
        return await self.catalog.publish_once(listing, under=begun, answer=answer_for(listing_id, body))

    async def has(self, listing_id: str) -> bool:
        return await self.catalog.find(ListingId(listing_id)) is not None


def answer_for(listing_id: str, body: bytes | None = b"{}") -> CreationResponse:
    return CreationResponse(listing_id=ListingId(listing_id), location="/there", etag='"r1-x"', body=body)


@pytest.fixture
def setup(database: Database) -> Setup:
    clock = Clock(1_700_000_000_000)

    def store(limits: Limits) -> tuple[Creations, Catalog]:
        sealer = Sealer(bytes(32), entropy=os.urandom)
        catalog = CatalogStore(database, sealer=sealer, now_ms=clock)
        return CreationStore(database, now_ms=clock, limits=limits, shared_clock=clock.read_shared), catalog

    return Setup(clock, store)


async def test_what_was_created_under_a_key_is_answered_again(setup: Setup) -> None:
    begun = of_type(CreationBegun, await setup.begin())
    assert await setup.publish(begun)
    assert await setup.begin() == answer_for("api_1")
    assert await setup.begin(body=b"b") == OtherRequest()
    assert isinstance(await setup.begin(wallet=BOB), CreationBegun)
    assert isinstance(await setup.begin(key="other"), CreationBegun)


async def test_an_answer_without_a_body_is_known_without_it(setup: Setup) -> None:
    begun = await setup.begin()
    assert await setup.catalog.publish_once(LISTING, under=begun, answer=answer_for("api_1", None))
    assert await setup.begin() == answer_for("api_1", None)


async def test_of_many_at_once_one_begins(setup: Setup) -> None:
    outcomes = await asyncio.gather(*(setup.begin() for _ in range(20)))
    assert sum(isinstance(outcome, CreationBegun) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, CreationInProgress) for outcome in outcomes) == 19


async def test_a_running_creation_has_a_longest_wait(setup: Setup) -> None:
    await setup.begin()
    assert await setup.begin() == CreationInProgress(wait_s=60)
    assert await setup.begin(body=b"b") == OtherRequest()
    setup.clock.ms += LEASE_MS - 1
    assert await setup.begin() == CreationInProgress(wait_s=1)


async def test_one_that_failed_frees_its_key_for_any_body(setup: Setup) -> None:
    await setup.creations.release(await setup.begin())
    assert isinstance(await setup.begin(body=b"b"), CreationBegun)


async def test_a_key_whose_creation_died_is_free_after_its_lease(setup: Setup) -> None:
    """The creation that lost the key can neither create its listing nor free the key of the other."""
    slow = await setup.begin()
    setup.clock.ms += LEASE_MS
    quick = of_type(CreationBegun, await setup.begin(body=b"b"))
    assert not await setup.publish(slow, "api_slow")
    assert not await setup.has("api_slow")
    await setup.creations.release(slow)
    assert await setup.begin(body=b"b") == CreationInProgress(wait_s=60)
    assert await setup.publish(quick, "api_quick")
    assert not await setup.publish(slow, "api_slow")
    assert await setup.has("api_quick")
    assert not await setup.has("api_slow")
    assert await setup.begin(body=b"b") == answer_for("api_quick")


async def test_a_late_creation_counts_while_no_other_request_has_its_key(setup: Setup) -> None:
    begun = await setup.begin()
    setup.clock.ms += 2 * LEASE_MS
    assert await setup.publish(begun)
    assert await setup.begin() == answer_for("api_1")


async def test_a_clock_that_is_set_back_makes_no_lease_longer(setup: Setup) -> None:
    await setup.begin()
    setup.clock.ms -= 3_600_000
    assert isinstance(await setup.begin(), CreationBegun)


async def test_a_creation_counts_once(setup: Setup) -> None:
    begun = await setup.begin()
    assert await setup.publish(begun, "api_1")
    assert not await setup.publish(begun, "api_2")
    assert not await setup.has("api_2")
    await setup.creations.release(begun)
    assert await setup.begin() == answer_for("api_1")


async def test_a_listing_that_cannot_be_written_leaves_no_answer(setup: Setup) -> None:
    assert await setup.publish(await setup.begin(key="first"), "api_1")
    begun = await setup.begin()
    with pytest.raises(StorageUnavailable):
        await setup.publish(begun, "api_1")
    assert await setup.begin() == CreationInProgress(wait_s=60)


async def test_a_key_is_remembered_for_a_day(setup: Setup) -> None:
    assert await setup.publish(await setup.begin(), "api_1")
    setup.clock.ms += DAY_MS - 1
    assert await setup.begin() == answer_for("api_1")
    assert await setup.creations.prune() == 0
    setup.clock.ms += 1
    again = of_type(CreationBegun, await setup.begin(body=b"b"))
    assert await setup.publish(again, "api_2")
    setup.clock.ms += DAY_MS
    assert await setup.creations.prune() == 1
    assert await setup.creations.prune() == 0
    assert isinstance(await setup.begin(), CreationBegun)


async def test_a_wallet_has_a_maximum_number_of_keys(setup: Setup) -> None:
    setup.creations, setup.catalog = setup.make(replace(DEFAULT_LIMITS, creation_keys_max=2))
    first, second = await setup.begin(key="1"), await setup.begin(key="2")
    assert await setup.publish(first, "api_1")
    assert await setup.begin(key="3") == TooManyKeys()
    assert await setup.begin(key="1") == answer_for("api_1")
    assert isinstance(await setup.begin(wallet=BOB), CreationBegun)
    await setup.creations.release(second)
    assert isinstance(await setup.begin(key="3"), CreationBegun)
    setup.clock.ms += DAY_MS
    assert isinstance(await setup.begin(key="4"), CreationBegun)


async def test_the_oldest_answers_go_and_their_keys_stay(setup: Setup) -> None:
    limits = replace(DEFAULT_LIMITS, response_bytes_max=10, creation_responses_bytes_max=25)
    setup.creations, setup.catalog = setup.make(limits)
    for number in range(4):
        begun = await setup.begin(wallet=Address(bytes([number]) * 20))
        await setup.publish(begun, f"api_{number}", b"0123456789")
        setup.clock.ms += 1
    told = [await setup.begin(wallet=Address(bytes([number]) * 20)) for number in range(4)]
    bodies = [None, None, b"0123456789", b"0123456789"]
    assert told == [answer_for(f"api_{number}", body) for number, body in enumerate(bodies)]


async def test_many_short_answers_never_pass_the_maximum(setup: Setup) -> None:
    """Although the total size is read from time to time only."""
    limits = replace(DEFAULT_LIMITS, response_bytes_max=10, creation_responses_bytes_max=640)
    setup.creations, setup.catalog = setup.make(limits)
    for number in range(100):
        await setup.publish(await setup.begin(key=str(number)), f"api_{number}", b"0123456789")
        setup.clock.ms += 1
    told = [await setup.begin(key=str(number)) for number in range(100)]
    kept = [number for number in range(100) if told[number].body is not None]
    assert kept == list(range(kept[0], 100))
    assert 55 <= len(kept) <= 64


async def test_tables_without_keys_refuse_keyed_creations_and_accept_others(database: Database) -> None:
    """New code on the tables of a release that had no such table."""
    clock = Clock(1_700_000_000_000)
    await database.write(creation_table.drop)
    catalog = CatalogStore(database, sealer=Sealer(bytes(32), entropy=os.urandom), now_ms=clock)
    creations = CreationStore(database, now_ms=clock)
    asked = KeyedCreation(wallet=ALICE, key="k", fingerprint=bytes(32))
    with pytest.raises(StorageUnavailable):
        await creations.begin(asked, claim=bytes(16))
    await catalog.publish(LISTING)
    assert await catalog.find(LISTING.id) is not None
    await database.write(creation_table.create)
    assert isinstance(await creations.begin(asked, claim=bytes(16)), CreationBegun)
