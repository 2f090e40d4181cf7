"""The text of a response body: content codings removed up to a limit, characters by the charset of its type. Pure.

For readers that get a body with a coding that they did not ask for. The gateway never decodes what it forwards.
"""

import re
import zlib
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

CODINGS_MAX = 2
MEMBERS_MAX = 1_000
"""The maximum of members of a gzip stream (RFC 1952 §2.2); a stream with more is not decoded."""

CHARSETS = frozenset(
    {
        "utf-8", "utf8", "utf-16le", "utf-16be", "us-ascii", "ascii", "latin1", "iso-8859-1",
        "iso-8859-2", "iso-8859-5", "iso-8859-7", "iso-8859-9", "iso-8859-15", "windows-1250",
        "windows-1251", "windows-1252", "windows-1253", "windows-1254", "windows-1255", "windows-1256",
        "windows-1257", "windows-1258", "koi8-r", "koi8-u", "shift_jis", "euc-jp", "iso-2022-jp",
        "euc-kr", "gb2312", "gbk", "gb18030", "big5"
    }
)  # fmt: skip
"""Character sets of text on the web. Python has other codecs too (`zlib`, `idna`, `unicode_escape`), which a
provider could name to make a reader fail or compute for long."""

_GZIP = zlib.MAX_WBITS | 16
_WINDOW_BITS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"gzip": (_GZIP,), "x-gzip": (_GZIP,), "deflate": (zlib.MAX_WBITS, -zlib.MAX_WBITS)}
)
"""Some servers send `deflate` without the head and the checksum of zlib."""
_GZIP_MAGIC = b"\x1f\x8b"
_PIECE_BYTES = 64 * 1024
_CHARSET = re.compile(r";\s*charset\s*=\s*\"?([A-Za-z0-9._:-]{1,40})", re.IGNORECASE)


class Undecoded(Enum):
    """Why a body keeps its coding. `UNKNOWN`: a coding without a decoder here, or bytes that do not match it. `TOO_LARGE`: it is longer than the limit without
    its coding."""

    UNKNOWN = "unknown"
    TOO_LARGE = "too_large"


def decode_body(content: bytes, content_encoding: str, *, bytes_max: int) -> bytes | Undecoded:
    """The bytes without their content codings (RFC 9110 §8.4): gzip and deflate. `content_encoding`: the value of the header; empty for none. Decompresses at
    most `bytes_max` bytes of each coding."""
    codings = [name.strip().lower() for name in content_encoding.split(",")]
    codings = [name for name in codings if name not in ("", "identity")]
    if len(codings) > CODINGS_MAX:
        return Undecoded.UNKNOWN
    decoded: bytes | Undecoded = content
    for coding in reversed(codings):
        if isinstance(decoded, bytes):
            decoded = _remove_coding(decoded, coding, bytes_max)
    return decoded


def _remove_coding(content: bytes, coding: str, bytes_max: int) -> bytes | Undecoded:
    for bits in _WINDOW_BITS.get(coding, ()):
        decoded = _inflate(content, bits, bytes_max)
        if decoded is not Undecoded.UNKNOWN:
            return decoded
    return Undecoded.UNKNOWN


def _inflate(content: bytes, window_bits: int, bytes_max: int) -> bytes | Undecoded:
    """Decodes all members. Bytes after the last one are dropped."""
    inflated = bytearray()
    start = 0
    for _ in range(MEMBERS_MAX):
        inflater = zlib.decompressobj(window_bits)
        while not inflater.eof:
            piece = content[start : start + _PIECE_BYTES]
            if not piece:
                return Undecoded.UNKNOWN
            try:
                inflated += inflater.decompress(piece, bytes_max + 1 - len(inflated))
            except zlib.error:
                return Undecoded.UNKNOWN
            if len(inflated) > bytes_max:
                return Undecoded.TOO_LARGE
            start += len(piece) - len(inflater.unused_data)
        if window_bits != _GZIP or not content.startswith(_GZIP_MAGIC, start):
            return bytes(inflated)
    return Undecoded.UNKNOWN


def read_text(content: bytes, content_type: str) -> str | None:
    """The characters of a body by the charset of its type, UTF-8 without one of `CHARSETS`; None for bytes that are no text in it. A text has no NUL."""
    named = _CHARSET.search(content_type)
    charset = named[1].lower() if named else ""
    try:
        text = content.decode(charset if charset in CHARSETS else "utf-8")
    except UnicodeError:
        return None
    return None if "\0" in text else text.removeprefix("\ufeff")
