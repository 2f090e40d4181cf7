"""Rate limits in sliding windows: the limiter, and quotas for a wallet and its client address. Never about money.

Each process counts in local windows. Where gateways share a Redis server, a request is allowed when both windows allow it; without a response of that server
the local windows decide alone.
"""

import ipaddress
import math
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from limits import RateLimitItem, RateLimitItemPerHour, RateLimitItemPerMinute

from tollway.errors import Code, Refusal, describe_rate, refuse
from tollway.ids import Address
from tollway.rate_limits.windows import LocalWindows

if TYPE_CHECKING:  # its client is loaded where there is a server to ask
    from tollway.rate_limits.redis_windows import RedisWindows, RedisWindowState

BUCKETS_KEPT = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class RateAllowance:
    """The remaining hits of a window; without any, the seconds until the next is allowed."""

    left: int
    wait_s: int | None


class RateLimiter:
    def __init__(self, shared: "RedisWindows | None" = None) -> None:
        self._local = LocalWindows()
        self._shared = shared

    async def hit(self, item: RateLimitItem, *key: str) -> int | None:
        """Counts one hit. None if it is allowed, else the seconds to wait; a refused hit does not count."""
        if self._shared is None:
            return self._hit_local(item, key)
        local = self._local_allowance(item, key)
        if local.wait_s is not None:
            return local.wait_s
        is_allowed = await self._shared.hit(item, *key)
        if is_allowed is False:
            return (await self.peek(item, *key)).wait_s or 1
        wait_s = self._hit_local(item, key)
        return wait_s if is_allowed is None else None

    async def peek(self, item: RateLimitItem, *key: str) -> RateAllowance:
        """Counts nothing."""
        state = None if self._shared is None else await self._shared.peek(item, *key)
        local = self._local_allowance(item, key)
        if state is None:
            return local
        shared = _to_allowance(item, state)
        return min(shared, local, key=lambda allowance: (allowance.left, -(allowance.wait_s or 0)))

    def count_hit(self, item: RateLimitItem, *key: str) -> None:
        """Counts one hit without a decision: in the local window at once, in the shared window soon after."""
        self._hit_local(item, key)
        if self._shared is not None:
            self._shared.count_hit(item, *key)

    def undo_hit(self, item: RateLimitItem, *key: str) -> None:
        """Removes a hit that `hit` counted: from the local window at once, from the shared window soon after. Removes the newest entry, so that the others leave
        the window no later than before."""
        self._local.undo_hit(item, *key)
        if self._shared is not None:
            self._shared.undo_hit(item, *key)

    def _hit_local(self, item: RateLimitItem, key: tuple[str, ...]) -> int | None:
        return None if self._local.hit(item, *key) else self._local_allowance(item, key).wait_s or 1

    def _local_allowance(self, item: RateLimitItem, key: tuple[str, ...]) -> RateAllowance:
        left, wait_s = self._local.peek(item, *key)
        return _allow(left) if left > 0 else RateAllowance(left=left, wait_s=max(1, math.ceil(wait_s)))


@lru_cache(maxsize=1024)
def _allow(left: int) -> RateAllowance:
    """Cached: most windows are empty, and there are few sizes."""
    return RateAllowance(left=left, wait_s=None)


def _to_allowance(item: RateLimitItem, state: "RedisWindowState") -> RateAllowance:
    if state.left > 0:
        return _allow(state.left)
    # After a clock was set back, here or at another gateway, no caller gets a wait that is longer than a window.
    wait_s = min(math.ceil(state.reset_s - time.time()), item.get_expiry())
    return RateAllowance(left=0, wait_s=max(1, wait_s))


@lru_cache(maxsize=BUCKETS_KEPT)
def client_bucket(client_address: str) -> str:
    """The key under which a client address is counted. A client with one IPv6 address has 2^64 of them, so a /64 network is one key."""
    try:
        address = ipaddress.ip_address(client_address)
    except ValueError:
        return client_address
    if address.version == 4:
        return client_address
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


WALLETS_PER_ADDRESS = 5
"""The quota of a client address, in quotas of a wallet."""

_RATE_LIMIT_ITEMS: dict[str, type[RateLimitItem]] = {
    "minute": RateLimitItemPerMinute,
    "hour": RateLimitItemPerHour,
}


class Quota:
    """A quota for a wallet and its client address. `policy`: its public name; `noun`: the counted things, a plural."""

    def __init__(
        self,
        policy: str,
        noun: str,
        *,
        amount: int,
        per: Literal["minute", "hour"],
        rate_limiter: RateLimiter,
        namespace: str | None = None,
    ) -> None:
        self._policy = policy
        self._noun = noun
        self._per = per
        self._rate_limiter = rate_limiter
        name, make = namespace or policy, _RATE_LIMIT_ITEMS[per]
        self._by_wallet = make(amount, namespace=name)
        self._by_address = make(amount * WALLETS_PER_ADDRESS, namespace=f"{name}-address")

    async def charge(self, wallet: Address, *, client_address: str) -> None:
        """Raises Refusal (429) when the wallet or the address has used its quota."""
        bucket = client_bucket(client_address)
        # A refusal by address must not count for the wallet.
        allowance = await self._rate_limiter.peek(self._by_address, bucket)
        if allowance.wait_s is not None:
            raise self._refuse("One address", f"{self._policy}-address", self._by_address, allowance.wait_s)
        wait_s = await self._rate_limiter.hit(self._by_wallet, wallet.hex())
        if wait_s is not None:
            raise self._refuse("A wallet", self._policy, self._by_wallet, wait_s)
        self._rate_limiter.count_hit(self._by_address, bucket)

    async def check(self, wallet: Address, *, client_address: str) -> None:
        """Counts nothing. Raises Refusal (429) where one more would exceed the quota. Concurrent checks may all pass."""
        named = (("One address", f"{self._policy}-address", self._by_address, client_bucket(client_address)),)
        for subject, policy, item, key in (*named, ("A wallet", self._policy, self._by_wallet, wallet.hex())):
            allowance = await self._rate_limiter.peek(item, key)
            if allowance.wait_s is not None:
                raise self._refuse(subject, policy, item, allowance.wait_s)

    def count(self, wallet: Address, *, client_address: str) -> None:
        self._rate_limiter.count_hit(self._by_wallet, wallet.hex())
        self._rate_limiter.count_hit(self._by_address, client_bucket(client_address))

    def _refuse(self, subject: str, policy: str, item: RateLimitItem, wait_s: int) -> Refusal:
        return refuse(
            code=Code.RATE_LIMITED,
            detail=f"{subject} may have {item.amount} {self._noun} {'an' if self._per == 'hour' else 'a'} {self._per}.",
            retry_after_s=wait_s,
            members=describe_rate(policy, limit=item.amount, window_s=item.get_expiry()),
        )
