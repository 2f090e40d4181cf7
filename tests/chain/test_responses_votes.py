"""Counts the reports of nodes about one transaction."""

from dataclasses import replace

import pytest

from tollway.chain.port import ChainFacts, NotMined
from tollway.chain.responses import BlockHeader, MinedTransaction, TransactionVotes, assemble_facts
from tollway.ids import Address, ChainId, TxHash

CHAIN = ChainId(84532)
MINED = MinedTransaction(
    succeeded=True,
    sender=Address(b"\xa1" * 20),
    recipient=None,
    value=5,
    logs=(),
    block_number=8,
    block_hash=b"\x08" * 32,
    fee_wei=70,
)
UNSEEN = NotMined(chain_id=CHAIN, is_pending=False)
PENDING = NotMined(chain_id=CHAIN, is_pending=True)


def facts(*, head: int = 10, finalized: int = 3, block: int = 8) -> ChainFacts:
    return assemble_facts(
        CHAIN,
        TxHash(b"\x77" * 32),
        MINED,
        block=BlockHeader(number=block, block_hash=b"\x08" * 32, time=block),
        head=BlockHeader(number=head, block_hash=bytes(32), time=head),
        finalized_number=finalized,
    )


def votes(*answers: ChainFacts | NotMined, needed: int = 1) -> TransactionVotes:
    votes = TransactionVotes(chain_id=CHAIN, needed=needed)
    for answer in answers:
        votes.add(answer)
    return votes


def test_a_block_above_the_head_is_the_head() -> None:
    assert (facts(head=7).head_number, facts(head=7).confirmations) == (8, 1)
    assert facts().fee_wei == 70


@pytest.mark.parametrize(
    ("answers", "needed", "outcome"),
    [
        ((), 1, None),
        ((facts(),), 1, facts()),
        ((UNSEEN, facts()), 1, facts()),
        ((UNSEEN,), 1, UNSEEN),
        ((UNSEEN, PENDING), 1, PENDING),
        ((facts(),), 2, None),
        ((UNSEEN,), 2, None),
        ((facts(), UNSEEN, UNSEEN), 2, None),
        ((replace(facts(), value=6), facts(), facts()), 2, facts()),
        ((facts(), replace(facts(), value=6)), 2, None),
        ((facts(head=12, finalized=2), facts()), 2, facts(finalized=2)),
        ((facts(), replace(facts(), fee_wei=None)), 2, facts()),
    ],
    ids=[
        "nobody",
        "one",
        "one that lags before it",
        "not mined",
        "pending for one",
        "one of two",
        "one of two unseen",
        "two unseen beside one that knows",
        "a liar among three",
        "two stories",
        "the most cautious of two",
        "a node that tells no fee",
    ],
)
def test_the_outcome_of_the_reports(
    answers: tuple[ChainFacts | NotMined, ...], needed: int, outcome: ChainFacts | NotMined | None
) -> None:
    assert votes(*answers, needed=needed).outcome == outcome


@pytest.mark.parametrize(
    ("answers", "needed", "first_choice", "last_choice"),
    [
        ((), 1, True, True),
        ((UNSEEN,), 1, True, False),
        ((UNSEEN,), 2, True, True),
        ((facts(),), 1, False, False),
        ((facts(), UNSEEN, UNSEEN), 2, True, True),
    ],
)
def test_not_mined_does_not_wait_for_a_node_that_failed_recently(
    answers: tuple[ChainFacts | NotMined, ...], needed: int, first_choice: bool, last_choice: bool
) -> None:
    asked = votes(*answers, needed=needed)
    assert asked.needs_another_node(is_deferred=False) is first_choice
    assert asked.needs_another_node(is_deferred=True) is last_choice
