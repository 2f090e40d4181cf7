"""The reader of a record from a JSON object of the gateway, by the types of its fields. Pure."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from tollway.client.errors import GatewayResponseInvalid

R = TypeVar("R")


def read_record(kind: type[R], document: object, *, place: str = "") -> R:
    """Builds a record of this class from a JSON object. `place`: its JSON pointer, for errors. Raises `GatewayResponseInvalid`."""
    if not isinstance(document, Mapping):
        raise _malformed(place or "/", "is no object")
    values: dict[str, Any] = {}
    for attribute, name, hint, is_required in _read_fields(kind):  # type: ignore[arg-type] # mypy: a class is hashable
        value = document.get(name)
        if value is None and (name not in document or not _takes_none(hint)):
            if is_required:
                raise _malformed(f"{place}/{name}", "is missing")
            continue
        values[attribute] = _read_value(hint, value, f"{place}/{name}")
    return kind(**values)


@cache
def _read_fields(kind: type) -> Sequence[tuple[str, str, Any, bool]]:
    """Of each field: its attribute, its name in JSON, its type, and whether it is required."""
    assert is_dataclass(kind)
    hints = get_type_hints(kind)
    return [
        (one.name, one.metadata.get("name", _write_camel(one.name)), hints[one.name], one.default is MISSING)
        for one in fields(kind)
    ]


def _write_camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _takes_none(hint: Any) -> bool:
    return type(None) in get_args(hint)


def _read_value(hint: Any, value: object, place: str) -> object:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
        return None if value is None else _read_value(hint, value, place)
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise _malformed(place, "is no list")
        entry = get_args(hint)[0]
        return tuple(_read_value(entry, one, f"{place}/{number}") for number, one in enumerate(value))
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return read_record(hint, value, place=place)
    return _read_plain(hint, value, place)


_AMOUNT_DIGITS_MAX = 78


def _read_plain(hint: Any, value: object, place: str) -> object:
    if hint is datetime and isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is not None:
                return moment.astimezone(UTC)
        except (ValueError, OverflowError) as exc:
            raise _malformed(place, "is no time") from exc
    if hint is int and isinstance(value, str) and value.isascii() and value.isdigit():
        if len(value) <= _AMOUNT_DIGITS_MAX:
            return int(value)  # an amount in base units
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif type(value) is hint:
        return value
    raise _malformed(place, f"is no {_TYPE_NAMES[hint]}")


_TYPE_NAMES = {str: "text", int: "integer", float: "number", bool: "boolean", datetime: "time"}


def _malformed(place: str, problem: str) -> GatewayResponseInvalid:
    return GatewayResponseInvalid(f"In the gateway's response {place} {problem}.")
