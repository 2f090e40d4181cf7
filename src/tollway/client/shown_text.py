"""Text of providers, and of whoever else is not trusted, as it may be shown to a person or an agent. Pure.

It judges no meaning: words that pretend to be instructions stay. What goes is what hides, reorders or rewrites what a
reader sees. An answer that was paid for is never passed through here; its bytes are the caller's.
"""

MARK = "\ufffd"
NESTING_MAX = 64

# Printable by Unicode's word, and yet nothing to see: fillers, blanks, and selectors, which can spell hidden text.
_UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_SELECTORS = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0), range(0x180B, 0x1810))


def plain(text: str) -> str:
    """The text without control, format, bidi and unseen characters; each leaves a mark. Line ends and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_plain_character(character) for character in text)


def plain_line(text: str) -> str:
    """The same on one line."""
    return " ".join(plain(text).split())


def plain_document(value: object, *, depth: int = 0) -> object:
    """A JSON value with every text in it plain, names of members too. What is nested too deep is left out."""
    if isinstance(value, str):
        return plain(value)
    if depth >= NESTING_MAX:
        return None
    if isinstance(value, dict):
        return {plain(str(name)): plain_document(member, depth=depth + 1) for name, member in value.items()}
    if isinstance(value, list):
        return [plain_document(member, depth=depth + 1) for member in value]
    return value


def _plain_character(character: str) -> str:
    if character in "\n\t":
        return character
    if character.isspace():  # other line ends too: none of them may begin a line of its own
        return " "
    if any(ord(character) in selectors for selectors in _SELECTORS):
        return ""
    return character if character.isprintable() and character not in _UNSEEN else MARK
