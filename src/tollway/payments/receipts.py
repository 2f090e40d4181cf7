"""Polls the receipts of transactions until they are mined deep enough: one request per chain and round, for all waiters.

Transactions of one sender are mined in order, so most rounds poll only the first transaction of each sender, and the others once
that one is mined.

The poller returns the facts of a transaction that is deep enough; it does not decide whether it paid. It polls an unavailable
chain again; the waiter sets the deadline.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeGuard

from tollway.chain.port import ChainFacts, NotMined, Quorum, SettlementChain
from tollway.errors import ChainUnavailable
from tollway.ids import Address, ChainId, TxHash
from tollway.observability.background import BackgroundTask, TaskName, run_loops

PAUSE_MIN_S = 0.005
PAUSE_MAX_S = 1.0
PAUSE_GROWTH = 1.5
BATCH_MAX = 100
ROUNDS_UNTIL_ALL = 5
"""One round in this many polls all waiters: a first transaction whose nonce is used can never be mined and must not block the others."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Waiter:
    tx_hash: TxHash
    sender: Address
    depth: int
    quorum: Quorum
    future: asyncio.Future[ChainFacts]


@dataclass(slots=True)
class _WaiterQueue:
    """The waiters of one chain. `has_new_waiter`: a waiter was added since the last round."""

    waiters: list[_Waiter] = field(default_factory=list)
    rounds: int = 0
    has_new_waiter: asyncio.Event = field(default_factory=asyncio.Event)


class ReceiptPoller:
    """Polls receipts for all waiting settlements. Used from one event loop; `run` is a background task of the app."""

    def __init__(
        self,
        chains: SettlementChain,
        chain_ids: Iterable[ChainId],
        *,
        pause_min_s: float = PAUSE_MIN_S,
        pause_max_s: float = PAUSE_MAX_S,
        task: BackgroundTask | None = None,
    ) -> None:
        self._task = task or BackgroundTask(TaskName.RECEIPT_POLLING)
        self._chains = chains
        self._pause_min_s = pause_min_s
        self._pause_max_s = pause_max_s
        self._queues = {chain_id: _WaiterQueue() for chain_id in chain_ids}

    async def run(self) -> None:
        await run_loops([partial(self._poll, chain_id, queue) for chain_id, queue in self._queues.items()])

    async def wait_mined(
        self,
        chain_id: ChainId,
        tx_hash: TxHash,
        *,
        sender: Address,
        depth: int,
        quorum: Quorum = Quorum.AGREED,
    ) -> ChainFacts:
        """Waits until the transaction is `depth` blocks deep on the canonical chain by `quorum` of the nodes. Has no deadline of its
        own. The waiters of one `sender` must come roughly in the order of their nonces."""
        queue = self._queues[chain_id]
        future: asyncio.Future[ChainFacts] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(tx_hash=tx_hash, sender=sender, depth=depth, quorum=quorum, future=future)
        queue.waiters.append(waiter)
        queue.has_new_waiter.set()
        try:
            return await waiter.future
        finally:
            queue.waiters.remove(waiter)

    async def _poll(self, chain_id: ChainId, queue: _WaiterQueue) -> None:
        pause_s = self._pause_min_s
        while True:
            if not queue.waiters:
                queue.has_new_waiter.clear()
                await queue.has_new_waiter.wait()
            if queue.has_new_waiter.is_set():
                queue.has_new_waiter.clear()
                pause_s = self._pause_min_s
            await self._task.attempt(partial(self._poll_round, chain_id, queue))
            await _sleep_until(queue.has_new_waiter, pause_s)
            pause_s = min(pause_s * PAUSE_GROWTH, self._pause_max_s)

    async def _poll_round(self, chain_id: ChainId, queue: _WaiterQueue) -> None:
        """One round: the first of each sender, and all others of a sender whose first is mined."""
        queue.rounds += 1
        if queue.rounds % ROUNDS_UNTIL_ALL == 0:
            await self._poll_waiters(chain_id, list(queue.waiters))
            return
        first: dict[Address, _Waiter] = {}
        for waiter in queue.waiters:
            first.setdefault(waiter.sender, waiter)
        mined_senders = await self._poll_waiters(chain_id, list(first.values()))
        rest = [w for w in queue.waiters if w.sender in mined_senders and w is not first.get(w.sender)]
        await self._poll_waiters(chain_id, rest)

    async def _poll_waiters(self, chain_id: ChainId, waiters: list[_Waiter]) -> set[Address]:
        """Resolves the waiters whose transaction is deep enough; returns the senders with a mined transaction."""
        mined_senders: set[Address] = set()
        of_quorums = [(quorum, [one for one in waiters if one.quorum is quorum]) for quorum in Quorum]
        batches = [
            (quorum, found[start : start + BATCH_MAX])
            for quorum, found in of_quorums
            for start in range(0, len(found), BATCH_MAX)
        ]
        for quorum, batch in batches:
            wanted = list(dict.fromkeys(waiter.tx_hash for waiter in batch))
            try:
                receipts = await self._chains.fetch_receipts(chain_id, wanted, quorum=quorum)
            except ChainUnavailable:
                continue
            for waiter in batch:
                facts = receipts.get(waiter.tx_hash)
                if isinstance(facts, ChainFacts):
                    mined_senders.add(waiter.sender)
                    if is_deep(facts, depth=waiter.depth) and not waiter.future.done():
                        waiter.future.set_result(facts)
        return mined_senders


def is_deep(facts: ChainFacts | NotMined, *, depth: int) -> TypeGuard[ChainFacts]:
    return (
        isinstance(facts, ChainFacts)
        and facts.canonical_hash == facts.block_hash
        and facts.confirmations >= depth
    )


async def _sleep_until(event: asyncio.Event, timeout_s: float) -> None:
    """Waits for a new waiter or the timeout. A new waiter still waits for the shortest pause, because many come at once."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
    await asyncio.sleep(PAUSE_MIN_S)
