"""Polling receipts: many waiters in one request, to the required depth, through failures."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.chain import MemoryChain, Transaction
from tests.kit.payer import CHAIN
from tests.kit.settlement import TOKEN
from tests.kit.waits import until
from tollway.chain.port import ChainFacts, NotMined, Quorum
from tollway.ids import Address, ChainId, TxHash, keccak256
from tollway.payments.receipts import ROUNDS_UNTIL_ALL, ReceiptPoller

SENDER = Address(b"\x01" * 20)
HASHES = [TxHash(keccak256(b"%d" % n)) for n in range(30)]


def transaction(tx_hash: TxHash) -> Transaction:
    return Transaction(tx_hash=tx_hash, sender=TOKEN, recipient=TOKEN)


@pytest.fixture
def chain() -> MemoryChain:
    return MemoryChain(CHAIN)


@pytest.fixture
async def receipt_poller(chain: MemoryChain) -> AsyncIterator[ReceiptPoller]:
    receipt_poller = ReceiptPoller(chain, (CHAIN,), pause_min_s=0.001, pause_max_s=0.002)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(receipt_poller.run())
        yield receipt_poller
        running.cancel()


async def rounds(chain: MemoryChain, count: int) -> None:
    """Waits until that number of further requests was sent."""
    wanted = chain.requests["fetch_receipts", CHAIN] + count
    await until(lambda: chain.requests["fetch_receipts", CHAIN] >= wanted)


async def test_all_waiters_share_one_request(chain: MemoryChain, receipt_poller: ReceiptPoller) -> None:
    chain.mine(CHAIN, *map(transaction, HASHES))
    facts = await asyncio.gather(
        *(receipt_poller.wait_mined(CHAIN, one, sender=SENDER, depth=1) for one in HASHES)
    )
    assert [one.tx_hash for one in facts] == HASHES
    assert chain.request_count <= 3


async def test_a_transaction_that_is_never_mined_does_not_block_later_ones(
    chain: MemoryChain, receipt_poller: ReceiptPoller
) -> None:
    async with asyncio.TaskGroup() as group:
        stuck = group.create_task(receipt_poller.wait_mined(CHAIN, HASHES[0], sender=SENDER, depth=1))
        await rounds(chain, 1)
        chain.mine(CHAIN, transaction(HASHES[1]))
        behind = await receipt_poller.wait_mined(CHAIN, HASHES[1], sender=SENDER, depth=1)
        assert behind.tx_hash == HASHES[1]
        assert not stuck.done()
        stuck.cancel()


async def test_only_the_first_transaction_of_a_sender_is_polled(
    chain: MemoryChain, receipt_poller: ReceiptPoller
) -> None:
    asked: list[int] = []
    fetch = chain.fetch_receipts

    async def count(
        chain_id: ChainId, hashes: Sequence[TxHash], **options: Any
    ) -> dict[TxHash, ChainFacts | NotMined]:
        asked.append(len(hashes))
        return await fetch(chain_id, hashes, **options)

    chain.fetch_receipts = count  # type: ignore[method-assign,assignment]  # the fake's own hook
    async with asyncio.TaskGroup() as group:
        waiting = [
            group.create_task(receipt_poller.wait_mined(CHAIN, one, sender=SENDER, depth=1)) for one in HASHES
        ]
        await rounds(chain, 2 * ROUNDS_UNTIL_ALL)
        for task in waiting:
            task.cancel()
    assert asked.count(1) >= len(asked) - 3


async def test_waits_for_depth_and_through_an_outage(
    chain: MemoryChain, receipt_poller: ReceiptPoller
) -> None:
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(receipt_poller.wait_mined(CHAIN, HASHES[0], sender=SENDER, depth=2))
        await rounds(chain, 2)
        chain.mine(CHAIN, transaction(HASHES[0]))
        await rounds(chain, 2)
        assert not waiting.done()
        chain.disconnect(CHAIN)
        chain.bury(CHAIN, 1)
        await rounds(chain, 2)
        assert not waiting.done()
        chain.reconnect(CHAIN)
    assert isinstance(waiting.result(), ChainFacts)


async def test_a_displaced_block_does_not_count(chain: MemoryChain, receipt_poller: ReceiptPoller) -> None:
    chain.mine(CHAIN, transaction(HASHES[0]))
    chain.lies[HASHES[0]] = lambda facts: replace(facts, canonical_hash=b"\x01" * 32)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(receipt_poller.wait_mined(CHAIN, HASHES[0], sender=SENDER, depth=1))
        await rounds(chain, 3)
        assert not waiting.done()
        chain.lies.clear()


async def test_without_waiters_nothing_is_polled(chain: MemoryChain, receipt_poller: ReceiptPoller) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.005):
            await receipt_poller.wait_mined(CHAIN, HASHES[0], sender=SENDER, depth=1)
    await asyncio.sleep(0.005)
    asked = chain.request_count
    await asyncio.sleep(0.01)
    assert chain.request_count == asked


async def test_an_error_in_one_round_does_not_stop_polling(
    chain: MemoryChain, receipt_poller: ReceiptPoller
) -> None:
    fetch = chain.fetch_receipts

    async def fail(*_: object, **options: object) -> object:
        chain.fetch_receipts = fetch  # type: ignore[method-assign]  # the fake's own hook
        raise RuntimeError("a bug")

    chain.fetch_receipts = fail  # type: ignore[method-assign,assignment]  # the fake's own hook
    chain.mine(CHAIN, transaction(HASHES[0]))
    assert (await receipt_poller.wait_mined(CHAIN, HASHES[0], sender=SENDER, depth=1)).tx_hash == HASHES[0]


async def test_each_waiter_gets_the_receipt_by_its_own_quorum(
    chain: MemoryChain, receipt_poller: ReceiptPoller
) -> None:
    chain.leave_one_node(CHAIN)
    chain.mine(CHAIN, *(transaction(one) for one in HASHES[:2]))
    async with asyncio.TaskGroup() as group:
        little, much = (
            group.create_task(receipt_poller.wait_mined(CHAIN, one, sender=SENDER, depth=1, quorum=quorum))
            for one, quorum in zip(HASHES, (Quorum.ONE, Quorum.AGREED), strict=False)
        )
        assert (await little).tx_hash == HASHES[0]
        await rounds(chain, 2 * ROUNDS_UNTIL_ALL)
        assert not much.done()
        chain.reconnect(CHAIN)
        assert (await much).tx_hash == HASHES[1]
