"""What one call costs, in numbers that no machine changes: statements, commits, questions to the chain's node, signatures
recovered. On each rail, on both databases, with the whole gateway behind its own server.

A number here is what a call costs today. Less is an improvement: lower the number. More is a regression, unless somebody
can say what the caller got for it.
"""

import asyncio
import contextlib
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import CoroutineType, GeneratorType
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.authorization_payer import MPP, V1, V2, AuthorizationPayer
from tests.kit.gateway_cluster import PRICE_UNITS, bound, plain
from tests.kit.gateway_process import READY_DEADLINE_S, answers, poll
from tests.kit.ports import find_low_port
from tests.kit.storage_faults import FaultyDatabase
from tests.kit.upstream import LoopbackUpstream, run_upstream
from tests.kit.work_counter import (
    Work,
    WorkCounter,
    count_postgres,
    count_recoveries,
    count_rpc,
    count_sqlite,
)
from tollway.app.lifecycle import App
from tollway.config.settings import load_settings

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUIET = {
    f"TOLLWAY_LIMIT_{name}": value
    for name, value in {
        "OWNER_LEASE_S": "3600",
        "OWNER_RENEW_S": "900",
        "RECOVERY_INTERVAL_S": "900",
        "WATCH_INTERVAL_S": "900",
        "SWEEP_INTERVAL_S": "900",
        "GAS_REFRESH_S": "900",
        "RPC_DEADLINE_S": "20",
        "LEADER_POLL_S": "900",
        "LEADER_LEASE_S": "1800",
        "QUALITY_FLUSH_S": "900",
        "FREE_CALLS_PER_MINUTE": "100000",
    }.items()
}
"""Whatever a gateway does by the clock it does at its start and then not again."""
DEADLINE_S = 60.0
_SHELF_LOOK = r"^SELECT listing\.revision"
"""A busy listing is looked at twice a second (decision 14). A call that happens to look is counted again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A gateway in this process, and who calls there."""

    cluster: Any
    app: App
    upstream: LoopbackUpstream
    counter: WorkCounter
    base_url: str
    public_url: str
    provider: Any
    caller: Any
    api_id: str
    free_id: str

    async def call(self, headers: Any = (), *, api_id: str | None = None, rest: str = "/quote/ETH") -> Any:
        return await self.cluster.call(self, api_id or self.api_id, rest, headers=headers)

    async def count(self, ask: Callable[[], Awaitable[Any]], *, finishes: int = 1) -> Work:
        """The work of what `ask` does, to its last write; `finishes`: calls that it begins."""
        with self.counter.counting() as span:
            await ask()

            def is_over() -> bool:
                return (
                    self.counter.open == 0 and span.take().count(r"^UPDATE call SET .*delivery") >= finishes
                )

            await poll(is_over, deadline_s=DEADLINE_S, what="the last write of a call")
            return span.take()

    async def count_alone(self, ask: Callable[[], Awaitable[Any]], *, finishes: int = 1) -> Work:
        """The same, of a call in which nothing was looked at only because half a second had passed."""
        ends = time.monotonic() + DEADLINE_S
        while True:
            work = await self.count(ask, finishes=finishes)
            if not work.count(_SHELF_LOOK):
                return work
            assert time.monotonic() < ends, "every call asks the database for its listing"

    async def pay(self, calls: int = 1) -> Any:
        return await self.cluster.send_tokens(self.caller, self.provider.address, calls * PRICE_UNITS)


