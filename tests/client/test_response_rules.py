"""The outcome of a payment by the response to a signed call."""

import pytest

from tollway.client.call_io import GatewayResponse
from tollway.client.response_rules import NO_OUTCOME_CODES, names_outcome


def problem(code, **members):
    return GatewayResponse(status=400, headers={}, problem={"code": code, **members})


@pytest.mark.parametrize("state", ["charged", "released", "held"])
def test_a_refusal_that_names_the_state_of_its_price_tells_the_outcome(state):
    assert names_outcome(problem("upstream_timeout", paymentState=state))


@pytest.mark.parametrize(
    "response",
    [
        GatewayResponse(status=500, headers={}),
        problem("nonce_reused"),
        problem("nonce_reused", paymentState="none"),
    ],
)
def test_a_relayed_answer_and_a_known_nonce_tell_the_outcome(response):
    assert names_outcome(response)


@pytest.mark.parametrize("members", [{}, {"paymentState": "none"}, {"paymentState": ["held"]}])
def test_a_refusal_without_a_state_tells_nothing(members):
    assert not names_outcome(problem("rate_limited", **members))


def test_a_wish_for_money_or_a_new_proof_tells_nothing_whatever_state_it_names():
    named = [code for code in NO_OUTCOME_CODES if names_outcome(problem(code, paymentState="charged"))]
    assert named == []
