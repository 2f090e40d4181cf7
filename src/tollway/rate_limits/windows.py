"""Sliding windows in the memory of this process, on a monotonic clock: a jump of the time of day does not change their length.

Memory is bounded: an empty window is removed, and a window holds at most `SLICES_MAX` slices, however large its limit is.
"""

import time
from collections import deque
from collections.abc import Callable

from limits import RateLimitItem

SWEEP_AFTER = 10_000
"""Added windows after which the empty windows are removed."""

SLICES_MAX = 500
"""Hits within this part of a window form one slice and leave together with its first hit: too early by a slice at most."""


class _Slice:
    __slots__ = ("count", "leaves_s")

    def __init__(self, leaves_s: float) -> None:
        self.count = 1
        self.leaves_s = leaves_s


class _Window:
    """A sliding window of counted hits. `slices`: the oldest first."""

    __slots__ = ("count", "slices")

    def __init__(self) -> None:
        self.count = 0
        self.slices: deque[_Slice] = deque()

    def add(self, now_s: float, length_s: float) -> None:
        self.count += 1
        leaves_s = now_s + length_s
        if self.slices and leaves_s - self.slices[-1].leaves_s < length_s / SLICES_MAX:
            self.slices[-1].count += 1
        else:
            self.slices.append(_Slice(leaves_s))

    def undo_hit(self) -> None:
        if not self.slices:
            return
        self.count -= 1
        self.slices[-1].count -= 1
        if not self.slices[-1].count:
            self.slices.pop()

    def drop_expired(self, now_s: float) -> None:
        while self.slices and self.slices[0].leaves_s <= now_s:
            self.count -= self.slices.popleft().count


class LocalWindows:
    """The windows of one process by key, for one event loop. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}
        self._sweep_at = SWEEP_AFTER

    def __len__(self) -> int:
        return len(self._windows)

    def hit(self, item: RateLimitItem, *key: str) -> bool:
        """Returns False at the limit."""
        now_s, name = self._clock(), item.key_for(*key)
        known = self._find(name, now_s)
        window = _Window() if known is None else known
        if window.count >= item.amount:
            return False
        window.add(now_s, item.get_expiry())
        if known is None:
            self._windows[name] = window
            self._sweep(now_s)
        return True

    def undo_hit(self, item: RateLimitItem, *key: str) -> None:
        """The window is not empty."""
        window = self._find(item.key_for(*key), self._clock())
        if window is not None:
            window.undo_hit()

    def peek(self, item: RateLimitItem, *key: str) -> tuple[int, float]:
        """The remaining hits, and the seconds until the oldest slice leaves the window. Counts nothing."""
        now_s = self._clock()
        window = self._find(item.key_for(*key), now_s)
        if window is None:
            return item.amount, 0.0
        wait_s = window.slices[0].leaves_s - now_s if window.slices else 0.0
        return item.amount - window.count, wait_s

    def _find(self, name: str, now_s: float) -> _Window | None:
        """The window without expired slices; None for an unknown key."""
        window = self._windows.get(name)
        if window is not None:
            window.drop_expired(now_s)
        return window

    def _sweep(self, now_s: float) -> None:
        if len(self._windows) < self._sweep_at:
            return
        for name, window in list(self._windows.items()):
            if not window.slices or window.slices[-1].leaves_s <= now_s:
                del self._windows[name]
        self._sweep_at = len(self._windows) + SWEEP_AFTER
