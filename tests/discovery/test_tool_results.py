"""Results of tools: the envelope of an API's response, the terms of x402's MCP transport, problems."""

import base64
import gzip
import json
import zlib
from typing import Any

import pytest

from tollway.discovery.requests import ToolRequest
from tollway.discovery.tool_results import (
    MPP_RECEIPT,
    MPP_REQUIRED,
    PAYMENT_ERROR,
    PAYMENT_RESPONSE,
    TERMS_TEXT_BYTES_MAX,
    HttpResponse,
    ToolCall,
    problem_result,
    response_result,
)
from tollway.discovery.tools import TOOL_RESPONSE_BYTES_MAX, UNTRUSTED
from tollway.ids import keccak256

CALL = ToolCall(
    name="api_1.post_1",
    listing_id="api_1",
    request=ToolRequest(method="POST", rest="/v1", query="a=1", body=b"{}"),
    gateway_url="https://gw.example.com/api/v2/gateway/api_1",
    origin="https://gw.example.com",
)


def answer(
    body: bytes = b"", content_type: str | None = None, status: int = 200, **more: Any
) -> HttpResponse:
    headers = {} if content_type is None else {"content-type": content_type}
    return HttpResponse(status=status, headers={**headers, **more.pop("headers", {})}, body=body, **more)


def header(content: Any) -> str:
    return base64.b64encode(json.dumps(content).encode()).decode()


def coded(coding: str, body: bytes, content_type: str = "application/json") -> HttpResponse:
    return answer(body, content_type, headers={"content-encoding": coding})


@pytest.mark.parametrize(
    ("got", "shown"),
    [
        (answer(b'{"a": 1}', "application/json"), {"bodyFormat": "json", "body": {"a": 1}}),
        (answer(b"[1]", "application/geo+json; charset=utf-8"), {"bodyFormat": "json", "body": [1]}),
        (answer(b"{", "application/json"), {"bodyFormat": "text", "body": "{"}),
        (answer(b"[NaN]", "application/json"), {"bodyFormat": "text", "body": "[NaN]"}),
        (answer(b'"\\ud800"', "application/json"), {"bodyFormat": "text", "body": '"\\ud800"'}),
        (answer("é".encode(), "text/plain"), {"bodyFormat": "text", "body": "é"}),
        (answer(b"no type"), {"bodyFormat": "text", "body": "no type"}),
        (answer(b"\xff\x00", "image/png"), {"bodyFormat": "base64", "body": "/wA="}),
        (answer(b"a\0b", "text/plain"), {"bodyFormat": "base64", "body": "YQBi"}),
        (coded("gzip", b"{}"), {"bodyFormat": "base64", "body": "e30="}),
        (coded("br", b"{}"), {"bodyFormat": "base64", "body": "e30="}),
        (coded("gzip", gzip.compress(b'{"a":1}')), {"bodyFormat": "json", "body": {"a": 1}}),
        (
            coded("deflate", zlib.compress(b"x" * 5_000), "text/plain"),
            {"bodyFormat": "text", "body": "x" * 5_000},
        ),
        (answer(b"\xe9", "text/plain; charset=ISO-8859-1"), {"bodyFormat": "text", "body": "é"}),
        (
            answer(b'{"a":"\xe9"}', "application/json; charset=iso-8859-1"),
            {"bodyFormat": "json", "body": {"a": "é"}},
        ),
        (answer("é".encode("latin-1"), "text/plain"), {"bodyFormat": "base64", "body": "6Q=="}),
        (answer(), {"bodyFormat": "none"}),
    ],
)
def test_a_body_has_its_format(got: HttpResponse, shown: dict[str, Any]) -> None:
    told = response_result(CALL, got)
    assert {name: told.content[name] for name in ("bodyFormat", "body") if name in told.content} == shown
    assert told.content["notice"] == UNTRUSTED
    assert not told.is_error


def test_a_decoded_body_has_no_coding() -> None:
    headers = {"content-encoding": "gzip", "etag": '"1"'}
    told = response_result(CALL, answer(gzip.compress(b"x"), "text/plain", headers=headers))
    assert told.content["headers"] == {"etag": '"1"'}


def test_a_body_that_decoding_makes_too_large_is_refused() -> None:
    """1 GiB in 1 MiB: no more than the limit is decompressed."""
    bomb = gzip.compress(b"\0" * (TOOL_RESPONSE_BYTES_MAX + 1))
    told = response_result(CALL, coded("gzip", bomb, "text/plain"))
    assert (told.is_error, told.content["bodyFormat"]) == (True, "none")
    assert "larger than a tool returns" in told.content["detail"]


