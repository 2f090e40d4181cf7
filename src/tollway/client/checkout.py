"""Chooses among the transfers that a 402 offers and makes one: a sub-flow of the payer. Pure.

It holds what the caller allows, and holds the gateway's numbers against it before anything is signed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from tollway.client.failures import CannotPay, FeeAboveMax, PaymentRefused, PriceAboveMax
from tollway.client.quote import Cap, TransferOffer, to_atto
from tollway.client.steps import Flow, GatewayResponse, SignedAuthorization, Transfer
from tollway.client.transfer import (
    Patience,
    PaymentSource,
    StoredTransfer,
    fetch_balance,
    make_transfer,
    verify_asset,
)
from tollway.errors import Code
from tollway.ids import TxHash
from tollway.money import Asset, format_decimal

RailChoice = Literal["auto", "tx", "x402"]
RAILS: tuple[RailChoice, ...] = ("auto", "tx", "x402")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRules:
    """What the caller allows for one call. `max_fee`: the most for the network fee of one payment, in the native
    currency; None: the presets. `prepay`: how many calls one new payment is to cover, on `tx`.

    `is_repeatable`: the request may run twice (a safe method, or an idempotency key).
    """

    max_price: Cap
    max_fee: Cap | None = None
    prepay: int = 1
    patience: Patience = field(default_factory=Patience)
    is_repeatable: bool = False
    rail: RailChoice = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class InsufficientCredit:
    """Something of a payment is left, less than the price. `missing` None: the gateway does not say how much."""

    transfer: Transfer
    missing: int | None
    response: GatewayResponse


def exceeds_call(
    amount: int, asset: Asset, signed: Sequence[Transfer | SignedAuthorization], rules: CallRules
) -> bool:
    """Whether this payment, with all that is signed for the same call and may move money, exceeds `max_price` times
    `prepay`. Each payment takes its share of the maximum of its own currency."""
    share = Fraction(0)
    for part, part_asset in ((amount, asset), *((entry.amount, entry.asset) for entry in signed)):
        cap = rules.max_price.atto_for(part_asset.symbol)
        if not cap:
            return True
        share += Fraction(to_atto(part, part_asset), cap)
    return share > rules.prepay


MAX_PRICE_REACHED = "a second signature for this call would exceed max_price"


def make_payment(
    offers: Sequence[TransferOffer],
    short: InsufficientCredit | None,
    source: PaymentSource,
    rules: CallRules,
    tried: frozenset[TxHash],
    paid: Sequence[Transfer] = (),
    rejected: Sequence[SignedAuthorization] = (),
) -> Flow[StoredTransfer]:
    """Chooses an offer, signs and stores. What comes back is followed and spent like every other payment.

    `paid`: what this very call has paid already; then nothing but a difference is left to be paid. `rejected`:
    authorisations of this call that the gateway does not take, and can still cash.
    """
    if paid:
        return (yield from _pay_difference(offers, short, source, rules, tried, paid, rejected))
    reasons: list[str] = []
    is_fee_above = False
    if not offers:
        raise CannotPay("The gateway offers no transfer that this wallet could make.")
    for offer in _order_offers(offers, short):
        asset = yield from _check_offer(offer, source, rules, reasons)
        if asset is None:
            continue
        amount = _amount_due(offer, asset, short, rules)
        if rejected and exceeds_call(amount, asset, rejected, rules):
            reasons.append(MAX_PRICE_REACHED)
            continue
        balance = yield from fetch_balance(asset, source.payer)
        if balance < amount:
            due = format_decimal(amount, decimals=asset.decimals)
            has = format_decimal(balance, decimals=asset.decimals)
            reasons.append(f"{due} {asset.symbol} on {asset.network} is due, the wallet holds {has}")
            continue
        try:
            return (yield from make_transfer(asset, offer, amount, source, tried, rules.max_fee))
        except FeeAboveMax as failure:  # another network may cost less
            reasons.append(failure.detail.rstrip("."))
            is_fee_above = True
    kind = FeeAboveMax if is_fee_above else CannotPay
    raise kind("This wallet cannot pay the call: " + "; ".join(reasons) + ".")


def _pay_difference(
    offers: Sequence[TransferOffer],
    short: InsufficientCredit | None,
    source: PaymentSource,
    rules: CallRules,
    tried: frozenset[TxHash],
    paid: Sequence[Transfer],
    rejected: Sequence[SignedAuthorization],
) -> Flow[StoredTransfer]:
    """Adds to a payment of this call: to the same payee, in the same asset, and with it within what is allowed."""
    last = paid[-1]
    if len(paid) > 1:
        raise _refuse_second_payment(last, "another difference")
    asset, total = last.asset, sum(transfer.amount for transfer in paid)
    same = [offer for offer in offers if (offer.asset, offer.pay_to) == (asset, last.pay_to)]
    if short is None or short.transfer.tx_hash != last.tx_hash or not same:
        raise _refuse_second_payment(last, "other terms than it was paid by")
    due = same[0].amount * rules.prepay - total if short.missing is None else short.missing
    if due <= 0 or exceeds_call(due, asset, (*paid, *rejected), rules):
        raise _refuse_second_payment(
            last, f"{format_decimal(max(due, 0), decimals=asset.decimals)} {asset.symbol} more"
        )
    if (yield from fetch_balance(asset, source.payer)) < due:
        raise CannotPay(
            f"The wallet holds less {asset.symbol} than the difference.", transaction=last.tx_hash
        )
    try:
        return (yield from make_transfer(asset, same[0], due, source, tried, rules.max_fee))
    except FeeAboveMax as failure:
        raise FeeAboveMax(failure.detail, transaction=last.tx_hash) from failure


def _refuse_second_payment(last: Transfer, what: str) -> PaymentRefused:
    return PaymentRefused(
        f"This call has paid {last.describe()} ({last.tx_hash}), and the gateway asks for {what}; it gets nothing.",
        transaction=last.tx_hash,
        reason=Code.PAYMENT_INSUFFICIENT.value,
    )


def _order_offers(offers: Sequence[TransferOffer], short: InsufficientCredit | None) -> list[TransferOffer]:
    """The gateway's order, which is the provider's; a difference is paid where the rest lies."""
    if short is None:
        return list(offers)
    transfer = short.transfer
    return sorted(
        offers, key=lambda o: (o.chain_id, o.token, o.pay_to) != (*_token_of(transfer), transfer.pay_to)
    )


def _token_of(transfer: Transfer) -> tuple[object, object]:
    return transfer.asset.chain_id, transfer.asset.token


def _check_offer(
    offer: TransferOffer, source: PaymentSource, rules: CallRules, reasons: list[str]
) -> Flow[Asset | None]:
    """The asset to pay in, or None with a reason. Raises `PriceAboveMax`: every offer asks the same price."""
    if offer.chain_id not in source.chains:
        reasons.append(f"no node is configured for chain {offer.chain_id}")
        return None
    asset = yield from verify_asset(offer, source)
    if asset is None:
        reasons.append(f"{offer.symbol} on chain {offer.chain_id} is not what the gateway says it is")
        return None
    cap = rules.max_price.atto_for(asset.symbol)
    if cap is None or to_atto(offer.amount, asset) > cap:
        price = format_decimal(offer.amount, decimals=asset.decimals)
        limit = "nothing" if cap is None else rules.max_price.text_for(asset.symbol)
        raise PriceAboveMax(f"The call costs {price} {asset.symbol}; allowed in {asset.symbol}: {limit}.")
    return asset


def _amount_due(
    offer: TransferOffer, asset: Asset, short: InsufficientCredit | None, rules: CallRules
) -> int:
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
