"""The order of the steps of a flow, as a script: `<<` is the expected step, `>>` its outcome."""

import pytest

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
from tollway.client.steps import (
    ApprovePayment,
    CountServedCalls,
    FindLapsedAuthorizations,
    FindNextNonce,
    FindPayments,
    FindUnsentTransfers,
    GatewayResponse,
    LeaseAuthorization,
    NodeError,
    NodeResult,
    NodeUnavailable,
    NonceTaken,
    NoResponse,
    OverBudget,
    PaidAlready,
    Pause,
    QueryNode,
    RecordTransferState,
    ReportProgress,
    SendCall,
    SignCall,
    SignedTransfer,
    SignTransfer,
    Stored,
    StoreTransfer,
    Transfer,
    TransferState,
)
from tollway.client.transfer import CallRules, Patience, PaymentSource, resume_transfers
from tollway.ids import Address, ChainId, TxHash
from tollway.money import Asset

CHAIN = ChainId(84532)
TOKEN = Address.parse("0x036CbD53842c5426634e7929541eC2318f3dCF7e")
USDC = Asset(chain_id=CHAIN, token=TOKEN, symbol="USDC", decimals=6)
PAYER, PAYEE = Address(b"\x01" * 20), Address(b"\x22" * 20)
TX, OTHER_TX = TxHash(b"\x0a" * 32), TxHash(b"\x0b" * 32)
SOURCE = PaymentSource(payer=PAYER, chains=frozenset({CHAIN}), gateway="http://gw", assets={})
RULES = CallRules(max_price=Cap.parse("1 USDC"), patience=Patience(poll_s=1, wait_s=3))
PROOF = (("X-Payment-Tx", str(TX)),)
SHOWN = SendCall(headers=(("Tollway-Max-Price", "1"), *PROOF))
PAYMENT_402 = GatewayResponse(
    status=402,
    headers={},
    problem={
        "code": "payment_required",
        "payment": {
            "options": [
                {
                    "rail": "tx",
                    "network": "eip155:84532",
                    "token": str(TOKEN),
                    "symbol": "USDC",
                    "decimals": 6,
                    "amount": "10000",
                    "payTo": str(PAYEE),
                    "confirmations": 2,
                }
            ]
        },
    },
)
SERVED = GatewayResponse(
    status=200,
    headers={"tollway-payment-state": "charged", "tollway-credit-remaining": "0 USDC"},
)


def transfer(**changes) -> Transfer:
    told = {
        "tx_hash": TX,
        "raw": b"raw",
        "asset": USDC,
        "payer": PAYER,
        "pay_to": PAYEE,
        "gateway": "http://gw",
        "amount": 10_000,
        "rest": 10_000,
        "nonce": 5,
        "confirmations": 2,
        "state": TransferState.STORED,
        **changes,
    }
    return Transfer(**told)


class Play:
    """Drives a flow by hand. Nothing is left over of an earlier run of the request."""

    def __init__(self, flow):
        self.flow = flow
        self.step = next(flow)
        if self.step == LeaseAuthorization():
            self.step = flow.send(None)
        self.result = None
        self.failure = None
        self.progress = []

    def __lshift__(self, expected):
        assert self.failure is None, self.failure
        if isinstance(expected, type):
            assert isinstance(self.step, expected), self.step
        else:
            assert self.step == expected
        return self

    def __rshift__(self, outcome):
        try:
            self.step = self.flow.send(outcome)
            while isinstance(self.step, ReportProgress):
                self.progress.append(self.step.progress)
                self.step = self.flow.send(None)
        except StopIteration as end:
            self.step, self.result = None, end.value
        except Exception as exc:
            self.step, self.failure = None, exc
        return self


def ask(method, *params):
    return QueryNode(chain_id=CHAIN, method=method, params=params)


def number(value):
    return NodeResult(result=hex(value))


BALANCE = "0x70a08231" + "00" * 12 + PAYER.hex()
CALLDATA = bytes.fromhex("a9059cbb") + bytes(12) + PAYEE + (10_000).to_bytes(32, "big")


def play_to_signature(play, *, pending=5, stored=0):
    """From the first step to the signed transaction."""
    play << FindPayments() >> ()
    play << SendCall() >> PAYMENT_402
    play << FindPayments(payees=(PAYEE,)) >> ()
    (
        play
        << ask("eth_call", {"to": str(TOKEN), "data": BALANCE}, "latest")
        >> NodeResult(result="0x" + (10**6).to_bytes(32, "big").hex())
    )
    play << ask("eth_chainId") >> number(CHAIN)
    play << QueryNode >> number(40_000)
    play << ask("eth_getBlockByNumber", "latest", False) >> NodeResult(result={"baseFeePerGas": "0x64"})
    play << ask("eth_maxPriorityFeePerGas") >> NodeError(code=-32601, message="no such method")
    play << ask("eth_getBalance", str(PAYER), "latest") >> number(10**18)
    play << ApprovePayment >> None
    play << ask("eth_getTransactionCount", str(PAYER), "pending") >> number(pending)
    play << FindNextNonce(chain_id=CHAIN, pending=pending) >> stored
    return play


