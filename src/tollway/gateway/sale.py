"""The sale of one call to whoever shows an authorisation: what was shown, what it is sold for, and how it is settled once
the upstream's head is there. Whether the money moves is for the settlement; nothing here claims a call.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tollway.errors import Code, Problem
from tollway.gateway.exchange import ProblemResponse, Quote
from tollway.gateway.replays import AuthorizedRequest
from tollway.identifiers import Address, CallId
from tollway.ledger.authorization import Authorization
from tollway.ledger.book import Close, Ledger
from tollway.ledger.kept_answers import StoredResponse
from tollway.payments.challenge import encode_failure
from tollway.payments.requirement import PaymentRequirement
from tollway.payments.settlement import Settlement, SettlementOrder, SettlementOutcome
from tollway.registry.listing import Listing

StoreResponse = Callable[[CallId, Address, StoredResponse], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedAuthorizedRequest(AuthorizedRequest):
    """The same, and what it is sold for."""

    listing: Listing
    quote: Quote


@dataclass(slots=True, kw_only=True)
class VerifiedAuthorization:
    """`is_recognisable`: the ledger knows the digest of its body. One that streams may not have ended at the head."""

    request: QuotedAuthorizedRequest
    requirement: PaymentRequirement
    authorization: Authorization
    is_recognisable: bool = False


class AuthorizationSettler:
    """One per process; safe to use from many tasks at once."""

    def __init__(self, *, ledger: Ledger, store_response: StoreResponse, settlement: Settlement) -> None:
        self._ledger = ledger
        self._store_response = store_response
        self._settlement = settlement

    async def settle(self, verified: VerifiedAuthorization, close: Close) -> SettlementOutcome:
        request, authorization = verified.request, verified.authorization
        body_hash = request.body.final_hash
        digest = None if body_hash is None else request.call.digest_for(authorization.payer, body_hash)
        verified.is_recognisable = digest is not None
        order = SettlementOrder(
            authorization=authorization,
            asset=verified.requirement.asset,
            close=close,
            listing_id=request.listing.id,
            digest=digest,
        )
        return await self._settlement.settle(order)

    async def leave_orphaned(
        self, verified: VerifiedAuthorization, call_id: CallId, epoch: int, answer: StoredResponse | None
    ) -> None:
        """An answer is kept for whoever shows the same again; where the ledger does not know what the same would be, it
        would be kept for nobody, and the money is better the payer's credit."""
        if answer is not None and verified.is_recognisable:
            await self._store_response(call_id, verified.authorization.payer, answer)
        await self._ledger.mark_orphaned(call_id, epoch=epoch)


class AuthorizationCapture:
    """See `Settling`."""

    __slots__ = ("_call_id", "_epoch", "_settler", "_verified")

    def __init__(
        self, settler: AuthorizationSettler, verified: VerifiedAuthorization, call_id: CallId, epoch: int
    ) -> None:
        self._settler = settler
        self._verified = verified
        self._call_id = call_id
        self._epoch = epoch

    async def settle(self, close: Close) -> SettlementOutcome:
        return await self._settler.settle(self._verified, close)

    async def leave_orphaned(self, answer: StoredResponse | None) -> None:
        await self._settler.leave_orphaned(self._verified, self._call_id, self._epoch, answer)

    def refuse(self, reason: str) -> ProblemResponse:
        authorization = self._verified.authorization
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
        return ProblemResponse(problem=problem, quote=self._verified.request.quote, headers=headers)
