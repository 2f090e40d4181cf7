"""The budget of buffered request bodies."""

import asyncio

import pytest

from tollway.errors import Code
from tollway.limits import Limits
from tollway.web.admission import LONG_BODY_INTERVAL_S, BodyBudget


def budget(most: int = 100) -> BodyBudget:
    return BodyBudget(Limits(held_bodies_bytes_max=most, buffer_bytes=10))


def test_the_first_bytes_of_a_body_need_no_reservation() -> None:
    small = budget(0)
    for number in range(1_000):
        assert small.open(f"address {number}").reserve(10) is None
    assert small.reserved_bytes == 0


def test_reserves_until_the_budget_is_full_and_again_after_a_release() -> None:
    one = budget(100)
    bodies = [one.open(f"address {number}") for number in range(5)]
    assert [body.reserve(10 + 25) for body in bodies[:4]] == [None] * 4
    assert one.reserved_bytes == 100
    problem = bodies[4].reserve(11)
    assert problem is not None
    assert (problem.code, problem.reason, problem.retry_after_s) == (Code.OVERLOADED, "bodies", 2)
    assert problem.payment_state == "none"
    bodies[0].close()
    assert bodies[4].reserve(0) is None  # the refused body again
    assert one.reserved_bytes == 76


def test_one_address_reserves_at_most_half_of_the_budget() -> None:
    one = budget(100)
    assert one.open("a").reserve(10 + 50) is None
    assert one.open("a").reserve(10 + 1) is not None
    assert one.open("b").reserve(10 + 50) is None


def test_an_ipv6_network_counts_as_one_address() -> None:
    one = budget(100)
    assert one.open("2001:db8::1").reserve(10 + 50) is None
    assert one.open("2001:db8::2").reserve(10 + 1) is not None


@pytest.mark.parametrize("pieces", [[35], [10, 25], [1] * 35, [9, 1, 1, 24]])
def test_the_size_of_the_pieces_of_a_body_does_not_matter(pieces: list[int]) -> None:
    one = budget(100)
    body = one.open("a")
    assert [body.reserve(piece) for piece in pieces] == [None] * len(pieces)
    assert one.reserved_bytes == 25
    body.close()
    body.close()
    assert one.reserved_bytes == 0


def test_long_bodies_start_at_an_interval() -> None:
    one = budget()
    assert [one.next_delay_s(50.0) for _ in range(3)] == pytest.approx(
        [0, LONG_BODY_INTERVAL_S, 2 * LONG_BODY_INTERVAL_S]
    )
    assert one.next_delay_s(50.0 + LONG_BODY_INTERVAL_S) == pytest.approx(2 * LONG_BODY_INTERVAL_S)
    assert one.next_delay_s(60.0) == 0


async def test_a_short_body_does_not_wait() -> None:
    one = budget()
    one.next_delay_s(1_000.0)
    short = one.open("a")
    short.reserve(10)
    async with asyncio.timeout(5):
        await short.wait_interval(0.0)  # at that time a long one would wait for a quarter of an hour
