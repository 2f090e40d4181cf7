"""Providers that register hostile endpoints, against a gateway with its production settings and no exemption, in a
network where every address is local: every connection is visible on the wire."""

from typing import Any

import pytest

from tests.system.attack import namespace

DEADLINE_S = 300.0


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one attack has tried, and what was dialled meanwhile."""
    reason = namespace.why_not()
    if reason is not None:
        pytest.skip(f"{reason}; tests/outbound holds the policy without a wire")
    folder = tmp_path_factory.mktemp("attack")
    told: dict[str, Any] = namespace.run_inside("outbound_inside", folder=folder, deadline_s=DEADLINE_S)
    return told


def of(report: dict[str, Any], what: str) -> dict[str, int]:
    """The outcomes of one kind of attempt."""
    prefix = what + ": "
    return {name.removeprefix(prefix): n for name, n in report["counts"].items() if name.startswith(prefix)}


def test_no_address_is_dialled_but_those_that_may_be(report):
    ours = {tuple(one) for one in report["ours"]} | {tuple(report["facilitator"])}
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


def test_only_the_configured_name_server_is_queried(report):
    assert {(address, port) for address, port, _ in report["asked"]} == {("127.0.0.1", 53)}


# ---- What the gateway fetches by itself. Where it went, says the first test.


def test_a_proof_of_ownership_is_not_fetched_from_a_forbidden_address(report):
    assert of(report, "ownership") == {"200 unreachable not_found unreachable": report["denied"]}


def test_a_proof_of_ownership_is_not_looked_for_where_a_redirect_leads(report):
    assert of(report, "ownership redirect") == {"200 not_found not_found not_found": report["redirects"]}


def test_a_document_is_not_imported_from_a_forbidden_address(report):
    assert of(report, "import port") == {"422": report["ports"]}
    assert of(report, "import redirect") == {"422": report["redirects"]}
    imports = of(report, "import")
    assert imports.pop("422") > 250
    assert imports == {}


def test_what_may_not_be_listed_may_not_be_edited_in(report):
    assert of(report, "edit") == {"422": report["some"] + report["ports"]}


def test_a_look_at_an_endpoint_judges_its_name_again(report):
    assert of(report, "look") == {"201": report["some"]}


def test_probes_judge_a_name_each_time(report):
    assert of(report, "probe call") == {"200": report["some"]}
    assert of(report, "probe") == {"names": report["some"]}


def test_a_facilitator_is_called_at_its_configured_url_only(report):
    assert tuple(report["facilitator"]) in {(address, port) for address, port, _ in report["dialled"]}


def test_no_reference_in_a_document_is_followed_not_even_to_its_name(report):
    references = of(report, "references")
    assert references.pop("201") == 1
    assert references.pop("tools") > 0
    assert references == {}
    assert report["canaries"][0] == 0


def test_no_redirect_is_followed_not_even_to_its_name(report):
    assert of(report, "import redirect")["422"] == of(report, "ownership redirect").popitem()[1] > 1
    assert report["canaries"][1] == 0
