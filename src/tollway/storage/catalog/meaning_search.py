"""Search by meaning over the listings of a database: embeds what was written, and finds the listings that are similar to a query.

Each gateway with the extra `tollway[search]` embeds the listings that are due and stores their vectors, once a second. From its first search by relevance on it keeps all
vectors in memory, and reads those that changed, once a second too. It proposes listings; the search in the database decides which of them are visible and pass its
filters.

Importing this loads nothing of the extra. The weights are read for the first text that is embedded, and the vectors for the first search: until then a gateway pays neither
their memory nor their time.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tollway.registry.meaning import Proposed, WeightsUnusable, embedded_texts
from tollway.storage.catalog.listing_vectors import (
    EMBEDDED_AT_ONCE,
    DueListing,
    read_changes,
    read_due,
    write_vectors,
)
from tollway.storage.engine.database import Database

if TYPE_CHECKING:
    from tollway.registry.word_vectors import WordVectors
    from tollway.storage.catalog.vector_index import VectorIndex

EMBED_PAUSE_S = 0.02
FIRST_READS_MAX = 4
"""So many reads of vectors (`READ_AT_ONCE` listings each) the first search waits for. The next `refresh` reads the rest."""

T = TypeVar("T")


def _load_word_vectors() -> "WordVectors":
    from tollway.registry.word_vectors import load_word_vectors  # noqa: PLC0415 - loads numpy

    return load_word_vectors()


def _make_index() -> "VectorIndex":
    from tollway.storage.catalog.vector_index import VectorIndex  # noqa: PLC0415 - loads numpy

    return VectorIndex()


class MeaningSearch:
    """One thread loads the extra, embeds and searches, beside the event loop. `close` ends it."""

    def __init__(
        self,
        database: Database,
        *,
        load_vectors: "Callable[[], WordVectors]" = _load_word_vectors,
        first_reads_max: int = FIRST_READS_MAX,
    ) -> None:
        self._database = database
        self._load_vectors = load_vectors
        self._first_reads_max = first_reads_max
        self._vectors: WordVectors | None = None
        self._index: VectorIndex | None = None
        self._change = 0
        self._is_searched = False
        # An older read must not replace what a later one has replaced.
        self._reading = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "search-by-meaning")

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def forget(self) -> None:
        """Reads all vectors again: after a restore one number may mean two changes."""
        self._index, self._change = None, 0

    async def propose(self, words: str) -> tuple[Proposed, ...]:
        """The listings that are similar to the words, the most similar first, at most `PROPOSED_MAX`. Some may no longer be visible. The first call loads the weights
        and reads the vectors. None where the weights are unusable, which `refresh` reports."""
        if not self._is_searched:
            await self._prepare_search()
        index = self._index
        return () if index is None else await self._run(partial(self._find, words, index))

    async def refresh(self) -> None:
        """Embeds the listings that are due. After the first search: then reads the vectors that changed. Raises WeightsUnusable."""
        while await self._embed_due():
            await self._read_searched()
            await asyncio.sleep(EMBED_PAUSE_S)
        await self._read_searched()

    async def _prepare_search(self) -> None:
        async with self._reading:
            if self._is_searched:
                return
            with contextlib.suppress(WeightsUnusable):
                await self._load()
                for _ in range(self._first_reads_max):
                    if not await self._read_changed():
                        break
            self._is_searched = True

    async def _read_searched(self) -> None:
        if self._is_searched:
            async with self._reading:
                await self._load()
                while await self._read_changed():
                    pass

    async def _load(self) -> "WordVectors":
        if self._vectors is None:
            self._vectors = await self._run(self._load_vectors)
        return self._vectors

    async def _embed_due(self) -> bool:
        """Returns True when more listings may be due."""
        due = await self._database.read(read_due)
        if due:
            vectors = await self._load()
            embedded = [(one, await self._run(partial(_embed, one, vectors))) for one in due]
            await self._database.write(partial(write_vectors, embedded=embedded))
        return len(due) == EMBEDDED_AT_ONCE

    async def _read_changed(self) -> bool:
        """Reads the next of the changed vectors. The caller has the lock. Returns False when there are none."""
        if self._index is None:
            self._index = await self._run(_make_index)
        index = self._index
        found = await self._database.read(partial(read_changes, since=self._change))
        if found is None:
            return False
        await self._run(partial(index.replace, found.bits))
        if index is self._index:  # else it was forgotten meanwhile
            self._change = found.change
        return True

    async def _run(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, job)

    def _find(self, words: str, index: "VectorIndex") -> tuple[Proposed, ...]:
        vector = self._vectors.embed(words) if self._vectors is not None else None
        return index.find_nearest(vector) if vector is not None else ()


def _embed(due: DueListing, vectors: "WordVectors") -> bytes:
    return vectors.embed_bits(embedded_texts(due.parse_document()))
