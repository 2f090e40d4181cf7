"""Parses the offers of a 402 and compares prices with the caller's limits. Pure.

The gateway writes everything in a quote. Amounts count only with an `Asset` whose decimals and symbol
come from another source: a preset, the caller, or the token contract.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tollway.chain.networks import PRESETS
from tollway.ids import Address, ChainId, parse_network
from tollway.money import Asset, format_decimal

ATTO_DECIMALS = 18
CONFIRMATIONS_MAX = 10_000
OPTIONS_MAX = 64

_AMOUNT = re.compile(r"[1-9][0-9]{0,77}")
_DECIMAL = re.compile(r"(0|[1-9][0-9]{0,30})(?:\.([0-9]{1,18}))?")
_SYMBOL = re.compile(r"[A-Za-z][A-Za-z0-9.\-]{0,15}")
_DOLLARS = ("USDC", "USDT", "DAI", "PYUSD", "USDS")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferOffer:
    """An offer of the gateway to pay one call on the `tx` rail. `amount` in base units; `is_maximum`: of a metered call, which may cost less."""

    chain_id: ChainId
    token: Address | None
    symbol: str
    decimals: int
    amount: int
    pay_to: Address
    confirmations: int
    is_maximum: bool = False

    @property
    def asset(self) -> Asset:
        """The asset as the gateway describes it; the client compares it with another source."""
        return Asset(chain_id=self.chain_id, token=self.token, symbol=self.symbol, decimals=self.decimals)


def read_transfer_offers(
    problem: Mapping[str, object], *, is_metered: bool = False
) -> tuple[TransferOffer, ...]:
    """The `tx` offers of a 402, `is_metered` of a metered call, in the gateway's order. Other rails and invalid offers are left out."""
    payment = problem.get("payment")
    options = payment.get("options") if isinstance(payment, Mapping) else None
    if not isinstance(options, Sequence) or isinstance(options, str):
        return ()
    offers = (
        _read_offer(option, is_maximum=is_metered)
        for option in options[:OPTIONS_MAX]
        if isinstance(option, Mapping) and option.get("rail") == "tx"
    )
    return tuple(offer for offer in offers if offer is not None)


def _read_offer(option: Mapping[str, object], *, is_maximum: bool) -> TransferOffer | None:
    try:
        amount = read_amount(option.get("amount"))
        decimals, confirmations = option["decimals"], option.get("confirmations", 1)
        symbol = str(option["symbol"])
        if type(decimals) is not int or type(confirmations) is not int or not is_symbol(symbol):
            return None
        if not 0 <= decimals <= 36 or not 1 <= confirmations <= CONFIRMATIONS_MAX:
            return None
        token = option.get("token")
        return TransferOffer(
            chain_id=parse_network(str(option["network"])),
            token=None if token is None else Address.parse(str(token)),
            symbol=symbol,
            decimals=decimals,
            amount=amount,
            pay_to=Address.parse(str(option["payTo"])),
            confirmations=confirmations,
            is_maximum=is_maximum,
        )
    except (KeyError, ValueError):
        return None


def is_symbol(text: str) -> bool:
    """Whether a text is a valid symbol of a currency: 1 to 16 letters, digits, dots and dashes, a letter first."""
    return _SYMBOL.fullmatch(text) is not None


def read_amount(text: object) -> int:
    """Parses a positive number of base units in an offer. Raises ValueError."""
    if not isinstance(text, str) or not _AMOUNT.fullmatch(text):
        raise ValueError("an amount is a positive integer string")
    return int(text)


def read_missing(problem: Mapping[str, object], asset: Asset) -> int | None:
    """The missing amount in a `payment_insufficient`, in base units of `asset`; None where it names none."""
    payment = problem.get("payment")
    for place in (problem, payment if isinstance(payment, Mapping) else {}):
        missing = place.get("missing")
        if isinstance(missing, str):
            parsed = parse_amount(missing.split(" ")[0], decimals=asset.decimals)
            if parsed:
                return parsed
    return None


def parse_amount(text: str, *, decimals: int) -> int | None:
    """Parses `0.05` into base units, exactly; None for other text and for more digits than `decimals`."""
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return None
    fraction = (match[2] or "").rstrip("0")
    if len(fraction) > decimals:
        return None
    units: int = int(match[1]) * 10**decimals + int(fraction.ljust(decimals, "0") or "0")
    return units


