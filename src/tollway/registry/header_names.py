"""Header names that belong to HTTP, to the gateway or to a payment, so that no listing may claim them. Pure."""

import re

TOKEN = re.compile(r"[!#$%&'*+.^`|~0-9A-Za-z-]{1,128}")
"""RFC 9110 §5.6.2, without `_`: servers that map `-` and `_` to one name could be told two things at once."""

STANDARD_HEADERS = (
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
    "User-Agent",
    "traceparent",
    "tracestate",
)
"""What reaches every upstream; more of a request's headers only where the listing names them."""

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
        # who asks, and through whom: written by the gateway alone
        "forwarded",
        "via",
        "cdn-loop",
        "x-real-ip",
        "x-request-id",
        "origin",
        # payment, wallet proofs and sign-in
        "x-payment",
        "x-signature",
        "x-signature-params",
        "sign-in-with-x",
        "signature",
        "signature-input",
        "accept-signature",
        "content-digest",
        "settlement-overrides",
        # method and target overrides: the price was taken for another request
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
    "x-forwarded-",
    "access-control-",
    "sec-",
)


def is_header_name(name: str) -> bool:
    """True for a name that can stand in a request without being read in two ways."""
    return TOKEN.fullmatch(name) is not None


def is_reserved_header(name: str) -> bool:
    """True for a header that a listing may neither ask for nor set. `Authorization` is not one of them."""
    lower = name.lower()
    return lower in _RESERVED or lower.startswith(_RESERVED_PREFIXES)
