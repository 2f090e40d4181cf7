"""What one call costs, in numbers that no machine changes: statements, commits, requests to the chain node, recovered
signatures. On each rail, on both databases, with a whole gateway behind its server.

A number here is what a call costs today. Less is an improvement: lower the number. More is a regression, unless the
caller gets something for it.
"""

import asyncio
import gc
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from types import CoroutineType, GeneratorType
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.authorization_payer import MPP, V1, V2, AuthorizationPayer
from tests.kit.counted_gateway import DEADLINE_S, CountedGateway, run_counted_gateway
from tests.kit.gateway_process import poll
from tests.kit.storage_faults import FaultyDatabase
from tests.kit.upstream import Answerer, plain, raw
from tests.kit.work_counter import Work
from tollway.ids import Address
from tollway.webhooks.endpoints import DueChallenge, NewEndpoint, WebhookEndpoint
from tollway.webhooks.events import EventType
from tollway.webhooks.messages import Echo
from tollway.webhooks.schedule import Response

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)],
)
async def served(cluster: Any, request: pytest.FixtureRequest) -> AsyncIterator[CountedGateway]:
    async with run_counted_gateway(cluster, request.param) as gateway:
        yield gateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The most that a call may cost. `flushed` is exact: one less would break a promise. `round_trips`: to
    PostgreSQL."""

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
FREE = Cost(flushed=1, written=1, read=0, statements=2, round_trips=2)
CREDIT_PLAIN = Cost(flushed=1, written=1, read=0, statements=3, round_trips=2)
CREDIT_BOUND = Cost(flushed=1, written=1, read=0, statements=3, recoveries=1, round_trips=2)
FIRST_PLAIN = Cost(flushed=2, written=1, read=1, statements=10, rpc_requests=1, recoveries=2, round_trips=31)
FIRST_BOUND = Cost(flushed=2, written=1, read=1, statements=10, rpc_requests=1, recoveries=1, round_trips=31)
AUTHORIZED = Cost(flushed=3, written=1, read=1, statements=28, rpc_requests=4, recoveries=1, round_trips=44)
"""`rpc_requests`: facts with a simulation, one more simulation at the head, the transaction, and one look for the
receipt. `round_trips` to PostgreSQL, here and above it: a statement that is new to its connection takes a few more."""

PLENTY = 500
"""Calls that a payment here is worth: some are made more often than they count."""
MANY = 100
REPEATS = 8
"""How often a call on credit is made here: what each connection has to learn once is learnt."""


async def ask_ok(served: CountedGateway, headers: Any = (), **options: Any) -> None:
    reply = await served.call(headers, **options)
    assert reply.status == 200, reply.body


async def count_repeated(
    served: CountedGateway, ask: Callable[[], Awaitable[Any]]
) -> tuple[Work, list[Work]]:
    """The cheapest of several calls, and all of them."""
    works = [await served.count(ask) for _ in range(REPEATS)]
    return min(works, key=lambda work: (work.rpc_requests, work.statements, work.round_trips)), works


async def test_an_unpaid_call_is_refused_from_memory(served: CountedGateway) -> None:
    async def ask() -> None:
        assert (await served.call()).status == 402

    await ask()  # the first call reads the listing
    UNPAID.check(await served.count(ask, finishes=0), "unpaid")


async def test_a_free_call(served: CountedGateway) -> None:
    work, _ = await count_repeated(served, lambda: ask_ok(served, api_id=served.free_id))
    FREE.check(work, "free")


@pytest.mark.parametrize(
    ("is_bound", "first_cost", "credit_cost"),
    [(False, FIRST_PLAIN, CREDIT_PLAIN), (True, FIRST_BOUND, CREDIT_BOUND)],
    ids=("plain", "bound"),
)
async def test_a_transaction_presented_first_and_then_as_credit(
    served: CountedGateway, is_bound: bool, first_cost: Cost, credit_cost: Cost
) -> None:
    async def ask() -> None:
        await ask_ok(served, served.bound(tx_hash) if is_bound else served.plain(tx_hash))

    async def ask_first() -> None:
        nonlocal tx_hash
        tx_hash = await served.pay(PLENTY)
        await ask()

    tx_hash = None
    await ask_first()  # the first call of the listing writes its terms row
    await ask()  # a claim on credit opens the session of single statements, where the driver asks for its isolation level
    first = await served.count(ask_first)
    first_cost.check(first, "first presentation")
    assert first.rpc_requests <= 3

    work, all_works = await count_repeated(served, ask)
    credit_cost.check(work, "credit")
    for each in all_works:  # no new connection and no cold cache explains these
        assert each.rpc_requests == 0
        assert each.recoveries <= credit_cost.recoveries
        assert each.commits == credit_cost.flushed + credit_cost.written
    for each in all_works[1:]:  # listing, terms and payment come from memory
        assert each.read == 0, each.told


METERED = {
    "base": "0.0001",
    "absent": "max",
    "parts": [{"unit": "byte", "unitPrice": "0.000001", "per": 1, "quantity": {"bytes": True}}],
}
SHORT = replace(CREDIT_PLAIN, statements=11, round_trips=16)
STREAMED = replace(SHORT, written=CREDIT_PLAIN.written + 1, statements=14, round_trips=21)


@pytest.mark.parametrize(
    ("answer", "cost"),
    [
        pytest.param(plain(b"four"), SHORT, id="a short body: the close has the price"),
        pytest.param(
            raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfour\r\n0\r\n\r\n"),
            STREAMED,
            id="a stream: one write more than a fixed price",
        ),
    ],
)
async def test_a_metered_call(served: CountedGateway, answer: Answerer, cost: Cost) -> None:
    api_id = await served.cluster.publish(
        served, served.provider, endpoint=served.upstream.url, metering=METERED
    )
    headers = served.plain(await served.pay(PLENTY))
    served.upstream.answer, before = answer, served.upstream.answer
    try:
        work, _ = await count_repeated(served, lambda: ask_ok(served, headers, api_id=api_id))
    finally:
        served.upstream.answer = before
    cost.check(work, "metered")
    assert work.count("actual_units") >= 1
    assert work.commits == cost.flushed + cost.written


async def test_a_call_whose_provider_gets_its_event(served: CountedGateway) -> None:
    """On SQLite one statement more, in the transaction of the end; on PostgreSQL none: the event is a part of the end's statement."""
    webhooks, provider = served.app.webhook_services, Address(served.provider.address)
    headers = served.plain(await served.pay(PLENTY))
    await ask_ok(served, headers)
    registered = await webhooks.store.register(
        NewEndpoint(
            id="wh_counted",
            wallet=provider,
            network="192.0.2.1",
            url=served.upstream.url,
            origin=served.upstream.url,
            types=(EventType.CALL_CHARGED,),
            challenge="echo",
            created_ms=2**50,  # its challenge is never due
        ),
        count_max=10,
    )
    assert isinstance(registered, WebhookEndpoint)
    await webhooks.outbox.end_challenge(
        DueChallenge(
            endpoint_id="wh_counted",
            wallet=provider,
            network="",
            origin="",
            is_slow=False,
            url="",
            challenge="echo",
            tries=0,
        ),
        Response(status=200),
        echo=Echo.WALLET,
        sent_ms=1,
        next_ms=None,
        now_ms=2**50,  # no event is delivered either
    )
    await webhooks.store.refresh()
    try:
        work, _ = await count_repeated(served, lambda: ask_ok(served, headers))
    finally:
        await webhooks.store.remove(provider, "wh_counted")
        await webhooks.store.refresh()
    is_sqlite = served.app.database.dialect == "sqlite"
    more = replace(CREDIT_PLAIN, statements=CREDIT_PLAIN.statements + int(is_sqlite))
    more.check(work, "credit with an event")
    assert work.count("INSERT INTO webhook_event") == 1


