"""A storm over budgets: agents that spend all they may, at a fixed price and by use, while gateways are killed and their owner changes and revokes the policies; and what the
budgets, the calls and the owner's webhook say afterwards. Loaded by `test_budget_kills.py`.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from sqlalchemy import Connection, text

from tests.kit.budget_owner import BudgetOwner
from tests.kit.gateway_cluster import PRICE_UNITS, plain
from tests.kit.gateway_process import GatewayProcess, poll
from tests.kit.scripted_upstream import ScriptedUpstream
from tests.long.torture.measures import Progress
from tollway.money import format_decimal
from tollway.storage.engine.database import connect_database

SHAPES = ("echo", "echo", "slow", "fail", "close", "broken")
"""How the upstream behaves: see `ScriptedUpstream`. `close` leaves the outcome of a POST unknown."""
METERING = {
    "base": "0.001",
    "parts": [{"unit": "byte", "unitPrice": "0.000001", "quantity": {"bytes": True}}],
}
CREDIT_CALLS = 20_000
STEP_CALLS = 15
"""By how much a new policy raises the limit, at most."""
CHANGE_EACH = 12
"""Answers between two changes of a policy."""
PAUSE_S = 0.02
PROGRESS_DEADLINE_S = 120.0


@dataclass(slots=True, kw_only=True)
class Spender:
    """An agent and its owner. `limit_units`: the highest limit that was ever sent; no budget counts more."""

    budget: BudgetOwner
    tx_hash: Any
    limit_units: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLoad:
    cluster: Any
    processes: list[GatewayProcess]
    upstream: ScriptedUpstream
    url: str
    api_ids: tuple[str, str]
    spenders: list[Spender]
    dice: random.Random
    answered: Progress = field(default_factory=Progress)
    told: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    _numbers: Any = field(default_factory=itertools.count)

    @classmethod
    async def start(
        cls,
        cluster: Any,
        processes: list[GatewayProcess],
        upstream: ScriptedUpstream,
        *,
        url: str,
        agents: int,
        dice: random.Random,
    ) -> "BudgetLoad":
        provider, owner, *wallets = await cluster.wallets(2 + agents)
        first = processes[0]
        fixed = await cluster.publish(first, provider, endpoint=upstream.url)
        metered = await cluster.publish(first, provider, endpoint=upstream.url, metering=METERING)
        hashes = await cluster.pay_in_bulk(wallets, provider.address, each=CREDIT_CALLS)
        spenders = []
        for wallet, tx_hash in zip(wallets, hashes, strict=True):
            budget = BudgetOwner(cluster=cluster, owner=owner, agent=wallet)
            await budget.bind(first, maxTotal="0")
            spenders.append(Spender(budget=budget, tx_hash=tx_hash))
        return cls(
            cluster=cluster,
            processes=processes,
            upstream=upstream,
            url=url,
            api_ids=(fixed, metered),
            spenders=spenders,
            dice=dice,
        )

    @property
    def owner(self) -> Any:
        return self.spenders[0].budget.owner

    # ---- The storm.

    async def call_on(self, spender: Spender, dice: random.Random, is_over: Callable[[], bool]) -> None:
        """One agent, one call after the other; none is repeated."""
        while not is_over():
            shape, method = dice.choice(SHAPES), dice.choice(("GET", "POST"))
            path = f"/{shape}/budget/{next(self._numbers)}?s={dice.uniform(0.0, 0.2):.3f}"
            gateway = self.dice.choice(self.processes)
            sent = self.cluster.call(
                gateway,
                dice.choice(self.api_ids),
                path,
                method=method,
                headers=plain(spender.budget.agent, spender.tx_hash),
                content=b"{}" if method == "POST" else None,
            )
            reply = await self._ask(sent)
            if reply is not None:
                assert not reply.asks_for_money, reply.body
                self.told[reply.code or str(reply.status)] += 1
                if reply.code == "budget_exceeded":
                    await asyncio.sleep(PAUSE_S)

    async def change_on(self, spender: Spender, dice: random.Random, is_over: Callable[[], bool]) -> None:
        """The owner raises the limit, lowers it, or revokes the policy, and looks at the counter each time."""
        while not is_over():
            await self._change(spender, dice)
            await self.look()
            await self._wait_answers(is_over)

    async def _wait_answers(self, is_over: Callable[[], bool]) -> None:
        goal = self.answered.count + CHANGE_EACH
        await poll(
            lambda: self.answered.count >= goal or is_over(),
            deadline_s=PROGRESS_DEADLINE_S,
            what="answers between two policies",
        )

    async def _change(self, spender: Spender, dice: random.Random) -> None:
        kind = dice.choice(("raise", "raise", "raise", "lower", "revoke"))
        units = spender.limit_units + PRICE_UNITS * dice.randint(1, STEP_CALLS)
        if kind == "lower":
            units = spender.limit_units // 2
        spender.limit_units = max(units, spender.limit_units)
        await self.set_limit(spender, None if kind == "revoke" else units)
        self.changed[kind] += 1

    async def set_limit(self, spender: Spender, units: int | None) -> None:
        """Until a gateway says that it is stored. On None the policy is revoked."""
        limit, budget, stored = format_decimal(units or 0, decimals=6), spender.budget, None
        while stored is None or stored.status == 503:
            gateway = self.dice.choice(self.processes)
            sent = (
                budget.revoke(gateway)
                if units is None
                else budget.store(gateway, maxTotal=limit, maxPerDay=limit)
            )
            stored = await self._ask(sent)
        assert stored.status == 200, stored.body

    async def _ask(self, sent: Coroutine[Any, Any, Any]) -> Any:
        """The response; None: none came whole."""
        try:
            reply = await sent
        except aiohttp.ClientConnectorError:
            await asyncio.sleep(PAUSE_S)  # no listener: the next gateway is starting
            return None
        except (aiohttp.ClientError, OSError):
            return None
        self.answered.add()
        return reply

    # ---- The laws.

    async def look(self) -> int:
        """In one snapshot each budget counts the sum of its calls, and no more than the highest limit. Returns what all of them count, in units."""
        database = connect_database(self.url)
        try:
            counted, costs = await database.read(_read_sums)
        finally:
            await database.close()
        limits = {bytes(one.budget.agent.address): one.limit_units * 1_000 for one in self.spenders}
        for agent, nano in counted.items():
            assert nano == costs.get(agent, 0), (agent.hex(), nano, costs)
            assert nano <= limits[agent], (agent.hex(), nano, limits)
        return sum(counted.values()) // 1_000

    async def wait_ended(self) -> None:
        """No call is open any more, and each price is known."""
        database = connect_database(self.url)
        open_calls = text(
            "SELECT count(*) FROM call WHERE state = 'forwarding'"
            " OR (state = 'consumed' AND quantities = '' AND actual_units IS NULL)"
        )

        async def is_ended() -> bool:
            return bool(await database.read(lambda one: one.execute(open_calls).scalar_one()) == 0)

        try:
            await poll(is_ended, what="the end of every call")
        finally:
            await database.close()


def _read_sums(connection: Connection) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """What each budget counts, and what its calls cost, in 10^-9."""
    counted = connection.execute(text("SELECT agent, total_nano FROM budget WHERE bound_ms IS NOT NULL"))
    costs = connection.execute(
        text(
            "SELECT payer, sum(coalesce(actual_units, price_units)) FROM call"
            " WHERE state <> 'released' AND payment_id IS NOT NULL GROUP BY payer"
        )
    )
    return (
        {bytes(agent): int(nano) for agent, nano in counted},
        {bytes(payer): int(units) * 1_000 for payer, units in costs},
    )
