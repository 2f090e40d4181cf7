"""Which rail pays a call that no credit pays: a sub-flow of the payer. Pure.

Two can. `tx`: a transfer of the wallet's own, which costs gas, may prepay many calls, and leaves credit. `x402`: an
authorisation, which costs no gas, pays exactly one call, and only once that was served.

`auto` takes the cheaper one: x402 for one call; tx where several are to be prepaid, or where a payment's rest already
covers part of the price. Where the one cannot be paid the other is. `tx` and `x402` by name never fall back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from tollway.client.authorizing import make_authorization
from tollway.client.checkout import CallRules, InsufficientCredit, make_payment
from tollway.client.failures import CannotPay, FeeAboveMax
from tollway.client.quote import TransferOffer, read_transfer_offers
from tollway.client.steps import Flow, GatewayResponse, SignedAuthorization, Transfer
from tollway.client.transfer import PaymentSource, StoredTransfer
from tollway.client.x402_offer import X402Offer, read_x402_offers
from tollway.ids import Address, TxHash


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentOptions:
    """Every way to pay that a 402 names and that this client can go."""

    tx: tuple[TransferOffer, ...]
    x402: tuple[X402Offer, ...]

    @classmethod
    def read(cls, response: GatewayResponse) -> Self:
        problem = response.problem or {}
        return cls(tx=read_transfer_offers(problem), x402=read_x402_offers(response.headers, problem))

    @property
    def is_empty(self) -> bool:
        return not (self.tx or self.x402)

    def or_else(self, earlier: Self | None) -> Self | None:
        """These, unless they name no way at all."""
        return earlier if self.is_empty else self

    @property
    def payees(self) -> tuple[Address, ...]:
        named = [*(offer.pay_to for offer in self.tx), *(offer.pay_to for offer in self.x402)]
        return tuple(dict.fromkeys(named))


def sign_payment(
    options: PaymentOptions,
    short: InsufficientCredit | None,
    source: PaymentSource,
    rules: CallRules,
    tried: frozenset[TxHash],
    paid: Sequence[Transfer] = (),
    rejected: Sequence[SignedAuthorization] = (),
) -> Flow[StoredTransfer | SignedAuthorization]:
    """Signs once, on the rail that the rules prefer or the next that they allow. What comes back is on disk, and
    nobody has seen it. `paid`, `rejected`: what this call has signed already. Raises `NotPaid` where there is no way."""
    reasons: list[str] = []
    is_fee_above = False
    for rail in _order_rails(rules, short, paid):
        try:
            if rail == "x402":
                return (yield from make_authorization(options.x402, source, rules, rejected))
            return (yield from make_payment(options.tx, short, source, rules, tried, paid, rejected))
        except (CannotPay, FeeAboveMax) as failure:
            if failure.transaction is not None:
                raise
            reasons.append(failure.detail)
            is_fee_above = is_fee_above or isinstance(failure, FeeAboveMax)
    kind = FeeAboveMax if is_fee_above else CannotPay
    raise kind(" ".join(reasons))


def _order_rails(
    rules: CallRules, short: InsufficientCredit | None, paid: Sequence[Transfer]
) -> tuple[str, ...]:
    if paid:  # this call has paid by a transfer: nothing but a difference is left
        return ("tx",)
    if rules.rail != "auto":
        return (rules.rail,)
    return ("tx", "x402") if rules.prepay > 1 or short is not None else ("x402", "tx")
