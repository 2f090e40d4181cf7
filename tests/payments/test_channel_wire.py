"""Payments by channels are untrusted: each is parsed or refused, and nothing else is raised."""

import contextlib
import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from x402.mechanisms.evm.batch_settlement import constants as stock
from x402.mechanisms.evm.batch_settlement import errors as stock_errors
from x402.schemas import PaymentPayload

from tests.kit.channel_payer import ChannelPayer
from tests.kit.payer import CHAIN, AuthorizationSigner, wrap
from tollway.errors import Code, Refusal
from tollway.identity.signatures import recover
from tollway.payments.channel_wire import (
    CHANNEL_SCHEME,
    ChannelReason,
    RefundRequest,
    SignedDeposit,
    explain_channel,
    is_channel_payment,
    parse_channel_payment,
)
from tollway.payments.channels import voucher_digest

PAYER = ChannelPayer()
VOUCHER = PAYER.payment(PAYER.voucher(600))
DEPOSIT = PAYER.payment(PAYER.deposit(300_000, ceiling=300))
REFUND = PAYER.payment(PAYER.refund(ceiling=600, base_units=1_000))


def changed(content: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    content = copy.deepcopy(content)
    *steps, last = path.split(".")
    place = content
    for step in steps:
        place = place[step]
    place[last] = value
    return content


def removed(content: dict[str, Any], path: str) -> dict[str, Any]:
    content = copy.deepcopy(content)
    *steps, last = path.split(".")
    place = content
    for step in steps:
        place = place[step]
    del place[last]
    return content


def refusal_of(content: dict[str, Any]) -> tuple[Code, str | None]:
    with pytest.raises(Refusal) as caught:
        parse_channel_payment(content)
    assert caught.value.problem.payment_state == "none"
    return caught.value.problem.code, caught.value.problem.reason


# ---- What is parsed.


@pytest.mark.parametrize("content", [VOUCHER, DEPOSIT, REFUND])
def test_the_samples_are_payments_of_the_package(content: dict[str, Any]) -> None:
    PaymentPayload.model_validate(content)
    assert is_channel_payment(content)
    assert parse_channel_payment(content).fault is None


def test_a_voucher_has_its_channel_ceiling_and_signature() -> None:
    shown = parse_channel_payment(VOUCHER)
    voucher = shown.voucher
    assert (voucher.chain_id, voucher.config, voucher.ceiling) == (CHAIN, PAYER.config, 600)
    assert voucher.channel_id == PAYER.channel_id
    digest = voucher_digest(CHAIN, voucher.channel_id, voucher.ceiling)
    assert recover(digest, voucher.signature) == PAYER.address
    assert (shown.request, shown.identifier, shown.fault) == (None, None, None)


def test_a_deposit_has_its_authorisation_beside_the_first_voucher() -> None:
    shown = parse_channel_payment(DEPOSIT)
    assert shown.voucher.ceiling == 300
    assert shown.request == SignedDeposit(
        base_units=300_000,
        valid_after=0,
        valid_before=PAYER.valid_before,
        salt=PAYER.deposit_salt,
        signature=PAYER.sign_deposit(300_000),
    )


@pytest.mark.parametrize("base_units", [None, 1, 2**128 - 1])
def test_a_refund_has_an_amount_or_asks_for_everything(base_units: int | None) -> None:
    content = PAYER.payment(PAYER.refund(ceiling=600, base_units=base_units))
    assert parse_channel_payment(content).request == RefundRequest(base_units=base_units)


def test_the_ids_of_clients_are_parsed() -> None:
    content = {**VOUCHER, "extensions": {"payment-identifier": {"info": {"id": "pay_0123456789ab"}}}}
    assert parse_channel_payment(content).identifier == "pay_0123456789ab"


@pytest.mark.parametrize("low", [0, 1])
def test_a_voucher_that_ends_with_0_or_1_is_kept_in_the_form_that_the_contract_accepts(low: int) -> None:
    payer = next(
        payer
        for payer in (replace(PAYER, salt=bytes([n]) * 32) for n in range(64))
        if payer.sign_voucher(600)[64] == 27 + low
    )
    signed = payer.sign_voucher(600)
    content = changed(
        payer.payment(payer.voucher(600)),
        "payload.voucher.signature",
        "0x" + (signed[:64] + bytes([low])).hex(),
    )
    assert parse_channel_payment(content).voucher.signature == signed


def test_the_signature_of_a_contract_wallet_is_kept_as_it_is() -> None:
    place = "payload.deposit.authorization.erc3009Authorization.signature"
    request = parse_channel_payment(changed(DEPOSIT, place, "0x" + "ab" * 300)).request
    assert isinstance(request, SignedDeposit)
    assert request.signature == b"\xab" * 300


def test_accepted_decides_only_the_network() -> None:
    content = copy.deepcopy(VOUCHER)
    content["accepted"] |= {"amount": "1", "payTo": "nobody", "asset": 5, "extra": {"withdrawDelay": "soon"}}
    assert parse_channel_payment(content) == parse_channel_payment(VOUCHER)


@pytest.mark.parametrize(
    ("content", "path"),
    [
        (VOUCHER, "price"),
        (VOUCHER, "accepted.note"),
        (VOUCHER, "payload.deposit"),
        (VOUCHER, "payload.amount"),
        (VOUCHER, "payload.channelConfig.fee"),
        (VOUCHER, "payload.voucher.nonce"),
        (DEPOSIT, "payload.amount"),
        (DEPOSIT, "payload.deposit.collector"),
        (DEPOSIT, "payload.deposit.authorization.permit2Authorization"),
        (DEPOSIT, "payload.deposit.authorization.erc3009Authorization.to"),
        (REFUND, "payload.refundNonce"),
    ],
)
def test_an_unknown_member_is_a_fault_that_names_it(content: dict[str, Any], path: str) -> None:
    """A fault and not a refusal: the voucher is parsed, so that its call can be looked up in the ledger first."""
    shown = parse_channel_payment(changed(content, path, {}))
    assert shown.voucher == parse_channel_payment(content).voucher
    assert shown.fault is not None
    assert (shown.fault.code, shown.fault.reason) == SHAPE
    assert f"`{path}`" in shown.fault.detail


# ---- What is refused.

SHAPE = (Code.PAYMENT_MALFORMED, "invalid_payload")
UNSUPPORTED, FAILED = Code.PAYMENT_METHOD_UNSUPPORTED, Code.PAYMENT_VERIFICATION_FAILED
CHANNEL = (FAILED, "invalid_batch_settlement_evm_channel_id_mismatch")
DELAY = (FAILED, "invalid_batch_settlement_evm_withdraw_delay_out_of_range")
KIND = (UNSUPPORTED, "invalid_batch_settlement_evm_payload_type")
SIGNED = "payload.deposit.authorization.erc3009Authorization"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, SHAPE),
        (changed(VOUCHER, "x402Version", 1), (UNSUPPORTED, "invalid_x402_version")),
        (AuthorizationSigner().payment(), (UNSUPPORTED, "unsupported_scheme")),
        (changed(VOUCHER, "accepted.network", "base-sepolia"), (UNSUPPORTED, "invalid_network")),
        (changed(VOUCHER, "extensions", {"payment-identifier": {"info": {"id": "short"}}}), (Code.INVALID_REQUEST, "invalid_payment_identifier")),
        # The kind.
        (removed(VOUCHER, "payload.type"), KIND),
        (changed(VOUCHER, "payload.type", "claim"), KIND),
        (changed(VOUCHER, "payload.type", "settle"), KIND),
        (changed(VOUCHER, "payload.type", ["voucher"]), KIND),
        (changed(VOUCHER, "payload.type", "deposit"), SHAPE),
        # The channel.
        (changed(VOUCHER, "payload.voucher.channelId", "0x" + "00" * 32), CHANNEL),
        (changed(VOUCHER, "payload.voucher.channelId", "../../etc/passwd"), SHAPE),
        (changed(VOUCHER, "payload.channelConfig.receiver", "0x" + "11" * 20), CHANNEL),
        (changed(VOUCHER, "payload.channelConfig.salt", "0x" + "01" * 32), CHANNEL),
        (changed(VOUCHER, "payload.channelConfig.withdrawDelay", 901), CHANNEL),
        (changed(VOUCHER, "accepted.network", "eip155:8453"), CHANNEL),
        (changed(VOUCHER, "payload.channelConfig.payerAuthorizer", "0x" + "00" * 20), (FAILED, "invalid_batch_settlement_evm_voucher_signature")),
        (changed(VOUCHER, "payload.channelConfig.withdrawDelay", 899), DELAY),
        (changed(VOUCHER, "payload.channelConfig.withdrawDelay", 2_592_001), DELAY),
        (changed(VOUCHER, "payload.channelConfig.withdrawDelay", -900), DELAY),
        (changed(VOUCHER, "payload.channelConfig.withdrawDelay", 2**300), DELAY),
        *[(changed(VOUCHER, "payload.channelConfig.withdrawDelay", value), SHAPE) for value in ("900", 900.0, True, None)],
        # Permit2, and a wallet that is not deployed.
        (changed(DEPOSIT, "payload.deposit.authorization", {"permit2Authorization": {}}), (UNSUPPORTED, "invalid_batch_settlement_evm_erc3009_authorization_required")),
        (changed(DEPOSIT, f"{SIGNED}.signature", "0x" + wrap(b"owner").hex()), (FAILED, "invalid_batch_settlement_evm_receive_authorization_signature")),
        # The refund.
        (changed(REFUND, "payload.amount", "0"), (FAILED, "invalid_batch_settlement_evm_refund_amount_invalid")),
    ],
)  # fmt: skip
def test_refuses_with_the_reason_of_the_protocol(content: dict[str, Any], expected: tuple[Code, str]) -> None:
    assert refusal_of(content) == expected


