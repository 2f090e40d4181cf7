"""The price of an operation in the form that crawlers read."""

import pytest

from tollway.discovery.openapi import payment_info
from tollway.money import Price

TOKEN = "0x036CbD53842c5426634e7929541eC2318f3dCF7e"
BY_TX = {"rail": "tx", "token": TOKEN, "amount": "10000", "network": "eip155:84532"}
SIGNED = {**BY_TX, "rail": "x402"}
PRICE = Price.parse("0.01")


def test_a_free_operation_has_none() -> None:
    assert payment_info(Price.parse("0"), "USDC", [SIGNED], has_mpp=True) is None


def test_both_shapes_have_the_same_price() -> None:
    assert payment_info(PRICE, "USDC", [BY_TX, SIGNED], has_mpp=True) == {
        "price": {"mode": "fixed", "currency": "USD", "amount": "0.01"},
        "protocols": [{"x402": {}}, {"mpp": {"method": "evm", "intent": "charge", "currency": TOKEN}}],
        "offers": [
            {
                "intent": "charge",
                "method": "evm",
                "amount": "10000",
                "currency": TOKEN,
                "description": "0.01 USDC on eip155:84532",
            }
        ],
    }


def test_closed_rails_are_left_out() -> None:
    assert payment_info(PRICE, "USDC", [SIGNED], has_mpp=False) == {
        "price": {"mode": "fixed", "currency": "USD", "amount": "0.01"},
        "protocols": [{"x402": {}}],
    }
    assert payment_info(PRICE, "USDC", [BY_TX], has_mpp=True) == {
        "price": {"mode": "fixed", "currency": "USD", "amount": "0.01"},
        "protocols": [],
    }


@pytest.mark.parametrize(
    ("currency", "shown"), [("ETH", "ETH"), ("USDT", "USD"), ("EURC", None), ("wei", None)]
)
def test_a_currency_is_one_of_three_capitals_or_left_out(currency: str, shown: str | None) -> None:
    info = payment_info(PRICE, currency, [BY_TX], has_mpp=False)
    assert info is not None
    assert info.get("price", {}).get("currency") == shown
