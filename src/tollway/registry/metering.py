"""The formula of a metered price: what a call costs by the quantities that its answer reports. Pure, exact.

A metered call claims its maximum (`pricePerRequest`), and takes `min(maximum, base + sum of unitPrice x quantity / per)`, rounded up once, in the
ledger units of the asset. The quantities come from the response of the upstream (`gateway.usage`). One part without a quantity makes the whole usage
absent: then the call costs the maximum or `base`, as `absent` says.

The JSON form of a formula is public, and the ledger stores it with each call (`write_formulas`), so that the audit can compute each price again.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import lcm
from typing import Any, Literal, Protocol

from tollway.money import LEDGER_DECIMALS_MAX, Price, format_decimal

PARTS_MAX = 8
PER_MAX = 10**9
UNIT_PRICE_DECIMALS = 18
QUANTITY_DIGITS_MAX = 18
FORMULAS_MAX = 4
"""The most formulas of one call: of the newest versions of the terms that count for it and differ."""

_FORMULAS_KEPT = 1_000
_ATTO_PER_NANO = 10**9
_ATTO: int = 10**UNIT_PRICE_DECIMALS


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantitySource:
    """Where a response states a quantity: exactly one of a response header, JSON pointers (RFC 6901) into a JSON body and into the events of a stream,
    or the bytes of the body as the gateway forwards it. The Content-Type decides between `json` and `sse`; one of them may be None."""

    header: str | None = None
    json: str | None = None
    sse: str | None = None
    is_bytes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredPart:
    """One summand. `unit`: the name of one unit, such as `prompt token`. `unit_price_atto`: the price of `per` units, in 10^-18 of the currency."""

    unit: str
    unit_price_atto: int
    per: int
    source: QuantitySource

    @property
    def unit_price(self) -> str:
        return format_decimal(self.unit_price_atto, decimals=UNIT_PRICE_DECIMALS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metering:
    """A formula. `absent`: what a call costs whose usage is absent. `shows_header`: the caller gets the header of a quantity too."""

    base: Price
    absent: Literal["max", "base"]
    shows_header: bool
    parts: tuple[MeteredPart, ...]


def list_usage_headers(formulas: Iterable[Metering], *, is_hidden_only: bool = False) -> frozenset[bytes]:
    """The names of the response headers that report a quantity, in lower case. `is_hidden_only`: those that no caller gets."""
    return frozenset(
        part.source.header.lower().encode()
        for formula in formulas
        if not (is_hidden_only and formula.shows_header)
        for part in formula.parts
        if part.source.header is not None
    )


Quantities = tuple[int, ...]
"""The quantities of the parts of one formula, in their order."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the response of a metered call reported: for each formula its quantities, None where they are absent."""

    by_formula: tuple[Quantities | None, ...]


BASE = Measured(())
"""The end of a call whose response never ended, for a reason that is not its caller's: it takes the base alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The price of a call, the formula that decides it, and its quantities; None where they are absent, or where the call takes the base.
    `is_clamped`: the sum is above the maximum."""

    units: int
    formula: Metering
    quantities: Quantities | None
    is_clamped: bool


def compute_cost(formulas: Sequence[Metering], measured: Measured, *, max_units: int, decimals: int) -> Cost:
    """The least price that a formula gives, in ledger units, and at most `max_units`. `formulas`: the newest first; it wins among equals. `decimals`: of
    the asset, as its contract counts."""
    costs = []
    for place, formula in enumerate(formulas):
        quantities = measured.by_formula[place] if measured.by_formula else None
        is_maximum = quantities is None and bool(measured.by_formula) and formula.absent == "max"
        units = max_units if is_maximum else _sum_units(formula, quantities or (), decimals=decimals)
        costs.append(
            Cost(
                units=min(units, max_units),
                formula=formula,
                quantities=quantities,
                is_clamped=units > max_units,
            )
        )
    return min(costs, key=lambda cost: cost.units)


