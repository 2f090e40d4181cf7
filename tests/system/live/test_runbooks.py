"""The blocks of docs/runbooks run against a gateway that serves: each command of `tollway` with the settings of that gateway, each line of the journal's own program over an
empty journal. The units that `systemctl` names exist (`tests/deploy/test_alerts.py`).
"""

import asyncio
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kit.page_blocks import Machine, read_blocks
from tests.kit.ports import find_low_port
from tests.kit.waits import run_program

pytestmark = pytest.mark.asyncio(loop_scope="module")

RUNBOOKS = Path(__file__).parents[3] / "docs" / "runbooks"
LINES = sorted(
    {
        line
        for path in RUNBOOKS.glob("*.md")
        for block in read_blocks(path.read_text())
        if block.language == "sh" and not block.why_not_run
        for line in block.text.splitlines()
    }
)
PREFIX = "TOLLWAY_"


async def test_every_command_of_the_runbooks_runs(cluster: Any, tmp_path: Path) -> None:
    commands = [line for line in LINES if line.startswith("tollway ")]
    assert len(commands) > 4
    (gas,) = await cluster.wallets(1)
    settings = {
        "TOLLWAY_ADMIN_LISTEN": f"127.0.0.1:{find_low_port()}",
        "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key,
    }
    async with cluster.gateway(settings=settings) as gateway:
        shell = Machine(
            folder=tmp_path / "shell",
            env={name: value for name, value in gateway.env.items() if name.startswith(PREFIX)},
        )
        printed = {command: await asyncio.to_thread(shell.run, command) for command in commands}
    assert "gas_keys_" in printed["tollway gateway doctor"]
    assert "balance" in printed["tollway gateway audit"]
    assert "/enter?code=" in printed["tollway gateway admin link"]


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("journalctl ")])
async def test_the_journal_understands_the_line(line: str, tmp_path: Path) -> None:
    program = shutil.which("journalctl")
    if program is None:
        pytest.skip("journalctl is not on this machine")
    run = await run_program(program, "--directory", str(tmp_path), "--no-pager", *shlex.split(line)[1:])
    assert (run.output.strip() or "-- No entries --") == "-- No entries --"
    assert run.errors.strip() in ("", "No journal files were found.")


async def test_every_line_is_of_a_program_that_a_test_knows() -> None:
    assert {line.split()[0] for line in LINES} == {"tollway", "journalctl", "systemctl"}
