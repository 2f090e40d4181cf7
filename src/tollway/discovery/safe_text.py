"""Cleans provider text: removes hidden and bidirectional characters, markup, scripts, and links that are not http(s). Pure.

The texts of a listing are checked when it is written (`registry/text`); those of the provider's document are not, and pass through here. Clean text is
still untrusted: readers must show it as data.
"""

import html
import re
from collections.abc import Sequence

from tollway.registry.text import drop_refused_characters

TAG_LENGTH_MAX = 32

_CLEAN_ROUNDS = 4
"""A removal can join new markup. Text that still changes after this number of rounds loses every colon and every start of a tag."""

_TAG = re.compile(r"<[A-Za-z/!?][^<>]*>?")
_OPENING = re.compile(r"<(?=[A-Za-z/!?])")
_LINK = re.compile(r"!?\[([^\[\]]*)\]\(((?:[^()]++|\([^()]*+\))*+)\)")
_DEFINITION = re.compile(r"^ {0,3}\[[^\[\]]*\]:.*$", re.M)
_SCHEME = re.compile(
    r"(?:java|vb|live)script\s*:|\b(?:data|file|blob|vbs|view-source|intent)\s*:(?=\S)", re.I
)
_WEB = re.compile(r"https?://[^\s<>\"'`\\]+", re.I)
_MARKUP = re.compile(r"[<:\[\]]")
"""What each removal needs. Most texts have none of it, and need no further look."""
_GAPS = re.compile(r"\n{3,}")
_ENTITY_ROUNDS = 2


def clean_line(text: object, most: int) -> str:
    """One line of at most `most` characters; empty for a value that is not text."""
    return truncate(" ".join(_clean(text, most).split()), most) if isinstance(text, str) else ""


def clean_prose(text: object, most: int) -> str:
    """Text with its line breaks, of at most `most` characters; empty for a value that is not text."""
    if not isinstance(text, str):
        return ""
    lines = (line.rstrip() for line in _clean(text, most).split("\n"))
    return truncate(_GAPS.sub("\n\n", "\n".join(lines)).strip(), most)


def clean_tags(tags: Sequence[str]) -> list[str]:
    return [word for word in (clean_line(tag, TAG_LENGTH_MAX) for tag in tags) if word]


def truncate(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def _clean(text: str, most: int) -> str:
    text = text[: 8 * most + 256]  # longer input cannot change the result and takes time
    for _ in range(_ENTITY_ROUNDS):
        text = html.unescape(text)
    text = drop_refused_characters(text)
    # Line ends become equal before the other removals: a line break removed later would join separate text.
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if _MARKUP.search(text) is None:
        return text
    for _ in range(_CLEAN_ROUNDS):
        before = text
        text = _SCHEME.sub("", _DEFINITION.sub("", _LINK.sub(_keep_web, _TAG.sub("", text))))
        if text == before:
            break
    else:
        text = _OPENING.sub("", text).replace(":", " ")
    return text.replace("](", "] (")


def _keep_web(link: re.Match[str]) -> str:
    """`[words](https://…)` becomes `words (https://…)`; any other link becomes its words."""
    url = link[2].strip().partition(" ")[0]
    return f"{link[1]} ({url})" if _WEB.fullmatch(url) else link[1]
