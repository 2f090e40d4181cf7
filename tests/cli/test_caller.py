"""The commands of providers, and `tollway search` and `tollway show`, against a small gateway and node on loopback."""

import json

from typer.testing import CliRunner

from tollway.cli.main import make_app

PAYEE = "0x" + "22" * 20
PROBLEM = "application/problem+json"


LISTED = {
    "id": "api_9",
    "name": "A",
    "provider": PAYEE,
    "payTo": "0x" + "33" * 20,
    "description": "Weather.",
    "tags": ["x"],
    "methods": [],
    "operations": [{"method": "GET", "path": "/a", "pricePerRequest": "0.05"}],
    "otherPaths": "serve",
    "chargeOn": "success",
    "timeoutSeconds": 30,
    "forwardHeaders": [],
    "upstreamAuth": {"in": "header", "name": "X-Key", "set": True},
    "signature": "any",
    "rateLimit": {"calls": 1, "perSeconds": 1},
    "status": "paused",
    "forwardSignature": "none",
}
DROPPED = ("description", "tags", "operations", "rateLimit", "status", "forwardSignature", "payTo")


def test_an_update_drops_nothing_that_it_was_not_told_to_drop(run, gateway):
    gateway.listing = LISTED
    done = run("listing", "publish", "--update", "api_9", "--name", "B")
    assert done.exit_code == 2
    error = json.loads(done.stderr)["error"]
    assert error["code"] == "update_drops_fields"
    for name in DROPPED:
        assert f"--reset {name}" in error["detail"]
    assert "upstreamAuth" not in error["detail"]  # which a gateway keeps
    assert [method for method, *_ in gateway.seen] == ["GET"]


def test_an_update_may_omit_members_that_it_resets(run, gateway):
    gateway.listing = LISTED
    words = [word for name in DROPPED[2:] for word in ("--reset", name)]
    done = run(
        "listing", "publish", "--update", "api_9", "--name", "B", "--description", "", "--tag", "y", *words
    )
    assert done.exit_code == 0, done.output
    assert json.loads(gateway.seen[-1][3]) == {"name": "B", "description": "", "tags": ["y"]}
    done = run(
        "listing",
        "publish",
        "--update",
        "api_9",
        "--name",
        "B",
        "--reset",
        "upstreamAuth",
        "--reset",
        "description",
        "--tag",
        "y",
        *words,
    )
    assert json.loads(gateway.seen[-1][3]) == {"name": "B", "tags": ["y"], "upstreamAuth": None}
    assert run("listing", "publish", "--update", "api_9", "--name", "B", "--reset", "tag").exit_code == 2
    assert run("listing", "publish", "--name", "B", "--reset", "tags").exit_code == 2


def test_an_update_keeps_members_of_the_file(run, gateway, tmp_path):
    gateway.listing = LISTED
    file = tmp_path / "listing.json"
    file.write_text(json.dumps({name: LISTED[name] for name in DROPPED}))
    assert run("listing", "publish", "--update", "api_9", "-f", str(file), "--name", "B").exit_code == 0


def test_publish_takes_options_over_a_file(run, gateway, tmp_path):
    file = tmp_path / "draft.toml"
    file.write_text(
        'name = "A"\ncurrency = "USDC"\nendpoint = "https://x.test"\n[upstreamAuth]\nin = "header"\n'
    )
    done = run(
        "listing", "publish", "-f", str(file), "--price", "0.01", "--name", "B", "--tag", "x", "--tag", "y"
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["id"] == "api_9"
    method, path, headers, body = gateway.seen[-1]
    assert (method, path) == ("POST", "/api/v2/apis")
    assert "signature" in headers
    assert json.loads(body) == {
        "name": "B",
        "currency": "USDC",
        "endpoint": "https://x.test",
        "upstreamAuth": {"in": "header"},
        "pricePerRequest": "0.01",
        "tags": ["x", "y"],
    }
    assert run("listing", "publish", "--dry-run", "--name", "B").exit_code == 0
    assert gateway.seen[-1][1] == "/api/v2/apis?dryRun=true"
    assert run("listing", "publish", "--update", "api_9", "--name", "B", "--description", "C").exit_code == 0
    assert gateway.seen[-1][:2] == ("PUT", "/api/v2/apis/api_9")


def test_publish_refuses_nothing_and_nonsense(run, tmp_path):
    (tmp_path / "x.json").write_text("[1]")
    for words in ([], ["-f", str(tmp_path / "x.json")], ["-f", str(tmp_path / "none.json")]):
        assert run("listing", "publish", *words).exit_code == 2
    assert run("listing", "publish", "--name", "x", env={"TOLLWAY_KEY_FILE": ""}).exit_code == 2


def test_search_and_show_need_no_key(run, gateway):
    nothing = {"TOLLWAY_KEY_FILE": "", "TOLLWAY_RPC": ""}
    done = run("search", "quotes", "--tag", "t", env=nothing)
    assert json.loads(done.stdout)["total"] == 1
    assert gateway.seen[-1][1] == "/api/v2/apis?q=quotes&sort=relevance&page=1&limit=20&tag=t"
    assert json.loads(run("show", "api_1", env=nothing).stdout)["id"] == "api_1"


def test_refusals_of_the_gateway_carry_its_problem(run, gateway):
    gateway.next_answer = (
        403,
        PROBLEM,
        json.dumps({"code": "not_provider", "detail": "Not yours."}).encode(),
    )
    done = run("listing", "publish", "--update", "api_1", "--name", "x")
    assert done.exit_code == 1
    assert json.loads(done.stderr)["error"]["problem"]["code"] == "not_provider"


def test_no_command_takes_a_key_as_an_argument():
    for words in (["call"], ["listing", "publish"], ["history"], ["wallet", "new"]):
        shown = CliRunner().invoke(make_app(), [*words, "--help"]).stdout
        assert "--private-key" not in shown
        assert "--key " not in shown
