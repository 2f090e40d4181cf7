"""A provider's OpenAPI document (3.0, 3.1, 3.2), from JSON or YAML: its operations and their parameters. Pure.

The document is untrusted: its content raises no error here, references are followed only within the document and to a bounded depth, and unreadable parts
are left out. YAML is read from the parser's events with the data model of JSON: tags are refused, and nesting is bounded; aliases and merge keys are expanded up
to a number of values. A document that breaks these rules raises `YamlRefused`.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import unquote

from tollway.registry.header_names import is_header_name
from tollway.registry.text import find_refused_character

METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
DOCUMENT_OPERATIONS_MAX = 2_000
PARAMETERS_MAX, NAME_LENGTH_MAX = 50, 128
RESPONSES_MAX = 20
REFERENCES_MAX = 8
PATH_LENGTH_MAX = 2_048

Place = Literal["path", "query", "header"]
_PLACES = ("path", "query", "header")

_VARIABLE = re.compile(r"\{([^{}/]*)\}")
_SEGMENT = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,=:@-]|%[0-9A-Fa-f]{2}|\{[^{}/]*\})+")
_ADJACENT_VARIABLES = re.compile(r"\}\{")
_DOTS = re.compile(r"(?:\.|%2[eE]){1,2}")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_.-]+")
_VARIABLES_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentParameter:
    """`name` is the document's; a path variable has a plain name. `content`: the parameter object, untrusted."""

    name: str
    place: Place
    is_required: bool
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOperation:
    """An operation. `method` in upper case. `path`: a template whose variables have plain names. `content`: the operation
    object, untrusted; `shared`: the parameters of its path item, untrusted."""

    method: str
    path: str
    content: Mapping[str, Any]
    shared: Sequence[object] = ()


