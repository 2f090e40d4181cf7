"""Traces of calls: the port `CallTrace`, the sampler that decides at the door, and the context of W3C Trace Context.

No library for traces is on the way of a call. A call that is not sampled has no object: its trace is None. A sampled call records its spans in
plain lists, and hands them over at its end in one step that never waits (`SpanSink`).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, Protocol

SpanKind = Literal["server", "client", "internal"]
SpanValue = str | int | bool

TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8
SPANS_MAX = 64
"""The spans of one call; further ones are not recorded. A settlement that waits long asks its chain many times."""

ATTRIBUTES = frozenset(
    {
        "error.type",
        "http.request.method",
        "http.response.status_code",
        "server.address",
        "tollway.call.id",
        "tollway.listing.id",
        "tollway.network",
        "tollway.node",
        "tollway.outcome",
        "tollway.payment.state",
        "tollway.rail",
        "tollway.stream.bytes",
        "tollway.stream.delivery",
    }
)
"""The only attributes. No wallet, path below the listing, query, header or body is one; the host of an endpoint is."""

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """A position in a trace (W3C Trace Context)."""

    trace_id: str
    span_id: str
    is_sampled: bool


def parse_traceparent(value: bytes) -> TraceContext | None:
    """None for a malformed value, for version ff, and for ids of zeros. A later version may have more fields."""
    match = _TRACEPARENT.fullmatch(value)
    if match is None or match[1] == b"ff" or (match[1] == b"00" and match[5] is not None):
        return None
    trace_id, span_id = match[2].decode(), match[3].decode()
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(trace_id=trace_id, span_id=span_id, is_sampled=bool(int(match[4], 16) & 1))


def format_traceparent(trace_id: str, span_id: str) -> bytes:
    return f"00-{trace_id}-{span_id}-01".encode()


@dataclass(slots=True, kw_only=True)
class Span:
    """One span of a call. Times are Unix nanoseconds; `end_ns` None: it runs. `parent_id` None: the root of its trace here."""

    name: str
    span_id: str
    parent_id: str | None
    kind: SpanKind = "internal"
    start_ns: int
    end_ns: int | None = None
    attributes: dict[str, SpanValue] = field(default_factory=dict)
    is_error: bool = False

    def set(self, name: str, value: SpanValue | None) -> None:
        assert name in ATTRIBUTES, name
        if value is not None:
            self.attributes[name] = value


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTrace:
    """The spans of one call, its root first. `link`: the context of a caller that the gateway does not trust."""

    trace_id: str
    spans: tuple[Span, ...]
    link: TraceContext | None


class SpanSink(Protocol):
    """Takes finished traces. It never waits and never raises; what it cannot take it drops and counts."""

    def add(self, trace: FinishedTrace) -> None: ...


class CallTrace:
    """The trace of one sampled call. Its current step is a child of the root; a step that begins ends the one before. Used in one event loop."""

    def __init__(
        self,
        sink: SpanSink,
        *,
        name: str,
        trace_id: str,
        parent_id: str | None,
        link: TraceContext | None,
        now_ns: Callable[[], int],
        new_span_id: Callable[[], str],
    ) -> None:
        self.trace_id = trace_id
        self.upstream_span_id = new_span_id()
        self._sink = sink
        self._link = link
        self._now_ns = now_ns
        self._new_span_id = new_span_id
        self.root = Span(
            name=name, span_id=new_span_id(), parent_id=parent_id, kind="server", start_ns=now_ns()
        )
        self._spans = [self.root]
        self._step: Span | None = None
        self._is_finished = False

    def begin(self, name: str, *, kind: SpanKind = "internal", span_id: str | None = None) -> Span:
        """Begins the next step of the call, at the moment at which the step before ends. A step of the same name goes on."""
        step = self._step
        if step is not None and step.name == name:
            return step
        now_ns = self._now_ns()
        if step is not None:
            step.end_ns = now_ns
        self._step = Span(
            name=name,
            span_id=span_id or self._new_span_id(),
            parent_id=self.root.span_id,
            kind=kind,
            start_ns=now_ns,
        )
        self._keep(self._step)
        return self._step

    def now_s(self) -> float:
        """The unix time on the clock of the spans."""
        return self._now_ns() / 1e9

    def end(self) -> None:
        """Ends the current step."""
        if self._step is not None:
            self._step.end_ns = self._now_ns()
            self._step = None

    def add_request(
        self, name: str, *, start_ns: int, attributes: dict[str, SpanValue], is_error: bool
    ) -> None:
        """Adds a request to another server that ends now: a child of the settlement while it runs, else of the root."""
        step = self._step
        parent = step if step is not None and step.name == "tollway.settle" else self.root
        span = Span(
            name=name,
            span_id=self._new_span_id(),
            parent_id=parent.span_id,
            kind="client",
            start_ns=start_ns,
            end_ns=self._now_ns(),
            is_error=is_error,
        )
        for key, value in attributes.items():
            span.set(key, value)
        self._keep(span)

    def finish(self) -> None:
        """Ends all spans and hands the trace over. Without effect after the first time; what is added later is not sent."""
        if self._is_finished:
            return
        self._is_finished = True
        self.end()
        self.root.end_ns = self._now_ns()
        self._sink.add(FinishedTrace(trace_id=self.trace_id, spans=tuple(self._spans), link=self._link))

    def _keep(self, span: Span) -> None:
        if len(self._spans) < SPANS_MAX and not self._is_finished:
            self._spans.append(span)


class TraceSampler:
    """Decides at the door which calls are traced. Safe to use from many tasks of one event loop.

    The share of calls that no one asked for is `ratio`. A call from a trusted proxy with a sampled `traceparent` is traced too, in the trace of that
    proxy. A stranger's context decides nothing: it is a link of a call that is sampled here, so no caller can switch traces on."""

    def __init__(
        self,
        sink: SpanSink,
        *,
        ratio: float,
        random: Callable[[], float],
        entropy: Callable[[int], bytes],
        now_ns: Callable[[], int],
    ) -> None:
        """`random`: a number from 0 to 1 (1 excluded) for each call."""
        self._sink = sink
        self._ratio = ratio
        self._random = random
        self._entropy = entropy
        self._now_ns = now_ns

    def start(self, name: str, traceparent: bytes | None, *, is_trusted: bool) -> CallTrace | None:
        """The trace of a call that begins now, or None. `is_trusted`: whether the peer is a trusted proxy."""
        context = None if traceparent is None else parse_traceparent(traceparent)
        is_continued = is_trusted and context is not None and context.is_sampled
        if not is_continued and self._random() >= self._ratio:
            return None
        parent = context if is_trusted else None
        return CallTrace(
            self._sink,
            name=name,
            trace_id=self._new_id(TRACE_ID_BYTES) if parent is None else parent.trace_id,
            parent_id=None if parent is None else parent.span_id,
            link=None if is_trusted else context,
            now_ns=self._now_ns,
            new_span_id=lambda: self._new_id(SPAN_ID_BYTES),
        )

    def _new_id(self, size: int) -> str:
        """A random id that is not zero."""
        while not any(drawn := self._entropy(size)):
            pass
        return drawn.hex()


def replace_traceparent(
    headers: Sequence[tuple[bytes, bytes]], trace: CallTrace
) -> list[tuple[bytes, bytes]]:
    """The headers with the context of the request to the upstream in place of the caller's."""
    ours = format_traceparent(trace.trace_id, trace.upstream_span_id)
    others = [header for header in headers if header[0] not in (b"traceparent", b"tracestate")]
    return [*others, (b"traceparent", ours)]


_current: ContextVar[CallTrace | None] = ContextVar("tollway_call_trace", default=None)


def find_current_trace() -> CallTrace | None:
    """The trace of the sampled call in whose context this runs."""
    return _current.get()


@contextmanager
def running_trace(trace: CallTrace) -> Iterator[None]:
    """Makes the trace the current one of this context."""
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)