def test_stores_before_broadcasting_and_broadcasts_before_calling():
    play = play_to_signature(Play(pay_flow(SOURCE, RULES)))
    (
        play
        << SignTransfer(
            chain_id=CHAIN,
            nonce=5,
            to=TOKEN,
            value=0,
            calldata=CALLDATA,
            gas=50_000,
            fee_max_wei=10**9 + 200,
            tip_wei=10**9,
        )
        >> SignedTransfer(tx_hash=TX, raw=b"raw")
    )
    stored = transfer(fee_max_wei=50_000 * (10**9 + 200))
    play << StoreTransfer(transfer=stored, price=10_000) >> Stored()
    play << ask("eth_getTransactionReceipt", str(TX)) >> NodeResult(result=None)
    play << ask("eth_getTransactionCount", str(PAYER), "finalized") >> number(5)
    play << ask("eth_sendRawTransaction", "0x" + b"raw".hex()) >> NodeResult(result=str(TX))
    receipt = NodeResult(result={"transactionHash": str(TX), "blockNumber": "0xa", "status": "0x1"})
    play << ask("eth_getTransactionReceipt", str(TX)) >> receipt
    play << ask("eth_blockNumber") >> number(10)  # one confirmation of two
    play << Pause(seconds=1) >> None
    play << ask("eth_getTransactionReceipt", str(TX)) >> receipt
    play << ask("eth_blockNumber") >> number(11)
    play << RecordTransferState(tx_hash=TX, state=TransferState.CONFIRMED) >> None
    play << SignCall(chain_id=CHAIN, tx_hash=TX) >> PROOF
    play << SHOWN >> SERVED
    play << RecordTransferState(tx_hash=TX, state=TransferState.CONFIRMED, rest=0, is_served=True) >> None
    assert play.result.response is SERVED
    assert play.result.transfer.tx_hash == TX


def test_credit_is_shown_first():
    credit = transfer(state=TransferState.CONFIRMED)
    play = Play(pay_flow(SOURCE, RULES))
    play << FindPayments() >> (credit,)
    play << SignCall(chain_id=CHAIN, tx_hash=TX) >> PROOF
    play << SHOWN >> SERVED
    play << RecordTransferState >> None
    assert play.result.transfer is credit


def test_nonce_taken_by_another_process_is_signed_anew_with_the_next():
    play = play_to_signature(Play(pay_flow(SOURCE, RULES)))
    play << SignTransfer >> SignedTransfer(tx_hash=TX, raw=b"raw")
    play << StoreTransfer >> NonceTaken()
    play << ask("eth_getTransactionCount", str(PAYER), "pending") >> number(5)
    play << FindNextNonce(chain_id=CHAIN, pending=5) >> 6
    play << FindUnsentTransfers(chain_id=CHAIN) >> (transfer(tx_hash=OTHER_TX),)
    play << ask("eth_sendRawTransaction", "0x" + b"raw".hex()) >> NodeError(code=1, message="already known")
    assert play.step.nonce == 6


def test_an_unresolved_payment_of_another_call_is_followed_instead_of_paying():
    earlier = transfer(tx_hash=OTHER_TX)
    play = play_to_signature(Play(pay_flow(SOURCE, RULES)))
    play << SignTransfer >> SignedTransfer(tx_hash=TX, raw=b"raw")
    play << StoreTransfer >> PaidAlready(transfer=earlier)
    play << ask("eth_getTransactionReceipt", str(OTHER_TX))


def test_over_budget_ends_before_anything_is_broadcast():
    play = play_to_signature(Play(pay_flow(SOURCE, RULES)))
    play << SignTransfer >> SignedTransfer(tx_hash=TX, raw=b"raw")
    play << StoreTransfer >> OverBudget(spent_atto=0, budget_atto=1)
    play << FindLapsedAuthorizations() >> ()
    assert play.failure.code == "budget_exhausted"


