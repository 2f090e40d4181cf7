"""Traces of gateway calls: the decision at the door, and what the spans of a call say. Only sampled calls come here."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import Message, Scope, Send

from tollway.errors import Problem, UpstreamBadResponse, UpstreamTimeout
from tollway.gateway.messages import Outcome, ProblemResponse, ProxyRequest, ProxyResponse, ResponseBody
from tollway.ledger.records import Delivery
from tollway.observability.call_trace import CallTrace, TraceSampler, find_current_trace, running_trace
from tollway.web.http.problems import status_of

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
    with running_trace(trace):
        yield


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


def trace_stream(rest: ResponseBody, send: Send) -> "TracedStream | None":
    """Observes a response body that streams; None for a call that is not sampled."""
    trace = find_current_trace()
    return None if trace is None else TracedStream(trace, rest, send)


class TracedStream:
    """The body of a sampled call (a `ResponseBody`) and the `send` of its server, between which the response streams. It observes when the first and the last
    chunk go to the server, and whether the upstream cut the body."""

    def __init__(self, trace: CallTrace, rest: ResponseBody, send: Send) -> None:
        self._trace = trace
        self._rest = rest
        self._send = send
        self._span = trace.begin("tollway.stream")
        self._is_cut = False

    @property
    def read_on_s(self) -> float:
        return self._rest.read_on_s

    async def read_chunk(self) -> bytes:
        try:
            return await self._rest.read_chunk()
        except (UpstreamBadResponse, UpstreamTimeout):
            self._is_cut = True
            raise

    async def end(self, delivery: Delivery, response_bytes: int, *, is_interrupted: bool) -> None:
        await self._rest.end(delivery, response_bytes, is_interrupted=is_interrupted)

    async def send(self, message: Message) -> None:
        if message.get("body"):
            passed_us = (self._trace.now_ns() - self._span.start_ns) // 1000
            self._span.attributes.setdefault("tollway.stream.first_chunk_us", passed_us)
            self._span.set("tollway.stream.last_chunk_us", passed_us)
        await self._send(message)

    def describe(self, sent_bytes: int, delivery: Delivery, *, is_client_gone: bool) -> None:
        """Writes the end of the stream, and which side ended it: the upstream by its last byte or by a cut, the client by leaving, the gateway in every other
        case, such as a client that reads nothing."""
        if delivery is Delivery.COMPLETE or (self._is_cut and not is_client_gone):
            ended_by = "upstream"
        else:
            ended_by = "client" if is_client_gone else "gateway"
        self._span.set("tollway.stream.bytes", sent_bytes)
        self._span.set("tollway.stream.delivery", delivery.value)
        self._span.set("tollway.stream.ended_by", ended_by)


def name_method(method: str) -> str:
    return method if method in METHODS else "_OTHER"
