"""One example of a call of an operation, made from its schemas. Pure.

The schemas come from a stranger: whatever they say, an example is small, nothing is followed out of the schema, and
nothing fails. It shows the shape of a call; whether its values mean anything to the upstream is not known here.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tollway.discovery.sold_operations import ApiOperation, Argument
from tollway.discovery.tool_request import ToolRequest, make_request

EXAMPLE_BYTES_MAX = 600
VALUE_BYTES_MAX = 200
_DEPTH_MAX = 6
_MEMBERS_MAX = 12
_REF = "#/$defs/"
_TEXT_OF_FORMAT: Mapping[str, str] = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "email": "someone@example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uri": "https://example.com/",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
}

_NO_VALUE: Any = object()


def example_arguments(operation: ApiOperation) -> dict[str, Any] | None:
    """Values for what is required, and for what the document itself gives a value of; None when something required
    finds none."""
    shown = {
        argument.name: value
        for argument in operation.arguments
        if (value := _argument_value(operation.input_schema, argument)) is not _NO_VALUE
    }
    needed = {one.name for one in operation.arguments if one.is_required}
    return shown if needed <= shown.keys() else None


def example_json(operation: ApiOperation, gateway_url: str) -> dict[str, Any] | None:
    """One HTTP request as JSON; None where none is found, or none that is short. `gateway_url`: of the listing, without a
    final slash."""
    arguments = example_arguments(operation)
    if arguments is None:
        return None
    if operation.is_any:
        return {"method": operation.method, "url": gateway_url + operation.path}
    request = make_request(operation, arguments)
    if not isinstance(request, ToolRequest):
        return None
    content: dict[str, Any] = {"method": request.method, "url": gateway_url + request.target}
    if request.headers:
        content["headers"] = dict(request.headers)
    body = next((one.name for one in operation.arguments if one.place == "body"), None)
    if body in arguments:
        content["body"] = arguments[body]
    return content if _is_small(content, EXAMPLE_BYTES_MAX) else None


def _argument_value(schema: Mapping[str, Any], argument: Argument) -> Any:
    """What is required always, what is not only where the document itself gives a value."""
    defs = _mapping(schema.get("$defs"))
    own = _mapping(_mapping(schema.get("properties")).get(argument.name))
    value = _value_of(own, defs, 0) if argument.is_required else _documented_value(own)
    return value if value is _NO_VALUE or _is_small(value, VALUE_BYTES_MAX * 2) else _NO_VALUE


def _value_of(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    given = _documented_value(schema)
    if given is not _NO_VALUE:
        return given
    if depth >= _DEPTH_MAX:
        return _NO_VALUE
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.removeprefix(_REF)
        return _value_of(_mapping(defs.get(name)), defs, depth + 1) if reference != name else _NO_VALUE
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
            return [] if item is _NO_VALUE else [item]
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return _TEXT_OF_FORMAT.get(str(schema.get("format")), "text")


def _object(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Any:
    properties = _mapping(schema.get("properties"))
    required = schema.get("required")
    needed = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    if len(needed) > _MEMBERS_MAX:
        return _NO_VALUE
    members: dict[str, Any] = {}
    for name in needed:
        value = _value_of(_mapping(properties.get(name)), defs, depth + 1)
        if value is _NO_VALUE:
            return _NO_VALUE
        members[name] = value
    for name, own in _first(properties.items()):
        value = _documented_value(_mapping(own))
        if value is not _NO_VALUE:
            members.setdefault(name, value)
    return members


def _documented_value(schema: Mapping[str, Any]) -> Any:
    """A value that the document itself gives."""
    for word in ("examples", "enum"):
        several = schema.get(word)
        if isinstance(several, list) and several and _is_small(several[0], VALUE_BYTES_MAX):
            return several[0]
    for word in ("example", "const", "default"):
        if word in schema and schema[word] is not None and _is_small(schema[word], VALUE_BYTES_MAX):
            return schema[word]
    return _NO_VALUE


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
