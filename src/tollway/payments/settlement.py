"""Settles an authorisation: simulate -> sign -> store in the ledger -> broadcast -> wait for the receipt -> conclude.

Money may move from the commit on that stores the signed transaction, and never before it. What cannot be found out is
undecided; failed is only what was refused in simulation and never left this gateway. Nothing that a payer composed is ever
sent: the transaction is built here from the signed fields alone.

A settlement whose waiter left before its end becomes orphaned, so that the recovery takes it up.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

import structlog

from tollway.chain.networks import ChainRules
from tollway.chain.port import AuthorizationFacts, ChainFacts, Quorum, SendFault, SendRefused, SettlementChain
from tollway.errors import ChainUnavailable, Code, Problem
from tollway.ids import ZERO_ADDRESS, CallId, ChainId, ListingId, TxHash
from tollway.ledger.ledger import Close, Closed, Fenced, GasLedger, Ledger, NonceUnavailable
from tollway.ledger.records import (
    Authorization,
    CallState,
    Cover,
    Interruption,
    SettledTransfer,
    SettlementAttempt,
)
from tollway.limits import Limits
from tollway.money import Asset
from tollway.payments.authorization_check import (
    AuthorizationRefused,
    check_authorization,
    check_times,
    find_failure_reason,
)
from tollway.payments.authorization_onchain import (
    AuthorizationLookup,
    AuthorizationPrecheck,
    AuthorizationQuota,
    AuthorizationUse,
    Cancelled,
    TransferFound,
    UseNotFound,
    find_transfer,
    find_use,
    simulate_transfer,
)
from tollway.payments.eip3009 import recover_signer
from tollway.payments.facilitator import FacilitatorClient
from tollway.payments.gas import NO_METRICS, GasBudget, OutcomeLabel, SettlementMetrics
from tollway.payments.nonces import NonceSequence
from tollway.payments.pricing import PaymentRequirement
from tollway.payments.receipts import ReceiptPoller
from tollway.payments.transactions import TransactionReplacer, TransferCall, limit_gas, sign_next
from tollway.payments.wire import AuthorizationReason, explain_authorization
from tollway.rate_limits.limiter import RateLimiter


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementOrder:
    """A call whose upstream's head costs. `close`: into `settling`. `digest`: instead of the claim's, where the body's
    hash is known only now."""

    authorization: Authorization
    asset: Asset
    close: Close
    listing_id: ListingId
    digest: bytes | None

    @property
    def units(self) -> int:
        """The price, in ledger units."""
        return self.asset.floor_to_ledger(self.authorization.base_units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The money moved, and the ledger says so: the call is `consumed`."""

    transfer: SettledTransfer


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSettled:
    """It surely never will: refused before anything was broadcast. The call is `released`."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """The call stays in `settling`; settlement recovery finishes it once it is orphaned. `tx_hash`: what was broadcast for it so far,
    for the log."""

    tx_hash: TxHash | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementFenced:
    """Somebody else moved this call on. Stop."""


SettlementOutcome = Settled | NotSettled | Undecided | SettlementFenced


def outcome_label(outcome: SettlementOutcome) -> OutcomeLabel | None:
    """How it is counted; None where another gateway counts it."""
    match outcome:
        case Settled():
            return OutcomeLabel.SETTLED
        case NotSettled():
            return OutcomeLabel.FAILED
        case Undecided():
            return OutcomeLabel.UNDECIDED
        case SettlementFenced():
            return None
        case _:
            assert_never(outcome)


def describe_outcome(outcome: SettlementOutcome) -> dict[str, str | None]:
    """The same for the log: nothing in it is a secret."""
    end = outcome_label(outcome)
    tx_hash = outcome.tx_hash if isinstance(outcome, Undecided) else None
    if isinstance(outcome, Settled):
        tx_hash = outcome.transfer.tx_hash
    return {
        "outcome": None if end is None else end.value,
        "transaction": None if tx_hash is None else str(tx_hash),
        "reason": outcome.reason if isinstance(outcome, NotSettled) else None,
    }


ORPHAN_AFTER_S = 300.0
"""Whoever was told "undecided" stores the answer first and marks the call orphaned; after this he is gone."""

_log = structlog.get_logger(__name__)


class Orphans:
    """Used from one event loop. `clock`: monotonic seconds; a clock that is set back must not keep anybody waiting."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._due_s: dict[CallId, tuple[Close, float]] = {}

    def note(self, close: Close, *, is_waited_for: bool) -> None:
        """`close`: the way into `settling`. Whether it was written need not be known."""
        self._due_s[close.call_id] = (close, self._clock() + (ORPHAN_AFTER_S if is_waited_for else 0))

    async def mark_due_orphans(self) -> None:
        """Marks those orphaned whose time has come. Raises `StorageUnavailable`; they stay for the next time."""
        now_s = self._clock()
        for call_id, (close, due_s) in list(self._due_s.items()):
            if due_s <= now_s:
                await self._mark_orphaned(close)
                self._due_s.pop(call_id, None)

    async def _mark_orphaned(self, close: Close) -> None:
        if await self._ledger.mark_orphaned(close.call_id, epoch=close.epoch):
            _log.info("settlement_adrift", call_id=close.call_id)
            return
        # Not in `settling`: finished meanwhile, or it never got there. Then its bytes left and nobody knows more.
        error = close.error or Interruption.OUTCOME_LOST.value
        unknown = replace(close, after=CallState.UNKNOWN, http_status=None, upstream_status=None, error=error)
        await self._ledger.close(unknown)


