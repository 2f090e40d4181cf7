"""The figures of the operator's first page."""

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.web.operator.test_findings import BUILD, GATEWAY, LEADER, QUIET, STILL, times
from tollway.observability.alert_limits import SETTLING_AGE_MAX_S
from tollway.observability.fleet import DutyLeader
from tollway.observability.recent_metrics import MetricsSample
from tollway.web.operator.overview import (
    NORMAL,
    TREND_STEP_S,
    TREND_STEPS,
    find_outside,
    list_figures,
    list_trends,
    overview_json,
)

CALLS = {
    ("charged",): 50.0,
    ("payment_required",): 30.0,
    ("internal_error",): 1.0,
    ("upstream_timeout",): 2.0,
    ("overloaded",): 7.0,
}


def test_figures_of_the_last_minutes_are_of_calls_by_outcome() -> None:
    recent = replace(
        STILL,
        calls=CALLS,
        upstream=times(100, bound=0.5),
        phases={
            "claim": times(100, bound=0.005),
            "read_head": times(0, bound=0.005),
            "settle": times(100, bound=5),
        },
    )
    figures = list_figures(replace(QUIET, find_increase=lambda _: recent))
    assert {name: figures[name] for name in figures if name in EXPECTED} == EXPECTED


EXPECTED = {
    "window": "5 min",
    "callsPerSecond": "0.30",
    "paymentRequiredPerSecond": "0.10",
    "ownFailures": "1 of 90",
    "otherFailures": "9 of 90",
    "upstreamP95": "738 ms",
    "ownP95": "10 ms (claim)",
    "gatewaysAlive": "1",
}


def test_the_first_phase_is_shown_in_words() -> None:
    recent = replace(STILL, phases={"read_head": times(100, bound=0.005)})
    figures = list_figures(replace(QUIET, find_increase=lambda _: recent))
    assert figures["ownP95"] == "10 ms (request checks)"


def test_without_calls_nothing_is_divided_by_zero() -> None:
    figures = list_figures(replace(QUIET, find_increase=lambda _: replace(STILL, seconds=0)))
    assert (figures["callsPerSecond"], figures["ownFailures"]) == ("0.00", "0 of 0")
    assert (figures["upstreamP95"], figures["ownP95"]) == ("–", "–")


def test_each_gateway_has_its_release_and_what_it_leads() -> None:
    older = replace(GATEWAY, owner_id="b", build=None, is_alive=False, started_ms=1)
    leaders = [
        LEADER,
        DutyLeader(duty="sweeper", is_led=True, owner_id="a"),
        DutyLeader(duty="webhooks", is_led=True),
    ]
    facts = replace(QUIET, gateways=[older, GATEWAY], leaders=leaders)
    here, there = overview_json(facts, own_id="a")["gateways"]
    assert (here["name"], here["version"], here["schema"]) == (BUILD.name, BUILD.version, BUILD.schema)
    assert (here["isThis"], here["isAlive"], here["leads"]) == (True, True, "watcher, sweeper")
    assert (there["version"], there["isThis"], there["isAlive"], there["leads"]) == (None, False, False, "–")


def test_a_figure_has_its_trend_of_the_last_hour_and_what_it_usually_is() -> None:
    """Each step of five minutes has one call a second more than the one before, from 1 to 12."""

    def find_window(seconds: float) -> MetricsSample:
        steps = range(TREND_STEPS - round(seconds / TREND_STEP_S) + 1, TREND_STEPS + 1)
        return replace(STILL, seconds=seconds, calls={("charged",): TREND_STEP_S * sum(steps)})

    trend = list_trends(find_window)["callsPerSecond"]
    assert trend["usual"] == "6.50"
    heights = [float(one) for one in re.findall(r"v-([0-9.]+)h", trend["outline"])]
    assert len(heights) == TREND_STEPS
    assert heights == sorted(heights)
    assert list_trends(find_window)["otherFailures"] == {"usual": "0", "outline": ""}


def test_a_gateway_that_has_just_started_has_no_trend() -> None:
    trends = list_trends(lambda seconds: replace(STILL, seconds=min(seconds, 200.0), calls=CALLS))
    assert trends["callsPerSecond"] == {"usual": None, "outline": ""}
    assert list_trends(lambda seconds: replace(STILL, seconds=seconds))["upstreamP95"]["usual"] is None


@pytest.mark.parametrize(
    ("changes", "outside"),
    [
        ({}, set()),
        ({"find_increase": lambda _: replace(STILL, calls={("charged",): 1_000.0})}, set()),
        ({"find_increase": lambda _: replace(STILL, calls={("internal_error",): 1.0})}, {"ownFailures"}),
        ({"find_increase": lambda _: replace(STILL, phases={"claim": times(100, bound=5)})}, {"ownP95"}),
        ({"held_payments": 1}, {"heldPayments"}),
        ({"fleet": replace(QUIET.fleet, open_calls={"unknown": (1, 0.0)})}, {"unknownCalls"}),
        ({"fleet": replace(QUIET.fleet, open_calls={"settling": (9, SETTLING_AGE_MAX_S)})}, set()),
        (
            {"fleet": replace(QUIET.fleet, open_calls={"settling": (1, SETTLING_AGE_MAX_S + 1)})},
            {"settlingCalls"},
        ),
    ],
)
def test_a_figure_above_its_normal_range_is_marked(changes: dict[str, Any], outside: set[str]) -> None:
    well = replace(QUIET, fleet=replace(QUIET.fleet, open_calls={}))
    found = find_outside(replace(well, **changes), findings=0)
    assert set(found) == set(NORMAL)
    assert {name for name, is_outside in found.items() if is_outside} == outside
    assert find_outside(well, findings=1)["findings"]


def test_a_renewal_is_shown_as_its_age() -> None:
    facts = replace(QUIET, gateways=[replace(GATEWAY, seen_ms=QUIET.now_ms - 9_000)])
    assert overview_json(facts, own_id="a")["gateways"][0]["lastRenewal"] == "9 s ago"
