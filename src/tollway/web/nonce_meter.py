"""Counts, per client address, what sign-in gives away: nonces, challenges, attempts. Never about money."""

from limits import RateLimitItemPerMinute

from tollway.limits import Limits
from tollway.rates import RateLimiter, client_bucket


class SignInRateLimit:
    """A sliding minute for each client and each kind of thing."""

    def __init__(self, *, limits: Limits, rate_limiter: RateLimiter) -> None:
        self.per_minute = limits.nonces_per_minute
        self._rate_limiter = rate_limiter
        self._item = RateLimitItemPerMinute(self.per_minute, namespace="signin")

    async def charge(self, kind: str, *, client_address: str) -> int | None:
        """One more of that kind. Seconds to wait, or None when it is allowed."""
        return await self._rate_limiter.hit(self._item, kind, client_bucket(client_address))
