"""Requests as bytes: sent unchanged, framed once, with a body of the declared length."""

from collections.abc import AsyncIterator

import pytest

from tollway.errors import Refusal
from tollway.outbound.client import (
    SLICE_BYTES,
    UpstreamRequest,
    format_first_bytes,
    is_streamed,
)
from tollway.outbound.http1 import format_fields
from tollway.outbound.policy import Endpoint, parse_endpoint


async def pieces() -> AsyncIterator[bytes]:
    yield b"abc"


def request(
    method: str = "GET",
    *,
    url: str = "http://a.example:8080",
    body: bytes | AsyncIterator[bytes] | None = None,
    length: int | None = None,
    headers: tuple[tuple[str, str], ...] = (),
) -> UpstreamRequest:
    endpoint = parse_endpoint(url, allow_private=True)
    assert isinstance(endpoint, Endpoint)
    return UpstreamRequest(
        method=method,
        endpoint=endpoint,
        target="/x?y",
        fields=format_fields(headers),
        body=body,
        content_length=length,
    )


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://a.example", b"a.example"),
        ("http://a.example:80", b"a.example"),
        ("https://a.example:443", b"a.example"),
        ("https://a.example:80", b"a.example:80"),
        ("http://a.example:8080", b"a.example:8080"),
        ("http://a.example.", b"a.example"),
        ("http://a.example.:8080", b"a.example:8080"),
        ("http://127.0.0.1:8080", b"127.0.0.1:8080"),
        ("http://[::1]:8080", b"[::1]:8080"),
        ("http://[::1]", b"[::1]"),
    ],
)
def test_the_host_is_the_endpoints(url: str, host: bytes) -> None:
    assert format_first_bytes(request(url=url)) == b"GET /x?y HTTP/1.1\r\nHost: %b\r\n\r\n" % host


NONE, LENGTH, CHUNKS = b"", b"Content-Length: %d\r\n", b"Transfer-Encoding: chunked\r\n"


FRAMINGS = {
    **dict.fromkeys(("GET", "HEAD", "OPTIONS"), NONE),
    **dict.fromkeys(("POST", "PUT", "PATCH", "DELETE", "PURGE"), LENGTH % 0),
}


@pytest.mark.parametrize("body", [None, b""])
def test_a_missing_body_is_declared_where_one_has_a_meaning(body: bytes | None) -> None:
    heads = {method: format_first_bytes(request(method, body=body)) for method in FRAMINGS}
    assert {method: head.split(b"8080\r\n")[1] for method, head in heads.items()} == {
        method: framing + b"\r\n" for method, framing in FRAMINGS.items()
    }


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_body_is_framed_once_and_a_short_one_goes_out_with_its_head(method: str) -> None:
    long = b"x" * (SLICE_BYTES + 1)
    for body, length, framing, streamed in (
        (b"abc", None, LENGTH % 3 + b"\r\nabc", False),
        (b"abc", 9, LENGTH % 3 + b"\r\nabc", False),
        (b"x" * SLICE_BYTES, None, LENGTH % SLICE_BYTES + b"\r\n" + b"x" * SLICE_BYTES, False),
        (long, None, LENGTH % len(long) + b"\r\n", True),
        (pieces(), 3, LENGTH % 3 + b"\r\n", True),
        (pieces(), 0, LENGTH % 0 + b"\r\n", True),
        (pieces(), None, CHUNKS + b"\r\n", True),
    ):
        sent = request(method, body=body, length=length)
        assert format_first_bytes(sent).split(b"8080\r\n")[1] == framing
        assert is_streamed(sent) is streamed


def test_headers_go_out_in_order_and_as_they_are() -> None:
    given = (("X-B", "1"), ("x-a", "ü"), ("X-B", ""), ("Via", "1.1 a, 1.1 b"))
    sent = format_first_bytes(request(headers=given))
    assert sent.endswith("8080\r\nX-B: 1\r\nx-a: ü\r\nX-B: \r\nVia: 1.1 a, 1.1 b\r\n\r\n".encode())


@pytest.mark.parametrize(
    "field", [("a:b", "1"), ("", "1"), ("a", "b\r\nc: d"), ("a", "\x00"), ("a", "\udcff")], ids=repr
)
def test_a_field_that_cannot_be_written_is_refused(field: tuple[str, str]) -> None:
    with pytest.raises(Refusal):
        format_fields([("Accept", "*/*"), field])
