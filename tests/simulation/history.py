"""One history: gateways, callers, an upstream, a chain and a database, and what one seed lets happen to them.

`play` draws a world and its steps from (seed, number) alone. Every outcome is told in order, so that two machines can be
compared, and one history played again step by step. The gateway's part is written here in the order of
`gateway.forward`; whatever is decided about money is decided by the books.
"""

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.fake_books import Fate, House
from tests.simulation.truth import Fact, Laws, Request, Truth, need

from tollway.errors import StorageUnavailable
from tollway.identifiers import Address, CallId, ListingId, TxHash, keccak256
from tollway.ledger.authorization import Authorization, Cover, Dialect, SettledTransfer, SettlementAttempt
from tollway.ledger.book import Claim, Claimed, Close, Closed, Exhausted, Finish, NonceUsed
from tollway.ledger.call import CallState, Delivery, NewPayment, PaymentState
from tollway.ledger.claims import Purse, purse_of
from tollway.ledger.gas import LaneTaken
from tollway.ledger.kept_answers import StoredAnswer
from tollway.ledger.keyed_calls import KeyedCall, KeyTaken
from tollway.limits import DEFAULT_LIMITS
from tollway.testing.book_samples import CHAIN, GAS_KEY, NOW_MS, PAYEE, PROVIDER, USDC

LIMITS = DEFAULT_LIMITS
LEASE_MS = int(LIMITS.owner_lease_s * 1000)
HOLD_MS = LIMITS.unknown_hold_s * 1000
EXPIRY_SLACK_S = 60
PAYERS = (Address(b"\xa1" * 20), Address(b"\xa2" * 20))
TOKEN = Address(bytes.fromhex(USDC[2:]))
LISTING = ListingId("api_1")
ANSWER = StoredAnswer(status=200, headers=(), body=b"{}")
_BLOCK = b"\x01" * 32
_TX = {name: TxHash(keccak256(name.encode())) for name in (f"tx{number}" for number in range(64))}
_WORDS = tuple(keccak256(b"word %d" % number) for number in range(256))
_IDS = tuple(CallId(f"call_{number:04}") for number in range(512))


@dataclass(slots=True, kw_only=True, eq=False)
class Trip:
    """A granted call on its way through one gateway process."""

    gateway: Any
    request: Request
    call_id: CallId
    claimed: Claimed
    stage: str = "held"  # a connection is held; then sent, settling, body
    attempt: SettlementAttempt | None = None


@dataclass(slots=True, kw_only=True)
class Story:
    """What was told of one history."""

    seed: int
    number: int
    steps: int = 0
    claims: int = 0
    told: list[str] = field(default_factory=list)


