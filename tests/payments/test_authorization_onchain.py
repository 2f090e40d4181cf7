"""Finds the use of an authorisation by the logs of the chain alone."""

from dataclasses import replace
from typing import Any

import pytest

from tests.kit.chain import MemoryChain
from tests.kit.payer import CHAIN, AuthorizationSigner
from tests.kit.settlement import TOKEN
from tollway.chain.port import ChainFacts, Quorum
from tollway.errors import ChainUnavailable
from tollway.ids import Address, ChainId, TxHash
from tollway.payments.authorization_onchain import (
    BACK_BLOCKS,
    Cancelled,
    TransferFound,
    UseNotFound,
    find_end,
    find_transfer,
    find_use,
)

AUTHORIZATION = AuthorizationSigner().authorize()
TERMS = {
    "payer": AUTHORIZATION.payer,
    "payee": AUTHORIZATION.payee,
    "base_units": AUTHORIZATION.base_units,
    "nonce": AUTHORIZATION.nonce,
}


@pytest.fixture
def chain() -> MemoryChain:
    return MemoryChain(CHAIN)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, TransferFound),
        ({"payee": Address(b"\xee" * 20)}, Cancelled),
        ({"base_units": AUTHORIZATION.base_units + 1}, Cancelled),
        ({"nonce": b"\x01" * 32}, UseNotFound),
        ({"payer": Address(b"\xee" * 20)}, UseNotFound),
    ],
)
async def test_only_the_same_from_to_and_value_pay(
    chain: MemoryChain, change: dict[str, object], kind: type
) -> None:
    chain.settle_by_third_party(CHAIN, TOKEN, **{**TERMS, **change})  # type: ignore[arg-type]  # fields of a transfer
    assert isinstance(await find_use(chain, AUTHORIZATION, from_block=0, depth=1), kind)


async def test_a_cancelled_authorisation_never_pays(chain: MemoryChain) -> None:
    tx_hash = chain.cancel_authorization(CHAIN, TOKEN, payer=AUTHORIZATION.payer, nonce=AUTHORIZATION.nonce)
    assert await find_use(chain, AUTHORIZATION, from_block=0, depth=1) == Cancelled(tx_hash=tx_hash)


class LyingChain(MemoryChain):
    """Names another transaction than the one that ended the authorisation."""

    told: TxHash | None = None

    async def find_authorization_use(self, chain_id: ChainId, **asked: Any) -> TxHash | None:
        return self.told


@pytest.mark.parametrize(
    "change",
    [{"nonce": b"\x01" * 32}, {"payer": Address(b"\xee" * 20)}, {"nonce": b"\x01" * 32, "base_units": 1}],
)
async def test_a_transaction_without_the_nonce_is_not_its_end(change: dict[str, object]) -> None:
    """If any transaction counted, a node could make the gateway release a call whose transfer can still be made."""
    chain = LyingChain(CHAIN)
    chain.effective_logs = chain.settle_by_third_party(CHAIN, TOKEN, **{**TERMS, **change})  # type: ignore[arg-type]  # fields of a transfer
    assert await find_use(chain, AUTHORIZATION, from_block=0, depth=1) == UseNotFound()


async def test_the_search_starts_some_blocks_before_the_given_block(chain: MemoryChain) -> None:
    """The node that named the block may have been ahead of the others, or on a fork."""
    chain.settle_by_third_party(CHAIN, TOKEN, **TERMS)  # type: ignore[arg-type]  # fields of a transfer
    first = chain.head(CHAIN).number
    chain.bury(CHAIN, 100)
    assert isinstance(
        await find_use(chain, AUTHORIZATION, from_block=first + BACK_BLOCKS, depth=1), TransferFound
    )
    later = first + BACK_BLOCKS + 1
    assert await find_use(chain, AUTHORIZATION, from_block=later, depth=1) == UseNotFound()
    assert await find_end(chain, AUTHORIZATION, from_block=later) is None
    assert await find_end(chain, AUTHORIZATION, from_block=0) is not None


async def test_find_end_returns_a_shallow_end(chain: MemoryChain) -> None:
    tx_hash = chain.settle_by_third_party(CHAIN, TOKEN, **TERMS)  # type: ignore[arg-type]  # fields of a transfer
    assert await find_end(chain, AUTHORIZATION, from_block=0) == tx_hash


async def test_a_use_that_is_not_deep_enough_is_not_found(chain: MemoryChain) -> None:
    chain.settle_by_third_party(CHAIN, TOKEN, **TERMS)  # type: ignore[arg-type]  # fields of a transfer
    assert await find_use(chain, AUTHORIZATION, from_block=0, depth=2) == UseNotFound()
    chain.bury(CHAIN, 1)
    assert isinstance(await find_use(chain, AUTHORIZATION, from_block=0, depth=2), TransferFound)


async def test_an_unavailable_chain_raises(chain: MemoryChain) -> None:
    chain.disconnect(CHAIN)
    with pytest.raises(ChainUnavailable):
        await find_use(chain, AUTHORIZATION, from_block=0, depth=1)


async def test_a_transfer_names_its_block_and_whether_it_is_final(chain: MemoryChain) -> None:
    tx_hash = chain.settle_by_third_party(CHAIN, TOKEN, **TERMS)  # type: ignore[arg-type]  # fields of a transfer
    facts = await chain.fetch_facts(CHAIN, tx_hash)
    assert isinstance(facts, ChainFacts)
    transfer = find_transfer(facts, AUTHORIZATION, quorum=Quorum.AGREED)
    assert transfer is not None
    assert (transfer.tx_hash, transfer.block_number) == (tx_hash, facts.block_number)
    assert not transfer.is_final
    chain.bury(CHAIN, 20)
    final = await chain.fetch_facts(CHAIN, tx_hash)
    assert isinstance(final, ChainFacts)
    found = find_transfer(final, AUTHORIZATION, quorum=Quorum.AGREED)
    assert found is not None
    assert found.is_final
    assert find_transfer(final, AUTHORIZATION, quorum=Quorum.ONE) == replace(found, is_final=False)


@pytest.mark.parametrize("quorum", Quorum)
async def test_one_nodes_response_makes_no_transfer_final(chain: MemoryChain, quorum: Quorum) -> None:
    chain.settle_by_third_party(CHAIN, TOKEN, **TERMS)  # type: ignore[arg-type]  # fields of a transfer
    chain.bury(CHAIN, 20)
    use = await find_use(chain, AUTHORIZATION, from_block=0, depth=1, quorum=quorum)
    assert isinstance(use, TransferFound)
    assert use.transfer.is_final is (quorum is Quorum.AGREED)
