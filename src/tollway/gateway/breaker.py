"""Which upstreams are known to be down: after a few dials in a row that failed, an origin is left alone for a while, and
nobody is asked to pay for what cannot be served. Counts per process; only dials count, never what an upstream answers.
"""

import math
from collections import OrderedDict
from collections.abc import Callable

from tollway.limits import Limits

ORIGINS_MAX = 10_000


class Breaker:
    """One for all origins. After the pause the next call is a trial: one more failure begins the pause anew."""

    def __init__(self, *, limits: Limits, now_ms: Callable[[], int]) -> None:
        self._limits = limits
        self._now_ms = now_ms
        self._failures: OrderedDict[str, int] = OrderedDict()
        self._closed_until_ms: dict[str, int] = {}

    def wait_s(self, origin: str) -> int | None:
        """Seconds until that origin is tried again; None when it may be dialled now."""
        until_ms = self._closed_until_ms.get(origin)
        if until_ms is None:
            return None
        left_ms = until_ms - self._now_ms()
        return math.ceil(left_ms / 1000) if left_ms > 0 else None

    def note_reached(self, origin: str) -> None:
        if self._failures.pop(origin, None) is not None:
            self._closed_until_ms.pop(origin, None)

    def note_failed(self, origin: str) -> None:
        """A dial that failed."""
        count = self._failures.get(origin, 0) + 1
        self._failures[origin] = count
        self._failures.move_to_end(origin)
        if count >= self._limits.dial_failures_max:
            self._closed_until_ms[origin] = self._now_ms() + round(self._limits.dial_pause_s * 1000)
        while len(self._failures) > ORIGINS_MAX:
            oldest, _ = self._failures.popitem(last=False)
            self._closed_until_ms.pop(oldest, None)
