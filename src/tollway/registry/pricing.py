"""The ways to pay a listing, in numbers: what its details, its agent documents and a 402 all show alike. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from tollway.identifiers import Address, ChainId
from tollway.money import Asset, Price
from tollway.registry.listing import Listing, Terms

ConfirmationsFor = Callable[[Asset, int], int]
"""How deep a payment of so many ledger units of an asset must lie."""


IsOffered = Callable[[Asset, int], bool]
"""Whether an authorisation over so many ledger units of an asset can be settled here, now."""

SETTLEMENT_MARGIN_S = 60
"""How much longer than the upstream's own time an authorisation is asked to be valid: half to reach us, half to settle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentOption:
    """One way to pay: one transfer of `amount_base_units` of `asset` to `pay_to`.

    Rail `tx`: by a transaction of the caller's own, that deep. Rail `x402`: by a signed authorisation, valid for
    `max_timeout_s` from now.
    """

    rail: Literal["tx", "x402"]
    asset: Asset
    amount_base_units: int
    pay_to: Address
    confirmations: int
    max_timeout_s: int | None = None


def list_payment_options(
    terms: Terms | Listing,
    price: Price,
    *,
    assets: Iterable[Asset],
    confirmations_for: ConfirmationsFor,
    timeout_s: int,
    is_offered: IsOffered,
) -> tuple[PaymentOption, ...]:
    """Every way to pay `price`: in the order of the listing's networks, then of `assets`; for each asset a transaction
    of the caller's own, then an authorisation where the token takes one and `is_offered` says so."""
    found: list[PaymentOption] = []
    for option in list_transaction_options(terms, price, assets=assets, confirmations_for=confirmations_for):
        found.append(option)
        if option.asset.domain is not None and is_offered(option.asset, price.units_in(option.asset)):
            found.append(replace(option, rail="x402", max_timeout_s=timeout_s + SETTLEMENT_MARGIN_S))
    return tuple(found)


def list_transaction_options(
    terms: Terms | Listing, price: Price, *, assets: Iterable[Asset], confirmations_for: ConfirmationsFor
) -> tuple[PaymentOption, ...]:
    """Every asset in which `price` can be paid by a transaction of the caller's own.

    In the order of the listing's networks, then of `assets`. Empty for a free price: nothing is to be paid.
    """
    if price.is_free:
        return ()
    payable = payable_assets(assets, currency=terms.currency, networks=terms.networks)
    return tuple(
        PaymentOption(
            rail="tx",
            asset=asset,
            amount_base_units=asset.to_base_units(price.units_in(asset)),
            pay_to=terms.pay_to,
            confirmations=confirmations_for(asset, price.units_in(asset)),
        )
        for asset in payable
    )


def payable_assets(
    assets: Iterable[Asset], *, currency: str, networks: Iterable[ChainId]
) -> tuple[Asset, ...]:
    """The assets that count as that currency, in the order of the networks."""
    known = tuple(assets)
    return tuple(
        asset
        for chain_id in networks
        for asset in known
        if asset.chain_id == chain_id and asset.symbol == currency
    )
