"""The rail of calls that take no payment: those without a price, and the free calls that a listing gives to each wallet.

A call without a price proves no wallet. A free call of a priced listing proves one, by ERC-8128 or `SIGN-IN-WITH-X`, and is counted for it before it is claimed
(`ledger.free_calls`). It is given back where the response does not cost. Both count against the rates of free calls.
"""

import asyncio

from tollway.errors import Code, Problem, Refusal
from tollway.gateway.access import AccessControl, ActiveCall
from tollway.gateway.body import ForwardBody, load_hashed, load_plain
from tollway.gateway.idempotency import (
    Idempotency,
    ProveWallet,
    Repeat,
    build_signed_request,
    explain_key_used,
)
from tollway.gateway.messages import ProxyRequest, ProxyResponse
from tollway.gateway.problems import explain_block, find_idempotency_key
from tollway.gateway.rail import (
    CallPayment,
    CaptureOutcome,
    ClockAndEntropy,
    CollectResponse,
    build_claim,
    require,
)
from tollway.gateway.routing import Route
from tollway.ids import Address
from tollway.ledger.free_calls import FreeCallStore, FreeCallTaken, FreeCallTerms, NoneLeft, TooManyWallets
from tollway.ledger.ledger import Claimed, Close, Closed, Ledger
from tollway.ledger.records import CallState, KeyedCall, KeyTaken
from tollway.limits import Limits
from tollway.money import Price
from tollway.rate_limits.limiter import client_bucket
from tollway.registry.listing import CatalogEntry, Listing

WALLET = "wallet"
"""The proof of a free call of a priced listing: the request proves its wallet. The rail verifies that with the body."""


class FreeRail:
    """The rail of calls that take no payment. It reads no payment."""

    is_settled_here = False

    def __init__(
        self,
        *,
        ledger: Ledger,
        free_calls: FreeCallStore,
        idempotency: Idempotency,
        access: AccessControl,
        prove_wallet: ProveWallet,
        limits: Limits,
        clock: ClockAndEntropy,
    ) -> None:
        self.ledger = ledger
        self.free_calls = free_calls
        self.idempotency = idempotency
        self.access = access
        self.prove_wallet = prove_wallet
        self.limits = limits
        self.clock = clock

    def read(self, request: ProxyRequest) -> None:
        return None

    def name_signature(self, proof: object) -> str:
        return "none"

    def find_deposit(self, proof: object) -> None:
        return None

    def find_key(self, request: ProxyRequest, proof: object) -> str | None:
        return find_idempotency_key(request)

    async def load_body(self, request: ProxyRequest, proof: object, listing: Listing) -> ForwardBody:
        if proof is None:
            return await load_plain(request.body, limits=self.limits)
        return await load_hashed(request.body, is_whole=True, limits=self.limits)  # the signature covers it

    async def find_key_wallets(
        self, request: ProxyRequest, entry: CatalogEntry, proof: object, body: ForwardBody | None
    ) -> tuple[Address, ...]:
        return ()

    def open(
        self, request: ProxyRequest, route: Route, proof: object, repeat: Repeat | None, active: ActiveCall
    ) -> CallPayment:
        kind = FreeCall if proof is None else GrantedCall
        return kind(self, request, route, repeat, active)


class FreeCall(CallPayment):
    """A call without a price. It writes a call row and takes no payment. Only its client address is known."""

    __slots__ = ("rail",)

    def __init__(
        self, rail: FreeRail, request: ProxyRequest, route: Route, repeat: Repeat | None, active: ActiveCall
    ) -> None:
        super().__init__(rail.ledger, request, route, repeat, active, key=find_idempotency_key(request))
        self.rail = rail

    async def check(self) -> None:
        problem = await self.rail.access.check_free(self.request, self.route.listing)
        if problem is not None:
            raise Refusal(problem)

    async def verify(self) -> None:
        return None

    async def claim(self) -> ProxyResponse | None:
        claim = build_claim(self, self.rail.clock, digest=None)
        outcome = await self.rail.ledger.claim(claim)
        assert isinstance(outcome, Claimed)  # it takes nothing from a balance
        self.call_id, self.claimed = claim.call_id, outcome
        return None


