import json
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.narrowing import of_type
from tollway.chain.port import ChainFacts, NotMined, SendFault
from tollway.chain.responses import (
    BlockHeader,
    MinedTransaction,
    RpcFault,
    TransactionVotes,
    UnminedTransaction,
    UnusableResponse,
    assemble_facts,
    parse_base_fee,
    parse_batch,
    parse_block,
    parse_bytes,
    parse_call,
    parse_estimate,
    parse_final_tag,
    parse_log_subjects,
    parse_log_transactions,
    parse_mined,
    parse_quantity,
    parse_tip,
    parse_word,
)
from tollway.ids import Address, ChainId, TxHash

IDS = [7, 8]
GOOD = [{"id": 7, "result": "a"}, {"id": 8, "result": None}]


def fault(message: str, *, code: int = -32000, payload: object = None) -> RpcFault:
    return RpcFault(code=code, message=message, payload=payload)


@pytest.mark.parametrize("answers", [GOOD, GOOD[::-1]], ids=["in order", "out of order"])
def test_a_batch_is_matched_by_id_and_not_by_position(answers: object) -> None:
    assert parse_batch(json.dumps(answers).encode(), IDS) == ["a", None]


def test_an_error_of_one_item_leaves_the_others_alone() -> None:
    body = json.dumps([GOOD[0], {"id": 8, "error": {"code": -32601, "message": "no", "data": [1]}}])
    assert parse_batch(body.encode(), IDS) == ["a", fault("no", code=-32601, payload=[1])]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"<html>rate limited</html>", id="HTML"),
        pytest.param(b"\xff\xfe", id="not UTF-8"),
        pytest.param(b"[" * 200_000, id="depth bomb"),
        pytest.param(b"null", id="null"),
        pytest.param(b'{"id": 7, "error": {"code": -32005, "message": "x"}}', id="one error for the batch"),
        pytest.param(b"[]", id="nothing answered"),
        pytest.param(json.dumps(GOOD[:1]).encode(), id="one missing"),
        pytest.param(json.dumps([*GOOD, GOOD[0]]).encode(), id="one twice"),
        pytest.param(json.dumps([GOOD[0], {"id": 9, "result": 1}]).encode(), id="foreign id"),
        pytest.param(json.dumps([GOOD[0], {"id": "8", "result": 1}]).encode(), id="id as text"),
        pytest.param(json.dumps([GOOD[0], {"id": True, "result": 1}]).encode(), id="id as bool"),
        pytest.param(json.dumps([GOOD[0], {"result": 1}]).encode(), id="no id"),
        pytest.param(json.dumps([GOOD[0], 8]).encode(), id="not an object"),
        pytest.param(json.dumps([GOOD[0], {"id": 8}]).encode(), id="neither result nor error"),
        pytest.param(json.dumps([GOOD[0], {"id": 8, "error": "x"}]).encode(), id="error as text"),
        pytest.param(json.dumps([GOOD[0], {"id": 8, "error": {}}]).encode(), id="error without code"),
    ],
)
def test_a_batch_that_is_not_whole_is_unusable(body: bytes) -> None:
    with pytest.raises(UnusableResponse):
        parse_batch(body, IDS)


def test_deep_nesting_is_refused_even_when_python_would_crash() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)  # what importing py_ecc (below eth-account) does to the whole process
    try:
        for bomb in (b"[" * 500_000, b'{"id":' * 500_000, b"[" * 100_000 + b"]" * 100_000):
            with pytest.raises(UnusableResponse):
                parse_batch(bomb, IDS)
    finally:
        sys.setrecursionlimit(before)


def test_true_is_not_the_id_one() -> None:
    with pytest.raises(UnusableResponse):
        parse_batch(b'[{"id": true, "result": 5}]', [1])


