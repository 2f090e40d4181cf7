"""The rate limits of calls: chain look-ups, free calls, and the calls that a listing allows. Not used for money."""

from limits import RateLimitItem, RateLimitItemPerMinute, RateLimitItemPerSecond

from tollway.ids import Address, ListingId
from tollway.limits import Limits
from tollway.payments.lookup_quota import UnresolvedQuota, quota_keys
from tollway.rate_limits.limiter import RateLimiter, client_bucket
from tollway.registry.listing import RateLimit

LISTINGS_PER_ADDRESS = 5
"""The free calls of a client address over all listings, as a multiple of its free calls at one listing."""


class CallRateLimits:
    """The rate limits of chain look-ups, free calls and listings. One per process."""

    def __init__(self, *, limits: Limits, rate_limiter: RateLimiter) -> None:
        self.lookups_per_minute = limits.lookups_per_minute
        self.rate_limiter = rate_limiter
        self._lookups = RateLimitItemPerMinute(limits.lookups_per_minute, namespace="lookup")
        self._unresolved = UnresolvedQuota(limits)
        self._free = RateLimitItemPerMinute(limits.free_calls_per_minute, namespace="free")
        self.free_calls_of_address_max = limits.free_calls_per_minute * LISTINGS_PER_ADDRESS
        self._free_of_address = RateLimitItemPerMinute(
            self.free_calls_of_address_max, namespace="free-address"
        )

    async def charge(self, *, client_address: str, signer: str) -> int | None:
        """Counts one chain look-up for the client address and the signer. None where it is allowed, else the seconds to wait; a
        refused look-up does not count."""
        address_key, signer_key = keys = quota_keys(client_address, signer)
        wait_s = self._unresolved.find_wait(keys)
        if wait_s is not None:
            return wait_s
        wait_s = await self.rate_limiter.hit(self._lookups, address_key)
        if wait_s is not None:
            return wait_s
        wait_s = await self.rate_limiter.hit(self._lookups, signer_key)
        if wait_s is not None:
            self.rate_limiter.undo_hit(self._lookups, address_key)
        return wait_s

    def give_back(self, *, client_address: str, signer: str) -> None:
        for key in quota_keys(client_address, signer):
            self.rate_limiter.undo_hit(self._lookups, key)

    def count_unresolved(self, *, client_address: str, signer: str) -> None:
        self.give_back(client_address=client_address, signer=signer)
        self._unresolved.count(quota_keys(client_address, signer))

    async def charge_free_call(self, client_address: str, listing_id: ListingId) -> int | None:
        return await self.rate_limiter.hit(self._free, client_bucket(client_address), listing_id)

    def count_free_call(self, client_address: str, listing_id: ListingId) -> None:
        """Counts a call that turned out to be free."""
        self.rate_limiter.count_hit(self._free, client_bucket(client_address), listing_id)

    async def find_free_wait(self, client_address: str, listing_id: ListingId) -> int | None:
        """Seconds until a further free call is allowed; None where it is now. Counts nothing."""
        allowance = await self.rate_limiter.peek(self._free, client_bucket(client_address), listing_id)
        return allowance.wait_s

    async def charge_free_address(self, client_address: str) -> int | None:
        """Counts a free call over all listings: each writes a row, and creating listings is free."""
        return await self.rate_limiter.hit(self._free_of_address, client_bucket(client_address))

    def give_back_free_call(self, client_address: str, listing_id: ListingId) -> None:
        self.rate_limiter.undo_hit(self._free, client_bucket(client_address), listing_id)

    def give_back_free_listing(
        self, rate: RateLimit | None, listing_id: ListingId, client_address: str
    ) -> None:
        """`rate` None: the listing has none."""
        if rate is not None:
            self.rate_limiter.undo_hit(_item_of(rate), listing_id, f"address:{client_bucket(client_address)}")

    async def charge_listing(self, rate: RateLimit, listing_id: ListingId, payer: Address) -> int | None:
        return await self.rate_limiter.hit(_item_of(rate), listing_id, str(payer))

    async def charge_free_listing(
        self, rate: RateLimit, listing_id: ListingId, client_address: str
    ) -> int | None:
        """A free call has no payer, so it counts for the client address."""
        return await self.rate_limiter.hit(
            _item_of(rate), listing_id, f"address:{client_bucket(client_address)}"
        )


def _item_of(rate: RateLimit) -> RateLimitItem:
    return RateLimitItemPerSecond(rate.calls, rate.per_s, namespace="listing")
