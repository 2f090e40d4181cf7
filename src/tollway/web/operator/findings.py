"""What needs an operator, from the facts of one gateway and of the ledger. Pure.

A finding is a state that needs an operator. The worst come first: stopped work, then money that waits, then degraded service, then upkeep. Its rule is that of its alert
(`alert_limits`), without the time for which an alert waits; a risk is a finding of `tollway gateway doctor`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tollway.ids import format_network
from tollway.observability.alert_limits import (
    AUDIT_AGE_MAX_S,
    BACKUP_AGE_MAX_S,
    CALL_PHASE_P95_MAX_S,
    CALL_PHASE_WINDOW_S,
    CHANNEL_CLAIM_STEPS,
    CHANNEL_LOOK_DELAY_MAX,
    CHANNEL_STEP_FAILURES,
    CHANNEL_UNCLAIMED_MAX,
    COMMIT_P99_MAX_S,
    COMMIT_WINDOW_S,
    EVENT_WINDOW_S,
    EXTERNAL_PHASES,
    GAS_BUDGET_USED_MAX,
    GAS_FLOORS_MIN,
    HELD_AGE_MAX_S,
    LOOP_DELAY_P99_MAX_S,
    LOOP_DELAY_WINDOW_S,
    NODE_BLOCKS_BEHIND_MAX,
    NODE_FAILURES_MAX,
    NODE_HEAD_READ_S,
    NODE_WINDOW_S,
    OVERLOAD_WINDOW_S,
    OVERLOADED_PER_S_MAX,
    OWN_FAILURES_MAX,
    OWN_FAILURES_WINDOW_S,
    SALES_HOURS_BEHIND_MAX,
    SETTLING_AGE_MAX_S,
    WITHDRAWAL_DELAY_MAX,
)
from tollway.observability.fleet import DutyLeader, EncryptedValues, GatewayRecord
from tollway.observability.metric_table import DURATION_BUCKETS_S, OWN_FAILURES
from tollway.observability.recent_metrics import MetricsSample, find_quantile
from tollway.observability.telemetry import FleetFigures
from tollway.payments.gas import GasKeyStatus, GasSpending
from tollway.web.operator.chains import NetworkChannels, NetworkNodes

CHECK_TEXTS = {
    "storage": ("The database cannot be read or written", "StorageAway", "tollway gateway doctor"),
    "background": (
        "A background task of this gateway has ended; restart the gateway",
        "TollwayDown",
        "tollway gateway doctor",
    ),
    "load": ("This gateway is full and refuses calls", "OverloadRefusals", "tollway gateway doctor"),
}
"""A failed check of `/readyz`: what it means, its alert, and the first command."""
DOCTOR = "tollway gateway doctor"
HOUR_S, DAY_S = 3_600, 86_400


class Severity(IntEnum):
    STOPPED = 0
    MONEY = 1
    DEGRADED = 2
    UPKEEP = 3


SEVERITY_NAMES = {
    Severity.STOPPED: "stopped",
    Severity.MONEY: "money",
    Severity.DEGRADED: "degraded",
    Severity.UPKEEP: "upkeep",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFinding:
    """`alert`: the alert whose runbook covers it; empty for a risk of the settings. `command`: the first thing to run; empty where a page does it. `page`: the page
    with more."""

    severity: Severity
    text: str
    alert: str = ""
    command: str = ""
    page: str = ""

    @property
    def level(self) -> str:
        return SEVERITY_NAMES[self.severity]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewFacts:
    """`checks`: of `/readyz`. `networks`: as `GET /status` describes them. `find_increase`: what the metrics of this gateway gained in a window of seconds. `risks`: warnings of
    doctor about this gateway."""

    checks: Mapping[str, bool]
    networks: Sequence[Mapping[str, Any]]
    nodes: Sequence[NetworkNodes]
    channels: Sequence[NetworkChannels]
    gas_keys: Sequence[GasKeyStatus]
    gas_spending: Sequence[GasSpending]
    fleet: FleetFigures
    encrypted_values: Sequence[EncryptedValues]
    gateways: Sequence[GatewayRecord]
    leaders: Sequence[DutyLeader]
    held_payments: int
    suspended: int
    blocked: int
    in_flight: int
    find_increase: Callable[[float], MetricsSample]
    risks: Sequence[str]
    now_ms: int


def find_findings(facts: OverviewFacts) -> tuple[OperatorFinding, ...]:
    """All findings, the worst first; within a severity in the order of these functions."""
    found = [
        *_find_stopped(facts),
        *_find_money(facts),
        *_find_gas(facts),
        *_find_channels(facts),
        *_find_rails(facts),
        *_find_nodes(facts),
        *_find_slow(facts),
        *_find_fleet(facts),
        *(
            OperatorFinding(severity=Severity.UPKEEP, text=_sentence(risk), command=DOCTOR)
            for risk in facts.risks
        ),
    ]
    return tuple(sorted(found, key=lambda finding: finding.severity))


def count(number: float, limit: int) -> str:
    return f"at least {limit}" if number >= limit else str(int(number))


def _find_stopped(facts: OverviewFacts) -> Iterator[OperatorFinding]:
    for name, (words, alert, command) in CHECK_TEXTS.items():
        if not facts.checks.get(name, True):
            yield OperatorFinding(severity=Severity.STOPPED, text=words, alert=alert, command=command)
    for network in facts.networks:
        if not network["reachable"]:
            since = network.get("unreachableSince")
            words = f"No node of {network['name']} responds" + (f" since {_shorten(since)}" if since else "")
            yield OperatorFinding(severity=Severity.STOPPED, text=words, alert="ChainAway", page="/chains")
    missing = [leader.duty for leader in facts.leaders if not leader.is_led]
    if missing:
        words = f"No gateway leads as {' or '.join(missing)}; a running gateway takes over within seconds"
        yield OperatorFinding(severity=Severity.STOPPED, text=words, alert="NoLeader", command=DOCTOR)
    recent = facts.find_increase(OWN_FAILURES_WINDOW_S)
    failures = count_own_failures(recent)
    if failures > OWN_FAILURES_MAX * recent.calls_count:
        words = f"{failures:.0f} of {recent.calls_count:.0f} calls failed because of this gateway, in {recent.seconds:.0f} s"
        yield OperatorFinding(severity=Severity.STOPPED, text=words, alert="FailuresHigh", command=DOCTOR)


def _find_money(facts: OverviewFacts) -> Iterator[OperatorFinding]:
    differences = facts.fleet.audit_differences
    if differences:
        words = f"Differences between balances and calls in the last audit: {differences}"
        yield OperatorFinding(
            severity=Severity.MONEY,
            text=words,
            alert="LedgerDiffers",
            command="tollway gateway audit",
            page="/books",
        )
    if facts.held_payments:
        words = (
            f"Payments held: {count(facts.held_payments, 10_000)}, after a restore or because nodes disagree"
        )
        yield OperatorFinding(severity=Severity.MONEY, text=words, alert="DatabaseWentBack", page="/books")
    for state, age_s_max, alert, what in (
        ("settling", SETTLING_AGE_MAX_S, "SettlementsUndecided", "settlement"),
        ("unknown", HELD_AGE_MAX_S, "HeldMoneyOld", "call of unknown outcome"),
    ):
        number, age_s = facts.fleet.open_calls.get(state, (0, 0.0))
        if age_s > age_s_max:
            words = f"The oldest {what} began {format_age(age_s)} ago. Open: {count(number, 10_000)}"
            yield OperatorFinding(severity=Severity.MONEY, text=words, alert=alert, page="/calls")
    for encrypted_values in facts.encrypted_values:
        if encrypted_values.kind == "secrets" and encrypted_values.lost:
            words = f"Secrets of listings or webhooks that no key opens: {encrypted_values.lost}. Put the missing key behind the first one"
            yield OperatorFinding(
                severity=Severity.MONEY, text=words, alert="SecretsStale", command=DOCTOR, page="/books"
            )


def _find_gas(facts: OverviewFacts) -> Iterator[OperatorFinding]:
    """A key whose balance was not read yet is not counted."""
    by_network: dict[str, list[GasKeyStatus]] = {}
    for key in facts.gas_keys:
        if key.balance_wei is not None:
            by_network.setdefault(format_network(key.chain_id), []).append(key)
    for network, keys in by_network.items():
        low = [key for key in keys if (key.balance_wei or 0) < GAS_FLOORS_MIN * key.floor_wei]
        if len(low) == len(keys):
            words = f"{network}: every gas key has less than {GAS_FLOORS_MIN} times its floor"
            yield OperatorFinding(severity=Severity.MONEY, text=words, alert="GasKeysLow", page="/gas")
            continue
        for key in low:
            words = f"{network}: the gas key {key.address} has less than {GAS_FLOORS_MIN} times its floor"
            yield OperatorFinding(severity=Severity.DEGRADED, text=words, alert="GasKeyLow", page="/gas")
    for spending in facts.gas_spending:
        if spending.spent_wei > GAS_BUDGET_USED_MAX * spending.budget_wei:
            share = spending.spent_wei / max(1, spending.budget_wei)
            words = f"{format_network(spending.chain_id)}: {share:.0%} of the gas budget of 24 hours is spent"
            yield OperatorFinding(severity=Severity.DEGRADED, text=words, alert="GasBudgetNear", page="/gas")


def _find_channels(facts: OverviewFacts) -> Iterator[OperatorFinding]:
    """Steps are counted by the gateway that leads the claims. A key whose balance was not read yet is not counted."""

    def finding(severity: Severity, words: str, alert: str, page: str = "/chains") -> OperatorFinding:
        return OperatorFinding(severity=severity, text=words, alert=alert, page=page)

    recent = facts.find_increase(EVENT_WINDOW_S)
    for one in facts.channels:
        name, figures, delay_s = one.network, one.figures, one.withdraw_delay_s
        if figures.withdrawal_s > WITHDRAWAL_DELAY_MAX * delay_s:
            words = f"{name}: a payer began {format_age(figures.withdrawal_s)} ago to withdraw from a channel that owes; the delay is {format_age(delay_s)}"
            yield finding(Severity.MONEY, words, "ChannelWithdrawal")
        if one.look_age_s is not None and one.look_age_s > CHANNEL_LOOK_DELAY_MAX * delay_s:
            words = f"{name}: no gateway has looked at the channels for {format_age(one.look_age_s)}, so they take no deposit"
            yield finding(Severity.MONEY, words, "ChannelsUnwatched")
        balances_wei = [
            key.balance_wei
            for key in facts.gas_keys
            if format_network(key.chain_id) == name and key.balance_wei is not None
        ]
        if balances_wei and max(balances_wei) < one.gas_reserve_wei:
            words = f"{name}: every gas key has less than the claims of its channels need"
            yield finding(Severity.MONEY, words, "ClaimGasLow", "/gas")
        for step in CHANNEL_CLAIM_STEPS:
            failed = sum(
                recent.channel_steps.get((name, step, outcome), 0) for outcome in CHANNEL_STEP_FAILURES
            )
            if failed:
                words = (
                    f"{name}: {failed:.0f} of the steps {step} on channels failed, in {recent.seconds:.0f} s"
                )
                yield finding(Severity.DEGRADED, words, "ChannelClaimsFail")
        if figures.unclaimed_ratio > CHANNEL_UNCLAIMED_MAX:
            words = f"{name}: a channel owes {figures.unclaimed_ratio:.0%} of its maximum, and claims do not keep up"
            yield finding(Severity.DEGRADED, words, "ChannelUnclaimedHigh")


def _find_rails(facts: OverviewFacts) -> Iterator[OperatorFinding]:
    for network in facts.networks:
        for gone in network["withdrawn"]:
            rails = ", ".join(gone["rails"])
            words = f"{network['name']}: {rails} withdrawn since {_shorten(gone['since'])} ({gone['reason']})"
            yield OperatorFinding(
                severity=Severity.DEGRADED, text=words, alert="RailWithdrawn", page="/chains"
            )


def _find_nodes(facts: OverviewFacts) -> Iterator[OperatorFinding]:
    recent, events = facts.find_increase(NODE_WINDOW_S), facts.find_increase(EVENT_WINDOW_S)
    for network in facts.nodes:
        sums = {node.number: _count_requests(recent, network.network, node.number) for node in network.nodes}
        is_any_well = any(total > failed for total, failed in sums.values())
        for node in network.nodes:
            name = f"{network.network}: node {node.number} ({node.host})"
            total, failed = sums[node.number]
            words = {}
            if is_any_well and failed > NODE_FAILURES_MAX * total:
                words["NodeBad"] = (
                    f"{name} failed {failed:.0f} of {total:.0f} requests in {recent.seconds:.0f} s"
                )
            head_s = node.status.head_time_s
            age_s = 0.0 if head_s is None else facts.now_ms / 1000 - head_s
            # A node that does not answer is bad, not behind.
            if total > failed and age_s > NODE_BLOCKS_BEHIND_MAX * network.block_s + NODE_HEAD_READ_S:
                words["NodeBehind"] = f"{name} answers, and its newest block is {age_s:.0f} s old"
            differs = events.node_disagreements.get((network.network, str(node.number)), 0)
            if differs:
                words["NodeDisagrees"] = (
                    f"{name} differed from nodes that agree. Times in {events.seconds:.0f} s: {differs:.0f}"
                )
            for alert, text in words.items():
                yield OperatorFinding(severity=Severity.DEGRADED, text=text, alert=alert, page="/chains")


def _count_requests(recent: MetricsSample, network: str, number: int) -> tuple[float, float]:
    """The requests to a node, and those that failed."""
    found = {
        labels[2]: count
        for labels, count in recent.node_requests.items()
        if labels[:2] == (network, str(number))
    }
    total = sum(found.values())
    return total, total - found.get("ok", 0)


def _find_slow(facts: OverviewFacts) -> Iterator[OperatorFinding]:
    def degraded(words: str, alert: str) -> OperatorFinding:
        return OperatorFinding(severity=Severity.DEGRADED, text=words, alert=alert, command=DOCTOR)

    overload = facts.find_increase(OVERLOAD_WINDOW_S)
    refused = overload.refusals.get(("overloaded",), 0)
    if refused > OVERLOADED_PER_S_MAX * overload.seconds:
        words = f"This gateway refused {refused:.0f} requests in {overload.seconds:.0f} s because it is full"
        yield degraded(words, "OverloadRefusals")
    for phase, p95_s in find_phases(facts.find_increase(CALL_PHASE_WINDOW_S)).items():
        if p95_s > CALL_PHASE_P95_MAX_S:
            yield degraded(
                f"One call of twenty spends more than {p95_s:.2f} s in the phase {phase}", "SlowCalls"
            )
    commit_s = find_quantile(0.99, DURATION_BUCKETS_S, facts.find_increase(COMMIT_WINDOW_S).commits)
    if commit_s is not None and commit_s > COMMIT_P99_MAX_S:
        yield degraded(f"One commit of a hundred takes more than {commit_s:.2f} s", "CommitsSlow")
    delay_s = find_quantile(0.99, DURATION_BUCKETS_S, facts.find_increase(LOOP_DELAY_WINDOW_S).loop_delay)
    if delay_s is not None and delay_s > LOOP_DELAY_P99_MAX_S:
        yield degraded(f"The event loop of this gateway is late by {delay_s:.2f} s", "LoopBlocked")
    events = facts.find_increase(EVENT_WINDOW_S)
    lapses = events.lease_lapses.get((), 0)
    if lapses:
        words = f"This gateway was paused for longer than its lease. Times in {events.seconds:.0f} s: {lapses:.0f}"
        yield degraded(words, "LeaseLapsed")


def _find_fleet(facts: OverviewFacts) -> Iterator[OperatorFinding]:
    fleet, now_s = facts.fleet, facts.now_ms / 1000

    def upkeep(words: str, alert: str, command: str, page: str = "") -> OperatorFinding:
        return OperatorFinding(severity=Severity.UPKEEP, text=words, alert=alert, command=command, page=page)

    if fleet.sales_hours_behind >= SALES_HOURS_BEHIND_MAX:
        words = f"Hours of sales that are due and not written: {fleet.sales_hours_behind}. Sums are read from the calls meanwhile"
        yield upkeep(words, "", DOCTOR)
    if fleet.audit_s is not None and now_s - fleet.audit_s > AUDIT_AGE_MAX_S:
        words = f"The last audit ended {format_age(now_s - fleet.audit_s)} ago"
        yield upkeep(words, "AuditOld", "tollway gateway audit", "/books")
    if fleet.backup_s is not None and now_s - fleet.backup_s > BACKUP_AGE_MAX_S:
        words = f"The last backup ended {format_age(now_s - fleet.backup_s)} ago"
        yield upkeep(words, "BackupOld", "tollway gateway backup")
    if fleet.secrets_stale:
        words = f"Encrypted values that need another key than the first: {fleet.secrets_stale}"
        yield upkeep(words, "SecretsStale", "tollway gateway secrets reencrypt", "/books")
    versions = sorted({one.build.version for one in facts.gateways if one.is_alive and one.build is not None})
    unknown = sum(1 for one in facts.gateways if one.is_alive and one.build is None)
    if len(versions) + bool(unknown) > 1:
        others = f" and {unknown} of an unknown version" if unknown else ""
        words = f"Gateways of different versions run: {', '.join(versions)}{others}"
        yield upkeep(words, "VersionsDiffer", DOCTOR)


# ---- Figures of the calls.


def count_own_failures(recent: MetricsSample) -> float:
    """Calls that failed because of the gateway."""
    return sum(recent.calls.get((code.value,), 0) for code in OWN_FAILURES)


def find_phases(recent: MetricsSample) -> dict[str, float]:
    """The p95 of each phase of a call in which it waits for neither a provider nor a chain, in seconds; without phases that did not happen."""
    found = {
        phase: find_quantile(0.95, DURATION_BUCKETS_S, buckets)
        for phase, buckets in recent.phases.items()
        if phase not in EXTERNAL_PHASES
    }
    return {phase: seconds for phase, seconds in found.items() if seconds is not None}


def _shorten(moment: str) -> str:
    """A moment of RFC 3339 to the minute."""
    return f"{moment[:10]} {moment[11:16]} UTC"


def format_age(seconds: float) -> str:
    for unit_s, unit in ((DAY_S, "d"), (HOUR_S, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
