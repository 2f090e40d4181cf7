"""A command on a pseudo-terminal: both streams as a person sees them, and input for a test that waits for a text."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import tollway

DEADLINE_S = 60.0
RUN_COMMANDS = """
import sys
from tollway.cli import main
for words in {commands!r}:
    sys.argv = ["tollway", *words]
    try:
        main()
        code = 0
    except SystemExit as exc:
        code = exc.code
    print("exit", code, *words, flush=True)
{after}
"""
"""Runs several commands in one process, each followed by a line with its exit code."""


class Terminal:
    """A Python script on a pseudo-terminal of 80 columns. Use it in a `with`: its end kills a process that still runs."""

    def __init__(self, script: str, env: Mapping[str, str], *, columns: int = 80) -> None:
        self._leader, follower = pty.openpty()
        base = {
            "TERM": "dumb",  # so that rich writes no escapes of its own
            "COLUMNS": str(columns),
            "PYTHONIOENCODING": "utf-8",
            "PYTHONPATH": str(Path(tollway.__file__).parents[1]),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=follower,
            stderr=follower,
            env={**base, **env},
        )
        os.close(follower)
        self._bytes = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_S)
        os.close(self._leader)

    @property
    def text(self) -> str:
        """All that the terminal has received, with `\\n` as line end."""
        return self._bytes.decode(errors="replace").replace("\r\n", "\n")

    def read_until(self, text: str) -> str:
        """Reads until the terminal has received `text`. Raises AssertionError at the end of the process and at a deadline."""
        while text not in self.text:
            assert self._read(), f"{text!r} is not in {self.text[-4_000:]}"
        return self.text

    def read_all(self) -> str:
        """Reads until the process ends."""
        while self._read():
            pass
        self._process.wait(DEADLINE_S)
        return self.text

    def _read(self) -> bool:
        deadline = time.monotonic() + DEADLINE_S
        ready, _, _ = select.select([self._leader], [], [], deadline - time.monotonic())
        assert ready, f"nothing for {DEADLINE_S:.0f} s after {self.text[-4_000:]}"
        try:
            piece = os.read(self._leader, 65_536)
        except OSError:  # Linux, once no process writes to the terminal any more
            return False
        self._bytes += piece
        return bool(piece)


def run_commands(
    commands: Sequence[Sequence[str]], env: Mapping[str, str], *, columns: int = 80, after: str = ""
) -> str:
    """All that a terminal receives from these commands, in one process. `after`: a statement that runs at the end."""
    script = RUN_COMMANDS.format(commands=[tuple(words) for words in commands], after=after)
    with Terminal(script, env, columns=columns) as terminal:
        return terminal.read_all()


def split_commands(shown: str) -> list[tuple[int, list[str]]]:
    """The exit code and the lines of each command of `run_commands`."""
    parts: list[tuple[int, list[str]]] = []
    lines: list[str] = []
    for line in shown.splitlines():
        if line.startswith("exit "):
            parts.append((int(line.split()[1]), lines))
            lines = []
        else:
            lines.append(line)
    return parts
