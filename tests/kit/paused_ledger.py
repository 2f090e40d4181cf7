"""A gateway's books behind a gate: for tests of what happens while a batch waits, fails, or loses its answer."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.kit.ledger_records import NOW_MS, new_payment
from tollway.errors import StorageUnavailable
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.storage.book_store import BookStore
from tollway.storage.database import Database


class Gate:
    """A database whose writes wait where the test says, and fail when the test says."""

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
        self.begun += 1
        self.flushed.append(flush)
        await self.before.wait()
        if self.is_away or self.fail_before():
            raise StorageUnavailable
        outcome = await self._database.write(work, flush=flush, is_long=is_long)
        self.committed += 1
        await self.after.wait()
        if self.fail_after():
            raise StorageUnavailable
        return outcome


class Desk:
    """One gateway's books behind a gate. `patience_s`: a close is tried for so long."""

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
        self.gate = Gate(database)
        self.ticks_ms = NOW_MS
        self.book: Any = BookStore(
            self.gate,  # type: ignore[arg-type]  # it stands in for a database
            owner_id=owner_id,
            now_ms=lambda: NOW_MS,
            ticks_ms=lambda: self.ticks_ms,
            limits=replace(limits, close_patience_s=patience_s),
            close_retry_s=retry_s,
            on_batch=self.sizes.append,
            **options,
        )
        self._task = asyncio.get_running_loop().create_task(self.book.run())

    async def pay(self, value_units: int, name: str = "tx", **fields: Any) -> Any:
        (payment,) = await self.book.record_payments(
            [new_payment(value_units, name, **fields)], now_ms=NOW_MS
        )
        return payment

    def go_away(self) -> bool:
        """For `fail_after`: the commit is written, its answer is lost, and nothing answers any more."""
        self.gate.is_away = True
        return True

    def come_back(self) -> None:
        self.gate.is_away, self.gate.fail_after = False, lambda: False

    async def close(self) -> None:
        self.gate.before.set()
        self.gate.after.set()
        self.book.stop()
        await self._task


def once() -> Callable[[], bool]:
    answers = iter([True])
    return lambda: next(answers, False)


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_true():
            await asyncio.sleep(0)


def start(job: Any) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(job)
