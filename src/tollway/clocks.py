"""The clocks of this process. Only the composition roots read them; rooms are given a function."""

import time


def now_ms() -> int:
    """The process clock, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def ticks_ms() -> int:
    """Milliseconds of a clock that nobody sets. It goes on while the machine sleeps, where there is such a clock."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000
