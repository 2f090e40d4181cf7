"""The HTTP request that the arguments of a tool mean. Pure.

The same arguments make the same bytes, whatever their order: a payment is bound to them, and so is an idempotency key.
What the arguments may be was checked before; here is only refused what no request can hold.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from tollway.discovery.sold_operations import ApiOperation, Argument, is_json
from tollway.errors import FieldError

_JSON_TYPE = "application/json"
_FORM = "application/x-www-form-urlencoded"
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


def make_request(operation: ApiOperation, arguments: Mapping[str, Any]) -> ToolRequest | FieldError:
    """Arguments that are null are taken as absent, except a body."""
    try:
        return (
            _make_undocumented(operation, arguments)
            if operation.is_any
            else _make_documented(operation, arguments)
        )
    except _Unwritable as exc:
        return FieldError(code="unwritable", detail=exc.detail, pointer="/" + exc.name)


class _Unwritable(Exception):
    def __init__(self, name: str, detail: str) -> None:
        self.name = name.replace("~", "~0").replace("/", "~1")
        self.detail = detail
        super().__init__(detail)


def _make_documented(operation: ApiOperation, arguments: Mapping[str, Any]) -> ToolRequest:
    given = [(one, arguments[one.name]) for one in operation.arguments if one.name in arguments]
    values = [(one, value) for one, value in given if value is not None]
    headers = [
        (one.parameter, _header_text(one.name, value)) for one, value in values if one.place == "header"
    ]
    bodies = [(one, value) for one, value in given if one.place == "body"]
    body = b""
    if bodies:
        (argument, content), *_ = bodies
        media_type = operation.body_type or _JSON_TYPE
        body = _body_bytes(argument.name, content, media_type)
        headers.append(("content-type", media_type))
    return ToolRequest(
        method=operation.method,
        rest=_fill(operation.path, [(one, value) for one, value in values if one.place == "path"]),
        query="&".join(pair for one, value in values if one.place == "query" for pair in _pairs(one, value)),
        headers=tuple(headers),
        body=body,
    )


def _make_undocumented(operation: ApiOperation, arguments: Mapping[str, Any]) -> ToolRequest:
    """Whatever the listing serves: the caller says method, path and the rest."""
    rest = arguments.get("path") or ""
    path, _, query = ("/" + rest if rest and not rest.startswith("/") else rest).partition("?")
    spread = Argument(
        name="query", place="query", parameter="", is_required=False, style="form", is_exploded=True
    )
    pairs = _pairs(spread, arguments.get("query") or {})
    has_body = "body" in arguments
    return ToolRequest(
        method=arguments.get("method") or operation.method,
        rest=_escape(path),
        query="&".join([*([_escape(query)] if query else []), *pairs]),
        headers=(("content-type", _JSON_TYPE),) if has_body else (),
        body=_json_text("body", arguments["body"]).encode() if has_body else b"",
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
    """Text that may be escaped already."""
    return quote(text, safe="/%:@!$&'()*+,;=~-._?", errors="replace")


def _pairs(argument: Argument, value: Any) -> Iterator[str]:
    """As OpenAPI 3.1 §4.8.12.2 writes it. Of an object the members stand in the order of their names."""
    name, parameter = argument.name, argument.parameter
    if isinstance(value, Mapping):
        members = [(key, value[key]) for key in sorted(value) if value[key] is not None]
        if argument.style == "deepObject":
            yield from (_pair(name, f"{parameter}[{key}]", one) for key, one in members)
        elif argument.is_exploded:
            yield from (_pair(name, key, one) for key, whole in members for one in _many(whole))
        else:
            yield from _joined(argument, [part for member in members for part in member])
    elif isinstance(value, list | tuple) and not argument.is_exploded:
        yield from _joined(argument, value)
    else:
        yield from (_pair(name, parameter, one) for one in _many(value) if one is not None)


_SEPARATORS = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}


def _joined(argument: Argument, parts: Sequence[Any]) -> Iterator[str]:
    if parts:
        texts = [quote(_text(argument.name, one), safe="") for one in parts]
        yield quote(argument.parameter, safe="") + "=" + _SEPARATORS.get(argument.style, ",").join(texts)


def _pair(name: str, parameter: str, value: Any) -> str:
    return f"{quote(parameter, safe='')}={quote(_text(name, value), safe='')}"


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
    if is_json(media_type):
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
