"""Counts what publishing takes: listings created, edits of them, and looks at what a draft names. Never about money."""

from limits import RateLimitItemPerHour

from tollway.errors import Code, Problem, Refusal, describe_rate
from tollway.identifiers import Address
from tollway.limits import Limits
from tollway.rates import Rates, name_crowd
from tollway.shares import Share

LOOKS_PER_LISTING = 10
"""A draft is tried a few times before it becomes a listing, and edited after that."""

HOUR_S = 3600


class RegistrationMeter:
    """Sliding hours. Only created listings count as registrations, and only edits that are written; each look counts,
    whatever becomes of the draft."""

    def __init__(self, *, limits: Limits, rates: Rates) -> None:
        per_hour = limits.registrations_per_hour
        self._rates = rates
        self._listings = Share(
            "registrations", "listings", amount=per_hour, every="hour", rates=rates, namespace="registration"
        )
        self._edits = Share(
            "edits", "edits of listings", amount=limits.edits_per_hour, every="hour", rates=rates
        )
        self._looks = RateLimitItemPerHour(per_hour * LOOKS_PER_LISTING, namespace="registration-look")

    async def charge(self, wallet: Address, *, client_address: str) -> None:
        """Counts one listing. Raises Refusal (429) when the wallet, or the address, has created its share."""
        await self._listings.charge(wallet, client_address=client_address)

    async def charge_edit(self, wallet: Address, *, client_address: str) -> None:
        """Counts one edit: each may leave a version of the listing's terms behind. Raises Refusal (429)."""
        await self._edits.charge(wallet, client_address=client_address)

    async def charge_look(self, client_address: str) -> None:
        """Counts one look at an endpoint or a document that somebody has named. Raises Refusal (429)."""
        wait_s = await self._rates.hit(self._looks, name_crowd(client_address))
        if wait_s is not None:
            raise Refusal(
                Problem(
                    code=Code.RATE_LIMITED,
                    detail=f"One address may have {self._looks.amount} drafts that are looked up an hour.",
                    retry_after_s=wait_s,
                    members=describe_rate("endpoint-looks", limit=self._looks.amount, window_s=HOUR_S),
                )
            )