AMOUNTS = [None, 300, 300.0, True, "", "-1", "+1", "1.0", "1e4", "0x10", "３", "1_0", str(2**128), "9" * 79]


@pytest.mark.parametrize("amount", AMOUNTS)
@pytest.mark.parametrize(
    ("content", "path"),
    [
        (VOUCHER, "payload.voucher.maxClaimableAmount"),
        (DEPOSIT, "payload.deposit.amount"),
        (REFUND, "payload.amount"),
    ],
)
def test_an_amount_is_a_decimal_string_within_uint128(
    content: dict[str, Any], path: str, amount: Any
) -> None:
    assert refusal_of(changed(content, path, amount)) == SHAPE


HIGH_S = "0x" + "11" * 32 + "ff" * 32 + "1b"
VOUCHER_SIGNATURES = [None, "", "0x", 5, "0x" + "00" * 64, "0x" + "00" * 66, "0x" + "11" * 64 + "1d", HIGH_S, "0x" + "zz" * 65]  # fmt: skip


@pytest.mark.parametrize("signature", VOUCHER_SIGNATURES)
def test_the_signature_of_a_voucher_is_65_bytes_of_a_key(signature: Any) -> None:
    assert refusal_of(changed(VOUCHER, "payload.voucher.signature", signature)) == SHAPE


