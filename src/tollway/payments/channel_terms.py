"""The terms of channels (x402 `batch-settlement`): what a 402 offers, what a response says of the charge, and the corrective 402. Pure.

A channel is offered where its gas is small beside what it carries. The gas of one channel is that of a deposit, a claim and a settle; a test on the
sandbox's chain measures it. Amounts are base units, which are ledger units too: only tokens of at most `LEDGER_DECIMALS_MAX` decimals have channels.
Source: x402 specification, schemes/batch-settlement (EVM); transports/http.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tollway.ids import ChainId, TxHash, format_network
from tollway.ledger.channels import Channel
from tollway.money import LEDGER_DECIMALS_MAX, Asset
from tollway.payments.payment_required import Header
from tollway.payments.pricing import PaymentRequirement
from tollway.payments.settlement_rules import WEI_PER_COIN
from tollway.payments.wire import encode_object
from tollway.payments.x402 import REQUIRED_HEADER, RESPONSE_HEADER, Resource, requirement_json, resource_json

DEPOSIT_COST_GAS, CLAIM_COST_GAS, SETTLE_COST_GAS = 133_000, 77_000, 50_000
"""What a first deposit, the claim of one channel and one settle cost: measured on the sandbox's chain."""
CHANNEL_GAS = DEPOSIT_COST_GAS + CLAIM_COST_GAS + SETTLE_COST_GAS
"""The gas of a first deposit, and of the claim and the settle of one channel."""
DEPOSIT_COST_FACTOR = 10
"""The offered deposit is at least this many times the gas of a channel."""
DEPOSIT_COST_FACTOR_MIN = 3
"""A smaller deposit than this many times the gas of a channel is refused."""
DEPOSIT_CALLS = 1_000
DEPOSIT_MAX = 5
"""The offered deposit pays for a thousand calls, at most one unit of the currency; beyond `DEPOSIT_MAX` units of the currency only for the call itself."""
UNCLAIMED_MAX = 5
"""How many units of the currency one payer may owe on its channels beyond what is claimed, unless the operator sets another maximum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRules:
    """The rules of channels on one network. `native_price_nano`: of one
    native coin, in 10^-9 of the currency. `unclaimed_max`: units of the currency."""

    chain_id: ChainId
    withdraw_delay: int
    native_price_nano: int
    unclaimed_max: int = UNCLAIMED_MAX

    def cost_units(self, asset: Asset, gas_price_wei: int) -> int:
        """The gas of one channel, in units of the asset, rounded up."""
        return self.gas_units(asset, CHANNEL_GAS, gas_price_wei)

    def gas_units(self, asset: Asset, gas: int, gas_price_wei: int) -> int:
        nano = -(-gas * gas_price_wei * self.native_price_nano // WEI_PER_COIN)
        divisor: int = 10 ** (LEDGER_DECIMALS_MAX - asset.ledger_decimals)
        return -(-nano // divisor)

    def unclaimed_max_units(self, asset: Asset) -> int:
        return self.unclaimed_max * one_coin(asset)


def one_coin(asset: Asset) -> int:
    """One unit of the currency, in units of the asset."""
    coin: int = 10**asset.ledger_decimals
    return coin


def has_channels(asset: Asset) -> bool:
    """Whether the units of the ledger are the base units of the token, and deposits of it can be verified."""
    return asset.token is not None and asset.domain is not None and asset.decimals <= LEDGER_DECIMALS_MAX


def find_deposit_min(units: int, *, cost_units: int, coin: int) -> int:
    """The deposit that an offer asks for. `units`: the maximum of the call; `coin`: one unit of the currency."""
    wanted = max(units, DEPOSIT_COST_FACTOR * cost_units, min(DEPOSIT_CALLS * units, coin))
    return min(wanted, max(DEPOSIT_MAX * coin, units))


def find_deposit_floor(units: int, *, cost_units: int) -> int:
    """The smallest deposit that is taken."""
    return max(units, DEPOSIT_COST_FACTOR_MIN * cost_units)


def find_price_min(*, cost_units: int) -> int:
    """The smallest price for which a channel is sensible: a thousand calls pay `DEPOSIT_COST_FACTOR` times the gas of their channel."""
    return -(-DEPOSIT_COST_FACTOR * cost_units // DEPOSIT_CALLS)


def channel_state_json(channel: Channel) -> dict[str, Any]:
    return {
        "channelId": "0x" + channel.id.hex(),
        "balance": str(channel.balance_units),
        "totalClaimed": str(channel.facts.total_claimed),
        "withdrawRequestedAt": channel.facts.withdrawal_since_s,
        "refundNonce": str(channel.facts.refund_nonce),
        "chargedCumulativeAmount": str(channel.announced),
    }


def encode_charge(
    channel: Channel,
    *,
    charged: int,
    deposit: tuple[TxHash, int] | None,
    extensions: Mapping[str, Any] | None,
) -> Header:
    """`PAYMENT-RESPONSE` of a call that a channel pays. `charged`: what the announced sum has grown by. `deposit`: the transaction and the amount of the
    deposit that came with the call; `amount` is that of the deposit, never the charge."""
    transaction, amount = ("", "") if deposit is None else (str(deposit[0]), str(deposit[1]))
    content: dict[str, Any] = {
        "success": True,
        "transaction": transaction,
        "network": format_network(channel.chain_id),
        "payer": str(channel.config.payer),
        "amount": amount,
        "extra": {"chargedAmount": str(charged), "channelState": channel_state_json(channel)},
    }
    if extensions:
        content["extensions"] = dict(extensions)
    return RESPONSE_HEADER, encode_object(content)


def encode_refund_receipt(channel: Channel, *, tx_hash: TxHash, base_units: int) -> Header:
    """`PAYMENT-RESPONSE` of a refund. `base_units`: what the contract paid back."""
    content = {
        "success": True,
        "transaction": str(tx_hash),
        "network": format_network(channel.chain_id),
        "payer": str(channel.config.payer),
        "amount": str(base_units),
        "extra": {"channelState": channel_state_json(channel)},
    }
    return RESPONSE_HEADER, encode_object(content)


def encode_refund_terms(requirement: PaymentRequirement, *, url: str) -> Header:
    """`PAYMENT-REQUIRED` of a refund URL: one channel, whose payer is not known yet."""
    content = {
        "x402Version": 2,
        "error": "payment_required",
        "resource": resource_json(Resource(url=url)),
        "accepts": [requirement_json(requirement)],
    }
    return REQUIRED_HEADER, encode_object(content)


def encode_corrective(
    requirement: PaymentRequirement, channel: Channel, *, url: str, reason: str, shows_voucher: bool
) -> Header:
    """`PAYMENT-REQUIRED` of the corrective 402: that channel alone, with what its payer needs to sign again. It adds the newest voucher of the
    payer, by which the client trusts the announced sum: one that stood in a transaction for every asker, another one where `shows_voucher`."""
    accepted = requirement_json(requirement)
    accepted["extra"]["channelState"] = channel_state_json(channel)
    voucher = channel.candidate
    if voucher is not None and (shows_voucher or voucher.ceiling <= channel.published):
        accepted["extra"]["voucherState"] = {
            "signedMaxClaimable": str(voucher.ceiling),
            "signature": "0x" + voucher.signature.hex(),
        }
    content = {
        "x402Version": 2,
        "error": reason,
        "resource": resource_json(Resource(url=url)),
        "accepts": [accepted],
    }
    return REQUIRED_HEADER, encode_object(content)
