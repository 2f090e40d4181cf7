"""The rate limiter: its windows, its buckets of client addresses, and the windows that gateways share."""

import asyncio
import time
from typing import cast

import pytest
from limits import RateLimitItem, RateLimitItemPerMinute

from tests.kit.gateway import open_gateway
from tests.kit.upstream import plain
from tollway.gateway.call_rates import CallRateLimits
from tollway.ids import ListingId
from tollway.limits import Limits
from tollway.rate_limits.limiter import RateAllowance, RateLimiter, client_bucket
from tollway.rate_limits.redis_windows import RedisWindows, RedisWindowState
from tollway.registry.listing import RateLimit
from tollway.web.http.admission import LoadShedder

TWICE = RateLimitItemPerMinute(2)


async def test_a_request_over_the_limit_is_refused_and_does_not_count() -> None:
    rate_limiter = RateLimiter()
    assert [await rate_limiter.hit(TWICE, "a") for _ in range(2)] == [None, None]
    waits = [await rate_limiter.hit(TWICE, "a") for _ in range(3)]
    assert all(wait is not None and 1 <= wait <= 60 for wait in waits)
    assert await rate_limiter.hit(TWICE, "b") is None


async def test_a_peek_counts_nothing() -> None:
    rate_limiter = RateLimiter()
    assert [await rate_limiter.peek(TWICE, "a") for _ in range(5)] == [RateAllowance(left=2, wait_s=None)] * 5
    await rate_limiter.hit(TWICE, "a")
    assert await rate_limiter.peek(TWICE, "a") == RateAllowance(left=1, wait_s=None)
    await rate_limiter.hit(TWICE, "a")
    allowance = await rate_limiter.peek(TWICE, "a")
    assert (allowance.left, allowance.wait_s is not None) == (0, True)
    assert (await rate_limiter.peek(TWICE, "b")).left == 2


async def test_a_recorded_hit_counts() -> None:
    rate_limiter = RateLimiter()
    for _ in range(3):
        rate_limiter.count_hit(TWICE, "a")
    assert await rate_limiter.hit(TWICE, "a") is not None