class GrantedCall(FreeCall):
    """A free call of a priced listing: one of the first calls of its wallet there."""

    __slots__ = ("_taken", "_terms")

    def __init__(
        self, rail: FreeRail, request: ProxyRequest, route: Route, repeat: Repeat | None, active: ActiveCall
    ) -> None:
        super().__init__(rail, request, route, repeat, active)
        self.price = Price.parse("0")
        self._taken: FreeCallTaken | None = None
        free_calls = route.listing.free_calls
        assert free_calls is not None  # else the request has no proof of this rail
        per_ms = None if free_calls.per_s is None else free_calls.per_s * 1000
        self._terms = FreeCallTerms(listing_id=route.listing.id, count=free_calls.count, per_ms=per_ms)

    async def identify(self) -> tuple[Address, ...]:
        signed = build_signed_request(self.request, self.body)
        assert signed is not None  # `has_wallet_proof`, and the body is read whole
        try:
            self.payer = payer = await self.rail.prove_wallet(signed)
        except Refusal as refusal:
            if refusal.problem.code is Code.AUTHENTICATION_REQUIRED:  # the signature is of another kind
                raise Refusal(_pay("The request proves no wallet")) from refusal
            raise
        return (payer,) if self.key is not None else ()

    async def verify(self) -> None:
        rail, payer = self.rail, self._wallet()
        self.active.name_payer(payer)
        block = rail.access.find_block(payer)
        if block is not None:
            raise Refusal(explain_block(block))
        if self._earlier() is None:
            refused = await rail.free_calls.find_refusal(self._terms, payer, now_ms=rail.clock.now_ms())
            if refused is not None:
                raise Refusal(self._explain(refused))

    async def claim(self) -> ProxyResponse | None:
        earlier = self._earlier()
        if earlier is not None:
            return await self._reopen(earlier)
        rail, payer, body_hash = self.rail, self._wallet(), self.body.body_hash
        taken = await rail.free_calls.take(
            self._terms,
            payer,
            address=client_bucket(self.request.client_address),
            wallets_max=rail.limits.free_wallets_per_day,
            now_ms=rail.clock.now_ms(),
        )
        if not isinstance(taken, FreeCallTaken):
            raise Refusal(self._explain(taken))
        self._taken = taken
        digest = None if body_hash is None else self.request.digest_for(payer, body_hash)
        claim = build_claim(self, rail.clock, digest=digest)
        outcome = None
        try:
            outcome = await rail.ledger.claim(claim)
        finally:
            if outcome is None:  # nothing was sent, and nothing will be
                await asyncio.shield(self._give_back())
        if isinstance(outcome, KeyTaken):  # another request with the key was faster, and it was counted
            await self._give_back()
            found = await rail.idempotency.find_keyed_response(self.request, self.body, payer, outcome.call)
            return await self._reopen(found) if isinstance(found, KeyedCall) else require(found)
        assert isinstance(outcome, Claimed)  # it takes nothing from a balance
        self.call_id, self.claimed = claim.call_id, outcome
        return None

    async def capture(self, close: Close, collect: CollectResponse) -> CaptureOutcome:
        closed = await super().capture(close, collect)
        if close.after is CallState.RELEASED and isinstance(closed, Closed):
            await self._give_back()
        return closed

    async def _give_back(self) -> None:
        """Gives back what this request has taken. The repeat of an earlier call has taken nothing."""
        taken, self._taken = self._taken, None
        if taken is not None:
            await self.rail.free_calls.give_back(self._terms.listing_id, self._wallet(), taken)

    async def _reopen(self, earlier: KeyedCall) -> ProxyResponse | None:
        """Runs the earlier call of the key again; it was counted when it began. Raises Refusal for a call that a payment pays."""
        if earlier.payment_id is not None or earlier.authorization is not None:
            raise Refusal(explain_key_used(earlier))
        outcome = await self.rail.ledger.reopen(
            earlier.call_id, epoch=earlier.epoch, now_ms=self.rail.clock.now_ms()
        )
        if isinstance(outcome, Claimed):
            self.call_id, self.claimed = earlier.call_id, outcome
            return None
        overtaken = await self.rail.idempotency.find_overtaken_response(
            self.request, self.body, self.payer, self.key, earlier
        )
        return require(overtaken)

    def _earlier(self) -> KeyedCall | None:
        call = None if self.repeat is None else self.repeat.call
        return call if isinstance(call, KeyedCall) else None

    def _wallet(self) -> Address:
        assert self.payer is not None  # `identify` sets it
        return self.payer

    def _explain(self, refused: NoneLeft | TooManyWallets) -> Problem:
        """The 402 of a call that must be paid."""
        if isinstance(refused, TooManyWallets):
            reason = "free_calls_of_address"
            why = f"{self.rail.limits.free_wallets_per_day} other wallets of your address began their free calls today"
        else:
            reason = "free_calls_used"
            why = f"This wallet has used its {self._terms.count} free calls"
        return _pay(why, reason)


def _pay(why: str, reason: str | None = None) -> Problem:
    return Problem(
        code=Code.PAYMENT_REQUIRED,
        detail=f"{why}. Pay for this call, as payment.options describes.",
        reason=reason,
        payment_state="none",
    )
