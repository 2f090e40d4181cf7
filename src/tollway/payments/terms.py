"""What a call costs and to whom, over time: the terms rule. Pure.

A listing may be edited between the moment a caller reads a price and the moment the payment is shown. The rule makes
sure that no such edit costs the caller: a call costs the lowest paid price in force lately, and a payment counts if
its payee was the listing's `payTo` lately.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tollway.chain.rules import ChainRules
from tollway.identifiers import Address, ChainId
from tollway.limits import Limits
from tollway.money import Asset, Price
from tollway.registry.listing import ChargeOn, Terms


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AmountDue:
    """What a call costs in one asset. `charge_on` is the rule of the version whose price is charged."""

    asset: Asset
    price: Price
    units: int
    charge_on: ChargeOn


def find_amount_due(
    operation_prices: Sequence[OperationPrice],
    asset: Asset,
    *,
    now_ms: int,
    limits: Limits,
    first_block_s: int | None,
) -> AmountDue | None:
    """The lowest paid price in `asset`'s currency in force within the last ten minutes.

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
    cheapest = min(counting, key=lambda operation_price: operation_price.price.nano)
    return AmountDue(
        asset=asset,
        price=cheapest.price,
        units=cheapest.price.units_in(asset),
        charge_on=cheapest.terms.charge_on,
    )


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
