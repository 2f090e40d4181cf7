"""An upstream's answer costs, and the end of its call cannot be written: its caller hears 503 `held`, and the answer is
dropped. No caller pays twice, and none pays for nothing, whatever was committed, and whoever comes back where.

Each row: how the call is paid and named, which write fails, whether it was committed all the same; and what the same
request gets at once, after the sweeper, and after the hold.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tollway.ledger.call import CallState
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.answer_store import AnswerStore
from tollway.storage.book_store import BookStore
from tollway.storage.database import Database
from tollway.storage.gas_store import GasStore
from tollway.storage.sealer import Sealer
from tollway.testing.asgi_exchange import Exchange
from tollway.testing.gated_books import Gate
from tollway.testing.loopback import Arrived, plain, run_upstream
from tollway.testing.small_gateway import NOW_MS, SmallGateway
from tollway.testing.small_payer import SmallPayer, earned, has_terms, served, transfers
from tollway.testing.small_settlement import Stores

PRICE = 10_000
TARGET = "/quote?x=1"
KEY = [("Idempotency-Key", "one")]
HOLD_MS = DEFAULT_LIMITS.unknown_hold_s * 1000
NEVER_S = 1e6
SEALER = Sealer(b"\x07" * 32, entropy=os.urandom)


@dataclass(slots=True, kw_only=True)
class Fault:
    """The n-th write after the upstream's head fails, and the database is away from then on. `landed`: its commit is there."""

    number: int
    landed: bool


CLOSE_LOST, CLOSE_LANDED = Fault(number=1, landed=False), Fault(number=1, landed=True)
SETTLE_LOST, SETTLE_LANDED = CLOSE_LOST, CLOSE_LANDED
CONCLUDE_LOST, CONCLUDE_LANDED = Fault(number=2, landed=False), Fault(number=2, landed=True)


@dataclass(slots=True)
class Clock:
    ms: int

    def __call__(self) -> int:
        return self.ms


