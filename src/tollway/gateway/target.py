"""The target of a call: which listing a raw path names, which URL that is upstream, which operation it buys. Pure.

The bytes that the caller sent are forwarded as they are, or refused; they are never joined, never normalised.
What a path means is decided separately, under every reading that a server could give it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote_plus, unquote_to_bytes

from tollway.errors import Code, FieldError, Problem
from tollway.outbound.policy import Endpoint
from tollway.registry.paths import (
    PricedOperationT,
    filter_by_method,
    find_most_specific,
    normal_path,
    tidy_path,
)

GATEWAY_PREFIX = "/api/v2/gateway/"
_PREFIX = GATEWAY_PREFIX.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The part of a gateway call's URL that belongs to the listing, as sent.

    `rest` is empty or starts with a slash; `query` is without its question mark. Both raw.
    """

    api_id: str
    rest: str
    query: str

    @property
    def signed(self) -> str:
        """What a bound signature covers: raw path and query after `/gateway/{apiId}`."""
        return f"{self.rest}?{self.query}" if self.query else self.rest


def split_target(raw_path: bytes, query: bytes) -> Target | Problem | None:
    """`/api/v2/gateway/{apiId}/{rest}` -> its parts. None for a path of another shape; Problem for unreadable bytes."""
    if not raw_path.startswith(_PREFIX):
        return None
    try:
        tail = raw_path[len(_PREFIX) :].decode()
        query_text = query.decode()
    except UnicodeDecodeError:
        return _refused("The URL is not valid UTF-8.")
    api_id, slash, rest = tail.partition("/")
    if not api_id:
        return None
    return Target(api_id=api_id, rest=slash + rest, query=query_text)


# Nothing here can change a path's meaning: no escape, no dot segment, no parameter, no foreign separator.
_PLAIN = re.compile(r"(?:/(?!\.)[A-Za-z0-9._~!$&'()*+,=:@-]*)*")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_OVERLONG = re.compile(
    rb"[\xc0\xc1][\x80-\xbf]|\xe0[\x80-\x9f][\x80-\xbf]"
)  # a dot or slash that is not UTF-8
_UNICODE_ESCAPE = re.compile(r"%(?:25)*u[0-9a-f]{4}", re.I)  # %u002e, which some servers read
_UNWRITABLE = re.compile(r"[\x00-\x20\x7f#?\\]")
_UNWRITABLE_QUERY = re.compile(r"[\x00-\x20\x7f#]")
_DECODES = 2


def build_upstream_target(endpoint: Endpoint, rest: str, query: str) -> str | Problem:
    """Path and query for the upstream: the endpoint's path without its final slash, then the raw rest, untouched.

    An empty rest is the endpoint itself. Refused (`invalid_request`) unless the path stays under the endpoint's own
    as it stands, after one and after two percent-decodes, with backslashes and encoded slashes read as slashes and
    matrix parameters dropped.
    """
    if _UNWRITABLE_QUERY.search(query):
        return _refused("The query holds characters that need percent-encoding.")
    path = endpoint.base_path + rest if rest else endpoint.path or "/"
    if not _PLAIN.fullmatch(rest):
        if rest[:1] != "/" or _UNWRITABLE.search(rest):
            return _refused("The path holds characters that need percent-encoding.")
        if not all(_stays_under(reading) for reading in _readings(rest)):
            return _refused("The path leaves the API, or hides control characters.")
    return f"{path}?{query}" if query else path


def _readings(rest: str) -> list[bytes]:
    """The path as it stands and after each decode that a server may perform; fewer when nothing is left to decode."""
    readings = [rest.encode()]
    for _ in range(_DECODES):
        decoded = unquote_to_bytes(readings[-1])
        if decoded == readings[-1]:
            break
        readings.append(decoded)
    return readings


def _stays_under(reading: bytes) -> bool:
    if _CONTROL.search(reading) or _OVERLONG.search(reading):
        return False
    if _UNICODE_ESCAPE.search(reading.decode("latin-1")):
        return False
    depth = 0
    for segment in reading.replace(b"\\", b"/").split(b"/"):
        name = segment.partition(b";")[0]
        if name == b"..":
            depth -= 1
            if depth < 0:
                return False
        # An empty segment counts as none: servers that merge slashes climb further than those that do not.
        elif name not in (b"", b"."):
            depth += 1
    return True


def add_query_secret(query: str, *, name: str, value: str) -> str:
    """The query with the listing's own parameter; the caller's parameters of that name are dropped."""
    pair = f"{quote(name, safe='')}={quote(value, safe='')}"
    if not query:
        return pair
    kept = [part for part in query.split("&") if unquote_plus(part.partition("=")[0]) != name]
    return "&".join([*kept, pair])


def match_operation(
    operations: Sequence[PricedOperationT], method: str, rest: str
) -> PricedOperationT | Problem | None:
    """The operation that this call buys; None when none is named and the listing's own price holds.

    The most specific template wins. HEAD costs what GET costs; a method is compared in upper case, as it is sent.
    A path is refused (`invalid_request`) when an upstream that ignores case, decodes once more or resolves dot
    segments would serve it as another operation, of another price, than the one it is written as.
    """
    if not operations:
        return None
    candidates = filter_by_method(operations, method)
    chosen = find_most_specific(candidates, normal_path(rest))
    for reading in other_readings(rest):
        other = find_most_specific(candidates, reading, is_loose=True)
        if other is not None and (chosen is None or other.price != chosen.price):
            return AMBIGUOUS_PATH
    return chosen


def other_readings(rest: str) -> set[str]:
    """What servers could make of a path, each in normal form; how it is written is one of them."""
    readings = {tidy_path(_text(reading.replace(b"\\", b"/"))) for reading in _readings(rest or "/")}
    return readings | {_resolve_dots(reading) for reading in readings if "/." in reading}


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _resolve_dots(path: str) -> str:
    kept: list[str] = []
    for segment in path.split("/")[1:]:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    return "/" + "/".join(kept)


def _refused(detail: str) -> Problem:
    return Problem(
        code=Code.INVALID_REQUEST,
        detail=detail,
        errors=(FieldError(code="invalid", detail=detail, parameter="path"),),
    )


AMBIGUOUS_PATH = _refused(
    "The path can be read as more than one operation; write it as the API's documents do."
)
