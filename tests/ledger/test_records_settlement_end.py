"""The end of a call whose settlement is decided."""

from itertools import product
from typing import Any

import pytest

from tollway.ledger.records import UNKNOWN_DIGEST, SettlementEnd, decide_settlement_end

DIGEST = b"\x01" * 32


def judge(**fields: Any) -> SettlementEnd:
    defaults: dict[str, Any] = {
        "is_moved": True,
        "is_orphaned": True,
        "has_stored_response": False,
        "is_deposit": False,
        "method": "GET",
        "digest": DIGEST,
        "runs_left": 1,
    }
    return decide_settlement_end(**{**defaults, **fields})


@pytest.mark.parametrize(
    ("is_orphaned", "has_stored_response", "method", "ending"),
    [
        (False, False, "POST", SettlementEnd.BOUGHT),
        (False, True, "GET", SettlementEnd.BOUGHT),
        (True, True, "POST", SettlementEnd.BOUGHT),
        (True, True, "GET", SettlementEnd.BOUGHT),
        (True, False, "GET", SettlementEnd.LOST),
        (True, False, "HEAD", SettlementEnd.LOST),
        (True, False, "POST", SettlementEnd.CREDIT),
        (True, False, "OPTIONS", SettlementEnd.CREDIT),
        (True, False, "get", SettlementEnd.CREDIT),
    ],
)
def test_what_moved_bought_the_call_or_is_credit(
    is_orphaned: bool, has_stored_response: bool, method: str, ending: SettlementEnd
) -> None:
    assert judge(is_orphaned=is_orphaned, has_stored_response=has_stored_response, method=method) is ending


@pytest.mark.parametrize(
    ("is_orphaned", "has_stored_response", "method"),
    list(product((False, True), (False, True), ("GET", "POST"))),
)
def test_where_nothing_moved_nothing_was_bought(
    is_orphaned: bool, has_stored_response: bool, method: str
) -> None:
    found = judge(
        is_moved=False, is_orphaned=is_orphaned, has_stored_response=has_stored_response, method=method
    )
    assert found is SettlementEnd.VOID


@pytest.mark.parametrize("wrong", [{"digest": UNKNOWN_DIGEST}, {"runs_left": 0}])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_what_cannot_run_again_is_credit_and_never_lost(method: str, wrong: dict[str, Any]) -> None:
    assert judge(method=method) is SettlementEnd.LOST
    assert judge(method=method, **wrong) is SettlementEnd.CREDIT
    for given in ({"has_stored_response": True}, {"is_orphaned": False}):
        assert judge(method=method, **wrong, **given) is SettlementEnd.BOUGHT
    assert judge(method=method, **wrong, is_moved=False) is SettlementEnd.VOID


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_deposit_whose_response_reached_no_caller_is_credit(method: str) -> None:
    """The same voucher pays the repeat from the balance of the channel."""
    assert judge(is_deposit=True, method=method) is SettlementEnd.CREDIT
    for given in ({"has_stored_response": True}, {"is_orphaned": False}, {"is_charged_by_provider": True}):
        assert judge(is_deposit=True, method=method, **given) is SettlementEnd.BOUGHT
