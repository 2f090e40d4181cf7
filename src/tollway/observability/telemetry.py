"""Logs and metrics. A log line is structured and has the request's id; a metric has labels with few values. Secrets are masked in both. Import creates names only."""

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TextIO, TypeVar

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from structlog.typing import Processor

from tollway.observability.log_events import LOG_EVENTS
from tollway.observability.metric_table import (
    CHANNEL_OUTCOMES,
    CHANNEL_TRANSACTIONS,
    COMMIT_KINDS,
    NODE_OUTCOMES,
    OWN_FAILURES,
    SERIES,
)
from tollway.observability.plain_metrics import LabelValues, PlainCollector

M = TypeVar("M")
Level = Literal["debug", "info", "warning", "error"]

REQUEST_SECONDS = "http_server_request_duration_seconds"
BACKGROUND_AGE = "tollway_background_task_age_seconds"
BACKGROUND_INTERVAL = "tollway_background_task_interval_seconds"
BACKGROUND_FAILURES = "tollway_background_task_failures"
BACKGROUND_ENDED = "tollway_background_tasks_ended"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFigures:
    """What the ledger says of the channels of one network. `counts`: by state. `unclaimed`: by the symbol of a token, in units of the currency; `unclaimed_ratio`: of the maximum of a
    channel. `unclaimed_s`, `withdrawal_s`: ages; 0 where nothing waits. `withdrawals`: how many are in sight."""

    counts: Mapping[str, int]
    unclaimed: Mapping[str, float]
    unclaimed_ratio: float
    unclaimed_s: float
    withdrawals: int
    withdrawal_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFigures:
    """What the leading gateway read from the database about all gateways. `open_calls`: by state, the number and the age in seconds of the oldest. `audit_s`,
    `backup_s`: unix times; None before the first one. `webhook_events`: by state. `channels`: by network; empty where they are off."""

    open_calls: Mapping[str, tuple[int, float]]
    audit_s: float | None = None
    audit_differences: int | None = None
    backup_s: float | None = None
    secrets_stale: int = 0
    sales_hours_behind: int = 0
    webhook_events: Mapping[str, int] = field(default_factory=dict)
    channels: Mapping[str, ChannelFigures] = field(default_factory=dict)


