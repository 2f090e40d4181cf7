"""The difference between two states of a listing, member by member, as values and as lines. Pure."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tollway.client.safe_text import format_value, plain_line
from tollway.registry.listing_fields import BY_DIFFERENCE

MEMBERS = tuple(field.member for field in BY_DIFFERENCE)
"""In the order of their lines."""

NAME_WIDTH = max(map(len, MEMBERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One changed member with its values. Of an OpenAPI document and of a secret the values only say that there is one."""

    member: str
    before: object
    after: object


def list_changes(
    before: Mapping[str, Any], after: Mapping[str, Any], *, patch: Mapping[str, Any] | None = None
) -> tuple[Change, ...]:
    """The members that differ. `patch`: what was sent for `after`; a new value of the secret is in it alone."""
    changes = []
    for member in MEMBERS:
        old, new = before.get(member), after.get(member)
        if old != new:
            changes.append(Change(member=member, before=_shorten(member, old), after=_shorten(member, new)))
        elif member == "upstreamAuth" and _has_new_secret(patch):
            changes.append(Change(member=member, before=old, after="the same place, a new value"))
    return tuple(changes)


def _has_new_secret(patch: Mapping[str, Any] | None) -> bool:
    auth = None if patch is None else patch.get("upstreamAuth")
    return isinstance(auth, Mapping) and auth.get("value") is not None


def _shorten(member: str, value: object) -> object:
    if member != "openapi" or not isinstance(value, Mapping):
        return value
    return f"a document of {len(json.dumps(value, separators=(',', ':')))} characters"


def format_changes(changes: tuple[Change, ...]) -> list[str]:
    """The lines of a difference: `old → new` for a single value, a line with `-` or `+` for each element of a list."""
    return [line for change in changes for line in _format(change)]


def _format(change: Change) -> Iterator[str]:
    before, after = change.before, change.after
    if change.member == "metering":
        before, after = _list_formula(before), _list_formula(after)
    if not (isinstance(before, list) and isinstance(after, list)):
        yield f"{change.member:{NAME_WIDTH}}  {_format_value(before)} → {_format_value(after)}"
        return
    yield change.member
    yield from (f"  - {_format_value(element)}" for element in before if element not in after)
    yield from (f"  + {_format_value(element)}" for element in after if element not in before)
    if sorted(map(str, before)) == sorted(map(str, after)):
        yield f"  in the order {', '.join(map(_format_value, after))}"


def _list_formula(metering: object) -> list[str]:
    """Base, rules and parts, each as a text."""
    if not isinstance(metering, Mapping):
        return []
    parts = metering.get("parts")
    return [
        *(f"{name} {format_value(metering.get(name))}" for name in ("base", "absent", "show")),
        *(
            _format_part(part)
            for part in (parts if isinstance(parts, list) else [])
            if isinstance(part, Mapping)
        ),
    ]


def _format_part(part: Mapping[str, Any]) -> str:
    price, per, unit = (format_value(part.get(name)) for name in ("unitPrice", "per", "unit"))
    return f"{price} per {per} {unit}: {_format_value(part.get('quantity'))}"


def _format_value(value: object) -> str:
    if value in (None, "", []):
        return "none"
    if isinstance(value, Mapping):
        if {"method", "path", "pricePerRequest"} <= value.keys():
            price = [str(value["pricePerRequest"]), *_list_formula(value.get("metering"))]
            return plain_line(f"{value['method']} {value['path']} {', '.join(price)}")
        return plain_line(", ".join(f"{name} {format_value(one)}" for name, one in value.items()))
    if isinstance(value, list):
        return ", ".join(map(_format_value, value))
    return plain_line(format_value(value))
