"""Defaults by network, and the keys that everybody has."""

from dataclasses import replace

import pytest
from eth_account import Account

from tollway.chain.rules import PRESETS
from tollway.identifiers import Address, ChainId
from tollway.money import Price
from tollway.payments.settlement_rules import is_development_key, settlement_defaults
from tollway.testing.authorization_samples import USDC
from tollway.testing.settling_scene import facilitator_at, settlement_rules


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_every_preset_has_defaults_that_can_be_read(preset: object) -> None:
    chain_id, kind = preset.chain_id, preset.kind  # type: ignore[attr-defined]  # a preset
    defaults = settlement_defaults(chain_id, kind)
    least = Price.parse(defaults.settlement_min).nano
    assert least == (10**9 if chain_id == 1 else 10**6)
    for text in (defaults.gas_price_max_gwei, defaults.gas_floor, defaults.listing_gas_budget):
        assert Price.parse(text).nano > 0


@pytest.mark.parametrize(("units", "decimals", "is_worth"), [(1_000, 6, True), (999, 6, False), (1, 2, True)])
def test_a_price_is_compared_in_the_currency_whatever_the_token_counts(
    units: int, decimals: int, is_worth: bool
) -> None:
    assert settlement_rules().is_worth(replace(USDC, decimals=decimals), units) is is_worth


def test_a_rail_needs_a_key_or_a_facilitator() -> None:
    assert settlement_rules().has_rail
    assert not settlement_rules(gas_keys=()).has_rail
    assert settlement_rules(gas_keys=(), facilitator=facilitator_at()).has_rail


def test_the_keys_of_development_chains_are_known() -> None:
    known = Account.from_key("0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80")
    assert is_development_key(Address.parse(known.address))
    assert not is_development_key(Address(b"\x01" * 20))
    assert settlement_defaults(ChainId(5), "main") == settlement_defaults(ChainId(8453), "main")
