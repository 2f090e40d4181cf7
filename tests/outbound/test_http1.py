"""Responses byte by byte: where a head and a body end, and that a cut, garbled or doubled response is never whole."""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollway.outbound.http1 import HeadLimits, ResponseMalformed, ResponseParser, parse_head

LIMITS = HeadLimits(head_bytes=2_000, line_bytes=200, headers=10)
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Seen:
    """What an answer came to."""

    status: int | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    is_whole: bool = False
    is_reusable: bool = False
    is_malformed: bool = False


def read(*pieces: bytes, method: str = "GET", ends: bool = False, is_broken: bool = False) -> Seen:
    answer = ResponseParser(method, LIMITS)
    body, is_malformed = b"", False
    try:
        for piece in pieces:
            answer.feed(piece)
            body += answer.take_body()
    except ResponseMalformed:
        is_malformed = True
    if ends and not is_malformed:
        answer.end(is_broken=is_broken)
    return Seen(
        status=answer.head.status if answer.head is not None else None,
        headers=answer.head.headers if answer.head is not None else (),
        body=body + answer.take_body(),
        is_whole=answer.is_whole,
        is_reusable=answer.is_reusable,
        is_malformed=is_malformed,
    )


def split(raw: bytes, at: int) -> tuple[bytes, ...]:
    return tuple(piece for piece in (raw[:at], raw[at:]) if piece)


