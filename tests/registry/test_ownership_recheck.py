"""The daily check of origins: when it is due, and one check for several listings of one origin."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest

from tests.kit.listings import make_challenge, sample_listing
from tests.kit.narrowing import existing
from tests.kit.stores import ControlStores
from tests.kit.waits import DEADLINE_S
from tollway.ids import Address, ListingId
from tollway.limits import Limits
from tollway.registry.listing import Listing
from tollway.registry.ownership import Challenge, Method, OwnershipClaim
from tollway.registry.ownership_recheck import OwnershipRecheck

ALICE, BOB = Address(b"\xaa" * 20), Address(b"\xbb" * 20)
ORIGIN, OTHER = "https://api.example.com", "https://other.example.com"
Look = Callable[[Challenge], Awaitable[tuple[Method, ...]]]
LIMITS = Limits(ownership_recheck_s=100.0, ownership_failures_max=2)


@dataclass
class Play:
    now_ms: int = 0
    proved: dict[str, tuple[Method, ...]] = field(default_factory=dict)
    looked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        stores = ControlStores(now_ms=lambda: self.now_ms)
        self.catalog, self.ownerships = stores.catalog, stores.ownerships
        self.recheck = self.make_rounds(self.check)

    def make_rounds(self, check: Look, *, batch_max: int = 200) -> OwnershipRecheck:
        return OwnershipRecheck(
            self.ownerships,
            challenge=make_challenge,
            check=check,
            limits=LIMITS,
            now_ms=lambda: self.now_ms,
            batch_max=batch_max,
        )

    async def check(self, challenge: Challenge) -> tuple[Method, ...]:
        self.looked.append(challenge.origin)
        return self.proved.get(challenge.origin, ())

    async def prove(self, name: str, *, origin: str = ORIGIN, provider: Address = ALICE) -> Listing:
        listing = sample_listing(id=ListingId(name), provider=provider, name=name, endpoint=origin)
        await self.catalog.publish(listing)
        challenge = make_challenge(OwnershipClaim.of(listing))
        await self.ownerships.record_check(challenge, ["dns"], now_ms=self.now_ms, failures_max=2)
        return listing


@pytest.fixture
def play() -> Play:
    return Play()


async def test_an_origin_is_checked_after_a_day(play: Play) -> None:
    await play.prove("api_1")
    play.now_ms = 100_000
    await play.recheck.check_due()
    assert play.looked == []
    play.now_ms = 100_001
    await play.recheck.check_due()
    await play.recheck.check_due()
    assert play.looked == [ORIGIN]


async def test_a_proof_stays_while_it_is_found_and_ends_after_its_failures(play: Play) -> None:
    kept, lost = await play.prove("api_1"), await play.prove("api_2", origin=OTHER)
    play.proved = {ORIGIN: ("wellKnown",)}
    for day, is_lost in ((1, False), (2, True)):
        play.now_ms += 100_001
        await play.recheck.check_due()
        standing = existing(await play.ownerships.find(kept.id))
        assert (standing.verified_ms, standing.method) == (play.now_ms, "wellKnown")
        standing = existing(await play.ownerships.find(lost.id))
        assert (standing.failures, standing.is_verified) == (day, not is_lost)
    play.looked.clear()
    play.now_ms += 100_001
    await play.recheck.check_due()
    assert play.looked == [ORIGIN], "what is proved no more is not looked at either"


async def test_listings_of_one_origin_and_wallet_share_a_check(play: Play) -> None:
    for number in range(7):
        await play.prove(f"api_{number}")
    await play.prove("api_bob", provider=BOB)
    play.now_ms = 100_001
    play.proved = {ORIGIN: ("dns",)}
    await play.recheck.check_due()
    assert play.looked == [ORIGIN, ORIGIN]
    assert await play.ownerships.find_due(before_ms=100_001, limit=99) == ()

    play.looked.clear()
    play.now_ms = 200_002
    await play.make_rounds(play.check, batch_max=3).check_due()
    assert await play.ownerships.find_due(before_ms=200_002, limit=99) == (), "every round of it"
    assert len(play.looked) == 3 + 1


async def test_the_result_for_a_changed_listing_is_not_written(play: Play) -> None:
    listing = await play.prove("api_1")
    play.now_ms = 100_001

    async def edit_meanwhile(challenge: Challenge) -> tuple[Method, ...]:
        play.looked.append(challenge.origin)
        await play.catalog.revise(replace(listing, endpoint=OTHER), expected_revision=listing.revision)
        return ("dns",)

    await play.make_rounds(edit_meanwhile).check_due()
    assert (play.looked, await play.ownerships.is_verified(listing.id)) == ([ORIGIN], False)


async def test_a_batch_without_a_written_result_ends_the_run(play: Play) -> None:
    """Its listing is edited whenever it is looked at, and stays due."""
    await play.prove("api_1")
    play.now_ms = 100_001

    async def edit_again(challenge: Challenge) -> tuple[Method, ...]:
        play.looked.append(challenge.origin)
        entry = existing(await play.catalog.find(ListingId("api_1")))
        other = replace(entry.listing, pay_to=Address(len(play.looked).to_bytes(20, "big")))
        await play.catalog.revise(other, expected_revision=entry.listing.revision)
        return ("dns",)

    async with asyncio.timeout(DEADLINE_S):
        await play.make_rounds(edit_again, batch_max=1).check_due()
    assert play.looked == [ORIGIN]


async def test_an_unexpected_failure_of_one_check_stops_no_other(play: Play) -> None:
    odd, kept = await play.prove("api_1"), await play.prove("api_2", origin=OTHER)
    play.now_ms = 100_001

    async def check(challenge: Challenge) -> tuple[Method, ...]:
        if challenge.origin == ORIGIN:
            raise RuntimeError("what is this")
        return ("dns",)

    await play.make_rounds(check).check_due()
    for listing, failures in ((odd, 1), (kept, 0)):
        known = existing(await play.ownerships.find(listing.id))
        assert (known.failures, known.is_verified) == (failures, True)
