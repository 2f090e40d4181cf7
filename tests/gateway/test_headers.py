"""The header tables of requests and responses."""

from dataclasses import replace
from typing import Any

import http_sf
import pytest

from tests.kit.narrowing import existing, of_type
from tollway.errors import Code, Problem
from tollway.gateway.headers import (
    RETURNED_NAME_BYTES_MAX,
    UrlPlace,
    caller_headers,
    check_control_headers,
    forward_fields,
    is_forwardable,
    is_loop,
    list_dropped,
    proxy_status,
    render_fields,
    rewrite_links,
    rewrite_location,
    rewrite_reference,
)
from tollway.gateway.request_signing import forwards_idempotency_key
from tollway.limits import DEFAULT_LIMITS
from tollway.outbound.policy import Endpoint, parse_endpoint
from tollway.registry.header_names import is_reserved_header
from tollway.registry.listing import UpstreamAuth

GATEWAY = "gw.example"
PATH = "/api/v2/gateway/api_1"


def _endpoint(text: str) -> Endpoint:
    return of_type(Endpoint, parse_endpoint(text, allow_private=False))


ENDPOINT = _endpoint("https://api.example.com/v1/")
Headers = list[tuple[bytes, bytes]]


def upstream_headers(headers: Headers, **options: Any) -> list[tuple[str, str]]:
    """The fields that go upstream, taken apart again."""
    fields = forward_fields(headers, gateway_name=GATEWAY, **options)
    lines = render_fields(fields, headers).decode().split("\r\n")
    assert lines.pop() == ""
    return [(name, value) for name, _, value in (line.partition(": ") for line in lines)]


def _check(headers: Headers) -> Problem | None:
    return check_control_headers(headers, limits=DEFAULT_LIMITS)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"host", b"gw"), (b"x-payment-tx", b"0x1"), (b"x-signature", b"0x2")],
        [(b"accept", b"a"), (b"accept", b"b"), (b"cookie", b"c"), (b"cookie", b"d")],
        [(b"x-name", "Zürich".encode())],
        [(b"connection", b"keep-alive, x-hop"), (b"x-hop", b"1")],
        [(b"payment-signature", b"x" * 12_000)],
        [(b"x", b"")] * 100,
        # The payment check reads any value; it refuses garbage with the terms.
        [(b"payment-signature", b"\xff\xfe")],
        [(b"X-Payment", b"\xc3")],
        [(b"authorization", b"Payment \xff\xfe")],
        [(b"Authorization", b" PAYMENT\t\xc3")],
    ],
)
def test_lets_ordinary_requests_in(headers: Headers) -> None:
    assert _check(headers) is None


