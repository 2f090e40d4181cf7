"""The required parameters of an OpenAPI operation: what a caller forgot, told before any money is looked at.

Pure. The document is a stranger's: whatever it says, nothing here fails, and what is unclear is not required. It refuses
only a call that the provider's own words make useless.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from tollway.errors import Code, FieldError, Problem
from tollway.registry.path_reading import normal_path

METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
OPERATIONS_MAX = 2_000
PARAMETERS_MAX, NAME_LENGTH_MAX = 50, 128
REFERENCES_MAX = 4

# OpenAPI 3.1 §4.8.12.1: definitions of these are ignored.
_IGNORED_HEADERS = frozenset({"accept", "content-type", "authorization"})
_PLAIN_TYPES = ("string", "number", "integer", "boolean", "array")
_PLAIN_STYLES = (None, "form", "spaceDelimited", "pipeDelimited")
_VARIABLE = re.compile(r"\{[^{}/]*\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Required:
    """What one operation cannot do without."""

    query: tuple[str, ...]
    headers: tuple[str, ...]


class Manual:
    """One listing's document, read for its required parameters. `given`: names that the gateway adds by itself."""

    def __init__(self, document: Mapping[str, Any], *, given: Iterable[str] = ()) -> None:
        self._document = document
        self._given = frozenset(name.lower() for name in given)
        self._literal: dict[tuple[str, str], Required] = {}
        self._templates: dict[tuple[str, int], list[tuple[re.Pattern[str], Required]]] = {}
        self._read()

    def check(
        self, *, method: str, rest: str, query: str, headers: Sequence[tuple[bytes, bytes]]
    ) -> Problem | None:
        """Refuses (`validation_failed`) a call without a required parameter; an operation unknown here passes."""
        required = self._find(method.lower(), normal_path(rest))
        if required is None:
            return None
        named = {unquote_plus(part.partition("=")[0]) for part in query.split("&")}
        sent = {name.decode("latin-1").lower() for name, _ in headers}
        missing = [name for name in required.query if name not in named]
        missing += [name for name in required.headers if name.lower() not in sent]
        if not missing:
            return None
        detail = "the provider's document requires it"
        return Problem(
            code=Code.VALIDATION_FAILED,
            detail=f"Missing: {', '.join(missing)}. Nothing was paid or sent.",
            errors=tuple(FieldError(code="required", detail=detail, parameter=name) for name in missing),
            payment_state="none",
        )

    def _find(self, method: str, path: str) -> Required | None:
        known = self._literal.get((method, path))
        if known is None:
            for pattern, required in self._templates.get((method, path.count("/")), ()):
                if pattern.fullmatch(path):
                    return required
        if known is None and method == "head":  # where GET is, HEAD is too (RFC 9110 §9.3.2)
            return self._find("get", path)
        return known

    # ---- Reading the document.

    def _read(self) -> None:
        room = OPERATIONS_MAX
        for path, entry in _items(self._document.get("paths")):
            shared = _list(entry, "parameters")
            for method in METHODS:
                operation = entry.get(method) if isinstance(entry, Mapping) else None
                if room and isinstance(operation, Mapping):
                    room -= 1
                    self._add(method, path, [*shared, *_list(operation, "parameters")])

    def _add(self, method: str, path: str, raw: Sequence[object]) -> None:
        found: dict[tuple[str, str], Mapping[str, Any]] = {}
        for one in raw[:PARAMETERS_MAX]:
            parameter = self._resolve(one)
            if parameter is None:
                continue
            name, place = parameter.get("name"), parameter.get("in")
            if isinstance(name, str) and 0 < len(name) <= NAME_LENGTH_MAX and place in ("query", "header"):
                found[(name, str(place))] = parameter  # the operation's own comes last
        needed = [key for key, parameter in found.items() if self._is_needed(*key, parameter)]
        required = Required(
            query=tuple(name for name, place in needed if place == "query"),
            headers=tuple(name for name, place in needed if place == "header"),
        )
        tidy = normal_path(path)
        if "{" not in path:
            self._literal[(method, tidy)] = required
        elif all(len(_VARIABLE.findall(segment)) <= 1 for segment in tidy.split("/")):  # else slow to match
            parts = [re.escape(part) for part in _VARIABLE.split(tidy)]
            pattern = re.compile("[^/]+".join(parts))
            self._templates.setdefault((method, tidy.count("/")), []).append((pattern, required))

    def _is_needed(self, name: str, place: str, parameter: Mapping[str, Any]) -> bool:
        if parameter.get("required") is not True or name.lower() in self._given:
            return False
        if place == "header":
            return name.lower() not in _IGNORED_HEADERS
        # An object is spread over names of its own, and `content` may mean anything.
        schema = self._resolve(parameter.get("schema"))
        kind = schema.get("type") if schema is not None else None
        return kind in _PLAIN_TYPES and parameter.get("style") in _PLAIN_STYLES

    def _resolve(self, raw: object) -> Mapping[str, Any] | None:
        """A parameter or a schema, through references within the document."""
        for _ in range(REFERENCES_MAX):
            if not isinstance(raw, Mapping):
                return None
            reference = raw.get("$ref")
            if reference is None:
                return raw
            if not isinstance(reference, str) or not reference.startswith("#/"):
                return None
            raw = self._document
            for step in reference[2:].split("/"):
                raw = (
                    raw.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(raw, Mapping) else None
                )
        return None


def _items(raw: object) -> Iterable[tuple[str, Any]]:
    if not isinstance(raw, Mapping):
        return ()
    return [(name, value) for name, value in raw.items() if isinstance(name, str) and name.startswith("/")]


def _list(raw: object, name: str) -> Sequence[object]:
    value = raw.get(name) if isinstance(raw, Mapping) else None
    return value if isinstance(value, list) else ()
