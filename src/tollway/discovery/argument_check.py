"""Validates the arguments of a tool against its input schema. The schema is untrusted, so the number of steps is bounded.

The check never fetches a reference, never runs a pattern that can take long (the API checks those), and stops after `STEPS_MAX` steps. When
a schema cannot be checked, the call is refused and nothing is paid.

Import this module only where arguments are checked, because `jsonschema` is large.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from referencing import Registry

from tollway.errors import FieldError
from tollway.registry.text import drop_refused_characters

ERRORS_MAX = 20
STEPS_MAX = 20_000
"""The most keywords that one check evaluates; each takes a few microseconds."""

DEPTH_MAX = 64
"""The deepest nesting of keywords. Python's recursion limit does not help: a library raises it, and a deep schema then ends the process."""

_SIZE_OF_A_STEP = 50
"""A value or an instance with this many members takes the time of one more step."""

PATTERNED_LENGTH_MAX = 1_024
"""The most characters of a pattern, and of a string that is matched with it."""

_SHOWN_LENGTH_MAX = 80


class _Uncheckable(Exception):
    """The schema is invalid, or its check exceeds a bound."""


def check_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[FieldError, ...]:
    """The errors of the arguments, none when they match the schema (JSON Schema 2020-12). Never raises."""
    before = _budget.set(_CheckBudget())
    try:
        errors = _BOUNDED(schema, registry=_EMPTY_REGISTRY).iter_errors(arguments)
        return tuple(_to_field_error(error) for error in islice(errors, ERRORS_MAX))
    except RecursionError:
        return (_uncheckable("nests too deep"),)
    except _Uncheckable as exc:
        return (_uncheckable(str(exc)),)
    except Exception:  # noqa: BLE001 - an untrusted schema can break the checker in any way; it is refused
        return (_uncheckable("is not one that can be checked"),)
    finally:
        _budget.reset(before)


def _uncheckable(detail: str) -> FieldError:
    return FieldError(
        code="unchecked", detail=f"the schema of this tool {detail}; call it over HTTP", pointer="/arguments"
    )


@dataclass(slots=True)
class _CheckBudget:
    steps_left: int = STEPS_MAX
    depth: int = 0


_budget: ContextVar[_CheckBudget] = ContextVar("check")
"""The budget of the running check. The validator class is made once, so its keywords cannot get it as an argument."""

_EMPTY_REGISTRY: Registry[Any] = Registry()


