"""The table of all series that a gateway exposes: name, kind, scope, help text and labels.

A label has a closed set of values: networks, nodes by number, gas keys, rails, states, codes; never a listing, a wallet, a path or a caller. So the number of series
of a gateway is known before it runs (`SeriesRow.series_max`). The scope says what a value is about: `process` is this gateway alone, `fleet` is what the database
knows, which only the leading gateway exposes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod
from types import MappingProxyType
from typing import Literal

from tollway.errors import Code
from tollway.observability.background import TaskName
from tollway.observability.log_events import LOG_EVENTS

DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""OpenTelemetry's semantic conventions for `http.server.request.duration`."""
SETTLEMENT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 60, 120, 300)
"""From chains that mine at once to transactions that needed higher fees."""
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)

NODES_PER_NETWORK, GAS_KEYS_PER_NETWORK = 3, 2
"""What `series_max` assumes. The settings allow more; each further node adds 24 series, each further key 3."""

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
_PHASE = Label(name="phase", values=PHASES)
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
    SeriesRow(
        name="http_server_request_duration_seconds",
        kind="histogram",
        says="How long requests of the control plane took",
        labels=_HTTP,
        buckets=DURATION_BUCKETS_S,
    ),
    SeriesRow(
        name="tollway_calls_total", kind="counter", says="Gateway calls by outcome", labels=(_CALL_OUTCOME,)
    ),
    SeriesRow(
        name="tollway_call_duration_seconds",
        kind="histogram",
        says="Time of each phase of a call that was priced, by rail. Only phases that happened",
        labels=(_RAIL, _PHASE),
        buckets=DURATION_BUCKETS_S,
    ),
    SeriesRow(
        name="tollway_refusals_total",
        kind="counter",
        says="Refused gateway calls, and requests that were shed, by error code",
        labels=(_CODE,),
    ),
    SeriesRow(
        name="tollway_upstream_duration_seconds",
        kind="histogram",
        says="From the first byte sent to a provider until its response head",
        buckets=DURATION_BUCKETS_S,
    ),
    SeriesRow(name="tollway_calls_in_flight", kind="gauge", says="Requests that run now"),
    SeriesRow(
        name="tollway_upstreams_down",
        kind="gauge",
        says="Upstreams that the gateway does not call until a probe reaches them",
    ),
    SeriesRow(
        name="tollway_shared_rates_up",
        kind="gauge",
        says="1 while all gateways share their rate counts, 0 while each gateway counts alone",
    ),
)

_TRACES = (
    SeriesRow(
        name="tollway_spans_dropped_total",
        kind="counter",
        says="Spans of sampled calls that were dropped, because the queue was full or the collector did not take them",
    ),
)
_BOOKS = (
    SeriesRow(
        name="tollway_claims_batch_size",
        kind="histogram",
        says="Entries of the ledger in one commit",
        buckets=BATCH_BUCKETS,
    ),
    SeriesRow(
        name="tollway_commit_duration_seconds",
        kind="histogram",
        says="Time to write one batch of the ledger, by the entry that matters most in it",
        labels=(_COMMIT_KIND,),
        buckets=DURATION_BUCKETS_S,
    ),
    SeriesRow(
        name="tollway_calls_open",
        kind="gauge",
        says="Calls without an end, by state; counted to 10,000",
        scope="fleet",
        labels=(_OPEN_STATE,),
    ),
    SeriesRow(
        name="tollway_calls_open_oldest_seconds",
        kind="gauge",
        says="Age of the oldest call without an end, by state; 0 without one",
        scope="fleet",
        labels=(_OPEN_STATE,),
    ),
    SeriesRow(
        name="tollway_storage_up", kind="gauge", says="0 from `storage_away` to `storage_back` in the log"
    ),
    SeriesRow(
        name="tollway_storage_away_seconds_total",
        kind="counter",
        says="Time for which the database was away, by cause",
        labels=(_CAUSE,),
    ),
    SeriesRow(
        name="tollway_database_setbacks_total",
        kind="counter",
        says="Times that this gateway detected a restored database and held every balance",
    ),
    SeriesRow(
        name="tollway_lease_lapses_total",
        kind="counter",
        says="Times that this gateway did not renew its lease in time",
    ),
    SeriesRow(
        name="tollway_leading",
        kind="gauge",
        says="1 while this gateway leads: it does the work of this duty for all gateways",
        labels=(_DUTY,),
    ),
    SeriesRow(
        name="tollway_audit_last_seconds",
        kind="gauge",
        says="Unix time of the last audit; absent before the first one",
        scope="fleet",
    ),
    SeriesRow(
        name="tollway_audit_differences",
        kind="gauge",
        says="Differences that the last audit found",
        scope="fleet",
    ),
    SeriesRow(
        name="tollway_backup_last_seconds",
        kind="gauge",
        says="Unix time of the last `tollway gateway backup`; absent before the first one and on PostgreSQL",
        scope="fleet",
    ),
    SeriesRow(
        name="tollway_secrets_stale",
        kind="gauge",
        says="Upstream secrets that are sealed under an older secret key",
        scope="fleet",
    ),
    SeriesRow(
        name="tollway_sales_hours_behind",
        kind="gauge",
        says="Hours of sales that are due and not written yet, or not written again since a call of them moved",
        scope="fleet",
    ),
    SeriesRow(
        name="tollway_webhook_events",
        kind="gauge",
        says="Events of all webhooks that wait for a delivery, and that were never delivered; counted to 10,000",
        labels=(_EVENT_STATE,),
        scope="fleet",
    ),
)

