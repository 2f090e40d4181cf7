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
from tollway.payments.authorization_onchain import find_precheck_refusal
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
        facts_of(**{"code_size": 23, **facts}),
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
