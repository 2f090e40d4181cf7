"""The terms of channels: what a 402 offers, whether a channel that a caller shows meets them, and what the corrective 402 asks for.

A config is compared with the rows of this gateway, field by field; what the payment says of the terms decides nothing (`accepted`).
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from tollway.chain.networks import ChainRules
from tollway.errors import Problem
from tollway.gateway.authorization_payment import AuthorizationRail
from tollway.gateway.problems import UNPAID_RECEIVER
from tollway.gateway.routing import Route
from tollway.identity.signatures import recover
from tollway.ids import Address, ChainId, ChannelId
from tollway.ledger.channels import Channel, ChannelFacts
from tollway.limits import Limits
from tollway.money import Asset
from tollway.payments.channel_terms import (
    ChannelRules,
    find_deposit_min,
    has_channels,
    one_coin,
)
from tollway.payments.channel_wire import (
    ChannelReason,
    PresentedChannelPayment,
    RefundRequest,
    explain_channel,
)
from tollway.payments.channels import voucher_digest
from tollway.payments.pricing import (
    ChannelOffer,
    OperationPrice,
    PaymentRequirement,
    does_credit_count,
    list_counting_prices,
)
from tollway.payments.settlement import Settlement
from tollway.payments.wire import AuthorizationReason, explain_authorization
from tollway.registry.listing import SETTLEMENT_MARGIN_S, Listing, payable_assets


class ChannelChains(Protocol):
    """What a channel call reads of a chain."""

    @property
    def authorizers(self) -> tuple[Address, ...]:
        """The receiver's authorizers whose channels take calls, the one that a 402 names first."""
        ...

    async def fetch_channel(self, chain_id: ChainId, channel_id: ChannelId, asset: Asset) -> ChannelFacts:
        """Raises `ChainUnavailable`."""
        ...

    def gas_price_wei(self, chain_id: ChainId) -> int | None:
        """As of the last look; None where it is not known."""
        ...

    def is_available(self, chain_id: ChainId) -> bool:
        """Whether the contracts of channels are there, and withdrawals are in sight of this gateway."""
        ...

    def is_paid_out(self, chain_id: ChainId, receiver: Address, token: Address) -> bool:
        """Whether the contract can pay this receiver."""
        ...


