"""The budget of buffered request bodies."""

from random import Random

import pytest

from tollway.errors import Code
from tollway.limits import Limits
from tollway.web.http.admission import LONG_BODY_INTERVAL_S, BodyBudget, BodyPace, BodyReservation


def budget(most: int = 100) -> BodyBudget:
    return BodyBudget(Limits(held_bodies_bytes_max=most, buffer_bytes=10))


def test_the_first_bytes_of_a_body_need_no_reservation() -> None:
    small = budget(0)
    for number in range(1_000):
        assert small.open(f"address {number}").reserve(10) is None
    assert small.reserved_bytes == 0


def proven(one: BodyBudget, client_address: str) -> BodyReservation:
    body = one.open(client_address)
    body.prove()
    return body


def test_reserves_until_the_budget_is_full_and_again_after_a_release() -> None:
    one = budget(100)
    bodies = [proven(one, f"address {number}") for number in range(4)]
    assert [body.reserve(10 + 25) for body in bodies[:3]] == [None] * 3
    assert one.reserved_bytes == 75
    problem = bodies[3].reserve(11)
    assert problem is not None
    assert (problem.code, problem.reason, problem.retry_after_s) == (Code.OVERLOADED, "bodies", 2)
    assert problem.payment_state == "none"
    bodies[0].close()
    assert bodies[3].reserve(0) is None  # the refused body again
    assert one.reserved_bytes == 51


def test_one_address_reserves_at_most_a_quarter_of_the_budget() -> None:
    one = budget(100)
    assert proven(one, "a").reserve(10 + 25) is None
    assert proven(one, "a").reserve(10 + 1) is not None
    assert proven(one, "b").reserve(10 + 25) is None


def test_bodies_without_a_proof_leave_the_memory_of_the_others() -> None:
    one = budget(160)
    strangers = [one.open(f"address {number}") for number in range(5)]
    assert [body.reserve(10 + 10) for body in strangers[:4]] == [None] * 4
    assert strangers[4].reserve(10 + 1) is not None
    assert one.open("address 0").reserve(10 + 1) is not None  # a quarter of their quarter
    assert [proven(one, f"address {number}").reserve(10 + 40) for number in range(3)] == [None] * 3
    assert one.reserved_bytes == 160


def test_a_proof_in_the_middle_of_a_body_counts_for_its_further_bytes() -> None:
    one = budget(160)
    body = one.open("a")
    assert body.reserve(10 + 10) is None
    body.prove()
    assert body.reserve(40) is None
    assert (one.unproven.reserved_bytes, one.proven.reserved_bytes) == (10, 40)
    body.close()
    assert one.reserved_bytes == 0


def test_an_ipv6_network_counts_as_one_address() -> None:
    one = budget(100)
    assert proven(one, "2001:db8::1").reserve(10 + 25) is None
    assert proven(one, "2001:db8::2").reserve(10 + 1) is not None


@pytest.mark.parametrize("pieces", [[35], [10, 25], [1] * 35, [9, 1, 1, 24]])
def test_the_size_of_the_pieces_of_a_body_does_not_matter(pieces: list[int]) -> None:
    one = budget(100)
    body = proven(one, "a")
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
    await short.wait_interval(0.0)  # at that time a long one would wait for a quarter of an hour


PACE = Limits(body_rate_bytes_min=1_000, body_rate_grace_s=5, body_rate_window_s=10)


def test_a_body_has_the_grace_and_then_the_least_rate() -> None:
    pace = BodyPace(PACE)
    assert pace.left_s == 5
    for _ in range(1_000):
        pace.record(1_000, waited_s=1)
    assert pace.left_s == 5
    pace.record(999, waited_s=1)
    assert pace.left_s < 5


@pytest.mark.parametrize("fast_bytes", [20_000, 2_000_000, 33_000_000])
def test_a_body_that_came_fast_may_pause_for_the_window_only(fast_bytes: int) -> None:
    pace = BodyPace(PACE)
    pace.record(fast_bytes, waited_s=0.1)
    assert pace.left_s == 10
    pace.record(1, waited_s=9)  # a byte is not enough
    assert pace.left_s == pytest.approx(1.001)
    pace.record(0, waited_s=2)
    assert pace.left_s <= 0


def test_over_any_time_a_body_keeps_the_least_rate_but_for_one_window() -> None:
    draws = Random(7)
    for _ in range(200):
        pace, waited_s, sent = BodyPace(PACE), 0.0, 0
        while pace.left_s > 0:
            wait_s, size = draws.uniform(0, pace.left_s * 1.05), draws.choice((0, 1, 500, 3_000))
            pace.record(size, waited_s=wait_s)
            waited_s, sent = waited_s + wait_s, sent + size
            if sent > 100_000:
                break
            assert pace.left_s <= 0 or waited_s <= 10 + sent / 1_000
