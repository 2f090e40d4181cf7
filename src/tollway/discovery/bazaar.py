"""The x402 extension `bazaar`: how a call is made, for the 402 and for catalogs of paid resources. Pure.

The provider's document is untrusted: it never makes this module fail, and only small, plain parts of it are copied. Prices come from the payment
requirements.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tollway.discovery.forms import choose_media_type, is_form, is_json
from tollway.discovery.safe_text import clean_line
from tollway.ids import Address, Network
from tollway.payments.pricing import PaymentRequirement
from tollway.payments.x402 import SCHEME, Resource, requirement_json, resource_json
from tollway.registry.listing import Listing, accepts_method
from tollway.registry.openapi import list_in, resolve_in, walk_operations

BAZAAR = "bazaar"
RESOURCE_TYPE = "http"
LIMIT_DEFAULT, LIMIT_MAX = 20, 100

_QUERY_METHODS = ("GET", "HEAD", "DELETE")
_BODY_METHODS = ("POST", "PUT", "PATCH")
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_HINTS_MAX, _PATHS_MAX = 12, 200
_NAME = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")
_TEXT_MAX, _CHOICES_MAX = 80, 6
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hint:
    """`example` None: the document has no example that fits."""

    name: str
    schema: Mapping[str, Any]
    example: str | int | float | bool | None
    is_required: bool


def describe_call(
    method: str, *, path: str = "", openapi: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """The extension of one call; its `info` is always valid by its `schema`. None for a method that the extension does not define.

    `path`: below the listing's endpoint, as in the provider's document.
    """
    reader = _CallReader(openapi, method, path)
    if method in _QUERY_METHODS:
        known = {"type": RESOURCE_TYPE, "method": method}
        return _describe("queryParams", known, reader.query_hints(), answer=reader.answer_hint())
    if method in _BODY_METHODS:
        known = {"type": RESOURCE_TYPE, "method": method, "bodyType": reader.body_type}
        return _describe("body", known, reader.body_hints(), answer=reader.answer_hint())
    return None


def find_path(openapi: Mapping[str, Any] | None, path: str) -> str:
    """The path of the provider's document that describes a call's path; empty without one. Used as `path`, it gives the same description."""
    paths = _mapping((openapi or {}).get("paths"))
    wanted = path.partition("?")[0].rstrip("/") or "/"
    return wanted if _mapping(paths.get(wanted)) else _find_template(paths, wanted)


def _describe(
    place: str, known: Mapping[str, str], hints: Sequence[_Hint], *, answer: Mapping[str, Any]
) -> dict[str, Any]:
    """`place`: the member of `input` for the hints; a body is there even when it is empty. `answer`: the schema of the response; crawlers report its absence as
    an error, so an unknown response has an open schema."""
    examples = {hint.name: hint.example for hint in hints if hint.example is not None}
    needed = [hint.name for hint in hints if hint.is_required and hint.example is not None]
    is_shown = bool(examples) or place == "body"
    given: dict[str, Any] = {**known, place: examples} if is_shown else dict(known)
    properties: dict[str, Any] = {name: {"type": "string", "const": value} for name, value in known.items()}
    properties[place] = {"type": "object"}
    if hints:
        properties[place]["properties"] = {hint.name: dict(hint.schema) for hint in hints}
    if needed:
        properties[place]["required"] = needed
    return {
        "info": {"input": given},
        "schema": {
            "$schema": _DIALECT,
            "type": "object",
            "properties": {
                "input": {"type": "object", "properties": properties, "required": list(known)},
                "output": {"type": "object", "properties": {"example": dict(answer)}},
            },
            "required": ["input"],
        },
    }


# ---- The records of a catalog.


def describe_resource(
    listing: Listing, requirements: Sequence[PaymentRequirement], *, gateway_url: str
) -> dict[str, Any] | None:
    """A listing as a discovered resource; None when no authorisation can pay for it, or when it is not active.

    `gateway_url`: of the listing, without a final slash. `requirements`: what `choose_representative_call`'s call costs now.
    """
    if not requirements or listing.status != "active" or listing.retired_ms or listing.suspended_ms:
        return None
    entry = choose_representative_call(listing)
    resource = Resource(
        url=gateway_url + entry.path,
        description=listing.description,
        service_name=listing.name,
        tags=listing.tags,
    )
    described = resource_json(resource)
    call = describe_call(entry.method, path=entry.path, openapi=listing.openapi)
    updated = datetime.fromtimestamp(listing.updated_ms // 1000, UTC)
    return {
        "resource": described.pop("url"),
        "type": RESOURCE_TYPE,
        "x402Version": 2,
        "accepts": [requirement_json(requirement) for requirement in requirements],
        "lastUpdated": updated.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        **described,
        "extensions": {BAZAAR: call} if call else {},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RepresentativeCall:
    """The call that represents a listing in a catalog. `path` is empty for the endpoint itself."""

    method: str
    path: str


def choose_representative_call(listing: Listing) -> RepresentativeCall:
    """The endpoint itself; for a listing that serves its operations only, the first operation without parameters."""
    if listing.other_paths == "refuse":
        entries = [
            RepresentativeCall(method=one.method, path="" if one.path == "/" else one.path)
            for one in listing.operations
        ]
        found = next((one for one in entries if "{" not in one.path), None) or _find_documented_call(listing)
        if found is not None or entries:
            return found or entries[0]
    known = [*_QUERY_METHODS, *_BODY_METHODS]
    return RepresentativeCall(method=next((one for one in listing.methods if one in known), "GET"), path="")


def _find_documented_call(listing: Listing) -> RepresentativeCall | None:
    for operation in walk_operations(listing.openapi or {}):
        if "{" not in operation.path and accepts_method(listing.methods, operation.method):
            return RepresentativeCall(method=operation.method, path=operation.path)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceFilter:
    """The filters of a catalog query; None does not filter. `kind`: the parameter `type`."""

    kind: str | None = None
    pay_to: Address | None = None
    scheme: str | None = None
    network: Network | None = None
    extension: str | None = None

    @property
    def is_impossible(self) -> bool:
        return self.kind not in (None, RESOURCE_TYPE) or self.scheme not in (None, SCHEME)

    def is_met_by(self, requirements: Sequence[PaymentRequirement]) -> bool:
        """True when one requirement matches every filter. `extension` is matched with the record, by `has_extension`."""
        return not self.is_impossible and any(
            self.pay_to in (None, one.pay_to) and self.network in (None, one.network) for one in requirements
        )

    def has_extension(self, record: Mapping[str, Any]) -> bool:
        return self.extension is None or self.extension in record["extensions"]


def resources_json(
    records: Sequence[Mapping[str, Any]], *, limit: int, offset: int, total: int
) -> dict[str, Any]:
    return {
        "x402Version": 2,
        "items": list(records),
        "pagination": {"limit": limit, "offset": offset, "total": total},
    }


def search_json(
    records: Sequence[Mapping[str, Any]], *, limit: int, cursor: str | None, is_partial: bool = False
) -> dict[str, Any]:
    """The response of `GET /x402/discovery/search`. `cursor`: of the next page; null on the last one, as the clients' type has it."""
    return {
        "x402Version": 2,
        "resources": list(records),
        "partialResults": is_partial,
        "pagination": {"limit": limit, "cursor": cursor},
    }


