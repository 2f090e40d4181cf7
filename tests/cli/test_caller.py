"""The commands of providers, and `tollway search` and `tollway show`, against a small gateway and node on loopback."""

import json

from typer.testing import CliRunner

from tollway.cli.main import make_app

PAYEE = "0x" + "22" * 20
PROBLEM = "application/problem+json"


def test_search_and_show_need_no_key(run, gateway):
    nothing = {"TOLLWAY_KEY_FILE": "", "TOLLWAY_RPC": ""}
    done = run("search", "quotes", "--tag", "t", env=nothing)
    assert json.loads(done.stdout)["total"] == 1
    assert gateway.seen[-1][1] == "/api/v2/apis?q=quotes&page=1&limit=20&tag=t"
    assert json.loads(run("show", "api_1", env=nothing).stdout)["id"] == "api_1"


def test_refusals_of_the_gateway_carry_its_problem(run, gateway):
    gateway.next_answer = (
        403,
        PROBLEM,
        json.dumps({"code": "not_provider", "detail": "Not yours."}).encode(),
    )
    done = run("listing", "publish", "--name", "x")
    assert done.exit_code == 1
    assert json.loads(done.stderr)["error"]["problem"]["code"] == "not_provider"


def test_no_command_takes_a_key_as_an_argument():
    for words in (["call"], ["listing", "publish"], ["listing", "edit"], ["history"], ["wallet", "new"]):
        shown = CliRunner().invoke(make_app(), [*words, "--help"]).stdout
        assert "--private-key" not in shown
        assert "--key " not in shown
