"""A database whose writes wait, fail or lose their acknowledgement where a test says, and what runs over it: one ledger
(`FaultyLedger`), whole gateways (`FaultyGateway`), and calls in flight while it happens (`ConcurrentCalls`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tests.kit.asgi_exchange import Exchange
from tests.kit.clocks import Clock
from tests.kit.gateway import InProcessGateway, Stores
from tests.kit.ledger_records import NOW_MS, new_payment
from tests.kit.payer import has_terms
from tests.kit.sql_ledger import SqlLedger
from tests.kit.stores import make_sealer
from tests.kit.upstream import Arrived, plain, run_upstream
from tests.kit.waits import DEADLINE_S, until
from tests.model.ledger import MemoryLedger
from tollway.errors import StorageUnavailable
from tollway.ledger.records import CallState
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.observability.call_trace import TraceSampler
from tollway.storage.engine.database import Database
from tollway.storage.ledger.gas_store import GasStore
from tollway.storage.ledger.idempotency import ResponseStore


class BlindLedger(MemoryLedger):
    """Another gateway claims between this one's look for the key and its own claim."""

    async def find_keyed_call(self, payer: Any, idempotency_key: str, *, since_ms: int) -> None:
        return None


class FaultyDatabase:
    """A database. A write waits for `before`, and after its commit for `after`; it fails where `fail_before` or `fail_after`
    is true. `is_away`: nothing answers."""

    def __init__(self, database: Database) -> None:
        self.dialect = database.dialect
        self._database = database
        self.before = asyncio.Event()
        self.after = asyncio.Event()
        self.before.set()
        self.after.set()
        self.begun = 0
        self.committed = 0
        self.fail_before: Callable[[], bool] = lambda: False
        self.fail_after: Callable[[], bool] = lambda: False
        self.is_away = False
        self.flushed: list[bool] = []

    async def read(self, work: Any, *, is_long: bool = False) -> Any:
        if self.is_away:
            raise StorageUnavailable
        return await self._database.read(work, is_long=is_long)

    async def write(self, work: Any, *, flush: bool = True, is_long: bool = False) -> Any:
        return await self._write(
            lambda: self._database.write(work, flush=flush, is_long=is_long), flush=flush
        )

    async def write_statement(self, work: Any, *, flush: bool = True) -> Any:
        return await self._write(lambda: self._database.write_statement(work, flush=flush), flush=flush)

    async def _write(self, write: Callable[[], Awaitable[Any]], *, flush: bool) -> Any:
        self.begun += 1
        self.flushed.append(flush)
        await self.before.wait()
        if self.is_away or self.fail_before():
            raise StorageUnavailable
        outcome = await write()
        self.committed += 1
        await self.after.wait()
        if self.fail_after():
            raise StorageUnavailable
        return outcome


class FaultyLedger:
    """One gateway's ledger over a `FaultyDatabase`. `patience_s`: a close is tried for so long."""

    def __init__(
        self,
        database: Database,
        owner_id: str = "one",
        *,
        limits: Limits = DEFAULT_LIMITS,
        patience_s: float = 0.0,
        retry_s: float = 1e6,
        **options: Any,
    ) -> None:
        self.sizes: list[int] = []
        self.database = FaultyDatabase(database)
        self.ticks_ms = NOW_MS
        self.ledger: Any = SqlLedger(
            self.database,  # type: ignore[arg-type]  # it stands in for a database
            owner_id=owner_id,
            now_ms=lambda: NOW_MS,
            ticks_ms=lambda: self.ticks_ms,
            limits=replace(limits, close_patience_s=patience_s),
            close_retry_s=retry_s,
            on_batch=self.sizes.append,
            **options,
        )
        self._task = asyncio.get_running_loop().create_task(self.ledger.run())

    async def pay(self, value_units: int, name: str = "tx", **fields: Any) -> Any:
        (payment,) = await self.ledger.record_payments(
            [new_payment(value_units, name, **fields)], now_ms=NOW_MS
        )
        return payment

    def disconnect_after_commit(self) -> bool:
        """For `fail_after`: the commit is written, its answer is lost, and nothing answers any more."""
        self.database.is_away = True
        return True

    def reconnect(self) -> None:
        self.database.is_away, self.database.fail_after = False, lambda: False

    async def close(self) -> None:
        self.database.before.set()
        self.database.after.set()
        self.ledger.stop()
        await self._task


def once() -> Callable[[], bool]:
    answers = iter([True])
    return lambda: next(answers, False)


def start(job: Any) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(job)


NEVER_S = 1e6
PRICE = 10_000


@dataclass(slots=True, kw_only=True)
class Fault:
    """The n-th write after the upstream's head fails, and the database is away from then on. `landed`: its commit is there."""

    number: int
    landed: bool


