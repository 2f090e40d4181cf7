"""Converts finished traces into spans of OpenTelemetry and sends them by OTLP over HTTP. Needs `tollway[otel]`; only a gateway that traces imports it.

The address of the collector comes from the standard variables `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, by default
`http://localhost:4318/v1/traces`.
"""

from collections.abc import Iterator, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from tollway import __version__
from tollway.call_trace import FinishedTrace, Span, TraceContext

_KINDS = {"server": SpanKind.SERVER, "client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class OtlpExporter:
    """Implements `TraceExporter` over a span exporter of OpenTelemetry. `instance_id`: the name of this gateway process."""

    def __init__(self, exporter: SpanExporter, *, instance_id: str) -> None:
        self._exporter = exporter
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
    return OtlpExporter(OTLPSpanExporter(timeout=timeout_s), instance_id=instance_id)


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
