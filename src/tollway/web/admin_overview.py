"""The first page of the operator: its facts, read from the process and the database, its figures, and its gateways."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tollway.alert_limits import OWN_FAILURES_WINDOW_S
from tollway.errors import Code
from tollway.fleet import DutyLeader, EncryptedValues, GatewayRecord
from tollway.metric_table import DURATION_BUCKETS_S, OWN_FAILURES
from tollway.payments.gas import GasKeyStatus, GasSpending
from tollway.recent_metrics import MetricsSample, find_quantile
from tollway.telemetry import FleetFigures
from tollway.web.admin_chains import NetworkNodes
from tollway.web.admin_findings import (
    OverviewFacts,
    count,
    count_own_failures,
    find_findings,
    find_phases,
    format_age,
)
from tollway.web.network_routes import NetworkServices, describe_status
from tollway.web.problems import status_of
from tollway.web.query import format_time

_QUOTED = frozenset(code.value for code in Code if status_of(code) == status_of(Code.PAYMENT_REQUIRED))
_OTHER_FAILURES = frozenset(
    code.value
    for code in Code
    if status_of(code) >= status_of(Code.INTERNAL_ERROR) and code not in OWN_FAILURES
)
"""Server errors that are not the gateway's own: of providers, and refusals of load."""
_PHASE_WORDS = {"door": "request checks"}
"""Words for a phase whose name in the metrics does not say what it is."""


class FleetReader(Protocol):
    """Figures about all gateways, from the database. Raises `StorageUnavailable`."""

    async def read(self) -> FleetFigures: ...

    async def count_encrypted_values(self) -> tuple[EncryptedValues, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewServices:
    """The collaborators of the first page. `find_increase`: what the metrics of this process gained in a window of seconds. `find_risks`: warnings of doctor. Those that
    return an awaitable raise `StorageUnavailable`."""

    check_ready: Callable[[], Awaitable[Mapping[str, bool]]]
    networks: NetworkServices
    list_nodes: Callable[[], Sequence[NetworkNodes]]
    list_gas_keys: Callable[[], Sequence[GasKeyStatus]]
    list_gas_spending: Callable[[], Sequence[GasSpending]]
    fleet: FleetReader
    list_gateways: Callable[[], Awaitable[Sequence[GatewayRecord]]]
    find_leaders: Callable[[], Awaitable[Sequence[DutyLeader]]]
    count_held_payments: Callable[[], Awaitable[int]]
    count_suspended: Callable[[], Awaitable[int]]
    count_blocked: Callable[[], Awaitable[int]]
    count_in_flight: Callable[[], int]
    find_increase: Callable[[float], MetricsSample]
    find_risks: Callable[[], Awaitable[Sequence[str]]]
    own_id: str
    now_ms: Callable[[], int]


async def read_overview(services: OverviewServices) -> dict[str, Any]:
    """The page as JSON. Raises StorageUnavailable."""
    return overview_json(await read_facts(services), own_id=services.own_id)


async def read_facts(services: OverviewServices) -> OverviewFacts:
    """Raises StorageUnavailable."""
    return OverviewFacts(
        checks=await services.check_ready(),
        networks=describe_status(services.networks),
        nodes=services.list_nodes(),
        gas_keys=services.list_gas_keys(),
        gas_spending=services.list_gas_spending(),
        fleet=await services.fleet.read(),
        seals=await services.fleet.count_encrypted_values(),
        gateways=await services.list_gateways(),
        leaders=await services.find_leaders(),
        held_payments=await services.count_held_payments(),
        suspended=await services.count_suspended(),
        blocked=await services.count_blocked(),
        in_flight=services.count_in_flight(),
        find_increase=services.find_increase,
        risks=await services.find_risks(),
        now_ms=services.now_ms(),
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
