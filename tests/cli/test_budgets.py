"""`tollway budget set`, `show`, `revoke`, `accept`: what they sign and send, and what a terminal shows."""

import json
from typing import Any

import pytest

from tollway.cli.budgets import _print_budget, _print_budgets
from tollway.identity.signatures import parse_signature, recover
from tollway.ids import Address
from tollway.spending_policy import (
    acceptance_digest,
    policy_digest,
    read_policy,
    revocation_digest,
    unbinding_digest,
)

OTHER = "0x" + "22" * 20
BUDGET = {
    "owner": OTHER,
    "agent": OTHER,
    "state": "pending",
    "isBound": False,
    "policy": {"currency": "USDC", "notAfter": 1_798_761_600},
    "spent": {"hour": "0", "day": "0.8", "month": "0.8", "total": "0.8"},
    "left": [{"limit": "maxPerDay", "amount": "4.2", "resetsAt": "2026-11-22T00:00:00.000Z"}],
}


@pytest.fixture(autouse=True)
def budgets(gateway: Any) -> None:
    gateway.budgets = {"budgets": [BUDGET]}


def sent(gateway: Any) -> tuple[str, str, dict[str, Any]]:
    method, path, headers, body = gateway.seen[-1]
    assert "signature-input" in headers
    return method, path, json.loads(body or b"{}")


def test_a_policy_is_signed_by_the_key_of_the_owner(run: Any, gateway: Any) -> None:
    targets = ("--allow", "tag:b", "--allow", "tag:a", "--deny", "api:x")
    done = run("budget", "set", OTHER, "--max-per-day", "5", "--until", "2030-07-01", *targets)
    assert done.exit_code == 0, done.stderr
    method, path, body = sent(gateway)
    assert (method, path) == ("PUT", f"/api/v2/budgets/{OTHER}")
    policy = read_policy(json.dumps(body["policy"]))
    assert recover(policy_digest(policy), parse_signature(body["signature"])) == policy.owner
    assert (policy.limits["maxPerDay"], policy.limits["maxTotal"]) == ("5", "")
    assert (policy.gateway, policy.allow, policy.deny) == (gateway.url, ("tag:a", "tag:b"), ("api:x",))
    assert policy.not_after == 1_909_094_400


@pytest.mark.parametrize(
    "options", [("--max-per-day", "5e3"), ("--max-per-day", "5", "--allow", "quotes"), ("--until", "never")]
)
def test_a_policy_of_another_form_is_not_sent(run: Any, gateway: Any, options: tuple[str, ...]) -> None:
    until = () if "--until" in options else ("--until", "2030-07-01")
    assert run("budget", "set", OTHER, *until, *options).exit_code == 2
    assert gateway.seen == []


def test_a_revocation_is_signed(run: Any, gateway: Any) -> None:
    for options, is_unbinding, write_digest in (
        ((), False, revocation_digest),
        (("--unbind",), True, unbinding_digest),
    ):
        assert run("budget", "revoke", OTHER, *options).exit_code == 0
        method, path, body = sent(gateway)
        assert (method, path, body["unbind"]) == ("DELETE", f"/api/v2/budgets/{OTHER}", is_unbinding)
        owner = Address.parse(json.loads(run("wallet", "address", "--json").stdout)["address"])
        digest = write_digest(
            owner=owner, agent=Address.parse(OTHER), gateway=gateway.url, nonce=body["nonce"]
        )
        assert recover(digest, parse_signature(body["signature"])) == owner


def test_an_acceptance_is_signed_by_the_key_of_the_agent(run: Any, gateway: Any) -> None:
    assert run("budget", "accept", OTHER).exit_code == 0
    method, path, body = sent(gateway)
    agent = Address.parse(path.rpartition("/")[2])
    assert (method, body["owner"]) == ("PUT", OTHER)
    digest = acceptance_digest(
        agent=agent, owner=Address.parse(OTHER), gateway=gateway.url, nonce=body["nonce"]
    )
    assert recover(digest, parse_signature(body["signature"])) == agent


def test_budgets_are_shown(run: Any, gateway: Any, capsys: Any) -> None:
    for arguments, path in (((), "/api/v2/budgets"), ((OTHER,), f"/api/v2/budgets/{OTHER}")):
        assert json.loads(run("budget", "show", *arguments).stdout) == {"budgets": [BUDGET]}
        assert sent(gateway)[:2] == ("GET", path)
    _print_budget(BUDGET)
    _print_budgets({"budgets": []})
    text = capsys.readouterr().out
    assert "maxPerDay: 4.2 USDC left until 2026-11-22 00:00:00 UTC" in text
    assert "policy until 2027-01-01 00:00:00 UTC" in text
    assert "tollway budget accept OWNER" in text
    assert "You have signed no policy" in text
