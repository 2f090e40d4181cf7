"""The ways to pay a listing, in numbers: what its details, its agent documents and a 402 all show alike. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from tollway.identifiers import Address, ChainId
from tollway.money import Asset, Price
from tollway.registry.listing import Listing, Terms

ConfirmationsFor = Callable[[Asset, int], int]
"""How deep a payment of so many ledger units of an asset must lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to pay: one transfer of `amount_base_units` of `asset` to `pay_to`."""

    rail: Literal["tx"]
    asset: Asset
    amount_base_units: int
    pay_to: Address
    confirmations: int


def tx_options(
    terms: Terms | Listing, price: Price, *, assets: Iterable[Asset], confirmations_for: ConfirmationsFor
) -> tuple[Option, ...]:
    """Every asset in which `price` can be paid by a transaction of the caller's own.

    In the order of the listing's networks, then of `assets`. Empty for a free price: nothing is to be paid.
    """
    if price.is_free:
        return ()
    payable = payable_assets(assets, currency=terms.currency, networks=terms.networks)
    return tuple(
        Option(
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
