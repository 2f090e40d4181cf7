"""The characters that are refused in a provider's text, because they hide or reorder text. Pure.

They are control characters, bidirectional overrides and invisible characters. Accepted text is not changed.
"""

import re
import unicodedata

_LINE_BREAKS = frozenset("\n\r\t")

# Invisible or reordering characters that the categories and ranges below do not contain.
_HIDING = frozenset(
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2060\u2061\u2062\u2063\u2064\u3164\ufeff\uffa0"
    "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    "\u206a\u206b\u206c\u206d\u206e\u206f\ufff9\ufffa\ufffb"
)
_REFUSED_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})
_HIDING_RANGES = (
    range(0xE0000, 0xE1000),  # tags, an invisible alphabet, and selectors that can encode any byte
    range(0xFFF0, 0xFFF9),
    range(0x1D173, 0x1D17B),
    range(0x2065, 0x2066),
)

# A single one shapes the character before it, as emoji and some scripts need; a sequence of them can be hidden text.
_SELECTORS = frozenset(
    "\ufe00\ufe01\ufe02\ufe03\ufe04\ufe05\ufe06\ufe07\ufe08\ufe09\ufe0a\ufe0b\ufe0c\ufe0d\ufe0e\ufe0f"
    "\u180b\u180c\u180d\u180f"
)
_JOINERS = frozenset("\u200c\u200d")


def find_refused_character(text: str, *, is_multiline: bool) -> str | None:
    """The first refused character of the text, as `U+202E`; None when there is none. `is_multiline`: line breaks and tabs are accepted."""
    if text.isascii() and text.isprintable():
        return None
    before = ""
    for char in text:
        if not (is_multiline and char in _LINE_BREAKS) and _is_refused(char, before):
            return f"U+{ord(char):04X}"
        before = char
    return None


def drop_refused_characters(text: str) -> str:
    """The text without its refused characters; line breaks and tabs stay."""
    if text.isascii() and text.isprintable():
        return text
    kept: list[str] = []
    before = ""
    for char in text:
        if char in _LINE_BREAKS or not _is_refused(char, before):
            kept.append(char)
            before = char
    return "".join(kept)


def join_lines(text: str) -> str:
    """The text in one line, without its refused characters. Markup stays, so escape it."""
    return " ".join(drop_refused_characters(text).split())


def _is_refused(char: str, before: str) -> bool:
    """`before`: the previous character, empty for the first."""
    if char in _SELECTORS:
        return before in _SELECTORS or before in _JOINERS
    if char in _JOINERS:
        return before in _JOINERS
    return (
        unicodedata.category(char) in _REFUSED_CATEGORIES
        or char in _HIDING
        or any(ord(char) in hiding for hiding in _HIDING_RANGES)
    )


# ---- Links of operators and providers, which pages show.

LINK_LENGTH_MAX = 256
CONTACT_EXAMPLE = "mailto:help@example.com or https://example.com/contact"
PAGE_EXAMPLE = "https://example.com/terms"
_MAILTO = re.compile(r"mailto:[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_PAGE = re.compile(r"https://[A-Za-z0-9.-]+(:[0-9]+)?(/[A-Za-z0-9._~%/?&=+-]*)?")


def is_page_url(text: str) -> bool:
    """Whether it is an https URL in ASCII, without user, fragment and characters that mean something in HTML, Markdown or a terminal."""
    return len(text) <= LINK_LENGTH_MAX and _PAGE.fullmatch(text) is not None


def is_contact(text: str) -> bool:
    """Whether it is such a URL, or `mailto:` and one address without headers of a mail."""
    return is_page_url(text) or (len(text) <= LINK_LENGTH_MAX and _MAILTO.fullmatch(text) is not None)
