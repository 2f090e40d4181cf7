"""The figures of the operator's first page."""

from dataclasses import replace

from tests.web.operator.test_findings import BUILD, GATEWAY, LEADER, QUIET, STILL, times
from tollway.observability.fleet import DutyLeader
from tollway.web.operator.overview import list_figures, overview_json

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
