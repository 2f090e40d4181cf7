"""The order of the steps of a flow, step by step: `<<` is the expected step, `>>` its outcome; and what a fake gateway makes of whole calls."""

import pytest

from tests.kit.call_io import (
    CHAIN,
    OFFER,
    PAYEE,
    PAYER,
    SOURCE,
    TOKEN,
    TX,
    FakeCallIo,
    StepIo,
    SteppedFlow,
    build_transfer,
    step,
)
from tollway.client.call_io import (
    GatewayResponse,
    NodeError,
    NodeResult,
    NodeUnavailable,
    NonceTaken,
    NoResponse,
    OverBudget,
    PaidAlready,
    SignedTransfer,
    Stored,
    TransferState,
    UnsignedTransfer,
)
from tollway.client.errors import (
    CallHeld,
    CannotPay,
    GatewayUnreachable,
    NodeUnreachable,
    PaymentPending,
    PaymentRefused,
)
from tollway.client.flow import pay_flow
from tollway.client.quote import Cap
from tollway.client.transfer import CallRules, Patience, resume_transfers
from tollway.ids import TxHash

OTHER_TX = TxHash(b"\x0b" * 32)
RULES = CallRules(max_price=Cap.parse("1 USDC"), patience=Patience(poll_s=1, wait_s=3))
PROOF = (("X-Payment-Tx", str(TX)),)
PROVED = step.send_call((("Tollway-Max-Price", "1"), *PROOF))
PAYMENT_402 = GatewayResponse(
    status=402,
    headers={},
    problem={"code": "payment_required", "payment": {"options": [{**OFFER, "confirmations": 2}]}},
)
SERVED = GatewayResponse(
    status=200,
    headers={"tollway-payment-state": "charged", "tollway-credit-remaining": "0 USDC"},
)


def ask(method, *params):
    return step.query_node(CHAIN, method, *params)


def step_call():
    return SteppedFlow(pay_flow(StepIo(), SOURCE, RULES))


def number(value):
    return NodeResult(result=hex(value))


BALANCE = "0x70a08231" + "00" * 12 + PAYER.hex()
CALLDATA = bytes.fromhex("a9059cbb") + bytes(12) + PAYEE + (10_000).to_bytes(32, "big")


def play_to_signature(play, *, pending=5, stored=0):
    """From the first step to the signed transaction."""
    play << step.find_payments() >> ()
    play << step.send_call() >> PAYMENT_402
    play << step.find_payments((PAYEE,)) >> ()
    (
        play
        << ask("eth_call", {"to": str(TOKEN), "data": BALANCE}, "latest")
        >> NodeResult(result="0x" + (10**6).to_bytes(32, "big").hex())
    )
    play << ask("eth_chainId") >> number(CHAIN)
    play << "query_node" >> number(40_000)
    play << ask("eth_getBlockByNumber", "latest", False) >> NodeResult(result={"baseFeePerGas": "0x64"})
    play << ask("eth_maxPriorityFeePerGas") >> NodeError(code=-32601, message="no such method")
    play << ask("eth_getBalance", str(PAYER), "latest") >> number(10**18)
    play << "approve_payment" >> None
    play << ask("eth_getTransactionCount", str(PAYER), "pending") >> number(pending)
    play << step.find_next_nonce(CHAIN, pending) >> stored
    return play


