"""Checks the blocks of payments that are not final, until each payment is final or gone.

One check of a block covers all payments in it: they are valid while the chain has the same hash at that height. Receipts are
read only where a block has changed, or where one node was enough to accept a payment: a final payment is never checked again, so
a false report would remain. For every value, as many nodes as the network requires must agree.

The watcher changes the ledger only on a positive response of nodes. It marks a payment gone only after two checks in a row with
that response, and never while an authorisation has made the same transfer in another transaction. A chain that does not respond
changes nothing. Where nodes disagree repeatedly, the unspent part of a payment is held until they agree.
"""

import asyncio
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)
from enum import Enum, auto
from functools import partial
from typing import Generic, TypeVar, assert_never

import structlog

from tollway.chain.networks import ChainRules
from tollway.chain.port import ChainFacts, ChainTip, Disputed, NotMined, Quorum, WatchedChain
from tollway.errors import ChainUnavailable, StorageUnavailable
from tollway.ids import CallId, ChainId, format_network
from tollway.ledger.ledger import Finality, PaymentLedger, UnfinalBlock
from tollway.ledger.records import (
    AuthorizedCall,
    NewPayment,
    Payment,
    PaymentState,
    SettledTransfer,
    is_worth_more,
)
from tollway.limits import Limits
from tollway.observability.background import BackgroundTask, TaskName, describe_failure, run_all
from tollway.observability.call_trace import CallTrace, TraceSampler, find_current_trace, running_trace
from tollway.payments.authorization_onchain import TransferFound, find_use
from tollway.payments.transaction_rules import NoLongerPays, NotCanonical, StillPays, recheck_payment

CHECKS_UNTIL_GONE = 2
"""A node that lags or returns a false response for a moment must not create debts."""
CHECKS_WITHOUT_LOGS_MAX = 30
"""After this many checks without logs from the nodes the payment is gone, although its money may have moved to another transaction:
its calls are debt until that transaction is found."""
AUTHORIZATIONS_MAX = 100
REORG_BLOCKS_MAX = 128
"""After a reorganisation an authorisation may be used in a lower block than the head at its claim."""
RECHECK_S = 300.0
"""A block is read at least this often, also while an unchanged block above it proves that it is unchanged."""
BLOCKS_PER_PAGE = 2_000
RECEIPTS_AT_ONCE = 40
HELD_MAX = 10_000
"""The maximum of payments held for a dispute that one check may free."""

_log = structlog.get_logger(__name__)

K = TypeVar("K", bound=Hashable)
BlockId = tuple[int, bytes]


class BlockComparison(Enum):
    UNCHANGED = auto()
    CHANGED = auto()
    DISPUTED = auto()


class ReorgTraces:
    """The traces of the watcher: one for each payment that leaves its chain, with a span for each sampled call that it pays (`tollway.call.id`).

    `list_calls`: the calls that hold units of a payment, newest first, at most `SPANS_MAX`."""

    def __init__(
        self, sampler: TraceSampler, list_calls: Callable[[int], Awaitable[Sequence[CallId]]]
    ) -> None:
        self._sampler = sampler
        self.list_calls = list_calls

    def start(self, chain_id: ChainId) -> CallTrace:
        """The trace of a payment that was not found. It is exported only if a sampled call is added."""
        trace = self._sampler.start_linked("tollway.reorg_watcher")
        trace.root.set("tollway.network", format_network(chain_id))
        return trace

    def describe_gone(self, call_ids: Sequence[CallId], reason: str) -> None:
        trace = find_current_trace()
        assert trace is not None, "it runs in the trace of the payment"
        trace.root.set("error.type", reason)
        for call_id in call_ids:
            trace.add_call(call_id, "gone")


