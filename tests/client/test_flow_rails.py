"""The order of the rails, and the offers of a 402 on both. Whole calls: tests/client/test_authorization.py."""

import pytest

from tests.kit.call_io import OFFER, PAYEE, build_transfer
from tollway.client.call_io import GatewayResponse, TransferState
from tollway.client.flow import PaymentOptions, _order_rails
from tollway.client.quote import Cap
from tollway.client.transfer import RAILS, CallRules, InsufficientCredit
from tollway.ids import Address

OTHER = Address(b"\x33" * 20)
PAYMENT = build_transfer(amount=20_000, rest=5_000, state=TransferState.CONFIRMED)
SHORT = InsufficientCredit(transfer=PAYMENT, missing=5_000, response=GatewayResponse(status=402, headers={}))


def option(rail: str, pay_to: Address = PAYEE) -> dict[str, object]:
    authorization = {"maxTimeoutSeconds": 90, "extra": {"name": "USDC", "version": "2"}}
    return {**OFFER, **authorization, "rail": rail, "payTo": str(pay_to)}


def terms(*options: dict[str, object]) -> PaymentOptions:
    return PaymentOptions.read(
        GatewayResponse(status=402, headers={}, problem={"payment": {"options": list(options)}})
    )


@pytest.mark.parametrize(
    ("rail", "prepay", "short", "paid", "order"),
    [
        ("auto", 1, None, (), ("x402", "tx")),
        ("auto", 2, None, (), ("tx", "x402")),
        ("auto", 1, SHORT, (), ("tx", "x402")),
        ("auto", 1, None, (PAYMENT,), ("tx",)),
        ("tx", 1, None, (), ("tx",)),
        ("tx", 1, SHORT, (), ("tx",)),
        ("x402", 1, None, (), ("x402",)),
        ("x402", 1, SHORT, (), ("x402",)),
        ("x402", 1, SHORT, (PAYMENT,), ("tx",)),
    ],
)
def test_the_cheaper_rail_comes_first_and_a_named_one_alone(rail, prepay, short, paid, order):
    assert (
        _order_rails(CallRules(max_price=Cap.parse("1 USDC"), prepay=prepay, rail=rail), short, paid) == order
    )


@pytest.mark.parametrize(
    ("rail", "prepay", "short", "is_cheaper", "order"),
    [
        ("auto", 1, None, False, ("x402", "channel", "tx")),
        ("auto", 1, None, True, ("channel", "x402", "tx")),
        ("auto", 2, None, True, ("tx", "x402", "channel")),
        ("auto", 1, SHORT, True, ("tx", "x402", "channel")),
        ("channel", 1, None, False, ("channel",)),
        ("tx", 1, None, True, ("tx",)),
    ],
)
def test_a_channel_follows_an_authorisation_until_it_is_cheaper(rail, prepay, short, is_cheaper, order):
    rules = CallRules(max_price=Cap.parse("1 USDC"), prepay=prepay, rail=rail)
    assert _order_rails(rules, short, (), has_channel=True, is_channel_cheaper=is_cheaper) == order


def test_every_choice_has_an_order():
    for rail in RAILS:
        assert _order_rails(CallRules(max_price=Cap.parse("1"), rail=rail), None, ())


def test_payees_of_both_rails_are_named_once():
    read = terms(option("tx"), option("x402"), option("x402", OTHER), option("mpp", Address(b"\x44" * 20)))
    assert (len(read.tx), len(read.x402), read.payees) == (1, 2, (PAYEE, OTHER))
    assert not read.is_empty


@pytest.mark.parametrize("problem", [None, {}, {"payment": {"options": []}}, {"payment": "x"}])
def test_a_402_without_options_has_no_terms(problem):
    assert PaymentOptions.read(GatewayResponse(status=402, headers={}, problem=problem)).is_empty
