"""What the gas of each rail costs: one price of the coin drives the least settlement and the least deposit alike."""

from dataclasses import replace

import pytest

from tests.kit.payer import CHAIN, USDC
from tests.kit.settlement import settlement_rules
from tollway.payments.channel_terms import ChannelRules, find_deposit_floor, find_deposit_min, one_coin
from tollway.payments.gas_costs import describe_costs, find_channel_costs, find_settlement_costs

GWEI = 10**9
RULES = settlement_rules(min_nano=0, native_price_nano=1_000 * 10**9)


def test_the_steps_of_a_rail_cost_their_gas() -> None:
    settlement, channel = find_settlement_costs(RULES, GWEI), find_channel_costs(RULES, GWEI)
    assert settlement.steps == (("settlement", 90_000, 90_000_000),)
    assert channel.steps == (
        ("deposit", 133_000, 133_000_000),
        ("claim", 77_000, 77_000_000),
        ("settle", 50_000, 50_000_000),
    )
    assert (settlement.floor_nano, channel.floor_nano) == (900_000_000, 2_600_000)
    assert describe_costs(channel) == "a deposit costs 0.133, a claim 0.077, a settle 0.05"


@pytest.mark.parametrize("factor", [1, 2, 7])
def test_the_price_of_the_coin_drives_the_least_settlement_and_the_least_deposit_alike(factor: int) -> None:
    native_nano = factor * 1_000 * 10**9
    settlement = replace(RULES, native_price_nano=native_nano)
    channels = ChannelRules(chain_id=CHAIN, withdraw_delay=900, native_price_nano=native_nano)
    cost_units = channels.cost_units(USDC, GWEI // 10)
    assert settlement.min_nano_at(GWEI) == factor * RULES.min_nano_at(GWEI)
    assert find_deposit_min(1, cost_units=cost_units, coin=one_coin(USDC)) == factor * 260_000
    assert find_deposit_floor(1, cost_units=cost_units) == factor * 78_000


def test_a_minimum_of_the_operator_moves_the_settlement_alone() -> None:
    own = replace(RULES, min_nano=5, is_min_own=True)
    assert find_settlement_costs(own, GWEI).floor_nano == 5
    assert find_channel_costs(own, GWEI).floor_nano == find_channel_costs(RULES, GWEI).floor_nano


def test_without_a_price_of_the_coin_the_costs_are_not_known() -> None:
    unknown = replace(RULES, native_price_nano=None)
    assert [cost for _, _, cost in find_channel_costs(unknown, GWEI).steps] == [None, None, None]
    assert find_channel_costs(unknown, GWEI).floor_nano is None
    assert find_settlement_costs(unknown, GWEI).steps == (("settlement", 90_000, None),)
    assert "unknown" in describe_costs(find_channel_costs(unknown, GWEI))
