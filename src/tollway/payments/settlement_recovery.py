"""Finishes orphaned settlements: calls that a crash, a deadline or an unavailable chain left in `settling`. It also reads the chain
to end calls by authorisation that have no outcome.

A call is `released` only when its authorisation can never pay any more; every other call waits. One gateway recovers for all.
Two at once do no harm: the ledger decides which one moves a call, and the token accepts an authorisation once. Every transaction
is stored before it is sent.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from tollway.bounded_cache import BoundedDict
from tollway.chain.networks import ChainRules, find_asset
from tollway.chain.port import (
    AuthorizationFacts,
    ChainFacts,
    NotMined,
    Quorum,
    SendFault,
    SettlementChain,
)
from tollway.errors import ChainUnavailable, StorageUnavailable
from tollway.ids import Address, CallId, ChainId, TxHash, format_network
from tollway.ledger.ledger import GasLedger, SettlementLedger
from tollway.ledger.records import AuthorizedCall, CallState, SettledTransfer, SettlementAttempt
from tollway.limits import Limits
from tollway.money import Asset
from tollway.observability.background import describe_failure, run_all, run_contained
from tollway.observability.call_trace import TraceSampler, find_current_trace, running_trace
from tollway.payments.authorization_onchain import (
    Cancelled,
    SimulatedTransfer,
    TransferFound,
    UseNotFound,
    find_end,
    find_transfer,
    find_use,
    is_signed_when_deployed,
    simulate_transfer,
)
from tollway.payments.facilitator import FacilitatorClient
from tollway.payments.gas import NO_METRICS, GasBudget, OutcomeLabel, SettlementMetrics, find_step
from tollway.payments.receipts import is_deep
from tollway.payments.transactions import (
    SentCall,
    TransactionReplacer,
    is_filler,
    limit_gas,
    resend,
    sign_next,
)

REVERTED_MAX = 2
"""A transfer that passes simulation and reverted this often in blocks is not signed again."""
POSTPONE_MIN_MS, POSTPONE_MAX_MS = 5_000, 900_000
"""The minimum and maximum delay until the next check of a call that can only wait. The delay is half of its past waiting time and
ends at the end of its authorisation."""
EXPIRY_SLACK_S = 60
"""A node can return a new head with an older state. After this time, every state that it can return is from after the end of the
authorisation."""
EXPIRY_BLOCKS = 10_000
"""How far back recovery searches for a use before it releases a call: a node that lacks an older block does not count."""
SETTLE_AGAIN_MS = 30_000
"""The time between two requests to a facilitator to settle the same authorisation."""
REMEMBERED_MAX = 10_000

_log = structlog.get_logger(__name__)

Receipts = Mapping[TxHash, ChainFacts | NotMined]


@dataclass(frozen=True, slots=True, kw_only=True)
class _OrphanedCall:
    call: AuthorizedCall
    asset: Asset
    depth: int
    quorum: Quorum
    attempts: tuple[SettlementAttempt, ...]
    receipts: Receipts

    @property
    def chain_id(self) -> ChainId:
        return self.asset.chain_id


class SettlementRecovery:
    """Recovers orphaned settlements. The leading gateway calls `run_once` at an interval."""

    def __init__(
        self,
        *,
        ledger: SettlementLedger,
        gas_ledger: GasLedger,
        chains: SettlementChain,
        rules: Mapping[ChainId, ChainRules],
        gas_budget: GasBudget,
        replacer: TransactionReplacer,
        facilitators: Mapping[ChainId, FacilitatorClient],
        limits: Limits,
        now_ms: Callable[[], int],
        metrics: SettlementMetrics = NO_METRICS,
        traces: TraceSampler | None = None,
    ) -> None:
        self._traces = traces
        self._ledger = ledger
        self._gas_ledger = gas_ledger
        self._chains = chains
        self._rules = rules
        self._gas_budget = gas_budget
        self._replacer = replacer
        self._facilitators = facilitators
        self._limits = limits
        self._now_ms = now_ms
        self._metrics = metrics
        # The head at which an unused authorisation was first read as expired.
        self._expired: BoundedDict[CallId, int] = BoundedDict(entries_max=REMEMBERED_MAX)
        self._requested_ms: BoundedDict[CallId, int] = BoundedDict(entries_max=REMEMBERED_MAX)
        self._deploying: dict[tuple[ChainId, Address], CallId] = {}

    async def run_once(self) -> None:
        nonce_failure = await run_contained(self._replacer.run_once)
        calls = await self._ledger.unsettled(limit=self._limits.sweep_batch_max)
        open_ids = {call.call_id for call in calls}
        self._deploying = {
            wallet: call_id for wallet, call_id in self._deploying.items() if call_id in open_ids
        }
        self._metrics.orphaned(sum(call.state is CallState.SETTLING for call in calls))
        slots = asyncio.Semaphore(self._limits.sweep_in_flight_max)
        await run_all([partial(self._recover_in_turn, call, slots) for call in calls])
        if nonce_failure is not None:
            raise nonce_failure

    async def _recover_in_turn(self, call: AuthorizedCall, slots: asyncio.Semaphore) -> None:
        async with slots:
            try:
                if self._traces is None or not self._traces.covers(call.call_id):
                    await self._recover_call(call)
                else:
                    await self._recover_traced(call, self._traces)
            except ChainUnavailable as exc:
                _log.warning("sweep_postponed", call_id=call.call_id, detail=str(exc))
            except StorageUnavailable:
                raise  # logged once for all calls
            except Exception as exc:  # noqa: BLE001 - a task root: one bad call must not stop the others
                _log.error("sweep_failed", call_id=call.call_id, **describe_failure(exc))

    async def _recover_traced(self, call: AuthorizedCall, traces: TraceSampler) -> None:
        """A trace of its own, which `tollway.call.id` ties to the call. A check that changes nothing has none."""
        trace = traces.start_linked("tollway.settlement_recovery")
        trace.root.set("tollway.call.id", call.call_id)
        trace.root.set("tollway.listing.id", call.listing_id)
        trace.root.set("tollway.network", format_network(call.authorization.chain_id))
        with running_trace(trace):
            try:
                await self._recover_call(call)
            except (ChainUnavailable, StorageUnavailable):
                raise  # it is tried again
            except Exception:
                trace.root.is_error = True
                trace.keep("failed")
                raise

    async def _recover_call(self, call: AuthorizedCall) -> None:
        orphan = await self._read_call(call)
        if orphan is None:
            return
        # There are five cases. A recorded transaction made the transfer: it counts once it is deep enough. The token has the nonce as
        # used: the logs decide. The authorisation expired longer ago than the slack: the call can be released. It has just expired:
        # nothing is certain yet. It is valid: only a settling call may sign a transaction.
        for facts in orphan.receipts.values():
            if not isinstance(facts, ChainFacts):
                continue
            transfer = find_transfer(facts, call.authorization, quorum=orphan.quorum)
            if transfer is not None:
                if is_deep(facts, depth=orphan.depth):
                    await self._conclude(orphan, transfer)
                return  # mined, and not deep enough yet
        simulated = await simulate_transfer(
            self._chains,
            call.authorization,
            sequence=self._gas_budget.choose_sequence(orphan.chain_id, is_claimed=True),
            factories=self._gas_budget.wallet_factories(orphan.chain_id),
            limits=self._limits,
            quorum=orphan.quorum,
        )
        facts_now = simulated.facts
        if facts_now.is_used:
            await self._conclude_used(orphan)
        elif facts_now.head_time >= call.authorization.valid_before + EXPIRY_SLACK_S:
            await self._conclude_expired(orphan, facts_now)
        elif facts_now.head_time >= call.authorization.valid_before:
            return  # it can no longer be used, but the present state may not include its use yet
        elif call.state is not CallState.SETTLING:
            # The upstream's head may not have been charged, so recovery signs nothing and waits until the authorisation expires.
            await self._postpone(call, since_ms=call.created_ms)
        else:
            self._expired.pop(call.call_id, None)
            await self._advance(orphan, simulated)

    async def _read_call(self, call: AuthorizedCall) -> _OrphanedCall | None:
        authorization = call.authorization
        rules = self._rules.get(authorization.chain_id)
        asset = find_asset(self._rules, authorization.chain_id, authorization.asset)
        if rules is None or asset is None:
            _log.warning("sweep_without_network", call_id=call.call_id, chain_id=authorization.chain_id)
            await self._postpone(call, since_ms=call.created_ms)
            return None
        attempts = await self._gas_ledger.attempts_of(call.call_id)
        hashes = [attempt.tx_hash for attempt in attempts]
        # Of a deposit these are more than the price of its call: it pays the calls that follow.
        units = asset.floor_to_ledger(authorization.base_units)
        quorum = rules.quorum_for(asset, units)
        receipts: Receipts = {}
        if hashes:
            receipts = await self._chains.fetch_receipts(asset.chain_id, hashes, quorum=quorum)
        for attempt in attempts:
            facts = receipts.get(attempt.tx_hash)
            if isinstance(facts, ChainFacts) and facts.fee_wei is not None:
                self._gas_budget.record_cost(
                    attempt,
                    facts.fee_wei,
                    is_reverted=not facts.succeeded,
                    step=None if is_filler(attempt) else find_step(authorization),
                )
        transfers = tuple(attempt for attempt in attempts if not is_filler(attempt))
        return _OrphanedCall(
            call=call,
            asset=asset,
            depth=rules.confirmations_for(asset, units),
            quorum=quorum,
            attempts=transfers,
            receipts={one.tx_hash: receipts[one.tx_hash] for one in transfers if one.tx_hash in receipts},
        )

    # ---- Recording the end.

    async def _conclude(self, orphan: _OrphanedCall, transfer: SettledTransfer | None) -> None:
        call = orphan.call
        state = await self._ledger.conclude(
            call.call_id,
            epoch=call.epoch,
            transfer=transfer,
            is_orphaned=True,
            now_ms=self._ledger.shared_ms(),
        )
        self._expired.pop(call.call_id, None)
        self._requested_ms.pop(call.call_id, None)
        if state is not None:
            _describe_attempts(orphan.attempts, outcome=state.value)
            self._count_end(orphan, transfer)
            _log.info(
                "settlement_swept",
                call_id=call.call_id,
                state=state.value,
                transaction=None if transfer is None else str(transfer.tx_hash),
            )

    def _count_end(self, orphan: _OrphanedCall, transfer: SettledTransfer | None) -> None:
        if transfer is None:
            self._metrics.end(orphan.chain_id, OutcomeLabel.RELEASED)
            return
        self._metrics.end(orphan.chain_id, OutcomeLabel.SWEPT)
        for attempt in orphan.attempts:
            if attempt.tx_hash == transfer.tx_hash:
                self._metrics.mined(orphan.chain_id, (self._now_ms() - attempt.created_ms) / 1000)

    async def _conclude_used(self, orphan: _OrphanedCall) -> None:
        use = await find_use(
            self._chains,
            orphan.call.authorization,
            from_block=orphan.call.seen_block,
            depth=orphan.depth,
            quorum=orphan.quorum,
        )
        match use:
            case TransferFound(transfer=transfer):
                await self._conclude(orphan, transfer)
            case Cancelled():
                await self._conclude(orphan, None)
            case UseNotFound():
                return

    async def _conclude_expired(self, orphan: _OrphanedCall, facts: AuthorizationFacts) -> None:
        """Releases a call whose authorisation has expired unused. The token accepts no authorisation from `validBefore` on.

        Within one check the state can be older than the head, and a released call that was paid would be lost money. So the
        state counts only at a later check, when the first head is as deep as a payment must be, and no use is found."""
        call_id, head = orphan.call.call_id, facts.head_number
        first = self._expired.get(call_id)
        if first is None or head < first:
            self._expired[call_id] = head
        elif head - first + 1 >= orphan.depth:
            authorization = orphan.call.authorization
            from_block = max(orphan.call.seen_block, head - EXPIRY_BLOCKS)
            end = await find_end(self._chains, authorization, from_block=from_block, quorum=orphan.quorum)
            if end is None:
                await self._conclude(orphan, None)
            else:
                await self._conclude_used(orphan)

    # ---- Unused and still valid: send the transaction again, or sign a new one.

    async def _advance(self, orphan: _OrphanedCall, simulated: SimulatedTransfer) -> None:
        facilitator = self._facilitators.get(orphan.chain_id)
        if facilitator is not None:
            await self._settle_again(orphan, facilitator)
            return
        # There are three cases. A transaction can still be mined: it is sent again. That transaction is stuck: another key signs for the
        # same authorisation, which the token accepts once. None can be mined: a new one is signed, unless too many were mined in vain.
        waiting = await self._find_waiting(orphan)
        if waiting is not None and not await self._is_stuck(orphan, waiting):
            return
        stuck_senders = {one.sender for one in orphan.attempts} if waiting is not None else set()
        facts = simulated.facts
        if sum(isinstance(one, ChainFacts) for one in orphan.receipts.values()) >= REVERTED_MAX:
            await self._postpone(orphan.call, since_ms=max(one.created_ms for one in orphan.attempts))
        elif not self._gas_budget.is_wallet_served(
            orphan.chain_id, orphan.call.listing_id, simulated.code_hash
        ):
            await self._postpone(orphan.call, since_ms=orphan.call.created_ms)
        elif (
            facts.gas_estimate is not None
            and not facts.simulation.reverted
            and await self._takes_turn(orphan, simulated)
        ):
            await self._sign_new(orphan, simulated, facts.gas_estimate, without=stuck_senders)

    async def _takes_turn(self, orphan: _OrphanedCall, simulated: SimulatedTransfer) -> bool:
        """Whether this call may sign now. Of the calls of a wallet without code, one deploys it and the others wait: a second deployment
        would revert. One that has a transaction goes before those without."""
        if simulated.deployment is None:
            return True
        wallet = (orphan.chain_id, orphan.call.authorization.payer)
        if not orphan.attempts and await self._ledger.has_open_deployment(
            orphan.call.call_id, chain_id=wallet[0], payer=wallet[1]
        ):
            return False
        return self._deploying.setdefault(wallet, orphan.call.call_id) == orphan.call.call_id

    def _leave_turn(self, orphan: _OrphanedCall) -> None:
        """Lets another call of the wallet deploy it: the deployment of this one is refused before its signature."""
        del self._deploying[orphan.chain_id, orphan.call.authorization.payer]

    async def _is_stuck(self, orphan: _OrphanedCall, attempt: SettlementAttempt) -> bool:
        """Sends the attempt again, and returns whether it is stuck: long after its signature every node refuses it for lack of gas,
        or its sequence does not move. Then another key may send the authorisation; if both are mined, the token accepts one."""
        receipt = orphan.receipts.get(attempt.tx_hash)
        first = next(
            one for one in orphan.attempts if (one.sender, one.nonce) == (attempt.sender, attempt.nonce)
        )
        if self._is_late(first) and self._gas_budget.is_stuck(attempt.chain_id, attempt.sender):
            return True
        if isinstance(receipt, NotMined) and receipt.is_pending:
            return False
        refused = await resend(self._chains, attempt)
        is_unfunded = refused is not None and refused.fault is SendFault.INSUFFICIENT_FUNDS
        return is_unfunded and self._is_late(attempt)

    def _is_late(self, attempt: SettlementAttempt) -> bool:
        age_ms = self._now_ms() - attempt.created_ms  # below 0: the clock was set back since
        return not 0 <= age_ms < self._limits.fee_bump_after_s * 1000

    async def _postpone(self, call: AuthorizedCall, *, since_ms: int) -> None:
        """Delays the next check of a call that can only wait, so that it takes no place in the batches of other calls."""
        now_ms = self._now_ms()
        end_ms = (call.authorization.valid_before + EXPIRY_SLACK_S) * 1000
        rest_ms = min((now_ms - since_ms) // 2, POSTPONE_MAX_MS, end_ms - now_ms)
        await self._ledger.postpone(call.call_id, until_ms=now_ms + max(rest_ms, POSTPONE_MIN_MS))

    async def _settle_again(self, orphan: _OrphanedCall, facilitator: FacilitatorClient) -> None:
        call_id, now_ms = orphan.call.call_id, self._now_ms()
        if 0 <= now_ms - self._requested_ms.get(call_id, 0) < SETTLE_AGAIN_MS:
            return
        self._requested_ms[call_id] = now_ms
        authorization = orphan.call.authorization
        timeout_s = max(1, authorization.valid_before - now_ms // 1000)
        await facilitator.settle(authorization, orphan.asset, timeout_s=timeout_s)

    async def _find_waiting(self, orphan: _OrphanedCall) -> SettlementAttempt | None:
        """The newest transaction that can still be mined."""
        for attempt in reversed(orphan.attempts):
            if isinstance(orphan.receipts.get(attempt.tx_hash), ChainFacts):
                continue
            account = await self._chains.fetch_account(orphan.chain_id, attempt.sender)
            if attempt.nonce >= account.mined_nonce:
                return attempt
        return None

    async def _sign_new(
        self,
        orphan: _OrphanedCall,
        simulated: SimulatedTransfer,
        estimate: int,
        *,
        without: Collection[Address],
    ) -> None:
        """Signs a first transaction, or one after others that reverted or cannot be mined soon. A transaction and its replacements at
        a higher price count as one."""
        sequence = self._gas_budget.choose_sequence(orphan.chain_id, is_claimed=True, without=without)
        signed = {(attempt.sender, attempt.nonce) for attempt in orphan.attempts}
        if sequence is None or len(signed) >= self._limits.settlement_attempts_max:
            return
        call, deployment = orphan.call, simulated.deployment
        if deployment is not None and not await is_signed_when_deployed(
            self._chains, call.authorization, orphan.asset, deployment, self._limits
        ):
            self._leave_turn(orphan)
            return
        attempt = await sign_next(
            SentCall(
                chain_id=orphan.chain_id,
                call_id=call.call_id,
                listing_id=call.listing_id,
                gas=limit_gas(estimate, gas_max=simulated.gas_max),
                to=simulated.to,
                calldata=simulated.calldata,
                code_hash=simulated.code_hash,
            ),
            sequence,
            store=self._gas_ledger.add_attempt,
            gas_ledger=self._gas_ledger,
            gas_budget=self._gas_budget,
            now_ms=self._now_ms,
        )
        if isinstance(attempt, SettlementAttempt):
            _describe_attempts((*orphan.attempts, attempt), outcome="sent")
            await resend(self._chains, attempt)


def _describe_attempts(attempts: Sequence[SettlementAttempt], *, outcome: str) -> None:
    """Writes what recovery did on the trace of a sampled call. Attempts of one nonce are one transaction and its replacements."""
    trace = find_current_trace()
    if trace is not None:
        transactions = len({(one.sender, one.nonce) for one in attempts})
        trace.root.set("tollway.settle.attempts", transactions)
        trace.root.set("tollway.settle.fee_bumps", len(attempts) - transactions)
        trace.keep(outcome)