def test_an_unusable_response_never_repeats_the_nodes_text() -> None:
    secret = "key-123"
    for value in (secret, fault(secret), [secret]):
        for parse in (parse_quantity, parse_bytes, parse_block):
            with pytest.raises(UnusableResponse) as caught:
                parse(value)
            assert secret not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [None, 5, True, "", "0x", "5", "0xg", "-0x1", "0x 1", "0X1", "0x" + "1" * 65, "0x1\n", "0x\u0661"],
)
def test_a_quantity_is_hex_text_and_nothing_else(value: object) -> None:
    with pytest.raises(UnusableResponse):
        parse_quantity(value)


@pytest.mark.parametrize("value", [None, 5, "", "abcd", "0xabc", "0xzz", "0xab\n", ["0xab"]])
def test_bytes_are_even_hex_text_and_nothing_else(value: object) -> None:
    with pytest.raises(UnusableResponse):
        parse_bytes(value)


def test_bytes_of_another_length_are_refused() -> None:
    assert parse_bytes("0xabCD", length=2) == b"\xab\xcd"
    with pytest.raises(UnusableResponse):
        parse_bytes("0xabcd", length=3)


HEAD = parse_block({"number": "0xa", "hash": "0x" + "0a" * 32, "timestamp": "0x64"})


@pytest.mark.parametrize("value", [None, fault("finalized block not found"), fault("x", code=-32601)])
def test_nothing_is_final_where_the_node_has_no_final_block(value: object) -> None:
    assert parse_final_tag(value, head=HEAD) is None


def test_a_final_block_above_the_head_is_unusable() -> None:
    with pytest.raises(UnusableResponse):
        parse_final_tag({"number": "0xb", "hash": "0x" + "0b" * 32, "timestamp": "0x65"}, head=HEAD)


@pytest.mark.parametrize("member", ["number", "hash", "timestamp"])
@pytest.mark.parametrize("value", [None, "0x", "0x" + "f" * 64 + "ff"])
def test_a_block_needs_number_hash_and_time(member: str, value: object) -> None:
    with pytest.raises(UnusableResponse):
        parse_block({"number": "0xa", "hash": "0x" + "0a" * 32, "timestamp": "0x64", member: value})


@pytest.mark.parametrize("member", ["number", "timestamp"])
def test_a_block_with_a_too_large_height_or_time_is_unusable(member: str) -> None:
    with pytest.raises(UnusableResponse):
        parse_block({"number": "0xa", "hash": "0x" + "0a" * 32, "timestamp": "0x64", member: hex(2**63)})


TX = TxHash(b"\x11" * 32)
BLOCK_HASH, ALICE, BOB = "0x" + "b0" * 32, "0x" + "a1" * 20, "0x" + "b2" * 20
LOG: dict[str, Any] = {
    "address": ALICE,
    "topics": ["0x" + "01" * 32],
    "data": "0xbeef",
    "removed": False,
    "transactionHash": str(TX),
    "blockHash": BLOCK_HASH,
}
RECEIPT: dict[str, Any] = {
    "transactionHash": str(TX),
    "blockHash": BLOCK_HASH,
    "blockNumber": "0x8",
    "status": "0x1",
    "from": ALICE,
    "to": BOB,
    "logs": [LOG],
}
TRANSACTION: dict[str, Any] = {
    "hash": str(TX),
    "blockHash": BLOCK_HASH,
    "blockNumber": "0x8",
    "from": ALICE,
    "to": BOB,
    "value": "0x5",
}
ABSENT = object()


def change(fields: dict[str, Any], member: str, value: object) -> dict[str, Any]:
    kept = {name: old for name, old in fields.items() if name != member}
    return kept if value is ABSENT else {**kept, member: value}


def test_receipt_and_transaction_make_one_mined_transaction() -> None:
    mined = of_type(MinedTransaction, parse_mined(RECEIPT, TRANSACTION, tx_hash=TX))
    assert (mined.succeeded, mined.value, mined.block_number) == (True, 5, 8)
    assert mined.logs[0].payload == b"\xbe\xef"


def test_a_created_contract_has_no_recipient() -> None:
    mined = parse_mined(change(RECEIPT, "to", None), change(TRANSACTION, "to", None), tx_hash=TX)
    assert isinstance(mined, MinedTransaction)
    assert mined.recipient is None


