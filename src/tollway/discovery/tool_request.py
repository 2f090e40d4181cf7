"""The HTTP request that the arguments of a tool mean. Pure.

The same arguments make the same bytes, whatever their order: a payment is bound to them, and so is an idempotency key.
What the arguments may be was checked before; here is only refused what no request can hold.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from tollway.discovery.sold_operations import Argument, SoldOperation
from tollway.errors import FieldError

_JSON = re.compile(r"application/(?:[a-z0-9.!#$&^_-]+\+)?json", re.I)
_FORM = "application/x-www-form-urlencoded"
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(?:; ?[a-z]+=[A-Za-z0-9_.-]+)*")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^`|~-]{1,128}")
_VARIABLE = re.compile(r"\{([^{}/]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """`rest`: the raw path below the gateway URL of the listing; `query` without its question mark."""

    method: str
    rest: str
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    @property
    def target(self) -> str:
        """What a bound signature covers."""
        return f"{self.rest}?{self.query}" if self.query else self.rest


def make_request(operation: SoldOperation, arguments: Mapping[str, Any]) -> ToolRequest | FieldError:
    """Arguments that are null are taken as absent, except a body."""
    try:
        return _make_any(arguments) if operation.is_any else _make(operation, arguments)
    except _Unwritable as exc:
        return FieldError(code="unwritable", detail=exc.detail, pointer="/" + exc.name)


class _Unwritable(Exception):
    def __init__(self, name: str, detail: str) -> None:
        self.name = name.replace("~", "~0").replace("/", "~1")
        self.detail = detail
        super().__init__(detail)


def _make(operation: SoldOperation, arguments: Mapping[str, Any]) -> ToolRequest:
    given = [(one, arguments[one.name]) for one in operation.arguments if one.name in arguments]
    values = [(one, value) for one, value in given if value is not None]
    headers = [
        (one.parameter, _header_text(one.name, value)) for one, value in values if one.place == "header"
    ]
    bodies = [(one, value) for one, value in given if one.place == "body"]
    body = b""
    if bodies:
        (argument, content), *_ = bodies
        media_type = operation.body_type or "application/json"
        body = _body_bytes(argument.name, content, media_type)
        headers.append(("content-type", media_type))
    return ToolRequest(
        method=operation.method,
        rest=_fill(operation.path, [(one, value) for one, value in values if one.place == "path"]),
        query="&".join(
            pair for one, value in values if one.place == "query" for pair in _pairs(one.parameter, value)
        ),
        headers=tuple(headers),
        body=body,
    )


def _make_any(arguments: Mapping[str, Any]) -> ToolRequest:
    """Whatever the listing serves: the caller says method, path and the rest."""
    rest = arguments.get("path") or ""
    if rest and not rest.startswith("/"):
        rest = "/" + rest
    path, _, query = rest.partition("?")
    pairs = [pair for name, value in (arguments.get("query") or {}).items() for pair in _pairs(name, value)]
    headers = [
        (name, _header_text("headers", value)) for name, value in (arguments.get("headers") or {}).items()
    ]
    if not all(_HEADER_NAME.fullmatch(name) for name, _ in headers):
        raise _Unwritable("headers", "A header's name is not one.")
    body = b""
    if "body" in arguments:
        media_type = arguments.get("contentType") or "application/json"
        if not _MEDIA_TYPE.fullmatch(media_type):
            raise _Unwritable("contentType", "This is not a media type.")
        body = _body_bytes("body", arguments["body"], media_type)
        headers.append(("content-type", media_type))
    return ToolRequest(
        method=arguments.get("method") or "GET",
        rest=path,
        query="&".join([*([query] if query else []), *pairs]),
        headers=tuple(headers),
        body=body,
    )


def _fill(template: str, values: list[tuple[Argument, Any]]) -> str:
    known = {one.parameter: (one.name, value) for one, value in values}

    def write(variable: re.Match[str]) -> str:
        name, value = known.get(variable[1], (variable[1], None))
        text = ",".join(quote(_text(name, one), safe="") for one in _many(value))
        if text in ("", ".", ".."):
            raise _Unwritable(name, "A part of the path must not be empty, a dot or two.")
        return text

    parts = []
    last = 0
    for variable in _VARIABLE.finditer(template):
        parts += [_escape(template[last : variable.start()]), write(variable)]
        last = variable.end()
    return "".join([*parts, _escape(template[last:])])


def _escape(text: str) -> str:
    """A template's own text, which may be escaped already."""
    return quote(text, safe="/%:@!$&'()*+,;=~-._")


def _pairs(name: str, value: Any) -> Iterator[str]:
    """Lists repeat the name, objects are spread over names of their own (style form, exploded: OpenAPI's default)."""
    if isinstance(value, Mapping):
        for key in sorted(value):
            yield from _pairs(key, value[key])
        return
    for one in _many(value):
        if one is not None:
            yield f"{quote(name, safe='')}={quote(_text(name, one), safe='')}"


def _many(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return list(value)
    return [] if value is None else [value]


def _header_text(name: str, value: Any) -> str:
    text = ", ".join(_text(name, one) for one in _many(value))
    if not text.isascii() or not text.isprintable():
        raise _Unwritable(name, "A header holds printable ASCII only.")
    return text


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as exc:
            raise _Unwritable(name, "Half a surrogate pair has no UTF-8 form.") from exc
        return value
    if isinstance(value, Mapping | list | tuple):
        return _json_text(name, value)
    return json.dumps(value)


def _body_bytes(name: str, content: Any, media_type: str) -> bytes:
    if _JSON.match(media_type):
        return _json_text(name, content).encode()
    if media_type.lower().startswith(_FORM) and isinstance(content, Mapping):
        fields = [(key, _text(name, one)) for key in sorted(content) for one in _many(content[key])]
        return urlencode(fields).encode()
    return _text(name, content).encode()


def _json_text(name: str, value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
        text.encode()
    except (ValueError, RecursionError) as exc:
        raise _Unwritable(name, "This cannot be written as JSON.") from exc
    return text