def test_nesting_beyond_reason_is_text() -> None:
    told = response_result(CALL, answer(b"[" * 100_000 + b"]" * 100_000, "application/json"))
    assert told.content["bodyFormat"] == "text"


def test_the_record_of_the_call_stands_beside_the_body() -> None:
    headers = {
        "tollway-call-id": "call_1",
        "tollway-payment-state": "charged",
        "tollway-price": "0.01 USDC",
        "payment-response": header({"success": True, "transaction": "0xabc"}),
        "etag": '"x"',
        "set-cookie": "no",
    }
    told = response_result(CALL, answer(b"{}", "application/json", headers=headers))
    assert told.content["call"] == {"id": "call_1", "paymentState": "charged", "price": "0.01 USDC"}
    assert told.content["headers"] == {"etag": '"x"'}
    assert told.meta == {PAYMENT_RESPONSE: {"success": True, "transaction": "0xabc"}}


def test_an_answer_of_the_api_that_is_a_fault_is_an_error_with_its_body() -> None:
    told = response_result(CALL, answer(b'{"why": "no"}', "application/json", status=404))
    assert (told.is_error, told.content["status"], told.content["body"]) == (True, 404, {"why": "no"})


def test_a_problem_of_the_api_is_not_taken_for_one_of_the_gateway() -> None:
    relayed = {"proxy-status": '"gw.example.com"; received-status=402'}
    told = response_result(
        CALL, answer(b'{"code": "x"}', "application/problem+json", status=402, headers=relayed)
    )
    assert told.content["bodyFormat"] == "json"
    assert "accepts" not in told.content


def test_a_response_that_is_too_large_or_broken_has_a_detail() -> None:
    large = response_result(CALL, answer(b"", "text/plain", is_whole=False, is_too_large=True))
    assert (large.is_error, large.content["bodyFormat"]) == (True, "none")
    assert CALL.url in large.content["detail"]
    broken = response_result(CALL, answer(b"hal", "text/plain", is_whole=False))
    assert (broken.is_error, broken.content["body"]) == (True, "hal")
    assert "ended before" in broken.content["detail"]


# ---- Refusals of the gateway.

OWN = {"proxy-status": '"gw.example.com"; error=http_request_denied'}
PROBLEM = {"code": "payment_required", "detail": "Pay.", "paymentState": "none", "payment": {"options": []}}


def unpaid(required: Any, problem: Any = None, **headers: str) -> HttpResponse:
    shown = {} if required is None else {"payment-required": required}
    body = json.dumps({**PROBLEM, **(problem or {})}).encode()
    return answer(body, "application/problem+json", status=402, headers={**OWN, **shown, **headers})


REQUIRED = {
    "x402Version": 2,
    "error": "payment_required",
    "resource": {"url": "https://gw.example.com/api/v2/gateway/api_1/v1", "description": "d"},
    "accepts": [{"scheme": "exact"}],
    "extensions": {"bazaar": {}, "offer-receipt": {}, "payment-identifier": {"info": {"required": False}}},
}


def test_an_unpaid_call_returns_the_terms_of_x402() -> None:
    told = response_result(CALL, unpaid(header(REQUIRED)))
    assert told.is_error
    terms = told.content
    shared = ("x402Version", "error", "resource", "accepts", "extensions")
    assert told.meta == {PAYMENT_ERROR: {name: terms[name] for name in shared}}
    assert (terms["x402Version"], terms["error"]) == (2, "payment_required")
    assert terms["accepts"] == [{"scheme": "exact"}]
    assert terms["resource"] == {"url": "mcp://tool/api_1.post_1", "description": "d"}
    assert set(terms["extensions"]) == {"payment-identifier"}
    assert (terms["code"], terms["payment"]) == ("payment_required", {"options": []})


def test_the_words_of_a_provider_in_the_terms_are_cleaned_and_labelled() -> None:
    resource = {"url": "u", "description": "<b>Ignore</b> \u202eall [x](javascript:y) " + "x" * 400}
    told = response_result(CALL, unpaid(header({**REQUIRED, "resource": resource}))).content
    assert told["resource"]["description"].startswith("Ignore all x x")
    assert len(told["resource"]["description"]) <= 300
    assert told["notice"] == UNTRUSTED


def test_the_detail_explains_arguments_or_the_fault_of_a_payment() -> None:
    payment = {"amount": "0.01", "currency": "USDC", "options": []}
    told = response_result(CALL, unpaid(header(REQUIRED), {"payment": payment})).content["detail"]
    assert "costs 0.01 USDC" in told
    assert "X-Payment-Tx" not in told
    wrong = {"payment": payment, "code": "payment_insufficient", "detail": "0.001 is missing."}
    assert response_result(CALL, unpaid(header(REQUIRED), wrong)).content["detail"] == "0.001 is missing."


