"""What is fine alone and does harm together is refused, and what is fine together is not. The tables of single mistakes
are in test_settings.py; here the real command also shows how a mistake ends a start.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tollway.limits import DEFAULT_LIMITS
from tollway.setting_conflicts import check_doors, check_limits, check_registration
from tollway.setting_values import Listen, parse_listen

DEADLINE_S = 60.0
KEY = "00112233445566778899aabbccddeeff" * 2


def listen(text: str) -> Listen:
    return parse_listen(text)


@pytest.mark.parametrize(
    ("callers", "operator"),
    [
        ("127.0.0.1:8402", "127.0.0.1:9402"),
        ("127.0.0.1:0", "127.0.0.1:0"),
        ("127.0.0.1:8402", "127.0.0.2:8402"),
        ("0.0.0.0:8402", "127.0.0.1:9402"),
        ("[::]:8402", "[::1]:9402"),
    ],
)
def test_two_doors_apart_are_fine(callers: str, operator: str) -> None:
    url = "https://gw.example.com"
    assert not [*check_doors(listen=listen(callers), admin_listen=listen(operator), public_url=url)]
    assert not [*check_doors(listen=listen(callers), admin_listen=None, public_url=url)]


@pytest.mark.parametrize(
    ("is_open", "has_allowlist", "is_told"), [(True, False, False), (False, True, False)]
)
def test_an_allowlist_goes_with_its_registration(is_open: bool, has_allowlist: bool, is_told: bool) -> None:
    assert bool([*check_registration(is_open=is_open, has_allowlist=has_allowlist)]) is is_told


def test_the_defaults_renew_in_time_and_half_a_lease_is_in_time() -> None:
    assert not [*check_limits(DEFAULT_LIMITS)]
    assert not [*check_limits(replace(DEFAULT_LIMITS, owner_renew_s=15.0))]


# ---- The command itself.


def _start(folder: Path, settings: Mapping[str, str]) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOLLWAY_")}
    return subprocess.Popen(
        (sys.executable, "-c", "from tollway.cli import main; main()", "serve"),
        env={
            **kept,
            "TOLLWAY_RPC_BASE": "http://127.0.0.1:9/hush",
            "TOLLWAY_ADMIN_LISTEN": "off",
            **settings,
        },
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


MISTAKES: dict[str, dict[str, str]] = {
    "a misspelt name": {"TOLLWAY_LISTN": "127.0.0.1:1"},
    "every caller a proxy": {"TOLLWAY_TRUSTED_PROXIES": "0.0.0.0/0"},
    "a key of zeros": {"TOLLWAY_SECRET_KEY": "0" * 64},
    "a host that is none": {"TOLLWAY_PUBLIC_URL": "https://a b"},
    "a folder that is a file": {"TOLLWAY_DATABASE_URL": "sqlite:////dev/null/tollway.sqlite3", "TOLLWAY_SECRET_KEY": KEY},
}  # fmt: skip


def test_a_mistake_ends_the_start_with_one_line_and_leaves_nothing_behind(tmp_path: Path) -> None:
    running = {}
    for number, (name, settings) in enumerate(MISTAKES.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        running[name] = (_start(folder, settings), folder)
    for name, (process, folder) in running.items():
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
        assert process.returncode != 0, name
        assert stdout == "", name
        lines = stderr.splitlines()
        assert len(lines) == 1, (name, stderr)
        (problem,) = json.loads(lines[0])["error"]["problems"]
        assert 20 <= len(problem) <= 240, name
        assert problem.isprintable(), name
        assert "hush" not in stderr, name
        assert [*folder.iterdir()] == [], name


def test_an_address_that_is_taken_ends_the_start_in_one_line(tmp_path: Path) -> None:
    """Whichever of the two doors it is. Port 0 of the other door is any that is free."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        running = []
        for door, other in (("LISTEN", "ADMIN_LISTEN"), ("ADMIN_LISTEN", "LISTEN")):
            folder = tmp_path / door
            folder.mkdir()
            settings = {f"TOLLWAY_{door}": address, f"TOLLWAY_{other}": "127.0.0.1:0"}
            running.append(_start(folder, settings))
        for process in running:
            _, stderr = process.communicate(timeout=DEADLINE_S)
            assert process.returncode != 0
            assert "Traceback" not in stderr
            assert address in stderr
