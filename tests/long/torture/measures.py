"""What the long tests measure by: a count that others wait for, and a stopwatch."""

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


@contextlib.contextmanager
def stopwatch() -> Iterator[Callable[[], float]]:
    started = time.monotonic()
    yield lambda: max(time.monotonic() - started, 0.001)
