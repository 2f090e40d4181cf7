"""Sends finished traces from a thread of its own: a bounded queue between calls and a collector that may hang, lie or be away.

`add` never waits: a full queue drops the trace and counts its spans. The thread is a daemon, so that an export that hangs does not keep the process
alive.
"""

import os
import platform
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from tollway.config.settings import Settings
from tollway.errors import SettingsInvalid
from tollway.observability.call_trace import FinishedTrace, TraceSampler
from tollway.observability.telemetry import Metrics

QUEUE_SPANS_MAX = 2_048
BATCH_SPANS_MAX = 512
FLUSH_S = 1.0
"""The longest time that a span waits for others before it is sent."""
CLOSE_WAIT_S = 2.0
EXPORT_TIMEOUT_S = 10.0
MISSING = "tracing: the packages for traces are not installed; run: pip install 'tollway[otel]'"

_log = structlog.get_logger(__name__)


def make_tracing(settings: Settings, metrics: Metrics) -> "tuple[SpanQueue | None, TraceSampler | None]":
    """Returns None twice where tracing is off: then nothing of OpenTelemetry is imported. Raises SettingsInvalid without the extra."""
    if settings.tracing == "off":
        return None, None
    try:
        from tollway.app.otlp import connect_collector  # noqa: PLC0415 - loads OpenTelemetry, which most gateways do not use
    except ModuleNotFoundError as exc:
        raise SettingsInvalid([MISSING]) from exc
    exporter = connect_collector(instance_id=f"{platform.node()}:{os.getpid()}", timeout_s=EXPORT_TIMEOUT_S)
    spans = SpanQueue(exporter, count_dropped=metrics.spans_dropped.inc)
    sampler = TraceSampler(
        spans,
        ratio=settings.trace_ratio,
        random=random.random,  # decides what is sampled; it is no secret
        entropy=os.urandom,
        now_ns=time.time_ns,
    )
    return spans, sampler


class TraceExporter(Protocol):
    """Sends traces to a collector. Runs in the thread of the queue."""

    @property
    def failure(self) -> str | None: ...

    def export(self, traces: Sequence[FinishedTrace]) -> bool:
        """False when the collector did not take them. May raise."""
        ...

    def close(self) -> None: ...


class SpanQueue:
    """Implements `SpanSink`. `count_dropped`: called with a number of spans, from any thread."""

    def __init__(self, exporter: TraceExporter, *, count_dropped: Callable[[int], None]) -> None:
        self._exporter = exporter
        self._count_dropped = count_dropped
        self._waiting: queue.SimpleQueue[FinishedTrace | None] = queue.SimpleQueue()
        self._spans = 0
        self._is_closed = False
        self._lock = threading.Lock()
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="span-export", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Sends what waits, for at most `CLOSE_WAIT_S`. What the collector has not taken by then is dropped and counted."""
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join(CLOSE_WAIT_S)
        with self._lock:
            left, self._spans, self._is_closed = self._spans, 0, True
        if left:
            self._count_dropped(left)
            if not self._is_failing:
                _log.warning("span_export_failed", error=f"{left} spans were left at the stop")

    def add(self, trace: FinishedTrace) -> None:
        count = len(trace.spans)
        with self._lock:
            is_refused = self._is_closed or self._spans + count > QUEUE_SPANS_MAX
            if not is_refused:
                self._spans += count
        if is_refused:
            self._count_dropped(count)
        else:
            self._waiting.put(trace)

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch, is_open = self._take_batch()
            if batch:
                self._export(batch)
        self._exporter.close()

    def _take_batch(self) -> tuple[list[FinishedTrace], bool]:
        """The traces that came within `FLUSH_S` of the first one, up to `BATCH_SPANS_MAX` spans; False at the end."""
        batch: list[FinishedTrace] = []
        spans, until_s = 0, None
        while spans < BATCH_SPANS_MAX:
            wait_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            try:
                trace = self._waiting.get(timeout=wait_s)
            except queue.Empty:
                break
            if trace is None:
                return batch, False
            until_s = until_s or time.monotonic() + FLUSH_S
            batch.append(trace)
            spans += len(trace.spans)
        return batch, True

    def _export(self, batch: list[FinishedTrace]) -> None:
        """Sends a batch once; what the collector does not take is dropped. The spans count as queued until then."""
        count = sum(len(trace.spans) for trace in batch)
        try:
            is_taken = self._exporter.export(batch)
            error = self._exporter.failure
        except Exception as exc:  # noqa: BLE001 - the root of this thread: a failure is one event, and the next batch goes on
            is_taken, error = False, repr(exc)[:300]
        with self._lock:
            if self._is_closed:
                return  # counted as dropped
            self._spans -= count
        if not is_taken:
            self._count_dropped(count)
        if is_taken is self._is_failing:  # the first failure, or the first success after it
            self._is_failing = not is_taken
            if self._is_failing:
                _log.warning("span_export_failed", error=error)
            else:
                _log.info("span_export_back")
