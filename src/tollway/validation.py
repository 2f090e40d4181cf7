"""Models of request bodies and queries: pydantic checks each member, and this module writes its errors as the `errors[]` of a problem. Pure.

A model reads JSON that `web/http/json.py` has parsed, or the parameters that `web/http/query.py` has split: size, depth, the number of values and
duplicate members are checked before.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from tollway.errors import FieldError

POINTER_NAME_MAX = 64
UNKNOWN_NAMED_MAX = 20

Location = tuple[int | str, ...]

WireError = tuple[Location, str, str]

_OWN = "tollway."
"""Marks the codes of this package among pydantic's types, which have the same names with other meanings."""

_WIRE_ERRORS: Mapping[str, tuple[str, str]] = {
    "missing": ("required", "is required"),
    "string_type": ("type", "must be a string"),
    "string_too_long": ("too_long", "must have at most {max_length} characters"),
    "string_too_short": ("too_short", "must not be empty"),
    "int_type": ("type", "must be an integer"),
    "bool_type": ("type", "must be true or false"),
    "literal_error": ("unknown_value", "must be one of: {expected}"),
    "enum": ("unknown_value", "must be one of: {expected}"),
    "dict_type": ("type", "must be an object"),
    "model_type": ("type", "must be an object"),
    "extra_forbidden": ("unknown_field", "there is no such field"),
}
"""Code and detail for each type of pydantic's errors. Another type is a bug of a model."""

T = TypeVar("T")
M = TypeVar("M", bound="RequestModel")


class RequestModel(BaseModel):
    """An object of a request body, or the parameters of a query. A member's name is the field's in camel case; an unknown member is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, hide_input_in_errors=True
    )

    @classmethod
    @cache
    def member_names(cls) -> tuple[str, ...]:
        """In the order of their declaration, which is the order of their errors."""
        return tuple(field.alias or name for name, field in cls.model_fields.items())

    @model_validator(mode="before")
    @classmethod
    def _bound_unknown(cls, members: dict[str, Any]) -> dict[str, Any]:
        """Passes the first unknown members only: each becomes an error, and a body can hold thousands."""
        known = cls.member_names()
        unknown = [name for name in members if name not in known][:UNKNOWN_NAMED_MAX]
        return {name: members[name] for name in (*known, *unknown) if name in members}

    @field_validator("*")
    @classmethod
    def _keep_value(cls, value: T, info: ValidationInfo) -> T:
        add_value(info, value)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The context of one validation. `rules`: what the validators of the model need besides the body. `values`: by field name the
    members whose form is valid, without absent ones. A validator adds a value there before it checks a rule beyond form."""

    rules: Any
    values: dict[str, Any]


def context_of(info: ValidationInfo) -> Context:
    return cast(Context, info.context)


def add_value(info: ValidationInfo, value: object) -> None:
    """Adds the value of the member that is being checked, for rules between members."""
    context_of(info).values[str(info.field_name)] = value


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedMembers(Generic[M]):
    """The result of a check. `model` is None when there are errors. `values`: see `Context`."""

    model: M | None
    values: Mapping[str, Any]
    errors: list[WireError]
    """Unknown members first, then in the order of the model's fields."""


def check_members(
    model: type[M],
    members: Mapping[str, Any],
    *,
    rules: object = None,
    check_between: Callable[[Mapping[str, Any]], Iterable[tuple[str | None, WireError]]] = lambda _: (),
) -> CheckedMembers[M]:
    """Checks an object with a model. `rules` reach its validators as `info.context.rules`.

    `check_between` checks the rules between members, also when another member has errors. It gets `Context.values` and yields each
    error with the member after whose errors it stands; None: after all.
    """
    context = Context(rules=rules, values={})
    checked: M | None = None
    placed: list[tuple[str | None, WireError]] = []
    try:
        checked = model.model_validate(members, context=context)
    except ValidationError as exc:
        found = (_to_wire(error, model) for error in exc.errors(include_url=False, include_input=False))
        placed += [(str(error[0][0]), error) for error in found]
    placed += check_between(context.values)
    order = {name: number for number, name in enumerate(model.member_names())}
    placed.sort(key=lambda one: len(order) if one[0] is None else order.get(one[0], -1))
    return CheckedMembers(
        model=None if placed else checked, values=context.values, errors=[error for _, error in placed]
    )


