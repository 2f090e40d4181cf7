"""Builds the sampler and the export of traces from the settings. Off, nothing of OpenTelemetry is imported and no call has an object of a trace."""

import os
import random
import socket
import time

from tollway.app.span_queue import SpanQueue
from tollway.call_trace import TraceSampler
from tollway.config.settings import Settings
from tollway.errors import SettingsInvalid
from tollway.telemetry import Metrics

EXPORT_TIMEOUT_S = 10.0
MISSING = "tracing: the packages for traces are not installed; run: pip install 'tollway[otel]'"


def make_tracing(settings: Settings, metrics: Metrics) -> tuple[SpanQueue | None, TraceSampler | None]:
    """Both None where tracing is off. Raises SettingsInvalid without the extra."""
    if settings.tracing == "off":
        return None, None
    try:
        from tollway.app.otlp import connect_collector  # noqa: PLC0415 - loads OpenTelemetry, which most gateways do not use
    except ModuleNotFoundError as exc:
        raise SettingsInvalid([MISSING]) from exc
    exporter = connect_collector(
        instance_id=f"{socket.gethostname()}:{os.getpid()}", timeout_s=EXPORT_TIMEOUT_S
    )
    spans = SpanQueue(exporter, count_dropped=metrics.spans_dropped.inc)
    sampler = TraceSampler(
        spans,
        ratio=settings.trace_ratio,
        random=random.random,  # decides what is sampled; it is no secret
        entropy=os.urandom,
        now_ns=time.time_ns,
    )
    return spans, sampler
