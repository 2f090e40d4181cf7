"""What runs beside the requests, in one task group: chores that repeat, each failure logged, none fatal. The house decides
which chores there are.
"""

import asyncio
from functools import partial
from types import TracebackType
from typing import Self

from tollway.background import BackgroundTasks, Job, TaskName


class BackgroundTaskGroup:
    """A task group of background tasks. Leaving it cancels them; none of them can end it."""

    def __init__(self, background: BackgroundTasks | None = None) -> None:
        self.background = background or BackgroundTasks()
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
        # What the body raised passes through as it is.
        await self._group.__aexit__(None, None, None)

    def start(self, name: TaskName, job: Job) -> asyncio.Task[None]:
        task = self._group.create_task(self.background[name].supervise(job), name=name.value)
        self._tasks.append(task)
        return task

    def start_periodic(self, name: TaskName, interval_s: float, job: Job) -> None:
        self.start(name, partial(self.background[name].repeat, interval_s, job))
