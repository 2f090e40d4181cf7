"""Sums that are kept for some seconds: the same question about the same wallet reads the ledger once in that time. In the memory of one process."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from tollway.ledger.sales import PeriodBooks, PeriodSums, SalesQuery, SpendingQuery, SumQuery

SUMS_KEPT_S = 5.0
"""How long the sums of a question are kept. `asOf` of an answer is the moment of the read."""
KEPT_ROWS_MAX = 20_000
"""Rows that are kept, of all wallets: about 20 MB. The answer that was read first is dropped first."""

Q = TypeVar("Q", bound=SumQuery)


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptSums:
    sums: PeriodSums
    until_s: float

    @property
    def size(self) -> int:
        """Also an answer without rows takes memory."""
        return len(self.sums.rows) + 1


class KeptSums:
    """`PeriodBooks` before `books`. `clock`: monotonic, in seconds. `now_ms`: the time of `as_of_ms`. Many tasks may call it at once."""

    def __init__(
        self,
        books: PeriodBooks,
        *,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        rows_max: int = KEPT_ROWS_MAX,
    ) -> None:
        self._books = books
        self._clock = clock
        self._now_ms = now_ms
        self._rows_max = rows_max
        self._kept: OrderedDict[SumQuery, _KeptSums] = OrderedDict()
        self.rows = 0

    async def sales(self, query: SalesQuery) -> PeriodSums:
        return await self._read(query, self._books.sales)

    async def spending(self, query: SpendingQuery) -> PeriodSums:
        return await self._read(query, self._books.spending)

    async def _read(self, query: Q, read: Callable[[Q], Awaitable[PeriodSums]]) -> PeriodSums:
        self._drop_ended()
        kept = self._kept.get(query)
        if kept is not None:
            return kept.sums
        now_ms = self._now_ms()
        sums = await read(query)
        as_of_ms = now_ms if sums.as_of_ms is None else min(sums.as_of_ms, now_ms)
        sums = replace(sums, as_of_ms=as_of_ms)
        self._keep(query, _KeptSums(sums=sums, until_s=self._clock() + SUMS_KEPT_S))
        return sums

    def _keep(self, query: SumQuery, new: _KeptSums) -> None:
        replaced = self._kept.pop(query, None)
        self.rows += new.size - (0 if replaced is None else replaced.size)
        self._kept[query] = new
        while self.rows > self._rows_max:
            self._drop_first()

    def _drop_ended(self) -> None:
        now_s = self._clock()
        while self._kept and next(iter(self._kept.values())).until_s <= now_s:
            self._drop_first()

    def _drop_first(self) -> None:
        _, dropped = self._kept.popitem(last=False)
        self.rows -= dropped.size
