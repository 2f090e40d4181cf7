"""The call of a 402 in the form of its API: the page of the 402 leads to it with the method, the path and the query of the call. Pure.

A call that an operation of the listing describes fills the fields of that operation, if the request of those fields is the call again. Every other call is
kept as it is: the form then has one field for the method and one for the path with its query. A browser shows a 402 only after a GET or HEAD, so a call has no body.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, unquote

from tollway.discovery.operations import ApiOperation, describe_whole_listing
from tollway.discovery.requests import ToolRequest, example_arguments, make_request
from tollway.registry.listing import Listing
from tollway.registry.metering import OfferedPrice, offer
from tollway.registry.paths import PathTree, normal_path

TARGET_LENGTH_MAX = 2_000
"""A longer target is not kept: the link of the 402 leads to the form of the first operation."""

_VARIABLE = re.compile(r"\{([^{}/]*)\}")
_TARGET = re.compile(r"([/?][!-~]*)?")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCall:
    """`target`: the raw path below the URL of the listing, with its query."""

    method: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledCall:
    """`operation`: of the form. `values`: of its arguments, by name; None for those of its example. `is_whole`: the form has the method and the target
    of the call as they are."""

    operation: ApiOperation
    values: Mapping[str, Any] | None = None
    is_whole: bool = False


def keep_call(method: str, target: str) -> KeptCall | None:
    """The call of a form; None for a target that no form can send. HEAD costs what GET costs, and a form sends GET."""
    if len(target) > TARGET_LENGTH_MAX or not _TARGET.fullmatch(target):
        return None
    return KeptCall(method="GET" if method == "HEAD" else method, target=target)


def fill_call(listing: Listing, operations: Sequence[ApiOperation], call: KeptCall) -> FilledCall:
    """The operation of the call with its values; where no operation describes the call exactly, the listing as a whole, for the price of the call."""
    path, _, query = call.target.partition("?")
    described = _find_operation(operations, call.method, path)
    values = None if described is None else _read_values(described, path, query)
    if described is not None and values is not None and _is_same(described, values, call):
        return FilledCall(operation=described, values=values)
    offered = offer(listing if described is None else described)
    return FilledCall(operation=_keep_whole(listing, offered, call.method), values={}, is_whole=True)


def _find_operation(operations: Sequence[ApiOperation], method: str, path: str) -> ApiOperation | None:
    tree: PathTree[ApiOperation] = PathTree()
    for operation in operations:
        if operation.method == method and not operation.is_any and "}{" not in operation.path:
            tree.add(normal_path(operation.path), operation)
    return tree.find(normal_path(path))


def _keep_whole(listing: Listing, offered: OfferedPrice, method: str) -> ApiOperation:
    whole = describe_whole_listing(listing)
    return replace(whole, method=method, price=offered.price, metering=offered.metering)


def _read_values(operation: ApiOperation, path: str, query: str) -> dict[str, Any] | None:
    """The arguments of the operation as the call has them, and those of its headers and body as its example has them."""
    found = _make_pattern(operation.path).fullmatch(path)
    if found is None:
        return None
    in_path = dict(zip(_VARIABLE.findall(operation.path), map(unquote, found.groups()), strict=True))
    in_query: dict[str, list[str]] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        in_query.setdefault(name, []).append(value)
    examples = example_arguments(operation) or {}
    values: dict[str, Any] = {}
    for one in operation.arguments:
        if one.place == "path" and one.parameter in in_path:
            values[one.name] = in_path[one.parameter]
        elif one.place == "query" and one.parameter in in_query:
            given = in_query[one.parameter]
            values[one.name] = given[0] if len(given) == 1 else given
        elif one.place in ("header", "body") and one.name in examples:
            values[one.name] = examples[one.name]
    return values


def _make_pattern(template: str) -> re.Pattern[str]:
    """The pattern of a template. A variable ends at the first character of the text after it, so that matching takes linear time."""
    parts = _VARIABLE.split(template)
    written = re.escape(parts[0])
    for text in parts[2::2]:
        written += f"([^/{re.escape(text[:1])}]+)" + re.escape(text)
    return re.compile(written)


def _is_same(operation: ApiOperation, values: Mapping[str, Any], call: KeptCall) -> bool:
    """Whether the fields of the form hold these values, and their request is the call."""
    properties = operation.input_schema.get("properties", {})
    for one in operation.arguments:
        if (
            one.place in ("path", "query")
            and one.name in values
            and not _fits(properties.get(one.name), values[one.name])
        ):
            return False
    request = make_request(operation, values)
    if not isinstance(request, ToolRequest):
        return False
    path, _, query = call.target.partition("?")
    return unquote(request.rest) == unquote(path) and sorted(
        parse_qsl(request.query, keep_blank_values=True)
    ) == sorted(parse_qsl(query, keep_blank_values=True))


def _fits(schema: object, value: Any) -> bool:
    """Whether the field of an argument can hold a value: none is empty, a choice is one of its choices, a number is a number, and only a list has several."""
    texts = value if isinstance(value, list) else [value]
    if "" in texts:
        return False
    if not isinstance(schema, Mapping):
        return not isinstance(value, list)
    match schema.get("enum"), schema.get("type"):
        case [*choices], _:
            return value in [one for one in choices if isinstance(one, str)]
        case _, "array":
            return True
        case _, "object":
            return False
        case _, "boolean":
            return value in ("true", "false")
        case _, ("integer" | "number"):
            return isinstance(value, str) and _NUMBER.fullmatch(value) is not None
    return not isinstance(value, list)
