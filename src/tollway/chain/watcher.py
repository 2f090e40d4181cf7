"""Re-reads payments that can still leave their chain, until they are final or gone.

It changes the books only on what a node positively says, and takes a payment away only when that was said at two
checks in a row; and never while an authorisation has made the same transfer in another transaction. A chain that does
not answer changes nothing. It never decides what a payment may buy.

Where one node's word was enough to sell for a small payment, it is not enough here: what is final is never looked at
again, so a lie would stand for ever. Whatever the value, as many nodes as the network asks for must agree.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import assert_never

import structlog

from tollway.background import BackgroundTask, TaskName, describe_failure, run_all
from tollway.chain.reader import ChainFacts, NotMined, SettlementChain, Trust
from tollway.chain.rules import ChainRules
from tollway.errors import ChainUnavailable, NodesDisagree, StorageUnavailable
from tollway.identifiers import ChainId
from tollway.ledger.authorization import AuthorizedCall, SettledTransfer
from tollway.ledger.book import Book
from tollway.ledger.call import NewPayment, Payment, PaymentState, is_worth_more
from tollway.limits import Limits
from tollway.payments.authorization_use import Paid, find_use
from tollway.payments.verdict import Displaced, Standing, Void, judge_again

CHECKS_UNTIL_GONE = 2
"""One node that lags or lies for a moment must not make debts."""
LOOKS_UNTIL_GONE = 30
"""A node that tells no logs for so many checks says nothing of where else the money moved: it is a debt until then."""
AUTHORIZATIONS_MAX = 100
"""Of one transaction, at one check."""
REORG_BLOCKS_MAX = 128
"""An authorisation may move its money in a lower block than the one at which its call was claimed."""

_log = structlog.get_logger(__name__)


class Watcher:
    """One per process; of several gateways one runs it for all. Two at once do no harm: each move names the state that it
    expects.

    `on_gone` is told of each payment that left its chain, once the books say so.
    """

    def __init__(
        self,
        book: Book,
        chains: SettlementChain,
        rules: Mapping[ChainId, ChainRules],
        *,
        limits: Limits,
        now_ms: Callable[[], int],
        on_gone: Callable[[Payment], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        task: BackgroundTask | None = None,
    ) -> None:
        self._task = task or BackgroundTask(TaskName.PAYMENT_CHECK)
        self._book = book
        self._chains = chains
        self._rules = rules
        self._limits = limits
        self._now_ms = now_ms
        self._on_gone = on_gone
        self._sleep = sleep
        self._missed: dict[int, int] = {}  # payment id -> checks in a row that did not find it

    async def run(self) -> None:
        """Checks again and again, until it is cancelled."""
        self._task.interval_s = self._limits.watch_interval_s
        self._missed.clear()  # another may have checked since it last ran here: not in a row any more
        while True:
            await self._task.attempt(self.check_once)
            await self._sleep(self._limits.watch_interval_s)

    async def check_once(self) -> None:
        """One batch, the least recently checked payments first. Raises StorageUnavailable when it cannot be read."""
        payments = await self._book.unfinal_payments(limit=self._limits.watch_batch_max)
        turns = asyncio.Semaphore(self._limits.watch_in_flight_max)
        away: set[ChainId] = set()
        await run_all([partial(self._check_in_turn, payment, turns, away) for payment in payments])

    async def _check_in_turn(self, payment: Payment, turns: asyncio.Semaphore, away: set[ChainId]) -> None:
        async with turns:
            try:
                await self._check(payment, away)
            except StorageUnavailable:
                raise  # one line for all of them
            except Exception as exc:  # noqa: BLE001 - a task root: one bad payment must not stop the others
                _log.error("payment_check_failed", transaction=str(payment.tx_hash), **describe_failure(exc))

    async def _check(self, payment: Payment, away: set[ChainId]) -> None:
        rules = self._rules.get(payment.chain_id)
        if rules is None or payment.chain_id in away:
            await self._note_unchanged(payment)
            return
        try:
            facts = await self._chains.fetch_facts(payment.chain_id, payment.tx_hash, trust=Trust.AGREED)
        except NodesDisagree as exc:
            _log.warning("payment_disputed", transaction=str(payment.tx_hash), detail=str(exc))
            await self._note_unchanged(payment)
            return
        except ChainUnavailable as exc:
            if payment.chain_id not in away:
                _log.warning("chain_unavailable", chain_id=payment.chain_id, detail=str(exc))
            away.add(payment.chain_id)
            await self._note_unchanged(payment)
            return
        if isinstance(facts, NotMined):
            await self._note_missing(payment, "not_mined", rules)
        else:
            await self._compare(payment, facts, rules)

    async def _compare(self, payment: Payment, facts: ChainFacts, rules: ChainRules) -> None:
        """The verdict's basics once more, for what is recorded: a block may have changed its mind with its place."""
        outcome = judge_again(facts, payment, rules)
        match outcome:
            case Displaced():
                await self._note_unchanged(payment)
            case Void():
                await self._note_missing(payment, outcome.reason, rules)
            case Standing() if payment.state is PaymentState.GONE:
                await (
                    self._bring_back(payment, outcome.payment)
                    if outcome.is_deep
                    else self._note_unchanged(payment)
                )
            case Standing() if outcome.payment.value_units < payment.value_units:
                # When it is gone, it may come back at its new value.
                await self._note_missing(payment, "worth_less", rules)
            case Standing():
                self._missed.pop(payment.id, None)
                if outcome.is_deep and is_worth_more(payment, outcome.payment):
                    await self._raise(payment, outcome.payment)
                await self._book.mark_checked(
                    payment.id,
                    is_final=outcome.payment.is_final,
                    block_number=facts.block_number,
                    block_hash=facts.block_hash,
                    now_ms=self._now_ms(),
                )
            case _:
                assert_never(outcome)

    async def _bring_back(self, payment: Payment, found: NewPayment) -> None:
        self._missed.pop(payment.id, None)
        await self._book.record_payments((found,), now_ms=self._now_ms())
        _log.info("payment_back", transaction=str(payment.tx_hash), block_number=found.block_number)

    async def _raise(self, payment: Payment, found: NewPayment) -> None:
        """Before it is final: then it stays as it is."""
        await self._book.record_payments((found,), now_ms=self._now_ms())
        _log.info(
            "payment_worth_more",
            transaction=str(payment.tx_hash),
            units=found.value_units - payment.value_units,
        )

    async def _note_missing(self, payment: Payment, reason: str, rules: ChainRules) -> None:
        if payment.state is PaymentState.GONE:
            await self._follow(payment, rules)
            await self._note_unchanged(payment)
            return
        missed = self._missed.get(payment.id, 0) + 1
        if missed < CHECKS_UNTIL_GONE or await self._may_stay(payment, rules, missed):
            self._missed[payment.id] = missed
            await self._note_unchanged(payment)
            return
        debt_units = await self._book.mark_gone(payment.id, now_ms=self._now_ms())
        self._missed.pop(payment.id, None)
        _log.warning("payment_gone", transaction=str(payment.tx_hash), reason=reason, debt_units=debt_units)
        self._on_gone(payment)

    async def _may_stay(self, payment: Payment, rules: ChainRules, missed: int) -> bool:
        is_moved = await self._follow(payment, rules)
        return missed < LOOKS_UNTIL_GONE if is_moved is None else is_moved

    async def _follow(self, payment: Payment, rules: ChainRules) -> bool | None:
        """Whether authorisations of that payment have moved their money in other transactions: then the books say so
        too, and what is left here is for the next check. None: no node says."""
        is_moved, is_seen = False, True
        for call in await self._book.authorizations_in(payment.id, limit=AUTHORIZATIONS_MAX):
            try:
                transfer = await self._find_transfer(payment, call, rules)
            except ChainUnavailable as exc:
                _log.warning("authorization_unseen", call_id=call.call_id, detail=str(exc))
                is_seen = False
                break
            if transfer is not None and await self._book.relocate(
                call.call_id, before=payment.tx_hash, transfer=transfer, now_ms=self._now_ms()
            ):
                is_moved = True
                _log.info("payment_moved", before=str(payment.tx_hash), transaction=str(transfer.tx_hash))
        if is_moved:
            self._on_gone(payment)
        return is_moved or (False if is_seen else None)

    async def _find_transfer(
        self, payment: Payment, call: AuthorizedCall, rules: ChainRules
    ) -> SettledTransfer | None:
        """To stay paid it is enough to be mined, as for a payment that changes its block; to be paid again it takes as
        deep a block as for a new one."""
        asset = next((asset for asset in rules.assets if asset.key == payment.asset), None)
        if asset is None:
            return None
        is_gone = payment.state is PaymentState.GONE
        use = await find_use(
            self._chains,
            call.authorization,
            from_block=max(0, call.seen_block - REORG_BLOCKS_MAX),
            depth=rules.confirmations_for(asset, call.price_units) if is_gone else 1,
            trust=Trust.AGREED,
        )
        return use.transfer if isinstance(use, Paid) else None

    async def _note_unchanged(self, payment: Payment) -> None:
        """Only its place in the queue changes: one dead chain must not keep the others from being looked at."""
        await self._book.mark_checked(
            payment.id,
            is_final=False,
            block_number=payment.block_number,
            block_hash=payment.block_hash,
            now_ms=self._now_ms(),
        )
