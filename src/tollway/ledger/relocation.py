"""What a reorganisation moved elsewhere. The part of `Ledger` for it.

A transaction that leaves its chain may never come back, because its authorisation made its transfer in another one:
ours at a higher price, or anybody's. The same money was paid once, so nobody owes anything.
"""

from typing import Protocol

from tollway.identifiers import CallId, TxHash
from tollway.ledger.authorization import AuthorizedCall, SettledTransfer


class Reorgs(Protocol):
    """Safe to call from many tasks and gateways at once. Raises `StorageUnavailable`."""

    async def authorizations_in(self, payment_id: int, *, limit: int) -> tuple[AuthorizedCall, ...]:
        """The calls whose authorisations made that payment, as far as the ledger knows."""
        ...

    async def move_transfer(
        self, call_id: CallId, *, before: TxHash, transfer: SettledTransfer, now_ms: int
    ) -> bool:
        """The authorisation of that call made its transfer there, and not in `before`. Its units go from one payment to
        the other, with what is held of them, in one durable commit; a payment there that was gone is back, and what
        arrives pays debts first. False when the ledger does not know that transfer in `before` (any more)."""
        ...
