"""The first page of the operator: its facts, read from the process and the database, its figures with their trend over the last hour, and its gateways."""

from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median
from typing import Any

from tollway.errors import Code
from tollway.observability.alert_limits import (
    CALL_PHASE_P95_MAX_S,
    OWN_FAILURES_MAX,
    OWN_FAILURES_WINDOW_S,
    SETTLING_AGE_MAX_S,
)
from tollway.observability.fleet import GatewayRecord
from tollway.observability.metric_table import DURATION_BUCKETS_S, OWN_FAILURES
from tollway.observability.recent_metrics import (
    SAMPLE_INTERVAL_S,
    MetricsSample,
    find_increase,
    find_quantile,
)
from tollway.web.api.network_routes import describe_status
from tollway.web.http.problems import status_of
from tollway.web.http.query import format_time
from tollway.web.operator.findings import (
    OverviewFacts,
    count,
    count_own_failures,
    find_findings,
    find_phases,
    format_age,
)
from tollway.web.operator.operator_context import AdminContext
from tollway.web.pages.chart_svg import outline_spark

_QUOTED = frozenset(code.value for code in Code if status_of(code) == status_of(Code.PAYMENT_REQUIRED))
_OTHER_FAILURES = frozenset(
    code.value
    for code in Code
    if status_of(code) >= status_of(Code.INTERNAL_ERROR) and code not in OWN_FAILURES
)
"""Server errors that are not the gateway's own: of providers, and refusals of load."""
TREND_STEPS, TREND_STEP_S = 12, 300.0
"""The last hour, as steps of five minutes."""
NO_VALUE = "–"
Measure = Callable[[MetricsSample], float]
_PHASE_WORDS = {"read_head": "request checks"}
"""Words for a phase whose name in the metrics does not say what it is."""


async def read_overview(context: AdminContext) -> dict[str, Any]:
    """The page as JSON. Raises StorageUnavailable."""
    return overview_json(await read_facts(context), own_id=context.own_id)


async def read_facts(context: AdminContext) -> OverviewFacts:
    """Raises StorageUnavailable."""
    return OverviewFacts(
        checks=await context.check_ready(),
        networks=describe_status(context.web),
        nodes=context.list_nodes(),
        channels=await context.list_channels(),
        gas_keys=context.list_gas_keys(),
        gas_spending=context.list_gas_spending(),
        fleet=await context.fleet.read(),
        encrypted_values=await context.fleet.count_encrypted_values(),
        gateways=await context.list_gateways(),
        leaders=await context.find_leaders(),
        held_payments=await context.open_calls.count_held_payments(),
        suspended=len(await context.web.catalog.list_suspended()),
        blocked=len(await context.moderation.list_blocked()),
        in_flight=context.count_in_flight(),
        find_increase=context.find_increase,
        risks=await context.find_risks(),
        now_ms=context.web.now_ms(),
    )


def overview_json(facts: OverviewFacts, *, own_id: str) -> dict[str, Any]:
    """The page as JSON. `own_id`: the gateway that answers."""
    findings = find_findings(facts)
    return {
        "figures": {**list_figures(facts), "findings": str(len(findings))},
        "trends": list_trends(facts.find_increase),
        "normal": NORMAL,
        "outside": find_outside(facts, findings=len(findings)),
        # The order of their starts: a row of the page stays the row of its gateway while figures are refreshed.
        "gateways": [
            _gateway_json(one, facts, own_id=own_id)
            for one in sorted(facts.gateways, key=lambda one: (one.started_ms, one.owner_id))
        ],
        "findings": [
            {
                "level": finding.level,
                "text": finding.text,
                "alert": finding.alert or None,
                "command": finding.command or None,
                "page": finding.page or None,
            }
            for finding in findings
        ],
    }


def list_figures(facts: OverviewFacts) -> dict[str, str]:
    """The figures of the first page, as text."""
    alive = sum(one.is_alive for one in facts.gateways)
    return {
        **_list_traffic(facts.find_increase(OWN_FAILURES_WINDOW_S)),
        "inFlight": str(facts.in_flight),
        "gatewaysAlive": str(alive),
        "unknownCalls": count(facts.fleet.open_calls.get("unknown", (0, 0.0))[0], 10_000),
        "settlingCalls": count(facts.fleet.open_calls.get("settling", (0, 0.0))[0], 10_000),
        "heldPayments": count(facts.held_payments, 10_000),
        "suspendedListings": str(facts.suspended),
        "blockedWallets": str(facts.blocked),
        "asOf": f"{format_time(facts.now_ms)[11:19]} UTC",
    }


NORMAL: Mapping[str, str] = {
    "ownFailures": f"{OWN_FAILURES_MAX:.0%}",
    "ownP95": f"{CALL_PHASE_P95_MAX_S * 1000:.0f} ms",
    "findings": "0",
    "unknownCalls": "0",
    "settlingCalls": f"{SETTLING_AGE_MAX_S // 60:.0f} min",
    "heldPayments": "0",
}
"""What a figure is at most while all is well: the limits of the alerts; for settling calls the age of each."""


