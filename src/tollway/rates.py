"""Sliding windows: how often somebody did something lately, and how long to wait. Never about money.

Every process has windows of its own. Where gateways share a server for them as well, a thing is allowed when both say
so: what the server does not know, because it was away, this process does. Without an answer the windows here decide
alone. Who counts whom, and what for, is the business of the meters that stand on it.
"""

import ipaddress
import math
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from limits import RateLimitItem

from tollway.own_windows import OwnWindows

if TYPE_CHECKING:  # its client is loaded where there is a server to ask
    from tollway.shared_windows import SharedWindows, Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many more are allowed now; where none is, the seconds until one is."""

    left: int
    wait_s: int | None


class Rates:
    """One per process. Safe to use from many tasks at once."""

    def __init__(self, shared: "SharedWindows | None" = None) -> None:
        self._own = OwnWindows()
        self._shared = shared

    async def hit(self, item: RateLimitItem, *key: str) -> int | None:
        """One more. None when it is allowed, else the seconds to wait; a refused one does not count."""
        if self._shared is None:
            return self._hit_own(item, key)
        own = self._look_own(item, key)
        if own.wait_s is not None:
            return own.wait_s
        is_allowed = await self._shared.hit(item, *key)
        if is_allowed is False:
            return (await self.look(item, *key)).wait_s or 1
        wait_s = self._hit_own(item, key)
        return wait_s if is_allowed is None else None

    async def look(self, item: RateLimitItem, *key: str) -> Room:
        """How many more are allowed now. Counts nothing."""
        standing = None if self._shared is None else await self._shared.look(item, *key)
        own = self._look_own(item, key)
        if standing is None:
            return own
        shared = _read_shared(item, standing)
        return min(shared, own, key=lambda room: (room.left, -(room.wait_s or 0)))

    def note(self, item: RateLimitItem, *key: str) -> None:
        """One more, whose asker waits for no answer. Counted here at once, and by the others soon after."""
        self._hit_own(item, key)
        if self._shared is not None:
            self._shared.note(item, *key)

    def give_back(self, item: RateLimitItem, *key: str) -> None:
        """Takes one back that was counted by `hit`: here at once, and at the others soon after. Of several entries the
        newest goes, so what stays leaves the window no later than it would have."""
        self._own.give_back(item, *key)
        if self._shared is not None:
            self._shared.give_back(item, *key)

    def _hit_own(self, item: RateLimitItem, key: tuple[str, ...]) -> int | None:
        return None if self._own.hit(item, *key) else self._look_own(item, key).wait_s or 1

    def _look_own(self, item: RateLimitItem, key: tuple[str, ...]) -> Room:
        own = self._own.look(item, *key)
        return Room(left=own.left, wait_s=None if own.left > 0 else max(1, math.ceil(own.wait_s)))


def _read_shared(item: RateLimitItem, standing: "Standing") -> Room:
    if standing.left > 0:
        return Room(left=standing.left, wait_s=None)
    # A clock that was set back, here or at another gateway, must not tell anybody to wait for longer than a window.
    wait_s = min(math.ceil(standing.reset_s - time.time()), item.get_expiry())
    return Room(left=0, wait_s=max(1, wait_s))


@lru_cache(maxsize=16_384)
def name_crowd(client_address: str) -> str:
    """Whom a client address is counted as. Whoever has one IPv6 address has 2^64 of them: they count as one."""
    try:
        address = ipaddress.ip_address(client_address)
    except ValueError:
        return client_address
    if address.version == 4:
        return client_address
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
