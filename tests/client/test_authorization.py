"""Each response to an authorisation -> the next step of the client. It never signs a second one while the
first may still move money."""

import base64
import json
from dataclasses import replace
from functools import partial

import pytest

from tests.kit.call_io import (
    CHAIN,
    NOW_S,
    OFFER,
    TX,
    FakeCallIo,
    build_authorization,
    build_transfer,
)
from tollway.client.authorization import SENDS_MAX
from tollway.client.call_io import (
    AuthorizationState,
    GatewayResponse,
    NoResponse,
    OverBudget,
    Transfer,
    TransferState,
)
from tollway.client.errors import (
    BudgetExhausted,
    CallerFailure,
    CallHeld,
    CannotPay,
    GatewayUnreachable,
    NodeUnreachable,
    PaymentPending,
    PaymentRefused,
    PriceAboveMax,
)
from tollway.client.quote import Cap
from tollway.client.transfer import Patience
from tollway.ids import TxHash

OPEN, CHARGED, RELEASED = AuthorizationState.OPEN, AuthorizationState.CHARGED, AuthorizationState.RELEASED
EXPIRED, UNSENT = AuthorizationState.EXPIRED, AuthorizationState.UNSENT
TWICE = Cap.parse("0.02 USDC")
X402 = {**OFFER, "rail": "x402", "maxTimeoutSeconds": 90, "extra": {"name": "USDC", "version": "2"}}
BY_TX = {**X402, "rail": "tx"}


def receipt(**told) -> dict[str, str]:
    return {"payment-response": base64.b64encode(json.dumps(told).encode()).decode()}


def problem(status, code, state=None, *, options=(), headers=None, **members) -> GatewayResponse:
    told = {"code": code, "detail": f"It is {code}.", **members}
    if options:
        told["payment"] = {"options": list(options)}
    shown = {} if state is None else {"tollway-payment-state": state}
    return GatewayResponse(status=status, headers={**shown, **(headers or {})}, problem=told)


def relayed(status, state=None, headers=None) -> GatewayResponse:
    shown = {} if state is None else {"tollway-payment-state": state}
    mark = {"proxy-status": f'"gw"; received-status={status}'}
    return GatewayResponse(status=status, headers={**mark, **shown, **(headers or {})})


def asks(code="payment_required", *options, **told) -> GatewayResponse:
    return problem(402, code, "none", options=options or (X402, BY_TX), **told)


PAID = receipt(success=True, transaction=str(TX), network="eip155:84532")
SERVED = relayed(200, "charged", PAID)
IN_PROGRESS = problem(409, "idempotency_in_progress", "held")
UNKNOWN = problem(503, "payment_outcome_unknown", "held", call="http://gw/history/call_1", callId="call_1")
NOT_SENT, LOST = NoResponse(is_sent=False, detail="refused."), NoResponse(is_sent=True, detail="cut.")
World = partial(FakeCallIo, is_repeatable=True)


# ---- What is decided at once.


def test_is_stored_before_it_is_shown_and_paid_by_what_the_receipt_names():
    world = World(asks(), SERVED)
    paid = world.call()
    assert (paid.response, paid.transfer) == (SERVED, None)
    assert paid.authorization.nonce == world.signed[0].nonce
    assert (world.proofs, world.states) == (["proof 1"], [CHARGED])
    assert list(world.kept.values()) == [TX]
    assert world.transfers == []


DECIDED = {
    "served": (SERVED, CHARGED),
    "an error that costs": (relayed(404, "charged"), CHARGED),
    "an error that does not": (relayed(500, "released"), RELEASED),
    "free by now": (relayed(200, "none"), RELEASED),
    "a receipt beside another word": (relayed(200, "none", PAID), CHARGED),
    "nothing said": (relayed(200), OPEN),
    "a failure of the upstream": (problem(502, "upstream_unreachable", "released"), RELEASED),
    "a refusal before any payment": (problem(413, "payload_too_large", "none"), RELEASED),
    "too many": (problem(429, "rate_limited", "none"), RELEASED),
    "blocked": (problem(403, "wallet_blocked", "none"), RELEASED),
    "broken inside, and paid": (problem(500, "internal_error", "charged"), CHARGED),
    "broken inside, and who knows": (problem(500, "internal_error"), OPEN),
    "an upstream's own 402": (relayed(402, "charged"), CHARGED),
}


