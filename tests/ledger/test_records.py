"""The states of a call and their moves."""

from itertools import product

import pytest

from tollway.ledger.records import MOVES, TAKING, CallState, is_move_allowed

ALLOWED = {
    "forwarding": "settling consumed released unknown",
    "settling": "consumed released",
    "consumed": "reorged forwarding unknown",
    "released": "",
    "unknown": "forwarding settling released consumed",
    "reorged": "consumed",
}


@pytest.mark.parametrize(("before", "after"), list(product(CallState, CallState)))
def test_only_these_moves_are_allowed(before: CallState, after: CallState) -> None:
    assert is_move_allowed(before, after) is (after.value in ALLOWED[before.value].split())


def test_every_state_has_its_row_and_released_is_the_end() -> None:
    assert set(MOVES) == set(CallState)
    assert MOVES[CallState.RELEASED] == frozenset()


def test_what_is_neither_given_back_nor_owed_takes_from_the_balance() -> None:
    assert set(CallState) - TAKING == {CallState.RELEASED, CallState.REORGED}