@pytest.mark.parametrize(
    "headers",
    [
        [(b"host", b"a"), (b"host", b"a")],
        [(b"x-payment-tx", b"a"), (b"x-payment-tx", b"a")],
        [(b"X-Payment-Tx", b"a"), (b"x-payment-tx", b"b")],
        [(b"x-signature", b"a"), (b"x-signature", b"b")],
        [(b"x-signature-params", b"a"), (b"x-signature-params", b"b")],
        [(b"x-payment-network", b"a"), (b"x-payment-network", b"b")],
        [(b"payment-signature", b"a"), (b"payment-signature", b"b")],
        [(b"x-payment", b"a"), (b"x-payment", b"b")],
        [(b"authorization", b"a"), (b"authorization", b"b")],
        [(b"idempotency-key", b"a"), (b"idempotency-key", b"b")],
        [(b"tollway-max-price", b"1"), (b"tollway-max-price", b"9")],
        [(b"content-type", b"a/b"), (b"content-type", b"c/d")],
        [(b"x_payment_tx", b"a")],
        [(b"any_name", b"a")],
        [(b"connection", b"x-payment-tx")],
        [(b"connection", b"close, X-Signature")],
        [(b"connection", b"Host")],
        [(b"connection", b"idempotency-key ,close")],
        [(b"connection", b"content-length")],
        [(b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")],
        [(b"transfer-encoding", b"gzip, chunked")],
        [(b"transfer-encoding", b"identity")],
        [(b"transfer-encoding", b"chunked, chunked")],
        [(b"transfer-encoding", b",chunked")],
        [(b"transfer-encoding", b"")],
        [(b"x-name", b"\xff\xfe")],
        [(b"x-payment-tx", b"\xc3")],
        [(b"x-signature", b"\xc3")],
        [(b"authorization", b"Bearer \xff")],
        [(b"authorization", b"Payment\xff")],
        [(b"payment-signature", b"\xff" * 16_384)],
        [(b"authorization", b"Payment " + b"\xff" * 16_384)],
        [(b"x-name", b"x" * 8192)],
        [(b"payment-signature", b"x" * 16_384)],
        [(b"a%d" % n, b"x" * 8000) for n in range(5)],
        [(b"x", b"")] * 101,
    ],
)
def test_refuses_what_could_be_read_in_two_ways(headers: Headers) -> None:
    refused = existing(_check(headers))
    assert refused.code is Code.INVALID_REQUEST
    assert refused.errors[0].parameter


def test_a_refusal_never_shows_the_value() -> None:
    refused = existing(_check([(b"x-signature", b"0xsecret"), (b"x-signature", b"0xsecret")]))
    assert "secret" not in repr(refused)


FORWARDED = [
    b"accept",
    b"accept-language",
    b"content-type",
    b"content-encoding",
    b"content-language",
    b"range",
    b"if-match",
    b"if-none-match",
    b"if-modified-since",
    b"if-unmodified-since",
    b"if-range",
    b"user-agent",
    b"traceparent",
    b"tracestate",
    b"last-event-id",
]
KEPT_BACK = [
    b"host",
    b"connection",
    b"keep-alive",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"content-length",
    b"upgrade",
    b"proxy-authorization",
    b"proxy-connection",
    b"expect",
    b"cookie",
    b"authorization",
    b"x-payment-tx",
    b"x-signature",
    b"x-signature-params",
    b"x-payment-network",
    b"x-payment",
    b"payment-signature",
    b"idempotency-key",
    b"tollway-max-price",
    b"signature",
    b"signature-input",
    b"sign-in-with-x",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"forwarded",
    b"via",
    b"origin",
    b"referer",
    b"accept-encoding",
    b"x-http-method-override",
    b"x-custom",
]


def test_forwards_the_standard_set() -> None:
    sent = {name: upstream_headers([(name.upper(), b"v")]) for name in FORWARDED}
    values = {
        name: [value for other, value in headers if other.lower().encode() == name]
        for name, headers in sent.items()
    }
    assert [name for name, found in values.items() if found != ["v"]] == []


def test_forwards_nothing_else() -> None:
    own = [("CDN-Loop", GATEWAY), ("Via", f"1.1 {GATEWAY}")]
    assert [name for name in KEPT_BACK if upstream_headers([(name, b"v")]) != own] == []


@pytest.mark.parametrize(
    ("value", "forward_headers", "sent"),
    [
        (b"identity", (), ["identity"]),
        (b"gzip", (), []),
        (b"identity, gzip", (), []),
        (b"identity", ("Accept-Encoding",), ["identity"]),
        (b"gzip", ("Accept-Encoding",), ["gzip"]),
    ],
)
def test_a_caller_that_decodes_nothing_gets_no_coding(
    value: bytes, forward_headers: tuple[str, ...], sent: list[str]
) -> None:
    headers = upstream_headers([(b"Accept-Encoding", value)], forward_headers=forward_headers)
    assert [text for name, text in headers if name == "Accept-Encoding"] == sent


NEVER_FORWARDED = (
    "Host",
    "Content-Length",
    "Transfer-Encoding",
    "Connection",
    "TE",
    "Upgrade",
    "Cookie",
    "Expect",
    "X-Payment-Tx",
    "X-Signature",
    "X-PAYMENT",
    "Payment-Signature",
    "Tollway-Max-Price",
    "Idempotency-Key",
    "Sign-In-With-X",
    "CDN-Loop",
    "Via",
    "Proxy-Foo",
    "",
    "a b",
    "a:b",
    "a\r\nb",
    "é",
)


def test_a_listing_cannot_forward_these() -> None:
    assert [name for name in NEVER_FORWARDED if is_forwardable(name)] == []
    sent = {
        name: upstream_headers([(name.lower().encode(), b"v")], forward_headers=(name,))
        for name in NEVER_FORWARDED
    }
    assert [name for name, headers in sent.items() if len(headers) != 2] == []


OF_THE_GATEWAY = (
    *(name.decode() for name in (*FORWARDED, *KEPT_BACK)),
    *("x-payment-new", "tollway-any", "x-signature-any", "signature-any", "sec-fetch-mode", "proxy-any"),
    *("trailers", "cookie2", "cdn-loop", "content-digest", "accept-signature", "x-request-id"),
)


def test_no_listing_names_a_header_that_is_dropped() -> None:
    """A listing may name a header only where it goes upstream. `Idempotency-Key` goes there in another form (`UpstreamSigner.name_repeat`)."""
    named = [name for name in OF_THE_GATEWAY if not is_reserved_header(name)]
    dropped = [name for name in named if not (is_forwardable(name) or forwards_idempotency_key((name,)))]
    assert dropped == []


@pytest.mark.parametrize("name", [b"payment-signature", b"x-payment", b"authorization"])
def test_a_payment_that_is_no_text_stays_here(name: bytes) -> None:
    """It is let in where it pays, so it must not be read as text on the way out."""
    wanted = ("Authorization", "PAYMENT-SIGNATURE", "X-PAYMENT")
    sent = upstream_headers([(name, b"Payment \xff")], forward_headers=wanted)
    assert [header for header, _ in sent] == ["CDN-Loop", "Via"]


def test_forwards_the_headers_of_the_listing_in_order_and_with_duplicates() -> None:
    headers = [(b"x-a", b"1"), (b"accept", b"*/*"), (b"x-a", "ü".encode()), (b"authorization", b"Bearer t")]
    assert upstream_headers(headers, forward_headers=("X-A", "Authorization")) == [
        ("X-A", "1"),
        ("Accept", "*/*"),
        ("X-A", "ü"),
        ("Authorization", "Bearer t"),
        ("CDN-Loop", GATEWAY),
        ("Via", f"1.1 {GATEWAY}"),
    ]


@pytest.mark.parametrize("value", [b"Payment abc", b"payment abc", b"Payment", b" PAYMENT x"])
def test_a_payment_in_authorization_never_leaves(value: bytes) -> None:
    headers = [(b"authorization", value)]
    assert len(upstream_headers(headers, forward_headers=("Authorization",))) == 2


def test_connection_strips_what_it_names() -> None:
    headers = [(b"accept", b"a"), (b"user-agent", b"u"), (b"connection", b"close, Accept")]
    assert [name for name, _ in upstream_headers(headers)] == [
        "User-Agent",
        "CDN-Loop",
        "Via",
    ]


def test_the_secret_replaces_the_callers_header_and_cannot_be_nominated_away() -> None:
    headers = [(b"x-api-key", b"mine"), (b"connection", b"x-api-key")]
    sent = upstream_headers(headers, forward_headers=("X-Api-Key",), secret=("x-API-key", "s3"))
    assert [(n, v) for n, v in sent if n.lower() == "x-api-key"] == [("x-API-key", "s3")]


def test_nothing_of_the_caller_stands_beside_the_secret() -> None:
    headers = [(b"x-api-key", b"mine"), (b"X-API-KEY", b"mine too")]
    sent = upstream_headers(headers, forward_headers=("X-Api-Key",), secret=("X-Api-Key", "s3"))
    assert [value for name, value in sent if name.lower() == "x-api-key"] == ["s3"]


def test_the_loop_list_only_grows() -> None:
    sent = upstream_headers([(b"cdn-loop", b"a; x=1, b"), (b"cdn-loop", b"c")])
    assert ("CDN-Loop", f"a; x=1, b, c, {GATEWAY}") in sent


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"gw.example", True),
        (b"other, GW.Example", True),
        (b"gw.example; v=1", True),
        (b"a,gw.example;x,b", True),
        (b"gw.example.org", False),
        (b"not-gw.example", False),
        (b'other; note="x gw.example"', False),
        (b"", False),
    ],
)
def test_sees_its_own_mark(value: bytes, expected: bool) -> None:
    assert is_loop([(b"accept", b"a"), (b"CDN-Loop", value)], GATEWAY) is expected


