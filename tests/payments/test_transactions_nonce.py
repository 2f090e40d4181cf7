"""The next transaction of a gas key: the ledger decides its nonce, and a refused nonce leaves no gap."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.kit.payer import CHAIN
from tests.kit.settlement import SettlementHarness
from tollway.ids import CallId, ListingId
from tollway.ledger.ledger import Fenced, NonceUnavailable
from tollway.ledger.records import SettlementAttempt
from tollway.payments.nonces import NonceSequence
from tollway.payments.transactions import NONCE_TRIES_MAX, TransferCall, sign_next

Store = Callable[[SettlementAttempt], Awaitable[bool | NonceUnavailable]]


@pytest.fixture
async def harness() -> AsyncIterator[SettlementHarness]:
    async with SettlementHarness() as harness:
        yield harness


class FakeNonceLedger:
    """Returns the given results in turn, and True afterwards."""

    def __init__(self, *answers: bool | NonceUnavailable | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[int] = []

    async def __call__(self, attempt: SettlementAttempt) -> bool | NonceUnavailable:
        self.asked.append(attempt.nonce)
        answer = self._answers.pop(0) if self._answers else True
        if isinstance(answer, Exception):
            raise answer
        return answer


def sequence_of(harness: SettlementHarness) -> NonceSequence:
    return harness.gas_budget.sequences(CHAIN)[0]


async def sign(harness: SettlementHarness, store: Store) -> Any:
    transfer_call = TransferCall(
        authorization=harness.payer().authorize(), call_id=CallId("c"), listing_id=ListingId("l"), gas=90_000
    )
    sequence = sequence_of(harness)
    return await sign_next(
        transfer_call,
        sequence,
        store=store,
        gas_ledger=harness.gas,
        gas_budget=harness.gas_budget,
        now_ms=harness.read_clock,
    )


async def test_concurrent_calls_get_nonces_in_order(harness: SettlementHarness) -> None:
    ledger = FakeNonceLedger()
    signed = await asyncio.gather(*(sign(harness, ledger) for _ in range(5)))
    assert [attempt.nonce for attempt in signed] == ledger.asked == [0, 1, 2, 3, 4]


async def test_a_taken_nonce_is_followed_by_the_ledgers_next(harness: SettlementHarness) -> None:
    ledger = FakeNonceLedger(NonceUnavailable(next_nonce=7), NonceUnavailable(next_nonce=9))
    assert (await sign(harness, ledger)).nonce == 9
    assert ledger.asked == [0, 7, 9]


async def test_a_fenced_call_leaves_its_nonce(harness: SettlementHarness) -> None:
    ledger = FakeNonceLedger(False)
    assert await sign(harness, ledger) == Fenced()
    assert (await sign(harness, ledger)).nonce == 0
    assert ledger.asked == [0, 0]


async def test_tries_for_a_nonce_are_limited(harness: SettlementHarness) -> None:
    ledger = FakeNonceLedger(
        *(NonceUnavailable(next_nonce=number + 1) for number in range(2 * NONCE_TRIES_MAX))
    )
    assert await sign(harness, ledger) is None
    assert ledger.asked == list(range(NONCE_TRIES_MAX))


async def test_an_unknown_store_reads_the_nonce_again(
    harness: SettlementHarness,
) -> None:
    with pytest.raises(ZeroDivisionError):
        await sign(harness, FakeNonceLedger(ZeroDivisionError()))
    assert not sequence_of(harness).is_known


async def test_without_a_gas_price_nothing_is_signed(harness: SettlementHarness) -> None:
    harness.now_ms += 86_400_000  # what was known is too old
    ledger = FakeNonceLedger()
    assert await sign(harness, ledger) is None
    assert ledger.asked == []
