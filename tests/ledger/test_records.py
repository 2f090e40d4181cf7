"""The states of a call and their moves."""

from tollway.ledger.records import MOVES, TAKING, CallState, is_move_allowed

ALLOWED = {
    "forwarding": "settling consumed released unknown",
    "settling": "consumed released",
    "consumed": "reorged forwarding unknown",
    "released": "",
    "unknown": "forwarding settling released consumed",
    "reorged": "consumed",
}


def test_only_these_moves_are_allowed() -> None:
    allowed = {
        before.value: {after.value for after in CallState if is_move_allowed(before, after)}
        for before in CallState
    }
    assert allowed == {before: set(states.split()) for before, states in ALLOWED.items()}


def test_every_state_has_its_row_and_released_is_the_end() -> None:
    assert set(MOVES) == set(CallState)
    assert MOVES[CallState.RELEASED] == frozenset()


def test_what_is_neither_given_back_nor_owed_takes_from_the_balance() -> None:
    assert set(CallState) - TAKING == {CallState.RELEASED, CallState.REORGED}
