"""Prices of a 402, and the caller's caps."""

import pytest

from tollway.client.quote import (
    DEFAULT_MAX_PRICE,
    Cap,
    parse_amount,
    read_missing,
    read_transfer_offers,
    to_atto,
)
from tollway.ids import Address, ChainId
from tollway.money import Asset

OPTION = {
    "rail": "tx",
    "network": "eip155:84532",
    "token": "0x036CbD53842c5426634e7929541eC2318f3dCF7e",
    "symbol": "USDC",
    "decimals": 6,
    "amount": "10000",
    "payTo": "0x" + "22" * 20,
    "confirmations": 1,
}
USDC = Asset(chain_id=ChainId(84532), token=Address(b"\x05" * 20), symbol="USDC", decimals=6)


def test_reads_tx_offers_in_the_gateways_order():
    options = [{"rail": "x402"}, {**OPTION, "amount": "2"}, OPTION]
    assert [o.amount for o in read_transfer_offers({"payment": {"options": options}})] == [2, 10_000]


@pytest.mark.parametrize(
    "change",
    [
        {"amount": 10000},
        {"amount": "0"},
        {"amount": "-1"},
        {"amount": "1e9"},
        {"amount": "9" * 79},
        {"amount": "１"},
        {"decimals": True},
        {"decimals": 37},
        {"decimals": "6"},
        {"confirmations": 0},
        {"confirmations": 10**9},
        {"network": "solana:x"},
        {"payTo": "0x036CbD53842c5426634e7929541eC2318f3dCF7E"},
        {"payTo": None},
        {"symbol": "US\x1bDC"},
        {"token": "0x12"},
    ],
)
def test_leaves_out_an_offer_that_makes_no_sense(change):
    assert read_transfer_offers({"payment": {"options": [{**OPTION, **change}]}}) == ()


@pytest.mark.parametrize(
    "problem", [{}, {"payment": None}, {"payment": {"options": "x"}}, {"payment": {"options": [1]}}]
)
def test_reads_no_offers_where_there_are_none(problem):
    assert read_transfer_offers(problem) == ()


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("0.05", 50_000),
        ("1", 10**6),
        ("0.0000010", 1),
        ("0", 0),
        ("0.0000001", None),
        ("01", None),
        ("-1", None),
        ("1e3", None),
        ("", None),
    ],
)
def test_parses_amounts_exactly_or_not_at_all(text, units):
    assert parse_amount(text, decimals=6) == units


def test_reads_what_is_missing():
    assert read_missing({"missing": "0.006", "currency": "USDC"}, USDC) == 6_000
    assert read_missing({"missing": "lots"}, USDC) is None
    assert read_missing({}, USDC) is None


def test_caps_hold_per_currency():
    named = Cap.parse("0.05 USDC")
    assert named.atto_for("USDC") == 5 * 10**16
    assert named.atto_for("ETH") is None
    assert named.text_for("USDC") == "0.05"
    assert named.text_for(None) is None
    several = Cap.parse({"USDC": "1", "ETH": "0.00001"})
    assert several.text_for("ETH") == "0.00001"
    bare = Cap.parse("0.05")
    assert bare.text_for(None) == "0.05"
    assert bare.atto_for("ETH") == 5 * 10**16
    for wrong in ("much", "", "1,5", "-1 USDC"):
        with pytest.raises(ValueError):
            Cap.parse(wrong)


def test_the_default_limit_is_one_dollar_and_dollars_only():
    assert DEFAULT_MAX_PRICE.atto_for("USDC") == 10**18
    assert DEFAULT_MAX_PRICE.atto_for("ETH") is None


def test_atto_rounds_up():
    assert to_atto(1, USDC) == 10**12
    coarse = Asset(chain_id=ChainId(1), token=None, symbol="X", decimals=20)
    assert to_atto(101, coarse) == 2


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ("0.05 USDC", "0.02 USDC", {"USDC": "0.02"}),
        ("0.05 USDC", "1 DAI", {}),
        ("0.05 USDC", "0.02", {"USDC": "0.02"}),
        ("0.05", "0.02", "0.02"),
        ({"USDC": "1", "DAI": "2"}, {"DAI": "1", "ETH": "5"}, {"DAI": "1"}),
    ],
)
def test_the_lower_of_two_caps_allows_what_both_allow(first, second, both):
    one, other = Cap.parse(first), Cap.parse(second)
    assert one.lower_of(other) == other.lower_of(one) == Cap.parse(both)


@pytest.mark.parametrize(
    ("cap", "told"),
    [
        ("0.05 USDC", "0.05 USDC"),
        ({"USDC": "1", "ETH": "0.00001"}, "1 USDC, 0.00001 ETH"),
        ("0.5", "0.5 of any currency"),
        ({}, "nothing"),
    ],
)
def test_a_cap_as_text(cap, told):
    assert Cap.parse(cap).describe() == told
    assert Cap.parse(Cap.parse(cap)) == Cap.parse(cap)
