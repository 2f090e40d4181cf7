"""The offers of channels, the corrective 402 and the charge of a response: what counts, and what is left out."""

from typing import Any

import pytest

from tests.kit.channel_gateway import MISMATCH, ChannelGateway, encode
from tests.kit.narrowing import existing
from tests.kit.payer import NOW_S, PAY_TO, USDC
from tollway.client.channel_offer import (
    ChannelCharge,
    ChannelReport,
    read_channel_offers,
    read_charge,
    read_correction,
)
from tollway.ids import Address, ChannelId

AUTHORIZER = Address(b"\x90" * 20)
KEY = ChannelId(b"\x70" * 32)
ENTRY = ChannelGateway(asset=USDC, pay_to=PAY_TO, authorizer=AUTHORIZER, now_s=NOW_S).entry()
STATE = {
    "channelId": str(KEY),
    "balance": "300000",
    "totalClaimed": "0",
    "withdrawRequestedAt": 0,
    "refundNonce": "0",
    "chargedCumulativeAmount": "723",
}
VOUCHER = {"signedMaxClaimable": "1600", "signature": "0x" + "11" * 64 + "1b"}


def headers(*entries: dict[str, Any], error: str = "payment_required", version: int = 2) -> dict[str, str]:
    return {"payment-required": encode({"x402Version": version, "error": error, "accepts": list(entries)})}


def changed(name: str, value: object) -> dict[str, Any]:
    """The entry with one member changed, of `extra` where it has the name; None: without it."""
    part = ENTRY["extra"] if name in ENTRY["extra"] else ENTRY
    members = {key: one for key, one in {**part, name: value}.items() if one is not None}
    return {**ENTRY, "extra": members} if part is ENTRY["extra"] else members


def test_an_offer_has_the_members_of_its_channel():
    (offer,) = read_channel_offers(headers(ENTRY), {})
    assert (offer.terms.amount, offer.terms.pay_to, offer.terms.token) == (300, PAY_TO, USDC.token)
    assert (offer.deposit_min, offer.authorizer, offer.withdraw_delay) == (300_000, AUTHORIZER, 900)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("withdrawDelay", "900"),
        ("withdrawDelay", 899),
        ("withdrawDelay", 2_592_001),
        ("withdrawDelay", True),
        ("withdrawDelay", None),
        ("receiverAuthorizer", None),
        ("receiverAuthorizer", "0x" + "00" * 20),
        ("receiverAuthorizer", "0x12"),
        ("name", None),
        ("scheme", "exact"),
        ("amount", "0"),
        ("payTo", "0x12"),
    ],
)
def test_an_entry_that_names_no_channel_is_left_out(name, value):
    assert read_channel_offers(headers(changed(name, value)), {}) == ()


@pytest.mark.parametrize("value", ["299", "-1", "1e6", 300_000, None, "9" * 40])
def test_a_proposed_deposit_that_is_invalid_or_below_the_price_is_none(value):
    (offer,) = read_channel_offers(headers(changed("minDeposit", value)), {})
    assert offer.deposit_min is None


@pytest.mark.parametrize(
    "option",
    [
        {"amount": "301", "payTo": str(PAY_TO)},
        {"amount": "300", "payTo": "0x" + "01" * 20},
    ],
)
def test_an_offer_that_the_body_contradicts_is_left_out(option):
    body = {"rail": "channel", "network": USDC.network, "token": str(USDC.token), **option}
    assert read_channel_offers(headers(ENTRY), {"payment": {"options": [body]}}) == ()


def test_no_offer_is_read_without_the_header_or_of_version_1():
    assert read_channel_offers({}, {}) == ()
    assert read_channel_offers(headers(ENTRY, version=1), {}) == ()


def correction(state: object = STATE, voucher: object = VOUCHER, **other: Any) -> dict[str, str]:
    extra = {**ENTRY["extra"], "channelState": state, "voucherState": voucher}
    return headers({**ENTRY, "extra": extra}, **{"error": MISMATCH, **other})


def test_a_correction_has_the_state_and_the_voucher():
    found = existing(read_correction(correction()))
    assert found.report == ChannelReport(channel_id=KEY, balance=300_000, total_claimed=0, charged=723)
    assert found.voucher is not None
    assert (found.voucher.ceiling, len(found.voucher.signature)) == (1600, 65)


@pytest.mark.parametrize(
    "told",
    [
        correction(error="payment_required"),
        correction(error="invalid_batch_settlement_evm_cumulative_exceeds_balance"),
        {**correction(), "payment-response": encode({"success": False})},
        headers(ENTRY, ENTRY, error=MISMATCH),
        headers(error=MISMATCH),
        {},
    ],
)
def test_another_402_is_no_correction(told):
    assert read_correction(told) is None


@pytest.mark.parametrize(
    "state",
    [None, "x", {}, {**STATE, "balance": 1}, {**STATE, "totalClaimed": "-1"}, {**STATE, "channelId": "0x1"}],
)
def test_a_state_that_cannot_be_read_is_none(state):
    assert existing(read_correction(correction(state=state))).report is None


@pytest.mark.parametrize(
    "voucher",
    [None, {}, {**VOUCHER, "signature": "0x12z"}, {**VOUCHER, "signedMaxClaimable": 1600}],
)
def test_a_voucher_that_cannot_be_read_is_none(voucher):
    assert existing(read_correction(correction(voucher=voucher))).voucher is None


def response(extra: object, **members: Any) -> dict[str, str]:
    return {"payment-response": encode({"success": True, "amount": "300000", "extra": extra, **members})}


@pytest.mark.parametrize(
    ("told", "charge"),
    [
        (response({"chargedAmount": "123", "channelState": STATE}), (123, 723)),
        (response({"chargedAmount": "300"}), (300, None)),
        (response({"chargedAmount": 300}), (None, None)),
        (response({"chargedAmount": "-1"}), (None, None)),
        (response({}), (None, None)),
        (response(None), (None, None)),
        (response({"chargedAmount": "1"}, success=False), None),
        ({"payment-response": "?"}, None),
        ({}, None),
    ],
)
def test_the_charge_is_never_the_amount(told, charge):
    found = read_charge(told)
    assert (found if found is None else (found.charged, found.total)) == charge
    assert found is None or isinstance(found, ChannelCharge)
