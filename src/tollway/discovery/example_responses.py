"""The example of a successful response of an operation: what the provider's document has, else a value of its schema. Pure.

Both are the provider's words. The document may have any size and depth: a text is written as far as it is shown.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

from tollway.discovery.operations import ApiOperation
from tollway.discovery.requests import NO_VALUE, make_value
from tollway.registry.text import drop_refused_characters

LENGTH_MAX = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleResponse:
    """`text`: JSON with indents, or the text itself; at most `LENGTH_MAX` characters, and `is_cut` where it is longer. `source`: where it comes from; the values of a
    schema are placeholders."""

    text: str
    is_cut: bool
    source: Literal["document", "schema"]


def write_example_response(operation: ApiOperation) -> ExampleResponse | None:
    """Returns None where the document has neither an example nor a schema of a successful response."""
    if operation.response_example is not None:
        return _write(operation.response_example, "document")
    schema = operation.output_schema
    value = NO_VALUE if schema is None else make_value(schema)
    return None if value is NO_VALUE or value in ({}, "text") else _write(value, "schema")


def _write(value: Any, source: Literal["document", "schema"]) -> ExampleResponse | None:
    text = value if isinstance(value, str) else _encode(value)
    if not text.strip():
        return None
    shown = drop_refused_characters(text[:LENGTH_MAX])
    return ExampleResponse(text=shown, is_cut=len(text) > LENGTH_MAX, source=source)


def _encode(value: Any) -> str:
    """JSON up to the first part beyond `LENGTH_MAX`. A value that is nested too deep for the encoder is too long before, by its indents."""
    parts, length = [], 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        parts.append(part[: LENGTH_MAX + 1])
        length += len(part)
        if length > LENGTH_MAX:
            break
    return "".join(parts)
