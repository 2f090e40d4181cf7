"""Documents that were written lately, so that nobody makes the gateway write the same one again and again.

A document costs what its listing's provider made of it, up to some tenths of a second, and it changes with the listing,
with what is measured and with what can be settled now. So it is kept for a few seconds, and one that took long for
longer; a new revision is written at once. Writing happens beside the event loop, for a few at a time.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tollway.limits import MIB

CACHE_MS = 5_000
CACHE_WRITE_TIMES = 100
"""A document that took long to write stays for so many times that: writing takes a hundredth of a core at most."""
CACHE_MS_MAX = 60_000
CACHE_BYTES_MAX = 32 * MIB
WRITES_AT_ONCE_MAX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """As it goes over the wire, with its tag: a digest of something large is not made for each who asks."""

    body: bytes
    etag: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _CachedDocument:
    revision: int
    document: Document
    until_ms: int


class DocumentCache:
    """For one process. `ticks_ms`: a clock that nobody sets."""

    def __init__(self, *, ticks_ms: Callable[[], int], bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._ticks_ms = ticks_ms
        self._bytes_max = bytes_max
        self._cached: OrderedDict[str, _CachedDocument] = OrderedDict()
        self._bytes = 0
        self._semaphore = asyncio.Semaphore(WRITES_AT_ONCE_MAX)

    async def get_or_write(
        self, name: str, revision: int, write: Callable[[], Awaitable[Document]]
    ) -> Document:
        """The document of that name and revision; written by `write` when none is kept."""
        known = self._find(name, revision)
        if known is not None:
            return known
        async with self._semaphore:
            known = self._find(name, revision)  # somebody else may have written it meanwhile
            if known is not None:
                return known
            began_ms = self._ticks_ms()
            document = await write()
            now_ms = self._ticks_ms()
            fresh_ms = min(max(CACHE_MS, CACHE_WRITE_TIMES * (now_ms - began_ms)), CACHE_MS_MAX)
            self._store(
                name, _CachedDocument(revision=revision, document=document, until_ms=now_ms + fresh_ms)
            )
            return document

    def _find(self, name: str, revision: int) -> Document | None:
        cached = self._cached.get(name)
        if cached is None or cached.revision != revision or cached.until_ms <= self._ticks_ms():
            return None
        self._cached.move_to_end(name)
        return cached.document

    def _store(self, name: str, cached: _CachedDocument) -> None:
        before = self._cached.pop(name, None)
        self._bytes += len(cached.document.body) - (len(before.document.body) if before else 0)
        self._cached[name] = cached
        while self._bytes > self._bytes_max:
            _, oldest = self._cached.popitem(last=False)
            self._bytes -= len(oldest.document.body)