class Metrics:
    """The metrics of one gateway, in a registry of its own. What a paid call observes is plain (`plain_metrics`); the rest are objects of the client library."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._plain = PlainCollector()
        registry.register(self._plain)
        ProcessCollector(registry=registry)
        self._add_calls()
        self._add_books()
        self._add_nodes()
        self._add_settling()

    def _make(self, kind: Callable[..., M], name: str) -> M:
        row = SERIES[name]
        options = {"buckets": row.buckets} if row.buckets else {}
        name = row.name.removesuffix("_total")
        return kind(name, row.help_text, row.label_names, registry=self.registry, **options)

    def _add_calls(self) -> None:
        plain = self._plain
        self.request_seconds = self._make(Histogram, REQUEST_SECONDS)
        failures = [(code.value,) for code in OWN_FAILURES]
        self.calls = plain.counter("tollway_calls_total", failures)
        self.call_seconds = plain.histograms("tollway_call_duration_seconds")
        codes = [(value,) for value in SERIES["tollway_refusals_total"].labels[0].values]
        self.refusals = plain.counter("tollway_refusals_total", codes)
        self.upstream_seconds = plain.histograms("tollway_upstream_duration_seconds").find()
        self.metered_responses = plain.counter("tollway_metered_responses_total")
        self.calls_in_flight = self._make(Gauge, "tollway_calls_in_flight")
        self.upstreams_down = self._make(Gauge, "tollway_upstreams_down")
        self.loop_delay_seconds = plain.histograms("tollway_event_loop_delay_seconds").find()
        self.build = plain.gauges("tollway_build_info")
        events = [(level, row.event) for row in LOG_EVENTS for level in row.levels]
        self.log_events = plain.counter("tollway_log_events_total", events)

    def _add_books(self) -> None:
        plain = self._plain
        self.claims_batch_size = plain.histograms("tollway_claims_batch_size").find()
        commits = plain.histograms("tollway_commit_duration_seconds")
        self.commit_seconds = {kind: commits.find(kind) for kind in COMMIT_KINDS}
        self.spans_dropped = self._make(Counter, "tollway_spans_dropped_total")
        self.lease_lapses = plain.counter("tollway_lease_lapses_total", [()])
        self.database_setbacks = self._make(Counter, "tollway_database_setbacks_total")
        self.leading = self._make(Gauge, "tollway_leading")
        self._figures: FleetFigures | None = None
        for name, read in _FIGURES.items():
            plain.gauges(name, partial(self._read_figure, read))

    def _add_nodes(self) -> None:
        plain = self._plain
        self.payments = self._make(Counter, "tollway_payments_total")
        self.payment_look_age = self._make(Gauge, "tollway_payment_look_age_seconds")
        self.rpc_requests = self._make(Counter, "tollway_rpc_requests_total")
        self.node_requests = plain.counter("tollway_node_requests_total")
        self.node_request_seconds = plain.histograms("tollway_node_request_duration_seconds")
        self.node_disagreements = plain.counter("tollway_node_disagreements_total")
        self.block_seconds = plain.gauges("tollway_network_block_seconds")
        self.reorgs = plain.counter("tollway_reorgs_total")

    def _add_settling(self) -> None:
        self.settlements = self._make(Counter, "tollway_settlements_total")
        self.settlement_seconds = self._make(Histogram, "tollway_settlement_duration_seconds")
        self.gas_key_balance = self._make(Gauge, "tollway_gas_key_balance_wei")
        self.gas_lane_length = self._make(Gauge, "tollway_gas_lane_length")
        self.gas_floor = self._plain.gauges("tollway_gas_floor_wei")
        self.gas_budget_used = self._plain.gauges("tollway_gas_budget_used_ratio")
        self.gas_spent = self._plain.counter("tollway_gas_spent_wei_total")
        self.calls_adrift = self._make(Gauge, "tollway_calls_adrift")
        self.rails_withdrawn = self._make(Gauge, "tollway_rails_withdrawn")
        self.channel_steps = self._plain.counter("tollway_channel_steps_total")
        self.channel_gas = self._plain.counter("tollway_channel_gas_wei_total")
        self.channel_gas_reserve = self._plain.gauges("tollway_channel_gas_reserve_wei")
        self.channel_delay = self._plain.gauges("tollway_channel_withdraw_delay_seconds")

    def add_network(self, network: str, *, nodes: int, block_time_s: float, gas_keys: Sequence[str]) -> None:
        """Sets the series of a network to 0, so that the first event of each is an increase."""
        self.block_seconds.set(block_time_s, network)
        self.reorgs.add_amount(0, network)
        for outcome in SERIES["tollway_settlements_total"].labels[1].values:
            self.settlements.labels(network, outcome)
        for key in gas_keys:
            self.gas_spent.add_amount(0, network, key)
        for number in range(1, nodes + 1):
            self.node_disagreements.add_amount(0, network, str(number))
            for outcome in NODE_OUTCOMES:
                self.node_requests.add_amount(0, network, str(number), outcome)

    def add_storage(self, is_up: Callable[[], bool], away_s: Callable[[], Mapping[str, float]]) -> None:
        """Adds the series of the database, read at scrape. `away_s`: by cause."""
        self._plain.gauges("tollway_storage_up", lambda: {(): int(is_up())})
        self._plain.gauges(
            "tollway_storage_away_seconds_total", lambda: {(cause,): s for cause, s in away_s().items()}
        )

    def add_node_heads(self, read: Callable[[], Mapping[LabelValues, float]]) -> None:
        """Adds the ages of the newest blocks by network and node, read at scrape."""
        self._plain.gauges("tollway_node_head_age_seconds", read)

    def add_channels(
        self, delays_s: Mapping[str, int], read_look_ages_s: Callable[[], Mapping[LabelValues, float]]
    ) -> None:
        """Adds the series of channels, and sets those of steps to 0. `delays_s`: of a withdrawal, by network. `read_look_ages_s`: read at scrape."""
        self._plain.gauges("tollway_channel_look_age_seconds", read_look_ages_s)
        for network, delay_s in delays_s.items():
            self.channel_delay.set(delay_s, network)
            for step, outcomes in CHANNEL_OUTCOMES.items():
                for outcome in outcomes:
                    self.channel_steps.add_amount(0, network, step, outcome)
            for step in CHANNEL_TRANSACTIONS:
                self.channel_gas.add_amount(0, network, step)

    def add_background(self, read: Callable[[], Iterable[BackgroundTaskStatus]]) -> None:
        """Adds the series of the background tasks, read at scrape. A task that another gateway runs for all has no sample here."""

        def select(value: Callable[[BackgroundTaskStatus], float | None]) -> Mapping[LabelValues, float]:
            running = ((task.name, value(task)) for task in read() if task.is_running)
            return {(name,): found for name, found in running if found is not None}

        self._plain.gauges(BACKGROUND_AGE, lambda: select(lambda task: task.age_s))
        self._plain.gauges(BACKGROUND_INTERVAL, lambda: select(lambda task: task.interval_s))
        self._plain.gauges(BACKGROUND_FAILURES, lambda: select(lambda task: task.failures))
        self._plain.gauges(BACKGROUND_ENDED, lambda: {(): sum(task.has_ended for task in read())})

    def add_shared_rates(self) -> Callable[[bool], None]:
        """Adds the series of a gateway with a rate server. Without a rate server a 0 would look like an outage."""
        gauge = self._make(Gauge, "tollway_shared_rates_up")
        return lambda is_up: gauge.set(int(is_up))

    def set_figures(self, figures: FleetFigures | None) -> None:
        """Sets what is exposed about the fleet. None: this gateway does not lead, or could not read it; the series are absent."""
        self._figures = figures

    def _read_figure(
        self, read: Callable[[FleetFigures], Mapping[LabelValues, float | None]]
    ) -> Mapping[LabelValues, float]:
        found = {} if self._figures is None else read(self._figures)
        return {labels: value for labels, value in found.items() if value is not None}

    def count_log_event(self, level: str, event: str) -> None:
        self.log_events.add(level, event)


_FIGURES: Mapping[str, Callable[[FleetFigures], Mapping[LabelValues, float | None]]] = {
    "tollway_calls_open": lambda figures: {
        (state,): count for state, (count, _) in figures.open_calls.items()
    },
    "tollway_calls_open_oldest_seconds": lambda figures: {
        (state,): age_s for state, (_, age_s) in figures.open_calls.items()
    },
    "tollway_audit_last_seconds": lambda figures: {(): figures.audit_s},
    "tollway_audit_differences": lambda figures: {(): figures.audit_differences},
    "tollway_backup_last_seconds": lambda figures: {(): figures.backup_s},
    "tollway_secrets_stale": lambda figures: {(): figures.secrets_stale},
    "tollway_sales_hours_behind": lambda figures: {(): figures.sales_hours_behind},
    "tollway_webhook_events": lambda figures: {
        (state,): count for state, count in figures.webhook_events.items()
    },
    "tollway_channels": lambda figures: {
        (network, state): count
        for network, one in figures.channels.items()
        for state, count in one.counts.items()
    },
    "tollway_channel_unclaimed": lambda figures: {
        (network, token): amount
        for network, one in figures.channels.items()
        for token, amount in one.unclaimed.items()
    },
    "tollway_channel_unclaimed_ratio": lambda figures: {
        (network,): one.unclaimed_ratio for network, one in figures.channels.items()
    },
    "tollway_channel_unclaimed_oldest_seconds": lambda figures: {
        (network,): one.unclaimed_s for network, one in figures.channels.items()
    },
    "tollway_channel_withdrawals": lambda figures: {
        (network,): one.withdrawals for network, one in figures.channels.items()
    },
    "tollway_channel_withdrawal_oldest_seconds": lambda figures: {
        (network,): one.withdrawal_s for network, one in figures.channels.items()
    },
}
"""The series about the fleet, and how each is read from the figures."""


def configure_logging(
    *,
    level: Level = "info",
    style: Literal["auto", "json", "console"] = "auto",
    stream: TextIO | None = None,
    journal: str | None = None,
) -> None:
    """Sends the logs of the gateway and of libraries to `stream` (default: standard error). `auto`: `console` on a terminal, JSON elsewhere. `journal`: the value
    of JOURNAL_STREAM; where systemd's journal reads the stream, each line begins with its priority (sd-daemon(3)), which the journal takes off."""
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
    if _is_read_by_journal(target, journal):
        renderer = partial(_render_for_journal, renderer)
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


