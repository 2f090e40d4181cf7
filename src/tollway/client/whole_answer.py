"""An answer that is read whole, with its content coding taken off, within a bound. No I/O.

The client asks for no coding. Where an answer has one all the same, gzip and deflate are taken off; everything else, and
what is not what it says, stays the bytes that came, because they are paid for.
"""

import zlib
from collections.abc import Mapping
from types import MappingProxyType

from tollway.client.reply import CallResponse, TooLong

_WINDOW_BITS: Mapping[str, int] = MappingProxyType(
    {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
)


def make_whole(response: CallResponse, content: bytes, *, bytes_max: int) -> CallResponse:
    """`content`: the bytes as they came. A coding that is off is no longer named. Raises `TooLong`."""
    coding = response.headers.get("content-encoding", "").strip().lower()
    is_plain = coding in ("", "identity")
    inflated = None if is_plain else _inflate(content, coding, bytes_max=bytes_max)
    headers = response.headers.copy()
    if (
        not is_plain
    ):  # httpx would take it off by itself, without a bound, and raise where it is not what it says
        del headers["content-encoding"]
        headers.pop("content-length", None)
    whole = CallResponse(
        response.status_code, headers=headers, content=content if inflated is None else inflated
    )
    if not is_plain and inflated is None:
        whole.headers["content-encoding"] = coding
    whole.request, whole.payment = response.request, response.payment
    return whole


def _inflate(content: bytes, coding: str, *, bytes_max: int) -> bytes | None:
    """None: not a coding that is known here, or not what it says."""
    if coding not in _WINDOW_BITS:
        return None
    inflater = zlib.decompressobj(_WINDOW_BITS[coding])
    try:
        inflated = inflater.decompress(content, bytes_max + 1)
    except zlib.error:
        return None
    if len(inflated) > bytes_max:
        raise TooLong
    return inflated if inflater.eof else None
