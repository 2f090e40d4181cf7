"""JSON of the control plane. Request bodies: nesting, length of numbers and number of values are bounded, and a repeated member is
refused. Responses: characters that hide or reorder text are escaped; the value of the JSON does not change.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from itertools import islice
from typing import Any

from tollway.errors import Code, FieldError, Refusal, refuse

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

# JSON itself escapes characters below U+0020.
_INVISIBLE = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def encode_visible_json(content: Mapping[str, Any]) -> str:
    """Compact JSON. Lone surrogates stay; the encoder of the bytes decides about them."""
    text = _encode(content)
    return text if text.isascii() and text.isprintable() else _INVISIBLE.sub(_escape_char, text)


def _escape_char(unseen: re.Match[str]) -> str:
    return json.dumps(unseen[0])[1:-1]


DEPTH_MAX = 64
NUMBER_LENGTH_MAX = 128
"""The maximum length of a number. Python converts longer ones in quadratic time, and no field needs them."""

VALUES_MAX = 65_536
"""The maximum number of values: 1 MiB of sixteen bytes each; a value of a real API's document takes more. A value of two bytes
costs Python a hundred bytes, and as much time as a long one."""

UNKNOWN_NAMED_MAX = 20
"""The maximum number of unknown members that are reported."""

# Strings are removed whole, so that a bracket inside one does not count. An unterminated string matches to the end:
# otherwise each of its escaped quotes would start the search again, in quadratic time.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
PIECE_BYTES = 1024 * 1024
# A longer text is searched in pieces that end outside of a string: a search holds the interpreter until it ends.
_PIECE = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*+"?){1,8192}+', re.DOTALL)
_OPENING = frozenset(b"[{")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json_object(
    raw: bytes, *, depth_max: int = DEPTH_MAX, values_max: int = VALUES_MAX
) -> dict[str, Any]:
    """The members of a JSON object (RFC 8259, UTF-8 without a byte-order mark).

    Raises `Refusal`: `invalid_request` for text that is not JSON, nests deeper than `depth_max`, has more than `values_max`
    values or a number that is too long or too large, or repeats a member; `validation_failed` for JSON that is not an object.
    """
    parsed = _parse_json(raw, depth_max=depth_max, values_max=values_max)
    if not isinstance(parsed, dict):
        error = FieldError(code="type", detail="the body must be a JSON object", pointer="")
        raise refuse(code=Code.VALIDATION_FAILED, detail=error.detail, errors=(error,))
    return parsed


def _parse_json(raw: bytes, *, depth_max: int, values_max: int) -> Any:
    check_json_limits(raw, depth_max=depth_max, values_max=values_max)
    try:
        parsed = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_without_duplicates,
            parse_int=_bounded_int,
            parse_float=_bounded_float,
            parse_constant=_refuse_constant,
        )
        if _SURROGATE_ESCAPE.search(
            raw
        ):  # a lone surrogate has no UTF-8 form: it could not be written to a response
            _check_encodable(parsed)
    except UnicodeError as exc:
        raise _invalid_json("the body is not valid UTF-8 text") from exc
    except json.JSONDecodeError as exc:
        where = f"line {exc.lineno}, column {exc.colno}"
        raise _invalid_json(f"the body is not JSON: {exc.msg} at {where}") from exc
    except ValueError as exc:
        raise _invalid_json(f"the body is not acceptable JSON: {exc}") from exc
    except RecursionError as exc:
        raise _invalid_json("the body nests too deep") from exc
    return parsed


def find_unknown_members(members: Iterable[str], known: Container[str]) -> tuple[FieldError, ...]:
    """The errors of the unknown members, for the first `UNKNOWN_NAMED_MAX` of them: a body can hold thousands."""
    unknown = (name for name in members if name not in known)
    return tuple(
        FieldError(code="unknown", detail="there is no such member", pointer="/" + _escape_pointer(name))
        for name in islice(unknown, UNKNOWN_NAMED_MAX)
    )


def _escape_pointer(name: str) -> str:
    """A member name in a JSON pointer (RFC 6901 §3), cut to 64 characters."""
    return name[:64].replace("~", "~0").replace("/", "~1")


def check_json_limits(raw: bytes, *, depth_max: int = DEPTH_MAX, values_max: int = VALUES_MAX) -> None:
    """Raises `Refusal` (`invalid_request`) for JSON that nests too deep or has too many values, before a parser reads it."""
    # Commas and brackets inside strings count too: to exclude them would take as long as the parser.
    openings = raw.count(b"[") + raw.count(b"{")
    if raw.count(b",") + openings > values_max:
        raise _invalid_json(f"the body holds more than {values_max} values")
    if openings > depth_max and _is_deeper(raw, depth_max):
        raise _invalid_json(f"the body nests deeper than {depth_max} levels")


def _is_deeper(raw: bytes, depth_max: int) -> bool:
    depth = 0
    for piece in [raw] if len(raw) <= PIECE_BYTES else (found[0] for found in _PIECE.finditer(raw)):
        for bracket in _STRING.sub(b"", piece).translate(None, _NO_BRACKETS):
            if bracket not in _OPENING:
                depth -= 1
            elif depth == depth_max:
                return True
            else:
                depth += 1
    return False


def _check_encodable(value: object, depth: int = 3) -> None:
    """Raises UnicodeEncodeError for a lone surrogate. Writes the value in pieces: the encoder holds the interpreter while it writes one."""
    if depth and isinstance(value, dict):
        for name, member in value.items():
            name.encode()
            _check_encodable(member, depth - 1)
    else:
        json.dumps(value, ensure_ascii=False).encode()


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, _ in pairs if counts[name] > 1)
        raise ValueError(f"a member of an object appears twice: {json.dumps(twice[:64])}")
    return members


def _bounded_int(text: str) -> int:
    if len(text) > NUMBER_LENGTH_MAX:
        raise ValueError(f"a number has more than {NUMBER_LENGTH_MAX} characters")
    return int(text)


def _bounded_float(text: str) -> float:
    if len(text) > NUMBER_LENGTH_MAX:
        raise ValueError(f"a number has more than {NUMBER_LENGTH_MAX} characters")
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON value")


def _invalid_json(detail: str) -> Refusal:
    return refuse(code=Code.INVALID_REQUEST, detail=detail)
