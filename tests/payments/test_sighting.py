"""What the chains say of a transaction that the books do not know: told to its payer, never guessed."""

import pytest

from tests.kit.chain import Transaction
from tollway.errors import Code, Refusal, describe_rate
from tollway.payments.sighting import Lookout, Sighting


@pytest.fixture
def sight(stall):
    async def sight(tx_hash):
        return await Lookout(stall.chain, meter=stall.meter).sight(tx_hash, stall.caller.address)

    return sight


async def test_tells_where_it_was_seen_and_in_which_state(stall, sight) -> None:
    _, second, third = stall.chain.chain_ids
    waiting = Transaction(tx_hash=stall.hash(), sender=stall.caller.address, recipient=None)
    stall.chain.pend(second, waiting)
    mined, failed = stall.pay(chain_id=third), stall.pay(chain_id=second, succeeded=False)
    assert await sight(stall.hash()) == Sighting(state="unseen", reason="unknown_transaction")
    assert await sight(waiting.tx_hash) == Sighting(state="pending", reason="not_mined", chain_id=second)
    assert await sight(mined) == Sighting(state="unseen", reason="not_shown", chain_id=third)
    assert await sight(failed) == Sighting(state="refused", reason="transaction_failed", chain_id=second)


async def test_a_chain_that_is_away_makes_ignorance_no_knowledge(stall, sight) -> None:
    first, second, _ = stall.chain.chain_ids
    mined = stall.pay(chain_id=second)
    stall.chain.take_away(first)
    assert await sight(stall.hash()) is None
    assert await sight(mined) == Sighting(state="unseen", reason="not_shown", chain_id=second)


async def test_is_charged_to_the_wallet_that_asks(stall, sight) -> None:
    await sight(stall.hash())
    assert [signer for _, signer in stall.meter.charged] == [str(stall.caller.address)]
    stall.meter.left = 0
    asked = stall.chain.questions
    with pytest.raises(Refusal) as refused:
        await sight(stall.hash())
    assert (refused.value.problem.code, refused.value.problem.retry_after_s) == (Code.RATE_LIMITED, 17)
    assert refused.value.problem.members == describe_rate("lookups", limit=30, window_s=60)
    assert stall.chain.questions == asked
