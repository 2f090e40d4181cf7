"""The wait of a writer for the callers of its last batch, before it takes the next batch.

A single call waits for no timer. While many callers wait at the same time, most of them return within a few milliseconds: a claim is
followed by its close, a close by the client's next call. A batch costs about as much as ten entries, so fewer and larger batches are cheaper.
"""

import asyncio
from collections.abc import Callable

BATCH_WAIT_S = 0.001
"""The longest wait. At 32 connections on SQLite it makes batches of 18 entries instead of 15, and the median call is 8 % faster. CPU time was
5 to 15 % less while each call had three entries; with two entries, and a thread switch of half the cost, there is no measurable
difference."""
BATCH_WAIT_ABOVE = 8
"""The writer never waits with so few callers: a millisecond would cost more than a larger batch saves."""
BATCH_WAIT_RECENT_MS = 10
"""After this time since the last batch the writer does not wait: its callers return sooner or not soon."""


class BatchWait:
    def __init__(self, at_most: int, *, wait_s: float, ticks_ms: Callable[[], int]) -> None:
        """`at_most`: the largest number of entries in a batch. `ticks_ms`: a monotonic clock."""
        self._wait_s = wait_s
        self._at_most = at_most
        self._ticks_ms = ticks_ms
        self._waiting = 0
        self._expected = 0
        self._since_ms = 0
        self._is_stopping = False
        self._is_complete = asyncio.Event()

    def note_waiting(self) -> None:
        self._waiting += 1
        if self._waiting >= self._expected:
            self._is_complete.set()

    def note_written(self, callers: int, *, still_waiting: int) -> None:
        """`callers`: of the written batch. `still_waiting`: those behind it."""
        self._waiting = still_waiting
        self._expected = min(still_waiting + callers, self._at_most)
        self._since_ms = self._ticks_ms()

    def stop(self) -> None:
        """Ends the current wait and all later ones."""
        self._is_stopping = True
        self._is_complete.set()

    async def wait(self) -> None:
        """Returns when as many callers wait as there were in and behind the last batch, or after `wait_s`. Returns at once when these callers were
        few, when the last batch ended long ago, or when all have returned."""
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
