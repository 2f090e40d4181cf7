"""Writes the alert rules, their tests and the index of their runbooks from one table: `python deploy/prometheus/build.py`. Thresholds that the operator's pages share are those of the package.

`alerts.yaml` is what Prometheus loads. `alerts.test.yaml` and `alerts-slow.test.yaml` have three stories for each alert, which `promtool test rules` runs: it fires, it does not fire, it resolves; and
those of its branches. A story is made of the values that a series has while all is well and while it is not.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from tollway.observability import alert_limits as limits
from tollway.observability import metric_table

FOLDER = Path(__file__).parent
RUNBOOKS = "https://github.com/tollway/tollway/blob/main/docs/runbooks"
MINUTE, HOUR, DAY = 60, 3600, 86400

NET, NET_LABELS = 'network="eip155:8453"', {"network": "eip155:8453"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """A series with one value while all is well, and another one while it is not. None: absent. `grows`: by so much at each step of the bad time."""

    series: str
    good: float | None
    bad: float | None
    grows: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A counter that grows by so much at each step."""

    series: str
    good: float
    bad: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A series with a unix time. While all is well it is the current time; then it stays."""

    series: str


Story = Sequence[Gauge | Rate | Clock]


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Another way to raise an alert, or a case that must not raise it. `labels`: those of the alert; None: it stays silent. `bad_s`: as in `Alert`, where it differs."""

    says: str
    story: Story
    labels: Mapping[str, str] | None = None
    bad_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert. `after_s`: how long the expression must be true. `labels`: those of the alert that the stories raise. `step_s`: between two values of a story.
    `bad_s`: how long the bad time of a story lasts; `cool_s`: how long the good time after it."""

    name: str
    expression: str
    after_s: int
    severity: Literal["page", "ticket"]
    summary: str
    story: Story
    labels: Mapping[str, str] = field(default_factory=dict)
    branches: Sequence[Branch] = ()
    step_s: int = MINUTE
    bad_s: int = 30 * MINUTE
    cool_s: int = 30 * MINUTE


def _increase(series: str, window: str, *by: str) -> str:
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"sum{grouped} (increase({series}[{window}]))"


_NODE = "tollway_node_requests_total"
_NODE_OK, _NODE_FAILED = _NODE + '{outcome="ok"}', _NODE + '{outcome!="ok"}'
_UNDECIDED = 'tollway_settlements_total{outcome="undecided"}'
_FINISHED = 'tollway_settlements_total{outcome=~"swept|released"}'
_STEPS = "tollway_channel_steps_total"
_CLAIM_STEPS, _STEP_FAILURES = "|".join(limits.CHANNEL_CLAIM_STEPS), "|".join(limits.CHANNEL_STEP_FAILURES)
_FAILED_STEPS = f'{_STEPS}{{step=~"{_CLAIM_STEPS}", outcome=~"{_STEP_FAILURES}"}}'
OWN_FAILURES = tuple(code.value for code in metric_table.OWN_FAILURES)
"""The outcomes of calls that fail because of the gateway: the codes with a status of 500 and above without `OTHER_FAILURES`."""
OTHER_FAILURES = {
    "upstream_unreachable": "the provider",
    "upstream_bad_response": "the provider",
    "upstream_payment_required": "the provider",
    "upstream_unavailable": "the provider",
    "upstream_timeout": "the provider",
    "api_paused": "the provider, or a suspension",
    "loop_detected": "the provider, or the caller",
    "overloaded": "OverloadRefusals counts them: one caller can cause them",
    "channel_busy": "the caller: another call of the channel, or a withdrawal",
}
"""The other codes with such a status -> whose they are."""
_OWN = f'outcome=~"{"|".join(OWN_FAILURES)}"'
_LEAST = f"{limits.GAS_FLOORS_MIN} * max by (network) (tollway_gas_floor_wei)"
_OTHERS = "|".join(limits.EXTERNAL_PHASES)


def _minutes(seconds: int) -> str:
    return f"{seconds // MINUTE}m"


_NODE_WINDOW, _EVENT_WINDOW = _minutes(limits.NODE_WINDOW_S), _minutes(limits.EVENT_WINDOW_S)


def _failures(window: str) -> str:
    return f"sum(rate(tollway_calls_total{{{_OWN}}}[{window}])) / sum(rate(tollway_calls_total[{window}])) > {limits.OWN_FAILURES_MAX}"


ALERTS: tuple[Alert, ...] = (
    Alert(
        name="TollwayDown",
        expression='up{job="tollway"} == 0 or absent(up{job="tollway"})',
        after_s=2 * MINUTE,
        severity="page",
        summary="A gateway does not answer the monitoring system.",
        story=[Gauge(series='up{job="tollway", instance="a"}', good=1, bad=0)],
        labels={"job": "tollway", "instance": "a"},
        branches=[
            Branch(
                says="no gateway is known",
                story=[Gauge(series='up{job="tollway", instance="a"}', good=1, bad=None)],
                labels={"job": "tollway"},
            )
        ],
    ),
    Alert(
        name="StorageAway",
        expression="tollway_storage_up == 0",
        after_s=MINUTE,
        severity="page",
        summary="A gateway cannot read or write the database.",
        story=[Gauge(series='tollway_storage_up{instance="a"}', good=1, bad=0)],
        labels={"instance": "a"},
    ),
    Alert(
        name="NoLeader",
        expression="sum by (duty) (tollway_leading) == 0",
        after_s=MINUTE,
        severity="page",
        summary="No gateway does the work that one does for all.",
        story=[
            Gauge(series='tollway_leading{duty="watcher", instance="a"}', good=1, bad=0),
            Gauge(series='tollway_leading{duty="watcher", instance="b"}', good=0, bad=0),
        ],
        labels={"duty": "watcher"},
    ),
    Alert(
        name="LedgerDiffers",
        expression="max(tollway_audit_differences) > 0",
        after_s=0,
        severity="page",
        summary="The last audit found a balance that differs from the sum of its calls.",
        story=[Gauge(series='tollway_audit_differences{instance="a"}', good=0, bad=2)],
    ),
    Alert(
        name="DatabaseWentBack",
        expression="increase(tollway_database_setbacks_total[1h]) > 0",
        after_s=0,
        severity="page",
        summary="A gateway found an older copy of the database and holds every balance.",
        story=[Rate(series='tollway_database_setbacks_total{instance="a"}', good=0, bad=1)],
        labels={"instance": "a"},
        cool_s=90 * MINUTE,
    ),
    Alert(
        name="SettlementsUndecided",
        expression=(
            f"{_increase(_UNDECIDED, '15m')} - {_increase(_FINISHED, '15m')} > 0"
            f' or max(tollway_calls_open_oldest_seconds{{state="settling"}}) > {limits.SETTLING_AGE_MAX_S}'
        ),
        after_s=5 * MINUTE,
        severity="page",
        summary="Settlements become undecided faster than they are finished.",
        story=[
            Rate(series=f'tollway_settlements_total{{{NET}, outcome="undecided"}}', good=1, bad=4),
            Rate(series=f'tollway_settlements_total{{{NET}, outcome="swept"}}', good=1, bad=1),
            Rate(series=f'tollway_settlements_total{{{NET}, outcome="released"}}', good=0, bad=0),
            Gauge(series='tollway_calls_open_oldest_seconds{state="settling"}', good=20, bad=20),
        ],
        branches=[
            Branch(
                says="one is old",
                story=[
                    Rate(series=f'tollway_settlements_total{{{NET}, outcome="undecided"}}', good=1, bad=1),
                    Rate(series=f'tollway_settlements_total{{{NET}, outcome="swept"}}', good=1, bad=1),
                    Gauge(series='tollway_calls_open_oldest_seconds{state="settling"}', good=20, bad=610),
                ],
                labels={},
            )
        ],
        cool_s=45 * MINUTE,
    ),
    Alert(
        name="GasKeysLow",
        expression=f"max by (network) (tollway_gas_key_balance_wei) < {_LEAST}",
        after_s=10 * MINUTE,
        severity="page",
        summary="Every gas key of a network is near its floor.",
        story=[
            Gauge(series=f'tollway_gas_key_balance_wei{{{NET}, key="0xa"}}', good=1e18, bad=2e15),
            Gauge(series=f'tollway_gas_key_balance_wei{{{NET}, key="0xb"}}', good=1e15, bad=1e15),
            Gauge(series=f"tollway_gas_floor_wei{{{NET}}}", good=1e15, bad=1e15),
        ],
        labels=NET_LABELS,
    ),
    Alert(
        name="GasKeyLow",
        expression=(
            f"max by (network, key) (tollway_gas_key_balance_wei) < on (network) group_left () ({_LEAST})"
            f" unless on (network) (max by (network) (tollway_gas_key_balance_wei) < {_LEAST})"
        ),
        after_s=15 * MINUTE,
        severity="ticket",
        summary="One gas key of a network is near its floor; another one can pay.",
        story=[
            Gauge(series=f'tollway_gas_key_balance_wei{{{NET}, key="0xa"}}', good=1e18, bad=2e15),
            Gauge(series=f'tollway_gas_key_balance_wei{{{NET}, key="0xb"}}', good=1e18, bad=1e18),
            Gauge(series=f"tollway_gas_floor_wei{{{NET}}}", good=1e15, bad=1e15),
        ],
        labels={**NET_LABELS, "key": "0xa"},
    ),
    Alert(
        name="NonceQueueGrows",
        expression=(
            f"max by (network, key) (delta(tollway_gas_lane_length[{_EVENT_WINDOW}])) > 0"
            f" and min by (network, key) (min_over_time(tollway_gas_lane_length[{_EVENT_WINDOW}])) > 0"
        ),
        after_s=15 * MINUTE,
        severity="ticket",
        summary="The transactions of a gas key that are signed and not mined become more.",
        story=[Gauge(series=f'tollway_gas_lane_length{{{NET}, key="0xa"}}', good=0, bad=1, grows=1)],
        labels={**NET_LABELS, "key": "0xa"},
        bad_s=45 * MINUTE,
    ),
    Alert(
        name="GasBudgetNear",
        expression=f"max by (network) (tollway_gas_budget_used_ratio) > {limits.GAS_BUDGET_USED_MAX}",
        after_s=15 * MINUTE,
        severity="ticket",
        summary="More than 80 % of the daily gas budget of a network is spent.",
        story=[Gauge(series=f"tollway_gas_budget_used_ratio{{{NET}}}", good=0.2, bad=0.9)],
        labels=NET_LABELS,
    ),
    Alert(
        name="ChainAway",
        expression=(
            f"{_increase(_NODE_OK, '2m', 'network')} == 0 and {_increase(_NODE, '2m', 'network')} > 0"
        ),
        # The window is two minutes already; it is wide enough for a scrape a minute.
        after_s=30,
        severity="page",
        summary="No node of a network answers.",
        story=[
            Rate(series=f'{_NODE}{{{NET}, node="1", outcome="ok"}}', good=6, bad=0),
            Rate(series=f'{_NODE}{{{NET}, node="1", outcome="error"}}', good=0, bad=6),
        ],
        labels=NET_LABELS,
        step_s=30,
    ),
    Alert(
        name="NodeBad",
        expression=(
            f"{_increase(_NODE_FAILED, _NODE_WINDOW, 'network', 'node')}"
            f" / {_increase(_NODE, _NODE_WINDOW, 'network', 'node')} > {limits.NODE_FAILURES_MAX}"
            f" unless on (network) ({_increase(_NODE_OK, _NODE_WINDOW, 'network')} == 0)"
        ),
        after_s=10 * MINUTE,
        severity="ticket",
        summary="A node fails more than a fifth of its requests; others answer.",
        story=[
            Rate(series=f'{_NODE}{{{NET}, node="1", outcome="ok"}}', good=6, bad=3),
            Rate(series=f'{_NODE}{{{NET}, node="1", outcome="timeout"}}', good=0, bad=3),
            Rate(series=f'{_NODE}{{{NET}, node="2", outcome="ok"}}', good=1, bad=3),
            Rate(series=f'{_NODE}{{{NET}, node="2", outcome="timeout"}}', good=0, bad=0),
        ],
        labels={**NET_LABELS, "node": "1"},
    ),
    Alert(
        name="NodeBehind",
        expression=(
            "max by (network, node) (tollway_node_head_age_seconds)"
            " > on (network) group_left ()"
            f" ({limits.NODE_BLOCKS_BEHIND_MAX} * max by (network) (tollway_network_block_seconds)"
            f" + {limits.NODE_HEAD_READ_S})"
            f" unless on (network, node) ({_increase(_NODE_OK, _NODE_WINDOW, 'network', 'node')} == 0)"
        ),
        after_s=10 * MINUTE,
        severity="ticket",
        summary="A node answers, and its newest block is older than ten blocks.",
        story=[
            Gauge(series=f'tollway_node_head_age_seconds{{{NET}, node="2"}}', good=62, bad=90),
            Gauge(series=f'tollway_node_head_age_seconds{{{NET}, node="1"}}', good=3, bad=3),
            Gauge(series=f"tollway_network_block_seconds{{{NET}}}", good=2, bad=2),
            Rate(series=f'{_NODE}{{{NET}, node="2", outcome="ok"}}', good=6, bad=6),
        ],
        labels={**NET_LABELS, "node": "2"},
        branches=[
            Branch(
                says="a node that does not answer is in NodeBad",
                story=[
                    Gauge(series=f'tollway_node_head_age_seconds{{{NET}, node="2"}}', good=3, bad=900),
                    Gauge(series=f"tollway_network_block_seconds{{{NET}}}", good=2, bad=2),
                    Rate(series=f'{_NODE}{{{NET}, node="2", outcome="ok"}}', good=6, bad=0),
                ],
            )
        ],
    ),
    Alert(
        name="NodeDisagrees",
        expression=f"{_increase('tollway_node_disagreements_total', _EVENT_WINDOW, 'network', 'node')} > 0",
        after_s=10 * MINUTE,
        severity="ticket",
        summary="A node reports something else than the nodes that agree.",
        story=[Rate(series=f'tollway_node_disagreements_total{{{NET}, node="2"}}', good=0, bad=1)],
        labels={**NET_LABELS, "node": "2"},
    ),
    Alert(
        name="RailWithdrawn",
        expression="max by (network, reason) (tollway_rails_withdrawn) > 0",
        after_s=15 * MINUTE,
        severity="ticket",
        summary="Signed payments are not offered somewhere.",
        story=[Gauge(series=f'tollway_rails_withdrawn{{{NET}, reason="gas_too_dear"}}', good=0, bad=1)],
        labels={**NET_LABELS, "reason": "gas_too_dear"},
    ),
    Alert(
        name="ChannelWithdrawal",
        expression=(
            "max by (network) (tollway_channel_withdrawal_oldest_seconds)"
            f" > {limits.WITHDRAWAL_DELAY_MAX} * max by (network) (tollway_channel_withdraw_delay_seconds)"
        ),
        after_s=0,
        severity="page",
        summary="A payer withdraws from a channel that still owes; half of the delay is over.",
        story=[
            Gauge(series=f"tollway_channel_withdrawal_oldest_seconds{{{NET}}}", good=600, bad=43_260),
            Gauge(series=f"tollway_channel_withdraw_delay_seconds{{{NET}}}", good=86_400, bad=86_400),
        ],
        labels=NET_LABELS,
    ),
    Alert(
        name="ChannelsUnwatched",
        expression=(
            "max by (network) (tollway_channel_look_age_seconds)"
            f" > {limits.CHANNEL_LOOK_DELAY_MAX} * max by (network) (tollway_channel_withdraw_delay_seconds)"
        ),
        after_s=MINUTE,
        severity="page",
        summary="No gateway has looked at the channels of a network for a quarter of the delay of a withdrawal.",
        story=[
            Gauge(series=f'tollway_channel_look_age_seconds{{{NET}, instance="a"}}', good=4, bad=230),
            Gauge(series=f"tollway_channel_withdraw_delay_seconds{{{NET}}}", good=900, bad=900),
        ],
        labels=NET_LABELS,
    ),
    Alert(
        name="ChannelClaimsFail",
        expression=f"{_increase(_FAILED_STEPS, '15m', 'network', 'step')} > 0",
        after_s=10 * MINUTE,
        severity="ticket",
        summary="Claims or settles of channels fail again and again.",
        story=[
            Rate(series=f'{_STEPS}{{{NET}, step="claim", outcome="done"}}', good=1, bad=1),
            Rate(series=f'{_STEPS}{{{NET}, step="claim", outcome="refused"}}', good=0, bad=1),
        ],
        labels={**NET_LABELS, "step": "claim"},
        branches=[
            Branch(
                says="a receiver is blocked by the token",
                story=[Rate(series=f'{_STEPS}{{{NET}, step="settle", outcome="refused"}}', good=0, bad=1)],
                labels={**NET_LABELS, "step": "settle"},
            ),
            Branch(
                says="a refund that a payer asks for in vain",
                story=[Rate(series=f'{_STEPS}{{{NET}, step="refund", outcome="refused"}}', good=0, bad=1)],
            ),
        ],
    ),
    Alert(
        name="ClaimGasLow",
        expression=(
            "max by (network) (tollway_gas_key_balance_wei) < max by (network) (tollway_channel_gas_reserve_wei)"
        ),
        after_s=5 * MINUTE,
        severity="page",
        summary="Every gas key of a network has less than the claims of its channels need.",
        story=[
            Gauge(series=f'tollway_gas_key_balance_wei{{{NET}, key="0xa"}}', good=1e18, bad=1e18),
            Gauge(series=f"tollway_channel_gas_reserve_wei{{{NET}}}", good=2e15, bad=2e18),
        ],
        labels=NET_LABELS,
    ),
    Alert(
        name="ChannelUnclaimedHigh",
        expression=f"max by (network) (tollway_channel_unclaimed_ratio) > {limits.CHANNEL_UNCLAIMED_MAX}",
        after_s=15 * MINUTE,
        severity="ticket",
        summary="A channel owes nearly its maximum, and its next calls are refused.",
        story=[Gauge(series=f"tollway_channel_unclaimed_ratio{{{NET}}}", good=0.5, bad=0.9)],
        labels=NET_LABELS,
    ),
    Alert(
        name="HeldMoneyOld",
        expression=f'max(tollway_calls_open_oldest_seconds{{state="unknown"}}) > {limits.HELD_AGE_MAX_S}',
        after_s=0,
        severity="ticket",
        summary="A call without a known result holds its price for more than 20 hours.",
        story=[Gauge(series='tollway_calls_open_oldest_seconds{state="unknown"}', good=3_600, bad=72_600)],
    ),
    Alert(
        name="FailuresHigh",
        expression=f"{_failures('1h')} and {_failures(_minutes(limits.OWN_FAILURES_WINDOW_S))}",
        after_s=0,
        severity="page",
        summary="More than 1 % of the calls fail because of the gateway, now and over an hour.",
        story=[
            Rate(series='tollway_calls_total{outcome="charged"}', good=100, bad=100),
            Rate(series='tollway_calls_total{outcome="storage_unavailable"}', good=0, bad=10),
        ],
        branches=[
            Branch(
                says="some minutes are not an hour",
                story=[
                    Rate(series='tollway_calls_total{outcome="charged"}', good=100, bad=100),
                    Rate(series='tollway_calls_total{outcome="storage_unavailable"}', good=0, bad=5),
                ],
                bad_s=2 * MINUTE,
            )
        ],
        bad_s=40 * MINUTE,
    ),
    Alert(
        name="FailuresLasting",
        expression=f"{_failures('6h')} and {_failures('30m')}",
        after_s=0,
        severity="ticket",
        summary="More than 1 % of the calls fail because of the gateway, over six hours.",
        story=[
            Rate(series='tollway_calls_total{outcome="charged"}', good=500, bad=500),
            Rate(series='tollway_calls_total{outcome="internal_error"}', good=0, bad=20),
        ],
        branches=[
            Branch(
                says="half an hour is not six hours",
                story=[
                    Rate(series='tollway_calls_total{outcome="charged"}', good=500, bad=500),
                    Rate(series='tollway_calls_total{outcome="internal_error"}', good=0, bad=20),
                ],
                bad_s=10 * MINUTE,
            )
        ],
        step_s=5 * MINUTE,
        bad_s=4 * HOUR,
        cool_s=2 * HOUR,
    ),
    Alert(
        name="SlowCalls",
        expression=(
            "histogram_quantile(0.95, sum by (le, phase)"
            f' (rate(tollway_call_duration_seconds_bucket{{phase!~"{_OTHERS}"}}[{_minutes(limits.CALL_PHASE_WINDOW_S)}])))'
            f" > {limits.CALL_PHASE_P95_MAX_S}"
        ),
        after_s=10 * MINUTE,
        severity="ticket",
        summary="One call of twenty spends more than 250 ms in a phase of the gateway.",
        story=[
            Rate(
                series='tollway_call_duration_seconds_bucket{phase="read_head", le="0.1"}', good=100, bad=50
            ),
            Rate(series='tollway_call_duration_seconds_bucket{phase="read_head", le="1"}', good=100, bad=100),
            Rate(
                series='tollway_call_duration_seconds_bucket{phase="read_head", le="+Inf"}', good=100, bad=100
            ),
        ],
        labels={"phase": "read_head"},
    ),
    Alert(
        name="CommitsSlow",
        expression=(
            "histogram_quantile(0.99, sum by (le)"
            f" (rate(tollway_commit_duration_seconds_bucket[{_minutes(limits.COMMIT_WINDOW_S)}]))) > {limits.COMMIT_P99_MAX_S}"
        ),
        after_s=10 * MINUTE,
        severity="ticket",
        summary="One commit of a hundred takes more than 200 ms.",
        story=[
            Rate(series='tollway_commit_duration_seconds_bucket{kind="claim", le="0.1"}', good=100, bad=50),
            Rate(series='tollway_commit_duration_seconds_bucket{kind="claim", le="1"}', good=100, bad=100),
            Rate(series='tollway_commit_duration_seconds_bucket{kind="claim", le="+Inf"}', good=100, bad=100),
        ],
    ),
    Alert(
        name="LeaseLapsed",
        expression=f"increase(tollway_lease_lapses_total[{_EVENT_WINDOW}]) > 0",
        after_s=0,
        severity="ticket",
        summary="A gateway stood still for longer than its lease.",
        story=[Rate(series='tollway_lease_lapses_total{instance="a"}', good=0, bad=1)],
        labels={"instance": "a"},
    ),
    Alert(
        name="LoopBlocked",
        expression=(
            "histogram_quantile(0.99, sum by (le, instance)"
            f" (rate(tollway_event_loop_delay_seconds_bucket[{_minutes(limits.LOOP_DELAY_WINDOW_S)}])))"
            f" > {limits.LOOP_DELAY_P99_MAX_S}"
        ),
        after_s=5 * MINUTE,
        severity="ticket",
        summary="The event loop of a gateway is late by more than half a second.",
        story=[
            Rate(series='tollway_event_loop_delay_seconds_bucket{instance="a", le="0.1"}', good=60, bad=30),
            Rate(series='tollway_event_loop_delay_seconds_bucket{instance="a", le="1"}', good=60, bad=60),
            Rate(series='tollway_event_loop_delay_seconds_bucket{instance="a", le="+Inf"}', good=60, bad=60),
        ],
        labels={"instance": "a"},
    ),
    Alert(
        name="OverloadRefusals",
        expression=(
            f'sum(rate(tollway_refusals_total{{code="overloaded"}}[{_minutes(limits.OVERLOAD_WINDOW_S)}]))'
            f" > {limits.OVERLOADED_PER_S_MAX}"
        ),
        after_s=5 * MINUTE,
        severity="ticket",
        summary="The gateways refuse more than one request a second because they are full.",
        story=[Rate(series='tollway_refusals_total{code="overloaded", instance="a"}', good=0, bad=120)],
    ),
    Alert(
        name="AuditOld",
        expression=f"time() - max(tollway_audit_last_seconds) > {limits.AUDIT_AGE_MAX_S}",
        after_s=HOUR,
        severity="ticket",
        summary="The last audit of the ledger is older than eight days.",
        story=[Clock(series='tollway_audit_last_seconds{instance="a"}')],
        step_s=HOUR,
        bad_s=9 * DAY,
        cool_s=2 * HOUR,
    ),
    Alert(
        name="BackupOld",
        expression=f"time() - max(tollway_backup_last_seconds) > {limits.BACKUP_AGE_MAX_S}",
        after_s=HOUR,
        severity="ticket",
        summary="The last backup is older than 26 hours.",
        story=[Clock(series='tollway_backup_last_seconds{instance="a"}')],
        step_s=HOUR,
        bad_s=30 * HOUR,
        cool_s=2 * HOUR,
    ),
    Alert(
        name="SecretsStale",
        expression="max(tollway_secrets_stale) > 0",
        after_s=DAY,
        severity="ticket",
        summary="Secrets have been sealed under an older key for a day.",
        story=[Gauge(series='tollway_secrets_stale{instance="a"}', good=0, bad=3)],
        step_s=HOUR,
        bad_s=26 * HOUR,
        cool_s=2 * HOUR,
    ),
    Alert(
        name="VersionsDiffer",
        expression="count(count by (version) (tollway_build_info)) > 1",
        after_s=2 * HOUR,
        severity="ticket",
        summary="Gateways of two versions have run beside each other for two hours.",
        story=[
            Gauge(series='tollway_build_info{version="1", instance="a"}', good=1, bad=1),
            Gauge(series='tollway_build_info{version="2", instance="b"}', good=None, bad=1),
        ],
        step_s=5 * MINUTE,
        bad_s=3 * HOUR,
    ),
)


# ---- The files.


def write_rules() -> str:
    lines = ["# Written by deploy/prometheus/build.py.", "groups:", "  - name: tollway", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expression)}",
            *([f"        for: {alert.after_s}s"] if alert.after_s else []),
            f"        labels: {{class: {alert.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(alert.summary)}",
            f"          runbook_url: {RUNBOOKS}/{alert.name}.md",
        ]
    return "\n".join(lines) + "\n"


def write_prometheus_rule() -> str:
    """The same rules as a resource of the Prometheus operator."""
    comment, _, groups = write_rules().partition("\n")
    head = (
        f"{comment}\napiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\n"
        "metadata:\n  name: tollway\nspec:\n"
    )
    return head + "".join(f"  {line}\n" for line in groups.splitlines())


def write_tests(*, is_slow: bool) -> str:
    """The stories of the alerts that take minutes, or of those that take hours: `promtool` evaluates every rule at each interval of a file."""
    lines = ["# Written by deploy/prometheus/build.py.", "rule_files: [alerts.yaml]"]
    lines += [f"evaluation_interval: {HOUR if is_slow else MINUTE}s", "tests:"]
    for alert in ALERTS:
        if (alert.step_s == HOUR) == is_slow:
            lines += write_stories(alert)
    return "\n".join(lines) + "\n"


WARM_STEPS = 10


def write_stories(alert: Alert) -> list[str]:
    bad, cool = alert.bad_s // alert.step_s, alert.cool_s // alert.step_s
    lines = write_story(alert, "fires", alert.story, (WARM_STEPS, bad), alert.labels)
    lines += write_story(alert, "does not fire", alert.story, (WARM_STEPS + bad,), None)
    lines += write_story(alert, "resolves", alert.story, (WARM_STEPS, bad, cool), None)
    for branch in alert.branches:
        steps = (alert.bad_s if branch.bad_s is None else branch.bad_s) // alert.step_s
        name = "does not fire" if branch.labels is None else "fires"
        lines += write_story(
            alert, f"{name}, {branch.says}", branch.story, (WARM_STEPS, steps), branch.labels
        )
        if branch.labels is not None:
            phases = (WARM_STEPS, steps, cool)
            lines += write_story(alert, f"resolves, {branch.says}", branch.story, phases, None)
    return lines


def write_story(
    alert: Alert, name: str, story: Story, phases: Sequence[int], labels: Mapping[str, str] | None
) -> list[str]:
    """One test. `phases`: the steps of the good, the bad and the next good time. `labels`: of the alert at the end; None: there is none."""
    end = sum(phases) * alert.step_s
    lines = [f"  - name: {alert.name} {name}", f"    interval: {alert.step_s}s", "    input_series:"]
    for one in story:
        lines += [
            f"      - series: {json.dumps(one.series)}",
            f"        values: {json.dumps(' '.join(write_values(one, phases, alert.step_s)))}",
        ]
    lines += ["    alert_rule_test:", f"      - eval_time: {end}s", f"        alertname: {alert.name}"]
    return lines if labels is None else lines + write_expected(alert, labels)


def write_values(one: Gauge | Rate | Clock, phases: Sequence[int], step_s: int) -> list[str]:
    """The values of a series: good, bad and good again, for so many steps each."""
    values: list[float | None] = [1_000.0 if isinstance(one, Rate) else _find_first(one)]
    for number, steps in enumerate(phases):
        is_bad = number == 1
        for step in range(steps):
            last = values[-1]
            match one:
                case Rate():
                    values.append((last or 0) + (one.bad if is_bad else one.good))
                case Clock():
                    values.append(last if is_bad else len(values) * step_s)
                case Gauge() if is_bad and one.bad is not None:
                    values.append(one.bad + one.grows * step)
                case Gauge():
                    values.append(one.bad if is_bad else one.good)
    return [
        "_" if value is None else f"{value:g}" if abs(value) < 1e6 else repr(float(value)) for value in values
    ]


def _find_first(one: Gauge | Clock) -> float | None:
    return one.good if isinstance(one, Gauge) else 0.0


def write_expected(alert: Alert, labels: Mapping[str, str]) -> list[str]:
    labels = {"class": alert.severity, **labels}
    return [
        "        exp_alerts:",
        f"          - exp_labels: {json.dumps(labels)}",
        "            exp_annotations:",
        f"              summary: {json.dumps(alert.summary)}",
        f"              runbook_url: {RUNBOOKS}/{alert.name}.md",
    ]


def write_runbook_index() -> str:
    """The index of the runbooks: its words stay, the table has a row for each alert."""
    head, rule, _ = (FOLDER / RUNBOOK_INDEX).read_text().partition("|---|---|---|\n")
    rows = [f"| [{one.name}]({one.name}.md) | {one.severity} | {one.summary} |\n" for one in ALERTS]
    return head + rule + "".join(rows)


RUNBOOK_INDEX = "../../docs/runbooks/README.md"
FILES: Mapping[str, Callable[[], str]] = {
    "alerts.yaml": write_rules,
    "../kubernetes/monitoring/prometheusrule.yaml": write_prometheus_rule,
    "alerts.test.yaml": partial(write_tests, is_slow=False),
    "alerts-slow.test.yaml": partial(write_tests, is_slow=True),
    RUNBOOK_INDEX: write_runbook_index,
}


def main() -> None:
    for name, write in FILES.items():
        (FOLDER / name).write_text(write())
        print(f"wrote {FOLDER / name}", file=sys.stderr)


if __name__ == "__main__":
    main()
