"""A lane's guess of the next nonce, and how it is put right."""

from tollway.identifiers import ChainId
from tollway.payments.gas_lane import GasLane
from tollway.testing.settling_scene import make_gas_key


def lane_at(nonce: int) -> GasLane:
    lane = GasLane(ChainId(1), make_gas_key())
    lane.start_at(nonce)
    return lane


def test_nonces_are_given_out_in_order() -> None:
    lane = lane_at(7)
    assert [lane.take().nonce for _ in range(3)] == [7, 8, 9]


def test_whoever_asks_the_books_late_does_not_turn_it_back() -> None:
    lane = lane_at(7)
    lane.take()
    lane.start_at(7)
    assert lane.take().nonce == 8


def test_of_several_that_were_refused_together_the_first_corrects() -> None:
    lane = lane_at(0)
    taken = [lane.take() for _ in range(3)]
    lane.correct(taken[0], next_nonce=5)
    assert lane.take().nonce == 5
    lane.correct(taken[1], next_nonce=5)
    assert lane.take().nonce == 6
    lane.forget(taken[2])
    assert lane.is_known


def test_an_unknown_end_makes_it_ask_the_books_again() -> None:
    lane = lane_at(3)
    lane.forget(lane.take())
    assert not lane.is_known
    lane.start_at(4)
    assert lane.take().nonce == 4
