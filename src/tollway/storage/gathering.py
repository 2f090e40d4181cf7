"""Questions of one kind, asked together: whatever waits when the last answer is there is asked as the next. No timer.

A crowd that shows one payment in the same moment asks the books the same things: the same question is asked once for all
who wait, and different ones share a transaction. Nobody hears an answer that is older than their question.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

Q = TypeVar("Q", bound=Hashable)
A = TypeVar("A")


class Gathering(Generic[Q, A]):
    """One round at a time, asked by one of those who wait. Who leaves takes nothing from the others: they ask again."""

    def __init__(self, answer: Callable[[Sequence[Q]], Awaitable[Sequence[A | Exception]]]) -> None:
        """`answer`: gets distinct questions, and gives an answer for each, in order. What it raises, all of them hear; an
        exception in place of an answer is raised for that question alone."""
        self._answer = answer
        self._waiting: dict[Q, asyncio.Future[A]] = {}
        self._round_over: asyncio.Event | None = None

    async def ask(self, question: Q) -> A:
        while True:
            told = self._waiting.get(question)
            if told is None:
                told = self._waiting[question] = asyncio.get_running_loop().create_future()
            while not told.done():
                if self._round_over is None:
                    await self._run_round()
                else:
                    await self._round_over.wait()
            if not told.cancelled():  # else whoever asked for all has left
                return told.result()

    async def _run_round(self) -> None:
        asked, self._waiting = self._waiting, {}
        over = self._round_over = asyncio.Event()
        try:
            answers = await self._answer(tuple(asked))
            for future, answer in zip(asked.values(), answers, strict=True):
                if isinstance(answer, Exception):
                    _fail(future, answer)
                else:
                    future.set_result(answer)
        except Exception as exc:  # noqa: BLE001 - told to everybody who asked
            for future in asked.values():
                _fail(future, exc)
        finally:
            for future in asked.values():
                future.cancel()  # those that are not answered
            self._round_over = None
            over.set()


def _fail(future: asyncio.Future[A], exc: Exception) -> None:
    future.set_exception(exc)
    future.exception()  # seen here: some may have left
