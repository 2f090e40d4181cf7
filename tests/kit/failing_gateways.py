"""Whole gateways over a real database, whose writes fail where a test says: for what becomes of calls whose end cannot be
written. The upstream is one on loopback, the chain is in memory.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import NOW_MS, SmallGateway
from tests.kit.gateway_settlement import Stores
from tests.kit.paused_ledger import Gate, until
from tests.kit.payer import has_terms, served
from tests.kit.upstream import Arrived, plain, run_upstream
from tollway.errors import StorageUnavailable
from tollway.ledger.call import CallState
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.answer_store import AnswerStore
from tollway.storage.book_store import BookStore
from tollway.storage.database import Database
from tollway.storage.gas_store import GasStore
from tollway.storage.sealer import Sealer

NEVER_S = 1e6
PRICE = 10_000
SEALER = Sealer(b"\x07" * 32, entropy=os.urandom)


@dataclass(slots=True, kw_only=True)
class Fault:
    """The n-th write after the upstream's head fails, and the database is away from then on. `landed`: its commit is there."""

    number: int
    landed: bool


@dataclass(slots=True)
class Clock:
    ms: int

    def __call__(self) -> int:
        return self.ms


class GatedGateway:
    """One gateway over a database, behind a gate that fails when the row says."""

    def __init__(
        self,
        database: Database,
        owner_id: str,
        upstream: Any,
        *,
        before: "GatedGateway | None",
        **limits: Any,
    ) -> None:
        self.gate = Gate(database)
        short = {"connect_deadline_s": 5.0, "settle_wait_s": 2.0, "close_patience_s": 0.0, **limits}
        kept = replace(DEFAULT_LIMITS, **{name: value for name, value in short.items() if name != "retry_s"})
        self.clock: Clock = before.clock if before else Clock(NOW_MS)
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
        self.small: SmallGateway = SmallGateway(
            upstream, limits=kept, before=before.small if before else None, stores=stores
        )
        self.at_head: Callable[[], object] = lambda: None

    async def _answer(self, arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        at_head, self.at_head = self.at_head, lambda: None
        at_head()
        await plain(b"rare")(arrived, writer)

    def fail_at(self, fault: Fault) -> None:
        """From the next head of the upstream on."""
        self.at_head = partial(self._arm, replace(fault))

    def stumble_at_head(self, *, first: int, writes: int, landed: bool) -> None:
        """From the `first` write after the next head on so many fail; of the first of them only the acknowledgement is lost,
        where it has `landed`."""
        good = [False] * (first - 1)
        before, after = iter([*good, not landed, *[True] * (writes - 1)]), iter([*good, landed])

        def arm() -> None:
            self.gate.fail_before = lambda: next(before, False)
            self.gate.fail_after = lambda: next(after, False)

        self.at_head = arm

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
async def opened_gateways(
    database: Database, names: Sequence[str], **limits: Any
) -> AsyncIterator[list[GatedGateway]]:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(run_upstream())
        gateways: list[GatedGateway] = []
        for name in names:
            gateway = GatedGateway(
                database, name, upstream, before=gateways[0] if gateways else None, **limits
            )
            await gateway.run(stack)
            gateways.append(gateway)
        upstream.answer = gateways[0]._answer
        await gateways[0].small.publish()
        yield gateways
        report = await gateways[0].book.audit()
        assert report.is_balanced, report.wrong


CALLS = 9


@dataclass(slots=True, kw_only=True)
class Crowd:
    """Callers whose heads all come in the same moment. Each has a payment of its own."""

    gateways: list[GatedGateway]
    calls: list[tuple[str, str, Any, list[tuple[str, str]]]] = field(default_factory=list)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def gather(self) -> None:
        small = self.gateways[0].small
        for number in range(CALLS):
            payment = await small.pay(PRICE)
            method = ("GET", "GET", "POST")[number % 3]
            key = [("Idempotency-Key", f"key-{number}")] if number % 3 else []
            shown = [*small.plain_proof(payment.tx_hash), *key]
            self.calls.append((method, f"/quote?n={number}", payment, shown))
        small.upstream.answer = self._answer

    async def _answer(self, arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        await self.may_answer.wait()
        await plain(b"rare")(arrived, writer)

    async def ask(self, number: int, at: int = 0) -> Exchange:
        method, target, _, shown = self.calls[number]
        return await self.gateways[at].small.ask(
            method, target, shown, [b"order"] if method == "POST" else []
        )

    async def suffer(self, trouble: Any, *, before: Any = None) -> list[Exchange]:
        """Their answers, while `trouble` happens between head and close. `before`: what is over when the heads come."""
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(self.ask(number)) for number in range(CALLS)]
            await until(lambda: served(self.gateways[0].small) == CALLS)
            if before is not None:
                await before()
            troubling = group.create_task(trouble())
            self.may_answer.set()
            await troubling
        return [one.result() for one in asked]

    async def write_late(self) -> None:
        """Returns once the database takes writes again, and the first gateway has written what is late."""
        while True:
            with contextlib.suppress(StorageUnavailable):
                await self.gateways[0].book.recover(now_ms=self.gateways[0].clock.ms)
                return
            await asyncio.sleep(0.05)

    async def come_again(self, answers: list[Exchange], *, at: int = 0) -> int:
        """Whoever got none, as the refusal says, until each has one. Gives how many came again."""
        dropped = [number for number, answer in enumerate(answers) if answer.status != 200]
        for number in dropped:
            assert (answers[number].status, answers[number].problem["code"]) == (
                503,
                "payment_outcome_unknown",
            )
            assert not has_terms(answers[number])
            again = await self.ask(number, at)
            assert again.status == 200, again.body
        return len(dropped)

    async def check(self, *, dropped: int) -> None:
        """Everybody has paid for one answer and has got one."""
        small = self.gateways[0].small
        calls = await small.history()
        assert [call.state for call in calls] == [CallState.CONSUMED] * CALLS
        assert [await small.rest_units(payment) for _, _, payment, _ in self.calls] == [0] * CALLS
        assert served(small) <= CALLS + dropped
