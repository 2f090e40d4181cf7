"""Settling an authorisation: simulate -> sign -> into the books -> broadcast -> follow the receipt -> conclude.

Money may move from the commit on that stores the signed transaction, and never before it. What cannot be found out is
undecided; failed is only what was refused in simulation and never left this gateway. Nothing that a payer composed is ever
sent: the transaction is built here from the signed fields alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import assert_never

import structlog

from tollway.chain.reader import (
    AuthorizationFacts,
    ChainFacts,
    SendFault,
    SendRefused,
    SettlementChain,
    Trust,
)
from tollway.chain.rules import ChainRules
from tollway.errors import ChainUnavailable, Code, Problem
from tollway.identifiers import ZERO_ADDRESS, ChainId, ListingId
from tollway.ledger.authorization import Authorization, Cover, SettledTransfer, SettlementAttempt
from tollway.ledger.book import Book, Closed, Fenced
from tollway.ledger.call import CallState
from tollway.ledger.gas import GasBook, LaneTaken
from tollway.limits import Limits
from tollway.money import Asset
from tollway.payments.authorization_reasons import AuthorizationReason, explain_authorization
from tollway.payments.authorization_use import NotFound, Paid, Spoiled, Use, find_transfer, find_use, rehearse
from tollway.payments.authorization_verdict import (
    AuthorizationRefused,
    check_times,
    judge_authorization,
    name_failure,
)
from tollway.payments.consents import Consents
from tollway.payments.eip3009 import recover_signer
from tollway.payments.follower import Follower
from tollway.payments.gas_lane import GasLane
from tollway.payments.gas_tank import GasTank
from tollway.payments.junk_meter import AuthorizationLookup, JunkMeter
from tollway.payments.lane_keeper import LaneKeeper
from tollway.payments.lane_signer import sign_next
from tollway.payments.remote_facilitator import RemoteFacilitator
from tollway.payments.requirement import Requirement
from tollway.payments.settlement_outcome import (
    FencedOff,
    NotSettled,
    Settled,
    SettlementOrder,
    SettlementOutcome,
    Undecided,
    describe_end,
    name_end,
)
from tollway.payments.settlement_signing import Carriage, limit_gas
from tollway.payments.settling_notes import SILENT, SettlingNotes
from tollway.payments.strays import Strays
from tollway.rates import Rates

__all__ = [
    "FencedOff",
    "NotSettled",
    "Settled",
    "Settlement",
    "SettlementOrder",
    "SettlementOutcome",
    "Undecided",
]

RESEND_AFTER_S = 2.0
"""A node that saw a later nonce first may have dropped the transaction: it goes to all nodes once more, with what it waits
behind."""
ASK_AGAIN_S = 0.5
"""Between two looks for what a facilitator has done."""

Send = Callable[[ChainId, bytes], Awaitable[SendRefused | None]]

_log = structlog.get_logger(__name__)


class Settlement:
    """One per process, for all networks; safe to use from many tasks at once. Its follower and its gas tank have to run
    beside it, and `mend` every few seconds."""

    def __init__(
        self,
        *,
        book: Book,
        gas: GasBook,
        chains: SettlementChain,
        rules: Mapping[ChainId, ChainRules],
        tank: GasTank,
        follower: Follower,
        facilitators: Mapping[ChainId, RemoteFacilitator],
        limits: Limits,
        now_ms: Callable[[], int],
        rates: Rates,
        notes: SettlingNotes = SILENT,
    ) -> None:
        self._book = book
        self._gas = gas
        self._chains = chains
        self._rules = rules
        self._tank = tank
        self._follower = follower
        self._facilitators = facilitators
        self._limits = limits
        self._now_ms = now_ms
        self._notes = notes
        self._consents = Consents(chains, facilitators, limits=limits)
        self._junk = JunkMeter(limits=limits, rates=rates)
        self._strays = Strays(book)
        self._keeper = LaneKeeper(book=book, gas=gas, chains=chains, tank=tank, limits=limits, now_ms=now_ms)

    def is_offered(self, asset: Asset, units: int, listing_id: ListingId) -> bool:
        """Whether this price can be settled now, by what the last look at gas told, and while its caller waits."""
        rules = self._rules.get(asset.chain_id)
        if rules is None or not self._tank.is_in_time(rules, asset, units):
            return False
        return self._tank.is_offered(asset, units, listing_id)

    def is_in_sight(self, chain_id: ChainId) -> bool:
        """Whether anything is known of this network at present; what is not offered then is only not known."""
        return self._tank.is_in_sight(chain_id)

    async def mend(self) -> None:
        """A chore: settlements whose waiter is gone are left to the sweeper."""
        await self._strays.mend()

    # ---- Before the call.

    def open_lookup(self, client_address: str) -> AuthorizationLookup:
        """What one call's questions to a chain cost its caller; a context, open for as long as the call runs."""
        return self._junk.open(client_address)

    async def check(
        self,
        authorization: Authorization,
        requirement: Requirement,
        *,
        timeout_s: int,
        lookup: AuthorizationLookup,
        listing_id: ListingId,
    ) -> Cover | Problem:
        """Whether it would pay, by the chain as it is now: one round trip, and another one for a wallet with code. Raises
        `ChainUnavailable`."""
        asset = requirement.asset
        early = check_times(
            authorization,
            now_s=self._now_ms() / 1000,
            timeout_s=timeout_s,
            validity_s_max=self._limits.authorization_validity_s_max,
        )
        if early is not None:
            return explain_authorization(early.reason)
        signer = None if asset.domain is None else recover_signer(authorization, asset.domain)
        # Whoever shows junk in a wallet's name must not use up the patience that its owner has here.
        is_owner = signer == authorization.payer
        name = str(authorization.payer) if is_owner else f"{authorization.payer} from {lookup.client_address}"
        refusal = await lookup.take(name)
        if refusal is not None:
            return refusal
        trust = self._trust(asset, asset.floor_to_ledger(authorization.base_units))
        facts = await self._rehearse(authorization, self._tank.choose_lane(asset.chain_id), trust)
        verdict = judge_authorization(authorization, requirement, facts, signer=signer, timeout_s=timeout_s)
        problem = explain_authorization(verdict.reason) if isinstance(verdict, AuthorizationRefused) else None
        if problem is None and not self._tank.is_wallet_served(asset.chain_id, listing_id, facts.code_hash):
            problem = explain_authorization(AuthorizationReason.WALLET_GAS)
        problem = problem or await self._consents.find_refusal(
            authorization, requirement, facts, signer=signer
        )
        if problem is not None:
            return problem
        assert isinstance(verdict, Cover)
        return verdict

    async def _rehearse(
        self, authorization: Authorization, lane: GasLane | None, trust: Trust
    ) -> AuthorizationFacts:
        sender = ZERO_ADDRESS if lane is None else lane.key.address
        gas = self._limits.settlement_gas_max
        return await rehearse(self._chains, authorization, sender=sender, gas=gas, trust=trust)

    # ---- At the upstream's head.

    async def settle(self, order: SettlementOrder) -> SettlementOutcome:
        """Lets the money move, and waits for it, as long as its depth takes.

        Raises `StorageUnavailable`: then, as after a cancellation, the books decide what the call is, and the sweeper
        finishes it.
        """
        try:
            outcome = await self._settle(order)
        except BaseException:
            self._strays.note(order.close, is_waited_for=False)
            raise
        if isinstance(outcome, Undecided):
            self._strays.note(order.close, is_waited_for=True)
        if (end := name_end(outcome)) is not None:
            self._notes.end(order.asset.chain_id, end)
            told = describe_end(outcome)
            _log.info("settlement_ended", call_id=order.close.call_id, network=order.asset.network, **told)
        return outcome

    async def _settle(self, order: SettlementOrder) -> SettlementOutcome:
        chain_id = order.asset.chain_id
        lane = self._tank.choose_lane(chain_id, is_claimed=True)
        try:
            facts = await self._rehearse(order.authorization, lane, self._trust(order.asset, order.units))
        except ChainUnavailable:
            return await self._leave(order)
        if facts.is_used:
            return await self._settle_used(order)
        facilitator = self._facilitators.get(chain_id)
        if facilitator is not None:
            return await self._delegate(order, facilitator, facts)
        if facts.simulation.reverted:
            return await self._fail(order, name_failure(order.authorization, facts))
        is_served = self._tank.is_wallet_served(chain_id, order.listing_id, facts.code_hash)
        if lane is None or facts.gas_estimate is None or not is_served:
            return await self._leave(order)
        gas = limit_gas(facts.gas_estimate, gas_max=self._limits.settlement_gas_max)
        lane.in_flight += 1
        try:
            attempt = await self._store(order, lane, gas, facts.code_hash)
            if not isinstance(attempt, SettlementAttempt):
                return attempt
            await self._broadcast(attempt, self._chains.send_transaction)
            return await self._follow(order, attempt, from_block=facts.head_number)
        finally:
            lane.in_flight -= 1

    async def _leave(self, order: SettlementOrder) -> Undecided | FencedOff:
        """Into `settling` without a transaction: the sweeper signs one when it can."""
        stored = await self._book.settle(order.close, attempt=None, digest=order.digest)
        return Undecided() if isinstance(stored, Closed) else FencedOff()

    async def _fail(self, order: SettlementOrder, reason: AuthorizationReason) -> NotSettled | FencedOff:
        """Nothing was ever broadcast, so nothing moved."""
        close = replace(
            order.close,
            after=CallState.RELEASED,
            http_status=None,  # not the upstream's: its answer reaches nobody
            error=Code.PAYMENT_SETTLEMENT_FAILED.value,
        )
        closed = await self._book.close(close)
        return FencedOff() if isinstance(closed, Fenced) else NotSettled(reason=reason.value)

    async def _settle_used(self, order: SettlementOrder) -> SettlementOutcome:
        """Somebody was faster. The same from, to and value: it is paid, and nothing need be sent."""
        known = await self._book.find_authorized(order.authorization.key)
        try:
            use = await self._find_use(order, from_block=0 if known is None else known.seen_block)
        except ChainUnavailable:
            use = NotFound()
        match use:
            case Spoiled():
                return await self._fail(order, AuthorizationReason.ALREADY_USED)
            case NotFound():
                return await self._leave(order)
            case Paid():
                left = await self._leave(order)
                return left if isinstance(left, FencedOff) else await self._conclude(order, use.transfer)
            case _:
                assert_never(use)

    # ---- Signed, stored, sent, followed.

    async def _store(
        self, order: SettlementOrder, lane: GasLane, gas: int, code_hash: bytes | None
    ) -> SettlementAttempt | Undecided | FencedOff:
        """A signed transaction with the lane's next nonce, in the books."""
        carriage = Carriage(
            authorization=order.authorization,
            call_id=order.close.call_id,
            listing_id=order.listing_id,
            gas=gas,
            code_hash=code_hash,
        )

        async def settle(attempt: SettlementAttempt) -> bool | LaneTaken:
            stored = await self._book.settle(order.close, attempt=attempt, digest=order.digest)
            return stored if isinstance(stored, LaneTaken) else isinstance(stored, Closed)

        signed = await sign_next(
            carriage, lane, store=settle, gas=self._gas, tank=self._tank, now_ms=self._now_ms
        )
        if isinstance(signed, Fenced):
            return FencedOff()
        return signed or await self._leave(order)

    async def _broadcast(self, attempt: SettlementAttempt, send: Send) -> None:
        """Whatever a node says to it, the transaction is public from here on."""
        try:
            refused = await send(attempt.chain_id, attempt.raw)
        except ChainUnavailable as exc:
            _log.warning("settlement_send_unclear", call_id=attempt.call_id, detail=str(exc))
            return
        if refused is None:
            return
        _log.warning(
            "settlement_send_refused",
            call_id=attempt.call_id,
            transaction=str(attempt.tx_hash),
            fault=refused.fault.value,
            reason=refused.reason,
        )
        if refused.fault in (SendFault.INSUFFICIENT_FUNDS, SendFault.NONCE_TOO_LOW):
            self._tank.note_trouble(attempt.chain_id, attempt.sender)

    async def _follow(
        self, order: SettlementOrder, attempt: SettlementAttempt, *, from_block: int
    ) -> SettlementOutcome:
        facts = await self._wait_mined(order, attempt)
        if facts is None:
            return Undecided(tx_hash=attempt.tx_hash)
        self._notes.mined(attempt.chain_id, (self._now_ms() - attempt.created_ms) / 1000)
        transfer = find_transfer(facts, order.authorization, trust=self._trust(order.asset, order.units))
        if facts.fee_wei is not None:
            self._tank.note_cost(attempt, facts.fee_wei, is_reverted=not facts.succeeded)
        if transfer is not None:
            return await self._conclude(order, transfer)
        # It reverted. The authorisation is public now, and anyone can still land it: only its use tells.
        outcome = await self._conclude_use(order, from_block=from_block)
        return Undecided(tx_hash=attempt.tx_hash) if isinstance(outcome, Undecided) else outcome

    async def _wait_mined(self, order: SettlementOrder, attempt: SettlementAttempt) -> ChainFacts | None:
        wait_s = self._tank.wait_s(attempt.chain_id, depth=self._depth(order))
        first_s = min(RESEND_AFTER_S, wait_s / 2)
        facts = await self._wait_for(order, attempt, first_s)
        if facts is not None:
            return facts
        async with asyncio.TaskGroup() as group:
            resending = group.create_task(self._resend(attempt))
            facts = await self._wait_for(order, attempt, wait_s - first_s)
            resending.cancel()
        return facts

    async def _wait_for(
        self, order: SettlementOrder, attempt: SettlementAttempt, wait_s: float
    ) -> ChainFacts | None:
        try:
            async with asyncio.timeout(wait_s):
                return await self._follower.wait_mined(
                    attempt.chain_id,
                    attempt.tx_hash,
                    lane=attempt.sender,
                    depth=self._depth(order),
                    trust=self._trust(order.asset, order.units),
                )
        except TimeoutError:
            return None

    async def _resend(self, attempt: SettlementAttempt) -> None:
        """To all nodes, with what it waits behind: the gateway that stored that may stand still, or its node may have
        lost it."""
        try:
            await self._broadcast(attempt, self._chains.resend_transaction)
            await self._keeper.resend_before(attempt)
        except Exception:  # noqa: BLE001 - a task root: it only helps, and the call waits on
            _log.exception("settlement_resend_failed", call_id=attempt.call_id)

    async def _conclude_use(self, order: SettlementOrder, *, from_block: int) -> SettlementOutcome:
        try:
            use = await self._find_use(order, from_block=from_block)
        except ChainUnavailable:
            return Undecided()
        return await self._conclude(order, use.transfer) if isinstance(use, Paid) else Undecided()

    async def _find_use(self, order: SettlementOrder, *, from_block: int) -> Use:
        return await find_use(
            self._chains,
            order.authorization,
            from_block=from_block,
            depth=self._depth(order),
            trust=self._trust(order.asset, order.units),
        )

    async def _conclude(self, order: SettlementOrder, transfer: SettledTransfer) -> Settled | FencedOff:
        state = await self._book.conclude(
            order.close.call_id,
            epoch=order.close.epoch,
            transfer=transfer,
            is_adrift=False,
            now_ms=self._now_ms(),
        )
        return Settled(transfer=transfer) if state is CallState.CONSUMED else FencedOff()

    def _depth(self, order: SettlementOrder) -> int:
        return self._rules[order.asset.chain_id].confirmations_for(order.asset, order.units)

    def _trust(self, asset: Asset, units: int) -> Trust:
        return self._rules[asset.chain_id].trust_for(asset, units)

    # ---- By a facilitator.

    async def _delegate(
        self, order: SettlementOrder, facilitator: RemoteFacilitator, facts: AuthorizationFacts
    ) -> SettlementOutcome:
        """It has no hash before it broadcasts, and its word on the outcome is not asked for: the token's is. It has seen
        the authorisation when it verified it, so a simulation that fails now is no proof that it never lands."""
        left = await self._leave(order)
        if isinstance(left, FencedOff) or facts.simulation.reverted:
            return left
        timeout_s = max(1, order.authorization.valid_before - self._now_ms() // 1000)
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._tank.wait_s(order.asset.chain_id, depth=self._depth(order))
        await facilitator.settle(order.authorization, order.asset, timeout_s=timeout_s)
        while True:
            outcome = await self._conclude_use(order, from_block=facts.head_number)
            if not isinstance(outcome, Undecided) or clock() + ASK_AGAIN_S > deadline:
                return outcome
            await asyncio.sleep(ASK_AGAIN_S)
