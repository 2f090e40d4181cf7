"""The quota of chain look-ups that pay nothing: those of authorisations, and the unresolved ones of all rails.

Every look-up counts as unpaid per client address and per signer, unless its call was charged. A look-up whose chain or ledger did not respond counts for a
shorter time. A running look-up counts only up to the number of recent unpaid ones of the same address or signer, so a payer can have any number of calls at
once. No money depends on this quota.
"""

import math
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from limits import RateLimitItemPerMinute, RateLimitItemPerSecond

from tollway.errors import ChainUnavailable, Code, Problem, StorageUnavailable, describe_rate
from tollway.limits import Limits
from tollway.rate_limits.limiter import RateLimiter, client_bucket
from tollway.rate_limits.windows import LocalWindows

UNRESOLVED_S = 10
"""The window of unresolved look-ups. They are not the caller's fault, so they count for a shorter time than unpaid ones. They count at all because an
overloaded node would otherwise get even more requests."""
REMEMBERED_MINUTES = 10
"""How long an unpaid look-up limits the running look-ups of its caller."""


def quota_keys(client_address: str, signer: str) -> tuple[str, str]:
    return f"address:{client_bucket(client_address)}", f"signer:{signer}"


class UnresolvedQuota:
    """Limits unresolved look-ups, per process: `lookups_per_minute` in `UNRESOLVED_S`."""

    def __init__(self, limits: Limits) -> None:
        self._item = RateLimitItemPerSecond(limits.lookups_per_minute, UNRESOLVED_S, namespace="unresolved")
        self._windows = LocalWindows()

    def find_wait(self, keys: Sequence[str]) -> int | None:
        """Seconds to wait; None where a look-up is allowed. Counts nothing."""
        windows = [self._windows.peek(self._item, key) for key in keys]
        waits = [max(1, math.ceil(wait_s)) for left, wait_s in windows if left <= 0]
        return max(waits, default=None)

    def count(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._windows.hit(self._item, key)


class AuthorizationQuota:
    """Limits the look-ups of authorisations per client address and signer."""

    def __init__(self, *, limits: Limits, rate_limiter: RateLimiter) -> None:
        self._per_minute = limits.lookups_per_minute
        self._rate_limiter = rate_limiter
        self._item = RateLimitItemPerMinute(limits.lookups_per_minute, namespace="junk_authorization")
        # The window of a counter and no limit: `_item` allows no more unpaid ones than this in it.
        self._unpaid_item = RateLimitItemPerMinute(
            limits.lookups_per_minute * REMEMBERED_MINUTES, REMEMBERED_MINUTES
        )
        self._unpaid = LocalWindows()
        self._unresolved = UnresolvedQuota(limits)
        self._running: dict[str, int] = {}

    def open(self, client_address: str) -> "AuthorizationLookup":
        """The look-up that one request may need: a context, which ends it. It counts nothing before `take`."""
        return AuthorizationLookup(self, client_address)

    async def begin_lookup(self, keys: Sequence[str]) -> Problem | None:
        """The refusal of a look-up; None: one look-up runs under these keys until `end_lookup`."""
        others = {key: self._running.get(key, 0) for key in keys}
        for key in keys:
            self._running[key] = others[key] + 1
        try:
            wait_s = await self._find_wait(keys, others)
        except BaseException:
            self.end_lookup(keys)
            raise
        if wait_s is None:
            return None
        self.end_lookup(keys)
        return Problem(
            code=Code.RATE_LIMITED,
            detail="Too many authorisations of this address or wallet were looked up on the chain and paid nothing.",
            retry_after_s=wait_s,
            payment_state="none",
            members=describe_rate("lookups", limit=self._per_minute, window_s=60),
        )

    def end_lookup(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def count_unpaid(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._rate_limiter.count_hit(self._item, key)
            self._unpaid.hit(self._unpaid_item, key)

    def count_unresolved(self, keys: Sequence[str]) -> None:
        self._unresolved.count(keys)

    async def _find_wait(self, keys: Sequence[str], others: dict[str, int]) -> int | None:
        """Seconds to wait; None where a look-up is allowed. `others`: the other running look-ups under each key."""
        waits = [self._unresolved.find_wait(keys)]
        for key in keys:
            allowance = await self._rate_limiter.peek(self._item, key)
            unpaid_left, _ = self._unpaid.peek(self._unpaid_item, key)
            unpaid = self._unpaid_item.amount - unpaid_left
            # Of 30 a minute, 20 unpaid ones leave 10: a further one waits while 10 others run, because all 10 may end unpaid.
            is_full = allowance.left <= min(others[key], unpaid)
            waits.append((allowance.wait_s or 1) if is_full else None)
        return max((wait_s for wait_s in waits if wait_s is not None), default=None)


class AuthorizationLookup:
    """The look-up of one call, a context manager. `take` begins it, before the first request to a chain. The exit ends and counts it: as unresolved after an
    outage, else as unpaid unless `give_back` was called."""

    __slots__ = ("_is_given_back", "_is_unresolved", "_keys", "_quota", "client_address")

    def __init__(self, quota: AuthorizationQuota, client_address: str) -> None:
        self._quota = quota
        self.client_address = client_address
        self._keys: tuple[str, str] | None = None
        self._is_given_back = False
        self._is_unresolved = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        keys, self._keys = self._keys, None
        if keys is None:
            return
        self._quota.end_lookup(keys)
        if self._is_unresolved or isinstance(exc, ChainUnavailable | StorageUnavailable):
            self._quota.count_unresolved(keys)
        elif not self._is_given_back:
            self._quota.count_unpaid(keys)

    async def take(self, signer: str) -> Problem | None:
        """Begins the look-up for this signer; returns the refusal, or None. Further look-ups of the same call are not limited."""
        if self._keys is not None:
            return None
        keys = quota_keys(self.client_address, signer)
        problem = await self._quota.begin_lookup(keys)
        if problem is None:
            self._keys = keys
        return problem

    def give_back(self) -> None:
        """Records that the call was charged: the look-up does not count."""
        self._is_given_back = True

    def leave_unresolved(self) -> None:
        """Records that the chain or the ledger did not respond, where the exit of this context has no such exception."""
        self._is_unresolved = True
