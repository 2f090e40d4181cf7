"""Settlement for a small gateway: the real rooms over a chain in memory that mines what is sent.

`street` is the script: it can stop mining, let transfers revert or be front-run, and go away.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from tests.kit.chain import MemoryChain
from tests.kit.chain_tokens import authorizing_token
from tests.model.gas import MemoryGas
from tests.model.ledger import MemoryBook
from tests.model.stored_responses import MemoryAnswers
from tollway.chain.gas_key import GasKey
from tollway.chain.rules import ChainRules
from tollway.limits import Limits
from tollway.payments.follower import Follower
from tollway.payments.gas_tank import GasTank
from tollway.payments.mpp import Challenger
from tollway.payments.settlement import Settlement
from tollway.payments.settlement_rules import SettlementRules
from tollway.payments.sweeper import Sweeper
from tollway.rates import Rates

GAS_KEY = GasKey.parse("11" * 32)
ETHER = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """What a gateway keeps in one database."""

    book: Any
    answers: Any
    gas: Any

    @classmethod
    def in_memory(cls, book: MemoryBook, *, limits: Limits) -> Self:
        return cls(book=book, answers=MemoryAnswers(book.rows, limits=limits), gas=MemoryGas(book.rows))


class SmallSettlement:
    """One network, one gas key. `street`: a chain that is there already."""

    def __init__(
        self,
        rules: ChainRules,
        *,
        stores: Stores,
        limits: Limits,
        now_ms: Callable[[], int],
        host: str,
        street: MemoryChain | None = None,
    ) -> None:
        book = stores.book
        self.street = street or self._make_street(rules, now_ms)
        self.answers, self.gas = stores.answers, stores.gas
        self.challenger = Challenger(secret=b"\x07" * 32, realm=host)
        self.tank = GasTank(
            rules={rules.chain_id: self._allow(rules)},
            assets=rules.assets,
            chains=self.street,
            gas=self.gas,
            limits=limits,
            clock=lambda: now_ms() / 1000,
            now_ms=now_ms,
        )
        self.follower = Follower(self.street, [rules.chain_id], pause_min_s=0.001, pause_max_s=0.01)
        chains = {rules.chain_id: rules}
        self.settlement = Settlement(
            book=book,
            gas=self.gas,
            chains=self.street,
            rules=chains,
            tank=self.tank,
            follower=self.follower,
            facilitators={},
            limits=limits,
            now_ms=now_ms,
            rates=Rates(),
        )
        self.sweeper = Sweeper(
            book=book,
            gas=self.gas,
            chains=self.street,
            rules=chains,
            tank=self.tank,
            facilitators={},
            limits=limits,
            now_ms=now_ms,
        )

    def _make_street(self, rules: ChainRules, now_ms: Callable[[], int]) -> MemoryChain:
        street = MemoryChain(rules.chain_id)
        street.fill_tank(rules.chain_id, GAS_KEY.address, ETHER)
        street.mine(rules.chain_id, time=now_ms() // 1000)
        for asset in rules.assets:
            if asset.token is not None and asset.domain is not None:
                street.deploy(rules.chain_id, asset.token, authorizing_token(asset))
        return street

    async def sweep(self) -> None:
        """One look of the sweeper at what nobody waits for."""
        await self.settlement.mend()
        await self.sweeper.run_once()

    def _allow(self, rules: ChainRules) -> SettlementRules:
        return SettlementRules(
            chain_id=rules.chain_id,
            gas_keys=(GAS_KEY,),
            min_nano=10**6,
            gas_price_max_wei=500 * 10**9,
            gas_floor_wei=ETHER // 1000,
            listing_budget_wei=ETHER,
            network_budget_wei=10 * ETHER,
            block_time_s=0.01,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """What the house runs beside the calls; the sweeper is a test's own to run."""
        await self.tank.refresh()
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self.follower.run())
            try:
                yield
            finally:
                following.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await following
