"""Room for request bodies that are read whole before anything is done with them: so much for all of them together, and half
of it at most for one client address. Both planes share one. It never sees a body, only how long it has become. What is long
is handed on at a pace: to read a megabyte of JSON takes a tenth of a second, in which no call is served.

Without it a thousand callers who send all but the last byte would have the gateway hold a thousand bodies.
"""

import asyncio

from tollway.errors import Code, Problem
from tollway.limits import Limits
from tollway.rates import client_bucket

RETRY_BODIES_S = 2
LONG_BODY_INTERVAL_S = 0.2
"""Between two long bodies of the control plane: most of it is for everybody else."""


class BodyBudget:
    """`reserved_bytes`: bytes of all bodies that are held, but for the first `buffer_bytes` of each, which are every connection's."""

    def __init__(self, limits: Limits) -> None:
        self._bytes_max = limits.held_bodies_bytes_max
        self._by_address: dict[str, int] = {}
        self._next_s = 0.0
        self.free_bytes = limits.buffer_bytes
        self.reserved_bytes = 0

    def open(self, client_address: str) -> "BodyReservation":
        """For one body. Whoever opened it closes it, whatever happened."""
        return BodyReservation(self, client_address)

    def next_delay_s(self, now_s: float) -> float:
        """How long a body that is whole and long waits for its turn: the first one not at all."""
        begins_s = max(now_s, self._next_s)
        self._next_s = begins_s + LONG_BODY_INTERVAL_S
        return begins_s - now_s

    def reserve(self, bucket: str, size: int) -> bool:
        mine = self._by_address.get(bucket, 0) + size
        if self.reserved_bytes + size > self._bytes_max or mine > self._bytes_max // 2:
            return False
        self._by_address[bucket] = mine
        self.reserved_bytes += size
        return True

    def release(self, bucket: str, size: int) -> None:
        self.reserved_bytes -= size
        left = self._by_address[bucket] - size
        if left:
            self._by_address[bucket] = left
        else:
            del self._by_address[bucket]


class BodyReservation:
    """What one body takes of the budget."""

    __slots__ = ("_budget", "_client_address", "_reserved_bytes", "_size")

    def __init__(self, budget: BodyBudget, client_address: str) -> None:
        self._budget = budget
        self._client_address = client_address
        self._size = 0
        self._reserved_bytes = 0

    def reserve(self, size: int) -> Problem | None:
        """So many bytes more are held. None: they fit into the budget."""
        self._size += size
        more = self._size - self._budget.free_bytes - self._reserved_bytes
        if more <= 0:
            return None
        if not self._budget.reserve(client_bucket(self._client_address), more):
            return _BODIES_EXHAUSTED
        self._reserved_bytes += more
        return None

    async def wait_interval(self, now_s: float) -> None:
        """The body is whole. Returns at once for a short one. (To read them in a thread helped nobody: all wait for one
        interpreter.)"""
        if self._size > self._budget.free_bytes and (delay_s := self._budget.next_delay_s(now_s)):
            await asyncio.sleep(delay_s)

    def close(self) -> None:
        if self._reserved_bytes:
            self._budget.release(client_bucket(self._client_address), self._reserved_bytes)
            self._reserved_bytes = 0


_BODIES_EXHAUSTED = Problem(
    code=Code.OVERLOADED,
    detail="The gateway holds as many long request bodies as it can.",
    reason="bodies",
    retry_after_s=RETRY_BODIES_S,
    payment_state="none",
)
