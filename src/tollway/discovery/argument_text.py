"""The texts that arguments become in a request. Pure.

`Unwritable` leaves this package only as the `FieldError` of `make_request`.
"""

import json
from collections.abc import Mapping
from typing import Any


class Unwritable(Exception):
    """A value that no request can carry. `name`: of the argument; `member`: of its member, empty for the whole argument."""

    def __init__(self, name: str, detail: str, *, member: str = "") -> None:
        self.pointer = "".join("/" + _escape(part) for part in (name, member) if part)
        self.detail = detail
        super().__init__(detail)


def _escape(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")


def write_text(name: str, value: Any) -> str:
    """Text as it is; other values as JSON. Raises Unwritable for text without a UTF-8 form."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as exc:
            raise Unwritable(name, "Half a surrogate pair has no UTF-8 form.") from exc
        return value
    if isinstance(value, Mapping | list | tuple):
        return write_json(name, value)
    return json.dumps(value)


def write_json(name: str, value: Any) -> str:
    """Canonical JSON: members sorted by name, no spaces. Raises Unwritable."""
    try:
        text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
        text.encode()
    except (ValueError, RecursionError) as exc:
        raise Unwritable(name, "This cannot be written as JSON.") from exc
    return text


def list_values(value: Any) -> list[Any]:
    """The values of an argument: those of a list, one value, or none for null."""
    if isinstance(value, list | tuple):
        return list(value)
    return [] if value is None else [value]