@pytest.mark.parametrize(
    ("address", "bucket"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("unknown", "unknown"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
    ],
)
def test_a_whole_ipv6_network_is_one_client(address: str, bucket: str) -> None:
    assert client_bucket(address) == bucket


async def test_neighbours_in_one_ipv6_network_share_their_look_ups_and_free_calls() -> None:
    call_limits = CallRateLimits(
        limits=Limits(lookups_per_minute=2, free_calls_per_minute=2), rate_limiter=RateLimiter()
    )
    looked = [await call_limits.charge(client_address=f"2001:db8::{n}", signer=f"s{n}") for n in range(1, 4)]
    called = [await call_limits.charge_free_call(f"2001:db8::{n}", ListingId("api_1")) for n in range(1, 4)]
    for waits in (looked, called):
        assert waits[:2] == [None, None]
        assert waits[2] is not None


def test_neighbours_in_one_ipv6_network_share_their_requests_at_once() -> None:
    gauge = LoadShedder(
        limits=Limits(in_flight_per_address_max=2), clock=lambda: 0.0, read_memory_bytes=lambda: 0
    )
    assert [gauge.enter(f"2001:db8::{n}") is None for n in range(1, 4)] == [True, True, False]
    gauge.leave("2001:db8::1")
    assert gauge.enter("2001:db8::9") is None


# ---- Windows that gateways share.


class OtherGateways:
    """A shared server. `allowed` None: it is unavailable."""

    def __init__(self, allowed: bool | None, *, left: int = 0, reset_s: float | None = None) -> None:
        self.allowed = allowed
        self.left = left
        self.reset_s = reset_s
        self.asked: list[str] = []

    async def hit(self, item: RateLimitItem, *key: str) -> bool | None:
        self.asked.append("hit")
        return self.allowed

    async def peek(self, item: RateLimitItem, *key: str) -> RedisWindowState | None:
        self.asked.append("look")
        reset_s = time.time() + 30 if self.reset_s is None else self.reset_s
        return None if self.allowed is None else RedisWindowState(left=self.left, reset_s=reset_s)

    def count_hit(self, item: RateLimitItem, *key: str) -> None:
        self.asked.append("note")

    def undo_hit(self, item: RateLimitItem, *key: str) -> None:
        self.asked.append("give back")


def beside(others: OtherGateways) -> RateLimiter:
    return RateLimiter(cast(RedisWindows, others))


async def test_a_hit_that_the_server_refuses_counts_nowhere() -> None:
    others = OtherGateways(allowed=False)
    rate_limiter = beside(others)
    for _ in range(5):
        wait_s = await rate_limiter.hit(TWICE, "a")
        assert wait_s is not None
        assert 1 <= wait_s <= 31
    others.allowed = None
    assert [await rate_limiter.hit(TWICE, "a") for _ in range(2)] == [None, None]


async def test_without_the_server_this_process_counts_alone() -> None:
    rate_limiter = beside(OtherGateways(allowed=None))
    assert [await rate_limiter.hit(TWICE, "a") is None for _ in range(3)] == [True, True, False]


async def test_hits_during_an_outage_count_after_it() -> None:
    others = OtherGateways(allowed=None)
    rate_limiter = beside(others)
    for _ in range(2):
        await rate_limiter.hit(TWICE, "a")
    others.allowed, others.left = True, 2
    others.asked.clear()
    assert await rate_limiter.hit(TWICE, "a") is not None
    assert others.asked == []  # a hit that is refused here sends nothing to the server
    assert (await rate_limiter.peek(TWICE, "a")).left == 0


async def test_shared_hits_count_in_this_process_after_the_server_is_gone() -> None:
    others = OtherGateways(allowed=True)
    rate_limiter = beside(others)
    for _ in range(2):
        assert await rate_limiter.hit(TWICE, "a") is None
    others.allowed = None
    assert await rate_limiter.hit(TWICE, "a") is not None


@pytest.mark.parametrize(
    ("elsewhere", "here", "left"), [(0, 0, 0), (1, 0, 1), (2, 1, 1), (1, 2, 0), (2, 0, 2)]
)
async def test_the_smaller_rest_counts(elsewhere: int, here: int, left: int) -> None:
    rate_limiter = beside(OtherGateways(allowed=True, left=elsewhere))
    for _ in range(here):
        rate_limiter.count_hit(TWICE, "a")
    allowance = await rate_limiter.peek(TWICE, "a")
    assert (allowance.left, allowance.wait_s is None) == (left, left > 0)


async def test_a_clock_set_back_elsewhere_gives_no_wait_longer_than_the_window() -> None:
    rate_limiter = beside(OtherGateways(allowed=False, reset_s=time.time() + 3_600))
    assert await rate_limiter.hit(TWICE, "a") == 60


async def test_requests_that_waited_for_a_lost_server_get_the_limit_of_one_process() -> None:
    class Slow(OtherGateways):
        async def hit(self, item: RateLimitItem, *key: str) -> bool | None:
            await asyncio.sleep(0)
            return None

    rate_limiter = beside(Slow(allowed=None))
    waits = await asyncio.gather(*(rate_limiter.hit(TWICE, "a") for _ in range(10)))
    assert [wait_s is None for wait_s in waits].count(True) == 2


async def test_a_recorded_hit_is_sent_to_the_server() -> None:
    others = OtherGateways(allowed=True)
    beside(others).count_hit(TWICE, "a")
    assert others.asked == ["note"]


async def test_a_returned_hit_is_returned_here_and_at_the_server() -> None:
    others = OtherGateways(allowed=True, left=2)
    rate_limiter = beside(others)
    for _ in range(5):
        assert await rate_limiter.hit(TWICE, "a") is None
        rate_limiter.undo_hit(TWICE, "a")
    assert others.asked == ["hit", "give back"] * 5


# ---- At a gateway: which calls send requests to the server.


async def test_a_call_on_credit_sends_nothing_to_the_server_and_one_with_a_listings_rate_one_request() -> (
    None
):
    others = OtherGateways(allowed=True, left=9)
    async with open_gateway(rate_limiter=beside(others)) as gateway:
        await gateway.publish()
        proof = gateway.plain_proof((await gateway.pay(100_000)).tx_hash)
        assert [(await gateway.ask("GET", "/quote?x=1", proof)).status for _ in range(3)] == [200] * 3
        assert others.asked == []
        limited = {"listing": "api_limited"}
        await gateway.publish("api_limited", rate_limit=RateLimit(calls=9, per_s=60))
        assert (await gateway.ask("GET", "/quote?x=1", proof, **limited)).status == 200
        assert others.asked == ["hit"]


async def test_the_server_is_read_only_for_callers_with_recent_failures() -> None:
    others = OtherGateways(allowed=True, left=9)
    async with open_gateway(rate_limiter=beside(others)) as gateway:
        await gateway.publish()
        proof = gateway.plain_proof((await gateway.pay(100_000)).tx_hash)
        gateway.upstream.answer = plain(status=500)
        await gateway.ask("POST", "/quote?x=1", proof)
        assert (
            others.asked == ["note"] * 4
        )  # for the wallet and for the address, at this listing and at all listings
        gateway.upstream.answer = plain()
        others.asked.clear()
        assert (await gateway.ask("POST", "/quote?x=1", proof)).status == 200
        assert others.asked == ["look"] * 4
        others.asked.clear()
        gateway.now_ms += gateway.limits.failed_calls_window_s * 1000 + 1
        assert (await gateway.ask("POST", "/quote?x=1", proof)).status == 200
        assert others.asked == []


async def test_a_caller_with_failures_elsewhere_is_refused_after_its_first_failure_here() -> None:
    others = OtherGateways(allowed=True, left=0)
    async with open_gateway(rate_limiter=beside(others)) as gateway:
        await gateway.publish()
        proof = gateway.plain_proof((await gateway.pay(100_000)).tx_hash)
        gateway.upstream.answer = plain(status=500)
        first, second = [await gateway.ask("POST", "/quote?x=1", proof) for _ in range(2)]
        assert first.status == 500
        assert (second.status, second.problem["code"]) == (429, "failed_call_budget_exhausted")
