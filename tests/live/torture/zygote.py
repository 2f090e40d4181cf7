"""A program that has the gateway's code loaded and forks gateways on command: a tenth of a second to start one, where a
new interpreter takes seconds. Each is a process of its own, with its own settings, that can be killed like any other.

One JSON line in, one out: `{"start": {"env", "log", "folder"}}` gives its pid, `{"kill": pid, "signal"}` and
`{"poll": pid}` its exit code (minus the signal's number), or null while it runs. When its input ends, everybody ends.
Must stay single-threaded and without an event loop: what it forks inherits both.
"""

import contextlib
import ctypes
import gc
import json
import os
import runpy
import signal
import sys
import traceback
from typing import Any

import process_dump  # from the folder of this program
import uvloop

from tollway.app import lifecycle
from tollway.config.settings import load_settings
from tollway.telemetry import configure_logging

PROGRAM = "TEST_PROGRAM"
"""In a gateway's environment: the program to run instead of the gateway itself."""
_PR_SET_PDEATHSIG = 1
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def main() -> None:
    codes: dict[int, int | None] = {}
    gc.freeze()
    _tell({"ready": os.getpid()})
    for line in sys.stdin:
        match json.loads(line):
            case {"start": wanted}:
                pid = _fork(wanted)
                codes[pid] = None
                _tell({"pid": pid})
            case {"kill": pid, "signal": number}:
                if _poll(codes, pid) is None:
                    os.kill(pid, number)  # it is a child that nobody has waited for: the number is its own
                _tell({"code": _wait(codes, pid) if number == signal.SIGKILL else _poll(codes, pid)})
            case {"poll": pid}:
                _tell({"code": _poll(codes, pid)})
    for pid in codes:
        if _poll(codes, pid) is None:
            os.kill(pid, signal.SIGKILL)
            _wait(codes, pid)


def _fork(wanted: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _become(wanted["env"], wanted["log"], wanted["folder"])
        if PROGRAM in os.environ:
            runpy.run_path(os.environ[PROGRAM], run_name="__main__")
        else:
            settings = load_settings(os.environ)
            configure_logging(level=settings.log_level, style=settings.log_format)
            uvloop.run(lifecycle.run(settings))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _become(env: dict[str, str], log: str, folder: str) -> None:
    """Nothing of the mother is left: her pipes, her settings, her place."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    process_dump.install()
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


def _tell(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