_CHAINS = (
    SeriesRow(
        name="tollway_payments_total",
        kind="counter",
        says="Payments presented for the first time; a refused one has the network `none`",
        labels=(_NETWORK, _PAYMENT_OUTCOME),
        series_given=1,  # `accepted` for each network
        series_added=len(_CODE.values),  # refused: under `none`
    ),
    SeriesRow(
        name="tollway_payment_look_age_seconds",
        kind="gauge",
        says="Seconds since every payment that is not final was checked; 0 where another gateway leads",
        labels=(_NETWORK,),
    ),
    SeriesRow(
        name="tollway_rpc_requests_total",
        kind="counter",
        says="Requests to chain nodes; replaced by tollway_node_requests_total, ends with the next release",
    ),
    SeriesRow(
        name="tollway_node_requests_total",
        kind="counter",
        says="Requests to a chain node by outcome; nodes are numbered as in the settings",
        labels=(_NETWORK, _NODE, _NODE_OUTCOME),
    ),
    SeriesRow(
        name="tollway_node_request_duration_seconds",
        kind="histogram",
        says="Time of a request to a chain node until its response, or until its deadline",
        labels=(_NETWORK, _NODE),
        buckets=DURATION_BUCKETS_S,
    ),
    SeriesRow(
        name="tollway_node_head_age_seconds",
        kind="gauge",
        says="Age of the newest block that a node has returned; a gateway reads it once a minute",
        labels=(_NETWORK, _NODE),
    ),
    SeriesRow(
        name="tollway_node_disagreements_total",
        kind="counter",
        says="Reports of a node that differ from those that other nodes agreed on",
        labels=(_NETWORK, _NODE),
    ),
    SeriesRow(
        name="tollway_network_block_seconds",
        kind="gauge",
        says="The time between two blocks, by the settings",
        labels=(_NETWORK,),
    ),
    SeriesRow(
        name="tollway_reorgs_total",
        kind="counter",
        says="Payments that left their chain, as the watcher in this process found them",
        labels=(_NETWORK,),
    ),
    SeriesRow(
        name="tollway_settlements_total",
        kind="counter",
        says="Settlements of signed authorisations by outcome",
        labels=(_NETWORK, _SETTLEMENT_OUTCOME),
    ),
    SeriesRow(
        name="tollway_settlement_duration_seconds",
        kind="histogram",
        says="Time from the signature of a settlement to its transaction receipt",
        labels=(_NETWORK,),
        buckets=SETTLEMENT_BUCKETS_S,
    ),
    SeriesRow(
        name="tollway_calls_adrift",
        kind="gauge",
        says="Settlements without a waiting request, as counted by the last recovery",
    ),
    SeriesRow(
        name="tollway_rails_withdrawn",
        kind="gauge",
        says="Networks, tokens and listings for which signed payments are not offered now",
        labels=(_NETWORK, _WITHDRAWAL),
    ),
    SeriesRow(
        name="tollway_gas_key_balance_wei",
        kind="gauge",
        says="Balance of a gas key",
        labels=(_NETWORK, _KEY),
    ),
    SeriesRow(
        name="tollway_gas_lane_length",
        kind="gauge",
        says="Transactions of a gas key that are signed and not mined",
        labels=(_NETWORK, _KEY),
    ),
    SeriesRow(
        name="tollway_gas_floor_wei",
        kind="gauge",
        says="The balance below which a gas key settles only claimed calls, by the settings",
        labels=(_NETWORK,),
    ),
    SeriesRow(
        name="tollway_gas_budget_used_ratio",
        kind="gauge",
        says="Share of the network's daily gas budget that is spent, as last read from the ledger",
        labels=(_NETWORK,),
    ),
    SeriesRow(
        name="tollway_gas_spent_wei_total",
        kind="counter",
        says="Gas paid for settlements whose receipt this gateway read",
        labels=(_NETWORK, _KEY),
    ),
)

_PROCESS = (
    SeriesRow(name="tollway_build_info", kind="gauge", says="1; the labels say what runs", labels=_BUILD),
    SeriesRow(
        name="tollway_event_loop_delay_seconds",
        kind="histogram",
        says="How late a task that wakes each second was",
        buckets=DURATION_BUCKETS_S,
    ),
    SeriesRow(
        name="tollway_log_events_total",
        kind="counter",
        says="Lines of the log by level and event",
        labels=(_LEVEL, _EVENT),
        series_given=sum(len(row.levels) for row in LOG_EVENTS),
    ),
    SeriesRow(
        name="tollway_background_task_age_seconds",
        kind="gauge",
        says="Since a background task last ran well",
        labels=(_TASK,),
    ),
    SeriesRow(
        name="tollway_background_task_interval_seconds",
        kind="gauge",
        says="Between two runs of a background task",
        labels=(_TASK,),
    ),
    SeriesRow(
        name="tollway_background_task_failures",
        kind="gauge",
        says="Failed runs in a row of a background task",
        labels=(_TASK,),
    ),
    SeriesRow(
        name="tollway_background_tasks_ended",
        kind="gauge",
        says="Background tasks that ended by themselves; the gateway is not ready",
    ),
)

SERIES: Mapping[str, SeriesRow] = MappingProxyType(
    {row.name: row for row in chain(_CALLS, _TRACES, _BOOKS, _CHAINS, _PROCESS)}
)
"""Every series of a gateway by its name. Beside them stand those of `ProcessCollector`: `process_cpu_seconds_total` and the like."""
PROCESS_SERIES = (
    *("process_virtual_memory_bytes", "process_resident_memory_bytes", "process_start_time_seconds"),
    *("process_cpu_seconds_total", "process_open_fds", "process_max_fds"),
)
