"""Which upstreams are known to be down: after a few dials in a row that failed, an origin is left alone for a while, and
nobody is asked to pay for what cannot be served. Counts per process; only dials count, never what an upstream answers.
A clock that is set does not make a pause longer.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from tollway.limits import Limits

ORIGINS_MAX = 10_000


class Breaker:
    """One for all origins. After the pause the next call is a trial: one more failure begins the pause anew.

    `clock`: monotonic seconds."""

    def __init__(self, *, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._closed_until_s: dict[str, float] = {}

    def wait_s(self, origin: str) -> int | None:
        """Seconds until that origin is tried again; None when it may be dialled now."""
        until_s = self._closed_until_s.get(origin)
        if until_s is None:
            return None
        left_s = until_s - self._clock()
        return math.ceil(left_s) if left_s > 0 else None

    def note_reached(self, origin: str) -> None:
        if self._failures.pop(origin, None) is not None:
            self._closed_until_s.pop(origin, None)

    def note_failed(self, origin: str) -> None:
        """A dial that failed."""
        count = self._failures.get(origin, 0) + 1
        self._failures[origin] = count
        self._failures.move_to_end(origin)
        if count >= self._limits.dial_failures_max:
            self._closed_until_s[origin] = self._clock() + self._limits.dial_pause_s
        while len(self._failures) > ORIGINS_MAX:
            oldest, _ = self._failures.popitem(last=False)
            self._closed_until_s.pop(oldest, None)
