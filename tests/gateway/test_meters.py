"""Rates at the passage. No clock is faked: what is asked is how many pass at once, and who shares a count."""

from dataclasses import replace

from tollway.gateway.meters import Meters
from tollway.identifiers import Address, ListingId
from tollway.limits import DEFAULT_LIMITS
from tollway.registry.listing import RateLimit

LIMITS = replace(DEFAULT_LIMITS, lookups_per_minute=2, free_calls_per_minute=2)
ALICE, BOB = Address(b"\x01" * 20), Address(b"\x02" * 20)
ONE, TWO = ListingId("api_1"), ListingId("api_2")


def test_look_ups_count_per_address_and_per_signer() -> None:
    meters = Meters(limits=LIMITS)
    assert meters.charge(client_address="a", signer="s") is None
    assert meters.charge(client_address="a", signer="t") is None
    assert meters.charge(client_address="a", signer="u") is not None
    assert meters.charge(client_address="b", signer="s") is None
    assert meters.charge(client_address="c", signer="s") is not None
    assert meters.charge(client_address="c", signer="v") is None


def test_free_calls_count_per_address_and_listing() -> None:
    meters = Meters(limits=LIMITS)
    asked = [("a", ONE), ("a", ONE), ("a", TWO), ("b", ONE)]
    assert [meters.charge_free_call(*who) for who in asked] == [None] * 4
    wait_s = meters.charge_free_call("a", ONE)
    assert wait_s is not None
    assert 1 <= wait_s <= 60


def test_a_listings_rate_counts_per_payer_and_listing() -> None:
    meters, rate = Meters(limits=LIMITS), RateLimit(calls=1, per_s=30)
    asked = [(ONE, ALICE), (ONE, BOB), (TWO, ALICE)]
    assert [meters.charge_listing(rate, *who) for who in asked] == [None] * 3
    wait_s = meters.charge_listing(rate, ONE, ALICE)
    assert wait_s is not None
    assert 1 <= wait_s <= 30
