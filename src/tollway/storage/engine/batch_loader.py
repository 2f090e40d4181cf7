"""A loader that reads in batches: the keys that wait when a batch was read are the next batch.

Callers with equal keys share one read, different keys share a transaction, and no result is older than its request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

Q = TypeVar("Q", bound=Hashable)
A = TypeVar("A")


class BatchLoader(Generic[Q, A]):
    """One batch runs at a time, in the task of one waiting caller. When that caller is cancelled, another caller fetches again."""

    def __init__(self, fetch: Callable[[Sequence[Q]], Awaitable[Sequence[A | Exception]]]) -> None:
        """`fetch`: takes distinct keys and returns a result for each, in order. An exception that it raises is raised for all keys; an
        exception in place of a result is raised for its key only."""
        self._fetch = fetch
        self._waiting: dict[Q, asyncio.Future[A]] = {}
        self._batch_done: asyncio.Event | None = None

    async def load(self, key: Q) -> A:
        while True:
            future = self._waiting.get(key)
            if future is None:
                future = self._waiting[key] = asyncio.get_running_loop().create_future()
            while not future.done():
                if self._batch_done is None:
                    await self._run_batch()
                else:
                    await self._batch_done.wait()
            # A cancelled future means that the fetching caller was cancelled.
            if not future.cancelled():
                return future.result()

    async def _run_batch(self) -> None:
        batch, self._waiting = self._waiting, {}
        done = self._batch_done = asyncio.Event()
        try:
            results = await self._fetch(tuple(batch))
            for future, result in zip(batch.values(), results, strict=True):
                if isinstance(result, Exception):
                    _set_exception(future, result)
                else:
                    future.set_result(result)
        except Exception as exc:  # noqa: BLE001 - raised for every caller
            for future in batch.values():
                _set_exception(future, exc)
        finally:
            for future in batch.values():
                # Has an effect only on futures without a result.
                future.cancel()
            self._batch_done = None
            done.set()


def _set_exception(future: asyncio.Future[A], exc: Exception) -> None:
    future.set_exception(exc)
    # Marks it as retrieved: its callers may be gone.
    future.exception()
