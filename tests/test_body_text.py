"""Bodies as text: each coding, limits, and charsets."""

import gzip
import zlib
from itertools import count

import pytest

from tollway.body_text import MEMBERS_MAX, Undecoded, decode_body, read_text

TEXT = b"one two " * 50
LIMIT = len(TEXT)


def pack(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def raw_deflate(content: bytes) -> bytes:
    return zlib.compress(content, wbits=-zlib.MAX_WBITS)


@pytest.mark.parametrize(
    ("raw", "coding"),
    [
        (TEXT, ""),
        (TEXT, "identity"),
        (pack(TEXT), "gzip"),
        (pack(TEXT), " X-GZIP "),
        (pack(TEXT[:7]) + pack(TEXT[7:]), "gzip"),
        (pack(TEXT) + b"\0" * 9, "gzip"),
        (pack(TEXT) + b"more", "gzip"),
        (zlib.compress(TEXT), "deflate"),
        (raw_deflate(TEXT), "deflate"),
        (zlib.compress(pack(TEXT)), "gzip, deflate"),
    ],
    ids=count(),
)
def test_a_coding_is_removed(raw: bytes, coding: str) -> None:
    assert decode_body(raw, coding, bytes_max=LIMIT) == TEXT


@pytest.mark.parametrize(
    ("raw", "coding", "reason"),
    [
        (TEXT, "br", Undecoded.UNKNOWN),
        (TEXT, "gzip", Undecoded.UNKNOWN),
        (TEXT, "deflate", Undecoded.UNKNOWN),
        (pack(TEXT)[:-9], "gzip", Undecoded.UNKNOWN),
        (zlib.compress(TEXT)[:-5], "deflate", Undecoded.UNKNOWN),
        (pack(b"") * (MEMBERS_MAX + 1), "gzip", Undecoded.UNKNOWN),
        (pack(pack(pack(TEXT))), "gzip, gzip, gzip", Undecoded.UNKNOWN),
        (pack(TEXT + b"."), "gzip", Undecoded.TOO_LARGE),
        (pack(TEXT) + pack(b"."), "gzip", Undecoded.TOO_LARGE),
        (zlib.compress(b"\0" * 50_000_000), "deflate", Undecoded.TOO_LARGE),
        (raw_deflate(TEXT + b"."), "deflate", Undecoded.TOO_LARGE),
    ],
    ids=count(),
)
def test_what_cannot_be_decoded_has_a_reason(raw: bytes, coding: str, reason: Undecoded) -> None:
    assert decode_body(raw, coding, bytes_max=LIMIT) is reason


@pytest.mark.parametrize(
    ("raw", "content_type", "text"),
    [
        ("é".encode(), "text/plain", "é"),
        ("é".encode(), "", "é"),
        (b"\xe9", "text/plain; charset=iso-8859-1", "é"),
        (b"\xe9", 'text/html;charset="ISO-8859-1"', "é"),
        ("日本".encode("shift_jis"), "text/plain; charset=Shift_JIS", "日本"),
        ("é".encode("utf-16-le"), "text/plain; charset=UTF-16LE", "é"),
        ("é".encode(), "text/plain; charset=us-ascii", None),
        ("é".encode(), "text/plain; charset=koi8-x", "é"),
        ("\ufeffé".encode(), "text/plain", "é"),
        (b"\xe9", "text/plain", None),
        (b"\xe9", "text/plain; charset=utf-8", None),
        (b"a\0b", "text/plain", None),
        (b"a\0b", "text/plain; charset=iso-8859-1", None),
        (b"uryyb", "text/plain; charset=rot13", "uryyb"),
        (b"\\x41", "text/plain; charset=unicode_escape", "\\x41"),
    ],
    ids=count(),
)
def test_a_text_has_the_charset_of_its_type(raw: bytes, content_type: str, text: str | None) -> None:
    assert read_text(raw, content_type) == text
