"""The terms of channels: the deposit that a 402 asks for, and what a response says of the charge."""

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.channel_payer import ChannelPayer
from tests.kit.payer import PAY_TO, USDC
from tollway.ids import Address, TxHash
from tollway.ledger.channels import Channel, ChannelFacts, ChannelState, Voucher
from tollway.money import Price, TokenDomain
from tollway.payments.channel_terms import (
    ChannelRules,
    encode_charge,
    encode_corrective,
    find_deposit_floor,
    find_deposit_min,
    has_channels,
    one_coin,
)
from tollway.payments.pricing import ChannelOffer, PaymentRequirement
from tollway.payments.x402 import Resource, requirement_json, requirement_json_v1
from tollway.registry.listing import ChargeOn

COIN = 1_000_000
GWEI = 10**9
PAYER = ChannelPayer()
AUTHORIZER = PAYER.config.receiver_authorizer
FACTS = ChannelFacts(
    balance=300_000,
    total_claimed=400,
    refund_nonce=2,
    withdrawal_amount=0,
    withdrawal_since_s=0,
    block_number=7,
)


def make_channel(**given: Any) -> Channel:
    members: dict[str, Any] = {
        "key": 1,
        "id": PAYER.channel_id,
        "chain_id": USDC.chain_id,
        "config": PAYER.config,
        "payment_id": 1,
        "decimals": 6,
        "start_units": 0,
        "balance_units": 300_000,
        "taken_units": 723,
        "announced": 723,
        "published": 700,
        "spent": None,
        "waiting": None,
        "candidate": Voucher(ceiling=1_600, signature=b"\x1b" * 65),
        "facts": FACTS,
        "state": ChannelState.OPEN,
        "reserved_call": None,
        "reserved_state": None,
    }
    return Channel(**{**members, **given})


def make_requirement(units: int = 300) -> PaymentRequirement:
    return PaymentRequirement(
        asset=USDC,
        price=Price.parse("0.0003"),
        units=units,
        pay_to=PAY_TO,
        charge_on=ChargeOn.SUCCESS,
        max_timeout_s=60,
        channel=ChannelOffer(authorizer=AUTHORIZER, withdraw_delay=900, deposit_min=300_000),
    )


def read(header: tuple[bytes, bytes]) -> Any:
    return json.loads(base64.b64decode(header[1]))


@pytest.mark.parametrize(
    ("units", "cost_units", "expected"),
    [
        pytest.param(300, 0, 300_000, id="a thousand calls"),
        pytest.param(5_000, 0, COIN, id="a thousand calls cost more than one coin"),
        pytest.param(300, 50_000, 500_000, id="ten times the gas"),
        pytest.param(300, 900_000, 5 * COIN, id="never more than five coins for the gas"),
        pytest.param(7 * COIN, 0, 7 * COIN, id="a call of seven coins"),
        pytest.param(1, 0, 1_000, id="the smallest price"),
    ],
)
def test_the_deposit_of_an_offer(units: int, cost_units: int, expected: int) -> None:
    assert find_deposit_min(units, cost_units=cost_units, coin=COIN) == expected


@pytest.mark.parametrize(
    ("units", "cost_units", "expected"), [(300, 0, 300), (300, 200, 600), (900, 200, 900)]
)
def test_the_smallest_deposit_that_is_taken(units: int, cost_units: int, expected: int) -> None:
    assert find_deposit_floor(units, cost_units=cost_units) == expected


