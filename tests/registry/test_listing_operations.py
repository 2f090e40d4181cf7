"""The operations and parameters of a document that a listing offers."""

from tests.kit.listings import sample_listing
from tollway.ids import Address
from tollway.registry.listing import (
    UpstreamAuth,
    accepts_method,
    has_documented_operations,
    is_offered,
    is_sent_by_caller,
)
from tollway.registry.openapi import DocumentParameter, Place

PROVIDER = Address.parse("0x" + "11" * 20)

CONTROLS = """
Idempotency-Key X-Payment X-Payment-Tx X-Payment-Whatever X-Signature X-Signature-Params X-Signature-Other
PAYMENT-SIGNATURE Payment-Other Tollway-Max-Price X-Tollway-Other Signature Signature-Input Signature-Agent
SIGN-IN-WITH-X sign-in-with-other AUTHORIZATION Cookie Set-Cookie Proxy-Authorization
"""


METHODS: list[tuple[tuple[str, ...], str, bool]] = [
    ((), "GET", True),
    ((), "PURGE", True),
    (("GET",), "GET", True),
    (("GET",), "HEAD", True),
    (("HEAD",), "HEAD", True),
    (("HEAD",), "GET", False),
    (("GET",), "POST", False),
]


def test_get_includes_head() -> None:
    for methods, method, is_taken in METHODS:
        assert accepts_method(methods, method) == is_taken


SENT_BY_CALLERS: list[tuple[Place, str, bool]] = [
    ("query", "q", True),
    ("query", "Key", False),
    ("path", "id", True),
    ("header", "X-Lang", True),
    ("header", "X-KEY", True),
    ("header", "Accept", False),
    ("header", "Authorization", False),
    *(("header", name, False) for name in CONTROLS.split()),
    ("header", "Connection", False),
    ("header", "a b", False),
    ("header", "a_b", False),
]


def test_a_caller_sends_parameters_that_the_gateway_does_not_add() -> None:
    for place, name, is_asked in SENT_BY_CALLERS:
        listing = sample_listing(
            provider=PROVIDER, upstream_auth=UpstreamAuth(location="query", name="key", value="1")
        )
        parameter = DocumentParameter(name=name, place=place, is_required=True, content={})
        assert is_sent_by_caller(listing, parameter) == is_asked, (place, name)


OFFERED: list[tuple[Place, str, bool]] = [
    ("query", "q", True),
    ("header", "X-Lang", True),
    ("header", "x-lang", True),
    ("header", "If-Match", True),
    ("header", "X-Token", False),
    ("header", "Accept", False),
    ("header", "Idempotency-Key", False),
]


def test_a_header_that_the_gateway_does_not_forward_is_not_offered() -> None:
    for place, name, is_found in OFFERED:
        listing = sample_listing(provider=PROVIDER, forward_headers=("X-Lang",))
        parameter = DocumentParameter(name=name, place=place, is_required=True, content={})
        assert is_offered(listing, parameter) == is_found, (place, name)


def test_a_document_counts_when_one_of_its_operations_is_served() -> None:
    document = {"openapi": "3.1.0", "paths": {"/a": {"get": {}}}}
    assert has_documented_operations(document, ())
    assert has_documented_operations(document, ("GET",))
    assert not has_documented_operations(document, ("POST",))
    assert not has_documented_operations({"openapi": "3.1.0"}, ())
    assert not has_documented_operations(None, ())
