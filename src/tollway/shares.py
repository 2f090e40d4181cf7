"""How much of one thing a wallet may have in a sliding window; and, since wallets cost nothing to make, a client address
with however many wallets. Never about money.
"""

from typing import Literal

from limits import RateLimitItem, RateLimitItemPerHour, RateLimitItemPerMinute

from tollway.errors import Code, Problem, Refusal, describe_rate
from tollway.identifiers import Address
from tollway.rates import Rates, name_crowd

WALLETS_PER_ADDRESS = 5
"""A client address may have as much as so many wallets."""

_ITEMS: dict[str, type[RateLimitItem]] = {"minute": RateLimitItemPerMinute, "hour": RateLimitItemPerHour}


class Share:
    """Safe to use from many tasks at once. `policy`: its name for callers; `what`: the thing, in a plural word."""

    def __init__(
        self,
        policy: str,
        what: str,
        *,
        amount: int,
        every: Literal["minute", "hour"],
        rates: Rates,
        namespace: str | None = None,
    ) -> None:
        self._policy = policy
        self._what = what
        self._every = every
        self._rates = rates
        name, make = namespace or policy, _ITEMS[every]
        self._by_wallet = make(amount, namespace=name)
        self._by_address = make(amount * WALLETS_PER_ADDRESS, namespace=f"{name}-address")

    async def charge(self, wallet: Address, *, client_address: str) -> None:
        """Counts one. Raises Refusal (429) when the wallet, or the address, has had its share."""
        crowd = name_crowd(client_address)
        room = await self._rates.look(self._by_address, crowd)  # what it refuses must not cost the wallet
        if room.wait_s is not None:
            raise self._refuse("One address", f"{self._policy}-address", self._by_address, room.wait_s)
        wait_s = await self._rates.hit(self._by_wallet, wallet.hex())
        if wait_s is not None:
            raise self._refuse("A wallet", self._policy, self._by_wallet, wait_s)
        self._rates.note(self._by_address, crowd)

    async def look(self, wallet: Address, *, client_address: str) -> None:
        """Counts nothing. Raises Refusal (429) where one more would be too much; several who look at once may all go on."""
        named = (("One address", f"{self._policy}-address", self._by_address, name_crowd(client_address)),)
        for who, policy, item, key in (*named, ("A wallet", self._policy, self._by_wallet, wallet.hex())):
            room = await self._rates.look(item, key)
            if room.wait_s is not None:
                raise self._refuse(who, policy, item, room.wait_s)

    def note(self, wallet: Address, *, client_address: str) -> None:
        """Counts one that was looked for before."""
        self._rates.note(self._by_wallet, wallet.hex())
        self._rates.note(self._by_address, name_crowd(client_address))

    def _refuse(self, who: str, policy: str, item: RateLimitItem, wait_s: int) -> Refusal:
        return Refusal(
            Problem(
                code=Code.RATE_LIMITED,
                detail=f"{who} may have {item.amount} {self._what} {'an' if self._every == 'hour' else 'a'} {self._every}.",
                retry_after_s=wait_s,
                members=describe_rate(policy, limit=item.amount, window_s=item.get_expiry()),
            )
        )