def test_stores_before_broadcasting_and_broadcasts_before_calling():
    play = play_to_signature(step_call())
    (
        play
        << step.sign_transfer(
            UnsignedTransfer(
                chain_id=CHAIN,
                nonce=5,
                to=TOKEN,
                value=0,
                calldata=CALLDATA,
                gas=50_000,
                fee_max_wei=10**9 + 200,
                tip_wei=10**9,
            )
        )
        >> SignedTransfer(tx_hash=TX, raw=b"raw")
    )
    stored = build_transfer(fee_max_wei=50_000 * (10**9 + 200))
    play << step.store_transfer(stored, 10_000, frozenset()) >> Stored()
    play << ask("eth_getTransactionReceipt", str(TX)) >> NodeResult(result=None)
    play << ask("eth_getTransactionCount", str(PAYER), "finalized") >> number(5)
    play << ask("eth_sendRawTransaction", "0x" + b"raw".hex()) >> NodeResult(result=str(TX))
    receipt = NodeResult(result={"transactionHash": str(TX), "blockNumber": "0xa", "status": "0x1"})
    play << ask("eth_getTransactionReceipt", str(TX)) >> receipt
    play << ask("eth_blockNumber") >> number(10)  # one confirmation of two
    play << step.sleep(1) >> None
    play << ask("eth_getTransactionReceipt", str(TX)) >> receipt
    play << ask("eth_blockNumber") >> number(11)
    play << step.record_transfer_state(TX, TransferState.CONFIRMED) >> None
    play << step.sign_call(stored) >> PROOF
    play << PROVED >> SERVED
    play << step.record_transfer_state(TX, TransferState.CONFIRMED, 0, is_served=True) >> None
    assert play.result.response is SERVED
    assert play.result.transfer.tx_hash == TX


def test_credit_is_shown_first():
    credit = build_transfer(state=TransferState.CONFIRMED)
    play = step_call()
    play << step.find_payments() >> (credit,)
    play << step.sign_call(credit) >> PROOF
    play << PROVED >> SERVED
    play << "record_transfer_state" >> None
    assert play.result.transfer is credit


def test_nonce_taken_by_another_process_is_signed_anew_with_the_next():
    play = play_to_signature(step_call())
    play << "sign_transfer" >> SignedTransfer(tx_hash=TX, raw=b"raw")
    play << "store_transfer" >> NonceTaken()
    play << ask("eth_getTransactionCount", str(PAYER), "pending") >> number(5)
    play << step.find_next_nonce(CHAIN, 5) >> 6
    play << step.find_unsent_transfers(CHAIN) >> (build_transfer(tx_hash=OTHER_TX),)
    play << ask("eth_sendRawTransaction", "0x" + b"raw".hex()) >> NodeError(code=1, message="already known")
    assert play.step.arguments["unsigned"].nonce == 6


def test_an_unresolved_payment_of_another_call_is_followed_instead_of_paying():
    earlier = build_transfer(tx_hash=OTHER_TX)
    play = play_to_signature(step_call())
    play << "sign_transfer" >> SignedTransfer(tx_hash=TX, raw=b"raw")
    play << "store_transfer" >> PaidAlready(transfer=earlier)
    play << ask("eth_getTransactionReceipt", str(OTHER_TX))


def test_over_budget_ends_before_anything_is_broadcast():
    play = play_to_signature(step_call())
    play << "sign_transfer" >> SignedTransfer(tx_hash=TX, raw=b"raw")
    play << "store_transfer" >> OverBudget(spent_atto=0, budget_atto=1)
    play << step.find_lapsed_authorizations() >> ()
    assert play.failure.code == "budget_exhausted"


@pytest.mark.parametrize(
    "silence", [NodeUnavailable(detail="x"), NodeError(code=1, message="x"), NodeResult(result={})]
)
def test_an_uncertain_node_never_decides_over_a_stored_payment(silence):
    play = step_call()
    play << step.find_payments() >> (build_transfer(),)
    while play.failure is None:
        if play.step.name == "sleep":
            play >> None
        else:
            play << "query_node" >> silence
    assert isinstance(play.failure, PaymentPending)
    assert play.failure.transaction == TX


def test_replaced_only_when_a_finalized_block_took_the_nonce():
    play = step_call()
    play << step.find_payments() >> (build_transfer(),)
    play << ask("eth_getTransactionReceipt", str(TX)) >> NodeResult(result=None)
    play << ask("eth_getTransactionCount", str(PAYER), "finalized") >> number(6)
    play << ask("eth_getTransactionReceipt", str(TX)) >> NodeResult(result=None)
    play << step.record_transfer_state(TX, TransferState.REPLACED, 0) >> None
    play << step.send_call()


