"""The body of a call: as httpx encodes it, kept so that it can be sent again after a 402, and equal for two runs of the same call."""

import io

import httpx
import pytest

from tollway.client import TollwayClient, requests
from tollway.client.quote import Cap
from tollway.client.requests import CallOptions, CallPlan, plan_call
from tollway.client.transfer import CallRules

DEFAULTS = CallRules(max_price=Cap.parse("1 USDC"), rail="tx")
TIMEOUT = httpx.Timeout(5.0)


def plan(**options) -> CallPlan:
    return plan_call(
        "https://gw.test", "api_1", "/a", CallOptions(**options), defaults=DEFAULTS, timeout=TIMEOUT
    )


def header(planned: CallPlan, name: str) -> str | None:
    return httpx.Headers(list(planned.headers)).get(name)


@pytest.mark.parametrize(
    ("options", "body", "content_type"),
    [
        ({}, b"", None),
        ({"json": {"a": "ä"}}, '{"a":"ä"}'.encode(), "application/json"),
        ({"json": [1, None]}, b"[1,null]", "application/json"),
        ({"json": False}, b"false", "application/json"),
        ({"data": {"a": "1 2", "b": ["x", "y"]}}, b"a=1+2&b=x&b=y", "application/x-www-form-urlencoded"),
        ({"content": b"\x00"}, b"\x00", None),
        ({"content": "ä"}, "ä".encode(), None),
        ({"content": iter([b"a", b"b"])}, b"ab", None),
        ({"content": (part for part in [b"a", b"b"])}, b"ab", None),
        ({"content": io.BytesIO(b"file")}, b"file", None),
        ({"json": {}, "headers": {"Content-Type": "application/x+json"}}, b"{}", "application/x+json"),
    ],
)
def test_a_body_is_what_httpx_makes_of_it(options, body, content_type):
    planned = plan(**options)
    assert (planned.body, header(planned, "content-type")) == (body, content_type)


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ({}, "GET"),
        ({"json": {}}, "POST"),
        ({"content": b""}, "GET"),
        ({"json": {}, "method": "put"}, "PUT"),
        ({"method": "DELETE"}, "DELETE"),
    ],
)
def test_a_call_with_a_body_is_a_post_unless_it_is_named(options, method):
    assert plan(**options).method == method


def upload(name: str = "a.txt", content: bytes = b"content") -> dict[str, object]:
    return {"data": {"title": "ä"}, "files": {"upload": (name, io.BytesIO(content), "text/plain")}}


def test_files_and_data_are_a_form():
    planned = plan(**upload())
    boundary = str(header(planned, "content-type")).partition("boundary=")[2]
    same = httpx.Request(
        "POST",
        "https://gw.test",
        headers={"Content-Type": f"multipart/form-data; boundary={boundary}"},
        **upload(),
    )
    assert planned.body == same.read()
    assert (planned.method, boundary in planned.body.decode()) == ("POST", True)


def test_two_runs_of_the_same_upload_are_the_same_request():
    """The boundary is no accident: an idempotency key names the same bytes after a crash."""
    first, again = plan(**upload()), plan(**upload())
    assert (first.body, first.headers) == (again.body, again.headers)
    assert first.digest("https://gw.test") == again.digest("https://gw.test")
    for other in (upload("b.txt"), upload(content=b"other")):
        assert plan(**other).digest("https://gw.test") != first.digest("https://gw.test")


def test_a_file_is_read_from_its_beginning_each_time():
    file = io.BytesIO(b"content")
    assert plan(files={"a": file}).body == plan(files={"a": file}).body


def test_a_boundary_of_the_caller_stays():
    planned = plan(files={"a": b"x"}, headers={"Content-Type": "multipart/form-data; boundary=own"})
    assert planned.body.startswith(b"--own\r\n")


@pytest.mark.parametrize(
    ("options", "failure", "words"),
    [
        ({"json": {}, "content": b"x"}, ValueError, "one body, not content and json"),
        ({"json": {}, "data": {"a": "1"}}, ValueError, "not data and json"),
        ({"files": {"a": b"x"}, "content": b"x"}, ValueError, "not content and files"),
        ({"data": b"x"}, TypeError, "pass bytes and text as content"),
        ({"content": {"a": 1}}, TypeError, "content"),
        ({"json": float("nan")}, ValueError, "JSON"),
    ],
)
def test_refuses_a_body_that_has_two_meanings(options, failure, words):
    with pytest.raises(failure, match=words):
        plan(**options)


def test_an_asynchronous_iterator_is_refused_with_a_reason():
    async def chunks():
        yield b"x"

    with pytest.raises(TypeError, match="cannot be read here; pass content as bytes"):
        plan(content=chunks())


def test_an_iterator_is_kept_up_to_a_maximum(monkeypatch):
    monkeypatch.setattr(requests, "REQUEST_BYTES_MAX", 10)
    assert plan(content=iter([b"12345"] * 2)).body == b"1234512345"
    endless = iter(lambda: b"12345", b"")
    with pytest.raises(ValueError, match="at most"):
        plan(content=endless)


@pytest.mark.parametrize(
    ("params", "query"),
    [
        ({"x": "a b"}, "x=a+b"),
        ({"x": [1, 2]}, "x=1&x=2"),
        ([("x", "1"), ("y", None)], "x=1&y="),
        ("x=1", "x=1"),
        (httpx.QueryParams({"x": True}), "x=true"),
    ],
)
def test_params_are_those_of_httpx(params, query):
    assert plan(params=params).target == f"/a?{query}".encode()


@pytest.mark.parametrize(
    "headers",
    [{"X-A": "1"}, [("X-A", "1")], httpx.Headers({"X-A": "1"}), {b"X-A": b"1"}],
)
def test_headers_are_those_of_httpx(headers):
    assert header(plan(headers=headers), "x-a") == "1"


def test_a_header_may_occur_twice():
    planned = plan(headers=[("X-A", "1"), ("X-A", "2")])
    assert [value for name, value in planned.headers if name.lower() == "x-a"] == ["1", "2"]


@pytest.mark.parametrize(
    ("options", "timeout"),
    [
        ({}, TIMEOUT),
        ({"timeout": 2.5}, httpx.Timeout(2.5)),
        ({"timeout": None}, httpx.Timeout(None)),
        ({"timeout": httpx.Timeout(1.0, read=9.0)}, httpx.Timeout(1.0, read=9.0)),
    ],
)
def test_a_timeout_is_that_of_httpx(options, timeout):
    assert plan(**options).timeout == timeout


def test_a_body_is_sent_again_after_a_402(gateway, client_options):
    with TollwayClient("https://gateway.test", **client_options, timeout=7.0) as client:
        answer = client.call("api_1", content=iter([b"two ", b"parts"]))
        client.call("api_1", timeout=3.0)
    assert answer.json()["body"] == "two parts"
    assert [request.content for request in gateway.seen[:2]] == [b"two parts"] * 2
    assert gateway.seen[0].extensions["timeout"]["read"] == 7.0
    assert gateway.seen[-1].extensions["timeout"]["read"] == 3.0
