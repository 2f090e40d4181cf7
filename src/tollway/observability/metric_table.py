"""The table of all series that a gateway exposes: name, kind, scope, help text and labels.

A label has a closed set of values: networks, nodes by number, gas keys, rails, states, codes; never a listing, a wallet, a path or a caller. So the number of series
of a gateway is known before it runs (`SeriesRow.series_max`). The scope says what a value is about: `process` is this gateway alone, `fleet` is what the database
knows, which only the leading gateway exposes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import prod
from types import MappingProxyType
from typing import Any, Literal

from tollway.errors import Code
from tollway.observability.background import TaskName
from tollway.observability.log_events import LOG_EVENTS

DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""OpenTelemetry's semantic conventions for `http.server.request.duration`."""
SETTLEMENT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 60, 120, 300)
"""From chains that mine at once to transactions that needed higher fees."""
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)

NODES_PER_NETWORK, GAS_KEYS_PER_NETWORK, TOKENS_PER_NETWORK = 3, 2, 2
"""What `series_max` assumes. The settings allow more; each further node adds 24 series, each further key 3, each further token 1."""

Kind = Literal["counter", "gauge", "histogram"]
Scope = Literal["process", "fleet"]
Phase = Literal["read_head", "chain", "claim", "dial", "upstream", "settle", "close"]
PHASES: tuple[Phase, ...] = ("read_head", "chain", "claim", "dial", "upstream", "settle", "close")
CommitKind = Literal["claim", "close", "settle", "other"]
COMMIT_KINDS: tuple[CommitKind, ...] = ("claim", "close", "settle", "other")
NodeOutcome = Literal["ok", "error", "timeout", "other_chain"]
OWN_FAILURES = (
    Code.INTERNAL_ERROR,
    Code.STORAGE_UNAVAILABLE,
    Code.CHAIN_UNAVAILABLE,
    Code.PAYMENT_OUTCOME_UNKNOWN,
)
"""The outcomes of calls that fail because of the gateway. Their counters begin at 0: an alert must see the first failure."""
NODE_OUTCOMES: tuple[NodeOutcome, ...] = ("ok", "error", "timeout", "other_chain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A label. `values`: the closed set; empty where the settings decide it: `per_network` values for each network, or one value per process."""

    name: str
    values: tuple[str, ...] = ()
    per_network: int = 0

    def count_values(self) -> int:
        return len(self.values) or self.per_network or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesRow:
    """A series. `name`: as it is exposed, without the suffixes of a histogram. `says`: the first sentence of the help text. `series_given`: the number of label
    sets (of one network, where there is a network) if it is less than the product of the labels. `series_added`: label sets beside those."""

    name: str
    kind: Kind
    says: str
    scope: Scope = "process"
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()
    series_given: int | None = None
    series_added: int = 0

    @property
    def help_text(self) -> str:
        where = (
            "of this process" if self.scope == "process" else "of the fleet; the leading gateway exposes it"
        )
        return f"{self.says} ({where})."

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.labels)

    def series_max(self, networks: int) -> int:
        sets = self.series_given
        if sets is None:
            sets = prod(label.count_values() for label in self.labels)
        is_per_network = any(label.name == "network" for label in self.labels)
        sets = sets * (networks if is_per_network else 1) + self.series_added
        return sets * (len(self.buckets) + 3 if self.buckets else 1)


def _row(kind: Kind, name: str, says: str, *labels: Label, **more: Any) -> SeriesRow:
    return SeriesRow(kind=kind, name=name, says=says, labels=labels, **more)


_counter, _gauge, _histogram = partial(_row, "counter"), partial(_row, "gauge"), partial(_row, "histogram")

