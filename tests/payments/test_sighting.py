"""What the chains say of a transaction that the books do not know: told to its payer, never guessed."""

import pytest

from tests.kit.chain import Transaction
from tollway.errors import Code, Refusal, describe_rate
from tollway.payments.sighting import Lookout, Sighting


@pytest.fixture
def sight(harness):
    async def sight(tx_hash):
        return await Lookout(harness.chain, meter=harness.meter).sight(tx_hash, harness.caller.address)

    return sight


async def test_tells_where_it_was_seen_and_in_which_state(harness, sight) -> None:
    _, second, third = harness.chain.chain_ids
    waiting = Transaction(tx_hash=harness.hash(), sender=harness.caller.address, recipient=None)
    harness.chain.pend(second, waiting)
    mined, failed = harness.pay(chain_id=third), harness.pay(chain_id=second, succeeded=False)
    assert await sight(harness.hash()) == Sighting(state="unseen", reason="unknown_transaction")
    assert await sight(waiting.tx_hash) == Sighting(state="pending", reason="not_mined", chain_id=second)
    assert await sight(mined) == Sighting(state="unseen", reason="not_shown", chain_id=third)
    assert await sight(failed) == Sighting(state="refused", reason="transaction_failed", chain_id=second)


async def test_a_chain_that_is_away_makes_ignorance_no_knowledge(harness, sight) -> None:
    first, second, _ = harness.chain.chain_ids
    mined = harness.pay(chain_id=second)
    harness.chain.disconnect(first)
    assert await sight(harness.hash()) is None
    assert await sight(mined) == Sighting(state="unseen", reason="not_shown", chain_id=second)


async def test_is_charged_to_the_wallet_that_asks(harness, sight) -> None:
    await sight(harness.hash())
    assert [signer for _, signer in harness.meter.charged] == [str(harness.caller.address)]
    harness.meter.left = 0
    asked = harness.chain.request_count
    with pytest.raises(Refusal) as refused:
        await sight(harness.hash())
    assert (refused.value.problem.code, refused.value.problem.retry_after_s) == (Code.RATE_LIMITED, 17)
    assert refused.value.problem.members == describe_rate("lookups", limit=30, window_s=60)
    assert harness.chain.request_count == asked