def _to_wire(error: ErrorDetails, model: type[RequestModel]) -> WireError:
    kind, location = error["type"], error["loc"]
    if kind.startswith(_OWN):
        return location, kind.removeprefix(_OWN), error["msg"]
    code, detail = _WIRE_ERRORS[kind]
    if kind == "extra_forbidden":
        name = str(location[-1])[:POINTER_NAME_MAX]
        return (*location[:-1], name), code, detail + suggest(name, model.member_names())
    values = {
        name: str(value).replace("'", "").replace(" or ", ", ")
        for name, value in error.get("ctx", {}).items()
    }
    return location, code, detail.format_map(values)


def suggest(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest known name, or nothing."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def to_field_error(location: Location, code: str, detail: str) -> FieldError:
    """The error of the value at that location, with a JSON pointer (RFC 6901)."""
    pointer = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in location)
    return FieldError(code=code, detail=detail, pointer=pointer)


def value_error(code: str, detail: str) -> PydanticCustomError:
    return PydanticCustomError(_OWN + code, detail)


def value_errors(found: Sequence[WireError]) -> ValidationError:
    """Several errors that a validator raises for its value; their locations are relative to it."""
    lines = [
        InitErrorDetails(type=value_error(code, detail), loc=location, input=None)
        for location, code, detail in found
    ]
    return ValidationError.from_exception_data("value", lines)


def in_range(least: int, most: int) -> Callable[[int], int]:
    def check(number: int) -> int:
        if not least <= number <= most:
            raise value_error("out_of_range", f"must lie between {least} and {most}")
        return number

    return check


def read_text(value: object, *, length_max: int, length_min: int = 0) -> str:
    if not isinstance(value, str):
        raise value_error("type", "must be a string")
    if len(value) > length_max:
        raise value_error("too_long", f"must have at most {length_max} characters")
    if len(value) < length_min:
        raise value_error("too_short", "must not be empty")
    return value


def read_parsed(value: object, parse: Callable[[str], T], *, code: str, length_max: int) -> T:
    """The result of `parse` for a text. Its ValueError becomes an error of the value with that code."""
    text = read_text(value, length_max=length_max)
    try:
        return parse(text)
    except ValueError as exc:
        raise value_error(code, str(exc)) from exc


def read_list(value: object, *, count_max: int) -> list[Any]:
    if not isinstance(value, list):
        raise value_error("type", "must be a list")
    if len(value) > count_max:
        raise value_error("too_many", f"must have at most {count_max} elements")
    return value


def read_texts(
    value: object, info: ValidationInfo | None, parse: Callable[[str], T], *, count_max: int, length_max: int
) -> tuple[T, ...]:
    """A list of distinct texts, each through `parse`. Raises the errors of all elements, first of their form, then `parse`'s.

    With `info`, the texts of valid form are the member's value for rules of other members."""
    texts: dict[int, str] = {}
    seen: set[str] = set()
    errors: list[WireError] = []
    for index, element in enumerate(read_list(value, count_max=count_max)):
        try:
            text = read_text(element, length_min=1, length_max=length_max)
            if text.casefold() in seen:
                raise value_error("duplicate", "is in the list twice")
        except PydanticCustomError as exc:
            errors.append(_to_error(exc, index))
        else:
            seen.add(text.casefold())
            texts[index] = text
    if info is not None:
        add_value(info, tuple(texts.values()))
    parsed: list[T] = []
    for index, text in texts.items():
        try:
            parsed.append(parse(text))
        except PydanticCustomError as exc:
            errors.append(_to_error(exc, index))
    if errors:
        raise value_errors(errors)
    return tuple(parsed)


def list_errors(name: str, check: Callable[[str], object], text: str) -> list[WireError]:
    """Returns nothing when `check` raises nothing."""
    try:
        check(text)
    except PydanticCustomError as exc:
        return [_to_error(exc, name)]
    return []


def _to_error(exc: PydanticCustomError, place: int | str) -> WireError:
    return (place,), exc.type.removeprefix(_OWN), exc.message()
