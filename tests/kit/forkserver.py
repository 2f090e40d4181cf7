"""A server that forks gateways: it has the gateway's code imported, so a gateway starts in a tenth of a second, where a new
interpreter takes seconds. Each gateway is a process of its own, with its own settings, that ends by signals like any other.

`Forkserver` is the client, in the test's process. As a program this module is the server; `serve` is that of a program of its own
(`tests/system/transcripts/forks.py`). One JSON line in, one out with the same `number`: `{"start": {"env", "log", "folder", ...}}` gives a pid, `{"kill": pid, "signal"}` and `{"poll": pid}` give an exit code (minus the
signal's number), or null while the process runs. When its input ends, it kills what runs and ends. It must stay
single-threaded and without an event loop: what it forks inherits both.
"""

import contextlib
import ctypes
import gc
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STOP_DEADLINE_S = 120.0
RESPONSE_DEADLINE_S = 60.0
POLL_S = 0.01
_PR_SET_PDEATHSIG = 1


# ---- In the test's process.


class Forkserver:
    """A running server: the program of `module`. Safe to use from any loop and thread; each command takes milliseconds. It
    imports while the first test still prepares."""

    def __init__(self, module: str = "tests.kit.forkserver") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)

    def start(self, *, env: dict[str, str], log: Path, folder: Path, **more: Any) -> "ForkedProcess":
        """A gateway with that environment, whose output is appended to `log` and whose working folder is `folder`. `more`: what the program of another module
        reads."""
        wanted = {"env": env, "log": str(log), "folder": str(folder), **more}
        return ForkedProcess(self, self.command({"start": wanted})["pid"])

    def command(self, command: dict[str, Any]) -> Any:
        """The response to one command. A test that ends while it waits leaves its response unread: the next command reads past it."""
        assert self._process.stdin is not None
        with self._lock:
            number = next(self._numbers)
            self._process.stdin.write(json.dumps({**command, "number": number}) + "\n")
            while (answer := self._read())["number"] != number:
                pass
            return answer

    def _read(self) -> Any:
        """One line. The server writes one for each command, so that none waits in the buffer of the pipe."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], RESPONSE_DEADLINE_S)
        line = self._process.stdout.readline() if ready else ""
        assert line, f"the server that forks gateways gives no response; exit code {self._process.poll()}"
        return json.loads(line)

    def close(self) -> None:
        """Ends every gateway that still runs. A server that does not end is killed, and its gateways with it."""
        try:
            self._process.communicate(timeout=RESPONSE_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate(timeout=RESPONSE_DEADLINE_S)
            raise


class ForkedProcess:
    """A forked process with the methods of `subprocess.Popen`."""

    def __init__(self, forkserver: Forkserver, pid: int) -> None:
        self._forkserver = forkserver
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._forkserver.command({"poll": self.pid})["code"]
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """After SIGKILL the process has ended when this returns."""
        if self.returncode is None:
            self.returncode = self._forkserver.command({"kill": self.pid, "signal": sig})["code"]

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (STOP_DEADLINE_S if timeout is None else timeout)
        while (code := self.poll()) is None:
            assert time.monotonic() < deadline, f"process {self.pid} still runs"
            time.sleep(POLL_S)
        return code


# ---- The server.

Run = Callable[[dict[str, Any]], None]


def main() -> None:
    _import_gateway()
    serve(_run_gateway)


def serve(run: Run) -> None:
    """Forks a process for each `start`, which runs `run` with what `start` names, until the input ends."""
    codes: dict[int, int | None] = {}
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, threading.enumerate()
    for line in sys.stdin:
        command = json.loads(line)
        answer = partial(_answer, command["number"])
        match command:
            case {"start": wanted}:
                pid = _fork(run, wanted)
                codes[pid] = None
                answer(pid=pid)
            case {"kill": pid, "signal": number}:
                if _poll(codes, pid) is None:
                    os.kill(pid, number)  # a child that is not reaped yet: no other process has its id
                answer(code=_wait(codes, pid) if number == signal.SIGKILL else _poll(codes, pid))
            case {"poll": pid}:
                answer(code=_poll(codes, pid))
    for pid in codes:
        if _poll(codes, pid) is None:
            os.kill(pid, signal.SIGKILL)
            _wait(codes, pid)


def _import_gateway() -> None:
    """What a gateway imports when it starts."""
    import uvloop

    from tests.kit import fault_injection, process_dump
    from tollway.app import lifecycle
    from tollway.cli import main as command_line
    from tollway.cli import operator

    assert all((uvloop, fault_injection, process_dump, lifecycle, operator, command_line))


def _fork(run: Run, wanted: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _detach(wanted["env"], wanted["log"], wanted["folder"])
        run(wanted)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_gateway(wanted: dict[str, Any]) -> None:
    """`tollway gateway serve`, with the faults that the environment asks for."""
    from tests.kit import fault_injection, process_dump
    from tollway.cli.main import main as run_command

    process_dump.install()
    fault_injection.install(os.environ)
    sys.argv = ["tollway", "serve"]
    run_command()


def _detach(env: dict[str, str], log: str, folder: str) -> None:
    """Nothing of the server is left in the child: no pipes, no settings, no folder."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)


def _poll(codes: dict[int, int | None], pid: int) -> int | None:
    if codes[pid] is None:
        ended, status = os.waitpid(pid, os.WNOHANG)
        codes[pid] = os.waitstatus_to_exitcode(status) if ended else None
    return codes[pid]


def _wait(codes: dict[int, int | None], pid: int) -> int | None:
    if codes[pid] is None:
        codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return codes[pid]


def _answer(number: int, **answer: int | None) -> None:
    sys.stdout.write(json.dumps({"number": number, **answer}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
