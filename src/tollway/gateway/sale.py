"""The sale of one call to whoever shows an authorisation: what was shown, what it is sold for, and how it is settled once
the upstream's head is there. Whether the money moves is for the settlement; nothing here claims a call.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tollway.errors import Code, Problem
from tollway.gateway.exchange import Declined, Offer
from tollway.gateway.replays import Shown
from tollway.identifiers import Address, CallId
from tollway.ledger.authorization import Authorization
from tollway.ledger.book import Book, Close
from tollway.ledger.kept_answers import StoredAnswer
from tollway.payments.challenge import encode_failure
from tollway.payments.requirement import Requirement
from tollway.payments.settlement import Settlement, SettlementOrder, SettlementOutcome
from tollway.registry.listing import Listing

Keep = Callable[[CallId, Address, StoredAnswer], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sale(Shown):
    """The same, and what it is sold for."""

    listing: Listing
    offer: Offer


@dataclass(slots=True, kw_only=True)
class Purchase:
    """`is_recognisable`: the books know the digest of its body. One that streams may not have ended at the head."""

    sale: Sale
    requirement: Requirement
    authorization: Authorization
    is_recognisable: bool = False


class Settler:
    """One per process; safe to use from many tasks at once."""

    def __init__(self, *, book: Book, keep: Keep, settlement: Settlement) -> None:
        self._book = book
        self._keep = keep
        self._settlement = settlement

    async def settle(self, purchase: Purchase, close: Close) -> SettlementOutcome:
        sale, authorization = purchase.sale, purchase.authorization
        body_hash = sale.cargo.final_hash
        digest = None if body_hash is None else sale.call.digest_for(authorization.payer, body_hash)
        purchase.is_recognisable = digest is not None
        order = SettlementOrder(
            authorization=authorization,
            asset=purchase.requirement.asset,
            close=close,
            listing_id=sale.listing.id,
            digest=digest,
        )
        return await self._settlement.settle(order)

    async def leave(
        self, purchase: Purchase, call_id: CallId, epoch: int, answer: StoredAnswer | None
    ) -> None:
        """An answer is kept for whoever shows the same again; where the books do not know what the same would be, it
        would be kept for nobody, and the money is better the payer's credit."""
        if answer is not None and purchase.is_recognisable:
            await self._keep(call_id, purchase.authorization.payer, answer)
        await self._book.set_adrift(call_id, epoch=epoch)


class PendingSettlement:
    """See `Settling`."""

    __slots__ = ("_call_id", "_epoch", "_purchase", "_settler")

    def __init__(self, settler: Settler, purchase: Purchase, call_id: CallId, epoch: int) -> None:
        self._settler = settler
        self._purchase = purchase
        self._call_id = call_id
        self._epoch = epoch

    async def settle(self, close: Close) -> SettlementOutcome:
        return await self._settler.settle(self._purchase, close)

    async def leave(self, answer: StoredAnswer | None) -> None:
        await self._settler.leave(self._purchase, self._call_id, self._epoch, answer)

    def refuse(self, reason: str) -> Declined:
        authorization = self._purchase.authorization
        problem = Problem(
            code=Code.PAYMENT_SETTLEMENT_FAILED,
            detail="The payment surely did not move any money, so the answer was dropped.",
            reason=reason,
            payment_state="released",
        )
        failure = encode_failure(
            authorization.dialect,
            network_chain_id=authorization.chain_id,
            payer=authorization.payer,
            reason=reason,
        )
        headers = [] if failure is None else [failure]
        return Declined(problem=problem, offer=self._purchase.sale.offer, headers=headers)
