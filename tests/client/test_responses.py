"""Responses of gateways and nodes: the parser never raises or crashes for any bytes."""

import sys
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollway.body_text import CHARSETS
from tollway.client.call_io import NodeError, NodeResult, NodeUnavailable
from tollway.client.responses import (
    CallResponse,
    ResponseTooLong,
    build_unreachable,
    describe_failure,
    is_from_gateway,
    read_node_response,
    read_response,
)

BOMBS = [b"[" * 500_000, b'{"result":' * 500_000, b"[" * 100_000 + b"]" * 100_000]
HASH = "0x" + "ab" * 32
NODE = "https://user:secret@node.test:8545/key-of-the-node?a=b"


@pytest.fixture
def _lifted_recursion_limit() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)  # what importing py_ecc (below eth-account) does to the whole process
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("_lifted_recursion_limit")
@pytest.mark.parametrize("bomb", BOMBS, ids=("array", "object", "closed"))
def test_deep_nesting_is_no_document(bomb: bytes) -> None:
    assert read_response((), httpx.Response(402), bomb).problem is None
    assert read_node_response(NODE, 200, bomb) == NodeUnavailable(
        detail="node.test:8545 answers HTTP 200 without JSON-RPC"
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, None),
        (b"", None),
        (b"no", None),
        (b"[]", None),
        (b"\xff", None),
        (b'{"code":"a"}', {"code": "a"}),
    ],
)
def test_a_problem_is_an_object_or_none(content: bytes | None, problem: object) -> None:
    answer = read_response((), httpx.Response(402, headers={"Retry-After": "3"}), content)
    assert (answer.status, answer.problem, answer.retry_after_s) == (402, problem, 3)


@pytest.mark.parametrize(
    ("content", "outcome"),
    [
        (b"", NodeUnavailable(detail="node.test:8545 answers HTTP 502 without JSON-RPC")),
        (b"<html>", NodeUnavailable(detail="node.test:8545 answers HTTP 502 without JSON-RPC")),
        (b"{}", NodeUnavailable(detail="node.test:8545 answers HTTP 502 without a result")),
        (b'{"result":"0x1"}', NodeResult(result="0x1")),
        (b'{"result":null}', NodeResult(result=None)),
        (b'{"error":{"code":-32000,"message":"no"}}', NodeError(code=-32000, message="no")),
        (b'{"error":{"code":"x"}}', NodeError(code=0, message="refused")),
        (b'{"error":{"code":1,"message":"' + b"m" * 900 + b'"}}', NodeError(code=1, message="m" * 500)),
    ],
)
def test_a_node_answers_refuses_or_is_away(content: bytes, outcome: object) -> None:
    assert read_node_response(NODE, 502, content) == outcome


@pytest.mark.parametrize(
    ("kind", "proxy_status", "is_ours"),
    [
        ("application/problem+json", None, True),
        ("application/problem+json; charset=utf-8", '"gw"; error=http_request_denied', True),
        ("application/problem+json", '"gw"; received-status=402', False),
        ("application/json", None, False),
        ("", None, False),
    ],
)
def test_a_response_of_the_upstream_is_never_the_gateways_own(
    kind: str, proxy_status: str | None, is_ours: bool
) -> None:
    headers = {"content-type": kind} | ({} if proxy_status is None else {"proxy-status": proxy_status})
    assert is_from_gateway(httpx.Response(402, headers=headers)) is is_ours


@pytest.mark.parametrize(
    ("failure", "is_sent"),
    [
        (httpx.ConnectError("https://key@node"), False),
        (httpx.ConnectTimeout(""), False),
        (httpx.PoolTimeout(""), False),
        (httpx.UnsupportedProtocol(""), False),
        (httpx.ReadTimeout(""), True),
        (httpx.WriteError(""), True),
        (httpx.RemoteProtocolError("https://key@node"), True),
        (ResponseTooLong(), True),
    ],
)
def test_a_failure_states_whether_bytes_left_and_names_no_url(
    failure: httpx.TransportError | ResponseTooLong, is_sent: bool
) -> None:
    broken = describe_failure(failure)
    assert broken.is_sent is is_sent
    assert "key" not in broken.detail
    told = build_unreachable(failure, transaction=HASH)
    assert (told.is_sent, str(told.transaction), told.is_retryable) == (is_sent, HASH, not is_sent)


@given(content=st.binary(max_size=64))
def test_no_bytes_fail_in_a_charset_that_counts(content: bytes) -> None:
    for charset in sorted(CHARSETS):
        headers = {"content-type": f"text/plain; charset={charset}"}
        answer = CallResponse(200, headers=headers, content=content)
        assert (answer.charset_encoding, type(answer.text)) == (charset, str)


@pytest.mark.parametrize(
    ("headers", "content", "code"),
    [
        ({}, b'{"code": "rate_limited"}', "rate_limited"),
        ({}, b"no JSON", "unknown"),
        ({}, b"[]", "unknown"),
        ({"proxy-status": "gw; received-status=429"}, b'{"code": "rate_limited"}', None),
        ({"content-type": "application/json"}, b'{"code": "rate_limited"}', None),
    ],
)
def test_a_refusal_of_the_gateway_is_a_record_and_a_response_of_the_provider_is_none(
    headers: dict[str, str], content: bytes, code: str | None
) -> None:
    kind = {"content-type": "application/problem+json", **headers}
    problem = CallResponse(429, headers=kind, content=content).problem
    assert (None if problem is None else problem.code) == code