# ---------------------------------------------------------------------- back to the caller

GUARDS = {
    b"x-content-type-options",
    b"content-security-policy",
    b"access-control-allow-origin",
    b"access-control-expose-headers",
}


def _returned(raw: Headers, *, keep_length: bool = False) -> Headers:
    answer = caller_headers(
        raw, keep_length=keep_length, endpoint=ENDPOINT, target="/v1/x?q=1", gateway_path=PATH
    )
    return [header for header in answer if header[0] not in GUARDS]


DROPPED_FROM_RESPONSES = (
    b"connection",
    b"keep-alive",
    b"transfer-encoding",
    b"te",
    b"trailer",
    b"upgrade",
    b"proxy-authenticate",
    b"content-length",
    b"set-cookie",
    b"Set-Cookie2",
    b"strict-transport-security",
    b"clear-site-data",
    b"public-key-pins",
    b"alt-svc",
    b"nel",
    b"report-to",
    b"service-worker-allowed",
    b"content-security-policy-report-only",
    b"tollway-call-id",
    b"Tollway-Payment-State",
    b"tollway-anything",
    b"x-payment-response",
    b"X-PAYMENT-RESPONSE",
    b"payment-required",
    b"PAYMENT-RESPONSE",
    b"payment-receipt",
    b"payment-signature",
    b"x-payment",
    b"settlement-overrides",
    b"idempotency-replayed",
    b"proxy-status",
    b"x-request-id",
    b"access-control-allow-origin",
    b"access-control-allow-credentials",
    b"access-control-expose-headers",
    b"sign-in-with-x",
    b"tollway-" + b"a" * RETURNED_NAME_BYTES_MAX,
    b"X-Accel-Redirect",
    b"x_accel_expires",
    b"x-envoy-immediate-health-check-fail",
    b"CDN-Cache-Control",
    b"a" * RETURNED_NAME_BYTES_MAX + b"-cdn-cache-control",
    b"Surrogate-Control",
    b"Speculation-Rules",
    b"Use-As-Dictionary",
)


