"""Tables of the gateway's problems: closed listings, methods, rails, and the codes that may carry a quote."""

from dataclasses import replace
from typing import Any

import pytest

from tests.kit.gateway import NOW_MS, USDC, gateway_listing
from tests.kit.proxy_requests import sample_request
from tollway.errors import (
    ChainUnavailable,
    Code,
    Problem,
    Refusal,
    StorageUnavailable,
    TollwayError,
    UpstreamBadResponse,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from tollway.gateway.messages import ClientGone, Quote
from tollway.gateway.problems import (
    check_idempotency_key,
    check_listing,
    check_price_max,
    check_rails,
    explain_failure,
    explain_other_host,
    explain_quoted,
    find_idempotency_key,
    name_proxy_error,
)
from tollway.money import Price
from tollway.registry.listing import CatalogEntry

LISTING = gateway_listing()
SHELF = CatalogEntry(listing=LISTING, versions=(LISTING.current_terms(since_ms=0),))
OFFER = Quote(entry=SHELF, price=LISTING.price, expires_ms=NOW_MS)


def code_of(problem: Problem | None) -> Code | None:
    return None if problem is None else problem.code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, None),
        ({"status": "paused"}, Code.API_PAUSED),
        ({"suspended_ms": 1}, Code.API_PAUSED),
        ({"suspended_ms": 1, "retired_ms": 1, "status": "paused"}, Code.API_RETIRED),
        ({"methods": ("POST",)}, Code.METHOD_NOT_ALLOWED),
        ({"methods": ("POST",), "status": "paused"}, Code.API_PAUSED),
    ],
)
def test_reports_a_closed_listing_in_the_order_of_the_contract(changes: Any, code: Code | None) -> None:
    entry = replace(SHELF, listing=replace(LISTING, **changes))
    assert code_of(check_listing(entry, sample_request())) is code


@pytest.mark.parametrize(
    ("methods", "method", "is_served"),
    [
        ((), "GET", True),
        ((), "PROPFIND", True),
        ((), "OPTIONS", True),
        ((), "TRACE", False),
        ((), "CONNECT", False),
        ((), "get", False),
        ((), "Get", False),
        (("GET",), "GET", True),
        (("GET",), "HEAD", True),
        (("HEAD",), "GET", False),
        (("POST",), "HEAD", False),
        (("POST",), "post", False),
        (("TRACE",), "TRACE", False),
    ],
)
def test_checks_which_methods_are_served(methods: tuple[str, ...], method: str, is_served: bool) -> None:
    problem = check_listing(replace(SHELF, listing=replace(LISTING, methods=methods)), sample_request(method))
    assert code_of(problem) is (None if is_served else Code.METHOD_NOT_ALLOWED)


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({}, False),
        ({"payment_signature": "x"}, False),
        ({"x_payment": "x", "payment_signature": "x"}, False),
        ({"x_payment": "x", "payment_signature": "y"}, True),
        ({"x_payment": "x", "payment_signature": "x", "authorization": "Payment abc"}, True),
        ({"x_payment": "x", "authorization": "Payment abc"}, True),
        ({"x_payment": "x", "authorization": "payment\tabc"}, True),
        ({"x_payment": "x", "authorization": "Bearer abc"}, False),
        ({"x_payment": "x", "authorization": "Payments abc"}, False),
    ],
)
def test_takes_one_signed_payment(headers: dict[str, str], is_refused: bool) -> None:
    problem = check_rails(sample_request(**headers))
    assert (problem is not None and problem.reason == "more_than_one_rail") == is_refused


@pytest.mark.parametrize(
    ("value", "key", "is_refused"),
    [
        ("k", "k", False),
        ('"k"', "k", False),
        ('"', '"', False),
        ("é" * 255, "é" * 255, False),
        ("k" * 256, "k" * 256, True),
        ("", "", True),
        ('""', "", True),
    ],
)
def test_reads_an_idempotency_key(value: str, key: str, is_refused: bool) -> None:
    asked = sample_request(idempotency_key=value)
    assert find_idempotency_key(asked) == key
    assert (check_idempotency_key(asked) is not None) == is_refused
    assert find_idempotency_key(sample_request()) is None
    assert check_idempotency_key(sample_request()) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("0.01", None),
        ("0.010", None),
        ("1", None),
        ("0.009999999", Code.PRICE_ABOVE_MAX),
        ("0", Code.PRICE_ABOVE_MAX),
        ("", Code.INVALID_REQUEST),
        ("-1", Code.INVALID_REQUEST),
        ("1e3", Code.INVALID_REQUEST),
        ("01", Code.INVALID_REQUEST),
        ("0.01 USDC", Code.INVALID_REQUEST),
        ("NaN", Code.INVALID_REQUEST),
        ("٠.٠١", Code.INVALID_REQUEST),
        ("0.0000000001", Code.INVALID_REQUEST),
    ],
)
def test_compares_with_the_most_that_is_allowed(text: str, code: Code | None) -> None:
    price = Price.parse("0.01")
    assert code_of(check_price_max(sample_request(tollway_max_price=text), price, USDC)) is code


