"""The operations of a listing: request, response and price. One model for the documents, the MCP tools and the pages. Pure.

The provider's document is untrusted: it never makes this module fail, and its texts are cleaned and cut. `tool_names.py` makes the names of the tools.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tollway.discovery.form_fields import FILE_SCHEMA, is_file_schema, is_text_type, read_form
from tollway.discovery.forms import FormField, choose_media_type, is_form, is_json
from tollway.discovery.safe_text import clean_line, clean_prose
from tollway.discovery.schemas import SchemaBundler, SchemaCopier, SchemaCopy
from tollway.discovery.tool_names import WHOLE_LISTING_TOOL, NamedOperation, name_tools
from tollway.money import Price
from tollway.registry.listing import Listing, Operation, accepts_method, is_offered
from tollway.registry.metering import Metering, OfferedPrice, offer
from tollway.registry.openapi import DocumentOperation, DocumentParameter, ProviderDocument
from tollway.registry.paths import PathTree, normal_path, priced_verb

Place = Literal["path", "query", "header", "body"]

SUMMARY_MAX, DESCRIPTION_MAX = 160, 1_000
SCHEMA_WEIGHT_MAX = 16_384
"""About the characters of one schema with its definitions. A part that does not fit becomes an open schema."""

BODY_METHODS = ("POST", "PUT", "PATCH")
ANY_QUERY_SCHEMA: Mapping[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
"""The query of an undocumented operation: any parameters with text values."""

_ANY_QUERY = DocumentParameter(
    name="query", place="query", is_required=False, content={"style": "form", "explode": True}
)
_ANY_TEXT: Mapping[str, Any] = {"type": "string"}
_SUCCESSES = ("200", "201", "202", "203", "2XX", "2xx", "default")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
_VARIABLE = re.compile(r"\{([^{}/]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of an operation. `name` is unique in the operation; `parameter` is the name in the HTTP request (empty for a body). `style` and
    `is_exploded`: the serialization of a list or an object in a query or a path (OpenAPI 3.1 §4.8.12.2)."""

    name: str
    place: Place
    parameter: str
    is_required: bool
    style: str = "simple"
    is_exploded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOperation:
    """An operation of a listing.

    `tool`: the name of its MCP tool (`tool_names.py`), unique in the listing. `path`: the template below the endpoint as in
    the provider's document, such as `/v1/cities/{city}`; empty for the endpoint itself. `summary`, `description`: the provider's text, cleaned; untrusted.
    `input_schema`: a closed object over the names of `arguments` with local `$defs` only; it has neither patterns nor `uniqueItems`, so that a validation takes
    at most the number of its steps, which the checker bounds. `body_type`: the media type of a body, None without one. The argument is the body as JSON; the fields
    of a form as an object, with `form_fields` as far as the document describes them; a file in base64 where `is_body_file`; else the body as text.

    `response_example`: of a successful response, a part of the document as it is there; None without one.

    `metering`: the formula of `price`, which then is the maximum.

    `is_any`: no operation is documented, and this one stands for every method and path of the listing. It has no `arguments`; the members of `input_schema` are
    `method`, `path` (below the endpoint: empty, or with its slash), `query` (an object of texts) and `body` (any JSON)."""

    tool: str
    method: str
    path: str
    summary: str
    description: str
    arguments: tuple[Argument, ...]
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    body_type: str | None
    price: Price
    form_fields: tuple[FormField, ...] = ()
    is_body_file: bool = False
    is_any: bool = False
    response_example: Any = None
    metering: Metering | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedOperation:
    """`source`: its description in the provider's document; None without one."""

    operation: ApiOperation
    source: DocumentOperation | None


def list_operations(listing: Listing) -> tuple[ApiOperation, ...]:
    """The operations of the document in their order; then priced operations that the document does not have, which take any query and any JSON body; then, where
    the document has no operations, the listing as a whole. Never empty."""
    return tuple(
        sourced.operation
        for sourced in list_sourced_operations(listing, ProviderDocument(listing.openapi or {}))
    )