@pytest.mark.parametrize(
    "silence", [NodeUnavailable(detail="x"), NodeError(code=1, message="x"), NodeResult(result={})]
)
def test_an_uncertain_node_never_decides_over_a_stored_payment(silence):
    play = Play(pay_flow(SOURCE, RULES))
    play << FindPayments() >> (transfer(),)
    while play.failure is None:
        if isinstance(play.step, Pause):
            play >> None
        else:
            play << QueryNode >> silence
    assert isinstance(play.failure, PaymentPending)
    assert play.failure.transaction == TX


def test_replaced_only_when_a_finalized_block_took_the_nonce():
    play = Play(pay_flow(SOURCE, RULES))
    play << FindPayments() >> (transfer(),)
    play << ask("eth_getTransactionReceipt", str(TX)) >> NodeResult(result=None)
    play << ask("eth_getTransactionCount", str(PAYER), "finalized") >> number(6)
    play << ask("eth_getTransactionReceipt", str(TX)) >> NodeResult(result=None)
    play << RecordTransferState(tx_hash=TX, state=TransferState.REPLACED, rest=0) >> None
    play << SendCall()


def test_resume_sends_the_same_bytes_of_what_has_no_receipt():
    play = Play(resume_transfers([transfer(tx_hash=OTHER_TX, nonce=6, raw=b"two"), transfer(raw=b"one")]))
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
    play = Play(pay_flow(SOURCE, RULES))
    play << FindPayments() >> () << SendCall() >> PAYMENT_402 << FindPayments(payees=(PAYEE,)) >> ()
    for response in answers:
        play << QueryNode >> response
    assert isinstance(play.failure, failure)


class World:
    """A wallet with money on a quick chain, and a gateway that answers from a list."""

    def __init__(self, *answers, served=0, credit=()):
        self.answers = list(answers)
        self.served = served
        self.credit = credit
        self.stored = []
        self.sent = []
        self.learned = []
        self.signatures = 0
        self.waited_s = 0

    def call(self, **rules):
        told = {"max_price": Cap.parse("0.01 USDC"), "patience": Patience(poll_s=1, wait_s=9), **rules}
        flow = pay_flow(SOURCE, CallRules(**told))
        step = next(flow)
        while True:
            try:
                step = flow.send(self.do(step))
            except StopIteration as end:
                return end.value

    def do(self, step):
        match step:
            case LeaseAuthorization():
                return None
            case ApprovePayment() | ReportProgress():
                return None
            case FindPayments():
                return self.credit
            case SendCall():
                self.sent.append(step)
                return self.answers.pop(0)
            case QueryNode():
                return self.ask(step.method, step.params)
            case FindNextNonce():
                return 0
            case SignTransfer():
                return SignedTransfer(tx_hash=TxHash(bytes([len(self.stored) + 1]) * 32), raw=b"raw")
            case StoreTransfer():
                self.stored.append(step.transfer)
                return Stored()
            case SignCall():
                self.signatures += 1
                return (("X-Payment-Tx", str(step.tx_hash)), ("X-Signature", str(self.signatures)))
            case CountServedCalls():
                return self.served
            case RecordTransferState():
                self.learned.append(step)
                return None
            case Pause(seconds=seconds):
                self.waited_s += seconds
                return None
        raise NotImplementedError(step)

    def ask(self, method, params):
        numbers = {"eth_chainId": CHAIN, "eth_getBalance": 10**18}
        match method:
            case "eth_getTransactionReceipt":
                receipt = {"transactionHash": params[0], "blockNumber": "0x1", "status": "0x1"}
                return NodeResult(result=receipt)
            case "eth_getBlockByNumber":
                return NodeResult(result={"baseFeePerGas": "0x1"})
            case "eth_call":
                return NodeResult(result="0x" + (10**9).to_bytes(32, "big").hex())
        return number(numbers.get(method, 100))

    @property
    def amounts(self):
        return [payment.amount for payment in self.stored]


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
    world = World(PAYMENT_402, USED, SERVED)
    with pytest.raises(PaymentRefused) as caught:
        world.call()
    assert (caught.value.transaction, caught.value.reason) == (
        world.stored[0].tx_hash,
        "payment_already_used",
    )
    assert world.amounts == [10_000]


def test_a_new_payment_that_paid_another_call_is_followed_by_one_more_at_most():
    world = World(PAYMENT_402, USED, SERVED, served=1)
    assert world.call().response is SERVED
    assert world.amounts == [10_000, 10_000]
    world = World(PAYMENT_402, USED, USED, USED, served=1)
    with pytest.raises(PaymentPending):
        world.call()
    assert world.amounts == [10_000, 10_000]