MAY_ASK = {
    Code.PAYMENT_REQUIRED,
    Code.PAYMENT_MALFORMED,
    Code.PAYMENT_EXPIRED,
    Code.PAYMENT_METHOD_UNSUPPORTED,
    Code.PAYMENT_SETTLEMENT_FAILED,
    Code.PAYMENT_INSUFFICIENT,
    Code.PAYMENT_VERIFICATION_FAILED,
}


def test_seven_codes_may_carry_terms() -> None:
    asked = sample_request(authorization="Payment e30")
    refusals = [explain_quoted(Refusal(Problem(code=code, detail="")), OFFER, asked) for code in Code]
    assert {code for code, refusal in zip(Code, refusals, strict=True) if refusal.quote is OFFER} == MAY_ASK


def test_a_held_payment_asks_for_no_other_one() -> None:
    held = [Problem(code=code, detail="", payment_state="held") for code in Code]
    refusals = [explain_quoted(Refusal(problem), OFFER, sample_request()) for problem in held]
    assert {refusal.problem.code for refusal in refusals if refusal.quote is not None} == set()


@pytest.mark.parametrize(
    ("shown", "has_terms"),
    [
        ({"payment_signature": "!"}, False),
        ({"x_payment": "!"}, False),
        ({"authorization": "Payment !"}, True),
        ({"authorization": "payment"}, True),
        ({"payment_signature": "!", "authorization": "Bearer x"}, False),
    ],
)
def test_an_unreadable_payment_gets_terms_on_mpp_only(shown: dict[str, str], has_terms: bool) -> None:
    unreadable = Refusal(Problem(code=Code.PAYMENT_MALFORMED, detail=""))
    refusal = explain_quoted(unreadable, OFFER, sample_request(**shown))
    assert (refusal.quote is OFFER) == has_terms


def bad_response(cause: Exception | None) -> UpstreamBadResponse:
    exc = UpstreamBadResponse()
    exc.__cause__ = cause
    return exc


@pytest.mark.parametrize(
    ("exc", "code", "proxy_error"),
    [
        (UpstreamUnreachable(), Code.UPSTREAM_UNREACHABLE, "destination_unavailable"),
        (UpstreamTimeout(), Code.UPSTREAM_TIMEOUT, "http_response_timeout"),
        (bad_response(None), Code.UPSTREAM_BAD_RESPONSE, "http_protocol_error"),
        (bad_response(ValueError()), Code.UPSTREAM_BAD_RESPONSE, "http_protocol_error"),
        (bad_response(ConnectionResetError()), Code.UPSTREAM_TIMEOUT, "connection_terminated"),
        (StorageUnavailable(), Code.STORAGE_UNAVAILABLE, "proxy_internal_error"),
        (ChainUnavailable(), Code.CHAIN_UNAVAILABLE, "proxy_internal_error"),
        (Refusal(Problem(code=Code.OVERLOADED, detail="")), Code.OVERLOADED, "connection_limit_reached"),
        (Refusal(Problem(code=Code.PAYLOAD_TOO_LARGE, detail="")), Code.PAYLOAD_TOO_LARGE, "http_request_denied"),
        (ClientGone(), Code.INVALID_REQUEST, "http_request_denied"),
    ],
)  # fmt: skip
def test_explains_a_call_without_an_answer(
    exc: TollwayError | ClientGone, code: Code, proxy_error: str
) -> None:
    problem = explain_failure(exc)
    assert (problem.code, name_proxy_error(problem.code, problem.reason)) == (code, proxy_error)


@pytest.mark.parametrize("exc", [UpstreamTimeout(), bad_response(None), bad_response(ConnectionResetError())])
def test_a_call_whose_request_may_have_arrived_is_read_in_the_history_before_it_is_paid_again(
    exc: TollwayError,
) -> None:
    assert "read the call in your history and do not pay again" in explain_failure(exc).detail


MISMATCH = Problem(code=Code.PAYER_MISMATCH, detail="Another wallet signed.", payment_state="none")


@pytest.mark.parametrize(
    ("problem", "host", "added"),
    [
        (
            MISMATCH,
            "10.0.0.5:8402",
            " The public_url of this gateway is https://gw.example.com, and the request came for 10.0.0.5:8402: "
            "sign for https://gw.example.com.",
        ),
        (MISMATCH, "GW.example.com", ""),
        (MISMATCH, "", ""),
        (replace(MISMATCH, code=Code.PAYMENT_TOO_OLD), "10.0.0.5:8402", ""),
    ],
    ids=("another host", "its own host", "no host", "another problem"),
)
def test_a_signature_for_another_host_is_refused_with_the_public_url(
    problem: Problem, host: str, added: str
) -> None:
    explained = explain_other_host(problem, sample_request(host=host), origin="https://gw.example.com")
    assert explained == replace(problem, detail=problem.detail + added)


def test_a_host_in_a_detail_has_a_maximum() -> None:
    explained = explain_other_host(
        MISMATCH, sample_request(host="a" * 5_000), origin="https://gw.example.com"
    )
    assert len(explained.detail) < 500
