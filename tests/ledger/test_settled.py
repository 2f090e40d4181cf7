"""What becomes of a call when its settlement is decided."""

from itertools import product
from typing import Any

import pytest

from tollway.ledger.settled import UNRECOGNISABLE, Ending, judge_ending

DIGEST = b"\x01" * 32


def judge(**fields: Any) -> Ending:
    defaults: dict[str, Any] = {
        "is_moved": True,
        "is_adrift": True,
        "has_answer": False,
        "method": "GET",
        "digest": DIGEST,
        "runs_left": 1,
    }
    return judge_ending(**{**defaults, **fields})


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
    assert judge(is_adrift=is_adrift, has_answer=has_answer, method=method) is ending


@pytest.mark.parametrize(
    ("is_adrift", "has_answer", "method"), list(product((False, True), (False, True), ("GET", "POST")))
)
def test_where_nothing_moved_nothing_was_bought(is_adrift: bool, has_answer: bool, method: str) -> None:
    found = judge(is_moved=False, is_adrift=is_adrift, has_answer=has_answer, method=method)
    assert found is Ending.VOID


@pytest.mark.parametrize("wrong", [{"digest": UNRECOGNISABLE}, {"runs_left": 0}])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_cannot_run_again_is_credit_and_never_lost(method: str, wrong: dict[str, Any]) -> None:
    assert judge(method=method) is Ending.LOST
    assert judge(method=method, **wrong) is Ending.CREDIT
    for given in ({"has_answer": True}, {"is_adrift": False}):
        assert judge(method=method, **wrong, **given) is Ending.BOUGHT
    assert judge(method=method, **wrong, is_moved=False) is Ending.VOID
