"""Where the spans of a measured gateway go: nowhere, or through the work of the export thread without its network."""

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from tollway.app.otlp import OtlpExporter
from tollway.app.span_queue import BATCH_SPANS_MAX
from tollway.observability.call_trace import FinishedTrace


class DroppedSpans:
    """A `SpanSink` that keeps nothing. `spans`: how many it has taken."""

    def __init__(self) -> None:
        self.spans = 0

    def add(self, trace: FinishedTrace) -> None:
        self.spans += len(trace.spans)


class EncodedSpans(DroppedSpans):
    """A `SpanSink` that does what the export thread does, at once: a batch becomes spans of OpenTelemetry, and these the body of a request."""

    def __init__(self) -> None:
        super().__init__()
        self._exporter = OtlpExporter(_Encoder(), instance_id="bench")
        self._batch: list[FinishedTrace] = []
        self._batched = 0

    def add(self, trace: FinishedTrace) -> None:
        super().add(trace)
        self._batch.append(trace)
        self._batched += len(trace.spans)
        if self._batched >= BATCH_SPANS_MAX:
            self._exporter.export(self._batch)
            self._batch, self._batched = [], 0


class _Encoder(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializePartialToString()
        return SpanExportResult.SUCCESS
