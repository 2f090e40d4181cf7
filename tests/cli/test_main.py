"""The entry point: Ctrl-C ends it without a traceback, also while its commands are still loading."""

import subprocess
import sys
from pathlib import Path

import pytest

from tollway.cli import INTERRUPTED, main

INTERRUPTED_WHILE_LOADING = """
import sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from tollway.cli import main
main()
"""


@pytest.mark.process
def test_ctrl_c_while_the_commands_load() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_LOADING], capture_output=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (INTERRUPTED, b"")


def test_ctrl_c_in_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["tollway.cli.main"], "make_app", lambda: interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == INTERRUPTED


IMPORTED_BY_HELP = """
import sys
from tollway.cli import main
try:
    main()
except SystemExit:
    print(*sys.modules, file=sys.stderr)
"""


def list_imports(*words: str, folder: Path) -> set[str]:
    """The modules that a process has imported when the command ends."""
    ended = subprocess.run(
        [sys.executable, "-c", IMPORTED_BY_HELP, *words],
        env={"HOME": str(folder)},
        input="",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(ended.stderr.splitlines()[-1].split())


HEAVY = {
    "httpx",
    "rich",
    "aiohttp",
    "sqlalchemy",
    "granian",
    "eth_account",
    "web3",
    "mcp",
    "jsonschema",
}


@pytest.mark.process
@pytest.mark.parametrize(
    "words", [("--help",), ("--version",), ("gateway", "--help"), ("nothing",)], ids=" ".join
)
def test_the_overview_imports_no_command(words: tuple[str, ...], tmp_path: Path) -> None:
    imported = list_imports(*words, folder=tmp_path)
    assert imported & HEAVY == set()
    assert "pydantic" not in imported or words not in (
        ("--help",),
        ("--version",),
    )  # typer checks options with it
    assert {name for name in imported if name.startswith("tollway")} == {
        "tollway",
        "tollway.cli",
        "tollway.cli.command_group",
        "tollway.cli.commands",
        "tollway.cli.main",
    }


OTHER_ROLES = {
    "aiohttp",
    "eth_account",
    "granian",
    "jsonschema",
    "mcp",
    "sqlalchemy",
    "starlette",
    "structlog",
    "web3",
}
GATEWAY_PARTS = {
    f"tollway.{name}" for name in ("app", "config", "gateway", "ledger", "limits", "storage", "web")
}
REGISTRY_PARTS = {"tollway.registry.listing_fields", "tollway.registry.text"}
"""The fields of a listing are options of a command, and a search drops hidden characters. Neither imports anything of this package."""


@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    [
        ("search", "--help"),
        ("show", "--help"),
        ("call", "--help"),
        ("history", "--help"),
        ("listing", "publish", "--help"),
        ("wallet", "new"),
    ],
    ids=" ".join,
)
def test_a_callers_command_imports_nothing_of_the_other_roles(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a new wallet is a file here
    imported = list_imports(*words, folder=tmp_path)
    assert imported & (OTHER_ROLES | GATEWAY_PARTS) == set()
    assert {name for name in imported if name.startswith("tollway.registry.")} <= REGISTRY_PARTS


@pytest.mark.process
def test_the_mcp_command_does_not_import_the_operators_commands(tmp_path: Path) -> None:
    imported = list_imports("mcp", folder=tmp_path)
    assert "mcp" in imported
    assert {"sqlalchemy", "granian", "tollway.app.lifecycle", "tollway.cli.operator"}.isdisjoint(imported)
