"""The moment that a writer of batches waits for the callers of its last batch before it takes the next one.

A lone call waits for no timer. While many callers wait at once, most of them come back within a few milliseconds: a claim with its close,
a close with its client's next call. A batch costs about as much as ten entries, so fewer and larger ones are cheaper.
"""

import asyncio
from collections.abc import Callable

BATCH_WAIT_S = 0.001
"""The writer waits so long at most for the callers of its last batch. At 32 connections on SQLite it makes batches of 18 entries in
place of 15, and the median call is 8 % faster. CPU time was 5 to 15 % less while each call had three entries; with two, and a
hand-over of half the cost, no difference can be measured."""
BATCH_WAIT_ABOVE = 8
"""Up to so many callers at once the writer never waits: then a millisecond is more than what a larger batch saves."""
BATCH_WAIT_RECENT_MS = 10
"""Callers come back within this time, a claim with its close and a close with the client's next call, or not soon."""


class BatchWait:
    """Of one queue, in one event loop."""

    def __init__(self, at_most: int, *, wait_s: float, ticks_ms: Callable[[], int]) -> None:
        """`at_most`: entries that one batch holds. `ticks_ms`: a monotonic clock."""
        self._wait_s = wait_s
        self._at_most = at_most
        self._ticks_ms = ticks_ms
        self._waiting = 0
        self._expected = 0
        self._since_ms = 0
        self._is_stopping = False
        self._is_complete = asyncio.Event()

    def note_waiting(self) -> None:
        """One more caller waits."""
        self._waiting += 1
        if self._waiting >= self._expected:
            self._is_complete.set()

    def note_taken(self, *, still_waiting: int) -> None:
        """A batch was taken, and so many callers wait for the next one."""
        self._waiting = still_waiting

    def note_written(self, callers: int) -> None:
        """A batch of so many callers was written."""
        self._expected = min(self._waiting + callers, self._at_most)
        self._since_ms = self._ticks_ms()

    def stop(self) -> None:
        """From now on nothing is waited for."""
        self._is_stopping = True
        self._is_complete.set()

    async def wait(self) -> None:
        """Returns when so many callers wait as when the last batch ended, in it or behind it, or after `wait_s`; at once where those were
        few, where it ended long ago, or where all of them have come back."""
        if (
            self._expected <= BATCH_WAIT_ABOVE
            or self._waiting >= self._expected
            or self._ticks_ms() - self._since_ms >= BATCH_WAIT_RECENT_MS
            or self._is_stopping
        ):
            return
        self._is_complete.clear()
        timer = asyncio.get_running_loop().call_later(self._wait_s, self._is_complete.set)
        try:
            await self._is_complete.wait()
        finally:
            timer.cancel()