@pytest.mark.parametrize("name", DECIDED)
def test_a_response_ends_the_call_with_its_outcome(name):
    response, state = DECIDED[name]
    world = World(asks(), response)
    assert world.call().response is response
    assert (world.proofs, world.states) == (["proof 1"], [state])


@pytest.mark.parametrize(
    ("response", "failure", "state"),
    [
        (problem(504, "upstream_timeout", "held", callId="call_1"), CallHeld, OPEN),
        (problem(500, "internal_error", "held"), CallHeld, OPEN),
        (GatewayResponse(status=503, headers={"tollway-payment-state": "held"}), CallHeld, OPEN),  # to HEAD
        (problem(409, "payment_already_used", "held"), CallHeld, OPEN),
        (problem(409, "payment_already_used", "charged"), PaymentRefused, CHARGED),
        (problem(409, "payment_already_used"), PaymentRefused, CHARGED),
        (asks("payment_required"), PaymentRefused, RELEASED),  # the header was not seen
        (GatewayResponse(status=402, headers={}), PaymentRefused, RELEASED),  # to HEAD: no terms
        (problem(402, "payment_settlement_failed", "held", options=(X402,)), CallHeld, OPEN),
        (problem(402, "payment_settlement_failed", "charged", options=(X402,)), CallHeld, OPEN),
    ],
)
def test_an_undecided_or_final_refusal_ends_the_call_without_a_second_authorisation(response, failure, state):
    world = World(asks(), response, SERVED)
    with pytest.raises(failure):
        world.call()
    assert (world.proofs, world.states, world.transfers) == (["proof 1"], [state], [])


# ---- The same again.

AGAIN = {
    "in progress": IN_PROGRESS,
    "unknown": UNKNOWN,
    "no chain": problem(503, "chain_unavailable", "none"),
    "no store": problem(503, "storage_unavailable"),
    "overloaded": problem(503, "overloaded", "none"),
}


@pytest.mark.parametrize("name", AGAIN)
@pytest.mark.parametrize("is_repeatable", [True, False])
def test_not_yet_is_answered_by_the_very_same_authorisation(name, is_repeatable):
    world = World(asks(), AGAIN[name], AGAIN[name], SERVED)
    assert world.call(is_repeatable=is_repeatable).response is SERVED
    assert (world.proofs, world.states) == (["proof 1"] * 3, [CHARGED])
    assert world.waited_s == 4


def test_waits_for_retry_after():
    world = World(asks(), replace(UNKNOWN, headers={**UNKNOWN.headers, "retry-after": "7"}), SERVED)
    world.call()
    assert world.waited_s == 7


@pytest.mark.parametrize(
    ("name", "failure", "state"),
    [
        ("in progress", PaymentPending, OPEN),
        ("unknown", CallHeld, OPEN),
        ("no store", PaymentPending, OPEN),
        ("no chain", PaymentPending, OPEN),
        ("overloaded", PaymentPending, OPEN),
    ],
)
def test_when_patience_ends_the_same_request_goes_on_with_the_same_one(name, failure, state):
    world = World(asks(), *[AGAIN[name]] * 20)
    with pytest.raises(failure) as caught:
        world.call()
    assert caught.value.is_retryable
    assert (set(world.proofs), world.states) == ({"proof 1"}, [state])
    assert world.waited_s <= 9


def test_a_gateway_that_never_decides_gets_a_limited_number_of_requests():
    world = World(asks(), *[replace(UNKNOWN, headers={"retry-after": "0"})] * (SENDS_MAX + 1))
    with pytest.raises(CallHeld, match=f"not decided after {SENDS_MAX} requests"):
        world.call()
    assert world.proofs == ["proof 1"] * SENDS_MAX
    assert world.states == [OPEN]


@pytest.mark.parametrize("name", ["in progress", "no store", "no chain", "overloaded"])
def test_the_last_words_of_a_gateway_that_never_decides_reach_the_caller(name):
    again = replace(AGAIN[name], headers={**AGAIN[name].headers, "retry-after": "0"})
    world = World(asks(), *[again] * (SENDS_MAX + 1))
    with pytest.raises(PaymentPending, match=f"after {SENDS_MAX} requests.*It is {again.code}") as caught:
        world.call()
    assert (caught.value.reason, world.states) == (again.code, [OPEN])


