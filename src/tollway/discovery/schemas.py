"""JSON Schemas of a provider's document, copied member by member from a list of known members, as JSON Schema 2020-12. Pure.

The document is untrusted: a copy never fails, texts are cleaned, references lead only to copied definitions, and a definition that applies itself to its own
value is replaced by an open schema, as is what cannot be copied. `SchemaBundler` bundles a schema with its definitions: equal sets of definitions are written
once, and the number of written definitions is limited per document, because a short document can make two thousand operations reference all of them.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tollway.discovery.forms import is_media_type
from tollway.discovery.safe_text import clean_line, clean_prose
from tollway.registry.openapi import ProviderDocument, resolve_pointer
from tollway.registry.text import find_refused_character

DEPTH_MAX, STEPS_MAX = 64, 256
NAME_LENGTH_MAX, PROSE_MAX, TITLE_MAX = 128, 1_000, 120
CHOICES_MAX, VALUE_WEIGHT_MAX, EXAMPLES_MAX = 1_000, 4_096, 3
NUMBER_MAX = 10**15
"""JSON parsers disagree about larger numbers."""

_TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")
_COUNTS = (
    "maxLength",
    "minLength",
    "maxItems",
    "minItems",
    "maxProperties",
    "minProperties",
    "maxContains",
    "minContains",
)
_BOUNDS = ("maximum", "minimum")
_FLAGS = ("deprecated", "readOnly", "writeOnly")
_ONE_APPLIED = ("not", "if", "then", "else")  # applied to the value of the schema itself
_SOME_APPLIED = ("allOf", "anyOf", "oneOf")
_ONE_WITHIN = ("items", "additionalProperties", "contains", "propertyNames")
_LIMITS = frozenset(
    {
        *_COUNTS,
        *_BOUNDS,
        "exclusiveMaximum",
        "exclusiveMinimum",
        "multipleOf",
        "required",
        "pattern",
        "uniqueItems",
    }
)
_PARTS = frozenset({*_ONE_APPLIED, *_SOME_APPLIED, *_ONE_WITHIN, "properties", "prefixItems"})
_COMPOSED = frozenset({"$ref", *_ONE_APPLIED, *_SOME_APPLIED})
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")


@dataclass(slots=True, kw_only=True)
class SchemaCopy:
    """A copied schema. `refs`: the definitions that it references; `applied`: those applied to its own value, with their number. `weight`: about its length as
    JSON. Copies are shared, so callers must not change them."""

    schema: dict[str, Any] = field(default_factory=dict)
    refs: set[str] = field(default_factory=set)
    applied: Counter[str] = field(default_factory=Counter)
    weight: int = 2


class SchemaCopier:
    """Copies the schemas of one document, each once. `prefix`: the place of the definitions, such as `#/$defs/`. `taken`: names that no definition gets.
    `is_checked`: values are validated with the copies, so keywords that take more than linear time are left out."""

    def __init__(
        self, document: ProviderDocument, *, prefix: str, is_checked: bool, taken: Iterable[str] = ()
    ) -> None:
        self._document = document
        self._prefix = prefix
        self._is_checked = is_checked
        self._copies: dict[
            int, tuple[object, SchemaCopy]
        ] = {}  # by identity; the reference keeps an id from being reused
        self._names: dict[str, str] = {}
        self._raws: dict[str, object] = dict.fromkeys(taken)
        self._definitions: dict[str, SchemaCopy] = {}
        self._steps: dict[str, int] = {}  # of validating one value with a definition

    def copy(self, raw: object) -> SchemaCopy:
        return self._copy(raw, 0)

    def define(self, refs: Iterable[str], *, weight_max: int) -> dict[str, Any]:
        """The definitions that `refs` need, directly and indirectly. A definition beyond `weight_max` becomes an open schema."""
        found: dict[str, Any] = {}
        waiting = deque(sorted(refs))
        while waiting:
            name = waiting.popleft()
            if name in found:
                continue
            if name not in self._steps:
                self._check_recursion(name)
            definition = self._definitions[name]
            if definition.weight > weight_max:
                found[name] = {}
                continue
            weight_max -= definition.weight
            found[name] = definition.schema
            waiting += sorted(one for one in definition.refs if one not in found)
        return found

    # ---- Definitions.

    def _definition(self, name: str) -> SchemaCopy:
        known = self._definitions.get(name)
        if known is None:
            known = self._definitions[name] = self._copy(self._raws[name], 0)
        return known

    def _check_recursion(self, start: str) -> None:
        """True for a definition that is applied to its own value again, which would never end, or through others so often that it takes too long. It
        becomes an open schema."""
        path: list[tuple[str, list[str]]] = [(start, sorted(self._definition(start).applied))]
        walked = {start}
        while path:
            name, ahead = path[-1]
            following = ahead.pop() if ahead else None
            if following is None:
                path.pop()
                walked.discard(name)
                self._count_steps(name)
            elif following in walked:
                self._definitions[following] = SchemaCopy()
            elif following not in self._steps:
                walked.add(following)
                path.append((following, sorted(self._definition(following).applied)))

    def _count_steps(self, name: str) -> None:
        applied = self._definitions[name].applied
        steps = 1 + sum(times * self._steps.get(one, 1) for one, times in applied.items())
        if steps > STEPS_MAX:
            self._definitions[name] = SchemaCopy()
            steps = 1
        self._steps[name] = steps

    def _name(self, reference: object) -> str | None:
        """The definition of a reference; None for a reference out of the document or to nothing."""
        if not isinstance(reference, str):
            return None
        name = self._names.get(reference)
        if name is None:
            raw = resolve_pointer(self._document.content, reference)
            if not isinstance(raw, Mapping | bool):
                return None
            wanted = "".join(c if c in _PLAIN else "_" for c in reference.rpartition("/")[2])[:64] or "schema"
            name, number = wanted, 1
            while name in self._raws:
                number += 1
                name = f"{wanted}_{number}"
            self._names[reference] = name
            self._raws[name] = raw
        return name

    # ---- One schema.

    def _copy(self, raw: object, depth: int) -> SchemaCopy:
        if raw is False:
            return SchemaCopy(schema={"not": {}}, weight=10)
        if not isinstance(raw, Mapping) or depth > DEPTH_MAX:
            return SchemaCopy()
        known = self._copies.get(id(raw))
        if known is None:
            known = self._copies[id(raw)] = (raw, self._read(raw, depth))
        return known[1]

    def _read(self, raw: Mapping[str, Any], depth: int) -> SchemaCopy:
        copied = SchemaCopy()
        if "$ref" in raw:
            name = self._name(raw["$ref"])
            if name is None:
                return copied
            copied.refs.add(name)
            copied.applied[name] += 1
            _set_member(copied, "$ref", self._prefix + name)
            if self._document.is_version_3_0:  # before OpenAPI 3.1, members beside a reference are ignored
                return copied
        self._read_words(raw, copied)
        self._read_values(raw, copied)
        if not _LIMITS.isdisjoint(raw):
            self._read_limits(raw, copied)
        if "default" in raw and _COMPOSED.isdisjoint(raw) and _is_allowed(raw["default"], copied.schema):
            _set_member(copied, "default", raw["default"], is_any=True)
        if not _PARTS.isdisjoint(raw):
            self._read_parts(raw, copied, depth)
        return copied

    def _read_words(self, raw: Mapping[str, Any], copied: SchemaCopy) -> None:
        _set_member(copied, "title", clean_line(raw.get("title"), TITLE_MAX) or None)
        _set_member(copied, "description", clean_prose(raw.get("description"), PROSE_MAX) or None)
        kind = raw.get("format")
        _set_member(copied, "format", kind if isinstance(kind, str) and _is_plain(kind) else None)
        coding, content = raw.get("contentEncoding"), raw.get("contentMediaType")
        _set_member(
            copied, "contentEncoding", coding if isinstance(coding, str) and _is_plain(coding) else None
        )
        _set_member(copied, "contentMediaType", content if is_media_type(content) else None)
        for name in _FLAGS:
            _set_member(copied, name, True if raw.get(name) is True else None)

    def _read_values(self, raw: Mapping[str, Any], copied: SchemaCopy) -> None:
        kinds = raw.get("type")
        listed = list(dict.fromkeys(one for one in _list(kinds) or [kinds] if _is_type(one)))
        is_nullable = self._document.is_version_3_0 and raw.get("nullable") is True and bool(listed)
        if is_nullable and "null" not in listed:
            listed.append("null")
        _set_member(copied, "type", listed[0] if len(listed) == 1 else listed or None)
        choices = _list(raw.get("enum"))
        if is_nullable and choices and None not in choices:
            choices = [*choices, None]
        if 0 < len(choices) <= CHOICES_MAX and all(_weigh(one) is not None for one in choices):
            copied.schema["enum"] = choices
            copied.weight += 10 + sum((_weigh(one) or 0) + 1 for one in choices)
        if "const" in raw and _weigh(raw["const"]) is not None:
            _set_member(copied, "const", raw["const"], is_any=True)
        examples = [*_list(raw.get("examples")), *([raw["example"]] if "example" in raw else [])]
        fitting = [one for one in examples[:EXAMPLES_MAX] if _weigh(one) is not None]
        _set_member(copied, "examples", fitting or None)

    def _read_limits(self, raw: Mapping[str, Any], copied: SchemaCopy) -> None:
        for name in _COUNTS:
            value: Any = raw.get(name)
            _set_member(copied, name, value if _is_number(value, whole=True) and value >= 0 else None)
        step: Any = raw.get("multipleOf")
        _set_member(copied, "multipleOf", step if _is_number(step) and step > 0 else None)
        for name in _BOUNDS:
            exclusive = "exclusive" + name.capitalize()
            bound, other = raw.get(name), raw.get(exclusive)
            is_open = other is True  # the flag of OpenAPI 3.0
            _set_member(copied, exclusive if is_open else name, bound if _is_number(bound) else None)
            if _is_number(other):
                _set_member(copied, exclusive, other)
        if not self._is_checked:
            pattern = raw.get("pattern")
            is_fine = isinstance(pattern, str) and len(pattern) <= PROSE_MAX and _is_name(pattern, PROSE_MAX)
            _set_member(copied, "pattern", pattern if is_fine else None)
            _set_member(copied, "uniqueItems", True if raw.get("uniqueItems") is True else None)
        needed = list(dict.fromkeys(one for one in _list(raw.get("required")) if _is_name(one)))
        if needed:
            copied.schema["required"] = needed
            copied.weight += 14 + sum(len(one) + 3 for one in needed)

    def _read_parts(self, raw: Mapping[str, Any], copied: SchemaCopy, depth: int) -> None:
        def within(part: object) -> dict[str, Any]:
            return self._add_part(part, copied, depth, is_applied=False)

        def applied(part: object) -> dict[str, Any]:
            return self._add_part(part, copied, depth, is_applied=True)

        properties = raw.get("properties")
        if isinstance(properties, Mapping):
            parts = {name: within(one) for name, one in properties.items() if _is_name(name)}
            copied.weight += sum(len(name) + 4 for name in parts)
            copied.schema["properties"] = parts
        for name in _ONE_WITHIN:
            part = raw.get(name)
            if name == "additionalProperties" and isinstance(raw.get("patternProperties"), Mapping):
                continue  # patterns are not copied, so the other members are unknown
            if isinstance(part, bool):
                _set_member(copied, name, part, is_any=True)
            elif isinstance(part, Mapping):
                copied.schema[name] = within(part)
        _copy_list(copied, "prefixItems", raw, within)
        for name in _SOME_APPLIED:
            _copy_list(copied, name, raw, applied)
        for name in _ONE_APPLIED:
            if isinstance(raw.get(name), Mapping | bool):
                copied.schema[name] = applied(raw[name])

    def _add_part(self, part: object, copied: SchemaCopy, depth: int, *, is_applied: bool) -> dict[str, Any]:
        taken = self._copy(part, depth + 1)
        copied.refs |= taken.refs
        if is_applied:
            copied.applied.update(taken.applied)
        copied.weight += taken.weight + 12
        return taken.schema


def _copy_list(
    copied: SchemaCopy, name: str, raw: Mapping[str, Any], take: Callable[[object], dict[str, Any]]
) -> None:
    parts = [take(one) for one in _list(raw.get(name)) if isinstance(one, Mapping | bool)]
    if parts:
        copied.schema[name] = parts


def _set_member(copied: SchemaCopy, name: str, value: Any, *, is_any: bool = False) -> None:
    if value is None and not is_any:
        return
    copied.schema[name] = value
    copied.weight += len(name) + 4 + (_weigh(value) or 3 * VALUE_WEIGHT_MAX)  # three examples at most


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_type(value: object) -> bool:
    return isinstance(value, str) and value in _TYPES


def _is_number(value: object, *, whole: bool = False) -> bool:
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        return False
    return abs(value) <= NUMBER_MAX


def _is_allowed(value: object, schema: Mapping[str, Any]) -> bool:
    """True when a value is plain and valid by the members copied so far. OpenAPI validators refuse a document with an invalid default."""
    if isinstance(value, Mapping | list) or _weigh(value) is None:
        return False
    kinds = schema.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is_kind(value, kind) for kind in kinds):
        return False
    if "enum" in schema and not any(type(value) is type(one) and value == one for one in schema["enum"]):
        return False
    if "const" in schema and (type(value) is not type(schema["const"]) or value != schema["const"]):
        return False
    if isinstance(value, str):
        return "pattern" not in schema and schema.get("minLength", 0) <= len(value) <= schema.get(
            "maxLength", len(value)
        )
    return isinstance(value, bool | None) or not _is_number(value) or _is_within(value, schema)


def _is_kind(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return kind in _KINDS and isinstance(value, _KINDS[kind])


def _is_within(value: Any, schema: Mapping[str, Any]) -> bool:
    return (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and ("exclusiveMinimum" not in schema or schema["exclusiveMinimum"] < value)
        and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
        and "multipleOf" not in schema
    )


def _is_plain(text: str) -> bool:
    return 0 < len(text) <= NAME_LENGTH_MAX and all(char in _PLAIN for char in text)


def _is_name(value: object, most: int = NAME_LENGTH_MAX) -> bool:
    return (
        isinstance(value, str)
        and 0 < len(value) <= most
        and find_refused_character(value, is_multiline=False) is None
    )


def _weigh(value: object, depth: int = 0) -> int | None:
    """About the length of a value as JSON; None for a value that is too long, too deep, or has hidden characters."""
    if isinstance(value, str):
        is_fine = len(value) <= VALUE_WEIGHT_MAX and find_refused_character(value, is_multiline=True) is None
        return len(value) + 2 if is_fine else None
    if isinstance(value, bool) or value is None:
        return 5
    if isinstance(value, int | float):
        return 20 if abs(value) <= NUMBER_MAX else None
    if depth > 8:
        return None
    total = 2
    if isinstance(value, Mapping):
        if "$ref" in value:  # some parsers follow it anywhere
            return None
        parts = [part for pair in value.items() for part in pair]
    elif isinstance(value, list):
        parts = value
    else:
        return None
    for part in parts:
        weight = _weigh(part, depth + 1)
        if weight is None or total > VALUE_WEIGHT_MAX:
            return None
        total += weight + 1
    return total


DEFINITIONS_MAX = 50_000
"""Definitions written out for one document, equal sets counted once. This number takes some tenths of a second."""

_WEIGHT_STEP = 1_024  # rounds sizes, so that schemas of about the same length share their definitions


class SchemaBundler:
    """`weight_max`: about the characters of one bundle."""

    def __init__(
        self, copier: SchemaCopier, *, weight_max: int, definitions_max: int = DEFINITIONS_MAX
    ) -> None:
        self._copier = copier
        self._weight_max = weight_max
        self._left = definitions_max
        self._made: dict[tuple[frozenset[str], int], dict[str, Any]] = {}

    def bundle(self, copied: SchemaCopy) -> dict[str, Any]:
        """An open schema when the schema is too long by itself."""
        if copied.weight > self._weight_max:
            return {}
        if not copied.refs:
            return copied.schema
        weight_left = (self._weight_max - copied.weight) // _WEIGHT_STEP * _WEIGHT_STEP
        key = (frozenset(copied.refs), weight_left)
        if key not in self._made:
            self._made[key] = self._define(copied.refs, weight_left)
        return {**copied.schema, "$defs": self._made[key]}

    def _define(self, refs: set[str], weight_left: int) -> dict[str, Any]:
        if self._left <= 0:
            return {name: {} for name in sorted(refs)}
        made = self._copier.define(refs, weight_max=weight_left)
        self._left -= len(made)
        return made
