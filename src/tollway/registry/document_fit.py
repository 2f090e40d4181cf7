"""Fits a provider's OpenAPI document into the size that a listing stores: leaves parts of it out, in steps, until it is short enough. Pure.

A document at an `openapiUrl` may be longer than a stored one, because published documents are full of what no page of the gateway has. First goes what nothing
reads: extensions, security schemes, callbacks, links, webhooks, components that no operation uses. Only a document that is still too long loses more, and names
it in `LEFT_OUT`, so that its provider is warned. Every operation stays, with its parameters and its request body.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

LEFT_OUT = "x-tollway-left-out"
"""The member of a document with the names of what it lost (`STEPS`)."""

TEXT_LENGTH_MAX = 4_000
"""No page has a longer text of a document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is left out, with all that the steps before it leave out. `name`: of the loss; empty where nothing that is read is lost."""

    name: str = ""
    text_length_max: int = TEXT_LENGTH_MAX
    has_examples: bool = True
    has_responses: bool = True
    has_bodies: bool = True


STEPS = (
    Step(),
    Step(name="examples", has_examples=False),
    Step(name="texts beyond 300 characters", text_length_max=300),
    Step(name="texts beyond 100 characters", text_length_max=100),
    Step(name="schemas of responses", has_responses=False),
    Step(name="all texts", text_length_max=0),
    Step(name="schemas of request bodies", has_bodies=False),
)

_UNREAD = frozenset({"callbacks", "links", "webhooks", "externalDocs", "security", "securitySchemes"})
_EXAMPLES = frozenset({"example", "examples"})
_DATA = frozenset({"default", "enum", "const", "mapping", "variables", "dependentRequired"})
"""Members whose values are copied as they are."""
_NAMED = frozenset(
    {
        *("paths", "pathItems", "parameters", "requestBodies", "responses", "headers", "content", "encoding"),
        *("schemas", "properties", "patternProperties", "dependentSchemas", "$defs", "definitions"),
    }
)
"""Members that map names of the provider to objects: each name stays, also one like `x-request-id` or `links`."""
_COMPONENTS = "#/components/"
_PIECE_DEPTH = 3


def fit_document(document: Mapping[str, Any], *, bytes_max: int, values_max: int) -> Mapping[str, Any]:
    """The document itself where it is short enough, else the first of its shorter forms that is; the last one where none is.

    `bytes_max`: of compact JSON in UTF-8. `values_max`: as a body of JSON counts them, so that the stored document can be sent again. Raises
    UnicodeEncodeError for a text that UTF-8 cannot write. Takes up to a second, and holds the interpreter for no longer than one member of
    the document takes: run this in a thread.
    """
    fitted = document
    lost: list[str] = []
    for step in (None, *STEPS):
        if step is not None:
            lost += [step.name] if step.name else []
            fitted = _drop_unused(_Shortener(fitted, step).shorten(), lost)
        size, values = measure_document(fitted)
        if size <= bytes_max and values <= values_max:
            break
    return fitted


def list_left_out(document: Mapping[str, Any]) -> tuple[str, ...]:
    """What a stored document lost, in the names of `STEPS`. A name that is none of them is ignored: a provider can write this member, too."""
    names = document.get(LEFT_OUT)
    return tuple(step.name for step in STEPS if step.name and isinstance(names, list) and step.name in names)


def measure_document(document: Mapping[str, Any]) -> tuple[int, int]:
    size = values = 0
    for piece in _write_pieces(document, _PIECE_DEPTH):
        size += len(piece.encode())
        values += piece.count(",") + piece.count("[") + piece.count("{")
    return size, values


def _write_pieces(value: object, depth: int) -> Iterator[str]:
    """Compact JSON in pieces: the encoder holds the interpreter while it writes one."""
    if depth == 0 or not isinstance(value, dict) or not value:
        yield json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return
    for number, (name, member) in enumerate(value.items()):
        yield f"{',' if number else '{'}{json.dumps(name, ensure_ascii=False)}:"
        yield from _write_pieces(member, depth - 1)
    yield "}"


class _Shortener:
    def __init__(self, document: Mapping[str, Any], step: Step) -> None:
        self._document = document
        self._step = step
        # A reference may lead into an extension.
        self._referenced = {
            name
            for reference in _find_pointers(document)
            if "/x-" in reference
            for name in reference.split("/")
        }

    def shorten(self) -> dict[str, Any]:
        return dict(self._copy_members(self._document))

    def _copy(self, value: object) -> Any:
        if isinstance(value, list):
            return [self._copy(one) for one in value]
        return dict(self._copy_members(value)) if isinstance(value, dict) else value

    def _copy_members(self, value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        step = self._step
        for name, member in value.items():
            if name in _UNREAD or (name.startswith("x-") and name not in self._referenced):
                continue
            if name in _EXAMPLES:
                if step.has_examples:
                    yield name, member
            elif name in _DATA:
                yield name, member
            elif name == "description" and isinstance(member, str):
                yield name, member[: step.text_length_max]
            elif name == "requestBody":
                yield name, self._copy_named("requestBodies", member)
            elif name in _NAMED and isinstance(member, dict):
                yield name, {key: self._copy_named(name, one) for key, one in member.items()}
            else:
                yield name, self._copy(member)

    def _copy_named(self, place: str, value: object) -> Any:
        copied = self._copy(value)
        if place == "responses" and not self._step.has_responses:
            _drop_schemas(copied, is_whole=True)
        elif place == "requestBodies" and not self._step.has_bodies:
            _drop_schemas(copied, is_whole=False)
        return copied


def _drop_schemas(copied: Any, *, is_whole: bool) -> None:
    """Removes the schemas of a response or a request body. `is_whole`: its media types, too; a request body keeps them, since a client sends one of them."""
    if not isinstance(copied, dict):
        return
    if is_whole:
        copied.pop("content", None)
    content = copied.get("content")
    for media in content.values() if isinstance(content, dict) else ():
        if isinstance(media, dict):
            media.pop("schema", None)


def _drop_unused(document: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    """Components stay while something outside them leads to one of them."""
    components = document.get("components")
    if isinstance(components, dict):
        used = _find_used(document, components)
        document["components"] = {
            section: {name: one for name, one in entries.items() if (section, name) in used}
            if isinstance(entries, dict)
            else entries
            for section, entries in components.items()
        }
    if lost:
        document[LEFT_OUT] = list(lost)
    return document


def _find_used(document: Mapping[str, Any], components: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The section and the name of each component that the rest of the document leads to, over other components too."""
    used: set[tuple[str, str]] = set()
    pending: list[object] = [value for name, value in document.items() if name != "components"]
    while pending:
        for pointer in _find_pointers(pending.pop()):
            if pointer.startswith(_COMPONENTS):
                section, _, rest = unquote(pointer[len(_COMPONENTS) :]).partition("/")
                place = (section, rest.partition("/")[0].replace("~1", "/").replace("~0", "~"))
                entries = components.get(section)
                if place not in used and isinstance(entries, dict) and place[1] in entries:
                    used.add(place)
                    pending.append(entries[place[1]])
    return used


def _find_pointers(value: object) -> Iterator[str]:
    """Each text that may be a pointer into the document: values of `$ref`, and of the mapping of a discriminator, where a bare name is a schema's."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, dict):
            reference, mapping = value.get("$ref"), value.get("mapping")
            if isinstance(reference, str):
                yield reference
            for target in mapping.values() if isinstance(mapping, dict) else ():
                if isinstance(target, str):
                    yield target if "/" in target else f"{_COMPONENTS}schemas/{target}"
            pending.extend(value.values())
