"""Sliding windows, and whom a client address is counted as."""

import pytest
from limits import RateLimitItemPerMinute

from tollway.gateway.meters import Meters
from tollway.identifiers import ListingId
from tollway.limits import Limits
from tollway.rates import Rates, Room, name_crowd
from tollway.web.load_gauge import LoadGauge

TWICE = RateLimitItemPerMinute(2)


async def test_one_too_many_waits_and_does_not_count() -> None:
    rates = Rates()
    assert [await rates.hit(TWICE, "a") for _ in range(2)] == [None, None]
    waits = [await rates.hit(TWICE, "a") for _ in range(3)]
    assert all(wait is not None and 1 <= wait <= 60 for wait in waits)
    assert await rates.hit(TWICE, "b") is None


async def test_looking_counts_nothing() -> None:
    rates = Rates()
    assert [await rates.look(TWICE, "a") for _ in range(5)] == [Room(left=2, wait_s=None)] * 5
    await rates.hit(TWICE, "a")
    assert await rates.look(TWICE, "a") == Room(left=1, wait_s=None)
    await rates.hit(TWICE, "a")
    room = await rates.look(TWICE, "a")
    assert (room.left, room.wait_s is not None) == (0, True)
    assert (await rates.look(TWICE, "b")).left == 2


async def test_what_is_noted_counts() -> None:
    rates = Rates()
    for _ in range(3):
        rates.note(TWICE, "a")
    assert await rates.hit(TWICE, "a") is not None


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


async def test_neighbours_in_one_ipv6_network_share_their_look_ups_and_free_calls() -> None:
    meters = Meters(limits=Limits(lookups_per_minute=2, free_calls_per_minute=2), rates=Rates())
    looked = [await meters.charge(client_address=f"2001:db8::{n}", signer=f"s{n}") for n in range(1, 4)]
    called = [await meters.charge_free_call(f"2001:db8::{n}", ListingId("api_1")) for n in range(1, 4)]
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
