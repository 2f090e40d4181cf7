"""Chooses among the offers of a 402 and pays one: a sub-flow of the payer. Pure.

It holds what the caller allows, and holds the gateway's numbers against it before anything is signed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tollway.client.failures import CannotPay, PriceAboveMax
from tollway.client.quote import Cap, Offer, to_atto
from tollway.client.steps import Flow, Transfer
from tollway.client.transfer import Made, Patience, Purse, fetch_balance, know_asset, make_transfer
from tollway.identifiers import TxHash
from tollway.money import Asset, format_decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the caller allows for one call. `prepay`: how many calls one new payment is to cover.

    `is_repeatable`: the request may run twice (a safe method, or an idempotency key).
    """

    max_price: Cap
    prepay: int = 1
    patience: Patience = field(default_factory=Patience)
    is_repeatable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Short:
    """Something of a payment is left, less than the price. `missing` None: the gateway does not say how much."""

    transfer: Transfer
    missing: int | None
    problem: Mapping[str, object]


def pay_offer(
    offers: Sequence[Offer], short: Short | None, purse: Purse, rules: Rules, tried: frozenset[TxHash]
) -> Flow[Made]:
    """Chooses an offer, signs and stores. What comes back is followed and spent like every other payment."""
    reasons: list[str] = []
    for offer in _prefer(offers, short):
        asset = yield from _check_offer(offer, purse, rules, reasons)
        if asset is None:
            continue
        amount = _amount_due(offer, asset, short, rules)
        balance = yield from fetch_balance(asset, purse.payer)
        if balance < amount:
            due = format_decimal(amount, decimals=asset.decimals)
            has = format_decimal(balance, decimals=asset.decimals)
            reasons.append(f"{due} {asset.symbol} on {asset.network} is due, the wallet holds {has}")
            continue
        return (yield from make_transfer(asset, offer, amount, purse, tried))
    raise CannotPay("This wallet cannot pay the call: " + ("; ".join(reasons) or "no offer was made") + ".")


def _prefer(offers: Sequence[Offer], short: Short | None) -> list[Offer]:
    """The gateway's order, which is the provider's; a difference is paid where the rest lies."""
    if short is None:
        return list(offers)
    transfer = short.transfer
    return sorted(
        offers, key=lambda o: (o.chain_id, o.token, o.pay_to) != (*_place(transfer), transfer.pay_to)
    )


def _place(transfer: Transfer) -> tuple[object, object]:
    return transfer.asset.chain_id, transfer.asset.token


def _check_offer(offer: Offer, purse: Purse, rules: Rules, reasons: list[str]) -> Flow[Asset | None]:
    """The asset to pay in, or None with a reason. Raises `PriceAboveMax`: every offer asks the same price."""
    if offer.chain_id not in purse.chains:
        reasons.append(f"no node is configured for chain {offer.chain_id}")
        return None
    asset = yield from know_asset(offer, purse)
    if asset is None:
        reasons.append(f"{offer.symbol} on chain {offer.chain_id} is not what the gateway says it is")
        return None
    cap = rules.max_price.atto_for(asset.symbol)
    if cap is None or to_atto(offer.amount, asset) > cap:
        price = format_decimal(offer.amount, decimals=asset.decimals)
        limit = "nothing" if cap is None else rules.max_price.text_for(asset.symbol)
        raise PriceAboveMax(f"The call costs {price} {asset.symbol}; allowed in {asset.symbol}: {limit}.")
    return asset


def _amount_due(offer: Offer, asset: Asset, short: Short | None, rules: Rules) -> int:
    """The price of `prepay` calls; or only the difference, when some credit is there and one call is wanted.

    Never more for a difference than the whole price: `missing` is the gateway's word.
    """
    if (
        short is None
        or rules.prepay > 1
        or short.transfer.asset != asset
        or short.transfer.pay_to != offer.pay_to
    ):
        return offer.amount * rules.prepay
    missing = short.missing
    return offer.amount if missing is None else min(missing, offer.amount)
