"""Traces of gateway calls: the decision at the door, and what the spans of a call say. Only sampled calls come here."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from starlette.types import Scope

from tollway.call_trace import CallTrace, Span, TraceSampler, find_current_trace, running_trace
from tollway.errors import Problem
from tollway.gateway.messages import Outcome, ProblemResponse, ProxyRequest, ProxyResponse
from tollway.ledger.records import Delivery
from tollway.web.problems import status_of

StartTrace = Callable[[Scope], CallTrace | None]

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods that a trace names; any other is `_OTHER`."""
SERVER_ERROR_MIN = 500
ID_LENGTH_MAX = 64


def make_start_trace(sampler: TraceSampler, is_trusted: Callable[[Scope], bool]) -> StartTrace:
    """`is_trusted`: whether the connection comes from a trusted proxy, whose context is continued."""

    def start_trace(scope: Scope) -> CallTrace | None:
        traceparent = next((value for key, value in scope["headers"] if key == b"traceparent"), None)
        name = f"{name_method(scope['method'])} /api/v2/gateway/{{apiId}}"
        return sampler.start(name, traceparent, is_trusted=is_trusted(scope))

    return start_trace


@contextmanager
def traced_call(trace: CallTrace) -> Iterator[None]:
    """Runs a sampled call: every log line of it has the ids of its trace, and its spans are handed over at its end."""
    trace.begin("tollway.proof")
    ids = structlog.contextvars.bound_contextvars(trace_id=trace.trace_id, span_id=trace.root.span_id)
    with running_trace(trace), ids:
        try:
            yield
        finally:
            trace.finish()


def describe_outcome(trace: CallTrace, method: str, call: ProxyRequest | Problem, outcome: Outcome) -> None:
    """Writes method, status, listing and the state of the payment on the root span."""
    root = trace.root
    root.set("http.request.method", name_method(method))
    if isinstance(call, ProxyRequest) and len(call.listing_id) <= ID_LENGTH_MAX:
        root.set("tollway.listing.id", call.listing_id)
    if isinstance(outcome, ProxyResponse):
        root.set("http.response.status_code", outcome.status)
        root.set("tollway.payment.state", outcome.payment_state)
    elif isinstance(outcome, ProblemResponse):
        status = status_of(outcome.problem.code)
        root.set("http.response.status_code", status)
        root.set("error.type", outcome.problem.code.value)
        root.set("tollway.payment.state", outcome.problem.payment_state)
        root.is_error = status >= SERVER_ERROR_MIN
    else:
        root.set("tollway.payment.state", outcome.payment_state)


def begin_stream() -> Span | None:
    """The span of a response body that streams; None for a call that is not sampled."""
    trace = find_current_trace()
    return None if trace is None else trace.begin("tollway.stream")


def describe_stream(span: Span, sent_bytes: int, delivery: Delivery) -> None:
    span.set("tollway.stream.bytes", sent_bytes)
    span.set("tollway.stream.delivery", delivery.value)


def name_method(method: str) -> str:
    return method if method in METHODS else "_OTHER"