def test_drops_what_only_the_gateway_may_say() -> None:
    for _ in range(2):  # what is known of a name is kept
        returned = {name: _returned([(name, b"x")]) for name in DROPPED_FROM_RESPONSES}
        assert [
            name
            for name, headers in returned.items()
            if headers != [(b"cache-control", b"private, no-store")]
        ] == []


@pytest.mark.parametrize("size", [RETURNED_NAME_BYTES_MAX, RETURNED_NAME_BYTES_MAX + 1])
def test_a_cached_header_name_decides_nothing_about_its_value(size: int) -> None:
    name = b"a" * size
    assert _returned([(name, b"x")])[0] == (name, b"x")
    assert _returned([(name, b"x\r\ny")]) == [(b"cache-control", b"private, no-store")]
    assert _returned([(name, b"y")])[0] == (name, b"y")


def test_passes_the_rest_through_in_order() -> None:
    raw = [
        (b"Content-Type", b"text/html"),
        (b"ETag", b'"1"'),
        (b"Content-Encoding", b"gzip"),
        (b"Vary", b"a"),
        (b"Vary", b"b"),
        (b"X-Any", b"\xff\tz"),
        (b"WWW-Authenticate", b'Bearer realm="x"'),
        (b"Cache-Control", b"public"),
    ]
    assert _returned(raw) == [(name.lower(), value) for name, value in raw]


def test_a_length_is_returned_once_and_only_with_keep_length() -> None:
    raw = [(b"Content-Length", b"3"), (b"Cache-Control", b"x"), (b"Content-Length", b"4")]
    assert _returned(raw) == [(b"cache-control", b"x")]
    assert _returned(raw, keep_length=True) == [(b"content-length", b"3"), (b"cache-control", b"x")]
    assert _returned([(b"x-request-id", b"3"), (b"cache-control", b"x")], keep_length=True) == [
        (b"cache-control", b"x")
    ]
    assert (b"content-length", b"+3") not in _returned([(b"content-length", b"+3")], keep_length=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x-a", b"a\x01b"),
        (b"x-a", b"a\r\nset-cookie: b"),
        (b"x-a", b"\x00"),
        (b"x-a", b"\x7f"),
        (b"", b"v"),
        (b"a b", b"v"),
        (b"a:b", b"v"),
        (b"\xc3\xa9", b"v"),
        (b"location", b"javascript:alert(1)"),
        (b"www-authenticate", b"Payment id=1"),
        (b"www-authenticate", b'Basic realm="x", payment id=1'),
        (b"www-authenticate", b'Basic realm="x"'),
        (b"www-authenticate", b'Bearer realm="x", Negotiate'),
    ],
)
def test_drops_headers_that_would_break_or_deceive(name: bytes, value: bytes) -> None:
    assert _returned([(name, value), (b"cache-control", b"x")]) == [(b"cache-control", b"x")]


def test_connection_strips_what_it_names_on_the_way_back() -> None:
    raw = [(b"X-Hop", b"1"), (b"Connection", b"close, x-hop"), (b"X-End", b"2")]
    assert _returned(raw)[0] == (b"x-end", b"2")


