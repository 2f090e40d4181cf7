"""The status of a transaction that is not in the ledger, by the chains."""

import pytest

from tests.kit.chain import Transaction
from tollway.errors import Code, Refusal, describe_rate
from tollway.payments.transaction_lookup import TransactionStatus, TransactionStatusReader


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
