"""Defaults by network, and publicly known keys."""

from dataclasses import replace

import pytest
from eth_account import Account

from tests.kit.payer import USDC
from tests.kit.settlement import facilitator_at, settlement_rules
from tollway.chain.networks import PRESETS
from tollway.ids import Address, ChainId
from tollway.ledger.ledger import CodeRecord
from tollway.limits import Limits
from tollway.money import Price
from tollway.payments.settlement_rules import is_code_trusted, is_development_key, settlement_defaults


def test_every_preset_has_valid_defaults() -> None:
    for preset in PRESETS.values():
        defaults = settlement_defaults(preset.chain_id, preset.kind)
        is_test = preset.kind == "test"
        least = 10**9 if preset.chain_id == 1 else 10**6 if is_test else 10**7
        assert Price.parse(defaults.settlement_min).nano == least, preset.name
        assert defaults.native_price is not None, preset.name
        assert (Price.parse(defaults.native_price).nano == 0) is is_test, preset.name
        for text in (defaults.gas_price_max_gwei, defaults.gas_floor, defaults.listing_gas_budget):
            assert Price.parse(text).nano > 0, preset.name


@pytest.mark.parametrize(("units", "decimals", "is_worth"), [(1_000, 6, True), (999, 6, False), (1, 2, True)])
def test_a_price_is_compared_in_the_currency_for_all_token_decimals(
    units: int, decimals: int, is_worth: bool
) -> None:
    rules = settlement_rules()
    assert rules.is_worth(replace(USDC, decimals=decimals), units, gas_price_wei=0) is is_worth


@pytest.mark.parametrize(
    ("given", "gas_price_wei", "min_nano"),
    [
        ({}, 0, 10**7),
        ({}, 37 * 10**5, 10**7),  # 0.000999 USDC a settlement
        ({}, 5 * 10**6, 13_500_000),
        ({}, 10**9, 2_700_000_000),
        ({}, 1, 10**7),
        ({"native_price_nano": 0}, 10**9, 10**7),
        ({"native_price_nano": None}, 10**9, 10**7),
        ({"is_min_own": True}, 10**9, 10**7),
        ({"facilitator": facilitator_at()}, 10**9, 10**7),
    ],
    ids=["free", "cheap", "dear", "dearer", "rounded up", "a test network", "unknown", "own", "not our gas"],
)
def test_the_minimum_price_is_ten_times_the_cost_of_a_settlement_and_never_below_its_floor(
    given: dict[str, object], gas_price_wei: int, min_nano: int
) -> None:
    rules = settlement_rules(**{"min_nano": 10**7, "native_price_nano": 3_000 * 10**9, **given})
    assert rules.min_nano_at(gas_price_wei) == min_nano
    assert rules.is_worth(replace(USDC, decimals=9), min_nano, gas_price_wei=gas_price_wei)
    assert not rules.is_worth(replace(USDC, decimals=9), min_nano - 1, gas_price_wei=gas_price_wei)


@pytest.mark.parametrize(
    ("signed", "reverted", "is_trusted"),
    [
        (0, 0, True),
        (4, 4, True),
        (5, 5, False),
        (19, 5, False),
        (20, 5, True),
        (99, 25, False),
        (100, 25, True),
    ],
)
def test_a_code_is_trusted_that_reverts_seldom(signed: int, reverted: int, is_trusted: bool) -> None:
    assert is_code_trusted(CodeRecord(signed=signed, reverted=reverted)) is is_trusted


def test_a_code_that_never_reverted_is_trusted() -> None:
    assert is_code_trusted(None)


def test_the_cost_of_a_settlement_is_rounded_up() -> None:
    assert settlement_rules(native_price_nano=1).cost_nano(1) == 1


def test_a_rail_needs_a_key_or_a_facilitator() -> None:
    assert settlement_rules().has_rail
    assert not settlement_rules(gas_keys=()).has_rail
    assert settlement_rules(gas_keys=(), facilitator=facilitator_at()).has_rail


@pytest.mark.parametrize(
    ("depth", "block_time_s", "wait_s", "is_in_time"),
    [(1, 12.0, 20.0, True), (2, 12.0, 32.0, True), (36, 2.0, 90.0, True), (37, 2.0, 90.0, False)],
)
def test_the_wait_grows_with_the_depth_up_to_a_limit(
    depth: int, block_time_s: float, wait_s: float, is_in_time: bool
) -> None:
    rules, limits = settlement_rules(block_time_s=block_time_s), Limits()
    assert rules.wait_s(depth, limits=limits) == wait_s
    assert rules.is_in_time(depth, limits=limits) is is_in_time


def test_a_longer_wait_for_one_block_holds_for_every_depth() -> None:
    limits = Limits(settle_wait_s=600.0)
    assert settlement_rules().wait_s(1, limits=limits) == 600.0
    assert settlement_rules().is_in_time(1, limits=limits)
    assert not settlement_rules(block_time_s=1.0).is_in_time(2, limits=limits)


def test_every_preset_settles_small_sums_while_their_caller_waits() -> None:
    for preset in PRESETS.values():
        rules = settlement_rules(block_time_s=preset.block_time_s)
        token = preset.assets[0]
        dollar = 10**token.ledger_decimals
        depth = preset.rules().confirmations_for(token, 99 * dollar)
        assert rules.is_in_time(depth, limits=Limits()), preset.name
        assert rules.wait_s(depth, limits=Limits()) <= 35, preset.name


def test_a_hundred_dollars_are_too_deep_on_ethereum_and_ten_thousand_elsewhere() -> None:
    for preset in PRESETS.values():
        if preset.kind == "main":
            rules = settlement_rules(block_time_s=preset.block_time_s)
            steps = [depth for _, depth in preset.confirmations]
            is_in_time = [rules.is_in_time(depth, limits=Limits()) for depth in steps]
            assert is_in_time == [True, preset.name != "ethereum", False]


def test_recognises_the_keys_of_development_chains() -> None:
    known = Account.from_key("0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80")
    assert is_development_key(Address.parse(known.address))
    assert not is_development_key(Address(b"\x01" * 20))


def test_an_unknown_network_has_the_defaults_of_a_rollup_without_a_native_price() -> None:
    known, unknown = settlement_defaults(ChainId(8453), "main"), settlement_defaults(ChainId(5), "main")
    assert unknown == replace(known, native_price=None)
