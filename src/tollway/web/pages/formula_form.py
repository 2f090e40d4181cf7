"""The formulas of metered prices in the form of a listing: from a stored formula to its fields, from its fields to the member `metering`, and from the errors of that member to its fields. Pure.

The fields of a formula have a name of two or three steps, such as `metering.base`; a part is a row, such as `metering.0.unit`. `metering` is the formula of the listing,
`metering1` and on are those of operations, each with the call that it prices in `metering1.call`. `metering.count` is the number of rows: a larger number adds empty ones, 0 removes the formula. A row without a text is no part.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tollway.money import Price
from tollway.registry.metering import PARTS_MAX, Metering, OfferedPrice, write_metering
from tollway.registry.metering_body import read_metering

LISTING_FORMULA = "metering"
CHOSEN_CALL = "meteringOf"
"""The field that adds a formula for an operation: its method and path."""
OPERATION_FORMULAS_MAX = 4
"""Formulas of operations in the form at one time; those of other operations stay as they are. Each has up to 60 fields."""
FIRST_ROWS = 2
"""The empty rows of a new listing."""
_PLACES = ("header", "json", "sse", "bytes")
_PART = ("unit", "unitPrice", "per", *_PLACES)
_FIELD = re.compile(rf"{LISTING_FORMULA}[0-9]?\..+")
_WHOLE = re.compile(r"[0-9]{1,18}")

Values = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownFormula:
    """A formula in the form. `name`: the first step of its fields. `call`: the operation that it prices, empty for the listing. `rows`: the names of its rows. `words`: the price as callers read it,
    empty where it cannot be read yet. `is_set`: its fields have a text."""

    name: str
    call: str
    rows: tuple[str, ...]
    words: str
    is_set: bool


def read_formulas(fields: Mapping[str, Sequence[str]], *, stored: Mapping[str, Metering]) -> dict[str, str]:
    """The fields of the formulas of a form that was sent, with `count` rows, and with the formula that the reader added: the stored one of that operation, else an empty row."""
    sent = {name: " ".join(texts).strip() for name, texts in fields.items() if _FIELD.fullmatch(name)}
    values = _read_formula(sent, LISTING_FORMULA, LISTING_FORMULA)
    calls: list[str] = []
    for name in _OPERATION_FORMULAS:
        call = _clean_call(sent.get(f"{name}.call", ""))
        if call and call not in calls:
            calls.append(call)
            values |= {f"{_name(calls)}.call": call, **_read_formula(sent, name, _name(calls))}
    chosen = _clean_call(" ".join(fields.get(CHOSEN_CALL, ())))
    if chosen and chosen not in calls and len(calls) < OPERATION_FORMULAS_MAX:
        calls.append(chosen)
        name, metering = _name(calls), stored.get(chosen)
        added = make_rows(name, 1) if metering is None else describe_formula(name, metering)
        values |= {f"{name}.call": chosen, **added}
    return values


def find_new_row(values: Values, fields: Mapping[str, Sequence[str]]) -> str:
    """The first field of a row that the form had not when it was sent; empty without one."""
    names = (f"{row}.unit" for name, _ in _list_formulas(values) for row in _list_rows(values, name))
    return next((name for name in names if name not in fields), "")


def make_rows(name: str, count: int) -> dict[str, str]:
    """The fields of a formula without a text."""
    head = {"count": str(count), "base": "", "absent": "max", "show": ""}
    rows = {f"{row}.{part}": "" for row in range(count) for part in _PART}
    return {f"{name}.{field}": text for field, text in {**head, **rows}.items()}


def describe_formula(name: str, metering: Metering | None) -> dict[str, str]:
    """The fields of a stored formula; none of them has a text where the price is fixed."""
    if metering is None:
        return make_rows(name, 0)
    written = write_metering(metering)
    values = make_rows(name, len(metering.parts)) | {
        f"{name}.base": written["base"],
        f"{name}.absent": written["absent"],
        f"{name}.show": "yes" if written["show"] else "",
    }
    for row, part in zip(_list_rows(values, name), written["parts"], strict=True):
        stated = {place: "yes" if text is True else text for place, text in part["quantity"].items()}
        flat = {"unit": part["unit"], "unitPrice": part["unitPrice"], "per": str(part["per"]), **stated}
        values |= {f"{row}.{field}": text for field, text in flat.items()}
    return values


def write_formula(values: Values, name: str) -> dict[str, Any] | None:
    """The member `metering` of these fields; None for a fixed price."""
    rows = [row for row in _list_rows(values, name) if _has_text(values, row)]
    base = values[f"{name}.base"]
    if not rows and (not base or not _list_rows(values, name)):
        return None
    head = {"base": base, "absent": values[f"{name}.absent"]}
    return {
        **{member: text for member, text in head.items() if text},
        "show": bool(values[f"{name}.show"]),
        "parts": [_write_part({part: values[f"{row}.{part}"] for part in _PART}) for row in rows],
    }


def read_whole(text: str) -> int | str | None:
    """A number that is none stays a text: its member is refused with the reason."""
    return int(text) if _WHOLE.fullmatch(text) else text or None


def list_calls(values: Values) -> dict[str, str]:
    """The operations that have a formula in the form, each with the name of that formula."""
    return {call: name for name, call in _list_formulas(values) if call}


def list_formula_fields(values: Values) -> list[str]:
    """In the order of the page."""
    return [name for name in values if _FIELD.fullmatch(name)]


def find_formula_field(name: str, rest: Sequence[str]) -> str:
    """The field of an error: `rest` are the steps of its pointer below the member `metering`."""
    match rest:
        case ["parts", row]:
            return f"{name}.{row}.unit"
        case ["parts", row, "quantity"]:
            return f"{name}.{row}.header"
        case ["parts", row, *_, part]:
            return f"{name}.{row}.{part}"
        case ["parts"]:
            return f"{name}.count"
        case [head]:
            return f"{name}.{head}"
    return f"{name}.base"


def show_formulas(values: Values, prices: Mapping[str, str]) -> tuple[ShownFormula, ...]:
    """The formulas of the form. `prices`: the price of each operation that has one of its own."""
    return tuple(
        ShownFormula(
            name=name,
            call=call,
            rows=tuple(_list_rows(values, name)),
            words=_describe(values, name, prices.get(call, "") if call else values["pricePerRequest"]),
            is_set=write_formula(values, name) is not None,
        )
        for name, call in _list_formulas(values)
    )


def format_formula(values: Values, name: str) -> str:
    """The fields of a formula in one text, to compare two versions."""
    if write_formula(values, name) is None:
        return ""
    head = f"base {values[f'{name}.base'] or '0'}, absent {values[f'{name}.absent']}, show {values[f'{name}.show'] or 'no'}"
    rows = (
        ", ".join(text for part in _PART if (text := values[f"{row}.{part}"]))
        for row in _list_rows(values, name)
        if _has_text(values, row)
    )
    return "\n".join([head, *rows])


# ---- Names and rows.

_OPERATION_FORMULAS = tuple(f"{LISTING_FORMULA}{number + 1}" for number in range(OPERATION_FORMULAS_MAX))


def _name(calls: Sequence[str]) -> str:
    """The name of the formula of the last call."""
    return _OPERATION_FORMULAS[len(calls) - 1]


def _clean_call(text: str) -> str:
    return " ".join(text.split())


def _list_formulas(values: Values) -> Iterator[tuple[str, str]]:
    for name in (LISTING_FORMULA, *_OPERATION_FORMULAS):
        if f"{name}.count" in values:
            yield name, values.get(f"{name}.call", "")


def _list_rows(values: Values, name: str) -> list[str]:
    rows = (f"{name}.{number}" for number in range(PARTS_MAX))
    return [row for row in rows if f"{row}.unit" in values]


def _has_text(values: Values, row: str) -> bool:
    return any(values[f"{row}.{part}"] for part in _PART)


def _read_formula(sent: Values, name: str, new_name: str) -> dict[str, str]:
    """The fields of one formula: rows without a text go to the end."""
    rows = _list_rows(sent, name)
    given = read_whole(sent.get(f"{name}.count", ""))
    count = min(given, PARTS_MAX) if isinstance(given, int) else len(rows)
    texts = ({part: sent.get(f"{row}.{part}", "") for part in _PART} for row in rows[:count])
    parts = [part for part in texts if any(part.values())]
    values = make_rows(new_name, count)
    values |= {
        f"{new_name}.{field}": text
        for field in ("base", "absent", "show")
        if (text := sent.get(f"{name}.{field}")) is not None
    }
    for row, part in enumerate(parts):
        values |= {f"{new_name}.{row}.{field}": text for field, text in part.items()}
    return values


def _write_part(part: Values) -> dict[str, Any]:
    quantity = {place: place == "bytes" or part[place] for place in _PLACES if part[place]}
    members = {"unit": part["unit"], "unitPrice": part["unitPrice"], "per": read_whole(part["per"])}
    given = {member: value for member, value in members.items() if value is not None and value != ""}
    return {**given, "quantity": quantity}


def _describe(values: Values, name: str, price: str) -> str:
    try:
        maximum = Price.parse(price)
        metering = read_metering(write_formula(values, name), maximum=maximum)
    except ValueError:
        return ""
    return "" if metering is None else OfferedPrice(maximum, metering).describe(values["currency"])
