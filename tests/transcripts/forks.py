"""A program that has the product loaded and forks a process for each command line that it is given, under a clock of the
transcript's own: every clock that Python code can read shows the 8 bytes of one file (milliseconds). The event loop's
timers stay real.

One JSON line in, one out: `{"start": {"arguments", "env", "log", "folder", "clock"}}` gives a pid, `{"signal": pid,
"number"}` sends one, `{"poll": pid}` gives its exit code or null. When its input ends, everything ends.
"""

import contextlib
import gc
import json
import mmap
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any

sys.path.insert(0, os.getcwd())

import asyncio  # noqa: F401 - what has a clock of its own is loaded before the clocks change
import concurrent.futures  # noqa: F401
import queue  # noqa: F401
import selectors  # noqa: F401
import subprocess  # noqa: F401

from tests.transcripts import adapter

EPOCH_MS = 1_800_000_000_000
_clock: Any = None


def now_ms() -> int:
    return EPOCH_MS if _clock is None else int.from_bytes(_clock[:8], "big")


def ticks_ms() -> int:
    """Moves with `now_ms`, from another beginning."""
    return now_ms() - EPOCH_MS + 1_000_000_000


def set_clocks() -> None:
    walls, steady = (time.CLOCK_REALTIME,), (time.CLOCK_MONOTONIC, getattr(time, "CLOCK_BOOTTIME", -1))
    real_ns = time.clock_gettime_ns

    def gettime_ns(which: int) -> int:
        if which in walls:
            return now_ms() * 1_000_000
        return ticks_ms() * 1_000_000 if which in steady else real_ns(which)

    replaced: dict[str, Any] = {
        "time": lambda: now_ms() / 1000,
        "time_ns": lambda: now_ms() * 1_000_000,
        "monotonic": lambda: ticks_ms() / 1000,
        "monotonic_ns": lambda: ticks_ms() * 1_000_000,
        "perf_counter": lambda: ticks_ms() / 1000,
        "perf_counter_ns": lambda: ticks_ms() * 1_000_000,
        "clock_gettime_ns": gettime_ns,
        "clock_gettime": lambda which: gettime_ns(which) / 1e9,
    }
    for name, function in replaced.items():
        setattr(time, name, function)


def main() -> None:
    set_clocks()
    adapter.load()
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1, threading.enumerate()
    codes: dict[int, int | None] = {}
    _tell({"ready": os.getpid()})
    for line in sys.stdin:
        match json.loads(line):
            case {"start": wanted}:
                pid = _fork(wanted)
                codes[pid] = None
                _tell({"pid": pid})
            case {"signal": pid, "number": number}:
                if _poll(codes, pid) is None:
                    os.kill(pid, number)
                _tell({})
            case {"poll": pid}:
                _tell({"code": _poll(codes, pid)})
    for pid in codes:
        if _poll(codes, pid) is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _fork(wanted: dict[str, Any]) -> int:
    global _clock
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(wanted["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for target, source in ((0, nothing), (1, log), (2, log)):
            os.dup2(source, target)
        os.environ.clear()
        os.environ.update(wanted["env"])
        os.chdir(wanted["folder"])
        with open(wanted["clock"], "r+b") as file:
            _clock = mmap.mmap(file.fileno(), 8)
        adapter.run(wanted["arguments"])
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _poll(codes: dict[int, int | None], pid: int) -> int | None:
    if codes[pid] is None:
        ended, status = os.waitpid(pid, os.WNOHANG)
        codes[pid] = os.waitstatus_to_exitcode(status) if ended else None
    return codes[pid]


def _tell(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
