"""Random histories over three databases, each with the payers that fall to it: every answer is that of one database, and the rows of a payer are in one of them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from tests.contracts.conftest import Ledgers
from tests.kit.channel_history import KINDS as CHANNEL_KINDS
from tests.kit.channel_history import ChannelHistory
from tests.kit.clocks import Clock
from tests.kit.databases import create_database, drop_database, open_database
from tests.kit.ledger_history import draw_steps
from tests.kit.ledger_records import NOW_MS
from tests.kit.shard_history import SHARD_KINDS, ShardHistory, list_payers
from tests.kit.sharded_ledger import OfPayer, ShardedLedger, shard_of
from tests.kit.stores import InlineDatabase
from tollway.storage.ledger.period_books import PeriodBookStore

HISTORIES = 4
"""On SQLite in memory; one on PostgreSQL, where a read takes longer."""
LENGTH = 100
SHARDS = 3
_NUMBERS = count(1)


@dataclass(slots=True)
class Cluster:
    """The ledgers of several databases. With one database it is that ledger."""

    shards: list[Ledgers]

    async def gateway(self, name: str, of_payer: OfPayer | None = None) -> ShardedLedger:
        gateways = [await one.gateway(name) for one in self.shards]
        databases: list[Any] = [one.database for one in self.shards]
        return ShardedLedger(gateways, databases, of_payer)

    async def set_clocks(self, now_ms: int, *gateways: Any) -> None:
        for one in self.shards:
            await one.set_clocks(now_ms)
        for gateway in gateways:
            await gateway.renew_ownership(now_ms=now_ms)

    def books(self) -> list[PeriodBookStore]:
        return [PeriodBookStore(one.database) for one in self.shards if one.database is not None]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def databases(request: pytest.FixtureRequest) -> AsyncIterator[list[Any]]:
    """One database, and as many as there are shards."""
    if request.param == "sqlite":
        yield [InlineDatabase() for _ in range(1 + SHARDS)]
        return
    urls = [request.getfixturevalue("postgres_url")]
    server, template = (request.getfixturevalue(f"postgres_{name}") for name in ("server", "template"))
    names = [f"shard_{next(_NUMBERS)}" for _ in range(SHARDS)]
    urls += [await create_database(server, name, template=template) for name in names]
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(open_database(url)) for url in urls]
    for name in names:
        await drop_database(server, name)


@pytest.fixture
async def clusters(databases: list[Any]) -> AsyncIterator[list[Cluster]]:
    """The ledger over one database, and the one over three."""
    ledgers = [Ledgers(database, Clock(NOW_MS)) for database in databases]
    yield [Cluster(ledgers[:1]), Cluster(ledgers[1:])]
    for one in ledgers:
        await one.close()


async def make_history(clusters: list[Cluster], seed: int, of_payer: OfPayer | None = None) -> ShardHistory:
    one, split = clusters
    names = [f"{name} {seed}" for name in ("one", "two")]
    gateways = [
        [await one.gateway(name) for name in names],
        [await split.gateway(name, of_payer) for name in names],
    ]
    for cluster, both in zip(clusters, gateways, strict=True):
        await cluster.set_clocks(NOW_MS, *both)
    return ShardHistory(
        ledgers=gateways,
        clocks=clusters,
        name=f"history {seed}",
        books=[cluster.books() for cluster in clusters],
    )


async def test_each_answer_is_that_of_one_database(clusters: list[Cluster]) -> None:
    granted = refused = refunded = 0
    database = clusters[0].shards[0].database
    seeds = range(HISTORIES if database is not None and database.dialect == "sqlite" else 1)
    for seed in seeds:
        history = await make_history(clusters, seed)
        await history.run(draw_steps(seed, SHARD_KINDS, length=LENGTH))
        granted, refused = granted + history.granted, refused + history.refused
        refunded += history.refunded
    assert min(granted, refused, refunded) > len(seeds)
    for number, shard in enumerate(clusters[1].shards):
        assert shard.database is not None
        for table, payers in (await list_payers(shard.database)).items():
            assert payers, table
            assert {shard_of(payer, SHARDS) for payer in payers} == {number}, table


async def test_each_channel_is_that_of_one_database(clusters: list[Cluster]) -> None:
    gateways = [[await one.gateway("one"), await one.gateway("two")] for one in clusters]
    history = ChannelHistory(ledgers=gateways, name="history")
    await history.run(draw_steps(0, CHANNEL_KINDS, length=LENGTH // 2))


async def test_a_router_that_does_not_go_by_the_payer_is_found(clusters: list[Cluster]) -> None:
    """By the connection of a caller, say: the same transfer, authorisation or key counts once in each database."""
    turn = count()
    history = await make_history(clusters, 0, lambda payer: next(turn) % SHARDS)
    with pytest.raises(AssertionError):
        await history.run(draw_steps(0, SHARD_KINDS, length=LENGTH))
