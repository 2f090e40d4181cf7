"""Makes text of a gateway, provider or node safe for a person or an agent. Pure.

It changes no words: instructions in a text stay. It removes characters that hide, reorder or rewrite the visible
text. Text for a terminal loses them (`format_value`), JSON for a program has them escaped (`format_json`), a document for an agent
loses them and has a maximum length (`bound_document`). Bytes of a paid response that are written to a file stay unchanged.
"""

import json
from collections.abc import Mapping

MARK = "\ufffd"
NESTING_MAX = 64
VALUE_CHARACTERS_MAX = 4_000
"""The maximum length of one value in a table or a sentence."""
_KEPT_ENTRIES_MAX = 1_000
_KEPT_DIGITS_MAX = 100

# Printable by Unicode's definition and yet invisible: fillers, blanks, and variation selectors, which can encode hidden text.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_SELECTORS = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0), range(0x180B, 0x1810))


def format_value(value: object, *, characters_max: int = VALUE_CHARACTERS_MAX) -> str:
    """A value of any type as text for a terminal: without control, format, bidi and invisible characters, and at most
    `characters_max` long. None is empty; objects and lists are JSON."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else format_json(value)
    clean = plain(text[: characters_max + 1])
    return clean if len(clean) <= characters_max else clean[: characters_max - 1] + "…"


def format_json(value: object, *, indent: int | None = None) -> str:
    """A value as JSON text that is safe for a terminal: characters that `plain` replaces are escaped (`\\u202e`).

    NaN, infinity and integers with more digits than Python can write become null.
    """
    separators = (",", ":") if indent is None else None
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)
    except ValueError:
        text = json.dumps(
            _to_json_value(value), ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
        )
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(character if _is_visible(character) else _escape(character) for character in text)


def plain(text: str) -> str:
    """The text with a mark in place of each control, format, bidi and invisible character. Line ends and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_plain_character(character) for character in text)


def plain_line(text: str) -> str:
    """The text of `plain` on one line."""
    return " ".join(plain(text).split())


def plain_document(value: object, *, depth: int = 0) -> object:
    """A JSON value with `plain` applied to every text and member name. Values below the maximum depth are left out."""
    if isinstance(value, str):
        return plain(value)
    if depth >= NESTING_MAX:
        return None
    if isinstance(value, dict):
        return {plain(str(name)): plain_document(member, depth=depth + 1) for name, member in value.items()}
    if isinstance(value, list):
        return [plain_document(member, depth=depth + 1) for member in value]
    return value


def bound_document(value: object, *, characters_max: int) -> tuple[object, bool]:
    """A JSON value like that of `plain_document`, with about `characters_max` characters at most, and whether it was cut:
    texts are cut, members and entries beyond the maximum are left out, NaN and infinity become null."""
    bounded = _BoundedDocument(characters_max)
    return bounded.bound(value, depth=0), bounded.is_cut


class _BoundedDocument:
    def __init__(self, characters: int) -> None:
        self._characters_left = characters
        self.is_cut = False

    def bound(self, value: object, *, depth: int) -> object:
        self._characters_left -= 4  # commas, quotes, brackets
        if isinstance(value, str):
            return self._bound_text(value)
        if isinstance(value, Mapping | list):
            return self._bound_entries(value, depth=depth)
        if value is None or isinstance(value, bool):
            return value
        number = _to_json_value(value)
        self._characters_left -= len(str(number))
        return number

    def _bound_text(self, text: str) -> str:
        most = max(self._characters_left, 0)
        if len(text) > most:
            self.is_cut = True
        kept = plain(text[:most])
        self._characters_left -= len(kept)
        return kept

    def _bound_entries(self, value: Mapping[object, object] | list[object], *, depth: int) -> object:
        pairs = list(value.items()) if isinstance(value, Mapping) else [("", entry) for entry in value]
        kept: list[tuple[str, object]] = []
        for name, entry in pairs:
            if self._characters_left <= 0 or len(kept) >= _KEPT_ENTRIES_MAX or depth >= NESTING_MAX:
                self.is_cut = True
                break
            kept.append((self._bound_text(str(name)), self.bound(entry, depth=depth + 1)))
        return dict(kept) if isinstance(value, Mapping) else [entry for _, entry in kept]


def _to_json_value(value: object) -> object:
    """The value with null in place of NaN, infinity and integers that are too long to be written."""
    match value:
        case Mapping():
            return {str(name): _to_json_value(member) for name, member in value.items()}
        case list() | tuple():
            return [_to_json_value(entry) for entry in value]
        case bool() | str() | None:
            return value
        case int():
            return value if abs(value) < 10**_KEPT_DIGITS_MAX else None
        case float():
            return value if value - value == 0 else None
        case _:
            return str(value)


def _is_visible(character: str) -> bool:
    return character == "\n" or _plain_character(character) == character


def _escape(character: str) -> str:
    """The JSON escape of a character: its UTF-16 units in hex."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))


def _plain_character(character: str) -> str:
    if character in "\n\t":
        return character
    if character.isspace():  # also Unicode line separators, which must not begin a new line
        return " "
    if any(ord(character) in selectors for selectors in _SELECTORS):
        return ""
    return character if character.isprintable() and character not in _INVISIBLE else MARK
