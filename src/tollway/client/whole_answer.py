"""An answer that is read whole, with its content coding taken off, within a bound. No I/O.

The client asks for no coding. Where an answer has one all the same, gzip and deflate are taken off; everything else, and
what is not what it says, stays the bytes that came, because they are paid for.
"""

import json
import zlib
from collections.abc import Mapping
from types import MappingProxyType

import httpx
from pydantic_core import from_json

from tollway.client.reply import CallResponse, ResponseTooLong

_GZIP = zlib.MAX_WBITS | 16
_WINDOW_BITS: Mapping[str, int] = MappingProxyType(
    {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": zlib.MAX_WBITS}
)
_GZIP_MAGIC = b"\x1f\x8b"
_PIECE_BYTES = 64 * 1024
PROBLEM_BYTES_MAX = 512 * 1024
MEMBERS_MAX = 1_000
"""A gzip stream may have several members (RFC 1952 §2.2); more of them than this are not taken apart."""


def decode_response(response: CallResponse, content: bytes, *, bytes_max: int) -> CallResponse:
    """`content`: the bytes as they came. A coding that is off is no longer named. Raises `ResponseTooLong`."""
    coding = _find_coding(response)
    inflated = None if not coding else _inflate(content, coding, bytes_max=bytes_max)
    headers = response.headers.copy()
    if coding:  # httpx would take it off by itself, without a bound, and raise where it is not what it says
        del headers["content-encoding"]
        headers.pop("content-length", None)
    whole = CallResponse(
        response.status_code, headers=headers, content=content if inflated is None else inflated
    )
    if coding and inflated is None:
        whole.headers["content-encoding"] = coding
    whole.request, whole.payment = response.request, response.payment
    return whole


def decode_problem(response: httpx.Response, content: bytes) -> bytes:
    """The body of a gateway's own problem. A coding that it has is taken off within the bound of what came, or leaves
    nothing to read: a gateway codes none of its own. The response then names none."""
    coding = _find_coding(response)
    if not coding:
        return content
    for name in ("content-encoding", "content-length"):
        response.headers.pop(name, None)
    try:
        return _inflate(content, coding, bytes_max=PROBLEM_BYTES_MAX) or b""
    except ResponseTooLong:
        return b""


def read_json(content: bytes) -> object:
    """The JSON value of a body, which can be written as JSON again. Raises ValueError, also for `NaN` and for numbers
    with more digits than Python writes."""
    value: object = from_json(content, allow_inf_nan=False)
    json.dumps(value, allow_nan=False)
    return value


def _find_coding(response: httpx.Response) -> str:
    """Empty without one."""
    coding = str(response.headers.get("content-encoding", "")).strip().lower()
    return "" if coding == "identity" else coding


def _inflate(content: bytes, coding: str, *, bytes_max: int) -> bytes | None:
    """None: not a coding that is known here, or not what it says. Bytes behind the last member are dropped."""
    if coding not in _WINDOW_BITS:
        return None
    inflated = bytearray()
    start = 0
    for _ in range(MEMBERS_MAX):
        inflater = zlib.decompressobj(_WINDOW_BITS[coding])
        while not inflater.eof:
            piece = content[start : start + _PIECE_BYTES]
            if not piece:
                return None
            try:
                inflated += inflater.decompress(piece, bytes_max + 1 - len(inflated))
            except zlib.error:
                return None
            if len(inflated) > bytes_max:
                raise ResponseTooLong
            start += len(piece) - len(inflater.unused_data)
        if not content.startswith(_GZIP_MAGIC, start):
            return bytes(inflated)
    return None