# ---- A gateway whose chain is away.

AWAY = replace(AGAIN["no chain"], headers={**AGAIN["no chain"].headers, "retry-after": "3"})
PATIENT = Patience(wait_s=180)


def test_a_gateway_without_its_chain_is_reported_with_the_first_response_and_ends_the_call_soon():
    world = World(asks(), *[AWAY] * 80)
    with pytest.raises(PaymentPending, match="chain_unavailable: It is chain_unavailable") as caught:
        world.call(patience=PATIENT)
    assert (caught.value.reason, caught.value.is_retryable) == ("chain_unavailable", True)
    assert "has settled nothing" in str(caught.value)
    assert "it sends the same authorisation, and nothing is paid twice" in str(caught.value)
    assert (world.waited_s, world.proofs, world.states) == (9, ["proof 1"] * 4, [OPEN])
    assert world.notices == ["The gateway responds chain_unavailable: It is chain_unavailable."] * 3


def test_the_wait_for_a_chain_begins_again_after_another_response():
    world = World(asks(), AWAY, AWAY, AWAY, AGAIN["overloaded"], AWAY, AWAY, AWAY, SERVED)
    assert world.call(patience=PATIENT).response is SERVED
    assert (world.waited_s, world.states) == (20, [CHARGED])


def test_another_refusal_has_the_whole_patience():
    world = World(asks(), *[AGAIN["overloaded"]] * 20, SERVED)
    assert world.call(patience=PATIENT).response is SERVED
    assert (world.waited_s, world.notices) == (40, [])


@pytest.mark.parametrize("before", [LOST, IN_PROGRESS], ids=["lost", "claimed"])
def test_a_call_that_may_run_is_not_called_unsettled_while_the_chain_is_away(before):
    world = World(asks(), before, *[AWAY] * 80)
    with pytest.raises(
        PaymentPending, match=r"can still be settled\..* /history shows the outcome"
    ) as caught:
        world.call(patience=PATIENT)
    assert "settled nothing" not in str(caught.value)
    assert world.states == [OPEN]


def test_the_next_run_after_an_outage_sends_the_same_authorisation():
    world = World(asks(), *[AWAY] * 4)
    with pytest.raises(PaymentPending):
        world.call(patience=PATIENT)
    (signed,) = world.signed
    later = World(SERVED, left=signed)
    assert later.call().authorization is signed
    assert (later.proofs, later.signed, later.states) == ([signed.proof], [], [CHARGED])


def test_a_held_call_tells_where_to_ask():
    world = World(asks(), *[UNKNOWN] * 20)
    with pytest.raises(CallHeld) as caught:
        world.call()
    assert (caught.value.call_id, caught.value.call_url) == ("call_1", "http://gw/history/call_1")


def test_overloaded_after_it_was_claimed_releases_nothing():
    world = World(asks(), IN_PROGRESS, *[AGAIN["overloaded"]] * 20)
    with pytest.raises(PaymentPending):
        world.call()
    assert world.states == [OPEN]


# ---- No answer.


def test_a_lost_response_is_requested_with_the_same_authorisation():
    world = World(asks(), LOST, IN_PROGRESS, SERVED)
    assert world.call().response is SERVED
    assert world.proofs == ["proof 1"] * 3


def test_a_request_that_must_not_run_twice_is_not_sent_twice():
    world = World(asks(), LOST, SERVED)
    with pytest.raises(GatewayUnreachable) as caught:
        world.call(is_repeatable=False)
    assert (caught.value.is_sent, caught.value.is_retryable) == (True, False)
    assert (world.proofs, world.states) == (["proof 1"], [OPEN])


def test_one_that_surely_never_left_is_unsent():
    world = World(asks(), *[NOT_SENT] * 3)
    with pytest.raises(GatewayUnreachable) as caught:
        world.call(is_repeatable=False)
    assert (caught.value.is_sent, caught.value.is_retryable) == (False, True)
    assert (world.proofs, world.states) == (["proof 1"] * 3, [UNSENT])