@pytest.mark.parametrize(
    ("receipt", "transaction", "is_pending"),
    [
        (None, None, False),
        (None, change(TRANSACTION, "blockHash", None), True),
        (None, TRANSACTION, True),
        (RECEIPT, change(TRANSACTION, "blockHash", None), True),
    ],
    ids=[
        "unknown",
        "in the pool",
        "mined after the receipt was read",
        "mined before the transaction was read",
    ],
)
def test_a_transaction_without_receipt_and_block_is_not_mined(
    receipt: object, transaction: object, is_pending: bool
) -> None:
    assert parse_mined(receipt, transaction, tx_hash=TX) == UnminedTransaction(is_pending=is_pending)


OTHER_32, OTHER_20 = "0x" + "ee" * 32, "0x" + "ee" * 20
BAD_RECEIPTS = [
    ("transactionHash", OTHER_32),
    ("blockHash", OTHER_32),
    ("blockNumber", "0x9"),
    ("blockNumber", "0x" + "f" * 64),
    ("from", OTHER_20),
    ("to", OTHER_20),
    ("to", None),
    ("to", ABSENT),
    ("status", "0x2"),
    ("status", ABSENT),
    ("status", True),
    ("logs", ABSENT),
    ("logs", None),
    ("logs", [None]),
    ("blockHash", None),
    ("from", None),
]
BAD_TRANSACTIONS = [
    ("hash", OTHER_32),
    ("hash", None),
    ("blockHash", OTHER_32),
    ("blockNumber", "0x9"),
    ("from", OTHER_20),
    ("to", OTHER_20),
    ("value", ABSENT),
    ("value", 5),
    ("value", "0x" + "1" * 65),
]
BAD_LOGS = [
    ("transactionHash", OTHER_32),
    ("blockHash", OTHER_32),
    ("transactionHash", ABSENT),
    ("removed", ABSENT),
    ("removed", "false"),
    ("topics", None),
    ("topics", ["0x01"]),
    ("topics", ["0x" + "01" * 32] * 5),
    ("data", None),
    ("address", "0x01"),
]


@pytest.mark.parametrize(
    ("receipt", "transaction"),
    [
        *[pytest.param(change(RECEIPT, n, v), TRANSACTION, id=f"receipt {n}") for n, v in BAD_RECEIPTS],
        *[pytest.param(RECEIPT, change(TRANSACTION, n, v), id=f"tx {n}") for n, v in BAD_TRANSACTIONS],
        *[
            pytest.param({**RECEIPT, "logs": [LOG, change(LOG, n, v)]}, TRANSACTION, id=f"log {n}")
            for n, v in BAD_LOGS
        ],
        pytest.param(RECEIPT, None, id="no transaction"),
        pytest.param(fault("limit"), TRANSACTION, id="receipt refused"),
        pytest.param(None, fault("limit"), id="transaction refused"),
        pytest.param([], TRANSACTION, id="receipt is a list"),
    ],
)
def test_a_malformed_or_contradicting_receipt_is_unusable(receipt: object, transaction: object) -> None:
    with pytest.raises(UnusableResponse):
        parse_mined(receipt, transaction, tx_hash=TX)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0x", (False, b"")),
        ("0xabcdef", (False, b"\xab\xcd")),
        (fault("execution reverted", code=3, payload="0xabcdef"), (True, b"\xab\xcd")),
        (fault("execution reverted: no"), (True, b"")),
        (fault("VM Exception while processing transaction: revert", payload={"a": 1}), (True, b"")),
        (fault("out of gas"), (True, b"")),
        (fault("EVM error OutOfGas", code=-32603), (True, b"")),
        (fault("invalid opcode: INVALID"), (True, b"")),
        (fault("gas required exceeds allowance (200000)"), (True, b"")),
    ],
)
def test_a_contract_that_fails_is_reverted_and_its_bytes_are_cut(
    value: object, expected: tuple[bool, bytes]
) -> None:
    assert parse_call(value, bytes_max=2) == expected