def test_no_nomination_removes_the_cache_rule() -> None:
    raw = [(b"Cache-Control", b"max-age=60"), (b"Connection", b"cache-control, vary"), (b"Vary", b"*")]
    assert _returned(raw) == [(b"cache-control", b"private, no-store")]


def test_names_each_dropped_header_once_with_a_reason() -> None:
    raw = [
        (b"Content-Type", b"a/b"),
        (b"Content-Length", b"3"),
        (b"Connection", b"x-hop"),
        (b"X-Hop", b"1"),
        (b"X-Accel-Redirect", b"/a"),
        (b"X-Accel-Redirect", b"/b"),
        (b"Set-Cookie", b"a=b"),
        (b"Tollway-Price", b"0"),
        (b"WWW-Authenticate", b'Bearer realm="x"'),
        (b"WWW-Authenticate", b'Basic realm="x"'),
        (b"Location", b"javascript:alert(1)"),
        (b"X-Content-Type-Options", b"nosniff"),
    ]
    returned = caller_headers(raw, keep_length=False, endpoint=ENDPOINT, target="/v1", gateway_path=PATH)
    dropped = list_dropped(raw, returned)
    assert list(dropped) == [
        "x-hop",
        "x-accel-redirect",
        "set-cookie",
        "tollway-price",
        "www-authenticate",
        "location",
        "x-content-type-options",
    ]
    assert dropped["x-accel-redirect"] == "a proxy or a cache in front of the gateway would obey it"
    assert "password" in dropped["www-authenticate"]


def test_every_answer_is_guarded_once() -> None:
    answer = caller_headers(
        [(b"content-security-policy", b"script-src *"), (b"x-content-type-options", b"sniff")],
        keep_length=False,
        endpoint=ENDPOINT,
        target="/v1",
        gateway_path=PATH,
    )
    names = [name for name, _ in answer]
    assert all(names.count(name) == 1 for name in GUARDS)
    assert dict(answer)[b"content-security-policy"].startswith(b"sandbox")
    assert dict(answer)[b"access-control-allow-origin"] == b"*"
    assert b"Tollway-Payment-State" in dict(answer)[b"access-control-expose-headers"]


SECRET = "s3cret/key+1"
QUERY_SECRET = UpstreamAuth(location="query", name="api_key", value=SECRET)
HEADER_SECRET = UpstreamAuth(location="header", name="X-Api-Key", value=SECRET)
ENCODED, TWICE = b"s3cret%2Fkey%2B1", b"s3cret%252fkey%252b1"


def _kept(name: bytes, value: bytes, secret: UpstreamAuth) -> bytes | None:
    answer = caller_headers(
        [(name, value)],
        keep_length=False,
        endpoint=ENDPOINT,
        target=f"/v1/x?{ENCODED.decode()}",
        gateway_path=PATH,
        secret=secret,
    )
    return dict(answer).get(name)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (b"content-location", b"/v1/x?api_key=" + ENCODED, PATH.encode() + b"/x"),
        (b"content-location", b"/v1/x?a=1&api_key=" + ENCODED + b"&b=2#c", PATH.encode() + b"/x?a=1&b=2#c"),
        (b"content-location", b"/v1/x?api\t_key=" + ENCODED, PATH.encode() + b"/x"),
        (b"content-location", b"/v1/x?api%5Fkey=" + ENCODED, PATH.encode() + b"/x"),
        (b"content-location", b"https://other.example/x?api_key=" + ENCODED, b"https://other.example/x"),
        (b"content-location", b"/v1/" + ENCODED, None),
        (b"link", b'<https://api.example.com/v1?p=2&api_key=' + ENCODED + b'>; rel="next", </v1?api_key=x>; rel=first',
         b"<" + PATH.encode() + b'?p=2>; rel="next", <' + PATH.encode() + b">; rel=first"),
        (b"link", b'</v1?p=2>; rel="next"; title="' + SECRET.encode() + b'"', None),
        (b"refresh", b"0; url=/v1/x?api_key=" + ENCODED, b"0; url=/v1/x"),
        (b"refresh", b"5;URL='/v1/x?api_key=" + ENCODED + b"&q=1'", b"5;URL='/v1/x?q=1'"),
        (b"sourcemap", b"/maps/x.map?api_key=" + ENCODED, b"https://api.example.com/maps/x.map"),
        (b"x-sourcemap", b"/v1/x.map?v=1&api_key=" + SECRET.encode(), PATH.encode() + b"/x.map?v=1"),
        (b"location", b"/v1/x?api_key=" + ENCODED + b"&a=1", PATH.encode() + b"/x?a=1"),
        (b"location", b"/v1/x?next=%2Fv1%3Fapi_key%3D" + TWICE, None),
        (b"location", b"/v1/x#" + ENCODED, None),
        (b"x-debug-url", b"/v1/x?api_key=" + ENCODED, None),
        (b"x-debug-url", b"/v1/x?api_key=" + TWICE, None),
        (b"etag", b'"' + SECRET.encode() + b'"', None),
        (b"etag", b'"another"', b'"another"'),
        (b"x-echo", b"s3cret/key 1", b"s3cret/key 1"),
    ],
)  # fmt: skip
def test_no_header_brings_the_query_secret_to_the_caller(
    name: bytes, value: bytes, expected: bytes | None
) -> None:
    assert _kept(name, value, QUERY_SECRET) == expected