class ProviderDocument:
    """Reads the operations of a document once."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content
        self.operations = tuple(walk_operations(content))

    @property
    def is_version_3_0(self) -> bool:
        """True for OpenAPI 3.0, whose schemas are not JSON Schema 2020-12."""
        return str(self.content.get("openapi", "")).startswith("3.0")

    def resolve(self, raw: object) -> Mapping[str, Any] | None:
        """An object of the document, through references within it; None for another value."""
        return resolve_in(self.content, raw)

    def list_parameters(self, operation: DocumentOperation) -> Iterator[DocumentParameter]:
        """The parameters of an operation; name and place together are unique."""
        variables = _VARIABLE.findall(operation.path)
        raw = [*operation.shared, *list_in(operation.content, "parameters")]
        found: dict[tuple[str, str], DocumentParameter] = {}
        for one in raw[: 2 * PARAMETERS_MAX]:
            parameter = self.resolve(one)
            name, place = (parameter or {}).get("name"), (parameter or {}).get("in")
            if parameter is None or not isinstance(name, str) or place not in _PLACES:
                continue
            if place == "path":
                name = _plain_name(name)
            if (
                not 0 < len(name) <= NAME_LENGTH_MAX
                or find_refused_character(name, is_multiline=False) is not None
            ):
                continue
            if place == "path" and name not in variables:
                continue
            found[(name, str(place))] = DocumentParameter(  # the operation's own comes last
                name=name,
                place=cast(Place, place),
                is_required=place == "path" or parameter.get("required") is True,
                content=parameter,
            )
        for name in variables:  # required also where the document does not declare them
            if (name, "path") not in found:
                yield DocumentParameter(name=name, place="path", is_required=True, content={})
        yield from list(found.values())[:PARAMETERS_MAX]

    def list_response_headers(self, operation: DocumentOperation) -> Iterator[str]:
        """The names are in lower case."""
        responses = operation.content.get("responses")
        for raw in list(responses.values())[:RESPONSES_MAX] if isinstance(responses, Mapping) else ():
            headers = (self.resolve(raw) or {}).get("headers")
            for name in list(headers)[:PARAMETERS_MAX] if isinstance(headers, Mapping) else ():
                if isinstance(name, str) and is_header_name(name.replace("_", "-")):
                    yield name.lower()


def walk_operations(content: Mapping[str, Any]) -> Iterator[DocumentOperation]:
    """The readable operations, in the order of the document, at most `DOCUMENT_OPERATIONS_MAX`."""
    remaining = DOCUMENT_OPERATIONS_MAX
    paths = content.get("paths")
    for path, raw in paths.items() if isinstance(paths, Mapping) else ():
        template = read_path(path)
        entry = resolve_in(content, raw)
        if template is None or entry is None:
            continue
        for method in METHODS:
            operation = entry.get(method)
            if not isinstance(operation, Mapping) or (method == "head" and "get" in entry):
                continue
            if remaining == 0:
                return
            remaining -= 1
            shared = list_in(entry, "parameters")
            yield DocumentOperation(method=method.upper(), path=template, content=operation, shared=shared)


def count_operations(content: Mapping[str, Any]) -> int:
    """Counts unreadable operations too."""
    paths = content.get("paths")
    entries = (resolve_in(content, raw) for raw in (paths.values() if isinstance(paths, Mapping) else ()))
    return sum(method in entry for entry in entries if entry is not None for method in METHODS)


def resolve_in(content: Mapping[str, Any], raw: object) -> Mapping[str, Any] | None:
    for _ in range(REFERENCES_MAX):
        if not isinstance(raw, Mapping):
            return None
        reference = raw.get("$ref")
        if reference is None:
            return raw
        raw = resolve_pointer(content, reference)
    return None


def resolve_pointer(content: Mapping[str, Any], reference: object) -> object:
    """The value that a reference within the document names (RFC 6901); None for another reference, or without such a value."""
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: object = content
    for step in unquote(reference[2:]).split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def list_in(raw: object, name: str) -> Sequence[object]:
    value = raw.get(name) if isinstance(raw, Mapping) else None
    return value if isinstance(value, list) else ()


def read_path(path: object) -> str | None:
    """A path of a document as a template with plain names for its variables; None for one that no request can match."""
    if not isinstance(path, str) or not path.startswith("/") or len(path) > PATH_LENGTH_MAX:
        return None
    segments = path[1:].split("/")
    if path != "/" and segments[-1] == "":
        segments.pop()
    for segment in segments if path != "/" else ():
        if not _SEGMENT.fullmatch(segment) or _DOTS.fullmatch(segment) or _ADJACENT_VARIABLES.search(segment):
            return None
    names = [_plain_name(name) for name in _VARIABLE.findall(path)]
    if len(set(names)) != len(names) or len(names) > _VARIABLES_MAX or not all(names):
        return None
    return _VARIABLE.sub(lambda variable: "{" + _plain_name(variable[1]) + "}", path)


def _plain_name(name: str) -> str:
    return _NOT_PLAIN.sub("_", name)[:64].strip("_") or ""


DEPTH_MAX = 64
YAML_VALUES_MAX = 65_536
"""As many as a body of JSON may have."""
YAML_CHARACTERS_MAX = 4 * 1024 * 1024
"""As many as the longest document at a URL has bytes."""
NUMBER_LENGTH_MAX = 128

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
}
_TAG = "tag:yaml.org,2002:"
_TAGS = frozenset(_TAG + name for name in ("str", "map", "seq", "int", "float", "bool", "null"))


class YamlRefused(ValueError):
    """The text is not an accepted YAML document; the message is the reason."""


def parse_yaml_object(raw: bytes, *, values_max: int = YAML_VALUES_MAX) -> dict[str, Any]:
    """The members of the one document in UTF-8 text. A text of 1 MiB takes up to a second: do not call this in the event loop.

    An alias (`*name`) is a copy of what its anchor (`&name`) names, and a merge key (`<<`) copies its members where the object has none of
    that name (YAML 1.1 merge type). Raises YamlRefused for text that is not YAML (with line and column), for more than one document, and
    for nesting deeper than `DEPTH_MAX`. It also refuses an alias of nothing or within its own anchor, tags beyond those of JSON, and a key
    that is not a scalar or is repeated. After all copies there are at most `values_max` values and `YAML_CHARACTERS_MAX` characters.
    """
    import yaml  # noqa: PLC0415 - only documents that are not JSON need it

    try:
        events = yaml.parse(raw.decode("utf-8-sig"), Loader=yaml.CSafeLoader)
        found = _YamlReader(events, values_max=values_max).read()
    except UnicodeError as exc:
        raise YamlRefused("is not valid UTF-8 text") from exc
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        place = "" if mark is None else f": {exc.problem} at line {mark.line + 1}, column {mark.column + 1}"
        raise YamlRefused(f"is not YAML{place}") from exc
    except yaml.YAMLError as exc:
        raise YamlRefused("is not YAML") from exc
    if not isinstance(found, dict):
        raise YamlRefused("must be an object")
    return found


class _YamlReader:
    """Copies of anchors count as values, so that a short text stays a short document."""

    def __init__(self, events: Iterator[Any], *, values_max: int) -> None:
        self._events = self._follow(events)
        self._values_max = values_max
        self._place = ""
        self._anchors: dict[
            str, tuple[Any, int, int, int]
        ] = {}  # the value, its values, characters and levels
        self._values = self._characters = 0

    def read(self) -> Any:
        """Raises YamlRefused, with the line and the column of the event that breaks a rule."""
        try:
            return self._read()
        except YamlRefused as exc:
            raise YamlRefused(f"{exc}, at {self._place}") from exc

    def _follow(self, events: Iterator[Any]) -> Iterator[Any]:
        for event in events:
            self._place = f"line {event.start_mark.line + 1}, column {event.start_mark.column + 1}"
            yield event

    def _read(self) -> Any:
        found: Any = None
        documents = 0
        for event in self._events:
            match type(event).__name__:
                case "DocumentStartEvent":
                    documents += 1
                    if documents > 1:
                        raise YamlRefused("must be one document")
                case "StreamStartEvent" | "StreamEndEvent" | "DocumentEndEvent":
                    pass
                case _:
                    found, _ = self._read_node(event, 0)
        return found

    def _count(self, values: int, characters: int) -> None:
        self._values += values
        self._characters += characters
        if self._values > self._values_max:
            raise YamlRefused(f"has more than {self._values_max} values, copies of aliases included")
        if self._characters > YAML_CHARACTERS_MAX:
            raise YamlRefused(f"has more than {YAML_CHARACTERS_MAX} characters, copies of aliases included")

    def _read_node(self, event: Any, depth: int) -> tuple[Any, int]:
        """A value, and how many levels it nests."""
        kind = type(event).__name__
        if kind == "AliasEvent":
            return self._copy(event.anchor, depth)
        if event.tag is not None and event.tag not in _TAGS:
            raise YamlRefused("must not use tags (!name)")
        values, characters = self._values, self._characters
        self._count(1, len(event.value) if kind == "ScalarEvent" else 0)
        levels = 0
        if kind == "ScalarEvent":
            value: Any = _read_scalar(event)
        elif depth == DEPTH_MAX:
            raise YamlRefused(f"nests deeper than {DEPTH_MAX} levels")
        elif kind == "SequenceStartEvent":
            value, levels = self._read_list(depth)
        else:
            value, levels = self._read_object(depth)
        if event.anchor is not None:
            own = (self._values - values, self._characters - characters)
            self._anchors[event.anchor] = (value, *own, levels)
        return value, levels

    def _copy(self, anchor: str, depth: int) -> tuple[Any, int]:
        """The value of an anchor. The same object each time: no code changes a document, and its copies are counted."""
        if anchor not in self._anchors:
            raise YamlRefused(f"uses the alias *{anchor[:NAME_LENGTH_MAX]}, which names nothing before it")
        value, values, characters, levels = self._anchors[anchor]
        self._count(values, characters)
        if depth + levels > DEPTH_MAX:
            raise YamlRefused(f"nests deeper than {DEPTH_MAX} levels")
        return value, levels

    def _read_list(self, depth: int) -> tuple[list[Any], int]:
        found, levels = [], 0
        for event in self._events:
            if type(event).__name__ == "SequenceEndEvent":
                break
            value, below = self._read_node(event, depth + 1)
            found.append(value)
            levels = max(levels, below)
        return found, levels + 1

    def _read_object(self, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        levels = 0
        for event in self._events:
            if type(event).__name__ == "MappingEndEvent":
                break
            if type(event).__name__ != "ScalarEvent":
                raise YamlRefused("must have plain texts as keys")
            key = event.value  # the text: `200:` and `on:` are names, not a number and a boolean
            self._count(0, len(key))
            is_merge = key == "<<" and event.style in (None, "")
            if key in found or (is_merge and merged):
                raise YamlRefused("repeats a key")
            value, below = self._read_node(next(self._events), depth + 1)
            levels = max(levels, below)
            if is_merge:
                merged = _merge(value)
            else:
                found[key] = value
        return {**merged, **found}, levels + 1


def _merge(value: Any) -> dict[str, Any]:
    """The members that a merge key adds: of one object, or of a list of them, of which the first one counts."""
    merged: dict[str, Any] = {}
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, dict):
            raise YamlRefused("has a merge key (<<) whose value is no object")
        merged = {**one, **merged}
    return merged


def _read_scalar(event: Any) -> Any:
    text: str = event.value
    is_plain = event.style in (None, "") and event.tag in (None, *_TAGS - {_TAG + "str"})
    if not is_plain:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if not _NUMBER.fullmatch(text):
        return text
    if len(text) > NUMBER_LENGTH_MAX:
        raise YamlRefused(f"holds a number of more than {NUMBER_LENGTH_MAX} characters")
    if _INTEGER.fullmatch(text):
        return int(text)
    number = float(text)
    if not math.isfinite(number):
        raise YamlRefused("holds a number that is too large")
    return number
