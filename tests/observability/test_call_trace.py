"""The sampler at the door, the context of W3C Trace Context, and the spans of a call as a table."""

from collections.abc import Iterator
from hashlib import sha256
from itertools import count
from typing import Any

import pytest

from tests.kit.narrowing import existing
from tollway.ids import CallId, format_id
from tollway.observability.call_trace import (
    ATTRIBUTES,
    SPANS_MAX,
    CallTrace,
    FinishedTrace,
    SpanSink,
    TraceContext,
    TraceSampler,
    find_current_trace,
    parse_traceparent,
    replace_traceparent,
    running_trace,
)

THEIRS = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{THEIRS}-{SPAN}-01".encode(), f"00-{THEIRS}-{SPAN}-00".encode()


class Sink:
    def __init__(self) -> None:
        self.traces: list[FinishedTrace] = []

    def add(self, trace: FinishedTrace) -> None:
        self.traces.append(trace)


class Clock:
    """Each reading is one nanosecond after the one before."""

    def __init__(self) -> None:
        self._readings = count(1)

    def __call__(self) -> int:
        return next(self._readings)


def make_sampler(sink: SpanSink, *, ratio: float = 1.0, drawn: float = 0.0) -> TraceSampler:
    numbers: Iterator[int] = count(1)
    return TraceSampler(
        sink,
        ratio=ratio,
        random=lambda: drawn,
        entropy=lambda size: next(numbers).to_bytes(size, "big"),
        now_ns=Clock(),
    )


def start(sink: Sink) -> CallTrace:
    return existing(make_sampler(sink).start("GET /x", None, is_trusted=False))


@pytest.mark.parametrize(
    ("value", "is_sampled"),
    [
        (SAMPLED, True),
        (UNSAMPLED, False),
        (f"00-{THEIRS}-{SPAN}-03".encode(), True),
        (f"01-{THEIRS}-{SPAN}-01-later".encode(), True),
        (f"00-{THEIRS}-{SPAN}-01-later".encode(), None),
        (f"ff-{THEIRS}-{SPAN}-01".encode(), None),
        (f"00-{'0' * 32}-{SPAN}-01".encode(), None),
        (f"00-{THEIRS}-{'0' * 16}-01".encode(), None),
        (f"00-{THEIRS.upper()}-{SPAN}-01".encode(), None),
        (b"", None),
        (SAMPLED + b"\n", None),
        (b"00-" + b"\xff" * 32, None),
    ],
)
def test_reads_a_context_or_ignores_it(value: bytes, is_sampled: bool | None) -> None:
    context = parse_traceparent(value)
    expected = is_sampled is not None and TraceContext(trace_id=THEIRS, span_id=SPAN, is_sampled=is_sampled)
    assert (context or False) == expected


@pytest.mark.parametrize(
    ("ratio", "drawn", "traceparent", "is_trusted", "is_traced", "is_continued", "is_linked"),
    [
        (0.01, 0.009, None, False, True, False, False),
        (0.01, 0.01, None, False, False, False, False),
        (0.0, 0.0, None, False, False, False, False),
        (1.0, 0.999, None, False, True, False, False),
        # A stranger switches nothing on, and is a link where its call is sampled here.
        (0.01, 0.5, SAMPLED, False, False, False, False),
        (0.01, 0.0, SAMPLED, False, True, False, True),
        (0.01, 0.0, UNSAMPLED, False, True, False, True),
        # A trusted proxy continues its trace.
        (0.0, 0.5, SAMPLED, True, True, True, False),
        (0.01, 0.5, UNSAMPLED, True, False, False, False),
        (0.01, 0.0, UNSAMPLED, True, True, True, False),
        (0.01, 0.0, b"broken", True, True, False, False),
    ],
)
def test_decides_at_the_door(
    ratio: float,
    drawn: float,
    traceparent: bytes | None,
    is_trusted: bool,
    is_traced: bool,
    is_continued: bool,
    is_linked: bool,
) -> None:
    sink = Sink()
    sampler = make_sampler(sink, ratio=ratio, drawn=drawn)
    trace = sampler.start("GET /x", traceparent, is_trusted=is_trusted)
    assert (trace is not None) is is_traced
    if trace is None:
        return
    trace.finish()
    (finished,) = sink.traces
    assert (finished.trace_id == THEIRS) is is_continued
    assert (finished.spans[0].parent_id == SPAN) is is_continued
    assert (finished.link is not None) is is_linked


