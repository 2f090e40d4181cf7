"""Runs the code blocks of a documentation page. `read_blocks` finds them; a `Machine` runs shell blocks in a folder of its own.

A comment in the line above a block says what the block is: `<!-- caller -->` names the machine, `<!-- provider, file: api.py -->` a file to write,
`<!-- operator, keeps running -->` a server, `<!-- not run: why -->` a block that no test can run, and `<!-- run by: FILE -->` one that a test of its own reads.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)
DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PageBlock:
    """One code block. `mark`: the words of the comment above it, empty without one."""

    language: str
    text: str
    mark: str
    line: int

    @property
    def machine(self) -> str:
        return self.mark.split(",")[0].strip()

    @property
    def file_name(self) -> str | None:
        found = re.search(r"file: (\S+)", self.mark)
        return found[1] if found else None

    @property
    def keeps_running(self) -> bool:
        return "keeps running" in self.mark

    @property
    def runner(self) -> str | None:
        return self.mark.removeprefix("run by: ") if self.mark.startswith("run by: ") else None

    @property
    def why_not_run(self) -> str | None:
        return self.mark.removeprefix("not run: ") if self.mark.startswith("not run: ") else None


def read_blocks(page: str) -> list[PageBlock]:
    """The code blocks of a page of Markdown, in their order."""
    return [
        PageBlock(
            language=found["language"],
            text=found["text"],
            mark=found["mark"] or "",
            line=page.count("\n", 0, found.start("language")) + 1,
        )
        for found in BLOCK.finditer(page)
    ]


@dataclass(kw_only=True)
class Machine:
    """A folder, and the variables that its shell blocks export. `env`: beside `PATH` and `HOME`. `output`: what its blocks have printed."""

    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    output: str = ""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self._state.write_text("")

    @property
    def _state(self) -> Path:
        return self.folder / ".variables"

    @property
    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {"PATH": path, "HOME": str(self.folder), "PYTHONUNBUFFERED": "1", **self.env}

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def run(self, text: str) -> str:
        """Runs shell commands and returns their standard output; the variables stay. Raises AssertionError when one fails."""
        state = shlex.quote(str(self._state))
        done = subprocess.run(
            ["bash", "-c", f"set -eu -o pipefail; . {state}\n{text}\nexport -p > {state}"],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        self.output += done.stdout
        return done.stdout

    def start(self, text: str) -> subprocess.Popen[bytes]:
        """Starts one command that keeps running, in a process group of its own; `stop` ends it."""
        with (self.folder / "server.log").open("ab") as log:
            server = subprocess.Popen(
                ["bash", "-c", f". {shlex.quote(str(self._state))}\nexec {text}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.servers.append(server)
        return server

    def stop(self) -> None:
        """Ends the servers that this machine started."""
        for server in self.servers:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGTERM)
        for server in self.servers:
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait(timeout=20)
