"""The gas budget: gas prices, balances of gas keys, budgets of listings and networks, refreshed at an interval.

It decides whether a price can be settled (a 402 offers no other price), which rails are withdrawn and why, and which key's nonces
are used. It signs and sends nothing and never makes a call wait: its state is that of the last refresh. The metrics are
callables from the app: each returns at once and never raises.
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

import structlog

from tollway.bounded_cache import BoundedDict
from tollway.chain.networks import ChainRules
from tollway.chain.port import AccountFacts, Fees, SettlementChain
from tollway.chain.tokens import find_domain_fault
from tollway.errors import ChainUnavailable, StorageUnavailable
from tollway.ids import Address, ChainId, ListingId, TxHash
from tollway.ledger.ledger import CodeRecord, GasLedger
from tollway.ledger.records import Authorization, SettlementAttempt
from tollway.limits import Limits
from tollway.money import Asset
from tollway.observability.background import BackgroundTask, TaskName, run_all
from tollway.payments.facilitator import FacilitatorClient
from tollway.payments.nonces import NonceSequence
from tollway.payments.settlement_rules import WALLET_BUDGET_DIVISOR, SettlementRules, is_code_trusted


class OutcomeLabel(StrEnum):
    """How a settlement ended, while its caller waited or later in settlement recovery. Public (a label of the metrics)."""

    SETTLED = "settled"
    FAILED = "failed"  # refused before anything was broadcast
    UNDECIDED = "undecided"  # still unknown at the deadline
    SWEPT = "swept"  # an undecided one that paid after all
    RELEASED = "released"  # an undecided one that can never pay any more


class ChannelStep(StrEnum):
    """What a transaction does with channels. Public (a label of the metrics). A claim and its settles are one transaction."""

    DEPOSIT = "deposit"
    CLAIM = "claim"
    SETTLE = "settle"
    REFUND = "refund"


class ChannelOutcome(StrEnum):
    """How a step on channels ended. Public (a label of the metrics)."""

    DONE = "done"
    REVERTED = "reverted"
    REFUSED = "refused"  # in simulation: nothing was sent
    LOST = "lost"  # another transaction used its nonce


def find_step(authorization: Authorization) -> ChannelStep | None:
    """None: its transaction has nothing to do with channels."""
    return None if authorization.deposit is None else ChannelStep.DEPOSIT


class WithdrawalReason(StrEnum):
    """Why prices are not offered for settlement now. Public (a label of the metrics, and in the log)."""

    GAS_UNKNOWN = "gas_unknown"  # no recent fees or balances from the chain
    GAS_TOO_DEAR = "gas_too_dear"
    GAS_KEYS_LOW = "gas_keys_low"
    NONCE_GAP = "nonce_gap"  # of a gas key, or of every key that has gas: its transactions are not mined
    FACILITATOR_AWAY = "facilitator_away"
    TOKEN = "token_takes_no_authorizations"  # noqa: S105 - a reason, not a secret
    LISTING_BUDGET = "listing_gas_budget"
    NETWORK_BUDGET = "gas_budget"  # of all listings together
    WALLET_BUDGET = "wallet_gas_budget"  # only for payers with code: of all listings together, or of one
    WALLET_CODE = "wallet_code_reverts"  # only for payers with that code


def _ignore(*_: object) -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementMetrics:
    """The callables of the metrics. `mined`: seconds from a transaction's signature to its receipt. `unmined`: transactions of that
    key that are signed and not mined yet. `orphaned`: calls that settlement recovery found, at most its batch. `withdrawn`: rails
    of that network withdrawn for that reason. `floor`: the least balance of its gas keys. `budget_used`: the share of its gas budget
    that is spent. `spent`: the cost of a mined transaction of that key. `claim_reserve`: what its gas keys keep for claims of
    channels. `channel`: a step on channels that ended, and the cost of its transaction."""

    end: Callable[[ChainId, OutcomeLabel], None] = _ignore
    mined: Callable[[ChainId, float], None] = _ignore
    balance: Callable[[ChainId, Address, int], None] = _ignore
    unmined: Callable[[ChainId, Address, int], None] = _ignore
    orphaned: Callable[[int], None] = _ignore
    withdrawn: Callable[[ChainId, WithdrawalReason, int], None] = _ignore
    floor: Callable[[ChainId, int], None] = _ignore
    budget_used: Callable[[ChainId, float], None] = _ignore
    spent: Callable[[ChainId, Address, int], None] = _ignore
    claim_reserve: Callable[[ChainId, int], None] = _ignore
    channel: Callable[[ChainId, ChannelStep, ChannelOutcome, int], None] = _ignore


NO_METRICS = SettlementMetrics()


_log = structlog.get_logger(__name__)


class WithdrawnRail(NamedTuple):
    """A withdrawn rail. `subject`: its token, listing, gas key or code hash; empty for the whole network."""

    chain_id: ChainId
    reason: WithdrawalReason
    subject: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GasKeyStatus:
    """A gas key at the last refresh. `balance_wei` None: not read yet. `floor_wei`: below it the key signs nothing. `is_stuck`: its nonces do not move. `unmined`: its
    transactions that are signed and not mined; None: not read yet."""

    chain_id: ChainId
    address: Address
    balance_wei: int | None
    floor_wei: int
    is_stuck: bool
    unmined: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GasSpending:
    """What settling on a network cost in the last 24 hours, the maximum cost of each transaction until its receipt is read. `by_listing`: only listings with a
    cost; each may spend `listing_budget_wei`."""

    chain_id: ChainId
    spent_wei: int
    budget_wei: int
    listing_budget_wei: int
    by_listing: Mapping[ListingId, int]


class RailStatus:
    """Logs and counts rails that are withdrawn and that come back. Used from one event loop."""

    def __init__(self, chain_ids: Iterable[ChainId], metrics: SettlementMetrics) -> None:
        self._chain_ids = tuple(chain_ids)
        self._metrics = metrics
        self._since_ms: dict[WithdrawnRail, int] = {}

    @property
    def withdrawn_since_ms(self) -> Mapping[WithdrawnRail, int]:
        """Every rail that was withdrawn at the last update, and the time of the update that found it first."""
        return self._since_ms

    def update(self, seen: Iterable[WithdrawnRail], *, now_ms: int) -> None:
        """`seen`: every rail that is withdrawn now."""
        before, withdrawn = self._since_ms, frozenset(seen)
        self._since_ms = {rail: before.get(rail, now_ms) for rail in sorted(withdrawn)}
        for rail in sorted(withdrawn - before.keys()):
            _log.warning("rail_withdrawn", **_describe_rail(rail))
        for rail in sorted(before.keys() - withdrawn):
            _log.info("rail_is_back", **_describe_rail(rail))
        counts = Counter((rail.chain_id, rail.reason) for rail in withdrawn)
        for chain_id in self._chain_ids:
            for reason in WithdrawalReason:
                self._metrics.withdrawn(chain_id, reason, counts[chain_id, reason])


def _describe_rail(rail: WithdrawnRail) -> dict[str, object]:
    fields: dict[str, object] = {"chain_id": rail.chain_id, "reason": rail.reason.value}
    return fields | {"subject": rail.subject} if rail.subject else fields


BUDGET_WINDOW_MS = 86_400_000
CHECKS_UNTIL_STALE = 6
"""After this many intervals without a response of its nodes the state of the network is unknown, and authorisations are not offered."""
MINED_DEPTH_CHECKS = 3
"""A nonce counts as finally mined only when it was mined this many checks ago: a reorganisation can undo a later one."""
COSTS_KEPT = 10_000
CLAIM_RESERVE_FACTOR = 3
"""A gas key keeps this many times what a claim of every channel costs at the current gas price."""
BUDGET_PAUSE_FACTOR = 20
"""The sums are read from the ledger again after this many times as long as the last read took."""
FAILURE_PAUSE_S = 1.0

_NO_FACILITATORS: Mapping[ChainId, FacilitatorClient] = MappingProxyType({})


@dataclass(slots=True)
class _NetworkGas:
    """The last state of one network. `seen_s`: when its fees were read last; `unsupported`: tokens that take no authorisations,
    or under another EIP-712 domain than configured; `closed`: the nonce below which the ledger counts all of a key's transactions as
    mined. `codes`: the payers' codes that reverted; `is_wallet_gas_known`: the ledger was read for payers with code. `claim_gas`: of a
    claim of every channel."""

    fees: Fees | None = None
    seen_s: float = 0.0
    accounts: dict[Address, AccountFacts] = field(default_factory=dict)
    mined: dict[Address, list[int]] = field(default_factory=dict)
    failing: set[Address] = field(default_factory=set)
    verified: set[Address] = field(default_factory=set)
    unsupported: set[Address] = field(default_factory=set)
    closed: dict[Address, int] = field(default_factory=dict)
    unmined: dict[Address, int] = field(default_factory=dict)
    codes: dict[bytes, CodeRecord] = field(default_factory=dict)
    is_wallet_gas_known: bool = False
    claim_gas: int = 0

    def note_reverted(self, code_hash: bytes) -> None:
        """Until the next read from the ledger."""
        before = self.codes.get(code_hash, CodeRecord(signed=0, reverted=0))
        self.codes[code_hash] = replace(before, signed=before.signed + 1, reverted=before.reverted + 1)


class _Payers(Enum):
    """The payers whose settlements a sum counts."""

    ALL = auto()
    WITH_CODE = auto()


@dataclass(slots=True, kw_only=True)
class _Spending:
    """The costs and budgets of one network within the window. `by_listing`: only listings with a cost, so that requests for prices cannot fill it."""

    budget_wei: int
    listing_budget_wei: int
    by_listing: dict[ListingId, int] = field(default_factory=dict)
    total_wei: int = 0
    noted: list[tuple[ListingId, int]] = field(default_factory=list)

    def is_within_budget(self, listing_id: ListingId) -> bool:
        return (
            self.total_wei < self.budget_wei and self.by_listing.get(listing_id, 0) < self.listing_budget_wei
        )

    def find_spent_listings(self) -> list[ListingId]:
        return [listing_id for listing_id, wei in self.by_listing.items() if wei >= self.listing_budget_wei]

    def note(self, listing_id: ListingId, wei: int) -> None:
        self.noted.append((listing_id, wei))
        self._add(listing_id, wei)

    def replace(self, by_listing: Mapping[ListingId, int]) -> None:
        """The ledger's sums, and the costs `noted` since they were read, which may be missing there."""
        self.by_listing, self.total_wei = dict(by_listing), sum(by_listing.values())
        for listing_id, wei in self.noted:
            self._add(listing_id, wei)

    def _add(self, listing_id: ListingId, wei: int) -> None:
        self.by_listing[listing_id] = self.by_listing.get(listing_id, 0) + wei
        self.total_wei += wei


