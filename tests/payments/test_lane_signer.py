"""The next transaction of a gas key: its nonce is what the books agree to, and what they refuse leaves no hole."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.kit.payer import CHAIN
from tests.kit.settlement import SettlementHarness
from tollway.identifiers import CallId, ListingId
from tollway.ledger.authorization import SettlementAttempt
from tollway.ledger.book import Fenced
from tollway.ledger.gas import LaneTaken
from tollway.payments.gas_lane import GasLane
from tollway.payments.lane_signer import LANE_TRIES, sign_next
from tollway.payments.settlement_signing import Carriage

Store = Callable[[SettlementAttempt], Awaitable[bool | LaneTaken]]


@pytest.fixture
async def harness() -> AsyncIterator[SettlementHarness]:
    async with SettlementHarness() as harness:
        yield harness


class Books:
    """Say in turn what they are told to say, and True from then on."""

    def __init__(self, *answers: bool | LaneTaken | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[int] = []

    async def __call__(self, attempt: SettlementAttempt) -> bool | LaneTaken:
        self.asked.append(attempt.nonce)
        answer = self._answers.pop(0) if self._answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer


def lane_of(harness: SettlementHarness) -> GasLane:
    return harness.tank.lanes(CHAIN)[0]


async def sign(harness: SettlementHarness, store: Store) -> Any:
    carriage = Carriage(
        authorization=harness.payer().authorize(), call_id=CallId("c"), listing_id=ListingId("l"), gas=90_000
    )
    lane = lane_of(harness)
    return await sign_next(
        carriage, lane, store=store, gas=harness.gas, tank=harness.tank, now_ms=harness.read_clock
    )


async def test_many_at_once_get_their_nonces_in_order(harness: SettlementHarness) -> None:
    books = Books()
    signed = await asyncio.gather(*(sign(harness, books) for _ in range(5)))
    assert [attempt.nonce for attempt in signed] == books.asked == [0, 1, 2, 3, 4]


async def test_a_nonce_that_is_taken_is_followed_by_what_the_books_say(harness: SettlementHarness) -> None:
    books = Books(LaneTaken(next_nonce=7), LaneTaken(next_nonce=9))
    assert (await sign(harness, books)).nonce == 9
    assert books.asked == [0, 7, 9]


async def test_a_call_that_is_not_to_have_one_leaves_its_nonce(harness: SettlementHarness) -> None:
    books = Books(False)
    assert await sign(harness, books) == Fenced()
    assert (await sign(harness, books)).nonce == 0
    assert books.asked == [0, 0]


async def test_a_lane_on_which_others_are_always_quicker_is_given_up(harness: SettlementHarness) -> None:
    books = Books(*(LaneTaken(next_nonce=number + 1) for number in range(2 * LANE_TRIES)))
    assert await sign(harness, books) is None
    assert books.asked == list(range(LANE_TRIES))


async def test_where_nobody_knows_whether_a_nonce_was_taken_the_books_are_asked_again(
    harness: SettlementHarness,
) -> None:
    with pytest.raises(ZeroDivisionError):
        await sign(harness, Books(ZeroDivisionError()))
    assert not lane_of(harness).is_known


async def test_without_a_gas_price_nothing_is_signed(harness: SettlementHarness) -> None:
    harness.now_ms += 86_400_000  # what was known is too old
    books = Books()
    assert await sign(harness, books) is None
    assert books.asked == []
