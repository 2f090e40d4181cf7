"""A collector that hangs, lies, fails or is away holds up no call: traces are dropped and counted."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from structlog.testing import capture_logs

from tests.kit.waits import DEADLINE_S
from tollway.app.span_queue import QUEUE_SPANS_MAX, SpanQueue
from tollway.observability.call_trace import FinishedTrace, Span


def make_trace(number: int, *, spans: int = 1) -> FinishedTrace:
    made = tuple(
        Span(name=f"call {number}", span_id=f"{at:016x}", parent_id=None, start_ns=1, end_ns=2)
        for at in range(1, spans + 1)
    )
    return FinishedTrace(trace_id=f"{number:032x}", spans=made, link=None)


class Collector:
    """Takes traces, after `gate` opens. `outcome`: what each export ends with."""

    def __init__(self, outcome: bool | Exception = True) -> None:
        self.outcome = outcome
        self.gate = threading.Event()
        self.is_asked = threading.Event()
        self.taken: list[str] = []
        self.is_closed = threading.Event()

    def export(self, traces: Sequence[FinishedTrace]) -> bool:
        self.is_asked.set()
        assert self.gate.wait(DEADLINE_S)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        self.taken += [trace.trace_id for trace in traces]
        return self.outcome

    failure = "HTTP status 503"

    def close(self) -> None:
        self.is_closed.set()


class Dropped:
    def __init__(self) -> None:
        self.spans = 0

    def __call__(self, count: int) -> None:
        self.spans += count


@contextmanager
def opened(collector: Collector, dropped: Dropped) -> Iterator[SpanQueue]:
    spans = SpanQueue(collector, count_dropped=dropped)
    spans.open()
    try:
        yield spans
    finally:
        collector.gate.set()
        spans.close()


def test_traces_arrive_in_order_and_the_rest_is_sent_at_the_end() -> None:
    collector, dropped = Collector(), Dropped()
    collector.gate.set()
    with opened(collector, dropped) as spans:
        for number in range(5):
            spans.add(make_trace(number))
    assert collector.taken == [f"{number:032x}" for number in range(5)]
    assert collector.is_closed.is_set()
    assert dropped.spans == 0


def test_a_collector_that_hangs_delays_no_call_and_further_spans_are_dropped() -> None:
    collector, dropped = Collector(), Dropped()
    with opened(collector, dropped) as spans:
        spans.add(make_trace(0, spans=QUEUE_SPANS_MAX - 10))
        assert collector.is_asked.wait(DEADLINE_S)
        # The export stands still and holds its spans; each `add` returns all the same.
        for number in range(1, 31):
            spans.add(make_trace(number))
        assert dropped.spans == 20
        assert collector.taken == []
    assert len(collector.taken) == 11


@pytest.mark.parametrize("outcome", [False, ConnectionRefusedError("away"), RuntimeError("nonsense")])
def test_a_collector_that_is_away_or_lies_costs_the_spans_and_one_log_line(
    outcome: bool | Exception,
) -> None:
    collector, dropped = Collector(outcome), Dropped()
    collector.gate.set()
    with capture_logs() as logs, opened(collector, dropped) as spans:
        spans.add(make_trace(0, spans=QUEUE_SPANS_MAX))
        spans.close()
    assert dropped.spans == QUEUE_SPANS_MAX
    assert [line["event"] for line in logs] == ["span_export_failed"]


def test_spans_are_sent_again_when_the_collector_is_back() -> None:
    collector, dropped = Collector(False), Dropped()
    collector.gate.set()
    failing = SpanQueue(collector, count_dropped=dropped)
    with capture_logs() as logs:
        for outcome in (False, False, True, True):
            collector.outcome = outcome
            failing._export([make_trace(1)])
    assert [line["event"] for line in logs] == ["span_export_failed", "span_export_back"]
    assert dropped.spans == 2


def test_a_stop_leaves_a_collector_that_hangs_behind_and_counts_its_spans() -> None:
    collector, dropped = Collector(), Dropped()
    spans = SpanQueue(collector, count_dropped=dropped)
    spans.open()
    spans.add(make_trace(0, spans=3))
    assert collector.is_asked.wait(DEADLINE_S)
    spans.add(make_trace(1, spans=4))
    with capture_logs() as logs:
        spans.close()  # returns although the collector holds its request
    assert (collector.taken, dropped.spans) == ([], 7)
    assert [line["event"] for line in logs] == ["span_export_failed"]
    spans.add(make_trace(2, spans=5))  # of a call that outlives the queue
    collector.gate.set()
    assert collector.is_closed.wait(DEADLINE_S)
    assert dropped.spans == 12
