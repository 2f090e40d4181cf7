"""Formats and parses times, and reads the query of a request with a model: it collects all errors. Pure."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

from pydantic import PlainValidator

from tollway.errors import Code, FieldError, Problem, Refusal
from tollway.validation import (
    POINTER_NAME_MAX,
    UNKNOWN_NAMED_MAX,
    RequestModel,
    WireError,
    check_members,
    in_range,
    suggest,
    to_field_error,
    value_error,
)
from tollway.web.http.problems import refuse_fields

Q = TypeVar("Q", bound="QueryModel")
M = TypeVar("M", bound=RequestModel)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_WHOLE = re.compile(r"-?[0-9]{1,18}")


FORM_FIELDS_MAX = 100


def read_form_query(raw: bytes) -> dict[str, str]:
    """The parameters of a form that a browser sends by GET: an empty field counts as absent, of a repeated one the last counts. Raises Refusal (400)."""
    try:
        pairs = parse_qsl(raw.decode("ascii", "replace"), max_num_fields=FORM_FIELDS_MAX)
    except ValueError as exc:
        raise Refusal(_TOO_MANY_FIELDS) from exc
    return {name: value.strip() for name, value in pairs if value.strip()}


def errors_by_parameter(problem: Problem) -> dict[str, str]:
    """The sentences of a refused query, by parameter; the first one of each."""
    return {error.parameter or "": error.detail for error in reversed(problem.errors)}


_TOO_MANY_FIELDS = Problem(
    code=Code.INVALID_REQUEST,
    detail=f"The query has more than {FORM_FIELDS_MAX} parameters. Send the form of the page.",
)


def format_time(ms: int) -> str:
    """Milliseconds since the epoch as RFC 3339 in UTC: `2026-11-21T09:15:00.000Z`."""
    seconds, rest_ms = divmod(ms, 1000)
    return f"{_format_second(seconds)}.{rest_ms:03d}Z"


def format_time_if(ms: int | None) -> str | None:
    return None if ms is None else format_time(ms)


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


class QueryModel(RequestModel):
    """The parameters of a route, in the order of their errors. Each validator reads the decoded text of a parameter."""

    @classmethod
    def check_between(
        cls, given: Mapping[str, str], values: Mapping[str, Any]
    ) -> Iterable[tuple[str | None, WireError]]:
        """The errors of rules between parameters, see `check_members`. `given`: the texts by parameter; `values`: the valid ones by
        field."""
        return ()


class NoParameters(QueryModel):
    """The query of a route without parameters."""


def read_query(model: type[Q], raw: bytes) -> Q:
    """The parameters in the query of a request. Raises Refusal (422) with all errors, those of the splitter first.

    Each parameter may occur once, and only parameters of the model may occur.
    """
    given, errors = _split(raw, model.member_names())
    checked = check_members(model, given, check_between=lambda values: model.check_between(given, values))
    for location, code, detail in checked.errors:
        shown = "must be given" if code == "required" else detail
        errors.append(FieldError(code=code, detail=shown, parameter=str(location[0])))
    if checked.model is None or errors:
        raise refuse_fields(*errors)
    return checked.model


def read_members(model: type[M], members: Mapping[str, Any]) -> M:
    """The members of a body. Raises Refusal (422) with all errors."""
    checked = check_members(model, members)
    if checked.model is None:
        raise refuse_fields(*(to_field_error(*error) for error in checked.errors))
    return checked.model


def _split(raw: bytes, known: Collection[str]) -> tuple[dict[str, str], list[FieldError]]:
    """The decoded parameters, the first of each name, and the errors of the others."""
    given: dict[str, str] = {}
    errors: list[FieldError] = []
    for pair in filter(None, raw.split(b"&")):
        raw_name, _, raw_value = pair.partition(b"=")
        name, value = _decode(raw_name), _decode(raw_value)
        shown = (name or "?")[:POINTER_NAME_MAX]
        if name is None or name not in known:
            code, detail = "unknown", "there is no such parameter"
            if len(errors) < UNKNOWN_NAMED_MAX:  # a query can hold thousands
                detail += suggest(shown, known)
        elif value is None:
            code, detail = "encoding", "must be percent-encoded UTF-8"
        elif name in given:
            code, detail = "duplicate", "may occur only once"
        else:
            given[name] = value
            continue
        errors.append(FieldError(code=code, detail=detail, parameter=shown))
    return given, errors


def _decode(raw: bytes) -> str | None:
    try:
        return unquote_to_bytes(raw.replace(b"+", b" ")).decode("utf-8")
    except UnicodeDecodeError:
        return None


def whole_number(least: int, most: int) -> PlainValidator:
    """The validator of a decimal integer in `least..most`. Stricter than pydantic's numbers, which accept ` 5`, `+5`, `5.0` and `٥`."""
    check_range = in_range(least, most)

    def read(text: str) -> int:
        if not _WHOLE.fullmatch(text):
            raise value_error("not_a_number", f"must be a whole number from {least} to {most}")
        return check_range(int(text))

    return PlainValidator(read)


def parsed(parse: Callable[[str], object]) -> PlainValidator:
    """The validator of a text with a form of its own. A ValueError of `parse` becomes an error."""

    def read(text: str) -> object:
        try:
            return parse(text)
        except ValueError as exc:
            raise value_error("malformed", str(exc)) from exc

    return PlainValidator(read)
