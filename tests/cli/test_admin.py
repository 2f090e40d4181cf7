"""`tollway gateway admin`, over the real stores."""

import json
import re
import sqlite3
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tollway.cli import operator
from tollway.cli.main import make_app
from tollway.ids import Address, TxHash

WALLET = Address(b"w" * 20)
TX = TxHash(b"t" * 32)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOLLWAY_RPC_SANDBOX", "http://127.0.0.1:1")
    assert run("gateway", "migrate")["now"] == "current"


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(make_app(), arguments)
    assert result.exit_code == operator.DONE, result.output
    return json.loads(result.stdout)


def test_without_an_act_the_record_is_empty() -> None:
    assert run("gateway", "admin", "log") == {"entries": [], "olderBefore": None}


def test_acts_are_listed_newest_first_by_page_and_target() -> None:
    run("gateway", "wallets", "block", str(WALLET), "--reason", "stolen key")
    run("gateway", "admit", str(TX))
    run("gateway", "admit", str(TX))  # changes nothing
    first = run("gateway", "admin", "log", "--limit", "1")
    (admitted,) = first["entries"]
    assert (admitted["action"], admitted["target"], admitted["reason"]) == (
        "admit_transaction",
        str(TX),
        None,
    )
    assert admitted["actor"] == operator.describe_actor()
    assert re.fullmatch(r"20[0-9-]+T[0-9:.]+Z", admitted["at"])
    assert first["olderBefore"] == admitted["id"]
    rest = run("gateway", "admin", "log", "--before", str(first["olderBefore"]))
    (blocked,) = rest["entries"]
    assert (blocked["action"], blocked["reason"], rest["olderBefore"]) == ("block_wallet", "stolen key", None)
    assert run("gateway", "admin", "log", "--target", str(WALLET))["entries"] == [blocked]


def test_the_short_form_gives_the_same_record() -> None:
    run("gateway", "admit", str(TX))
    assert run("admin", "log") == run("gateway", "admin", "log")


def test_a_link_counts_for_the_user_of_the_command() -> None:
    answer = run("gateway", "admin", "link")
    code = re.fullmatch(r"http://127\.0\.0\.1:9402/enter\?code=([A-Za-z0-9_-]{43})", answer["link"])
    assert code is not None
    assert run("admin", "link")["link"] != answer["link"]
    assert run("admin")["link"].partition("=")[0] == answer["link"].partition("=")[0]
    assert run("gateway", "admin", "--json")["expiresAt"] > "2026"
    with sqlite3.connect("tollway.sqlite3") as connection:
        rows = connection.execute("SELECT actor, code_hash FROM admin_code").fetchall()
    connection.close()
    assert {actor for actor, _ in rows} == {operator.describe_actor()}
    assert sha256(code[1].encode()).digest() in {bytes(stored) for _, stored in rows}


@pytest.mark.parametrize(
    ("settings", "origin"),
    [
        ({}, "http://127.0.0.1:9402"),
        ({"TOLLWAY_ADMIN_LISTEN": "127.0.0.1:9500"}, "http://127.0.0.1:9500"),
        (
            {"TOLLWAY_ADMIN_LISTEN": "0.0.0.0:9402", "TOLLWAY_ADMIN_HOSTS": "b.internal,a.internal"},
            "https://a.internal",
        ),
    ],
)
def test_the_link_leads_to_where_the_pages_are_opened(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], origin: str
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert run("gateway", "admin", "link")["link"].startswith(f"{origin}/enter?code=")


@pytest.mark.parametrize("name", ["TOLLWAY_ADMIN_LISTEN", "TOLLWAY_WEB_PAGES"])
def test_without_pages_there_is_no_link(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, {"TOLLWAY_ADMIN_LISTEN": "off"}.get(name, "false"))
    result = CliRunner().invoke(make_app(), ["gateway", "admin", "link"])
    assert result.exit_code == operator.FAILED
    assert "the operator's pages are off" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("gateway", "admin", "link"),
        ("gateway", "wallets", "block", str(WALLET)),
        ("gateway", "admit", str(TX)),
        ("gateway", "audit", "--release"),
    ],
)
def test_a_command_makes_no_database_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    result = CliRunner().invoke(make_app(), arguments)
    assert result.exit_code == operator.FAILED
    assert "there is no database at" in result.output
    assert list(empty.iterdir()) == []