GOOD = {
    "length": (OK + b"Content-Length: 3\r\n\r\nabc", b"abc", True),
    "empty": (OK + b"Content-Length: 0\r\n\r\n", b"", True),
    "no_reason": (b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\na", b"a", True),
    "chunks": (CHUNKED + b"3\r\nabc\r\n1;x=y\r\nd\r\n0\r\nT: 1\r\n\r\n", b"abcd", True),
    "chunks_in_capitals": (
        OK + b"TRANSFER-ENCODING: Chunked\r\n\r\nA\r\n0123456789\r\n00\r\n\r\n",
        b"0123456789",
        True,
    ),
    "interim": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n"
        + OK
        + b"Content-Length: 1\r\n\r\na",
        b"a",
        True,
    ),
    "no_content": (b"HTTP/1.1 204 No\r\n\r\n", b"", True),
    "not_modified": (b"HTTP/1.1 304 No\r\nContent-Length: 5\r\n\r\n", b"", True),
    "last": (OK + b"Content-Length: 1\r\nConnection: x, Close\r\n\r\na", b"a", False),
    "old": (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", b"a", False),
    "old_and_kept": (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\na", b"a", True),
    "old_in_chunks": (
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n",
        b"",
        False,
    ),
    "upgrade_told_only": (
        OK + b"Upgrade: h2c\r\nConnection: upgrade\r\nContent-Length: 1\r\n\r\na",
        b"a",
        True,
    ),
}


@pytest.mark.parametrize(("raw", "body", "is_reusable"), GOOD.values(), ids=GOOD.keys())
def test_an_answer_is_the_same_wherever_it_is_split(raw: bytes, body: bytes, is_reusable: bool) -> None:
    whole = read(raw)
    assert (whole.body, whole.is_whole, whole.is_reusable) == (body, True, is_reusable)
    for at in range(1, len(raw)):
        assert read(*split(raw, at)) == whole, at
        assert not read(raw[:at]).is_whole, at
        assert not read(raw[:at], ends=True).is_whole, at
    assert read(*(raw[at : at + 1] for at in range(len(raw)))) == whole


@pytest.mark.parametrize(("raw", "body", "is_reusable"), GOOD.values(), ids=GOOD.keys())
def test_bytes_after_the_end_belong_to_no_response(raw: bytes, body: bytes, is_reusable: bool) -> None:
    for stray in (b"H", b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", b"\x00" * 9, OK):
        seen = read(raw, stray)
        assert (seen.body, seen.is_whole, seen.is_reusable) == (body, True, False), stray


@pytest.mark.parametrize(("raw", "body", "is_reusable"), GOOD.values(), ids=GOOD.keys())
def test_more_than_the_answer_in_one_piece_with_its_head_is_none(
    raw: bytes, body: bytes, is_reusable: bool
) -> None:
    """Except empty lines, which some servers send. Of a chunked response the head is delivered before its end is
    checked."""
    for stray in (b"H", raw, b"\x00", b"0\r\n\r\n"):
        seen = read(raw + stray)
        if b"chunked" in raw.lower() or raw.startswith((b"HTTP/1.1 204", b"HTTP/1.1 304")):
            assert (seen.body, seen.is_whole, seen.is_reusable) == (body, True, False), stray
        else:
            assert seen == Seen(is_malformed=True), stray
    for stray in (b"\r\n", b"\r\n\r\n"):
        assert (read(raw + stray).body, read(raw + stray).is_whole) == (body, True)


@pytest.mark.parametrize("status", [b"200 OK", b"204 No", b"304 No"])
def test_head_and_empty_statuses_have_no_body_with_any_headers(status: bytes) -> None:
    for framing in (b"Content-Length: 9\r\n", b"Transfer-Encoding: chunked\r\n", b""):
        method = "HEAD" if status == b"200 OK" else "GET"
        raw = b"HTTP/1.1 " + status + b"\r\n" + framing + b"\r\n"
        assert read(raw, method=method).is_reusable
        assert not read(raw, b"9", method=method).is_reusable
        seen = read(raw + b"9", method=method)
        assert (seen.is_malformed, seen.is_whole, seen.body, seen.is_reusable) == (
            False,
            True,
            b"",
            False,
        )


def test_a_body_without_a_length_ends_with_its_connection_and_is_the_last() -> None:
    for head in (OK + b"\r\n", b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.1 205 Reset\r\n\r\n"):
        assert not read(head + b"abc").is_whole
        seen = read(head + b"abc", b"def", ends=True)
        assert (seen.body, seen.is_whole, seen.is_reusable) == (b"abcdef", True, False)
        assert not read(head + b"abc", ends=True, is_broken=True).is_whole


def test_headers_come_as_they_were_received_and_in_order() -> None:
    raw = OK + b"X-B:  1 \t\r\nx-a:\xff\xc3\xa9\r\nX-B: \r\nSet-Cookie: a=b; c\r\nContent-Length: 0\r\n\r\n"
    assert read(raw).headers == (
        (b"X-B", b"1"),
        (b"x-a", b"\xff\xc3\xa9"),
        (b"X-B", b""),
        (b"Set-Cookie", b"a=b; c"),
        (b"Content-Length", b"0"),
    )


@pytest.mark.parametrize(
    ("value", "idle_s_max"),
    [
        (b"timeout=5", 4.0),
        (b"timeout=5, max=100", 4.0),
        (b"max=100, Timeout = 15", 14.0),
        (b'timeout="2"', 1.0),
        (b"timeout=1", 0.5),
        (b"timeout=0", 0.0),
        (b"max=100", inf),
        (b"timeout", inf),
        (b"timeout=-1", inf),
        (b"timeout=99999999999", inf),
        (b"xtimeout=1", inf),
    ],
)
def test_a_server_that_names_its_idle_time_gets_no_request_in_its_last_second(
    value: bytes, idle_s_max: float
) -> None:
    head = parse_head(
        b"HTTP/1.1 200 OK\r\nKeep-Alive: %b\r\nContent-Length: 0\r\n\r\n" % value, method="GET", limits=LIMITS
    )
    assert head.idle_s_max == idle_s_max


def test_control_characters_in_values_are_let_through() -> None:
    """RFC 9110 §5.5 leaves them to the recipient; NUL, CR and LF it does not."""
    raw = OK + b"X-A: \x01b\x7f\r\nContent-Length: 0\r\n\r\n"
    assert read(raw).headers[0] == (b"X-A", b"\x01b\x7f")


def test_trailers_are_not_headers() -> None:
    assert read(CHUNKED + b"0\r\nContent-Length: 7\r\nX: 1\r\n\r\n").headers == (
        (b"Transfer-Encoding", b"chunked"),
    )


BAD_HEADS = {
    "garbage": b"garbage\r\n\r\n",
    "another_protocol": b"RTSP/1.0 200 OK\r\n\r\n",
    "ice": b"ICE/1.0 200 OK\r\n\r\n",
    "http_2": b"HTTP/2.0 200 OK\r\n\r\n",
    "http_09": b"HTTP/0.9 200 OK\r\n\r\n",
    "leading_line": b"\r\nHTTP/1.1 200 OK\r\n\r\n",
    "leading_space": b" HTTP/1.1 200 OK\r\n\r\n",
    "no_status": b"HTTP/1.1 OK\r\n\r\n",
    "two_digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "four_digits": b"HTTP/1.1 2000 OK\r\n\r\n",
    "status_0": b"HTTP/1.1 000 OK\r\n\r\n",
    "status_99": b"HTTP/1.1 099 OK\r\n\r\n",
    "status_600": b"HTTP/1.1 600 OK\r\n\r\n",
    "switching": b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "switching_to_nothing": b"HTTP/1.1 101 S\r\n\r\n",
    "two_lengths": OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n",
    "one_length_twice": OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n",
    "list_of_lengths": OK + b"Content-Length: 2, 2\r\n\r\n",
    "signed_length": OK + b"Content-Length: +2\r\n\r\n",
    "negative_length": OK + b"Content-Length: -2\r\n\r\n",
    "hex_length": OK + b"Content-Length: 0x2\r\n\r\n",
    "spaced_length": OK + b"Content-Length: 2 2\r\n\r\n",
    "no_length": OK + b"Content-Length:\r\n\r\n",
    "endless_length": OK + b"Content-Length: 99999999999999999999\r\n\r\n",
    "length_and_chunks": OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunks_and_length": OK + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n",
    "chunks_twice": OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    "another_coding": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n",
    "coding_behind_chunks": OK + b"Transfer-Encoding: chunked, gzip\r\n\r\n",
    "identity": OK + b"Transfer-Encoding: identity\r\n\r\n",
    "unknown_coding": OK + b"Transfer-Encoding: xchunked\r\n\r\n",
    "vertical_tab_coding": OK + b"Transfer-Encoding: \x0bchunked\r\n\r\n",
    "folded": OK + b"X: a\r\n b\r\n\r\n",
    "folded_by_tab": OK + b"X: a\r\n\tb\r\n\r\n",
    "folded_at_once": OK + b" X: a\r\n\r\n",
    "folded_empty": OK + b"X:\r\n a\r\n\r\n",
    "bare_lf": OK + b"X: a\nY: b\r\n\r\n",
    "bare_cr": OK + b"X: a\rY: b\r\n\r\n",
    "bare_lf_in_reason": b"HTTP/1.1 200 O\nX: a\r\n\r\n",
    "bare_cr_in_reason": b"HTTP/1.1 200 O\rK\r\n\r\n",
    "nul": OK + b"X: a\x00\r\n\r\n",
    "cr_before_the_end": OK + b"X: a\r\r\n\r\n",
    "folded_length": OK + b"Content-Length:\r\n 2\r\n\r\n",
    "folded_coding": OK + b"Transfer-Encoding:\r\n chunked\r\n\r\n",
    "control_in_length": OK + b"Content-Length: \x012\r\n\r\n",
    "control_in_coding": OK + b"Transfer-Encoding: chunked\x01\r\n\r\n",
    "space_in_name": OK + b"X Y: a\r\n\r\n",
    "space_before_colon": OK + b"Content-Length : 1\r\n\r\n",
    "no_name": OK + b": a\r\n\r\n",
    "no_colon": OK + b"X\r\n\r\n",
    "name_not_ascii": OK + b"\xc3\xa9: a\r\n\r\n",
    "cr_in_name": OK + b"X\rY: a\r\n\r\n",
    "long_line": b"HTTP/1.1 200 " + b"x" * 200 + b"\r\n\r\n",
    "long_field": OK + b"X: " + b"x" * 2_000 + b"\r\n\r\n",
    "long_name": OK + b"X" * 2_001 + b": \r\n\r\n",
    "many_headers": OK + b"X: 1\r\n" * 11 + b"\r\n",
    "long_head": OK + b"".join(b"X-%d: %s\r\n" % (n, b"x" * 400) for n in range(6)) + b"\r\n",
    "long_interim": b"HTTP/1.1 100 C\r\n\r\n" * 200 + OK + b"Content-Length: 2\r\n\r\n",
    "switching_and_then_an_answer": b"HTTP/1.1 101 S\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\n",
    "control_and_space_before_colon": OK + b"X: \x01\r\nContent-Length : 2\r\n\r\n",
    "control_and_folded": OK + b"X: \x01\r\n b\r\nContent-Length: 2\r\n\r\n",
    "control_and_nul": OK + b"X: \x01\x00\r\nContent-Length: 2\r\n\r\n",
}


@pytest.mark.parametrize("raw", BAD_HEADS.values(), ids=BAD_HEADS.keys())
def test_a_head_that_could_be_read_in_two_ways_is_none(raw: bytes) -> None:
    assert read(raw + b"ab") == Seen(is_malformed=True)
    for at in range(1, min(len(raw), 400)):
        assert read(*split(raw + b"ab", at)) == Seen(is_malformed=True), at


def test_an_invalid_head_is_refused_before_its_end() -> None:
    for begun in (b"S", b"HTTQ", b"HTTP/1.2 ", OK + b"X: a\n", b"HTTP/1.1 200 OK\n", b"x" * 2_001):
        assert read(begun) == Seen(is_malformed=True), begun
    for begun in (b"H", b"HTTP/1.1 ", OK, OK + b"X: a\r"):
        assert read(begun) == Seen(), begun


def test_limits_of_a_head_hold_to_the_byte() -> None:
    fields = b"Content-Length: 0\r\n"
    line = b"HTTP/1.1 200 ".ljust(LIMITS.line_bytes, b"x")
    assert read(line + b"\r\n" + fields + b"\r\n").is_whole
    assert read(line + b"x\r\n" + fields + b"\r\n").is_malformed
    many = b"X: 1\r\n" * (LIMITS.headers - 1)
    assert read(OK + many + fields + b"\r\n").is_whole
    assert read(OK + many + b"X: 1\r\n" + fields + b"\r\n").is_malformed
    for long in (OK + fields, OK + fields + (b"X: ".ljust(400, b"x") + b"\r\n") * 4):
        rest = LIMITS.head_bytes - len(long)
        assert read(long + b"Y: ".ljust(rest, b"y") + b"\r\n\r\n").is_whole
        assert read(long + b"Y: ".ljust(rest + 1, b"y") + b"\r\n\r\n").is_malformed


BAD_CHUNKS = {
    "no_size": b"\r\nabc\r\n0\r\n\r\n",
    "no_hex": b"ZZ\r\nabc\r\n0\r\n\r\n",
    "signed": b"+3\r\nabc\r\n0\r\n\r\n",
    "negative": b"-3\r\nabc\r\n0\r\n\r\n",
    "prefixed": b"0x3\r\nabc\r\n0\r\n\r\n",
    "spaced": b"3 \r\nabc\r\n0\r\n\r\n",
    "endless": b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "bare_lf": b"3\nabc\r\n0\r\n\r\n",
    "bare_lf_in_extension": b"3;a\nabc\r\n0\r\n\r\n",
    "bare_cr": b"3\rabc\r\n0\r\n\r\n",
    "too_long": b"2\r\nabc\r\n0\r\n\r\n",
    "too_short": b"4\r\nabc\r\n0\r\n\r\n",
    "bare_lf_behind": b"3\r\nabc\n0\r\n\r\n",
    "bad_trailer": b"3\r\nabc\r\n0\r\nX Y\r\n\r\n",
}


@pytest.mark.parametrize("raw", BAD_CHUNKS.values(), ids=BAD_CHUNKS.keys())
def test_garbled_chunks_are_no_body(raw: bytes) -> None:
    for at in range(len(raw)):
        seen = read(*split(CHUNKED, 5), *split(raw, at), ends=True)
        assert (seen.is_malformed, seen.is_whole) == (True, False), at


def test_valid_bytes_before_invalid_ones_stay() -> None:
    assert read(CHUNKED + b"3\r\nabc\r\n", b"ZZ") == replace(
        Seen(is_malformed=True), status=200, headers=read(CHUNKED).headers, body=b"abc"
    )


@given(st.binary(max_size=200), st.integers(1, 199), st.sampled_from(["GET", "HEAD"]))
def test_noise_is_read_in_one_way_and_is_no_answer(noise: bytes, at: int, method: str) -> None:
    once = read(noise, method=method, ends=True)
    twice = read(*split(noise, at), method=method, ends=True)
    assert replace(twice, body=b"") == replace(once, body=b"")
    if not noise.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")):
        assert (once.status, once.is_whole) == (None, False)


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (b"", b"0"),
        (b"5;a=", b"b"),
        (b"3\r\nabc\r\n0\r\n", b"T: 1\r\n"),
        (b"3\r\nabc\r\n0\r\nT: ", b"1"),
    ],
    ids=["a size", "an extension", "trailers", "a trailer"],
)
def test_bytes_between_chunks_have_the_limit_of_a_head(first: bytes, more: bytes) -> None:
    answer = ResponseParser("GET", LIMITS)
    answer.feed(CHUNKED + first)
    body = answer.take_body()
    piece = more * (LIMITS.head_bytes // 4 // len(more))
    for _ in range(3):
        answer.feed(piece)
    with pytest.raises(ResponseMalformed):
        answer.feed(piece * 2)
    assert (body, answer.buffered, answer.is_whole) == (b"abc" if b"abc" in first else b"", 0, False)


def test_each_chunk_may_have_a_long_extension() -> None:
    answer = ResponseParser("GET", LIMITS)
    answer.feed(CHUNKED)
    extension = b"a" * (LIMITS.head_bytes // 2)
    for _ in range(5):
        answer.feed(b"1;x=" + extension)
        answer.feed(b"\r\nd\r\n")
    answer.feed(b"0\r\n\r\n")
    assert (answer.take_body(), answer.is_whole) == (b"ddddd", True)


@given(st.binary(max_size=60), st.integers(0, 120), st.integers(0, 20))
def test_noise_in_chunks_never_makes_a_whole_body_of_a_cut_one(noise: bytes, at: int, length: int) -> None:
    """A whole one ends with the last chunk; without it there is none."""
    good = b"3\r\nabc\r\n" * 5
    body = good[: at % len(good)] + noise.replace(b"0", b"1") + good[:length]
    assert not read(CHUNKED + body, ends=True).is_whole


@given(
    st.sampled_from([raw for raw, _, _ in GOOD.values()] + list(BAD_HEADS.values())),
    st.lists(st.integers(1, 300), max_size=8),
)
def test_an_answer_is_the_same_however_often_it_is_split(raw: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    pieces = [raw[start:stop] for start, stop in pairwise(edges)]
    assert read(*pieces) == read(raw)
