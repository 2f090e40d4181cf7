"""Formats and parses times, and reads query strings (`QueryParameters`): it collects all errors, an unknown parameter included. Pure."""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TypeVar
from urllib.parse import unquote_to_bytes

from tollway.errors import Code, FieldError, Problem, Refusal
from tollway.web.problems import describe_errors

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_WHOLE = re.compile(r"-?[0-9]{1,18}")


def format_time(ms: int) -> str:
    """Milliseconds since the epoch as RFC 3339 in UTC: `2026-11-21T09:15:00.000Z`."""
    seconds, rest_ms = divmod(ms, 1000)
    return f"{_format_second(seconds)}.{rest_ms:03d}Z"


@lru_cache(maxsize=64)  # many times within one second are formatted
def _format_second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")


def parse_time(text: str) -> int:
    """RFC 3339 with an offset, in milliseconds; finer fractions are cut off. Raises ValueError for any other text."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError("must be a time such as 2026-11-21T09:15:00.000Z")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    if not 1970 <= year <= 9998:  # so that an offset cannot leave the range of datetime
        raise ValueError("must be a time between 1970 and 9998")
    moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    if match[8]:
        if int(match[9]) > 23 or int(match[10]) > 59:
            raise ValueError("must have an offset between -23:59 and +23:59")
        offset = timedelta(hours=int(match[9]), minutes=int(match[10]))
        moment = moment - offset if match[8] == "+" else moment + offset
    fraction_ms = int((match[7] or "").ljust(3, "0")[:3])
    return (moment - _EPOCH) // timedelta(milliseconds=1) + fraction_ms


class QueryParameters:
    """A reader of the query of one request. It collects all errors; `finish` refuses the request with them (422).

    Each parameter may occur once, and only parameters in `known` may occur.
    """

    def __init__(self, raw: bytes, *, known: Iterable[str]) -> None:
        self._values: dict[str, str] = {}
        self._errors: list[FieldError] = []
        names = frozenset(known)
        for pair in raw.split(b"&"):
            if pair:
                self._take(pair, names)

    def _take(self, pair: bytes, known: frozenset[str]) -> None:
        raw_name, _, raw_value = pair.partition(b"=")
        name, value = _decode(raw_name), _decode(raw_value)
        if name is None or name not in known:
            readable = _decode(raw_name) or "?"
            self.refuse(readable[:64], "unknown", "there is no such parameter")
        elif value is None:
            self.refuse(name, "encoding", "must be percent-encoded UTF-8")
        elif name in self._values:
            self.refuse(name, "duplicate", "may occur only once")
        else:
            self._values[name] = value

    def refuse(self, parameter: str, code: str, detail: str) -> None:
        """Adds an error of a parameter."""
        self._errors.append(FieldError(code=code, detail=detail, parameter=parameter))

    def text(self, name: str, *, length_max: int = 256) -> str | None:
        """The value; None when the parameter is absent or too long."""
        value = self._values.get(name)
        if value is not None and len(value) > length_max:
            self.refuse(name, "too_long", f"must have at most {length_max} characters")
            return None
        return value

    def integer(self, name: str, *, default: int, least: int, most: int) -> int:
        """A decimal integer in `least..most`; the default when the parameter is absent or wrong."""
        value = self._values.get(name)
        if value is None:
            return default
        if not _WHOLE.fullmatch(value):
            self.refuse(name, "not_a_number", f"must be a whole number from {least} to {most}")
        elif not least <= int(value) <= most:
            self.refuse(name, "out_of_range", f"must lie between {least} and {most}")
        else:
            return int(value)
        return default

    def choice(self, name: str, options: Sequence[str]) -> str | None:
        """One of `options`; None when the parameter is absent or wrong."""
        value = self._values.get(name)
        if value is not None and value not in options:
            self.refuse(name, "unknown_value", "must be one of: " + ", ".join(options))
            return None
        return value

    def parsed(self, name: str, parse: Callable[[str], T]) -> T | None:
        """The result of `parse` for the value; a ValueError of it becomes an error."""
        value = self._values.get(name)
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as exc:
            self.refuse(name, "malformed", str(exc))
            return None

    def has(self, name: str) -> bool:
        return name in self._values

    def finish(self) -> None:
        """Raises Refusal (422) with all errors, if there is one."""
        if self._errors:
            errors = tuple(self._errors)
            raise Refusal(Problem(code=Code.VALIDATION_FAILED, detail=describe_errors(errors), errors=errors))


def _decode(raw: bytes) -> str | None:
    try:
        return unquote_to_bytes(raw.replace(b"+", b" ")).decode("utf-8")
    except UnicodeDecodeError:
        return None
