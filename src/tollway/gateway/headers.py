"""Header tables: which request headers are refused, which are forwarded, which response headers are returned. Pure.

Every paid call runs this code: the tables are frozen sets, and each function makes one pass. Requests use an allow-list, responses a
deny-list of classes (`registry.response_headers`). Framing headers are never copied in either direction.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote_to_bytes

import ada_url

from tollway.errors import Code, FieldError, Problem
from tollway.limits import KIB, Limits
from tollway.outbound.http1 import format_fields
from tollway.outbound.policy import Endpoint
from tollway.registry.header_names import ALWAYS_FORWARDED
from tollway.registry.listing import UpstreamAuth
from tollway.registry.response_headers import (
    FRAMING_NAMES,
    GROUP_REASONS,
    REFUSED_CHALLENGE,
    UNSTORED,
    URL_HEADERS,
    UrlForm,
    find_dropped,
    make_private,
)

RawHeaders = Sequence[tuple[bytes, bytes]]

_PAYMENT = frozenset(
    {
        b"x-payment-tx",
        b"x-signature",
        b"x-signature-params",
        b"x-payment-network",
        b"payment-signature",
        b"x-payment",
        b"authorization",
    }
)
_AUTHORIZING = frozenset({b"payment-signature", b"x-payment"})
_PAYS = re.compile(rb"\s*payment(?:\s|$)", re.I)
# The gateway and the sender could read a second value of one of these differently.
_CONTROL = _PAYMENT | {
    b"host",
    b"idempotency-key",
    b"tollway-max-price",
    b"sign-in-with-x",
    b"signature",
    b"signature-input",
    b"content-digest",
    b"content-length",
    b"content-type",
    b"transfer-encoding",
}
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)


def check_control_headers(headers: RawHeaders, *, limits: Limits) -> Problem | None:
    """Refuses (`invalid_request`) headers that break a rule; None where all are valid.

    Refused: duplicate control headers, two `Host`s, names with an underscore (some upstreams read it as a hyphen), a `Connection` that
    names a control header, a transfer coding other than `chunked`, values that are not UTF-8, and everything over the limits. Headers
    with an authorisation may hold any bytes: the payment check validates them, and they are not forwarded.
    """
    if len(headers) > limits.headers_max:
        return _refused("headers", f"A request has at most {limits.headers_max} headers. Send fewer.")
    seen: set[bytes] = set()
    bytes_total = 0
    for raw_name, value in headers:
        name = raw_name.lower()
        size = len(name) + len(value)
        bytes_total += size + 4
        if size > limits.header_bytes_max:
            most = limits.payment_header_bytes_max if name in _PAYMENT else limits.header_bytes_max
            if size > most:
                return _refused(_format_name(name), f"This header is larger than {most} bytes. Shorten it.")
        if b"_" in name:
            return _refused(_format_name(name), "Header names must not contain an underscore.")
        if not value.isascii() and not _is_utf8(value) and not _is_authorization_to_pay(name, value):
            return _refused(_format_name(name), "Header values must be UTF-8.")
        if name == b"transfer-encoding" and not is_chunked_alone(value):
            return _refused(
                "transfer-encoding",
                "The only transfer coding is chunked. Send the body with it, or with a Content-Length.",
            )
        if name in _CONTROL:
            if name in seen:
                return _refused(_format_name(name), "This header is sent more than once. Send it once.")
            seen.add(name)
        elif name == b"connection" and (nominated := _tokens(value) & _CONTROL):
            return _refused("connection", f"Connection must not name {_format_name(min(nominated))}.")
    if bytes_total > limits.headers_bytes_max:
        return _refused(
            "headers", f"The headers are larger than {limits.headers_bytes_max} bytes. Shorten them."
        )
    return None


def is_chunked_alone(value: bytes) -> bool:
    """Whether `chunked` is the only transfer coding. Of two codings the server applies the last and ignores the first."""
    return value.strip(b" \t").lower() == b"chunked"


def _is_authorization_to_pay(name: bytes, value: bytes) -> bool:
    return name in _AUTHORIZING or (name == b"authorization" and _PAYS.match(value) is not None)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _tokens(value: bytes) -> frozenset[bytes]:
    return frozenset(token.strip().lower() for token in value.split(b","))


def _format_name(name: bytes) -> str:
    return name[:64].decode("ascii", "replace")


def _refused(parameter: str, detail: str) -> Problem:
    return Problem(
        code=Code.INVALID_REQUEST,
        detail=f"{parameter}: {detail}",
        errors=(FieldError(code="invalid", detail=detail, parameter=parameter),),
    )


# ---------------------------------------------------------------------- to the upstream

# A listing cannot request these: framing, identity and proofs of the caller, headers of the gateway.
_NEVER_FORWARDED = (_HOP_BY_HOP | _CONTROL | {b"cookie", b"cookie2", b"expect", b"via", b"cdn-loop"}) - {
    b"authorization",
    b"content-type",
}
_NEVER_FORWARDED_PREFIXES = (b"x-payment", b"payment-", b"tollway-", b"x-signature", b"sec-", b"proxy-")


def is_forwardable(name: str) -> bool:
    """Whether a listing may request this header, or set it as its secret. (`Authorization` is allowed.)"""
    raw = name.lower().encode("ascii", "replace")
    return _is_token(raw) and raw not in _NEVER_FORWARDED and not raw.startswith(_NEVER_FORWARDED_PREFIXES)


@lru_cache(maxsize=4096)
def _forward_table(forward_headers: tuple[str, ...]) -> dict[bytes, str]:
    wanted = (*ALWAYS_FORWARDED, *(name for name in forward_headers if is_forwardable(name)))
    return {name.lower().encode(): name for name in wanted}


DECIDING = (_CONTROL | {b"connection", b"cdn-loop"}) - {b"content-digest", b"content-length", b"content-type"}
"""Headers whose value decides something about a call. The value of any other is forwarded unchanged, or not at all; of `Accept-Encoding` only `NO_CODING` where
the listing does not name it. The headers of the body are read, and the body is checked, at each call."""

NO_CODING = b"identity"
"""The value of `Accept-Encoding` that asks for a response without a coding (RFC 9110 §12.5.3). It always goes upstream: a caller that sends it decodes nothing."""

_HIDES_USAGE = frozenset({b"accept-encoding", b"range", b"if-range"})

ForwardedFields = tuple[bytes | int, ...]
"""The forwarded header fields of a request: bytes of HTTP/1.1, with the index of a request header in place of each value that decides nothing
(`DECIDING`)."""


def render_fields(fields: ForwardedFields, headers: RawHeaders) -> bytes:
    """Renders the fields for a request whose headers differ only in values that decide nothing. They contain no control characters."""
    return b"".join([headers[part][1] if isinstance(part, int) else part for part in fields])


def forward_fields(
    headers: RawHeaders,
    *,
    gateway_name: str,
    forward_headers: tuple[str, ...] = (),
    secret: tuple[str, str] | None = None,
    usage_headers: frozenset[bytes] | None = None,
) -> ForwardedFields:
    """Builds the forwarded fields: headers of the allow-list, the listing's `forward_headers`, `Accept-Encoding: identity`, the secret, `CDN-Loop` and `Via`.

    The headers must have passed `check_control_headers`. `secret` (name, value) replaces the caller's header of that name. An
    `Authorization` with a payment (`Payment …`) is not forwarded. `usage_headers`: of a metered call, the response headers that report its use, in lower case. The
    request of such a call has none of them, asks for the whole body and no coding of it: a coding or a range would hide the use. Raises Refusal for a field
    that cannot be written as HTTP.
    """
    table = _forward_table(forward_headers)
    if usage_headers is not None:
        dropped = usage_headers | _HIDES_USAGE
        table = {name: forwarded for name, forwarded in table.items() if name not in dropped}
    secret_name = secret[0].lower().encode() if secret is not None else b""
    forwarded: list[tuple[bytes, str, str, int]] = []
    loop: list[str] = []
    nominated: frozenset[bytes] = frozenset()
    no_coding: list[bytes] = []
    for number, (raw_name, value) in enumerate(headers):
        name = raw_name.lower()
        forwarded_name = table.get(name)
        if forwarded_name is not None:
            if name != secret_name and not (name == b"authorization" and _PAYS.match(value)):
                forwarded.append((name, forwarded_name, value.decode(), number))
        elif name == b"accept-encoding" and value == NO_CODING and name != secret_name:
            no_coding = [format_fields([("Accept-Encoding", value.decode())])]
        elif name == b"connection":
            nominated |= _tokens(value)
        elif name == b"cdn-loop":
            loop.append(value.decode())
    parts: list[bytes | int] = []
    for name, forwarded_name, text, number in forwarded:
        if name in nominated:
            continue
        field = format_fields([(forwarded_name, text)])
        if name in DECIDING:
            parts.append(field)
        else:
            parts += [forwarded_name.encode() + b": ", number, b"\r\n"]
    if b"accept-encoding" not in nominated and usage_headers is None:
        parts += no_coding
    own = [] if secret is None else [secret]
    if usage_headers is not None and secret_name != b"accept-encoding":
        own.append(("Accept-Encoding", NO_CODING.decode()))
    # RFC 8586: members are never removed from this list, else the next member could not detect the loop.
    own.append(("CDN-Loop", ", ".join([*loop, gateway_name])))
    # RFC 9110 §7.6.3: a pseudonym is a token, which the brackets of an IPv6 address are not.
    own.append(("Via", f"1.1 {gateway_name if '[' not in gateway_name else 'tollway'}"))
    parts.append(format_fields(own))
    return tuple(parts)


def is_loop(headers: RawHeaders, gateway_name: str) -> bool:
    """Whether this request has passed this gateway before (RFC 8586): the endpoint of a listing leads back to it."""
    own = gateway_name.lower().encode()
    for name, value in headers:
        if name.lower() == b"cdn-loop":
            for member in value.lower().split(b","):
                if member.partition(b";")[0].strip() == own:
                    return True
    return False


# ---------------------------------------------------------------------- back to the caller

PROXY_STATUSES_KEPT = 1_024
"""A parameter is one of few errors, or a status of three digits."""


@lru_cache(maxsize=PROXY_STATUSES_KEPT)
def proxy_status(gateway_name: str, parameter: str) -> tuple[bytes, bytes]:
    """Builds `Proxy-Status` (RFC 9209 §2): the name of the gateway, and its error or the received status.

    The name is a string, not a token: a host may begin with a digit or a bracket. It contains no quote or backslash.
    """
    return b"proxy-status", f'"{gateway_name}"; {parameter}'.encode()


EXPOSED_HEADERS = (
    "PAYMENT-REQUIRED, PAYMENT-RESPONSE, X-PAYMENT-RESPONSE, WWW-Authenticate, Payment-Receipt, Link, ETag, Location, "
    "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id, Idempotency-Replayed, Proxy-Status, "
    "Tollway-Call-Id, Tollway-Payment-State, Tollway-Price, Tollway-Price-Max, Tollway-Credit-Remaining"
)
_SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    # Provider content has the gateway's origin: the sandbox denies it scripts, storage and frames of that origin.
    (b"content-security-policy", b"sandbox; default-src 'none'"),
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", EXPOSED_HEADERS.encode()),
)
_URL_FORMS: dict[bytes, UrlForm] = {name.encode(): row.form for row in URL_HEADERS for name in row.names}
_EVENT_STREAM = b"text/event-stream"
_UNBUFFERED = (b"x-accel-buffering", b"no")
"""nginx and its kin send events on at once (`proxy_buffering`)."""
_QUERY = re.compile(rb"\?[^\s<>\"'#]*")
_DECODES_MAX = 3
SECRET_BYTES_MIN = 6
"""A listing's secret of fewer bytes is not searched for in the upstream's headers."""
_BAD_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_SCHEME = re.compile(rb"[ \t]*[A-Za-z][A-Za-z0-9+.-]*:")
_TOKEN_TEXT = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_LINK = re.compile(rb"[ \t]*+(?:<(?P<target>[^<>]*+)>|,|\Z)")
_LINK_PARAMETER = re.compile(
    rb"[ \t]*+;[ \t]*+(?:"
    rb'[Aa][Nn][Cc][Hh][Oo][Rr][ \t]*+=[ \t]*+"(?P<anchor>(?:[^"\\]|\\.)*+)"'
    rb"|" + _TOKEN_TEXT + rb'(?:[ \t]*+=[ \t]*+(?:"(?:[^"\\]|\\.)*+"|' + _TOKEN_TEXT + rb"))?)?"
)
_LIST_END = re.compile(rb"[ \t]*+(?:,|\Z)")
_QUOTED_PAIR = re.compile(rb"\\(.)")
_QUOTED = re.compile(rb"[\"\\]")


URLS_MAX = 64
"""The maximum number of URLs in the headers of a response that are rewritten. Each may resolve to the whole URL of the request, which the caller writes."""
URL_GROWTH_BYTES_MAX = 16 * KIB
"""The number of bytes by which rewriting may lengthen the headers of a response."""
RETURNED_NAMES_KEPT = 2_048
RETURNED_NAME_BYTES_MAX = 64
"""The cache of `_is_returned` holds no longer names."""
CACHE_RULES_KEPT = 256
CACHE_RULE_BYTES_MAX = 128
"""The cache of `make_private` holds no longer values."""


def _is_token(name: bytes) -> bool:
    return _TOKEN.fullmatch(name) is not None


def _is_returned(name: bytes) -> bool:
    """Whether a response header of this name is returned to the caller."""
    return _is_token(name) and find_dropped(name.decode()) is None


_is_returned_again = lru_cache(maxsize=RETURNED_NAMES_KEPT)(_is_returned)
_make_private_again = lru_cache(maxsize=CACHE_RULES_KEPT)(make_private)


def caller_headers(
    raw: RawHeaders,
    *,
    keep_length: bool,
    endpoint: Endpoint,
    target: str,
    gateway_path: str,
    is_private: bool = False,
    secret: UpstreamAuth | None = None,
    hidden: frozenset[bytes] = frozenset(),
) -> list[tuple[bytes, bytes]]:
    """Builds the returned headers, names in lower case: those of the upstream, plus the security headers of proxied content.

    `keep_length`: only for a response to HEAD and for a body of more than one message; a wrong length beside a single message would
    desynchronise the connection. `target`: path and query as sent upstream; `gateway_path`: `/api/v2/gateway/{apiId}`; both rewrite the
    URLs in headers (`URL_HEADERS`). `is_private`: the response is paid, so every `Cache-Control` of the upstream is made private
    (`make_private`). `secret`: the secret of the listing. Its query parameter is removed from every header with URLs; a header that still
    contains its value is dropped. Bodies are not searched. `hidden`: names of headers that report the use of a metered call to the gateway alone.
    """
    parameter = secret.name if secret is not None and secret.location == "query" else ""
    secret_value = b"" if secret is None else secret.reveal().encode()
    returned: list[tuple[bytes, bytes]] = []
    nominated: frozenset[bytes] = frozenset()
    has_cache_rule = has_length = is_event_stream = False
    urls = growth = 0
    for raw_name, value in raw:
        name = raw_name.lower()
        if name in FRAMING_NAMES:
            if name == b"connection":
                nominated |= _tokens(value)
            elif name == b"content-length" and keep_length and not has_length and value.isdigit():
                has_length = True
                returned.append((name, value))
            continue
        is_returned = _is_returned_again if len(name) <= RETURNED_NAME_BYTES_MAX else _is_returned
        if not is_returned(name) or name in hidden or _BAD_VALUE.search(value):
            continue
        if name in _URL_FORMS:
            urls += _count_urls(_URL_FORMS[name], value)
            if urls > URLS_MAX:
                continue
            place = UrlPlace(endpoint=endpoint, target=target, gateway_path=gateway_path, secret=parameter)
            rewritten = _rewrite_urls(_URL_FORMS[name], value, place)
            if rewritten is None:
                continue
            growth += max(0, len(rewritten) - len(value))
            if growth > URL_GROWTH_BYTES_MAX:
                continue
            value = rewritten
        elif name == b"www-authenticate" and REFUSED_CHALLENGE.search(value):
            continue
        if secret_value and _contains_secret(value, secret_value):
            continue
        if name == b"cache-control":
            has_cache_rule = True
            if is_private:
                is_short = len(value) <= CACHE_RULE_BYTES_MAX
                value = _make_private_again(value) if is_short else make_private(value)
        elif name == b"content-type" and value.partition(b";")[0].strip().lower() == _EVENT_STREAM:
            is_event_stream = True
        returned.append((name, value))
    if nominated:
        returned = [header for header in returned if header[0] not in nominated]
    if not has_cache_rule or b"cache-control" in nominated:
        # Without a rule of the upstream, no shared cache may store a paid response.
        returned.append((b"cache-control", UNSTORED))
    if is_event_stream:
        returned.append(_UNBUFFERED)
    returned.extend(_SECURITY_HEADERS)
    return returned


def list_dropped(raw: RawHeaders, returned: RawHeaders) -> dict[str, str]:
    """The headers of an upstream of which at least one field is not among the returned ones, in their order, with the reason. Framing is left out.

    `raw`: as the upstream sent them; `returned`: what `caller_headers` made of them.
    """
    sent, kept = Counter(name.lower() for name, _ in raw), Counter(name for name, _ in returned)
    dropped: dict[str, str] = {}
    for name, count in sent.items():
        text = _format_name(name)
        row = find_dropped(text)
        if row is None and count > kept[name]:
            is_challenge = name == b"www-authenticate"
            dropped[text] = _CHALLENGE_REASON if is_challenge else _VALUE_REASON
        elif row is not None and row.group != "framing":
            dropped[text] = GROUP_REASONS[row.group]
    return dropped


_CHALLENGE_REASON = "a client would ask for a password, or pay, in the name of the gateway"
_VALUE_REASON = "its value has the listing's secret, is not valid in HTTP, has more URLs than are rewritten, or Connection names it as one of this hop"


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlPlace:
    """What URLs of a response are resolved against, and where they lead. `target`: path and query as sent upstream. `gateway_path`: the path of
    the endpoint at the gateway. `secret`: the query parameter that is removed; empty for none."""

    endpoint: Endpoint
    target: str
    gateway_path: str
    secret: str = ""


def _count_urls(form: UrlForm, value: bytes) -> int:
    """The number of URLs that rewriting a header of that form resolves, or more."""
    if form == "text":
        return 0
    return value.count(b"<") + value.lower().count(b"anchor") if form == "links" else 1


def _rewrite_urls(form: UrlForm, value: bytes, place: UrlPlace) -> bytes | None:
    """Rewrites the URLs in a header of that form. None: the header is dropped."""
    if form == "redirect":
        return rewrite_location(value, place)
    if place.secret:
        value = _QUERY.sub(
            lambda found: _drop_parameter(found[0].decode("latin-1"), place.secret).encode("latin-1"), value
        )
    if form == "text":
        return value
    return rewrite_reference(value, place) if form == "reference" else rewrite_links(value, place)


def rewrite_location(value: bytes, place: UrlPlace) -> bytes | None:
    """Rewrites a `Location`: under the endpoint to the gateway's path, any other to an absolute URL. None: not a URL.

    The value is resolved against the URL of the upstream request, as an HTTP client would do.
    """
    endpoint, secret = place.endpoint, place.secret
    try:
        url = ada_url.URL(value.decode(), base=endpoint.origin + place.target)
    except (UnicodeDecodeError, ValueError):
        return None
    search = _drop_parameter(url.search, secret) if secret else url.search
    if url.protocol not in ("http:", "https:"):
        return None
    under = url.pathname == endpoint.base_path or url.pathname.startswith(endpoint.base_path + "/")
    if url.origin != endpoint.origin or not under:
        return f"{url.origin}{url.pathname}{search}{url.hash}".encode()
    return f"{place.gateway_path}{url.pathname[len(endpoint.base_path) :]}{search}{url.hash}".encode()


def rewrite_reference(value: bytes, place: UrlPlace) -> bytes:
    """Rewrites a URL that no client follows by itself. Under the endpoint: to the gateway's path, as a `Location`. Relative and elsewhere: to
    an absolute URL, because the gateway's own pages have that path. Absolute and elsewhere, or not a URL: unchanged."""
    location = rewrite_location(value, place)
    if location is None or (not location.startswith(b"/") and _SCHEME.match(value) is not None):
        return value
    return location


