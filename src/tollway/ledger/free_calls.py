"""The free calls that wallets have used at listings, and the port of their store. No money: a free call takes nothing from any payment."""

from dataclasses import dataclass
from typing import Protocol

from tollway.ids import Address, ListingId


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeCallTerms:
    """The free calls of each wallet at one listing: `count`, in each period of `per_ms` that begins with the wallet's first call; None: once."""

    listing_id: ListingId
    count: int
    per_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeCallTaken:
    """The call is free, and counted in the period that began at `since_ms`."""

    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoneLeft:
    """The wallet has used its free calls. `until_ms`: the moment at which the next period begins; None where there is none."""

    until_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyWallets:
    """The first free calls of too many new wallets came from one client address within a day."""


class FreeCallStore(Protocol):
    """Counts the free calls of wallets. Several gateways count together, and a count survives a restart."""

    async def find_refusal(self, terms: FreeCallTerms, wallet: Address, *, now_ms: int) -> NoneLeft | None:
        """Whether the wallet has used its free calls. Counts nothing."""
        ...

    async def take(
        self, terms: FreeCallTerms, wallet: Address, *, address: str, wallets_max: int, now_ms: int
    ) -> FreeCallTaken | NoneLeft | TooManyWallets:
        """Counts one call, durable. A refused call counts nothing. `address`: the client address as its rates count it. At most
        `wallets_max` new wallets of one address begin at a listing within a UTC day."""
        ...

    async def give_back(self, listing_id: ListingId, wallet: Address, taken: FreeCallTaken) -> None:
        """Takes one counted call back: it had no response that costs. Nothing where its period has ended."""
        ...
