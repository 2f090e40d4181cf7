"""What an authorisation must say to pay for a call: network, token, amount and payee, rebuilt from our own rows. Pure.

Nothing that a caller sent takes part in it. Every requirement is of one version of a listing's terms, whole: the network
of one version never goes with the price of another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tollway.chain.rules import ChainRules
from tollway.identifiers import Address, ChainId, Network
from tollway.limits import Limits
from tollway.money import UNITS_MAX, Asset, Price
from tollway.payments.terms import OperationPrice, find_chains
from tollway.registry.listing import ChargeOn
from tollway.registry.pricing import SETTLEMENT_MARGIN_S, payable_assets


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentRequirement:
    """One way to pay a call by authorisation. `units` of the ledger; `asset.domain` is never None.

    `charge_on`: the rule of the version whose price it is. `max_timeout_s`: for how long from now to sign.
    """

    asset: Asset
    price: Price
    units: int
    pay_to: Address
    charge_on: ChargeOn
    max_timeout_s: int

    @property
    def base_units(self) -> int:
        return self.asset.to_base_units(self.units)

    @property
    def network(self) -> Network:
        return self.asset.network


def list_requirements(
    operation_prices: Sequence[OperationPrice],
    rules: Mapping[ChainId, ChainRules],
    *,
    timeout_s: int,
    now_ms: int,
    limits: Limits,
) -> tuple[PaymentRequirement, ...]:
    """What counts now: of every version in force within the last ten minutes, the current one (the first of `operation_prices`)
    first; then in the order of the version's networks, then of its assets. Each once."""
    if not operation_prices:
        return ()
    since_ms = now_ms - limits.price_memory_s * 1000
    chains = find_chains([operation_price.terms for operation_price in operation_prices], rules)
    found: dict[tuple[Asset, int, Address], PaymentRequirement] = {}
    for operation_price in operation_prices:
        if operation_price.terms.is_in_force_since(since_ms):
            for requirement in _requirements_of(operation_price, rules, chains, timeout_s):
                found.setdefault((requirement.asset, requirement.units, requirement.pay_to), requirement)
    return tuple(found.values())


def current_requirements(
    operation_price: OperationPrice, rules: Mapping[ChainId, ChainRules], *, timeout_s: int
) -> tuple[PaymentRequirement, ...]:
    """What a 402 quotes: the given version's, in the order of its networks, then of its assets."""
    return tuple(
        _requirements_of(operation_price, rules, find_chains([operation_price.terms], rules), timeout_s)
    )


def _requirements_of(
    operation_price: OperationPrice,
    rules: Mapping[ChainId, ChainRules],
    chains: Sequence[ChainId],
    timeout_s: int,
) -> list[PaymentRequirement]:
    terms, price = operation_price.terms, operation_price.price
    if price.is_free:
        return []
    networks = [chain_id for chain_id in terms.networks if chain_id in chains]
    assets = (asset for chain_id in networks for asset in rules[chain_id].assets)
    return [
        PaymentRequirement(
            asset=asset,
            price=price,
            units=price.units_in(asset),
            pay_to=terms.pay_to,
            charge_on=terms.charge_on,
            max_timeout_s=timeout_s + SETTLEMENT_MARGIN_S,
        )
        for asset in payable_assets(assets, currency=terms.currency, networks=networks)
        if asset.domain is not None and price.units_in(asset) <= UNITS_MAX
    ]
