"""The target of a call: the listing in a raw path, the upstream URL, and the priced operation. Pure.

The bytes of the caller's path are forwarded unchanged or refused; they are never normalised. The operation is matched separately,
under every reading that a server could apply to the path.
"""

import re
from collections.abc import Sequence
from urllib.parse import quote, unquote_plus, unquote_to_bytes

from tollway.errors import Code, FieldError, Problem
from tollway.outbound.policy import Endpoint
from tollway.per_call_record import per_call_record
from tollway.registry.listing import UpstreamAuth
from tollway.registry.paths import (
    PricedOperationT,
    filter_by_method,
    find_most_specific,
    normal_path,
    tidy_path,
)

GATEWAY_PREFIX = "/api/v2/gateway/"
_PREFIX = GATEWAY_PREFIX.encode()
PATH_LENGTH_MAX = 2_048
"""Characters of the path of a call that the ledger and its receipts keep."""


@per_call_record
class Target:
    """The part of a call's URL after the listing id, as sent.

    `rest` is empty or starts with a slash; `query` has no question mark. Both are raw. `signed`: the part that a bound signature covers,
    raw path and query after `/gateway/{apiId}`.
    """

    api_id: str
    rest: str
    query: str
    signed: str


def split_target(raw_path: bytes, query: bytes) -> Target | Problem | None:
    """Splits `/api/v2/gateway/{apiId}/{rest}`. None for a path of another form; Problem for bytes that are not UTF-8."""
    if not raw_path.startswith(_PREFIX):
        return None
    try:
        tail = raw_path[len(_PREFIX) :].decode()
        query_text = query.decode()
    except UnicodeDecodeError:
        return _refused("The URL is not valid UTF-8. Percent-encode its UTF-8 bytes.")
    api_id, slash, rest = tail.partition("/")
    if not api_id:
        return None
    rest = slash + rest
    signed = f"{rest}?{query_text}" if query_text else rest
    return Target(api_id=api_id, rest=rest, query=query_text, signed=signed)


# No reading changes such a path: it has no escape, no dot segment, no matrix parameter, no other separator.
_PLAIN = re.compile(r"(?:/(?!\.)[A-Za-z0-9._~!$&'()*+,=:@-]*)*")
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_OVERLONG = re.compile(
    rb"[\xc0\xc1][\x80-\xbf]|\xe0[\x80-\x9f][\x80-\xbf]"
)  # a dot or slash that is not UTF-8
_UNICODE_ESCAPE = re.compile(r"%(?:25)*u[0-9a-f]{4}", re.I)  # %u002e, which some servers read
_UNWRITABLE = re.compile(r"[\x00-\x20\x7f#?\\]")
_UNWRITABLE_QUERY = re.compile(r"[\x00-\x20\x7f#]")
_DECODES = 2


def build_upstream_target(
    endpoint: Endpoint, rest: str, query: str, *, secret: UpstreamAuth | None = None
) -> str | Problem:
    """Builds path and query for the upstream: the path of the endpoint without its final slash, then the raw rest, unchanged. `secret`: of the
    listing; it is added to the query where it is a parameter.

    An empty rest is the endpoint itself. Refused (`invalid_request`) unless the path stays under the path of the endpoint as written
    and after one and two percent-decodes, with backslashes and encoded slashes read as slashes and matrix parameters removed.
    """
    if secret is not None and secret.location == "query":
        query = add_query_secret(query, name=secret.name, value=secret.reveal())
    if _UNWRITABLE_QUERY.search(query):
        return _refused("The query contains characters that must be percent-encoded.")
    path = endpoint.base_path + rest if rest else endpoint.path or "/"
    if not _PLAIN.fullmatch(rest):
        if rest[:1] != "/" or _UNWRITABLE.search(rest):
            return _refused("The path contains characters that must be percent-encoded.")
        if not all(_stays_under(reading) for reading in _readings(rest)):
            return _refused(
                "The path leads out of the API, or contains encoded control characters. Remove them."
            )
    return f"{path}?{query}" if query else path


def _readings(rest: str) -> list[bytes]:
    """The path as written and after each percent-decode that a server may apply, until decoding changes nothing."""
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
        # Empty segments do not count: servers that merge slashes would climb further.
        elif name not in (b"", b"."):
            depth += 1
    return True


def add_query_secret(query: str, *, name: str, value: str) -> str:
    """Adds the secret parameter of the listing to the query, and removes the caller's parameters of that name."""
    pair = f"{quote(name, safe='')}={quote(value, safe='')}"
    if not query:
        return pair
    kept = [part for part in query.split("&") if unquote_plus(part.partition("=")[0]) != name]
    return "&".join([*kept, pair])


def match_operation(
    operations: Sequence[PricedOperationT], method: str, rest: str
) -> PricedOperationT | Problem | None:
    """The priced operation of a call; None where no operation matches and the listing's own price applies.

    The most specific template wins. HEAD costs the same as GET. A path is refused (`invalid_request`) where an upstream that ignores
    case, decodes again or resolves dot segments would serve it as an operation with another price.
    """
    if not operations:
        return None
    candidates = filter_by_method(operations, method)
    chosen = find_most_specific(candidates, normal_path(rest))
    for reading in other_readings(rest):
        other = find_most_specific(candidates, reading, is_loose=True)
        if other is not None and (
            chosen is None or (other.price, other.metering) != (chosen.price, chosen.metering)
        ):
            return AMBIGUOUS_PATH
    return chosen


def other_readings(rest: str) -> set[str]:
    """All readings of a path that a server could apply, in normal form, the written one included."""
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


AMBIGUOUS_PATH = _refused("The path can be read as more than one operation. Write it as in the API document.")
