"""Every reason has its code, a sentence and a payment state."""

import pytest

from tollway.errors import Code
from tollway.payments.wire import AuthorizationReason, explain_authorization

ASKING = {
    Code.PAYMENT_MALFORMED,
    Code.PAYMENT_EXPIRED,
    Code.PAYMENT_METHOD_UNSUPPORTED,
    Code.PAYMENT_VERIFICATION_FAILED,
}


@pytest.mark.parametrize("reason", AuthorizationReason)
def test_each_reason_has_a_code_and_a_sentence(reason: AuthorizationReason) -> None:
    problem = explain_authorization(reason)
    assert problem.reason == reason.value
    assert problem.detail.endswith(".")
    if reason is AuthorizationReason.ALREADY_USED:
        assert (problem.code, problem.payment_state) == (Code.PAYMENT_ALREADY_USED, "none")
    elif reason in (AuthorizationReason.BAD_IDENTIFIER, AuthorizationReason.MORE_THAN_ONE):
        assert (problem.code, problem.payment_state) == (Code.INVALID_REQUEST, "none")
    else:
        assert problem.code in ASKING
        assert problem.payment_state == "none"


def test_a_detail_replaces_the_general_sentence() -> None:
    assert explain_authorization(AuthorizationReason.AMOUNT, "Exactly 5.").detail == "Exactly 5."
