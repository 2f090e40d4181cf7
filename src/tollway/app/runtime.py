"""Parts of the process that the gateway uses: the group of background tasks, the clocks, and a pool of random bytes.

Only `app` reads the clocks; every other package receives a function. Random bytes of the pool are for ids of calls and requests, never for keys, secrets or
nonces.
"""

import asyncio
import os
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

from tollway.observability.background import BackgroundTasks, Job, TaskName


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
        # The exception of the body passes through unchanged.
        await self._group.__aexit__(None, None, None)

    def start(self, name: TaskName, job: Job) -> asyncio.Task[None]:
        task = self._group.create_task(self.background[name].supervise(job), name=name.value)
        self._tasks.append(task)
        return task

    def start_periodic(self, name: TaskName, interval_s: float, job: Job) -> None:
        self.start(name, partial(self.background[name].repeat, interval_s, job))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def ticks_ms() -> int:
    """Milliseconds of a monotonic clock. Where the system has one, the clock continues while the machine sleeps."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000


POOL_BYTES = 4_096


class RandomPool:
    """A pool of random bytes for one event loop. It returns no byte twice, also in a forked child."""

    def __init__(self, draw: Callable[[int], bytes] = os.urandom) -> None:
        self._draw = draw
        self._pool = b""
        self._used = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._discard)

    def take_bytes(self, size: int) -> bytes:
        start, end = self._used, self._used + size
        if end > len(self._pool):
            self._pool = self._draw(max(POOL_BYTES, size))
            start, end = 0, size
        self._used = end
        return self._pool[start:end]

    def _discard(self) -> None:
        self._pool = b""
        self._used = 0
