"""Many callers share one request to the chain; each request is charged once."""

import asyncio

import pytest

from tests.kit.chain import Transaction
from tollway.chain.port import NotMined, Quorum
from tollway.errors import ChainUnavailable, Code, Refusal, describe_rate
from tollway.payments.transaction_lookup import (
    LookupCharge,
    TransactionLookup,
    TransactionStatus,
    TransactionStatusReader,
)


@pytest.fixture
def charge(harness):
    return lambda: LookupCharge(harness.quota, client_address="192.0.2.7", signer="somebody")


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_charge_is_taken_once(harness, charge) -> None:
    one = charge()
    await one.take()
    await one.take()
    assert harness.quota.charged == [("192.0.2.7", "somebody")]


async def test_a_refused_charge_has_the_wait_and_may_be_tried_again(harness, charge) -> None:
    harness.quota.left = 0
    one = charge()
    with pytest.raises(Refusal) as refused:
        await one.take()
    assert refused.value.problem.code is Code.RATE_LIMITED
    assert refused.value.problem.retry_after_s == 17
    assert refused.value.problem.members == describe_rate("lookups", limit=30, window_s=60)
    harness.quota.left = 1
    await one.take()
    assert len(harness.quota.charged) == 1


async def test_one_flight_for_each_transaction_on_each_chain(harness, charge) -> None:
    lookups, hashes = TransactionLookup(harness.chain), [harness.hash(), harness.hash()]
    chain_ids = harness.chain.chain_ids[:2]
    harness.chain.barrier = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(lookups.fetch(chain_id, tx_hash, charge()))
            for tx_hash in hashes
            for chain_id in chain_ids
            for _ in range(10)
        ]
        await turns()
        harness.chain.barrier.set()
    assert all(isinstance(task.result(), NotMined) for task in tasks)
    assert harness.chain.request_count == len(harness.quota.charged) == 4
    await lookups.fetch(chain_ids[0], hashes[0], charge())
    assert harness.chain.request_count == 5  # a result is not cached


async def test_a_look_up_that_needs_agreement_does_not_share_one_nodes_result(harness, charge) -> None:
    lookups, tx_hash, chain_id = TransactionLookup(harness.chain), harness.hash(), harness.chain.chain_ids[0]
    harness.chain.barrier = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for quorum in (Quorum.ONE, Quorum.AGREED, Quorum.ONE):
            group.create_task(lookups.fetch(chain_id, tx_hash, charge(), quorum=quorum))
        await turns()
        harness.chain.barrier.set()
    assert harness.chain.trusts == [Quorum.ONE, Quorum.AGREED]


async def test_several_look_ups_may_be_cancelled_one_after_another(harness, charge) -> None:
    lookups, tx_hash = TransactionLookup(harness.chain), harness.hash()
    chain_id = harness.chain.chain_ids[0]
    harness.chain.barrier = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for _ in range(4):
            tasks.append(group.create_task(lookups.fetch(chain_id, tx_hash, charge())))
            await turns()
        for leaver in tasks[:3]:
            leaver.cancel()
            await turns()
        harness.chain.barrier.set()
    assert [task.cancelled() for task in tasks] == [True, True, True, False]
    assert isinstance(tasks[3].result(), NotMined)
    assert harness.chain.request_count == 4


async def test_a_refused_look_up_lets_the_next_caller_fetch(harness, charge) -> None:
    lookups, tx_hash = TransactionLookup(harness.chain), harness.hash()
    chain_id = harness.chain.chain_ids[0]
    harness.quota.left = 0
    with pytest.raises(Refusal):
        await lookups.fetch(chain_id, tx_hash, charge())
    harness.quota.left = 1
    assert isinstance(await lookups.fetch(chain_id, tx_hash, charge()), NotMined)


async def test_an_outage_keeps_its_problem(harness, charge) -> None:
    harness.chain.disconnect(*harness.chain.chain_ids)
    chain_id = harness.chain.chain_ids[0]
    with pytest.raises(ChainUnavailable, match="gave a usable response"):
        await TransactionLookup(harness.chain).fetch(chain_id, harness.hash(), charge())


# ---- The status of a transaction that is not in the ledger, by the chains.


@pytest.fixture
def read_status(harness):
    async def read_status(tx_hash):
        return await TransactionStatusReader(harness.chain, quota=harness.quota).read_status(
            tx_hash, harness.caller.address
        )

    return read_status


async def test_returns_the_chain_and_the_state(harness, read_status) -> None:
    _, second, third = harness.chain.chain_ids
    waiting = Transaction(tx_hash=harness.hash(), sender=harness.caller.address, recipient=None)
    harness.chain.pend(second, waiting)
    mined, failed = harness.pay(chain_id=third), harness.pay(chain_id=second, succeeded=False)
    assert await read_status(harness.hash()) == TransactionStatus(
        state="unseen", reason="unknown_transaction"
    )
    assert await read_status(waiting.tx_hash) == TransactionStatus(
        state="pending", reason="not_mined", chain_id=second
    )
    assert await read_status(mined) == TransactionStatus(state="unseen", reason="not_shown", chain_id=third)
    assert await read_status(failed) == TransactionStatus(
        state="refused", reason="transaction_failed", chain_id=second
    )


async def test_an_unavailable_chain_gives_no_status(harness, read_status) -> None:
    first, second, _ = harness.chain.chain_ids
    mined = harness.pay(chain_id=second)
    harness.chain.disconnect(first)
    assert await read_status(harness.hash()) is None
    assert await read_status(mined) == TransactionStatus(state="unseen", reason="not_shown", chain_id=second)


async def test_is_charged_to_the_requesting_wallet(harness, read_status) -> None:
    await read_status(harness.hash())
    assert [signer for _, signer in harness.quota.charged] == [str(harness.caller.address)]
    harness.quota.left = 0
    asked = harness.chain.request_count
    with pytest.raises(Refusal) as refused:
        await read_status(harness.hash())
    assert (refused.value.problem.code, refused.value.problem.retry_after_s) == (Code.RATE_LIMITED, 17)
    assert refused.value.problem.members == describe_rate("lookups", limit=30, window_s=60)
    assert harness.chain.request_count == asked
