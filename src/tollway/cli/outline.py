"""An untrusted document as an outline on a terminal: one line for each member, nested values indented.

Each text is under its member name, and a text of many lines has a mark before each further line, so that no untrusted line looks like a line of the
command.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from tollway.cli.output import open_console
from tollway.client.safe_text import format_value, plain_line

DEPTH_MAX = 16
SCHEMA_DEPTH_MAX = 3
SCHEMA_PARTS_MAX, REFERENCES_MAX, CHOICES_MAX = 300, 8, 4
ANYTHING = "anything"
FLAT_MEMBERS_MAX, FLAT_ENTRIES_MAX, FLAT_CHARACTERS_MAX = 3, 8, 60
INDENT = "  "
QUOTED = "│ "
"""Prefix of the second and every later line of one text."""


MACHINE_MEMBERS = frozenset(
    {"eip712", "payload", "headers", "accepted", "extra", "untrusted", "outputSchema"}
)
"""Members for programs, which `--json` prints."""

_SCHEMA_NAMES = frozenset({"inputSchema", "schema"})


def print_outline(document: Mapping[str, Any]) -> None:
    console = open_console()
    for line in format_outline(document):
        console.print(line, soft_wrap=True)
    console.print(Text("--json prints all members", style="dim"))


def format_outline(document: Mapping[str, Any]) -> list[Text]:
    """The lines of an outline. Pure."""
    return list(_members(document, depth=0))


def _members(document: Mapping[str, Any], *, depth: int) -> Iterator[Text]:
    for name, value in document.items():
        if name not in MACHINE_MEMBERS and not _is_nothing(value):
            yield from _named(name, value, depth=depth)


def _is_nothing(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(member is None for member in value.values())
    return value is None or value == []


def _named(name: str, value: object, *, depth: int) -> Iterator[Text]:
    lead, title = INDENT * depth, plain_line(name)
    short = _in_one_line(name, value, depth=depth)
    if short is not None:
        first, *rest = short.split("\n")
        yield Text.assemble(lead, (f"{title}  ", "bold"), first)
        yield from (Text(f"{lead}{INDENT}{QUOTED}{line}") for line in rest if line.strip())
        return
    yield Text.assemble(lead, (title, "bold"))
    if isinstance(value, Mapping):
        yield from _members(value, depth=depth + 1)
    elif isinstance(value, list):
        for entry in value:
            yield from _entry(entry, depth=depth + 1)


def _entry(value: object, *, depth: int) -> Iterator[Text]:
    """An entry of a list: its first line starts with a dash, the others are indented."""
    short = _in_one_line("", value, depth=depth)
    if short is not None:
        lines = [Text(" ".join(short.split()))]
    elif isinstance(value, Mapping):
        lines = list(_members(value, depth=0))
    else:
        lines = [Text(_format_short(value))]
    for number, line in enumerate(lines):
        yield Text.assemble(INDENT * depth, "- " if number == 0 else INDENT, line)


def _in_one_line(name: str, value: object, *, depth: int) -> str | None:
    """A scalar, or a short nested value, on one line; None for a value that needs an outline of its own."""
    if not isinstance(value, Mapping | list):
        return _format_scalar(value)
    if isinstance(value, Mapping):
        if name in _SCHEMA_NAMES:
            return format_arguments(value)
        if {"rail", "network", "amount", "payTo"} <= value.keys():
            return _format_option(value)
    entries = list(value.values()) if isinstance(value, Mapping) else value
    is_flat = not any(isinstance(entry, Mapping | list) for entry in entries)
    most = FLAT_MEMBERS_MAX if isinstance(value, Mapping) else FLAT_ENTRIES_MAX
    length = sum(len(_format_scalar(entry)) for entry in entries)
    if depth >= DEPTH_MAX or (is_flat and len(entries) <= most and length <= FLAT_CHARACTERS_MAX):
        return _format_short(value)
    return None


def _format_option(option: Mapping[str, Any]) -> str:
    """A payment option, such as `x402: 10000 units of USDC (6 decimals) on eip155:8453 to 0x…`."""
    words = {name: plain_line(str(option.get(name))) for name in ("rail", "amount", "symbol", "decimals")}
    place = {name: plain_line(str(option.get(name))) for name in ("network", "payTo")}
    return (
        f"{words['rail']}: {words['amount']} units of {words['symbol']} ({words['decimals']} decimals) "
        f"on {place['network']} to {place['payTo']}"
    )


def format_arguments(schema: Mapping[str, Any]) -> str:
    """The members of a schema, required ones with a star: `city* string, days integer`."""
    return _SchemaLine(schema).format(schema, depth=0)


class _SchemaLine:
    """Formats one schema. References make a short schema long, so that its parts are counted: what is beyond `SCHEMA_PARTS_MAX` is `…`."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        defs = schema.get("$defs")
        self._defs: Mapping[str, Any] = defs if isinstance(defs, Mapping) else {}
        self._left = SCHEMA_PARTS_MAX

    def format(self, raw: object, *, depth: int) -> str:
        self._left -= 1
        schema = _resolve(raw, self._defs)
        if schema is None:
            return ANYTHING
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and properties and depth < SCHEMA_DEPTH_MAX:
            members = ", ".join(self._members(schema, properties, depth=depth))
            return members if depth == 0 else "{" + members + "}"
        if isinstance(schema.get("enum"), list):
            return "|".join(plain_line(str(value)) for value in schema["enum"])
        if depth < SCHEMA_DEPTH_MAX and isinstance(schema.get("items"), Mapping):
            return f"list of {self.format(schema['items'], depth=depth + 1)}"
        kind = schema.get("type")
        if kind is None and depth < SCHEMA_DEPTH_MAX:
            parts = [self.format(one, depth=depth + 1) for one in _choices(schema)]
            return "|".join(dict.fromkeys(parts)) or ANYTHING
        if schema.get("contentEncoding") == "base64":
            return "base64"
        return plain_line("|".join(map(str, kind)) if isinstance(kind, list) else str(kind or ANYTHING))

    def _members(
        self, schema: Mapping[str, Any], properties: Mapping[str, Any], *, depth: int
    ) -> Iterator[str]:
        required = schema.get("required")
        names = required if isinstance(required, list) else []
        for name, part in properties.items():
            if self._left <= 0:
                yield "…"
                return
            star = "*" if name in names else ""
            yield f"{plain_line(str(name))}{star} {self.format(part, depth=depth + 1)}"


def _resolve(raw: object, defs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A schema, through references to the definitions beside it; None for a reference to nothing or in a circle."""
    for _ in range(REFERENCES_MAX):
        if not isinstance(raw, Mapping):
            return None
        reference = raw.get("$ref")
        if not isinstance(reference, str):
            return raw
        raw = defs.get(reference.removeprefix("#/$defs/"))
    return None


def _choices(schema: Mapping[str, Any]) -> list[Any]:
    """The alternatives of a schema; of several parts that hold together the first."""
    for word, most in (("anyOf", CHOICES_MAX), ("oneOf", CHOICES_MAX), ("allOf", 1)):
        if isinstance(schema.get(word), list):
            return list(schema[word][:most])
    return []


def _format_short(value: object) -> str:
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{plain_line(str(name))}: {_format_short(v)}" for name, v in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(_format_short(entry) for entry in value) + "]"
    return " ".join(_format_scalar(value).split())


def _format_scalar(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else format_value(value)
