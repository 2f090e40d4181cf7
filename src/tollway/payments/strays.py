"""Settlements whose waiter left before their end: each is marked orphaned, so that settlement recovery takes it up.

A gateway that dies needs none of this (its calls are found by recovery); this is for one that lives on. It moves no
money and decides no outcome.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from tollway.identifiers import CallId
from tollway.ledger.book import Close, Ledger
from tollway.ledger.call import CallState, Interruption

ORPHAN_AFTER_S = 300.0
"""Whoever was told "undecided" stores the answer first and marks the call orphaned; after this he is gone."""

_log = structlog.get_logger(__name__)


class Orphans:
    """Used from one event loop. `clock`: monotonic seconds; a clock that is set back must not keep anybody waiting."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._due_s: dict[CallId, tuple[Close, float]] = {}

    def note(self, close: Close, *, is_waited_for: bool) -> None:
        """`close`: the way into `settling`. Whether it was written need not be known."""
        self._due_s[close.call_id] = (close, self._clock() + (ORPHAN_AFTER_S if is_waited_for else 0))

    async def mark_due_orphans(self) -> None:
        """Marks those orphaned whose time has come. Raises `StorageUnavailable`; they stay for the next time."""
        now_s = self._clock()
        for call_id, (close, due_s) in list(self._due_s.items()):
            if due_s <= now_s:
                await self._mark_orphaned(close)
                self._due_s.pop(call_id, None)

    async def _mark_orphaned(self, close: Close) -> None:
        if await self._ledger.mark_orphaned(close.call_id, epoch=close.epoch):
            _log.info("settlement_adrift", call_id=close.call_id)
            return
        # Not in `settling`: finished meanwhile, or it never got there. Then its bytes left and nobody knows more.
        error = close.error or Interruption.OUTCOME_LOST.value
        unknown = replace(close, after=CallState.UNKNOWN, http_status=None, upstream_status=None, error=error)
        await self._ledger.close(unknown)
