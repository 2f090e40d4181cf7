"""Room for request bodies that are read whole before anything is done with them: so much for all of them together, and half
of it at most for one client address. Both planes share one. It never sees a body, only how long it has become. What is long
is handed on at a pace: to read a megabyte of JSON takes a tenth of a second, in which no call is served.

Without it a thousand callers who send all but the last byte would have the gateway hold a thousand bodies.
"""

import asyncio

from tollway.errors import Code, Problem
from tollway.limits import Limits
from tollway.rates import name_crowd

RETRY_S = 2
PACE_S = 0.2
"""Between two long bodies of the control plane: most of it is for everybody else."""


class BodyRoom:
    """`taken`: bytes of all bodies that are held, but for the first `buffer_bytes` of each, which are every connection's."""

    def __init__(self, limits: Limits) -> None:
        self._bytes_max = limits.held_bodies_bytes_max
        self._by_address: dict[str, int] = {}
        self._next_s = 0.0
        self.free_bytes = limits.buffer_bytes
        self.taken = 0

    def open(self, client_address: str) -> "HeldBody":
        """For one body. Whoever opened it closes it, whatever happened."""
        return HeldBody(self, client_address)

    def find_delay_s(self, now_s: float) -> float:
        """How long a body that is whole and long waits for its turn: the first one not at all."""
        begins_s = max(now_s, self._next_s)
        self._next_s = begins_s + PACE_S
        return begins_s - now_s

    def take(self, crowd: str, size: int) -> bool:
        mine = self._by_address.get(crowd, 0) + size
        if self.taken + size > self._bytes_max or mine > self._bytes_max // 2:
            return False
        self._by_address[crowd] = mine
        self.taken += size
        return True

    def give_back(self, crowd: str, size: int) -> None:
        self.taken -= size
        left = self._by_address[crowd] - size
        if left:
            self._by_address[crowd] = left
        else:
            del self._by_address[crowd]


class HeldBody:
    """What one body takes of the room."""

    __slots__ = ("_client_address", "_room", "_size", "_taken")

    def __init__(self, room: BodyRoom, client_address: str) -> None:
        self._room = room
        self._client_address = client_address
        self._size = 0
        self._taken = 0

    def hold(self, size: int) -> Problem | None:
        """So many bytes more are held. None: there was room."""
        self._size += size
        more = self._size - self._room.free_bytes - self._taken
        if more <= 0:
            return None
        if not self._room.take(name_crowd(self._client_address), more):
            return _NO_ROOM
        self._taken += more
        return None

    async def wait_turn(self, now_s: float) -> None:
        """The body is whole. Returns at once for a short one. (To read them in a thread helped nobody: all wait for one
        interpreter.)"""
        if self._size > self._room.free_bytes and (delay_s := self._room.find_delay_s(now_s)):
            await asyncio.sleep(delay_s)

    def close(self) -> None:
        if self._taken:
            self._room.give_back(name_crowd(self._client_address), self._taken)
            self._taken = 0


_NO_ROOM = Problem(
    code=Code.OVERLOADED,
    detail="The gateway holds as many long request bodies as it can.",
    reason="bodies",
    retry_after_s=RETRY_S,
    payment_state="none",
)
