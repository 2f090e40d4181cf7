"""Sums that are kept for some seconds: the same question about the same wallet reads the ledger once in that time. In the memory of one process."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from tollway.bounded_cache import BoundedCache
from tollway.ledger.sales import PeriodBooks, PeriodSums, SalesQuery, SpendingQuery, SumQuery

SUMS_KEPT_S = 5.0
"""How long the sums of a question are kept. `asOf` of an answer is the moment of the read."""
ROW_BYTES, KEPT_BYTES_MAX = 1_000, 20_000_000
"""About what a row takes, and what the rows of all wallets may take. The answer that was read first is dropped first."""

Q = TypeVar("Q", bound=SumQuery)


class KeptSums:
    """`PeriodBooks` before `books`. `clock`: monotonic, in seconds. `now_ms`: the time of `as_of_ms`. Many tasks may call it at once."""

    def __init__(
        self,
        books: PeriodBooks,
        *,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        self._books = books
        self._clock = clock
        self._now_ms = now_ms
        self.cache: BoundedCache[SumQuery, tuple[float, PeriodSums]] = BoundedCache(
            entries_max=bytes_max // ROW_BYTES, bytes_max=bytes_max, entry_bytes_max=bytes_max
        )

    async def sales(self, query: SalesQuery) -> PeriodSums:
        return await self._read(query, self._books.sales)

    async def spending(self, query: SpendingQuery) -> PeriodSums:
        return await self._read(query, self._books.spending)

    async def _read(self, query: Q, read: Callable[[Q], Awaitable[PeriodSums]]) -> PeriodSums:
        until_s, sums = self.cache.find(query) or (0.0, None)
        if sums is not None and self._clock() < until_s:
            return sums
        now_ms = self._now_ms()
        sums = await read(query)
        as_of_ms = now_ms if sums.as_of_ms is None else min(sums.as_of_ms, now_ms)
        sums = replace(sums, as_of_ms=as_of_ms)
        size_bytes = (len(sums.rows) + 1) * ROW_BYTES  # also an answer without rows takes memory
        self.cache.put(query, (self._clock() + SUMS_KEPT_S, sums), size_bytes=size_bytes)
        return sums
