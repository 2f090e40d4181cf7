"""Calls, results, events and errors of the settlement contract, by the ABI of the stock package and the published constants."""

from dataclasses import replace
from typing import Any

import pytest
from eth_abi.abi import encode
from eth_utils.abi import function_abi_to_4byte_selector, get_abi_input_types
from hypothesis import given
from hypothesis import strategies as st
from x402.mechanisms.evm.batch_settlement import abi as stock_abi
from x402.mechanisms.evm.batch_settlement import constants
from x402.mechanisms.evm.batch_settlement.encoding import build_erc3009_collector_data

from tests.kit.channel_payer import ChannelPayer
from tollway.chain import channel_contract as contract
from tollway.chain.channel_contract import (
    DEPOSIT_COLLECTOR,
    SETTLEMENT_CONTRACT,
    WITHDRAW_DELAYS_S,
    ChannelClaimed,
    ChannelConfig,
    ChannelDeposited,
    ChannelRefunded,
    ClaimRow,
    ContractError,
    EscrowState,
    ReceiverSettled,
    WithdrawFinalized,
    WithdrawInitiated,
    parse_channel_events,
    parse_channel_state,
    parse_contract_error,
    parse_receiver_totals,
)
from tollway.chain.port import Log
from tollway.ids import Address, ChannelId, keccak256

CONFIG = ChannelPayer().config
CHANNEL = ChannelId(b"\x70" * 32)
SIGNATURE = b"\x5a" * 64 + b"\x1b"
ABI = {entry["name"]: entry for entry in stock_abi.BATCH_SETTLEMENT_ABI if entry["type"] == "function"}

ADDRESS, WORD = st.binary(min_size=20, max_size=20).map(Address), st.binary(min_size=32, max_size=32)
UINT128, UINT256 = st.integers(0, 2**128 - 1), st.integers(0, 2**256 - 1)
CONFIGS = st.builds(
    ChannelConfig,
    payer=ADDRESS,
    payer_authorizer=ADDRESS,
    receiver=ADDRESS,
    receiver_authorizer=ADDRESS,
    token=ADDRESS,
    withdraw_delay=st.integers(0, 2**40 - 1),
    salt=WORD,
)
ROWS = st.lists(
    st.builds(
        ClaimRow, config=CONFIGS, ceiling=UINT128, signature=st.binary(max_size=70), total_claimed=UINT128
    ),
    max_size=3,
)


def stock_call(function: str, *arguments: Any) -> bytes:
    entry: Any = ABI[function]
    return function_abi_to_4byte_selector(entry) + encode(get_abi_input_types(entry), arguments)


def as_tuple(config: ChannelConfig) -> tuple[Any, ...]:
    parties = (config.payer, config.payer_authorizer, config.receiver, config.receiver_authorizer)
    return (*map(str, parties), str(config.token), config.withdraw_delay, config.salt)


def as_claim(row: ClaimRow) -> tuple[Any, ...]:
    return ((as_tuple(row.config), row.ceiling), row.signature, row.total_claimed)


# ---- Calls.


@given(CONFIGS, UINT128, UINT256, UINT256, WORD, st.binary(max_size=70))
def test_a_deposit_is_encoded_as_the_stock_package_does(
    config: ChannelConfig, base_units: int, valid_after: int, valid_before: int, salt: bytes, signature: bytes
) -> None:
    collected = build_erc3009_collector_data(
        str(valid_after), str(valid_before), "0x" + salt.hex(), "0x" + signature.hex()
    )
    own = contract.encode_deposit(
        config,
        base_units=base_units,
        valid_after=valid_after,
        valid_before=valid_before,
        salt=salt,
        signature=signature,
    )
    assert own == stock_call("deposit", as_tuple(config), base_units, str(DEPOSIT_COLLECTOR), collected)


@pytest.mark.parametrize(("last", "sent"), [(0, 27), (1, 28), (27, 27), (28, 28), (31, 31)])
def test_a_deposit_has_the_recovery_number_that_tokens_accept(last: int, sent: int) -> None:
    fields: dict[str, Any] = {"base_units": 1, "valid_after": 0, "valid_before": 9, "salt": bytes(32)}
    own = contract.encode_deposit(CONFIG, **fields, signature=bytes(64) + bytes([last]))
    assert own == contract.encode_deposit(CONFIG, **fields, signature=bytes(64) + bytes([sent]))


@given(ROWS, st.binary(max_size=70))
def test_a_claim_is_encoded_as_the_stock_package_does(rows: list[ClaimRow], signature: bytes) -> None:
    own = contract.encode_claim(rows, signature=signature)
    assert own == stock_call("claimWithSignature", [as_claim(row) for row in rows], signature)


