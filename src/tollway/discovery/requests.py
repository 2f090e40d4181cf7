"""Makes the HTTP request of an operation from its arguments, and an example request from its schemas. Pure.

Equal arguments make equal bytes, in any order: a payment and an idempotency key are bound to them. Arguments are validated before; this module refuses only
values that no request can carry. An example is short, its values are placeholders, and it can be sent as it is: a request with a file has none.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tollway.discovery.forms import (
    MULTIPART,
    Unwritable,
    bare_type,
    is_form,
    is_json,
    list_values,
    read_file,
    write_form,
    write_json,
    write_text,
)
from tollway.discovery.operations import ApiOperation, Argument
from tollway.errors import FieldError

_JSON_TYPE = "application/json"
_EXEMPLARY_TEXT = "text/plain"
"""The only type of a body as text in which a placeholder is valid."""
_VARIABLE = re.compile(r"\{([^{}/]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """A request to a listing. `rest`: the raw path below the gateway URL of the listing; `query` without its question mark."""

    method: str
    rest: str
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    @property
    def target(self) -> str:
        """The target that a bound signature covers."""
        return f"{self.rest}?{self.query}" if self.query else self.rest


def make_request(operation: ApiOperation, arguments: Mapping[str, Any]) -> ToolRequest | FieldError:
    """The request of an operation. Null arguments are ignored, except a body."""
    try:
        return (
            _make_undocumented(operation, arguments)
            if operation.is_any
            else _make_documented(operation, arguments)
        )
    except Unwritable as exc:
        return FieldError(code="unwritable", detail=exc.detail, pointer=exc.pointer)


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
        media_type, body = _write_body(operation, argument.name, content)
        headers.append(("content-type", media_type))
    return ToolRequest(
        method=operation.method,
        rest=_fill(operation.path, [(one, value) for one, value in values if one.place == "path"]),
        query="&".join(pair for one, value in values if one.place == "query" for pair in _pairs(one, value)),
        headers=tuple(headers),
        body=body,
    )


def _make_undocumented(operation: ApiOperation, arguments: Mapping[str, Any]) -> ToolRequest:
    """The caller gives method, path, query and body."""
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
        body=write_json("body", arguments["body"]).encode() if has_body else b"",
    )


def _fill(template: str, values: list[tuple[Argument, Any]]) -> str:
    known = {one.parameter: (one.name, value) for one, value in values}

    def write(variable: re.Match[str]) -> str:
        name, value = known.get(variable[1], (variable[1], None))
        text = ",".join(quote(write_text(name, one), safe="") for one in list_values(value))
        if text in ("", ".", ".."):
            raise Unwritable(name, "A part of the path must not be empty, a dot or two.")
        return text

    parts = []
    last = 0
    for variable in _VARIABLE.finditer(template):
        parts += [_escape(template[last : variable.start()]), write(variable)]
        last = variable.end()
    return "".join([*parts, _escape(template[last:])])


def _escape(text: str) -> str:
    """Escapes text that may be escaped already."""
    return quote(text, safe="/%:@!$&'()*+,;=~-._?", errors="replace")


def _pairs(argument: Argument, value: Any) -> Iterator[str]:
    """Serializes a query argument by OpenAPI 3.1 §4.8.12.2. The members of an object are sorted by name."""
    name, parameter = argument.name, argument.parameter
    if isinstance(value, Mapping):
        members = [(key, value[key]) for key in sorted(value) if value[key] is not None]
        if argument.style == "deepObject":
            yield from (_pair(name, f"{parameter}[{key}]", one) for key, one in members)
        elif argument.is_exploded:
            yield from (_pair(name, key, one) for key, whole in members for one in list_values(whole))
        else:
            yield from _joined(argument, [part for member in members for part in member])
    elif isinstance(value, list | tuple) and not argument.is_exploded:
        yield from _joined(argument, value)
    else:
        yield from (_pair(name, parameter, one) for one in list_values(value) if one is not None)


_SEPARATORS = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}


def _joined(argument: Argument, parts: Sequence[Any]) -> Iterator[str]:
    if parts:
        texts = [quote(write_text(argument.name, one), safe="") for one in parts]
        yield quote(argument.parameter, safe="") + "=" + _SEPARATORS.get(argument.style, ",").join(texts)


def _pair(name: str, parameter: str, value: Any) -> str:
    return f"{quote(parameter, safe='')}={quote(write_text(name, value), safe='')}"


def _header_text(name: str, value: Any) -> str:
    text = ", ".join(write_text(name, one) for one in list_values(value))
    if not text.isascii() or not text.isprintable():
        raise Unwritable(name, "A header holds printable ASCII only.")
    return text


def _write_body(operation: ApiOperation, name: str, content: Any) -> tuple[str, bytes]:
    media_type = operation.body_type or _JSON_TYPE
    if is_form(media_type) and isinstance(content, Mapping):
        return write_form(name, media_type, operation.form_fields, content)
    if bare_type(media_type) == MULTIPART:
        raise Unwritable(name, "The fields of a form are an object.")
    if operation.is_body_file:
        given = read_file(name, content)
        return media_type, given.content
    text = write_json(name, content) if is_json(media_type) else write_text(name, content)
    return media_type, text.encode()


EXAMPLE_BYTES_MAX = 600
VALUE_BYTES_MAX = 200
_DEPTH_MAX = 6
_MEMBERS_MAX = 12
_REF = "#/$defs/"
_BASE64_TEXT = "dGV4dA=="
_TEXT_OF_FORMAT: Mapping[str, str] = {
    "byte": _BASE64_TEXT,
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "email": "someone@example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uri": "https://example.com/",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
}

NO_VALUE: Any = object()


def example_arguments(operation: ApiOperation) -> dict[str, Any] | None:
    """Values of the required arguments, and of others that have a value in the document; None when a required argument has no short value."""
    values = {
        argument.name: value
        for argument in operation.arguments
        if (value := _argument_value(operation.input_schema, argument)) is not NO_VALUE
    }
    needed = {one.name for one in operation.arguments if one.is_required}
    return values if needed <= values.keys() else None


def example_json(operation: ApiOperation, gateway_url: str) -> dict[str, Any] | None:
    """An example request as JSON; None without a short one. `gateway_url`: of the listing, without a final slash."""
    arguments = example_arguments(operation)
    if arguments is None:
        return None
    if operation.is_any:
        return {"method": operation.method, "url": gateway_url + operation.path}
    body = next((one.name for one in operation.arguments if one.place == "body"), None)
    if body in arguments and not _has_exemplary_body(operation, arguments[body]):
        return None
    request = make_request(operation, arguments)
    if not isinstance(request, ToolRequest):
        return None
    content: dict[str, Any] = {"method": request.method, "url": gateway_url + request.target}
    if request.headers:
        content["headers"] = dict(request.headers)
    if body in arguments:
        content["body"] = request.body.decode() if is_form(operation.body_type) else arguments[body]
    return content if _is_small(content, EXAMPLE_BYTES_MAX) else None


def _has_exemplary_body(operation: ApiOperation, value: Any) -> bool:
    """Whether an example of the body can be sent: no placeholder is a file, or text in the form of a type."""
    media_type = operation.body_type or _JSON_TYPE
    if is_form(media_type):
        return not any(field.is_file and field.name in value for field in operation.form_fields)
    if operation.is_body_file or str(value).startswith("@"):  # `curl --data @path` sends a file of the reader
        return False
    return is_json(media_type) or bare_type(media_type) == _EXEMPLARY_TEXT


def make_value(schema: Mapping[str, Any]) -> Any:
    """A value of a schema with its own definitions, whose parts are placeholders where the document has none; `NO_VALUE` without a short one."""
    return _value_of(schema, _mapping(schema.get("$defs")), 0)


def _argument_value(schema: Mapping[str, Any], argument: Argument) -> Any:
    """The value of an argument: a required one always has one, another one only from the document."""
    defs = _mapping(schema.get("$defs"))
    own = _mapping(_mapping(schema.get("properties")).get(argument.name))
    value = _value_of(own, defs, 0) if argument.is_required else _documented_value(own)
    return value if value is NO_VALUE or _is_small(value, VALUE_BYTES_MAX * 2) else NO_VALUE


def _value_of(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    given = _documented_value(schema)
    if given is not NO_VALUE:
        return given
    if depth >= _DEPTH_MAX:
        return NO_VALUE
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.removeprefix(_REF)
        return _value_of(_mapping(defs.get(name)), defs, depth + 1) if reference != name else NO_VALUE
    for word in ("allOf", "oneOf", "anyOf"):
        choices = schema.get(word)
        if isinstance(choices, list) and choices and "type" not in schema:
            real = (one for one in choices if _mapping(one).get("type") != "null")
            return _value_of(_mapping(next(real, None)), defs, depth + 1)
    return _value_of_kind(_kind(schema), schema, defs, depth)


def _value_of_kind(kind: str, schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    match kind:
        case "object":
            return _object(schema, defs, depth)
        case "array":
            item = _value_of(_mapping(schema.get("items")), defs, depth + 1)
            return [] if item is NO_VALUE else [item]
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            if schema.get("contentEncoding") == "base64":
                return _BASE64_TEXT
            return _TEXT_OF_FORMAT.get(str(schema.get("format")), "text")


def _object(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    properties = _mapping(schema.get("properties"))
    required = schema.get("required")
    needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    if len(needed) > _MEMBERS_MAX:
        return NO_VALUE
    members: dict[str, Any] = {}
    for name in needed:
        value = _value_of(_mapping(properties.get(name)), defs, depth + 1)
        if value is NO_VALUE:
            return NO_VALUE
        members[name] = value
    for name, own in _first(properties.items()):
        value = _documented_value(_mapping(own))
        if value is not NO_VALUE:
            members.setdefault(name, value)
    return members


def _documented_value(schema: Mapping[str, Any]) -> Any:
    for word in ("examples", "enum"):
        several = schema.get(word)
        if isinstance(several, list) and several and _is_small(several[0], VALUE_BYTES_MAX):
            return several[0]
    for word in ("example", "const", "default"):
        if word in schema and schema[word] is not None and _is_small(schema[word], VALUE_BYTES_MAX):
            return schema[word]
    return NO_VALUE


def _number(schema: Mapping[str, Any]) -> Any:
    least, most = schema.get("minimum"), schema.get("maximum")
    for bound in (least, most):
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            return bound
    return 1


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    if isinstance(kind, str):
        return kind
    return "object" if "properties" in schema else "array" if "items" in schema else "string"


def _is_small(value: Any, bytes_max: int) -> bool:
    try:
        return len(json.dumps(value, ensure_ascii=False).encode()) <= bytes_max
    except (ValueError, RecursionError):
        return False


def _first(members: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    return [member for member, _ in zip(members, range(_MEMBERS_MAX), strict=False)]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
