"""What the gas of each rail costs at a gas price, and the smallest price for which the rail is sensible. Pure.

`native_price` drives both: the least price of a settlement, and the least deposit of a channel.
"""

from dataclasses import dataclass

from tollway.money import format_decimal
from tollway.payments.channel_terms import (
    CHANNEL_GAS,
    CLAIM_COST_GAS,
    DEPOSIT_COST_GAS,
    SETTLE_COST_GAS,
    find_price_min,
)
from tollway.payments.settlement_rules import SETTLEMENT_GAS, SettlementRules


@dataclass(frozen=True, slots=True, kw_only=True)
class RailCosts:
    """What the gas of a rail costs on one network. `steps`: name, gas, and cost in 10^-9 of the currency; None where the price of the coin is not known. `floor_nano`: the smallest
    price that the rail is sensible for; None where it depends on that price."""

    steps: tuple[tuple[str, int, int | None], ...]
    floor_nano: int | None


def find_settlement_costs(rules: SettlementRules, gas_price_wei: int) -> RailCosts:
    """Of `exact` and MPP: one settlement for each call."""
    cost_nano = None if rules.native_price_nano is None else rules.cost_nano(gas_price_wei)
    return RailCosts(
        steps=(("settlement", SETTLEMENT_GAS, cost_nano),), floor_nano=rules.min_nano_at(gas_price_wei)
    )


def find_channel_costs(rules: SettlementRules, gas_price_wei: int) -> RailCosts:
    """Of a channel: one deposit, then one claim and one settle for many calls."""
    has_price = rules.native_price_nano is not None
    return RailCosts(
        steps=tuple(
            (name, gas, rules.cost_nano(gas_price_wei, gas=gas) if has_price else None)
            for name, gas in (
                ("deposit", DEPOSIT_COST_GAS),
                ("claim", CLAIM_COST_GAS),
                ("settle", SETTLE_COST_GAS),
            )
        ),
        floor_nano=find_price_min(cost_units=rules.cost_nano(gas_price_wei, gas=CHANNEL_GAS))
        if has_price
        else None,
    )


def describe_costs(costs: RailCosts) -> str:
    """`a deposit costs 0.0021, a claim 0.0012 now`, in the currency of the listings."""
    return ", ".join(
        f"a {name} {'costs' if place == 0 else ''} {_format_nano(nano)}".replace("  ", " ")
        for place, (name, _, nano) in enumerate(costs.steps)
    )


def _format_nano(nano: int | None) -> str:
    return "an unknown amount" if nano is None else format_decimal(nano, decimals=9)
