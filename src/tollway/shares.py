"""How much of one thing a wallet may have in a sliding window; and, since wallets cost nothing to make, a client address
with however many wallets. Never about money.
"""

from typing import Literal

from limits import RateLimitItem, RateLimitItemPerHour, RateLimitItemPerMinute

from tollway.errors import Code, Problem, Refusal, describe_rate
from tollway.identifiers import Address
from tollway.rates import RateLimiter, client_bucket

WALLETS_PER_ADDRESS = 5
"""A client address may have as much as so many wallets."""

_RATE_LIMIT_ITEMS: dict[str, type[RateLimitItem]] = {
    "minute": RateLimitItemPerMinute,
    "hour": RateLimitItemPerHour,
}


class Quota:
    """Safe to use from many tasks at once. `policy`: its name for callers; `noun`: the thing, in a plural word."""

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
        """Counts one. Raises Refusal (429) when the wallet, or the address, has had its share."""
        bucket = client_bucket(client_address)
        allowance = await self._rate_limiter.peek(
            self._by_address, bucket
        )  # what it refuses must not cost the wallet
        if allowance.wait_s is not None:
            raise self._refuse("One address", f"{self._policy}-address", self._by_address, allowance.wait_s)
        wait_s = await self._rate_limiter.hit(self._by_wallet, wallet.hex())
        if wait_s is not None:
            raise self._refuse("A wallet", self._policy, self._by_wallet, wait_s)
        self._rate_limiter.count_hit(self._by_address, bucket)

    async def check(self, wallet: Address, *, client_address: str) -> None:
        """Counts nothing. Raises Refusal (429) where one more would be too much; several who look at once may all go on."""
        named = (("One address", f"{self._policy}-address", self._by_address, client_bucket(client_address)),)
        for subject, policy, item, key in (*named, ("A wallet", self._policy, self._by_wallet, wallet.hex())):
            allowance = await self._rate_limiter.peek(item, key)
            if allowance.wait_s is not None:
                raise self._refuse(subject, policy, item, allowance.wait_s)

    def count(self, wallet: Address, *, client_address: str) -> None:
        """Counts one that was looked for before."""
        self._rate_limiter.count_hit(self._by_wallet, wallet.hex())
        self._rate_limiter.count_hit(self._by_address, client_bucket(client_address))

    def _refuse(self, subject: str, policy: str, item: RateLimitItem, wait_s: int) -> Refusal:
        return Refusal(
            Problem(
                code=Code.RATE_LIMITED,
                detail=f"{subject} may have {item.amount} {self._noun} {'an' if self._per == 'hour' else 'a'} {self._per}.",
                retry_after_s=wait_s,
                members=describe_rate(policy, limit=item.amount, window_s=item.get_expiry()),
            )
        )
