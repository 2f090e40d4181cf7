"""The problem of each result; a transaction that may still pay, or has paid, never gets `payment_verification_failed`."""

import pytest

from tollway.errors import Code
from tollway.ids import TxHash
from tollway.payments.transaction_rules import (
    BeforeListing,
    BlockInFuture,
    HeldByRestore,
    NotThePayer,
    Pending,
    Refused,
    TooOld,
    TransactionReason,
    explain_result,
    not_mined,
    refuse_transaction,
)


@pytest.mark.parametrize(
    ("result", "code", "reason", "retry_after_s"),
    [
        (Pending(confirmations=1, needed=12), Code.PAYMENT_PENDING, "confirmations", 2),
        (BlockInFuture(seconds=61), Code.PAYMENT_PENDING, "block_in_future", 60),
        (BlockInFuture(seconds=7_200), Code.PAYMENT_PENDING, "block_in_future", 60),
        (NotThePayer(), Code.PAYER_MISMATCH, None, None),
        (TooOld(age_s=90_000), Code.PAYMENT_TOO_OLD, None, None),
        (BeforeListing(), Code.PAYMENT_TOO_OLD, "before_listing", None),
        (HeldByRestore(), Code.PAYMENT_HELD, None, None),
    ],
)
def test_each_result_has_its_code(result, code, reason, retry_after_s) -> None:
    problem = explain_result(result)
    assert (problem.code, problem.reason, problem.retry_after_s) == (code, reason, retry_after_s)
    assert problem.payment_state in ("none", "held")
    assert problem.detail


@pytest.mark.parametrize("reason", list(TransactionReason))
def test_every_reason_has_a_detail(reason) -> None:
    problem = explain_result(Refused(reason=reason))
    assert problem == refuse_transaction(reason)
    assert (problem.code, problem.reason) == (Code.PAYMENT_VERIFICATION_FAILED, reason.value)
    assert problem.detail.endswith(".")


def test_a_missing_transaction_is_pending() -> None:
    problem = not_mined(TxHash(b"\x07" * 32))
    assert (problem.code, problem.reason) == (Code.PAYMENT_PENDING, "not_mined")
    assert "0x0707" in problem.detail