def test_no_header_brings_the_header_secret_to_the_caller() -> None:
    assert _kept(b"x-echo", b"key " + SECRET.encode(), HEADER_SECRET) is None
    kept = b"<" + PATH.encode() + b"?api_key=1>; rel=next"
    assert _kept(b"link", b"</v1?api_key=1>; rel=next", HEADER_SECRET) == kept


def test_a_dropped_cache_rule_leaves_the_default_one() -> None:
    assert _kept(b"cache-control", b"public, ext=" + SECRET.encode(), QUERY_SECRET) == b"private, no-store"


def test_a_secret_of_a_few_bytes_is_not_searched_for() -> None:
    short = replace(QUERY_SECRET, value="json")
    assert _kept(b"content-type", b"application/json", short) == b"application/json"
    assert _kept(b"content-location", b"/v1/x?api_key=json", short) == PATH.encode() + b"/x"


PLACE = UrlPlace(endpoint=ENDPOINT, target="/v1/x?q=1", gateway_path=PATH)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"https://api.example.com/v1/y?a=1#f", PATH.encode() + b"/y?a=1#f"),
        (b"https://API.example.com:443/v1/y", PATH.encode() + b"/y"),
        (b"/v1/y", PATH.encode() + b"/y"),
        (b"/v1", PATH.encode()),
        (b"/v1/", PATH.encode() + b"/"),
        (b"y", PATH.encode() + b"/y"),
        (b"./a/../y", PATH.encode() + b"/y"),
        (b"?p=2", PATH.encode() + b"/x?p=2"),
        (b"//api.example.com/v1/y", PATH.encode() + b"/y"),
        (b"/v10/y", b"https://api.example.com/v10/y"),
        (b"../y", b"https://api.example.com/y"),
        (b"/v1/%2e%2e/y", b"https://api.example.com/y"),
        (b"/login", b"https://api.example.com/login"),
        (b"http://api.example.com/v1/y", b"http://api.example.com/v1/y"),
        (b"https://other.example/v1/y?q#f", b"https://other.example/v1/y?q#f"),
        (b"//other.example/x", b"https://other.example/x"),
        (b"https://user:pw@other.example/x", b"https://other.example/x"),
        (b"javascript:alert(1)", None),
        (b"data:text/html,x", None),
        (b"https://[bad", None),
        (b"\xff", None),
    ],
)
def test_a_location_under_the_endpoint_becomes_the_gateways(value: bytes, expected: bytes | None) -> None:
    assert rewrite_location(value, PLACE) == expected


def test_the_secret_parameter_does_not_come_back_in_a_location() -> None:
    found = rewrite_location(b"/v1/y?a=1&k%65y=s3cret&key&b=2", replace(PLACE, secret="key"))
    assert found == PATH.encode() + b"/y?a=1&b=2"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"/v1/items?page=2", PATH.encode() + b"/items?page=2"),
        (b"https://api.example.com/v1/items/7#a", PATH.encode() + b"/items/7#a"),
        (b"items/7", PATH.encode() + b"/items/7"),
        (b"?page=2", PATH.encode() + b"/x?page=2"),
        (b"", PATH.encode() + b"/x?q=1"),
        (b"#part", PATH.encode() + b"/x?q=1#part"),
        (b"/v10/items", b"https://api.example.com/v10/items"),
        (b"../docs", b"https://api.example.com/docs"),
        (b"//api.example.com/v1/y", PATH.encode() + b"/y"),
        (b"//other.example/x", b"https://other.example/x"),
        (b"https://other.example/a b/%7e", b"https://other.example/a b/%7e"),
        (b"HTTPS://api.example.com/V1/y", b"HTTPS://api.example.com/V1/y"),
        (b"http://api.example.com/v1/y", b"http://api.example.com/v1/y"),
        (b"urn:isbn:1", b"urn:isbn:1"),
        (b"mailto:a@example.com", b"mailto:a@example.com"),
        (b"javascript:alert(1)", b"javascript:alert(1)"),
        (b"https://[bad", b"https://[bad"),
        (b"\xff", b"\xff"),
    ],
)
def test_a_reference_below_the_endpoint_becomes_the_gateways(value: bytes, expected: bytes) -> None:
    assert rewrite_reference(value, PLACE) == expected


