"""What the operator's pages show, from the facts of one gateway and of the ledger. Pure.

A finding is a state that needs an operator. The worst come first: stopped work, then money that waits, then degraded service.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tollway.ledger.records import CallRecord
from tollway.registry.text import drop_refused_characters
from tollway.web.query import format_time

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
SETTLING_LATE_S = 600
"""The age from which a settlement needs an operator."""


class Severity(IntEnum):
    STOPPED = 0
    MONEY = 1
    DEGRADED = 2


SEVERITY_NAMES = {Severity.STOPPED: "stopped", Severity.MONEY: "money", Severity.DEGRADED: "degraded"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFinding:
    """`alert`: the alert whose runbook covers it. `command`: the first thing to run; empty where a page does it. `page`: the page with more."""

    severity: Severity
    text: str
    alert: str
    command: str = ""
    page: str = ""

    @property
    def level(self) -> str:
        return SEVERITY_NAMES[self.severity]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewFacts:
    """`checks`: of `/readyz`. `networks`: as `GET /status` describes them. `unknown`, `settling`: open calls, the oldest first. `gateways`: alive, recorded."""

    checks: Mapping[str, bool]
    networks: Sequence[Mapping[str, Any]]
    unknown: Sequence[CallRecord]
    settling: Sequence[CallRecord]
    held_payments: int
    suspended: int
    blocked: int
    gateways: tuple[int, int]
    in_flight: int
    now_ms: int


def find_findings(facts: OverviewFacts) -> tuple[OperatorFinding, ...]:
    """All findings, the worst first; within a severity in the order of this function."""
    found: list[OperatorFinding] = []
    for name, (words, alert, command) in CHECK_TEXTS.items():
        if not facts.checks.get(name, True):
            found.append(OperatorFinding(severity=Severity.STOPPED, text=words, alert=alert, command=command))
    for network in facts.networks:
        if not network["reachable"]:
            since = network.get("unreachableSince")
            words = f"No node of {network['name']} responds" + (f" since {since}" if since else "")
            found.append(
                OperatorFinding(severity=Severity.STOPPED, text=words, alert="ChainAway", page="/chains")
            )
    found += _find_money(facts)
    for network in facts.networks:
        for gone in network["withdrawn"]:
            rails = ", ".join(gone["rails"])
            words = f"{network['name']}: {rails} withdrawn since {gone['since']} ({gone['reason']})"
            found.append(
                OperatorFinding(severity=Severity.DEGRADED, text=words, alert="RailWithdrawn", page="/chains")
            )
    return tuple(sorted(found, key=lambda finding: finding.severity))


def _find_money(facts: OverviewFacts) -> list[OperatorFinding]:
    found = []
    if facts.held_payments:
        words = f"{_count(facts.held_payments, 10_000)} payments are held, after a restore or because nodes disagree"
        found.append(
            OperatorFinding(severity=Severity.MONEY, text=words, alert="DatabaseWentBack", page="/books")
        )
    late = [call for call in facts.settling if facts.now_ms - call.created_ms > SETTLING_LATE_S * 1000]
    if late:
        words = f"{_count(len(late), 100)} settlements have waited for more than ten minutes"
        found.append(
            OperatorFinding(severity=Severity.MONEY, text=words, alert="SettlementsUndecided", page="/calls")
        )
    if facts.unknown:
        words = (
            f"{_count(len(facts.unknown), 100)} calls have an unknown outcome, the oldest since "
            f"{format_time(facts.unknown[0].created_ms)}; their providers decide them"
        )
        found.append(
            OperatorFinding(severity=Severity.MONEY, text=words, alert="HeldMoneyOld", page="/calls")
        )
    return found


def _count(number: int, limit: int) -> str:
    return f"at least {limit}" if number >= limit else str(number)


def list_figures(facts: OverviewFacts) -> dict[str, str]:
    """The figures of the first page, by the names that `live.js` finds in it."""
    alive, recorded = facts.gateways
    return {
        "inFlight": str(facts.in_flight),
        "gatewaysAlive": f"{alive} of {recorded}",
        "unknownCalls": _count(len(facts.unknown), 100),
        "settlingCalls": _count(len(facts.settling), 100),
        "heldPayments": _count(facts.held_payments, 10_000),
        "suspendedListings": str(facts.suspended),
        "blockedWallets": str(facts.blocked),
        "asOf": format_time(facts.now_ms),
    }


def overview_json(facts: OverviewFacts) -> dict[str, Any]:
    return {
        "figures": list_figures(facts),
        "findings": [
            {
                "level": finding.level,
                "text": finding.text,
                "alert": finding.alert,
                "command": finding.command or None,
                "page": finding.page or None,
            }
            for finding in find_findings(facts)
        ],
    }


def show_line(text: str) -> str:
    """A provider's or an operator's words in one line, without hidden characters, for a page that escapes them. What an operator moderates keeps its markup, as text."""
    return " ".join(drop_refused_characters(text).split())


def call_json(call: CallRecord) -> dict[str, Any]:
    """An open call for an operator: where its price goes, and what it waits for."""
    return {
        "id": call.id,
        "listing": call.listing_id,
        "listingName": show_line(call.listing_name),
        "provider": str(call.provider),
        "payer": None if call.payer is None else str(call.payer),
        "price": call.price,
        "currency": call.currency,
        "rail": call.rail.value,
        "transaction": None if call.tx_hash is None else str(call.tx_hash),
        "since": format_time(call.created_ms),
        "heldUntil": None if call.held_until_ms is None else format_time(call.held_until_ms),
        "error": None if call.error is None else show_line(call.error),
    }