@pytest.mark.parametrize(
    "response",
    [
        asks("payment_expired"),
        asks("payment_settlement_failed"),
        asks("payment_required"),
        GatewayResponse(status=402, headers={}),
        problem(429, "rate_limited", "none"),
        problem(429, "rate_limited"),
        problem(403, "wallet_blocked", "none"),
        problem(409, "payment_already_used", "held"),
        problem(504, "upstream_timeout", "held"),
        LOST,
    ],
)
def test_after_a_lost_answer_nothing_but_an_outcome_ends_it(response):
    world = World(asks(), LOST, *[response] * 3)
    with pytest.raises((CallHeld, GatewayUnreachable)):
        world.call()
    assert (set(world.proofs), world.states, world.transfers) == ({"proof 1"}, [OPEN], [])


@pytest.mark.parametrize(
    ("response", "state"),
    [
        (SERVED, CHARGED),
        (relayed(500, "released"), RELEASED),
        (problem(502, "upstream_unreachable", "released"), RELEASED),
        (relayed(200, "none"), OPEN),  # free by now; of the first sending it tells nothing
    ],
)
def test_after_a_lost_response_an_outcome_counts(response, state):
    world = World(asks(), LOST, response)
    assert world.call().response is response
    assert world.states == [state]


def test_a_served_call_without_a_stored_response_is_charged_and_not_paid_again():
    world = World(asks(), LOST, problem(409, "payment_already_used", "charged", callId="call_9"))
    with pytest.raises(CallHeld) as caught:
        world.call()
    assert (caught.value.call_id, caught.value.is_retryable) == ("call_9", False)
    assert (world.proofs, world.states) == (["proof 1"] * 2, [CHARGED])


# ---- A 402: unpaid, by the word of the gateway.

UNPAID = (
    "payment_settlement_failed",
    "payment_expired",
    "payment_malformed",
    "payment_method_unsupported",
    "payment_verification_failed",
    "payment_insufficient",
)


@pytest.mark.parametrize("code", UNPAID)
def test_a_402_is_followed_by_one_fresh_attempt(code):
    failed = receipt(success=False, transaction="", network="eip155:84532", errorReason="expired")
    world = World(asks(), asks(code, headers=failed), SERVED)
    assert world.call(max_price=TWICE).response is SERVED
    assert (world.proofs, world.states) == (["proof 1", "proof 2"], [RELEASED, CHARGED])


@pytest.mark.parametrize("code", UNPAID)
@pytest.mark.parametrize("rail", ["auto", "x402"])
def test_but_only_within_the_maximum_of_the_call(code, rail):
    """The gateway can still cash the first one, whatever it says."""
    world = World(asks(), asks(code), SERVED)
    with pytest.raises(PaymentRefused, match="max_price"):
        world.call(max_price=Cap.parse("0.019999 USDC"), rail=rail)
    assert (world.proofs, world.states, world.transfers) == (["proof 1"], [RELEASED], [])


@pytest.mark.parametrize("code", UNPAID)
def test_and_by_no_third(code):
    failed = receipt(success=False, transaction="", network="eip155:84532", errorReason="expired")
    world = World(asks(), *[asks(code, headers=failed)] * 5)
    with pytest.raises(PaymentRefused) as caught:
        world.call(max_price=Cap.parse("1 USDC"))
    assert (caught.value.transaction, caught.value.reason) == (None, "expired")
    assert (world.proofs, world.states, world.transfers) == (["proof 1", "proof 2"], [RELEASED] * 2, [])


def test_a_402_after_the_gateway_had_claimed_it_is_an_outcome_too():
    world = World(asks(), UNKNOWN, asks("payment_expired"), SERVED)
    assert world.call(max_price=TWICE).response is SERVED
    assert world.proofs == ["proof 1", "proof 1", "proof 2"]


def test_a_fresh_attempt_must_fit_again():
    dearer = asks("payment_verification_failed", {**X402, "amount": "20001"})
    world = World(asks(), dearer, SERVED)
    with pytest.raises(PaymentRefused, match=r"costs 0\.020001 USDC"):
        world.call(max_price=TWICE)
    assert (world.proofs, world.states) == (["proof 1"], [RELEASED])


