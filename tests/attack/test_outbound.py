"""Providers who register whatever they like, against a gateway with its production settings and no exemption, in a network
where every address of the world is local: what is dialled is seen on the wire.
"""

from typing import Any

import pytest
import tollway_attack_namespace as namespace

DEADLINE_S = 300.0


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one attack has tried, and what was dialled meanwhile."""
    reason = namespace.why_not()
    if reason is not None:
        pytest.skip(f"{reason}; tests/outbound holds the policy without a wire")
    folder = tmp_path_factory.mktemp("attack")
    told: dict[str, Any] = namespace.run_inside("outbound_inside.py", folder=folder, deadline_s=DEADLINE_S)
    return told


def of(report: dict[str, Any], what: str) -> dict[str, int]:
    """The outcomes of one kind of attempt."""
    prefix = what + ": "
    return {name.removeprefix(prefix): n for name, n in report["counts"].items() if name.startswith(prefix)}


def test_no_address_is_dialled_but_those_that_may_be(report):
    ours = {tuple(one) for one in report["ours"]}
    dialled = {(address, port) for address, port, _ in report["dialled"]} - ours
    assert {port for _, port in dialled} == {80}
    assert {address for address, _ in dialled} == set(report["allowed"])


def test_more_than_sixty_addresses_are_denied_and_twelve_allowed(report):
    assert report["denied"] >= 60
    assert of(report, "denied address") == {"registered 422": 2 * report["denied"]}
    allowed = len(report["allowed"])
    assert allowed >= 12
    assert of(report, "allowed address") == {"registered 201": allowed, "called 200": allowed}


def test_two_hundred_spellings_lead_nowhere(report):
    assert report["spellings"] >= 200
    assert of(report, "spelling") == {"registered 422": report["spellings"]}


@pytest.mark.parametrize("kind", ["mixed", "chain", "embedded", "private"])
def test_a_name_with_one_denied_address_is_refused_however_it_leads_there(report, kind):
    assert of(report, f"{kind} name") == {"registered 422": 30}


def test_names_that_answer_too_much_nothing_or_never_are_refused(report):
    assert (
        of(report, "huge name") == of(report, "slow name") == of(report, "no name") == {"registered 422": 1}
    )
    assert of(report, "good name") == {"registered 201": 10, "called 200": 10}


def test_a_thousand_calls_to_names_that_change_reach_no_denied_address(report):
    calls = of(report, "rebinding")
    assert calls.pop("registered") == 50
    assert calls.pop("called") == 1_000
    assert set(calls) == {"called 200", "called 502"}
    assert calls["called 502"] > 0, "the names have answered with what is denied"
    assert report["rebound"] > 500, "each new connection asks again"


def test_privileged_ports_redirects_and_proxies_of_the_environment_are_not_followed(report):
    assert of(report, "port") == {"registered 422": 10}
    assert of(report, "redirect") == {"called 302": 1}


def test_the_gateway_does_not_call_itself(report):
    assert of(report, "ourselves by name") == {"registered 422": 2}
    assert of(report, "loop") == {"called 508": 1}


def test_documents_are_fetched_the_same_way(report):
    assert set(of(report, "document")) == {"registered 422"}
