"""What a call costs, and to whom, over time; and what an authorisation must say to pay for it. Pure.

A listing may be edited between the moment a caller reads a price and the moment the payment is shown. The rule makes
sure that no such edit costs the caller: a call costs the lowest paid price in force lately, and a payment counts if
its payee was the listing's `payTo` lately.

A requirement is network, token, amount and payee, rebuilt from our own rows: nothing that a caller sent takes part in it. Every
requirement is of one version of a listing's terms, whole: the network of one version never goes with the price of another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from tollway.chain.networks import ChainRules
from tollway.ids import Address, ChainId, Network
from tollway.limits import Limits
from tollway.money import UNITS_MAX, Asset, Price
from tollway.registry.listing import SETTLEMENT_MARGIN_S, ChargeOn, Terms, payable_assets

REQUIREMENTS_KEPT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationPrice:
    """One version of a listing's terms with the price that it asks for one particular operation."""

    terms: Terms
    price: Price


@dataclass(frozen=True, slots=True, kw_only=True)
class Payee:
    """A wallet whose payments count, and since when (unix seconds) it has been the listing's."""

    address: Address
    since_s: int


def find_lowest_price(
    operation_prices: Sequence[OperationPrice],
    asset: Asset,
    *,
    now_ms: int,
    limits: Limits,
    first_block_s: int | None,
) -> OperationPrice | None:
    """The lowest paid price in `asset`'s currency in force within the last ten minutes, with the version that asks it.

    `first_block_s`: the block time of a payment that has bought nothing yet; its first call costs the lowest price
    since ten minutes before that block. None when no version in that time asked for this currency.
    """
    moment_ms = now_ms if first_block_s is None else min(now_ms, first_block_s * 1000)
    since_ms = moment_ms - limits.price_memory_s * 1000
    counting = [
        operation_price
        for operation_price in operation_prices
        if operation_price.terms.currency == asset.symbol
        and not operation_price.price.is_free
        and operation_price.terms.is_in_force_since(since_ms)
    ]
    if not counting:
        return None
    return min(counting, key=lambda operation_price: operation_price.price.nano)


def find_price_end_ms(operation_prices: Sequence[OperationPrice], *, now_ms: int, limits: Limits) -> float:
    """The next moment at which `find_lowest_price` may give another answer for the same versions: when the first of those that count
    now leaves its window. `inf`: none does."""
    memory_ms = limits.price_memory_s * 1000
    ends = (
        operation_price.terms.until_ms + memory_ms + 1
        for operation_price in operation_prices
        if operation_price.terms.until_ms is not None and operation_price.terms.until_ms + memory_ms >= now_ms
    )
    return min(ends, default=inf)


def find_payees(versions: Sequence[Terms], *, block_time_s: int, limits: Limits) -> tuple[Payee, ...]:
    """Every wallet that was the listing's `payTo` at any moment from 24 hours before the payment's block until now."""
    since_ms = (block_time_s - limits.payee_memory_s) * 1000
    first_seen: dict[Address, int] = {}
    for version in versions:
        known = first_seen.get(version.pay_to)
        first_seen[version.pay_to] = version.since_ms if known is None else min(known, version.since_ms)
    counting = dict.fromkeys(v.pay_to for v in versions if v.is_in_force_since(since_ms))
    return tuple(Payee(address=address, since_s=first_seen[address] // 1000) for address in counting)


def find_assets(
    versions: Sequence[Terms], rules: ChainRules, *, block_time_s: int, limits: Limits
) -> tuple[Asset, ...]:
    """The assets on one network in which the listing was for sale at any moment from 24 hours before the payment's
    block until now, the current ones first."""
    assets = (
        asset
        for version in versions
        if version.is_in_force_since((block_time_s - limits.payee_memory_s) * 1000)
        and rules.chain_id in version.networks
        for asset in rules.assets_of(version.currency)
    )
    return tuple(dict.fromkeys(assets))


def find_chains(versions: Sequence[Terms], rules: Mapping[ChainId, ChainRules]) -> tuple[ChainId, ...]:
    """The configured networks of all given versions, the current ones first.

    Play money never buys what is now sold for real money: a network counts only while the current terms name one of
    its kind (main or test).
    """
    current = [rules[chain_id].kind for chain_id in versions[0].networks if chain_id in rules]
    named = dict.fromkeys(chain_id for version in versions for chain_id in version.networks)
    return tuple(chain_id for chain_id in named if chain_id in rules and rules[chain_id].kind in current)


def does_credit_count(
    versions: Sequence[Terms], *, payee: Address, chain_id: ChainId, block_time_s: int, limits: Limits
) -> bool:
    """Whether a payment that is in the ledger counts for a listing: the rule of `find_payees`, but without its
    beginning. Credit buys calls of every listing that pays the same wallet, whenever it was published."""
    since_ms = (block_time_s - limits.payee_memory_s) * 1000
    counting = [version for version in versions if version.is_in_force_since(since_ms)]
    return any(version.pay_to == payee for version in counting) and any(
        chain_id in version.networks for version in counting
    )


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
        _requirement(asset, price, terms.pay_to, terms.charge_on, timeout_s + SETTLEMENT_MARGIN_S)
        for asset in payable_assets(assets, currency=terms.currency, networks=networks)
        if asset.domain is not None and price.units_in(asset) <= UNITS_MAX
    ]


@lru_cache(maxsize=REQUIREMENTS_KEPT)
def _requirement(
    asset: Asset, price: Price, pay_to: Address, charge_on: ChargeOn, max_timeout_s: int
) -> PaymentRequirement:
    return PaymentRequirement(
        asset=asset,
        price=price,
        units=price.units_in(asset),
        pay_to=pay_to,
        charge_on=charge_on,
        max_timeout_s=max_timeout_s,
    )
