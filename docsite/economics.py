"""The smallest sensible price of a call, by network and way to pay: ten times what its gas costs. Pure; `docsite.written` writes the tables.

Gas and bytes are those of the transactions of the demo, on the sandbox's chain with stand-in contracts; `tests/system/live/test_economics.py` measures them again. The fee
of a rollup for its data is an estimate: bytes × a price for each byte, at a base fee of 1 gwei and a blob fee of 0.01 gwei on Ethereum.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

PRICE_FACTOR = 10
CHANNEL_CALLS, CREDIT_CALLS = 1_000, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTransaction:
    """`size_bytes`: of its calldata, and 110 for the rest."""

    name: str
    gas: int
    size_bytes: int


TRANSFER = MeasuredTransaction(name="transfer by the caller", gas=34_300, size_bytes=178)
SETTLEMENT = MeasuredTransaction(name="settlement of an authorisation", gas=68_500, size_bytes=402)
DEPOSIT = MeasuredTransaction(name="first deposit of a channel", gas=137_100, size_bytes=722)
CLAIM = MeasuredTransaction(name="claim of one channel, and its settle", gas=102_200, size_bytes=1_138)
MEASURED = (TRANSFER, SETTLEMENT, DEPOSIT, CLAIM)


@dataclass(frozen=True, slots=True, kw_only=True)
class GasPrices:
    """Stated, not measured: gwei for one gas and for one byte of data, dollars for one coin."""

    network: str
    gas_gwei: str
    byte_gwei: str
    coin_dollars: str


PRICES = (
    GasPrices(network="Base, Optimism", gas_gwei="0.005", byte_gwei="0.05", coin_dollars="3000"),
    GasPrices(network="Arbitrum", gas_gwei="0.02", byte_gwei="0.05", coin_dollars="3000"),
    GasPrices(network="Polygon", gas_gwei="30", byte_gwei="0", coin_dollars="0.25"),
    GasPrices(network="Ethereum", gas_gwei="1", byte_gwei="0", coin_dollars="3000"),
)


def list_gas() -> Iterator[Sequence[str]]:
    return ((one.name, f"{one.gas:,}", str(one.size_bytes)) for one in MEASURED)


def list_prices() -> Iterator[Sequence[str]]:
    """A row for each network: in dollars, by transaction (one call; of a hundred), by authorisation, by channel (of a thousand)."""
    for prices in PRICES:
        transfer = cost_dollars(TRANSFER, prices)
        channel = (cost_dollars(DEPOSIT, prices) + cost_dollars(CLAIM, prices)) / CHANNEL_CALLS
        costs = (transfer, transfer / CREDIT_CALLS, cost_dollars(SETTLEMENT, prices), channel)
        yield (
            prices.network,
            f"{prices.gas_gwei} gwei",
            *(format_dollars(PRICE_FACTOR * cost) for cost in costs),
        )


def cost_dollars(one: MeasuredTransaction, prices: GasPrices) -> Decimal:
    gwei = one.gas * Decimal(prices.gas_gwei) + one.size_bytes * Decimal(prices.byte_gwei)
    return gwei * Decimal(prices.coin_dollars) / 10**9


def format_dollars(amount: Decimal) -> str:
    """Two significant digits."""
    places = max(0, 1 - amount.adjusted())
    return f"{amount:.{places}f}"
