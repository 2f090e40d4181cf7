"""Waits for transactions to be mined, for everybody at once: one question a chain and round, whoever is waiting.

Transactions of one sender are mined in order, so mostly only the first of each lane is asked about, and the others once
that one is mined.

It says what the chain says of a transaction that is mined deep enough, and nothing else: not whether it paid. A chain
that does not answer is asked again; only who waits decides how long that is worth it.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeGuard

from tollway.background import BackgroundTask, TaskName, run_loops
from tollway.chain.reader import ChainFacts, NotMined, SettlementChain, Trust
from tollway.errors import ChainUnavailable
from tollway.identifiers import Address, ChainId, TxHash

PAUSE_MIN_S = 0.005
PAUSE_MAX_S = 1.0
PAUSE_GROWTH = 1.5
BATCH_MAX = 100
ROUNDS_UNTIL_ALL = 5
"""A first one that can never be mined (its nonce went to another) must not hide those behind it."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Watch:
    tx_hash: TxHash
    lane: Address
    depth: int
    trust: Trust
    future: asyncio.Future[ChainFacts]


@dataclass(slots=True)
class _Street:
    """Who waits on one chain. `has_news`: somebody came since the last round."""

    watches: list[_Watch] = field(default_factory=list)
    rounds: int = 0
    has_news: asyncio.Event = field(default_factory=asyncio.Event)


class Follower:
    """Used from one event loop; `run` is a task of the house."""

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
        self._streets = {chain_id: _Street() for chain_id in chain_ids}

    async def run(self) -> None:
        """Asks while somebody waits, until it is cancelled."""
        await run_loops([partial(self._walk, chain_id, street) for chain_id, street in self._streets.items()])

    async def wait_mined(
        self, chain_id: ChainId, tx_hash: TxHash, *, lane: Address, depth: int, trust: Trust = Trust.AGREED
    ) -> ChainFacts:
        """The transaction, once it lies `depth` blocks deep on the canonical chain, by whose word `trust` says. Waits for ever: bring a deadline.
        `lane`: its sender; those of one lane come in the order of their nonces, more or less."""
        street = self._streets[chain_id]
        future: asyncio.Future[ChainFacts] = asyncio.get_running_loop().create_future()
        watch = _Watch(tx_hash=tx_hash, lane=lane, depth=depth, trust=trust, future=future)
        street.watches.append(watch)
        street.has_news.set()
        try:
            return await watch.future
        finally:
            street.watches.remove(watch)

    async def _walk(self, chain_id: ChainId, street: _Street) -> None:
        pause_s = self._pause_min_s
        while True:
            if not street.watches:
                street.has_news.clear()
                await street.has_news.wait()
            if street.has_news.is_set():
                street.has_news.clear()
                pause_s = self._pause_min_s
            await self._task.attempt(partial(self._ask, chain_id, street))
            await _sleep_until(street.has_news, pause_s)
            pause_s = min(pause_s * PAUSE_GROWTH, self._pause_max_s)

    async def _ask(self, chain_id: ChainId, street: _Street) -> None:
        """One round: the first of each lane, and everybody else of a lane whose first is mined."""
        street.rounds += 1
        if street.rounds % ROUNDS_UNTIL_ALL == 0:
            await self._ask_about(chain_id, list(street.watches))
            return
        first: dict[Address, _Watch] = {}
        for watch in street.watches:
            first.setdefault(watch.lane, watch)
        moving = await self._ask_about(chain_id, list(first.values()))
        rest = [w for w in street.watches if w.lane in moving and w is not first.get(w.lane)]
        await self._ask_about(chain_id, rest)

    async def _ask_about(self, chain_id: ChainId, watches: list[_Watch]) -> set[Address]:
        """Tells those whose transaction is deep enough; returns the lanes with one that is mined."""
        moving: set[Address] = set()
        for trust in Trust:
            moving |= await self._ask_by(
                trust, chain_id, [watch for watch in watches if watch.trust is trust]
            )
        return moving

    async def _ask_by(self, trust: Trust, chain_id: ChainId, watches: list[_Watch]) -> set[Address]:
        moving: set[Address] = set()
        for start in range(0, len(watches), BATCH_MAX):
            batch = watches[start : start + BATCH_MAX]
            wanted = list(dict.fromkeys(watch.tx_hash for watch in batch))
            try:
                told = await self._chains.fetch_receipts(chain_id, wanted, trust=trust)
            except ChainUnavailable:
                continue
            for watch in batch:
                facts = told.get(watch.tx_hash)
                if isinstance(facts, ChainFacts):
                    moving.add(watch.lane)
                    if is_deep(facts, depth=watch.depth) and not watch.future.done():
                        watch.future.set_result(facts)
        return moving


def is_deep(facts: ChainFacts | NotMined, *, depth: int) -> TypeGuard[ChainFacts]:
    """Whether a receipt may be believed: on the canonical chain, and deep enough."""
    return (
        isinstance(facts, ChainFacts)
        and facts.canonical_hash == facts.block_hash
        and facts.confirmations >= depth
    )


async def _sleep_until(event: asyncio.Event, timeout_s: float) -> None:
    """A newcomer ends the pause, but never makes it shorter than the shortest: many come at once."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
    await asyncio.sleep(PAUSE_MIN_S)