OWN = PATH.encode()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'</v1/items?page=2>; rel="next"', b"<" + OWN + b'/items?page=2>; rel="next"'),
        (b"<?page=2>;rel=next", b"<" + OWN + b"/x?page=2>;rel=next"),
        (
            b'<https://api.example.com/v1/i?p=2>; rel="next", <https://api.example.com/v1/i?p=9>; rel="last"',
            b"<" + OWN + b'/i?p=2>; rel="next", <' + OWN + b'/i?p=9>; rel="last"',
        ),
        (
            b'</v1/a,b;c>; title="x, <y>; \\"z\\""; rel=next ,\t<https://other.example/>;rel="https://a.example/r s"',
            b"<" + OWN + b'/a,b;c>; title="x, <y>; \\"z\\""; rel=next ,\t<https://other.example/>;rel="https://a.example/r s"',
        ),
        (b"</v1/a>; crossorigin; rel = next ; a*=UTF-8''%e2", b"<" + OWN + b"/a>; crossorigin; rel = next ; a*=UTF-8''%e2"),
        (b'</v1/a>; anchor="/v1/b"; rel=up', b"<" + OWN + b'/a>; anchor="' + OWN + b'/b"; rel=up'),
        (b'</v1/a>; ANCHOR = "/v1/b?c=\\\\d\\"e"', b"<" + OWN + b'/a>; ANCHOR = "' + OWN + b'/b?c=\\\\d%22e"'),
        (b'</v1/a>; anchor="https://other.example/b"', b"<" + OWN + b'/a>; anchor="https://other.example/b"'),
        (b"</v1/a>; anchor=b; rel=up", b"<" + OWN + b"/a>; anchor=b; rel=up"),
        (b", ,</v1/a>,,</v1/b>;", b", ,<" + OWN + b"/a>,,<" + OWN + b"/b>;"),
        (b"</login>; rel=help", b"<https://api.example.com/login>; rel=help"),
        (b"<https://other.example/a b>; rel=x", b"<https://other.example/a b>; rel=x"),
        (b"<urn:x>", b"<urn:x>"),
        (b"", b""),
        (b" ", b" "),
    ],
)  # fmt: skip
def test_links_below_the_endpoint_become_the_gateways(value: bytes, expected: bytes) -> None:
    assert rewrite_links(value, PLACE) == expected


@pytest.mark.parametrize(
    "value",
    [
        b"/v1/a; rel=next",
        b"</v1/a",
        b"</v1/a> rel=next",
        b"</v1/a> </v1/b>",
        b'</v1/a>; title="x',
        b'</v1/a>; title="x\\',
        b"</v1/a>; rel=next, /v1/b",
        b"</v1/a>; rel=a b",
        b"<</v1/a>>",
        b"</v1/a>; =x",
        b"</v1/a>;" + b"; " * 20_000 + b"\xff",
        b"</v1/a>; t=" + b'"' + b"\\" * 40_001,
        b"<" * 40_000,
        b"<>" * 20_000,
    ],
)
def test_what_is_no_list_of_links_stays_as_it_is(value: bytes) -> None:
    assert rewrite_links(value, PLACE) == value


@pytest.mark.parametrize(
    "name",
    [b"Content-Location", b"Operation-Location", b"Azure-AsyncOperation", b"SourceMap", b"X-SourceMap"],
)
def test_headers_with_one_url_lead_through_the_gateway(name: bytes) -> None:
    assert _returned([(name, b"/v1/y")])[0] == (name.lower(), OWN + b"/y")
    assert _returned([(name, b"https://[bad")])[0] == (name.lower(), b"https://[bad")


