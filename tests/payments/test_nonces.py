"""The predicted next nonce of a sequence, and its correction."""

import pytest

from tests.kit.settlement import make_gas_key
from tollway.ids import ChainId
from tollway.payments.nonces import NonceProgress, NonceSequence


def sequence_at(nonce: int) -> NonceSequence:
    sequence = NonceSequence(ChainId(1), make_gas_key())
    sequence.start_at(nonce)
    return sequence


def test_nonces_are_issued_in_order() -> None:
    sequence = sequence_at(7)
    assert [sequence.issue_nonce().nonce for _ in range(3)] == [7, 8, 9]


def test_a_late_read_of_the_ledger_does_not_set_the_sequence_back() -> None:
    sequence = sequence_at(7)
    sequence.issue_nonce()
    sequence.start_at(7)
    assert sequence.issue_nonce().nonce == 8


def test_the_first_of_several_refused_nonces_corrects_the_sequence() -> None:
    sequence = sequence_at(0)
    taken = [sequence.issue_nonce() for _ in range(3)]
    sequence.correct(taken[0], next_nonce=5)
    assert sequence.issue_nonce().nonce == 5
    sequence.correct(taken[1], next_nonce=5)
    assert sequence.issue_nonce().nonce == 6
    sequence.forget(taken[2])
    assert sequence.is_known


def test_an_unknown_outcome_reads_the_nonce_from_the_ledger_again() -> None:
    sequence = sequence_at(3)
    sequence.forget(sequence.issue_nonce())
    assert not sequence.is_known
    sequence.start_at(4)
    assert sequence.issue_nonce().nonce == 4


IDLE, MOVES, WAITS = (5, 5), (6, 9), (5, 9)


@pytest.mark.parametrize(
    ("looks", "is_stuck"),
    [
        ([WAITS] * 4, True),
        ([WAITS] * 3, False),
        ([IDLE] * 9, False),
        ([IDLE] * 9 + [WAITS] * 3, True),  # it began to wait after the last check that found it idle
        ([IDLE] * 9 + [WAITS] * 2, False),
        ([WAITS] * 3 + [MOVES] * 3, False),
        ([WAITS] * 9 + [MOVES], False),
        ([WAITS] * 9 + [(9, 9)], False),
        ([MOVES, WAITS] * 9, False),  # nodes that are not equally far
    ],
)
def test_a_sequence_is_stuck_when_nothing_is_mined_for_some_checks(
    looks: list[tuple[int, int]], is_stuck: bool
) -> None:
    progress = NonceProgress()
    for number, (mined_nonce, next_nonce) in enumerate(looks):
        progress.record_check(
            mined_nonce=mined_nonce, next_nonce=next_nonce, now_s=10.0 * number, interval_s=10.0
        )
    assert progress.is_stuck is is_stuck


def test_checks_in_quick_succession_and_after_a_pause_do_not_count() -> None:
    quick, still = NonceProgress(), NonceProgress()
    for number in range(20):
        quick.record_check(mined_nonce=5, next_nonce=9, now_s=number, interval_s=10.0)
        assert quick.is_stuck is False
    for now_s in (0.0, 3_600.0, 3_601.0):
        still.record_check(mined_nonce=5, next_nonce=9, now_s=now_s, interval_s=10.0)
        assert still.is_stuck is False
