"""Names of request headers: which of them reach every upstream, and which no listing may use, because HTTP, the gateway or payments use them. Pure."""

import re

_TOKEN = re.compile(r"[!#$%&'*+.^`|~0-9A-Za-z-]{1,128}")
"""RFC 9110 §5.6.2, without `_`: a server that maps `-` and `_` to one name would get two values for it."""

ALWAYS_FORWARDED = (
    "Accept",
    "Accept-Language",
    "Content-Type",
    "Content-Encoding",
    "Content-Language",
    "Range",
    "If-Match",
    "If-None-Match",
    "If-Modified-Since",
    "If-Unmodified-Since",
    "If-Range",
    "Last-Event-ID",
    "User-Agent",
    "traceparent",
    "tracestate",
)
"""The request headers that the gateway forwards to every upstream. It forwards another header only where the listing names it."""

_RESERVED = frozenset(
    {
        # hop by hop (RFC 9110 §7.6.1) and the framing
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "trailers",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
        "content-length",
        "host",
        "expect",
        "max-forwards",
        "close",
        # cookies
        "cookie",
        "cookie2",
        "set-cookie",
        "set-cookie2",
        # names of the client and of proxies: only the gateway writes them
        "forwarded",
        "via",
        "cdn-loop",
        "x-real-ip",
        "x-request-id",
        "origin",
        # payment, wallet proofs and sign-in
        "x-payment",
        "accept-signature",
        "content-digest",
        "settlement-overrides",
        # overrides of method and target: the price was checked for the request without them
        "x-http-method",
        "x-http-method-override",
        "x-method-override",
        "x-original-url",
        "x-rewrite-url",
    }
)
_RESERVED_PREFIXES = (
    "proxy-",
    "tollway-",
    "x-tollway-",
    "x-payment-",
    "payment-",
    "x-signature",
    "signature",
    "sign-in-with-",
    "x-forwarded-",
    "access-control-",
    "sec-",
)


_CONTROLS = frozenset({"authorization", "idempotency-key"})
"""Headers that the gateway reads of a request, and that a listing may forward all the same."""


def is_header_name(name: str) -> bool:
    return _TOKEN.fullmatch(name) is not None


def is_reserved_header(name: str) -> bool:
    """True for a header that a listing may neither forward nor set. `Authorization` is allowed."""
    lower = name.lower()
    return lower in _RESERVED or lower.startswith(_RESERVED_PREFIXES)


def is_control_header(name: str) -> bool:
    """True for a header that decides about a call at the gateway: its payment, proof, key or framing. A provider's document never makes it a field of a form, a
    tool or a description of an API: a value from there would reach the gateway."""
    return name.lower() in _CONTROLS or is_reserved_header(name)
