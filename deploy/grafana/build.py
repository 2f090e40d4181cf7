"""Writes the Grafana dashboards from one table: `python deploy/grafana/build.py`.

A dashboard is rows of panels; a panel is title, expression, unit, description, an optional threshold, and the runbook of the alert that watches the same thing, or `NO_RUNBOOK`. Data
source and job are variables. No plugin is needed.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tollway.observability.alert_limits import SALES_HOURS_BEHIND_MAX

FOLDER = Path(__file__).parent
RUNBOOKS = "https://github.com/tollway/tollway/blob/main/docs/runbooks"
WIDTH, HEIGHT = 12, 8
JOB = 'job="$job"'
NO_RUNBOOK = None
"""No alert watches what the panel shows: it explains, or its trouble is not the gateway's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """`expression`: with `$job` and `$__rate_interval`. `legend`: a template of labels. `threshold`: a line from which on the value is bad.
    `has_exemplars`: the panel shows traces as dots."""

    title: str
    expression: str
    unit: str
    says: str
    runbook: str | None
    legend: str = "{{instance}}"
    threshold: float | None = None
    has_exemplars: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """`uid`: stable, because links use it."""

    uid: str
    title: str
    panels: Sequence[Panel]


def _rate(series: str, *by: str, **matchers: str) -> str:
    selected = ", ".join((JOB, *(f"{name}{value}" for name, value in matchers.items())))
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"sum{grouped} (rate({series}{{{selected}}}[$__rate_interval]))"


def _max(series: str, *by: str) -> str:
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"max{grouped} ({series}{{{JOB}}})"


def _quantile(share: float, series: str, *by: str) -> str:
    return f"histogram_quantile({share}, {_rate(f'{series}_bucket', 'le', *by)})"


OVERVIEW = Dashboard(
    uid="tollway-overview",
    title="Tollway: Overview",
    panels=(
        Panel(title="Calls by outcome", expression=_rate("tollway_calls_total", "outcome"), unit="reqps", legend="{{outcome}}", says="Gateway calls a second by outcome.", runbook="FailuresHigh"),
        Panel(title="Refusals by code", expression=_rate("tollway_refusals_total", "code") + " > 0", unit="reqps", legend="{{code}}", says="Why callers are turned away; 402s are payment_required.", runbook="OverloadRefusals"),
        Panel(title="Latency by phase, p95", expression=_quantile(0.95, "tollway_call_duration_seconds", "phase"), unit="s", legend="{{phase}}", threshold=0.25, says="Where the time of a call goes; only phases that happened. A dot is a traced call.", runbook="SlowCalls", has_exemplars=True),
        Panel(title="Upstreams until the head, p95", expression=_quantile(0.95, "tollway_upstream_duration_seconds"), unit="s", legend="p95", says="The time of the providers, from the first byte sent to the head.", runbook=NO_RUNBOOK),
        Panel(title="Open calls by state", expression=_max("tollway_calls_open", "state"), unit="short", legend="{{state}}", says="Money in calls without an end, counted to 10,000.", runbook="SettlementsUndecided"),
        Panel(title="Oldest open call by state", expression=_max("tollway_calls_open_oldest_seconds", "state"), unit="s", legend="{{state}}", threshold=72_000, says="A held price returns after 24 hours.", runbook="HeldMoneyOld"),
        Panel(title="Requests in flight", expression=f"tollway_calls_in_flight{{{JOB}}}", unit="short", says="Requests that run now, by gateway.", runbook="OverloadRefusals"),
        Panel(title="Upstreams that are down", expression=f"tollway_upstreams_down{{{JOB}}}", unit="short", says="Providers that are not called until a probe reaches them.", runbook=NO_RUNBOOK),
        Panel(title="Leaders by duty", expression=f"sum by (duty) (tollway_leading{{{JOB}}})", unit="short", legend="{{duty}}", says="1 for each duty; 2 while one gateway takes over from another.", runbook="NoLeader"),
        Panel(title="Versions", expression=f"count by (version) (tollway_build_info{{{JOB}}})", unit="short", legend="{{version}}", says="Gateways by version.", runbook="VersionsDiffer"),
        Panel(title="Control plane, p95", expression=_quantile(0.95, "http_server_request_duration_seconds"), unit="s", legend="p95", says="Catalog, history, sign-in and pages.", runbook=NO_RUNBOOK),
        Panel(title="Gateways", expression=f"up{{{JOB}}}", unit="short", says="1 for each gateway that answers the monitoring system.", runbook="TollwayDown"),
    ),
)  # fmt: skip

CHAINS = Dashboard(
    uid="tollway-chains",
    title="Tollway: Chains and gas",
    panels=(
        Panel(title="Requests to nodes by outcome", expression=_rate("tollway_node_requests_total", "network", "node", "outcome"), unit="reqps", legend="{{network}} {{node}} {{outcome}}", says="Nodes are numbered as in rpc_urls.", runbook="NodeBad"),
        Panel(title="Node latency, p95", expression=_quantile(0.95, "tollway_node_request_duration_seconds", "network", "node"), unit="s", legend="{{network}} {{node}}", says="Until the response, or until the deadline.", runbook="NodeBad"),
        Panel(title="Age of the newest block, in blocks", expression=f"max by (network, node) (min_over_time(tollway_node_head_age_seconds{{{JOB}}}[5m])) / on (network) group_left () {_max('tollway_network_block_seconds', 'network')}", unit="short", legend="{{network}} {{node}}", threshold=10, says="The least age in five minutes: a gateway reads it once a minute.", runbook="NodeBehind"),
        Panel(title="Disagreements", expression=f"sum by (network, node) (increase(tollway_node_disagreements_total{{{JOB}}}[1h]))", unit="short", legend="{{network}} {{node}}", threshold=1, says="Reports that differ from those that agree, in an hour.", runbook="NodeDisagrees"),
        Panel(title="Payments first presented", expression=_rate("tollway_payments_total", "network", "outcome"), unit="reqps", legend="{{network}} {{outcome}}", says="Accepted by network; refused ones by code.", runbook=NO_RUNBOOK),
        Panel(title="Since all unfinal payments were checked", expression=_max("tollway_payment_look_age_seconds", "network"), unit="s", legend="{{network}}", threshold=60, says="On the gateway that watches.", runbook="ChainAway"),
        Panel(title="Payments that left their chain", expression=f"sum by (network) (increase(tollway_reorgs_total{{{JOB}}}[1h]))", unit="short", legend="{{network}}", says="In an hour.", runbook=NO_RUNBOOK),
        Panel(title="Settlements by outcome", expression=_rate("tollway_settlements_total", "network", "outcome"), unit="reqps", legend="{{network}} {{outcome}}", says="undecided is followed by swept or released.", runbook="SettlementsUndecided"),
        Panel(title="Settlement, p95", expression=_quantile(0.95, "tollway_settlement_duration_seconds", "network"), unit="s", legend="{{network}}", says="From the signature to the transaction receipt.", runbook="NonceQueueGrows"),
        Panel(title="Settlements without a request", expression=_max("tollway_calls_adrift"), unit="short", legend="orphaned", says="As counted by the last recovery.", runbook="SettlementsUndecided"),
        Panel(title="Balance of gas keys, in floors", expression=f"{_max('tollway_gas_key_balance_wei', 'network', 'key')} / on (network) group_left () {_max('tollway_gas_floor_wei', 'network')}", unit="short", legend="{{network}} {{key}}", threshold=3, says="Below 1 signed payments are not offered.", runbook="GasKeysLow"),
        Panel(title="Unmined transactions", expression=_max("tollway_gas_lane_length", "network", "key"), unit="short", legend="{{network}} {{key}}", says="Signed and not mined, by gas key.", runbook="NonceQueueGrows"),
        Panel(title="Gas budget used", expression=_max("tollway_gas_budget_used_ratio", "network"), unit="percentunit", legend="{{network}}", threshold=0.8, says="Of what the settings allow in 24 hours.", runbook="GasBudgetNear"),
        Panel(title="Gas spent in a day, wei", expression=f"sum by (network, key) (increase(tollway_gas_spent_wei_total{{{JOB}}}[1d]))", unit="short", legend="{{network}} {{key}}", says="By the receipts that the gateways read.", runbook="GasBudgetNear"),
        Panel(title="Withdrawn rails", expression=_max("tollway_rails_withdrawn", "network", "reason") + " > 0", unit="short", legend="{{network}} {{reason}}", threshold=1, says="Where signed payments are not offered, and why.", runbook="RailWithdrawn"),
        Panel(title="Channels by state", expression=_max("tollway_channels", "network", "state"), unit="short", legend="{{network}} {{state}}", says="Payment channels that the ledger has.", runbook=NO_RUNBOOK),
        Panel(title="Unclaimed on channels", expression=_max("tollway_channel_unclaimed", "network", "token"), unit="short", legend="{{network}} {{token}}", says="Charged and not claimed: the risk of the providers, in units of the currency.", runbook="ChannelUnclaimedHigh"),
        Panel(title="Largest unclaimed share of a channel", expression=_max("tollway_channel_unclaimed_ratio", "network"), unit="percentunit", legend="{{network}}", threshold=0.8, says="Of its maximum; at 1 the calls of that channel are refused.", runbook="ChannelUnclaimedHigh"),
        Panel(title="Oldest unclaimed call", expression=_max("tollway_channel_unclaimed_oldest_seconds", "network"), unit="s", legend="{{network}}", says="After a day the gas of a claim is enough; less than that is never claimed.", runbook="ChannelClaimsFail"),
        Panel(title="Steps on channels by outcome", expression=f"sum by (network, step, outcome) (increase(tollway_channel_steps_total{{{JOB}}}[1h]))", unit="short", legend="{{network}} {{step}} {{outcome}}", says="Deposits, claims, settles and refunds in an hour.", runbook="ChannelClaimsFail"),
        Panel(title="Gas of channels in a day, wei", expression=f"sum by (network, step) (increase(tollway_channel_gas_wei_total{{{JOB}}}[1d]))", unit="short", legend="{{network}} {{step}}", says="Part of the gas spent; a claim has its settles.", runbook=NO_RUNBOOK),
        Panel(title="Reserve for claims, of the best gas key", expression=f"{_max('tollway_channel_gas_reserve_wei', 'network')} / on (network) {_max('tollway_gas_key_balance_wei', 'network')}", unit="percentunit", legend="{{network}}", threshold=1, says="From 1 on no signed payment is offered, and claims go on.", runbook="ClaimGasLow"),
        Panel(title="Since the channels were looked at, of the delay", expression=f"{_max('tollway_channel_look_age_seconds', 'network')} / on (network) {_max('tollway_channel_withdraw_delay_seconds', 'network')}", unit="percentunit", legend="{{network}}", threshold=0.25, says="From a quarter on channels take no deposit.", runbook="ChannelsUnwatched"),
        Panel(title="Withdrawals in sight", expression=_max("tollway_channel_withdrawals", "network"), unit="short", legend="{{network}}", says="Their channels take no call; those that owe are claimed at once.", runbook="ChannelWithdrawal"),
        Panel(title="Oldest withdrawal that owes, of the delay", expression=f"{_max('tollway_channel_withdrawal_oldest_seconds', 'network')} / on (network) {_max('tollway_channel_withdraw_delay_seconds', 'network')}", unit="percentunit", legend="{{network}}", threshold=0.5, says="At 1 the payer can take the money.", runbook="ChannelWithdrawal"),
    ),
)  # fmt: skip

BOOKS = Dashboard(
    uid="tollway-books",
    title="Tollway: Books",
    panels=(
        Panel(title="Commits, p99", expression=_quantile(0.99, "tollway_commit_duration_seconds", "kind"), unit="s", legend="{{kind}}", threshold=0.2, says="The flush that every call waits for, by the entry that matters most.", runbook="CommitsSlow"),
        Panel(title="Commits a second", expression=_rate("tollway_commit_duration_seconds_count", "kind"), unit="ops", legend="{{kind}}", says="Batches written.", runbook=NO_RUNBOOK),
        Panel(title="Entries of a batch, mean", expression=f"{_rate('tollway_claims_batch_size_sum')} / {_rate('tollway_claims_batch_size_count')}", unit="short", legend="mean", says="Under load calls share commits.", runbook=NO_RUNBOOK),
        Panel(title="Storage", expression=f"tollway_storage_up{{{JOB}}}", unit="short", threshold=0, says="0 from storage_away to storage_back.", runbook="StorageAway"),
        Panel(title="Storage away by cause", expression=_rate("tollway_storage_away_seconds_total", "cause"), unit="percentunit", legend="{{cause}}", says="Share of the time.", runbook="StorageAway"),
        Panel(title="Older copies of the database", expression=f"increase(tollway_database_setbacks_total{{{JOB}}}[1h])", unit="short", threshold=1, says="A gateway found one and holds every balance.", runbook="DatabaseWentBack"),
        Panel(title="Lapsed leases", expression=f"increase(tollway_lease_lapses_total{{{JOB}}}[1h])", unit="short", threshold=1, says="Gateways that stood still for longer than their lease.", runbook="LeaseLapsed"),
        Panel(title="Since the last audit", expression=f"time() - {_max('tollway_audit_last_seconds')}", unit="s", legend="audit", threshold=691_200, says="Eight days at most.", runbook="AuditOld"),
        Panel(title="Differences of the last audit", expression=_max("tollway_audit_differences"), unit="short", legend="differences", threshold=1, says="Anything but 0 is an incident.", runbook="LedgerDiffers"),
        Panel(title="Since the last backup", expression=f"time() - {_max('tollway_backup_last_seconds')}", unit="s", legend="backup", threshold=93_600, says="Absent on PostgreSQL.", runbook="BackupOld"),
        Panel(title="Stale secrets", expression=_max("tollway_secrets_stale"), unit="short", legend="stale", threshold=1, says="Sealed under an older secret key.", runbook="SecretsStale"),
        Panel(title="Hours of sales not written", expression=_max("tollway_sales_hours_behind"), unit="short", legend="hours", threshold=SALES_HOURS_BEHIND_MAX, says="Due and not written yet, or not written again. Sums of those hours are read from the calls meanwhile.", runbook=NO_RUNBOOK),
        Panel(title="Metered responses by usage", expression=_rate("tollway_metered_responses_total", "usage"), unit="reqps", legend="{{usage}}", says="clamped: the formula gave more than the maximum; absent: the response stated no quantity; base: the upstream cut it.", runbook=NO_RUNBOOK),
        Panel(title="Events of webhooks", expression=_max("tollway_webhook_events", "state"), unit="short", legend="{{state}}", says="That wait for a delivery, and that were never delivered. Their owners see them with `tollway webhook list`.", runbook=NO_RUNBOOK),
    ),
)  # fmt: skip

PROCESS = Dashboard(
    uid="tollway-process",
    title="Tollway: Process",
    panels=(
        Panel(title="CPU", expression=f"rate(process_cpu_seconds_total{{{JOB}}}[$__rate_interval])", unit="percentunit", threshold=0.9, says="One gateway uses one core.", runbook="LoopBlocked"),
        Panel(title="Memory", expression=f"process_resident_memory_bytes{{{JOB}}}", unit="bytes", says="Resident.", runbook="OverloadRefusals"),
        Panel(title="Open files", expression=f"process_open_fds{{{JOB}}} / process_max_fds{{{JOB}}}", unit="percentunit", threshold=0.9, says="Of those that the system allows.", runbook=NO_RUNBOOK),
        Panel(title="Delay of the event loop, p99", expression=_quantile(0.99, "tollway_event_loop_delay_seconds", "instance"), unit="s", threshold=0.5, says="How late a task is that wakes each second.", runbook="LoopBlocked"),
        Panel(title="Warnings and errors of the log", expression=_rate("tollway_log_events_total", "level", "event", level='=~"warning|error"') + " > 0", unit="short", legend="{{event}}", says="Lines a second; docs/log-events.md says what each means.", runbook=NO_RUNBOOK),
        Panel(title="Late background tasks", expression=f"tollway_background_task_age_seconds{{{JOB}}} / tollway_background_task_interval_seconds{{{JOB}}} > 10", unit="short", legend="{{instance}} {{task}}", threshold=10, says="In intervals.", runbook=NO_RUNBOOK),
        Panel(title="Failing background tasks", expression=f"tollway_background_task_failures{{{JOB}}} > 0", unit="short", legend="{{instance}} {{task}}", threshold=1, says="Failed runs in a row.", runbook=NO_RUNBOOK),
        Panel(title="Ended background tasks", expression=f"tollway_background_tasks_ended{{{JOB}}}", unit="short", threshold=1, says="That gateway is not ready: restart it.", runbook=NO_RUNBOOK),
        Panel(title="Shared rates", expression=f"tollway_shared_rates_up{{{JOB}}}", unit="short", says="0 while a gateway counts its callers alone.", runbook=NO_RUNBOOK),
        Panel(title="Uptime", expression=f"time() - process_start_time_seconds{{{JOB}}}", unit="s", says="Since the start of the process.", runbook=NO_RUNBOOK),
    ),
)  # fmt: skip

DASHBOARDS = (OVERVIEW, CHAINS, BOOKS, PROCESS)


def write(dashboard: Dashboard) -> str:
    data = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["tollway"],
        "schemaVersion": 39,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_data_source(), _job()]},
        "panels": [_panel(number, panel) for number, panel in enumerate(dashboard.panels)],
    }
    return json.dumps(data, indent=1) + "\n"


def _data_source() -> dict[str, Any]:
    return {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _job() -> dict[str, Any]:
    return {
        "name": "job",
        "label": "Job",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "$source"},
        "query": "label_values(tollway_build_info, job)",
        "refresh": 2,
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.threshold is not None:
        steps.append({"color": "red", "value": panel.threshold})
    target = {"refId": "A", "expr": panel.expression, "legendFormat": panel.legend}
    links = [{"title": "Runbook", "url": f"{RUNBOOKS}/{panel.runbook}.md"}] if panel.runbook else []
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.says,
        "datasource": {"type": "prometheus", "uid": "$source"},
        "gridPos": {"x": number % 2 * WIDTH, "y": number // 2 * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "targets": [{**target, "exemplar": True} if panel.has_exemplars else target],
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "links": links,
    }


FILES = {f"{dashboard.uid}.json": partial(write, dashboard) for dashboard in DASHBOARDS}


def main() -> None:
    for name, write_file in FILES.items():
        (FOLDER / name).write_text(write_file())
        print(f"wrote {FOLDER / name}", file=sys.stderr)


if __name__ == "__main__":
    main()
