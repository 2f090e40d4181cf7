"""Settlements whose waiter left before their end: each is set adrift, so that the sweeper takes it up.

A gateway that dies needs none of this (its calls are found by recovery); this is for one that lives on. It moves no
money and decides no outcome.
"""

from collections.abc import Callable
from dataclasses import replace

import structlog

from tollway.identifiers import CallId
from tollway.ledger.book import Book, Close
from tollway.ledger.call import CallState

PATIENCE_MS = 300_000
"""Whoever was told "undecided" stores the answer first and sets the call adrift himself; after this he is gone."""

_log = structlog.get_logger(__name__)


class Strays:
    """Used from one event loop."""

    def __init__(self, book: Book, *, now_ms: Callable[[], int]) -> None:
        self._book = book
        self._now_ms = now_ms
        self._due_ms: dict[CallId, tuple[Close, int]] = {}

    def note(self, close: Close, *, is_waited_for: bool) -> None:
        """`close`: the way into `settling`. Whether it was written need not be known."""
        self._due_ms[close.call_id] = (close, self._now_ms() + (PATIENCE_MS if is_waited_for else 0))

    async def mend(self) -> None:
        """Sets adrift those whose time has come. Raises `StorageUnavailable`; they stay for the next time."""
        now_ms = self._now_ms()
        for call_id, (close, due_ms) in list(self._due_ms.items()):
            if due_ms <= now_ms:
                await self._set_adrift(close)
                self._due_ms.pop(call_id, None)

    async def _set_adrift(self, close: Close) -> None:
        if await self._book.set_adrift(close.call_id, epoch=close.epoch):
            _log.info("settlement_adrift", call_id=close.call_id)
            return
        # Not in `settling`: finished meanwhile, or it never got there. Then its bytes left and nobody knows more.
        await self._book.close(
            replace(close, after=CallState.UNKNOWN, http_status=None, upstream_status=None)
        )
