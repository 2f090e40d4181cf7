"""Rate limits of calls with the real clock: how many calls pass at once, and which callers share a count."""

from dataclasses import replace

from tests.kit.narrowing import existing
from tollway.gateway.call_rates import CallRateLimits
from tollway.ids import Address, ListingId
from tollway.limits import DEFAULT_LIMITS
from tollway.rate_limits.limiter import RateLimiter
from tollway.registry.listing import RateLimit

LIMITS = replace(DEFAULT_LIMITS, lookups_per_minute=2, free_calls_per_minute=2)
ALICE, BOB = Address(b"\x01" * 20), Address(b"\x02" * 20)
ONE, TWO = ListingId("api_1"), ListingId("api_2")


async def test_look_ups_count_per_address_and_per_signer() -> None:
    call_limits = CallRateLimits(limits=LIMITS, rate_limiter=RateLimiter())
    assert await call_limits.charge(client_address="a", signer="s") is None
    assert await call_limits.charge(client_address="a", signer="t") is None
    assert await call_limits.charge(client_address="a", signer="u") is not None
    assert await call_limits.charge(client_address="b", signer="s") is None
    assert await call_limits.charge(client_address="c", signer="s") is not None
    assert await call_limits.charge(client_address="c", signer="v") is None


async def test_a_returned_hit_does_not_count() -> None:
    call_limits = CallRateLimits(limits=LIMITS, rate_limiter=RateLimiter())
    for _ in range(5):
        assert await call_limits.charge(client_address="a", signer="s") is None
        call_limits.give_back(client_address="a", signer="s")


async def test_a_look_up_refused_for_the_signer_does_not_count_for_its_address() -> None:
    call_limits = CallRateLimits(limits=LIMITS, rate_limiter=RateLimiter())
    for address in ("a", "b"):
        assert await call_limits.charge(client_address=address, signer="s") is None
    for _ in range(5):
        assert await call_limits.charge(client_address="c", signer="s") is not None
    assert await call_limits.charge(client_address="c", signer="t") is None


async def test_look_ups_without_an_answer_have_a_limit_of_their_own() -> None:
    call_limits = CallRateLimits(limits=LIMITS, rate_limiter=RateLimiter())
    for _ in range(2):
        assert await call_limits.charge(client_address="a", signer="s") is None
        call_limits.count_unresolved(client_address="a", signer="s")
    wait_s = existing(await call_limits.charge(client_address="a", signer="t"))
    assert wait_s <= 10
    assert await call_limits.charge(client_address="b", signer="t") is None


async def test_free_calls_count_per_address_and_listing() -> None:
    call_limits = CallRateLimits(limits=LIMITS, rate_limiter=RateLimiter())
    asked = [("a", ONE), ("a", ONE), ("a", TWO), ("b", ONE)]
    assert [await call_limits.charge_free_call(*who) for who in asked] == [None] * 4
    wait_s = existing(await call_limits.charge_free_call("a", ONE))
    assert 1 <= wait_s <= 60


async def test_a_listings_rate_counts_per_payer_and_listing() -> None:
    call_limits, rate = (
        CallRateLimits(limits=LIMITS, rate_limiter=RateLimiter()),
        RateLimit(calls=1, per_s=30),
    )
    asked = [(ONE, ALICE), (ONE, BOB), (TWO, ALICE)]
    assert [await call_limits.charge_listing(rate, *who) for who in asked] == [None] * 3
    wait_s = existing(await call_limits.charge_listing(rate, ONE, ALICE))
    assert 1 <= wait_s <= 30
