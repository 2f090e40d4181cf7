"""The contract of `Ownerships`, on SQLite and on PostgreSQL."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count

import pytest

from tests.kit.listings import make_challenge, sample_listing
from tests.kit.narrowing import existing, of_type
from tollway.ids import Address, ChainId, ListingId
from tollway.outbound.policy import Endpoint, parse_endpoint
from tollway.registry.catalog import Catalog, Revised
from tollway.registry.listing import Listing
from tollway.registry.ownership import Challenge, Method, OriginOwner, Ownership, OwnershipClaim, Ownerships
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.catalog.reputation_store import FRESH_MS, OwnershipStore
from tollway.storage.engine.database import Database
from tollway.storage.engine.encryption import Sealer

ALICE, BOB = Address(b"\xaa" * 20), Address(b"\xbb" * 20)
ORIGIN, OTHER = "https://api.example.com", "https://other.example.com"
BORN_MS = 1_700_000_000_000
SEALER = Sealer(b"k" * 32, entropy=lambda size: b"\0" * size)
_NUMBERS = count(1)


@dataclass
class Harness:
    catalog: Catalog
    ownerships: Ownerships
    now_ms: int = BORN_MS

    async def publish(self, *, endpoint: str = ORIGIN + "/v1", provider: Address = ALICE) -> Listing:
        number = next(_NUMBERS)
        listing = sample_listing(
            id=ListingId(f"api_{number:026d}"),
            provider=provider,
            name="API",
            endpoint=endpoint,
            networks=(ChainId(8453), ChainId(10)),
            created_ms=BORN_MS + number,
        )
        await self.catalog.publish(listing)
        return listing

    async def edit(self, listing: Listing, **changes: object) -> Listing:
        entry = existing(await self.catalog.find(listing.id))
        changed = replace(entry.listing, **changes)  # type: ignore[arg-type] # the fields that a test names
        outcome = await self.catalog.revise(changed, expected_revision=entry.listing.revision)
        return of_type(Revised, outcome).listing

    async def check(self, listing: Listing, *proved: Method, now_ms: int = 1) -> Ownership | None:
        return await self.ownerships.record_check(about(listing), proved, now_ms=now_ms, failures_max=7)


def about(listing: Listing) -> Challenge:
    endpoint = of_type(Endpoint, parse_endpoint(listing.endpoint, allow_private=True))
    plain = make_challenge(OwnershipClaim.of(listing))
    return replace(plain, origin=endpoint.origin, host=endpoint.host)


@pytest.fixture
def harness(database: Database) -> Harness:
    harness = Harness(
        catalog=CatalogStore(database, sealer=SEALER, now_ms=lambda: harness.now_ms),
        ownerships=OwnershipStore(database, now_ms=lambda: harness.now_ms),
    )
    return harness


async def test_finds_the_result_of_a_check_again(harness: Harness) -> None:
    listing = await harness.publish()
    assert await harness.ownerships.find(listing.id) is None
    assert await harness.ownerships.find(ListingId("api_nothing")) is None
    for proved in ((), ("signature",), ("dns", "wellKnown"), ()):
        noted = await harness.check(listing, *proved, now_ms=7)  # type: ignore[arg-type] # a row of the table above
        assert noted is not None
        assert await harness.ownerships.find(listing.id) == noted
    assert noted == Ownership(
        origin=ORIGIN, method="wellKnown", signer=None, verified_ms=7, checked_ms=7, failures=1
    )


async def test_the_count_of_failures_is_kept_and_the_seventh_ends_a_proof(harness: Harness) -> None:
    listing = await harness.publish()
    await harness.check(listing, "dns")
    for failures in range(1, 8):
        known = existing(await harness.check(listing))
        assert (known.failures, known.is_verified) == (failures, failures < 7)


EDITS: list[tuple[Method, dict[str, object], bool]] = [
    ("dns", {"endpoint": ORIGIN + "/v2"}, True),
    ("dns", {"name": "Other"}, True),
    ("dns", {"pay_to": BOB}, True),
    ("dns", {"endpoint": "https://other.example.com/v1"}, False),
    ("wellKnown", {"endpoint": "http://api.example.com/v1"}, False),
    ("wellKnown", {"endpoint": ORIGIN + ":8443/v1"}, False),
    ("signature", {"name": "Other"}, True),
    ("signature", {"pay_to": BOB}, False),
    ("dns", {"retired_ms": 5}, False),
    ("dns", {"suspended_ms": 5}, True),
]


async def test_an_edit_of_the_origin_ends_its_proof(harness: Harness) -> None:
    for method, changes, is_kept in EDITS:
        listing = await harness.publish()
        await harness.check(listing, method)
        await harness.edit(listing, **changes)
        assert (await harness.ownerships.find(listing.id) is not None) is is_kept, (method, changes)
        assert await harness.ownerships.is_verified(listing.id) is is_kept, (method, changes)


async def test_an_ended_proof_does_not_come_back_with_the_old_origin(harness: Harness) -> None:
    listing = await harness.publish()
    await harness.check(listing, "dns")
    await harness.edit(listing, endpoint="https://other.example.com/v1")
    assert not await harness.ownerships.is_verified(listing.id)
    await harness.edit(listing, endpoint=listing.endpoint)
    assert not await harness.ownerships.is_verified(listing.id)


async def test_what_was_found_out_about_an_older_state_is_not_written(harness: Harness) -> None:
    edits: list[dict[str, object]] = [{"endpoint": f"{OTHER}/v1"}, {"pay_to": BOB}, {"retired_ms": 5}]
    for changes in edits:
        listing = await harness.publish()
        asked = about(listing)
        await harness.edit(listing, **changes)
        assert await harness.ownerships.record_check(asked, ["dns"], now_ms=1, failures_max=7) is None
        assert await harness.ownerships.find(listing.id) is None, changes


async def test_the_longest_unchecked_proofs_are_due_first_and_only_proofs(harness: Harness) -> None:
    late, early, unproved, recent = [await harness.publish() for _ in range(4)]
    await harness.check(late, "dns", now_ms=20)
    await harness.check(early, "signature", now_ms=10)
    await harness.check(unproved, now_ms=1)
    await harness.check(recent, "dns", now_ms=30)
    both = [OwnershipClaim.of(one) for one in (early, late)]
    assert list(await harness.ownerships.find_due(before_ms=30, limit=10)) == both
    assert list(await harness.ownerships.find_due(before_ms=30, limit=1)) == both[:1]


async def test_the_oldest_listing_with_a_proof_holds_its_origin(harness: Harness) -> None:
    first, second = await harness.publish(provider=ALICE), await harness.publish(provider=BOB)
    elsewhere = await harness.publish(provider=BOB, endpoint="https://other.example.com")
    await harness.check(elsewhere, "dns")
    await harness.check(first)
    assert await harness.ownerships.find_owner(ORIGIN) is None
    await harness.check(second, "dns")
    assert await harness.ownerships.find_owner(ORIGIN) == owner(second)
    await harness.check(first, "dns")
    assert await harness.ownerships.find_owner(ORIGIN) == owner(first)
    await harness.edit(first, suspended_ms=5)
    assert await harness.ownerships.find_owner(ORIGIN) == owner(second)
    await harness.edit(first, suspended_ms=None)
    assert await harness.ownerships.find_owner(ORIGIN) == owner(first)
    await harness.edit(first, retired_ms=5)
    assert await harness.ownerships.find_owner(ORIGIN) == owner(second)


def owner(listing: Listing) -> OriginOwner:
    return OriginOwner(listing_id=listing.id, provider=listing.provider)


# ---- Listings of an endpoint that another wallet has proved.


async def find_owned(harness: Harness, listings: Mapping[str, Listing]) -> str:
    """The names of the listings whose endpoint another wallet owns."""
    reputations = {name: await harness.catalog.reputation(one.id) for name, one in listings.items()}
    return " ".join(name for name, one in reputations.items() if one.is_owned_by_another)


async def test_an_unproved_listing_says_whether_another_wallet_owns_its_endpoint(harness: Harness) -> None:
    """Each step is followed by the listings that another wallet owns. `a…` are of Alice, `b…` of Bob."""
    listings: dict[str, Listing] = {}

    async def publish(name: str, endpoint: str = ORIGIN + "/v1") -> None:
        provider = ALICE if name.startswith("a") else BOB
        listings[name] = await harness.publish(provider=provider, endpoint=endpoint)

    async def edit(name: str, **changes: object) -> None:
        listings[name] = await harness.edit(listings[name], **changes)

    async def check(name: str, *proved: Method) -> None:
        await harness.check(listings[name], *proved)

    async def is_owned(names: str) -> bool:
        return await find_owned(harness, listings) == names

    await publish("a")
    await publish("b")
    await publish("b-elsewhere", "https://other.example.com/v1")
    assert await is_owned("")
    await check("a", "dns")
    assert await is_owned("b"), "the proof counts for listings that were there"
    await publish("a-later", ORIGIN + "/v2")
    await publish("b-later", ORIGIN + "/v2")
    assert await is_owned("b b-later"), "and for those that come"
    await edit("b-later", endpoint="https://third.example.com")
    assert await is_owned("b")
    await edit("b-elsewhere", endpoint=ORIGIN)
    assert await is_owned("b b-elsewhere")
    await check("b")
    assert await is_owned("b b-elsewhere"), "a check that finds nothing"
    await check("b", "wellKnown")
    assert await is_owned("b-elsewhere"), "a proof of its own"
    await edit("a", suspended_ms=5)
    assert await is_owned("a-later"), "the operator has suspended the owner, and the next one counts"
    await edit("a", suspended_ms=None)
    assert await is_owned("b-elsewhere")
    for _ in range(7):
        await check("a")
    assert await is_owned("a a-later"), "its proof has ended"
    await edit("b", endpoint="https://fourth.example.com")
    assert await is_owned("")
    await check("a", "dns")
    assert await is_owned("b-elsewhere")
    await edit("a", retired_ms=5)
    assert await is_owned("")


async def test_a_proof_and_a_listing_at_the_same_time_find_each_other(harness: Harness) -> None:
    for number in range(12):
        origin = f"https://race-{number}.example.com"
        first = await harness.publish(endpoint=origin)
        there = await harness.publish(endpoint=origin, provider=BOB)
        await harness.check(there)
        _, _, late = await asyncio.gather(
            harness.check(first, "dns"),
            harness.check(there),
            harness.publish(endpoint=origin, provider=BOB),
        )
        assert await find_owned(harness, {"first": first, "there": there, "late": late}) == "there late"


async def test_two_wallets_that_prove_an_origin_at_the_same_time_own_no_proved_listing(
    harness: Harness,
) -> None:
    for number in range(12):
        origin = f"https://race-{number}.example.com"
        of_alice, of_bob = [await harness.publish(endpoint=origin, provider=one) for one in (ALICE, BOB)]
        more = await harness.publish(endpoint=origin, provider=BOB)
        await asyncio.gather(harness.check(of_alice, "dns"), harness.check(of_bob, "dns"))
        assert await find_owned(harness, {"alice": of_alice, "bob": of_bob, "more": more}) == "more"


async def test_a_proof_is_seen_at_once_here_and_within_a_second_elsewhere(harness: Harness) -> None:
    listing = await harness.publish()
    assert not await harness.ownerships.is_verified(listing.id)
    await harness.check(listing, "dns")
    assert await harness.ownerships.is_verified(listing.id)
    await harness.edit(listing, endpoint="https://other.example.com/v1")  # as by another gateway
    harness.now_ms += FRESH_MS
    assert not await harness.ownerships.is_verified(listing.id)