def test_a_new_attempt_without_terms_is_a_refusal_with_a_reason():
    world = World(asks(), problem(402, "payment_settlement_failed", reason="insufficient_balance"))
    with pytest.raises(PaymentRefused) as caught:
        world.call()
    assert caught.value.reason == "insufficient_balance"


def test_where_the_rail_was_withdrawn_a_transfer_is_the_fresh_attempt():
    world = World(asks(), asks("payment_method_unsupported", BY_TX), SERVED)
    assert world.call(max_price=TWICE).transfer.tx_hash == TX
    assert (world.proofs, world.states) == (["proof 1"], [RELEASED])


# ---- What an earlier run left.

LEFT = build_authorization(7, proof="left over", valid_before=1)


def test_the_open_authorisation_of_an_earlier_run_is_sent_first():
    world = World(SERVED, left=LEFT)
    assert world.call().authorization is LEFT
    assert (world.proofs, world.states, world.signed) == (["left over"], [CHARGED], [])


def test_an_authorisation_that_can_never_be_settled_lets_the_call_start_again():
    world = World(asks("payment_expired"), asks(), SERVED, left=LEFT)
    assert world.call().response is SERVED
    assert (world.proofs, world.states) == (["left over", "proof 1"], [EXPIRED, CHARGED])


@pytest.mark.parametrize("final_s", [NOW_S - 11, NOW_S - 100])
def test_until_a_final_block_shows_its_end_the_refusal_says_when_a_repeat_signs_anew(final_s):
    left = replace(LEFT, valid_before=NOW_S - 10)
    world = World(asks("payment_expired"), asks(), SERVED, left=left, final_s=final_s)
    with pytest.raises(PaymentRefused, match="max_price") as caught:
        world.call()
    told = str(caught.value)
    assert f"{left.name()} of 0.01 USDC has expired at 2023-11-14T22:13:10+00:00" in told
    assert "by the gateway's report it has paid nothing: It is payment_expired." in told
    assert "Repeat the same request after that: it then signs a new authorisation." in told
    assert "can still be settled" not in told
    assert (caught.value.is_retryable, caught.value.reason) == (True, "payment_expired")
    assert (world.proofs, world.signed, world.sent_again) == (["left over"], [], {left.nonce})


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("payment_verification_failed", {}),  # another refusal
        ("payment_expired", {"valid_before": NOW_S + 1}),  # not by the clock of this machine
    ],
)
def test_another_refusal_of_what_an_earlier_run_left_is_final(code, change):
    left = replace(LEFT, **{"valid_before": NOW_S - 10, **change})
    world = World(asks(code), asks(), SERVED, left=left, final_s=NOW_S - 100)
    with pytest.raises(PaymentRefused, match="can still be settled until") as caught:
        world.call()
    assert (caught.value.is_retryable, world.states, world.sent_again) == (False, [RELEASED], set())


@pytest.mark.parametrize(
    ("left", "used", "state"),
    [
        (replace(LEFT, valid_before=NOW_S + 1), (), RELEASED),  # it can still be cashed
        (LEFT, (LEFT.nonce,), CHARGED),  # it was cashed
    ],
)
def test_otherwise_it_takes_its_part_of_the_maximum_of_the_call(left, used, state):
    answers = asks("payment_expired"), asks(), SERVED
    world = World(*answers, left=left, used=used)
    with pytest.raises(PaymentRefused, match="max_price"):
        world.call()
    assert (world.proofs, world.states) == (["left over"], [state])
    world = World(*answers, left=left, used=used)
    assert world.call(max_price=TWICE).response is SERVED
    assert (world.proofs, world.states) == (["left over", "proof 1"], [state, CHARGED])


@pytest.mark.parametrize(
    ("prepay", "most", "amounts"),
    [
        (1, "0.022", [10_000, 2_000]),
        (1, "0.021999", [10_000]),
        (3, "0.014", [30_000, 2_000]),
        (3, "0.013999", [30_000]),
    ],
)
def test_a_difference_counts_with_the_authorisation_before_it(prepay, most, amounts):
    world = World(
        asks("payment_required", X402),
        asks("payment_expired", BY_TX),
        problem(402, "payment_insufficient", "none", options=(BY_TX,), missing="0.002"),
        SERVED,
    )
    if len(amounts) == 2:
        assert world.call(max_price=Cap.parse(f"{most} USDC"), prepay=prepay).response is SERVED
    else:
        with pytest.raises(PaymentRefused):
            world.call(max_price=Cap.parse(f"{most} USDC"), prepay=prepay)
    assert world.amounts == amounts


