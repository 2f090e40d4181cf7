"""Sliding windows: how often somebody did something lately, and how long to wait. Per process, never about money.

Who counts whom, and what for, is the business of the meters that stand on it.
"""

import ipaddress
import math
import time

from limits import RateLimitItem
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter


class Rates:
    """Windows in the memory of this process (`limits` package). Safe to use from many tasks at once."""

    def __init__(self) -> None:
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    def hit(self, item: RateLimitItem, *key: str) -> int | None:
        """One more. None when it is allowed, else the seconds to wait; a refused one does not count."""
        return None if self._limiter.hit(item, *key) else self._count_down_s(item, *key)

    def wait_s(self, item: RateLimitItem, *key: str) -> int | None:
        """The seconds until one more is allowed, without counting one; None when it is allowed now."""
        return None if self._limiter.test(item, *key) else self._count_down_s(item, *key)

    def left(self, item: RateLimitItem, *key: str) -> int:
        """How many more are allowed now."""
        return self._limiter.get_window_stats(item, *key).remaining

    def _count_down_s(self, item: RateLimitItem, *key: str) -> int:
        return max(1, math.ceil(self._limiter.get_window_stats(item, *key).reset_time - time.time()))


def name_crowd(client_address: str) -> str:
    """Whom a client address is counted as. Whoever has one IPv6 address has 2^64 of them: they count as one."""
    try:
        address = ipaddress.ip_address(client_address)
    except ValueError:
        return client_address
    if address.version == 4:
        return client_address
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