_NETWORK = Label(name="network", per_network=1)
_NODE = Label(name="node", per_network=NODES_PER_NETWORK)
_KEY = Label(name="key", per_network=GAS_KEYS_PER_NETWORK)
_CODE = Label(name="code", values=tuple(code.value for code in Code))
_TASK = Label(name="task", values=tuple(name.value for name in TaskName))
_DUTY = Label(name="duty", values=("sweeper", "watcher", "reputation", "webhooks"))
_RAIL = Label(name="rail", values=("none", "credit", "tx", "x402", "mpp", "channel"))
_OPEN_STATE = Label(name="state", values=("forwarding", "settling", "unknown"))
_EVENT_STATE = Label(name="state", values=("pending", "dead"))
_CALL_OUTCOME = Label(
    name="outcome", values=("none", "charged", "released", "held", "abandoned", *_CODE.values)
)
_CAUSE = Label(
    name="cause",
    values=(
        *("read_only", "disk_full", "out_of_memory", "too_many_connections", "limit_of_the_server"),
        *("lock_not_available", "statement_cancelled", "server_stopping", "server_crashed"),
        *("server_starting_or_stopping", "disk_error", "permission_denied", "transaction_idle_too_long"),
        *("file_cannot_be_opened", "locked_by_another_process", "corrupt", "not_a_database"),
        *("connection_lost", "standby_not_waited_for", "no_connection_free", "no_response_in_time"),
        *("unreachable", "failed"),
    ),
)
_WITHDRAWAL = Label(
    name="reason",
    values=(
        *("gas_unknown", "gas_too_dear", "gas_keys_low", "facilitator_away", "nonce_gap"),
        *("token_takes_no_authorizations", "listing_gas_budget", "gas_budget"),
        *("wallet_gas_budget", "wallet_code_reverts"),
    ),
)
_PAYMENT_OUTCOME = Label(name="outcome", values=("accepted", *_CODE.values))
_SETTLEMENT_OUTCOME = Label(name="outcome", values=("settled", "failed", "undecided", "swept", "released"))
_TOKEN = Label(name="token", per_network=TOKENS_PER_NETWORK)
CHANNEL_OUTCOMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "deposit": ("done", "reverted"),
        "claim": ("done", "reverted", "refused", "lost"),
        "settle": ("done", "refused"),
        "refund": ("done", "reverted", "refused", "lost"),
    }
)
"""The steps on channels -> how each can end."""
CHANNEL_TRANSACTIONS = ("deposit", "claim", "refund")
"""The steps with a transaction of their own: a settle stands in that of a claim."""
_STEP = Label(name="step", values=tuple(CHANNEL_OUTCOMES))
_GAS_STEP = Label(name="step", values=CHANNEL_TRANSACTIONS)
_STEP_OUTCOME = Label(name="outcome", values=("done", "reverted", "refused", "lost"))
_CHANNEL_STATE = Label(name="state", values=("open", "withdrawing", "draining"))
_PHASE = Label(name="phase", values=PHASES)
_USAGE = Label(name="usage", values=("measured", "clamped", "absent", "base"))
_COMMIT_KIND = Label(name="kind", values=COMMIT_KINDS)
_NODE_OUTCOME = Label(name="outcome", values=NODE_OUTCOMES)
_LEVEL = Label(name="level", values=("debug", "info", "warning", "error"))
_EVENT = Label(name="event", values=tuple(sorted({row.event for row in LOG_EVENTS})))
_BUILD = tuple(Label(name=name) for name in ("version", "python", "dialect", "schema"))

_HTTP = (
    Label(name="http_request_method"),
    Label(name="http_route"),
    Label(name="http_response_status_code"),
)

_CALLS = (
    _histogram(
        "http_server_request_duration_seconds",
        "How long requests of the control plane took",
        *_HTTP,
        buckets=DURATION_BUCKETS_S,
    ),
    _counter("tollway_calls_total", "Gateway calls by outcome", _CALL_OUTCOME),
    _histogram(
        "tollway_call_duration_seconds",
        "Time of each phase of a call that was priced, by rail. Only phases that happened",
        _RAIL,
        _PHASE,
        buckets=DURATION_BUCKETS_S,
    ),
    _counter(
        "tollway_refusals_total", "Refused gateway calls, and requests that were shed, by error code", _CODE
    ),
    _histogram(
        "tollway_upstream_duration_seconds",
        "From the first byte sent to a provider until its response head",
        buckets=DURATION_BUCKETS_S,
    ),
    _counter(
        "tollway_metered_responses_total",
        "Metered calls that cost, by the reported usage; `base`: the upstream cut the response",
        _USAGE,
    ),
    _gauge("tollway_calls_in_flight", "Requests that run now"),
    _gauge("tollway_upstreams_down", "Upstreams that the gateway does not call until a probe reaches them"),
    _gauge(
        "tollway_shared_rates_up",
        "1 while all gateways share their rate counts, 0 while each gateway counts alone",
    ),
)