def test_each_field_of_links_leads_through_the_gateway() -> None:
    raw = [(b"Link", b"</v1/y>; rel=next"), (b"link", b"<https://api.example.com/v1/z>; rel=prev")]
    assert _returned(raw)[:2] == [
        (b"link", b"<" + OWN + b"/y>; rel=next"),
        (b"link", b"<" + OWN + b"/z>; rel=prev"),
    ]


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ([(b"Link", b", ".join([b"</v1/y>"] * 64))], 1),
        ([(b"Link", b", ".join([b"</v1/y>"] * 65))], 0),
        ([(b"Link", b"</v1/y>" + b'; anchor="/v1/z"' * 64)], 0),
        (
            [
                (b"Link", b", ".join([b"</v1/y>"] * 63)),
                (b"Content-Location", b"/v1/y"),
                (b"Link", b"</v1/z>"),
            ],
            2,
        ),
        ([(b"Content-Location", b"/v1/y")] * 70, 64),
        ([(b"Location", b"https://other.example/")] * 70, 64),
    ],
)
def test_a_response_has_a_maximum_of_rewritten_urls(raw: list[tuple[bytes, bytes]], kept: int) -> None:
    names = {name.lower() for name, _ in raw}
    returned = _returned(raw)
    assert len([name for name, _ in returned if name in names]) == kept
    assert bool(list_dropped(raw, returned)) is (kept < len(raw))


@pytest.mark.parametrize(("count", "is_kept"), [(2, True), (3, False)])
def test_urls_of_a_response_grow_by_a_maximum(count: int, is_kept: bool) -> None:
    """An empty reference is the whole URL of the request, which the caller writes."""
    raw = [(b"link", b", ".join([b"<>; rel=self"] * count))]
    returned = caller_headers(
        raw, keep_length=False, endpoint=ENDPOINT, target="/v1/x?" + "a&" * 3_900, gateway_path=PATH
    )
    assert any(name == b"link" for name, _ in returned) is is_kept


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'<https://z/>; anchor="https://z/\\"; rel=next; q=\\""', b'<https://z/>; anchor="https://z/\\"; rel=next; q=\\""'),
        (b'</v1/a>; anchor="/v1/b\\\\\\"c"', b"<" + OWN + b'/a>; anchor="' + OWN + b'/b/%22c"'),
    ],
)  # fmt: skip
def test_an_anchor_stays_one_quoted_string(value: bytes, expected: bytes) -> None:
    assert rewrite_links(value, PLACE) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?a=1&key=s&b", "?a=1&b"),
        ("?key", ""),
        ("?k%65y=s&a", "?a"),
        ("?ke+y=s&ke%79=t&", "?ke+y=s"),
        ("?keys=1&=key", "?keys=1&=key"),
    ],
)
def test_the_secret_parameter_is_found_in_every_spelling(query: str, expected: str) -> None:
    place = UrlPlace(endpoint=ENDPOINT, target="/v1/x", gateway_path=PATH, secret="key")
    assert rewrite_location(b"/v1/y" + query.encode(), place) == OWN + b"/y" + expected.encode()


@pytest.mark.parametrize(
    ("value", "is_unbuffered"),
    [
        (b"text/event-stream", True),
        (b"Text/Event-Stream ; charset=utf-8", True),
        (b"text/event-streams", False),
        (b"application/json; a=text/event-stream", False),
    ],
)
def test_a_proxy_in_front_sends_events_at_once(value: bytes, *, is_unbuffered: bool) -> None:
    """The API's own `X-Accel-Buffering` is dropped in both cases."""
    returned = _returned([(b"X-Accel-Buffering", b"yes"), (b"Content-Type", value)])
    assert [value for name, value in returned if name == b"x-accel-buffering"] == [b"no"] * is_unbuffered


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("gw.example.com", b'"gw.example.com"; error=dns_error'),
        ("127.0.0.1:8402", b'"127.0.0.1:8402"; error=dns_error'),
        ("[::1]:8402", b'"[::1]:8402"; error=dns_error'),
    ],
)
def test_proxy_status_names_the_gateway_as_a_string(name: str, told: bytes) -> None:
    assert proxy_status(name, "error=dns_error") == (b"proxy-status", told)
    ((parsed, _parameters),) = http_sf.parse(told, tltype="list")
    assert parsed == name


@pytest.mark.parametrize(
    ("name", "via"),
    [("127.0.0.1:8402", "1.1 127.0.0.1:8402"), ("[::1]:8402", "1.1 tollway")],
)
def test_via_names_the_gateway_as_a_pseudonym(name: str, via: str) -> None:
    assert f"Via: {via}\r\n".encode() in render_fields(forward_fields([], gateway_name=name), [])