@pytest.mark.parametrize("dialect", [V2, V1, MPP])
async def test_a_signed_authorisation(served: CountedGateway, dialect: str) -> None:
    payer = AuthorizationPayer(
        cluster=served.cluster, gateway=served, api_id=served.api_id, signer=served.caller
    )
    quotes = [await payer.quote("/quote/ETH") for _ in range(20)]
    shown = payer.show(quotes[0], dialect)

    async def ask() -> None:
        nonlocal shown
        shown = payer.show(quotes.pop(), dialect)  # each quote is for one call; the challenge of MPP too
        await ask_ok(served, [shown])

    # A look for the receipt that comes before the block is repeated.
    work, works = await count_repeated(served, ask)
    AUTHORIZED.check(work, dialect)
    assert [one.rpc_methods["eth_sendRawTransaction"] for one in works] == [1] * len(works)

    async def ask_again() -> None:
        """The call is paid and has no stored response: the refusal names the call."""
        assert (await served.call([shown])).status == 409

    again = await served.count(ask_again, finishes=0)
    assert (again.commits, again.rpc_requests, again.recoveries) == (0, 0, 0), again.told


async def test_a_call_that_is_over_leaves_no_object_behind(served: CountedGateway) -> None:
    """No object of our classes, no task and no coroutine. A few calls stay in cancelled timers until the loop removes
    them; an object that every other call keeps would be visible."""
    tx_hash = await served.pay(PLENTY)
    headers = served.plain(tx_hash)

    async def count_alive() -> Counter[str]:
        await served.count(lambda: ask_many(served, headers), finishes=MANY)
        served.upstream.arrived.clear()
        gc.collect()
        return Counter(name for one in gc.get_objects() if (name := name_kind(one)) is not None)

    await count_alive()  # caches are full
    before = await count_alive()
    left = await count_alive() - before
    assert max(left.values(), default=0) < MANY / 2, left


