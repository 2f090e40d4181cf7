"""What the operator's first page names, as a table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.web.test_history_routes import CALL
from tollway.web.admin_views import SETTLING_LATE_S, OverviewFacts, find_findings, list_figures

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
NOW_MS = 1_800_000_000_000
CHAIN = {"name": "Base", "reachable": True, "withdrawn": []}
AWAY = {**CHAIN, "reachable": False, "unreachableSince": "2026-01-01T00:00:00Z"}
GONE = {**CHAIN, "withdrawn": [{"rails": ["x402"], "reason": "gas_low", "since": "2026-01-01T00:00:00Z"}]}
QUIET = OverviewFacts(
    checks={"storage": True, "background": True, "load": True},
    networks=[CHAIN],
    unknown=(),
    settling=(),
    held_payments=0,
    suspended=0,
    blocked=0,
    gateways=(2, 3),
    in_flight=0,
    now_ms=NOW_MS,
)
LATE_MS = NOW_MS - SETTLING_LATE_S * 1000


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"checks": {"storage": False}}, [("stopped", "StorageAway")]),
        ({"checks": {"background": False}}, [("stopped", "TollwayDown")]),
        ({"checks": {"load": False}}, [("stopped", "OverloadRefusals")]),
        ({"networks": [AWAY]}, [("stopped", "ChainAway")]),
        ({"networks": [GONE]}, [("degraded", "RailWithdrawn")]),
        ({"held_payments": 1}, [("money", "DatabaseWentBack")]),
        ({"unknown": (replace(CALL, created_ms=NOW_MS),)}, [("money", "HeldMoneyOld")]),
        ({"settling": (replace(CALL, created_ms=LATE_MS),)}, []),
        ({"settling": (replace(CALL, created_ms=LATE_MS - 1),)}, [("money", "SettlementsUndecided")]),
        (
            {"networks": [GONE, AWAY], "held_payments": 1, "checks": {"storage": False}},
            [
                ("stopped", "StorageAway"),
                ("stopped", "ChainAway"),
                ("money", "DatabaseWentBack"),
                ("degraded", "RailWithdrawn"),
            ],
        ),
    ],
)
def test_names_what_needs_an_operator_the_worst_first(
    changes: dict[str, Any], found: list[tuple[str, str]]
) -> None:
    findings = find_findings(replace(QUIET, **changes))
    assert [(finding.level, finding.alert) for finding in findings] == found
    assert all(finding.text and (finding.command or finding.page) for finding in findings)
    assert all((RUNBOOKS / f"{finding.alert}.md").exists() for finding in findings)


def test_a_figure_at_its_limit_is_a_lower_bound() -> None:
    facts = replace(QUIET, held_payments=10_000, unknown=(replace(CALL, created_ms=NOW_MS),) * 100)
    figures = list_figures(facts)
    assert (figures["heldPayments"], figures["unknownCalls"]) == ("at least 10000", "at least 100")
    assert figures["gatewaysAlive"] == "2 of 3"