def _sum_units(formula: Metering, quantities: Quantities, *, decimals: int) -> int:
    """The sum, rounded up once. Integers only: all parts over one denominator. No quantities: the base."""
    denominator: int = lcm(*(part.per for part in formula.parts))
    atto = formula.base.nano * _ATTO_PER_NANO * denominator
    for part, quantity in zip(formula.parts, quantities, strict=bool(quantities)):
        atto += part.unit_price_atto * quantity * (denominator // part.per)
    divisor: int = denominator * 10 ** (UNIT_PRICE_DECIMALS - min(decimals, LEDGER_DECIMALS_MAX))
    units: int = -(-atto // divisor)
    return units


# ---- The JSON form: of a listing, and of the ledger.


def write_metering(metering: Metering) -> dict[str, Any]:
    """The member `metering` of a listing."""
    return {
        "base": metering.base.text,
        "absent": metering.absent,
        "show": metering.shows_header,
        "parts": [
            {
                "unit": part.unit,
                "unitPrice": part.unit_price,
                "per": part.per,
                "quantity": write_source(part.source),
            }
            for part in metering.parts
        ],
    }


def write_source(source: QuantitySource) -> dict[str, Any]:
    if source.is_bytes:
        return {"bytes": True}
    named = {"header": source.header, "json": source.json, "sse": source.sse}
    return {name: value for name, value in named.items() if value is not None}


def read_metering(given: Mapping[str, Any]) -> Metering:
    """Reads what `write_metering` has written; it was checked before."""
    return Metering(
        base=Price.parse(given["base"]),
        absent=given["absent"],
        shows_header=given["show"],
        parts=tuple(
            MeteredPart(
                unit=part["unit"],
                unit_price_atto=parse_unit_price(part["unitPrice"]),
                per=part["per"],
                source=QuantitySource(
                    header=part["quantity"].get("header"),
                    json=part["quantity"].get("json"),
                    sse=part["quantity"].get("sse"),
                    is_bytes=part["quantity"].get("bytes", False),
                ),
            )
            for part in given["parts"]
        ),
    )


def parse_unit_price(text: str) -> int:
    """A decimal string of at most 18 digits before and 18 after the point, in 10^-18. Raises ValueError."""
    whole, _, fraction = text.partition(".")
    is_decimal = whole.isascii() and whole.isdigit() and (whole == "0" or whole[0] != "0")
    if "." in text:
        is_decimal = is_decimal and fraction.isascii() and fraction.isdigit()
    if not is_decimal or len(whole) > QUANTITY_DIGITS_MAX or len(fraction) > UNIT_PRICE_DECIMALS:
        raise ValueError("a unit price is a decimal string with at most 18 decimals, such as 0.000002")
    return int(whole) * _ATTO + int(fraction.ljust(UNIT_PRICE_DECIMALS, "0"))


@lru_cache(maxsize=_FORMULAS_KEPT)
def write_formulas(formulas: tuple[Metering, ...]) -> str:
    """The formulas of a call as the ledger stores them. Equal formulas have one text."""
    return json.dumps([write_metering(one) for one in formulas], sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=_FORMULAS_KEPT)
def read_formulas(text: str) -> tuple[Metering, ...]:
    return tuple(read_metering(one) for one in json.loads(text))


def write_measured(measured: Measured) -> str:
    """The quantities of a call as the ledger stores them: a list for each formula, null where they are absent; `[]` for the base."""
    return json.dumps(measured.by_formula, separators=(",", ":"))


def read_measured(text: str) -> Measured:
    return Measured(tuple(None if one is None else tuple(one) for one in json.loads(text)))


def list_quantities(formulas: str, measured: str, *, max_units: int, decimals: int) -> list[tuple[str, int]]:
    """The quantities that decide the price of a call, with their units, from the texts of the ledger; empty where they are absent, or not known yet."""
    if not measured:
        return []
    cost = compute_cost(
        read_formulas(formulas), read_measured(measured), max_units=max_units, decimals=decimals
    )
    return [
        (part.unit, number) for part, number in zip(cost.formula.parts, cost.quantities or (), strict=False)
    ]


# ---- Words.

_SHOWN_PRICE_MIN = _ATTO // 1_000
_SHOWN_PER = (1_000, 1_000_000)


@dataclass(frozen=True, slots=True, eq=False)
class OfferedPrice:
    """The price of a call as it is offered: fixed; or, with a formula, a maximum. `0.010` and `0.01` are equal."""

    price: Price
    metering: Metering | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OfferedPrice) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[int, Metering | None]:
        return self.price.nano, self.metering

    def describe(self, currency: str) -> str:
        """`free`, `0.01 USDC`, or `up to 0.02 USDC: 0.002 per 1,000 prompt tokens`."""
        if self.price.is_free:
            return "free"
        amount = f"{self.price.text} {currency}"
        return amount if self.metering is None else f"up to {amount}: {describe_metering(self.metering)}"

    def to_json(self, currency: str) -> dict[str, Any]:
        """`formula` has in words what `metering` has in members."""
        if self.metering is None:
            return {"mode": "fixed", "amount": self.price.text, "currency": currency}
        return {
            "mode": "metered",
            "amount": self.price.text,
            "currency": currency,
            "formula": describe_metering(self.metering),
            "metering": write_metering(self.metering),
        }


class HasPrice(Protocol):
    """A listing, a version of its terms, or an operation."""

    @property
    def price(self) -> Price: ...
    @property
    def metering(self) -> Metering | None: ...


def offer(one: HasPrice) -> OfferedPrice:
    return OfferedPrice(one.price, one.metering)


def describe_metering(metering: Metering) -> str:
    """The formula in words, in the currency of its maximum: `0.0001 per call, 0.002 per 1,000 prompt tokens`. A tiny price is that of a thousand or a million units."""
    summands = [] if metering.base.is_free else [f"{metering.base.text} per call"]
    return ", ".join([*summands, *map(_describe_part, metering.parts)])


def _describe_part(part: MeteredPart) -> str:
    atto, per = part.unit_price_atto, part.per
    for larger in _SHOWN_PER:
        if 0 < atto < _SHOWN_PRICE_MIN and larger > per and larger % per == 0:
            atto, per = atto * (larger // per), larger
    price = format_decimal(atto, decimals=UNIT_PRICE_DECIMALS)
    return f"{price} per {part.unit}" if per == 1 else f"{price} per {per:,} {_pluralize(part.unit)}"


def _pluralize(unit: str) -> str:
    """The English plural of the last word. An abbreviation such as `KiB` has none."""
    if not unit[-1].islower():
        return unit
    if unit.endswith(("s", "x", "ch", "sh")):
        return unit + "es"
    if unit.endswith("y") and unit[-2:-1] not in tuple("aeiou"):
        return unit[:-1] + "ies"
    return unit + "s"
