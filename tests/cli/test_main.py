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


def test_only_the_command_that_speaks_mcp_waits_for_it() -> None:
    code = "import sys; from tollway.cli.main import make_app; make_app(); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert {"mcp", "mcp_types", "jsonschema"}.isdisjoint(loaded.stdout.split())


def test_the_mcp_command_line_does_not_load_the_operators_commands(tmp_path: Path) -> None:
    code = "import sys; from tollway.cli import main\ntry: main()\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
    ended = subprocess.run(
        [sys.executable, "-c", code, "mcp"],
        env={"HOME": str(tmp_path)},
        input="",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    loaded = ended.stderr.split()
    assert "mcp" in loaded
    assert {"sqlalchemy", "granian", "tollway.app.lifecycle", "tollway.cli.operator"}.isdisjoint(loaded)
