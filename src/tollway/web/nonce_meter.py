"""Counts, per client address, what sign-in gives away: nonces, challenges, attempts. Per process; never about money."""

import ipaddress
import math
import time

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from tollway.limits import Limits


class NonceMeter:
    """A sliding minute for each client and each kind of thing."""

    def __init__(self, *, limits: Limits) -> None:
        self.per_minute = limits.nonces_per_minute
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._item = RateLimitItemPerMinute(self.per_minute, namespace="signin")

    def charge(self, kind: str, *, client_address: str) -> int | None:
        """One more of that kind. Seconds to wait, or None when it is allowed."""
        crowd = _crowd(client_address)
        if self._limiter.hit(self._item, kind, crowd):
            return None
        return max(
            1,
            math.ceil(self._limiter.get_window_stats(self._item, kind, crowd).reset_time - time.time()),
        )


def _crowd(client_address: str) -> str:
    """Whoever has one IPv6 address has 2^64 of them: they count as one."""
    try:
        address = ipaddress.ip_address(client_address)
    except ValueError:
        return client_address
    if address.version == 4:
        return client_address
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
