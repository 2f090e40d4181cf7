"""The first page of the operator: its facts, read from the process and the database, its figures, and its gateways."""

from collections.abc import Collection
from typing import Any

from tollway.errors import Code
from tollway.observability.alert_limits import OWN_FAILURES_WINDOW_S
from tollway.observability.fleet import GatewayRecord
from tollway.observability.metric_table import DURATION_BUCKETS_S, OWN_FAILURES
from tollway.observability.recent_metrics import MetricsSample, find_quantile
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

_QUOTED = frozenset(code.value for code in Code if status_of(code) == status_of(Code.PAYMENT_REQUIRED))
_OTHER_FAILURES = frozenset(
    code.value
    for code in Code
    if status_of(code) >= status_of(Code.INTERNAL_ERROR) and code not in OWN_FAILURES
)
"""Server errors that are not the gateway's own: of providers, and refusals of load."""
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
        "asOf": format_time(facts.now_ms),
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
        "ownP95": "–"
        if slowest is None
        else f"{_format_s(phases[slowest])} ({_PHASE_WORDS.get(slowest, slowest)})",
    }


def _count(recent: MetricsSample, outcomes: Collection[str]) -> float:
    return sum(number for (outcome,), number in recent.calls.items() if outcome in outcomes)


def _format_s(seconds: float | None) -> str:
    if seconds is None:
        return "–"
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
        "lastRenewal": format_time(one.seen_ms),
        "leads": ", ".join(duties) or "–",
    }