@given(CONFIGS, UINT128, UINT256, ADDRESS, ADDRESS)
def test_the_other_calls_are_encoded_as_the_stock_package_does(
    config: ChannelConfig, base_units: int, nonce: int, receiver: Address, token: Address
) -> None:
    fields = as_tuple(config)
    refund = contract.encode_refund(config, base_units=base_units, nonce=nonce, signature=SIGNATURE)
    assert refund == stock_call("refundWithSignature", fields, base_units, nonce, SIGNATURE)
    settle = contract.encode_settle(receiver=receiver, token=token)
    assert settle == stock_call("settle", str(receiver), str(token))
    assert contract.encode_multicall([refund, settle]) == stock_call("multicall", [refund, settle])
    begun = contract.encode_initiate_withdraw(config, base_units=base_units)
    assert begun == stock_call("initiateWithdraw", fields, base_units)
    assert contract.encode_finalize_withdraw(config) == stock_call("finalizeWithdraw", fields)
    totals = contract.encode_receiver_totals(receiver=receiver, token=token)
    assert totals == stock_call("receivers", str(receiver), str(token))


@given(ROWS, CONFIGS, UINT256)
def test_the_nonce_of_a_refund_is_read_from_its_transaction(
    rows: list[ClaimRow], config: ChannelConfig, nonce: int
) -> None:
    claim = contract.encode_claim(rows, signature=SIGNATURE)
    refund = contract.encode_refund(config, base_units=7, nonce=nonce, signature=SIGNATURE)
    for calls, expected in (([claim, refund], nonce), ([refund], nonce), ([claim], None), ([], None)):
        assert contract.read_refund_nonce(contract.encode_multicall(calls)) == expected
    for calldata in (refund, claim, b""):
        assert contract.read_refund_nonce(calldata) is None


@pytest.mark.parametrize("base_units", [-1, 2**256])
def test_an_amount_that_does_not_fit_is_not_encoded(base_units: int) -> None:
    with pytest.raises(OverflowError):
        contract.encode_initiate_withdraw(CONFIG, base_units=base_units)


# ---- Results.


def test_one_call_reads_the_whole_state_of_a_channel() -> None:
    views = [stock_call(view, CHANNEL) for view in ("channels", "pendingWithdrawals", "refundNonce")]
    assert contract.encode_channel_state(CHANNEL) == stock_call("multicall", views)


def state_payload(*returned: bytes) -> bytes:
    return encode(["bytes[]"], [returned])


AMOUNTS, PENDING, NONCE = (
    encode(["uint128", "uint128"], [300_000, 8_223]),
    encode(["uint128", "uint40"], [5, 1_795_000_000]),
    encode(["uint256"], [2**255]),
)


def test_a_state_has_balance_claims_withdrawal_and_nonce() -> None:
    assert parse_channel_state(state_payload(AMOUNTS, PENDING, NONCE)) == EscrowState(
        balance=300_000,
        total_claimed=8_223,
        withdrawal=5,
        withdrawal_initiated_at=1_795_000_000,
        refund_nonce=2**255,
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        bytes(64),
        state_payload(AMOUNTS, PENDING),
        state_payload(AMOUNTS, PENDING, NONCE, NONCE),
        state_payload(AMOUNTS, PENDING, b""),
        state_payload(AMOUNTS, NONCE, PENDING),
        state_payload(encode(["uint256", "uint256"], [2**128, 0]), PENDING, NONCE),
        state_payload(AMOUNTS, PENDING, NONCE)[:-1],
    ],
)
def test_another_payload_is_no_state(payload: bytes) -> None:
    with pytest.raises(ValueError):
        parse_channel_state(payload)


def test_the_totals_of_a_receiver_are_two_amounts() -> None:
    assert parse_receiver_totals(AMOUNTS) == (300_000, 8_223)
    for payload in (b"", AMOUNTS[:-1], AMOUNTS + bytes(32), encode(["uint256", "uint256"], [0, 2**128])):
        with pytest.raises(ValueError, match=r"two words|below"):
            parse_receiver_totals(payload)


# ---- Events.

SENDER, RECEIVER, TOKEN = (bytes(12) + bytes([n]) * 20 for n in (1, 2, 3))


def event(topic: bytes, *indexed: bytes, numbers: tuple[int, ...]) -> Log:
    payload = encode(["uint256"] * len(numbers), numbers)
    return Log(address=SETTLEMENT_CONTRACT, topics=(topic, *indexed), payload=payload, removed=False)


