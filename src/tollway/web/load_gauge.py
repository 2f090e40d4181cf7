"""How much runs and how much memory is taken, against what is allowed: decides at the door who is asked to come back
later. Both planes share one. It never sees a request, only whose it is.
"""

import os
from collections.abc import Callable
from pathlib import Path

from tollway.errors import Code, Problem
from tollway.limits import Limits
from tollway.rates import client_bucket
from tollway.web.body_room import BodyBudget

SHED_AT_PERCENT = 95
"""Requests are refused while there is still something left for those that run to end well."""

MEMORY_CHECK_INTERVAL_S = 0.25
"""Memory is looked at so often at most."""

RETRY_ADDRESS_LIMIT_S, RETRY_OVERLOADED_S = 1, 2

_STATM = Path("/proc/self/statm")


def read_resident_bytes() -> int:
    """The resident memory of this process; 0 where the system does not tell (anything but Linux)."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


class LoadShedder:
    """Counts the requests that run, in all and of each client address. Whoever was let in leaves again."""

    def __init__(
        self, *, limits: Limits, clock: Callable[[], float], read_memory_bytes: Callable[[], int]
    ) -> None:
        """`clock`: a monotonic one, in seconds."""
        self.bodies = BodyBudget(limits)
        self._limits = limits
        self._clock = clock
        self._read_memory_bytes = read_memory_bytes
        self._running_max = limits.in_flight_max * SHED_AT_PERCENT // 100
        self._memory_bytes_max = limits.memory_bytes_max * SHED_AT_PERCENT // 100
        self._by_address: dict[str, int] = {}
        self._next_check_s = 0.0
        self._is_memory_full = False
        self.running = 0

    def enter(self, client_address: str) -> Problem | None:
        """One more request. None: it is let in, and `leave` must follow. Else why not, and nothing was counted."""
        if self.is_full():
            return _OVERLOADED
        bucket = client_bucket(client_address)
        mine = self._by_address.get(bucket, 0)
        if mine >= self._limits.in_flight_per_address_max:
            return _ADDRESS_LIMIT
        self._by_address[bucket] = mine + 1
        self.running += 1
        return None

    def leave(self, client_address: str) -> None:
        self.running -= 1
        bucket = client_bucket(client_address)
        left = self._by_address[bucket] - 1
        if left:
            self._by_address[bucket] = left
        else:
            del self._by_address[bucket]

    def is_full(self) -> bool:
        """Whether nobody more is let in."""
        return self.running >= max(self._running_max, 1) or self._is_memory_short()

    def _is_memory_short(self) -> bool:
        if not self._memory_bytes_max:
            return False
        now_s = self._clock()
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + MEMORY_CHECK_INTERVAL_S
            self._is_memory_full = self._read_memory_bytes() >= self._memory_bytes_max
        return self._is_memory_full


_OVERLOADED = Problem(
    code=Code.OVERLOADED,
    detail="The gateway has as much to do as it can; nothing was looked at.",
    retry_after_s=RETRY_OVERLOADED_S,
    payment_state="none",
)
_ADDRESS_LIMIT = Problem(
    code=Code.OVERLOADED,
    detail="Too many requests from this address are running.",
    reason="address",
    retry_after_s=RETRY_ADDRESS_LIMIT_S,
    payment_state="none",
)
