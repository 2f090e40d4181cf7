"""The alert rules under Prometheus' own tools: `make alerts` runs them, with `promtool` and the server of Debian's package `prometheus`."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.kit.deploy_programs import need_debian
from tests.kit.page_blocks import read_blocks

RULES = Path(__file__).parents[2] / "deploy" / "prometheus"
PAGE = Path(__file__).parents[2] / "docs" / "running.md"
slow = pytest.mark.skipif("ALERTS" not in os.environ, reason="half a minute: run `make alerts`")


def run(*arguments: str, folder: Path = RULES) -> subprocess.CompletedProcess[str]:
    command = [*need_debian("promtool"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


def test_the_rules_are_valid() -> None:
    done = run("check", "rules", "alerts.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rules found" in done.stdout


def test_the_configuration_of_compose_is_valid() -> None:
    done = run("check", "config", "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_configuration_of_the_page_is_valid(tmp_path: Path) -> None:
    """The block of docs/running.md as printed, over the file that Debian's package installs; `/etc/prometheus` is a folder of the test."""
    program = tmp_path / "promtool"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(need_debian("promtool"))} "$@"\n')
    program.chmod(0o755)
    (tmp_path / "prometheus.yml").write_text("rule_files:\nscrape_configs:\n  - job_name: node\n")
    (block,) = [
        block for block in read_blocks(PAGE.read_text()) if block.runner == "tests/deploy/test_promtool.py"
    ]
    done = subprocess.run(
        ["bash", "-e", "-c", block.text.replace("/etc/prometheus", str(tmp_path))],
        cwd=PAGE.parents[1],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rule files found" in done.stdout


@slow
@pytest.mark.parametrize("name", ["alerts.test.yaml", "alerts-slow.test.yaml"])
def test_every_story_ends_as_it_says(name: str) -> None:
    done = run("test", "rules", name)
    assert done.returncode == 0, done.stdout + done.stderr


@slow
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
