"""Logs and metrics. A log line is structured and has the request's id; a metric has labels with few values. Secrets are masked in both. Import creates names only."""

import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal, TextIO

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from structlog.typing import Processor

REQUEST_SECONDS = "http_server_request_duration_seconds"
CALLS = "tollway_calls"
"""Exposed as `tollway_calls_total`."""
UPSTREAM_SECONDS = "tollway_upstream_duration_seconds"
CLAIMS_BATCH_SIZE = "tollway_claims_batch_size"
PAYMENTS = "tollway_payments"
RPC_REQUESTS = "tollway_rpc_requests"
CALLS_IN_FLIGHT = "tollway_calls_in_flight"
UPSTREAMS_DOWN = "tollway_upstreams_down"
LEASE_LAPSES = "tollway_lease_lapses"
DATABASE_SETBACKS = "tollway_database_setbacks"
SETTLEMENTS = "tollway_settlements"
SETTLEMENT_SECONDS = "tollway_settlement_duration_seconds"
GAS_KEY_BALANCE = "tollway_gas_key_balance_wei"
GAS_LANE_LENGTH = "tollway_gas_lane_length"
CALLS_ADRIFT = "tollway_calls_adrift"
RAILS_WITHDRAWN = "tollway_rails_withdrawn"
SHARED_RATES_UP = "tollway_shared_rates_up"
LEADING = "tollway_leading"
BACKGROUND_AGE = "tollway_background_task_age_seconds"
BACKGROUND_INTERVAL = "tollway_background_task_interval_seconds"
BACKGROUND_FAILURES = "tollway_background_task_failures"
BACKGROUND_ENDED = "tollway_background_tasks_ended"
PAYMENT_LOOK_AGE = "tollway_payment_look_age_seconds"

DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""OpenTelemetry's semantic conventions for `http.server.request.duration`."""
SETTLEMENT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 60, 120, 300)
"""From chains that mine at once to transactions that needed higher fees."""

MASK = "****"

_SECRET_NAME = re.compile(
    r"(?i)(^|_)(secret|secret_keys?|private_key|password|passwd|token|access_token|authorization|cookie|signature"
    r"|x_signature|api_key|upstream_auth|mnemonic|raw_transaction)$"
)
_URL_PASSWORD = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)")
_BEARER = re.compile(r"(?i)\b(bearer|payment)\s+[a-z0-9._~+/=-]{8,}")
_SIGNATURE = re.compile(r"0x[0-9a-fA-F]{130}\b")
_FORMAT_NOISE = ("granian", "_granian", "asyncio")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundTaskStatus:
    """The state of one background task when metrics are read. `age_s`: since its last successful run. `interval_s`: between two runs; None for a task that runs
    on demand. `failures`: in a row."""

    name: str
    is_running: bool
    has_ended: bool
    age_s: float
    interval_s: float | None
    failures: int


