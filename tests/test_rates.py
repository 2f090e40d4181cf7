"""Sliding windows, and whom a client address is counted as."""

import pytest
from limits import RateLimitItemPerMinute

from tollway.gateway.meters import Meters
from tollway.identifiers import ListingId
from tollway.limits import Limits
from tollway.rates import Rates, name_crowd
from tollway.web.load_gauge import LoadGauge

TWICE = RateLimitItemPerMinute(2)


def test_one_too_many_waits_and_does_not_count() -> None:
    rates = Rates()
    assert [rates.hit(TWICE, "a") for _ in range(2)] == [None, None]
    waits = [rates.hit(TWICE, "a") for _ in range(3)]
    assert all(wait is not None and 1 <= wait <= 60 for wait in waits)
    assert rates.hit(TWICE, "b") is None


def test_asking_counts_nothing() -> None:
    rates = Rates()
    assert [rates.wait_s(TWICE, "a") for _ in range(5)] == [None] * 5
    rates.hit(TWICE, "a")
    rates.hit(TWICE, "a")
    assert rates.wait_s(TWICE, "a") is not None


def test_tells_how_many_are_left() -> None:
    rates = Rates()
    assert rates.left(TWICE, "a") == 2
    rates.hit(TWICE, "a")
    assert (rates.left(TWICE, "a"), rates.left(TWICE, "b")) == (1, 2)


@pytest.mark.parametrize(
    ("address", "crowd"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("unknown", "unknown"),
    ],
)
def test_a_whole_ipv6_network_is_one_client(address: str, crowd: str) -> None:
    assert name_crowd(address) == crowd


def test_neighbours_in_one_ipv6_network_share_their_look_ups_and_free_calls() -> None:
    meters = Meters(limits=Limits(lookups_per_minute=2, free_calls_per_minute=2))
    looked = [meters.charge(client_address=f"2001:db8::{n}", signer=f"s{n}") for n in range(1, 4)]
    called = [meters.charge_free_call(f"2001:db8::{n}", ListingId("api_1")) for n in range(1, 4)]
    for waits in (looked, called):
        assert waits[:2] == [None, None]
        assert waits[2] is not None


def test_neighbours_in_one_ipv6_network_share_their_requests_at_once() -> None:
    gauge = LoadGauge(
        limits=Limits(in_flight_per_address_max=2), clock=lambda: 0.0, read_memory_bytes=lambda: 0
    )
    assert [gauge.enter(f"2001:db8::{n}") is None for n in range(1, 4)] == [True, True, False]
    gauge.leave("2001:db8::1")
    assert gauge.enter("2001:db8::9") is None