@pytest.mark.parametrize(
    "value",
    [
        fault("rate limit exceeded", code=-32005),
        fault("header not found"),
        fault("missing trie node"),
        fault("method not found", code=-32601),
        None,
        5,
        "0xabc",
        "abcd",
    ],
)
def test_a_fault_of_the_node_is_not_a_fault_of_the_contract(value: object) -> None:
    with pytest.raises(UnusableResponse):
        parse_call(value, bytes_max=100)


@pytest.mark.parametrize(
    ("fee_fields", "fee_wei"),
    [
        ({"gasUsed": "0x10", "effectiveGasPrice": "0x3"}, 48),
        ({"gasUsed": "0x10", "effectiveGasPrice": "0x3", "l1Fee": "0x5"}, 53),
        ({"gasUsed": "0x10", "effectiveGasPrice": "0x3", "l1Fee": None}, 48),
        ({"gasUsed": "0x10"}, None),
        ({}, None),
    ],
)
def test_the_fee_is_known_where_the_node_returns_it(fee_fields: dict[str, str], fee_wei: int | None) -> None:
    mined = of_type(MinedTransaction, parse_mined(RECEIPT | fee_fields, TRANSACTION, tx_hash=TX))
    assert mined.fee_wei == fee_wei


def test_a_revert_is_not_a_word() -> None:
    assert parse_word("0x" + "00" * 31 + "07") == 7
    for value in ("0x", "0x07", "0x" + "00" * 33, None, fault("execution reverted", code=3)):
        with pytest.raises(UnusableResponse):
            parse_word(value)


def test_an_estimate_is_gas_or_a_fault_of_the_contract() -> None:
    assert parse_estimate("0xea60") == 60_000
    assert parse_estimate(fault("execution reverted", code=3)) is None
    assert parse_estimate(fault("gas required exceeds allowance (200000)")) is None
    for value in (fault("header not found"), fault("rate limited", code=-32005), None, "0x"):
        with pytest.raises(UnusableResponse):
            parse_estimate(value)


def test_a_chain_without_a_base_fee_has_no_fees() -> None:
    assert parse_base_fee({"baseFeePerGas": "0x5"}) == 5
    for block in ({}, None, {"baseFeePerGas": None}):
        with pytest.raises(UnusableResponse):
            parse_base_fee(block)


@pytest.mark.parametrize(
    ("tip", "gas_price", "tip_wei"),
    [
        ("0x3", "0x64", 3),
        (fault("no such method", code=-32601), "0x64", 90),
        (fault("no such method", code=-32601), "0x5", 0),
    ],
)
def test_without_a_suggested_tip_it_is_computed_from_the_gas_price(
    tip: object, gas_price: str, tip_wei: int
) -> None:
    assert parse_tip(tip, gas_price, base_fee_wei=10) == tip_wei


def test_a_node_that_suggests_nothing_is_unusable() -> None:
    for gas_price in (fault("no"), None):
        with pytest.raises(UnusableResponse):
            parse_tip(fault("no"), gas_price, base_fee_wei=10)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("already known", -32000),
        ("ALREADY_EXISTS: already known", -32000),
        ("AlreadyKnown", -32010),
        ("known transaction: 9f1c", -32000),
        ("Known transaction", -32000),
        ("transaction already imported", -32003),
        ("Transaction with the same hash was already imported.", -32010),
    ],
)
def test_recognises_the_errors_for_a_known_transaction(message: str, code: int) -> None:
    assert fault(message, code=code).is_already_known


