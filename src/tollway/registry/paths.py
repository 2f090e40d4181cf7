"""The path of a call and the path templates of operations: normal form, matching, a tree of many templates, and the grammar of a
provider's template. Pure.

The gateway does not forward these forms. Templates match segment by segment from the left: plain text comes before text with a variable, and that before a bare variable.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, Protocol, TypeVar
from urllib.parse import unquote_to_bytes

_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PARAMETERS = re.compile(r";[^/]*")
_SLASHES = re.compile(r"/{2,}")


def normal_path(rest: str) -> str:
    """The normal form in which prices are matched: unreserved characters are decoded; matrix parameters, double slashes and the
    final slash are removed. The root is `/`.
    """
    if "%" in rest:
        rest = _ESCAPE.sub(_decode_unreserved, rest)
    return tidy_path(rest)


def _decode_unreserved(escape: re.Match[str]) -> str:
    character = chr(int(escape[1], 16))
    return character if character in _UNRESERVED else escape[0].upper()


def tidy_path(path: str) -> str:
    if ";" in path:
        path = _PARAMETERS.sub("", path)
    if "//" in path:
        path = _SLASHES.sub("/", path)
    return path.rstrip("/") or "/"


def loose_path(normal: str) -> str:
    """The path as a server that decodes twice reads it."""
    return tidy_path(unquote_to_bytes(unquote_to_bytes(normal)).decode("utf-8", "surrogateescape"))


class PricedOperation(Protocol):
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def price(self) -> object: ...
    @property
    def metering(self) -> object: ...


PricedOperationT = TypeVar("PricedOperationT", bound=PricedOperation)


def filter_by_method(operations: Sequence[PricedOperationT], method: str) -> list[PricedOperationT]:
    """The operations of a method. HEAD counts as GET; methods are compared in upper case."""
    verb = priced_verb(method)
    return [operation for operation in operations if priced_verb(operation.method) == verb]


def priced_verb(method: str) -> str:
    verb = method.upper()
    return "GET" if verb == "HEAD" else verb


def find_most_specific(
    operations: Sequence[PricedOperationT], path: str, *, is_loose: bool = False
) -> PricedOperationT | None:
    """`path` is in normal form. `is_loose`: as a server matches that ignores case and decodes twice."""
    found = [one for one in operations if compile_template(one.path).find(is_loose=is_loose).fullmatch(path)]
    # Segment by segment from the left: plain text, then text with a variable, then a bare variable.
    return min(found, key=lambda operation: compile_template(operation.path).rank, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathTemplate:
    exact: re.Pattern[str]
    loose: re.Pattern[str]
    rank: tuple[tuple[int, int], ...]

    def find(self, *, is_loose: bool) -> re.Pattern[str]:
        return self.loose if is_loose else self.exact


_VARIABLE = re.compile(r"\{[^{}/]*\}")


@lru_cache(maxsize=4096)
def compile_template(path: str) -> PathTemplate:
    normal = normal_path(path)
    return PathTemplate(
        exact=re.compile(_template_pattern(normal), re.S),
        loose=re.compile(_template_pattern(loose_path(normal)), re.I | re.S),
        rank=tuple(_segment_rank(segment) for segment in normal.split("/")),
    )


def _template_pattern(path: str) -> str:
    return "[^/]+".join(re.escape(text) for text in _VARIABLE.split(path))


def _segment_rank(segment: str) -> tuple[int, int]:
    text = _VARIABLE.sub("", segment)
    if text == segment:
        return (0, 0)
    return (1, -len(text)) if text else (2, 0)


T = TypeVar("T")

_TREE_VARIABLE = re.compile(r"\{[^{}/]*\}")


@dataclass(slots=True, kw_only=True)
class _PathNode(Generic[T]):
    plain: dict[str, "_PathNode[T]"] = field(default_factory=dict)
    mixed: dict[str, tuple[re.Pattern[str], "_PathNode[T]"]] = field(default_factory=dict)
    bare: "_PathNode[T] | None" = None
    values: list[T] = field(default_factory=list)


class PathTree(Generic[T]):
    """A tree of path templates with a value each. Two variables of a template must not be adjacent."""

    def __init__(self) -> None:
        self._root: _PathNode[T] = _PathNode()

    def add(self, template: str, value: T) -> None:
        """`template` is in normal form. Of two templates of one shape the first counts."""
        node = self._root
        for segment in template.split("/"):
            text = _TREE_VARIABLE.sub("", segment)
            if text == segment:
                node = node.plain.setdefault(segment, _PathNode())
            elif not text:
                node.bare = node.bare or _PathNode()
                node = node.bare
            else:
                shape = _TREE_VARIABLE.sub("{}", segment)
                node = node.mixed.setdefault(shape, (_segment_pattern(shape), _PathNode()))[1]
        node.values.append(value)

    def find(self, path: str) -> T | None:
        """The value of the most specific template that matches `path`, in normal form; None without one."""
        return _find_value(self._root, path.split("/"), 0)


def _find_value(node: _PathNode[T], segments: list[str], depth: int) -> T | None:
    if depth == len(segments):
        return node.values[0] if node.values else None
    segment = segments[depth]
    following = [node.plain[segment]] if segment in node.plain else []
    if segment:
        # The longer the text around a variable, the more specific the template.
        mixed = sorted(node.mixed.items(), key=lambda one: -len(one[0]))
        following += [inner for _, (pattern, inner) in mixed if pattern.fullmatch(segment)]
        following += [node.bare] if node.bare else []
    for inner in following:
        found = _find_value(inner, segments, depth + 1)
        if found is not None:
            return found
    return None


def _segment_pattern(shape: str) -> re.Pattern[str]:
    """The pattern of a segment. A variable ends at the first character of the text after it, so that matching takes linear time."""
    texts = shape.split("{}")
    written = re.escape(texts[0])
    for text in texts[1:]:
        written += (f"[^{re.escape(text[0])}]+" if text else ".+") + re.escape(text)
    return re.compile(written, re.S)


PATH_PARAMETERS_MAX = 16

# RFC 3986 `pchar` without `;`: matrix parameters are removed before matching, so a template with one never matches.
_LITERAL = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,=:@-]|%[0-9A-F]{2})+")
_PARAMETER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]{0,63})\}")
_DOTS = re.compile(r"(?:\.|%2[eE]){1,2}")
_UPPER_ESCAPE = re.compile(r"%([0-9A-F]{2})")
_UNRESERVED_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SEPARATORS = frozenset(b"/\\;%")


def find_path_fault(path: str) -> str | None:
    if not path.startswith("/"):
        return "must begin with /"
    if path == "/":
        return None
    parameters: list[str] = []
    for segment in path[1:].split("/"):
        if segment == "":
            return "must not hold // or end with /"
        if parameter := _PARAMETER.fullmatch(segment):
            parameters.append(parameter[1])
        elif fault := _find_literal_fault(segment):
            return fault
    if len(set(parameters)) != len(parameters) or len(parameters) > PATH_PARAMETERS_MAX:
        return f"must name each parameter once, and at most {PATH_PARAMETERS_MAX}"
    return None


def path_shape(path: str) -> str:
    """The template without the names of its parameters: two operations of one shape match the same calls."""
    return _PARAMETER.sub("{}", path)


def _find_literal_fault(segment: str) -> str | None:
    if "{" in segment or "}" in segment:
        return "must hold a parameter as a whole segment: /{name}/"
    if _DOTS.fullmatch(segment):
        return "must not hold . or .. segments"
    if not _LITERAL.fullmatch(segment):
        return "must be a path: no query, no fragment, other characters percent-encoded in upper case"
    for escape in _UPPER_ESCAPE.findall(segment):
        byte = int(escape, 16)
        if byte in _UNRESERVED_BYTES:
            return f"must write %{escape} as the plain character"
        if byte in _SEPARATORS or byte < 0x20 or byte == 0x7F:
            return f"must not hold %{escape}"
    return None
