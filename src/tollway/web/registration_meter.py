"""Counts what publishing takes: listings created, edits of them, and looks at what a draft names. Never about money."""

from limits import RateLimitItemPerHour

from tollway.errors import Code, Problem, Refusal, describe_rate
from tollway.identifiers import Address
from tollway.limits import Limits
from tollway.rates import RateLimiter, client_bucket
from tollway.shares import Quota

PROBES_PER_LISTING = 10
"""A draft is tried a few times before it becomes a listing, and edited after that."""

HOUR_S = 3600


class PublishingLimits:
    """Sliding hours. Only created listings count as registrations, and only edits that are written; each look counts,
    whatever becomes of the draft."""

    def __init__(self, *, limits: Limits, rate_limiter: RateLimiter) -> None:
        per_hour = limits.registrations_per_hour
        self._rate_limiter = rate_limiter
        self._listings = Quota(
            "registrations",
            "listings",
            amount=per_hour,
            per="hour",
            rate_limiter=rate_limiter,
            namespace="registration",
        )
        self._edits = Quota(
            "edits", "edits of listings", amount=limits.edits_per_hour, per="hour", rate_limiter=rate_limiter
        )
        self._probes = RateLimitItemPerHour(per_hour * PROBES_PER_LISTING, namespace="registration-look")

    async def charge(self, wallet: Address, *, client_address: str) -> None:
        """Counts one listing. Raises Refusal (429) when the wallet, or the address, has created its share."""
        await self._listings.charge(wallet, client_address=client_address)

    async def charge_edit(self, wallet: Address, *, client_address: str) -> None:
        """Counts one edit: each may leave a version of the listing's terms behind. Raises Refusal (429)."""
        await self._edits.charge(wallet, client_address=client_address)

    async def charge_probe(self, client_address: str) -> None:
        """Counts one look at an endpoint or a document that somebody has named. Raises Refusal (429)."""
        wait_s = await self._rate_limiter.hit(self._probes, client_bucket(client_address))
        if wait_s is not None:
            raise Refusal(
                Problem(
                    code=Code.RATE_LIMITED,
                    detail=f"One address may have {self._probes.amount} drafts that are looked up an hour.",
                    retry_after_s=wait_s,
                    members=describe_rate("endpoint-looks", limit=self._probes.amount, window_s=HOUR_S),
                )
            )