def test_a_difference_is_added_to_a_payment_of_the_same_call_within_the_cap():
    dearer = terms("payment_insufficient", amount="12000", missing="0.002")
    world = World(PAYMENT_402, dearer, SERVED)
    assert world.call(max_price=Cap.parse("0.012 USDC")).response is SERVED
    assert world.amounts == [10_000, 2_000]
    assert world.stored[0].pay_to == world.stored[1].pay_to
    world = World(PAYMENT_402, dearer, SERVED)
    with pytest.raises(PaymentRefused):
        world.call(max_price=Cap.parse("0.011999 USDC"))
    assert world.amounts == [10_000]


def test_an_unnamed_difference_is_the_price_minus_the_paid_amount():
    world = World(PAYMENT_402, terms("payment_insufficient", amount="12000"), SERVED)
    world.call(max_price=Cap.parse("0.012 USDC"))
    assert world.amounts == [10_000, 2_000]


def test_the_cap_of_a_prepayment_covers_its_calls_and_no_more():
    short = terms("payment_insufficient", missing="0.000001")
    world = World(PAYMENT_402, short, SERVED)
    with pytest.raises(PaymentRefused):
        world.call(prepay=5)
    assert world.amounts == [50_000]


@pytest.mark.parametrize(
    "changes",
    [
        {"payTo": "0x" + "33" * 20},
        {"network": "eip155:8453"},
        {"token": "0x" + "44" * 20},
        {"decimals": 7},
    ],
)
def test_a_difference_goes_nowhere_else(changes):
    world = World(PAYMENT_402, terms("payment_insufficient", missing="0.000001", **changes), SERVED)
    with pytest.raises(PaymentRefused):
        world.call(max_price=Cap.parse("1 USDC"))
    assert world.amounts == [10_000]


def test_a_second_difference_is_not_paid():
    more = terms("payment_insufficient", missing="0.001")
    world = World(PAYMENT_402, more, more, SERVED)
    with pytest.raises(PaymentRefused):
        world.call(max_price=Cap.parse("1 USDC"))
    assert world.amounts == [10_000, 1_000]


@pytest.mark.parametrize("code", ["payment_verification_failed", "payer_in_debt", "payment_required"])
def test_a_fresh_payment_that_is_not_counted_ends_the_call(code):
    """Also where the refusal comes after other terms."""
    world = World(PAYMENT_402, problem(402, code), SERVED)
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
    world = World(PAYMENT_402, GONE, *[response] * 9)
    with pytest.raises(CallHeld) as caught:
        world.call(is_repeatable=True)
    assert caught.value.transaction == world.stored[0].tx_hash
    assert not caught.value.is_retryable
    assert (world.signatures, world.amounts) == (1, [10_000])
    assert len(set(world.sent[1:])) == 1


@pytest.mark.parametrize("response", [SERVED, problem(502, "upstream_unreachable", paymentState="released")])
def test_the_same_proof_again_may_bring_the_outcome(response):
    world = World(PAYMENT_402, GONE, response)
    assert world.call(is_repeatable=True).response is response
    assert world.signatures == 1


def test_a_call_that_may_have_arrived_stays_so_when_the_repeat_does_not_leave():
    world = World(PAYMENT_402, GONE, *[NoResponse(is_sent=False, detail="x")] * 3)
    with pytest.raises(GatewayUnreachable, match="/history") as caught:
        world.call(is_repeatable=True)
    assert (caught.value.is_sent, caught.value.is_retryable) == (True, False)
    assert world.signatures == 1


def test_a_held_payment_is_waited_for_and_never_written_off_nor_paid_again():
    credit = transfer(state=TransferState.CONFIRMED)
    world = World(HELD, PAYMENT_402, *[HELD] * 9, credit=(credit,))
    with pytest.raises(CallHeld) as caught:
        world.call()
    assert (caught.value.call_id, world.waited_s) == ("call_7", 8)
    assert (world.learned, world.stored) == ([], [])


def test_a_held_payment_that_comes_back_is_spent_and_one_that_was_charged_is_followed_by_a_payment():
    credit = transfer(state=TransferState.CONFIRMED)
    world = World(HELD, PAYMENT_402, HELD, SERVED, credit=(credit,))
    assert world.call().transfer is credit
    assert world.stored == []
    world = World(HELD, PAYMENT_402, USED, SERVED, credit=(credit,))
    assert world.call().transfer.tx_hash == world.stored[0].tx_hash
    assert world.amounts == [10_000]


def test_a_held_payment_that_returns_after_the_patience_ends_the_call_at_once():
    later = problem(409, "payment_already_used", headers={"retry-after": "3600"}, paymentState="held")
    world = World(later, PAYMENT_402, credit=(transfer(state=TransferState.CONFIRMED),))
    with pytest.raises(CallHeld):
        world.call()
    assert world.waited_s == 0