class _BackgroundCollector(Collector):
    """A collector that reads the tasks at scrape. A task that another gateway runs for all has no sample here."""

    def __init__(self, read: Callable[[], Iterable[BackgroundTaskStatus]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        age = GaugeMetricFamily(
            BACKGROUND_AGE, "Since a background task of this gateway last ran well.", labels=("task",)
        )
        interval = GaugeMetricFamily(
            BACKGROUND_INTERVAL, "Between two runs of a background task of this gateway.", labels=("task",)
        )
        failures = GaugeMetricFamily(
            BACKGROUND_FAILURES,
            "Failed runs in a row of a background task of this gateway.",
            labels=("task",),
        )
        ended = GaugeMetricFamily(
            BACKGROUND_ENDED, "Background tasks of this gateway that ended by themselves; it is not ready."
        )
        tasks = list(self._read())
        for task in tasks:
            if task.is_running:
                age.add_metric((task.name,), task.age_s)
                failures.add_metric((task.name,), task.failures)
                if task.interval_s is not None:
                    interval.add_metric((task.name,), task.interval_s)
        ended.add_metric((), sum(task.has_ended for task in tasks))
        yield from (age, interval, failures, ended)


class Metrics:
    """The metrics of one gateway, in a registry of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.request_seconds = Histogram(
            REQUEST_SECONDS,
            "How long requests of the control plane took.",
            ("http_request_method", "http_route", "http_response_status_code"),
            buckets=DURATION_BUCKETS_S,
            registry=registry,
        )
        self.calls = Counter(CALLS, "Gateway calls by outcome.", ("outcome",), registry=registry)
        self.upstream_seconds = Histogram(
            UPSTREAM_SECONDS,
            "From the first byte sent to a provider until its response head.",
            buckets=DURATION_BUCKETS_S,
            registry=registry,
        )
        self.claims_batch_size = Histogram(
            CLAIMS_BATCH_SIZE,
            "Claims in one durable commit.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096),
            registry=registry,
        )
        self.payments = Counter(
            PAYMENTS, "Payments presented for the first time.", ("network", "outcome"), registry=registry
        )
        self.rpc_requests = Counter(RPC_REQUESTS, "Requests to chain nodes.", registry=registry)
        self.calls_in_flight = Gauge(CALLS_IN_FLIGHT, "Requests that run now.", registry=registry)
        self.upstreams_down = Gauge(
            UPSTREAMS_DOWN,
            "Upstreams that the gateway does not call until a probe reaches them.",
            registry=registry,
        )
        self.lease_lapses = Counter(
            LEASE_LAPSES, "Times that this gateway did not renew its lease in time.", registry=registry
        )
        self.database_setbacks = Counter(
            DATABASE_SETBACKS,
            "Times that this gateway detected a restored database and held every balance.",
            registry=registry,
        )
        self.leading = Gauge(
            LEADING,
            "1 while this gateway leads: it does the work of this duty for all gateways.",
            ("duty",),
            registry=registry,
        )
        self.payment_look_age = Gauge(
            PAYMENT_LOOK_AGE,
            "Seconds since every payment that is not final was checked; 0 where another gateway leads.",
            ("network",),
            registry=registry,
        )
        self._add_settling(registry)

    def add_background(self, read: Callable[[], Iterable[BackgroundTaskStatus]]) -> None:
        self.registry.register(_BackgroundCollector(read))

    def add_shared_rates(self) -> Callable[[bool], None]:
        """Adds the series of a gateway with a rate server. Without a rate server a 0 would look like an outage."""
        gauge = Gauge(
            SHARED_RATES_UP,
            "1 while all gateways share their rate counts, 0 while each gateway counts alone.",
            registry=self.registry,
        )
        return lambda is_up: gauge.set(int(is_up))

    def _add_settling(self, registry: CollectorRegistry) -> None:
        self.settlements = Counter(
            SETTLEMENTS,
            "Settlements of signed authorisations by outcome.",
            ("network", "outcome"),
            registry=registry,
        )
        self.settlement_seconds = Histogram(
            SETTLEMENT_SECONDS,
            "Time from the signature of a settlement to its transaction receipt.",
            ("network",),
            buckets=SETTLEMENT_BUCKETS_S,
            registry=registry,
        )
        key = ("network", "key")
        self.gas_key_balance = Gauge(GAS_KEY_BALANCE, "Balance of a gas key.", key, registry=registry)
        self.gas_lane_length = Gauge(
            GAS_LANE_LENGTH,
            "Transactions of a gas key that are signed and not mined.",
            key,
            registry=registry,
        )
        self.calls_adrift = Gauge(
            CALLS_ADRIFT,
            "Settlements without a waiting request, as counted by the last recovery.",
            registry=registry,
        )
        self.rails_withdrawn = Gauge(
            RAILS_WITHDRAWN,
            "Networks, tokens and listings for which signed payments are not offered now.",
            ("network", "reason"),
            registry=registry,
        )


def configure_logging(
    *,
    level: Literal["debug", "info", "warning", "error"] = "info",
    style: Literal["auto", "json", "console"] = "auto",
    stream: TextIO | None = None,
) -> None:
    """Sends the logs of the gateway and of libraries to `stream` (default: standard error). `auto`: `console` on a terminal, JSON elsewhere."""
    target = stream or sys.stderr
    is_console = style == "console" or (style == "auto" and target.isatty())
    first: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Not the rich formatter: it prints local variables, which hold secrets.
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(
            colors=target.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        if is_console
        else structlog.processors.JSONRenderer()
    )
    escape: list[Processor] = [escape_entry] if is_console else []  # JSON escapes by itself
    last: list[Processor] = [structlog.processors.format_exc_info, redact_entry, *escape, renderer]
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*first, *last],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
            foreign_pre_chain=first,
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(threshold, logging.WARNING))
    for name in _FORMAT_NOISE:
        logging.getLogger(name).setLevel(logging.WARNING)


def bind_request(request_id: str) -> Mapping[str, Any]:
    """Adds the request's id to every log line of this task. `unbind_request` takes the result."""
    return structlog.contextvars.bind_contextvars(request_id=request_id)


def unbind_request(before: Mapping[str, Any]) -> None:
    structlog.contextvars.reset_contextvars(**before)


def redact_entry(_logger: object, _method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: masks values that are secret by their name or by their form."""
    for name, value in entry.items():
        entry[name] = MASK if _SECRET_NAME.search(name.replace("-", "_")) else redact(value)
    return entry


def escape_entry(_logger: object, _method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor for a console: escapes control characters, characters that hide or reorder text, and line breaks. Indents the lines of a traceback,
    so that none of them looks like an event."""
    for name, value in entry.items():
        if name == "exception" and isinstance(value, str):
            entry[name] = "\n".join("  " + _escape(line) for line in value.splitlines())
        elif isinstance(value, str):  # the renderer prints other types by `repr`
            entry[name] = _escape(value)
    return entry


def _escape(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def redact(value: Any) -> Any:
    """A value without passwords in URLs, bearer tokens and 65-byte signatures, at any depth."""
    if isinstance(value, str):
        value = _URL_PASSWORD.sub(MASK, value)
        value = _BEARER.sub(lambda match: f"{match[1]} {MASK}", value)
        return _SIGNATURE.sub(MASK, value)
    if isinstance(value, Mapping):
        return redact_entry(None, "", {str(name): inner for name, inner in value.items()})
    if isinstance(value, list | tuple):
        return [redact(inner) for inner in value]
    return value