class History:
    """`is_alone`: one gateway at a time, as on SQLite. `tells`: keeps what happened, for comparison."""

    def __init__(self, seed: int, number: int, *, is_alone: bool = False, tells: bool = False) -> None:
        self.random = random.Random((seed << 32) ^ number)
        draw = self.random.random
        self.story = Story(seed=seed, number=number)
        self._tells = tells
        self._prices = 1 + int(draw() * 5)
        self._auth_share = (0.0, 0.0, 0.5, 1.0)[int(draw() * 4)]
        self._payers = PAYERS[: 1 + (draw() < 0.15)]
        self.gateways_wanted = 1 if is_alone or draw() < 0.55 else 2
        self._wildness = draw()
        is_limited = draw() < 0.15
        self.unfinal_max_units = int(draw() * 10) if is_limited else None
        self.house = House(
            limits=LIMITS,
            unfinal_max_nano={"USDC": (self.unfinal_max_units or 0) * 1000} if is_limited else {},
            has_power_cuts=draw() < 0.2,
        )
        self._steps = 4 + int(self.random.expovariate(0.2)) + (30 if draw() < 0.08 else 0)
        self.machine: Any = None
        self._gateways: list[Any] = []
        self._stalled: list[Any] = []
        self._born = 0
        self._trips: list[Trip] = []
        self._requests: list[Request] = []
        self._silent: list[CallId] = []
        self._nonces = 0
        self._payments: dict[str, NewPayment] = {}
        self._gone: set[str] = set()
        self._gone_debt = 0
        self._block = 100
        self._words = 0
        self.truth = Truth(balances={payer: int(draw() * draw() * 60) for payer in self._payers})
        self._laws: Laws | None = None
        self._plot = self._draw_plot()

    def _draw_plot(self) -> tuple[list[Callable[[], Any]], list[float]]:
        wild = self._wildness
        has_auth = self._auth_share > 0
        weighted: list[tuple[float, Callable[[], Any]]] = [
            (2.2, self._show_new),
            (2.0, self._show_again),
            (0.7, self._race),
            (9.0, self._go_on),
            (0.8, self._wait),
            (0.7, self._recover),
            (0.4, self._pay),
            (0.3 + 0.5 * wild, self._leave_chain),
            (0.5, self._watch),
            (0.3, self._resolve),
            (0.6 * wild, self._kill),
            (0.4 * wild, self._come_back),
            (0.1 * wild, self._restore),
        ]
        if self.house.has_power_cuts:
            weighted.append((0.6, self._cut_power))
        if self.gateways_wanted > 1:
            weighted.append((0.7 * wild, self._stall))
        if has_auth:
            weighted += [(2.5, self._mine), (1.0, self._sweep)]
        total, sums = 0.0, []
        for weight, _ in weighted:
            total += weight
            sums.append(total)
        return [step for _, step in weighted], sums

    @property
    def requests(self) -> list[Request]:
        return self._requests

    @property
    def last_gateway(self) -> Any:
        """The one that is left when everything is over."""
        (gateway,) = self._gateways
        return gateway

    # ---- From the first step to the last.

    async def play(self, machine: Any) -> Story:
        self.machine = machine
        rows = getattr(machine, "rows", None)
        self._laws = Laws(rows, self.truth, hold_ms=HOLD_MS) if rows is not None else None
        for _ in range(self.gateways_wanted):
            await self._start()
        for _ in range(1 + int(self.random.random() * 2)):
            await self._pay()
        steps, sums = self._plot
        for _ in range(self._steps):
            (step,) = self.random.choices(steps, cum_weights=sums)
            await step()
        await self._end()
        return self.story

    async def _end(self) -> None:
        """All faults are over. In the end each call has an outcome, or is held for a reason that its payer can read."""
        self._wildness = 0.0
        await self._come_back()
        self._gateways += self._stalled
        self._stalled.clear()
        for gateway in list(self._gateways):
            await self._bury(gateway)
        self.machine.now_ms += 2 * LEASE_MS
        await self._start()
        self._check("recover")
        self.machine.now_ms += HOLD_MS + 1000
        await self._recover()
        await self._sweep()
        if self._laws is None:
            return
        for call_id, call in self.machine.rows.calls.items():
            need(call.state is not CallState.FORWARDING, "a call is open for ever", call_id)
            is_left = call.state is CallState.SETTLING or (
                call.state is CallState.UNKNOWN and call.clock_releases
            )
            need(not is_left, "a call has no outcome and no reason", call_id)
        for payer in self._payers:
            (gateway,) = self._gateways
            told = sum(debt.units for debt in await gateway.debts(payer))
            need(told == self._laws.debt_of(Purse(CHAIN, USDC, payer, PAYEE)), "debts do not add up", payer)

    def _tell(self, what: str, **details: object) -> None:
        if self._tells:
            named = " ".join(f"{key}={value}" for key, value in details.items())
            self.story.told.append(f"{self.machine.now_ms - NOW_MS:>10} {what} {named}".rstrip())

    def _check(self, cause: str) -> None:
        self.story.steps += 1
        if self._laws is not None:
            self._laws.check(cause, self.machine.now_ms)

    def _flip(self, chance: float) -> bool:
        return self.random.random() < chance

    def _pick(self, some: list[Any]) -> Any:
        return some[int(self.random.random() * len(some))]

    # ---- Callers.

    async def _show_new(self) -> None:
        await self._show([self._new_request()], self._fate())

    async def _show_again(self) -> None:
        """Of those who come back most have got no answer."""
        if self._silent and self._flip(0.6):
            await self._show([self.truth.facts[self._pick(self._silent)].request], self._fate())
        elif self._requests:
            await self._show([self._pick(self._requests[-3:])], self._fate())

    async def _race(self) -> None:
        """Several at once: the same request, or different ones."""
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
            nonce = _WORDS[int(draw() * 6)]  # so few that they meet
        authorization = self._authorize(payer, price_units) if is_authorized else None
        names = [name for name, one in self._payments.items() if one.payer == payer]
        method = "GET" if draw() < 0.6 else "POST"
        same = _WORDS[62 if method == "GET" else 63]
        request = Request(
            number=len(self._requests),
            payer=payer,
            method=method,
            digest=_WORDS[64 + words % 190] if draw() < 0.8 else same,
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
            nonce=_WORDS[self._nonces % 64],
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
            if self.story.claims >= len(_IDS) - 4:
                return
            try:
                if request.shown and request.key is None and await self._run_again(gateway, request):
                    continue
                if request.authorization is not None and await self._is_known(gateway, request):
                    continue
                claim = await self._claim_of(gateway, request)
            except StorageUnavailable:
                self._tell("away", request=request.number)
                return
            if claim is not None:
                waiting.append((request, claim))
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
                    Trip(gateway=gateway, request=request, call_id=claim.call_id, claimed=outcome)
                )
            elif isinstance(outcome, KeyTaken):
                await self._run_keyed(gateway, request, outcome.call)
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
            self._laws.check_granted(fact.request, claim.call_id, unfinal_max_units=self.unfinal_max_units)
        return outcome

    async def _claim_of(self, gateway: Any, request: Request) -> Claim | None:
        call_id = _IDS[self.story.claims]
        authorization, payment_id, tx_hash = request.authorization, None, None
        if request.tx_name is not None:
            tx_hash = _TX[request.tx_name]
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
        known = await gateway.find_authorized(request.authorization.key)
        if known is None or (known.state is CallState.RELEASED and known.transfer is None):
            return False
        is_open = known.state is CallState.UNKNOWN or (known.state is CallState.CONSUMED and known.is_lost)
        if is_open and request.is_safe:
            await self._reopen(gateway, request, known.call_id, known.epoch, is_plain=False)
        return True

    async def _run_again(self, gateway: Any, request: Request) -> bool:
        if not request.is_safe or request.tx_name is None:
            return False
        try:
            (payment,) = await gateway.find_payments(_TX[request.tx_name])
            found = await gateway.find_repeat(payment.id, request.digest)
            if found is None or found.state is CallState.FORWARDING:
                return False
            is_plain = request.nonce is None
            return await self._reopen(gateway, request, found.call_id, found.epoch, is_plain=is_plain)
        except StorageUnavailable:
            return True

    async def _run_keyed(self, gateway: Any, request: Request, earlier: KeyedCall) -> None:
        """The same request under its key runs again, safe or not, where it has no outcome or half an answer."""
        is_open = earlier.state is CallState.UNKNOWN or (
            earlier.state is CallState.CONSUMED and earlier.is_lost and request.is_safe
        )
        is_same = earlier.digest == request.digest and earlier.authorization is None
        if is_same and is_open and request.authorization is None:
            await self._reopen(
                gateway, request, earlier.call_id, earlier.epoch, is_plain=request.nonce is None
            )

    async def _reopen(
        self, gateway: Any, request: Request, call_id: CallId, epoch: int, *, is_plain: bool
    ) -> bool:
        self.machine.fate = self._fate()
        try:
            outcome = await gateway.reopen(
                call_id, epoch=epoch, now_ms=self.machine.now_ms, is_plain=is_plain
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
        self._trips.append(Trip(gateway=gateway, request=request, call_id=call_id, claimed=outcome))
        return True

    # ---- And carries it.

    async def _go_on(self) -> None:
        going = [trip for trip in self._trips if trip.gateway not in self._stalled]
        if not going:
            await self._show_new()
            return
        trip = self._pick(going)
        match trip.stage:
            case "held":
                await self._send(trip)
            case "sent":
                await self._hear(trip)
            case "settling":
                await self._settle_on(trip)
            case _:
                await self._stream(trip)

    async def _send(self, trip: Trip) -> None:
        if self._flip(0.12):  # the connection died, or the caller left before all was sent
            await self._close(trip, trip.claimed.before or CallState.RELEASED, None)
            self._trips.remove(trip)
            return
        self._tell("send", call=trip.call_id, epoch=trip.claimed.epoch)
        self.truth.note_sent(trip.call_id, trip.claimed.epoch, attempts_max=LIMITS.attempts_max)
        trip.stage = "sent"

    async def _hear(self, trip: Trip) -> None:
        """The upstream: an answer that costs, one that does not, silence; or nothing yet."""
        luck, fact = self.random.random(), self.truth.facts[trip.call_id]
        if luck < 0.12:
            return
        before = trip.claimed.before
        if luck < 0.62:
            fact.has_cost = True
            if trip.request.authorization is not None and before is not CallState.CONSUMED:
                await self._settle(trip)
                return
            if await self._close(trip, CallState.CONSUMED, 200):
                fact.is_shown, fact.is_cut, fact.is_lost_close = True, False, False
                trip.stage = "body"
                return
        elif luck < 0.77:
            fact.free_epoch = trip.claimed.epoch
            await self._close(trip, CallState.RELEASED, 500)
        else:
            after = CallState.CONSUMED if before is CallState.CONSUMED else CallState.UNKNOWN
            await self._close(trip, after, None)
            self._silent.append(trip.call_id)
        self._trips.remove(trip)

    async def _close(self, trip: Trip, after: CallState, status: int | None) -> bool:
        self.machine.fate = self._fate()
        try:
            outcome = await trip.gateway.close(self._describe(trip, after, status))
        except StorageUnavailable:
            outcome = None
        finally:
            self.machine.fate = None
        self._tell("close", call=trip.call_id, after=after.value, outcome=outcome, at=trip.gateway.owner_id)
        self._check("close")
        return isinstance(outcome, Closed)

    def _describe(self, trip: Trip, after: CallState, status: int | None) -> Close:
        return Close(
            call_id=trip.call_id,
            epoch=trip.claimed.epoch,
            after=after,
            http_status=status,
            upstream_status=status,
            latency_ms=1,
            upstream_latency_ms=1,
            error=None,
        )

    async def _stream(self, trip: Trip) -> None:
        is_cut = self._flip(0.3)
        self.truth.facts[trip.call_id].is_cut = is_cut
        trip.gateway.finish(
            Finish(
                call_id=trip.call_id,
                epoch=trip.claimed.epoch,
                delivery=Delivery.PARTIAL if is_cut else Delivery.COMPLETE,
                request_bytes=0,
                response_bytes=2,
                completed_ms=self.machine.now_ms,
                is_cut=is_cut,
            )
        )
        await self._drain()
        self._tell("finish", call=trip.call_id, is_cut=is_cut)
        self._check("finish")
        self._trips.remove(trip)

    async def _drain(self) -> None:
        drain = getattr(self.machine, "drain", None)
        if drain is not None:
            await drain()

    # ---- Authorisations: the money moves when the answer is there.

    async def _settle(self, trip: Trip) -> None:
        close = self._describe(trip, CallState.SETTLING, 200)
        is_signed = self._flip(0.7)
        try:
            for _ in range(3):
                attempt = await self._sign(trip) if is_signed else None
                outcome = await trip.gateway.settle(close, attempt=attempt, digest=None)
                self._tell("settle", call=trip.call_id, outcome=outcome)
                self._check("settle")
                if not isinstance(outcome, LaneTaken):
                    break
            if isinstance(outcome, Closed):
                trip.stage, trip.attempt = "settling", attempt
                return
        except StorageUnavailable:
            self._tell("settle", call=trip.call_id, outcome="away")
        await self._set_adrift(trip)
        self._trips.remove(trip)

    async def _sign(self, trip: Trip) -> SettlementAttempt:
        nonce = await trip.gateway.gas.next_nonce(CHAIN, GAS_KEY)
        return SettlementAttempt(
            chain_id=CHAIN,
            tx_hash=TxHash(_WORDS[nonce % 256]),
            call_id=trip.call_id,
            listing_id=LISTING,
            sender=GAS_KEY,
            nonce=nonce,
            raw=b"\x02",
            fee_max_wei=1,
            created_ms=self.machine.now_ms,
        )

    async def _settle_on(self, trip: Trip) -> None:
        authorization = trip.request.authorization
        assert authorization is not None
        fact, luck = self.truth.facts[trip.call_id], self.random.random()
        transfer = self.truth.moved.get(authorization.key)
        try:
            if transfer is not None:
                if await self._conclude(trip.gateway, trip.call_id, trip.claimed.epoch, transfer) is (
                    CallState.CONSUMED
                ):
                    fact.is_shown, trip.stage = True, "body"
                    return
            elif trip.attempt is not None and luck < 0.7:
                self.truth.public.add(authorization.key)
                self._tell("broadcast", call=trip.call_id)
                return
            elif trip.attempt is None and luck < 0.3:  # refused in simulation, and nothing was signed
                await self._conclude(trip.gateway, trip.call_id, trip.claimed.epoch, None)
            else:
                if self._flip(0.5):
                    await trip.gateway.keep_answer(trip.call_id, trip.request.payer, ANSWER)
                await self._set_adrift(trip)
        except StorageUnavailable:
            await self._set_adrift(trip)
        self._trips.remove(trip)

    async def _conclude(
        self,
        gateway: Any,
        call_id: CallId,
        epoch: int,
        transfer: SettledTransfer | None,
        is_adrift: bool = False,
    ) -> CallState | None:
        self.machine.fate = self._fate()
        try:
            state: CallState | None = await gateway.conclude(
                call_id, epoch=epoch, transfer=transfer, is_adrift=is_adrift, now_ms=self.machine.now_ms
            )
        finally:
            self.machine.fate = None
            self._check("conclude")
        self._tell("conclude", call=call_id, state=state, is_moved=transfer is not None, adrift=is_adrift)
        if state is CallState.RELEASED and self._laws is not None:
            self._check_debts_paid_first(self.machine.rows.calls[call_id].claim.payment_id)
        return state

    async def _set_adrift(self, trip: Trip) -> None:
        try:
            is_adrift = await trip.gateway.set_adrift(trip.call_id, epoch=trip.claimed.epoch)
        except StorageUnavailable:
            is_adrift = "away"
        self._tell("adrift", call=trip.call_id, outcome=is_adrift)
        self._check("adrift")

    async def _mine(self) -> None:
        """Whoever likes lands a public authorisation, while it is valid and covered."""
        now_s = self.machine.now_ms // 1000
        open_ones = [
            request.authorization
            for request in self._requests
            if request.authorization is not None
            and request.authorization.key in self.truth.public
            and request.authorization.key not in self.truth.moved
            and now_s < request.authorization.valid_before
            and self.truth.balances[request.payer] >= request.price_units
        ]
        if not open_ones:
            return
        chosen = self._pick(open_ones)
        self._block += 1
        self.truth.balances[chosen.payer] -= chosen.base_units
        self.truth.moved[chosen.key] = self._transfer(f"tx{40 + int(self.random.random() * 20)}")
        self._tell("mined", nonce=chosen.nonce.hex()[:8])

    def _transfer(self, name: str) -> SettledTransfer:
        return SettledTransfer(
            tx_hash=_TX[name],
            block_number=self._block,
            block_hash=_BLOCK,
            block_time=self.machine.now_ms // 1000,
        )

    async def _sweep(self) -> None:
        if not self._gateways:
            return
        gateway = self._pick(self._gateways)
        now_s = self.machine.now_ms // 1000
        try:
            for call in await gateway.unsettled(limit=100):
                key = call.authorization.key
                transfer = self.truth.moved.get(key)
                is_over = now_s >= call.authorization.valid_before + EXPIRY_SLACK_S
                if transfer is not None or is_over:
                    await self._conclude(gateway, call.call_id, call.epoch, transfer, is_adrift=True)
                elif call.state is CallState.SETTLING and self._flip(0.5):
                    self.truth.public.add(key)
                else:
                    await gateway.postpone(call.call_id, until_ms=self.machine.now_ms + 5_000)
        except StorageUnavailable:
            pass
        self._check("sweep")

    # ---- The chain: payments come, leave, come back, become final.

    async def _pay(self) -> None:
        if not self._gateways or len(self._payments) > 8:
            return
        self._block += 1
        name = f"tx{len(self._payments)}"
        draw = self.random.random
        new = NewPayment(
            chain_id=CHAIN,
            tx_hash=_TX[name],
            asset=USDC,
            payer=self._pick(list(self._payers)),
            payee=PAYEE,
            value_units=1 + int(draw() * 12),
            block_number=self._block,
            block_hash=_BLOCK,
            block_time=self.machine.now_ms // 1000,
            is_final=draw() < 0.5,
        )
        if await self._record(new):
            self._payments[name] = new

    async def _record(self, new: NewPayment) -> bool:
        try:
            (payment,) = await self._pick(self._gateways).record_payments([new], now_ms=self.machine.now_ms)
        except StorageUnavailable:
            return False
        self._tell("record", id=payment.id, value=payment.value_units, taken=payment.taken_units)
        self._check("record")
        self._check_debts_paid_first(payment.id)
        return True

    def _check_debts_paid_first(self, payment_id: int | None) -> None:
        """Whatever has just arrived in this payment has paid its payer's debts before anything else."""
        if self._laws is None or payment_id is None:
            return
        payment = self.machine.rows.payments[payment_id]
        if payment.state is not PaymentState.GONE and payment.rest_units > 0:
            need(self._laws.debt_of(purse_of(payment)) == 0, "a debt outlived the money for it", payment.id)

    async def _leave_chain(self) -> None:
        """A reorganisation, or two lies in a row: the watcher sees a payment gone."""
        try:
            payments = await self._pick(self._gateways).unfinal_payments(limit=20) if self._gateways else ()
            chosen = [one for one in payments if one.state is PaymentState.UNFINAL]
            if not chosen:
                return
            payment, gateway = self._pick(chosen), self._pick(self._gateways)
            if payment.is_authorized:
                await self._relocate(gateway, payment)
                return
            before = self._laws.debt_units if self._laws is not None else 0
            debt_units = await gateway.mark_gone(payment.id, now_ms=self.machine.now_ms)
        except StorageUnavailable:
            return
        self._tell("gone", id=payment.id, debt=debt_units)
        self._check("gone")
        if self._laws is not None:
            need(self._laws.debt_units - before == debt_units, "a debt is not what left", payment.id)

    async def _relocate(self, gateway: Any, payment: Any) -> None:
        """An authorisation made its transfer in another transaction, or in none."""
        self.truth.has_relocated = True
        if self._flip(0.4):
            debt_units = await gateway.mark_gone(payment.id, now_ms=self.machine.now_ms)
            self._tell("gone", id=payment.id, debt=debt_units)
            self._check("gone")
            return
        for call in await gateway.authorizations_in(payment.id, limit=10):
            self._block += 1
            transfer = self._transfer(f"tx{60 + int(self.random.random() * 4)}")
            is_moved = await gateway.relocate(
                call.call_id, before=payment.tx_hash, transfer=transfer, now_ms=self.machine.now_ms
            )
            if is_moved:
                self.truth.moved[call.authorization.key] = transfer
            self._tell("relocate", call=call.call_id, outcome=is_moved)
            self._check("relocate")

    async def _watch(self) -> None:
        """Gone payments come back, worth the same or another sum; others become final."""
        try:
            payments = await self._pick(self._gateways).unfinal_payments(limit=20) if self._gateways else ()
            if not payments:
                return
            payment = self._pick(list(payments))
            if payment.state is PaymentState.GONE:
                name = next(
                    (name for name, one in self._payments.items() if one.tx_hash == payment.tx_hash), None
                )
                if name is not None:
                    old = self._payments[name]
                    value = old.value_units if self._flip(0.7) else 1 + int(self.random.random() * 12)
                    await self._record(_worth(old, value))
                return
            gateway = self._pick(self._gateways)
            await gateway.mark_checked(
                payment.id,
                is_final=self._flip(0.5),
                block_number=self._block,
                block_hash=_BLOCK,
                now_ms=self.machine.now_ms,
            )
        except StorageUnavailable:
            return
        self._check("watch")

    # ---- Time, people, and what breaks.

    async def _wait(self) -> None:
        luck = self.random.random()
        self.machine.now_ms += 1_000 if luck < 0.4 else LEASE_MS + 1_000 if luck < 0.8 else HOLD_MS + 1_000
        for gateway in self._gateways:
            if gateway not in self._stalled:
                await self._renew(gateway)
        self._tell("wait")

    async def _renew(self, gateway: Any) -> None:
        with contextlib.suppress(StorageUnavailable):
            await gateway.renew_ownership(now_ms=self.machine.now_ms)

    async def _recover(self) -> None:
        if not self._gateways:
            return
        gateway = self._pick(self._gateways)
        try:
            moved = await gateway.recover(now_ms=self.machine.now_ms)
        except StorageUnavailable:
            moved = "away"
        self._tell("recover", moved=moved, at=gateway.owner_id)
        self._check("recover")

    async def _resolve(self) -> None:
        unknown = self._silent if self._silent and self._flip(0.7) else list(self.truth.facts)
        if not unknown or not self._gateways:
            return
        call_id = self._pick(unknown)
        after = CallState.CONSUMED if self._flip(0.5) else CallState.RELEASED
        fact = self.truth.facts[call_id]
        was_decided, fact.is_decided = fact.is_decided, True
        try:
            is_moved = await self._pick(self._gateways).resolve(call_id, after, now_ms=self.machine.now_ms)
        except StorageUnavailable:
            is_moved = False
        self._tell("resolve", call=call_id, after=after.value, outcome=is_moved)
        self._check("resolve")
        fact.is_decided = was_decided or is_moved

    async def _start(self) -> None:
        self._born += 1
        gateway = await self.machine.start(f"gateway-{self._born}")
        self._gateways.append(gateway)
        self._tell("start", gateway=gateway.owner_id)

    async def _bury(self, gateway: Any) -> None:
        self._gateways.remove(gateway)
        self._trips = [trip for trip in self._trips if trip.gateway is not gateway]
        await self.machine.kill(gateway)
        self._tell("kill", gateway=gateway.owner_id)

    async def _kill(self) -> None:
        """kill -9, and a new process in its place; where there is but one, it takes the lease to be sure."""
        await self._come_back()
        if not self._gateways:
            return
        gateway = self._pick(self._gateways)
        await self._bury(gateway)
        if self.gateways_wanted == 1:
            self.machine.now_ms += LEASE_MS + 1_000
        await self._start()
        self._check("recover")

    async def _stall(self) -> None:
        """A gateway hangs for longer than its lease; the others judge. Then it goes on as if nothing had been."""
        if self._stalled:
            self._gateways += self._stalled
            self._stalled.clear()
            return
        if len(self._gateways) < 2:
            return
        gateway = self._pick(self._gateways)
        self._gateways.remove(gateway)
        self._stalled.append(gateway)
        self._tell("stall", gateway=gateway.owner_id)
        self.machine.now_ms += LEASE_MS + 1_000
        for other in self._gateways:
            await self._renew(other)
        await self._recover()

    async def _come_back(self) -> None:
        self.machine.is_away = False

    async def _restore(self) -> None:
        """The operator notes a restore, or releases what it holds."""
        if not self._gateways:
            return
        gateway = self._pick(self._gateways)
        try:
            if self._flip(0.5):
                await gateway.note_restored(now_ms=self.machine.now_ms)
            else:
                await gateway.release_held()
        except StorageUnavailable:
            return
        self._check("restore")

    async def _cut_power(self) -> None:
        """The machine of the books dies. Where it is the gateways' own, they die with it."""
        for gateway in [*self._gateways, *self._stalled] if self.gateways_wanted == 1 else ():
            await self._bury(gateway)
        await self.machine.cut_power(loses_all=self._flip(0.7))
        self._tell("power cut")
        if self._laws is not None:
            self._laws.forget()
        if self.gateways_wanted == 1:
            self.machine.now_ms += LEASE_MS + 1_000
            await self._start()
        self._check("recover")


def _worth(payment: NewPayment, value_units: int) -> NewPayment:
    return NewPayment(
        chain_id=payment.chain_id,
        tx_hash=payment.tx_hash,
        asset=payment.asset,
        payer=payment.payer,
        payee=payment.payee,
        value_units=value_units,
        block_number=payment.block_number,
        block_hash=payment.block_hash,
        block_time=payment.block_time,
        is_final=payment.is_final,
    )