class ReorgWatcher:
    """Watches the payments of all networks. One of several gateways runs it for all; two at once do no harm, because each move names
    the state that it expects. The networks are checked together, so an unavailable one delays the others by its deadlines at most.

    `on_gone` is called with each payment that left its chain, after the ledger has recorded it. `clock`: monotonic seconds.
    """

    def __init__(
        self,
        payments: PaymentLedger,
        finality: Finality,
        chains: WatchedChain,
        rules: Mapping[ChainId, ChainRules],
        *,
        limits: Limits,
        now_ms: Callable[[], int],
        on_gone: Callable[[Payment], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        task: BackgroundTask | None = None,
        traces: "ReorgTraces | None" = None,
    ) -> None:
        self._task = task or BackgroundTask(TaskName.PAYMENT_CHECK)
        self._interval_s = limits.watch_interval_s
        self._sleep = sleep
        self._clock = clock
        self._running_since_s: float | None = None
        self._networks = {
            chain_id: NetworkWatcher(
                payments,
                finality,
                chains,
                one,
                limits=limits,
                now_ms=now_ms,
                on_gone=on_gone,
                clock=clock,
                traces=traces,
            )
            for chain_id, one in rules.items()
        }

    async def run(self) -> None:
        self._task.interval_s = self._interval_s
        for network in self._networks.values():
            network.forget()  # another gateway may have checked since the last run here, so checks are not in a row
        self._running_since_s = self._clock()
        try:
            while True:
                started_s = self._clock()
                await self._task.attempt(self.check_once)
                # A check reads everything: after one that took longer than the interval, the next one starts at once.
                await self._sleep(max(0.0, self._interval_s - (self._clock() - started_s)))
        finally:
            self._running_since_s = None

    async def check_once(self) -> None:
        await run_all([network.check for network in self._networks.values()])

    def check_age_s(self, chain_id: ChainId) -> float:
        """The age of the last check that read every payment that is not final. 0 where this gateway does not lead."""
        if self._running_since_s is None:
            return 0.0
        checked_s = self._networks[chain_id].checked_s
        return self._clock() - (self._running_since_s if checked_s is None else checked_s)


class NetworkWatcher:
    """Checks the payments of one network. `checked_s`: the start of the last complete check."""

    def __init__(
        self,
        payments: PaymentLedger,
        finality: Finality,
        chains: WatchedChain,
        rules: ChainRules,
        *,
        limits: Limits,
        now_ms: Callable[[], int],
        on_gone: Callable[[Payment], None],
        clock: Callable[[], float],
        traces: "ReorgTraces | None" = None,
    ) -> None:
        self._traces = traces
        self._payments = payments
        self._finality = finality
        self._chains = chains
        self._rules = rules
        self._chain_id = rules.chain_id
        self._is_one_node_enough = rules.first_quorum is Quorum.ONE
        self._limits = limits
        self._now_ms = now_ms
        self._on_gone = on_gone
        self._clock = clock
        self._slots = asyncio.Semaphore(limits.watch_in_flight_max)
        self._is_away = False
        self.forget()

    def forget(self) -> None:
        self.checked_s: float | None = None
        self._seen: dict[
            UnfinalBlock, float
        ] = {}  # blocks that were unchanged at their last check, and its time
        self._missed = ConsecutiveCounter[tuple[BlockId, int]]()  # payments that were not found
        self._disputes = ConsecutiveCounter[
            int | UnfinalBlock
        ]()  # payments and blocks about which nodes disagree
        self._gone_after_id = 0
        self._has_final_tag = False
        self._is_whole = True

    async def check(self) -> None:
        """One check of every payment that is not final, and of some that are gone."""
        started_s = self._clock()
        self._is_whole, is_done = True, False
        try:
            await self._check_blocks_and_gone()
            is_done = True
        except ChainUnavailable as exc:
            self._mark_away(exc)
        finally:
            is_whole = is_done and self._is_whole
            self._missed.end_check(is_whole=is_whole)
            self._disputes.end_check(is_whole=is_whole)
        if is_whole:
            self.checked_s, self._is_away = started_s, False

    async def _check_blocks_and_gone(self) -> None:
        # First, because it needs no node: what a gateway that ended has left.
        if debt_units := await self._finality.continue_moves(self._chain_id, now_ms=self._now_ms()):
            _log.warning("payment_moves_continued", chain_id=self._chain_id, debt_units=debt_units)
        blocks = await self._read_blocks()
        gone = await self._finality.gone_payments(
            self._chain_id,
            after_id=self._gone_after_id,
            limit=self._limits.watch_batch_max,
            now_ms=self._now_ms(),
        )
        if blocks:
            await self._check_blocks(blocks)
        if gone or self._gone_after_id:
            self._gone_after_id = gone[-1].id if len(gone) == self._limits.watch_batch_max else 0
            await self._review(gone)

    def _mark_away(self, exc: ChainUnavailable) -> None:
        self._is_whole = False
        if not self._is_away:  # once for each outage
            _log.warning("chain_unavailable", chain_id=self._chain_id, detail=str(exc))
        self._is_away = True

    # ---- Blocks.

    async def _read_blocks(self) -> list[UnfinalBlock]:
        blocks: list[UnfinalBlock] = []
        while True:
            page = await self._finality.unfinal_blocks(
                self._chain_id, after=blocks[-1] if blocks else None, limit=BLOCKS_PER_PAGE
            )
            blocks += page
            if len(page) < BLOCKS_PER_PAGE:
                return blocks

    async def _check_blocks(self, blocks: Sequence[UnfinalBlock]) -> None:
        final_number = self._find_final(await self._chains.fetch_tip(self._chain_id))
        held = await self._finality.held_unfinal(self._chain_id, limit=HELD_MAX)
        held_ids: dict[BlockId, list[int]] = {}
        for payment in held:
            held_ids.setdefault((payment.block_number, payment.block_hash), []).append(payment.id)
        comparisons = await self._compare_hashes(blocks, held_ids.keys(), final_number)
        self._forget_missed(comparisons)
        disputed: list[UnfinalBlock] = []
        for block in blocks:
            match comparisons.get(block):
                case BlockComparison.UNCHANGED:
                    ids = held_ids.get((block.number, block.block_hash), ())
                    await self._confirm(block, held_ids=ids, is_final=block.number <= final_number)
                case BlockComparison.CHANGED:
                    await self._review_block(block)
                case BlockComparison.DISPUTED:
                    disputed.append(block)
                case None:
                    pass  # a block above it is unchanged, or no node reported it
        await self._count_disputed_blocks(disputed)

    def _forget_missed(self, comparisons: Mapping[UnfinalBlock, BlockComparison]) -> None:
        """Resets the count of payments whose block is unchanged again, except where their receipts are read below."""
        back = {
            (block.number, block.block_hash)
            for block, comparison in comparisons.items()
            if comparison is BlockComparison.UNCHANGED and not self._needs_receipts(block)
        }
        self._missed.drop_if(lambda key: key[0] in back)

    def _needs_receipts(self, block: UnfinalBlock) -> bool:
        """Whether one node was enough to accept a payment in this block, and too few nodes have agreed since."""
        return self._is_one_node_enough and not block.is_agreed

    def _find_final(self, tip: ChainTip) -> int:
        """The highest final block. Depth counts only while the nodes have never named a final block."""
        if tip.finalized_number is not None:
            self._has_final_tag = True
            return tip.finalized_number
        if self._has_final_tag:
            # The nodes have named final blocks before, so depth does not count: no block is final in this check.
            return -1
        return tip.head_number - self._rules.finality_depth

    async def _compare_hashes(
        self, blocks: Sequence[UnfinalBlock], held: Iterable[BlockId], final_number: int
    ) -> dict[UnfinalBlock, BlockComparison]:
        """Reads the blocks that are due, and the newest block of earlier checks: while it is unchanged, the blocks below it are
        unchanged too. When it has changed, every block is read."""
        now_s, held_blocks = self._clock(), set(held)
        self._seen = {block: self._seen[block] for block in blocks if block in self._seen}
        newest = max(self._seen, key=lambda block: block.number, default=None)
        # There are five reasons to read a block: it stands for the blocks below it, it becomes final, its last read is too old, it has
        # held payments that may be freed, or too few nodes have agreed on its receipts.
        due = [
            block
            for block in blocks
            if block == newest
            or block.number <= final_number
            or self._seen.get(block, -RECHECK_S) <= now_s - RECHECK_S
            or (block.number, block.block_hash) in held_blocks
            or self._needs_receipts(block)
        ]
        comparisons = await self._read_hashes(due)
        if newest is not None and comparisons.get(newest) is not BlockComparison.UNCHANGED:
            comparisons |= await self._read_hashes([block for block in blocks if block not in comparisons])
        for block, comparison in comparisons.items():
            if comparison is BlockComparison.UNCHANGED:
                self._seen[block] = now_s
            else:
                self._seen.pop(block, None)
        return comparisons

    async def _read_hashes(self, blocks: Sequence[UnfinalBlock]) -> dict[UnfinalBlock, BlockComparison]:
        if not blocks:
            return {}
        reports = await self._chains.fetch_block_hashes(self._chain_id, [block.number for block in blocks])
        comparisons: dict[UnfinalBlock, BlockComparison] = {}
        for block in blocks:
            if block.number in reports.disputed:
                comparisons[block] = BlockComparison.DISPUTED
            elif block.number in reports.known:
                is_same = reports.known[block.number] == block.block_hash
                comparisons[block] = BlockComparison.UNCHANGED if is_same else BlockComparison.CHANGED
            else:
                self._is_whole = False
        return comparisons

    async def _confirm(self, block: UnfinalBlock, *, held_ids: Sequence[int], is_final: bool) -> None:
        """Records that the block is unchanged. Before that, payments that one node was enough to accept are read once more."""
        if self._needs_receipts(block):
            await self._review_block(block, is_unchecked_only=True)
        elif held_ids:
            await self._free(held_ids)
        if is_final:
            await self._finality.finish_block(
                block, is_checked_only=self._is_one_node_enough, now_ms=self._now_ms()
            )
            self._seen.pop(block, None)

    async def _count_disputed_blocks(self, blocks: Sequence[UnfinalBlock]) -> None:
        if not blocks:
            return
        _log.warning("blocks_disputed", chain_id=self._chain_id, lowest=blocks[0].number, count=len(blocks))
        for block in blocks:
            if self._disputes.count(block) % self._limits.disputed_looks_max == 0:
                async for page in self._pages(block, is_unchecked_only=False):
                    await self._hold(page)

    async def _hold(self, payments: Sequence[Payment]) -> None:
        held = [payment for payment in payments if not payment.is_held]
        if held and await self._finality.hold_disputed([payment.id for payment in held]):
            first = str(held[0].tx_hash)
            _log.warning("payments_held", chain_id=self._chain_id, count=len(held), transaction=first)

    async def _free(self, payment_ids: Sequence[int]) -> None:
        if freed := await self._finality.free_disputed(payment_ids):
            _log.info("payments_freed", chain_id=self._chain_id, count=freed)

    # ---- Receipts.

    async def _pages(
        self, block: UnfinalBlock, *, is_unchecked_only: bool
    ) -> AsyncIterator[Sequence[Payment]]:
        after_id, limit = 0, self._limits.watch_batch_max
        while True:
            page = await self._finality.unfinal_in(
                block, after_id=after_id, limit=limit, is_unchecked_only=is_unchecked_only
            )
            if page:
                yield page
                after_id = page[-1].id
            if len(page) < limit:
                return

    async def _review_block(self, block: UnfinalBlock, *, is_unchecked_only: bool = False) -> None:
        async for page in self._pages(block, is_unchecked_only=is_unchecked_only):
            await self._review(page)

    async def _review(self, payments: Sequence[Payment]) -> None:
        """Reads the receipts in bounded requests. A failure does not stop the other requests; the first one is raised at the end."""
        parts = [
            payments[start : start + RECEIPTS_AT_ONCE] for start in range(0, len(payments), RECEIPTS_AT_ONCE)
        ]
        await run_all([partial(self._review_in_turn, part) for part in parts])

    async def _review_in_turn(self, payments: Sequence[Payment]) -> None:
        async with self._slots:
            await self._review_part(payments)

    async def _review_part(self, payments: Sequence[Payment]) -> None:
        hashes = list(dict.fromkeys(payment.tx_hash for payment in payments))
        try:
            reports = await self._chains.review_receipts(self._chain_id, hashes)
        except ChainUnavailable as exc:
            self._mark_away(exc)
            return
        paying_in: dict[BlockId, list[Payment]] = {}
        disputed: list[Payment] = []
        for payment in payments:
            facts = reports.get(payment.tx_hash)
            try:
                if facts is None:
                    self._is_whole = False
                elif _is_disputed(facts, payment):
                    disputed.append(payment)
                elif await self._recheck(payment, facts):
                    assert isinstance(facts, ChainFacts)
                    paying_in.setdefault((facts.block_number, facts.block_hash), []).append(payment)
            except StorageUnavailable:
                raise
            except Exception as exc:  # noqa: BLE001 - a task root: one bad payment must not stop the others
                _log.error("payment_check_failed", transaction=str(payment.tx_hash), **describe_failure(exc))
        for (number, block_hash), found in paying_in.items():
            self._forget_found(found)
            await self._finality.mark_checked(
                [one.id for one in found], block_number=number, block_hash=block_hash, now_ms=self._now_ms()
            )
            if held := [one.id for one in found if one.is_held]:
                await self._free(held)
        await self._count_disputed(disputed)

    def _forget_found(self, payments: Sequence[Payment]) -> None:
        ids = {payment.id for payment in payments}
        self._missed.drop_if(lambda key: key[1] in ids)

    async def _count_disputed(self, payments: Sequence[Payment]) -> None:
        checks = {payment.id: self._disputes.count(payment.id) for payment in payments}
        for payment in payments:
            if checks[payment.id] == 1:  # once for each dispute
                _log.warning("payment_disputed", transaction=str(payment.tx_hash))
        await self._hold([one for one in payments if checks[one.id] >= self._limits.disputed_looks_max])

    async def _recheck(self, payment: Payment, facts: ChainFacts | NotMined | Disputed) -> bool:
        """Checks the recorded payment by the basic rules: in another block its transaction may have another effect. True: the payment
        is valid in the block of the facts."""
        if isinstance(facts, Disputed):
            return False
        if isinstance(facts, NotMined):
            await self._count_missing(payment, "not_mined")
            return False
        outcome = recheck_payment(facts, payment, self._rules)
        match outcome:
            case NotCanonical():
                return False
            case NoLongerPays():
                await self._count_missing(payment, outcome.reason)
                return False
            case StillPays() if payment.state is PaymentState.GONE:
                if outcome.is_deep:
                    await self._bring_back(payment, outcome.payment)
                return False
            case StillPays() if outcome.payment.value_units < payment.value_units:
                # Once it is gone, it may come back at its new value.
                await self._count_missing(payment, "worth_less")
                return False
            case StillPays() if is_worth_more(payment, outcome.payment):
                if outcome.is_deep:
                    await self._raise(payment, outcome.payment)
                return outcome.is_deep  # otherwise the next check reads it again
            case StillPays():
                return True
            case _:
                assert_never(outcome)

    async def _bring_back(self, payment: Payment, found: NewPayment) -> None:
        await self._payments.record_payments((found,), now_ms=self._now_ms())
        _log.info("payment_back", transaction=str(payment.tx_hash), block_number=found.block_number)

    async def _raise(self, payment: Payment, found: NewPayment) -> None:
        """Raises the value of a payment before it is final, because a final payment never changes."""
        await self._payments.record_payments((found,), now_ms=self._now_ms())
        _log.info(
            "payment_worth_more",
            transaction=str(payment.tx_hash),
            units=found.value_units - payment.value_units,
        )

    # ---- Payments that are not found.

    async def _count_missing(self, payment: Payment, reason: str) -> None:
        if self._traces is None:
            await self._handle_missing(payment, reason)
            return
        with running_trace(self._traces.start(self._chain_id)):
            await self._handle_missing(payment, reason)

    async def _handle_missing(self, payment: Payment, reason: str) -> None:
        if payment.state is PaymentState.GONE:
            await self._find_moved_transfers(payment)
            return
        key = ((payment.block_number, payment.block_hash), payment.id)
        missed = self._missed.count(key)
        if missed < CHECKS_UNTIL_GONE or await self._may_stay(payment, missed):
            return
        # Before the ledger takes the payment from its calls.
        call_ids = () if self._traces is None else await self._traces.list_calls(payment.id)
        try:
            debt_units = await self._finality.mark_gone(payment.id, now_ms=self._now_ms())
        finally:
            # Its spending may have ended although a later commit failed.
            self._on_gone(payment)
        if self._traces is not None:
            self._traces.describe_gone(call_ids, reason)
        self._missed.drop_if(lambda other: other == key)
        _log.warning("payment_gone", transaction=str(payment.tx_hash), reason=reason, debt_units=debt_units)

    async def _may_stay(self, payment: Payment, missed: int) -> bool:
        # There are three cases. Transfers have moved to another transaction: the next check reads what is left of the payment. None has
        # moved: the payment is gone. The nodes returned no logs: the payment stays, for `CHECKS_WITHOUT_LOGS_MAX` checks at most.
        is_moved = await self._find_moved_transfers(payment)
        return missed < CHECKS_WITHOUT_LOGS_MAX if is_moved is None else is_moved

    async def _find_moved_transfers(self, payment: Payment) -> bool | None:
        """Whether authorisations of that payment have made their transfers in other transactions. The ledger then records the move,
        and the next check handles the rest of the payment. None: the nodes did not return the logs."""
        is_moved, is_seen = False, True
        for call in await self._finality.authorizations_in(payment.id, limit=AUTHORIZATIONS_MAX):
            try:
                transfer = await self._find_transfer(payment, call)
            except ChainUnavailable as exc:
                _log.warning("authorization_unseen", call_id=call.call_id, detail=str(exc))
                is_seen = False
                break
            if transfer is not None and await self._finality.move_transfer(
                call.call_id, before=payment.tx_hash, transfer=transfer, now_ms=self._now_ms()
            ):
                is_moved = True
                if (trace := find_current_trace()) is not None:
                    trace.add_call(call.call_id, "moved")
                _log.info("payment_moved", before=str(payment.tx_hash), transaction=str(transfer.tx_hash))
        if is_moved:
            self._on_gone(payment)
        return is_moved or (False if is_seen else None)

    async def _find_transfer(self, payment: Payment, call: AuthorizedCall) -> SettledTransfer | None:
        """The transfer of the authorisation in another transaction. A payment that is still recorded keeps its state when that
        transaction is mined at all; a payment that is gone needs the depth of a new payment."""
        asset = next((asset for asset in self._rules.assets if asset.key == payment.asset), None)
        if asset is None:
            return None
        is_gone = payment.state is PaymentState.GONE
        units = asset.floor_to_ledger(call.authorization.base_units)
        use = await find_use(
            self._chains,
            call.authorization,
            from_block=max(0, call.seen_block - REORG_BLOCKS_MAX),
            depth=self._rules.confirmations_for(asset, units) if is_gone else 1,
            quorum=Quorum.AGREED,
        )
        return use.transfer if isinstance(use, TransferFound) else None


class ConsecutiveCounter(Generic[K]):
    """Counts checks in a row by key. A complete check drops every key that it did not count; an incomplete check drops none."""

    def __init__(self) -> None:
        self._before: dict[K, int] = {}
        self._now: dict[K, int] = {}

    def count(self, key: K) -> int:
        """Counts the key once for this check. Returns the number of checks in a row that have counted it."""
        self._now[key] = checks = self._before.get(key, 0) + 1
        return checks

    def drop_if(self, is_over: Callable[[K], bool]) -> None:
        for counts in (self._before, self._now):
            for key in [key for key in counts if is_over(key)]:
                del counts[key]

    def end_check(self, *, is_whole: bool) -> None:
        self._before = self._now if is_whole else {**self._before, **self._now}
        self._now = {}


def _is_disputed(facts: ChainFacts | NotMined | Disputed, payment: Payment) -> bool:
    """Whether nodes disagree about the payment, or name a block that their own chain does not have."""
    if payment.state is not PaymentState.UNFINAL or isinstance(facts, NotMined):
        return False
    return isinstance(facts, Disputed) or facts.canonical_hash != facts.block_hash