def test_the_gas_of_a_channel_in_units_of_the_token() -> None:
    """260,000 gas at 0.1 gwei and 3,000 dollars are 0.078 dollars."""
    rules = ChannelRules(
        chain_id=USDC.chain_id,
        withdraw_delay=900,
        native_price_nano=3_000 * GWEI,
    )
    assert rules.cost_units(USDC, GWEI // 10) == 78_000
    assert rules.cost_units(USDC, 0) == 0
    assert rules.unclaimed_max_units(USDC) == 5 * COIN
    assert one_coin(USDC) == COIN


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"decimals": 9}, True),
        ({"decimals": 18}, False),
        ({"domain": None}, False),
        ({"token": None, "domain": None}, False),
    ],
)
def test_tokens_that_have_channels(changes: dict[str, Any], expected: bool) -> None:
    assert has_channels(replace(USDC, **changes)) is expected


def test_an_offer_has_the_shape_that_clients_read() -> None:
    """The delay is a number: clients replace a string by 900, and sign for another channel."""
    domain = USDC.domain
    assert isinstance(domain, TokenDomain)
    assert requirement_json(make_requirement()) == {
        "scheme": "batch-settlement",
        "network": USDC.network,
        "amount": "300",
        "asset": str(USDC.token),
        "payTo": str(PAY_TO),
        "maxTimeoutSeconds": 60,
        "extra": {
            "name": domain.name,
            "version": domain.version,
            "minDeposit": "300000",
            "receiverAuthorizer": str(AUTHORIZER),
            "withdrawDelay": 900,
        },
    }
    assert requirement_json_v1(make_requirement(), Resource(url="https://t.example/gateway/api_1")) is None


@pytest.mark.parametrize(
    ("deposit", "transaction", "amount"),
    [
        pytest.param(None, "", "", id="a voucher"),
        pytest.param((TxHash(b"\x93" * 32), 300_000), "0x" + "93" * 32, "300000", id="a deposit"),
    ],
)
def test_the_response_says_the_charge(
    deposit: tuple[TxHash, int] | None, transaction: str, amount: str
) -> None:
    """`amount` is the deposit, never the charge, which is a string."""
    content = read(encode_charge(make_channel(), charged=123, deposit=deposit, extensions=None))
    assert content == {
        "success": True,
        "transaction": transaction,
        "network": USDC.network,
        "payer": str(PAYER.address),
        "amount": amount,
        "extra": {
            "chargedAmount": "123",
            "channelState": {
                "channelId": str(PAYER.channel_id),
                "balance": "300000",
                "totalClaimed": "400",
                "withdrawRequestedAt": 0,
                "refundNonce": "2",
                "chargedCumulativeAmount": "723",
            },
        },
    }


@pytest.mark.parametrize(
    ("candidate", "shows_voucher", "expected"),
    [
        pytest.param(Voucher(ceiling=1_600, signature=b"\x1b" * 65), True, "1600", id="the newest voucher"),
        pytest.param(
            Voucher(ceiling=1_600, signature=b"\x1b" * 65), False, None, id="a published one was shown"
        ),
        pytest.param(
            Voucher(ceiling=700, signature=b"\x1b" * 65), True, "700", id="the newest one is published"
        ),
        pytest.param(
            Voucher(ceiling=700, signature=b"\x1b" * 65), False, "700", id="a published one was shown, and it"
        ),
        pytest.param(None, True, None, id="no voucher yet"),
    ],
)
def test_the_corrective_402_names_this_channel_alone(
    candidate: Voucher | None, shows_voucher: bool, expected: str | None
) -> None:
    header = encode_corrective(
        make_requirement(),
        make_channel(candidate=candidate),
        url="https://t.example/gateway/api_1/x",
        reason="invalid_batch_settlement_evm_cumulative_amount_mismatch",
        shows_voucher=shows_voucher,
    )
    content = read(header)
    (accepted,) = content["accepts"]
    assert content["error"] == "invalid_batch_settlement_evm_cumulative_amount_mismatch"
    assert accepted["scheme"] == "batch-settlement"
    assert accepted["extra"]["channelState"]["chargedCumulativeAmount"] == "723"
    assert accepted["extra"].get("voucherState", {}).get("signedMaxClaimable") == expected
    assert Address.parse(accepted["payTo"]) == PAY_TO
