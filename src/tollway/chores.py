"""What runs beside the requests, in one task group: chores that repeat, each failure logged, none fatal. The house decides
which chores there are.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Self

import structlog

_log = structlog.get_logger(__name__)


class Chores:
    """A task group of chores. Leaving it cancels them."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        # A chore that failed for good has cancelled this task: the group turns that into the chore's own failure. What
        # the body raised itself passes through as it is.
        if isinstance(exc, asyncio.CancelledError):
            await self._group.__aexit__(exc_type, exc, traceback)
        else:
            await self._group.__aexit__(None, None, None)

    def start(self, job: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._group.create_task(job)
        self._tasks.append(task)
        return task

    def every(self, interval_s: float, job: Callable[[], Awaitable[object]]) -> None:
        self.start(repeat(interval_s, job))


async def repeat(interval_s: float, job: Callable[[], Awaitable[object]]) -> None:
    """Does it again and again, whatever fails, until it is cancelled."""
    while True:
        try:
            await job()
        except Exception:  # noqa: BLE001 - a task root: logged, and tried again
            _log.exception("chore_failed", chore=getattr(job, "__name__", "chore"))
            _heed_cancellation()
        await asyncio.sleep(interval_s)


def _heed_cancellation() -> None:
    """A task group whose task fails in the moment of a cancellation raises the failure alone (Python 3.11): a chore that
    went on then would never end."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
