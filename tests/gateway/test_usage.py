"""What the response of a metered call reports: quantities of headers, JSON bodies, event streams and bytes, and what is absent."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollway.gateway.usage import VALUES_MAX, EventReader, UsageReader, reads_json
from tollway.limits import DEFAULT_LIMITS, KIB, Limits
from tollway.money import Price
from tollway.registry.metering import (
    Measured,
    MeteredPart,
    Metering,
    Quantities,
    QuantitySource,
    compute_cost,
    list_usage_headers,
    parse_unit_price,
)

JSON = (b"Content-Type", b"application/json")
SSE = (b"Content-Type", b"text/event-stream; charset=utf-8")
LIMITS = replace(DEFAULT_LIMITS, metered_event_bytes_max=200, metered_body_bytes_max=500)

Headers = Sequence[tuple[bytes, bytes]]


def formula(*sources: QuantitySource, shows_header: bool = False) -> Metering:
    return Metering(
        base=Price.parse("0.001"),
        absent="max",
        shows_header=shows_header,
        parts=tuple(
            MeteredPart(unit="unit", unit_price_atto=parse_unit_price("0.00001"), per=1, source=source)
            for source in sources
        ),
    )


def at(pointer: str) -> QuantitySource:
    """The same place in a JSON body and in the events of a stream."""
    return QuantitySource(json=pointer, sse=pointer)


CUT = (-1,)
"""In place of the quantities of a body that was cut: it takes the base."""
HEADER = QuantitySource(header="X-Usage-Units")
BYTES = QuantitySource(is_bytes=True)
TOTAL = formula(at("/usage/total_tokens"))
CHAT = formula(at("/usage/prompt_tokens"), at("/usage/completion_tokens"))


def measure(
    metering: Metering,
    *chunks: bytes,
    headers: Headers = (JSON,),
    method: str = "POST",
    status: int = 200,
    limits: Limits = DEFAULT_LIMITS,
    is_whole: bool = True,
    lasts_until_close: bool = False,
) -> Quantities | None:
    reader = UsageReader(
        [metering],
        method=method,
        status=status,
        headers=headers,
        limits=limits,
        lasts_until_close=lasts_until_close,
    )
    for chunk in chunks:
        reader.add(chunk)
    if is_whole:
        reader.end()
    (quantities,) = reader.measure().by_formula or (CUT,)
    return quantities


def event(content: Any, *, name: str | None = None, end: str = "\n") -> bytes:
    head = "" if name is None else f"event: {name}{end}"
    return f"{head}data: {content if isinstance(content, str) else json.dumps(content)}{end}{end}".encode()


# ---------------------------------------------------------------------- bodies that last until the connection ends

TOTAL_7 = json.dumps({"usage": {"total_tokens": 7}}).encode()
EVENT_7 = b"data: " + TOTAL_7 + b"\n\n"


@pytest.mark.parametrize(
    ("form", "body", "quantities"),
    [
        (JSON, TOTAL_7, (7,)),
        (JSON, TOTAL_7 + b"\r\n", (7,)),
        (JSON, b"{}", None),
        (JSON, b"[]", None),
        (JSON, TOTAL_7[:-1], CUT),
        (JSON, TOTAL_7[:9], CUT),
        (JSON, b"", CUT),
        (JSON, b"12", CUT),  # of 120, perhaps
        (JSON, b"<html>", CUT),
        (JSON, b'{"a": "' + b"x" * 600 + b'"', None),  # too large to be read
        (SSE, EVENT_7, (7,)),
        (SSE, EVENT_7.replace(b"\n", b"\r\n"), (7,)),
        (SSE, EVENT_7.replace(b"\n", b"\r"), (7,)),
        (SSE, EVENT_7 + b": ping\nevent: done\n", (7,)),
        (SSE, b"data: [DONE]\n\n", None),
        (SSE, EVENT_7[:-1], CUT),
        (SSE, EVENT_7[:-2], CUT),
        (SSE, EVENT_7 + EVENT_7[:20], CUT),
        (SSE, EVENT_7 + b"id", CUT),
        (SSE, EVENT_7 + b"data: " + b"x" * 300 + b"\n", CUT),
        (SSE, b"", CUT),
        ((b"Content-Type", b"text/plain"), b"cut", None),
    ],
)
def test_a_body_that_ends_with_its_connection_proves_that_it_is_whole(
    form: tuple[bytes, bytes], body: bytes, quantities: Quantities | None
) -> None:
    """Such an end is complete (RFC 9112 §6.3), and cannot be told from a cut (§8): a JSON text ends by its last bracket, a stream after an event. With a length or with chunks the same body is whole."""
    at_close = {"headers": (form,), "limits": LIMITS, "lasts_until_close": True}
    assert measure(TOTAL, body, **at_close) == quantities
    assert measure(TOTAL, *(body[at : at + 1] for at in range(len(body))), **at_close) == quantities
    assert measure(TOTAL, body, headers=(form,), limits=LIMITS) != CUT
    assert measure(formula(BYTES), body, **at_close) == (len(body),)


# ---------------------------------------------------------------------- responses of known services

WHOLE_CHAT = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": 'The "usage": {"total_tokens": 9}'}}
        ],
        "usage": {
            "prompt_tokens": 19,
            "completion_tokens": 10,
            "total_tokens": 29,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
).encode()


def chunk_of_chat(text: str | None, usage: dict[str, Any] | None) -> bytes:
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}}]
    return event({"object": "chat.completion.chunk", "choices": choices, "usage": usage})


DONE = event("[DONE]")
USED = {"prompt_tokens": 19, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4}}
OPENAI_STREAM = (
    chunk_of_chat("Hi", None) + chunk_of_chat('"usage": 7', None) + chunk_of_chat(None, USED) + DONE
)
BESIDE_CHOICES = chunk_of_chat("Hi", None) + chunk_of_chat("!", USED) + DONE
WITHOUT_USAGE = chunk_of_chat("Hi", None) + chunk_of_chat("!", None) + DONE
CONTINUOUS = b"".join(
    chunk_of_chat(f"{count}", {"prompt_tokens": 19, "completion_tokens": count}) for count in range(1, 11)
)
ANTHROPIC = (
    event(
        {"type": "message_start", "message": {"usage": {"input_tokens": 25, "output_tokens": 1}}},
        name="message_start",
    )
    + event({"type": "ping"}, name="ping")
    + event({"type": "content_block_delta", "delta": {"text": "usage"}}, name="content_block_delta")
    + event({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 15}}, name="message_delta")
    + event({"type": "message_stop"}, name="message_stop")
)
CACHED = formula(at("/usage/prompt_tokens"), at("/usage/prompt_tokens_details/cached_tokens"))
MESSAGES = formula(
    QuantitySource(json="/usage/input_tokens", sse="/message/usage/input_tokens"),
    QuantitySource(json="/usage/output_tokens", sse="/usage/output_tokens"),
)
IMAGE = ((b"Content-Type", b"image/png"), (b"x-usage-units", b"3"))


@pytest.mark.parametrize(
    ("metering", "headers", "body", "quantities"),
    [
        (CHAT, (JSON,), WHOLE_CHAT, (19, 10)),
        (CACHED, (JSON,), WHOLE_CHAT, (19, 4)),
        (formula(at("/usage/completion_tokens_details/reasoning_tokens")), (JSON,), WHOLE_CHAT, (0,)),
        (CHAT, (SSE,), OPENAI_STREAM, (19, 10)),
        (CACHED, (SSE,), OPENAI_STREAM, (19, 4)),
        (CHAT, (SSE,), BESIDE_CHOICES, (19, 10)),
        (CHAT, (SSE,), WITHOUT_USAGE, None),
        (CHAT, (SSE,), CONTINUOUS, (19, 10)),
        (MESSAGES, (SSE,), ANTHROPIC, (25, 15)),
        (
            MESSAGES,
            (JSON,),
            b'{"type": "message", "usage": {"input_tokens": 25, "output_tokens": 15}}',
            (25, 15),
        ),
        (formula(HEADER), IMAGE, b"\x89PNG", (3,)),
        (formula(BYTES), (), b"x" * 1000, (1000,)),
        (formula(HEADER, BYTES), IMAGE, b"\x89PNG", (3, 4)),
    ],
    ids=[
        "OpenAI",
        "OpenAI, cached",
        "OpenAI, reasoning of 0",
        "OpenAI stream",
        "OpenAI stream, cached",
        "usage beside choices",
        "without include_usage",
        "vLLM, continuous",
        "Anthropic, two events",
        "Anthropic",
        "an image with a header",
        "a download",
        "a header and bytes",
    ],
)
def test_reads_the_usage_that_services_report(
    metering: Metering, headers: Headers, body: bytes, quantities: Quantities | None
) -> None:
    assert measure(metering, body, headers=headers) == quantities


def test_a_streamed_and_a_whole_answer_cost_the_same() -> None:
    costs = [
        compute_cost([CHAT], Measured((measure(CHAT, body, headers=headers),)), max_units=10**6, decimals=6)
        for headers, body in [((JSON,), WHOLE_CHAT), ((SSE,), OPENAI_STREAM), ((SSE,), CONTINUOUS)]
    ]
    assert {cost.units for cost in costs} == {1_000 + 29 * 10}


# ---------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("written", "quantity"),
    [
        ("0", 0),
        ("7", 7),
        ('"7"', 7),
        ('"0"', 0),
        ('"007"', 7),
        ("999999999999999999", 999_999_999_999_999_999),
        ('"999999999999999999"', 999_999_999_999_999_999),
        ("1000000000000000000", None),
        ('"1000000000000000000"', None),
        (str(2**64), None),
        ("9" * 5_000, None),
        ("7.0", None),
        ("7e0", None),
        ("1E2", None),
        ("-7", None),
        ("-0", None),
        ('"-7"', None),
        ('"+7"', None),
        ('"7.0"', None),
        ('" 7"', None),
        ('"7 "', None),
        ('"1,000"', None),
        ('"0x7"', None),
        ('"\u0667"', None),
        ('""', None),
        ("true", None),
        ("false", None),
        ("null", None),
        ("NaN", None),
        ("Infinity", None),
        ("[7]", None),
        ('{"total_tokens": 7}', None),
    ],
)
@pytest.mark.parametrize("form", ["json", "sse"])
def test_a_quantity_is_an_integer_of_at_most_eighteen_digits(
    form: str, written: str, quantity: int | None
) -> None:
    text = f'{{"usage": {{"total_tokens": {written}}}}}'.encode()
    body, headers = (text, JSON) if form == "json" else (b"data: " + text + b"\n\n", SSE)
    assert measure(TOTAL, body, headers=(headers,)) == (None if quantity is None else (quantity,))


@pytest.mark.parametrize(
    ("body", "quantities"),
    [
        (b'{"usage": {"total_tokens": 7, "total_tokens": 7}}', None),
        (b'{"usage": {"total_tokens": 7}, "usage": {"total_tokens": 7}}', None),
        (b'{"usage": {"total_tokens": 7}, "us\\u0061ge": {"total_tokens": 7}}', None),
        (b'{"usage": {"total_tokens": 7, "other": 1, "other": 2}}', (7,)),
        (b'{"a": 1, "a": 2, "usage": {"total_tokens": 7}}', (7,)),
        (b'{"us\\u0061ge": {"total_tokens": 7}}', (7,)),
        (b'\xef\xbb\xbf{"usage": {"total_tokens": 7}}', (7,)),
        (b'{"usage": {"total_tokens": 7}', None),
        (b'{"usage": {"total_tokens": 7}} x', None),
        (b'{"usage": {"total_tokens": 7}, "text": "\xff"}', None),
        (b'{"usage": {"total_tokens": 7}, "text": "\\ud83d"}', (7,)),
        (b'{"usage": {"total_tokens": 7}, "text": "\\\\ud83d \\ude00"}', (7,)),
        (b'{"usage": {"total_tokens": 7}, "number": ' + b"1" * 5_000 + b"}", (7,)),
        (b'{"usage": {"total_tokens": ' + b"1" * 5_000 + b"}}", None),
        (
            b'{"usage": {"total_tokens": 7}, "text": "\\ud83d", "deep": '
            + b"[" * 9_000
            + b"]" * 9_000
            + b"}",
            None,
        ),
        (b'[{"usage": {"total_tokens": 7}}]', None),
        (b'{"usage": 7}', None),
        (b'"usage"', None),
        (b"", None),
        (b"[" * 100_000, None),
        (b'{"usage": {"total_tokens": 7}, "deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
    ],
)
def test_a_json_body_is_read_as_a_whole_or_not_at_all(body: bytes, quantities: Quantities | None) -> None:
    assert measure(TOTAL, body) == quantities


def test_a_text_of_very_many_values_is_not_parsed() -> None:
    for count, quantities in [(VALUES_MAX - 10, (7,)), (VALUES_MAX, None)]:
        assert measure(TOTAL, b'{"usage": {"total_tokens": 7}, "x": [' + b"1," * count + b"1]}") == quantities


@pytest.mark.parametrize(
    ("pointer", "quantity"),
    [
        ("", None),
        ("/a~1b/c~0d", 1),
        ("/list/1", 3),
        ("/list/01", None),
        ("/list/2", None),
        ("/list/-", None),
        ("/", 4),
        ("/a/b", None),
    ],
)
def test_a_pointer_is_followed_by_its_rules(pointer: str, quantity: int | None) -> None:
    body = b'{"a/b": {"c~d": 1}, "list": [2, 3], "": 4}'
    assert measure(formula(at(pointer)), body) == (None if quantity is None else (quantity,))


def test_a_body_may_be_the_quantity_itself() -> None:
    assert measure(formula(at("")), b"12") == (12,)


# ---------------------------------------------------------------------- the head

SEVEN = b'{"usage": {"total_tokens": 7}}'


@pytest.mark.parametrize(
    ("headers", "is_read"),
    [
        ([JSON], True),
        ([(b"content-type", b"Application/JSON ; charset=utf-8")], True),
        ([(b"content-type", b"application/problem+json")], True),
        ([JSON, (b"content-encoding", b"identity")], True),
        ([JSON, (b"content-encoding", b"gzip")], False),
        ([JSON, (b"Content-Encoding", b"identity"), (b"Content-Encoding", b"br")], False),
        ([JSON, (b"content-encoding", b"identity, gzip")], False),
        ([], False),
        ([JSON, JSON], False),
        ([(b"content-type", b"text/plain")], False),
        ([(b"content-type", b"application/jsonp")], False),
        ([(b"content-type", b"application/x-ndjson")], False),
        ([(b"content-type", b"multipart/mixed; boundary=application/json")], False),
        ([SSE], False),
    ],
)
def test_the_head_says_whether_a_body_is_read(headers: Headers, is_read: bool) -> None:
    assert measure(TOTAL, SEVEN, headers=headers) == ((7,) if is_read else None)


@pytest.mark.parametrize(
    ("headers", "quantities"),
    [
        ([(b"X-Usage-Units", b"7")], (7,)),
        ([(b"x-usage-units", b" 7\t")], (7,)),
        ([(b"x-usage-units", b"0")], (0,)),
        ([(b"x-usage-units", b"7"), (b"X-Usage-Units", b"7")], None),
        ([(b"x-usage-units", b"7, 7")], None),
        ([(b"x-usage-units", b"7;q=1")], None),
        ([(b"x-usage-units", b"7.0")], None),
        ([(b"x-usage-units", b"-7")], None),
        ([(b"x-usage-units", b"")], None),
        ([(b"x-usage-units", b"\xb2")], None),
        ([], None),
        ([(b"x-usage-units", b"7"), (b"content-encoding", b"gzip")], (7,)),
    ],
)
def test_a_header_is_one_number(headers: Headers, quantities: Quantities | None) -> None:
    assert measure(formula(HEADER), headers=headers) == quantities


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
@pytest.mark.parametrize("source", [HEADER, BYTES, at("/usage/total_tokens")])
def test_a_response_without_a_body_has_used_nothing(method: str, status: int, source: QuantitySource) -> None:
    headers = [JSON, (b"x-usage-units", b"many")]
    assert measure(formula(source, HEADER), method=method, status=status, headers=headers) == (0, 0)


def test_one_absent_part_makes_the_usage_of_its_formula_absent_and_of_no_other() -> None:
    both, only = formula(at("/a"), at("/b")), formula(at("/a"))
    reader = UsageReader([both, only], method="GET", status=200, headers=[JSON], limits=LIMITS)
    reader.add(b'{"a": 1}')
    reader.end()
    assert reader.measure() == Measured((None, (1,)))


def test_the_place_in_a_stream_is_not_looked_for_in_a_whole_body() -> None:
    crossed = formula(QuantitySource(json="/a", sse="/b"), QuantitySource(json="/b", sse="/c"))
    assert measure(crossed, b'{"a": 1, "b": 2, "c": 3}') == (1, 2)
    assert measure(crossed, event({"a": 1, "b": 2, "c": 3}), headers=[SSE]) == (2, 3)
    assert measure(formula(QuantitySource(sse="/a")), b'{"a": 1}') is None
    assert measure(formula(QuantitySource(json="/a")), event({"a": 1}), headers=[SSE]) is None


@pytest.mark.parametrize(
    ("size", "quantities"), [(LIMITS.metered_body_bytes_max, (7,)), (LIMITS.metered_body_bytes_max + 1, None)]
)
def test_a_body_that_is_too_large_to_copy_reports_nothing(size: int, quantities: Quantities | None) -> None:
    body = SEVEN.ljust(size)
    assert measure(TOTAL, body[:100], body[100:], limits=LIMITS) == quantities
    reader = UsageReader([TOTAL], method="GET", status=200, headers=[JSON], limits=LIMITS)
    reader.add(body)
    assert reader.is_copying is (quantities is not None)


def test_counts_what_is_parsed_when_a_chunk_is_added() -> None:
    def count(metering: Metering, headers: Headers, *, is_last: bool) -> int:
        reader = UsageReader([metering], method="GET", status=200, headers=headers, limits=LIMITS)
        reader.add(b"data: 123")
        return reader.count_parsed(b"4567", is_last=is_last)

    assert [count(TOTAL, [JSON], is_last=is_last) for is_last in (False, True)] == [0, 13]
    assert [count(TOTAL, [SSE], is_last=is_last) for is_last in (False, True)] == [13, 13]
    assert [count(formula(BYTES, HEADER), [JSON], is_last=is_last) for is_last in (False, True)] == [0, 0]


# ---------------------------------------------------------------------- streams

TEN, TWELVE = event({"usage": {"total_tokens": 10}}), event({"usage": {"total_tokens": 12}})
LARGE = event({"usage": {"total_tokens": 11}, "text": "x" * 200})
LARGE_LINES = b"data: " + b"\ndata: ".join([b"x" * 50] * 5) + b"\n\n"


@pytest.mark.parametrize(
    ("stream", "quantities"),
    [
        (TEN + TWELVE, (12,)),
        (TWELVE + TEN, (10,)),
        (TEN + DONE, (10,)),
        (TEN + event({"usage": None}), (10,)),
        (TEN + event({"usage": {"total_tokens": None}}), (10,)),
        (TEN + event({"usage": {}}), (10,)),
        (TEN + event({"usage": {"total_tokens": 0}}), (0,)),
        (TEN + event({"usage": {"total_tokens": 1.5}}), None),
        (TEN + event('{"usage": {"total_tokens": 1, "total_tokens": 1}}'), None),
        (TEN + event({"usage": {"total_tokens": -1}}) + TWELVE, (12,)),
        (TEN + event('{"text": "\\ud83d", "usage": {"total_tokens": 12}}'), (12,)),
        (TEN + event("{usage: 1}"), (10,)),
        (TEN + event("{total_tokens: 1}"), None),
        (TEN + event('{"us\\u0061ge": {"tot\\u0061l_tokens": 12}}'), (12,)),
        (TEN + event({"text": '{"usage": {"total_tokens": 9}}'}), (10,)),
        (TEN.replace(b"\n", b"\r"), (10,)),
        (TEN.replace(b"\n", b"\r\n"), (10,)),
        (b"\xef\xbb\xbf" + TEN, (10,)),
        (b": a comment\n\n" + TEN + b":\n\n", (10,)),
        (b"id: 1\nevent: usage\nretry: 5\n" + TEN, (10,)),
        (b'data: {"usage":\ndata: {"total_tokens":\ndata: 10}}\n\n', (10,)),
        (b'data:{"usage": {"total_tokens": 10}}\n\n', (10,)),
        (b'data : {"usage": {"total_tokens": 10}}\n\n', None),
        (b'Data: {"usage": {"total_tokens": 10}}\n\n', None),
        (b'{"usage": {"total_tokens": 10}}\n\n', None),
        (b"data\n\n" + TEN, (10,)),
        (TEN[:-1], None),
        (TEN[:-2], None),
        (TEN + TWELVE[:-1], (10,)),
        (TEN + TWELVE[:-10], (10,)),
        (b"", None),
        (TEN + LARGE, None),
        (TEN + LARGE[:-1], None),
        (TEN + LARGE + TWELVE, (12,)),
        (TEN + LARGE_LINES, None),
        (TEN + LARGE_LINES + TWELVE, (12,)),
        (TEN + b": " + b"x" * 300 + b"\n" + TWELVE, (12,)),
        (b": " + b"x" * 300 + b"\r" + TEN + b": " + b"x" * 300, (10,)),
        (b"\xef\xbb\xbf" + b"data: " + b"x" * 300 + b"\n\n" + TEN, (10,)),
        (TEN + TWELVE[:-2] + b"\rid\n\n" + b":\n" * 9 + event("x"), (12,)),
        (TEN + b"\n\r\n\n\r\r" + b"data\n" * 3 + b"event: x\r\nid\n:\n\n", (10,)),
        (TEN + b"".join(b": " + b"x" * 100 + b"\n" for _ in range(9)) + TWELVE, (12,)),
    ],
)
def test_of_a_stream_the_last_event_that_has_the_pointer_counts(
    stream: bytes, quantities: Quantities | None
) -> None:
    assert measure(TOTAL, stream, headers=[SSE], limits=LIMITS) == quantities


def test_an_event_that_is_nested_too_deeply_makes_the_usage_absent() -> None:
    for depth in (500, 20_000):
        deep = '{"total_tokens":' * depth + "1" + "}" * depth
        assert measure(TOTAL, TEN, event(deep), headers=[SSE]) is None
    assert measure(TOTAL, TEN, event("[" * 20_000), headers=[SSE]) == (10,)


def test_each_pointer_of_a_stream_counts_by_itself() -> None:
    stream = event({"a": 1, "b": 2}) + event({"b": 3}) + event({"a": "x"})
    assert measure(formula(at("/b")), stream, headers=[SSE]) == (3,)
    assert measure(formula(at("/a"), at("/b")), stream, headers=[SSE]) is None


def test_a_stream_that_its_reader_leaves_has_reported_what_was_seen() -> None:
    assert measure(CHAT, CONTINUOUS[:-20], headers=[SSE], is_whole=False) == (19, 9)
    assert measure(formula(BYTES), b"abc", is_whole=False) == (3,)
    assert measure(TOTAL, SEVEN, is_whole=False) is None


# ---------------------------------------------------------------------- any split

OTHER_LINES = [b": c\r", b": " + b"x" * 300, b"id: 7\r\n", b"dat", b"event\n", b"\n\n\n\n"]

PIECES = st.sampled_from(
    [
        TEN,
        TWELVE,
        LARGE,
        LARGE_LINES,
        DONE,
        b"\r",
        b"\n",
        b"\r\n",
        b"\xef\xbb\xbf",
        b"data: {}",
        b"data",
        b":",
        b"x" * 199,
        *OTHER_LINES,
    ]
)


@given(st.lists(PIECES, max_size=8), st.sampled_from([b"\n", b"\r", b"\r\n"]), st.data())
def test_any_split_of_a_stream_gives_the_same_usage(
    pieces: list[bytes], line_end: bytes, data: st.DataObject
) -> None:
    stream = b"".join(pieces).replace(b"\n", line_end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    for is_whole in (True, False):
        whole = measure(TOTAL, stream, headers=[SSE], limits=LIMITS, is_whole=is_whole)
        assert measure(TOTAL, *chunks, headers=[SSE], limits=LIMITS, is_whole=is_whole) == whole
    every_byte = [stream[at : at + 1] for at in range(len(stream))]
    assert measure(TOTAL, *every_byte, headers=[SSE], limits=LIMITS) == measure(
        TOTAL, stream, headers=[SSE], limits=LIMITS
    )


@given(st.lists(st.integers(0, 10**18 - 1), min_size=1, max_size=5), st.text(max_size=40))
def test_a_whole_and_a_streamed_answer_report_the_same(counts: list[int], text: str) -> None:
    last = {"usage": {"total_tokens": counts[-1]}, "text": text}
    stream = b"".join(
        event({"usage": {"total_tokens": count}, "text": text}) for count in counts[:-1]
    ) + event(last)
    whole = measure(TOTAL, json.dumps(last, ensure_ascii=False).encode())
    assert measure(TOTAL, stream, headers=[SSE]) == whole == (counts[-1],)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["usage", "total_tokens", "x"]), inner)
        ),
    )
)
def test_any_json_gives_a_quantity_or_nothing(document: Any) -> None:
    found = measure(TOTAL, json.dumps(document).encode())
    usage = document.get("usage") if isinstance(document, dict) else None
    value = usage.get("total_tokens") if isinstance(usage, dict) else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18:
        value = int(value)
    assert found == ((value,) if type(value) is int and 0 <= value < 10**18 else None)


def test_an_event_reader_holds_no_more_than_one_event() -> None:
    reader = EventReader(event_bytes_max=256 * KIB)
    for _ in range(40):
        reader.add(b"data: " + b"x" * 64 * KIB)
        assert reader.held_bytes <= 257 * KIB
        reader.add(b"\n")


# ---------------------------------------------------------------------- names


def test_lists_the_headers_that_report_a_quantity() -> None:
    shown = formula(QuantitySource(header="X-Shown"), shows_header=True)
    assert list_usage_headers([formula(HEADER, BYTES), shown]) == {b"x-usage-units", b"x-shown"}
    assert list_usage_headers([formula(HEADER), shown], is_hidden_only=True) == {b"x-usage-units"}
    hidden = formula(QuantitySource(header="x-shown"))
    assert list_usage_headers([shown, hidden], is_hidden_only=True) == {b"x-shown"}


@pytest.mark.parametrize(
    ("source", "is_json"),
    [(HEADER, False), (BYTES, False), (QuantitySource(sse="/a"), False), (at("/a"), True)],
)
def test_a_copy_is_for_json_alone(source: QuantitySource, is_json: bool) -> None:
    assert reads_json([formula(source)]) is is_json
    for headers, copies in ([JSON], is_json), ([SSE], False):
        reader = UsageReader([formula(source)], method="GET", status=200, headers=headers, limits=LIMITS)
        assert reader.is_copying is copies