def rewrite_links(value: bytes, place: UrlPlace) -> bytes:
    """Rewrites the targets and the `anchor`s of a `Link` header (RFC 8288 §3), each as `rewrite_reference`; every other byte stays. A value
    that is no list of links is unchanged. Time is linear in the length, and in the number of links times the length of the request's target
    (`URLS_MAX`)."""
    parts: list[bytes] = []
    at = kept = 0
    while at < len(value):
        link = _LINK.match(value, at)
        if link is None:
            return value
        at = link.end()
        if link["target"] is None:  # an empty element of the list
            continue
        parts += [value[kept : link.start("target")], rewrite_reference(link["target"], place)]
        kept = link.end("target")
        while (parameter := _LINK_PARAMETER.match(value, at)) is not None:
            at = parameter.end()
            if parameter["anchor"] is not None:
                anchor = _QUOTED_PAIR.sub(rb"\1", parameter["anchor"])
                rewritten = rewrite_reference(anchor, place)
                if rewritten != anchor:
                    parts += [value[kept : parameter.start("anchor")], _QUOTED.sub(rb"\\\g<0>", rewritten)]
                    kept = parameter.end("anchor")
        after = _LIST_END.match(value, at)
        if after is None:
            return value
        at = after.end()
    return b"".join(parts) + value[kept:]


def _contains_secret(value: bytes, secret: bytes) -> bool:
    """Whether the value contains the secret, plain or percent-encoded up to three times. False for a secret below `SECRET_BYTES_MIN`: it
    would match ordinary values."""
    if len(secret) < SECRET_BYTES_MIN:
        return False
    for _ in range(_DECODES_MAX):
        if secret in value or secret in value.replace(b"+", b" "):
            return True
        decoded = unquote_to_bytes(value)
        if decoded == value:
            return False
        value = decoded
    return secret in value


def _drop_parameter(search: str, name: str) -> str:
    kept = [part for part in search[1:].split("&") if part and not _is_named(part, name)]
    return "?" + "&".join(kept) if kept else ""


def _is_named(part: str, name: str) -> bool:
    """Whether a part of a query is a parameter of that name. Most names are not encoded, and need no parser."""
    key = part.partition("=")[0]
    if "%" in key or "+" in key:
        return ada_url.parse_search_params(part).get(name) is not None
    return key == name