@pytest.mark.parametrize(
    ("response", "state"),
    [
        (problem(429, "rate_limited", "none"), OPEN),
        (asks("payment_required"), OPEN),
        (problem(409, "payment_already_used", "held"), OPEN),
        (problem(409, "payment_already_used", "charged"), CHARGED),
        (NOT_SENT, OPEN),
        (LOST, OPEN),
    ],
)
def test_while_it_may_move_money_nothing_else_is_signed(response, state):
    world = World(*[response] * 3, left=LEFT, credit=())
    with pytest.raises((CallHeld, GatewayUnreachable)):
        world.call()
    assert (set(world.proofs), world.states, world.signed) == ({"left over"}, [state], [])


def test_it_comes_before_credit_and_whatever_rail_is_wanted():
    world = World(SERVED, left=LEFT, credit=(build_transfer(state=TransferState.CONFIRMED),))
    assert world.call(rail="tx").authorization is LEFT


# ---- Before anything is signed.

ON_BASE = {
    "network": "eip155:8453",
    "token": "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913",
    "extra": {"name": "USD Coin", "version": "2"},
}
"""A token that is known for sure, on a chain that was not named."""

REFUSED_OFFERS = {
    "another symbol": ({"symbol": "USDT"}, CannotPay),
    "other decimals": ({"decimals": 5}, CannotPay),
    "another domain than the token's": ({"extra": {"name": "Other", "version": "2"}}, CannotPay),
    "a chain of no node": (ON_BASE, CannotPay),
    "too dear": ({"amount": "10001"}, PriceAboveMax),
    "more than there is": ({"amount": "10000"}, CannotPay),
}


@pytest.mark.parametrize("name", REFUSED_OFFERS)
def test_the_gateways_numbers_are_checked(name):
    change, failure = REFUSED_OFFERS[name]
    world = World(
        asks("payment_required", {**X402, **change}), usdc=9_999 if name == "more than there is" else 10**9
    )
    with pytest.raises(failure):
        world.call()
    assert (world.signed, world.stored, len(world.sent)) == ([], {}, 1)


def test_the_next_offer_is_taken_where_the_first_cannot_be_kept():
    elsewhere = {**X402, **ON_BASE}
    world = World(asks("payment_required", elsewhere, X402), SERVED)
    world.call()
    assert world.signed[0].asset.chain_id == CHAIN


def test_the_budget_is_checked_before_an_authorisation_is_sent():
    world = World(asks(), over=OverBudget(spent_atto=1, budget_atto=1))
    with pytest.raises(BudgetExhausted):
        world.call()
    assert (world.proofs, world.stored) == ([], {})


def test_a_chain_that_was_named_needs_no_node():
    world = World(asks("payment_required", X402), SERVED)
    world.call(source={"chains": frozenset(), "signing_chains": frozenset({CHAIN})})
    assert world.proofs == ["proof 1"]


def test_without_a_node_only_known_tokens_are_paid():
    unknown = {**X402, "token": "0x" + "44" * 20}
    world = World(asks("payment_required", unknown))
    with pytest.raises(CannotPay, match="no source besides the gateway"):
        world.call(source={"chains": frozenset(), "signing_chains": frozenset({CHAIN})})
    assert world.signed == []


def test_every_failure_is_one_that_callers_can_catch():
    for failure in (CallHeld, CannotPay, GatewayUnreachable, PaymentPending, PaymentRefused, PriceAboveMax):
        assert issubclass(failure, CallerFailure)


# ---- Which rail pays (the choice itself: `client/flow.py`).

BOTH = (BY_TX, X402)


def credit(rest: int) -> Transfer:
    return build_transfer(
        tx_hash=TxHash(b"\x0b" * 32), amount=20_000, rest=rest, state=TransferState.CONFIRMED
    )


