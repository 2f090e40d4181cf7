"""Settles an authorisation at the upstream's head: decide -> sign and store -> broadcast -> wait for the receipt -> record the end.

The ledger stores the signed transaction in a durable commit before any node receives it: money can move only after that commit.
A settlement fails only when the simulation, or a wallet that it would deploy, refused it and this gateway never broadcast it; every
other unclear outcome is undecided. The transaction is built from the signed fields alone. The first payment of a contract wallet also deploys it, by a factory
of the operator's list (`payments.deployment`).

A settlement whose waiter left before its end becomes orphaned, and settlement recovery finishes it (`Orphans`).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import assert_never

import structlog

from tollway.chain.networks import ChainRules
from tollway.chain.port import AuthorizationFacts, ChainFacts, Quorum, SendFault, SendRefused, SettlementChain
from tollway.errors import ChainUnavailable, Code, Problem
from tollway.ids import Address, ChainId, ListingId, TxHash
from tollway.ledger.ledger import Close, Closed, Fenced, GasLedger, NonceUnavailable, SettlementLedger
from tollway.ledger.records import (
    Authorization,
    CallState,
    Cover,
    SettledTransfer,
    SettlementAttempt,
)
from tollway.limits import Limits
from tollway.money import Asset
from tollway.observability.call_trace import CallTrace
from tollway.payments.authorization_check import (
    AuthorizationRefused,
    check_authorization,
    check_times,
    find_failure_reason,
)
from tollway.payments.authorization_onchain import (
    AuthorizationUse,
    Cancelled,
    SimulatedTransfer,
    TransferFound,
    UseNotFound,
    as_reverted,
    explain_failed_simulation,
    find_precheck_refusal,
    find_transfer,
    find_use,
    is_signed_when_deployed,
    simulate_transfer,
)
from tollway.payments.deployment import Deployment, is_wrapped
from tollway.payments.eip3009 import recover_signer
from tollway.payments.facilitator import FacilitatorClient
from tollway.payments.gas import (
    NO_METRICS,
    GasBudget,
    OutcomeLabel,
    SettlementMetrics,
    WithdrawnRail,
    find_step,
)
from tollway.payments.lookup_quota import AuthorizationLookup, AuthorizationQuota
from tollway.payments.nonces import NonceSequence
from tollway.payments.orphans import Orphans
from tollway.payments.pricing import PaymentRequirement
from tollway.payments.receipts import ReceiptPoller
from tollway.payments.transactions import SentCall, TransactionReplacer, limit_gas, sign_next
from tollway.payments.wire import AuthorizationReason, explain_authorization
from tollway.rate_limits.limiter import RateLimiter

AUTHORIZATION_VALIDITY_S_MAX = 86_400
"""From now to `validBefore`. A call whose settlement is undecided stays so until then."""

RESEND_AFTER_S = 2.0
"""A node that received a later nonce first can have dropped the transaction. After this time the transaction goes to all nodes
once more, with the transactions that it waits behind."""
USE_POLL_S = 0.5

Send = Callable[[ChainId, bytes], Awaitable[SendRefused | None]]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementOrder:
    """A call whose upstream's head is charged. `close`: the move into `settling`. `digest`: replaces the claim's digest where the body's hash was
    unknown at the claim."""

    authorization: Authorization
    asset: Asset
    close: Close
    listing_id: ListingId
    digest: bytes | None

    @property
    def units(self) -> int:
        return self.asset.floor_to_ledger(self.authorization.base_units)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The money moved, and the ledger has recorded it: the call is `consumed` since `moved_ms`."""

    transfer: SettledTransfer
    moved_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSettled:
    """The money did not move and never will: refused before any broadcast. The call is `released`."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """The call stays in `settling`; settlement recovery finishes it once it is orphaned. `tx_hash`: the broadcast transaction, for the log."""

    tx_hash: TxHash | None = field(default=None, compare=False)


SettlementOutcome = Settled | NotSettled | Undecided | Fenced


@dataclass(slots=True)
class _WalletTurn:
    """The running settlements of one wallet. `calls`: their number; then the number of ended deployments, and the end of the running one or None."""

    calls: int = 0
    deployments_ended: int = 0
    deploying: asyncio.Event | None = None


_NO_TURN = _WalletTurn()
"""The turn of a call that can deploy nothing. It never changes."""


class Settlement:
    """Checks and settles authorisations on all networks. Its receipt poller, its gas budget and `orphans.mark_due` must run as background tasks."""

    def __init__(
        self,
        *,
        ledger: SettlementLedger,
        gas_ledger: GasLedger,
        chains: SettlementChain,
        rules: Mapping[ChainId, ChainRules],
        gas_budget: GasBudget,
        replacer: TransactionReplacer,
        receipt_poller: ReceiptPoller,
        facilitators: Mapping[ChainId, FacilitatorClient],
        orphans: Orphans,
        limits: Limits,
        now_ms: Callable[[], int],
        rate_limiter: RateLimiter,
        metrics: SettlementMetrics = NO_METRICS,
    ) -> None:
        self._ledger = ledger
        self._gas_ledger = gas_ledger
        self._chains = chains
        self._rules = rules
        self._gas_budget = gas_budget
        self._replacer = replacer
        self._receipt_poller = receipt_poller
        self._facilitators = facilitators
        self._orphans = orphans
        self._limits = limits
        self._now_ms = now_ms
        self._metrics = metrics
        # The chain look-ups of one call, counted against its caller's quota: a context of the whole call.
        self.open_lookup = AuthorizationQuota(limits=limits, rate_limiter=rate_limiter).open
        self._wallet_turns: dict[tuple[ChainId, Address], _WalletTurn] = {}

    # ---- Before the call.

    def is_offered(self, asset: Asset, units: int, listing_id: ListingId) -> bool:
        """Whether this price can be settled now, by the last refresh of the gas budget, and while its caller waits."""
        rules = self._rules.get(asset.chain_id)
        if rules is None or not self._gas_budget.is_in_time(rules, asset, units):
            return False
        return self._gas_budget.is_offered(asset, units, listing_id)

    def is_worth(self, asset: Asset, units: int) -> bool:
        """Whether this price can be settled while its caller waits, whenever the gateway has the gas."""
        rules = self._rules.get(asset.chain_id)
        if rules is None or not self._gas_budget.is_in_time(rules, asset, units):
            return False
        return self._gas_budget.is_worth(asset, units)

    @property
    def withdrawn_since_ms(self) -> Mapping[WithdrawnRail, int]:
        return self._gas_budget.withdrawn_since_ms

    def is_reachable(self, chain_id: ChainId) -> bool:
        """Whether the last refresh reached this network. Without it, the gateway cannot tell whether a price can be settled."""
        return self._gas_budget.is_reachable(chain_id)

    async def check(
        self,
        authorization: Authorization,
        requirement: PaymentRequirement,
        *,
        timeout_s: int,
        lookup: AuthorizationLookup,
        listing_id: ListingId,
    ) -> Cover | Problem:
        """Checks the authorisation against the chain's present state: one round trip, one more for a wallet with code, and two more for one that is
        not deployed; those are repeated before such a wallet is refused. Returns the balance that covers it, or the problem."""
        asset = requirement.asset
        early = check_times(
            authorization,
            now_s=self._now_ms() / 1000,
            timeout_s=timeout_s,
            validity_s_max=AUTHORIZATION_VALIDITY_S_MAX,
        )
        if early is not None:
            return explain_authorization(early.reason)
        signer = None if asset.domain is None else recover_signer(authorization, asset.domain)
        # An invalid authorisation in a wallet's name must not use up the quota of that wallet's owner.
        is_owner = signer == authorization.payer
        name = str(authorization.payer) if is_owner else f"{authorization.payer} from {lookup.client_address}"
        refusal = await lookup.take(name)
        if refusal is not None:
            return refusal
        look = partial(
            self._simulate,
            authorization,
            asset,
            asset.floor_to_ledger(authorization.base_units),
            self._gas_budget.choose_sequence(asset.chain_id),
        )
        simulated = await look()
        result = await self._judge(authorization, requirement, simulated, signer, timeout_s, listing_id)
        if simulated.deployment is None or isinstance(result, Cover):
            return result
        # Another call can have deployed the wallet meanwhile: the factory reverts then, and the wallet can pay.
        simulated = await look()
        if simulated.deployment is not None:
            return result
        return await self._judge(authorization, requirement, simulated, signer, timeout_s, listing_id)

    async def _judge(
        self,
        authorization: Authorization,
        requirement: PaymentRequirement,
        simulated: SimulatedTransfer,
        signer: Address | None,
        timeout_s: int,
        listing_id: ListingId,
    ) -> Cover | Problem:
        asset = requirement.asset
        result = check_authorization(
            authorization,
            requirement,
            simulated.facts,
            signer=signer,
            timeout_s=timeout_s,
            deployment=simulated.deployment,
            factories=self._gas_budget.wallet_factories(asset.chain_id),
        )
        if isinstance(result, AuthorizationRefused):
            return await self._explain_refused(result, authorization, asset, simulated.facts)
        if not self._gas_budget.is_wallet_served(asset.chain_id, listing_id, simulated.code_hash):
            return explain_authorization(AuthorizationReason.WALLET_GAS)
        problem = await find_precheck_refusal(
            authorization,
            requirement,
            simulated,
            signer=signer,
            chains=self._chains,
            facilitator=self._facilitators.get(asset.chain_id),
            limits=self._limits,
        )
        return problem or result

    async def _explain_refused(
        self,
        refused: AuthorizationRefused,
        authorization: Authorization,
        asset: Asset,
        facts: AuthorizationFacts,
    ) -> Problem:
        detail = refused.detail
        if refused.reason is AuthorizationReason.SIMULATION_FAILED:
            detail = detail or await explain_failed_simulation(
                authorization, asset, facts, chains=self._chains, limits=self._limits
            )
        return explain_authorization(refused.reason, detail)

    async def _simulate(
        self, authorization: Authorization, asset: Asset, units: int, sequence: NonceSequence | None
    ) -> SimulatedTransfer:
        return await simulate_transfer(
            self._chains,
            authorization,
            sequence=sequence,
            factories=self._gas_budget.wallet_factories(asset.chain_id),
            limits=self._limits,
            quorum=self._quorum(asset, units),
        )

    # ---- At the upstream's head.

    async def settle(self, order: SettlementOrder, *, trace: CallTrace | None = None) -> SettlementOutcome:
        """Settles the authorisation and waits until the transfer is as deep as its value requires. `trace`: of a sampled call.

        Raises `StorageUnavailable`: then, as after a cancellation, the ledger decides the call's state, and settlement recovery
        finishes it.
        """
        if trace is not None:
            trace.set("tollway.network", order.asset.network)
            trace.set("tollway.settle.attempts", 0)
            trace.set("tollway.settle.fee_bumps", 0)
        try:
            if is_wrapped(order.authorization.signature):
                with self._entering(order) as turn:
                    outcome = await self._settle_in_turn(order, turn, trace)
            else:  # it deploys no wallet
                outcome = await self._settle_in_turn(order, _NO_TURN, trace)
        except BaseException:
            self._orphans.add(order.close, is_waited_for=False)
            raise
        if isinstance(outcome, Undecided):
            self._orphans.add(order.close, is_waited_for=True)
        if (end := outcome_label(outcome)) is not None:
            self._metrics.end(order.asset.chain_id, end)
            fields = describe_outcome(outcome)
            _log.info("settlement_ended", call_id=order.close.call_id, network=order.asset.network, **fields)
        return outcome

    async def _settle_in_turn(
        self, order: SettlementOrder, turn: _WalletTurn, trace: CallTrace | None
    ) -> SettlementOutcome:
        chain_id = order.asset.chain_id
        # Decide.
        sequence = self._gas_budget.choose_sequence(chain_id, is_claimed=True)
        try:
            simulated = await self._simulate_in_turn(order, sequence, turn)
        except (ChainUnavailable, TimeoutError):
            return await self._leave_settling(order)
        facts = simulated.facts
        if facts.is_used:
            return await self._settle_used(order)
        facilitator = self._facilitators.get(chain_id)
        if facilitator is not None:
            return await self._delegate(order, facilitator, facts)
        if facts.simulation.reverted:
            return await self._fail(order, find_failure_reason(order.authorization, facts))
        is_served = self._gas_budget.is_wallet_served(chain_id, order.listing_id, simulated.code_hash)
        if sequence is None or facts.gas_estimate is None or not is_served:
            return await self._leave_settling(order)
        sequence.in_flight += 1
        try:
            is_deploying = simulated.deployment is not None
            with self._taking_turn(turn) if is_deploying else contextlib.nullcontext():
                # Sign and store: durable in the ledger, before the broadcast.
                gas = limit_gas(facts.gas_estimate, gas_max=simulated.gas_max)
                attempt = await self._sign_and_store(order, sequence, gas, simulated)
                if not isinstance(attempt, SettlementAttempt):
                    return attempt
                await self._broadcast(attempt, self._chains.send_transaction)
                if trace is None:
                    receipt = await self._wait_for_receipt(order, attempt)
                else:
                    receipt = await self._wait_traced(order, attempt, trace)
            if receipt is None:
                return Undecided(tx_hash=attempt.tx_hash)
            return await self._record_end(order, attempt, receipt, from_block=facts.head_number)
        finally:
            sequence.in_flight -= 1

    @contextlib.contextmanager
    def _entering(self, order: SettlementOrder) -> Iterator[_WalletTurn]:
        """The turn of this call's wallet, which lasts until its last running settlement ends."""
        wallet = (order.asset.chain_id, order.authorization.payer)
        turn = self._wallet_turns.setdefault(wallet, _WalletTurn())
        turn.calls += 1
        try:
            yield turn
        finally:
            turn.calls -= 1
            if not turn.calls:
                del self._wallet_turns[wallet]

    async def _simulate_in_turn(
        self, order: SettlementOrder, sequence: NonceSequence | None, turn: _WalletTurn
    ) -> SimulatedTransfer:
        """Simulates the transfer. While another call of this wallet deploys it, waits for the end of that transaction: a second deployment
        would revert. Raises `ChainUnavailable`, and `TimeoutError` when a call would wait for longer than for its own settlement: also where an earlier call has sent a
        deployment whose outcome is not known."""
        started_s = asyncio.get_running_loop().time()
        while True:
            ended = turn.deployments_ended
            simulated = await self._simulate(order.authorization, order.asset, order.units, sequence)
            if simulated.deployment is not None and turn.deploying is None:
                simulated = await self._confirm_deployment(order, sequence, simulated, simulated.deployment)
                is_open = await self._ledger.has_open_deployment(
                    order.close.call_id, chain_id=order.asset.chain_id, payer=order.authorization.payer
                )
                if is_open and turn.deploying is None and ended == turn.deployments_ended:
                    raise TimeoutError  # no call of this gateway waits for the end of that deployment
            # Another call of the wallet can have begun or ended its deployment during each await.
            ahead = turn.deploying
            if simulated.deployment is None or (ahead is None and ended == turn.deployments_ended):
                return simulated
            wait_s = self._gas_budget.wait_s(order.asset.chain_id, depth=self._depth(order))
            async with asyncio.timeout_at(started_s + wait_s):
                await (asyncio.sleep(0) if ahead is None else ahead.wait())

    async def _confirm_deployment(
        self,
        order: SettlementOrder,
        sequence: NonceSequence | None,
        simulated: SimulatedTransfer,
        deployment: Deployment,
    ) -> SimulatedTransfer:
        """The simulation, as reverted where the deployed wallet does not confirm the signature any more. A wallet that has code by then is simulated
        again, without its deployment. A facilitator checks by its own rules."""
        authorization, asset = order.authorization, order.asset
        if asset.chain_id in self._facilitators:
            return simulated
        is_reverted = simulated.facts.simulation.reverted
        if not is_reverted and await is_signed_when_deployed(
            self._chains, authorization, asset, deployment, self._limits
        ):
            return simulated
        again = await self._simulate(authorization, asset, order.units, sequence)
        return again if again.deployment is None else as_reverted(again)

    @contextlib.contextmanager
    def _taking_turn(self, turn: _WalletTurn) -> Iterator[None]:
        """Meanwhile the other calls of that wallet wait (`_simulate_in_turn`). Nothing is awaited between their simulation and this."""
        turn.deploying = is_ended = asyncio.Event()
        try:
            yield
        finally:
            turn.deploying = None
            turn.deployments_ended += 1
            is_ended.set()

    async def _sign_and_store(
        self, order: SettlementOrder, sequence: NonceSequence, gas: int, simulated: SimulatedTransfer
    ) -> SettlementAttempt | Undecided | Fenced:
        """Signs a transaction with the sequence's next nonce, and stores it with the move into `settling`."""

        async def store(attempt: SettlementAttempt) -> bool | NonceUnavailable:
            stored = await self._ledger.settle(order.close, attempt=attempt, digest=order.digest)
            return stored if isinstance(stored, NonceUnavailable) else isinstance(stored, Closed)

        signed = await sign_next(
            SentCall(
                chain_id=order.asset.chain_id,
                call_id=order.close.call_id,
                listing_id=order.listing_id,
                gas=gas,
                to=simulated.to,
                calldata=simulated.calldata,
                code_hash=simulated.code_hash,
            ),
            sequence,
            store=store,
            gas_ledger=self._gas_ledger,
            gas_budget=self._gas_budget,
            now_ms=self._now_ms,
        )
        return signed or await self._leave_settling(order)

    async def _broadcast(self, attempt: SettlementAttempt, send: Send) -> None:
        """Sends the transaction. It is public from here on, also when a node responds with an error."""
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

    async def _wait_traced(
        self, order: SettlementOrder, attempt: SettlementAttempt, trace: CallTrace
    ) -> ChainFacts | None:
        """Waits for the receipt. The trace of a sampled call counts the replacements by this gateway meanwhile."""
        trace.set("tollway.settle.attempts", 1)
        self._replacer.traced[attempt.call_id] = trace
        start_ns, receipt = trace.now_ns(), None
        try:
            receipt = await self._wait_for_receipt(order, attempt)
        finally:
            self._replacer.traced.pop(attempt.call_id, None)
            trace.add_request(
                "tollway.receipt",
                start_ns=start_ns,
                attributes={"tollway.outcome": "not_mined" if receipt is None else "mined"},
                is_error=False,
                kind="internal",
            )
        return receipt

    async def _wait_for_receipt(
        self, order: SettlementOrder, attempt: SettlementAttempt
    ) -> ChainFacts | None:
        """The receipt when it is deep enough; None at the deadline."""
        wait_s = self._gas_budget.wait_s(attempt.chain_id, depth=self._depth(order))
        first_s = min(RESEND_AFTER_S, wait_s / 2)
        receipt = await self._poll_receipt(order, attempt, first_s)
        if receipt is not None:
            return receipt
        async with asyncio.TaskGroup() as group:
            resending = group.create_task(self._resend(attempt))
            receipt = await self._poll_receipt(order, attempt, wait_s - first_s)
            resending.cancel()
        return receipt

    async def _poll_receipt(
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
        """Sends the transaction to all nodes again, with the transactions before it: the gateway that stored those may have stopped,
        or its node may have lost them."""
        try:
            await self._broadcast(attempt, self._chains.resend_transaction)
            await self._replacer.resend_before(attempt)
        except Exception:  # noqa: BLE001 - a task root: resending is optional, and the call still waits
            _log.exception("settlement_resend_failed", call_id=attempt.call_id)

    async def _record_end(
        self, order: SettlementOrder, attempt: SettlementAttempt, receipt: ChainFacts, *, from_block: int
    ) -> SettlementOutcome:
        self._metrics.mined(attempt.chain_id, (self._now_ms() - attempt.created_ms) / 1000)
        transfer = find_transfer(receipt, order.authorization, quorum=self._quorum(order.asset, order.units))
        if receipt.fee_wei is not None:
            self._gas_budget.record_cost(
                attempt,
                receipt.fee_wei,
                is_reverted=not receipt.succeeded,
                step=find_step(order.authorization),
            )
        if transfer is not None:
            return await self._conclude(order, transfer)
        # The transaction reverted, but the authorisation is public and any account can still settle it: only the nonce decides.
        outcome = await self._conclude_use(order, from_block=from_block)
        return Undecided(tx_hash=attempt.tx_hash) if isinstance(outcome, Undecided) else outcome

    # ---- The ends of a settlement in the ledger.

    async def _conclude(self, order: SettlementOrder, transfer: SettledTransfer) -> Settled | Fenced:
        now_ms = self._ledger.shared_ms()
        state = await self._ledger.conclude(
            order.close.call_id,
            epoch=order.close.epoch,
            transfer=transfer,
            is_orphaned=False,
            now_ms=now_ms,
        )
        return Settled(transfer=transfer, moved_ms=now_ms) if state is CallState.CONSUMED else Fenced()

    async def _conclude_use(self, order: SettlementOrder, *, from_block: int) -> SettlementOutcome:
        try:
            use = await self._find_use(order, from_block=from_block)
        except ChainUnavailable:
            return Undecided()
        return await self._conclude(order, use.transfer) if isinstance(use, TransferFound) else Undecided()

    async def _leave_settling(self, order: SettlementOrder) -> Undecided | Fenced:
        """Moves the call into `settling` without a transaction: settlement recovery signs one when it can."""
        stored = await self._ledger.settle(order.close, attempt=None, digest=order.digest)
        return Undecided() if isinstance(stored, Closed) else Fenced()

    async def _fail(self, order: SettlementOrder, reason: AuthorizationReason) -> NotSettled | Fenced:
        """Moves the call into `released`: this gateway broadcast nothing, so no money moved."""
        close = replace(
            order.close,
            after=CallState.RELEASED,
            http_status=None,  # the caller does not get the upstream's response
            error=Code.PAYMENT_SETTLEMENT_FAILED.value,
        )
        closed = await self._ledger.close(close)
        return closed if isinstance(closed, Fenced) else NotSettled(reason=reason.value)

    # ---- Authorisations that this gateway does not broadcast.

    async def _settle_used(self, order: SettlementOrder) -> SettlementOutcome:
        """Settles an authorisation that another transaction has used: a transfer with the same from, to and value pays the call."""
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
                if isinstance(unsettled, Fenced):
                    return unsettled
                return await self._conclude(order, use.transfer)
            case _:
                assert_never(use)

    async def _delegate(
        self, order: SettlementOrder, facilitator: FacilitatorClient, facts: AuthorizationFacts
    ) -> SettlementOutcome:
        """Settles by the facilitator. It names no hash before it broadcasts, and its report does not count: only the token's state
        does. It has had the authorisation since `/verify`, so a simulation that fails now does not prove that the transfer is never
        mined."""
        unsettled = await self._leave_settling(order)
        if isinstance(unsettled, Fenced) or facts.simulation.reverted:
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

    async def _find_use(self, order: SettlementOrder, *, from_block: int) -> AuthorizationUse:
        return await find_use(
            self._chains,
            order.authorization,
            from_block=from_block,
            depth=self._depth(order),
            quorum=self._quorum(order.asset, order.units),
        )

    def _depth(self, order: SettlementOrder) -> int:
        return self._rules[order.asset.chain_id].confirmations_for(order.asset, order.units)

    def _quorum(self, asset: Asset, units: int) -> Quorum:
        return self._rules[asset.chain_id].quorum_for(asset, units)


def outcome_label(outcome: SettlementOutcome) -> OutcomeLabel | None:
    """Returns None where another gateway counts the end."""
    match outcome:
        case Settled():
            return OutcomeLabel.SETTLED
        case NotSettled():
            return OutcomeLabel.FAILED
        case Undecided():
            return OutcomeLabel.UNDECIDED
        case Fenced():
            return None
        case _:
            assert_never(outcome)


def describe_outcome(outcome: SettlementOutcome) -> dict[str, str | None]:
    """The fields of the log, without secrets."""
    end = outcome_label(outcome)
    tx_hash = outcome.tx_hash if isinstance(outcome, Undecided) else None
    if isinstance(outcome, Settled):
        tx_hash = outcome.transfer.tx_hash
    return {
        "outcome": None if end is None else end.value,
        "transaction": None if tx_hash is None else str(tx_hash),
        "reason": outcome.reason if isinstance(outcome, NotSettled) else None,
    }
