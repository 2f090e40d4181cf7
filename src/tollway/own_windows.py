"""Sliding windows in the memory of this process, on a clock that nobody sets: they are as long as they say, also when the
time of day jumps. Bounded by what is in them: a window that has emptied is forgotten.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from limits import RateLimitItem

SWEEP_AFTER = 10_000
"""So many windows more than were left by the last sweep, and those that have emptied are looked for again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStanding:
    """A window as it is now. `wait_s`: until its oldest entry leaves it."""

    left: int
    wait_s: float


class OwnWindows:
    """Used from one event loop. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[str, deque[float]] = {}  # when each entry leaves, the oldest first
        self._sweep_at = SWEEP_AFTER

    def __len__(self) -> int:
        return len(self._windows)

    def hit(self, item: RateLimitItem, *key: str) -> bool:
        """Whether one more was within the limit, and so counted."""
        now_s, name = self._clock(), item.key_for(*key)
        window = self._open(name, now_s)
        if len(window) >= item.amount:
            return False
        window.append(now_s + item.get_expiry())
        if name not in self._windows:
            self._windows[name] = window
            self._sweep(now_s)
        return True

    def look(self, item: RateLimitItem, *key: str) -> OwnStanding:
        """Counts nothing."""
        now_s = self._clock()
        window = self._open(item.key_for(*key), now_s)
        return OwnStanding(left=item.amount - len(window), wait_s=window[0] - now_s if window else 0.0)

    def _open(self, name: str, now_s: float) -> deque[float]:
        """The window without what has left it."""
        window = self._windows.get(name)
        if window is None:
            return deque()
        while window and window[0] <= now_s:
            window.popleft()
        return window

    def _sweep(self, now_s: float) -> None:
        if len(self._windows) < self._sweep_at:
            return
        for name in [name for name, window in self._windows.items() if not window or window[-1] <= now_s]:
            del self._windows[name]
        self._sweep_at = len(self._windows) + SWEEP_AFTER
