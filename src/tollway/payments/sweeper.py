"""Finishes the settlements that nobody waits for: what a crash, a deadline or a silent chain has left in `settling`. And
ends, by a look at the chain, calls without an outcome that an authorisation was to pay.

A call is `released` only when its authorisation can surely never pay any more; anything else waits. One gateway sweeps for
all, and two at once do no harm: the books decide who moves a call, and the token takes an authorisation once. It pays
nobody, and signs nothing that was not stored before.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

import structlog

from tollway.background import describe_failure, run_all, run_contained
from tollway.chain.reader import (
    AuthorizationFacts,
    ChainFacts,
    NotMined,
    SendFault,
    SendRefused,
    SettlementChain,
    Trust,
)
from tollway.chain.rules import ChainRules
from tollway.errors import ChainUnavailable, StorageUnavailable
from tollway.identifiers import ZERO_ADDRESS, Address, CallId, ChainId, TxHash
from tollway.ledger.authorization import AuthorizedCall, SettledTransfer, SettlementAttempt
from tollway.ledger.book import Book
from tollway.ledger.call import CallState
from tollway.ledger.gas import GasBook
from tollway.limits import Limits
from tollway.money import Asset
from tollway.payments.authorization_use import (
    NotFound,
    Paid,
    Spoiled,
    find_end,
    find_transfer,
    find_use,
    rehearse,
)
from tollway.payments.follower import is_deep
from tollway.payments.gas_tank import GasTank
from tollway.payments.lane_keeper import LaneKeeper
from tollway.payments.lane_signer import sign_next
from tollway.payments.remote_facilitator import RemoteFacilitator
from tollway.payments.settlement_signing import Carriage, is_filler, limit_gas
from tollway.payments.settling_notes import SILENT, SettlementEnd, SettlingNotes

REVERTED_MAX = 2
"""A transfer that passes simulation and reverts so often in blocks will not do better the next time."""
REST_MIN_MS, REST_MAX_MS = 5_000, 900_000
"""Until a call with nothing to do for it but to wait is looked at again: half as long as it waits already, and not
beyond its end."""
EXPIRY_SLACK_S = 60
"""A node may tell of a new head and of an older state beside it. So much later no state that it may still have is of a
time when the authorisation could be used, and not yet seen."""
EXPIRY_BLOCKS = 10_000
"""As far back a use is looked for before a call is released: a node that has not seen an older one is no node."""
RETELL_MS = 30_000
"""Between two times that a facilitator is told to settle the same authorisation."""
REMEMBERED_MAX = 10_000

_log = structlog.get_logger(__name__)

Receipts = Mapping[TxHash, ChainFacts | NotMined]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One call adrift, with what is known of its transactions."""

    call: AuthorizedCall
    asset: Asset
    depth: int
    trust: Trust
    attempts: tuple[SettlementAttempt, ...]
    receipts: Receipts

    @property
    def chain_id(self) -> ChainId:
        return self.asset.chain_id