@pytest.mark.parametrize("signature", [None, "", "0x", "0x0", 5, "0x" + "00" * 4_097])
def test_the_signature_of_a_deposit_is_one_byte_to_four_kibibytes(signature: Any) -> None:
    assert refusal_of(changed(DEPOSIT, f"{SIGNED}.signature", signature)) == SHAPE


MEMBERS = [
    *[(VOUCHER, f"payload.channelConfig.{name}") for name in VOUCHER["payload"]["channelConfig"]],
    *[(VOUCHER, f"payload.voucher.{name}") for name in VOUCHER["payload"]["voucher"]],
    *[
        (DEPOSIT, f"{SIGNED}.{name}")
        for name in DEPOSIT["payload"]["deposit"]["authorization"]["erc3009Authorization"]
    ],
    *[(DEPOSIT, path) for path in ("payload.deposit", "payload.deposit.amount", SIGNED.rpartition(".")[0])],
    *[
        (VOUCHER, path)
        for path in ("payload", "payload.channelConfig", "payload.voucher", "accepted", "x402Version")
    ],
]


@pytest.mark.parametrize(("content", "path"), MEMBERS, ids=[path for _, path in MEMBERS])
@pytest.mark.parametrize("value", [[], {}, 5.5, "\ud800"])
def test_a_missing_member_and_one_of_another_shape_are_refused(
    content: dict[str, Any], path: str, value: Any
) -> None:
    assert refusal_of(removed(content, path)) == SHAPE
    code, _ = refusal_of(changed(content, path, value))
    assert code in (Code.PAYMENT_MALFORMED, UNSUPPORTED)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
PATHS = [path for _, path in MEMBERS] + ["payload.type", "payload.amount", "extensions", "resource", SIGNED]


@given(st.sampled_from([VOUCHER, DEPOSIT, REFUND]), st.sampled_from(PATHS), JSON)
def test_nothing_raises_anything_but_a_refusal(content: dict[str, Any], path: str, value: Any) -> None:
    with contextlib.suppress(KeyError):
        content = changed(content, path, value)
    with contextlib.suppress(Refusal):
        parse_channel_payment(content)
    assert is_channel_payment({"accepted": value}) is False


# ---- Every reason has its code and a sentence, and is a reason of the protocol.


def test_each_reason_has_a_code_and_a_sentence() -> None:
    problems = {reason: explain_channel(reason) for reason in ChannelReason}
    assert [reason for reason, problem in problems.items() if problem.reason != reason.value] == []
    assert [reason for reason, problem in problems.items() if not problem.detail.endswith(".")] == []
    assert {problem.payment_state for problem in problems.values()} == {"none"}


def test_the_reasons_and_the_scheme_are_those_of_the_package() -> None:
    theirs = {value for name, value in vars(stock_errors).items() if name.startswith("ERR_")}
    assert {reason.value for reason in ChannelReason} <= theirs
    assert stock.SCHEME_BATCH_SETTLEMENT == CHANNEL_SCHEME


def test_a_detail_replaces_the_general_sentence() -> None:
    assert explain_channel(ChannelReason.RECEIVER, "Exactly that.").detail == "Exactly that."