def test_steps_are_children_of_the_call_and_follow_without_a_gap() -> None:
    sink = Sink()
    trace = start(sink)
    trace.begin("tollway.proof")
    trace.begin("tollway.proof")  # goes on
    trace.add_request("chain eip155:1", start_ns=2, attributes={"tollway.node": 1}, is_error=False)
    trace.begin("tollway.settle")
    trace.add_request("chain eip155:1", start_ns=5, attributes={"tollway.node": 2}, is_error=True)
    trace.begin("GET upstream", kind="client", span_id=trace.upstream_span_id)
    trace.finish()
    trace.finish()  # once
    (finished,) = sink.traces
    root, proof, first, settle, second, upstream = finished.spans
    names = {span.span_id: span.name for span in finished.spans}
    assert [(span.name, span.kind, names.get(span.parent_id or "")) for span in finished.spans] == [
        ("GET /x", "server", None),
        ("tollway.proof", "internal", "GET /x"),
        ("chain eip155:1", "client", "GET /x"),
        ("tollway.settle", "internal", "GET /x"),
        ("chain eip155:1", "client", "tollway.settle"),
        ("GET upstream", "client", "GET /x"),
    ]
    assert proof.end_ns == settle.start_ns
    assert settle.end_ns == upstream.start_ns
    assert upstream.end_ns is not None
    assert root.end_ns is not None
    assert root.end_ns >= upstream.end_ns
    assert (first.is_error, second.is_error) == (False, True)
    assert upstream.span_id == trace.upstream_span_id
    assert len(names) == len(finished.spans)


def test_a_call_has_a_bounded_number_of_spans() -> None:
    sink = Sink()
    trace = start(sink)
    for _ in range(2 * SPANS_MAX):
        trace.add_request("chain eip155:1", start_ns=1, attributes={}, is_error=False)
    trace.finish()
    assert len(sink.traces[0].spans) == SPANS_MAX


def test_only_listed_attributes_are_recorded() -> None:
    trace = start(Sink())
    for name in ATTRIBUTES:
        trace.root.set(name, 1)
    with pytest.raises(AssertionError):
        trace.root.set("wallet", "0x")
    trace.root.set("tollway.rail", None)  # absent stays absent
    assert set(trace.root.attributes) == ATTRIBUTES


def test_the_upstream_gets_our_context_in_place_of_the_callers() -> None:
    trace = start(Sink())
    headers = [(b"traceparent", SAMPLED), (b"tracestate", b"a=b"), (b"accept", b"*/*")]
    ours = f"00-{trace.trace_id}-{trace.upstream_span_id}-01".encode()
    assert replace_traceparent(headers, trace) == [(b"accept", b"*/*"), (b"traceparent", ours)]


def test_the_current_trace_is_that_of_the_context() -> None:
    trace = start(Sink())
    assert find_current_trace() is None
    with running_trace(trace):
        assert find_current_trace() is trace
    assert find_current_trace() is None


def test_without_a_ratio_no_object_is_made_for_a_call() -> None:
    made: list[Any] = []
    sampler = TraceSampler(
        Sink(),
        ratio=0.0,
        random=lambda: 0.0,
        entropy=lambda size: made.append(size) or b"\1" * size,
        now_ns=Clock(),
    )
    assert sampler.start("GET /x", None, is_trusted=False) is None
    assert made == []


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.5, 1.0])
def test_the_id_of_a_sampled_call_is_in_the_sampled_part_and_others_are_sampled_at_the_ratio(
    ratio: float,
) -> None:
    entropies = [sha256(b"%d" % number).digest()[:10] for number in range(2_000)]
    sink = Sink()
    sampler = make_sampler(sink, ratio=ratio)
    trace = existing(sampler.start("GET /x", SAMPLED, is_trusted=True))
    plain = [make_call_id(entropy) for entropy in entropies]
    marked = [make_call_id(trace.mark_entropy(entropy)) for entropy in entropies]
    assert all(sampler.covers(call_id) for call_id in marked)
    assert len(set(marked)) == len(marked)
    share = sum(sampler.covers(call_id) for call_id in plain) / len(plain)
    assert abs(share - ratio) < 0.05


def make_call_id(entropy: bytes) -> CallId:
    return CallId(format_id("call", now_ms=1_800_000_000_000, entropy=entropy))


def test_background_work_is_sent_only_where_it_moved_a_sampled_call() -> None:
    sink = Sink()
    sampler = make_sampler(sink, ratio=0.5)
    sampled, other = make_call_id(b"\x00" * 10), make_call_id(b"\xff" * 10)
    for call_ids in ((), (other,), (other, sampled)):
        trace = sampler.start_linked("tollway.recovery")
        for call_id in call_ids:
            trace.add_call(call_id, "released", error="gateway_died")
        trace.finish()
    (finished,) = sink.traces
    root, call = finished.spans
    assert (root.kind, root.parent_id, finished.link) == ("internal", None, None)
    assert (call.name, call.parent_id) == ("tollway.call", root.span_id)
    assert call.attributes == {
        "tollway.call.id": sampled,
        "tollway.outcome": "released",
        "error.type": "gateway_died",
    }
