"""Finds the use of an authorisation by the logs of the chain alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.chain import NO_ANSWER, REVERTED, MemoryChain
from tests.kit.narrowing import existing, of_type
from tests.kit.payer import CHAIN, USDC, AuthorizationSigner, facts_of, requirement_of
from tests.kit.settlement import TOKEN, SettlementHarness
from tollway.chain.port import ChainFacts, ContractResult, Quorum
from tollway.chain.tokens import ERC1271_MAGIC, encode_is_valid_signature
from tollway.errors import ChainUnavailable, Code, Problem
from tollway.ids import Address, ChainId, TxHash
from tollway.ledger.records import Authorization, Cover
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.authorization_onchain import (
    BACK_BLOCKS,
    Cancelled,
    SimulatedTransfer,
    TransferFound,
    UseNotFound,
    explain_failed_simulation,
    find_end,
    find_precheck_refusal,
    find_transfer,
    find_use,
)
from tollway.payments.eip3009 import authorization_digest

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
    facts = of_type(ChainFacts, await chain.fetch_facts(CHAIN, tx_hash))
    transfer = existing(find_transfer(facts, AUTHORIZATION, quorum=Quorum.AGREED))
    assert (transfer.tx_hash, transfer.block_number) == (tx_hash, facts.block_number)
    assert not transfer.is_final
    chain.bury(CHAIN, 20)
    final = of_type(ChainFacts, await chain.fetch_facts(CHAIN, tx_hash))
    found = existing(find_transfer(final, AUTHORIZATION, quorum=Quorum.AGREED))
    assert found.is_final
    assert find_transfer(final, AUTHORIZATION, quorum=Quorum.ONE) == replace(found, is_final=False)


@pytest.mark.parametrize("quorum", Quorum)
async def test_one_nodes_response_makes_no_transfer_final(chain: MemoryChain, quorum: Quorum) -> None:
    chain.settle_by_third_party(CHAIN, TOKEN, **TERMS)  # type: ignore[arg-type]  # fields of a transfer
    chain.bury(CHAIN, 20)
    use = of_type(TransferFound, await find_use(chain, AUTHORIZATION, from_block=0, depth=1, quorum=quorum))
    assert use.transfer.is_final is (quorum is Quorum.AGREED)


# ---- The checks after the token's: wallets with code, within their limits, and facilitators.


YES = ContractResult(reverted=False, payload=ERC1271_MAGIC.ljust(32, b"\0"))
GAS_MAX, BYTES_MAX = DEFAULT_LIMITS.erc1271_gas, DEFAULT_LIMITS.erc1271_bytes_max
SMART = AuthorizationSigner().authorize(signature=b"only a contract reads this")
NO_KEY = AuthorizationSigner().authorize(signature=bytes(64) + b"\1")


class AskedChain(MemoryChain):
    """Records the calls of a contract."""

    def __init__(self, answer: Callable[[bytes], ContractResult]) -> None:
        super().__init__(CHAIN)
        self.deploy(CHAIN, SMART.payer, answer)
        self.calls: list[dict[str, Any]] = []

    async def call_contract(self, *arguments: Any, **options: Any) -> ContractResult:
        self.calls.append(options)
        return await super().call_contract(*arguments, **options)


async def ask(
    chain: AskedChain, authorization: Authorization = SMART, *, is_owner: bool = False, **facts: Any
) -> Problem | None:
    return await find_precheck_refusal(
        authorization,
        requirement_of(),
        SimulatedTransfer(
            facts=facts_of(**{"code_size": 23, **facts}),
            to=authorization.token,
            calldata=b"",
            deployment=None,
            gas_max=DEFAULT_LIMITS.settlement_gas_max,
        ),
        signer=authorization.payer if is_owner else None,
        chains=chain,
        facilitator=None,
        limits=DEFAULT_LIMITS,
    )


@pytest.mark.parametrize("authorization", [SMART, NO_KEY])
async def test_a_wallet_with_code_is_called_within_its_limits(authorization: Authorization) -> None:
    assert USDC.domain is not None
    shown = (
        authorization.signature if authorization is SMART else bytes(64) + b"\x1c"
    )  # as the token shows it
    chain = AskedChain(lambda calldata: YES)
    assert await ask(chain, authorization) is None
    (call,) = chain.calls
    assert call == {
        "to": authorization.payer,
        "calldata": encode_is_valid_signature(
            digest=authorization_digest(authorization, USDC.domain), signature=shown
        ),
        "gas": 200_000,
        "bytes_max": 4 * 1024 + 1,
        "deadline_s": 2.0,
    }


@pytest.mark.parametrize(
    "answer",
    [
        REVERTED,
        NO_ANSWER,
        ContractResult(reverted=False, payload=bytes(32)),
        ContractResult(reverted=False, payload=ERC1271_MAGIC),
        ContractResult(reverted=False, payload=YES.payload.ljust(BYTES_MAX + 1, b"\0")),
        ContractResult(reverted=True, payload=YES.payload),
    ],
)
async def test_refuses_every_result_that_does_not_confirm_within_the_limits(answer: ContractResult) -> None:
    refused = existing(await ask(AskedChain(lambda calldata: answer)))
    assert (refused.code, refused.reason) == (
        Code.PAYMENT_VERIFICATION_FAILED,
        "invalid_exact_evm_payload_signature",
    )


async def test_a_long_confirmation_within_the_limit_counts() -> None:
    longest = ContractResult(reverted=False, payload=YES.payload.ljust(BYTES_MAX, b"\0"))
    assert await ask(AskedChain(lambda calldata: longest)) is None


async def test_a_plain_wallet_is_not_called() -> None:
    chain = AskedChain(lambda calldata: REVERTED)
    assert await ask(chain, is_owner=True, code_size=0) is None
    assert chain.calls == []


@pytest.mark.parametrize(("gas_estimate", "is_asked"), [(GAS_MAX, False), (GAS_MAX + 1, True), (None, True)])
async def test_the_key_of_a_delegated_account_is_enough_where_its_code_is_cheap(
    gas_estimate: int | None, is_asked: bool
) -> None:
    chain = AskedChain(lambda calldata: REVERTED)
    refused = await ask(chain, is_owner=True, gas_estimate=gas_estimate)
    assert (refused is not None, bool(chain.calls)) == (is_asked, is_asked)


async def test_an_unavailable_chain_is_not_a_refusal() -> None:
    chain = AskedChain(lambda calldata: YES)
    chain.disconnect(CHAIN)
    with pytest.raises(ChainUnavailable):
        await ask(chain)


async def test_the_check_before_a_call_calls_the_wallet_once() -> None:
    async with SettlementHarness() as harness:
        payer = harness.payer()
        smart = replace(payer.authorize(), signature=b"only a contract reads this")
        for answer, kind in ((YES, Cover), (REVERTED, Problem)):
            harness.chain.deploy(CHAIN, payer.address, lambda calldata, answer=answer: answer)
            before = harness.chain.request_count
            assert isinstance(await harness.check(smart), kind)
            assert harness.chain.request_count == before + 2


OWN_CODE = "own code refuses the signature"


@pytest.mark.parametrize(
    ("answer", "code_size", "is_named"),
    [
        (REVERTED, 23, True),
        (NO_ANSWER, 23, True),
        (YES, 23, False),
        (REVERTED, 500, True),
        (REVERTED, 0, False),
    ],
)
async def test_a_failed_simulation_names_the_code_of_the_wallet_where_it_refuses(
    answer: ContractResult, code_size: int, is_named: bool
) -> None:
    """The token asks the code of a delegated account (EIP-7702), not its key: the balance is not the cause."""
    chain = AskedChain(lambda calldata: answer)
    detail = await explain_failed_simulation(
        SMART, USDC, facts_of(code_size=code_size), chains=chain, limits=DEFAULT_LIMITS
    )
    assert (detail is not None) == is_named
    if detail is not None:
        assert OWN_CODE in detail
        assert "EIP-7702" in detail
    assert [call["gas"] for call in chain.calls] == [GAS_MAX] * (code_size > 0)


async def test_without_the_result_of_the_wallet_the_simulation_alone_is_named() -> None:
    chain = AskedChain(lambda calldata: REVERTED)
    chain.disconnect(CHAIN)
    detail = await explain_failed_simulation(
        SMART, USDC, facts_of(code_size=23), chains=chain, limits=DEFAULT_LIMITS
    )
    assert detail is None


async def test_a_delegated_account_whose_code_refuses_learns_so() -> None:
    async with SettlementHarness() as harness:
        payer = harness.payer()
        harness.chain.deploy(CHAIN, payer.address, lambda calldata: NO_ANSWER)
        harness.chain.refuse_transfer(CHAIN, payer.address, payer.nonce)
        refused = of_type(Problem, await harness.check(payer.authorize()))
        assert refused.reason == "invalid_exact_evm_transaction_simulation_failed"
        assert refused.detail is not None
        assert OWN_CODE in refused.detail