def test_resume_sends_the_same_bytes_of_what_has_no_receipt():
    play = SteppedFlow(
        resume_transfers(
            StepIo(), [build_transfer(tx_hash=OTHER_TX, nonce=6, raw=b"two"), build_transfer(raw=b"one")]
        )
    )
    play << ask("eth_getTransactionReceipt", str(TX)) >> NodeResult(result=None)
    play << ask("eth_sendRawTransaction", "0x" + b"one".hex()) >> NodeUnavailable(detail="x")
    play << ask("eth_getTransactionReceipt", str(OTHER_TX)) >> NodeResult(result={"status": "0x1"})
    assert play.step is None
    assert play.failure is None


@pytest.mark.parametrize(
    ("answers", "failure"),
    [
        ([NodeUnavailable(detail="x")], NodeUnreachable),
        ([NodeError(code=3, message="reverted")], CannotPay),
        ([NodeResult(result="0x" + "00" * 32)], CannotPay),  # nothing in the wallet
    ],
)
def test_failures_before_signing_spend_nothing(answers, failure):
    play = step_call()
    (
        play
        << step.find_payments()
        >> ()
        << step.send_call()
        >> PAYMENT_402
        << step.find_payments((PAYEE,))
        >> ()
    )
    for response in answers:
        play << "query_node" >> response
    assert isinstance(play.failure, failure)


def problem(status, code, headers=None, **members):
    return GatewayResponse(status=status, headers=headers or {}, problem={"code": code, **members})


def terms(code, *, missing=None, **changes):
    option = {**PAYMENT_402.problem["payment"]["options"][0], **changes}
    told = {} if missing is None else {"missing": missing}
    return problem(402, code, payment={"options": [option]}, **told)


USED = problem(409, "payment_already_used", paymentState="charged")
HELD = problem(409, "payment_already_used", paymentState="held", callId="call_7")
GONE = NoResponse(is_sent=True, detail="x")


def test_a_fresh_payment_that_is_called_spent_is_not_followed_by_another():
    world = FakeCallIo(PAYMENT_402, USED, SERVED)
    with pytest.raises(PaymentRefused) as caught:
        world.call()
    assert (caught.value.transaction, caught.value.reason) == (
        world.transfers[0].tx_hash,
        "payment_already_used",
    )
    assert world.amounts == [10_000]


def test_a_new_payment_that_paid_another_call_is_followed_by_one_more_at_most():
    world = FakeCallIo(PAYMENT_402, USED, SERVED, served=1)
    assert world.call().response is SERVED
    assert world.amounts == [10_000, 10_000]
    world = FakeCallIo(PAYMENT_402, USED, USED, USED, served=1)
    with pytest.raises(PaymentPending):
        world.call()
    assert world.amounts == [10_000, 10_000]


def short(missing=None, **changes):
    return terms("payment_insufficient", missing=missing, **changes)


@pytest.mark.parametrize(
    ("max_price", "prepay", "responses", "amounts"),
    [
        pytest.param("0.012", 1, [short("0.002", amount="12000")], [10_000, 2_000], id="within the cap"),
        pytest.param("0.012", 1, [short(amount="12000")], [10_000, 2_000], id="unnamed: price minus paid"),
        pytest.param("0.011999", 1, [short("0.002", amount="12000")], [10_000], id="above the cap"),
        pytest.param("0.01", 5, [short("0.000001")], [50_000], id="above the cap of a prepayment"),
        pytest.param("1", 1, [short("0.001")] * 2, [10_000, 1_000], id="a second difference"),
        pytest.param("1", 1, [short("0.000001", payTo="0x" + "33" * 20)], [10_000], id="another payee"),
        pytest.param("1", 1, [short("0.000001", network="eip155:8453")], [10_000], id="another network"),
        pytest.param("1", 1, [short("0.000001", token="0x" + "44" * 20)], [10_000], id="another token"),
        pytest.param("1", 1, [short("0.000001", decimals=7)], [10_000], id="other decimals"),
    ],
)
def test_one_difference_is_paid_to_the_same_payee_within_the_cap(max_price, prepay, responses, amounts):
    world = FakeCallIo(PAYMENT_402, *responses, SERVED)
    rules = {"max_price": Cap.parse(f"{max_price} USDC"), "prepay": prepay}
    if len(amounts) > len(responses):
        assert world.call(**rules).response is SERVED
    else:
        with pytest.raises(PaymentRefused):
            world.call(**rules)
    assert world.amounts == amounts
    assert {transfer.pay_to for transfer in world.transfers} == {PAYEE}


