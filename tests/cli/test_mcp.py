"""`tollway mcp` before it serves: no wallet without a limit, and one line with the limits."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tollway.cli.main import make_app
from tollway.client import Wallet, create_key_file

COMMAND = (sys.executable, "-c", "from tollway.cli import main; main()", "mcp")


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    create_key_file(tmp_path / "w.key")
    return tmp_path / "w.key"


@pytest.fixture
def run(key_file: Path, tmp_path: Path) -> Callable[..., Result]:
    env = {
        "TOLLWAY_KEY_FILE": str(key_file),
        "TOLLWAY_STORE": str(tmp_path / "payments.sqlite3"),
        **dict.fromkeys(
            ("TOLLWAY_PRIVATE_KEY", "TOLLWAY_BUDGET", "TOLLWAY_SESSION_BUDGET", "TOLLWAY_MAX_PRICE"), ""
        ),
    }
    return lambda *words, **more: CliRunner().invoke(make_app(), ["mcp", *words], env={**env, **more})


def test_an_agent_gets_no_wallet_without_a_limit(run: Callable[..., Result]) -> None:
    done = run()
    assert (done.exit_code, done.stdout) == (2, "")
    error = json.loads(done.stderr)["error"]
    assert error["code"] == "usage"
    assert "an agent gets no wallet without a limit" in error["detail"]
    assert "TOLLWAY_BUDGET" in error["detail"]


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (("--budget", "lots"), {}),
        (("--budget", "5 USDC", "--session-budget", "x"), {}),
        (("--budget", "5 USDC", "--max-price", "-1"), {}),
        (("--budget", "5 USDC"), {"TOLLWAY_KEY_FILE": "/nowhere/at/all"}),
        (("--budget", "5 USDC"), {"TOLLWAY_KEY_FILE": "", "TOLLWAY_PRIVATE_KEY": "0xno-key"}),
    ],
)
def test_invalid_options_end_it_with_an_empty_stdout(
    run: Callable[..., Result], words: tuple[str, ...], env: dict[str, str]
) -> None:
    done = run(*words, **env)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "0xno-key" not in done.stderr


def serve(env: dict[str, str], *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], env=env, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.process
def test_stderr_has_the_limits_and_stdout_has_mcp_messages_alone(key_file: Path, tmp_path: Path) -> None:
    env = {"TOLLWAY_KEY_FILE": str(key_file), "TOLLWAY_STORE": str(tmp_path / "p.sqlite3")}
    env |= {"TOLLWAY_BUDGET": "5 USDC", "TOLLWAY_SESSION_BUDGET": "1 USDC", "TOLLWAY_MAX_PRICE": "0.05 USDC"}
    ping = '{"jsonrpc":"2.0","id":1,"method":"ping"}\nnot json at all\n'
    done = serve(env, stdin=ping)
    assert done.returncode == 0
    address = Wallet.from_file(key_file).address
    assert done.stderr.splitlines()[0] == (
        f"tollway mcp: gateway http://127.0.0.1:8402, wallet {address}, at most 0.05 USDC a call, 1 USDC a session, "
        "5 USDC in all"
    )
    for line in done.stdout.splitlines():
        assert json.loads(line)["jsonrpc"] == "2.0"
    assert key_file.read_text().strip().removeprefix("0x") not in done.stdout + done.stderr


@pytest.mark.process
def test_without_a_wallet_it_serves_free_operations(tmp_path: Path) -> None:
    done = serve({"HOME": str(tmp_path)}, "--gateway", "https://gw.test")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no wallet: only free operations can be called" in done.stderr
