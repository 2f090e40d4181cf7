"""Traces of calls: the port `CallTrace`, the sampler that decides at the door, and the context of W3C Trace Context.

No library for traces is on the way of a call. A call that is not sampled has no object: its trace is None. A sampled call records its spans in
plain lists, and hands them over at its end in one step that never waits (`SpanSink`).

Recovery and the reorg watcher move calls after their requests have ended. Such work has a trace of its own, tied to the call by `tollway.call.id`. Whether it
is sampled follows from the call id alone, so nothing has to be stored: the id of a sampled call is drawn from the sampled part of all ids.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, Protocol

import structlog

from tollway.ids import ID_ENTROPY_BITS, CallId, read_id_entropy

SpanKind = Literal["server", "client", "internal"]
SpanValue = str | int | bool

TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8
_MARK_BYTES = 4
_MARK_REST_BITS = 8 * _MARK_BYTES - ID_ENTROPY_BITS
SPANS_MAX = 64
"""The spans of one call; further ones are not recorded. A settlement that waits long asks its chain many times."""

ATTRIBUTES = frozenset(
    {
        "error.type",
        "http.request.method",
        "http.response.status_code",
        "server.address",
        "tollway.call.id",
        "tollway.commit.entries",
        "tollway.commit.wait_us",
        "tollway.commit.write_us",
        "tollway.dial.addresses",
        "tollway.dial.reused",
        "tollway.listing.id",
        "tollway.methods",
        "tollway.network",
        "tollway.node",
        "tollway.outcome",
        "tollway.payment.state",
        "tollway.proof.kind",
        "tollway.rail",
        "tollway.settle.attempts",
        "tollway.settle.fee_bumps",
        "tollway.stream.bytes",
        "tollway.stream.delivery",
        "tollway.stream.ended_by",
        "tollway.stream.first_chunk_us",
        "tollway.stream.last_chunk_us",
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

    def count(self, name: str, added: int = 1) -> None:
        """Adds to an attribute that is a number; an absent one counts as 0."""
        before = self.attributes.get(name, 0)
        assert isinstance(before, int), name
        self.set(name, before + added)


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
    """The trace of one sampled call. Its current step is a child of the root; a step that begins ends the one before. Used in one event loop.

    A trace of background work (`TraceSampler.start_linked`) is handed over only after `keep`: a check that changed no call leaves none."""

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
        kind: SpanKind = "server",
        sampled_max: int = 1 << ID_ENTROPY_BITS,
    ) -> None:
        """`sampled_max`: the entropy of call ids is sampled below it (`TraceSampler`)."""
        self.trace_id = trace_id
        self.upstream_span_id = new_span_id()
        self._sink = sink
        self._link = link
        self._now_ns = now_ns
        self._new_span_id = new_span_id
        self.root = Span(name=name, span_id=new_span_id(), parent_id=parent_id, kind=kind, start_ns=now_ns())
        self._spans = [self.root]
        self._step: Span | None = None
        self._is_finished = False
        self._is_kept = kind == "server"
        self._sampled_max = sampled_max

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
        self._add(self._step)
        return self._step

    @property
    def ids(self) -> dict[str, str]:
        """The fields of every log line of the call."""
        return {"trace_id": self.trace_id, "span_id": self.root.span_id}

    @property
    def is_kept(self) -> bool:
        return self._is_kept

    @property
    def step(self) -> Span | None:
        return self._step

    def set(self, name: str, value: SpanValue | None) -> None:
        """Writes an attribute on the current step. Without effect between two steps."""
        if self._step is not None:
            self._step.set(name, value)

    def keep(self, outcome: str) -> None:
        """Writes what the background work did, and lets `finish` hand the trace over."""
        self.root.set("tollway.outcome", outcome)
        self._mark_kept()

    def now_ns(self) -> int:
        """The unix time on the clock of the spans."""
        return self._now_ns()

    def mark_entropy(self, entropy: bytes) -> bytes:
        """Moves the entropy of a new call id into the sampled part, so that background work on this call is sampled at every gateway. Costs as many
        bits of it as the ratio has."""
        drawn = int.from_bytes(entropy[:_MARK_BYTES], "big")
        value = (drawn >> _MARK_REST_BITS) * self._sampled_max >> ID_ENTROPY_BITS
        marked = value << _MARK_REST_BITS | drawn & (1 << _MARK_REST_BITS) - 1
        return marked.to_bytes(_MARK_BYTES, "big") + entropy[_MARK_BYTES:]

    def end(self) -> None:
        if self._step is not None:
            self._step.end_ns = self._now_ns()
            self._step = None

    def add_request(
        self,
        name: str,
        *,
        start_ns: int,
        attributes: dict[str, SpanValue],
        is_error: bool,
        kind: SpanKind = "client",
    ) -> None:
        """Adds a request to another server, or a wait for one, that ends now: a child of the settlement while it runs, else of the root."""
        step = self._step
        parent = step if step is not None and step.name == "tollway.settle" else self.root
        span = Span(
            name=name,
            span_id=self._new_span_id(),
            parent_id=parent.span_id,
            kind=kind,
            start_ns=start_ns,
            end_ns=self._now_ns(),
            is_error=is_error,
        )
        for key, value in attributes.items():
            span.set(key, value)
        self._add(span)

    def add_call(self, call_id: CallId, outcome: str, *, error: str | None = None) -> None:
        """Adds a call that the background work moved, as a child of the root, and keeps the trace. Without effect for a call that is not sampled."""
        if read_id_entropy(call_id) >= self._sampled_max:
            return
        now_ns = self._now_ns()
        span = Span(
            name="tollway.call",
            span_id=self._new_span_id(),
            parent_id=self.root.span_id,
            start_ns=now_ns,
            end_ns=now_ns,
        )
        span.set("tollway.call.id", call_id)
        span.set("tollway.outcome", outcome)
        span.set("error.type", error)
        self._add(span)
        self._mark_kept()

    def finish(self) -> None:
        """Ends all spans and hands the trace over. Without effect after the first time; what is added later is not sent."""
        if self._is_finished:
            return
        self._is_finished = True
        if not self._is_kept:
            return
        self.end()
        self.root.end_ns = self._now_ns()
        self._sink.add(FinishedTrace(trace_id=self.trace_id, spans=tuple(self._spans), link=self._link))

    def _mark_kept(self) -> None:
        """From here on the log lines of the work have the ids of its trace: before, they could name one that does not exist."""
        self._is_kept = True
        if _current.get() is self:
            structlog.contextvars.bind_contextvars(**self.ids)

    def _add(self, span: Span) -> None:
        if len(self._spans) < SPANS_MAX and not self._is_finished:
            self._spans.append(span)


class TraceSampler:
    """Decides at the door which calls are traced. For one event loop.

    The share of calls that are traced is `ratio`. A call from a trusted proxy with a sampled `traceparent` is traced too, in the trace of that proxy.
    A stranger's context decides nothing: it is a link of a call that is sampled here, so no caller can switch traces on.

    Background work is sampled by the ids of its calls: an id is sampled where its entropy, as a fraction, is below the ratio. That holds for every id
    that a sampled call gets, and for the same share of the others. Gateways of one database agree while their ratios do.
    """

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
        # At least one value, so that a call of a trusted proxy is sampled where the ratio is 0.
        self._sampled_max = max(1, int(ratio * (1 << ID_ENTROPY_BITS)))

    def covers(self, call_id: CallId) -> bool:
        """Whether background work on that call is traced."""
        return read_id_entropy(call_id) < self._sampled_max

    def start_linked(self, name: str) -> CallTrace:
        """A trace of background work. The work adds the sampled calls that it moves, or calls `keep`; else the trace is not handed over."""
        return self._make(name, kind="internal", parent=None, link=None)

    def start(self, name: str, traceparent: bytes | None, *, is_trusted: bool) -> CallTrace | None:
        """The trace of a call that begins now, or None. `is_trusted`: whether the peer is a trusted proxy."""
        context = None if traceparent is None else parse_traceparent(traceparent)
        is_continued = is_trusted and context is not None and context.is_sampled
        if not is_continued and self._random() >= self._ratio:
            return None
        parent = context if is_trusted else None
        return self._make(name, kind="server", parent=parent, link=None if is_trusted else context)

    def _make(
        self, name: str, *, kind: SpanKind, parent: TraceContext | None, link: TraceContext | None
    ) -> CallTrace:
        return CallTrace(
            self._sink,
            name=name,
            kind=kind,
            trace_id=self._new_id(TRACE_ID_BYTES) if parent is None else parent.trace_id,
            parent_id=None if parent is None else parent.span_id,
            link=link,
            now_ns=self._now_ns,
            new_span_id=lambda: self._new_id(SPAN_ID_BYTES),
            sampled_max=self._sampled_max,
        )

    def _new_id(self, size: int) -> str:
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
    """Returns None outside of a sampled call."""
    return _current.get()


@contextmanager
def running_trace(trace: CallTrace) -> Iterator[None]:
    """Makes the trace the current one of this context: every log line has its ids, those of background work from `keep` on. Hands the trace over at the end."""
    token = _current.set(trace)
    try:
        with structlog.contextvars.bound_contextvars(**(trace.ids if trace.is_kept else {})):
            yield
    finally:
        structlog.contextvars.unbind_contextvars(*trace.ids)
        _current.reset(token)
        trace.finish()
