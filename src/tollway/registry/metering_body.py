"""The member `metering` of a listing's body, and of a priced operation: its model, its rules and all its errors at once. Pure."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainValidator, Strict

from tollway.money import Price
from tollway.registry.header_names import ALWAYS_FORWARDED, is_control_header, is_header_name
from tollway.registry.metering import (
    PARTS_MAX,
    PER_MAX,
    MeteredPart,
    Metering,
    QuantitySource,
    parse_unit_price,
)
from tollway.registry.response_headers import find_dropped
from tollway.registry.text import find_refused_character
from tollway.validation import (
    RequestModel,
    WireError,
    check_members,
    in_range,
    read_list,
    read_parsed,
    value_error,
    value_errors,
)

UNIT_LENGTH_MAX = 40
POINTER_LENGTH_MAX = 256
BASE_LENGTH_MAX = UNIT_PRICE_LENGTH_MAX = 64
_UNIT = re.compile(r"\w(?:[\w /-]*\w)?")
"""Letters, digits, and a few signs between them: the sentence of a 402 holds it, and no word of the provider may look like the gateway's."""
_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)+")
_ENTITY = frozenset(
    {"date", "etag", "last-modified", "location", "link", "vary", "cache-control", "www-authenticate"}
)
"""Headers of a response that mean something else, beside those of framing and of the gateway."""


def read_metering(value: object, *, maximum: Price | None) -> Metering | None:
    """The formula; None for null. `maximum`: the price beside it, None where that is malformed. Raises all errors of the value."""
    if value is None:
        return None
    checked = check_members(MeteringBody, _read_object(value))
    errors = list(checked.errors)
    base = checked.values.get("base", Price.parse("0"))
    if maximum is not None and maximum.is_free:
        errors.append(((), "conflict", "a metered price needs a maximum: the pricePerRequest beside it is 0"))
    elif maximum is not None and base.nano > maximum.nano:
        errors.append((("base",), "out_of_range", "must not be more than pricePerRequest, the maximum"))
    if errors or checked.model is None:
        raise value_errors(errors)
    body = checked.model
    return Metering(base=body.base, absent=body.absent, shows_header=body.show, parts=body.parts)


def _read_object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise value_error("type", "must be an object")
    return value


def _read_base(value: object) -> Price:
    return read_parsed(value, Price.parse, code="price", length_max=BASE_LENGTH_MAX)


def _read_parts(value: object) -> tuple[MeteredPart, ...]:
    rows = read_list(value, count_max=PARTS_MAX)
    if not rows:
        raise value_error("too_few", "must have at least one part")
    parts: list[MeteredPart] = []
    errors: list[WireError] = []
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            errors.append(((index,), "type", "must be an object"))
            continue
        checked = check_members(PartBody, row)
        errors += [((index, *location), code, detail) for location, code, detail in checked.errors]
        if checked.model is not None:
            part = checked.model
            parts.append(
                MeteredPart(
                    unit=part.unit, unit_price_atto=part.unit_price, per=part.per, source=part.quantity
                )
            )
    if errors:
        raise value_errors(errors)
    return tuple(parts)


def _check_unit(unit: str) -> str:
    unclean = find_refused_character(unit, is_multiline=False)
    if unclean is not None:
        raise value_error("bad_character", f"must not hold control or invisible characters ({unclean})")
    if not _UNIT.fullmatch(unit):
        raise value_error(
            "unit", "must be letters, digits, and spaces, - and / between them, such as prompt token"
        )
    return unit


def _read_unit_price(value: object) -> int:
    return read_parsed(value, parse_unit_price, code="price", length_max=UNIT_PRICE_LENGTH_MAX)


def _read_source(value: object) -> QuantitySource:
    checked = check_members(QuantityBody, _read_object(value))
    if checked.model is None:
        raise value_errors(checked.errors)
    body = checked.model
    given = [body.header is not None, body.json_pointer is not None or body.sse is not None, body.is_bytes]
    if not any(given):
        raise value_error("required", "must name where the quantity stands: header, json and sse, or bytes")
    if sum(given) > 1:
        raise value_error("conflict", "must name one place only: header, json and sse, or bytes")
    return QuantitySource(header=body.header, json=body.json_pointer, sse=body.sse, is_bytes=body.is_bytes)


def _check_usage_header(name: str) -> str:
    if not is_header_name(name):
        raise value_error("header", "must be a header name of letters, digits and -")
    lower = name.lower()
    dropped = find_dropped(lower)
    is_framing = dropped is not None and dropped.group in ("framing", "gateway")
    if is_framing or is_control_header(lower) or lower in _ENTITY or lower in _FORWARDED:
        raise value_error("header", f"{name} means something else to HTTP or to the gateway")
    return name


_FORWARDED = frozenset(name.lower() for name in ALWAYS_FORWARDED)


def _check_pointer(pointer: str) -> str:
    if not _POINTER.fullmatch(pointer) or find_refused_character(pointer, is_multiline=False) is not None:
        raise value_error("pointer", "must be a JSON pointer (RFC 6901) such as /usage/total_tokens")
    return pointer


def _check_bytes(is_bytes: bool) -> bool:
    if not is_bytes:
        raise value_error("unknown_value", "must be true, or be left out")
    return is_bytes


_Pointer = Annotated[str, Strict(), Field(max_length=POINTER_LENGTH_MAX), AfterValidator(_check_pointer)]


class QuantityBody(RequestModel):
    """`json` and `sse` may stand together; else one member."""

    header: Annotated[str, Strict(), AfterValidator(_check_usage_header)] | None = None
    json_pointer: Annotated[_Pointer | None, Field(alias="json")] = None
    sse: _Pointer | None = None
    is_bytes: Annotated[bool, Strict(), AfterValidator(_check_bytes), Field(alias="bytes")] = False


class PartBody(RequestModel):
    unit: Annotated[
        str, Strict(), Field(min_length=1, max_length=UNIT_LENGTH_MAX), AfterValidator(_check_unit)
    ]
    unit_price: Annotated[int, PlainValidator(_read_unit_price)]
    per: Annotated[int, Strict(), AfterValidator(in_range(1, PER_MAX))] = 1
    quantity: Annotated[QuantitySource, PlainValidator(_read_source)]


class MeteringBody(RequestModel):
    """A usage header reaches the caller only where `show` says so: by default the terms of an upstream stay its own."""

    base: Annotated[Price, PlainValidator(_read_base)] = Price(text="0", nano=0)
    absent: Literal["max", "base"] = "max"
    show: Annotated[bool, Strict()] = False
    parts: Annotated[tuple[MeteredPart, ...], PlainValidator(_read_parts)]