# ---- Reading the provider's document.


class _CallReader:
    def __init__(self, openapi: Mapping[str, Any] | None, method: str, path: str) -> None:
        self._content = openapi or {}
        paths = _mapping(self._content.get("paths"))
        entry = self._open(paths.get(find_path(openapi, path)))
        key = "get" if method == "HEAD" and "head" not in entry else method.lower()
        self._operation = _mapping(entry.get(key))
        self._shared = list_in(entry, "parameters") if self._operation else ()

    def _open(self, raw: object) -> Mapping[str, Any]:
        return resolve_in(self._content, raw) or {}

    def query_hints(self) -> list[_Hint]:
        hints: dict[str, _Hint] = {}
        parameters = [*list_in(self._operation, "parameters"), *self._shared]
        for parameter in map(self._open, parameters[: 4 * _HINTS_MAX]):
            if parameter.get("in") != "query":
                continue
            schema = self._open(parameter.get("schema"))
            hint = _read_hint(
                parameter.get("name"),
                schema,
                examples=[parameter.get("example"), *list_in(schema, "examples")[:1]],
                is_required=parameter.get("required") is True,
            )
            if hint is not None and len(hints) < _HINTS_MAX:
                hints.setdefault(hint.name, hint)
        return list(hints.values())

    def answer_hint(self) -> dict[str, Any]:
        """The type of the JSON response with status 200, without the rest of its schema."""
        response = self._open(_mapping(self._operation.get("responses")).get("200"))
        kind = self._open(_json_of(response).get("schema")).get("type")
        return {"type": kind} if isinstance(kind, str) and kind in ("object", "array", *_TYPES) else {}

    @property
    def body_type(self) -> str:
        """`json`, `form-data` for both forms, or `text`; JSON where the document does not say it."""
        media_type = self._choose_body()
        if media_type is None or is_json(media_type):
            return "json"
        return "form-data" if is_form(media_type) else "text"

    def _choose_body(self) -> str | None:
        described = self._open(self._operation.get("requestBody"))
        return choose_media_type(_mapping(described.get("content")))

    def body_hints(self) -> list[_Hint]:
        if self.body_type == "text":
            return []
        content = _mapping(self._open(self._operation.get("requestBody")).get("content"))
        media = self._open(content.get(self._choose_body() or ""))
        schema = self._open(media.get("schema"))
        example = _mapping(media.get("example")) or _mapping(schema.get("example"))
        found = self._read_members(schema, example, list_in(schema, "required"))
        return [hint for hint, _ in zip(found, range(_HINTS_MAX), strict=False)]

    def _read_members(
        self, schema: Mapping[str, Any], example: Mapping[str, Any], needed: Sequence[object]
    ) -> Iterator[_Hint]:
        for name, raw in _mapping(schema.get("properties")).items():
            is_required = name in needed
            opened = self._open(raw)
            if opened.get("format") == "binary" or "contentMediaType" in opened:
                continue  # a file has no place in JSON
            hint = _read_hint(name, opened, examples=[example.get(name)], is_required=is_required)
            if hint is not None:
                yield hint


