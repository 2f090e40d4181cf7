"""Sums that are kept: one read for the same question in some seconds, never another wallet's answer, and a bounded memory."""

from dataclasses import replace

import pytest

from tollway.ids import Address
from tollway.ledger.sales import GroupSum, PeriodSums, SalesQuery, SpendingQuery, SumKey, SumQuery
from tollway.web.api.kept_sums import ROW_BYTES, SUMS_KEPT_S, KeptSums

ONE, OTHER = Address(b"\x01" * 20), Address(b"\x02" * 20)
NOW_MS = 1_800_000_000_000
KEY = SumKey(chain_id=None, asset=None, currency="USDC", decimals=6)
SPENDING = SpendingQuery(wallet=ONE, step="day", from_ms=0, to_ms=86_400_000)
SALES = SalesQuery(wallet=ONE, step="day", from_ms=0, to_ms=86_400_000)


class CountedBooks:
    """Answers with rows that name the wallet, and counts its reads."""

    def __init__(self, rows: int = 1) -> None:
        self.rows = rows
        self.as_of_ms: int | None = None
        self.read: list[SumQuery] = []

    async def sales(self, query: SalesQuery) -> PeriodSums:
        return self._answer(query)

    async def spending(self, query: SpendingQuery) -> PeriodSums:
        return self._answer(query)

    def _answer(self, query: SumQuery) -> PeriodSums:
        self.read.append(query)
        row = GroupSum(start_ms=0, group=str(query.wallet), name=None, key=KEY, by_state={})
        return PeriodSums(rows=(row,) * self.rows, as_of_ms=self.as_of_ms)


class Clocks:
    def __init__(self) -> None:
        self.now_s = 0.0

    def keep(self, books: CountedBooks, *, rows_max: int = 1_000) -> KeptSums:
        return KeptSums(
            books,
            clock=lambda: self.now_s,
            now_ms=lambda: NOW_MS + int(self.now_s * 1000),
            bytes_max=rows_max * ROW_BYTES,
        )


@pytest.mark.parametrize(("after_s", "reads"), [(0.0, 1), (SUMS_KEPT_S - 0.01, 1), (SUMS_KEPT_S, 2)])
async def test_the_same_question_is_read_once_in_some_seconds(after_s: float, reads: int) -> None:
    books, clocks = CountedBooks(), Clocks()
    kept = clocks.keep(books)
    first = await kept.spending(SPENDING)
    clocks.now_s = after_s
    again = await kept.spending(SPENDING)
    assert len(books.read) == reads
    assert first.as_of_ms == NOW_MS
    assert again.as_of_ms == (NOW_MS if reads == 1 else NOW_MS + int(after_s * 1000))
    assert again.rows == first.rows


async def test_sums_that_are_older_keep_their_moment() -> None:
    books, clocks = CountedBooks(), Clocks()
    books.as_of_ms = NOW_MS - 60_000
    assert (await clocks.keep(books).sales(SALES)).as_of_ms == NOW_MS - 60_000


async def test_another_question_is_read_for_itself() -> None:
    books, clocks = CountedBooks(), Clocks()
    kept = clocks.keep(books)
    questions = [
        SPENDING,
        replace(SPENDING, wallet=OTHER),
        replace(SPENDING, group_by="provider"),
        replace(SPENDING, step="hour"),
        replace(SPENDING, to_ms=2 * 86_400_000),
    ]
    for query in questions:
        assert (await kept.spending(query)).rows[0].group == str(query.wallet)
    await kept.sales(SALES)
    assert len(books.read) == len(questions) + 1, "sales and spending of one wallet are two questions"


async def test_the_rows_of_all_wallets_have_a_maximum() -> None:
    books, clocks = CountedBooks(rows=9), Clocks()
    kept = clocks.keep(books, rows_max=25)
    for number in range(100):
        await kept.spending(replace(SPENDING, from_ms=number))
        assert kept.cache.total_bytes <= 25 * ROW_BYTES
    books.read.clear()
    await kept.spending(replace(SPENDING, from_ms=98))
    assert books.read == [], "the newest answers are kept"
    await kept.spending(replace(SPENDING, from_ms=0))
    assert len(books.read) == 1


async def test_an_answer_that_is_larger_than_all_is_given_and_not_kept() -> None:
    books, clocks = CountedBooks(rows=30), Clocks()
    kept = clocks.keep(books, rows_max=25)
    assert len((await kept.spending(SPENDING)).rows) == 30
    assert kept.cache.total_bytes == 0