DEPOSITED = event(contract.DEPOSITED_TOPIC, CHANNEL, SENDER, numbers=(5, 9))
EVENTS = [
    (DEPOSITED, ChannelDeposited(channel_id=CHANNEL, base_units=5, balance=9)),
    (
        event(contract.CLAIMED_TOPIC, CHANNEL, SENDER, numbers=(5, 9)),
        ChannelClaimed(channel_id=CHANNEL, base_units=5, total_claimed=9),
    ),
    (
        event(contract.SETTLED_TOPIC, RECEIVER, TOKEN, SENDER, numbers=(5,)),
        ReceiverSettled(receiver=Address(b"\x02" * 20), token=Address(b"\x03" * 20), base_units=5),
    ),
    (
        event(contract.REFUNDED_TOPIC, CHANNEL, SENDER, numbers=(2**128 - 1,)),
        ChannelRefunded(channel_id=CHANNEL, base_units=2**128 - 1),
    ),
    (
        event(contract.WITHDRAW_INITIATED_TOPIC, CHANNEL, numbers=(5, 1_795_000_900)),
        WithdrawInitiated(channel_id=CHANNEL, base_units=5, finalize_after=1_795_000_900),
    ),
    (
        event(contract.WITHDRAW_FINALIZED_TOPIC, CHANNEL, SENDER, numbers=(0,)),
        WithdrawFinalized(channel_id=CHANNEL, base_units=0),
    ),
]


def test_the_events_of_a_receipt_are_parsed_in_their_order() -> None:
    logs = [log for log, _ in EVENTS]
    assert parse_channel_events(logs) == tuple(parsed for _, parsed in EVENTS)
    assert parse_channel_events(reversed(logs)) == tuple(parsed for _, parsed in reversed(EVENTS))


def test_the_topic_of_a_settlement_is_that_of_the_stock_abi() -> None:
    (settled,) = [entry for entry in stock_abi.BATCH_SETTLEMENT_ABI if entry["type"] == "event"]
    kinds = ",".join(member["type"] for member in settled["inputs"])
    assert keccak256(f"{settled['name']}({kinds})".encode()) == contract.SETTLED_TOPIC


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"address": Address(b"\x01" * 20)}, id="another contract"),
        pytest.param({"address": DEPOSIT_COLLECTOR}, id="the collector"),
        pytest.param({"removed": True}, id="removed"),
        pytest.param({"topics": ()}, id="no topic"),
        pytest.param({"topics": DEPOSITED.topics[:2]}, id="a topic too few"),
        pytest.param({"topics": (*DEPOSITED.topics, SENDER)}, id="a topic too many"),
        pytest.param({"topics": (bytes(32), *DEPOSITED.topics[1:])}, id="another event"),
        pytest.param({"payload": DEPOSITED.payload[:-1]}, id="a byte too few"),
        pytest.param({"payload": DEPOSITED.payload + bytes(32)}, id="a word too many"),
        pytest.param({"payload": b"\xff" * 64}, id="above uint128"),
    ],
)
def test_a_log_of_another_contract_or_shape_is_left_out(change: dict[str, Any]) -> None:
    assert parse_channel_events([replace(DEPOSITED, **change)]) == ()


# ---- Errors and constants.


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ("7d8242b6", ContractError.CLAIM_EXCEEDS_BALANCE),
        ("8baa579f", ContractError.INVALID_SIGNATURE),
        ("f645eedf", ContractError.ECDSA_INVALID_SIGNATURE),
        ("fce698f7" + "00" * 31 + "40", ContractError.ECDSA_INVALID_LENGTH),
        ("d78bce0c" + "ff" * 32, ContractError.ECDSA_INVALID_S),
        ("", None),
        ("7d8242", None),
        ("08c379a0" + "00" * 64, None),  # Error(string), of a token
    ],
)
def test_an_error_has_the_name_that_its_contract_declares(payload: str, error: ContractError | None) -> None:
    assert parse_contract_error(bytes.fromhex(payload)) is error


def test_the_contracts_and_delays_are_those_of_the_package() -> None:
    assert str(SETTLEMENT_CONTRACT) == constants.BATCH_SETTLEMENT_ADDRESS
    assert str(DEPOSIT_COLLECTOR) == constants.ERC3009_DEPOSIT_COLLECTOR_ADDRESS
    assert WITHDRAW_DELAYS_S[0] == constants.MIN_WITHDRAW_DELAY
    assert WITHDRAW_DELAYS_S[-1] == constants.MAX_WITHDRAW_DELAY
