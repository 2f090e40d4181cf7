"""Quality is measured from other callers' paid calls, published, and used by the search: with whole gateways, on both
databases."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.gateway_cluster import API, PRICE_UNITS, plain
from tests.kit.gateway_process import poll

pytestmark = pytest.mark.asyncio(loop_scope="module")

GOOD, BAD = 16, 6
OFTEN = {"TEST_LIMIT_QUALITY_FLUSH_S": "0.2"}
NOTHING = {"calls30d": None, "successRate30d": None, "p50Ms": None, "p95Ms": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """`one` and `two` are the same gateway on SQLite, and two gateways over one database on PostgreSQL."""

    cluster: Any
    one: Any
    two: Any
    provider: Any

    async def publish(self, name: str, **fields: Any) -> str:
        listing_id: str = await self.cluster.publish(self.one, self.provider, name=name, **fields)
        return listing_id

    async def call(self, gateway: Any, api_id: str, payer: Any, tx_hash: Any, *, good: int, bad: int) -> None:
        headers = plain(payer, tx_hash)
        for number in range(good + bad):
            status = 200 if number < good else 503
            reply = await self.cluster.call(gateway, api_id, f"/status/{status}", headers=headers)
            assert reply.status == status, reply.body

    async def pay_and_call(self, api_id: str, payer: Any, *, good: int, bad: int, payee: Any = None) -> None:
        """Half of the calls at either gateway. `payee`: the provider by default."""
        payee = payee or self.provider
        tx_hash = await self.cluster.send_tokens(payer, payee.address, (good + 1) * PRICE_UNITS)
        await self.call(self.one, api_id, payer, tx_hash, good=good - good // 2, bad=bad - bad // 2)
        await self.call(self.two, api_id, payer, tx_hash, good=good // 2, bad=bad // 2)

    async def read(self, path: str) -> Any:
        reply = await self.cluster.send(self.two.base_url + API + path)
        assert reply.status == 200, reply.body
        return reply.json

    async def wait_measured(self, api_id: str, calls: int) -> Any:
        """The quality once it contains that many calls."""

        async def look() -> Any:
            quality = (await self.read(f"/apis/{api_id}"))["quality"]
            return quality if quality["calls30d"] == calls else None

        return await poll(look, what=f"the quality of {calls} calls")

    async def find(self, query: str) -> list[str]:
        return [one["id"] for one in (await self.read(f"/apis?{query}"))["apis"]]


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)],
)
async def harness(cluster: Any, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    provider = await cluster.wallet()
    if request.param == "sqlite":
        async with cluster.gateway(settings=OFTEN) as one:
            yield Harness(cluster=cluster, one=one, two=one, provider=provider)
        return
    url = await cluster.make_postgres()
    async with (
        cluster.gateway(database_url=url, settings=OFTEN) as one,
        cluster.gateway(database_url=url, settings=OFTEN, public_url=one.public_url) as two,
    ):
        yield Harness(cluster=cluster, one=one, two=two, provider=provider)


async def test_quality_is_measured_from_other_peoples_paid_calls_and_ranks_search(harness: Harness) -> None:
    caller, transaction_verifier = await harness.cluster.wallets(2)
    measured = await harness.publish("Zeppelin quotes")
    poor = await harness.publish("Zeppelin quotes")
    own = await harness.publish("Zeppelin quotes", payTo=str(transaction_verifier.address))
    free = await harness.publish("Zeppelin quotes", pricePerRequest="0")

    await harness.pay_and_call(own, harness.provider, good=GOOD + 6, bad=0, payee=transaction_verifier)
    for _ in range(25):
        assert (await harness.cluster.call(harness.one, free, "/status/200")).status == 200
    await harness.pay_and_call(poor, caller, good=2, bad=18)
    await harness.pay_and_call(measured, caller, good=GOOD, bad=BAD)

    quality = await harness.wait_measured(measured, GOOD + BAD)
    assert quality["successRate30d"] == GOOD * 1_000_000 // (GOOD + BAD) / 1_000_000
    assert 0 <= quality["p50Ms"] <= quality["p95Ms"]
    assert (await harness.wait_measured(poor, 20))["successRate30d"] == 0.1
    for unmeasured in (own, free):
        assert (await harness.read(f"/apis/{unmeasured}"))["quality"] == NOTHING

    # A listing without quality is ranked as one with a rate of 0.82.
    assert await harness.find("q=zeppelin&sort=relevance") == [free, own, measured, poor]
    assert await harness.find("q=zeppelin&minSuccessRate=0.5") == [measured]
    assert await harness.find("q=zeppelin&minSuccessRate=0&sort=newest") == [poor, measured]
    await harness.pay_and_call(measured, caller, good=2 * GOOD, bad=0)
    await harness.wait_measured(measured, 3 * GOOD + BAD)
    assert await harness.find("q=zeppelin&sort=relevance") == [measured, free, own, poor]


async def test_a_stop_loses_nothing_that_was_counted(cluster: Any) -> None:
    provider, caller = await cluster.wallets(2)
    url = f"sqlite:///{cluster.folder}/stopped.sqlite3"
    seldom = {"TEST_LIMIT_QUALITY_FLUSH_S": "3600"}
    async with cluster.gateway(database_url=url, settings=seldom) as first:
        harness = Harness(cluster=cluster, one=first, two=first, provider=provider)
        api_id = await harness.publish("Quotes")
        await harness.pay_and_call(api_id, caller, good=20, bad=0)
        assert (await harness.read(f"/apis/{api_id}"))["quality"] == NOTHING
        assert await first.stop() == 0
    async with cluster.gateway(database_url=url, settings=seldom) as second:
        harness = Harness(cluster=cluster, one=second, two=second, provider=provider)
        assert (await harness.read(f"/apis/{api_id}"))["quality"]["calls30d"] == 20
