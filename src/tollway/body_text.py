"""The text of a response body: content codings removed up to a limit, characters by the charset of its type. Pure.

For readers that cannot decode a body themselves, such as a language model. The gateway never decodes what it forwards.
"""

import re
import zlib
from enum import Enum

CODINGS_MAX, MEMBERS_MAX = 2, 100
"""Codings of one body, and members of one gzip file. Each member copies the rest of the file."""

_CHARSET = re.compile(r";\s*charset\s*=\s*\"?([A-Za-z0-9._:-]{1,40})", re.IGNORECASE)
_CHARSETS = {
    **dict.fromkeys(("utf-8", "utf8", "us-ascii", "ascii", "unicode-1-1-utf-8"), "utf-8"),
    **dict.fromkeys(("iso-8859-1", "iso8859-1", "latin1", "latin-1", "windows-1252", "cp1252"), "cp1252"),
    **{f"iso-8859-{number}": f"iso8859-{number}" for number in (2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15, 16)},
    **{f"windows-{number}": f"cp{number}" for number in (1250, 1251, 1253, 1254, 1255, 1256, 1257, 1258)},
    **{name: name for name in ("koi8-r", "koi8-u", "big5", "euc-jp", "euc-kr", "gb18030", "iso-2022-jp")},
    **dict.fromkeys(("gb2312", "gbk"), "gbk"),
    **dict.fromkeys(("shift_jis", "shift-jis", "sjis", "windows-31j"), "cp932"),
    **{name: name for name in ("utf-16", "utf-16le", "utf-16be", "utf-32")},
}
"""The encodings of WHATWG that Python has, by the names that servers send. Others are no text: a name in a header must not choose an arbitrary codec."""


class Undecoded(Enum):
    """Why a body keeps its coding. `UNKNOWN`: a coding without a decoder here, or invalid bytes. `TOO_LARGE`: it is longer than the limit without its coding."""

    UNKNOWN = "unknown"
    TOO_LARGE = "too_large"


def decode_body(raw: bytes, content_encoding: str, *, bytes_max: int) -> bytes | Undecoded:
    """The bytes without their content codings (RFC 9110 §8.4). `content_encoding`: the value of the header; empty for none. Decompresses at most `bytes_max` bytes."""
    codings = [name.strip().lower() for name in content_encoding.split(",")]
    codings = [name for name in codings if name not in ("", "identity")]
    if len(codings) > CODINGS_MAX:
        return Undecoded.UNKNOWN
    found: bytes | Undecoded = raw
    for name in reversed(codings):
        if isinstance(found, Undecoded):
            break
        match name:
            case "gzip" | "x-gzip":
                found = _gunzip(found, bytes_max)
            case "deflate":
                found = _inflate(found, bytes_max)
            case _:
                found = Undecoded.UNKNOWN
    return found


def _gunzip(raw: bytes, bytes_max: int) -> bytes | Undecoded:
    """The members of a gzip file (RFC 1952), one after the other."""
    found = b""
    for _ in range(MEMBERS_MAX):
        decoder = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        part = _decompress(decoder, raw, bytes_max - len(found))
        if isinstance(part, Undecoded):
            return part
        found += part
        raw = decoder.unused_data
        if not raw.strip(b"\0"):  # some writers fill the last block
            return found
    return Undecoded.UNKNOWN


def _inflate(raw: bytes, bytes_max: int) -> bytes | Undecoded:
    """The zlib format, or what some servers call `deflate`: the same without its head and checksum."""
    found = _decompress(zlib.decompressobj(), raw, bytes_max)
    if found is Undecoded.UNKNOWN:
        return _decompress(zlib.decompressobj(wbits=-zlib.MAX_WBITS), raw, bytes_max)
    return found


def _decompress(decoder: "zlib._Decompress", raw: bytes, bytes_max: int) -> bytes | Undecoded:
    try:
        found = decoder.decompress(raw, bytes_max + 1)
    except zlib.error:
        return Undecoded.UNKNOWN
    if len(found) > bytes_max:
        return Undecoded.TOO_LARGE
    return found if decoder.eof else Undecoded.UNKNOWN


def read_text(raw: bytes, content_type: str) -> str | None:
    """The characters of a body by the charset of its type, UTF-8 without one; None for bytes that are no text in it. A text has no NUL."""
    named = _CHARSET.search(content_type)
    codec = _CHARSETS.get(named[1].lower()) if named else "utf-8"
    for name in (codec, "utf-8") if codec else ("utf-8",):
        try:
            text = raw.decode(name)
        except UnicodeError:
            continue
        return None if "\0" in text else text.removeprefix("\ufeff")
    return None
