"""Reads the fields of a form from a provider's document: their schemas for an agent, and how each is written. Pure.

The document is untrusted: references are followed to a bounded depth, the first `FIELDS_MAX` fields are read, and names that no form can carry are left out. A file
is a text in base64 for the agent, because arguments are JSON; a caller over HTTP writes its bytes into the form.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tollway.discovery.forms import FormField, bare_type, is_field_name, is_json, is_media_type
from tollway.discovery.safe_text import clean_prose
from tollway.discovery.schemas import SchemaCopier, SchemaCopy
from tollway.registry.openapi import ProviderDocument

FIELDS_MAX = 200
"""The most fields that the schema of a form describes. A form with more of them stays open: an agent may name any field."""
FORM_WEIGHT_MAX = 12_288
"""About the characters of the schemas of all fields. A field that does not fit keeps its name and loses its schema."""

_DEPTH_MAX, _CHOICES_MAX, _SCHEMAS_MAX = 3, 4, 32
_TYPES_MAX = 8
_DESCRIPTION_MAX = 400
_FIELD_WEIGHT = 6  # of a name in quotation marks with an empty schema
FORM_STYLES = frozenset({"form", "spaceDelimited", "pipeDelimited", "deepObject"})
_TEXT_ENDINGS = (
    "json",
    "xml",
    "yaml",
    "yml",
    "javascript",
    "graphql",
    "ndjson",
    "jsonl",
    "csv",
    "toml",
    "sql",
)

_RANGE = r"[A-Za-z0-9.+*_-]{1,64}/[A-Za-z0-9.+*_-]{1,64}"
_TYPE_LIST = re.compile(f"{_RANGE}(?:, ?{_RANGE}){{0,7}}")

FILE_SCHEMA: Mapping[str, Any] = {"type": "string", "contentEncoding": "base64"}
FILE_BYTES_SCHEMA: Mapping[str, Any] = {"type": "string", "contentMediaType": "application/octet-stream"}
"""Of a file as an argument, and over HTTP (OpenAPI 3.1 §4.8.14)."""
_FILE_WORDS = "The file in base64, or data:TYPE;name=NAME;base64,DATA to give its type and name."


@dataclass(frozen=True, slots=True, kw_only=True)
class FormSchema:
    """`schema`: of the object with the fields. `fields`: how each field is written."""

    schema: SchemaCopy
    fields: tuple[FormField, ...]


def read_form(
    document: ProviderDocument, copier: SchemaCopier, entry: Mapping[str, Any], media_type: str
) -> FormSchema:
    """The form of a request body. `entry`: the media type object of the document."""
    found = _Fields(document)
    found.collect(entry.get("schema"))
    encoding = document.resolve(entry.get("encoding")) or {}
    fields: list[FormField] = []
    properties: dict[str, Any] = {}
    whole = SchemaCopy(weight=160 + len(media_type))
    for name, raw in found.choose():
        written = _read_field(document, name, raw, document.resolve(encoding.get(name)) or {})
        part = _copy_field(document, copier, raw, written)
        whole.weight += len(name) + _FIELD_WEIGHT
        is_fitting = whole.weight + part.weight <= FORM_WEIGHT_MAX
        if not is_fitting and not written.is_file:
            part = SchemaCopy(weight=0)
        elif not is_fitting:
            part = SchemaCopy(schema=_bare_file(written), weight=48)
        properties[name] = part.schema
        whole.refs |= part.refs
        whole.weight += part.weight
        fields.append(written)
    whole.schema = {
        "type": "object",
        "description": f"The fields of a form, sent as {media_type}. Over HTTP, send that form itself, with files as their bytes.",
        "properties": properties,
    }
    needed = [name for name in properties if name in found.required]
    if needed:
        whole.schema["required"] = needed
        whole.weight += sum(len(name) + 4 for name in needed)
    if found.is_closed and len(properties) == len(found.raw):
        whole.schema["additionalProperties"] = False
    return FormSchema(schema=whole, fields=tuple(fields))


class _Fields:
    def __init__(self, document: ProviderDocument) -> None:
        self.raw: dict[str, object] = {}
        self.required: set[str] = set()
        self.is_closed = False
        self._document = document
        self._schemas_left = _SCHEMAS_MAX

    def collect(self, raw: object, *, depth: int = 0, is_needed: bool = True) -> None:
        schema = self._document.resolve(raw)
        if schema is None or depth > _DEPTH_MAX or self._schemas_left == 0:
            return
        self._schemas_left -= 1
        self.is_closed = self.is_closed or schema.get("additionalProperties") is False
        properties = schema.get("properties")
        for name, one in properties.items() if isinstance(properties, Mapping) else ():
            if is_field_name(name):
                self.raw.setdefault(name, one)
        needed = schema.get("required")
        if is_needed and isinstance(needed, list):
            self.required.update(name for name in needed if isinstance(name, str))
        for word in ("allOf", "anyOf", "oneOf"):
            parts = schema.get(word)
            for part in parts if isinstance(parts, list) else ():
                self.collect(part, depth=depth + 1, is_needed=is_needed and word == "allOf")

    def choose(self) -> Iterator[tuple[str, object]]:
        """The fields that are described, in the order of the document; where there are too many, required ones before others."""
        names = list(self.raw)
        if len(names) > FIELDS_MAX:
            names.sort(key=lambda name: name not in self.required)
        yield from ((name, self.raw[name]) for name in islice(names, FIELDS_MAX))


def _read_field(document: ProviderDocument, name: str, raw: object, encoding: Mapping[str, Any]) -> FormField:
    given = encoding.get("contentType")
    listed = [bare_type(one) for one in given.split(",")[:_TYPES_MAX]] if isinstance(given, str) else []
    types = tuple(one for one in listed if is_media_type(one) and "*" not in one)
    kind = _find_file(document, raw)
    if not kind and _is_bare(document, raw) and types and not any(is_text_type(one) for one in types):
        kind = "file"
    style, exploded = encoding.get("style"), encoding.get("explode")
    style = style if isinstance(style, str) and style in FORM_STYLES else "form"
    return FormField(
        name=name,
        is_file=bool(kind),
        is_list=kind == "files",
        media_types=types,
        style=style,
        is_exploded=exploded if isinstance(exploded, bool) else style == "form",
    )


def _copy_field(
    document: ProviderDocument, copier: SchemaCopier, raw: object, written: FormField
) -> SchemaCopy:
    if not written.is_file:
        return copier.copy(raw)
    schema = document.resolve(raw) or {}
    types = f" Types: {', '.join(written.media_types)}." if written.media_types else ""
    words = clean_prose(schema.get("description"), _DESCRIPTION_MAX)
    described = {**FILE_SCHEMA, "description": f"{words + ' ' if words else ''}{_FILE_WORDS}{types}"}
    weight = len(described["description"]) + 70
    if not written.is_list:
        return SchemaCopy(schema=described, weight=weight)
    return SchemaCopy(schema={"type": "array", "items": described}, weight=weight + 30)


def _bare_file(written: FormField) -> dict[str, Any]:
    return {"type": "array", "items": dict(FILE_SCHEMA)} if written.is_list else dict(FILE_SCHEMA)


# ---- What is a file.


def is_file_schema(document: ProviderDocument, raw: object) -> bool:
    """Whether a value is the bytes of one file: `format: binary` (OpenAPI 3.0), or `contentMediaType` without `contentEncoding` (OpenAPI 3.1 §4.8.14)."""
    return _find_file(document, raw) == "file"


def is_type_list(raw: object) -> bool:
    """`encoding` has such lists of media types and ranges."""
    return isinstance(raw, str) and _TYPE_LIST.fullmatch(raw) is not None


def is_text_type(media_type: str) -> bool:
    bare = bare_type(media_type)
    return bare.startswith("text/") or is_json(bare) or bare.endswith(_TEXT_ENDINGS)


def _find_file(document: ProviderDocument, raw: object, depth: int = 0) -> str:
    """`file`, `files` for a list of them, or nothing; through references and the alternatives of an optional field."""
    schema = document.resolve(raw)
    if schema is None or depth > _DEPTH_MAX:
        return ""
    if _is_binary(schema):
        return "file"
    if "items" in schema and _find_file(document, schema["items"], depth + 1) == "file":
        return "files"
    for word in ("allOf", "anyOf", "oneOf"):
        choices = schema.get(word)
        for one in choices[:_CHOICES_MAX] if isinstance(choices, list) else ():
            kind = _find_file(document, one, depth + 1)
            if kind:
                return kind
    return ""


def _is_binary(schema: Mapping[str, Any]) -> bool:
    kind = schema.get("type", "string")
    if kind == "file":  # Swagger 2, which many converters leave in place
        return True
    kinds = kind if isinstance(kind, list) else [kind]
    if "string" not in kinds or schema.get("contentEncoding") is not None:
        return False
    content = schema.get("contentMediaType")
    return schema.get("format") == "binary" or (is_media_type(content) and not is_text_type(str(content)))


_SAYING = frozenset({"type", "enum", "const", "properties", "items", "allOf", "anyOf", "oneOf"})


def _is_bare(document: ProviderDocument, raw: object) -> bool:
    """Whether a schema says nothing of the value: `encoding` alone describes a file then (OpenAPI 3.1 §4.8.15)."""
    schema = document.resolve(raw)
    return schema is not None and _SAYING.isdisjoint(schema)
