"""Limits look-ups on chains for signed authorisations (x402, MPP), per client address and per signer.

Every look-up counts, unless its call was charged. A look-up whose call still runs counts only as far as look-ups of the
same address or signer have come to nothing lately: so a payer may have any number of calls at once. Nothing about money
depends on it.
"""

import math
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from limits import RateLimitItemPerMinute, RateLimitItemPerSecond

from tollway.errors import ChainUnavailable, Code, Problem, StorageUnavailable, describe_rate
from tollway.limits import Limits
from tollway.own_windows import LocalWindows
from tollway.rates import RateLimiter, client_bucket

UNRESOLVED_S = 10
"""A look-up that no chain resolved was not its asker's doing, so it counts for a shorter time than junk. It does count: a
node that refuses because it is asked too much would otherwise be asked without a limit."""
REMEMBERED_MINUTES = 10
"""For so long a caller whose look-ups came to nothing has to wait for its running calls."""


def quota_keys(client_address: str, signer: str) -> tuple[str, str]:
    """The keys under which a look-up counts."""
    return f"address:{client_bucket(client_address)}", f"signer:{signer}"


class UnresolvedQuota:
    """Limits look-ups that end without an answer of the chain: as many in ten seconds as junk in a minute. Counted in this
    process alone."""

    def __init__(self, limits: Limits) -> None:
        self._item = RateLimitItemPerSecond(limits.lookups_per_minute, UNRESOLVED_S, namespace="unresolved")
        self._windows = LocalWindows()

    def find_wait(self, keys: Sequence[str]) -> int | None:
        """Seconds to wait; None where a look-up is allowed. Counts nothing."""
        standings = [self._windows.peek(self._item, key) for key in keys]
        waits = [max(1, math.ceil(one.wait_s)) for one in standings if one.left <= 0]
        return max(waits, default=None)

    def note(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._windows.hit(self._item, key)


class AuthorizationQuota:
    """Safe to use from many tasks at once."""

    def __init__(self, *, limits: Limits, rate_limiter: RateLimiter) -> None:
        self._per_minute = limits.lookups_per_minute
        self._rate_limiter = rate_limiter
        self._item = RateLimitItemPerMinute(limits.lookups_per_minute, namespace="junk_authorization")
        self._lately = RateLimitItemPerMinute(
            limits.lookups_per_minute * REMEMBERED_MINUTES, REMEMBERED_MINUTES
        )
        self._failed = LocalWindows()
        self._unresolved = UnresolvedQuota(limits)
        self._running: dict[str, int] = {}

    def open(self, client_address: str) -> "AuthorizationLookup":
        """The look-up that one request may need; a context, which ends it."""
        return AuthorizationLookup(self, client_address)

    async def enter(self, keys: Sequence[str]) -> Problem | None:
        """Why no chain is asked now; None: one look-up runs under these keys until `leave`."""
        ahead = {key: self._running.get(key, 0) for key in keys}
        for key in keys:
            self._running[key] = ahead[key] + 1
        wait_s: int | None = 1
        try:
            wait_s = await self._find_wait(keys, ahead)
        finally:
            if wait_s is not None:  # refused, or cancelled
                self.leave(keys)
        if wait_s is None:
            return None
        return Problem(
            code=Code.RATE_LIMITED,
            detail="Too many authorisations of this address or wallet were looked up on the chain and paid nothing.",
            retry_after_s=wait_s,
            payment_state="none",
            members=describe_rate("lookups", limit=self._per_minute, window_s=60),
        )

    def leave(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def count_junk(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._rate_limiter.count_hit(self._item, key)
            self._failed.hit(self._lately, key)

    def count_unresolved(self, keys: Sequence[str]) -> None:
        self._unresolved.note(keys)

    async def _find_wait(self, keys: Sequence[str], ahead: dict[str, int]) -> int | None:
        waits = [self._unresolved.find_wait(keys)]
        for key in keys:
            room = await self._rate_limiter.peek(self._item, key)
            failed = self._lately.amount - self._failed.peek(self._lately, key).left
            is_full = room.left <= min(ahead[key], failed)
            waits.append(room.wait_s or 1 if is_full else None)
        return max((wait_s for wait_s in waits if wait_s is not None), default=None)


class AuthorizationLookup:
    """The look-up of one request: taken when a chain is first asked, and counted when the request ends, unless
    `give_back` was called."""

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
        self._quota.leave(keys)
        if self._is_unresolved or isinstance(exc, ChainUnavailable | StorageUnavailable):
            self._quota.count_unresolved(keys)
        elif not self._is_given_back:
            self._quota.count_junk(keys)

    async def take(self, signer: str) -> Problem | None:
        """Why no chain is asked for this signer now; None when it is. A second question of the request is free."""
        if self._keys is not None:
            return None
        keys = quota_keys(self.client_address, signer)
        problem = await self._quota.enter(keys)
        if problem is None:
            self._keys = keys
        return problem

    def give_back(self) -> None:
        """The call was charged."""
        self._is_given_back = True

    def leave_unresolved(self) -> None:
        """The chain, or the ledger, did not answer."""
        self._is_unresolved = True
