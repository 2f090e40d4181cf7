"""Databases that break connections, gateways that are paused, and gateways that are stopped, during settlements: each
call is settled once or not at all, and no caller that may have paid gets a 402."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import text

from tests.kit.databases import pass_lease, set_database_clock
from tests.kit.gateway_process import poll
from tests.kit.node_proxy import SEND, run_node_proxy
from tests.kit.signed_calls import (
    LEASE_S,
    RENEWS_OFTEN,
    PaidListing,
    SignedCall,
    count_sent,
    find_pending,
    unmined,
)
from tests.system.live.proxied_listing import SETTINGS
from tollway.storage.engine.database import connect_database

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.postgres]

CALLS = 30
BREAKS = 5
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two gateways on one PostgreSQL with one gas key."""

    stall: PaidListing
    gas: Any
    url: str

    @property
    def cluster(self) -> Any:
        return self.stall.cluster

    def sign(self, wallet: Any, path: str, **options: Any) -> SignedCall:
        return self.stall.sign(wallet, f"{path}{next(_NUMBERS)}", **options)

    async def break_off(self) -> None:
        """The database ends every connection except that of this command."""
        database = connect_database(self.url)
        others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        mine = " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        try:
            await database.read(lambda connection: connection.execute(text(others + mine)).all())
        finally:
            await database.close()

    async def check_settled(self, calls: list[SignedCall]) -> None:
        """Each call has moved its price once, and the nonce sequence has no gap and no empty transaction."""
        moved = [await call.transfers() for call in calls]
        assert [len(hashes) for hashes in moved] == [1] * len(calls)
        await self.stall.check_ledger()


@contextlib.asynccontextmanager
async def open_pair(cluster: Any, **settings: str) -> AsyncIterator[Pair]:
    gas, url = await cluster.wallet(), await cluster.make_postgres()
    await set_database_clock(url, skew_s=0)
    env = {**SETTINGS, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key, **settings}
    async with (
        cluster.gateway(database_url=url, settings=env) as one,
        cluster.gateway(database_url=url, settings=env, public_url=one.public_url) as two,
    ):
        yield Pair(stall=await PaidListing.open(cluster, [one, two]), gas=gas, url=url)


async def test_a_database_that_breaks_off_again_and_again_settles_nothing_twice(cluster: Any) -> None:
    async with open_pair(cluster, TOLLWAY_LIMIT_SETTLE_WAIT_S="20") as pair:
        gateways = itertools.cycle(pair.stall.gateways)
        calls = [pair.sign(wallet, "/echo/broken-") for wallet in await cluster.wallets(CALLS)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call.send(next(gateways))) for call in calls]
            for number in range(1, BREAKS + 1):
                done = number * CALLS // (BREAKS + 1)
                await poll(
                    lambda done=done: (
                        sum(task.done() for task in tasks) >= done or sum(call.seen for call in calls) >= done
                    ),
                    what="some answers",
                )
                await pair.break_off()
        first = [task.result() for task in tasks]
        assert not any(reply.asks_for_money for reply in first), [reply.body for reply in first]
        assert {reply.status for reply in first} <= {200, 409, 503}

        last = await asyncio.gather(*(insist(call, next(gateways)) for call in calls))

        assert {(reply.status, reply.code) for reply in last} <= {(200, None), (409, "payment_already_used")}
        assert all(call.seen <= 2 for call in calls)
        await pair.check_settled(calls)
        assert await count_sent(cluster, pair.gas) == CALLS


async def insist(call: SignedCall, gateway: Any) -> Any:
    """The response to the same request after its call has ended."""
    replies: list[Any] = []

    async def is_decided() -> bool:
        replies.append(await call.send(gateway))
        assert not replies[-1].asks_for_money, replies[-1].body
        return replies[-1].status == 200 or replies[-1].code == "payment_already_used"

    await poll(is_decided, what="a decision")
    return replies[-1]