SHORT = problem(402, "payment_insufficient", "none", options=BOTH, missing="0.004")


@pytest.mark.parametrize(
    ("rail", "options", "prepay", "paid_by"),
    [
        ("auto", BOTH, 1, "x402"),  # no gas, and only once it was served
        ("auto", BOTH, 5, "tx"),  # one transfer for all of them
        ("auto", (BY_TX,), 1, "tx"),
        ("auto", (X402,), 1, "x402"),
        ("auto", (X402,), 5, "x402"),  # one call at least
        ("auto", ({**X402, "decimals": 7}, BY_TX), 1, "tx"),
        ("tx", BOTH, 1, "tx"),
        ("x402", BOTH, 1, "x402"),
    ],
)
def test_the_rail_that_pays(rail, options, prepay, paid_by):
    world = World(asks("payment_required", *options), SERVED)
    paid = world.call(rail=rail, prepay=prepay)
    assert ("tx" if paid.transfer else "x402") == paid_by
    assert len(world.signed) + len(world.transfers) == 1
    assert world.amounts == [10_000 * prepay] * len(world.transfers)


@pytest.mark.parametrize(("rail", "options"), [("tx", (X402,)), ("x402", (BY_TX,)), ("auto", ())])
def test_a_named_rail_never_falls_back(rail, options):
    world = World(problem(402, "payment_required", options=options), SERVED)
    with pytest.raises(CannotPay):
        world.call(rail=rail)
    assert (world.signed, world.transfers) == ([], [])


def test_an_authorisation_cannot_prepay():
    with pytest.raises(ValueError, match="prepay"):
        World().call(rail="x402", prepay=2)


@pytest.mark.parametrize("rail", ["auto", "tx", "x402"])
def test_credit_comes_first_on_every_rail(rail):
    world = World(SERVED, credit=(credit(20_000),))
    assert world.call(rail=rail).transfer.rest == 20_000
    assert (world.signed, world.transfers) == ([], [])


def test_a_credit_waits_as_shortly_for_a_chain_that_is_away_and_stays_usable():
    world = World(*[AWAY] * 80, credit=(credit(20_000),))
    with pytest.raises(PaymentPending, match="this payment, and nothing is paid again") as caught:
        world.call(patience=PATIENT)
    assert (caught.value.reason, caught.value.transaction) == ("chain_unavailable", credit(20_000).tx_hash)
    assert (world.waited_s, len(world.sent), len(world.notices)) == (9, 4, 3)
    assert (world.signed, world.transfers) == ([], [])


@pytest.mark.parametrize(("rail", "signed", "amounts"), [("auto", 0, [4_000]), ("x402", 1, [])])
def test_a_rest_is_topped_up_by_a_transfer_unless_the_other_rail_is_named(rail, signed, amounts):
    world = World(SHORT, SERVED, credit=(credit(6_000),))
    world.call(rail=rail)
    assert (len(world.signed), world.amounts) == (signed, amounts)


def test_after_a_transfer_of_this_call_no_authorisation_is_signed():
    world = World(asks("payment_required", *BOTH), SHORT, SERVED)
    with pytest.raises(PaymentRefused):
        world.call(rail="auto", prepay=5)  # 50,000 paid, and more is asked than the cap allows
    assert (world.signed, len(world.transfers)) == ([], 1)


def test_too_dear_on_one_rail_is_too_dear():
    world = World(asks("payment_required", {**X402, "amount": "20000"}, {**BY_TX, "amount": "20000"}))
    with pytest.raises(PriceAboveMax):
        world.call()


def test_a_payee_that_holds_uncounted_money_gets_no_authorisation_either():
    uncounted = problem(402, "payment_verification_failed", "none", options=BOTH)
    world = World(uncounted, asks("payment_required", *BOTH), SERVED, credit=(credit(20_000),))
    with pytest.raises(PaymentRefused):
        world.call()
    assert world.signed == []


def test_an_unavailable_node_is_reported_before_anything_is_signed():
    class Away(FakeCallIo):
        def read_chain(self, method, params):
            return {} if method == "eth_call" else super().read_chain(method, params)

    world = Away(asks("payment_required", *BOTH))
    with pytest.raises(NodeUnreachable):
        world.call()
    assert world.signed == []
