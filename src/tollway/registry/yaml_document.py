"""A document in YAML, read as if it were JSON: objects, lists, texts, numbers, true, false and null, and nothing else. Pure.

Built from the parser's events, so that no object is ever made of a tag, no alias multiplies anything, and nothing nests
deeper than a document may. `yaml` is loaded by the first document that needs it.
"""

import math
import re
from collections.abc import Iterator
from typing import Any

DEPTH_MAX = 64
NUMBER_LENGTH_MAX = 128

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
}
_TAG = "tag:yaml.org,2002:"
_TAGS = frozenset(_TAG + name for name in ("str", "map", "seq", "int", "float", "bool", "null"))


class YamlRefused(ValueError):
    """The text is not such a document; the message says why."""


def parse_yaml_object(raw: bytes) -> dict[str, Any]:
    """The members of the one document in UTF-8 text. Takes a moment for a long one: not for an event loop.

    Raises YamlRefused for what is not YAML, for aliases, for tags beyond those of JSON, for a key that is no scalar or that
    comes twice, for more than one document, and for nesting deeper than 64.
    """
    import yaml  # noqa: PLC0415 - only documents that are not JSON need it

    try:
        events = yaml.parse(raw.decode("utf-8-sig"), Loader=yaml.CSafeLoader)
        found = _read_document(events)
    except UnicodeError as exc:
        raise YamlRefused("is not valid UTF-8 text") from exc
    except yaml.YAMLError as exc:
        raise YamlRefused("is not YAML") from exc
    if not isinstance(found, dict):
        raise YamlRefused("must be an object")
    return found


def _read_document(events: Iterator[Any]) -> Any:
    found: Any = None
    documents = 0
    for event in events:
        match type(event).__name__:
            case "DocumentStartEvent":
                documents += 1
                if documents > 1:
                    raise YamlRefused("must be one document")
            case "StreamStartEvent" | "StreamEndEvent" | "DocumentEndEvent":
                pass
            case _:
                found = _read_node(event, events, 0)
    return found


def _read_node(event: Any, events: Iterator[Any], depth: int) -> Any:
    kind = type(event).__name__
    if kind == "AliasEvent":
        raise YamlRefused("must not use aliases (*name)")
    if event.tag is not None and event.tag not in _TAGS:
        raise YamlRefused("must not use tags (!name)")
    if kind == "ScalarEvent":
        return _read_scalar(event)
    if depth == DEPTH_MAX:
        raise YamlRefused(f"nests deeper than {DEPTH_MAX} levels")
    if kind == "SequenceStartEvent":
        return _read_list(events, depth)
    return _read_object(events, depth)


def _read_list(events: Iterator[Any], depth: int) -> list[Any]:
    found = []
    for event in events:
        if type(event).__name__ == "SequenceEndEvent":
            break
        found.append(_read_node(event, events, depth + 1))
    return found


def _read_object(events: Iterator[Any], depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for event in events:
        if type(event).__name__ == "MappingEndEvent":
            break
        if type(event).__name__ != "ScalarEvent":
            raise YamlRefused("must have plain texts as keys")
        key = event.value  # as it is written: `200:` and `on:` are names here
        if key in found:
            raise YamlRefused("repeats a key")
        found[key] = _read_node(next(events), events, depth + 1)
    return found


def _read_scalar(event: Any) -> Any:
    text: str = event.value
    is_plain = event.style in (None, "") and event.tag in (None, *_TAGS - {_TAG + "str"})
    if not is_plain:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if not _NUMBER.fullmatch(text):
        return text
    if len(text) > NUMBER_LENGTH_MAX:
        raise YamlRefused(f"holds a number of more than {NUMBER_LENGTH_MAX} characters")
    if _INTEGER.fullmatch(text):
        return int(text)
    number = float(text)
    if not math.isfinite(number):
        raise YamlRefused("holds a number that is too large")
    return number
