"""What the long tests measure by: a count that others wait for, a pace of requests, and a stopwatch."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

from tests.kit.gateway_process import poll


class Progress:
    """A count that others wait for."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        self.count += 1

    async def wait_more(self, more: int, *, deadline_s: float, what: str) -> None:
        goal = self.count + more
        await poll(lambda: self.count >= goal, deadline_s=deadline_s, what=what)


class Pace:
    """The moments at which callers begin their requests: so many a second of all callers together. None: at once."""

    def __init__(self, per_s: float | None) -> None:
        self.per_s = per_s
        self._next_s = 0.0

    async def wait_turn(self) -> None:
        if self.per_s is not None:
            now_s = time.monotonic()
            turn_s = max(now_s, self._next_s)
            self._next_s = turn_s + 1 / self.per_s
            await asyncio.sleep(turn_s - now_s)


AT_ONCE = Pace(None)


@contextlib.contextmanager
def stopwatch() -> Iterator[Callable[[], float]]:
    started = time.monotonic()
    yield lambda: max(time.monotonic() - started, 0.001)