_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""Priorities of syslog(3)."""


def _is_read_by_journal(target: TextIO, journal: str | None) -> bool:
    """Compares device and inode of the stream with JOURNAL_STREAM, as systemd.exec(5) says: a child may have inherited the name and not the stream."""
    if not journal:
        return False
    try:
        status = os.fstat(target.fileno())
    except (OSError, ValueError):
        return False
    return journal == f"{status.st_dev}:{status.st_ino}"


def _render_for_journal(
    render: Processor, logger: object, method: str, entry: MutableMapping[str, Any]
) -> str:
    priority = _PRIORITIES.get(str(entry.get("level")), _PRIORITIES["info"])
    return "\n".join(f"<{priority}>{line}" for line in str(render(logger, method, entry)).splitlines())


def change_log_level(level: Level) -> None:
    """Changes the level of the gateway's own log while it runs. Libraries keep theirs."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(threshold))


def observe_log_events(count: Callable[[str, str], None]) -> None:
    """Calls `count` with level and event of every line that is written. Call it once, after `configure_logging`."""

    def observe(_logger: object, method: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        count(_LEVELS.get(method, method), str(entry.get("event")))
        return entry

    structlog.configure(processors=[observe, *structlog.get_config()["processors"]])


_LEVELS = {"exception": "error", "warn": "warning"}


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
