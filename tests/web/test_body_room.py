"""Bodies that are held whole share one room: a table of numbers."""

import asyncio

import pytest

from tollway.errors import Code
from tollway.limits import Limits
from tollway.web.body_room import PACE_S, BodyRoom


def room(most: int = 100) -> BodyRoom:
    return BodyRoom(Limits(held_bodies_bytes_max=most, buffer_bytes=10))


def test_the_first_bytes_of_a_body_take_no_room() -> None:
    small = room(0)
    for number in range(1_000):
        assert small.open(f"address {number}").hold(10) is None
    assert small.taken == 0


def test_bodies_are_held_until_the_room_is_full_and_again_when_one_has_left() -> None:
    one = room(100)
    bodies = [one.open(f"address {number}") for number in range(5)]
    assert [body.hold(10 + 25) for body in bodies[:4]] == [None] * 4
    assert one.taken == 100
    problem = bodies[4].hold(11)
    assert problem is not None
    assert (problem.code, problem.reason, problem.retry_after_s) == (Code.OVERLOADED, "bodies", 2)
    assert problem.payment_state == "none"
    bodies[0].close()
    assert bodies[4].hold(0) is None  # what was refused is asked for again
    assert one.taken == 76


def test_one_address_never_has_more_than_half() -> None:
    one = room(100)
    assert one.open("a").hold(10 + 50) is None
    assert one.open("a").hold(10 + 1) is not None
    assert one.open("b").hold(10 + 50) is None


def test_a_network_of_ipv6_is_one_address() -> None:
    one = room(100)
    assert one.open("2001:db8::1").hold(10 + 50) is None
    assert one.open("2001:db8::2").hold(10 + 1) is not None


@pytest.mark.parametrize("pieces", [[35], [10, 25], [1] * 35, [9, 1, 1, 24]])
def test_it_does_not_matter_in_how_many_pieces_a_body_comes(pieces: list[int]) -> None:
    one = room(100)
    body = one.open("a")
    assert [body.hold(piece) for piece in pieces] == [None] * len(pieces)
    assert one.taken == 25
    body.close()
    body.close()
    assert one.taken == 0


def test_long_bodies_have_their_turns_at_a_pace() -> None:
    one = room()
    assert [one.find_delay_s(50.0) for _ in range(3)] == pytest.approx([0, PACE_S, 2 * PACE_S])
    assert one.find_delay_s(50.0 + PACE_S) == pytest.approx(2 * PACE_S)
    assert one.find_delay_s(60.0) == 0


async def test_a_short_body_waits_for_nobody() -> None:
    one = room()
    one.find_delay_s(1_000.0)
    short = one.open("a")
    short.hold(10)
    async with asyncio.timeout(5):
        await short.wait_turn(0.0)  # at that time a long one would wait for a quarter of an hour