class GasBudget:
    """The gas budget of all networks. Used from one event loop. `clock`: monotonic seconds."""

    def __init__(
        self,
        *,
        rules: Mapping[ChainId, SettlementRules],
        assets: Sequence[Asset],
        chains: SettlementChain,
        gas_ledger: GasLedger,
        limits: Limits,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        facilitators: Mapping[ChainId, FacilitatorClient] = _NO_FACILITATORS,
        metrics: SettlementMetrics = NO_METRICS,
        task: BackgroundTask | None = None,
    ) -> None:
        self._task = task or BackgroundTask(TaskName.GAS_CHECK)
        self._rules = {chain_id: one for chain_id, one in rules.items() if one.has_rail}
        self._assets = tuple(asset for asset in assets if asset.domain is not None)
        self._chains = chains
        self._gas_ledger = gas_ledger
        self._limits = limits
        self._clock = clock
        self._now_ms = now_ms
        self._facilitators = facilitators
        self._network_gas = {chain_id: _NetworkGas() for chain_id in self._rules}
        self._sequences = {
            chain_id: tuple(NonceSequence(chain_id, key) for key in one.gas_keys)
            for chain_id, one in self._rules.items()
        }
        self._spending = {
            (chain_id, payers): _Spending(
                budget_wei=one.network_budget_wei // divisor,
                listing_budget_wei=one.listing_budget_wei // divisor,
            )
            for payers, divisor in ((_Payers.ALL, 1), (_Payers.WITH_CODE, WALLET_BUDGET_DIVISOR))
            for chain_id, one in self._rules.items()
        }
        self._next_sum_s = float("-inf")
        self._costs: deque[tuple[SettlementAttempt, int]] = deque(maxlen=COSTS_KEPT)
        self._wallet_costs: deque[tuple[SettlementAttempt, int, bool]] = deque(maxlen=COSTS_KEPT)
        self._counted: BoundedDict[TxHash, None] = BoundedDict(entries_max=COSTS_KEPT)
        self._has_failure = asyncio.Event()
        self._metrics = metrics
        self._rail_status = RailStatus(self._rules, metrics)

    # ---- Read by calls, from the last refresh.

    def is_worth(self, asset: Asset, units: int) -> bool:
        """Whether a price reaches the minimum of its network at the gas price, in a token that takes authorisations. The gas that is left decides `is_offered`."""
        rules = self._rules.get(asset.chain_id)
        if rules is None or asset.domain is None or asset.token is None:
            return False
        network_gas = self._network_gas[asset.chain_id]
        gas_price_wei = 0 if network_gas.fees is None else network_gas.fees.price_wei
        return asset.token not in network_gas.unsupported and rules.is_worth(
            asset, units, gas_price_wei=gas_price_wei
        )

    def is_offered(self, asset: Asset, units: int, listing_id: ListingId) -> bool:
        """Whether a price can be settled now. False removes the rail from the offers of a 402, and stops the deposits of channels."""
        if not self.is_worth(asset, units):
            return False
        rules, network_gas = self._rules[asset.chain_id], self._network_gas[asset.chain_id]
        if rules.facilitator is not None:
            return self.is_reachable(asset.chain_id)  # the facilitator pays for gas
        return (
            self._is_affordable(rules, network_gas)
            and self._choose(asset.chain_id, floor_wei=self._find_floor_wei(rules)) is not None
            and self._spending[asset.chain_id, _Payers.ALL].is_within_budget(listing_id)
        )

    def is_within_budget(self, chain_id: ChainId, listing_id: ListingId) -> bool:
        """Whether the gas of this listing, and of all listings together, is below its budget. `listing_id`: also a name of transactions that no call pays for."""
        spending = self._spending.get((chain_id, _Payers.ALL))
        return spending is not None and spending.is_within_budget(listing_id)

    def choose_sequence(
        self, chain_id: ChainId, *, is_claimed: bool = False, without: Collection[Address] = ()
    ) -> NonceSequence | None:
        """The least busy sequence of a key that can pay and whose nonces move; None when there is none, or gas costs too much.
        A call that is claimed already and a claim of channels (`is_claimed`) may use keys whose balance is below their floor: the floor is the reserve
        for them. `without`: excluded keys."""
        rules = self._rules.get(chain_id)
        if rules is None or not self._is_affordable(rules, self._network_gas[chain_id]):
            return None
        sequence = self._choose(chain_id, floor_wei=self._find_floor_wei(rules), without=without)
        return (
            self._choose(chain_id, floor_wei=1, without=without)
            if sequence is None and is_claimed
            else sequence
        )

    def sequences(self, chain_id: ChainId) -> tuple[NonceSequence, ...]:
        """All sequences, also those of keys without gas."""
        return self._sequences.get(chain_id, ())

    def is_stuck(self, chain_id: ChainId, sender: Address) -> bool:
        sequences = self._sequences.get(chain_id, ())
        return any(sequence.progress.is_stuck for sequence in sequences if sequence.key.address == sender)

    def list_keys(self) -> tuple[GasKeyStatus, ...]:
        return tuple(
            GasKeyStatus(
                chain_id=chain_id,
                address=sequence.key.address,
                balance_wei=None if account is None else account.balance_wei,
                floor_wei=self._find_floor_wei(self._rules[chain_id]),
                is_stuck=sequence.progress.is_stuck,
                unmined=self._network_gas[chain_id].unmined.get(sequence.key.address),
            )
            for chain_id, sequences in self._sequences.items()
            for sequence in sequences
            for account in (self._network_gas[chain_id].accounts.get(sequence.key.address),)
        )

    def list_spending(self) -> tuple[GasSpending, ...]:
        return tuple(
            GasSpending(
                chain_id=chain_id,
                spent_wei=spending.total_wei,
                budget_wei=spending.budget_wei,
                listing_budget_wei=spending.listing_budget_wei,
                by_listing=dict(spending.by_listing),
            )
            for (chain_id, payers), spending in self._spending.items()
            if payers is _Payers.ALL and self._rules[chain_id].gas_keys
        )

    @property
    def chain_ids(self) -> tuple[ChainId, ...]:
        return tuple(self._rules)

    def wallet_factories(self, chain_id: ChainId) -> tuple[Address, ...]:
        rules = self._rules.get(chain_id)
        return () if rules is None else rules.wallet_factories

    @property
    def withdrawn_since_ms(self) -> Mapping[WithdrawnRail, int]:
        return self._rail_status.withdrawn_since_ms

    def latest_fees(self, chain_id: ChainId) -> Fees | None:
        network_gas = self._network_gas.get(chain_id)
        return None if network_gas is None or self._is_stale(network_gas) else network_gas.fees

    def is_wallet_served(self, chain_id: ChainId, listing_id: ListingId, code_hash: bytes | None) -> bool:
        """Whether gas may be spent on a payer with this code. None (a plain wallet): always. Payers with code have a part of each budget, and a code
        that reverts too often has none."""
        rules = self._rules.get(chain_id)
        if code_hash is None or rules is None or rules.facilitator is not None:
            return True
        network_gas = self._network_gas[chain_id]
        return (
            network_gas.is_wallet_gas_known
            and self._spending[chain_id, _Payers.WITH_CODE].is_within_budget(listing_id)
            and is_code_trusted(network_gas.codes.get(code_hash))
        )

    def is_reachable(self, chain_id: ChainId) -> bool:
        """Whether a network that takes authorisations responded lately, and its facilitator where one is configured. True for
        every other network."""
        network_gas = self._network_gas.get(chain_id)
        return network_gas is None or not (self._is_stale(network_gas) or self._is_facilitator_away(chain_id))

    def reserve_claims(self, chain_id: ChainId, *, gas: int) -> None:
        """Keeps gas for the claims of channels. `gas`: of a claim of every channel. While a key has less than `CLAIM_RESERVE_FACTOR` times its cost, the key signs nothing
        new: the channels that are open go on to their maximum, and what they owe must be claimed."""
        self._network_gas[chain_id].claim_gas = gas
        self._metrics.claim_reserve(chain_id, self.claim_reserve_wei(chain_id))

    def claim_reserve_wei(self, chain_id: ChainId) -> int:
        """0 while the gas price is not known: then no price is offered."""
        network_gas = self._network_gas[chain_id]
        price_wei = 0 if network_gas.fees is None else network_gas.fees.price_wei
        return CLAIM_RESERVE_FACTOR * network_gas.claim_gas * price_wei

    def _find_floor_wei(self, rules: SettlementRules) -> int:
        """The balance below which a key signs nothing new."""
        if not self._network_gas[rules.chain_id].claim_gas:
            return rules.gas_floor_wei
        return max(rules.gas_floor_wei, self.claim_reserve_wei(rules.chain_id))

    def price_max_wei(self, chain_id: ChainId) -> int:
        return self._rules[chain_id].gas_price_max_wei

    def wait_s(self, chain_id: ChainId, *, depth: int) -> float:
        """How long to wait for a settlement that must lie `depth` blocks deep."""
        return self._rules[chain_id].wait_s(depth, limits=self._limits)

    def is_in_time(self, chain: ChainRules, asset: Asset, units: int) -> bool:
        """Whether a caller can wait until a settlement of this price lies deep enough."""
        rules = self._rules.get(chain.chain_id)
        depth = chain.confirmations_for(asset, units)
        return rules is not None and rules.is_in_time(depth, limits=self._limits)

    def mark_failing(self, chain_id: ChainId, sender: Address) -> None:
        """A node refused this key's transaction: the key is not used until the next refresh."""
        self._network_gas[chain_id].failing.add(sender)
        self._has_failure.set()

    def add_spent(
        self, chain_id: ChainId, listing_id: ListingId, wei: int, *, code_hash: bytes | None = None
    ) -> None:
        """The maximum cost of a transaction that is being signed, until the ledger has it. `code_hash`: of its payer's code."""
        self._spending[chain_id, _Payers.ALL].note(listing_id, wei)
        if code_hash is not None:
            self._spending[chain_id, _Payers.WITH_CODE].note(listing_id, wei)

    def record_cost(
        self,
        attempt: SettlementAttempt,
        cost_wei: int,
        *,
        is_reverted: bool,
        step: ChannelStep | None = None,
    ) -> None:
        """Written with the next refresh. After a crash before that, the maximum cost goes on counting. `step`: of a transaction on channels."""
        if attempt.tx_hash not in self._counted:  # recovery reads a receipt again until it is deep enough
            self._counted[attempt.tx_hash] = None
            self._metrics.spent(attempt.chain_id, attempt.sender, cost_wei)
            if step is not None:
                outcome = ChannelOutcome.REVERTED if is_reverted else ChannelOutcome.DONE
                self._metrics.channel(attempt.chain_id, step, outcome, cost_wei)
        self._costs.append((attempt, cost_wei))
        self._wallet_costs.append((attempt, cost_wei, is_reverted))  # the ledger knows which payers have code
        if attempt.code_hash is not None and is_reverted:
            self._network_gas[attempt.chain_id].note_reverted(attempt.code_hash)

    # ---- Refresh.

    async def run(self) -> None:
        """Refreshes at the interval, and soon after a failure, until it is cancelled."""
        self._task.interval_s = self._limits.gas_refresh_s
        while True:
            self._has_failure.clear()
            await self._task.attempt(self.refresh)
            await asyncio.sleep(min(FAILURE_PAUSE_S, self._limits.gas_refresh_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.gas_refresh_s):
                    await self._has_failure.wait()

    async def refresh(self) -> None:
        """Refreshes every network and the sums of costs. A chain that does not respond keeps its last state."""
        refreshes = [partial(self._refresh_network, chain_id) for chain_id in self._rules]
        probes = [
            partial(one.probe, deadline_s=self._limits.rpc_deadline_s) for one in self._facilitators.values()
        ]
        try:
            await run_all([*refreshes, *probes])
            await self._refresh_budgets()
        finally:
            self._rail_status.update(self._find_withdrawn_rails(), now_ms=self._now_ms())

    async def _refresh_network(self, chain_id: ChainId) -> None:
        network_gas = self._network_gas[chain_id]
        try:
            network_gas.fees, network_gas.seen_s = await self._chains.fetch_fees(chain_id), self._clock()
            for sequence in self._sequences[chain_id]:
                await self._refresh_key(network_gas, sequence)
            for asset in self._assets:
                if asset.chain_id == chain_id:
                    await self._check_domain(network_gas, asset)
        except ChainUnavailable as exc:
            _log.warning("gas_unknown", chain_id=chain_id, detail=str(exc))

    async def _refresh_key(self, network_gas: _NetworkGas, sequence: NonceSequence) -> None:
        sender = sequence.key.address
        account = await self._chains.fetch_account(sequence.chain_id, sender)
        if not sequence.is_known or account.mined_nonce > self._last_mined(network_gas, sender):
            sequence.start_at(
                await self._gas_ledger.raise_nonce(sequence.chain_id, sender, account.mined_nonce)
            )
        await self._close_mined(network_gas, sequence, account.mined_nonce)
        floor_wei = self._rules[sequence.chain_id].gas_floor_wei
        known, network_gas.accounts[sender] = network_gas.accounts.get(sender), account
        network_gas.failing.discard(sender)
        if account.balance_wei < floor_wei and (known is None or known.balance_wei >= floor_wei):
            _log.warning(
                "gas_key_low",
                chain_id=sequence.chain_id,
                address=str(sender),
                balance_wei=account.balance_wei,
            )
        self._metrics.balance(sequence.chain_id, sender, account.balance_wei)
        signed = await self._gas_ledger.next_nonce(sequence.chain_id, sender)
        sequence.progress.record_check(
            mined_nonce=account.mined_nonce,
            next_nonce=signed,
            now_s=self._clock(),
            interval_s=self._limits.gas_refresh_s,
        )
        network_gas.unmined[sender] = max(0, signed - account.mined_nonce)
        self._metrics.unmined(sequence.chain_id, sender, network_gas.unmined[sender])

    async def _close_mined(self, network_gas: _NetworkGas, sequence: NonceSequence, mined_nonce: int) -> None:
        """Closes transactions that were mined some checks ago, and reopens closed ones that a reorganisation undid. The first check
        of a process reopens too, because earlier reorganisations are unknown to it."""
        sender = sequence.key.address
        counts = network_gas.mined.setdefault(sender, [])
        counts.append(mined_nonce)
        closed = network_gas.closed.get(sender)
        if closed is None or mined_nonce < closed:
            since_ms = self._now_ms() - BUDGET_WINDOW_MS
            await self._gas_ledger.reopen(
                sequence.chain_id, sender, since_nonce=mined_nonce, since_ms=since_ms
            )
            network_gas.closed[sender] = mined_nonce
        if len(counts) > MINED_DEPTH_CHECKS:
            sure = min(counts)
            counts.pop(0)
            await self._gas_ledger.mark_mined(sequence.chain_id, sender, below=sure)
            network_gas.closed[sender] = max(sure, network_gas.closed[sender])

    def _last_mined(self, network_gas: _NetworkGas, sender: Address) -> int:
        account = network_gas.accounts.get(sender)
        return -1 if account is None else account.mined_nonce

    async def _check_domain(self, network_gas: _NetworkGas, asset: Asset) -> None:
        """Checks each token once: under another EIP-712 domain than the configured one the token refuses every authorisation."""
        if asset.token is None or asset.domain is None or asset.token in network_gas.verified:
            return
        fault = await find_domain_fault(self._chains, asset, deadline_s=self._limits.rpc_deadline_s)
        if fault is None:
            network_gas.unsupported.discard(asset.token)
            network_gas.verified.add(asset.token)
            return
        network_gas.unsupported.add(asset.token)
        _log.error(
            "token_takes_no_authorizations",
            chain_id=asset.chain_id,
            token=str(asset.token),
            fault=fault.value,
        )

    async def _refresh_budgets(self) -> None:
        while self._costs:
            attempt, cost_wei = self._costs[0]
            await self._gas_ledger.record_cost(attempt, cost_wei=cost_wei)
            self._costs.popleft()
        began_s = self._clock()
        if began_s < self._next_sum_s:
            return
        for chain_id, rules in self._rules.items():
            spending = self._spending[chain_id, _Payers.ALL]
            spending.noted.clear()
            spent = await self._gas_ledger.gas_spent_wei(chain_id, since_ms=self._now_ms() - BUDGET_WINDOW_MS)
            spending.replace(spent)
            if rules.gas_keys:
                self._metrics.floor(chain_id, rules.gas_floor_wei)
                self._metrics.budget_used(chain_id, spending.total_wei / max(1, rules.network_budget_wei))
        try:
            await self._refresh_wallets()
        except StorageUnavailable:  # payers with code are not served meanwhile; other payers are
            _log.warning("wallet_gas_unknown")
        ended_s = self._clock()
        self._next_sum_s = ended_s + BUDGET_PAUSE_FACTOR * (ended_s - began_s)

    async def _refresh_wallets(self) -> None:
        while self._wallet_costs:
            attempt, cost_wei, is_reverted = self._wallet_costs[0]
            await self._gas_ledger.record_wallet_cost(attempt, cost_wei=cost_wei, is_reverted=is_reverted)
            self._wallet_costs.popleft()
        since_ms = self._now_ms() - BUDGET_WINDOW_MS
        for chain_id, network_gas in self._network_gas.items():
            spending = self._spending[chain_id, _Payers.WITH_CODE]
            spending.noted.clear()
            spending.replace(await self._gas_ledger.wallet_gas_wei(chain_id, since_ms=since_ms))
            network_gas.codes = dict(await self._gas_ledger.reverting_codes(chain_id, since_ms=since_ms))
            network_gas.is_wallet_gas_known = True

    # ---- Rules.

    def _find_withdrawn_rails(self) -> Iterator[WithdrawnRail]:
        for chain_id, rules in self._rules.items():
            network_gas = self._network_gas[chain_id]
            for token in network_gas.unsupported:
                yield WithdrawnRail(chain_id, WithdrawalReason.TOKEN, str(token))
            for sequence in self._sequences[chain_id]:
                if sequence.progress.is_stuck:
                    yield WithdrawnRail(chain_id, WithdrawalReason.NONCE_GAP, str(sequence.key.address))
            reason = self._find_reason(rules, network_gas)
            if reason is not None:
                yield WithdrawnRail(chain_id, reason)
            for listing_id in self._spending[chain_id, _Payers.ALL].find_spent_listings():
                yield WithdrawnRail(chain_id, WithdrawalReason.LISTING_BUDGET, listing_id)
            yield from self._find_unserved(chain_id)

    def _find_unserved(self, chain_id: ChainId) -> Iterator[WithdrawnRail]:
        spending = self._spending[chain_id, _Payers.WITH_CODE]
        if 0 < spending.total_wei >= spending.budget_wei:
            yield WithdrawnRail(chain_id, WithdrawalReason.WALLET_BUDGET)
        for listing_id in spending.find_spent_listings():
            yield WithdrawnRail(chain_id, WithdrawalReason.WALLET_BUDGET, listing_id)
        for code_hash, record in self._network_gas[chain_id].codes.items():
            if not is_code_trusted(record):
                yield WithdrawnRail(chain_id, WithdrawalReason.WALLET_CODE, "0x" + code_hash.hex())

    def _find_reason(self, rules: SettlementRules, network_gas: _NetworkGas) -> WithdrawalReason | None:
        """Why no price is offered on the network. Where a facilitator settles, gas does not count."""
        if self._is_stale(network_gas) or network_gas.fees is None:
            return WithdrawalReason.GAS_UNKNOWN
        if rules.facilitator is not None:
            return WithdrawalReason.FACILITATOR_AWAY if self._is_facilitator_away(rules.chain_id) else None
        if not network_gas.accounts:
            return WithdrawalReason.GAS_UNKNOWN
        if not self._is_affordable(rules, network_gas):
            return WithdrawalReason.GAS_TOO_DEAR
        funded = self._find_funded(rules.chain_id, floor_wei=self._find_floor_wei(rules))
        if all(sequence.progress.is_stuck for sequence in funded):
            return WithdrawalReason.NONCE_GAP if funded else WithdrawalReason.GAS_KEYS_LOW
        spending = self._spending[rules.chain_id, _Payers.ALL]
        if spending.total_wei >= spending.budget_wei:
            return WithdrawalReason.NETWORK_BUDGET
        return None

    def _is_facilitator_away(self, chain_id: ChainId) -> bool:
        facilitator = self._facilitators.get(chain_id)
        is_delegated = self._rules[chain_id].facilitator is not None
        return is_delegated and (facilitator is None or not facilitator.is_healthy)

    def _is_stale(self, network_gas: _NetworkGas) -> bool:
        return self._clock() - network_gas.seen_s > CHECKS_UNTIL_STALE * self._limits.gas_refresh_s

    def _is_affordable(self, rules: SettlementRules, network_gas: _NetworkGas) -> bool:
        fees = None if self._is_stale(network_gas) else network_gas.fees
        return fees is not None and fees.price_wei <= rules.gas_price_max_wei

    def _choose(
        self, chain_id: ChainId, *, floor_wei: int, without: Collection[Address] = ()
    ) -> NonceSequence | None:
        able = [
            sequence
            for sequence in self._find_funded(chain_id, floor_wei=floor_wei)
            if not sequence.progress.is_stuck and sequence.key.address not in without
        ]
        return min(able, key=attrgetter("in_flight"), default=None)

    def _find_funded(self, chain_id: ChainId, *, floor_wei: int) -> list[NonceSequence]:
        """The sequences of keys that have gas and that no node has refused since the last refresh."""
        network_gas = self._network_gas[chain_id]
        return [
            sequence
            for sequence in self._sequences[chain_id]
            if sequence.key.address not in network_gas.failing
            and (account := network_gas.accounts.get(sequence.key.address)) is not None
            and account.balance_wei >= floor_wei
        ]
