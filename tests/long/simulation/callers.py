"""Callers and claims: new requests, repeats, races, claims, runs under an existing claim."""

from dataclasses import replace
from typing import Any

from tests.kit.ledger_records import CHAIN, PAYEE, PROVIDER, USDC
from tests.long.simulation.fake_ledger import Fate
from tests.long.simulation.history_run import IDS, LISTING, TOKEN, TX, WORDS, GrantedCall, HistoryRun
from tests.long.simulation.oracle import Fact, Request
from tollway.errors import StorageUnavailable
from tollway.ids import Address, CallId
from tollway.ledger.claims import is_claim_alone_plain
from tollway.ledger.ledger import Claim, Claimed, Exhausted, NonceUsed
from tollway.ledger.records import (
    Authorization,
    CallState,
    Cover,
    Dialect,
    KeyedCall,
    KeyTaken,
    OpenCall,
    RepeatsOpenCall,
)


class Callers(HistoryRun):
    """Sends requests to gateways, in the order of `gateway.transaction_payment`."""

    # ---- Callers.

    async def _show_new(self) -> None:
        await self._show([self._new_request()], self._fate())

    async def _show_again(self) -> None:
        """Most repeats are of requests without a response."""
        if self._silent and self._flip(0.6):
            await self._show([self.truth.facts[self._pick(self._silent)].request], self._fate())
        elif self._requests:
            await self._show([self._pick(self._requests[-3:])], self._fate())

    async def _race(self) -> None:
        """Several concurrent calls: of the same request, or of different ones."""
        first = self._new_request()
        others = [first if self._flip(0.5) else self._new_request() for _ in range(2)]
        await self._show([first, *others], None)

    def _fate(self) -> Fate | None:
        if self.random.random() > 0.12 * self._wildness:
            return None
        return Fate.LOST if self._flip(0.4) else Fate.UNHEARD

    def _new_request(self) -> Request:
        draw, words = self.random.random, self._words
        self._words += 1
        payer = self._pick(list(self._payers))
        price_units = self._prices if draw() < 0.7 else 1 + int(draw() * 6)
        is_authorized = draw() < self._auth_share or not self._payments
        nonce = None
        if not is_authorized and draw() < 0.5:
            nonce = WORDS[int(draw() * 6)]  # so few that they meet
        authorization = self._authorize(payer, price_units) if is_authorized else None
        names = [name for name, one in self._payments.items() if one.payer == payer]
        method = "GET" if draw() < 0.6 else "POST"
        same = WORDS[62 if method == "GET" else 63]
        request = Request(
            number=len(self._requests),
            payer=payer,
            method=method,
            digest=WORDS[64 + words % 190] if draw() < 0.8 else same,
            price_units=price_units,
            tx_name=self._pick(names) if names and not is_authorized else None,
            nonce=nonce,
            key=f"key-{int(draw() * 3)}" if draw() < 0.3 else None,
            is_first_price=not is_authorized and draw() < 0.1,
            authorization=authorization,
        )
        if authorization is None and request.tx_name is None:
            request.authorization = self._authorize(payer, price_units)
            request.nonce, request.is_first_price = None, False
        self._requests.append(request)
        return request

    def _authorize(self, payer: Address, units: int) -> Authorization:
        self._nonces += 1
        return Authorization(
            chain_id=CHAIN,
            token=TOKEN,
            payer=payer,
            payee=PAYEE,
            base_units=units,
            valid_after=0,
            valid_before=self.machine.now_ms // 1000 + 120,
            nonce=WORDS[self._nonces % 64],
            signature=b"\x05" * 65,
            dialect=Dialect.X402_V2,
        )

    # ---- A gateway takes a call.

    async def _show(self, requests: list[Request], fate: Fate | None) -> None:
        if not self._gateways:
            return
        gateway = self._pick(self._gateways)
        waiting: list[tuple[Request, Claim]] = []
        for request in requests:
            if self.story.claims >= len(IDS) - 4:
                return
            try:
                if request.authorization is not None and await self._is_known(gateway, request):
                    continue
                claim = await self._claim_of(gateway, request)
            except StorageUnavailable:
                self._tell("away", request=request.number)
                return
            if claim is not None:
                waiting.append((request, claim))
        # A batch grants its plain claims first.
        waiting.sort(key=lambda one: not is_claim_alone_plain(one[1], self.context.unfinal_max_nano))
        self.machine.fate = fate if waiting else None
        claims = [claim for _, claim in waiting]
        for request, claim in waiting:
            request.shown += 1
            request.calls.append(claim.call_id)
            self.truth.facts[claim.call_id] = Fact(request=request)
        if len(claims) > 1 and hasattr(gateway, "claim_all"):
            outcomes = await gateway.claim_all(claims)
        else:
            outcomes = [await self._claim(gateway, claim) for claim in claims]
        for (request, claim), outcome in zip(waiting, outcomes, strict=True):
            if len(claims) > 1 and isinstance(outcome, Exhausted):
                # A refusal may tell what those behind it in its batch hold by now.
                outcome = replace(outcome, held_units=0)
            self._tell(
                "claim", call=claim.call_id, request=request.number, outcome=outcome, at=gateway.owner_id
            )
            if isinstance(outcome, Claimed):
                self._trips.append(
                    GrantedCall(gateway=gateway, request=request, call_id=claim.call_id, claimed=outcome)
                )
            elif isinstance(outcome, RepeatsOpenCall):
                await self._run_open(gateway, request, claim, outcome.call)
            elif isinstance(outcome, KeyTaken):
                await self._run_keyed(gateway, request, claim, outcome.call)
            elif isinstance(outcome, Exhausted | NonceUsed) and request.key is None:
                await self._run_again(gateway, request)

    async def _claim(self, gateway: Any, claim: Claim) -> object:
        try:
            outcome = await gateway.claim(claim)
        except StorageUnavailable:
            self._check("claim")
            return "away"
        self._check("claim")
        if isinstance(outcome, Claimed) and self._laws is not None:
            fact = self.truth.facts[claim.call_id]
            self._laws.check_granted(
                fact.request,
                claim.call_id,
                is_separate_call=claim.is_separate_call,
                unfinal_max_units=self.unfinal_max_units,
            )
        return outcome

    async def _claim_of(self, gateway: Any, request: Request) -> Claim | None:
        call_id = IDS[self.story.claims]
        authorization, payment_id, tx_hash = request.authorization, None, None
        if request.tx_name is not None:
            tx_hash = TX[request.tx_name]
            (payment,) = await gateway.find_payments(tx_hash)
            payment_id = payment.id
        self.story.claims += 1
        return Claim(
            call_id=call_id,
            listing_id=LISTING,
            listing_name="Quotes",
            provider=PROVIDER,
            payer=request.payer,
            method=request.method,
            path="/quote",
            digest=request.digest,
            price="0.01",
            price_units=request.price_units,
            currency="USDC",
            payment_id=payment_id,
            chain_id=CHAIN,
            asset=USDC,
            decimals=6,
            tx_hash=tx_hash,
            pay_to=PAYEE,
            nonce=request.nonce,
            ends_plain=request.nonce is not None,
            is_plain=authorization is None and request.nonce is None,
            is_first_price=request.is_first_price,
            idempotency_key=request.key,
            request_id=call_id,
            created_ms=self.machine.now_ms,  # ids are in order
            authorization=authorization,
            cover=None if authorization is None else self._cover(request.payer),
        )

    def _cover(self, payer: Address) -> Cover:
        return Cover(balance_units=self.truth.balances[payer], block_number=self._block)

    async def _is_known(self, gateway: Any, request: Request) -> bool:
        """A known authorisation is answered from the record, or runs again under its claim."""
        assert request.authorization is not None
        known = await gateway.find_authorized_call(request.authorization.key)
        if known is None or (known.state is CallState.RELEASED and known.transfer is None):
            return False
        is_open = known.state is CallState.UNKNOWN or (known.state is CallState.CONSUMED and known.is_lost)
        if is_open and request.is_safe:
            await self._reopen(gateway, request, known.call_id, known.epoch)
        return True

    async def _run_open(self, gateway: Any, request: Request, claim: Claim, waiting: OpenCall) -> None:
        """Where the call that waits does not run again, the request is another call."""
        if await self._reopen(gateway, request, waiting.call_id, waiting.epoch):
            return
        outcome = await self._claim(gateway, replace(claim, is_separate_call=True))
        self._tell("claim", call=claim.call_id, request=request.number, outcome=outcome, at=gateway.owner_id)
        if isinstance(outcome, Claimed):
            self._trips.append(
                GrantedCall(gateway=gateway, request=request, call_id=claim.call_id, claimed=outcome)
            )

    async def _run_again(self, gateway: Any, request: Request) -> bool:
        if not request.is_safe or request.tx_name is None:
            return False
        try:
            (payment,) = await gateway.find_payments(TX[request.tx_name])
            found = await gateway.find_open_call(payment.id, request.digest)
            if found is None or found.state is CallState.FORWARDING:
                return False
            return await self._reopen(gateway, request, found.call_id, found.epoch)
        except StorageUnavailable:
            return True

    async def _run_keyed(self, gateway: Any, request: Request, claim: Claim, earlier: KeyedCall) -> None:
        """The same request under its key, with a proof of the same payment, runs again, safe or not, where it has no outcome or half an
        answer."""
        is_open = earlier.state is CallState.UNKNOWN or (
            earlier.state is CallState.CONSUMED and earlier.is_lost and request.is_safe
        )
        is_same = earlier.digest == request.digest and earlier.authorization is None
        is_same = is_same and earlier.payment_id == claim.payment_id
        if is_same and is_open and request.authorization is None:
            await self._reopen(gateway, request, earlier.call_id, earlier.epoch)

    async def _reopen(self, gateway: Any, request: Request, call_id: CallId, epoch: int) -> bool:
        is_plain = request.authorization is None and request.nonce is None
        self.machine.fate = self._fate()
        try:
            outcome = await gateway.reopen(
                call_id, epoch=epoch, now_ms=self.machine.now_ms, is_plain=is_plain, nonce=request.nonce
            )
        except StorageUnavailable:
            self._tell("reopen", call=call_id, outcome="away", at=gateway.owner_id)
            self._check("reopen")
            return True
        finally:
            self.machine.fate = None
        self._tell("reopen", call=call_id, outcome=outcome, at=gateway.owner_id)
        self._check("reopen")
        if not isinstance(outcome, Claimed):
            return False
        if self._laws is not None:
            self._laws.check_repeated(request, call_id)
        self._trips.append(GrantedCall(gateway=gateway, request=request, call_id=call_id, claimed=outcome))
        return True
