"""The parts of a call after each move, and the distribution of a transfer over debts."""

import pytest

from tollway.ledger.records import CallState, debits_after

CONSUMED, RELEASED, UNKNOWN, REORGED = (
    CallState.CONSUMED,
    CallState.RELEASED,
    CallState.UNKNOWN,
    CallState.REORGED,
)


@pytest.mark.parametrize(
    ("after", "gone", "ends", "kept"),
    [
        (CONSUMED, set(), CONSUMED, {1: 6, 2: 4}),
        (RELEASED, set(), RELEASED, {}),
        (UNKNOWN, set(), UNKNOWN, {1: 6, 2: 4}),
        (CONSUMED, {1}, REORGED, {2: 4}),
        (CONSUMED, {2}, REORGED, {1: 6}),
        (CONSUMED, {1, 2}, REORGED, {}),
        (CONSUMED, {3}, CONSUMED, {1: 6, 2: 4}),
        (RELEASED, {1}, RELEASED, {}),
        (UNKNOWN, {1}, UNKNOWN, {1: 6, 2: 4}),
    ],
)
def test_what_a_call_holds_after_a_move(
    after: CallState, gone: set[int], ends: CallState, kept: dict[int, int]
) -> None:
    holding = debits_after(after, parts={1: 6, 2: 4}, price_units=10, gone=gone)
    assert (holding.state, dict(holding.parts)) == (ends, kept)
