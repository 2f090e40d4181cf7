"""A response that its upstream cuts: when the caller sees the break, the cut is in the ledger, and a repeat at any gateway is free."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.kit.asgi_exchange import Exchange, HeaderPairs
from tests.kit.payer import has_terms
from tests.kit.storage_faults import FaultyGateway, open_faulty_gateways
from tests.kit.upstream import Arrived, plain
from tests.kit.waits import until
from tollway.ledger.ledger import Payment
from tollway.storage.engine.database import Database

CALLS = 20
PRICE = 10_000
CREDIT = 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
PART = b"x" * 20_000
WHOLE = b"x" * 100_000


def stream(body: bytes, before_rest: Callable[[], Awaitable[object]]) -> Callable[..., Awaitable[None]]:
    """A response whose head promises `WHOLE`. `before_rest`: runs once the first part of `body` is sent."""

    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + body[: len(PART)])
        await writer.drain()
        await before_rest()
        writer.write(body[len(PART) :])
        await writer.drain()
        if body != WHOLE:
            raise ConnectionAbortedError

    return answer


async def pass_by() -> None:
    """Nothing happens."""


class Caller:
    """A caller of two gateways, with one payment."""

    def __init__(self, gateways: list[FaultyGateway], payment: Payment, proof: HeaderPairs) -> None:
        self.one, self.two = gateways
        self._payment, self._proof = payment, proof

    @classmethod
    async def with_credit(cls, gateways: list[FaultyGateway]) -> "Caller":
        gateway = gateways[0].gateway
        payment = await gateway.pay(CREDIT)
        caller = cls(gateways, payment, gateway.plain_proof(payment.tx_hash))
        for at in gateways:  # known terms, so that later claims are plain
            assert (await caller.ask(at, "warm")).status == 200
        return caller

    async def ask(self, at: FaultyGateway, name: str) -> Exchange:
        return await at.gateway.ask("GET", f"/quote?{name}", self._proof)

    async def repeat(self, name: str) -> Exchange:
        """The same request at the other gateway."""
        self.one.gateway.upstream.answer = plain(b"whole")
        return await self.ask(self.two, name)

    async def charged_calls(self) -> int:
        """Without the two of `with_credit`."""
        return (CREDIT - await self.one.gateway.remaining_units(self._payment)) // PRICE - 2


async def test_a_repeat_at_another_gateway_is_free(database: Database) -> None:
    async with open_faulty_gateways(database, ["one", "two"]) as gateways:
        caller = await Caller.with_credit(gateways)
        for number in range(CALLS):
            caller.one.gateway.upstream.answer = stream(PART, pass_by)
            broken = await caller.ask(caller.one, f"n={number}")
            assert (broken.status, broken.is_ended) == (200, False)
            again = await caller.repeat(f"n={number}")
            assert (again.status, again.body) == (200, b"whole")
            assert await caller.charged_calls() == number + 1


async def test_a_cut_is_flushed(database: Database) -> None:
    async with open_faulty_gateways(database, ["one", "two"]) as gateways:
        caller = await Caller.with_credit(gateways)
        caller.one.gateway.upstream.answer = stream(PART, pass_by)
        await caller.ask(caller.one, "cut")
        assert caller.one.database.flushed[-1]


async def test_a_whole_response_does_not_wait_for_the_write_of_its_end(database: Database) -> None:
    async with open_faulty_gateways(database, ["one", "two"]) as gateways:
        caller = await Caller.with_credit(gateways)

        async def stop_writes() -> None:
            await until(lambda: exchange.is_started)
            caller.one.database.before.clear()

        exchange = caller.one.gateway.open("GET", "/quote?whole", caller._proof)
        caller.one.gateway.upstream.answer = stream(WHOLE, stop_writes)
        await caller.one.gateway.run(exchange)
        assert (exchange.is_ended, len(exchange.body)) == (True, len(WHOLE))
        caller.one.database.before.set()


async def test_while_the_database_is_away_the_break_waits_for_its_limit_and_the_cut_for_the_database(
    database: Database,
) -> None:
    async with open_faulty_gateways(database, ["one", "two"], cut_wait_s=0.02, retry_s=0.01) as gateways:
        caller = await Caller.with_credit(gateways)

        async def lose_database() -> None:
            await until(lambda: exchange.is_started)
            for gateway in gateways:
                gateway.database.is_away = True

        exchange = caller.one.gateway.open("GET", "/quote?cut", caller._proof)
        caller.one.gateway.upstream.answer = stream(PART, lose_database)
        await caller.one.gateway.run(exchange)
        assert (exchange.status, exchange.is_ended) == (200, False)

        refused = await caller.repeat("cut")
        assert (refused.status, has_terms(refused)) == (503, False)

        caller.one.reconnect()
        await until(lambda: not caller.one.ledger._group_commit.has_late())
        caller.two.reconnect()
        again = await caller.repeat("cut")
        assert (again.status, again.body) == (200, b"whole")
        assert await caller.charged_calls() == 1


async def test_at_the_same_gateway_a_repeat_after_an_outage_finds_the_cut(database: Database) -> None:
    async with open_faulty_gateways(database, ["one", "two"], cut_wait_s=0.0) as gateways:
        caller = await Caller.with_credit(gateways)

        async def lose_database() -> None:
            await until(lambda: exchange.is_started)
            caller.one.database.is_away = True

        exchange = caller.one.gateway.open("GET", "/quote?cut", caller._proof)
        caller.one.gateway.upstream.answer = stream(PART, lose_database)
        await caller.one.gateway.run(exchange)
        caller.one.reconnect()
        caller.one.gateway.upstream.answer = plain(b"whole")
        assert (await caller.ask(caller.one, "cut")).body == b"whole"
        assert await caller.charged_calls() == 1
