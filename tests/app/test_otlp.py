"""Traces as spans of OpenTelemetry, with its exporter in memory; and a collector over HTTP."""

import http.server
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.kit.threaded_server import serve_in_thread
from tests.observability.test_call_trace import SAMPLED, Sink, make_sampler
from tollway.app.otlp import OtlpExporter, connect_collector
from tollway.observability.call_trace import FinishedTrace


def make_trace() -> FinishedTrace:
    sink = Sink()
    trace = make_sampler(sink).start("GET /api/v2/gateway/{apiId}", SAMPLED, is_trusted=False)
    assert trace is not None
    trace.root.set("tollway.rail", "credit")
    trace.begin("tollway.claim")
    trace.begin("GET upstream", kind="client", span_id=trace.upstream_span_id).is_error = True
    trace.finish()
    return sink.traces[0]


def test_a_trace_becomes_spans_with_their_parents_kinds_and_link() -> None:
    memory = InMemorySpanExporter()
    exporter = OtlpExporter(memory, instance_id="gw-1")
    trace = make_trace()
    assert exporter.export([trace])
    root, claim, upstream = memory.get_finished_spans()
    assert f"{root.context.trace_id:032x}" == trace.trace_id
    assert (root.kind, claim.kind, upstream.kind) == (SpanKind.SERVER, SpanKind.INTERNAL, SpanKind.CLIENT)
    assert root.parent is None
    for child in (claim, upstream):
        assert child.parent is not None
        assert child.parent.span_id == root.context.span_id
        assert child.start_time is not None
        assert child.end_time is not None
        assert child.start_time <= child.end_time
    assert dict(root.attributes or {}) == {"tollway.rail": "credit"}
    assert (claim.status.status_code, upstream.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert [link.context.is_remote for link in root.links] == [True]
    assert root.resource.attributes["service.instance.id"] == "gw-1"
    assert list(claim.links) == []


def test_spans_reach_a_collector_and_a_refusal_is_a_failure(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    for status, is_taken in ((200, True), (400, False)):
        with run_collector(status) as (url, bodies):
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
            exporter = connect_collector(instance_id="gw-1", timeout_s=5)
            assert exporter.export([make_trace()]) is is_taken
            exporter.close()
        assert b"tollway.claim" in bodies[0]


@contextmanager
def run_collector(status: int) -> Iterator[tuple[str, list[bytes]]]:
    """A collector that takes every request with `status`."""
    bodies: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            bodies.append(body)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serve_in_thread(server):
        yield f"http://127.0.0.1:{server.server_address[1]}", bodies