class ChannelOffers:
    """The channels that this gateway takes. One per process; safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        chains: ChannelChains,
        settlement: Settlement,
        rules: Mapping[ChainId, ChainRules],
        channel_rules: Mapping[ChainId, ChannelRules],
        limits: Limits,
    ) -> None:
        """`channel_rules`: of the networks that have channels. `rules`: of all networks."""
        self.chains = chains
        self.settlement = settlement
        self.rules = rules
        self.channel_rules = channel_rules
        self.limits = limits

    # ---- What a 402 offers.

    def find_requirements(
        self, operation_price: OperationPrice, listing: Listing
    ) -> tuple[PaymentRequirement, ...]:
        """The channels that a 402 offers at this price: on each network and in each token that have channels now. Also while the gas for deposits is missing: clients pay
        only what a 402 offers, and a channel with a balance needs no gas."""
        terms, price = operation_price.terms, operation_price.price
        if price.is_free:
            return ()
        found = []
        for chain_id in terms.networks:
            rules = self.channel_rules.get(chain_id)
            if rules is None or not self.chains.is_available(chain_id):
                continue
            assets = payable_assets(
                self.rules[chain_id].assets, currency=terms.currency, networks=(chain_id,)
            )
            for asset in filter(has_channels, assets):
                requirement = self._offer(operation_price, listing, asset, rules)
                if requirement is not None:
                    found.append(requirement)
        return tuple(found)

    def _offer(
        self,
        operation_price: OperationPrice,
        listing: Listing,
        asset: Asset,
        rules: ChannelRules,
    ) -> PaymentRequirement | None:
        units = operation_price.price.units_in(asset)
        assert asset.token is not None  # `has_channels`
        if not self.chains.is_paid_out(asset.chain_id, operation_price.terms.pay_to, asset.token):
            return None
        if units > rules.unclaimed_max_units(asset):
            return None
        deposit_min = self._find_deposit_min(rules, asset, units)
        if not self.settlement.is_worth(asset, deposit_min):
            return None
        return _build_requirement(
            operation_price,
            listing,
            asset,
            pay_to=operation_price.terms.pay_to,
            offer=ChannelOffer(
                authorizer=self.chains.authorizers[0],
                withdraw_delay=rules.withdraw_delay,
                deposit_min=deposit_min,
            ),
        )

    # ---- Whether a channel meets the terms.

    def judge(
        self, proof: PresentedChannelPayment, route: Route, *, received_ms: int, now_ms: int
    ) -> Problem | tuple[Asset, Sequence[OperationPrice]]:
        """Returns the token of the channel and the prices that count in it; a Problem for what no state of the channel mends. Pure."""
        if proof.fault is not None:
            return proof.fault
        if isinstance(proof.request, RefundRequest):
            return explain_channel(ChannelReason.PAYLOAD_TYPE, _REFUND_ELSEWHERE)
        chain_id, config = proof.voucher.chain_id, proof.voucher.config
        rules = self.channel_rules.get(chain_id)
        if rules is None:
            return explain_authorization(AuthorizationReason.NETWORK)
        asset = next((one for one in self.rules[chain_id].assets if one.token == config.token), None)
        if asset is None:
            return explain_channel(ChannelReason.TOKEN)
        if not has_channels(asset):
            return explain_channel(ChannelReason.TOKEN_DOMAIN)
        if config.receiver_authorizer not in self.chains.authorizers:
            return explain_channel(ChannelReason.RECEIVER_AUTHORIZER)
        if config.withdraw_delay != rules.withdraw_delay:
            return explain_channel(ChannelReason.WITHDRAW_DELAY)
        if not does_credit_count(
            route.entry.versions,
            payee=config.receiver,
            chain_id=chain_id,
            block_time_s=received_ms // 1000,
            limits=self.limits,
        ):
            return explain_channel(ChannelReason.RECEIVER)
        if config.payer == config.receiver:
            return explain_authorization(AuthorizationReason.RETURNED)
        counting = list_counting_prices(route.operation_prices, asset, now_ms=now_ms, limits=self.limits)
        if not counting:
            return explain_channel(ChannelReason.TOKEN)
        if config.payer_authorizer != config.payer:
            return explain_channel(ChannelReason.VOUCHER_SIGNATURE, _DELEGATED)
        if not is_signed_by_payer(proof):
            return explain_channel(ChannelReason.VOUCHER_SIGNATURE)
        if not self.chains.is_paid_out(chain_id, config.receiver, config.token):
            return UNPAID_RECEIVER
        return asset, counting

    # ---- The corrective 402.

    def describe(
        self, channel: Channel, operation_price: OperationPrice, listing: Listing, asset: Asset
    ) -> PaymentRequirement:
        """What a call at this price asks of that channel."""
        rules = self.channel_rules[channel.chain_id]
        return _build_requirement(
            operation_price,
            listing,
            asset,
            pay_to=channel.config.receiver,
            offer=ChannelOffer(
                authorizer=channel.config.receiver_authorizer,
                withdraw_delay=rules.withdraw_delay,
                deposit_min=self._find_deposit_min(rules, asset, operation_price.price.units_in(asset)),
            ),
        )

    def _find_deposit_min(self, rules: ChannelRules, asset: Asset, units: int) -> int:
        cost_units = rules.cost_units(asset, self.chains.gas_price_wei(asset.chain_id) or 0)
        return find_deposit_min(units, cost_units=cost_units, coin=one_coin(asset))


def _build_requirement(
    operation_price: OperationPrice, listing: Listing, asset: Asset, *, pay_to: Address, offer: ChannelOffer
) -> PaymentRequirement:
    return PaymentRequirement(
        asset=asset,
        price=operation_price.price,
        units=operation_price.price.units_in(asset),
        pay_to=pay_to,
        charge_on=operation_price.terms.charge_on,
        max_timeout_s=listing.timeout_s + SETTLEMENT_MARGIN_S,
        channel=offer,
    )


def join_requirements(
    authorizations: AuthorizationRail,
    channels: ChannelOffers,
    operation_price: OperationPrice,
    listing: Listing,
) -> tuple[PaymentRequirement, ...]:
    """The payment requirements of a 402. Clients take the first entry whose scheme they know: a metered price can be paid over a channel alone, a
    fixed one first by a single authorisation."""
    return (
        *authorizations.find_requirements(operation_price, listing),
        *channels.find_requirements(operation_price, listing),
    )


def is_signed_by_payer(proof: PresentedChannelPayment) -> bool:
    """Whether the payer's own key signed the voucher. A signature of a delegated authorizer does not count: anyone can name any payer beside a key of theirs."""
    voucher = proof.voucher
    digest = voucher_digest(voucher.chain_id, voucher.channel_id, voucher.ceiling)
    return recover(digest, voucher.signature) == voucher.config.payer


_REFUND_ELSEWHERE = (
    "A listing takes no refund; send it to the refund URL of the channel, "
    "/api/v2/channels/{network}/{token}/{payTo}/{authorizer} of this gateway."
)
_DELEGATED = (
    "payerAuthorizer is another wallet than payer; this gateway takes only vouchers that the payer signs."
)