def _counted(check: Any) -> Any:
    def checking(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        budget = _budget.get()
        budget.steps_left -= 1 + (_size(value) + _size(schema)) // _SIZE_OF_A_STEP
        if budget.steps_left < 0:
            raise _Uncheckable("takes too long to check")
        return _deeper(budget, check(validator, value, instance, schema))

    return checking


def _deeper(budget: _CheckBudget, errors: Iterable[ValidationError] | None) -> Iterator[ValidationError]:
    """Runs the check of a keyword to its end. Its errors come from a generator, which a caller may leave after the first one."""
    budget.depth += 1
    try:
        if budget.depth > DEPTH_MAX:
            raise _Uncheckable("nests too deep")
        yield from errors or ()
    finally:
        budget.depth -= 1


def _size(value: object) -> int:
    return len(value) if isinstance(value, Mapping | list) else 0


# ---- Keywords that can take more time than their length. The provider's API checks what is skipped here.


def _check_pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    is_text = isinstance(instance, str) and len(instance) <= PATTERNED_LENGTH_MAX
    if (
        is_text
        and isinstance(pattern, str)
        and is_cheap_pattern(pattern)
        and not re.search(pattern, instance)
    ):
        yield ValidationError("pattern")


def _check_unique(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if wanted is True and isinstance(instance, list):
        written = {json.dumps(one, sort_keys=True) for one in instance}
        if len(written) != len(instance):
            yield ValidationError("uniqueItems")


def _check_additional(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if "patternProperties" not in schema:  # else names would be matched with untrusted patterns
        checks = Draft202012Validator.VALIDATORS["additionalProperties"]
        yield from checks(validator, wanted, instance, schema)


def _skip(validator: Any, value: Any, instance: Any, schema: Any) -> Sequence[ValidationError]:
    return ()


_BOUNDED_KEYWORDS: Mapping[str, Any] = {
    "pattern": _check_pattern,
    "uniqueItems": _check_unique,
    "additionalProperties": _check_additional,
    "patternProperties": _skip,
    "unevaluatedProperties": _skip,  # evaluates the schema again, with patterns, without counting steps
    "unevaluatedItems": _skip,
}


def _bound() -> Any:
    known = {**Draft202012Validator.VALIDATORS, **_BOUNDED_KEYWORDS}
    make: Any = extend  # the library declares no types for it
    return make(Draft202012Validator, {name: _counted(check) for name, check in known.items()})


_BOUNDED = _bound()


_SINGLE_CHARACTERS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]")
_REPETITIONS = re.compile(r"\{([0-9]*)(,?)([0-9]*)\}")
_REPETITIONS_MAX = 1_000


def is_cheap_pattern(pattern: str) -> bool:
    """True for a pattern without groups and alternatives and with at most one repetition of variable length. Its match takes at most quadratic
    time; other patterns can backtrack in exponential time."""
    if len(pattern) > PATTERNED_LENGTH_MAX:
        return False
    bare = _SINGLE_CHARACTERS.sub("x", pattern)
    if any(sign in bare for sign in "()|"):
        return False
    repeats = list(_REPETITIONS.finditer(bare))
    if any(
        int(match[1] or 0) > _REPETITIONS_MAX or int(match[3] or 0) > _REPETITIONS_MAX for match in repeats
    ):
        return False
    open_ended = [match for match in repeats if match[2] and match[1] != match[3]]
    plain = _REPETITIONS.sub("", bare)
    if plain.count("*") + plain.count("+") + plain.count("?") + len(open_ended) > 1:
        return False
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


# ---- Error texts. They contain no text of the schema, which is untrusted.


def _to_field_error(error: ValidationError) -> FieldError:
    keyword = str(error.validator or error.message)
    pointer = "/arguments" + "".join("/" + _escape(part) for part in error.absolute_path)
    return FieldError(code=_code(keyword), detail=_explain(keyword, error), pointer=pointer[:512])


def _code(keyword: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", keyword).lower()[:64] if keyword.isalpha() else "invalid"


def _explain(keyword: str, error: ValidationError) -> str:
    value: Any = error.validator_value
    if keyword == "required" and isinstance(value, Sequence) and isinstance(error.instance, Mapping):
        missing = [name for name in value if name not in error.instance]
        return "missing: " + ", ".join(_shorten(name) for name in missing[:10])
    if keyword == "additionalProperties" and isinstance(error.instance, Mapping):
        known = error.schema.get("properties", {}) if isinstance(error.schema, Mapping) else {}
        unknown = [name for name in error.instance if name not in known]
        return "not known here: " + ", ".join(_shorten(name) for name in unknown[:10])
    if keyword == "type":
        wanted = value if isinstance(value, str) else " or ".join(str(one) for one in value)
        return f"must be of type {_shorten(wanted)}"
    if keyword in ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "multipleOf"):
        return f"breaks {keyword} {_shorten(value)}"
    if keyword in ("enum", "const"):
        return "is not one of the values that are allowed"
    return f"does not meet {_shorten(keyword)} of the schema"


def _shorten(value: object) -> str:
    text = drop_refused_characters(str(value))
    return text if len(text) <= _SHOWN_LENGTH_MAX else text[:_SHOWN_LENGTH_MAX] + "…"


def _escape(part: object) -> str:
    return drop_refused_characters(str(part)).replace("~", "~0").replace("/", "~1")