def to_atto(amount: int, asset: Asset) -> int:
    """Converts base units to 10^-18 of the currency, rounded up: the common unit of caps."""
    return units_to_atto(amount, decimals=asset.decimals)


def units_to_atto(amount: int, *, decimals: int) -> int:
    """Converts base units of a currency with these decimals to 10^-18, rounded up."""
    shift: int = 10 ** abs(ATTO_DECIMALS - decimals)
    return amount * shift if decimals <= ATTO_DECIMALS else -(-amount // shift)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """A limit of spending per currency, in 10^-18. `any_atto`: the limit for all other currencies;
    None: nothing is paid in them."""

    by_symbol: tuple[tuple[str, int], ...] = ()
    any_atto: int | None = None

    @classmethod
    def parse(cls, text: "str | Mapping[str, str] | Cap") -> "Cap":
        """Parses `"0.05 USDC"`, `{"USDC": "0.05", "ETH": "0.00001"}`, or `"0.05"` for any currency.

        Raises ValueError; TypeError for a number, which could not be exact.
        """
        if isinstance(text, Cap):
            return text
        if isinstance(text, str):
            number, _, symbol = text.strip().partition(" ")
            atto = _parse_cap(number)
            if not symbol:
                return cls(any_atto=atto)
            return cls(by_symbol=((_parse_symbol(symbol.strip()), atto),))
        if not isinstance(text, Mapping):
            raise TypeError(f'a limit must be text such as "0.05 USDC", not {type(text).__name__}')
        return cls(
            by_symbol=tuple((_parse_symbol(symbol), _parse_cap(number)) for symbol, number in text.items())
        )

    def atto_for(self, symbol: str) -> int | None:
        """The limit for a currency; None: nothing is paid in it."""
        return dict(self.by_symbol).get(symbol, self.any_atto)

    def lower_of(self, other: "Cap") -> "Cap":
        """The lower of both limits, per currency."""
        pairs = {
            symbol: (self.atto_for(symbol), other.atto_for(symbol))
            for symbol, _ in (*self.by_symbol, *other.by_symbol)
        }
        both = {symbol: min(a, b) for symbol, (a, b) in pairs.items() if a is not None and b is not None}
        is_any = self.any_atto is not None and other.any_atto is not None
        any_atto = min(self.any_atto or 0, other.any_atto or 0) if is_any else None
        return Cap(by_symbol=tuple(sorted(both.items())), any_atto=any_atto)

    def describe(self) -> str:
        """The limit as text: `0.05 USDC, 0.00001 ETH`."""
        words = [
            f"{format_decimal(atto, decimals=ATTO_DECIMALS)} {symbol}" for symbol, atto in self.by_symbol
        ]
        if self.any_atto is not None:
            other = "any other currency" if words else "any currency"
            words.append(f"{format_decimal(self.any_atto, decimals=ATTO_DECIMALS)} of {other}")
        return ", ".join(words) or "nothing"

    def text_for(self, symbol: str | None) -> str | None:
        """The value of `Tollway-Max-Price`. `symbol` None: only a cap for every currency."""
        atto = self.any_atto if symbol is None else self.atto_for(symbol)
        if atto is None or (symbol is None and self.by_symbol):
            return None
        # The gateway accepts at most nine decimals; rounding down only makes the cap stricter.
        return format_decimal(atto // 10**9, decimals=9)


def _parse_cap(number: object) -> int:
    if not isinstance(number, str):
        raise TypeError(f'an amount must be text such as "0.05", not {type(number).__name__}')
    atto = parse_amount(number, decimals=ATTO_DECIMALS)
    if atto is None:
        raise ValueError("an amount must be a decimal number, with an optional currency: 0.05 USDC")
    return atto


def _parse_symbol(symbol: str) -> str:
    if not is_symbol(symbol):
        raise ValueError(f"{symbol[:40]!r} is no symbol of a currency, such as USDC")
    return symbol


DEFAULT_MAX_PRICE = Cap(by_symbol=tuple((symbol, 10**ATTO_DECIMALS) for symbol in _DOLLARS))
"""The default: up to one dollar a call, and nothing in other currencies."""

KNOWN_ASSETS: Mapping[tuple[ChainId, Address | None], Asset] = MappingProxyType(
    {(asset.chain_id, asset.token): asset for preset in PRESETS.values() for asset in preset.assets}
)
"""Assets whose symbol and decimals are not read from a node."""
