"""The checks after the token's: wallets with code, within their limits, and facilitators."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.chain import NO_ANSWER, REVERTED, MemoryChain
from tests.kit.payer import CHAIN, TIMEOUT_S, USDC, AuthorizationSigner, facts_of, requirement_of
from tests.kit.settlement import LISTING, SettlementHarness
from tollway.chain.port import ContractResult
from tollway.chain.tokens import ERC1271_MAGIC, encode_is_valid_signature
from tollway.errors import ChainUnavailable, Code, Problem
from tollway.ledger.records import Authorization, Cover
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.authorization_onchain import (
    SimulatedTransfer,
    explain_failed_simulation,
    find_precheck_refusal,
)
from tollway.payments.eip3009 import authorization_digest

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
    refused = await ask(AskedChain(lambda calldata: answer))
    assert refused is not None
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
            checked = await harness.settlement.check(
                smart,
                requirement_of(),
                timeout_s=TIMEOUT_S,
                lookup=harness.settlement.open_lookup("192.0.2.1"),
                listing_id=LISTING,
            )
            assert isinstance(checked, kind)
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
        with harness.settlement.open_lookup("192.0.2.1") as lookup:
            refused = await harness.settlement.check(
                payer.authorize(), requirement_of(), timeout_s=TIMEOUT_S, lookup=lookup, listing_id=LISTING
            )
        assert isinstance(refused, Problem)
        assert refused.reason == "invalid_exact_evm_transaction_simulation_failed"
        assert refused.detail is not None
        assert OWN_CODE in refused.detail