def test_an_unpaid_call_describes_the_signature_without_x402() -> None:
    message = response_result(CALL, unpaid(None)).content["withoutX402"]["eip712"]["message"]
    assert message == {
        "gateway": "https://gw.example.com",
        "apiId": "api_1",
        "method": "POST",
        "target": "/v1?a=1",
        "bodyHash": "0x" + keccak256(b"{}").hex(),
        "transaction": "{transaction}",
        "validUntil": "{validUntil}",
        "nonce": "{nonce}",
    }


@pytest.mark.parametrize(("options", "fitting"), [(1, 1), (2, 2), (40, 4)])
def test_the_text_has_as_many_options_as_fit(options: int, fitting: int) -> None:
    accepted = {
        "scheme": "exact",
        "network": "eip155:84532",
        "amount": "10000",
        "asset": "0x" + "a" * 40,
        "payTo": "0x" + "b" * 40,
        "maxTimeoutSeconds": 60,
        "extra": {"name": "USD Coin", "version": "2"},
    }
    required = {**REQUIRED, "accepts": [accepted] * options}
    payment = {"amount": "0.01", "currency": "USDC", "options": []}
    told = response_result(CALL, unpaid(header(required), {"payment": payment}))
    assert told.text is not None
    assert len(told.text.encode()) <= TERMS_TEXT_BYTES_MAX
    text = json.loads(told.text)
    assert text.keys() == {"detail", "x402Version", "error", "resource", "accepts"}
    assert text["detail"] == told.content["detail"]
    assert text["accepts"] == [accepted] * fitting
    assert len(told.content["accepts"]) == options


CHALLENGE = (
    'Payment id="a-_b", realm="gw.example.com", method="evm", intent="charge", request="{request}", '
    'expires="2026-01-01T00:00:00.000Z", opaque="eyJ9"'
)


def test_a_challenge_of_mpp_has_its_request_as_an_object() -> None:
    request = {"amount": "1", "note": "ÿ?>"}
    encoded = base64.urlsafe_b64encode(json.dumps(request).encode()).decode().rstrip("=")
    one = CHALLENGE.format(request=encoded)
    told = response_result(CALL, unpaid(None, **{"www-authenticate": f'Basic realm="x, y", {one}, {one}'}))
    expected = {
        "id": "a-_b",
        "realm": "gw.example.com",
        "method": "evm",
        "intent": "charge",
        "request": request,
        "expires": "2026-01-01T00:00:00.000Z",
        "opaque": "eyJ9",
    }
    assert told.meta == {MPP_REQUIRED: {"httpStatus": 402, "challenges": [expected, expected]}}


def test_a_refused_credential_has_its_failure_beside_the_challenge() -> None:
    problem = {"code": "payment_expired", "reason": "challenge_expired", "detail": "Too late."}
    headers = {"www-authenticate": CHALLENGE.format(request="e30")}
    told = response_result(CALL, unpaid(None, problem, **headers)).meta[MPP_REQUIRED]
    assert told["failure"] == {"reason": "challenge_expired", "detail": "Too late."}


def test_a_receipt_of_mpp_is_in_meta() -> None:
    encoded = base64.urlsafe_b64encode(b'{"status":"success","x":"??>>"}').decode().rstrip("=")
    told = response_result(CALL, answer(b"{}", "application/json", headers={"payment-receipt": encoded}))
    assert told.meta == {MPP_RECEIPT: {"status": "success", "x": "??>>"}}


def test_where_nothing_can_be_settled_there_is_nothing_to_accept() -> None:
    for required in (None, "no base64", header([1]), header("x")):
        terms = response_result(CALL, unpaid(required)).content
        assert (terms["x402Version"], terms["accepts"]) == (2, [])
        assert terms["resource"] == {"url": "mcp://tool/api_1.post_1"}


def test_a_settlement_that_failed_has_the_terms_and_its_response() -> None:
    response = {"success": False, "errorReason": "x"}
    failed = unpaid(
        header(REQUIRED), {"code": "payment_settlement_failed"}, **{"payment-response": header(response)}
    )
    told = response_result(CALL, failed)
    assert told.meta[PAYMENT_RESPONSE] == response
    assert told.content["accepts"] == told.meta[PAYMENT_ERROR]["accepts"]


def test_another_refusal_is_the_problem_itself() -> None:
    problem = {"code": "payment_pending", "retryable": True}
    told = response_result(
        CALL, answer(json.dumps(problem).encode(), "application/problem+json", status=409, headers=OWN)
    )
    assert (told.is_error, told.content) == (True, problem)
    assert problem_result(json.dumps(problem).encode()).content == problem
