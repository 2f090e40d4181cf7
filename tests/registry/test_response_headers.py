"""The classes of response headers that no caller gets, cache rules that are made private, and the page that the table writes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.narrowing import existing
from tests.kit.response_header_page import PAGE, write_page
from tollway.registry.response_headers import (
    DROPPED_HEADERS,
    FRAMING_NAMES,
    REFUSED_CHALLENGE,
    UNSTORED,
    find_dropped,
    make_private,
)

OBEYED = """
x-accel-redirect x-accel-expires x-accel-limit-rate x-accel-buffering x-accel-charset x-accel-new x-accelerator-vary
x-sendfile x-sendfile2 x-sendfile-temporary x-send-file x-lighttpd-send-file x-lighttpd-kbytes-per-second x-reproxy-url x-reproxy-file
x-litespeed-cache-control x-litespeed-purge x-litespeed-location x-lsadc-backend lsc-cookie
x-envoy-immediate-health-check-fail x-envoy-degraded x-envoy-ratelimited x-envoy-overloaded x-envoy-upstream-service-time
surrogate-control surrogate-key surrogate-capability edge-control edge-cache-tag
cdn-cache-control cloudflare-cdn-cache-control vercel-cdn-cache-control netlify-cdn-cache-control akamai-cache-control example-cache-control
cf-edge-cache vercel-cache-tag netlify-vary cache-tag cache-tags cdn-tag xkey x-hashtwo cache-groups cache-group-invalidation
fly-replay fly-replay-cache l5d-proxy-connection l5d-err x-kong-limit-quota x-appengine-blobkey x-appengine-blobrange
arr-disable-session-affinity pagespeed pagespeedfilters modpagespeed x-esi
"""
KEPT_BY_A_BROWSER = """
set-cookie set-cookie2 strict-transport-security public-key-pins public-key-pins-report-only expect-ct clear-site-data alt-svc nel report-to
reporting-endpoints service-worker-allowed origin-agent-cluster accept-ch accept-ch-lifetime critical-ch secure-session-registration
secure-session-challenge sec-session-registration sec-session-challenge sec-private-state-token set-login idp-signin-status use-as-dictionary
speculation-rules activate-storage-access origin-trial attribution-reporting-register-source attribution-reporting-register-trigger
observe-browsing-topics shared-storage-write ad-auction-signals
"""
SAID_BY_THE_GATEWAY = """
tollway-call-id tollway-new x-tollway-call x-payment x-payment-response x-payment-tx payment-required payment-response payment-receipt payment-new
settlement-overrides x-signature x-signature-params accept-signature sign-in-with-x proxy-status idempotency-replayed x-request-id cdn-loop
access-control-allow-origin access-control-allow-credentials content-security-policy content-security-policy-report-only x-content-type-options
"""
OF_ONE_CONNECTION = """
connection keep-alive te trailer transfer-encoding upgrade content-length http2-settings proxy-authenticate proxy-connection proxy-authentication-info
"""
RETURNED = """
content-type content-encoding content-language content-location content-disposition content-range accept-ranges etag last-modified expires age date
server vary link location refresh retry-after ratelimit ratelimit-policy x-ratelimit-remaining cache-control cache-status pragma allow warning
www-authenticate server-timing timing-allow-origin x-robots-tag x-frame-options referrer-policy permissions-policy cross-origin-resource-policy
signature signature-input content-digest digest cf-ray cf-cache-status x-vercel-id x-cache x-served-by x-amz-request-id x-any edge x-control
accept-charset deprecation sunset traceparent mcp-session-id
"""


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("intermediary", OBEYED),
        ("origin", KEPT_BY_A_BROWSER),
        ("gateway", SAID_BY_THE_GATEWAY),
        ("framing", OF_ONE_CONNECTION),
    ],
)
def test_a_class_of_headers_reaches_no_caller(group: str, names: str) -> None:
    found = {name: find_dropped(name) for name in names.split()}
    assert {name: None if row is None else row.group for name, row in found.items()} == dict.fromkeys(
        found, group
    )


def test_an_underscore_hides_no_name() -> None:
    """Some servers map `_` and `-` to one name."""
    row = existing(find_dropped("x-accel-redirect"))
    assert find_dropped("x_accel_redirect") is row
    assert find_dropped("example_cdn-cache_control") is find_dropped("cdn-cache-control")


def test_every_other_header_is_returned() -> None:
    assert [name for name in RETURNED.split() if find_dropped(name) is not None] == []


def test_each_row_has_a_source_and_names_in_lower_case() -> None:
    for row in DROPPED_HEADERS:
        assert row.source.startswith("https://") or ".md#" in row.source, row
        for name in row.names:
            assert name == name.lower().strip(), row
            assert "*" not in name.strip("*"), row
            assert name.strip("*"), row
            assert row.schemes or find_dropped(name.replace("*", "-any-")) is row, row
    assert {b"connection", b"content-length", b"transfer-encoding", b"trailer"} <= FRAMING_NAMES


CHALLENGES = [
    (b'Basic realm="x"', True),
    (b"basic", True),
    (b'\tDIGEST realm="x"', True),
    (b"NTLM", True),
    (b"Negotiate abc==", True),
    (b'Bearer realm="x", Basic realm="y"', True),
    (b'Bearer,basic realm="y"', True),
    (b"Basic;x", True),
    (b"Payment id=1", True),
    (b'Bearer realm="x", payment id=1', True),
    (b'Bearer realm="x", error="invalid_token"', False),
    (b'Bearer realm="Basic"', False),
    (b"Basic-Like realm=x", False),
    (b"X-Basic realm=x", False),
    (b"DPoP algs=ES256", False),
    (b'Bearer payment="1"', False),
    (b"", False),
]


def test_a_challenge_with_a_dialog_or_a_payment_is_refused() -> None:
    for value, is_refused in CHALLENGES:
        assert (REFUSED_CHALLENGE.search(value) is not None) is is_refused


CACHE_RULES = [
    (b"\n", b"private, no-store"),
    (b"max-age=1,\n", b"private, no-store"),
    (b"max-age=60", b"private, max-age=60"),
    (b"public, max-age=60", b"private, max-age=60"),
    (b"PUBLIC,S-MaxAge=600 , max-age=60", b"private, max-age=60"),
    (b'public, s-maxage=600, private="x"', b"private"),
    (b'private="set-cookie", max-age=5', b"private, max-age=5"),
    (b"private=x", b"private"),
    (b"private", b"private"),
    (b"Private, max-age=5", b"Private, max-age=5"),
    (b"private, s-maxage=600, public", b"private"),
    (b'private, private="x"', b"private"),
    (b"no-store", b"no-store"),
    (b"no-store, must-understand, max-age=600", b"no-store, max-age=600"),
    (b'no-store="x"', b'private, no-store="x"'),
    (b"must-understand", b"private"),
    (b'ext="private, no-store", max-age=5', b'private, ext="private, no-store", max-age=5'),
    (b'no-cache="a, public", x="\\"private", s-maxage=1', b'private, no-cache="a, public", x="\\"private"'),
    (b"x-private, unprivate=1", b"private, x-private, unprivate=1"),
    (b"", b"private"),
    (b" , ,", b"private"),
    (b'ext="unclosed, private', UNSTORED),
    (b'private ="x"', UNSTORED),
    (b'max-age= "5"', UNSTORED),
    (b"private; max-age=5", UNSTORED),
    (b"\xff", UNSTORED),
]  # fmt: skip


def test_a_cache_rule_is_read_by_its_directives() -> None:
    for value, expected in CACHE_RULES:
        assert make_private(value) == expected


@settings(max_examples=300)
@given(st.binary(max_size=40) | st.text(alphabet='pubrivates-maxno,="\\ 0', max_size=40).map(str.encode))
def test_whatever_arrives_is_private_and_stays_as_it_is(value: bytes) -> None:
    made = make_private(value)
    assert make_private(made) == made
    names = [one.strip() for one in made.lower().split(b",")]
    assert b"private" in names or b"no-store" in names


def test_the_page_is_written_from_the_table() -> None:
    assert PAGE.read_text() == write_page(), "run: python -m tests.kit.response_header_page"
