"""Counts what publishing takes: listings created, and looks at what a draft names. Never about money.

Wallets cost nothing to make, so whatever is counted by wallet is counted by client address, too.
"""

from limits import RateLimitItem, RateLimitItemPerHour

from tollway.errors import Code, Problem, Refusal, describe_rate
from tollway.identifiers import Address
from tollway.rates import Rates, name_crowd

WALLETS_PER_ADDRESS = 5
"""A client address may create as many listings as so many wallets."""

LOOKS_PER_LISTING = 10
"""A draft is tried a few times before it becomes a listing, and edited after that."""

HOUR_S = 3600


class RegistrationMeter:
    """Sliding hours. Only created listings count as registrations; each look counts, whatever becomes of the draft."""

    def __init__(self, *, per_hour: int, rates: Rates) -> None:
        self._rates = rates
        self._by_wallet = RateLimitItemPerHour(per_hour, namespace="registration")
        self._by_address = RateLimitItemPerHour(
            per_hour * WALLETS_PER_ADDRESS, namespace="registration-address"
        )
        self._looks = RateLimitItemPerHour(per_hour * LOOKS_PER_LISTING, namespace="registration-look")

    async def charge(self, wallet: Address, *, client_address: str) -> None:
        """Counts one listing. Raises Refusal (429) when the wallet, or the address, has created its share."""
        crowd = name_crowd(client_address)
        room = await self._rates.look(self._by_address, crowd)  # what it refuses must not cost the wallet
        if room.wait_s is not None:
            raise _too_many("One address", "listings", "registrations-address", self._by_address, room.wait_s)
        wait_s = await self._rates.hit(self._by_wallet, wallet.hex())
        if wait_s is not None:
            raise _too_many("A wallet", "listings", "registrations", self._by_wallet, wait_s)
        self._rates.note(self._by_address, crowd)

    async def charge_look(self, client_address: str) -> None:
        """Counts one look at an endpoint or a document that somebody has named. Raises Refusal (429)."""
        wait_s = await self._rates.hit(self._looks, name_crowd(client_address))
        if wait_s is not None:
            raise _too_many("One address", "drafts that are looked up", "endpoint-looks", self._looks, wait_s)


def _too_many(who: str, what: str, policy: str, item: RateLimitItem, wait_s: int) -> Refusal:
    return Refusal(
        Problem(
            code=Code.RATE_LIMITED,
            detail=f"{who} may have {item.amount} {what} an hour.",
            retry_after_s=wait_s,
            members=describe_rate(policy, limit=item.amount, window_s=HOUR_S),
        )
    )
