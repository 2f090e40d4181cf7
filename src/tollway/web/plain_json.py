"""JSON as it leaves: what hides or reorders words, or moves a cursor, stands in it as an escape. It says the same to every
reader of JSON, and nothing else to whoever looks at the bytes. Pure.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

# JSON itself escapes what lies below U+0020.
_INVISIBLE = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def encode_visible_json(content: Mapping[str, Any]) -> str:
    """Compact JSON. Halves of surrogate pairs stay as they are: what becomes of them is for who writes the bytes."""
    text = _encode(content)
    return text if text.isascii() and text.isprintable() else _INVISIBLE.sub(_escape_char, text)


def _escape_char(unseen: re.Match[str]) -> str:
    return json.dumps(unseen[0])[1:-1]
