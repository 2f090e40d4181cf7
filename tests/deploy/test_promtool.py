"""The alert rules under Prometheus' own tools: `make alerts` runs them, with `promtool` and the server of Debian's package `prometheus`."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.kit.deploy_programs import need_debian

RULES = Path(__file__).parents[2] / "deploy" / "prometheus"
pytestmark = pytest.mark.skipif("ALERTS" not in os.environ, reason="half a minute: run `make alerts`")


def run(*arguments: str, folder: Path = RULES) -> subprocess.CompletedProcess[str]:
    command = [*need_debian("promtool"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def test_the_rules_are_valid() -> None:
    done = run("check", "rules", "alerts.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rules found" in done.stdout


@pytest.mark.parametrize("name", ["alerts.test.yaml", "alerts-slow.test.yaml"])
def test_every_story_ends_as_it_says(name: str) -> None:
    done = run("test", "rules", name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_broken_rule_fails_its_story(tmp_path: Path) -> None:
    rules = (RULES / "alerts.yaml").read_text()
    broken = re.sub(r"tollway_storage_up == 0", "tollway_storage_up == 2", rules)
    assert broken != rules
    (tmp_path / "alerts.yaml").write_text(broken)
    text = (RULES / "alerts.test.yaml").read_text()
    head, *stories = text.split("  - name: ")
    (tmp_path / "one.yaml").write_text(
        head + "".join("  - name: " + one for one in stories if one.startswith("StorageAway"))
    )
    done = run("test", "rules", "one.yaml", folder=tmp_path)
    assert done.returncode != 0
    assert "StorageAway fires" in done.stdout + done.stderr
