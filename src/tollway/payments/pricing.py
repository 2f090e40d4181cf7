"""The price and the payees of a call over time, and the requirements that an authorisation must meet. Pure.

A provider may edit a listing between the quote and the payment. Such an edit costs the caller nothing: a call costs the lowest
paid price that was recently in force, and a payment counts if its payee was recently the listing's `payTo`.

A requirement is network, token, amount and payee, built from the gateway's own rows and never from what a caller sent. Every
requirement comes from one version of a listing's terms: the network of one version is never combined with the price of another, on
any rail.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

from tollway.chain.networks import ChainRules
from tollway.ids import Address, ChainId, Network
from tollway.limits import Limits
from tollway.money import UNITS_MAX, Asset, Price
from tollway.registry.listing import SETTLEMENT_MARGIN_S, ChargeOn, Operation, Terms, payable_assets
from tollway.registry.metering import FORMULAS_MAX, Metering
from tollway.registry.quality import number_operation

REQUIREMENTS_KEPT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationPrice:
    """The price of an operation in one version of the terms. `formulas`: of a metered price, whose maximum is `price`: the formula of this version; in
    a result of `find_lowest_price` those of all versions that count."""

    terms: Terms
    price: Price
    formulas: tuple[Metering, ...] = ()
    operation: int = 0
    """The number of the priced operation in the quality of its listing."""


def price_operation(terms: Terms, operation: Operation | None) -> OperationPrice:
    """The price of an operation in a version of the terms; of None that of the listing. An operation has its own formula, or none."""
    priced = terms if operation is None else operation
    if priced.metering is None:
        return OperationPrice(terms=terms, price=priced.price)
    method, path = ("", "") if operation is None else (operation.method, operation.path)
    return OperationPrice(
        terms=terms,
        price=priced.price,
        formulas=(priced.metering,),
        operation=number_operation(method, path),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Payee:
    """A wallet whose payments count. `since_s`: the first time (unix seconds) that it was the listing's `payTo`: by the clock of the
    ledger, or by the clock of its network where that is earlier (`begin_by_heads`)."""

    address: Address
    since_s: int


def find_lowest_price(
    operation_prices: Sequence[OperationPrice],
    asset: Asset,
    *,
    now_ms: int,
    limits: Limits,
    first_call_block_s: int | None,
) -> OperationPrice | None:
    """The lowest paid price in `asset`'s currency that was in force on its network within the last ten minutes, with its version. A metered call takes
    the least that a formula of these versions gives, of the four newest that differ; a fixed price among them bounds it as their maximum does.

    `first_call_block_s`: for the first call of a payment, the time of the payment's block; this call costs the lowest price since
    ten minutes before that block. None for a later call. Returns None when no version in that time has a price in this currency.
    """
    moment_ms = now_ms if first_call_block_s is None else min(now_ms, first_call_block_s * 1000)
    counting = list_counting_prices(operation_prices, asset, now_ms=moment_ms, limits=limits)
    if not counting:
        return None
    lowest = min(counting, key=lambda operation_price: operation_price.price.nano)
    formulas = dict.fromkeys(formula for operation_price in counting for formula in operation_price.formulas)
    return replace(lowest, formulas=tuple(formulas)[:FORMULAS_MAX]) if formulas else lowest


def list_counting_prices(
    operation_prices: Sequence[OperationPrice], asset: Asset, *, now_ms: int, limits: Limits
) -> list[OperationPrice]:
    """The paid prices in `asset`'s currency that were in force on its network within the last ten minutes, in their order."""
    since_ms = now_ms - limits.price_memory_s * 1000
    return [
        operation_price
        for operation_price in operation_prices
        if operation_price.terms.currency == asset.symbol
        and _sets_price_on(operation_price.terms, asset.chain_id)
        and not operation_price.price.is_free
        and operation_price.terms.is_in_force_since(since_ms)
    ]


def _sets_price_on(terms: Terms, chain_id: ChainId) -> bool:
    """An older version sets a price only on a network that it named: else a price on a test network would be one on a main network.
    The current version sets one on each, because credit of a network that it no longer names still buys calls."""
    return terms.until_ms is None or chain_id in terms.networks


