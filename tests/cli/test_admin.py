"""`tollway gateway admin log`, over the real stores."""

import json
import re
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
    assert run("gateway", "admin", "log") == {"acts": [], "olderBefore": None}


def test_acts_are_listed_newest_first_by_page_and_target() -> None:
    run("gateway", "wallets", "block", str(WALLET), "--reason", "stolen key")
    run("gateway", "admit", str(TX))
    run("gateway", "admit", str(TX))  # changes nothing
    first = run("gateway", "admin", "log", "--limit", "1")
    (admitted,) = first["acts"]
    assert (admitted["act"], admitted["target"], admitted["reason"]) == ("admit_transaction", str(TX), None)
    assert admitted["actor"] == operator.describe_actor()
    assert re.fullmatch(r"20[0-9-]+T[0-9:.]+Z", admitted["at"])
    assert first["olderBefore"] == admitted["id"]
    rest = run("gateway", "admin", "log", "--before", str(first["olderBefore"]))
    (blocked,) = rest["acts"]
    assert (blocked["act"], blocked["reason"], rest["olderBefore"]) == ("block_wallet", "stolen key", None)
    assert run("gateway", "admin", "log", "--target", str(WALLET))["acts"] == [blocked]


def test_the_short_form_gives_the_same_record() -> None:
    run("gateway", "admit", str(TX))
    assert run("admin", "log") == run("gateway", "admin", "log")
