"""A program that has the product loaded and forks a process for each command line that it is given, under a clock of the
transcript's own: every clock that Python code can read shows the 8 bytes of one file (milliseconds). The event loop's
timers stay real.

`start` names `arguments` and `clock` beside what `tests/kit/forkserver.py` reads.
"""

import contextlib
import mmap
import os
import sys
import time
from typing import Any

sys.path.insert(0, os.getcwd())

import asyncio  # noqa: F401 - what has a clock of its own is loaded before the clocks change
import concurrent.futures  # noqa: F401
import queue  # noqa: F401
import selectors  # noqa: F401
import subprocess  # noqa: F401

from tests.kit import forkserver
from tests.system.transcripts import adapter

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
    # As if the extra for search by meaning were not installed: what it finds depends on when its background task ran.
    sys.modules["numpy"] = None  # type: ignore[assignment]  # this is how Python marks a module that cannot be imported
    set_clocks()
    adapter.load()
    forkserver.serve(run_command)


def run_command(wanted: dict[str, Any]) -> None:
    global _clock
    with open(wanted["clock"], "r+b") as file:
        _clock = mmap.mmap(file.fileno(), 8)
    adapter.run(wanted["arguments"])


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