async def test_a_gateway_that_slept_finds_its_calls_in_the_hands_of_another(cluster: Any) -> None:
    """The gateway is paused at two points: while its transaction waits, and while its upstream works. Its lease ends,
    and it continues while the other gateway's run of the second call is at the upstream."""
    async with open_pair(cluster, TOLLWAY_LIMIT_SETTLE_WAIT_S="20", **RENEWS_OFTEN) as pair:
        one, two = pair.stall.gateways
        waiter, thinker = await cluster.wallets(2)
        waiting = pair.sign(waiter, "/echo/waits-")
        thinking = pair.sign(thinker, "/slow?seconds=1&n=")
        before = thinking.seen

        async def is_unknown() -> bool:
            return bool((await thinking.record(two))["status"] == "unknown")

        async with asyncio.TaskGroup() as group:
            async with unmined(cluster.driver):
                asleep = [group.create_task(waiting.send(one))]
                await poll(lambda: find_pending(cluster, pair.gas.address), what="ours")
                async with cluster.holding():
                    asleep.append(group.create_task(thinking.send(one)))
                    await poll(lambda: thinking.seen > before, what="a call under way")
                    one.pause()
            try:
                await pass_lease(pair.url, lease_s=LEASE_S, renewing=1)
                assert (await insist(waiting, two)).status == 200
                await poll(is_unknown, what="recovery")
                again = group.create_task(thinking.send(two))
                await poll(lambda: thinking.seen > before + 1, what="a second run")
            finally:
                one.resume()
        assert again.result().status == 200
        for task in asleep:
            reply = task.result()
            assert (reply.status, reply.code) == (503, "payment_outcome_unknown"), reply.body
            assert not reply.asks_for_money
        assert (thinking.seen, waiting.seen) == (before + 2, 2)
        await pair.check_settled([waiting, thinking])
        assert await count_sent(cluster, pair.gas) == 2


async def test_a_paused_gateway_with_an_unsent_nonce_delays_no_other_gateway(
    cluster: Any,
) -> None:
    """Its transaction is signed and stored, and it is paused before it sends it. It leads settlement recovery and
    goes on leading: only the caller at the other gateway can find out."""
    gas, url = await cluster.wallet(), await cluster.make_postgres()
    async with run_node_proxy(cluster.session, cluster.driver.rpc_url) as line:
        env = {
            **SETTINGS,
            "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key,
            "TOLLWAY_LIMIT_SETTLE_WAIT_S": "20",
            "TEST_LIMIT_LEADER_LEASE_S": "600",
        }
        async with (
            cluster.gateway(database_url=url, settings={**env, "TOLLWAY_RPC_SANDBOX": line.url}) as one,
            cluster.gateway(database_url=url, settings=env, public_url=one.public_url) as two,
        ):
            stall = await PaidListing.open(cluster, [one, two])
            calls = [
                stall.sign(wallet, f"/echo/still-{n}") for n, wallet in enumerate(await cluster.wallets(5))
            ]
            asleep, *awake = calls
            line.cut_at(SEND, is_heard=False)
            async with asyncio.TaskGroup() as group:
                first = group.create_task(send_or_lose(asleep, one))
                await poll(lambda: line.is_cut, what="a transaction at the line")
                one.pause()
                try:
                    replies = await asyncio.gather(*(call.send(two) for call in awake))
                finally:
                    line.mend()
                    one.resume()
            assert [reply.status for reply in replies] == [200] * len(awake), [r.body for r in replies]
            assert first.result() is None or not first.result().asks_for_money
            last = await insist(asleep, two)
            assert (last.status, last.code) in {(200, None), (409, "payment_already_used")}, last.body
            assert await count_sent(cluster, gas) == len(calls)
            await stall.check_ledger()


async def test_a_gateway_that_is_stopped_leaves_its_settlements_to_the_next(cluster: Any) -> None:
    async with open_pair(
        cluster, TOLLWAY_LIMIT_SETTLE_WAIT_S="20", TOLLWAY_LIMIT_DRAIN_DEADLINE_S="0.5", **RENEWS_OFTEN
    ) as pair:
        one, two = pair.stall.gateways
        get, post = await cluster.wallets(2)
        calls = [
            pair.sign(get, "/echo/stopped-"),
            pair.sign(post, "/echo/stopped-", method="POST", body=b"{}"),
        ]
        async with asyncio.TaskGroup() as group, unmined(cluster.driver):
            tasks = [group.create_task(send_or_lose(call, one)) for call in calls]

            async def are_sent() -> bool:
                answered = [task.result() for task in tasks if task.done()]
                assert not answered, "nothing is mined, so nothing is settled"
                return len(await find_pending(cluster, pair.gas.address)) == len(calls)

            await poll(are_sent, what="both transactions")
            assert await one.stop() == 0
        await pass_lease(pair.url, lease_s=LEASE_S, renewing=1)
        for task in tasks:
            reply = task.result()
            assert reply is None or not reply.asks_for_money

        served, used = [await insist(call, two) for call in calls]

        assert served.status == 200
        await pair.check_settled(calls)
        if used.status != 200:
            (moved,) = await calls[1].transfers()
            assert (await calls[1].spend(moved, two)).status == 200, "its money is its credit"
        assert await count_sent(cluster, pair.gas) == len(calls)


async def send_or_lose(call: SignedCall, gateway: Any) -> Any:
    with contextlib.suppress(OSError, Exception):
        return await call.send(gateway)
    return None
