"""Provider text that is shown to people and machines: what may stand in it. Pure.

Refused are characters that hide or reorder what a reader sees: controls, bidirectional overrides, invisible ones.
What is accepted is returned exactly as it was given.
"""

import unicodedata

_LINE_BREAKS = frozenset("\n\r\t")

# Not in the categories below, and still invisible or reordering.
_HIDING = frozenset(
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2060\u2061\u2062\u2063\u2064\u3164\ufeff\uffa0"
    "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    "\u206a\u206b\u206c\u206d\u206e\u206f\ufff9\ufffa\ufffb"
)
_REFUSED_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
_TAGS = range(0xE0000, 0xE0080)  # a whole hidden alphabet


def find_unclean(text: str, *, is_multiline: bool) -> str | None:
    """The first character that may not stand in the text, as `U+202E`; None when the text is clean."""
    if text.isascii() and text.isprintable():
        return None
    for char in text:
        if is_multiline and char in _LINE_BREAKS:
            continue
        if _is_refused(char):
            return f"U+{ord(char):04X}"
    return None


def drop_unclean(text: str) -> str:
    """The text without what `find_unclean` refuses; line breaks stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char for char in text if char in _LINE_BREAKS or not _is_refused(char))


def _is_refused(char: str) -> bool:
    return unicodedata.category(char) in _REFUSED_CATEGORIES or char in _HIDING or ord(char) in _TAGS