class FaultyGateway:
    """One gateway over a `FaultyDatabase`."""

    def __init__(
        self,
        database: Database,
        owner_id: str,
        upstream: Any,
        *,
        before: "FaultyGateway | None",
        traces: TraceSampler | None = None,
        **limits: Any,
    ) -> None:
        self.database = FaultyDatabase(database)
        short = {"connect_deadline_s": 5.0, "settle_wait_s": 2.0, "close_patience_s": 0.0, **limits}
        kept = replace(DEFAULT_LIMITS, **{name: value for name, value in short.items() if name != "retry_s"})
        self.clock: Clock = before.clock if before else Clock(NOW_MS)
        self.ledger = SqlLedger(
            self.database,  # type: ignore[arg-type]  # it stands in for a database
            owner_id=owner_id,
            now_ms=self.clock,
            limits=kept,
            shared_clock=lambda connection, now_ms: self.clock.ms,
            traces=traces,
            close_retry_s=short.get("retry_s", NEVER_S),
        )
        stores = Stores(
            ledger=self.ledger,
            stored_responses=ResponseStore(self.database, sealer=make_sealer(), limits=kept),  # type: ignore[arg-type]  # as above
            gas=GasStore(database),
        )
        self.gateway: InProcessGateway = InProcessGateway(
            upstream,
            limits=kept,
            before=before.gateway if before else None,
            stores=stores,
            traces=traces,
        )
        self.at_head: Callable[[], object] = lambda: None

    async def _answer(self, arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        at_head, self.at_head = self.at_head, lambda: None
        at_head()
        await plain(b"rare")(arrived, writer)

    def fail_at(self, fault: Fault) -> None:
        """From the next head of the upstream on."""
        self.at_head = partial(self._arm, replace(fault))

    def fail_writes_at_head(self, *, first: int, writes: int, landed: bool) -> None:
        """From the `first` write after the next head on so many fail; of the first of them only the acknowledgement is lost,
        where it has `landed`."""
        good = [False] * (first - 1)
        before, after = iter([*good, not landed, *[True] * (writes - 1)]), iter([*good, landed])

        def arm() -> None:
            self.database.fail_before = lambda: next(before, False)
            self.database.fail_after = lambda: next(after, False)

        self.at_head = arm

    def _arm(self, fault: Fault) -> None:
        def is_due() -> bool:
            fault.number -= 1
            if fault.number == 0:
                self.database.is_away = True
            return fault.number == 0

        if fault.landed:
            self.database.fail_after = is_due
        else:
            self.database.fail_before = is_due

    def reconnect(self) -> None:
        self.database.is_away = False
        self.database.fail_before = self.database.fail_after = lambda: False

    async def run(self, stack: AsyncExitStack) -> None:
        task = asyncio.get_running_loop().create_task(self.ledger.run())

        async def stop() -> None:
            self.reconnect()
            self.ledger.stop()
            await task

        stack.push_async_callback(stop)
        stack.push_async_callback(self.gateway.http_client.close)
        await self.ledger.open()
        await stack.enter_async_context(self.gateway.settlement.running())


@asynccontextmanager
async def open_faulty_gateways(
    database: Database, names: Sequence[str], *, traces: TraceSampler | None = None, **limits: Any
) -> AsyncIterator[list[FaultyGateway]]:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(run_upstream())
        gateways: list[FaultyGateway] = []
        for name in names:
            gateway = FaultyGateway(
                database, name, upstream, before=gateways[0] if gateways else None, traces=traces, **limits
            )
            await gateway.run(stack)
            gateways.append(gateway)
        upstream.answer = gateways[0]._answer
        await gateways[0].gateway.publish()
        yield gateways
        report = await gateways[0].ledger.audit()
        assert report.is_balanced, report.wrong


CALLS = 9


@dataclass(slots=True, kw_only=True)
class ConcurrentCalls:
    """Calls whose upstream heads all arrive at the same moment. Each has a payment of its own."""

    gateways: list[FaultyGateway]
    calls: list[tuple[str, str, Any, list[tuple[str, str]]]] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def prepare(self) -> None:
        gateway = self.gateways[0].gateway
        for number in range(CALLS):
            payment = await gateway.pay(PRICE)
            method = ("GET", "GET", "POST")[number % 3]
            key = [("Idempotency-Key", f"key-{number}")] if number % 3 else []
            shown = [*gateway.plain_proof(payment.tx_hash), *key]
            self.calls.append((method, f"/quote?n={number}", payment, shown))
        gateway.upstream.answer = self._answer

    async def _answer(self, arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        await self.may_answer.wait()
        await plain(b"rare")(arrived, writer)

    async def send(self, number: int, at: int = 0) -> Exchange:
        method, target, _, shown = self.calls[number]
        return await self.gateways[at].gateway.ask(
            method, target, shown, [b"order"] if method == "POST" else []
        )

    async def run_during(self, trouble: Any, *, before: Any = None) -> list[Exchange]:
        """Their responses, while `trouble` happens between head and close. `before`: what is over when the heads arrive."""
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self.send(number)) for number in range(CALLS)]
            await until(lambda: self.gateways[0].gateway.served == CALLS)
            if before is not None:
                await before()
            troubling = group.create_task(trouble())
            self.may_answer.set()
            await troubling
        return [one.result() for one in asked]

    async def write_late_closes(self) -> None:
        """Returns once the database takes writes again, and the first gateway has written what is late."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                with contextlib.suppress(StorageUnavailable):
                    await self.gateways[0].ledger.recover(now_ms=self.gateways[0].clock.ms)
                    # The database can be back just after the ends were tried again.
                    if not self.gateways[0].ledger._group_commit.has_late():
                        return
                await asyncio.sleep(0.05)

    async def retry_dropped(self, answers: list[Exchange], *, at: int = 0) -> int:
        """Repeats each call that got no response, as its refusal says. Returns how many were repeated."""
        dropped = [number for number, answer in enumerate(answers) if answer.status != 200]
        for number in dropped:
            assert (answers[number].status, answers[number].problem["code"]) == (
                503,
                "payment_outcome_unknown",
            )
            assert not has_terms(answers[number])
            again = await self.send(number, at)
            assert again.status == 200, again.body
        return len(dropped)

    async def check(self, *, dropped: int) -> None:
        """Each call was paid once and has one response."""
        gateway = self.gateways[0].gateway
        calls = await gateway.history()
        assert [call.state for call in calls] == [CallState.CONSUMED] * CALLS
        assert [await gateway.remaining_units(payment) for _, _, payment, _ in self.calls] == [0] * CALLS
        assert gateway.served <= CALLS + dropped
