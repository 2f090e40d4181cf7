"""What becomes of a call when its settlement is decided."""

from itertools import product

import pytest

from tollway.ledger.settled import Ending, judge_ending


@pytest.mark.parametrize(
    ("is_adrift", "has_answer", "method", "ending"),
    [
        (False, False, "POST", Ending.BOUGHT),
        (False, True, "GET", Ending.BOUGHT),
        (True, True, "POST", Ending.BOUGHT),
        (True, True, "GET", Ending.BOUGHT),
        (True, False, "GET", Ending.LOST),
        (True, False, "HEAD", Ending.LOST),
        (True, False, "POST", Ending.CREDIT),
        (True, False, "OPTIONS", Ending.CREDIT),
        (True, False, "get", Ending.CREDIT),
    ],
)
def test_what_moved_bought_the_call_or_is_credit(
    is_adrift: bool, has_answer: bool, method: str, ending: Ending
) -> None:
    assert judge_ending(is_moved=True, is_adrift=is_adrift, has_answer=has_answer, method=method) is ending


@pytest.mark.parametrize(
    ("is_adrift", "has_answer", "method"), list(product((False, True), (False, True), ("GET", "POST")))
)
def test_where_nothing_moved_nothing_was_bought(is_adrift: bool, has_answer: bool, method: str) -> None:
    found = judge_ending(is_moved=False, is_adrift=is_adrift, has_answer=has_answer, method=method)
    assert found is Ending.VOID
