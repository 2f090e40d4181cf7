"""A provider's OpenAPI document (3.0, 3.1, 3.2), from JSON or YAML: its operations and their parameters. Pure.

The document is untrusted: its content raises no error here, references are followed only within the document and to a bounded depth, and unreadable parts
are left out. YAML is read from the parser's events with the data model of JSON: tags and aliases are refused, and nesting is bounded; a document that breaks
these rules raises `YamlRefused`.
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
    """A parameter. `name` is the document's, but for a path variable, which has a plain name. `content`: the parameter
    object, untrusted."""

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
    """A document whose operations are read once."""

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
        """The names of headers of the responses of an operation, in lower case."""
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
        template = _read_path(path)
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
    """The number of operations of a document, unreadable ones included."""
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


def _read_path(path: object) -> str | None:
    """The template with plain names for its variables; None for a template that no request can match."""
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


def parse_yaml_object(raw: bytes) -> dict[str, Any]:
    """The members of the one document in UTF-8 text. A long text takes up to a second: do not call this in the event loop.

    Raises YamlRefused for text that is not YAML, aliases, tags beyond those of JSON, a key that is not a scalar or is
    repeated, more than one document, and nesting deeper than `DEPTH_MAX`.
    """
    import yaml  # noqa: PLC0415 - only documents that are not JSON need it

    try:
        events = yaml.parse(raw.decode("utf-8-sig"), Loader=yaml.CSafeLoader)
        found = _read_document(events)
    except UnicodeError as exc:
        raise YamlRefused("is not valid UTF-8 text") from exc
    except yaml.YAMLError as exc:
        raise YamlRefused("is not YAML") from exc
    if not isinstance(found, dict):
        raise YamlRefused("must be an object")
    return found


def _read_document(events: Iterator[Any]) -> Any:
    found: Any = None
    documents = 0
    for event in events:
        match type(event).__name__:
            case "DocumentStartEvent":
                documents += 1
                if documents > 1:
                    raise YamlRefused("must be one document")
            case "StreamStartEvent" | "StreamEndEvent" | "DocumentEndEvent":
                pass
            case _:
                found = _read_node(event, events, 0)
    return found


def _read_node(event: Any, events: Iterator[Any], depth: int) -> Any:
    kind = type(event).__name__
    if kind == "AliasEvent":
        raise YamlRefused("must not use aliases (*name)")
    if event.tag is not None and event.tag not in _TAGS:
        raise YamlRefused("must not use tags (!name)")
    if kind == "ScalarEvent":
        return _read_scalar(event)
    if depth == DEPTH_MAX:
        raise YamlRefused(f"nests deeper than {DEPTH_MAX} levels")
    if kind == "SequenceStartEvent":
        return _read_list(events, depth)
    return _read_object(events, depth)


def _read_list(events: Iterator[Any], depth: int) -> list[Any]:
    found = []
    for event in events:
        if type(event).__name__ == "SequenceEndEvent":
            break
        found.append(_read_node(event, events, depth + 1))
    return found


def _read_object(events: Iterator[Any], depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for event in events:
        if type(event).__name__ == "MappingEndEvent":
            break
        if type(event).__name__ != "ScalarEvent":
            raise YamlRefused("must have plain texts as keys")
        key = event.value  # the text: `200:` and `on:` are names, not a number and a boolean
        if key in found:
            raise YamlRefused("repeats a key")
        found[key] = _read_node(next(events), events, depth + 1)
    return found


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
