"""`tollway webhook`: each command is one signed request, and its response is printed."""

import json

import pytest

from tests.kit.terminal import run_commands, split_commands


def seen(gateway):
    """The path of the last request, which was signed."""
    assert "signature-input" in gateway.seen[-1][2]
    return gateway.seen[-1][1]


def test_add_names_the_types_and_asks_for_a_secret(run, gateway):
    words = ("https://o.example/h", "--type", "call.charged", "--type", "call.held", "--secret")
    done = run("webhook", "add", *words)
    assert done.exit_code == 0, done.stderr
    assert seen(gateway) == "/api/v2/webhooks"
    added = json.loads(done.stdout)
    assert (added["url"], added["types"]) == ("https://o.example/h", ["call.charged", "call.held"])
    assert (added["secret"], added["state"]) == ("v1", "unconfirmed")


def test_add_without_a_type_is_refused(run, gateway):
    assert run("webhook", "add", "https://o.example/h").exit_code == 2
    assert gateway.seen == []


def test_list_deliveries_resend_and_remove(run, gateway):
    assert json.loads(run("webhook", "list").stdout)["webhooks"][0]["id"] == "wh_1"
    assert seen(gateway) == "/api/v2/webhooks"
    listed = json.loads(run("webhook", "deliveries", "wh_1", "--state", "dead", "--limit", "5").stdout)
    assert listed["deliveries"][0]["eventId"] == "evt_1"
    assert seen(gateway) == "/api/v2/webhooks/wh_1/deliveries?state=dead&limit=5"
    assert json.loads(run("webhook", "resend", "wh_1", "evt_1").stdout)["state"] == "pending"
    assert seen(gateway) == "/api/v2/webhooks/wh_1/deliveries/evt_1/resend"
    assert json.loads(run("webhook", "remove", "wh_1").stdout) == {"id": "wh_1", "state": "removed"}
    assert seen(gateway) == "/api/v2/webhooks/wh_1"


@pytest.mark.process
def test_a_terminal_shows_lines(gateway, environment, tmp_path):
    commands = [("webhook", "list"), ("webhook", "deliveries", "wh_1")]
    (_, hooks), (_, events) = split_commands(
        run_commands(commands, {**environment, "HOME": str(tmp_path), "COLUMNS": "200"})
    )
    assert "wh_1 active 2 waiting, 1 failed" in " ".join(hooks)
    assert "evt_1 call.charged dead 8 attempts, last: 500" in " ".join(events)
    assert "failed: `tollway webhook deliveries wh_1 --state dead` lists them" in " ".join(hooks)
    assert "gap:" not in " ".join(hooks)


@pytest.mark.process
@pytest.mark.parametrize(
    ("ends_at", "shown"), [("2026-11-22T16:00:00.000Z", "2026-11-22T16:00:00.000Z"), (None, "now")]
)
def test_a_gap_says_which_range_to_read(gateway, environment, tmp_path, ends_at, shown):
    gateway.webhook_gap = {"from": "2026-11-22T14:00:00.000Z", "to": ends_at}
    ((_, hooks),) = split_commands(
        run_commands([("webhook", "list")], {**environment, "HOME": str(tmp_path), "COLUMNS": "200"})
    )
    gap = f"gap: no events from 2026-11-22T14:00:00.000Z to {shown}; `tollway history --since DAY`"
    assert gap in " ".join(hooks)