async def test_a_call_leaves_nothing_that_only_the_collector_can_free(served: CountedGateway) -> None:
    tx_hash = await served.pay(PLENTY)
    headers = served.plain(tx_hash)
    await served.count(lambda: ask_many(served, headers), finishes=0)
    gc.collect()
    gc.disable()
    try:
        await served.count(lambda: ask_many(served, headers), finishes=0)
        found = gc.collect()
    finally:
        gc.enable()
    assert found < MANY, found


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


async def ask_many(served: CountedGateway, headers: Any) -> None:
    for _ in range(MANY):
        await ask_ok(served, headers)


def count_waiting(batches: Any) -> int:
    """The claims that wait or are being written."""
    queues = batches._statement_queues.all if batches._statement_queues else ()
    return len(batches._in_flight) + len(batches._queue) + sum(map(len, queues))


async def test_many_claims_of_one_payment_are_one_commit(served: CountedGateway) -> None:
    """Of 32 calls at once the first is written while the others wait: two durable commits in all. On PostgreSQL each
    is one statement; on SQLite a claim is one UPDATE of the payment and one row, and nothing is read."""
    crowd = 32
    tx_hash = await served.pay(PLENTY)
    headers = served.plain(tx_hash)
    await served.count(lambda: ask_ok(served, headers))
    await served.count(lambda: ask_ok(served, headers))
    gate, batches = FaultyDatabase(served.app.database), served.app.ledger._group_commit
    writers: list[Any] = [batches, *([batches._statement_queues] if batches._statement_queues else [])]
    behind = batches._database
    for writer in writers:
        writer._database = gate

    async def ask_all() -> None:
        gate.before.clear()
        async with asyncio.TaskGroup() as group:
            for _ in range(crowd):
                group.create_task(ask_ok(served, headers))
            await poll(
                lambda: count_waiting(batches) == crowd,
                deadline_s=DEADLINE_S,
                what="claims that wait",
            )
            gate.before.set()

    try:
        work = await served.count(ask_all, finishes=1 if batches._statement_queues else crowd)
    finally:
        for writer in writers:
            writer._database = behind
    claims = [one for one in work.transactions if any("INSERT INTO call" in sql for sql in one.statements)]
    written = [sum("INSERT INTO call" in sql for sql in one.statements) for one in claims]
    assert len(written) == 2
    assert sum(written) == (
        2 if batches._statement_queues else crowd
    )  # on PostgreSQL one statement writes the batch
    assert work.flushed == 2
    assert work.count("UPDATE payment") == sum(written)
    assert (work.read, work.rpc_requests, work.recoveries) == (0, 0, 0)
    others = [
        sql
        for one in claims
        for sql in one.statements
        if not re.search("INSERT INTO call|UPDATE (payment|call)", sql)
    ]
    assert others == []
