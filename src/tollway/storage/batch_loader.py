"""Reads in batches: the requests that wait when a batch has been read are the next batch.

Equal keys are read once for all callers, different keys share a transaction, and no result is older than its request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

Q = TypeVar("Q", bound=Hashable)
A = TypeVar("A")


class BatchLoader(Generic[Q, A]):
    """One round at a time, asked by one of those who wait. Who leaves takes nothing from the others: they ask again."""

    def __init__(self, fetch: Callable[[Sequence[Q]], Awaitable[Sequence[A | Exception]]]) -> None:
        """`fetch`: gets distinct questions, and gives an answer for each, in order. What it raises, all of them hear; an
        exception in place of an answer is raised for that question alone."""
        self._fetch = fetch
        self._waiting: dict[Q, asyncio.Future[A]] = {}
        self._batch_done: asyncio.Event | None = None

    async def load(self, question: Q) -> A:
        while True:
            future = self._waiting.get(question)
            if future is None:
                future = self._waiting[question] = asyncio.get_running_loop().create_future()
            while not future.done():
                if self._batch_done is None:
                    await self._run_batch()
                else:
                    await self._batch_done.wait()
            if not future.cancelled():  # else whoever asked for all has left
                return future.result()

    async def _run_batch(self) -> None:
        batch, self._waiting = self._waiting, {}
        done = self._batch_done = asyncio.Event()
        try:
            answers = await self._fetch(tuple(batch))
            for future, answer in zip(batch.values(), answers, strict=True):
                if isinstance(answer, Exception):
                    _set_exception(future, answer)
                else:
                    future.set_result(answer)
        except Exception as exc:  # noqa: BLE001 - told to everybody who asked
            for future in batch.values():
                _set_exception(future, exc)
        finally:
            for future in batch.values():
                future.cancel()  # those that are not answered
            self._batch_done = None
            done.set()


def _set_exception(future: asyncio.Future[A], exc: Exception) -> None:
    future.set_exception(exc)
    future.exception()  # seen here: some may have left
