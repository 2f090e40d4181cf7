"""The provider's OpenAPI document (3.0, 3.1, 3.2), read within bounds: which operations it has, and what they take.

Pure. The document is a stranger's: whatever it says, nothing here fails. References are followed within the document
only, and never far. What cannot be read is left out.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast
from urllib.parse import unquote

from tollway.registry.plain_text import find_unclean

METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
DOCUMENT_OPERATIONS_MAX = 2_000
PARAMETERS_MAX, NAME_LENGTH_MAX = 50, 128
REFERENCES_MAX = 8
PATH_LENGTH_MAX = 2_048

Place = Literal["path", "query", "header"]
_PLACES = ("path", "query", "header")

_VARIABLE = re.compile(r"\{([^{}/]*)\}")
_SEGMENT = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,=:@-]|%[0-9A-Fa-f]{2}|\{[^{}/]*\})+")
_TOO_CLOSE = re.compile(r"\}\{")
_DOTS = re.compile(r"(?:\.|%2[eE]){1,2}")
_UNPLAIN = re.compile(r"[^A-Za-z0-9_.-]+")
_VARIABLES_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentParameter:
    """`name` as the document writes it, but for a path's variable, which has a plain name. `content`: the parameter as
    it stands there, untrusted."""

    name: str
    place: Place
    is_required: bool
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentOperation:
    """`method` in upper case. `path`: a template whose variables have plain names. `content`: the operation as it stands
    in the document, untrusted; `shared`: the parameters of its whole path, as untrusted."""

    method: str
    path: str
    content: Mapping[str, Any]
    shared: Sequence[object] = ()


class ProviderDocument:
    """One document, read once."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content
        self.operations = tuple(walk_operations(content))

    @property
    def is_older(self) -> bool:
        """True for OpenAPI 3.0, whose schemas are a dialect of their own."""
        return str(self.content.get("openapi", "")).startswith("3.0")

    def resolve(self, raw: object) -> Mapping[str, Any] | None:
        """An object of the document, through references within it; None for anything else."""
        return resolve_in(self.content, raw)

    def list_parameters(self, operation: DocumentOperation) -> Iterator[DocumentParameter]:
        """No two have one name at one place."""
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
            if not 0 < len(name) <= NAME_LENGTH_MAX or find_unclean(name, is_multiline=False) is not None:
                continue
            if place == "path" and name not in variables:
                continue
            found[(name, str(place))] = DocumentParameter(  # the operation's own comes last
                name=name,
                place=cast(Place, place),
                is_required=place == "path" or parameter.get("required") is True,
                content=parameter,
            )
        for name in variables:  # a template cannot be filled without them, whether they are declared or not
            if (name, "path") not in found:
                yield DocumentParameter(name=name, place="path", is_required=True, content={})
        yield from list(found.values())[:PARAMETERS_MAX]


def walk_operations(content: Mapping[str, Any]) -> Iterator[DocumentOperation]:
    """In the order of the document."""
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
    """How many a document names, those that cannot be read included."""
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
    """What a reference within the document names (RFC 6901); None for one that leads elsewhere or nowhere."""
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
    """The template with plain names for its variables; None for one that no request could be matched with."""
    if not isinstance(path, str) or not path.startswith("/") or len(path) > PATH_LENGTH_MAX:
        return None
    segments = path[1:].split("/")
    if path != "/" and segments[-1] == "":
        segments.pop()
    for segment in segments if path != "/" else ():
        if not _SEGMENT.fullmatch(segment) or _DOTS.fullmatch(segment) or _TOO_CLOSE.search(segment):
            return None
    names = [_plain_name(name) for name in _VARIABLE.findall(path)]
    if len(set(names)) != len(names) or len(names) > _VARIABLES_MAX or not all(names):
        return None
    return _VARIABLE.sub(lambda variable: "{" + _plain_name(variable[1]) + "}", path)


def _plain_name(name: str) -> str:
    return _UNPLAIN.sub("_", name)[:64].strip("_") or ""