def find_price_end_ms(operation_prices: Sequence[OperationPrice], *, now_ms: int, limits: Limits) -> float:
    """When `find_lowest_price` may return another price for the same versions, because an old version no longer counts. `inf`: never."""
    memory_ms = limits.price_memory_s * 1000
    ends = (
        operation_price.terms.until_ms + memory_ms + 1
        for operation_price in operation_prices
        if operation_price.terms.until_ms is not None and operation_price.terms.until_ms + memory_ms >= now_ms
    )
    return min(ends, default=inf)


def find_payees(versions: Sequence[Terms], *, block_time_s: int, limits: Limits) -> tuple[Payee, ...]:
    """Every wallet that was the listing's `payTo` since 24 hours before the payment's block."""
    since_ms = (block_time_s - limits.payee_memory_s) * 1000
    first_seen: dict[Address, int] = {}
    for version in versions:
        known = first_seen.get(version.pay_to)
        first_seen[version.pay_to] = version.since_ms if known is None else min(known, version.since_ms)
    counting = dict.fromkeys(v.pay_to for v in versions if v.is_in_force_since(since_ms))
    return tuple(Payee(address=address, since_s=first_seen[address] // 1000) for address in counting)


def begin_by_heads(payees: Sequence[Payee], heads: Mapping[Address, int]) -> tuple[Payee, ...]:
    """The payees, each from the time of its network's head as it began, where that is known and earlier than the ledger's clock: the
    blocks of a network that lags have the network's time. `heads`: unix seconds, by payee.

    A head is read just before the version is written, so every block after it has at least its time. A payment from before the payee
    therefore counts by the slack of `transaction_rules` only. Without a head the clock of the ledger decides, which is never earlier
    than that of a network that lags; a head that a node dates ahead changes nothing."""
    return tuple(
        replace(payee, since_s=min(payee.since_s, heads.get(payee.address, payee.since_s)))
        for payee in payees
    )


def find_assets(
    versions: Sequence[Terms], rules: ChainRules, *, block_time_s: int, limits: Limits
) -> tuple[Asset, ...]:
    """The assets in which the listing was sold on one network since 24 hours before the payment's block, the current assets first."""
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

    Money of a test network never buys calls that are sold on a main network: a network counts only while the current terms
    name a network of its kind (main or test).
    """
    current = [rules[chain_id].kind for chain_id in versions[0].networks if chain_id in rules]
    named = dict.fromkeys(chain_id for version in versions for chain_id in version.networks)
    return tuple(chain_id for chain_id in named if chain_id in rules and rules[chain_id].kind in current)


def does_credit_count(
    versions: Sequence[Terms], *, payee: Address, chain_id: ChainId, block_time_s: int, limits: Limits
) -> bool:
    """Whether a payment in the ledger counts for a listing: the rule of `find_payees` without `since_s`. Credit buys calls of
    every listing that pays the same wallet, also of a listing that is newer than the payment."""
    since_ms = (block_time_s - limits.payee_memory_s) * 1000
    counting = [version for version in versions if version.is_in_force_since(since_ms)]
    return any(version.pay_to == payee for version in counting) and any(
        chain_id in version.networks for version in counting
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelOffer:
    """The terms of a channel (x402 `batch-settlement`). `authorizer`: the receiver's authorizer, a key of this gateway. `deposit_min`: the deposit that the offer
    asks for, in base units. `withdraw_delay`: seconds."""

    authorizer: Address
    withdraw_delay: int
    deposit_min: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentRequirement:
    """One way to pay for a call by authorisation, or over a channel (`channel`). `units`: ledger units; over a channel the maximum. `asset.domain` is never None.

    `charge_on`: the rule of the version that the price comes from. `max_timeout_s`: how long from now the authorisation must be
    valid.
    """

    asset: Asset
    price: Price
    units: int
    pay_to: Address
    charge_on: ChargeOn
    max_timeout_s: int
    channel: ChannelOffer | None = None

    @property
    def base_units(self) -> int:
        return self.asset.to_base_units(self.units)

    @property
    def scheme(self) -> str:
        """The scheme of x402."""
        return "exact" if self.channel is None else "batch-settlement"

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
    """The requirements that count now, without duplicates, none of a metered price, which cannot take less than was signed: of every version in force within the last ten minutes, the current one
    (the first of `operation_prices`) first; within a version in the order of its networks, then of its assets."""
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
    """The requirements that a 402 quotes: those of the given version, in the order of its networks, then of its assets."""
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
    if price.is_free or operation_price.formulas:
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