_TRACES = (
    _counter(
        "tollway_spans_dropped_total",
        "Spans of sampled calls that were dropped, because the queue was full or the collector did not take them",
    ),
)
_BOOKS = (
    _histogram("tollway_claims_batch_size", "Entries of the ledger in one commit", buckets=BATCH_BUCKETS),
    _histogram(
        "tollway_commit_duration_seconds",
        "Time to write one batch of the ledger, by the entry that matters most in it",
        _COMMIT_KIND,
        buckets=DURATION_BUCKETS_S,
    ),
    _gauge(
        "tollway_calls_open", "Calls without an end, by state; counted to 10,000", _OPEN_STATE, scope="fleet"
    ),
    _gauge(
        "tollway_calls_open_oldest_seconds",
        "Age of the oldest call without an end, by state; 0 without one",
        _OPEN_STATE,
        scope="fleet",
    ),
    _gauge("tollway_storage_up", "0 from `storage_away` to `storage_back` in the log"),
    _counter("tollway_storage_away_seconds_total", "Time for which the database was away, by cause", _CAUSE),
    _counter(
        "tollway_database_setbacks_total",
        "Times that this gateway detected a restored database and held every balance",
    ),
    _counter("tollway_lease_lapses_total", "Times that this gateway did not renew its lease in time"),
    _gauge(
        "tollway_leading", "1 while this gateway leads: it does the work of this duty for all gateways", _DUTY
    ),
    _gauge(
        "tollway_audit_last_seconds",
        "Unix time of the last audit; absent before the first one",
        scope="fleet",
    ),
    _gauge("tollway_audit_differences", "Differences that the last audit found", scope="fleet"),
    _gauge(
        "tollway_backup_last_seconds",
        "Unix time of the last `tollway gateway backup`; absent before the first one and on PostgreSQL",
        scope="fleet",
    ),
    _gauge(
        "tollway_secrets_stale", "Upstream secrets that are sealed under an older secret key", scope="fleet"
    ),
    _gauge(
        "tollway_sales_hours_behind",
        "Hours of sales that are due and not written yet, or not written again since a call of them moved",
        scope="fleet",
    ),
    _gauge(
        "tollway_webhook_events",
        "Events of all webhooks that wait for a delivery, and that were never delivered; counted to 10,000",
        _EVENT_STATE,
        scope="fleet",
    ),
)

_CHAINS = (
    _counter(
        "tollway_payments_total",
        "Payments presented for the first time; a refused one has the network `none`",
        _NETWORK,
        _PAYMENT_OUTCOME,
        series_given=1,  # `accepted` for each network
        series_added=len(_CODE.values),  # refused: under `none`
    ),
    _gauge(
        "tollway_payment_look_age_seconds",
        "Seconds since every payment that is not final was checked; 0 where another gateway leads",
        _NETWORK,
    ),
    _counter(
        "tollway_rpc_requests_total",
        "Requests to chain nodes; replaced by tollway_node_requests_total, ends with the next release",
    ),
    _counter(
        "tollway_node_requests_total",
        "Requests to a chain node by outcome; nodes are numbered as in the settings",
        _NETWORK,
        _NODE,
        _NODE_OUTCOME,
    ),
    _histogram(
        "tollway_node_request_duration_seconds",
        "Time of a request to a chain node until its response, or until its deadline",
        _NETWORK,
        _NODE,
        buckets=DURATION_BUCKETS_S,
    ),
    _gauge(
        "tollway_node_head_age_seconds",
        "Age of the newest block that a node has returned; a gateway reads it once a minute",
        _NETWORK,
        _NODE,
    ),
    _counter(
        "tollway_node_disagreements_total",
        "Reports of a node that differ from those that other nodes agreed on",
        _NETWORK,
        _NODE,
    ),
    _gauge("tollway_network_block_seconds", "The time between two blocks, by the settings", _NETWORK),
    _counter(
        "tollway_reorgs_total",
        "Payments that left their chain, as the watcher in this process found them",
        _NETWORK,
    ),
    _counter(
        "tollway_settlements_total",
        "Settlements of signed authorisations by outcome",
        _NETWORK,
        _SETTLEMENT_OUTCOME,
    ),
    _histogram(
        "tollway_settlement_duration_seconds",
        "Time from the signature of a settlement to its transaction receipt",
        _NETWORK,
        buckets=SETTLEMENT_BUCKETS_S,
    ),
    _gauge("tollway_calls_adrift", "Settlements without a waiting request, as counted by the last recovery"),
    _gauge(
        "tollway_rails_withdrawn",
        "Networks, tokens and listings for which signed payments are not offered now",
        _NETWORK,
        _WITHDRAWAL,
    ),
    _gauge("tollway_gas_key_balance_wei", "Balance of a gas key", _NETWORK, _KEY),
    _gauge(
        "tollway_gas_lane_length", "Transactions of a gas key that are signed and not mined", _NETWORK, _KEY
    ),
    _gauge(
        "tollway_gas_floor_wei",
        "The balance below which a gas key settles only claimed calls, by the settings",
        _NETWORK,
    ),
    _gauge(
        "tollway_gas_budget_used_ratio",
        "Share of the network's daily gas budget that is spent, as last read from the ledger",
        _NETWORK,
    ),
    _counter(
        "tollway_gas_spent_wei_total",
        "Gas paid for settlements whose receipt this gateway read",
        _NETWORK,
        _KEY,
    ),
)