@pytest.mark.parametrize(
    ("message", "code", "told"),
    [
        ("nonce too low: next nonce 5, tx nonce 3", -32000, SendFault.NONCE_TOO_LOW),
        ("nonce too low", -32003, SendFault.NONCE_TOO_LOW),
        ("OldNonce, Current nonce: 5, nonce of rejected tx: 3", -32010, SendFault.NONCE_TOO_LOW),
        ("Transaction nonce is too low. Try incrementing the nonce.", -32010, SendFault.NONCE_TOO_LOW),
        ("replacement transaction underpriced", -32000, SendFault.UNDERPRICED),
        ("transaction underpriced: gas tip cap 0, minimum needed 1", -32000, SendFault.UNDERPRICED),
        ("max fee per gas less than block base fee", -32003, SendFault.UNDERPRICED),
        ("FeeTooLow, MaxFeePerGas too low", -32010, SendFault.UNDERPRICED),
        ("ReplacementNotAllowed", -32010, SendFault.UNDERPRICED),
        ("insufficient funds for gas * price + value: balance 0", -32000, SendFault.INSUFFICIENT_FUNDS),
        ("Upfront cost exceeds account balance", -32004, SendFault.INSUFFICIENT_FUNDS),
        ("intrinsic gas too low", -32000, SendFault.OTHER),
        ("invalid sender", -32000, SendFault.OTHER),
        ("unknown transaction type", -32000, SendFault.OTHER),
        ("anything else", -32010, SendFault.OTHER),
        ("rate limited", -32005, None),
        ("the method does not exist", -32601, None),
        ("Internal error", -32603, None),
        ("", -32700, None),
    ],
)
def test_a_refused_transaction_differs_from_a_fault_of_the_node(
    message: str, code: int, told: SendFault | None
) -> None:
    answer = fault(message, code=code)
    assert (answer.send_fault, answer.is_already_known) == (told, False)


ASKED = ((b"\x01" * 32, b"\x02" * 32), (b"\x03" * 32,))
ADDRESS = Address(b"\xc3" * 20)


def log_of(**changes: object) -> dict[str, object]:
    return {
        "address": "0x" + "c3" * 20,
        "topics": ["0x" + "02" * 32, "0x" + "03" * 32],
        "data": "0x",
        "transactionHash": "0x" + "77" * 32,
        **changes,
    }


def test_logs_give_their_transactions_in_order_and_removed_ones_none() -> None:
    logs = [log_of(), log_of(transactionHash="0x" + "88" * 32), log_of(removed=True)]
    found = parse_log_transactions(logs, address=ADDRESS, topics=ASKED)
    assert found == [TxHash(b"\x77" * 32), TxHash(b"\x88" * 32)]
    assert parse_log_transactions([], address=ADDRESS, topics=ASKED) == []


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(None, id="none"),
        pytest.param(fault("query returned more than 10000 results", code=-32005), id="a fault"),
        pytest.param([None], id="no log"),
        pytest.param([log_of(address="0x" + "c4" * 20)], id="of another contract"),
        pytest.param([log_of(topics=["0x" + "04" * 32, "0x" + "03" * 32])], id="another event"),
        pytest.param([log_of(topics=["0x" + "02" * 32, "0x" + "05" * 32])], id="another topic"),
        pytest.param([log_of(topics=["0x" + "02" * 32])], id="a topic too few"),
        pytest.param([log_of(topics=None)], id="no topics"),
        pytest.param([log_of(transactionHash=None)], id="no transaction"),
    ],
)
def test_logs_that_were_not_requested_are_unusable(value: object) -> None:
    with pytest.raises(UnusableResponse):
        parse_log_transactions(value, address=ADDRESS, topics=ASKED)


KINDS = ASKED[0]


def test_the_subjects_of_logs_are_their_second_topics() -> None:
    longer = [log_of()["topics"][0], "0x" + "09" * 32, "0x" + "08" * 32]
    logs = [log_of(), log_of(topics=longer), log_of(topics=longer, removed=True), log_of()]
    assert parse_log_subjects(logs, address=ADDRESS, kinds=KINDS) == {ASKED[1][0], b"\x09" * 32}
    gone = [log_of(topics=longer, removed=True)]
    assert parse_log_subjects(gone, address=ADDRESS, kinds=KINDS) == set()


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(fault("query returned more than 10000 results", code=-32005), id="a fault"),
        pytest.param([log_of(address="0x" + "c4" * 20)], id="of another contract"),
        pytest.param([log_of(topics=["0x" + "04" * 32, "0x" + "03" * 32])], id="another event"),
        pytest.param([log_of(topics=log_of()["topics"][:1])], id="no subject"),
        pytest.param([log_of(topics=[])], id="no topics"),
        pytest.param([log_of(topics=[log_of()["topics"][0], "0x03"])], id="half a subject"),
    ],
)
def test_logs_without_a_subject_are_unusable(value: object) -> None:
    with pytest.raises(UnusableResponse):
        parse_log_subjects(value, address=ADDRESS, kinds=KINDS)


