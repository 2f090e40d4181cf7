"""A token's own word on its EIP-712 domain."""

import pytest

from tollway.chain.reader import ContractAnswer
from tollway.chain.tokens import compute_domain_separator
from tollway.errors import ChainUnavailable
from tollway.money import TokenDomain
from tollway.payments.token_domain import is_domain_known
from tollway.testing.authorization_samples import CHAIN, USDC
from tollway.testing.memory_chain import MemoryChain
from tollway.testing.settling_scene import TOKEN

OURS = compute_domain_separator(TokenDomain(name="USDC", version="2"), chain_id=CHAIN, token=TOKEN)
OTHER = compute_domain_separator(TokenDomain(name="USD Coin", version="2"), chain_id=CHAIN, token=TOKEN)


@pytest.mark.parametrize(
    ("payload", "reverted", "is_known"),
    [
        (OURS, False, True),
        (OTHER, False, False),
        (b"", False, True),
        (OTHER, True, True),
        (OTHER[:31], False, True),
    ],
)
async def test_only_another_word_counts_against_it(payload: bytes, reverted: bool, is_known: bool) -> None:
    chain = MemoryChain(CHAIN)
    chain.deploy(CHAIN, TOKEN, lambda calldata: ContractAnswer(reverted=reverted, payload=payload))
    assert await is_domain_known(chain, USDC, deadline_s=1.0) is is_known


async def test_a_chain_that_is_away_says_nothing() -> None:
    chain = MemoryChain(CHAIN)
    chain.take_away(CHAIN)
    with pytest.raises(ChainUnavailable):
        await is_domain_known(chain, USDC, deadline_s=1.0)