def _json_of(described: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(_mapping(described.get("content")).get("application/json"))


def _find_template(paths: Mapping[str, Any], wanted: str) -> str:
    segments = wanted.split("/")
    for _, template in zip(range(_PATHS_MAX), paths, strict=False):
        parts = str(template).split("/")
        if len(parts) == len(segments) and all(
            part == segment or (part.startswith("{") and part.endswith("}"))
            for part, segment in zip(parts, segments, strict=True)
        ):
            return str(template)
    return ""


def _read_hint(
    name: object, schema: Mapping[str, Any], *, examples: Sequence[object], is_required: bool
) -> _Hint | None:
    """A hint of a plain name and a plain type; None otherwise. An example is kept when it is short and has the type."""
    kind = schema.get("type")
    if (
        not isinstance(name, str)
        or not _NAME.fullmatch(name)
        or not isinstance(kind, str)
        or kind not in _TYPES
    ):
        return None
    plain: dict[str, Any] = {"type": kind}
    choices = schema.get("enum")
    fitting = [one for one in choices if _fits(one, kind)] if isinstance(choices, list) else []
    is_closed = isinstance(choices, list) and 0 < len(fitting) == len(choices) <= _CHOICES_MAX
    if is_closed:
        plain["enum"] = fitting
    description = clean_line(schema.get("description"), _TEXT_MAX + 1)
    if 0 < len(description) <= _TEXT_MAX:
        plain["description"] = description
    wanted = [*examples, schema.get("example"), schema.get("default"), *fitting[:1]]
    usable = (one for one in wanted if _fits(one, kind) and (not is_closed or one in fitting))
    return _Hint(name=name, schema=plain, example=next(usable, None), is_required=is_required)


def _fits(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, str) and (len(value) > _TEXT_MAX or not value.isprintable()):
        return False
    return isinstance(value, _TYPES[kind])


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
