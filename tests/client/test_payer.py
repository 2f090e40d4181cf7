"""The order of the payer's steps, as a play: `<<` is the step that must come, `>>` what it is answered."""

import pytest

from tollway.client.checkout import Rules
from tollway.client.failures import CannotPay, NodeUnreachable, PaymentPending
from tollway.client.payer import pay_flow
from tollway.client.quote import Cap
from tollway.client.steps import (
    Answer,
    AskNode,
    Learn,
    NextNonce,
    NodeAnswer,
    NodeAway,
    NodeRefused,
    NonceTaken,
    OverBudget,
    PaidAlready,
    Pause,
    Recall,
    Send,
    SignCall,
    SignedTransfer,
    SignTransfer,
    Store,
    Stored,
    Transfer,
    TransferState,
    Unsent,
)
from tollway.client.transfer import Patience, Purse, resume
from tollway.identifiers import Address, ChainId, TxHash
from tollway.money import Asset

CHAIN = ChainId(84532)
TOKEN = Address.parse("0x036CbD53842c5426634e7929541eC2318f3dCF7e")
USDC = Asset(chain_id=CHAIN, token=TOKEN, symbol="USDC", decimals=6)
PAYER, PAYEE = Address(b"\x01" * 20), Address(b"\x22" * 20)
TX, OTHER_TX = TxHash(b"\x0a" * 32), TxHash(b"\x0b" * 32)
PURSE = Purse(payer=PAYER, chains=frozenset({CHAIN}), gateway="http://gw", assets={})
RULES = Rules(max_price=Cap.parse("1 USDC"), patience=Patience(poll_s=1, wait_s=3))
PROOF = (("X-Payment-Tx", str(TX)),)
SHOWN = Send(headers=(("Tollway-Max-Price", "1"), *PROOF))
PAYMENT_402 = Answer(
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
SERVED = Answer(
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
    """Drives a flow by hand."""

    def __init__(self, flow):
        self.flow = flow
        self.step = next(flow)
        self.result = None
        self.failure = None

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
        except StopIteration as end:
            self.step, self.result = None, end.value
        except Exception as exc:
            self.step, self.failure = None, exc
        return self


def ask(method, *params):
    return AskNode(chain_id=CHAIN, method=method, params=params)


def number(value):
    return NodeAnswer(result=hex(value))


BALANCE = "0x70a08231" + "00" * 12 + PAYER.hex()
CALLDATA = bytes.fromhex("a9059cbb") + bytes(12) + PAYEE + (10_000).to_bytes(32, "big")


def play_to_signature(play, *, pending=5, stored=0):
    """From the first step to the signed transaction."""
    play << Recall() >> ()
    play << Send() >> PAYMENT_402
    play << Recall(payees=(PAYEE,)) >> ()
    (
        play
        << ask("eth_call", {"to": str(TOKEN), "data": BALANCE}, "latest")
        >> NodeAnswer(result="0x" + (10**6).to_bytes(32, "big").hex())
    )
    play << ask("eth_chainId") >> number(CHAIN)
    play << AskNode >> number(40_000)
    play << ask("eth_getBlockByNumber", "latest", False) >> NodeAnswer(result={"baseFeePerGas": "0x64"})
    play << ask("eth_maxPriorityFeePerGas") >> NodeRefused(code=-32601, message="no such method")
    play << ask("eth_getBalance", str(PAYER), "latest") >> number(10**18)
    play << ask("eth_getTransactionCount", str(PAYER), "pending") >> number(pending)
    play << NextNonce(chain_id=CHAIN) >> stored
    return play


def test_stores_before_broadcasting_and_broadcasts_before_calling():
    play = play_to_signature(Play(pay_flow(PURSE, RULES)))
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
    play << Store(transfer=transfer(), price=10_000) >> Stored()
    play << ask("eth_getTransactionReceipt", str(TX)) >> NodeAnswer(result=None)
    play << ask("eth_getTransactionCount", str(PAYER), "finalized") >> number(5)
    play << ask("eth_sendRawTransaction", "0x" + b"raw".hex()) >> NodeAnswer(result=str(TX))
    receipt = NodeAnswer(result={"transactionHash": str(TX), "blockNumber": "0xa", "status": "0x1"})
    play << ask("eth_getTransactionReceipt", str(TX)) >> receipt
    play << ask("eth_blockNumber") >> number(10)  # one confirmation of two
    play << Pause(seconds=1) >> None
    play << ask("eth_getTransactionReceipt", str(TX)) >> receipt
    play << ask("eth_blockNumber") >> number(11)
    play << Learn(tx_hash=TX, state=TransferState.CONFIRMED) >> None
    play << SignCall(chain_id=CHAIN, tx_hash=TX) >> PROOF
    play << SHOWN >> SERVED
    play << Learn(tx_hash=TX, state=TransferState.CONFIRMED, rest=0) >> None
    assert play.result.answer is SERVED
    assert play.result.transfer.tx_hash == TX


def test_credit_is_shown_first():
    credit = transfer(state=TransferState.CONFIRMED)
    play = Play(pay_flow(PURSE, RULES))
    play << Recall() >> (credit,)
    play << SignCall(chain_id=CHAIN, tx_hash=TX) >> PROOF
    play << SHOWN >> SERVED
    play << Learn >> None
    assert play.result.transfer is credit


def test_nonce_taken_by_another_process_is_signed_anew_with_the_next():
    play = play_to_signature(Play(pay_flow(PURSE, RULES)))
    play << SignTransfer >> SignedTransfer(tx_hash=TX, raw=b"raw")
    play << Store >> NonceTaken()
    play << ask("eth_getTransactionCount", str(PAYER), "pending") >> number(5)
    play << NextNonce(chain_id=CHAIN) >> 6
    play << Unsent(chain_id=CHAIN) >> (transfer(tx_hash=OTHER_TX),)
    play << ask("eth_sendRawTransaction", "0x" + b"raw".hex()) >> NodeRefused(code=1, message="already known")
    assert play.step.nonce == 6


def test_somebody_elses_unresolved_payment_is_followed_instead_of_paying():
    earlier = transfer(tx_hash=OTHER_TX)
    play = play_to_signature(Play(pay_flow(PURSE, RULES)))
    play << SignTransfer >> SignedTransfer(tx_hash=TX, raw=b"raw")
    play << Store >> PaidAlready(transfer=earlier)
    play << ask("eth_getTransactionReceipt", str(OTHER_TX))


def test_over_budget_ends_before_anything_is_broadcast():
    play = play_to_signature(Play(pay_flow(PURSE, RULES)))
    play << SignTransfer >> SignedTransfer(tx_hash=TX, raw=b"raw")
    play << Store >> OverBudget(spent_atto=0, budget_atto=1)
    assert play.failure.code == "budget_exhausted"


@pytest.mark.parametrize(
    "silence", [NodeAway(detail="x"), NodeRefused(code=1, message="x"), NodeAnswer(result={})]
)
def test_an_uncertain_node_never_decides_over_a_stored_payment(silence):
    play = Play(pay_flow(PURSE, RULES))
    play << Recall() >> (transfer(),)
    while play.failure is None:
        if isinstance(play.step, Pause):
            play >> None
        else:
            play << AskNode >> silence
    assert isinstance(play.failure, PaymentPending)
    assert play.failure.transaction == TX


def test_replaced_only_when_a_finalized_block_took_the_nonce():
    play = Play(pay_flow(PURSE, RULES))
    play << Recall() >> (transfer(),)
    play << ask("eth_getTransactionReceipt", str(TX)) >> NodeAnswer(result=None)
    play << ask("eth_getTransactionCount", str(PAYER), "finalized") >> number(6)
    play << ask("eth_getTransactionReceipt", str(TX)) >> NodeAnswer(result=None)
    play << Learn(tx_hash=TX, state=TransferState.REPLACED, rest=0) >> None
    play << Send()


def test_resume_sends_the_same_bytes_of_what_has_no_receipt():
    play = Play(resume([transfer(tx_hash=OTHER_TX, nonce=6, raw=b"two"), transfer(raw=b"one")]))
    play << ask("eth_getTransactionReceipt", str(TX)) >> NodeAnswer(result=None)
    play << ask("eth_sendRawTransaction", "0x" + b"one".hex()) >> NodeAway(detail="x")
    play << ask("eth_getTransactionReceipt", str(OTHER_TX)) >> NodeAnswer(result={"status": "0x1"})
    assert play.step is None
    assert play.failure is None


@pytest.mark.parametrize(
    ("answers", "failure"),
    [
        ([NodeAway(detail="x")], NodeUnreachable),
        ([NodeRefused(code=3, message="reverted")], CannotPay),
        ([NodeAnswer(result="0x" + "00" * 32)], CannotPay),  # nothing in the wallet
    ],
)
def test_failures_before_signing_spend_nothing(answers, failure):
    play = Play(pay_flow(PURSE, RULES))
    play << Recall() >> () << Send() >> PAYMENT_402 << Recall(payees=(PAYEE,)) >> ()
    for answer in answers:
        play << AskNode >> answer
    assert isinstance(play.failure, failure)


def test_two_payments_are_the_most_that_one_call_makes():
    """Whatever a gateway answers, it cannot talk a call into a third payment."""
    used = Answer(status=409, headers={}, problem={"code": "payment_already_used"})
    play = Play(pay_flow(PURSE, RULES))
    hashes = iter(TxHash(bytes([i]) * 32) for i in range(1, 9))
    stores = 0
    for _ in range(200):
        if play.failure is not None:
            break
        match play.step:
            case Recall():
                play >> ()
            case Send(headers=()):
                play >> PAYMENT_402
            case Send():
                play >> used
            case SignTransfer():
                play >> SignedTransfer(tx_hash=next(hashes), raw=b"raw")
            case Store():
                stores += 1
                play >> Stored()
            case SignCall():
                play >> PROOF
            case NextNonce():
                play >> 0
            case AskNode(method="eth_getTransactionReceipt", params=params):
                play >> NodeAnswer(
                    result={"transactionHash": params[0], "blockNumber": "0x1", "status": "0x1"}
                )
            case AskNode(method="eth_getBlockByNumber"):
                play >> NodeAnswer(result={"baseFeePerGas": "0x1"})
            case AskNode(method="eth_chainId"):
                play >> number(CHAIN)
            case AskNode(method="eth_call"):
                play >> NodeAnswer(result="0x" + (10**9).to_bytes(32, "big").hex())
            case AskNode(method="eth_getBalance"):
                play >> number(10**18)
            case AskNode():
                play >> number(100)
            case _:
                play >> None
    assert isinstance(play.failure, PaymentPending)
    assert stores == 2
