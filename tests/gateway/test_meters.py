"""Rates at the passage. No clock is faked: what is asked is how many pass at once, and who shares a count."""

from dataclasses import replace

import pytest

from tollway.gateway import meters as room
from tollway.gateway.meters import Meters
from tollway.identifiers import Address, ListingId
from tollway.limits import DEFAULT_LIMITS
from tollway.registry.listing import RateLimit

LIMITS = replace(
    DEFAULT_LIMITS,
    lookups_per_minute=2,
    free_calls_per_minute=2,
    failed_calls_per_window=2,
    failed_calls_window_s=60,
)
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


@pytest.mark.parametrize(
    ("payer", "client_address", "listing_id", "is_refused"),
    [
        (ALICE, "a", ONE, True),
        (ALICE, "b", ONE, True),
        (BOB, "a", ONE, True),
        (BOB, "b", ONE, False),
        (ALICE, "a", TWO, False),
    ],
)
def test_failures_count_per_wallet_and_per_address_on_one_listing(
    payer: Address, client_address: str, listing_id: ListingId, is_refused: bool
) -> None:
    meters = Meters(limits=LIMITS)
    for _ in range(2):
        who = {"payer": payer, "client_address": client_address, "listing_id": listing_id}
        assert meters.failed_budget_wait_s(**who) is None  # type: ignore[arg-type]
        meters.note_failed(payer=ALICE, client_address="a", listing_id=ONE)
    wait_s = meters.failed_budget_wait_s(payer=payer, client_address=client_address, listing_id=listing_id)
    assert (wait_s is not None) == is_refused


def test_looking_at_the_budget_uses_none_of_it() -> None:
    meters = Meters(limits=LIMITS)
    meters.note_failed(payer=ALICE, client_address="a", listing_id=ONE)
    for _ in range(5):
        assert meters.failed_budget_wait_s(payer=ALICE, client_address="a", listing_id=ONE) is None


def test_a_crowd_of_failures_lets_nobody_recent_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "FAILING_KEYS_MAX", 6)
    meters = Meters(limits=LIMITS)
    for _ in range(2):
        meters.note_failed(payer=ALICE, client_address="a", listing_id=ONE)
    for number in range(2):
        meters.note_failed(
            payer=Address(bytes([number]) * 20),
            client_address=f"x{number}",
            listing_id=ListingId(f"y{number}"),
        )
    assert meters.failed_budget_wait_s(payer=ALICE, client_address="a", listing_id=ONE) is not None
