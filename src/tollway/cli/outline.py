"""A JSON document as an outline for people: a line for each member, what is nested below it.

Texts in it are a stranger's. They reach the terminal without control characters and without markup, and each stays under
its own name: no line of theirs can look like a line of ours.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from tollway.client.shown_text import plain, plain_line

DEPTH_MAX = 16
INDENT = "  "
QUOTED = "│ "
"""Before the second and every later line of one text."""


def print_outline(document: Mapping[str, Any]) -> None:
    console = Console()
    for line in outline(document):
        console.print(line, soft_wrap=True)


def outline(document: Mapping[str, Any]) -> list[Text]:
    """Its lines. Pure."""
    return list(_members(document, depth=0))


def _members(document: Mapping[str, Any], *, depth: int) -> Iterator[Text]:
    for name, value in document.items():
        if value is None or value == [] or value == {}:
            continue
        yield from _named(plain_line(str(name)), value, depth=depth)


def _named(name: str, value: object, *, depth: int) -> Iterator[Text]:
    lead = INDENT * depth
    if isinstance(value, Mapping | list) and (depth >= DEPTH_MAX or _is_short(value)):
        yield Text.assemble(lead, (f"{name}  ", "bold"), _in_short(value))
    elif isinstance(value, Mapping):
        yield Text.assemble(lead, (name, "bold"))
        yield from _members(value, depth=depth + 1)
    elif isinstance(value, list):
        yield Text.assemble(lead, (name, "bold"))
        for entry in value:
            yield from _entry(entry, depth=depth + 1)
    else:
        first, *rest = _scalar(value).split("\n")
        yield Text.assemble(lead, (f"{name}  ", "bold"), first)
        yield from (Text(f"{lead}{INDENT}{QUOTED}{line}") for line in rest if line.strip())


def _entry(value: object, *, depth: int) -> Iterator[Text]:
    """One of a list: its first line has a dash, the others stand below it."""
    lines = (
        list(_members(value, depth=0))
        if isinstance(value, Mapping) and depth < DEPTH_MAX and not _is_short(value)
        else [Text(_in_short(value))]
    )
    for number, line in enumerate(lines):
        yield Text.assemble(INDENT * depth, "- " if number == 0 else INDENT, line)


def _is_short(value: Mapping[str, Any] | list[Any]) -> bool:
    """Whether it reads better on one line: a few scalars, or schemas, which are nested for machines."""
    if isinstance(value, Mapping) and value.get("type") in ("object", "array") and "$ref" not in value:
        return True
    entries = list(value.values()) if isinstance(value, Mapping) else value
    is_flat = not any(isinstance(entry, Mapping | list) for entry in entries)
    most = 3 if isinstance(value, Mapping) else 8
    return is_flat and len(entries) <= most and sum(len(_scalar(entry)) for entry in entries) <= 60


def _in_short(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{plain_line(str(name))}: {_in_short(v)}" for name, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_in_short(entry) for entry in value) + "]"
    return " ".join(_scalar(value).split())


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else plain(str(value))