@pytest.mark.parametrize("code", ["payment_verification_failed", "payer_in_debt", "payment_required"])
def test_a_fresh_payment_that_is_not_counted_ends_the_call(code):
    """Also where the refusal comes after other terms."""
    world = FakeCallIo(PAYMENT_402, problem(402, code), SERVED)
    with pytest.raises(PaymentRefused):
        world.call()
    assert world.amounts == [10_000]


@pytest.mark.parametrize(
    "response",
    [
        problem(401, "signature_expired"),
        USED,
        HELD,
        PAYMENT_402,
        terms("payment_insufficient", missing="0.001"),
        problem(402, "payment_insufficient", paymentState="held"),
        problem(402, "payment_verification_failed"),
        problem(402, "price_above_max"),
        problem(503, "overloaded"),
        problem(401, "nonce_reused"),
        problem(429, "rate_limited"),
    ],
)
def test_after_a_call_that_may_have_arrived_nothing_is_signed_or_paid(response):
    world = FakeCallIo(PAYMENT_402, GONE, *[response] * 9)
    with pytest.raises(CallHeld) as caught:
        world.call(is_repeatable=True)
    assert caught.value.transaction == world.transfers[0].tx_hash
    assert not caught.value.is_retryable
    assert (world.signatures, world.amounts) == (1, [10_000])
    assert len(set(world.sent[1:])) == 1


@pytest.mark.parametrize("response", [SERVED, problem(502, "upstream_unreachable", paymentState="released")])
def test_the_same_proof_again_may_bring_the_outcome(response):
    world = FakeCallIo(PAYMENT_402, GONE, response)
    assert world.call(is_repeatable=True).response is response
    assert world.signatures == 1


def test_a_call_that_may_have_arrived_stays_so_when_the_repeat_does_not_leave():
    world = FakeCallIo(PAYMENT_402, GONE, *[NoResponse(is_sent=False, detail="x")] * 3)
    with pytest.raises(GatewayUnreachable, match="/history") as caught:
        world.call(is_repeatable=True)
    assert (caught.value.is_sent, caught.value.is_retryable) == (True, False)
    assert world.signatures == 1


def test_a_held_payment_is_waited_for_and_never_written_off_nor_paid_again():
    credit = build_transfer(state=TransferState.CONFIRMED)
    world = FakeCallIo(HELD, PAYMENT_402, *[HELD] * 9, credit=(credit,))
    with pytest.raises(CallHeld) as caught:
        world.call()
    assert (caught.value.call_id, world.waited_s) == ("call_7", 8)
    assert (world.recorded, world.transfers) == ([], [])


def test_a_held_payment_that_comes_back_is_spent_and_one_that_was_charged_is_followed_by_a_payment():
    credit = build_transfer(tx_hash=OTHER_TX, state=TransferState.CONFIRMED)
    world = FakeCallIo(HELD, PAYMENT_402, HELD, SERVED, credit=(credit,))
    assert world.call().transfer is credit
    assert world.transfers == []
    world = FakeCallIo(HELD, PAYMENT_402, USED, SERVED, credit=(credit,))
    assert world.call().transfer.tx_hash == world.transfers[0].tx_hash
    assert world.amounts == [10_000]


def test_a_held_payment_that_returns_after_the_patience_ends_the_call_at_once():
    later = problem(409, "payment_already_used", headers={"retry-after": "3600"}, paymentState="held")
    world = FakeCallIo(later, PAYMENT_402, credit=(build_transfer(state=TransferState.CONFIRMED),))
    with pytest.raises(CallHeld):
        world.call()
    assert world.waited_s == 0
