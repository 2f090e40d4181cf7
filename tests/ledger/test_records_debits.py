"""The parts of a call after each move, and the distribution of a transfer over debts."""

import pytest

from tollway.ids import CallId
from tollway.ledger.records import CallState, allocate_to_debts, debits_after

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


@pytest.mark.parametrize(
    ("units", "shares"),
    [(0, {}), (2, {"a": 2}), (5, {"a": 5}), (6, {"a": 5, "b": 1}), (20, {"a": 5, "b": 3, "d": 4})],
)
def test_the_oldest_debt_is_paid_first(units: int, shares: dict[str, int]) -> None:
    debts = [(CallId("a"), 5), (CallId("b"), 3), (CallId("c"), 0), (CallId("d"), 4)]
    assert allocate_to_debts(units, debts=debts) == shares
