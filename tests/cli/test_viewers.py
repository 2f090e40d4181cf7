"""`tollway wallet show-to`, `hide-from`, `decline`, `viewers`: what they send, and both lists on a terminal."""

import json
from typing import Any

from tollway.cli.viewers import print_viewers

OTHER = "0x" + "22" * 20


def test_a_permission_is_signed_and_begins_no_day_beyond_its_end(run: Any, gateway: Any) -> None:
    done = run("wallet", "show-to", OTHER, "--until", "2027-07-01")
    assert done.exit_code == 0, done.stderr
    method, path, headers, body = gateway.seen[-1]
    assert (method, path) == ("PUT", f"/api/v2/viewers/{OTHER}")
    assert json.loads(body) == {"until": "2027-07-01T00:00:00.000Z"}
    assert "signature-input" in headers


def test_a_permission_is_deleted(run: Any, gateway: Any) -> None:
    done = run("wallet", "hide-from", OTHER)
    assert json.loads(done.stdout) == {"address": OTHER, "mayRead": False}
    assert gateway.seen[-1][:2] == ("DELETE", f"/api/v2/viewers/{OTHER}")


def test_a_permission_is_declined(run: Any, gateway: Any) -> None:
    done = run("wallet", "decline", OTHER)
    assert json.loads(done.stdout) == {"address": OTHER, "mayRead": False}
    assert gateway.seen[-1][:2] == ("DELETE", f"/api/v2/viewers/of/{OTHER}")
    assert "signature-input" in gateway.seen[-1][2]


def test_the_books_of_another_wallet_are_named_in_the_query(run: Any, gateway: Any) -> None:
    gateway.call = {"id": "call_1"}
    assert run("history", "--wallet", OTHER).exit_code == 0
    assert gateway.seen[-1][1] == f"/api/v2/history?limit=50&offset=0&wallet={OTHER}"
    assert run("history", "call_1", "--wallet", OTHER).exit_code == 0
    assert gateway.seen[-1][1] == f"/api/v2/history/call_1?wallet={OTHER}"


def test_lists_both_sides(run: Any, gateway: Any, capsys: Any) -> None:
    assert json.loads(run("wallet", "viewers").stdout) == {"viewers": [], "wallets": []}
    shown = {"address": OTHER, "since": "2026-11-01T00:00:00.000Z", "until": "2027-06-30T23:59:59.999Z"}
    print_viewers({"viewers": [shown], "wallets": [], "walletsAreMore": True})
    text = capsys.readouterr().out
    assert f"{OTHER} until 2027-06-30 23:59:59 UTC" in text
    assert "You have read the books of no other wallet" in text
    assert "There are more" in text


def test_a_day_without_form_is_no_end(run: Any, gateway: Any) -> None:
    done = run("wallet", "show-to", OTHER, "--until", "next year")
    assert done.exit_code == 2
    assert "is no time" in done.stderr