class House:
    """One gateway over a database, behind a gate that fails when the row says."""

    def __init__(
        self, database: Database, owner_id: str, upstream: Any, *, before: "House | None", **limits: Any
    ) -> None:
        self.gate = Gate(database)
        short = {"connect_deadline_s": 5.0, "settle_wait_s": 2.0, "close_patience_s": 0.0, **limits}
        kept = replace(DEFAULT_LIMITS, **{name: value for name, value in short.items() if name != "retry_s"})
        self.clock = before.clock if before else Clock(NOW_MS)
        self.book = BookStore(
            self.gate,  # type: ignore[arg-type]  # it stands in for a database
            owner_id=owner_id,
            now_ms=self.clock,
            limits=kept,
            shared_clock=lambda connection, now_ms: self.clock.ms,
            close_retry_s=short.get("retry_s", NEVER_S),
        )
        stores = Stores(
            book=self.book,
            answers=AnswerStore(self.gate, sealer=SEALER, limits=kept),  # type: ignore[arg-type]  # as above
            gas=GasStore(database),
        )
        self.small = SmallGateway(
            upstream, limits=kept, before=before.small if before else None, stores=stores
        )
        self._countdown: Fault | None = None
        upstream.answer = self._answer

    async def _answer(self, arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        if self._countdown is not None:
            self._arm(self._countdown)
            self._countdown = None
        await plain(b"rare")(arrived, writer)

    def fail_at(self, fault: Fault) -> None:
        """From the next head of the upstream on."""
        self._countdown = replace(fault)

    def _arm(self, fault: Fault) -> None:
        def is_due() -> bool:
            fault.number -= 1
            if fault.number == 0:
                self.gate.is_away = True
            return fault.number == 0

        if fault.landed:
            self.gate.fail_after = is_due
        else:
            self.gate.fail_before = is_due

    def come_back(self) -> None:
        self.gate.is_away = False
        self.gate.fail_before = self.gate.fail_after = lambda: False

    async def run(self, stack: AsyncExitStack) -> None:
        task = asyncio.get_running_loop().create_task(self.book.run())

        async def stop() -> None:
            self.come_back()
            self.book.stop()
            await task

        stack.push_async_callback(stop)
        stack.push_async_callback(self.small.dialer.close)
        await self.book.open()
        await stack.enter_async_context(self.small.settling.running())


@asynccontextmanager
async def opened_houses(
    database: Database, names: Sequence[str], **limits: Any
) -> AsyncIterator[list[House]]:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(run_upstream())
        houses: list[House] = []
        for name in names:
            house = House(database, name, upstream, before=houses[0] if houses else None, **limits)
            await house.run(stack)
            houses.append(house)
        upstream.answer = houses[0]._answer
        await houses[0].small.publish()
        yield houses
        report = await houses[0].book.audit()
        assert report.is_balanced, report.wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`soon`: what the same request gets at once: 200, or the code of a refusal. `swept`: after the sweeper has looked.
    `held`: the call is given back after the hold, and its price is credit."""

    name: str
    rail: str
    method: str
    fault: Fault
    soon: str
    swept: str = ""
    key: bool = False
    held: bool = False


SERVED = "200"
ROWS = (
    # A transaction: the close is the only write.
    Row(name="tx GET lost", rail="tx", method="GET", fault=CLOSE_LOST, soon=SERVED),
    Row(name="tx GET landed", rail="tx", method="GET", fault=CLOSE_LANDED, soon=SERVED),
    Row(name="tx HEAD landed", rail="tx", method="HEAD", fault=CLOSE_LANDED, soon=SERVED),
    Row(name="tx GET key lost", rail="tx", method="GET", key=True, fault=CLOSE_LOST, soon=SERVED),
    Row(name="tx GET key landed", rail="tx", method="GET", key=True, fault=CLOSE_LANDED, soon=SERVED),
    Row(name="tx POST key lost", rail="tx", method="POST", key=True, fault=CLOSE_LOST, soon=SERVED),
    Row(name="tx POST key landed", rail="tx", method="POST", key=True, fault=CLOSE_LANDED, soon=SERVED),
    Row(
        name="tx POST lost",
        rail="tx",
        method="POST",
        fault=CLOSE_LOST,
        soon="payment_already_used",
        held=True,
    ),
    Row(
        name="tx POST landed",
        rail="tx",
        method="POST",
        fault=CLOSE_LANDED,
        soon="payment_already_used",
        held=True,
    ),
    # An authorisation: first it goes to `settling`, then the money moves, then it is concluded.
    Row(name="x402 GET settle lost", rail="x402", method="GET", fault=SETTLE_LOST, soon=SERVED),
    Row(
        name="x402 GET settle landed",
        rail="x402",
        method="GET",
        fault=SETTLE_LANDED,
        soon="payment_outcome_unknown",
        swept=SERVED,
    ),
    Row(
        name="x402 GET conclude lost",
        rail="x402",
        method="GET",
        fault=CONCLUDE_LOST,
        soon="payment_outcome_unknown",
        swept=SERVED,
    ),
    Row(name="x402 GET conclude landed", rail="x402", method="GET", fault=CONCLUDE_LANDED, soon=SERVED),
    Row(name="x402 GET key settle lost", rail="x402", method="GET", key=True, fault=SETTLE_LOST, soon=SERVED),
    Row(
        name="x402 GET key settle landed",
        rail="x402",
        method="GET",
        key=True,
        fault=SETTLE_LANDED,
        soon="payment_outcome_unknown",
        swept=SERVED,
    ),
    Row(
        name="x402 GET key conclude lost",
        rail="x402",
        method="GET",
        key=True,
        fault=CONCLUDE_LOST,
        soon="payment_outcome_unknown",
        swept=SERVED,
    ),
    Row(
        name="x402 GET key conclude landed",
        rail="x402",
        method="GET",
        key=True,
        fault=CONCLUDE_LANDED,
        soon=SERVED,
    ),
    Row(
        name="x402 POST key settle lost", rail="x402", method="POST", key=True, fault=SETTLE_LOST, soon=SERVED
    ),
    Row(
        name="x402 POST key settle landed",
        rail="x402",
        method="POST",
        key=True,
        fault=SETTLE_LANDED,
        soon="payment_outcome_unknown",
        swept="authorization_became_credit",
    ),
    Row(
        name="x402 POST key conclude lost",
        rail="x402",
        method="POST",
        key=True,
        fault=CONCLUDE_LOST,
        soon="payment_outcome_unknown",
        swept="authorization_became_credit",
    ),
    Row(
        name="x402 POST key conclude landed",
        rail="x402",
        method="POST",
        key=True,
        fault=CONCLUDE_LANDED,
        soon=SERVED,
    ),
    Row(
        name="x402 POST settle lost",
        rail="x402",
        method="POST",
        fault=SETTLE_LOST,
        soon="authorization_used",
        swept="authorization_used",
    ),
    Row(
        name="x402 POST settle landed",
        rail="x402",
        method="POST",
        fault=SETTLE_LANDED,
        soon="payment_outcome_unknown",
        swept="authorization_became_credit",
    ),
    Row(
        name="x402 POST conclude lost",
        rail="x402",
        method="POST",
        fault=CONCLUDE_LOST,
        soon="payment_outcome_unknown",
        swept="authorization_became_credit",
    ),
    Row(
        name="x402 POST conclude landed",
        rail="x402",
        method="POST",
        fault=CONCLUDE_LANDED,
        soon="authorization_used",
        held=True,
    ),
)


@dataclass(slots=True, kw_only=True)
class Scene:
    """One caller and his one request. `answers`: how often he has got what he paid for."""

    houses: list[House]
    row: Row
    headers: list[tuple[str, str]] = field(default_factory=list)
    payment: Any = None

    @property
    def small(self) -> SmallGateway:
        return self.houses[0].small

    async def pay(self) -> None:
        if self.row.rail == "tx":
            self.payment = await self.small.pay(PRICE)
            self.headers += self.small.plain_proof(self.payment.tx_hash)
        else:
            payer = SmallPayer(buyer=self.small.buyer, gate=self.small)
            payer.fund(10 * PRICE)
            self.headers += payer.show(await payer.quote("GET", TARGET))
        if self.row.key:
            self.headers += KEY

    def open(self, at: int = 0) -> Exchange:
        chunks = [b"order"] if self.row.method == "POST" else []
        return self.houses[at].small.open(self.row.method, TARGET, self.headers, chunks)

    async def ask(self, at: int = 0) -> Exchange:
        return await self.houses[at].small.run(self.open(at))

    async def lose(self, *, leaves: bool = False) -> None:
        """The answer is dropped; its caller is told so, or has left before."""
        self.houses[0].fail_at(self.row.fault)
        exchange = self.open()
        if leaves:
            exchange.leave()
        await self.houses[0].small.run(exchange)
        assert self.houses[0].gate.is_away, "the fault did not happen"
        if not leaves:
            assert exchange.status == 503
            assert exchange.headers["tollway-payment-state"] == "held"
            if self.row.method != "HEAD":
                assert exchange.problem["code"] == "payment_outcome_unknown"
                assert not has_terms(exchange)
        self.houses[0].come_back()

    async def sweep(self) -> None:
        """What the house does every few seconds."""
        await self.houses[0].book.recover(now_ms=self.houses[0].clock.ms)
        for _ in range(2):  # it is sent, and then looked for
            await self.small.settling.sweep()

    async def wait_hold(self) -> None:
        for house in self.houses:
            await house.book.renew_ownership(now_ms=house.clock.ms)
        self.houses[0].clock.ms += HOLD_MS + 1
        await self.houses[0].book.renew_ownership(now_ms=self.houses[0].clock.ms)
        await self.houses[0].book.recover(now_ms=self.houses[0].clock.ms)

    async def call(self) -> Any:
        (call,) = await self.small.history()
        return call

    async def check_paid_once(self) -> None:
        call = await self.call()
        assert call.state is CallState.CONSUMED
        assert served(self.small) == 2, "the run that was dropped, and its one repeat"
        if self.row.rail == "tx":
            assert await self.small.rest_units(self.payment) == 0
        else:
            assert (earned(self.small), transfers(self.small)) == (PRICE, 1)

    async def check_credit(self) -> None:
        """The price buys something else."""
        call = await self.call()
        assert (call.state, served(self.small)) == (CallState.RELEASED, 1)
        payments = await self.small.book.find_payments(call.tx_hash)
        assert [one.rest_units for one in payments] == [PRICE]


def told(answer: Exchange) -> str:
    if answer.status == 200:
        return SERVED
    if not answer.body:  # to HEAD
        return {409: "payment_already_used"}[answer.status]
    assert not has_terms(answer)
    return str(answer.problem.get("reason") or answer.problem["code"])


async def play(row: Row, houses: list[House], *, at: int, leaves: bool, is_written: bool) -> None:
    scene = Scene(houses=houses, row=row)
    await scene.pay()
    await scene.lose(leaves=leaves)
    if is_written:
        await houses[0].book._batches.write_late()
    answer = await scene.ask(at)
    assert told(answer) == row.soon
    if row.swept:
        await scene.sweep()
        answer = await scene.ask(at)
        assert told(answer) == row.swept
    if answer.status == 200:
        assert answer.headers["tollway-call-id"] == (await scene.call()).id
        assert answer.headers["tollway-payment-state"] == "charged"
        await scene.check_paid_once()
        if row.rail == "tx" and not row.key:
            assert told(await scene.ask(at)) == "payment_already_used"  # one repeat, not two
            await scene.check_paid_once()
        if row.key:
            again = await scene.ask(1 - at if len(houses) > 1 else at)
            assert again.headers["idempotency-replayed"] == "true"
            await scene.check_paid_once()
    elif row.held:
        call = await scene.call()
        assert call.state is CallState.UNKNOWN
        await scene.wait_hold()
        await scene.check_credit()
    elif row.swept == "authorization_became_credit":
        await scene.check_credit()
    else:
        assert (earned(scene.small), transfers(scene.small)) == (0, 0), "nothing has moved"


@pytest.mark.parametrize("leaves", [False, True], ids=["heard", "left"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_at_the_same_gateway_a_dropped_answer_is_paid_once_or_not_at_all(
    database: Database, row: Row, leaves: bool
) -> None:
    """Nothing is waited for: what is late is written before the repeat is looked at."""
    async with opened_houses(database, ["one"]) as houses:
        await play(row, houses, at=0, leaves=leaves, is_written=False)


@pytest.fixture
async def postgres_database(postgres_url: str, open_database: Any) -> AsyncIterator[Database]:
    async with open_database(postgres_url) as it:
        yield it


@pytest.mark.postgres
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_at_another_gateway_too_once_the_first_has_written(
    postgres_database: Database, row: Row
) -> None:
    async with opened_houses(postgres_database, ["one", "two"]) as houses:
        await play(row, houses, at=1, leaves=False, is_written=True)
