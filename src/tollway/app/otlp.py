"""Converts finished traces into spans of OpenTelemetry and sends them by OTLP over HTTP. Needs `tollway[otel]`; only a gateway that traces imports it.

The address of the collector comes from the standard variables `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, by default
`http://localhost:4318/v1/traces`.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from tollway import __version__
from tollway.observability.call_trace import FinishedTrace, Span, TraceContext

_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


_REDIRECT_MIN, _ERROR_MIN = 300, 400
_LOGGERS = ("opentelemetry.exporter", "urllib3")


class CollectorSession(requests.Session):
    """The HTTP session to a collector, which may lie. A redirect is a failure and is not followed: it would carry the headers of the collector elsewhere. The
    body of a response is not read, since the status decides. `failure`: why the last request failed; None after a success."""

    def __init__(self) -> None:
        super().__init__()
        self.failure: str | None = None

    def request(self, method: str, url: str | bytes, *args: Any, **kwargs: Any) -> requests.Response:
        self.failure = None
        try:
            response = super().request(
                method, url, *args, **{**kwargs, "allow_redirects": False, "stream": True}
            )
        except requests.RequestException as exc:
            # Not its text, which may hold the address of the collector, and that a password.
            self.failure = type(exc).__name__
            raise
        response.close()  # unread: the time limit is for one read, so a slow body would hold the next batch
        if response.status_code >= _REDIRECT_MIN:
            self.failure = f"HTTP status {response.status_code}"
        if _REDIRECT_MIN <= response.status_code < _ERROR_MIN:  # the exporter takes it for a success
            raise requests.TooManyRedirects(self.failure)
        return response


class OtlpExporter:
    """Implements `TraceExporter`. `instance_id`: the name of this gateway process. `session`: of an exporter that has one."""

    def __init__(
        self, exporter: SpanExporter, *, instance_id: str, session: CollectorSession | None = None
    ) -> None:
        self._exporter = exporter
        self._session = session
        self._resource = Resource(
            {
                "service.name": "tollway",
                "service.version": __version__,
                "service.instance.id": instance_id,
            }
        )
        self._scope = InstrumentationScope("tollway", __version__)

    def export(self, traces: Sequence[FinishedTrace]) -> bool:
        spans = [span for trace in traces for span in self._convert(trace)]
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    @property
    def failure(self) -> str | None:
        return None if self._session is None else self._session.failure

    def close(self) -> None:
        self._exporter.shutdown()

    def _convert(self, trace: FinishedTrace) -> Iterator[ReadableSpan]:
        for span in trace.spans:
            yield ReadableSpan(
                name=span.name,
                context=_make_context(trace.trace_id, span.span_id),
                parent=None if span.parent_id is None else _make_context(trace.trace_id, span.parent_id),
                resource=self._resource,
                attributes=span.attributes,
                links=_make_links(trace.link) if span is trace.spans[0] else (),
                kind=_KINDS[span.kind],
                instrumentation_scope=self._scope,
                status=Status(StatusCode.ERROR) if span.is_error else Status(StatusCode.UNSET),
                start_time=span.start_ns,
                end_time=_end_of(span, trace),
            )


def connect_collector(*, instance_id: str, timeout_s: float) -> OtlpExporter:
    """An exporter to the collector of the environment. It connects with the first export."""
    for name in _LOGGERS:  # `SpanQueue` logs one line for an outage; these would log one for each batch
        logging.getLogger(name).setLevel(logging.CRITICAL)
    session = CollectorSession()
    exporter = OTLPSpanExporter(timeout=timeout_s, session=session)
    return OtlpExporter(exporter, instance_id=instance_id, session=session)


def _end_of(span: Span, trace: FinishedTrace) -> int | None:
    """A span that runs beyond the call ends with it."""
    return trace.spans[0].end_ns if span.end_ns is None else span.end_ns


def _make_context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=_SAMPLED)


def _make_links(context: TraceContext | None) -> Sequence[Link]:
    if context is None:
        return ()
    flags = _SAMPLED if context.is_sampled else TraceFlags(TraceFlags.DEFAULT)
    remote = SpanContext(
        int(context.trace_id, 16), int(context.span_id, 16), is_remote=True, trace_flags=flags
    )
    return (Link(remote),)