RESEND_AFTER_S = 2.0
"""A node that saw a later nonce first may have dropped the transaction: it goes to all nodes once more, with what it waits
behind."""
USE_POLL_S = 0.5
"""Between two looks for what a facilitator has done."""

Send = Callable[[ChainId, bytes], Awaitable[SendRefused | None]]


class Settlement:
    """One per process, for all networks; safe to use from many tasks at once. Its receipt poller and its gas budget have to run
    beside it, and `mark_due_orphans` every few seconds."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        gas: GasLedger,
        chains: SettlementChain,
        rules: Mapping[ChainId, ChainRules],
        gas_budget: GasBudget,
        receipt_poller: ReceiptPoller,
        facilitators: Mapping[ChainId, FacilitatorClient],
        limits: Limits,
        now_ms: Callable[[], int],
        rate_limiter: RateLimiter,
        metrics: SettlementMetrics = NO_METRICS,
    ) -> None:
        self._ledger = ledger
        self._gas = gas
        self._chains = chains
        self._rules = rules
        self._gas_budget = gas_budget
        self._receipt_poller = receipt_poller
        self._facilitators = facilitators
        self._limits = limits
        self._now_ms = now_ms
        self._metrics = metrics
        self._precheck = AuthorizationPrecheck(chains, facilitators, limits=limits)
        self._quota = AuthorizationQuota(limits=limits, rate_limiter=rate_limiter)
        self._orphans = Orphans(ledger)
        self._replacer = TransactionReplacer(
            ledger=ledger, gas=gas, chains=chains, gas_budget=gas_budget, limits=limits, now_ms=now_ms
        )

    def is_offered(self, asset: Asset, units: int, listing_id: ListingId) -> bool:
        """Whether this price can be settled now, by what the last look at gas told, and while its caller waits."""
        rules = self._rules.get(asset.chain_id)
        if rules is None or not self._gas_budget.is_in_time(rules, asset, units):
            return False
        return self._gas_budget.is_offered(asset, units, listing_id)

    def is_reachable(self, chain_id: ChainId) -> bool:
        """Whether anything is known of this network at present; what is not offered then is only not known."""
        return self._gas_budget.is_reachable(chain_id)

    async def mark_due_orphans(self) -> None:
        """A chore: settlements whose waiter is gone are left to settlement recovery."""
        await self._orphans.mark_due_orphans()

    # ---- Before the call.

    def open_lookup(self, client_address: str) -> AuthorizationLookup:
        """What one call's questions to a chain cost its caller; a context, open for as long as the call runs."""
        return self._quota.open(client_address)

    async def check(
        self,
        authorization: Authorization,
        requirement: PaymentRequirement,
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
        quorum = self._quorum(asset, asset.floor_to_ledger(authorization.base_units))
        facts = await self._simulate(authorization, self._gas_budget.choose_sequence(asset.chain_id), quorum)
        result = check_authorization(authorization, requirement, facts, signer=signer, timeout_s=timeout_s)
        problem = explain_authorization(result.reason) if isinstance(result, AuthorizationRefused) else None
        if problem is None and not self._gas_budget.is_wallet_served(
            asset.chain_id, listing_id, facts.code_hash
        ):
            problem = explain_authorization(AuthorizationReason.WALLET_GAS)
        problem = problem or await self._precheck.find_refusal(
            authorization, requirement, facts, signer=signer
        )
        if problem is not None:
            return problem
        assert isinstance(result, Cover)
        return result

    async def _simulate(
        self, authorization: Authorization, sequence: NonceSequence | None, quorum: Quorum
    ) -> AuthorizationFacts:
        sender = ZERO_ADDRESS if sequence is None else sequence.key.address
        gas = self._limits.settlement_gas_max
        return await simulate_transfer(self._chains, authorization, sender=sender, gas=gas, quorum=quorum)

    # ---- At the upstream's head.

    async def settle(self, order: SettlementOrder) -> SettlementOutcome:
        """Lets the money move, and waits for it, as long as its depth takes.

        Raises `StorageUnavailable`: then, as after a cancellation, the ledger decides what the call is, and settlement recovery
        finishes it.
        """
        try:
            outcome = await self._settle(order)
        except BaseException:
            self._orphans.note(order.close, is_waited_for=False)
            raise
        if isinstance(outcome, Undecided):
            self._orphans.note(order.close, is_waited_for=True)
        if (end := outcome_label(outcome)) is not None:
            self._metrics.end(order.asset.chain_id, end)
            told = describe_outcome(outcome)
            _log.info("settlement_ended", call_id=order.close.call_id, network=order.asset.network, **told)
        return outcome

    async def _settle(self, order: SettlementOrder) -> SettlementOutcome:
        chain_id = order.asset.chain_id
        sequence = self._gas_budget.choose_sequence(chain_id, is_claimed=True)
        try:
            facts = await self._simulate(
                order.authorization, sequence, self._quorum(order.asset, order.units)
            )
        except ChainUnavailable:
            return await self._leave_settling(order)
        if facts.is_used:
            return await self._settle_used(order)
        facilitator = self._facilitators.get(chain_id)
        if facilitator is not None:
            return await self._delegate(order, facilitator, facts)
        if facts.simulation.reverted:
            return await self._fail(order, find_failure_reason(order.authorization, facts))
        is_served = self._gas_budget.is_wallet_served(chain_id, order.listing_id, facts.code_hash)
        if sequence is None or facts.gas_estimate is None or not is_served:
            return await self._leave_settling(order)
        gas = limit_gas(facts.gas_estimate, gas_max=self._limits.settlement_gas_max)
        sequence.in_flight += 1
        try:
            attempt = await self._store(order, sequence, gas, facts.code_hash)
            if not isinstance(attempt, SettlementAttempt):
                return attempt
            await self._broadcast(attempt, self._chains.send_transaction)
            return await self._follow_receipt(order, attempt, from_block=facts.head_number)
        finally:
            sequence.in_flight -= 1

    async def _leave_settling(self, order: SettlementOrder) -> Undecided | SettlementFenced:
        """Into `settling` without a transaction: settlement recovery signs one when it can."""
        stored = await self._ledger.settle(order.close, attempt=None, digest=order.digest)
        return Undecided() if isinstance(stored, Closed) else SettlementFenced()

    async def _fail(
        self, order: SettlementOrder, reason: AuthorizationReason
    ) -> NotSettled | SettlementFenced:
        """Nothing was ever broadcast, so nothing moved."""
        close = replace(
            order.close,
            after=CallState.RELEASED,
            http_status=None,  # not the upstream's: its answer reaches nobody
            error=Code.PAYMENT_SETTLEMENT_FAILED.value,
        )
        closed = await self._ledger.close(close)
        return SettlementFenced() if isinstance(closed, Fenced) else NotSettled(reason=reason.value)

    async def _settle_used(self, order: SettlementOrder) -> SettlementOutcome:
        """Somebody was faster. The same from, to and value: it is paid, and nothing need be sent."""
        known = await self._ledger.find_authorized_call(order.authorization.key)
        try:
            use = await self._find_use(order, from_block=0 if known is None else known.seen_block)
        except ChainUnavailable:
            use = UseNotFound()
        match use:
            case Cancelled():
                return await self._fail(order, AuthorizationReason.ALREADY_USED)
            case UseNotFound():
                return await self._leave_settling(order)
            case TransferFound():
                unsettled = await self._leave_settling(order)
                return (
                    unsettled
                    if isinstance(unsettled, SettlementFenced)
                    else await self._conclude(order, use.transfer)
                )
            case _:
                assert_never(use)

    # ---- Signed, stored, sent, followed.

    async def _store(
        self, order: SettlementOrder, sequence: NonceSequence, gas: int, code_hash: bytes | None
    ) -> SettlementAttempt | Undecided | SettlementFenced:
        """A signed transaction with the sequence's next nonce, in the ledger."""
        transfer_call = TransferCall(
            authorization=order.authorization,
            call_id=order.close.call_id,
            listing_id=order.listing_id,
            gas=gas,
            code_hash=code_hash,
        )

        async def settle(attempt: SettlementAttempt) -> bool | NonceUnavailable:
            stored = await self._ledger.settle(order.close, attempt=attempt, digest=order.digest)
            return stored if isinstance(stored, NonceUnavailable) else isinstance(stored, Closed)

        signed = await sign_next(
            transfer_call,
            sequence,
            store=settle,
            gas=self._gas,
            gas_budget=self._gas_budget,
            now_ms=self._now_ms,
        )
        if isinstance(signed, Fenced):
            return SettlementFenced()
        return signed or await self._leave_settling(order)

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
            self._gas_budget.mark_failing(attempt.chain_id, attempt.sender)

    async def _follow_receipt(
        self, order: SettlementOrder, attempt: SettlementAttempt, *, from_block: int
    ) -> SettlementOutcome:
        facts = await self._wait_mined(order, attempt)
        if facts is None:
            return Undecided(tx_hash=attempt.tx_hash)
        self._metrics.mined(attempt.chain_id, (self._now_ms() - attempt.created_ms) / 1000)
        transfer = find_transfer(facts, order.authorization, quorum=self._quorum(order.asset, order.units))
        if facts.fee_wei is not None:
            self._gas_budget.record_cost(attempt, facts.fee_wei, is_reverted=not facts.succeeded)
        if transfer is not None:
            return await self._conclude(order, transfer)
        # It reverted. The authorisation is public now, and anyone can still land it: only its use tells.
        outcome = await self._conclude_use(order, from_block=from_block)
        return Undecided(tx_hash=attempt.tx_hash) if isinstance(outcome, Undecided) else outcome

    async def _wait_mined(self, order: SettlementOrder, attempt: SettlementAttempt) -> ChainFacts | None:
        wait_s = self._gas_budget.wait_s(attempt.chain_id, depth=self._depth(order))
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
                return await self._receipt_poller.wait_mined(
                    attempt.chain_id,
                    attempt.tx_hash,
                    sender=attempt.sender,
                    depth=self._depth(order),
                    quorum=self._quorum(order.asset, order.units),
                )
        except TimeoutError:
            return None

    async def _resend(self, attempt: SettlementAttempt) -> None:
        """To all nodes, with what it waits behind: the gateway that stored that may stand still, or its node may have
        lost it."""
        try:
            await self._broadcast(attempt, self._chains.resend_transaction)
            await self._replacer.resend_before(attempt)
        except Exception:  # noqa: BLE001 - a task root: it only helps, and the call waits on
            _log.exception("settlement_resend_failed", call_id=attempt.call_id)

    async def _conclude_use(self, order: SettlementOrder, *, from_block: int) -> SettlementOutcome:
        try:
            use = await self._find_use(order, from_block=from_block)
        except ChainUnavailable:
            return Undecided()
        return await self._conclude(order, use.transfer) if isinstance(use, TransferFound) else Undecided()

    async def _find_use(self, order: SettlementOrder, *, from_block: int) -> AuthorizationUse:
        return await find_use(
            self._chains,
            order.authorization,
            from_block=from_block,
            depth=self._depth(order),
            quorum=self._quorum(order.asset, order.units),
        )

    async def _conclude(
        self, order: SettlementOrder, transfer: SettledTransfer
    ) -> Settled | SettlementFenced:
        state = await self._ledger.conclude(
            order.close.call_id,
            epoch=order.close.epoch,
            transfer=transfer,
            is_orphaned=False,
            now_ms=self._now_ms(),
        )
        return Settled(transfer=transfer) if state is CallState.CONSUMED else SettlementFenced()

    def _depth(self, order: SettlementOrder) -> int:
        return self._rules[order.asset.chain_id].confirmations_for(order.asset, order.units)

    def _quorum(self, asset: Asset, units: int) -> Quorum:
        return self._rules[asset.chain_id].quorum_for(asset, units)

    # ---- By a facilitator.

    async def _delegate(
        self, order: SettlementOrder, facilitator: FacilitatorClient, facts: AuthorizationFacts
    ) -> SettlementOutcome:
        """It has no hash before it broadcasts, and its word on the outcome is not asked for: the token's is. It has seen
        the authorisation when it verified it, so a simulation that fails now is no proof that it never lands."""
        unsettled = await self._leave_settling(order)
        if isinstance(unsettled, SettlementFenced) or facts.simulation.reverted:
            return unsettled
        timeout_s = max(1, order.authorization.valid_before - self._now_ms() // 1000)
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._gas_budget.wait_s(order.asset.chain_id, depth=self._depth(order))
        await facilitator.settle(order.authorization, order.asset, timeout_s=timeout_s)
        while True:
            outcome = await self._conclude_use(order, from_block=facts.head_number)
            if not isinstance(outcome, Undecided) or clock() + USE_POLL_S > deadline:
                return outcome
            await asyncio.sleep(USE_POLL_S)
