"""The time that all gateways of a database go by, between two looks at it. Reads no clock but those it is given.

Each renewal tells what the shared clock says; from there on a clock that nobody sets counts. So a jump of this
gateway's own clock moves no moment in the ledger, nor does it make a hold end early. A jump of the shared clock itself
is seen too: `ahead_ms` is how much older than it is something from before may look.
"""

from collections.abc import Callable


class ClusterClock:
    """All times in milliseconds. `ticks_ms`: a monotonic clock; without one this gateway's own stands in, and no jumps
    are looked for."""

    def __init__(self, *, own_ms: Callable[[], int], ticks_ms: Callable[[], int] | None = None) -> None:
        self._own_ms = own_ms
        self._ticks_ms = ticks_ms or own_ms
        self._looks_for_jumps = ticks_ms is not None
        self._drift_ms: int | None = None  # the shared clock before the ticks
        self._drift_min_ms = 0

    def set_shared_ms(self, shared_ms: int) -> None:
        """What the shared clock says now."""
        drift_ms = shared_ms - self._ticks_ms()
        self._drift_min_ms = drift_ms if self._drift_ms is None else min(drift_ms, self._drift_min_ms)
        self._drift_ms = drift_ms

    def read(self) -> int:
        return self._own_ms() if self._drift_ms is None else self._ticks_ms() + self._drift_ms

    def translate(self, own_ms: int) -> int:
        """A moment of this gateway's own clock, as the shared one has it."""
        return self.read() + own_ms - self._own_ms()

    @property
    def ahead_ms(self) -> int:
        """By how much the shared clock has been set forward since it was furthest back, as far as was seen."""
        if self._drift_ms is None or not self._looks_for_jumps:
            return 0
        return self._drift_ms - self._drift_min_ms
