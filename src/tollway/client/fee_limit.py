"""A limit on the network fee of one payment. Pure.

A node reports gas, base fee and priority fee. Before anything is signed, their maximum is compared with a limit:
the caller's `max_fee`, or the lower of two presets. The first is a maximum for each network, in its native
currency. The second is for payments in dollars or in the native currency: ten times the payment, or 0.05 dollars where that is more.
The price of a native coin is the preset of `payments/settlement_rules.py`: it goes out of date, because no oracle is read.

A rollup may charge for its data besides gas. Its own contracts set that part, and no field of a transaction limits it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tollway.chain.networks import PRESETS, NetworkPreset
from tollway.client.quote import ATTO_DECIMALS, DEFAULT_MAX_PRICE, Cap, parse_amount, to_atto
from tollway.ids import ChainId
from tollway.money import Asset, format_decimal
from tollway.payments.settlement_rules import settlement_defaults

GAS_MAX = 1_000_000
"""Some rollups count their data fee as gas; a token transfer stays far below this on all of them."""
FEE_MULTIPLE = 10
FEE_MIN_DOLLARS_ATTO = 5 * 10**16
"""A minimum, because ten times a very small payment is less than the fee of any transaction."""
GWEI = 10**9

_PRESETS: Mapping[ChainId, NetworkPreset] = {preset.chain_id: preset for preset in PRESETS.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _FeeMaximum:
    """The maximum of one network: a fee and a priority fee above those of any payment there."""

    fee_wei: int
    tip_wei: int


_OTHER = _FeeMaximum(fee_wei=10**15, tip_wei=10 * GWEI)
_ROLLUP = _FeeMaximum(fee_wei=5 * 10**14, tip_wei=GWEI)
_TEST = _FeeMaximum(fee_wei=10**16, tip_wei=100 * GWEI)
_MAXIMA: Mapping[int, _FeeMaximum] = {
    1: _FeeMaximum(fee_wei=5 * 10**15, tip_wei=5 * GWEI),
    10: _ROLLUP,
    137: _FeeMaximum(fee_wei=10**18, tip_wei=500 * GWEI),
    8453: _ROLLUP,
    42161: _ROLLUP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFee:
    """The fee of one transaction by a node. `price_wei`: the maximum per gas; `tip_wei`: the part of it for the block producer."""

    chain_id: ChainId
    gas: int
    price_wei: int
    tip_wei: int

    @property
    def max_wei(self) -> int:
        """The maximum cost of the transaction's gas."""
        return self.gas * self.price_wei


@dataclass(frozen=True, slots=True, kw_only=True)
class FeeLimit:
    """A limit on a fee. `tip_wei` None: the priority fee has no limit of its own."""

    fee_wei: int
    tip_wei: int | None

    def find_excess(self, fee: NetworkFee) -> str | None:
        """The excess, as a sentence; None for a fee within the limit."""
        fee_text, limit = format_fee(fee.chain_id, fee.max_wei), format_fee(fee.chain_id, self.fee_wei)
        if fee.max_wei > self.fee_wei:
            price = format_decimal(fee.price_wei, decimals=9)
            return (
                f"The network fee on chain {fee.chain_id} could be {fee_text} ({fee.gas} gas at up to {price} gwei, by"
                f" your node); the limit is {limit}"
            )
        if self.tip_wei is not None and fee.tip_wei > self.tip_wei:
            tip, most = (format_decimal(wei, decimals=9) for wei in (fee.tip_wei, self.tip_wei))
            return f"Your node reports a priority fee of {tip} gwei on chain {fee.chain_id}; the limit is {most} gwei"
        return None


def limit_fee(asset: Asset, amount: int, own: Cap | None) -> FeeLimit:
    """The limit for a payment of `amount` base units. `own`: the caller's `max_fee`, by the symbol of the native currency; for other
    currencies the preset applies."""
    preset = _PRESETS.get(asset.chain_id)
    named = None if own is None else own.atto_for(native_symbol(asset.chain_id))
    if named is not None:
        return FeeLimit(fee_wei=named, tip_wei=None)
    is_test = preset is not None and preset.kind == "test"
    most = _MAXIMA.get(asset.chain_id, _TEST if is_test else _OTHER)
    multiple_wei = _multiple_wei(asset, amount, preset)
    fee_wei = most.fee_wei if multiple_wei is None else min(most.fee_wei, multiple_wei)
    return FeeLimit(fee_wei=fee_wei, tip_wei=most.tip_wei)


def _multiple_wei(asset: Asset, amount: int, preset: NetworkPreset | None) -> int | None:
    """Ten times the payment in native units, rounded down; None where the two currencies cannot be compared."""
    defaults = None if preset is None else settlement_defaults(asset.chain_id, preset.kind)
    price_atto = parse_amount((defaults and defaults.native_price) or "0", decimals=ATTO_DECIMALS)
    if not price_atto:  # unknown, or the coin of a test network
        return None
    min_wei: int = FEE_MIN_DOLLARS_ATTO * 10**ATTO_DECIMALS // price_atto
    multiple_wei: int = FEE_MULTIPLE * to_atto(amount, asset)
    if asset.token is not None:
        if DEFAULT_MAX_PRICE.atto_for(asset.symbol) is None:
            return None
        multiple_wei = multiple_wei * 10**ATTO_DECIMALS // price_atto
    return max(min_wei, multiple_wei)


def native_symbol(chain_id: ChainId) -> str:
    """The symbol of the native currency, such as `ETH`; `native` for an unknown network."""
    preset = _PRESETS.get(chain_id)
    return "native" if preset is None else preset.native_symbol


def format_fee(chain_id: ChainId, wei: int) -> str:
    """Formats a fee as `0.000131 ETH`."""
    return f"{format_decimal(wei, decimals=ATTO_DECIMALS)} {native_symbol(chain_id)}"