_CHANNELS = (
    _gauge("tollway_channels", "Payment channels by state", _NETWORK, _CHANNEL_STATE, scope="fleet"),
    _gauge(
        "tollway_channel_unclaimed",
        "Charged and not claimed yet, in units of the currency",
        _NETWORK,
        _TOKEN,
        scope="fleet",
    ),
    _gauge(
        "tollway_channel_unclaimed_ratio",
        "The largest share of its maximum that a channel owes",
        _NETWORK,
        scope="fleet",
    ),
    _gauge(
        "tollway_channel_unclaimed_oldest_seconds",
        "Age of the oldest call that no claim has covered",
        _NETWORK,
        scope="fleet",
    ),
    _gauge("tollway_channel_withdrawals", "Withdrawals in sight", _NETWORK, scope="fleet"),
    _gauge(
        "tollway_channel_withdrawal_oldest_seconds",
        "Age of the oldest withdrawal of a channel that is worth a claim",
        _NETWORK,
        scope="fleet",
    ),
    _gauge("tollway_channel_withdraw_delay_seconds", "The delay of a withdrawal", _NETWORK),
    _gauge(
        "tollway_channel_look_age_seconds",
        "Since a gateway last looked at the channels",
        _NETWORK,
    ),
    _gauge("tollway_channel_gas_reserve_wei", "What a gas key keeps for claims", _NETWORK),
    _counter(
        "tollway_channel_steps_total",
        "Deposits, claims, settles and refunds by outcome",
        _NETWORK,
        _STEP,
        _STEP_OUTCOME,
        series_given=sum(map(len, CHANNEL_OUTCOMES.values())),
    ),
    _counter(
        "tollway_channel_gas_wei_total",
        "Gas of mined deposits, claims and refunds",
        _NETWORK,
        _GAS_STEP,
    ),
)

_PROCESS = (
    _gauge("tollway_build_info", "1; the labels say what runs", *_BUILD),
    _histogram(
        "tollway_event_loop_delay_seconds",
        "How late a task that wakes each second was",
        buckets=DURATION_BUCKETS_S,
    ),
    _counter(
        "tollway_log_events_total",
        "Lines of the log by level and event",
        _LEVEL,
        _EVENT,
        series_given=sum(len(row.levels) for row in LOG_EVENTS),
    ),
    _gauge("tollway_background_task_age_seconds", "Since a background task last ran well", _TASK),
    _gauge("tollway_background_task_interval_seconds", "Between two runs of a background task", _TASK),
    _gauge("tollway_background_task_failures", "Failed runs in a row of a background task", _TASK),
    _gauge(
        "tollway_background_tasks_ended",
        "Background tasks that ended by themselves; the gateway is not ready",
    ),
)

SERIES: Mapping[str, SeriesRow] = MappingProxyType(
    {row.name: row for row in chain(_CALLS, _TRACES, _BOOKS, _CHAINS, _CHANNELS, _PROCESS)}
)
"""Every series of a gateway by its name. Beside them stand those of `ProcessCollector`: `process_cpu_seconds_total` and the like."""
PROCESS_SERIES = (
    *("process_virtual_memory_bytes", "process_resident_memory_bytes", "process_start_time_seconds"),
    *("process_cpu_seconds_total", "process_open_fds", "process_max_fds"),
)
