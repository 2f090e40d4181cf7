"""`tollway demo` where the chain node is missing: it asks before it fetches, says what to do, and starts nothing with a wrong binary."""

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import tollway
from tests.kit.threaded_server import serve_in_thread
from tollway.sandbox.anvil_binary import AnvilPackage, cached_binary, name_platform

DEADLINE_S = 60
RUN = "from tollway.cli import main; main()"


class WrongRegistry(ThreadingHTTPServer):
    """A registry on loopback that sends another file than the package."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), WrongRegistryHandler)
        self.paths: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class WrongRegistryHandler(BaseHTTPRequestHandler):
    server: WrongRegistry

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        self.send_response(200)
        self.send_header("content-length", "4")
        self.end_headers()
        self.wfile.write(b"else")


@pytest.fixture
def registry() -> Iterator[WrongRegistry]:
    server = WrongRegistry()
    with serve_in_thread(server):
        yield server


@pytest.fixture
def machine(tmp_path: Path, registry: WrongRegistry) -> dict[str, str]:
    """The environment of a machine with Tollway, and without a checkout, npm or anvil."""
    shutil.copytree(
        Path(tollway.__file__).parent,
        tmp_path / "site" / "tollway",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    (tmp_path / "empty").mkdir()
    return {
        "HOME": str(tmp_path / "home"),
        "PATH": str(tmp_path / "empty"),
        "PYTHONPATH": str(tmp_path / "site"),
        "npm_config_registry": registry.url,
    }


def run(machine: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN, "demo", "--once", *options],
        env=machine,
        cwd=machine["PATH"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_a_program_that_runs_it_gets_the_option_that_agrees(
    machine: dict[str, str], registry: WrongRegistry
) -> None:
    done = run(machine)
    assert done.returncode == 1
    assert done.stdout.startswith("The demo needs a chain node: anvil ")
    assert "from 127.0.0.1, kept in " in done.stdout
    assert done.stderr == (
        "error: nothing was fetched: run `tollway demo --yes`, or name a binary with TOLLWAY_ANVIL\n"
    )
    assert registry.paths == []


def test_a_file_with_another_digest_is_refused_and_not_kept(
    machine: dict[str, str], registry: WrongRegistry
) -> None:
    done = run(machine, "--yes")
    assert done.returncode == 1
    assert "its size or SHA-512 differs. Nothing of it was kept" in done.stderr
    assert len(registry.paths) == 1
    assert [path for path in Path(machine["HOME"]).rglob("*") if path.is_file()] == []


def test_a_person_who_says_no_gets_nothing(machine: dict[str, str], registry: WrongRegistry) -> None:
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", RUN, "demo", "--once"],
        env=machine,
        cwd=machine["PATH"],
        stdin=follower,
        stdout=follower,
        stderr=subprocess.PIPE,
    ) as process:
        os.close(follower)
        os.write(leader, b"n\n")
        _, stderr = process.communicate(timeout=DEADLINE_S)
    os.close(leader)
    assert process.returncode == 1
    assert b"nothing was fetched" in stderr
    assert registry.paths == []


def test_a_named_binary_that_is_none_is_refused_without_a_fetch(
    machine: dict[str, str], registry: WrongRegistry
) -> None:
    done = run({**machine, "TOLLWAY_ANVIL": "/nowhere/anvil"}, "--yes")
    assert (done.returncode, done.stdout) == (1, "")
    assert "TOLLWAY_ANVIL names /nowhere/anvil, which is no program" in done.stderr
    assert registry.paths == []


@pytest.mark.parametrize("place", ["above", "cache"])
def test_a_planted_program_does_not_run(machine: dict[str, str], place: str, tmp_path: Path) -> None:
    """`above`: in node_modules of a parent of the current folder, which may be that of another user."""
    package = AnvilPackage.load(platform_name=name_platform())
    assert package is not None
    above = tmp_path / "node_modules" / package.name / "bin" / "anvil"
    planted = above if place == "above" else cached_binary(package, machine)
    planted.parent.mkdir(parents=True)
    planted.write_text(f"#!/bin/sh\n: > {tmp_path}/it-ran\n")
    planted.chmod(0o755)
    done = run(machine)
    assert done.returncode == 1
    assert ("nothing was fetched" if place == "above" else "SHA-256 differs. It was not run.") in done.stderr
    assert not (tmp_path / "it-ran").exists()
