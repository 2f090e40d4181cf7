"""The command line that the table makes: help by role, unknown commands, completion, and a command without its extra."""

import gc
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import tollway
from tollway.cli.command_group import find_near_commands, load_command
from tollway.cli.commands import COMMANDS, EXTRA_PACKAGES, GROUPS, ROLES
from tollway.cli.main import make_app


def run(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(
        make_app(), list(words), prog_name="tollway"
    )


def test_a_command_explains_itself_with_its_example() -> None:
    wrong = []
    for name, row in COMMANDS.items():
        shown = run(*name.split(), "--help")
        text = " ".join(shown.stdout.split())
        if (
            shown.exit_code != 0
            or row.help not in text
            or f"Example:\n    {row.example}\n" not in shown.stdout
        ):
            wrong.append((name, shown.exit_code, shown.output))
    assert wrong == []


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.title)
def test_help_groups_the_commands_by_role_with_an_example(role: Any) -> None:
    shown = run("--help").stdout
    section = shown.partition(f"\n{role.title}:\n")[2].partition("Example: ")
    listed = [line.split()[0] for line in section[0].splitlines() if re.match(r"  \w", line)]
    assert listed == list(
        dict.fromkeys(name.split()[0] for name in COMMANDS if name.split()[0] in role.words)
    )
    assert section[2].splitlines()[0] == role.example


def test_help_fits_80_columns_and_hides_the_aliases() -> None:
    shown = run("--help").stdout
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert not re.search(r"^  (serve|doctor|migrate)\b", shown, re.MULTILINE)


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_lists_its_commands(group: str) -> None:
    shown = run(*group.split(), "--help").stdout
    words = {name.removeprefix(group).split()[0] for name in COMMANDS if name.startswith(f"{group} ")}
    assert all(re.search(rf"^  {word}\b", shown, re.MULTILINE) for word in words)


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        (("publish",), "Did you mean: tollway listing publish?"),
        (("suspend", "api_1"), "Did you mean: tollway gateway listings suspend?"),
        (("walet",), "Did you mean: tollway wallet?"),
        (("wallet", "nwe"), "Did you mean: tollway wallet new?"),
        (("gateway", "listing"), "Did you mean: tollway gateway listings?"),
        (("serv",), "Did you mean: tollway gateway serve?"),
        (("wallet", "block"), "Did you mean: tollway gateway wallets block?"),
        (("listing", "list", "--suspended"), "Did you mean: tollway gateway listings --suspended?"),
        (("wallet", "list", "--blocked"), "Did you mean: tollway gateway wallets --blocked?"),
        (("xyzzy",), "There is no command 'xyzzy'."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_an_unknown_command_names_the_nearest(typed: tuple[str, ...], hint: str) -> None:
    done = run(*typed)
    assert done.exit_code == 2
    assert hint in " ".join(done.stderr.split())


def test_a_word_like_no_other_has_no_nearest_command() -> None:
    assert find_near_commands("", "xyzzy") == []


def test_version_is_one_line() -> None:
    assert run("--version").stdout == f"tollway {tollway.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_the_commands_of_the_table(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {
        "bash": {"COMP_WORDS": "tollway gateway s", "COMP_CWORD": "2"},
        "zsh": {"_TYPER_COMPLETE_ARGS": "tollway gateway s"},
        "fish": {"_TYPER_COMPLETE_ARGS": "tollway gateway s", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }
    for name, value in words[shell].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_TOLLWAY_COMPLETE", f"complete_{shell}")
    shown = CliRunner().invoke(make_app(), [], prog_name="tollway").stdout
    assert {"serve", "secrets"} <= set(re.findall(r"\w+", shown))
    assert "migrate" not in shown


WITHOUT_PACKAGES = """
import importlib.machinery, sys

class InstalledPackages:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            return None
        return importlib.machinery.PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [f for f in sys.meta_path if f is not importlib.machinery.PathFinder] + [InstalledPackages]
from tollway.cli import main
main()
"""
"""`tollway` in an environment that lacks packages."""


@pytest.mark.process
@pytest.mark.parametrize("extra", EXTRA_PACKAGES)
def test_a_command_without_its_extra_says_the_line_that_installs_it(extra: str) -> None:
    name = next(name for name in COMMANDS if name.split()[0] == extra)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGES.format(missing=EXTRA_PACKAGES[extra]), *name.split()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: `tollway {name}` needs packages that are not installed. "
        f"Run: pip install 'tollway[{extra}]'\n"
    )


@pytest.mark.process
def test_shared_rates_without_their_extra_are_a_problem_of_the_settings(tmp_path: Path) -> None:
    settings = {
        "TOLLWAY_RATE_LIMIT_URL": "redis://127.0.0.1:9",
        "TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:9",
        "TOLLWAY_SECRET_KEY": bytes(range(32)).hex(),
    }
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGES.format(missing=("redis",)), "gateway", "serve"],
        env=settings,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'tollway[redis]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_runs_with_the_search_for_garbage_that_its_imports_did_without() -> None:
    gc.disable()
    try:
        load_command("search")
        assert gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.process
def test_no_collection_looks_at_what_a_command_has_imported() -> None:
    """It would find nothing, and take a tenth of the start of a gateway."""
    code = """
import gc
from tollway.cli.command_group import load_command
gc.collect()
gc.disable()
load_command("gateway serve")
gc.collect()
print(len(gc.get_objects()), gc.get_freeze_count())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, timeout=60
    )
    watched, frozen = map(int, done.stdout.split())
    assert watched < frozen / 20
