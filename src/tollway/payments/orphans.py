"""Settlements whose caller has gone, or waits no longer: they are marked orphaned in the ledger, and settlement recovery finishes them."""

import time
from collections.abc import Callable
from dataclasses import replace

import structlog

from tollway.ids import CallId
from tollway.ledger.ledger import Close, SettlementLedger
from tollway.ledger.records import CallState, Interruption

ORPHAN_AFTER_S = 300.0
"""The call of an undecided settlement stores the upstream's response first and then becomes orphaned. After this time the call
has certainly ended."""

_log = structlog.get_logger(__name__)


class Orphans:
    """Settlements that this gateway may have to mark orphaned. Used from one event loop. `clock`: monotonic seconds."""

    def __init__(self, ledger: SettlementLedger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._due_s: dict[CallId, tuple[Close, float]] = {}

    def add(self, close: Close, *, is_waited_for: bool) -> None:
        """`close`: the move into `settling`, written or not. `is_waited_for`: due only after `ORPHAN_AFTER_S`."""
        self._due_s[close.call_id] = (close, self._clock() + (ORPHAN_AFTER_S if is_waited_for else 0))

    async def mark_due(self) -> None:
        """Marks due settlements orphaned. After `StorageUnavailable`, the others stay for the next run."""
        now_s = self._clock()
        for call_id, (close, due_s) in list(self._due_s.items()):
            if due_s <= now_s:
                await self._mark_orphaned(close)
                self._due_s.pop(call_id, None)

    async def _mark_orphaned(self, close: Close) -> None:
        if await self._ledger.mark_orphaned(close.call_id, epoch=close.epoch):
            _log.info("settlement_adrift", call_id=close.call_id)
            return
        # Not in `settling`: the call has ended, or the move was never written. Then the request was sent and its outcome is unknown.
        error = close.error or Interruption.OUTCOME_LOST.value
        unknown = replace(close, after=CallState.UNKNOWN, http_status=None, upstream_status=None, error=error)
        await self._ledger.close(unknown)
