"""Assets, prices and amounts. Decimals appear only here; everywhere else money is an integer with an asset.

Three units:

* **base units**: the unit of the token contract (10^-decimals);
* **ledger units**: the unit of the ledger, 10^-min(decimals, 9), so that a balance fits a signed 64-bit column;
* **nano**: 10^-9 of a currency, the common unit of prices across the assets of one currency.
"""

import re
from dataclasses import dataclass, field
from typing import Self

from tollway.ids import Address, ChainId, Network, format_network

LEDGER_DECIMALS_MAX = 9
UNITS_MAX = 2**63 - 1
"""The largest balance of a signed 64-bit column. A larger one is refused."""

_PRICE = re.compile(r"(0|[1-9][0-9]*)(?:\.([0-9]+))?")
_PRICE_LENGTH_MAX = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDomain:
    """Name and version of the EIP-712 domain of a token, which an EIP-3009 signature covers."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A token on a chain, or the chain's native currency when `token` is None.

    `domain`: for a token that accepts authorisations (EIP-3009); else None. `key`: the name of the asset in the ledger, its lower-case token
    address or `native`. `ledger_decimals`: the decimals of its ledger unit.
    """

    chain_id: ChainId
    token: Address | None
    symbol: str
    decimals: int
    domain: TokenDomain | None = None
    key: str = field(init=False, repr=False, compare=False)
    ledger_decimals: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        key = "native" if self.token is None else "0x" + self.token.hex()
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "ledger_decimals", min(self.decimals, LEDGER_DECIMALS_MAX))

    @property
    def network(self) -> Network:
        return format_network(self.chain_id)

    @property
    def caip19(self) -> str:
        """CAIP-19: `eip155:8453/erc20:0x…` in lower case; a native currency is `eip155:1/slip44:60`."""
        return f"{self.network}/slip44:60" if self.token is None else f"{self.network}/erc20:{self.key}"

    def floor_to_ledger(self, base_units: int) -> int:
        """Base units -> ledger units, rounded down: dust below a ledger unit is not credited."""
        divisor: int = 10 ** (self.decimals - self.ledger_decimals)
        return base_units // divisor

    def to_base_units(self, ledger_units: int) -> int:
        factor: int = 10 ** (self.decimals - self.ledger_decimals)
        return ledger_units * factor

    def format_units(self, ledger_units: int) -> str:
        """Ledger units -> a decimal string without a trailing zero: 10000 of USDC -> `0.01`."""
        return format_decimal(ledger_units, decimals=self.ledger_decimals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """An exact price: `text` as the provider wrote it, `nano` as an integer of 10^-9."""

    text: str
    nano: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Grammar `(0|[1-9][0-9]*)(\\.[0-9]+)?`, at most nine decimals. Raises ValueError."""
        match = _PRICE.fullmatch(text) if len(text) <= _PRICE_LENGTH_MAX else None
        if match is None:
            raise ValueError("a price is a decimal string such as 0.01")
        fraction = match[2] or ""
        if len(fraction) > LEDGER_DECIMALS_MAX:
            raise ValueError(f"a price has at most {LEDGER_DECIMALS_MAX} decimals")
        nano = int(match[1]) * 10**9 + int(fraction.ljust(9, "0"))
        if nano > UNITS_MAX:
            raise ValueError("the price is too large")
        return cls(text=text, nano=nano)

    @classmethod
    def from_nano(cls, nano: int) -> Self:
        return cls(text=format_decimal(nano, decimals=9), nano=nano)

    @property
    def decimals(self) -> int:
        return len(self.text.partition(".")[2])

    @property
    def is_free(self) -> bool:
        return self.nano == 0

    def units_in(self, asset: Asset) -> int:
        """The price in ledger units of `asset`. Rounds up, so that no price becomes free in a coarser asset."""
        divisor: int = 10 ** (LEDGER_DECIMALS_MAX - asset.ledger_decimals)
        return -(-self.nano // divisor)


def nano_to_units(nano: int, *, decimals: int) -> int:
    """A maximum in the ledger units of an asset with `decimals`. Rounds down, so that the maximum is not exceeded."""
    divisor: int = 10 ** (LEDGER_DECIMALS_MAX - min(decimals, LEDGER_DECIMALS_MAX))
    return nano // divisor


def format_decimal(units: int, *, decimals: int) -> str:
    """An integer of 10^-decimals as a decimal string without needless zeros: (12300, 6) -> `0.0123`."""
    sign, digits = ("-", str(-units)) if units < 0 else ("", str(units))
    digits = digits.rjust(decimals + 1, "0")
    whole, fraction = digits[: len(digits) - decimals], digits[len(digits) - decimals :]
    fraction = fraction.rstrip("0")
    return sign + whole + ("." + fraction if fraction else "")