@contextlib.asynccontextmanager
async def run_app(env: dict[str, str]) -> AsyncIterator[App]:
    async with App(load_settings(env)) as app:
        serving = asyncio.get_running_loop().create_task(app.serve())
        try:
            await app.server.wait_up()
            yield app
        finally:
            app.stop()
            await serving


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)],
)
async def served(cluster: Any, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    counter = WorkCounter()
    port = find_low_port()
    url = f"http://127.0.0.1:{port}"
    provider, caller, gas = await cluster.wallets(3)
    async with contextlib.AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(run_upstream())
        rpc_url = await stack.enter_async_context(count_rpc(cluster.session, cluster.driver.rpc_url, counter))
        stack.enter_context(count_recoveries(counter))
        if request.param == "sqlite":
            database_url = f"sqlite:///{cluster.folder}/work.sqlite3"
            stack.enter_context(count_sqlite(counter))
        else:
            database_url = await stack.enter_async_context(
                count_postgres(await cluster.make_postgres(), counter)
            )
        env = cluster.environment(database_url=database_url, public_url=url, port=port, settings=QUIET)
        env |= {"TOLLWAY_RPC_LOCAL": rpc_url, "TOLLWAY_GAS_KEYS_LOCAL": gas.private_key}
        app = await stack.enter_async_context(run_app(env))
        it = Served(
            cluster=cluster,
            app=app,
            upstream=upstream,
            counter=counter,
            base_url=url,
            public_url=url,
            provider=provider,
            caller=caller,
            api_id="",
            free_id="",
        )
        await poll(lambda: answers(port, "/readyz"), deadline_s=READY_DEADLINE_S, what="readiness")
        api_id = await cluster.publish(it, provider, endpoint=upstream.url)
        free_id = await cluster.publish(it, provider, endpoint=upstream.url, pricePerRequest="0")
        object.__setattr__(it, "api_id", api_id)
        object.__setattr__(it, "free_id", free_id)
        yield it


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a call may cost at most. `flushed` is exact: one less would be a promise broken, not a saving. `round_trips`:
    to PostgreSQL."""

    flushed: int
    written: int
    read: int
    statements: int
    rpc_requests: int = 0
    recoveries: int = 0
    round_trips: int = 0

    def check(self, work: Work, name: str) -> None:
        assert work.flushed == self.flushed, f"{name}: durable commits\n{work.told}"
        for counted in ("written", "read", "statements", "rpc_requests", "recoveries", "round_trips"):
            found, most = getattr(work, counted), getattr(self, counted)
            assert found <= most, f"{name}: {found} {counted}, {most} at most\n{work.told}"


UNPAID = Cost(flushed=0, written=0, read=0, statements=0)
FREE = Cost(flushed=1, written=2, read=0, statements=5, round_trips=15)
CREDIT_PLAIN = Cost(flushed=1, written=2, read=0, statements=9, round_trips=19)
CREDIT_BOUND = Cost(flushed=1, written=2, read=0, statements=10, recoveries=1, round_trips=20)
FIRST_PLAIN = Cost(flushed=2, written=2, read=1, statements=16, rpc_requests=1, recoveries=2, round_trips=36)
FIRST_BOUND = Cost(flushed=2, written=2, read=1, statements=17, rpc_requests=1, recoveries=1, round_trips=36)
AUTHORIZED = Cost(flushed=3, written=1, read=1, statements=29, rpc_requests=7, recoveries=1, round_trips=64)
"""`rpc_requests`: facts with a simulation, one more simulation at the head, the transaction, and a look or a few for the
receipt. `round_trips` to PostgreSQL, here and above it: a statement that is new to its connection takes a few more."""

PLENTY = 500
"""Calls that a payment here is worth: some are made more often than they count."""
MANY = 100
REPEATS = 8
"""How often a call on credit is made here: what each connection has to learn once is learnt."""


def bound_headers(served: Served, tx_hash: Any) -> Any:
    chain_id = served.cluster.driver.chain_id
    return bound(served.caller, tx_hash, served, served.api_id, "/quote/ETH", chain_id=chain_id)


async def ask_ok(served: Served, headers: Any = (), **options: Any) -> None:
    reply = await served.call(headers, **options)
    assert reply.status == 200, reply.body


async def count_repeated(served: Served, ask: Callable[[], Awaitable[Any]]) -> tuple[Work, list[Work]]:
    """The cheapest of several, and all of them."""
    works = [await served.count_alone(ask) for _ in range(REPEATS)]
    return min(works, key=lambda work: (work.statements, work.round_trips)), works


async def test_an_unpaid_call_is_refused_from_memory(served: Served) -> None:
    async def ask() -> None:
        assert (await served.call()).status == 402

    await ask()  # the first call of all reads the listing
    UNPAID.check(await served.count_alone(ask, finishes=0), "unpaid")


async def test_a_free_call(served: Served) -> None:
    work, _ = await count_repeated(served, lambda: ask_ok(served, api_id=served.free_id))
    FREE.check(work, "free")


@pytest.mark.parametrize(
    ("is_bound", "first_cost", "credit_cost"),
    [(False, FIRST_PLAIN, CREDIT_PLAIN), (True, FIRST_BOUND, CREDIT_BOUND)],
    ids=("plain", "bound"),
)
async def test_a_transaction_shown_first_and_then_as_credit(
    served: Served, is_bound: bool, first_cost: Cost, credit_cost: Cost
) -> None:
    async def ask() -> None:
        await ask_ok(served, bound_headers(served, tx_hash) if is_bound else plain(served.caller, tx_hash))

    async def ask_first() -> None:
        nonlocal tx_hash
        tx_hash = await served.pay(PLENTY)
        await ask()

    tx_hash = None
    first = await served.count_alone(ask_first)
    first_cost.check(first, "first presentation")
    assert first.rpc_requests <= 3

    work, all_works = await count_repeated(served, ask)
    credit_cost.check(work, "credit")
    for each in all_works:  # no connection and no memory explains these
        assert each.rpc_requests == 0
        assert each.recoveries <= credit_cost.recoveries
        assert each.commits == credit_cost.flushed + credit_cost.written
    for each in all_works[1:]:  # listing, terms and payment: from memory
        assert each.read == 0, each.told


@pytest.mark.parametrize("dialect", [V2, V1, MPP])
async def test_a_signed_authorisation(served: Served, dialect: str) -> None:
    payer = AuthorizationPayer(
        cluster=served.cluster, gateway=served, api_id=served.api_id, signer=served.caller
    )
    quotes = [await payer.quote("/quote/ETH") for _ in range(20)]
    shown = payer.show(quotes[0], dialect)

    async def ask() -> None:
        nonlocal shown
        shown = payer.show(quotes.pop(), dialect)  # each is for one call; of MPP so is its challenge
        await ask_ok(served, [shown])

    work = await served.count_alone(ask)
    AUTHORIZED.check(work, dialect)
    assert work.rpc_methods["eth_sendRawTransaction"] == 1

    async def ask_again() -> None:
        """Paid, and nothing was stored to give out again: it is told of its call."""
        assert (await served.call([shown])).status == 409

    again = await served.count_alone(ask_again, finishes=0)
    assert (again.commits, again.rpc_requests, again.recoveries) == (0, 0, 0), again.told


async def test_a_call_that_is_over_leaves_no_object_behind(served: Served) -> None:
    """Nothing of ours, no task and no coroutine. A few calls live on in timers that were cancelled, until the loop clears
    them away; what every other call kept would be seen."""
    tx_hash = await served.pay(PLENTY)
    headers = plain(served.caller, tx_hash)

    async def count_alive() -> Counter[str]:
        await served.count(lambda: ask_many(served, headers), finishes=MANY)
        served.upstream.arrived.clear()
        gc.collect()
        return Counter(name for one in gc.get_objects() if (name := name_kind(one)) is not None)

    await count_alive()  # whatever fills once is full
    before = await count_alive()
    left = await count_alive() - before
    assert max(left.values(), default=0) < MANY / 2, left


def name_kind(one: object) -> str | None:
    kind = type(one)
    if kind is asyncio.TimerHandle:
        return None
    if kind.__module__.startswith(("tollway.", "asyncio", "_asyncio")) or kind in (
        CoroutineType,
        GeneratorType,
    ):
        return f"{kind.__module__}.{kind.__qualname__}"
    return None


async def ask_many(served: Served, headers: Any) -> None:
    for _ in range(MANY):
        await ask_ok(served, headers)


async def test_a_crowd_on_one_payment_is_one_commit(served: Served) -> None:
    """Of 32 calls at once, the first is being written while the others gather: two durable commits in all, and each touches the
    payment's row once."""
    crowd = 32
    tx_hash = await served.pay(PLENTY)
    headers = plain(served.caller, tx_hash)
    await served.count(lambda: ask_ok(served, headers))
    await served.count(lambda: ask_ok(served, headers))
    gate, batches = FaultyDatabase(served.app.database), served.app.ledger._group_commit
    behind, batches._database = batches._database, gate

    async def ask_all() -> None:
        gate.before.clear()
        async with asyncio.TaskGroup() as group:
            for _ in range(crowd):
                group.create_task(ask_ok(served, headers))
            await poll(
                lambda: len(batches._in_flight) + len(batches._queue) == crowd,
                deadline_s=DEADLINE_S,
                what="claims that wait",
            )
            gate.before.set()

    try:
        work = await served.count(ask_all, finishes=crowd)
    finally:
        batches._database = behind
    claims = [one for one in work.transactions if any("INSERT INTO call" in sql for sql in one.statements)]
    written = [sum("INSERT INTO call" in sql for sql in one.statements) for one in claims]
    assert (len(written), sum(written)) == (2, crowd)
    assert work.flushed == 2
    assert work.count("^UPDATE payment") == 2
    looks = work.count(_SHELF_LOOK)
    assert looks <= 1
    assert (work.read - looks, work.rpc_requests, work.recoveries) == (0, 0, 0)
    others = [sum("INSERT INTO call" not in sql for sql in one.statements) for one in claims]
    assert max(others) <= CREDIT_PLAIN.statements
