"""Each network, payment and own limit -> the maximum fee, and the text for a node that reports more."""

import pytest

from tollway.chain.networks import PRESETS
from tollway.client.fee_limit import FeeLimit, NetworkFee, format_fee, limit_fee, native_symbol
from tollway.client.quote import Cap
from tollway.ids import Address, ChainId
from tollway.money import Asset

ETHER, GWEI = 10**18, 10**9
BASE, MAINNET, POLYGON, TEST, UNKNOWN = (ChainId(number) for number in (8453, 1, 137, 84532, 424_242))


def usdc(chain_id, symbol="USDC"):
    return Asset(chain_id=chain_id, token=Address(b"\x05" * 20), symbol=symbol, decimals=6)


def coin(chain_id):
    return Asset(chain_id=chain_id, token=None, symbol="ETH", decimals=18)


LIMITS = {
    # Ten times the payment, at 3,000 dollars an ether.
    "a cent on a rollup": (usdc(BASE), 10_000, None, ETHER // 10 // 3_000),
    "a tenth of a cent": (usdc(BASE), 1_000, None, ETHER // 20 // 3_000),  # 0.05 dollars
    "a millionth of a dollar": (usdc(BASE), 1, None, ETHER // 20 // 3_000),
    "half a dollar reaches the maximum of a rollup": (usdc(BASE), 500_000, None, 5 * 10**14),
    "a thousand dollars": (usdc(BASE), 10**9, None, 5 * 10**14),
    "a cent on Ethereum": (usdc(MAINNET), 10_000, None, ETHER // 10 // 3_000),
    "a thousand dollars on Ethereum": (usdc(MAINNET), 10**9, None, 5 * 10**15),
    "a cent on Polygon, at a quarter a coin": (usdc(POLYGON), 10_000, None, 4 * ETHER // 10),
    "a dollar on Polygon": (usdc(POLYGON), 10**6, None, ETHER),
    "a token of which no price is known": (usdc(BASE, "ABC"), 10_000, None, 5 * 10**14),
    "native currency, ten times as it is": (coin(BASE), 10**13, None, 10**14),
    "native currency, 0.05 dollars": (coin(BASE), 1, None, ETHER // 20 // 3_000),
    "a test network, whose coin is worth nothing": (usdc(TEST), 1, None, 10**16),
    "native currency of a test network": (coin(TEST), 1, None, 10**16),
    "a network that is not known": (usdc(UNKNOWN), 1, None, 10**15),
    "an own limit, higher": (usdc(BASE), 10_000, "0.01 ETH", 10**16),
    "an own limit, lower": (usdc(BASE), 10_000, "0.000001 ETH", 10**12),
    "an own limit of nothing": (usdc(BASE), 10_000, "0", 0),
    "an own limit of whichever currency": (usdc(UNKNOWN), 10_000, "0.5", ETHER // 2),
    "an own limit of another currency keeps the preset": (usdc(BASE), 10_000, "5 POL", ETHER // 10 // 3_000),
}


@pytest.mark.parametrize("name", LIMITS)
def test_the_most_that_a_fee_may_be(name):
    asset, amount, own, fee_wei = LIMITS[name]
    limit = limit_fee(asset, amount, None if own is None else Cap.parse(own))
    assert limit.fee_wei == fee_wei
    assert (limit.tip_wei is None) is (own is not None and "POL" not in own)


def test_no_preset_lets_a_node_take_more_than_some_dollars():
    """At 5,000 dollars an ether and one a POL; a test coin is worth nothing."""
    for preset in PRESETS.values():
        limit = limit_fee(preset.assets[0], 10**15, None)
        dollars = {"ETH": 5_000, "POL": 1}[preset.native_symbol] * limit.fee_wei / ETHER
        assert dollars <= 25 or preset.kind == "test", preset.name
        assert 0 < limit.tip_wei <= 500 * GWEI, preset.name


def fee(**changes):
    return NetworkFee(**{"chain_id": BASE, "gas": 50_000, "price_wei": 2 * GWEI, "tip_wei": GWEI, **changes})


LIMIT = FeeLimit(fee_wei=10**14, tip_wei=GWEI)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (fee(), None),
        (fee(price_wei=2 * GWEI + 1), "could be 0.00010000000005 ETH (50000 gas at up to 2.000000001 gwei, "),
        (fee(gas=50_001), "the limit is 0.0001 ETH"),
        (fee(tip_wei=GWEI + 1), "a priority fee of 1.000000001 gwei on chain 8453; the limit is 1 gwei"),
        (fee(price_wei=2**256), "the limit is 0.0001 ETH"),
    ],
)
def test_an_excess_is_described_in_a_sentence(asked, said):
    excess = LIMIT.find_excess(asked)
    assert (excess is None) if said is None else (said in excess)


def test_the_callers_own_limit_bounds_the_priority_fee_with_the_rest():
    assert FeeLimit(fee_wei=10**14, tip_wei=None).find_excess(fee(tip_wei=2 * GWEI)) is None


def test_a_currency_has_its_name_where_the_network_is_known():
    assert (native_symbol(POLYGON), native_symbol(UNKNOWN)) == ("POL", "native")
    assert format_fee(BASE, 131 * 10**12) == "0.000131 ETH"