def list_sourced_operations(listing: Listing, document: ProviderDocument) -> tuple[SourcedOperation, ...]:
    reader = _OperationReader(listing, document)
    found = _name_all([*reader.documented(), *reader.priced()])
    if not found or (not document.operations and listing.other_paths == "serve"):
        found.append(SourcedOperation(operation=describe_whole_listing(listing), source=None))
    return tuple(found)


def _name_all(found: list[SourcedOperation]) -> list[SourcedOperation]:
    """The operations with the names of their tools, which depend on all of them."""
    names = name_tools(
        [
            NamedOperation(
                method=one.operation.method,
                path=one.operation.path,
                operation_id=None if one.source is None else one.source.content.get("operationId"),
            )
            for one in found
        ]
    )
    return [
        SourcedOperation(operation=replace(one.operation, tool=name), source=one.source)
        for one, name in zip(found, names, strict=True)
    ]


class _OperationReader:
    def __init__(self, listing: Listing, document: ProviderDocument) -> None:
        self._listing = listing
        self._document = document
        self._copier = SchemaCopier(self._document, prefix="#/$defs/", is_checked=True)
        self._bundler = SchemaBundler(self._copier, weight_max=SCHEMA_WEIGHT_MAX)
        self._prices = _make_price_trees(listing)
        self._path_keys: set[tuple[str, str]] = set()

    def documented(self) -> Iterator[SourcedOperation]:
        for operation in self._document.operations:
            key = (priced_verb(operation.method), _path_key(operation.path))
            if key in self._path_keys or not accepts_method(self._listing.methods, operation.method):
                continue
            self._path_keys.add(key)
            yield SourcedOperation(operation=self._documented(operation), source=operation)

    def priced(self) -> Iterator[SourcedOperation]:
        for operation in self._listing.operations:
            if (priced_verb(operation.method), _path_key(operation.path)) not in self._path_keys:
                yield SourcedOperation(operation=self._priced(operation), source=None)

    def _documented(self, operation: DocumentOperation) -> ApiOperation:
        content, offered = operation.content, self._find_price(operation)
        body = self._read_body(content)
        inputs = _InputSchema()
        for parameter in self._document.list_parameters(operation):
            if is_offered(self._listing, parameter):
                schema = (
                    self._document.resolve(parameter.content.get("schema")) and parameter.content["schema"]
                )
                copied = self._copier.copy(schema) if schema else SchemaCopy(schema=dict(_ANY_TEXT))
                inputs.add(parameter, copied)
        if body is not None:
            inputs.add_body(body.schema, is_required=body.is_required)
        output = self._read_output(content)
        return ApiOperation(
            tool="",
            method=operation.method,
            path=operation.path,
            summary=clean_line(content.get("summary"), SUMMARY_MAX),
            description=clean_prose(content.get("description"), DESCRIPTION_MAX),
            arguments=tuple(inputs.arguments),
            input_schema=inputs.bundle(self._bundler),
            output_schema=None if output is None else self._bundler.bundle(output),
            response_example=self._find_example(content),
            body_type=None if body is None else body.media_type,
            form_fields=() if body is None else body.form_fields,
            is_body_file=body is not None and body.is_file,
            price=offered.price,
            metering=offered.metering,
        )

    def _find_price(self, operation: DocumentOperation) -> OfferedPrice:
        tree = self._prices.get(priced_verb(operation.method))
        found = None if tree is None else tree.find(normal_path(operation.path))
        return offer(self._listing) if found is None else found

    def _priced(self, operation: Operation) -> ApiOperation:
        inputs = _InputSchema()
        for name in _VARIABLE.findall(operation.path):
            parameter = DocumentParameter(name=name, place="path", is_required=True, content={})
            inputs.add(parameter, SchemaCopy(schema=dict(_ANY_TEXT)))
        inputs.add(_ANY_QUERY, SchemaCopy(schema=dict(ANY_QUERY_SCHEMA), weight=64))
        has_body = priced_verb(operation.method) in BODY_METHODS
        if has_body:
            inputs.add_body(
                SchemaCopy(schema={"description": "The body, as JSON."}, weight=40), is_required=False
            )
        return ApiOperation(
            tool="",
            method=operation.method,
            path="" if operation.path == "/" else operation.path,
            summary="",
            description="",
            arguments=tuple(inputs.arguments),
            input_schema=inputs.bundle(self._bundler),
            output_schema=None,
            body_type="application/json" if has_body else None,
            price=operation.price,
            metering=operation.metering,
        )

    def _read_body(self, content: Mapping[str, Any]) -> "_RequestBody | None":
        raw = self._document.resolve(content.get("requestBody"))
        types = raw.get("content") if raw is not None else None
        if raw is None or not isinstance(types, Mapping):
            return None
        media_type = choose_media_type(types)
        if media_type is None:
            return None
        entry = self._document.resolve(types[media_type]) or {}
        is_required = raw.get("required") is True
        if is_form(media_type):
            form = read_form(self._document, self._copier, entry, media_type)
            return _RequestBody(
                media_type=media_type, schema=form.schema, form_fields=form.fields, is_required=is_required
            )
        is_file = not is_json(media_type) and (
            is_file_schema(self._document, entry.get("schema"))
            or not (is_text_type(media_type) or "schema" in entry)
        )
        if is_json(media_type):
            schema = self._copier.copy(entry.get("schema"))
        else:
            kind = FILE_SCHEMA if is_file else _ANY_TEXT
            words = "file in base64" if is_file else "body as text"
            schema = SchemaCopy(
                schema={**kind, "description": f"The {words}, of type {media_type}."}, weight=110
            )
        return _RequestBody(media_type=media_type, schema=schema, is_file=is_file, is_required=is_required)

    def _read_output(self, content: Mapping[str, Any]) -> SchemaCopy | None:
        for types in self._list_successes(content):
            media_type = next((one for one in types if isinstance(one, str) and is_json(one)), None)
            entry = self._document.resolve(types[media_type]) if media_type else None
            if entry is not None and "schema" in entry:
                return self._copier.copy(entry["schema"])
        return None

    def _find_example(self, content: Mapping[str, Any]) -> Any:
        for types in self._list_successes(content):
            for media_type in types:
                entry = self._document.resolve(types[media_type]) or {}
                found = self._find_own_example(entry)
                if found is not None:
                    return found
        return None

    def _find_own_example(self, entry: Mapping[str, Any]) -> Any:
        """The example of a media type (OpenAPI 3.1 §4.8.14): its own, the first of its `examples`, or that of its schema."""
        if entry.get("example") is not None:
            return entry["example"]
        several = entry.get("examples")
        named: Mapping[str, Any] = several if isinstance(several, Mapping) else {}
        for one in named.values():
            found = self._document.resolve(one)
            if found is not None and found.get("value") is not None:
                return found["value"]
        schema: Mapping[str, Any] = self._document.resolve(entry.get("schema")) or {}
        given = schema.get("examples")
        return given[0] if isinstance(given, list) and given else schema.get("example")

    def _list_successes(self, content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """The media types of each successful response that has any."""
        given = content.get("responses")
        responses: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        for status in _SUCCESSES:
            response = self._document.resolve(responses.get(status))
            types = response.get("content") if response is not None else None
            if isinstance(types, Mapping):
                yield types


@dataclass(frozen=True, slots=True, kw_only=True)
class _RequestBody:
    media_type: str
    schema: SchemaCopy
    is_required: bool
    form_fields: tuple[FormField, ...] = ()
    is_file: bool = False


class _InputSchema:
    def __init__(self) -> None:
        self.arguments: list[Argument] = []
        self._parts: dict[str, SchemaCopy] = {}

    def add(self, parameter: DocumentParameter, copied: SchemaCopy) -> None:
        content = parameter.content
        is_form = parameter.place == "query"
        style = content.get("style") if isinstance(content.get("style"), str) else None
        style = style or ("form" if is_form else "simple")
        exploded = content.get("explode")
        argument = Argument(
            name=self._name(_NOT_IN_NAMES.sub("_", parameter.name)[:64] or "_", parameter.place),
            place=parameter.place,
            parameter=parameter.name,
            is_required=parameter.is_required,
            style=style,
            is_exploded=exploded if isinstance(exploded, bool) else style == "form",
        )
        self._put(argument, _describe(copied, content.get("description")))

    def add_body(self, copied: SchemaCopy, *, is_required: bool) -> None:
        name = self._name("body", "body")
        self._put(Argument(name=name, place="body", parameter="", is_required=is_required), copied)

    def bundle(self, bundler: SchemaBundler) -> dict[str, Any]:
        whole = SchemaCopy(
            schema={"type": "object", "properties": {}, "additionalProperties": False}, weight=64
        )
        whole.weight += sum(len(name) + 6 for name in self._parts)  # a part that does not fit keeps its name
        for name, part in self._parts.items():
            fits = whole.weight + part.weight <= SCHEMA_WEIGHT_MAX
            whole.schema["properties"][name] = part.schema if fits else {}
            whole.refs |= part.refs if fits else set()
            whole.weight += part.weight if fits else 0
        needed = [argument.name for argument in self.arguments if argument.is_required]
        if needed:
            whole.schema["required"] = needed
        return bundler.bundle(whole)

    def _name(self, wanted: str, place: str) -> str:
        name, number = wanted, 1
        if name in self._parts:
            wanted = name = f"{place}_{wanted}"
        while name in self._parts:
            number += 1
            name = f"{wanted}_{number}"
        return name

    def _put(self, argument: Argument, copied: SchemaCopy) -> None:
        self.arguments.append(argument)
        self._parts[argument.name] = copied


def _describe(copied: SchemaCopy, description: object) -> SchemaCopy:
    words = clean_prose(description, DESCRIPTION_MAX)
    if not words or "description" in copied.schema:
        return copied
    schema = {**copied.schema, "description": words}
    return SchemaCopy(schema=schema, refs=copied.refs, weight=copied.weight + len(words) + 18)


def _path_key(path: str) -> str:
    return _VARIABLE.sub("{}", normal_path(path))


def _make_price_trees(listing: Listing) -> dict[str, PathTree[OfferedPrice]]:
    """The trees are by verb. A part of a template's calls with a price of its own is an operation too."""
    trees: dict[str, PathTree[OfferedPrice]] = {}
    for operation in listing.operations:
        tree = trees.setdefault(priced_verb(operation.method), PathTree())
        tree.add(normal_path(operation.path), offer(operation))
    return trees


def describe_whole_listing(listing: Listing) -> ApiOperation:
    """The operation that stands for every method and path of the listing (`is_any`), for the listing's own price."""
    methods = list(listing.methods) or ["GET", "POST", "PUT", "PATCH", "DELETE"]
    schema = {
        "type": "object",
        "properties": {
            "method": {"type": "string", "enum": methods, "default": methods[0]},
            "path": {
                "type": "string",
                "description": "Below the endpoint; empty for the endpoint itself.",
                "default": "",
            },
            "query": dict(ANY_QUERY_SCHEMA),
            "body": {"description": "The body, as JSON."},
        },
        "additionalProperties": False,
    }
    return ApiOperation(
        tool=WHOLE_LISTING_TOOL,
        method=methods[0],
        path="",
        summary="",
        description="",
        arguments=(),
        input_schema=schema,
        output_schema=None,
        body_type=None,
        price=listing.price,
        metering=listing.metering,
        is_any=True,
    )
