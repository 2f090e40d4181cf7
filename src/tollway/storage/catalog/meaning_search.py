"""Search by meaning over the listings of a database: embeds what was written, and finds the listings that are similar to a query.

Each gateway with the extra `tollway[search]` embeds the listings that are due, stores their vectors, and reads the vectors that changed, once a second. It proposes
listings; the search in the database decides which of them are visible and pass its filters.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from tollway.registry.meaning import Proposed, embedded_texts
from tollway.registry.word_vectors import WordVectors, load_word_vectors, to_bits
from tollway.storage.catalog.listing_vectors import (
    EMBEDDED_AT_ONCE,
    DueListing,
    read_changes,
    read_due,
    write_vectors,
)
from tollway.storage.catalog.vector_index import VectorIndex
from tollway.storage.engine.database import Database

EMBED_PAUSE_S = 0.02

T = TypeVar("T")


class MeaningSearch:
    """One thread embeds and searches, beside the event loop. `close` ends it."""

    def __init__(
        self, database: Database, *, load_vectors: Callable[[], WordVectors] = load_word_vectors
    ) -> None:
        self._database = database
        self._load_vectors = load_vectors
        self._vectors: WordVectors | None = None
        self._index = VectorIndex()
        self._change = 0
        self._thread = ThreadPoolExecutor(1, "search-by-meaning")

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    def forget(self) -> None:
        """Reads all vectors again: after a restore one number may mean two changes."""
        self._index, self._change = VectorIndex(), 0

    async def propose(self, words: str) -> tuple[Proposed, ...]:
        """The listings that are similar to the words, the most similar first, at most `PROPOSED_MAX`. Some may no longer be visible. None
        until the first `refresh`."""
        return await self._run(partial(self._find, words, self._index))

    async def refresh(self) -> None:
        """Embeds the listings that are due, then reads the vectors that changed. The first run loads the weights. Raises WeightsUnusable."""
        if self._vectors is None:
            self._vectors = await self._run(self._load_vectors)
        while await self._embed_due():
            await self._read_changes()
            await asyncio.sleep(EMBED_PAUSE_S)
        await self._read_changes()

    async def _embed_due(self) -> bool:
        """Returns True when more listings may be due."""
        due = await self._database.read(read_due)
        if due:
            embedded = [(one, await self._run(partial(self._embed, one))) for one in due]
            await self._database.write(partial(write_vectors, embedded=embedded))
        return len(due) == EMBEDDED_AT_ONCE

    async def _read_changes(self) -> None:
        index = self._index
        while found := await self._database.read(partial(read_changes, since=self._change)):
            await self._run(partial(index.replace, found.bits))
            if index is not self._index:
                return  # forgotten meanwhile
            self._change = found.change

    async def _run(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, job)

    def _find(self, words: str, index: VectorIndex) -> tuple[Proposed, ...]:
        vector = self._vectors.embed(words) if self._vectors is not None else None
        return index.find_nearest(vector) if vector is not None else ()

    def _embed(self, due: DueListing) -> bytes:
        assert self._vectors is not None
        vectors = map(self._vectors.embed, embedded_texts(due.parse_document()))
        return b"".join(to_bits(vector) for vector in vectors if vector is not None)
