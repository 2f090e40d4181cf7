"""The systemd units: valid, closed to the system, with settings that exist and times that fit the gateway's."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kit.deploy_programs import ROOT, run_check
from tollway.cli.commands import COMMANDS
from tollway.config.settings import PREFIX, SETTING_NAMES
from tollway.limits import DEFAULT_LIMITS

UNITS = ROOT / "deploy" / "systemd"
SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
EXPOSURE_MAX = re.compile(r"`systemd-analyze security tollway` says at most ([0-9.]+)")
"""In the page: 0 is closed, 10 open; below 2 is "OK"."""
SYSTEMD_VERSION_MIN = 252


def read_unit(name: str, *, has_workers: bool = False) -> dict[str, list[tuple[str, str]]]:
    """Section -> its lines; a name may stand in several lines. `has_workers`: those of control workers count."""
    sections: dict[str, list[tuple[str, str]]] = {}
    text = (UNITS / name).read_text()
    for line in (text.replace("#control ", "") if has_workers else text).splitlines():
        if line.startswith("["):
            lines = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            lines.append((key, value))
    return sections


def value_of(name: str, key: str) -> str:
    (value,) = [value for one, value in read_unit(name)["Service"] if one == key]
    return value


@pytest.fixture
def systemd_analyze() -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not on this machine")
    output = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=20)
    if int(output.stdout.split()[1].split(".")[0]) < SYSTEMD_VERSION_MIN:
        pytest.skip(f"systemd is older than {SYSTEMD_VERSION_MIN}")
    return program


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units, with a program that exists on this machine in place of the gateway's."""
    for unit in UNITS.iterdir():
        text = unit.read_text().replace("/opt/tollway/bin/tollway", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", sorted(path.name for path in UNITS.iterdir()))
def test_systemd_accepts_the_unit(systemd_analyze: str, installed: Path, name: str) -> None:
    unit = installed / name
    environment = f"SYSTEMD_UNIT_PATH={installed}:"
    output = run_check(
        "env", environment, systemd_analyze, "verify", "--man=no", "--recursive-errors=one", unit
    )
    assert output == ""  # fmt: skip


@pytest.mark.parametrize("name", SERVICES)
def test_the_service_is_closed_to_the_system(systemd_analyze: str, name: str) -> None:
    output = run_check(systemd_analyze, "security", "--offline=yes", UNITS / name)
    exposure = re.search(r"Overall exposure level for .*: ([0-9.]+)", output)
    assert exposure is not None, output
    (most,) = EXPOSURE_MAX.findall((ROOT / "docs" / "running.md").read_text())
    assert float(exposure[1]) <= float(most)


@pytest.mark.parametrize("name", SERVICES)
def test_every_setting_and_command_of_a_service_exists(name: str) -> None:
    for key, value in read_unit(name, has_workers=True)["Service"]:
        if key == "Environment":
            variable = value.partition("=")[0]
            assert variable.removeprefix(PREFIX).lower() in SETTING_NAMES
        if key == "ExecStart":
            words = " ".join(word for word in value.split()[1:] if not word.startswith(("-", "/")))
            assert words in COMMANDS


def test_the_gateway_reports_and_has_time_to_stop() -> None:
    assert value_of("tollway.service", "Type") == "notify"
    notice_s = 5
    assert ("Environment", f"TOLLWAY_DRAIN_NOTICE_S={notice_s}") in read_unit("tollway.service")["Service"]
    assert (
        int(value_of("tollway.service", "TimeoutStopSec")) >= notice_s + DEFAULT_LIMITS.drain_deadline_s + 10
    )
    assert int(value_of("tollway.service", "WatchdogSec")) >= 10
    assert value_of("tollway.service", "RestartPreventExitStatus") == "2"


def test_a_stop_signals_the_gateway_alone_and_the_gateway_its_control_workers() -> None:
    """A worker that gets a second SIGTERM ends its notice."""
    assert value_of("tollway.service", "KillMode") == "mixed"
    lines = {name: read_unit("tollway.service", has_workers=name)["Service"] for name in (False, True)}
    assert [one for one in lines[True] if one not in lines[False]] == [
        ("Environment", "TOLLWAY_CONTROL_WORKERS=1")
    ]


def test_the_services_share_one_user_and_one_folder() -> None:
    for name in SERVICES:
        assert value_of(name, "User") == "tollway"
        assert value_of(name, "DynamicUser") == "yes"
        assert value_of(name, "WorkingDirectory") == "/var/lib/tollway"


def test_the_same_protection_holds_for_every_service() -> None:
    hardened = {
        name: {line for line in read_unit(name)["Service"] if re.match("Protect|Private|Restrict[A-Z]|System|Cap|No|Lock|Memory", line[0])}
        - {("RestartPreventExitStatus", "2")}
        for name in SERVICES
    }  # fmt: skip
    first, *others = (
        {line for line in lines if not line[0].startswith("Restart")} for lines in hardened.values()
    )
    assert first
    assert all(other == first for other in others)


def test_every_timer_has_its_service() -> None:
    for timer in UNITS.glob("*.timer"):
        parser = configparser.ConfigParser()
        parser.read(timer)
        assert parser["Timer"]["OnCalendar"]
        assert timer.with_suffix(".service").exists()
