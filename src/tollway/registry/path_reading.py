"""How the path of a call is read: the form in which prices and documents are matched, and templates as patterns. Pure.

Nothing here is ever forwarded: what a path *means* is judged on the side.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeVar
from urllib.parse import unquote_to_bytes

_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PARAMETERS = re.compile(r";[^/]*")
_SLASHES = re.compile(r"/{2,}")


def normal_path(rest: str) -> str:
    """The form in which prices are matched: unreserved characters decoded, matrix parameters and double slashes gone,
    no final slash. The root is `/`.
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
    """What a server makes of it that decodes twice."""
    return tidy_path(unquote_to_bytes(unquote_to_bytes(normal)).decode("utf-8", "surrogateescape"))


class PricedOperation(Protocol):
    """`registry.listing.Operation`, as far as matching needs it."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def price(self) -> object: ...


PricedOperationT = TypeVar("PricedOperationT", bound=PricedOperation)


def filter_by_method(operations: Sequence[PricedOperationT], method: str) -> list[PricedOperationT]:
    """HEAD costs what GET costs; a method is compared in upper case, as it is sent."""
    verb = priced_verb(method)
    return [operation for operation in operations if priced_verb(operation.method) == verb]


def priced_verb(method: str) -> str:
    verb = method.upper()
    return "GET" if verb == "HEAD" else verb


def find_most_specific(
    operations: Sequence[PricedOperationT], path: str, *, is_loose: bool = False
) -> PricedOperationT | None:
    """The most specific operation whose template is `path`, in normal form. `is_loose`: as a server reads it that ignores
    case and decodes."""
    found = [one for one in operations if compile_template(one.path).find(is_loose=is_loose).fullmatch(path)]
    # Segment by segment from the left: text before text with a variable in it before a bare variable.
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