class Sweeper:
    """One per process. `run_once` is a chore of whichever gateway leads."""

    def __init__(
        self,
        *,
        book: Book,
        gas: GasBook,
        chains: SettlementChain,
        rules: Mapping[ChainId, ChainRules],
        tank: GasTank,
        facilitators: Mapping[ChainId, RemoteFacilitator],
        limits: Limits,
        now_ms: Callable[[], int],
        notes: SettlingNotes = SILENT,
    ) -> None:
        self._book = book
        self._gas = gas
        self._chains = chains
        self._rules = rules
        self._tank = tank
        self._facilitators = facilitators
        self._limits = limits
        self._now_ms = now_ms
        self._notes = notes
        self._expired: dict[
            CallId, int
        ] = {}  # the head at which an unused authorisation was first seen expired
        self._told_ms: dict[CallId, int] = {}
        self._keeper = LaneKeeper(book=book, gas=gas, chains=chains, tank=tank, limits=limits, now_ms=now_ms)

    async def run_once(self) -> None:
        """One look at the lanes of our keys, and at the calls adrift. Raises StorageUnavailable."""
        lane_failure = await run_contained(self._keeper.run_once)
        calls = await self._book.unsettled(limit=self._limits.sweep_batch_max)
        self._notes.adrift(sum(call.state is CallState.SETTLING for call in calls))
        turns = asyncio.Semaphore(self._limits.sweep_in_flight_max)
        await run_all([partial(self._sweep_in_turn, call, turns) for call in calls])
        if lane_failure is not None:
            raise lane_failure

    async def _sweep_in_turn(self, call: AuthorizedCall, turns: asyncio.Semaphore) -> None:
        async with turns:
            try:
                await self._sweep(call)
            except ChainUnavailable as exc:
                _log.warning("sweep_postponed", call_id=call.call_id, detail=str(exc))
            except StorageUnavailable:
                raise  # one line for all of them
            except Exception as exc:  # noqa: BLE001 - a task root: one bad call must not stop the others
                _log.error("sweep_failed", call_id=call.call_id, **describe_failure(exc))

    async def _sweep(self, call: AuthorizedCall) -> None:
        case = await self._open_case(call)
        if case is None:
            return
        for facts in case.receipts.values():
            if not isinstance(facts, ChainFacts):
                continue
            transfer = find_transfer(facts, call.authorization, trust=case.trust)
            if transfer is not None:
                if is_deep(facts, depth=case.depth):
                    await self._conclude(case, transfer)
                return  # mined, and only not deep enough yet
        facts_now = await self._look(case)
        if facts_now.is_used:
            await self._conclude_used(case)
        elif facts_now.head_time >= call.authorization.valid_before + EXPIRY_SLACK_S:
            await self._conclude_expired(case, facts_now)
        elif facts_now.head_time >= call.authorization.valid_before:
            return  # nothing can land any more; whether something has, is not sure yet
        elif call.state is not CallState.SETTLING:
            # It may never have cost: it is only looked at, until it is over.
            await self._rest(call, since_ms=call.created_ms)
        else:
            self._expired.pop(call.call_id, None)
            await self._push(case, facts_now)

    async def _open_case(self, call: AuthorizedCall) -> _Case | None:
        authorization = call.authorization
        rules = self._rules.get(authorization.chain_id)
        assets = () if rules is None else rules.assets
        asset = next((asset for asset in assets if asset.key == authorization.asset), None)
        if rules is None or asset is None:
            _log.warning("sweep_without_network", call_id=call.call_id, chain_id=authorization.chain_id)
            await self._rest(call, since_ms=call.created_ms)
            return None
        attempts = await self._book.attempts_of(call.call_id)
        hashes = [attempt.tx_hash for attempt in attempts]
        trust = rules.trust_for(asset, call.price_units)
        receipts: Receipts = {}
        if hashes:
            receipts = await self._chains.fetch_receipts(asset.chain_id, hashes, trust=trust)
        for attempt in attempts:
            facts = receipts.get(attempt.tx_hash)
            if isinstance(facts, ChainFacts) and facts.fee_wei is not None:
                self._tank.note_cost(attempt, facts.fee_wei, is_reverted=not facts.succeeded)
        carrying = tuple(attempt for attempt in attempts if not is_filler(attempt))
        return _Case(
            call=call,
            asset=asset,
            depth=rules.confirmations_for(asset, call.price_units),
            trust=trust,
            attempts=carrying,
            receipts={one.tx_hash: receipts[one.tx_hash] for one in carrying if one.tx_hash in receipts},
        )

    async def _look(self, case: _Case) -> AuthorizationFacts:
        authorization = case.call.authorization
        lane = self._tank.choose_lane(case.chain_id, is_claimed=True)
        sender = ZERO_ADDRESS if lane is None else lane.key.address
        gas = self._limits.settlement_gas_max
        return await rehearse(self._chains, authorization, sender=sender, gas=gas, trust=case.trust)

    # ---- Ends.

    async def _conclude(self, case: _Case, transfer: SettledTransfer | None) -> None:
        call = case.call
        state = await self._book.conclude(
            call.call_id, epoch=call.epoch, transfer=transfer, is_adrift=True, now_ms=self._now_ms()
        )
        self._expired.pop(call.call_id, None)
        self._told_ms.pop(call.call_id, None)
        if state is not None:
            self._note_end(case, transfer)
            _log.info(
                "settlement_swept",
                call_id=call.call_id,
                state=state.value,
                transaction=None if transfer is None else str(transfer.tx_hash),
            )

    def _note_end(self, case: _Case, transfer: SettledTransfer | None) -> None:
        if transfer is None:
            self._notes.end(case.chain_id, SettlementEnd.RELEASED)
            return
        self._notes.end(case.chain_id, SettlementEnd.SWEPT)
        for attempt in case.attempts:
            if attempt.tx_hash == transfer.tx_hash:
                self._notes.mined(case.chain_id, (self._now_ms() - attempt.created_ms) / 1000)

    async def _conclude_used(self, case: _Case) -> None:
        use = await find_use(
            self._chains,
            case.call.authorization,
            from_block=case.call.seen_block,
            depth=case.depth,
            trust=case.trust,
        )
        match use:
            case Paid(transfer=transfer):
                await self._conclude(case, transfer)
            case Spoiled():
                await self._conclude(case, None)
            case NotFound():
                return

    async def _conclude_expired(self, case: _Case, facts: AuthorizationFacts) -> None:
        """Nothing can land in a block that is not before `validBefore`. The state is believed at a later look only, from
        a head that lies as deep as a payment must, and when no use is found besides: within one look the state may be
        older than the head, and what is released is served for nothing if it was paid after all."""
        call_id, head = case.call.call_id, facts.head_number
        first = self._expired.get(call_id)
        if first is None or head < first:
            while len(self._expired) >= REMEMBERED_MAX:
                self._expired.pop(next(iter(self._expired)))
            self._expired[call_id] = head
        elif head - first + 1 >= case.depth:
            authorization = case.call.authorization
            from_block = max(case.call.seen_block, head - EXPIRY_BLOCKS)
            end = await find_end(self._chains, authorization, from_block=from_block, trust=case.trust)
            if end is None:
                await self._conclude(case, None)
            else:
                await self._conclude_used(case)

    # ---- Not used and still valid: help it along.

    async def _push(self, case: _Case, facts: AuthorizationFacts) -> None:
        facilitator = self._facilitators.get(case.chain_id)
        if facilitator is not None:
            await self._tell_again(case, facilitator)
            return
        waiting = await self._find_waiting(case)
        if waiting is not None and not await self._is_stranded(case, waiting):
            return
        stranded = {one.sender for one in case.attempts} if waiting is not None else set()
        if sum(isinstance(told, ChainFacts) for told in case.receipts.values()) >= REVERTED_MAX:
            await self._rest(case.call, since_ms=max(one.created_ms for one in case.attempts))
        elif not self._tank.is_wallet_served(case.chain_id, case.call.listing_id, facts.code_hash):
            await self._rest(case.call, since_ms=case.call.created_ms)
        elif facts.gas_estimate is not None and not facts.simulation.reverted:
            await self._sign_anew(case, facts, facts.gas_estimate, without=stranded)

    async def _is_stranded(self, case: _Case, attempt: SettlementAttempt) -> bool:
        """Hands it over once more. Stranded is, long after its caller has left, what no node takes for want of gas, or what
        waits on a lane that does not move: then another key may carry the authorisation. Should both be mined some day,
        the token takes it once."""
        told = case.receipts.get(attempt.tx_hash)
        first = next(
            one for one in case.attempts if (one.sender, one.nonce) == (attempt.sender, attempt.nonce)
        )
        if self._is_late(first) and self._tank.is_stuck(attempt.chain_id, attempt.sender):
            return True
        if isinstance(told, NotMined) and told.is_pending:
            return False
        refused = await self._send(attempt)
        is_broke = refused is not None and refused.fault is SendFault.INSUFFICIENT_FUNDS
        return is_broke and self._is_late(attempt)

    def _is_late(self, attempt: SettlementAttempt) -> bool:
        age_ms = self._now_ms() - attempt.created_ms  # below 0: the clock was set back since
        return not 0 <= age_ms < self._limits.fee_bump_after_s * 1000

    async def _rest(self, call: AuthorizedCall, *, since_ms: int) -> None:
        """Nothing can be done for it: it must not take the turn of those for which something can."""
        now_ms = self._now_ms()
        end_ms = (call.authorization.valid_before + EXPIRY_SLACK_S) * 1000
        rest_ms = min((now_ms - since_ms) // 2, REST_MAX_MS, end_ms - now_ms)
        await self._book.postpone(call.call_id, until_ms=now_ms + max(rest_ms, REST_MIN_MS))

    async def _tell_again(self, case: _Case, facilitator: RemoteFacilitator) -> None:
        call_id, now_ms = case.call.call_id, self._now_ms()
        if 0 <= now_ms - self._told_ms.get(call_id, 0) < RETELL_MS:
            return
        while len(self._told_ms) >= REMEMBERED_MAX:
            self._told_ms.pop(next(iter(self._told_ms)))
        self._told_ms[call_id] = now_ms
        authorization = case.call.authorization
        timeout_s = max(1, authorization.valid_before - now_ms // 1000)
        await facilitator.settle(authorization, case.asset, timeout_s=timeout_s)

    async def _find_waiting(self, case: _Case) -> SettlementAttempt | None:
        """The newest transaction that can still be mined."""
        for attempt in reversed(case.attempts):
            if isinstance(case.receipts.get(attempt.tx_hash), ChainFacts):
                continue
            account = await self._chains.fetch_account(case.chain_id, attempt.sender)
            if attempt.nonce >= account.mined_nonce:
                return attempt
        return None

    async def _sign_anew(
        self, case: _Case, facts: AuthorizationFacts, estimate: int, *, without: Collection[Address]
    ) -> None:
        """A first transaction, or one after others that can never be mined, or not soon, or have reverted. What was only
        replaced at a higher price is one."""
        lane = self._tank.choose_lane(case.chain_id, is_claimed=True, without=without)
        signed = {(attempt.sender, attempt.nonce) for attempt in case.attempts}
        if lane is None or len(signed) >= self._limits.settlement_attempts_max:
            return
        gas = limit_gas(estimate, gas_max=self._limits.settlement_gas_max)
        attempt = await sign_next(
            self._carriage(case, gas, facts.code_hash),
            lane,
            store=self._book.add_attempt,
            gas=self._gas,
            tank=self._tank,
            now_ms=self._now_ms,
        )
        if isinstance(attempt, SettlementAttempt):
            await self._send(attempt)

    def _carriage(self, case: _Case, gas: int, code_hash: bytes | None) -> Carriage:
        call = case.call
        return Carriage(
            authorization=call.authorization,
            call_id=call.call_id,
            listing_id=call.listing_id,
            gas=gas,
            code_hash=code_hash,
        )

    async def _send(self, attempt: SettlementAttempt) -> SendRefused | None:
        refused = await self._chains.resend_transaction(attempt.chain_id, attempt.raw)
        if refused is not None:
            _log.warning(
                "settlement_send_refused",
                call_id=attempt.call_id,
                transaction=str(attempt.tx_hash),
                fault=refused.fault.value,
            )
        return refused