def find_outside(facts: OverviewFacts, *, findings: int) -> dict[str, bool]:
    """Of each figure of `NORMAL`: whether it is above what it is while all is well."""
    recent = facts.find_increase(OWN_FAILURES_WINDOW_S)
    settling, settling_s = facts.fleet.open_calls.get("settling", (0, 0.0))
    return {
        "ownFailures": count_own_failures(recent) > OWN_FAILURES_MAX * recent.calls_count,
        "ownP95": _find_own_p95(recent) > CALL_PHASE_P95_MAX_S,
        "findings": findings > 0,
        "unknownCalls": facts.fleet.open_calls.get("unknown", (0, 0.0))[0] > 0,
        "settlingCalls": settling > 0 and settling_s > SETTLING_AGE_MAX_S,
        "heldPayments": facts.held_payments > 0,
    }


def list_trends(find_window: Callable[[float], MetricsSample]) -> dict[str, dict[str, str | None]]:
    """Of each figure of the traffic that changes: what it usually is (the median of the steps; None where that has no value), and the outline of its small picture.
    Empty before the first two steps."""
    steps = _split_hour(find_window)
    if len(steps) < 2:
        return {name: {"usual": None, "outline": ""} for name in _TRENDS}
    return {
        name: _describe_trend([measure(step) for step in steps], show)
        for name, (measure, show) in _TRENDS.items()
    }


def _describe_trend(values: Sequence[float], show: Callable[[float], str]) -> dict[str, str | None]:
    usual = show(median(values))
    return {"usual": None if usual == NO_VALUE else usual, "outline": outline_spark(values)}


def _split_hour(find_window: Callable[[float], MetricsSample]) -> list[MetricsSample]:
    """What the metrics gained in each step of the last hour since the start, the oldest first."""
    steps: list[MetricsSample] = []
    newer: MetricsSample | None = None
    for number in range(1, TREND_STEPS + 1):
        window = find_window(number * TREND_STEP_S)
        step = window if newer is None else find_increase(newer, window)
        if step.seconds < SAMPLE_INTERVAL_S:
            break
        steps.append(step)
        newer = window
    return steps[::-1]


def _find_own_p95(step: MetricsSample) -> float:
    return max(find_phases(step).values(), default=0.0)


def _show_rate(value: float) -> str:
    return f"{value:.2f}"


_TRENDS: Mapping[str, tuple[Measure, Callable[[float], str]]] = {
    "callsPerSecond": (lambda step: step.calls_count / step.seconds, _show_rate),
    "paymentRequiredPerSecond": (lambda step: _count(step, _QUOTED) / step.seconds, _show_rate),
    "ownFailures": (count_own_failures, "{:.0f}".format),
    "otherFailures": (lambda step: _count(step, _OTHER_FAILURES), "{:.0f}".format),
    "upstreamP95": (
        lambda step: find_quantile(0.95, DURATION_BUCKETS_S, step.upstream) or 0.0,
        lambda value: _format_s(value or None),
    ),
    "ownP95": (_find_own_p95, lambda value: _format_s(value or None)),
}


def _list_traffic(recent: MetricsSample) -> dict[str, str]:
    """What this gateway did in the last minutes."""
    seconds, total = max(recent.seconds, 1.0), recent.calls_count
    upstream_s = find_quantile(0.95, DURATION_BUCKETS_S, recent.upstream)
    phases = find_phases(recent)
    slowest = max(phases, key=lambda phase: phases[phase], default=None)
    return {
        "window": format_age(recent.seconds),
        "callsPerSecond": f"{total / seconds:.2f}",
        "paymentRequiredPerSecond": f"{_count(recent, _QUOTED) / seconds:.2f}",
        "ownFailures": f"{count_own_failures(recent):.0f} of {total:.0f}",
        "otherFailures": f"{_count(recent, _OTHER_FAILURES):.0f} of {total:.0f}",
        "upstreamP95": _format_s(upstream_s),
        "ownP95": NO_VALUE
        if slowest is None
        else f"{_format_s(phases[slowest])} ({_PHASE_WORDS.get(slowest, slowest)})",
    }


def _count(recent: MetricsSample, outcomes: Collection[str]) -> float:
    return sum(number for (outcome,), number in recent.calls.items() if outcome in outcomes)


def _format_s(seconds: float | None) -> str:
    if seconds is None:
        return NO_VALUE
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _gateway_json(one: GatewayRecord, facts: OverviewFacts, *, own_id: str) -> dict[str, Any]:
    """A gateway. `name`, `version` and `schema` None: its release writes none. A duty whose leader has no id is named with no gateway."""
    build = one.build
    duties = [leader.duty for leader in facts.leaders if leader.owner_id == one.owner_id]
    return {
        "id": one.owner_id,
        "isThis": one.owner_id == own_id,
        "name": None if build is None else build.name,
        "version": None if build is None else build.version,
        "schema": None if build is None else build.schema,
        "isAlive": one.is_alive,
        "since": format_time(one.started_ms),
        "lastRenewal": f"{format_age(max(0, facts.now_ms - one.seen_ms) / 1000)} ago",
        "leads": ", ".join(duties) or NO_VALUE,
    }