# ---- Counts the reports of nodes about one transaction.


CHAIN = ChainId(84532)
MINED = MinedTransaction(
    succeeded=True,
    sender=Address(b"\xa1" * 20),
    recipient=None,
    value=5,
    logs=(),
    block_number=8,
    block_hash=b"\x08" * 32,
    fee_wei=70,
)
UNSEEN = NotMined(chain_id=CHAIN, is_pending=False)
PENDING = NotMined(chain_id=CHAIN, is_pending=True)


def facts(*, head: int = 10, finalized: int = 3, block: int = 8) -> ChainFacts:
    return assemble_facts(
        CHAIN,
        TxHash(b"\x77" * 32),
        MINED,
        block=BlockHeader(number=block, block_hash=b"\x08" * 32, time=block),
        head=BlockHeader(number=head, block_hash=bytes(32), time=head),
        finalized_number=finalized,
    )


def votes(*answers: ChainFacts | NotMined, needed: int = 1) -> TransactionVotes:
    votes = TransactionVotes(chain_id=CHAIN, needed=needed)
    for answer in answers:
        votes.add(answer)
    return votes


def test_a_block_above_the_head_is_the_head() -> None:
    assert (facts(head=7).head_number, facts(head=7).confirmations) == (8, 1)
    assert facts().fee_wei == 70


@pytest.mark.parametrize(
    ("answers", "needed", "outcome"),
    [
        ((), 1, None),
        ((facts(),), 1, facts()),
        ((UNSEEN, facts()), 1, facts()),
        ((UNSEEN,), 1, UNSEEN),
        ((UNSEEN, PENDING), 1, PENDING),
        ((facts(),), 2, None),
        ((UNSEEN,), 2, None),
        ((facts(), UNSEEN, UNSEEN), 2, None),
        ((replace(facts(), value=6), facts(), facts()), 2, facts()),
        ((facts(), replace(facts(), value=6)), 2, None),
        ((facts(head=12, finalized=2), facts()), 2, facts(finalized=2)),
        ((facts(), replace(facts(), fee_wei=None)), 2, facts()),
    ],
    ids=[
        "nobody",
        "one",
        "one that lags before it",
        "not mined",
        "pending for one",
        "one of two",
        "one of two unseen",
        "two unseen beside one that knows",
        "a liar among three",
        "two stories",
        "the most cautious of two",
        "a node that tells no fee",
    ],
)
def test_the_outcome_of_the_reports(
    answers: tuple[ChainFacts | NotMined, ...], needed: int, outcome: ChainFacts | NotMined | None
) -> None:
    assert votes(*answers, needed=needed).outcome == outcome


@pytest.mark.parametrize(
    ("answers", "needed", "first_choice", "last_choice"),
    [
        ((), 1, True, True),
        ((UNSEEN,), 1, True, False),
        ((UNSEEN,), 2, True, True),
        ((facts(),), 1, False, False),
        ((facts(), UNSEEN, UNSEEN), 2, True, True),
    ],
)
def test_not_mined_does_not_wait_for_a_node_that_failed_recently(
    answers: tuple[ChainFacts | NotMined, ...], needed: int, first_choice: bool, last_choice: bool
) -> None:
    asked = votes(*answers, needed=needed)
    assert asked.needs_another_node(is_deferred=False) is first_choice
    assert asked.needs_another_node(is_deferred=True) is last_choice
